//! Every limit at n and at n + 1.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;

use harness::{Client, Server};

fn start(args: &[&str]) -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), args);
    (dir, server)
}

/// A BATCH of one record without a key, whose payload has so many bytes.
fn batch(payload_bytes: usize) -> Vec<u8> {
    let value = payload_bytes - 8;
    let mut bytes = format!("BATCH t 1 {payload_bytes}\n").into_bytes();
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes.extend_from_slice(&i32::try_from(value).unwrap().to_be_bytes());
    bytes.extend_from_slice(&vec![b'v'; value]);
    bytes.push(b'\n');
    bytes
}

#[test]
fn one_connection_too_many_is_told_so_and_one_that_leaves_makes_room() {
    let (_dir, server) = start(&["--max-connections", "3"]);
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("PING"), "OK PONG");
    }
    for _ in 0..3 {
        let reply = server.client().rest();
        assert!(
            reply.starts_with("ERR TOO_MANY_CONNECTIONS ") && reply.contains('3'),
            "{reply}"
        );
    }
    for client in &mut clients {
        assert_eq!(
            client.ask("PING"),
            "OK PONG",
            "those who are in are not touched"
        );
    }
    let mut leaving = clients.pop().unwrap();
    leaving.send("QUIT\n");
    assert_eq!(leaving.rest(), "OK\n");
    assert_eq!(server.client().ask("PING"), "OK PONG");
}

#[test]
fn a_line_has_at_most_65536_bytes() {
    let (_dir, server) = start(&[]);
    for (len, is_taken) in [(65_536, true), (65_537, false)] {
        for end in ["\n", "\r\n"] {
            let mut client = server.client();
            let line = format!("PUT t {}", "x".repeat(len - 6));
            client.send(format!("{line}{end}PING\n"));
            if is_taken {
                assert!(client.line().starts_with("OK 0 "));
                assert_eq!(client.line(), "OK PONG");
            } else {
                let rest = client.rest();
                assert!(
                    rest.starts_with("ERR LINE_TOO_LONG ") && rest.lines().count() == 1,
                    "{rest}"
                );
            }
        }
    }
}

#[test]
fn a_batch_has_at_most_max_batch_bytes() {
    let (_dir, server) = start(&["--max-batch-bytes", "100000"]);
    let mut client = server.client();
    client.send(batch(100_000));
    assert_eq!(client.line(), "OK 0 0 0");
    client.send(batch(100_001));
    assert!(client.line().starts_with("ERR MESSAGE_TOO_LARGE "));
    assert_eq!(client.ask("PING"), "OK PONG", "the payload was read past");
    assert_eq!(client.list("OFFSETS t").1, ["0\t0\t1"]);
}

#[test]
fn a_record_has_at_most_max_message_bytes() {
    let (_dir, server) = start(&["--config", "max.message.bytes=1000"]);
    let mut client = server.client();
    for (len, is_taken) in [(999, true), (1000, false)] {
        // One byte of key counts, too.
        client.send(format!("PRODUCE t 1 {len}\nk{}\nPING\n", "v".repeat(len)));
        let reply = client.line();
        assert_eq!(reply.starts_with("OK "), is_taken, "{reply}");
        assert!(
            is_taken || reply.starts_with("ERR MESSAGE_TOO_LARGE "),
            "{reply}"
        );
        assert_eq!(client.line(), "OK PONG");
    }
}

#[test]
fn a_fetch_gives_at_most_max_fetch_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let server = Server::start(&data_dir, &[]);
    let mut client = server.client();
    for n in 0..10 {
        assert_eq!(
            client.ask(&format!("PUT t {}", "v".repeat(100))),
            format!("OK 0 {n}")
        );
    }
    // What one record takes, and so what n of them do.
    let one = fetched(&mut client, "FETCH t 0 max_bytes=1");
    assert_eq!(server.stop().code(), Some(0));
    for (max, expected) in [(3 * one, 3 * one), (3 * one - 1, 2 * one), (1, one)] {
        let server = Server::start(&data_dir, &["--max-fetch-bytes", &max.to_string()]);
        assert_eq!(
            fetched(&mut server.client(), "FETCH t 0 max_bytes=1000000"),
            expected
        );
        assert_eq!(server.stop().code(), Some(0));
    }
}

/// How many bytes a FETCH gives.
fn fetched(client: &mut Client, request: &str) -> usize {
    let len = client
        .ask(request)
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    client.bytes(len);
    len
}

#[test]
fn there_are_at_most_so_many_topics_and_partitions() {
    let (_dir, server) = start(&["--max-topics", "2", "--max-partitions", "5"]);
    let mut client = server.client();
    assert_eq!(client.ask("CREATE a partitions=4"), "OK");
    let refused = client.ask("CREATE b partitions=2");
    assert!(
        refused.starts_with("ERR ") && refused.contains("--max-partitions"),
        "{refused}"
    );
    assert_eq!(client.ask("CREATE b partitions=1"), "OK");
    let refused = client.ask("CREATE c");
    assert!(
        refused.starts_with("ERR ") && refused.contains("--max-"),
        "{refused}"
    );
    let refused = client.ask("PUT c x");
    assert!(
        refused.starts_with("ERR "),
        "no topic is created by an append, either: {refused}"
    );
    assert_eq!(client.ask("DELETE b"), "OK");
    assert_eq!(client.ask("CREATE c"), "OK");
}

#[test]
fn with_too_much_owed_nothing_more_is_read() {
    let (_dir, server) = start(&["--max-backlog-bytes", "4096", "--fsync", "never"]);
    let mut client = server.client();
    let value = "v".repeat(60_000);
    for n in 0..100 {
        assert_eq!(client.ask(&format!("PUT t {value}")), format!("OK 0 {n}"));
    }
    // 600 MB of replies, and appends behind them: sockets hold a few MB, so the last append has to wait for its reader.
    let mut slow = server.client();
    slow.send("READ t 0 as=value\n".repeat(100));
    slow.send("PUT t last\n");
    for _ in 0..200 {
        assert_eq!(client.ask("PING"), "OK PONG");
    }
    assert_eq!(client.list("OFFSETS t").1, ["0\t0\t100"]);
    for _ in 0..100 {
        assert_eq!(slow.line(), "OK 100 100 100 6000100");
        slow.bytes(6_000_100);
    }
    assert_eq!(slow.line(), "OK 0 100");
}

#[test]
fn without_file_descriptors_accepting_pauses_and_serving_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with_descriptors(&dir.path().join("data"), 64, &[]);
    let mut first = server.client();
    assert_eq!(first.ask("PING"), "OK PONG");
    // More than there can be descriptors for; the kernel completes their handshakes all the same.
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("PING\n");
    }
    // Those who are in are served: what they ask for needs descriptors of its own.
    for n in 0..3 {
        assert_eq!(first.ask(&format!("CREATE t{n}")), "OK");
        assert_eq!(first.ask(&format!("PUT t{n} x")), "OK 0 0");
        assert_eq!(first.list(&format!("READ t{n} 0")).0, "OK 1 1 1");
    }
    let waiting = clients
        .iter_mut()
        .filter_map(|client| client.is_silent().then_some(()))
        .count();
    assert!(waiting >= 40, "{waiting} of 100 wait outside");
    // Each who leaves makes room for one who waits, until all were served.
    for mut client in clients {
        assert_eq!(client.line(), "OK PONG");
    }
    assert_eq!(server.client().ask("PING"), "OK PONG");
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn ten_thousand_idle_connections_take_less_than_100_mib() {
    let count = 10_000;
    let limit = mini_broker::sys::raise_descriptor_limit().unwrap();
    if limit < count + 100 {
        println!("skipped: the limit of file descriptors is {limit}");
        return;
    }
    let (_dir, server) = start(&["--fsync", "never"]);
    let mut clients = Vec::new();
    for n in 0..count {
        let mut stream = TcpStream::connect(server.address).unwrap();
        // Some have been busy before, some are in the middle of a line.
        match n % 4 {
            0 => {
                stream.write_all(b"PUT t some value\n").unwrap();
                let mut reply = [0; 5];
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"OK 0 ");
            }
            1 => stream.write_all(b"PUT t half a li").unwrap(),
            _ => {}
        }
        clients.push(stream);
    }
    let mut client = server.client();
    let (_, stats) = client.list("STATS");
    assert!(
        stats.contains(&format!("connections\t{}", count + 1)),
        "{stats:?}"
    );
    let held = server.resident_bytes();
    println!("{count} idle connections: {} KiB resident", held / 1024);
    assert!(held < 100 << 20, "{held} bytes are resident");
}
