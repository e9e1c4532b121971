//! dump, verify, import, shell, completions and man: the real binary over data directories made through the library, and every byte of one damaged.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod completions;
mod dump;
mod import;
mod setup;
mod shell;

use std::path::Path;
use std::process::{Command, Stdio};

use harness::{BINARY, Server};
use mini_broker::fs::disk::DiskFs;
use setup::{Dir, RECORDS, fill, tool};

#[test]
fn a_reader_that_goes_away_is_a_quiet_end() {
    let dir = Dir::new();
    fill(DiskFs, &dir.data, RECORDS);
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let many = vec!["tests/data/original-v1.log"; 40];
    let shell = [
        "shell",
        "--connect",
        &address,
        "READ orders 0 max=3000",
        "READ orders 0 max=3000",
    ];
    let dump = [&["dump", "--payload"][..], &many].concat();
    for args in [&shell[..], &dump] {
        let mut child = Command::new(BINARY)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn what_is_typed_wrongly_gets_one_clear_answer() {
    for (args, code, words) in [
        (&["dump"][..], 2, "<FILE>"),
        (
            &["dump", "Cargo.toml"],
            1,
            "is not a .log, .index or .timeindex file",
        ),
        (
            &["dump", "none.log"],
            1,
            "cannot read none.log: No such file",
        ),
        (&["verify"], 2, "<DIR>"),
        (&["verify", "none"], 1, "cannot read none: No such file"),
        (&["verify", "--frob", "x"], 2, "--frob"),
        (&["import", "x"], 2, "TOPIC"),
        (
            &["import", "none.log", "x"],
            1,
            "cannot read none.log: No such file",
        ),
        (
            &["import", "x", "y", "--connect", "a:1", "--data-dir", "d"],
            2,
            "--data-dir",
        ),
        (
            &["shell", "--connect", "127.0.0.1:1", "PING"],
            1,
            "cannot connect to 127.0.0.1:1: Connection refused",
        ),
        (
            &["shell", "--connect", "nowhere.invalid:1", "PING"],
            1,
            "cannot connect to nowhere.invalid:1",
        ),
        (
            &["shell", "--connect", "nowhere", "PING"],
            2,
            "\"nowhere\" has no port",
        ),
    ] {
        let (found, _, err) = tool(args);
        assert!(
            found == code && err.contains(words),
            "{args:?}: {found} {err}"
        );
    }
    assert!(!Path::new("data").exists());
}
