//! A producer that sends at a steady rate, without and with the compaction of another topic.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;

use crate::Options;
use crate::support::broker::{Broker, Client};
use crate::support::cleanup::TempDir;
use crate::support::table::Table;
use crate::support::{Result, machine, units};

/// Records in a BATCH of the fill.
const BATCH: u64 = 500;
/// How long the producer runs without compaction, and before it begins to count.
const QUIET: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);

/// Latencies of one stretch, microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Latency {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// What one round gave.
#[derive(Debug, Clone, Copy)]
struct Round {
    without: Latency,
    with: Latency,
    took: Duration,
}

/// Rounds under each policy of syncing, medians of them.
///
/// # Errors
/// What the broker or the system says.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut table = Table::new(&[
        "fsync, compaction",
        "p50",
        "p99",
        "p99.9",
        "max",
        "p99.9 times",
        "took",
    ]);
    let rounds = if options.quick { 1 } else { options.rounds };
    let policies = match &options.fsync {
        Some(fsync) => vec![fsync.as_str()],
        None => vec!["never", "always"],
    };
    for fsync in policies {
        let mut done = Vec::new();
        for number in 0..rounds {
            eprintln!("fsync {fsync}, round {number}");
            done.push(round(options, fsync)?);
        }
        let median =
            |of: &dyn Fn(&Round) -> f64| units::median(&done.iter().map(of).collect::<Vec<f64>>());
        let took = median(&|round| round.took.as_secs_f64());
        let times = median(&|round| round.with.p999 / round.without.p999);
        let middle = |of: &dyn Fn(&Round) -> Latency| Latency {
            p50: median(&|round| of(round).p50),
            p99: median(&|round| of(round).p99),
            p999: median(&|round| of(round).p999),
            max: median(&|round| of(round).max),
        };
        let (without, with) = (middle(&|r| r.without), middle(&|r| r.with));
        for (name, latency, times, took) in [
            ("without", without, String::new(), String::new()),
            ("with", with, format!("{times:.2}"), format!("{took:.1} s")),
        ] {
            let name = format!("{fsync}, {name}");
            if options.json {
                println!("{}", latency.json(&name));
            }
            let cells = [latency.p50, latency.p99, latency.p999, latency.max].map(units::micros);
            let [p50, p99, p999, max] = cells;
            table.row([name, p50, p99, p999, max, times, took]);
        }
    }
    if !options.json {
        println!(
            "{}\n",
            machine::describe(&machine::data_parent(options.data_dir.as_deref()))
        );
        print!("{}", table.render());
    }
    Ok(())
}

/// Fills a topic, runs the producer beside nothing, then beside the topic's compaction.
fn round(options: &Options, fsync: &str) -> Result<Round> {
    let parent = options.data_dir.as_deref();
    let directory = TempDir::new(parent)?;
    let (bytes, quiet) = if options.quick {
        (16 << 20, Duration::from_secs(1))
    } else {
        (options.bytes.unwrap_or(1 << 30), QUIET)
    };
    machine::touch_memory(directory.path(), 2 * bytes)?;
    let broker = Broker::start(
        &directory.path().join("data"),
        fsync,
        &["--config", "log.initial.task.delay.ms=1"],
    )?;
    let mut client = Client::connect(broker.addr)?;
    client.call("CREATE paced")?;
    client.call(format!(
        "CREATE old segment.bytes={} min.cleanable.dirty.ratio=0 file.delete.delay.ms=100",
        (bytes / 8).max(1 << 20)
    ))?;
    fill(&mut client, bytes, options.size.unwrap_or(1024))?;
    client.call("SYNC")?;

    let producer = Producer::start(broker.addr, options.rate, options.size.unwrap_or(1024))?;
    std::thread::sleep(quiet);
    let without = producer.stop()?;
    let producer = Producer::start(broker.addr, options.rate, options.size.unwrap_or(1024))?;
    // Counting begins with the compaction.
    std::thread::sleep(WARM_UP);
    let begin = Instant::now();
    client.call("ALTER old cleanup.policy=compact")?;
    while stat(&mut client, "cleaner_bytes_before_total")? == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = begin.elapsed();
    // What was replaced is removed, which is a part of it.
    while stat(&mut client, "deleted_files_waiting")? > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let with = producer.stop()?;
    drop(client);
    broker.terminate()?;
    Ok(Round {
        without,
        with,
        took,
    })
}

/// Records of which every second has a later one of its key, so that half of them go.
fn fill(client: &mut Client, bytes: u64, value_bytes: usize) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(value_bytes)
        .collect();
    let value_len = u32::try_from(value_bytes)?.to_be_bytes();
    let record_bytes = value_bytes as u64 + 52;
    let (mut payload, mut number) = (Vec::new(), 0_u64);
    while number * record_bytes < bytes + bytes / 4 {
        payload.clear();
        for _ in 0..BATCH {
            let key = if random.bool() {
                format!("hot-{:012}", random.u64(..1000))
            } else {
                format!("key-{number:012}")
            };
            number += 1;
            payload.extend_from_slice(&u32::try_from(key.len())?.to_be_bytes());
            payload.extend_from_slice(key.as_bytes());
            payload.extend_from_slice(&value_len);
            payload.extend_from_slice(&value);
        }
        let head = format!("BATCH old {BATCH} {}\n", payload.len());
        client.call([head.as_bytes(), &payload].concat())?;
    }
    Ok(())
}

/// A number of STATS.
fn stat(client: &mut Client, name: &str) -> Result<u64> {
    let count = client.call("STATS")?;
    let count: usize = count.trim_start_matches("OK ").parse()?;
    let mut found = Err(format!("STATS has no {name}"));
    for _ in 0..count {
        let line = client.line()?;
        if let Some(value) = line
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('\t'))
        {
            found = Ok(value.parse()?);
        }
    }
    Ok(found?)
}

/// PUTs at a steady rate on a connection of its own. A latency counts from the time at which its record was to be sent.
struct Producer {
    is_over: Arc<AtomicBool>,
    sender: std::thread::JoinHandle<std::io::Result<u64>>,
    receiver: std::thread::JoinHandle<std::io::Result<Histogram<u64>>>,
}

impl Producer {
    fn start(addr: SocketAddr, rate: u32, value_bytes: usize) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let mut writer = stream.try_clone()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (begin, interval) = (Instant::now(), Duration::from_secs(1) / rate);
        let over = Arc::clone(&is_over);
        let request = format!("PUT paced {}\n", "v".repeat(value_bytes));
        let sender = std::thread::spawn(move || {
            let mut sent = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let due = begin + interval * sent;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                writer.write_all(request.as_bytes())?;
                sent += 1;
            }
            writer.shutdown(std::net::Shutdown::Write)?;
            Ok(u64::from(sent))
        });
        let receiver = std::thread::spawn(move || {
            let mut latencies = histogram();
            let mut replies = BufReader::new(stream);
            let (mut line, mut received) = (String::new(), 0_u32);
            while replies.read_line(&mut line)? > 0 {
                if !line.starts_with("OK ") {
                    return Err(std::io::Error::other(line));
                }
                let due = begin + interval * received;
                received += 1;
                if interval * received > WARM_UP {
                    let took = Instant::now().saturating_duration_since(due);
                    latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                }
                line.clear();
            }
            Ok(latencies)
        });
        Ok(Self {
            is_over,
            sender,
            receiver,
        })
    }

    /// Stops it, and waits for the last reply.
    fn stop(self) -> Result<Latency> {
        self.is_over.store(true, Ordering::Relaxed);
        let sent = self.sender.join().map_err(|_| "the sender panicked")??;
        let latencies = self
            .receiver
            .join()
            .map_err(|_| "the receiver panicked")??;
        if latencies.is_empty() {
            return Err(format!("{sent} records are too few to measure").into());
        }
        let at = |quantile| units::float(latencies.value_at_quantile(quantile)) / 1e3;
        Ok(Latency {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: units::float(latencies.max()) / 1e3,
        })
    }
}

/// Nanoseconds up to a minute, three digits of them.
fn histogram() -> Histogram<u64> {
    let bounded = Histogram::new_with_bounds(1, 60_000_000_000, 3);
    bounded.unwrap_or_else(|error| unreachable!("the bounds are sound: {error}"))
}

impl Latency {
    fn json(&self, name: &str) -> serde_json::Value {
        json!({
            "case": name,
            "p50_us": self.p50,
            "p99_us": self.p99,
            "p999_us": self.p999,
            "max_us": self.max,
        })
    }
}
