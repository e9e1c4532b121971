//! Consumer groups over real sockets: who gets what, when, and what is left when somebody goes.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::process::{Command, Stdio};

use mini_broker::broker::Settings;
use mini_broker::fs::mem::MemFs;
use mini_broker::storage::FsyncPolicy;

use harness::{Client, Server, Thread};

const BACKLOG: u64 = 4 << 20;

fn start() -> Thread {
    start_with(&[])
}

fn start_with(configs: &[(&str, &str)]) -> Thread {
    let configs = configs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings = Settings {
        fsync: FsyncPolicy::Never,
        configs: configs.collect(),
        ..Settings::new("/data")
    };
    Thread::start(MemFs::new, settings, BACKLOG)
}

/// A client that has said CONSUME and knows its partitions.
fn consume(mut client: Client, line: &str, assigned: &str) -> Client {
    assert_eq!(client.ask(&format!("CONSUME {line}")), "OK");
    assert_eq!(client.line(), format!("# assigned {assigned}"));
    client
}

/// Partition and offset of the next line, which is a record.
fn record(client: &mut Client) -> (u32, i64) {
    let line = client.line();
    let mut fields = line.split('\t');
    let mut number = || fields.next().and_then(|field| field.parse().ok());
    match (number(), number()) {
        (Some(partition), Some(offset)) => (u32::try_from(partition).unwrap(), offset),
        _ => panic!("no record: {line}"),
    }
}

fn records(client: &mut Client, count: usize) -> Vec<(u32, i64)> {
    (0..count).map(|_| record(client)).collect()
}

fn put(client: &mut Client, target: &str, values: &[&str]) {
    for value in values {
        let reply = client.ask(&format!("PUT {target} {value}"));
        assert!(reply.starts_with("OK "), "{reply}");
    }
}

#[test]
fn three_partitions_are_shared_two_and_one_and_a_third_takes_one() {
    let server = start();
    let mut admin = server.client();
    assert_eq!(admin.ask("CREATE orders partitions=3"), "OK");
    let mut first = consume(server.client(), "g orders", "0,1,2");
    let mut second = consume(server.client(), "g orders", "2");
    assert_eq!(first.line(), "# assigned 0,1");
    let mut third = consume(server.client(), "g orders", "1");
    assert_eq!(first.line(), "# assigned 0");
    let mut fourth = consume(server.client(), "g orders", "-");
    for partition in 0..3 {
        put(&mut admin, &format!("orders/{partition}"), &["x"]);
    }
    assert_eq!(record(&mut first), (0, 0));
    assert_eq!(record(&mut third), (1, 0));
    assert_eq!(record(&mut second), (2, 0));
    assert!(fourth.is_silent());
    assert_eq!(second.ask("STOP"), "OK");
    assert_eq!(fourth.line(), "# assigned 2");
    assert_eq!(record(&mut fourth), (2, 0), "it was not acknowledged");
    let (head, rows) = admin.list("COMMITTED g orders");
    assert_eq!(head, "OK 3");
    let owner = first.stream().local_addr().unwrap();
    assert_eq!(rows[0], format!("0\t-1\t1\t1\t{owner}"));
    assert_eq!(admin.list("GROUPS").1, ["g\t3\t1"]);
    assert_eq!(second.ask("PING"), "OK PONG", "the connection goes on");
    let mut other = consume(server.client(), "other orders", "0,1,2");
    assert_eq!(records(&mut other, 3).len(), 3, "groups are independent");
}

#[test]
fn what_was_not_acknowledged_comes_again_in_order_whoever_goes_and_how() {
    let server = start();
    let mut admin = server.client();
    assert_eq!(admin.ask("CREATE t"), "OK");
    put(&mut admin, "t", &["0", "1", "2", "3", "4", "5", "6", "7"]);
    let mut first = consume(server.client(), "g t", "0");
    assert_eq!(records(&mut first, 8).len(), 8);
    assert_eq!(first.ask("ACK 0 1"), "OK");
    let mut next = consume(server.client(), "g t", "-");
    drop(first);
    assert_eq!(next.line(), "# assigned 0");
    assert_eq!(
        records(&mut next, 6),
        (2..8).map(|o| (0, o)).collect::<Vec<_>>()
    );
    assert_eq!(next.ask("ACK 0 2"), "OK");
    let mut after_half_close = consume(server.client(), "g t", "-");
    next.half_close();
    assert_eq!(next.rest(), "OK\n", "a half-close counts as STOP");
    assert_eq!(after_half_close.line(), "# assigned 0");
    assert_eq!(records(&mut after_half_close, 5)[0], (0, 3));
    after_half_close.send("ACK 0 3\nQUIT\n");
    assert_eq!(after_half_close.rest(), "OK\nOK\n");
    let mut last = consume(server.client(), "g t", "0");
    assert_eq!(records(&mut last, 4)[0], (0, 4));
}

#[test]
fn a_killed_client_gives_its_partition_back() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["a", "b"]);
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'CONSUME g t\\n' >&3; cat <&3",
        server.address.port()
    );
    let mut client = Command::new("bash")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(client.stdout.take().unwrap());
    let mut seen = String::new();
    while seen.lines().count() < 4 {
        std::io::BufRead::read_line(&mut out, &mut seen).unwrap();
    }
    assert!(seen.starts_with("OK\n# assigned 0\n0\t0\t"), "{seen}");
    let mut waits = consume(server.client(), "g t", "-");
    client.kill().unwrap();
    client.wait().unwrap();
    // The shell's child has the socket too, and ends by the broken pipe when more comes.
    drop(out);
    put(&mut admin, "t", &["c", "d"]);
    assert_eq!(waits.line(), "# assigned 0");
    assert_eq!(records(&mut waits, 2), [(0, 0), (0, 1)]);
}

#[test]
fn no_more_than_max_inflight_is_out() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0", "1", "2", "3", "4", "5", "6"]);
    let mut client = consume(server.client(), "g t max_inflight=3", "0");
    assert_eq!(records(&mut client, 3), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!(client.line(), "# inflight 3");
    assert_eq!(client.ask("PING"), "OK PONG");
    put(&mut admin, "t", &["7"]);
    assert!(client.is_silent(), "it is told once");
    assert_eq!(client.ask("ACK 0 1"), "OK");
    assert_eq!(records(&mut client, 2), [(0, 3), (0, 4)]);
    assert_eq!(client.line(), "# inflight 3");
    assert_eq!(client.ask("ACK 0 4"), "OK");
    assert_eq!(records(&mut client, 3), [(0, 5), (0, 6), (0, 7)]);
    assert_eq!(client.ask("PING"), "OK PONG", "nothing is held back");
    assert!(
        client
            .ask("ACK 0 8")
            .contains("BAD_ARGUMENT offset 8 of partition 0 cannot be acknowledged; 7 is the last")
    );
    assert!(client.ask("ACK 1 0").starts_with("ERR NOT_ASSIGNED "));
    assert_eq!(client.ask("ACK 0 0"), "OK", "lower than committed");
    assert_eq!(
        admin.list("COMMITTED g t").1[0].split('\t').nth(1),
        Some("5")
    );
}

#[test]
fn while_it_consumes_a_connection_may_ask_little_else() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0"]);
    let mut client = consume(server.client(), "g t as=json", "0");
    assert!(client.line().starts_with("{\"partition\":0,\"offset\":0,"));
    client.send("PUT t x\nREAD t 0\nFROB\n\n# note\nSTOP now\nPRODUCE t 0 5\nPING\n\nBATCH t 1 8\n12345678\nPING\n");
    for _ in 0..6 {
        let line = client.line();
        assert!(line.starts_with("ERR BAD_ARGUMENT "), "{line}");
    }
    assert_eq!(client.line(), "OK PONG");
    client.send("ACK 0 0\nACK 0 0\nPING\nSTOP\nACK 0 0\nPUT t y\nPING\n");
    let replies: Vec<String> = (0..7).map(|_| client.line()).collect();
    assert_eq!(replies[..4], ["OK", "OK", "OK PONG", "OK"]);
    assert!(
        replies[4].starts_with("ERR NOT_ASSIGNED "),
        "{}",
        replies[4]
    );
    assert_eq!(replies[5..], ["OK 0 1", "OK PONG"]);
    client.send("CONSUME g t\nPRODUCE t x 1\n");
    assert_eq!(client.line(), "OK");
    let rest = client.rest();
    assert!(rest.contains("ERR FRAMING "), "{rest}");
}

#[test]
fn a_commit_says_where_a_group_goes_on() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0", "1", "2", "3"]);
    assert!(admin.ask("COMMITTED g t").starts_with("ERR UNKNOWN_GROUP "));
    assert_eq!(admin.ask("COMMIT g t/0 3"), "OK");
    let mut client = consume(server.client(), "g t", "0");
    assert_eq!(record(&mut client), (0, 3));
    assert_eq!(admin.ask("COMMIT g t 1"), "OK held");
    assert_eq!(
        admin.list("COMMITTED g t/0").1[0].split('\t').nth(1),
        Some("1")
    );
    assert_eq!(client.ask("ACK 0 3"), "OK");
    assert_eq!(
        admin.list("COMMITTED g t/0").1[0].split('\t').nth(1),
        Some("4")
    );
    assert_eq!(admin.ask("COMMIT g t latest"), "OK held");
    for offset in ["5", "9223372036854775807"] {
        let reply = admin.ask(&format!("COMMIT g t {offset}"));
        assert!(
            reply.starts_with("ERR OFFSET_OUT_OF_RANGE ")
                && reply.contains("earliest 0 to latest 4"),
            "{reply}"
        );
    }
    assert!(
        admin
            .ask("COMMIT g nothing 0")
            .starts_with("ERR UNKNOWN_TOPIC ")
    );
    assert!(
        admin
            .ask("COMMIT g t/1 0")
            .starts_with("ERR UNKNOWN_PARTITION ")
    );
    assert!(
        admin
            .ask(&format!("COMMIT {} t 0", "g".repeat(250)))
            .starts_with("ERR BAD_ARGUMENT ")
    );
    let (_, rows) = admin.list("READ __consumer_offsets 0");
    let fields: Vec<&str> = rows[0].split('\t').collect();
    assert_eq!(fields[2..], ["g t/0", "3"], "a person can read them");
    assert!(
        admin
            .ask("PUT __consumer_offsets:x y")
            .starts_with("ERR INVALID_TOPIC ")
    );
}

#[test]
fn commits_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data, &[]);
    let mut admin = server.client();
    put(&mut admin, "t", &["0", "1", "2"]);
    let mut client = consume(server.client(), "g t", "0");
    assert_eq!(records(&mut client, 3).len(), 3);
    assert_eq!(client.ask("ACK 0 1"), "OK");
    assert_eq!(admin.ask("COMMIT other t 1"), "OK");
    server.kill();
    let server = Server::start(&data, &[]);
    let mut admin = server.client();
    assert_eq!(admin.list("GROUPS").1, ["g\t0\t1", "other\t0\t1"]);
    let mut client = consume(server.client(), "g t", "0");
    assert_eq!(record(&mut client), (0, 2));
    let (_, stats) = admin.list("STATS");
    assert!(stats.contains(&"groups\t2".to_owned()), "{stats:?}");
}

#[test]
fn a_consumer_that_stands_still_loses_its_place() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0", "1"]);
    let mut still = consume(server.client(), "g t ack_wait=1000", "0");
    assert_eq!(records(&mut still, 2).len(), 2);
    let mut waits = consume(server.client(), "g t", "-");
    server.clock.advance(999);
    assert_eq!(still.ask("ACK 0 0"), "OK");
    server.clock.advance(999);
    assert_eq!(still.ask("PING"), "OK PONG");
    assert!(waits.is_silent());
    server.clock.advance(1);
    assert_eq!(admin.ask("PING"), "OK PONG");
    let line = still.line();
    assert!(
        line.starts_with("ERR NOT_ASSIGNED ") && line.contains("ack_wait=1000"),
        "{line}"
    );
    assert_eq!(waits.line(), "# assigned 0");
    assert_eq!(record(&mut waits), (0, 1));
    assert!(still.ask("ACK 0 1").starts_with("ERR NOT_ASSIGNED "));
    assert_eq!(still.ask("PING"), "OK PONG");
}

#[test]
fn a_consumer_that_has_nothing_does_not_lose_its_place() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0"]);
    let mut client = consume(server.client(), "g t ack_wait=1000", "0");
    assert_eq!(record(&mut client), (0, 0));
    assert_eq!(client.ask("ACK 0 0"), "OK");
    server.clock.advance(100_000);
    assert_eq!(client.ask("PING"), "OK PONG");
    put(&mut admin, "t", &["1"]);
    assert_eq!(record(&mut client), (0, 1));
}

#[test]
fn an_automatic_consumer_commits_what_it_was_sent() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["zero", "one"]);
    let mut client = consume(server.client(), "g t ack=auto as=value", "0");
    assert_eq!([client.line(), client.line()], ["zero", "one"]);
    let committed = |admin: &mut Client| {
        admin.list("COMMITTED g t").1[0]
            .split('\t')
            .nth(1)
            .map(str::to_owned)
    };
    // The commit comes with the turn behind the one that sent them.
    while committed(&mut admin).as_deref() != Some("2") {}
    put(&mut admin, "t", &["two"]);
    assert_eq!(client.line(), "two");
    drop(client);
    while committed(&mut admin).as_deref() != Some("3") {}
    let mut next = consume(server.client(), "g t ack=auto", "0");
    put(&mut admin, "t", &["three"]);
    assert_eq!(record(&mut next), (0, 3));
}

#[test]
fn a_place_that_is_gone_is_told() {
    let server = start();
    let mut admin = server.client();
    put(&mut admin, "t", &["0", "1", "2", "3", "4"]);
    assert_eq!(admin.ask("COMMIT g t 1"), "OK");
    assert_eq!(admin.ask("TRIM t 3"), "OK 3 5");
    let mut client = consume(server.client(), "g t max_inflight=1", "0");
    assert_eq!(client.line(), "# reset 0 1 3");
    assert_eq!(record(&mut client), (0, 3));
    assert_eq!(client.line(), "# inflight 1");
    put(&mut admin, "t", &["5", "6"]);
    assert_eq!(admin.ask("TRIM t 6"), "OK 6 7");
    assert_eq!(client.ask("ACK 0 3"), "OK");
    assert_eq!(client.line(), "# reset 0 4 6");
    assert_eq!(record(&mut client), (0, 6));
    assert_eq!(
        admin.list("COMMITTED g t").1[0]
            .split('\t')
            .take(4)
            .collect::<Vec<_>>(),
        ["0", "4", "7", "1"]
    );
}

#[test]
fn a_topic_that_grows_or_goes_is_told() {
    let server = start();
    let mut admin = server.client();
    assert_eq!(admin.ask("CREATE t partitions=2"), "OK");
    let mut first = consume(server.client(), "g t", "0,1");
    let mut second = consume(server.client(), "g t", "1");
    assert_eq!(first.line(), "# assigned 0");
    let mut third = consume(server.client(), "g t from=latest", "-");
    assert_eq!(admin.ask("PARTITIONS t 3"), "OK");
    put(&mut admin, "t/2", &["x"]);
    assert_eq!(third.line(), "# assigned 2");
    assert_eq!(record(&mut third), (2, 0));
    assert_eq!(third.ask("ACK 2 0"), "OK");
    assert_eq!(admin.ask("DELETE t"), "OK");
    for client in [&mut first, &mut second, &mut third] {
        let line = client.line();
        assert!(line.starts_with("ERR UNKNOWN_TOPIC "), "{line}");
        assert_eq!(client.ask("PING"), "OK PONG");
    }
    assert!(first.ask("CONSUME g t").starts_with("ERR UNKNOWN_TOPIC "));
    assert_eq!(admin.ask("CREATE t partitions=3"), "OK");
    let mut again = consume(server.client(), "g t", "0,1,2");
    put(&mut admin, "t/2", &["y"]);
    assert_eq!(record(&mut again), (2, 0), "old commits are forgotten");
}

#[test]
fn a_consumer_that_breaks_the_protocol_gives_its_partitions_back_at_once() {
    let server = start();
    let mut admin = server.client();
    assert_eq!(admin.ask("CREATE t partitions=2"), "OK");
    // What it is owed does not fit into its socket, and it reads nothing.
    let value = "x".repeat(60_000);
    for _ in 0..300 {
        put(&mut admin, "t/0", &[&value]);
    }
    let mut first = consume(server.client(), "g t", "0,1");
    first.send("BATCH t 1 3\nabcd\n");
    let mut second = consume(server.client(), "g t", "0,1");
    assert_eq!(record(&mut second), (0, 0));
}

#[test]
fn a_group_that_nobody_uses_is_forgotten() {
    let server = start_with(&[("offsets.retention.minutes", "10")]);
    let mut admin = server.client();
    put(&mut admin, "t", &["0"]);
    assert_eq!(admin.ask("COMMIT idle t 1"), "OK");
    let mut busy = consume(server.client(), "busy t", "0");
    assert_eq!(record(&mut busy), (0, 0));
    assert_eq!(busy.ask("ACK 0 0"), "OK");
    let groups = |admin: &mut Client| admin.list("GROUPS").1;
    server.clock.advance(9 * 60_000);
    assert_eq!(admin.ask("PING"), "OK PONG");
    assert_eq!(groups(&mut admin), ["busy\t1\t1", "idle\t0\t1"]);
    server.clock.advance(2 * 60_000);
    assert_eq!(admin.ask("PING"), "OK PONG");
    assert_eq!(groups(&mut admin), ["busy\t1\t1"]);
    assert!(
        admin
            .ask("COMMITTED idle t")
            .starts_with("ERR UNKNOWN_GROUP ")
    );
    let (_, rows) = admin.list("READ __consumer_offsets 2 wait=1000");
    assert!(rows[0].ends_with("\tidle t/0\t\\N"), "{rows:?}");
}

#[test]
fn a_slow_consumer_holds_back_only_itself() {
    let server = start();
    let mut admin = server.client();
    assert_eq!(admin.ask("CREATE t partitions=2"), "OK");
    let value = "x".repeat(10_000);
    for partition in 0..2 {
        let line = format!("PUT t/{partition} {value}\n");
        admin.send(line.repeat(600));
        for _ in 0..600 {
            assert!(admin.line().starts_with("OK "));
        }
    }
    let mut slow = consume(server.client(), "g t max_inflight=100000", "0,1");
    let mut quick = consume(server.client(), "g t max_inflight=100000", "1");
    assert_eq!(records(&mut quick, 600)[599], (1, 599));
    let mut lines = Vec::new();
    while lines
        .last()
        .is_none_or(|line: &String| line != "# assigned 0")
    {
        lines.push(slow.line());
    }
    let before = lines.len() - 1;
    let offsets: Vec<i64> = lines[..before]
        .iter()
        .filter_map(|line| line.strip_prefix("0\t")?.split('\t').next()?.parse().ok())
        .collect();
    let next = i64::try_from(offsets.len()).unwrap();
    assert_eq!(offsets, (0..next).collect::<Vec<_>>());
    for offset in next..600 {
        assert_eq!(record(&mut slow), (0, offset));
    }
}
