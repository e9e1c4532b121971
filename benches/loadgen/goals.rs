//! The goals table: every row measured in turn, several rounds, medians. Broker and floor of a row run right after each
//! other, and their ratio is taken within the round, so that a machine that slows down between rounds does not count.
#![forbid(unsafe_code)]

use std::path::Path;

use serde_json::json;

use super::options::{Mode, Options, Verb};
use super::requests::Shape;
use super::start::{EmptyStart, ManyPartitions, Restart, empty};
use super::workload::{Outcome, Workload};
use super::{library, picture, report};
use crate::support::table::Table;
use crate::support::{Result, machine, units};

/// A workload with its runs: of each round one on the broker and one on the floor.
#[derive(Debug)]
struct Pairs {
    workload: Workload,
    rounds: Vec<[Outcome; 2]>,
}

/// What all rounds gave.
#[derive(Debug)]
struct Measured {
    produce: Pairs,
    batch: Pairs,
    produce_always: Pairs,
    batch_always: Pairs,
    one_at_a_time: Pairs,
    fetch: Pairs,
    library: Vec<library::Run>,
    empty: Vec<EmptyStart>,
    clean: Vec<Restart>,
    killed: Vec<Restart>,
    many: (u32, u32, u64),
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    what: String,
    goal: &'static str,
    measured: String,
    floor: String,
    ratio: String,
    holds: Option<bool>,
}

/// Measures all and prints the table.
///
/// # Errors
/// What went wrong, as a sentence.
pub(crate) fn run(options: &Options) -> Result<()> {
    let parent = options.data_dir.as_deref();
    let rounds = if options.quick { 1 } else { options.rounds };
    let measured = Measured::measure(parent, rounds, options.quick)?;
    let rows = measured.rows();
    if options.json {
        for row in &rows {
            println!("{}", row.json());
        }
    } else {
        let mut table = Table::new(&["what", "goal", "measured", "floor", "ratio", "verdict"]);
        for row in &rows {
            table.row(row.cells());
        }
        println!("{}", machine::describe(&machine::data_parent(parent)));
        println!(
            "medians of {rounds} round{}\n",
            if rounds == 1 { "" } else { "s" }
        );
        print!("{}", table.render());
        for pairs in measured.workloads() {
            if let Some(last) = pairs.rounds.last() {
                println!(
                    "\nlast round of: {}\n{}",
                    pairs.workload.describe(),
                    report::table(last)
                );
            }
        }
    }
    if let Some(file) = &options.svg {
        let rows: Vec<_> = measured
            .workloads()
            .into_iter()
            .filter_map(|pairs| {
                let outcomes = pairs.rounds.last()?;
                Some(picture::Row {
                    title: pairs.workload.describe(),
                    outcomes,
                })
            })
            .collect();
        picture::draw(file, &rows)?;
    }
    Ok(())
}

impl Pairs {
    fn new(mode: Mode, verb: Verb, fsync: &str, records: u64) -> Self {
        let shape = Shape {
            verb,
            size: 100,
            batch: 100,
            partitions: 1,
        };
        let workload = Workload {
            mode,
            shape,
            records,
            connections: 1,
            depth: if verb == Verb::Batch { 100 } else { 16_384 },
            fsync: fsync.to_owned(),
            rate: None,
            fetch_bytes: 1 << 20,
            decode: false,
            keep: false,
        };
        Self {
            workload,
            rounds: Vec::new(),
        }
    }

    fn measure(&mut self, parent: Option<&Path>) -> Result<()> {
        eprintln!("{}", self.workload.describe());
        let broker = self.workload.on_own_broker(parent)?;
        let floor = self.workload.on_floor(parent)?;
        let both = broker
            .into_iter()
            .zip(floor)
            .next()
            .ok_or("a workload without a floor")?;
        self.rounds.push([both.0, both.1]);
        Ok(())
    }

    /// The median over the rounds of something about broker and floor.
    fn median(&self, f: impl Fn(&Outcome, &Outcome) -> f64) -> f64 {
        units::median(
            &self
                .rounds
                .iter()
                .map(|[broker, floor]| f(broker, floor))
                .collect::<Vec<_>>(),
        )
    }

    fn records_per_s(&self) -> f64 {
        self.median(|broker, _| broker.records_per_s())
    }

    fn cpu_us(&self) -> f64 {
        self.median(|broker, _| cpu(broker))
    }

    /// The rows of a pipelined workload's throughput and processor time. Goals are filled in by the caller.
    fn throughput_rows(&self, what: &str) -> [Row; 2] {
        let rate = Row {
            what: format!("{what}: records/s"),
            goal: "-",
            measured: units::grouped(self.records_per_s()),
            floor: units::grouped(self.median(|_, floor| floor.records_per_s())),
            ratio: format!(
                "{:.2}",
                self.median(|b, f| b.records_per_s() / f.records_per_s())
            ),
            holds: None,
        };
        let per_byte = |o: &Outcome| o.cpu_ns_per_byte().unwrap_or(0.0);
        let time = Row {
            what: format!("{what}: broker CPU per record (per byte)"),
            goal: "-",
            measured: format!(
                "{:.3} us ({:.2} ns)",
                self.cpu_us(),
                self.median(|b, _| per_byte(b))
            ),
            floor: format!(
                "{:.3} us ({:.2} ns)",
                self.median(|_, floor| cpu(floor)),
                self.median(|_, floor| per_byte(floor))
            ),
            ratio: format!("{:.2}", self.median(|b, f| cpu(b) / cpu(f).max(1e-9))),
            holds: None,
        };
        [rate, time]
    }
}

fn cpu(outcome: &Outcome) -> f64 {
    outcome.cpu_us_per_record().unwrap_or(0.0)
}

impl Measured {
    fn measure(parent: Option<&Path>, rounds: u32, quick: bool) -> Result<Self> {
        let scale = |records: u64| if quick { records / 50 } else { records };
        let many = if quick { (50, 4) } else { (1_000, 10) };
        let mut all = Self {
            produce: Pairs::new(Mode::Produce, Verb::Produce, "never", scale(10_000_000)),
            batch: Pairs::new(Mode::Produce, Verb::Batch, "never", scale(10_000_000)),
            produce_always: Pairs::new(Mode::Produce, Verb::Produce, "always", scale(5_000_000)),
            batch_always: Pairs::new(Mode::Produce, Verb::Batch, "always", scale(5_000_000)),
            one_at_a_time: Pairs::new(Mode::Latency, Verb::Put, "never", scale(50_000)),
            fetch: Pairs::new(Mode::Fetch, Verb::Produce, "never", scale(10_000_000)),
            library: Vec::new(),
            empty: Vec::new(),
            clean: Vec::new(),
            killed: Vec::new(),
            many: (many.0, many.1, 0),
        };
        eprintln!("{} partitions of {} segments are built", many.0, many.1);
        let partitions = ManyPartitions::build(parent, many.0, many.1)?;
        all.many.2 = partitions.log_bytes;
        for _ in 0..rounds {
            for _ in 0..3 {
                all.empty.push(empty(parent)?);
            }
            for pairs in [
                &mut all.produce,
                &mut all.produce_always,
                &mut all.batch,
                &mut all.batch_always,
                &mut all.one_at_a_time,
                &mut all.fetch,
            ] {
                pairs.measure(parent)?;
            }
            eprintln!("the client library");
            let run = library::run(parent, scale(10_000_000))?;
            all.library.push(run);
            eprintln!("restarts");
            all.clean.push(partitions.after_clean_stop()?);
            all.killed.push(partitions.after_kill()?);
        }
        Ok(all)
    }

    fn workloads(&self) -> [&Pairs; 6] {
        [
            &self.produce,
            &self.produce_always,
            &self.batch,
            &self.batch_always,
            &self.one_at_a_time,
            &self.fetch,
        ]
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.produce_rows();
        rows.extend(self.read_rows());
        rows.extend(self.library_rows());
        rows.extend(self.start_rows());
        rows
    }

    fn produce_rows(&self) -> Vec<Row> {
        let [mut rate, mut time] = self.produce.throughput_rows("PRODUCE, fsync never");
        rate.goal = "5,000,000";
        rate.holds = Some(self.produce.records_per_s() >= 5e6);
        time.goal = "0.11 us";
        time.holds = Some(self.produce.cpu_us() <= 0.11);
        let [batch_rate, mut batch_time] = self.batch.throughput_rows("BATCH of 100, fsync never");
        batch_time.goal = "half of PRODUCE";
        batch_time.holds = Some(self.batch.cpu_us() <= self.produce.cpu_us() / 2.0);
        let mut rows = vec![rate, time, batch_rate, batch_time];
        for (name, always, never) in [
            ("PRODUCE, fsync always", &self.produce_always, &self.produce),
            (
                "BATCH of 100, fsync always",
                &self.batch_always,
                &self.batch,
            ),
        ] {
            let [mut rate, time] = always.throughput_rows(name);
            let part = always.records_per_s() / never.records_per_s();
            rate.goal = "0.6 of never";
            rate.measured = format!("{} ({part:.2})", rate.measured);
            // The goal is PRODUCE's.
            rate.holds = (name.starts_with("PRODUCE")).then_some(part >= 0.6);
            rows.extend([rate, time]);
        }
        rows
    }

    fn read_rows(&self) -> Vec<Row> {
        let p50 = |outcome: &Outcome| outcome.latency_us(0.5);
        let one = &self.one_at_a_time;
        let one_ratio = one.median(|broker, echo| p50(broker) / p50(echo));
        let fetch_ratio = self
            .fetch
            .median(|b, f| b.records_per_s() / f.records_per_s());
        let gigabytes = |o: &Outcome| o.wire_bytes / 1e9 / o.recorded.elapsed.as_secs_f64();
        let [_, fetch_time] = self.fetch.throughput_rows("FETCH");
        vec![
            Row {
                what: "PUT, one at a time, fsync never: p50".into(),
                goal: "1.5 of an echo",
                measured: units::micros(one.median(|broker, _| p50(broker))),
                floor: units::micros(one.median(|_, echo| p50(echo))),
                ratio: format!("{one_ratio:.2}"),
                holds: Some(one_ratio <= 1.5),
            },
            Row {
                what: "FETCH: bytes/s".into(),
                goal: "0.9 of the floor",
                measured: format!("{:.2} GB/s", self.fetch.median(|b, _| gigabytes(b))),
                floor: format!("{:.2} GB/s", self.fetch.median(|_, f| gigabytes(f))),
                ratio: format!("{fetch_ratio:.2}"),
                holds: Some(fetch_ratio >= 0.9),
            },
            fetch_time,
        ]
    }

    /// The library beside the generator that these rows have in the other rows.
    fn library_rows(&self) -> [Row; 2] {
        let produced: Vec<f64> = self.library.iter().map(|run| run.produced_per_s).collect();
        let consumed = self.library.iter().map(|run| run.consumed_bytes_per_s);
        let (produced, consumed) = (
            units::median(&produced),
            units::median(&consumed.collect::<Vec<f64>>()),
        );
        let batch = self.batch.records_per_s();
        let bytes_per_s = |o: &Outcome| o.wire_bytes / o.recorded.elapsed.as_secs_f64();
        let fetch = self.fetch.median(|broker, _| bytes_per_s(broker));
        let row = |what: &str, goal, measured, floor, ratio: f64| Row {
            what: what.to_owned(),
            goal,
            measured,
            floor,
            ratio: format!("{ratio:.2}"),
            holds: Some(ratio >= 0.8),
        };
        [
            row(
                "Producer of the library: records/s, beside BATCH",
                "0.8 of BATCH",
                units::grouped(produced),
                units::grouped(batch),
                produced / batch,
            ),
            row(
                "Consumer of the library: bytes/s, beside FETCH",
                "0.8 of FETCH",
                format!("{:.2} GB/s", consumed / 1e9),
                format!("{:.2} GB/s", fetch / 1e9),
                consumed / fetch,
            ),
        ]
    }

    fn start_rows(&self) -> Vec<Row> {
        let of = |values: Vec<f64>| units::median(&values);
        let ready = of(self
            .empty
            .iter()
            .map(|e| e.ready_after.as_secs_f64())
            .collect());
        let memory = of(self
            .empty
            .iter()
            .map(|e| units::float(e.resident_bytes))
            .collect());
        let clean = of(self
            .clean
            .iter()
            .map(|r| r.ready_after.as_secs_f64())
            .collect());
        let killed = of(self
            .killed
            .iter()
            .map(|r| r.ready_after.as_secs_f64())
            .collect());
        let read = of(self
            .killed
            .iter()
            .map(|r| units::float(r.read_bytes))
            .collect());
        let (partitions, segments, log_bytes) = self.many;
        let log_bytes = units::float(log_bytes);
        let row = |what: String, goal, measured, holds| Row {
            what,
            goal,
            measured,
            floor: "-".into(),
            ratio: "-".into(),
            holds: Some(holds),
        };
        vec![
            row(
                "empty directory to ready line".into(),
                "5 ms",
                units::micros(ready * 1e6),
                ready < 5e-3,
            ),
            row(
                "idle memory, resident".into(),
                "6 MB",
                format!("{:.2} MB", memory / 1e6),
                memory < 6e6,
            ),
            row(
                format!("restart, {partitions} partitions of {segments} segments, clean stop"),
                "0.5 s",
                units::micros(clean * 1e6),
                clean < 0.5,
            ),
            row(
                format!(
                    "restart after a kill: time, bytes read of {}",
                    units::bytes(log_bytes)
                ),
                "only tails are read",
                format!("{}, {}", units::micros(killed * 1e6), units::bytes(read)),
                read < 2.0 * log_bytes / units::float(u64::from(segments)),
            ),
        ]
    }
}

impl Row {
    fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "missed",
            None => "-",
        }
    }

    fn cells(&self) -> [String; 6] {
        [
            self.what.clone(),
            self.goal.to_owned(),
            self.measured.clone(),
            self.floor.clone(),
            self.ratio.clone(),
            self.verdict().to_owned(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "what": self.what,
            "goal": self.goal,
            "measured": self.measured,
            "floor": self.floor,
            "ratio": self.ratio,
            "verdict": self.verdict(),
        })
    }
}
