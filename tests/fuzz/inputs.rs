//! Random input: good examples, and what chance makes of them.
#![forbid(unsafe_code)]

use mini_broker::format::Layout;
use mini_broker::record::Record;

/// Requests of which sessions are made.
const REQUESTS: [&[u8]; 30] = [
    b"CREATE t partitions=2\n",
    b"CREATE c cleanup.policy=compact segment.bytes=200\n",
    b"PUT t/0 hello\n",
    b"PUT t:key value\r\n",
    b"PUT new x\n",
    b"PRODUCE t/1 3 4 ts=5\nkeyval\n\n",
    b"PRODUCE t -1 -1\n\n",
    b"BATCH t/0 2 20\n\xff\xff\xff\xff\0\0\0\x01a\0\0\0\x01b\0\0\0\x02cd\n",
    b"BATCH t/0 3 9\n123456789\n",
    b"READ t/0 0 as=json\n",
    b"READ t/0 -1 max=5 as=value crc=skip\n",
    b"READ t/0 @-1h\n",
    b"FETCH t/0 0 max_bytes=10\n",
    b"TAIL t/0 0 as=json\n",
    b"TAIL t/* earliest\n",
    b"STOP\n",
    b"OFFSETS t\n",
    b"AT t/0 2026-01-01T00:00:00Z\n",
    b"TRIM t/0 1\n",
    b"ALTER t retention.ms=1 segment.bytes=default\n",
    b"PARTITIONS t 3\n",
    b"CONSUME g t ack=auto as=json\n",
    b"ACK 0 0\n",
    b"COMMIT g t/0 1\n",
    b"COMMITTED g t\n",
    b"GROUPS\n",
    b"DESCRIBE t\n",
    b"SEGMENTS t/0\n",
    b"TOPICS\n",
    b"DELETE t\n",
];

/// Text files of a data directory, configs, and flags.
const TEXTS: [&[u8]; 12] = [
    b"format=1\nbroker.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n",
    b"t 0 30\n",
    b"t 0 12\nu 1 5\n",
    b"partitions=1\nsegment.bytes=1000\n",
    b"partitions=3\ncleanup.policy=compact\n",
    b"0 1767225600000\n12 1767225600012\n",
    b"12 960\nend\n",
    b"retention.ms=-1\nretention.bytes=5\n",
    b"100ms",
    b"127.0.0.1:9092",
    b"unix:/tmp/x",
    b"16MiB",
];

/// Input for an entry point.
pub(crate) fn input(entry: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    match entry {
        "session" => {
            bytes.push(random.u8(..));
            bytes.extend(
                (0..random.usize(1..12))
                    .flat_map(|_| *random.choice(&REQUESTS).unwrap_or(&&b""[..])),
            );
        }
        "record" => bytes = record(random),
        "index" => {
            bytes.push(random.u8(..));
            for _ in 0..random.usize(..20) {
                bytes.extend_from_slice(&random.u32(..40).to_be_bytes());
                bytes.extend_from_slice(&random.u32(..1000).to_be_bytes());
            }
        }
        "text_file" | "config" => {
            bytes.push(random.u8(..));
            bytes.extend_from_slice(random.choice(&TEXTS).unwrap_or(&&b""[..]));
        }
        _ => bytes.extend((0..6 * random.usize(1..6)).map(|_| random.u8(..))),
    }
    for _ in 0..random.usize(..4) {
        damage(&mut bytes, random);
    }
    bytes
}

/// A stored entry.
fn record(random: &mut fastrand::Rng) -> Vec<u8> {
    let field = |random: &mut fastrand::Rng| -> Option<Vec<u8>> {
        random
            .bool()
            .then(|| (0..random.usize(..50)).map(|_| random.u8(..)).collect())
    };
    let (key, value) = (field(random), field(random));
    let layout = *random
        .choice(&[Layout::V1, Layout::V2])
        .unwrap_or(&Layout::V2);
    let headers: &[u8] = match layout {
        Layout::V2 if random.bool() => b"\0\x01\0\0\0\x01n\xff\xff\xff\xff",
        Layout::V1 | Layout::V2 => b"",
    };
    let record = Record {
        timestamp: random.i64(..),
        key: key.as_deref(),
        value: value.as_deref(),
        headers,
    };
    let mut bytes = Vec::new();
    layout
        .encode(random.i64(0..), &record, &mut bytes)
        .expect("it is short");
    bytes
}

/// One change.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.usize(..bytes.len());
    match random.u8(..8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.u8(..)),
        2 => {
            bytes.remove(at);
        }
        3 => {
            // A number where there was one, or where there was none.
            let text = random.choice(&[
                "-1",
                "0",
                "9223372036854775807",
                "4294967296",
                "99999999999999999999",
            ]);
            bytes.splice(at..at, text.unwrap_or(&"").bytes());
        }
        4 => {
            let again: Vec<u8> = bytes[at..].to_vec();
            bytes.extend_from_slice(&again);
        }
        5 => {
            let end = (at + 4).min(bytes.len());
            bytes[at..end].fill(*random.choice(&[0, 0xff, 0x7f]).unwrap_or(&0));
        }
        _ => bytes[at] ^= 1 << random.u8(..8),
    }
}
