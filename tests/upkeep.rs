//! `repair` and `retention` as processes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "a test may panic, and the harness has more than these need"
)]

mod harness;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use harness::Server;

fn tool(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mini-broker"))
        .args(args)
        .output()
        .unwrap()
}

fn code_and_text(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

/// A directory with 30 records of one topic in several segments, its broker stopped.
fn build(dir: &Path) {
    let server = Server::start(dir, &["--config", "segment.bytes=500"]);
    let mut client = server.client();
    for number in 0..30 {
        assert_eq!(
            client.ask(&format!("PUT t value number {number}")),
            format!("OK 0 {number}")
        );
    }
    assert!(server.stop().success());
}

#[test]
fn a_repair_says_what_it_would_do_and_does_it_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    build(&data);
    let path = data.to_str().unwrap();
    assert_eq!(
        code_and_text(&tool(&["repair", path])),
        (0, "nothing is to be repaired\n".into())
    );

    let log = data.join("t-0/00000000000000000000.log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[40] ^= 1;
    fs::write(&log, &bytes).unwrap();
    assert_eq!(tool(&["verify", path]).status.code(), Some(1));
    let (code, text) = code_and_text(&tool(&["repair", path]));
    assert_eq!(code, 1);
    assert!(
        text.contains("t/0 00000000000000000000.log: damaged from offset 0 to 1, bytes 0 to"),
        "{text}"
    );
    assert_eq!(fs::read(&log).unwrap(), bytes, "nothing was changed");

    let (code, text) = code_and_text(&tool(&["repair", path, "--yes"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("was moved aside"), "{text}");
    let report = fs::read_dir(&data).unwrap().flatten();
    assert_eq!(
        report
            .filter(|e| e.file_name().to_string_lossy().starts_with("repair-"))
            .count(),
        1
    );
    assert_eq!(tool(&["verify", path]).status.code(), Some(0));

    let server = Server::start(&data, &[]);
    let mut client = server.client();
    let (first, lines) = client.list("READ t 0 max=2");
    assert_eq!(first, "OK 2 3 30");
    assert!(lines[0].starts_with("1\t"), "{lines:?}");
    let (code, text) = code_and_text(&tool(&["repair", path, "--yes"]));
    assert_eq!(code, 1, "a broker owns the directory");
    assert!(text.contains("another broker owns"), "{text}");
    assert!(server.stop().success());
}

#[test]
fn retention_lists_what_would_go_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    build(&data);
    let path = data.to_str().unwrap();
    let (code, text) = code_and_text(&tool(&["retention", path, "--dry-run"]));
    assert_eq!(
        (code, text.as_str()),
        (0, "segments that would go: 0, bytes: 0\n")
    );
    let bytes = ["--config", "retention.bytes=600"];
    let (code, text) = code_and_text(&tool(
        &[&["retention", path, "--dry-run"][..], &bytes].concat(),
    ));
    assert_eq!(code, 0);
    assert!(
        text.starts_with("t/0 segment 00000000000000000000.log: "),
        "{text}"
    );
    assert!(text.contains("over retention.bytes"), "{text}");
    let (_, json) = code_and_text(&tool(
        &[&["retention", path, "--dry-run", "--json"][..], &bytes].concat(),
    ));
    let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(
        (line["topic"].as_str(), line["segment"].as_i64()),
        (Some("t"), Some(0))
    );
    assert_eq!(
        tool(&["retention", path]).status.code(),
        Some(2),
        "--dry-run is needed"
    );
}

#[test]
fn a_directory_that_is_none_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["repair"][..], &["retention", "--dry-run"]] {
        let path = dir.path().to_str().unwrap();
        let (code, text) = code_and_text(&tool(&[args, &[path]].concat()));
        assert_eq!(code, 1);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("no data directory"), "{text}");
    }
}
