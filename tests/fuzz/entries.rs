//! Where bytes that nobody checked come in: one function for each decoder. None of them may panic, whatever the bytes are; what more each
//! must keep is asserted in it. `main.rs` calls them with random input, `cargo/` under a fuzzer.

use std::path::Path;

use mini_broker::api::{ConnectionId, Now, Request};
use mini_broker::broker::{Broker, Outcome, Resumed, Settings};
use mini_broker::clock::{Clock, ManualClock};
use mini_broker::dump::directory as data_directory;
use mini_broker::dump::rows::{offset_rows, time_rows};
use mini_broker::format::{self, Layout};
use mini_broker::fs::fault::FaultFs;
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{Fs, OpenMode, read_file};
use mini_broker::outbox::Outbox;
use mini_broker::protocol::line::{Limits, LineCodec};
use mini_broker::protocol::{Codec, Decoded};
use mini_broker::storage::FsyncPolicy;

use crate::world::{
    DIR, Faulty, ROOT, Rec, World, content, file, put_file, read_all, small_config,
};

/// A decoder's entry point.
pub(crate) type Entry = fn(&[u8]);

/// All of them, by name.
pub(crate) const ENTRIES: [(&str, Entry); 6] = [
    ("session", session),
    ("record", record),
    ("index", index),
    ("text_file", text_file),
    ("config", config),
    ("directory", directory),
];

const NOW: i64 = 1_767_225_600_000;
/// Events of a stream that are looked at for each request.
const EVENTS_MAX: usize = 100;

/// A whole session of the line protocol, over the real broker: what comes in pieces of any size is answered as what comes at once.
pub(crate) fn session(data: &[u8]) {
    let (first, bytes) = data.split_first().unwrap_or((&0, &[]));
    let piece = usize::from(*first).max(1);
    assert_eq!(
        answers(bytes.chunks(piece)),
        answers([bytes]),
        "pieces of {piece} bytes"
    );
}

/// What a broker of its own answers to a session.
fn answers<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let clock = ManualClock::new(Now {
        wall_ms: NOW,
        mono: std::time::Duration::from_secs(1),
    });
    let settings = Settings {
        fsync: FsyncPolicy::Never,
        max_topics: 5,
        max_partitions: 20,
        ..Settings::new(ROOT)
    };
    let broker =
        Broker::open(MemFs::new(), settings, &clock, || Ok(())).expect("a new directory opens");
    let mut session = Session {
        broker,
        clock,
        codec: LineCodec::new(Limits::new(1 << 16)),
        outbox: Outbox::new(),
        is_over: false,
    };
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        let used = session.decode(&input);
        input.drain(..used);
    }
    session.outbox.tail_mut().clone()
}

const CONNECTION: ConnectionId = ConnectionId(1);

/// What `net` does with a connection, request after request.
struct Session {
    broker: Broker<MemFs>,
    clock: ManualClock,
    codec: LineCodec,
    outbox: Outbox,
    /// Closed, or waiting for what nobody will bring.
    is_over: bool,
}

impl Session {
    /// Takes requests from the front; returns how many bytes are done with.
    fn decode(&mut self, input: &[u8]) -> usize {
        let mut done = 0;
        while !self.is_over && done < input.len() {
            match self.codec.decode(&input[done..]) {
                Decoded::NeedMore => break,
                Decoded::Skip { used } => done += used,
                Decoded::Reply { used } => {
                    self.codec.encode_own(&mut self.outbox);
                    done += used;
                }
                Decoded::Request { request, used } => {
                    self.ask(&request);
                    done += used;
                }
            }
            self.is_over |= self.codec.is_closing();
        }
        if self.is_over { input.len() } else { done }
    }

    fn ask(&mut self, request: &Request<'_>) {
        let now = self.clock.now();
        if let Request::Append(target, payload) = request {
            match self.broker.append(*target, payload, now) {
                Ok(run) => {
                    self.broker.flush(&self.clock);
                    self.codec
                        .encode_run(&run, self.broker.verdict(&run), &mut self.outbox);
                }
                Err(error) => self.codec.encode_refused(&error, &mut self.outbox),
            }
            return;
        }
        // Its answers are random, or tell of this machine.
        if matches!(request, Request::Stats | Request::Explain(..)) {
            self.is_over = true;
        }
        if matches!(request, Request::Consume(_)) {
            self.broker.introduce(CONNECTION, "fuzz");
        }
        match self.broker.handle(CONNECTION, request, now) {
            Outcome::Reply(response) => self.codec.encode(&response, &mut self.outbox),
            Outcome::Parked => self.is_over = true,
            Outcome::Streaming(response) => {
                self.codec.encode(&response, &mut self.outbox);
                self.stream();
            }
            Outcome::Commit(commit) => {
                self.broker.flush(&self.clock);
                let result = match &commit {
                    Ok(ticket) => self
                        .broker
                        .commit_error(*ticket)
                        .map_or(Ok(ticket.answer), Err),
                    Err(error) => Err(error),
                };
                self.codec.encode_commit(result, &mut self.outbox);
            }
        }
    }

    /// What a TAIL or CONSUME pushes before anything else comes.
    fn stream(&mut self) {
        let now = self.clock.now();
        for _ in 0..EVENTS_MAX {
            match self.broker.resume(CONNECTION, now) {
                Resumed::Event(event) => self.codec.encode_tail(&event, self.outbox.tail_mut()),
                Resumed::Reply(response) | Resumed::Ended(response) => {
                    self.codec.encode(&response, &mut self.outbox);
                    return;
                }
                Resumed::Waiting => return,
            }
        }
    }
}

/// Stored entries, both layouts: what decodes encodes to the same bytes.
pub(crate) fn record(data: &[u8]) {
    let _ = Layout::of(data);
    for layout in [Layout::V1, Layout::V2] {
        let _ = layout.decode_lenient(data);
        let head = layout.head(data);
        let Ok((decoded, stored)) = layout.decode(data) else {
            continue;
        };
        assert_eq!(head.as_ref(), Ok(&decoded), "a head alone says the same");
        assert!(decoded.length as usize <= data.len());
        let mut bytes = Vec::new();
        layout
            .encode(stored.offset, &stored.record, &mut bytes)
            .expect("what was stored can be stored");
        assert_eq!(bytes, data[..decoded.length as usize]);
        let headers = stored.record.headers;
        assert!(headers.is_empty() || format::check_headers(headers));
        let _ = format::headers(headers).count();
    }
}

/// The log that indexes and text files are put beside: 30 records in several segments, and its broker killed.
fn logs() -> (Faulty, Vec<(i64, Rec)>) {
    let fs = FaultFs::new(MemFs::new());
    let mut world =
        World::start(&fs, FsyncPolicy::Always, small_config(), NOW).expect("a new directory opens");
    let records: Vec<(i64, Rec)> = (0..30)
        .map(|i| (i, Rec::new(NOW + i, format!("{i:044}").as_bytes())))
        .collect();
    for (offset, record) in &records {
        world.put(std::slice::from_ref(record), NOW + offset);
    }
    world
        .dir
        .checkpoints()
        .write_recovery_point()
        .expect("there is room");
    (FaultFs::new(fs.inner().kill()), records)
}

/// Names in the partition's directory, in order.
fn names(fs: &Faulty) -> Vec<String> {
    let mut names = crate::world::names(fs);
    names.sort();
    names
}

/// Index files: a file of rows is read, and a log beside which it stands gives every record it has.
pub(crate) fn index(data: &[u8]) {
    let (first, rows) = data.split_first().unwrap_or((&0, &[]));
    let (fs, records) = logs();
    let indexes: Vec<String> = names(&fs)
        .into_iter()
        .filter(|name| name.ends_with("index"))
        .collect();
    let name = &indexes[usize::from(*first) % indexes.len()];
    put_file(&fs, &file(name), rows);
    let opened = fs.open(&file(name), OpenMode::Read).expect("it is there");
    let _ = offset_rows(&opened);
    let _ = time_rows(&opened);
    let mut world = World::start(&fs, FsyncPolicy::Always, small_config(), NOW)
        .expect("an index stops no start");
    let (found, damage) = read_all(&mut world.log);
    assert_eq!(found, records, "{name}");
    assert!(damage.is_empty(), "{name}: {damage:?}");
    let _ = world.log.offset_at_time(NOW + i64::from(*first) % 40);
}

/// The text files of a data directory: a start refuses one in words, or works; logs are left as they are.
pub(crate) fn text_file(data: &[u8]) {
    let (first, text) = data.split_first().unwrap_or((&0, &[]));
    let (fs, _) = logs();
    let path = match first % 8 {
        0 => Path::new(ROOT).join("broker.properties"),
        1 => Path::new(ROOT).join("recovery-point"),
        2 => Path::new(ROOT).join("log-start-offset"),
        3 => Path::new(ROOT).join("topics/t"),
        4 => Path::new(ROOT).join("clean-shutdown"),
        5 => file("append-times"),
        6 => file("cleaned"),
        _ => file("00000000000000000012.replace"),
    };
    let log = content(&fs, "00000000000000000000.log");
    put_file(&fs, &path, text);
    start_and_look(&fs);
    if path.starts_with(DIR) && !path.ends_with("00000000000000000012.replace") {
        assert_eq!(
            content(&fs, "00000000000000000000.log"),
            log,
            "{}",
            path.display()
        );
    }
}

/// A start, a check, a start again.
fn start_and_look(fs: &Faulty) {
    let _ = data_directory::check(fs, Path::new(ROOT), &|| {}, &mut |_| Ok(()));
    for _ in 0..2 {
        let clock = ManualClock::new(Now {
            wall_ms: NOW,
            mono: std::time::Duration::from_secs(1),
        });
        let Ok(mut broker) = Broker::open(fs.clone(), Settings::new(ROOT), &clock, || Ok(()))
        else {
            return;
        };
        for _ in 0..3 {
            broker.tick(&clock);
            broker.flush(&clock);
        }
    }
}

/// Names and values of configs, flags, addresses.
pub(crate) fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = mini_broker::config::parse_config(&text);
    let _ = text.parse::<FsyncPolicy>();
    let _ = text.parse::<mini_broker::addr::Address>();
    let _ = mini_broker::config::MAX_BATCH_BYTES.parse(&text);
    let _ = mini_broker::config::MAX_TOPICS.parse_count(&text);
    let _ = mini_broker::storage::names::file_kind(&text);
    let _ = mini_broker::storage::data_dir::parse_partition_dir(&text);
    let pairs: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let _ = mini_broker::config::check_configs(&pairs, 20_000);
}

/// A data directory with damage in any of its files: whatever is read is a record that was written, whole and at its offset.
pub(crate) fn directory(data: &[u8]) {
    let (fs, records) = logs();
    let topic_path = Path::new(ROOT).join("topics/t");
    let topic = read_file(&fs, &topic_path, 1 << 16).expect("it was written");
    for change in data.chunks(6) {
        let [which, how, high, low, mask, value] = <[u8; 6]>::try_from(change).unwrap_or_default();
        let names = names(&fs);
        let path = match usize::from(which) % (names.len() + 3) {
            0 => Path::new(ROOT).join("recovery-point"),
            1 => Path::new(ROOT).join("broker.properties"),
            2 => topic_path.clone(),
            n => file(&names[n - 3]),
        };
        let Ok(mut bytes) = read_file(&fs, &path, 1 << 24) else {
            continue;
        };
        let at = usize::from(u16::from_be_bytes([high, low])) % (bytes.len() + 1);
        match how % 6 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, value),
            2 => bytes.extend(std::iter::repeat_n(value, usize::from(mask))),
            3 => {
                let _ = fs.remove_file(&path);
                continue;
            }
            _ => bytes
                .iter_mut()
                .skip(at)
                .take(1 + usize::from(value % 4))
                .for_each(|byte| *byte ^= mask),
        }
        put_file(&fs, &path, &bytes);
    }
    let copy = FaultFs::new(fs.inner().kill());
    start_and_look(&copy);
    // A log whose topic is not known is left alone; here it is to be read.
    put_file(&fs, &topic_path, &topic);
    let Ok(mut world) = World::start(&fs, FsyncPolicy::Always, small_config(), NOW) else {
        return;
    };
    let (found, _) = read_all(&mut world.log);
    for (offset, record) in found {
        let known = usize::try_from(offset).ok().and_then(|i| records.get(i));
        assert_eq!(known, Some(&(offset, record)), "nobody wrote that");
    }
}
