//! The broker as a process: killed, stopped, started where it cannot, told nonsense.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{BINARY, Client, Server, seed};

/// The number that POSIX gives it.
const SIGHUP: i32 = 1;

#[test]
fn a_killed_broker_has_kept_every_acknowledged_record() {
    let mut random = fastrand::Rng::with_seed(seed());
    let dir = tempfile::tempdir().unwrap();
    for fsync in ["always", "5ms", "never"] {
        let data_dir = dir.path().join(fsync);
        let mut acknowledged = 0;
        for _ in 0..3 {
            let server = Server::start(&data_dir, &["--fsync", fsync]);
            // Some that were not acknowledged may be there, too.
            let stored = check_records(&mut server.client(), acknowledged);
            acknowledged = produce_until_killed(server, stored, random.usize(1..30_000));
        }
        let server = Server::start(&data_dir, &["--fsync", fsync]);
        check_records(&mut server.client(), acknowledged);
    }
}

/// Produces without a pause, kills the broker after about so many records more, and returns how many it holds at least.
fn produce_until_killed(server: Server, mut acknowledged: usize, more: usize) -> usize {
    let client = server.client();
    let mut writer = client.stream().try_clone().unwrap();
    let start = acknowledged;
    let writing = std::thread::spawn(move || {
        let mut n = start;
        loop {
            let lines: Vec<String> = (n..n + 100).map(|n| format!("PUT t value {n}\n")).collect();
            if writer.write_all(lines.concat().as_bytes()).is_err() {
                return;
            }
            n += 100;
        }
    });
    let mut reader = client;
    let mut server = Some(server);
    loop {
        let mut line = String::new();
        match reader.reader().read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if !line.ends_with('\n') => break,
            Ok(_) => assert_eq!(line, format!("OK 0 {acknowledged}\n")),
        }
        acknowledged += 1;
        if acknowledged >= start + more
            && let Some(server) = server.take()
        {
            server.kill();
        }
    }
    writing.join().unwrap();
    acknowledged
}

/// Checks that at least so many records are there, each with its own value; returns how many there are.
fn check_records(client: &mut Client, at_least: usize) -> usize {
    if at_least == 0 {
        return 0;
    }
    let mut offset = 0;
    loop {
        let head = client.ask(&format!("READ t {offset} max=5000 as=value"));
        let words: Vec<usize> = head
            .split(' ')
            .skip(1)
            .map(|word| word.parse().unwrap())
            .collect();
        let text = String::from_utf8(client.bytes(words[3])).unwrap();
        for line in text.lines() {
            assert_eq!(line, format!("value {offset}"));
            offset += 1;
        }
        if offset >= words[2] {
            break;
        }
    }
    assert!(
        offset >= at_least,
        "{offset} of {at_least} acknowledged records are there"
    );
    offset
}

#[test]
fn sigterm_sigint_and_sighup_stop_it_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // Where the tests themselves run under nohup, the broker inherits that.
    let is_ignored = mini_broker::sys::is_ignored(SIGHUP).unwrap();
    let signals = ["TERM", "INT", "HUP"].into_iter();
    for signal in signals.filter(|signal| *signal != "HUP" || !is_ignored) {
        let server = Server::start(&dir.path().join(signal), &["--fsync", "never"]);
        let data_dir = server.data_dir.clone();
        let (mut client, mut tail, mut poll) = (server.client(), server.client(), server.client());
        client.send("PUT t x\n".repeat(1000));
        for n in 0..1000 {
            assert_eq!(client.line(), format!("OK 0 {n}"));
        }
        assert_eq!(tail.ask("TAIL t"), "OK 1000");
        poll.send("READ t latest wait=100000\n");
        assert!(!data_dir.join("clean-shutdown").exists());
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(data_dir.join("clean-shutdown").exists());
        for mut client in [client, tail, poll] {
            assert_eq!(client.rest(), "", "the connection ends");
        }
        let server = Server::start(&data_dir, &[]);
        assert_eq!(server.client().list("OFFSETS t").1, ["0\t0\t1000"]);
        assert_eq!(server.stop().code(), Some(0));
    }
}

#[test]
fn a_broker_that_was_started_with_nohup_outlives_its_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_ignoring(&dir.path().join("data"), "HUP");
    let mut client = server.client();
    server.signal("HUP");
    for n in 0..3 {
        assert_eq!(client.ask("PUT t x"), format!("OK 0 {n}"));
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_stop_sends_what_is_owed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &["--fsync", "never"]);
    let mut client = server.client();
    let value = "v".repeat(60_000);
    for _ in 0..50 {
        client.ask(&format!("PUT t {value}"));
    }
    // Answered with 12 MB, which the sockets do not hold.
    client.send("READ t 0 as=value\n".repeat(4));
    assert_eq!(client.line(), "OK 50 50 50 3000050");
    assert_eq!(server.client().ask("PING"), "OK PONG");
    server.signal("TERM");
    assert_eq!(client.bytes(3_000_050).len(), 3_000_050);
    let rest = client.rest();
    assert!(
        rest.ends_with('\n'),
        "a reply was cut off: {} bytes",
        rest.len()
    );
    assert_eq!(server.wait().code(), Some(0));
}

/// Runs the binary to its end; returns its exit code, stdout and stderr.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(BINARY)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_healthy_start_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    for n in 0..3 {
        let server = Server::start(&data_dir, &[]);
        assert_eq!(server.client().ask("PUT t x"), format!("OK 0 {n}"));
        let log = server.log();
        assert!(log.contains("opened topics="), "{log}");
        for word in ["missing", "no recovery point", "WARN", "ERROR"] {
            assert!(!log.contains(word), "{log}");
        }
        assert_eq!(server.stop().code(), Some(0));
    }
    std::fs::remove_file(data_dir.join("recovery-point")).unwrap();
    let server = Server::start(&data_dir, &[]);
    assert!(server.log().contains("no recovery point is known"));
}

#[test]
fn a_peer_that_speaks_something_else_is_logged_with_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let mut client = server.client();
        addresses.push(client.stream().local_addr().unwrap().to_string());
        client.send([0x16, 0x03, 0x01]);
        assert!(client.rest().starts_with("ERR FRAMING "));
    }
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("0x16")).collect();
    assert_eq!(lines.len(), 1, "no flood: {log}");
    assert!(
        lines[0].contains("WARN") && lines[0].contains(&format!("peer={} ", addresses[0])),
        "{log}"
    );
}

/// Puts a directory with something in it where a file was.
fn put_directory(path: &Path) {
    let _ = std::fs::remove_file(path);
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("precious"), "kept").unwrap();
}

#[test]
fn directories_under_the_names_of_files_do_not_stop_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let server = Server::start(&data_dir, &["--config", "segment.bytes=20000"]);
    let mut client = server.client();
    client.send("PUT t some value\n".repeat(1000));
    for n in 0..1000 {
        assert_eq!(client.line(), format!("OK 0 {n}"));
    }
    assert_eq!(server.stop().code(), Some(0));
    let partition = data_dir.join("t-0");
    let indexes: Vec<_> = std::fs::read_dir(&partition)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end != "log"))
        .collect();
    assert!(indexes.len() >= 4, "{indexes:?}");
    let names = [
        "clean-shutdown",
        "tmp",
        "spare",
        "recovery-point",
        "log-start-offset",
    ];
    let foreign = ["append-times", "cleaned", "00000000000000000000.replace"];
    let orphans = [
        "00000000000000000999.index",
        "00000000000000000000.log.deleted",
    ];
    let mut made: Vec<_> = names.iter().map(|name| data_dir.join(name)).collect();
    made.extend(
        foreign
            .iter()
            .chain(&orphans)
            .map(|name| partition.join(name)),
    );
    made.extend(indexes);
    for path in &made {
        put_directory(path);
    }
    let output = Command::new(BINARY).arg("verify").arg(&data_dir).output();
    let found = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(found.contains("it is a directory"), "{found}");
    for round in 0..2 {
        let server = Server::start(&data_dir, &[]);
        let mut client = server.client();
        let (count, latest) = (2 + round, 1000 + round);
        assert_eq!(
            client.ask("READ t 998 as=value"),
            format!("OK {count} {latest} {latest} {}", 11 * count)
        );
        client.bytes(11 * count);
        assert_eq!(client.ask("PUT t some value"), format!("OK 0 {latest}"));
        let log = server.log();
        for path in &made {
            let kept = format!("{}.directory", path.display());
            assert_eq!(
                std::fs::read(Path::new(&kept).join("precious")).unwrap(),
                b"kept"
            );
            let is_named = log.contains(&format!("it is now {kept}"));
            assert_eq!(is_named, round == 0, "{kept}: {log}");
        }
        assert_eq!(server.stop().code(), Some(0));
    }
    let output = Command::new(BINARY).arg("verify").arg(&data_dir).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
}

#[test]
fn a_start_that_cannot_be_says_in_one_line_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let server = Server::start(&data_dir, &[]);
    let taken = server.address.to_string();
    let fresh = dir.path().join("fresh");

    let (code, stdout, stderr) = run(&["--listen", &taken, "--data-dir", path(&fresh)]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(
        stderr
            .lines()
            .filter(|line| line.starts_with("mini-broker: "))
            .count(),
        1,
        "{stderr}"
    );
    assert!(
        stderr.contains(&taken) && stderr.contains("--listen"),
        "{stderr}"
    );
    assert!(
        !fresh.exists(),
        "nothing is left of a start that came to nothing"
    );
    std::fs::create_dir(&fresh).unwrap();
    let (code, _, _) = run(&["--listen", &taken, "--data-dir", path(&fresh)]);
    assert_eq!(code, Some(1));
    assert_eq!(std::fs::read_dir(&fresh).unwrap().count(), 0);

    let (code, _, stderr) = run(&["--listen", "127.0.0.1:0", "--data-dir", path(&data_dir)]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(path(&data_dir)), "{stderr}");

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, _, stderr) = run(&["--listen", "127.0.0.1:0", "--data-dir", path(&file)]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(path(&file)), "{stderr}");

    assert_eq!(server.stop().code(), Some(0));
    let properties = data_dir.join("broker.properties");
    let text = std::fs::read_to_string(&properties).unwrap();
    std::fs::write(&properties, text.replace("format=1", "format=2")).unwrap();
    let (code, _, stderr) = run(&["--listen", "127.0.0.1:0", "--data-dir", path(&data_dir)]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("format"), "{stderr}");
}

#[test]
fn flags_that_are_wrong_are_a_usage_error() {
    for (args, words) in [
        (&["--fsync", "sometimes"][..], "'sometimes'"),
        (&["serve", "--config", "no.such.config=1"], "no.such.config"),
        (&["--max-connections", "none"], "'none'"),
        (&["no-such-command"], "'no-such-command'"),
        (&["--lissten", "x"], "'--listen'"),
        (&["--lis\nten", "x"], "unexpected argument"),
        (&["import"], "<FILE> <TOPIC[/PARTITION]>"),
        (&["completions", "cmd"], "bash, zsh, fish"),
        (&["--listen", "nowhere"], "no port"),
        (
            &["--listen", &format!("unix:{}", "x".repeat(108))],
            "at most 107",
        ),
        (&["shell", "--connect", "unix:"], "no path"),
        (
            &["--config", "retention.ms=1", "--config", "retention.ms=1"],
            "retention.ms is given twice",
        ),
        (
            &["--config", "num.partitions=3", "--max-partitions", "2"],
            "--max-partitions=2",
        ),
    ] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with("mini-broker: ") && stderr.contains(words),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    assert!(!Path::new("data").exists(), "no directory was made");
    let (code, stdout, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("--fsync") && stdout.contains("Examples:"),
        "{stdout}"
    );
    assert_eq!(run(&["--version"]).0, Some(0));
}
