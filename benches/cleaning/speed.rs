//! The speed of the engine's compaction, beside the floor.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mini_broker::record::Record;
use mini_broker::storage::cleaner::{CleanProgress, CleanStats};
use mini_broker::storage::{CleanupPolicy, FsyncPolicy, LogConfig};
use serde_json::json;

use crate::Options;
use crate::support::cleanup::TempDir;
use crate::support::engine::{Engine, NOW_MS, partition_dir};
use crate::support::table::Table;
use crate::support::{Result, machine, units};

/// What the broker lets a round read in a turn.
const SLICE_BYTES: u64 = 128 * 1024;
/// The broker's default of `log.cleaner.dedupe.buffer.size`.
const MAP_BYTES: u64 = 128 << 20;
/// Bytes that the floor reads and writes at once.
const COPY_BYTES: usize = 256 * 1024;
/// The most keys that records which are to be removed share.
const MAX_HOT_KEYS: u64 = 1000;
/// Records of each such key, at least: the last of them stays, so that in a short run, too, what stays is as the case says.
const MIN_RECORDS_OF_A_HOT_KEY: u64 = 100;

/// What is cleaned.
#[derive(Debug, Clone, Copy)]
struct Case {
    value_bytes: usize,
    /// Records in a hundred that have a later one of their key.
    removed_percent: u64,
    /// Bytes of stored records, about.
    bytes: u64,
}

/// What a round of a case gave.
#[derive(Debug, Clone, Copy)]
struct Measured {
    stats: CleanStats,
    engine: Duration,
    floor: Duration,
}

/// Every case, and a table of them.
///
/// # Errors
/// What the engine or the system says.
pub(crate) fn run(options: &Options) -> Result<()> {
    let bytes = options.bytes.unwrap_or(512 << 20);
    let bytes = if options.quick { bytes / 64 } else { bytes };
    let rounds = if options.quick { 1 } else { options.rounds };
    let parent = options.data_dir.as_deref();
    let mut table = Table::new(&[
        "value, removed",
        "records/s",
        "per record",
        "MB/s",
        "floor MB/s",
        "ratio",
    ]);
    let sizes = options
        .size
        .map_or_else(|| vec![100, 1024], |size| vec![size]);
    for value_bytes in sizes {
        for removed_percent in [0, 10, 50, 90, 99] {
            let case = Case {
                value_bytes,
                removed_percent,
                bytes,
            };
            let mut measured = Vec::new();
            for _ in 0..rounds {
                measured.push(case.measure(parent)?);
            }
            let median = Measured::median(measured);
            if options.json {
                println!("{}", median.json(&case));
            }
            table.row(median.cells(&case));
        }
    }
    if !options.json {
        println!("{}\n", machine::describe(&machine::data_parent(parent)));
        print!("{}", table.render());
    }
    Ok(())
}

impl Case {
    fn name(&self) -> String {
        format!("{} B, {} %", self.value_bytes, self.removed_percent)
    }

    /// Engine and floor over the same files, one right after the other.
    fn measure(&self, parent: Option<&Path>) -> Result<Measured> {
        eprintln!("{}", self.name());
        let directory = TempDir::new(parent)?;
        machine::touch_memory(directory.path(), 2 * self.bytes)?;
        let root = directory.path().join("data");
        let mut opened = self.fill(&root)?;
        let sources = sealed_logs(&partition_dir(&root))?;
        // What the fill wrote is on the disk before anything is timed.
        for (path, _) in &sources {
            File::open(path)?.sync_all()?;
        }
        let copies = directory.path().join("floor");
        fs::create_dir(&copies)?;
        let floor = copy_all(&sources, &copies)?;
        let (stats, engine) = clean(&mut opened)?;
        let kept = stats.records_after * 100 / stats.records_before.max(1);
        if kept.abs_diff(100 - self.removed_percent) > 2 {
            return Err(format!("{} kept {kept} % of the records", self.name()).into());
        }
        Ok(Measured {
            stats,
            engine,
            floor,
        })
    }

    /// As many keys as what is to be removed can share in a log of this size.
    fn hot_keys(&self) -> u64 {
        let hot_records = self.bytes / self.value_bytes as u64 * self.removed_percent / 100;
        (hot_records / MIN_RECORDS_OF_A_HOT_KEY).clamp(1, MAX_HOT_KEYS)
    }

    /// A log whose sealed segments hold what is to be cleaned. Survivors and what goes are mixed: each record is one or the other by chance.
    fn fill(&self, root: &Path) -> Result<Engine> {
        let config = LogConfig {
            segment_bytes: u32::try_from(self.bytes / 4)?,
            cleanup: CleanupPolicy::Compact,
            min_cleanable_dirty_ratio: 0.0,
            ..LogConfig::default()
        };
        let mut opened = Engine::open(root, FsyncPolicy::Never, config)?;
        let log = &mut opened.log;
        let mut random = fastrand::Rng::with_seed(1);
        let values: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
            .take(1 << 20)
            .collect();
        let mut chunks = values.chunks_exact(self.value_bytes).cycle();
        let hot_keys = self.hot_keys();
        let mut number = 0_u64;
        while log.bytes() < self.bytes || log.segment_count() < 2 {
            let key = if random.u64(..100) < self.removed_percent {
                format!("hot-{:012}", random.u64(..hot_keys))
            } else {
                format!("key-{number:012}")
            };
            number += 1;
            let record = Record {
                timestamp: NOW_MS,
                key: Some(key.as_bytes()),
                value: chunks.next(),
                headers: &[],
            };
            log.append(&record, NOW_MS)?;
            if number.is_multiple_of(1000) {
                log.write()?;
                log.publish();
            }
        }
        log.sync()?;
        log.publish();
        Ok(opened)
    }
}

/// A whole round, slice by slice as the broker does it.
fn clean(opened: &mut Engine) -> Result<(CleanStats, Duration)> {
    let begin = Instant::now();
    let log = &mut opened.log;
    let mut cleaning = log
        .start_cleaning(MAP_BYTES, NOW_MS)?
        .ok_or("there is nothing to clean")?;
    loop {
        match log.clean_slice(&mut cleaning, SLICE_BYTES, NOW_MS)? {
            CleanProgress::More | CleanProgress::Replaced(_) => {}
            CleanProgress::Done(stats) => return Ok((stats, begin.elapsed())),
            CleanProgress::Aborted => return Err("the round was given up".into()),
        }
    }
}

/// The .log files of a partition but the last, and their bytes.
fn sealed_logs(directory: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs.push((path, entry.metadata()?.len()));
        }
    }
    logs.sort();
    logs.pop();
    Ok(logs)
}

/// Reads the files and writes them again, each synced at its end as a cleaned segment is.
fn copy_all(sources: &[(PathBuf, u64)], to: &Path) -> Result<Duration> {
    let mut buffer = vec![0; COPY_BYTES];
    let begin = Instant::now();
    for (path, len) in sources {
        let source = File::open(path)?;
        let name = path.file_name().ok_or("a file without a name")?;
        let copy = File::create(to.join(name))?;
        let mut position = 0;
        while position < *len {
            let read = source.read_at(&mut buffer, position)?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            copy.write_all_at(bytes, position)?;
            position += read as u64;
        }
        copy.sync_data()?;
    }
    Ok(begin.elapsed())
}

impl Measured {
    /// The round in the middle, by the engine's time over the floor's.
    fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        rounds.swap_remove(rounds.len() / 2)
    }

    fn records_per_s(&self) -> f64 {
        units::float(self.stats.records_before) / self.engine.as_secs_f64()
    }

    fn megabytes_per_s(&self, took: Duration) -> f64 {
        units::float(self.stats.bytes_before) / 1e6 / took.as_secs_f64()
    }

    fn ratio(&self) -> f64 {
        self.floor.as_secs_f64() / self.engine.as_secs_f64()
    }

    fn cells(&self, case: &Case) -> [String; 6] {
        [
            case.name(),
            units::grouped(self.records_per_s()),
            units::micros(1e6 / self.records_per_s()),
            format!("{:.0}", self.megabytes_per_s(self.engine)),
            format!("{:.0}", self.megabytes_per_s(self.floor)),
            format!("{:.2}", self.ratio()),
        ]
    }

    fn json(&self, case: &Case) -> serde_json::Value {
        json!({
            "case": case.name(),
            "records_per_s": self.records_per_s(),
            "megabytes_per_s": self.megabytes_per_s(self.engine),
            "floor_megabytes_per_s": self.megabytes_per_s(self.floor),
            "ratio": self.ratio(),
        })
    }
}
