//! The broker as a process on a disk that is really full: a small tmpfs, which takes root to mount. Elsewhere these tests say that they
//! are skipped; src/broker/tests/space.rs has the same over the file system in memory.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Client, Server};

/// How long space may take to come back.
const PATIENCE: Duration = Duration::from_secs(20);
const VALUE_BYTES: usize = 20_000;

/// A file system of a few megabytes.
struct SmallDisk {
    at: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` where it cannot be mounted.
    fn mount(megabytes: u32) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(at.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { at });
        }
        println!("skipped: a tmpfs cannot be mounted here, which takes root");
        None
    }

    fn data(&self) -> PathBuf {
        self.at.path().join("data")
    }

    /// Starts a broker there; its log goes elsewhere, for it would find no room.
    fn start(&self, args: &[&str]) -> Server {
        let base = [
            "--config",
            "segment.bytes=200000",
            "--config",
            "segment.index.bytes=2400",
            "--config",
            "file.delete.delay.ms=0",
        ];
        Server::start(&self.data(), &[&base[..], args].concat())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.at.path())
            .status();
    }
}

fn put(client: &mut Client, topic: &str) -> String {
    client.ask(&format!("PUT {topic} {}", "v".repeat(VALUE_BYTES)))
}

/// PUTs until there is no room; how many found some.
fn fill(client: &mut Client, topic: &str) -> usize {
    let mut count = 0;
    loop {
        let reply = put(client, topic);
        if reply.starts_with("ERR DISK_FULL ") {
            return count;
        }
        assert!(reply.starts_with("OK 0 "), "{reply}");
        count += 1;
    }
}

/// PUTs until one is taken.
fn put_patiently(client: &mut Client, topic: &str) {
    let begin = Instant::now();
    loop {
        let reply = put(client, topic);
        if reply.starts_with("OK") {
            return;
        }
        assert!(reply.starts_with("ERR DISK_FULL "), "{reply}");
        assert!(begin.elapsed() < PATIENCE, "no space came back");
    }
}

/// Every record of the topic from `start` on can be read whole.
fn read_all(client: &mut Client, topic: &str, start: usize, end: usize) {
    for offset in start..end {
        let (head, lines) = client.list(&format!("READ {topic} {offset} max=1"));
        assert_eq!(head, format!("OK 1 {} {end}", offset + 1));
        assert!(lines[0].ends_with(&"v".repeat(VALUE_BYTES)));
    }
}

fn offsets(client: &mut Client, topic: &str) -> String {
    client.list(&format!("OFFSETS {topic}")).1[0].clone()
}

#[test]
fn on_a_full_disk_all_goes_on_but_writes_and_space_that_returns_is_used() {
    let Some(disk) = SmallDisk::mount(4) else {
        return;
    };
    for fsync in ["always", "never"] {
        let server = disk.start(&["--fsync", fsync]);
        let mut client = server.client();
        assert!(put(&mut client, "small").starts_with("OK"));
        let count = fill(&mut client, "big");
        assert!(count > 100, "{count}");
        read_all(&mut client, "big", 0, count);
        assert_eq!(offsets(&mut client, "big"), format!("0\t0\t{count}"));
        assert_eq!(client.ask("SYNC"), "OK");
        assert_eq!(client.ask("PING"), "OK PONG");
        assert!(client.list("DESCRIBE big").1.len() > 5);

        // TRIM makes room, without a restart.
        let trimmed = count / 2;
        assert_eq!(
            client.ask(&format!("TRIM big {trimmed}")),
            format!("OK {trimmed} {count}")
        );
        put_patiently(&mut client, "small");
        read_all(&mut client, "big", trimmed, count);

        // And so does DELETE.
        fill(&mut client, "small");
        assert_eq!(client.ask("DELETE big"), "OK");
        put_patiently(&mut client, "small");
        assert_eq!(client.ask("DELETE small"), "OK");
        assert_eq!(server.stop().code(), Some(0));
    }
}

#[test]
fn a_start_on_a_full_disk_works_after_a_kill_and_after_a_stop() {
    let Some(disk) = SmallDisk::mount(4) else {
        return;
    };
    let server = disk.start(&[]);
    let mut client = server.client();
    assert!(put(&mut client, "small").starts_with("OK"));
    let mut count = fill(&mut client, "big");
    hog(&disk);
    server.kill();
    let server = disk.start(&[]);
    let mut client = server.client();
    read_all(&mut client, "big", 0, count);
    // A tail that a start cut off may have left a little.
    count += fill(&mut client, "big");
    hog(&disk);
    let status = server.stop();
    assert_eq!(status.code(), Some(0), "an orderly stop needs no room");
    let server = disk.start(&[]);
    let mut client = server.client();
    read_all(&mut client, "big", 0, count);
    assert_eq!(client.ask("DELETE small"), "OK");
    std::fs::remove_file(disk.at.path().join("hog")).unwrap();
    put_patiently(&mut client, "big");
    read_all(&mut client, "big", 0, count + 1);
    assert_eq!(server.stop().code(), Some(0));
}

/// Takes the last page that is free.
fn hog(disk: &SmallDisk) {
    let mut options = OpenOptions::new();
    let path = disk.at.path().join("hog");
    let mut file = options.append(true).create(true).open(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn writes_stop_while_min_free_bytes_are_left() {
    let Some(disk) = SmallDisk::mount(6) else {
        return;
    };
    let server = disk.start(&["--min-free-bytes", "2000000"]);
    let mut client = server.client();
    let count = fill(&mut client, "big");
    let free = free_bytes(&disk.at);
    assert!((1_400_000..2_100_000).contains(&free), "{free} are free");
    let reply = put(&mut client, "big");
    assert!(reply.contains("--min-free-bytes"), "{reply}");
    read_all(&mut client, "big", 0, count);
    // What makes room has some: a TRIM, and the deletion of segments.
    assert!(client.ask(&format!("TRIM big {count}")).starts_with("OK"));
    put_patiently(&mut client, "big");
    assert_eq!(server.stop().code(), Some(0));
}

fn free_bytes(at: &tempfile::TempDir) -> u64 {
    let path: &Path = at.path();
    let output = Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}
