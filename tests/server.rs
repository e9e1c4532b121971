//! The broker over real sockets: what clients see of their replies, and of each other.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::io::{Read, Write};

use harness::{BACKLOG_BYTES, Server, Thread, batch, seed};
use mini_broker::broker::Settings;
use mini_broker::fs::disk::DiskFs;
use mini_broker::fs::{File, Fs, OpenMode, ReadAt};
use mini_broker::storage::FsyncPolicy;

#[test]
fn two_clients_see_each_others_records() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.ask("CREATE orders"), "OK");
    assert_eq!(one.ask("PUT orders:k from one"), "OK 0 0");
    assert_eq!(two.ask("PUT orders from two"), "OK 0 1");
    for client in [&mut one, &mut two] {
        let (head, lines) = client.list("READ orders 0 as=json");
        assert_eq!(head, "OK 2 2 2");
        assert!(lines[0].contains("\"value\":\"from one\""), "{lines:?}");
        assert!(lines[1].contains("\"value\":\"from two\""), "{lines:?}");
    }
}

#[test]
fn a_missing_topic_of_the_brokers_own_is_not_to_be_created() {
    let thread = Thread::in_memory(FsyncPolicy::Never);
    let mut client = thread.client();
    let reply = client.ask("READ missing 0");
    assert!(
        reply.starts_with("ERR UNKNOWN_TOPIC ") && reply.contains("CREATE missing"),
        "{reply}"
    );
    let reply = client.ask("READ __missing 0");
    assert!(
        reply.starts_with("ERR UNKNOWN_TOPIC ") && !reply.contains("CREATE"),
        "{reply}"
    );
}

#[test]
fn explain_does_not_claim_a_checksum_that_is_not_there() {
    let thread = Thread::in_memory(FsyncPolicy::Never);
    let mut client = thread.client();
    for (version, words) in [(1, ", no crc"), (2, ", crc ok")] {
        assert_eq!(
            client.ask(&format!("CREATE v{version} record.version={version}")),
            "OK"
        );
        assert_eq!(client.ask(&format!("PUT v{version} x")), "OK 0 0");
        let (_, lines) = client.list(&format!("EXPLAIN v{version} 0"));
        assert!(
            lines[3].starts_with("record ") && lines[3].ends_with(words),
            "{lines:?}"
        );
    }
}

/// A script of random requests, some of them wrong.
fn script(random: &mut fastrand::Rng, requests: usize) -> Vec<Vec<u8>> {
    (0..requests)
        .map(|n| {
            let topic = ["a", "b", "a/0", "b/7", "not/0/topic"][random.usize(..5)];
            let offset = random.usize(..n + 2);
            let text = match random.usize(..14) {
                0..4 => format!("PUT {topic}:k{n} value number {n}\n"),
                4..7 => {
                    let value = "x".repeat(random.usize(..300));
                    format!("PRODUCE {topic} 1 {} ts={n}\nk{value}\n", value.len())
                }
                7 => format!("READ {topic} {offset} max=3 as=json\n"),
                8 => format!("FETCH {topic} {offset} max_bytes=200\n"),
                9 => format!("OFFSETS {topic}\n"),
                10 => format!("AT {topic} {n}\nPING\n"),
                11 => "# nothing\n\nNONSENSE\n".to_owned(),
                12 => format!("DESCRIBE {topic}\nSEGMENTS {topic}\n"),
                _ => return batch(topic, random.usize(1..5)),
            };
            text.into_bytes()
        })
        .collect()
}

/// What a fresh broker answers to the script when it comes in such pieces, and to its end.
fn replies(pieces: impl Iterator<Item = Vec<u8>>, fsync: FsyncPolicy) -> Vec<u8> {
    let server = Thread::in_memory(fsync);
    let client = server.client();
    let mut writer = client.stream().try_clone().unwrap();
    let mut reader = client.stream().try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut replies = Vec::new();
        reader.read_to_end(&mut replies).unwrap();
        replies
    });
    for piece in pieces {
        writer.write_all(&piece).unwrap();
    }
    client.half_close();
    reading.join().unwrap()
}

#[test]
fn pipelined_in_any_pieces_equals_one_after_another() {
    let mut random = fastrand::Rng::with_seed(seed());
    for fsync in [
        FsyncPolicy::Always,
        FsyncPolicy::EveryMs(5),
        FsyncPolicy::Never,
    ] {
        let script = script(&mut random, 300);
        // One after another: each request goes when everything before it is answered, which a PING behind it tells.
        let server = Thread::in_memory(fsync);
        let mut client = server.client();
        let mut expected = Vec::new();
        for request in &script {
            client.send(request);
            client.send("PING\n");
            // The request itself may hold one, too.
            let mut pongs = 1 + request
                .windows(5)
                .filter(|bytes| bytes == b"PING\n")
                .count();
            while pongs > 0 {
                expected.append(&mut client.bytes(1));
                pongs -= usize::from(expected.ends_with(b"OK PONG\n"));
            }
        }
        let script: Vec<u8> = script
            .iter()
            .flat_map(|r| [r.as_slice(), b"PING\n"].concat())
            .collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let at_once = replies(std::iter::once(script.clone()), fsync);
        assert_eq!(text(&at_once), text(&expected), "all at once");
        let in_pieces = replies(
            script.chunks(random.usize(1..100)).map(<[u8]>::to_vec),
            fsync,
        );
        assert_eq!(text(&in_pieces), text(&expected), "in pieces");
        let by_byte = replies(script.iter().map(|&byte| vec![byte]), fsync);
        assert_eq!(text(&by_byte), text(&expected), "byte by byte");
    }
}

#[test]
fn a_read_behind_an_append_in_the_same_bytes_sees_it() {
    for fsync in [FsyncPolicy::Always, FsyncPolicy::Never] {
        let server = Thread::in_memory(fsync);
        let mut client = server.client();
        client
            .send("PUT t one\nREAD t 0 as=value\nPUT t two\nPING\nREAD t 1 as=value\nOFFSETS t\n");
        let expected = "OK 0 0\nOK 1 1 1 4\none\nOK 0 1\nOK PONG\nOK 1 2 2 4\ntwo\nOK 1\n0\t0\t2\n";
        assert_eq!(
            String::from_utf8(client.bytes(expected.len())).unwrap(),
            expected
        );
    }
}

#[test]
fn a_slow_reader_stops_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &["--fsync", "never"]);
    let mut other = server.client();
    let value = "v".repeat(60_000);
    for n in 0..20 {
        assert_eq!(other.ask(&format!("PUT t {value}")), format!("OK 0 {n}"));
    }
    // 300 MB are asked for and not read: far more than sockets hold.
    let reads = 250;
    let mut slow = server.client();
    slow.send("READ t 0 as=value\n".repeat(reads));
    for n in 0..100 {
        assert_eq!(other.ask("PUT u x"), format!("OK 0 {n}"));
    }
    let resident = server.resident_bytes();
    assert!(
        resident < 64 << 20,
        "the broker holds {resident} bytes for one slow reader"
    );
    for _ in 0..reads {
        let (bytes, head) = (60_001 * 20, slow.line());
        assert_eq!(head, format!("OK 20 20 20 {bytes}"));
        assert!(
            slow.bytes(bytes)
                .iter()
                .all(|&byte| byte == b'v' || byte == b'\n')
        );
    }
    assert_eq!(slow.ask("PING"), "OK PONG");
}

#[test]
fn after_a_half_close_every_whole_line_is_answered() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut client = server.client();
    client.send("PUT t one\nPING\nREAD t 0 as=value\nPUT t two\nPUT t three without its LF");
    client.half_close();
    assert_eq!(client.rest(), "OK 0 0\nOK PONG\nOK 1 1 1 4\none\nOK 0 1\n");
    assert_eq!(server.client().list("OFFSETS t").1, ["0\t0\t2"]);
}

#[test]
fn half_a_request_and_gone_leaves_nothing() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    for half in [
        &b"PUT t half a line"[..],
        b"PRODUCE t -1 100\nhalf a value",
        b"BATCH t 1 12\n\xff\xff\xff\xff",
    ] {
        let mut client = server.client();
        client.send(half);
        client.half_close();
        assert_eq!(client.rest(), "");
    }
    assert!(
        server
            .client()
            .ask("OFFSETS t")
            .starts_with("ERR UNKNOWN_TOPIC")
    );
    let stats = server.client().list("STATS").1;
    assert!(stats.contains(&"connections\t1".to_owned()), "{stats:?}");
}

#[test]
fn quit_ends_the_connection_and_nothing_behind_it_is_executed() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut client = server.client();
    client.send("PUT t one\nQUIT\nPUT t two\n");
    assert_eq!(client.rest(), "OK 0 0\nOK\n");
    assert_eq!(server.client().list("OFFSETS t").1, ["0\t0\t1"]);
}

#[test]
fn a_web_page_and_a_binary_protocol_are_refused() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut browser = server.client();
    browser.send("POST /x HTTP/1.1\r\nHost: a\r\n\r\nCREATE stolen\n");
    let reply = browser.rest();
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
    let mut kafka = server.client();
    kafka.send([0, 0, 0, 20, 0, 18, 0, 3]);
    let reply = kafka.rest();
    assert!(
        reply.starts_with("ERR FRAMING ") && reply.lines().count() == 1,
        "{reply}"
    );
    assert_eq!(server.client().list("TOPICS").0, "OK 0");
}

#[test]
fn a_batch_far_larger_than_the_read_buffer_is_gathered() {
    let server = Thread::in_memory(FsyncPolicy::Never);
    let mut client = server.client();
    assert_eq!(client.ask("CREATE t"), "OK");
    let value = vec![b'z'; 1000];
    let count = 900;
    let mut payload = Vec::new();
    for _ in 0..count {
        payload.extend_from_slice(&(-1_i32).to_be_bytes());
        payload.extend_from_slice(&1000_i32.to_be_bytes());
        payload.extend_from_slice(&value);
    }
    client.send(format!("BATCH t {count} {}\n", payload.len()));
    client.send(&payload);
    client.send("\nOFFSETS t\n");
    assert_eq!(client.line(), "OK 0 0 899");
    assert_eq!(client.line(), "OK 1");
    assert_eq!(client.line(), "0\t0\t900");
}

#[test]
fn a_fetch_is_the_bytes_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let mut client = server.client();
    for n in 0..2000 {
        client.send(format!("PUT t:k{n} value {n} {}\n", "v".repeat(n % 500)));
    }
    for n in 0..2000 {
        assert_eq!(client.line(), format!("OK 0 {n}"));
    }
    let log = std::fs::read(server.data_dir.join("t-0/00000000000000000000.log")).unwrap();
    let mut fetched = Vec::new();
    let mut offset = 0;
    while offset < 2000 {
        let head = client.ask(&format!("FETCH t {offset} max_bytes=100000"));
        let words: Vec<usize> = head
            .split(' ')
            .skip(1)
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!((words[1], words[3]), (offset, 2000), "{head}");
        fetched.extend_from_slice(&client.bytes(words[0]));
        offset = words[2];
    }
    assert!(fetched == log[..fetched.len()], "the bytes differ");
    assert!(
        log[fetched.len()..].iter().all(|&byte| byte == 0),
        "not all was fetched"
    );
    // Many at once, so that headers and ranges stand one behind another in the outbox.
    client.send("FETCH t 10 max_bytes=50000\nPING\n".repeat(50));
    for _ in 0..50 {
        let head = client.line();
        let len = head.split(' ').nth(1).unwrap().parse().unwrap();
        let bytes = client.bytes(len);
        assert!(
            log.windows(len).any(|window| window == bytes),
            "the bytes differ"
        );
        assert_eq!(client.line(), "OK PONG");
    }
}

#[test]
fn a_fetch_of_what_is_not_in_memory_is_whole_and_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &["--fsync", "never"]);
    let (mut reader, mut other) = (server.client(), server.client());
    let value = "v".repeat(60_000);
    for n in 0..200 {
        assert_eq!(
            reader.ask(&format!("PUT t {n} {value}")),
            format!("OK 0 {n}")
        );
    }
    assert_eq!(reader.ask("SYNC"), "OK");
    let path = server.data_dir.join("t-0/00000000000000000000.log");
    let log = DiskFs.open(&path, OpenMode::Read).unwrap();
    for _ in 0..5 {
        log.drop_cache();
        reader.send("FETCH t 0 max_bytes=10000000\n");
        assert_eq!(other.ask("PING"), "OK PONG");
        let head = reader.line();
        let len = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut stored = vec![0; len];
        assert_eq!(log.read_at(&mut stored, 0).unwrap(), len);
        assert!(reader.bytes(len) == stored, "the bytes differ");
    }
}

#[test]
fn what_is_not_in_order_on_one_connection_does_not_touch_another() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut good = server.client();
    for n in 0..50 {
        let mut bad = server.client();
        match n % 4 {
            0 => bad.send("x".repeat(70_000)),
            1 => bad.send("PRODUCE t 99999999999 1\n"),
            2 => bad.send([0xff; 100]),
            _ => bad.send("PUT t x\nPUT t"),
        }
        drop(bad);
        assert_eq!(good.ask("PING"), "OK PONG");
    }
}

#[test]
fn a_refused_line_reaches_a_client_that_goes_on_sending() {
    let server = Thread::in_memory(FsyncPolicy::Always);
    let mut client = server.client();
    let mut writer = client.stream().try_clone().unwrap();
    // Much more than the limit, so that the broker answers while bytes are still on their way.
    let writing = std::thread::spawn(move || {
        for _ in 0..200 {
            if writer.write_all(&vec![b'x'; 65_536]).is_err() {
                break;
            }
        }
        let _ = writer.shutdown(std::net::Shutdown::Write);
    });
    assert!(client.line().starts_with("ERR LINE_TOO_LONG "));
    // A close with bytes unread would be a reset, which may overtake the reply.
    assert_eq!(client.rest(), "", "the connection ends in order");
    writing.join().unwrap();
}

#[test]
fn real_files_and_a_loop_in_a_thread_stop_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new(dir.path().join("data"));
    let server = Thread::start(|| DiskFs, settings.clone(), BACKLOG_BYTES);
    assert_eq!(server.client().ask("PUT t x"), "OK 0 0");
    server.stop().unwrap();
    assert!(settings.data_dir.join("clean-shutdown").exists());
    let server = Thread::start(|| DiskFs, settings, BACKLOG_BYTES);
    assert_eq!(server.client().list("OFFSETS t").1, ["0\t0\t1"]);
}
