//! `cargo bench --bench lookup`: finding one record by offset and by time in partitions of 10^4 to 10^7, with warm and with
//! cold files, against a scan from the start.
#![forbid(unsafe_code)]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use mini_broker::api::CrcMode;
use mini_broker::fs::disk::DiskFs;
use mini_broker::fs::{File as _, Fs as _, OpenMode};
use mini_broker::record::{Record, Records};
use mini_broker::storage::{FsyncPolicy, Log, LogConfig};
use serde_json::json;

use support::cleanup::TempDir;
use support::engine::{Engine, NOW_MS, partition_dir};
use support::table::Table;
use support::{Result, cleanup, machine, units};

/// Small segments, so that the largest partition has many.
const SEGMENT_BYTES: u32 = 16 << 20;
/// Bytes of a value; a stored record has 36 more.
const VALUE_BYTES: usize = 10;
/// Milliseconds between two records.
const STEP_MS: i64 = 7;

/// Looks records up in partitions of growing size, through the engine.
#[derive(Debug, Parser)]
#[command(name = "lookup", disable_version_flag = true)]
struct Options {
    /// Where the temporary data directory goes; if left out, beside cargo's output.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Warm lookups of each kind.
    #[arg(long, default_value_t = 100_000)]
    lookups: u64,
    /// Cold lookups of each kind.
    #[arg(long, default_value_t = 30)]
    cold_lookups: u64,
    /// JSON lines on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// A short run without the largest partition, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// What `cargo bench` adds; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a partition of one size gave; times in microseconds.
#[derive(Debug, Default)]
struct Measured {
    records: u64,
    segments: u64,
    offset_warm: f64,
    offset_warm_p99: f64,
    offset_cold: f64,
    time_warm: f64,
    time_cold: f64,
    /// Steps of the binary search, on average.
    probes: f64,
    /// Bytes scanned behind the index row, on average and at most.
    scanned: f64,
    scanned_max: u64,
    full_scan: f64,
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("lookup: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    cleanup::install()?;
    let sizes: &[u64] = if options.quick {
        &[10_000, 100_000, 1_000_000]
    } else {
        &[10_000, 100_000, 1_000_000, 10_000_000]
    };
    let mut all = Vec::new();
    for &records in sizes {
        eprintln!("{records} records");
        let measured = Partition::build(options, records)?.measure(options)?;
        if options.json {
            println!("{}", measured.json());
        }
        all.push(measured);
    }
    if options.json {
        return Ok(());
    }
    let mut table = Table::new(&[
        "records",
        "segments",
        "by offset, p50",
        "p99",
        "cold p50",
        "by time, p50",
        "cold p50",
        "probes",
        "bytes scanned",
        "most",
        "full scan",
    ]);
    for measured in &all {
        table.row(measured.cells());
    }
    println!(
        "{}\n",
        machine::describe(&machine::data_parent(options.data_dir.as_deref()))
    );
    print!("{}", table.render());
    if let (Some(first), Some(last)) = (all.first(), all.last()) {
        let ratio = last.offset_warm / first.offset_warm;
        let verdict = if ratio <= 2.0 { "holds" } else { "missed" };
        println!(
            "\nA random offset, warm: {} records cost {ratio:.2} times what {} cost (goal for 10^7 against 10^4: 2; {verdict}).",
            units::grouped(units::float(last.records)),
            units::grouped(units::float(first.records)),
        );
    }
    Ok(())
}

/// A partition on the disk.
#[derive(Debug)]
struct Partition {
    directory: TempDir,
    records: u64,
    random: fastrand::Rng,
}

impl Partition {
    fn build(options: &Options, records: u64) -> Result<Self> {
        let directory = TempDir::new(options.data_dir.as_deref())?;
        let partition = Self {
            directory,
            records,
            random: fastrand::Rng::with_seed(records),
        };
        let mut engine = partition.open()?;
        for offset in 0..i64::try_from(records)? {
            let value = format!("{offset:0VALUE_BYTES$}");
            let record = Record {
                timestamp: NOW_MS + offset * STEP_MS,
                key: None,
                value: Some(value.as_bytes()),
                headers: &[],
            };
            engine.log.append(&record, NOW_MS)?;
        }
        engine.log.sync()?;
        engine.log.publish();
        while engine.log.background() {}
        engine.log.close()?;
        Ok(partition)
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn open(&self) -> Result<Engine> {
        // A step into the future for each record: the largest partition ends years ahead of the clock.
        let config = LogConfig {
            segment_bytes: SEGMENT_BYTES,
            segment_ms: i64::MAX,
            timestamp_after_max_ms: i64::MAX,
            ..LogConfig::default()
        };
        Engine::open(&self.root(), FsyncPolicy::Never, config)
    }

    fn offset(&mut self) -> i64 {
        i64::try_from(self.random.u64(0..self.records)).unwrap_or(0)
    }

    fn measure(mut self, options: &Options) -> Result<Measured> {
        let mut engine = self.open()?;
        let log = &mut engine.log;
        let mut measured = Measured {
            records: self.records,
            segments: u64::try_from(log.segment_count())?,
            full_scan: full_scan(log, self.records)?,
            ..Measured::default()
        };
        let lookups = if options.quick {
            options.lookups / 10
        } else {
            options.lookups
        };
        let (mut by_offset, mut by_time, mut probes, mut scanned) =
            (vec![], vec![], vec![], vec![]);
        let mut found = Records::new();
        for _ in 0..lookups {
            by_offset.push(find_offset(log, self.offset(), &mut found)?);
            by_time.push(find_time(log, self.offset())?);
        }
        for _ in 0..lookups / 10 {
            let explanation = log.explain(self.offset())?;
            probes.push(explanation.index.map_or(0.0, |step| f64::from(step.probes)));
            scanned.push(units::float(explanation.scanned_bytes));
        }
        measured.offset_warm = units::median(&by_offset);
        by_offset.sort_by(f64::total_cmp);
        measured.offset_warm_p99 = by_offset
            .get(by_offset.len() * 99 / 100)
            .copied()
            .unwrap_or(0.0);
        measured.time_warm = units::median(&by_time);
        measured.probes = mean(&probes);
        measured.scanned = mean(&scanned);
        measured.scanned_max = units::count(scanned.iter().copied().fold(0.0, f64::max));
        engine.log.close()?;
        drop(engine);
        self.measure_cold(options.cold_lookups, &mut measured)?;
        Ok(measured)
    }

    /// Each lookup on a log that was just opened, none of whose files is in memory.
    fn measure_cold(&mut self, lookups: u64, measured: &mut Measured) -> Result<()> {
        let (mut by_offset, mut by_time) = (vec![], vec![]);
        for _ in 0..lookups {
            let offset = self.offset();
            by_offset.push(self.cold(|log| find_offset(log, offset, &mut Records::new()))?);
            by_time.push(self.cold(|log| find_time(log, offset))?);
        }
        measured.offset_cold = units::median(&by_offset);
        measured.time_cold = units::median(&by_time);
        Ok(())
    }

    fn cold<T>(&self, f: impl FnOnce(&mut Log<DiskFs>) -> Result<T>) -> Result<T> {
        let mut engine = self.open()?;
        drop_caches(&partition_dir(&self.root()))?;
        let result = f(&mut engine.log);
        engine.log.close()?;
        result
    }
}

/// Drops every file of a directory from memory. What a mapping holds stays: nothing was mapped and touched before.
fn drop_caches(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let file = DiskFs.open(&entry?.path(), OpenMode::Read)?;
        file.sync_data()?;
        file.drop_cache();
    }
    Ok(())
}

fn find_offset(log: &mut Log<DiskFs>, offset: i64, found: &mut Records) -> Result<f64> {
    found.clear();
    let begin = Instant::now();
    log.read(offset, 1, 1, CrcMode::Check, found)?;
    let took = begin.elapsed();
    match found.iter().next() {
        Some(record) if record.offset == offset => Ok(micros(took)),
        other => Err(format!("offset {offset} gave {other:?}").into()),
    }
}

fn find_time(log: &mut Log<DiskFs>, offset: i64) -> Result<f64> {
    let timestamp = NOW_MS + offset * STEP_MS;
    let begin = Instant::now();
    let found = log.offset_at_time(timestamp)?;
    let took = begin.elapsed();
    if found == Some((offset, timestamp)) {
        return Ok(micros(took));
    }
    Err(format!("time {timestamp} gave {found:?}, not offset {offset}").into())
}

/// Reads every record from the start, in microseconds: what a log without an index would do to find its last record.
fn full_scan(log: &mut Log<DiskFs>, records: u64) -> Result<f64> {
    let mut found = Records::new();
    let (mut next, mut count) = (0, 0);
    let begin = Instant::now();
    while count < records {
        found.clear();
        next = log
            .read(next, u64::MAX, 1 << 20, CrcMode::Check, &mut found)?
            .next_offset;
        count += found.len() as u64;
        if found.is_empty() {
            return Err(format!("the scan ended at {next}").into());
        }
    }
    Ok(micros(begin.elapsed()))
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / units::float(values.len().max(1) as u64)
}

impl Measured {
    fn cells(&self) -> [String; 11] {
        [
            units::grouped(units::float(self.records)),
            self.segments.to_string(),
            units::micros(self.offset_warm),
            units::micros(self.offset_warm_p99),
            units::micros(self.offset_cold),
            units::micros(self.time_warm),
            units::micros(self.time_cold),
            format!("{:.1}", self.probes),
            units::grouped(self.scanned),
            units::grouped(units::float(self.scanned_max)),
            units::micros(self.full_scan),
        ]
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "records": self.records,
            "segments": self.segments,
            "offset_warm_us": self.offset_warm,
            "offset_warm_p99_us": self.offset_warm_p99,
            "offset_cold_us": self.offset_cold,
            "time_warm_us": self.time_warm,
            "time_cold_us": self.time_cold,
            "probes": self.probes,
            "scanned_bytes": self.scanned,
            "scanned_bytes_max": self.scanned_max,
            "full_scan_us": self.full_scan,
        })
    }
}
