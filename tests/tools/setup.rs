//! Data directories made through the library, and the tools run as processes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use mini_broker::api::{Now, Payload, Target};
use mini_broker::broker::{Broker, Settings};
use mini_broker::clock::{Clock, ManualClock};
use mini_broker::fs::Fs;
use mini_broker::fs::disk::DiskFs;

use crate::harness::BINARY;

/// Records of [`fill`]; three segments of the topic `orders`.
pub(crate) const RECORDS: i64 = 60;
/// 2025-12-30T00:00:00Z.
pub(crate) const START_MS: i64 = 1_767_052_800_000;

/// A broker that was stopped in order after `records` appends to orders/0, one a second; 69 bytes each.
pub(crate) fn fill<F: Fs>(fs: F, data_dir: &Path, records: i64) {
    let mut settings = Settings::new(data_dir);
    let configs = [("segment.bytes", "1700"), ("index.interval.bytes", "300")];
    settings.configs = configs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let clock = ManualClock::new(Now {
        wall_ms: START_MS,
        mono: Duration::ZERO,
    });
    let mut broker = Broker::open(fs, settings, &clock, || Ok(())).unwrap();
    for number in 0..records {
        let (key, value) = (
            format!("key-{number:04}"),
            format!("the value of record # {number:04}"),
        );
        let payload = Payload::Record {
            timestamp: Some(START_MS + 1000 * number),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        };
        let target = Target {
            topic: b"orders",
            partition: Some(0),
        };
        broker.append(target, &payload, clock.now()).unwrap();
        broker.flush(&clock);
        broker.end_turn();
    }
    broker.close(&clock).unwrap();
}

pub(crate) struct Dir {
    _temp: tempfile::TempDir,
    pub(crate) data: PathBuf,
}

impl Dir {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("data");
        Self { _temp: temp, data }
    }

    pub(crate) fn filled() -> Self {
        let dir = Self::new();
        fill(DiskFs, &dir.data, RECORDS);
        dir
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.data.join("orders-0").join(name)
    }

    pub(crate) fn log(&self, base: i64) -> PathBuf {
        self.file(&format!("{base:020}.log"))
    }

    /// Every file with its content and when it was last changed.
    pub(crate) fn state(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let mut state = BTreeMap::new();
        let mut dirs = vec![self.data.clone()];
        while let Some(dir) = dirs.pop() {
            let changed = fs::metadata(&dir).unwrap().modified().unwrap();
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let changed = fs::metadata(&path).unwrap().modified().unwrap();
                    state.insert(path.clone(), (fs::read(&path).unwrap(), changed));
                }
            }
            state.insert(dir, (Vec::new(), changed));
        }
        state
    }
}

pub(crate) fn edit(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    edit(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Exit code, stdout, stderr.
pub(crate) fn tool(args: &[&str]) -> (i32, String, String) {
    tool_with_input(args, b"")
}

pub(crate) fn tool_with_input(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut child = Command::new(BINARY)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

pub(crate) fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}
