//! What clients did and saw, and whether what a broker holds agrees with it.
//!
//! Every record tells who wrote it and as which: the rest of its value follows from that, so that any byte that differs is seen. A producer never
//! sends a record twice, so no record may be there twice.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::Client;

/// The topic of a history.
pub(crate) const TOPIC: &str = "t";
/// Its partitions.
pub(crate) const PARTITIONS: usize = 2;
/// A reply that takes longer is a fault, or a broker that was stopped.
const REPLY_TIMEOUT: Duration = Duration::from_mins(3);
/// Bytes of a value's filling at most.
const FILLING_MAX: usize = 600;
/// Requests that a producer sends at once at most.
const BURST_MAX: usize = 60;

/// A record: its producer, and its number there.
pub(crate) type Id = (u32, u32);

/// The whole value of a record.
pub(crate) fn value(id: Id) -> String {
    let mut random = fastrand::Rng::with_seed(u64::from(id.0) << 32 | u64::from(id.1));
    let filling = random.usize(..FILLING_MAX);
    let mut text = format!("{}.{}.", id.0, id.1);
    text.extend(std::iter::repeat_with(|| random.alphanumeric()).take(filling));
    text
}

/// The record that a value says it is.
///
/// # Panics
/// A value that no producer wrote.
fn id_of(text: &str, place: &str) -> Id {
    let mut parts = text.split('.');
    let mut number = || parts.next()?.parse::<u32>().ok();
    let id = number().zip(number());
    let id = id.unwrap_or_else(|| panic!("{place}: nobody wrote {text:?}"));
    assert_eq!(text, value(id), "{place}: record {id:?} differs");
    id
}

/// An OK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    id: Id,
    partition: usize,
    offset: i64,
    at: Instant,
}

/// What a producer did until its connection ended or it was told to stop.
#[derive(Debug)]
pub(crate) struct Produced {
    producer: u32,
    /// Numbers below were sent.
    sent: u32,
    acks: Vec<Ack>,
    /// So many of the acks were there when a later SYNC was answered OK.
    synced: usize,
    /// Answered ERR: must not be there.
    refused: Vec<Id>,
    /// The words of the last ERR.
    pub(crate) last_error: Option<String>,
}

/// What a reader saw.
type Seen = Vec<(usize, i64, Id)>;

/// Clients at work.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<Produced>>,
    readers: Vec<JoinHandle<Seen>>,
}

impl Load {
    /// Starts so many producers and readers.
    pub(crate) fn start(
        address: SocketAddr,
        model: &mut Model,
        producers: u32,
        readers: usize,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let producers = (0..producers)
            .map(|_| {
                let (producer, stop) = (model.next_producer(), Arc::clone(&stop));
                std::thread::spawn(move || produce(address, producer, &stop))
            })
            .collect();
        let readers = (0..readers)
            .map(|i| {
                let stop = Arc::clone(&stop);
                let from = model.end(i / 2 % PARTITIONS);
                std::thread::spawn(move || follow(address, i, from, &stop))
            })
            .collect();
        Self {
            stop,
            producers,
            readers,
        }
    }

    /// Whether all producers have come to an end by themselves.
    pub(crate) fn is_over(&self) -> bool {
        self.producers.iter().all(JoinHandle::is_finished)
    }

    /// Tells them to stop and waits for them.
    pub(crate) fn finish(self) -> Done {
        self.stop.store(true, Ordering::SeqCst);
        Done {
            produced: self.producers.into_iter().map(joined).collect(),
            seen: self.readers.into_iter().flat_map(joined).collect(),
        }
    }
}

/// What a thread returned; its panic is this thread's, too.
fn joined<T>(thread: JoinHandle<T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What the clients of a load did and saw.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) produced: Vec<Produced>,
    seen: Seen,
}

impl Done {
    /// Records that were acknowledged.
    pub(crate) fn acked(&self) -> usize {
        self.produced.iter().map(|p| p.acks.len()).sum()
    }
}

/// Appends a request for some records; returns how many.
fn request(
    random: &mut fastrand::Rng,
    producer: u32,
    number: u32,
    out: &mut Vec<u8>,
) -> (usize, u32) {
    let partition = random.usize(..PARTITIONS);
    let first = value((producer, number));
    let count = match random.u8(..10) {
        0..5 => {
            out.extend_from_slice(format!("PUT {TOPIC}/{partition} {first}\n").as_bytes());
            1
        }
        5..8 => {
            let head = format!("PRODUCE {TOPIC}/{partition} -1 {}\n{first}\n", first.len());
            out.extend_from_slice(head.as_bytes());
            1
        }
        _ => {
            let count = random.u32(1..=20);
            let mut payload = Vec::new();
            for n in number..number + count {
                let value = value((producer, n));
                payload.extend_from_slice(&(-1_i32).to_be_bytes());
                payload.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
                payload.extend_from_slice(value.as_bytes());
            }
            let head = format!("BATCH {TOPIC}/{partition} {count} {}\n", payload.len());
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(&payload);
            out.push(b'\n');
            count
        }
    };
    (partition, count)
}

fn connect(address: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// A whole line; `None` where the connection ended.
fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = Vec::new();
    let n = reader.read_until(b'\n', &mut line);
    if let Err(e) = &n {
        assert_ne!(
            e.kind(),
            std::io::ErrorKind::WouldBlock,
            "no reply in {REPLY_TIMEOUT:?}"
        );
    }
    (line.pop() == Some(b'\n')).then(|| String::from_utf8(line).expect("a reply is text"))
}

/// Sends bursts of requests and reads their replies, until the connection ends.
fn produce(address: SocketAddr, producer: u32, stop: &AtomicBool) -> Produced {
    let mut done = Produced {
        producer,
        sent: 0,
        acks: Vec::new(),
        synced: 0,
        refused: Vec::new(),
        last_error: None,
    };
    let mut random = fastrand::Rng::with_seed(u64::from(producer));
    let Ok(mut connection) = connect(address) else {
        return done;
    };
    while !stop.load(Ordering::SeqCst) {
        let (mut out, mut requests) = (Vec::new(), Vec::new());
        for _ in 0..random.usize(1..=BURST_MAX) {
            let (partition, count) = request(&mut random, producer, done.sent, &mut out);
            requests.push((partition, done.sent, count));
            done.sent += count;
        }
        if connection.get_mut().write_all(&out).is_err() {
            return done;
        }
        for (partition, number, count) in requests {
            let Some(reply) = line(&mut connection) else {
                return done;
            };
            done.answered(&reply, partition, number, count);
        }
        if random.u8(..20) == 0 {
            let before = done.acks.len();
            if connection.get_mut().write_all(b"SYNC\n").is_err() {
                return done;
            }
            match line(&mut connection) {
                Some(reply) if reply == "OK" => done.synced = before,
                Some(reply) => done.last_error = Some(reply),
                None => return done,
            }
        }
    }
    done
}

impl Produced {
    fn answered(&mut self, reply: &str, partition: usize, number: u32, count: u32) {
        let ids = (number..number + count).map(|n| (self.producer, n));
        let Some(rest) = reply.strip_prefix("OK ") else {
            assert!(reply.starts_with("ERR "), "a record was answered {reply:?}");
            self.refused.extend(ids);
            self.last_error = Some(reply.to_owned());
            return;
        };
        let words: Vec<i64> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!(words[0], i64::try_from(partition).unwrap(), "{reply}");
        let last = words[words.len() - 1];
        assert_eq!(last - words[1] + 1, i64::from(count), "{reply}");
        let at = Instant::now();
        self.acks
            .extend(ids.zip(words[1]..).map(|(id, offset)| Ack {
                id,
                partition,
                offset,
                at,
            }));
    }
}

/// Follows a partition with TAIL or with READ that waits, until the connection ends.
fn follow(address: SocketAddr, reader: usize, from: i64, stop: &AtomicBool) -> Seen {
    let partition = reader / 2 % PARTITIONS;
    let Ok(mut connection) = connect(address) else {
        return Vec::new();
    };
    if reader.is_multiple_of(2) {
        tail(&mut connection, partition, from, stop)
    } else {
        read_on(&mut connection, partition, from, stop)
    }
}

fn tail(
    connection: &mut BufReader<TcpStream>,
    partition: usize,
    from: i64,
    stop: &AtomicBool,
) -> Seen {
    let mut seen = Vec::new();
    let request = format!("TAIL {TOPIC}/{partition} {from}\n");
    if connection.get_mut().write_all(request.as_bytes()).is_err() {
        return seen;
    }
    let Some(reply) = line(connection) else {
        return seen;
    };
    assert_eq!(reply, format!("OK {from}"));
    // So that an end that is asked for is seen while nothing comes.
    connection
        .get_ref()
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let mut bytes = Vec::new();
    loop {
        match connection.read_until(b'\n', &mut bytes) {
            Ok(_) if bytes.last() == Some(&b'\n') => {
                let text = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
                let offset = from + i64::try_from(seen.len()).unwrap();
                seen.push((
                    partition,
                    offset,
                    record(text.trim_end(), partition, offset),
                ));
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                if stop.load(Ordering::SeqCst) {
                    // A tail whose client is gone stays until a write to it fails.
                    let _ = connection.get_mut().write_all(b"QUIT\n");
                    return seen;
                }
            }
            Ok(_) | Err(_) => return seen,
        }
    }
}

fn read_on(
    connection: &mut BufReader<TcpStream>,
    partition: usize,
    mut offset: i64,
    stop: &AtomicBool,
) -> Seen {
    let mut seen = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let request = format!("READ {TOPIC}/{partition} {offset} max=200 wait=50\n");
        if connection.get_mut().write_all(request.as_bytes()).is_err() {
            break;
        }
        let Some(head) = line(connection) else {
            break;
        };
        let rest = head.strip_prefix("OK ").unwrap_or_else(|| panic!("{head}"));
        let count: usize = rest.split(' ').next().unwrap().parse().unwrap();
        for _ in 0..count {
            let Some(text) = line(connection) else {
                return seen;
            };
            seen.push((partition, offset, record(&text, partition, offset)));
            offset += 1;
        }
    }
    seen
}

/// A line of READ or TAIL, which must be this offset.
fn record(text: &str, partition: usize, offset: i64) -> Id {
    let place = format!("{TOPIC}/{partition} offset {offset}");
    let fields: Vec<&str> = text.split('\t').collect();
    assert_eq!(fields.len(), 4, "{place}: {text:?}");
    assert_eq!(fields[0], offset.to_string(), "{place}: {text:?}");
    id_of(fields[3], &place)
}

/// What may be gone after an end of the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    /// Nothing that was acknowledged.
    Nothing,
    /// What no SYNC covered; and with a time, only what was acknowledged later than that.
    Unsynced { since: Option<Instant> },
}

/// The records that are known to be there.
#[derive(Debug, Default)]
pub(crate) struct Model {
    known: [BTreeMap<i64, Id>; PARTITIONS],
    /// The next offset of each partition: beyond the last record where a gap is named behind it.
    ends: [i64; PARTITIONS],
    sent: HashMap<u32, u32>,
    refused: HashSet<Id>,
    /// Producers of all histories so far: no two share records.
    producers: u32,
    /// Records acknowledged, in all histories.
    pub(crate) acked: usize,
    /// Records that readers saw.
    pub(crate) seen: usize,
    /// Acknowledged records that an end took, where it may.
    pub(crate) lost: usize,
    /// Places where a reader was told of damage, where it may be.
    pub(crate) damaged: usize,
}

impl Model {
    fn next_producer(&mut self) -> u32 {
        self.producers += 1;
        self.producers
    }

    /// The next offset of a partition.
    pub(crate) fn end(&self, partition: usize) -> i64 {
        self.ends[partition]
    }

    /// An empty data directory from here on.
    pub(crate) fn forget(&mut self) {
        self.known = Default::default();
        self.ends = Default::default();
        self.sent.clear();
        self.refused.clear();
    }

    /// Compares what the broker holds with what was known and what was done since.
    ///
    /// # Panics
    /// Where they do not agree.
    pub(crate) fn check(&mut self, client: &mut Client, done: &Done, loss: Loss) {
        for produced in &done.produced {
            self.sent.insert(produced.producer, produced.sent);
            self.refused.extend(&produced.refused);
            self.acked += produced.acks.len();
        }
        self.seen += done.seen.len();
        let found = self.read_all(client, loss);
        for (partition, known) in self.known.iter().enumerate() {
            for (offset, id) in known {
                let is_there = has(&found, partition, *offset, *id);
                assert!(
                    is_there,
                    "{TOPIC}/{partition} offset {offset}: record {id:?} was there before and is gone"
                );
            }
        }
        for produced in &done.produced {
            for (i, ack) in produced.acks.iter().enumerate() {
                let may_go = match loss {
                    Loss::Nothing => false,
                    Loss::Unsynced { since } => {
                        i >= produced.synced && since.is_none_or(|since| ack.at >= since)
                    }
                };
                if !has(&found, ack.partition, ack.offset, ack.id) {
                    assert!(may_go, "{ack:?} was acknowledged and is gone");
                    self.lost += 1;
                }
            }
        }
        for (partition, offset, id) in &done.seen {
            let is_there = has(&found, *partition, *offset, *id);
            assert!(
                is_there || matches!(loss, Loss::Unsynced { .. }),
                "{TOPIC}/{partition} offset {offset}: a reader saw record {id:?}, and it is gone"
            );
        }
        self.known = found;
    }

    /// Every record there is, from the first on.
    fn read_all(&mut self, client: &mut Client, loss: Loss) -> [BTreeMap<i64, Id>; PARTITIONS] {
        let mut found: [BTreeMap<i64, Id>; PARTITIONS] = Default::default();
        let mut ids = HashSet::new();
        for (partition, found) in found.iter_mut().enumerate() {
            let mut last: HashMap<u32, u32> = HashMap::new();
            // At least once: the reply says where the end is.
            let (mut offset, mut end) = (0, i64::MAX);
            while offset < end {
                let head = client.ask(&format!("READ {TOPIC}/{partition} {offset} max=2000"));
                if let Some(words) = head.strip_prefix("ERR CORRUPT ") {
                    assert!(matches!(loss, Loss::Unsynced { .. }), "{head}");
                    self.damaged += 1;
                    let next = words.split(' ').find_map(|word| word.strip_prefix("next="));
                    offset = next.unwrap().parse().unwrap();
                    continue;
                }
                let rest = head.strip_prefix("OK ").unwrap_or_else(|| panic!("{head}"));
                let words: Vec<i64> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
                end = words[2];
                for _ in 0..words[0] {
                    let id = record(&client.line(), partition, offset);
                    let is_sent = self.sent.get(&id.0).is_some_and(|sent| id.1 < *sent);
                    assert!(is_sent, "record {id:?} is there before it was sent");
                    assert!(
                        !self.refused.contains(&id),
                        "record {id:?} was answered ERR and is there"
                    );
                    assert!(ids.insert(id), "record {id:?} is there twice");
                    let before = last.insert(id.0, id.1);
                    assert!(before < Some(id.1), "record {id:?} comes after {before:?}");
                    found.insert(offset, id);
                    offset += 1;
                }
                assert!(
                    words[0] > 0 || offset >= end,
                    "nothing at {offset} of {end}: {head}"
                );
            }
            self.ends[partition] = end.max(offset);
        }
        found
    }
}

fn has(found: &[BTreeMap<i64, Id>; PARTITIONS], partition: usize, offset: i64, id: Id) -> bool {
    match found[partition].get(&offset) {
        Some(there) => {
            assert_eq!(
                *there, id,
                "{TOPIC}/{partition} offset {offset} was given to two records"
            );
            true
        }
        None => false,
    }
}

/// Reads what there is and throws it away, so that a buffer is not the limit.
pub(crate) fn drain(stream: &mut TcpStream) -> usize {
    let mut buffer = vec![0; 1 << 16];
    stream.read(&mut buffer).unwrap_or(0)
}
