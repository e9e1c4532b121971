//! Readers that wait: tails and long polls.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::io::Read;

use harness::{Client, Server, Thread, batch};
use mini_broker::storage::FsyncPolicy;

#[test]
fn a_tail_gets_records_as_they_come_until_it_is_stopped() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let (mut writer, mut tail) = (server.client(), server.client());
    assert_eq!(writer.ask("PUT t before"), "OK 0 0");
    assert_eq!(tail.ask("TAIL t"), "OK 1");
    for n in 1..=50 {
        assert_eq!(writer.ask(&format!("PUT t value {n}")), format!("OK 0 {n}"));
        let line = tail.line();
        assert!(
            line.starts_with(&format!("{n}\t")) && line.ends_with(&format!("value {n}")),
            "{line}"
        );
    }
    assert_eq!(tail.ask("STOP"), "OK");
    assert_eq!(writer.ask("PUT t after"), "OK 0 51");
    assert_eq!(tail.ask("PING"), "OK PONG");
}

#[test]
fn tails_that_share_lines_get_them_all() {
    let server = Thread::in_memory(FsyncPolicy::Never);
    let mut writer = server.client();
    assert_eq!(writer.ask("CREATE t partitions=2"), "OK");
    let mut tails: Vec<Client> = (0..60)
        .map(|n| {
            let mut tail = server.client();
            let request = match n % 4 {
                0 => "TAIL t/0 0",
                1 => "TAIL t/0 0 as=json",
                2 => "TAIL t/1 earliest",
                _ => "TAIL t/* earliest",
            };
            assert!(tail.ask(request).starts_with("OK"));
            tail
        })
        .collect();
    for n in 0..300 {
        let long = "x".repeat(if n % 10 == 0 { 20_000 } else { 5 });
        writer.send(format!("PUT t/{} {n} {long}\n", n % 2));
        writer.line();
    }
    for (n, tail) in tails.iter_mut().enumerate() {
        let expected = if n % 4 == 3 { 300 } else { 150 };
        let lines: Vec<String> = (0..expected).map(|_| tail.line()).collect();
        assert!(
            lines
                .iter()
                .all(|line| line.starts_with('{') == (n % 4 == 1)),
            "its own form"
        );
        let mut numbers: Vec<usize> = lines.iter().map(|line| value_number(line)).collect();
        numbers.sort_unstable();
        let all: Vec<usize> = match n % 4 {
            0 | 1 => (0..300).step_by(2).collect(),
            2 => (1..300).step_by(2).collect(),
            _ => (0..300).collect(),
        };
        assert_eq!(numbers, all, "tail {n}");
        assert!(tail.is_silent());
    }
}

/// The number that a line's value begins with.
fn value_number(line: &str) -> usize {
    let value = match line.split_once("\"value\":\"") {
        Some((_, value)) => value,
        None => line.rsplit('\t').next().unwrap(),
    };
    value.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_slow_tail_stops_only_itself_and_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &["--fsync", "never"]);
    let (mut writer, mut slow, mut quick) = (server.client(), server.client(), server.client());
    assert_eq!(writer.ask("CREATE t"), "OK");
    assert_eq!(slow.ask("TAIL t 0"), "OK 0");
    assert_eq!(quick.ask("TAIL t 0"), "OK 0");
    let value = "v".repeat(50_000);
    let count = 2000;
    for n in 0..count {
        assert_eq!(
            writer.ask(&format!("PUT t {n} {value}")),
            format!("OK 0 {n}")
        );
        assert_eq!(value_number(&quick.line()), n);
    }
    let resident = server.resident_bytes();
    assert!(
        resident < 64 << 20,
        "the broker holds {resident} bytes for a slow tail of 100 MB"
    );
    for n in 0..count {
        assert_eq!(value_number(&slow.line()), n);
    }
    assert_eq!(slow.ask("STOP"), "OK");
}

#[test]
fn a_tail_goes_on_after_a_half_close() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut tail = server.client();
    tail.send("CREATE t\nTAIL t\n");
    tail.half_close();
    assert_eq!(
        (tail.line(), tail.line()),
        ("OK".to_owned(), "OK 0".to_owned())
    );
    let mut writer = server.client();
    assert_eq!(writer.ask("PUT t x"), "OK 0 0");
    assert!(tail.line().ends_with("\tx"));
}

#[test]
fn a_long_poll_waits_for_a_record_or_its_time() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let (mut reader, mut other) = (server.client(), server.client());
    assert_eq!(other.ask("CREATE t"), "OK");
    // What is pipelined behind it waits with it.
    reader.send("READ t 0 wait=60000 as=value\nPING\n");
    // The loop turns for others, and time passes, but not enough.
    assert_eq!(other.ask("PING"), "OK PONG");
    server.clock.advance(59_999);
    assert_eq!(other.ask("PING"), "OK PONG");
    assert_eq!(other.ask("PING"), "OK PONG");
    assert!(reader.is_silent(), "it was answered before its time");
    server.clock.advance(1);
    assert_eq!(other.ask("PING"), "OK PONG");
    assert_eq!(reader.line(), "OK 0 0 0 0");
    assert_eq!(reader.line(), "OK PONG");

    reader.send("FETCH t 0 wait=60000 min_bytes=1\n");
    assert_eq!(other.ask("PING"), "OK PONG");
    assert!(reader.is_silent());
    assert_eq!(other.ask("PUT t x"), "OK 0 0");
    assert!(reader.line().ends_with(" 0 1 1"), "a record ends the wait");
}

#[test]
fn tails_that_are_far_behind_keep_no_long_poll_from_its_time() {
    let server = Thread::in_memory(FsyncPolicy::Never);
    let (mut reader, mut other) = (server.client(), server.client());
    assert_eq!(other.ask("CREATE t"), "OK");
    for _ in 0..64 {
        other.send(batch("t", 20_000));
        other.line();
    }
    let draining: Vec<_> = (0..8)
        .map(|_| {
            let mut tail = server.client();
            assert!(tail.ask("TAIL t 0").starts_with("OK"));
            let mut stream = tail.stream().try_clone().unwrap();
            let drained = std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
            (tail, drained)
        })
        .collect();
    reader.send("READ t latest wait=60000\n");
    assert_eq!(other.ask("PING"), "OK PONG");
    server.clock.advance(60_000);
    for _ in 0..3 {
        assert_eq!(other.ask("PING"), "OK PONG");
    }
    assert!(!reader.is_silent(), "three turns, and no answer");
    assert_eq!(reader.line(), "OK 0 1280000 1280000");
    for (tail, drained) in draining {
        tail.stream().shutdown(std::net::Shutdown::Both).unwrap();
        drained.join().unwrap();
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_is_forgotten() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut other = server.client();
    assert_eq!(other.ask("CREATE t"), "OK");
    for request in ["READ t 0 wait=60000\n", "TAIL t\n"] {
        let mut gone = server.client();
        gone.send(request);
        if request.starts_with("TAIL") {
            assert_eq!(gone.line(), "OK 0");
        }
        // Unread bytes make the close a reset, which is noticed without a write.
        assert_eq!(other.ask("PING"), "OK PONG");
        drop(gone);
    }
    for n in 0..20 {
        assert_eq!(other.ask("PUT t x"), format!("OK 0 {n}"));
    }
}
