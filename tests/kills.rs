//! The broker as a process, killed again and again while compaction and retention go through tiny segments under load, against a model
//! of what was acknowledged. `KILLS=<n> cargo test --test kills` goes on for longer.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, Write};
use std::sync::mpsc;

use fastrand::Rng;
use harness::{Client, Server, seed};

/// Kills of each policy of syncing, unless `KILLS` says otherwise.
const KILLS: usize = 5;

/// Configs of the broker that keep compaction and retention at work.
const BUSY: &[&str] = &[
    "log.cleaner.backoff.ms=0",
    "log.retention.check.interval.ms=5",
    "log.initial.task.delay.ms=0",
    "log.cleaner.dedupe.buffer.size=2000",
];

/// The topics, and how each forgets.
const TOPICS: [(&str, &str); 3] = [
    ("compacted", "cleanup.policy=compact delete.retention.ms=20"),
    ("expired", "retention.bytes=20000"),
    (
        "both",
        "cleanup.policy=compact,delete retention.bytes=20000 delete.retention.ms=0",
    ),
];

type Entry = (String, Option<String>);

/// What a topic was told.
#[derive(Debug, Default)]
struct Model {
    /// By offset; what a reader saw after a kill counts, too.
    records: BTreeMap<i64, Entry>,
    /// The log began here at the least.
    start: i64,
}

#[test]
fn a_broker_killed_while_it_cleans_and_deletes_keeps_what_it_promised() {
    let mut random = Rng::with_seed(seed());
    let kills = std::env::var("KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    for fsync in ["always", "never"] {
        let dir = tempfile::tempdir().unwrap();
        let mut models: [Model; 3] = Default::default();
        let mut serial = 0;
        let (mut cleaned, mut retired) = (0, 0);
        for round in 0..=kills {
            let configs = BUSY.iter().flat_map(|config| ["--config", config]);
            let args: Vec<&str> = ["--fsync", fsync].into_iter().chain(configs).collect();
            let server = Server::start(&dir.path().join("data"), &args);
            let mut client = server.client();
            for ((topic, configs), model) in TOPICS.iter().zip(&mut models) {
                if round == 0 {
                    let create = format!(
                        "CREATE {topic} segment.bytes=1500 min.cleanable.dirty.ratio=0 file.delete.delay.ms=3 {configs}"
                    );
                    assert_eq!(client.ask(&create), "OK");
                }
                check(&mut client, topic, model);
            }
            if round == kills {
                assert_eq!(server.stop().code(), Some(0));
                break;
            }
            let stats = load_until_killed(server, &mut random, &mut serial, &mut models);
            cleaned += stats.0;
            retired += stats.1;
        }
        assert!(
            cleaned > 0 && retired > 0,
            "{cleaned} rounds, {retired} segments"
        );
    }
}

/// Sends records to all topics, many at a time, until the kill; returns rounds of compaction and segments that retention took, as last
/// heard of.
fn load_until_killed(
    server: Server,
    random: &mut Rng,
    serial: &mut u64,
    models: &mut [Model; 3],
) -> (u64, u64) {
    let mut observer = server.client();
    let mut client = server.client();
    let (enough, is_enough) = mpsc::channel();
    let killer = std::thread::spawn(move || {
        // What is under way at that moment is different every time.
        is_enough.recv().unwrap();
        let stats = (
            stat(&mut observer, "cleaner_runs_total"),
            stat(&mut observer, "retention_segments_total"),
        );
        server.kill();
        stats
    });
    let mut writer = client.stream().try_clone().unwrap();
    let mut left = random.usize(300..4000);
    'load: loop {
        let mut sent: VecDeque<(usize, Entry)> = VecDeque::new();
        let mut requests = String::new();
        for _ in 0..random.usize(1..80) {
            let topic = random.usize(..3);
            *serial += 1;
            let key = format!("key{}", random.u8(..40));
            let filler = "-".repeat(random.usize(..60));
            let value = (random.u8(..6) > 0).then(|| format!("{serial}{filler}"));
            let name = TOPICS[topic].0;
            let request = match &value {
                Some(value) => format!("PUT {name}:{key} {value}\n"),
                None => format!("PRODUCE {name} {} -1\n{key}\n", key.len()),
            };
            requests += &request;
            sent.push_back((topic, (key, value)));
        }
        if writer.write_all(requests.as_bytes()).is_err() {
            break;
        }
        while let Some((topic, entry)) = sent.pop_front() {
            let mut line = String::new();
            match client.reader().read_line(&mut line) {
                Ok(_) if line.ends_with('\n') => {}
                _ => break 'load,
            }
            let offset = line.trim_end().strip_prefix("OK 0 ");
            let offset = offset
                .unwrap_or_else(|| panic!("{line:?}"))
                .parse()
                .unwrap();
            let before = models[topic].records.insert(offset, entry);
            assert_eq!(before, None, "offset {offset} was given twice");
            left = left.wrapping_sub(1);
            if left == 0 {
                enough.send(()).unwrap();
            }
        }
    }
    killer.join().unwrap()
}

fn stat(client: &mut Client, name: &str) -> u64 {
    let (_, lines) = client.list("STATS");
    let value = lines.iter().find_map(|line| {
        let (found, value) = line.split_once('\t')?;
        (found == name).then(|| value.parse().unwrap())
    });
    value.unwrap_or_else(|| panic!("no {name}"))
}

/// Compares a topic with its model, and takes over what was not acknowledged and is there.
fn check(client: &mut Client, topic: &str, model: &mut Model) {
    let (_, lines) = client.list(&format!("OFFSETS {topic}"));
    let numbers: Vec<i64> = lines[0].split('\t').map(|n| n.parse().unwrap()).collect();
    let (start, end) = (numbers[1], numbers[2]);
    assert!(
        start >= model.start,
        "{topic} begins at {start}, not {}",
        model.start
    );
    model.start = start;
    let acknowledged = model
        .records
        .last_key_value()
        .map_or(0, |(last, _)| last + 1);
    assert!(
        end >= acknowledged,
        "{topic} ends at {end}, not {acknowledged}"
    );

    // Retention may go on between two reads; then what it took is told.
    let mut found: BTreeMap<i64, Entry> = BTreeMap::new();
    let mut at = start;
    while at < end {
        let head = client.ask(&format!("READ {topic} {at} max=500"));
        if head.starts_with("ERR OFFSET_OUT_OF_RANGE") {
            let (_, lines) = client.list(&format!("OFFSETS {topic}"));
            at = lines[0].split('\t').nth(1).unwrap().parse().unwrap();
            model.start = at;
            continue;
        }
        let words: Vec<&str> = head.split(' ').collect();
        assert_eq!(words[0], "OK", "{head:?}");
        for _ in 0..words[1].parse::<usize>().unwrap() {
            let line = client.line();
            let fields: Vec<&str> = line.split('\t').collect();
            let value = (fields[3] != "\\N").then(|| fields[3].to_owned());
            found.insert(fields[0].parse().unwrap(), (fields[2].to_owned(), value));
        }
        let next: i64 = words[2].parse().unwrap();
        assert!(next > at, "{head:?}");
        at = next;
    }
    let start = model.start;
    found.retain(|offset, _| *offset >= start);
    for (offset, entry) in &found {
        let told = model
            .records
            .entry(*offset)
            .or_insert_with(|| entry.clone());
        assert_eq!(told, entry, "{topic} offset {offset}");
    }
    let told = model.records.range(start..end);
    if topic == "expired" {
        let told: BTreeMap<i64, Entry> = told.map(|(o, e)| (*o, e.clone())).collect();
        assert_eq!(found, told, "{topic} from {start}");
    } else {
        let told = last_values(told);
        assert_eq!(
            last_values(found.range(start..)),
            told,
            "{topic} from {start}"
        );
    }
}

/// The last value of each key that has one.
fn last_values<'e>(
    entries: impl Iterator<Item = (&'e i64, &'e Entry)>,
) -> BTreeMap<&'e str, (i64, &'e str)> {
    let mut last = BTreeMap::new();
    for (offset, (key, value)) in entries {
        match value {
            Some(value) => last.insert(key.as_str(), (*offset, value.as_str())),
            None => last.remove(key.as_str()),
        };
    }
    last
}
