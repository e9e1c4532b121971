//! `cargo bench --bench append`: the engine alone, per layout, size and policy, beside the floor: the same bytes written to a file
//! in pieces of 256 KiB.
#![forbid(unsafe_code)]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use mini_broker::format::Layout;
use mini_broker::record::Record;
use mini_broker::storage::{FsyncPolicy, LogConfig};
use serde_json::json;

use support::cleanup::TempDir;
use support::engine::{Engine, NOW_MS};
use support::table::Table;
use support::{Result, cleanup, machine, units};

/// What the event loop appends in a turn before it writes, at most.
const TURN_BYTES: u64 = 256 * 1024;

/// Appends to the engine alone, without sockets or protocol.
#[derive(Debug, Parser)]
#[command(name = "append", disable_version_flag = true)]
struct Options {
    /// Where the temporary data directory goes; if left out, beside cargo's output.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Bytes of stored records in a case under fsync never; a quarter of it under always.
    #[arg(long, default_value_t = 512 << 20)]
    bytes: u64,
    /// JSON lines on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// A short run, to see that everything works: its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// What `cargo bench` adds; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What is appended.
#[derive(Debug, Clone, Copy)]
struct Case {
    layout: Layout,
    value_bytes: usize,
    fsync: FsyncPolicy,
    /// Bytes of stored records, about.
    bytes: u64,
}

/// What a case gave.
#[derive(Debug, Clone, Copy)]
struct Measured {
    records: u64,
    bytes: u64,
    engine: Duration,
    floor: Duration,
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("append: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    cleanup::install()?;
    let parent = options.data_dir.as_deref();
    let bytes = if options.quick {
        options.bytes / 64
    } else {
        options.bytes
    };
    let mut table = Table::new(&[
        "layout, value, fsync",
        "appends/s",
        "per append",
        "MB/s stored",
        "floor MB/s",
        "ratio",
    ]);
    for (fsync, bytes) in [
        (FsyncPolicy::Never, bytes),
        (FsyncPolicy::Always, bytes / 4),
    ] {
        for layout in [Layout::V1, Layout::V2] {
            for value_bytes in [40, 100, 1024, 10 * 1024] {
                let case = Case {
                    layout,
                    value_bytes,
                    fsync,
                    bytes,
                };
                let measured = case.measure(parent)?;
                if options.json {
                    println!("{}", measured.json(&case));
                }
                table.row(measured.cells(&case));
            }
        }
    }
    if !options.json {
        println!("{}\n", machine::describe(&machine::data_parent(parent)));
        print!("{}", table.render());
        println!();
        println!("Published elsewhere, measured by others on machines of their own:");
        println!(
            "  542,894 appends/s of 40-byte records: the Java program whose layout is version 1, by its author"
        );
        println!("  1,850,000 appends/s of 100-byte records: an embedded log of this kind in Rust");
    }
    Ok(())
}

impl Case {
    fn name(&self) -> String {
        let fsync = if self.fsync == FsyncPolicy::Always {
            "always"
        } else {
            "never"
        };
        format!(
            "version {}, {} B, {fsync}",
            self.layout.version(),
            self.value_bytes
        )
    }

    /// Engine and floor, one right after the other, each on memory that was touched before.
    fn measure(&self, parent: Option<&Path>) -> Result<Measured> {
        eprintln!("{}", self.name());
        let directory = TempDir::new(parent)?;
        machine::touch_memory(directory.path(), self.bytes)?;
        let (records, bytes, engine) = self.append(&directory.path().join("data"))?;
        drop(directory);
        let directory = TempDir::new(parent)?;
        machine::touch_memory(directory.path(), self.bytes)?;
        let floor = self.write(&directory.path().join("floor"), bytes)?;
        Ok(Measured {
            records,
            bytes,
            engine,
            floor,
        })
    }

    /// Appends through the engine as the event loop does: a turn's records, then one write, and one sync under always.
    fn append(&self, root: &Path) -> Result<(u64, u64, Duration)> {
        let config = LogConfig {
            record_version: self.layout,
            ..LogConfig::default()
        };
        let mut log = Engine::open(root, self.fsync, config)?.log;
        let mut random = fastrand::Rng::with_seed(1);
        let values: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(1 << 20)
            .collect();
        let header_bytes = match self.layout {
            Layout::V1 => 22,
            Layout::V2 => 36,
        };
        let record_bytes = self.value_bytes as u64 + header_bytes;
        let per_turn = (TURN_BYTES / record_bytes).max(1);
        let turns = (self.bytes / record_bytes / per_turn).max(1);
        let mut chunks = values.chunks_exact(self.value_bytes).cycle();
        let begin = Instant::now();
        for _ in 0..turns {
            for _ in 0..per_turn {
                let record = Record {
                    timestamp: NOW_MS,
                    key: None,
                    value: chunks.next(),
                    headers: &[],
                };
                log.append(&record, NOW_MS)?;
            }
            if self.fsync == FsyncPolicy::Always {
                log.sync()?;
            } else {
                log.write()?;
            }
            log.publish();
        }
        let took = begin.elapsed();
        Ok((turns * per_turn, log.bytes(), took))
    }

    /// Writes so many bytes to a file, a turn's at a time.
    fn write(&self, path: &Path, bytes: u64) -> Result<Duration> {
        let file = File::create(path)?;
        let block: Vec<u8> = (0..TURN_BYTES).map(|_| fastrand::u8(..)).collect();
        let begin = Instant::now();
        for turn in 0..bytes.div_ceil(TURN_BYTES) {
            file.write_all_at(&block, turn * TURN_BYTES)?;
            if self.fsync == FsyncPolicy::Always {
                file.sync_data()?;
            }
        }
        Ok(begin.elapsed())
    }
}

impl Measured {
    fn appends_per_s(&self) -> f64 {
        units::float(self.records) / self.engine.as_secs_f64()
    }

    fn megabytes_per_s(&self, took: Duration) -> f64 {
        units::float(self.bytes) / 1e6 / took.as_secs_f64()
    }

    fn ratio(&self) -> f64 {
        self.floor.as_secs_f64() / self.engine.as_secs_f64()
    }

    fn cells(&self, case: &Case) -> [String; 6] {
        [
            case.name(),
            units::grouped(self.appends_per_s()),
            units::micros(1e6 / self.appends_per_s()),
            format!("{:.0}", self.megabytes_per_s(self.engine)),
            format!("{:.0}", self.megabytes_per_s(self.floor)),
            format!("{:.2}", self.ratio()),
        ]
    }

    fn json(&self, case: &Case) -> serde_json::Value {
        json!({
            "case": case.name(),
            "appends_per_s": self.appends_per_s(),
            "megabytes_per_s": self.megabytes_per_s(self.engine),
            "floor_megabytes_per_s": self.megabytes_per_s(self.floor),
            "ratio": self.ratio(),
        })
    }
}
