//! The bytes of replies.
#![forbid(unsafe_code)]

use crate::api::{
    ApiError, CommitAnswer, CommittedInfo, ConfigSource, Explanation, PartitionHealth,
    PartitionInfo, RecordState, Response, SegmentInfo, TailEvent, TopicInfo,
};
use crate::json::integer;
use crate::outbox::Outbox;
use crate::record::Records;

use super::forms::{Form, field};
use super::parse::Remember;

/// A reply that the codec gives by itself.
#[derive(Debug, Default)]
pub(super) enum Own {
    /// None is owed.
    #[default]
    Nothing,
    /// Always the same.
    Static(&'static str),
    /// Made for this one.
    Text(Vec<u8>),
    /// A refusal.
    Error(ApiError),
}

impl Own {
    /// Appends it.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            Self::Static(text) => out.extend_from_slice(text.as_bytes()),
            Self::Text(text) => out.extend_from_slice(text),
            Self::Error(error) => write_error(error, out),
        }
    }
}

/// `OK <n>` and so many lines.
pub(super) fn listing(lines: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    ok(&[as_i128(lines.len())], &mut out);
    for line in lines {
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
    out
}

/// `ERR <CODE> <words>`; the words stay on one line whatever they hold.
pub(super) fn write_error(error: &ApiError, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ERR ");
    out.extend_from_slice(error.code.word().as_bytes());
    out.push(b' ');
    out.extend(error.message.bytes().map(|byte| {
        if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            byte
        }
    }));
    out.push(b'\n');
}

/// Appends a response in the form that its request asked for.
pub(super) fn write_response(response: &Response, remember: &Remember, out: &mut Outbox) {
    let tail = out.tail_mut();
    match response {
        Response::Records {
            partition,
            records,
            next_offset,
            high_watermark,
        } => {
            write_records(
                remember.form,
                *partition,
                records,
                [*next_offset, *high_watermark],
                tail,
            );
        }
        Response::Fetched {
            range,
            first_offset,
            next_offset,
            high_watermark,
        } => {
            let len = range.as_ref().map_or(0, |range| range.len);
            let [first, next, end] =
                [first_offset, next_offset, high_watermark].map(|n| i128::from(*n));
            ok(&[len.into(), first, next, end], tail);
            if let Some(range) = range {
                out.push_file(range.clone());
            }
        }
        Response::Tailing(None) | Response::Consuming | Response::Done => ok(&[], tail),
        Response::Tailing(Some(offset)) => ok(&[(*offset).into()], tail),
        Response::Trimmed { earliest, latest } => {
            ok(&[(*earliest).into(), (*latest).into()], tail);
        }
        Response::Offsets(rows) => list(rows, tail, |&(partition, earliest, latest), out| {
            row(&[partition.into(), earliest.into(), latest.into()], out);
        }),
        Response::At(found) => {
            let (offset, timestamp) = found.unwrap_or((-1, -1));
            ok(&[offset.into(), timestamp.into()], tail);
        }
        Response::Explained { explanation, .. } => {
            tail.extend_from_slice(&listing(&explain(explanation, remember.asked)));
        }
        Response::Topics(topics) => list(topics, tail, write_topic),
        Response::Described {
            configs,
            partitions,
        } => write_described(configs, partitions, tail),
        Response::Segments(segments) => list(segments, tail, write_segment),
        Response::Committed(rows) => list(rows, tail, write_committed),
        Response::Groups(groups) => list(groups, tail, |group, out| {
            field(Some(&group.group), out);
            out.push(b'\t');
            row(&[group.members.into(), group.topics.into()], out);
        }),
        Response::Stats(stats) => list(stats, tail, |(name, value), out| {
            out.extend_from_slice(name.as_bytes());
            out.push(b'\t');
            row(&[(*value).into()], out);
        }),
        Response::Error(error) => write_error(error, tail),
    }
}

/// `OK <n>`, and a line for each item.
fn list<T>(items: &[T], out: &mut Vec<u8>, line: impl Fn(&T, &mut Vec<u8>)) {
    ok(&[as_i128(items.len())], out);
    for item in items {
        line(item, out);
    }
}

/// Appends what a tail pushes.
pub(super) fn write_event(event: &TailEvent, remember: &Remember, out: &mut Vec<u8>) {
    match event {
        TailEvent::Records { partition, records } => {
            for record in records.iter() {
                remember
                    .form
                    .line(*partition, remember.with_partition, &record, out);
            }
        }
        TailEvent::Corrupt {
            partition,
            offset,
            next,
        } => {
            note("corrupt", &[(*partition).into(), *offset, *next], out);
        }
        TailEvent::Assigned(partitions) => {
            out.extend_from_slice(b"# assigned ");
            for (at, &partition) in partitions.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                integer(partition, out);
            }
            out.extend_from_slice(if partitions.is_empty() {
                &b"-\n"[..]
            } else {
                b"\n"
            });
        }
        TailEvent::Reset {
            partition,
            from,
            to,
        } => note("reset", &[(*partition).into(), *from, *to], out),
        TailEvent::Inflight(count) => {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            note("inflight", &[count], out);
        }
    }
}

/// A line among the records that is none.
fn note(word: &str, numbers: &[i64], out: &mut Vec<u8>) {
    out.extend_from_slice(b"# ");
    out.extend_from_slice(word.as_bytes());
    for &number in numbers {
        out.push(b' ');
        integer(number, out);
    }
    out.push(b'\n');
}

fn write_records(form: Form, partition: u32, records: &Records, ends: [i64; 2], out: &mut Vec<u8>) {
    let [next, high_watermark] = ends.map(i128::from);
    let count = as_i128(records.len());
    match form {
        Form::Tsv | Form::Json => ok(&[count, next, high_watermark], out),
        Form::Value => {
            let values = records
                .iter()
                .map(|r| r.record.value.map_or(0, <[u8]>::len) + 1);
            ok(
                &[count, next, high_watermark, as_i128(values.sum::<usize>())],
                out,
            );
        }
    }
    for record in records.iter() {
        form.line(partition, false, &record, out);
    }
}

fn write_committed(info: &CommittedInfo, out: &mut Vec<u8>) {
    let committed = info.committed.unwrap_or(-1);
    row(
        &[
            info.partition.into(),
            committed.into(),
            info.latest.into(),
            info.lag.into(),
        ],
        out,
    );
    out.pop();
    out.push(b'\t');
    field(Some(info.owner.as_deref().unwrap_or("-").as_bytes()), out);
    out.push(b'\n');
}

/// The good answer to an ACK or COMMIT.
pub(super) fn write_commit(answer: CommitAnswer, out: &mut Vec<u8>) {
    out.extend_from_slice(match answer {
        CommitAnswer::Done => b"OK\n",
        CommitAnswer::Held => b"OK held\n",
    });
}

fn write_topic(topic: &TopicInfo, out: &mut Vec<u8>) {
    field(Some(topic.name.as_bytes()), out);
    out.push(b'\t');
    row(
        &[
            topic.partitions.into(),
            topic.records.into(),
            topic.bytes.into(),
        ],
        out,
    );
}

fn write_described(
    configs: &[(&'static str, String, ConfigSource)],
    partitions: &[PartitionInfo],
    out: &mut Vec<u8>,
) {
    ok(&[as_i128(configs.len() + partitions.len())], out);
    for (name, value, source) in configs {
        let source = match source {
            ConfigSource::Topic => "topic",
            ConfigSource::Broker => "broker",
            ConfigSource::Default => "default",
        };
        for text in ["config", name, value] {
            field(Some(text.as_bytes()), out);
            out.push(b'\t');
        }
        out.extend_from_slice(source.as_bytes());
        out.push(b'\n');
    }
    for partition in partitions {
        let health: &[u8] = match partition.health {
            PartitionHealth::Ok => b"\tok\n",
            PartitionHealth::ReadOnly => b"\tread_only\n",
            PartitionHealth::Damaged => b"\tdamaged\n",
        };
        out.extend_from_slice(b"partition\t");
        row(
            &[
                partition.partition.into(),
                partition.earliest.into(),
                partition.latest.into(),
                partition.bytes.into(),
                partition.segments.into(),
            ],
            out,
        );
        out.pop();
        out.extend_from_slice(health);
    }
}

fn write_segment(segment: &SegmentInfo, out: &mut Vec<u8>) {
    row(
        &[
            segment.base_offset.into(),
            segment.bytes.into(),
            segment.records.into(),
            segment.index_entries.into(),
        ],
        out,
    );
    out.pop();
    for timestamp in [segment.first_timestamp, segment.last_timestamp] {
        out.push(b'\t');
        match timestamp {
            Some(timestamp) => integer(timestamp, out),
            None => out.push(b'-'),
        }
    }
    out.push(b'\n');
}

/// The lines of EXPLAIN. The first word of each and the order of its figures are binding.
fn explain(way: &Explanation, asked: Option<i64>) -> Vec<String> {
    let (first, last) = way.bases;
    let segment = format!(
        "segment  {:020}.log  the floor of {}, base offsets {first} to {last}",
        way.segment,
        plural(way.segments, "segment")
    );
    let index = match &way.index {
        Some(step) => format!(
            "index    entry {} of {}: relative offset {} at position {}, found in {}",
            step.entry,
            step.entries,
            step.relative_offset,
            step.position,
            plural(step.probes.into(), "probe")
        ),
        None => {
            "index    no entry at or below it: the scan starts at the segment's start".to_owned()
        }
    };
    let scan = format!(
        "scan     {} from there, {} passed over",
        plural(way.scanned_bytes, "byte"),
        plural(way.passed_over, "record")
    );
    let state = match way.state {
        RecordState::Good => "crc ok",
        RecordState::NoCrc => "no crc",
        RecordState::BadCrc => "crc bad",
        RecordState::Damaged => "damaged",
    };
    let record = match way.state {
        RecordState::Good | RecordState::NoCrc | RecordState::BadCrc => format!(
            "record   offset {} at position {}, {}, timestamp {}, {state}{}",
            way.offset,
            way.position,
            plural(way.bytes, "byte"),
            way.timestamp,
            removed(way.offset, asked)
        ),
        RecordState::Damaged => {
            format!(
                "record   offset {} at position {}, {state}",
                way.offset, way.position
            )
        }
    };
    let tenths = way.took.as_nanos().div_ceil(100);
    let time = format!("time     {}.{} us", tenths / 10, tenths % 10);
    vec![segment, index, scan, record, time]
}

/// Says that the record is the next one, where the offset asked for is not there any more.
fn removed(found: i64, asked: Option<i64>) -> String {
    match asked {
        Some(asked) if asked < found => format!(", the next there is: {asked} was removed"),
        _ => String::new(),
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `OK` and numbers.
fn ok(numbers: &[i128], out: &mut Vec<u8>) {
    out.extend_from_slice(b"OK");
    for &number in numbers {
        out.push(b' ');
        integer(number, out);
    }
    out.push(b'\n');
}

/// Numbers separated by tabs, and an LF.
fn row(numbers: &[i128], out: &mut Vec<u8>) {
    for (at, &number) in numbers.iter().enumerate() {
        if at > 0 {
            out.push(b'\t');
        }
        integer(number, out);
    }
    out.push(b'\n');
}

fn as_i128(count: usize) -> i128 {
    i128::try_from(count).unwrap_or(i128::MAX)
}
