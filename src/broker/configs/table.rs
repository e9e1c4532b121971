//! The table itself: what each config takes, its default, and where it may be set.

#![forbid(unsafe_code)]

/// A config that this broker acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Config {
    /// `cleanup.policy`: what becomes of old records.
    CleanupPolicy,
    /// `delete.retention.ms`: how long a tombstone stays after it was first cleaned.
    DeleteRetentionMs,
    /// `file.delete.delay.ms`: how long a file whose segment is gone stays on the disk.
    FileDeleteDelayMs,
    /// `flush.messages`: unsynced records of a partition that force a sync.
    FlushMessages,
    /// `flush.ms`: age of the first unsynced record that forces a sync.
    FlushMs,
    /// `index.interval.bytes`.
    IndexIntervalBytes,
    /// `max.compaction.lag.ms`: a record that waited so long is compacted whatever the ratio says.
    MaxCompactionLagMs,
    /// `max.message.bytes`.
    MaxMessageBytes,
    /// `message.timestamp.after.max.ms`.
    TimestampAfterMaxMs,
    /// `message.timestamp.type`.
    TimestampType,
    /// `min.cleanable.dirty.ratio`: the part of a log that must be dirty before it is compacted.
    MinCleanableDirtyRatio,
    /// `min.compaction.lag.ms`: a record younger than this is not compacted.
    MinCompactionLagMs,
    /// `record.version`.
    RecordVersion,
    /// `retention.bytes`: how many bytes of a partition are kept at least; -1 for no limit.
    RetentionBytes,
    /// `retention.ms`: how long records are kept; -1 for ever.
    RetentionMs,
    /// `segment.bytes`.
    SegmentBytes,
    /// `segment.index.bytes`.
    SegmentIndexBytes,
    /// `segment.ms`.
    SegmentMs,
    /// `auto.create.topics.enable`.
    AutoCreateTopicsEnable,
    /// `log.cleaner.backoff.ms`: how long compaction rests where nothing is due.
    CleanerBackoffMs,
    /// `log.cleaner.dedupe.buffer.size`: bytes of the map of keys that a round of compaction holds at most.
    CleanerDedupeBufferSize,
    /// `log.initial.task.delay.ms`: when the first retention pass comes after a start.
    InitialTaskDelayMs,
    /// `log.retention.check.interval.ms`: how far apart retention passes are.
    RetentionCheckIntervalMs,
    /// `num.partitions`.
    NumPartitions,
    /// `offsets.retention.minutes`: how long the committed offsets of a group without members are kept.
    OffsetsRetentionMinutes,
}

/// Where a config may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// On a topic, and with `--config` as the default of topics.
    Topic,
    /// With `--config` only.
    Broker,
}

/// What a config takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A plain number in this range; -1, where it is the least, stands for no limit.
    Number { min: i64, max: i64 },
    /// A decimal from 0 to 1; the value is the bits of an `f64`.
    Ratio,
    /// One of these words; the value is its place in the list.
    Word(&'static [&'static str]),
}

/// A line of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) config: Config,
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    pub(super) default: i64,
}

const INT_MAX: i64 = i32::MAX as i64;
const DAY_MS: i64 = 24 * 3_600_000;
const WEEK_MS: i64 = 7 * DAY_MS;
const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];
const CLEANUP_POLICIES: &[&str] = &["delete", "compact", "compact,delete", "delete,compact"];
const FALSE_TRUE: &[&str] = &["false", "true"];

const fn number(config: Config, name: &'static str, min: i64, max: i64, default: i64) -> Entry {
    Entry {
        config,
        name,
        scope: Scope::Topic,
        kind: Kind::Number { min, max },
        default,
    }
}

const fn word(
    config: Config,
    name: &'static str,
    words: &'static [&'static str],
    default: i64,
) -> Entry {
    Entry {
        config,
        name,
        scope: Scope::Topic,
        kind: Kind::Word(words),
        default,
    }
}

const fn of_broker(entry: Entry) -> Entry {
    Entry {
        scope: Scope::Broker,
        ..entry
    }
}

/// Every config there is, sorted by name within its scope; the order is that of [`Config`].
pub(super) const TABLE: [Entry; 25] = [
    word(Config::CleanupPolicy, "cleanup.policy", CLEANUP_POLICIES, 0),
    number(
        Config::DeleteRetentionMs,
        "delete.retention.ms",
        0,
        i64::MAX,
        DAY_MS,
    ),
    number(
        Config::FileDeleteDelayMs,
        "file.delete.delay.ms",
        0,
        i64::MAX,
        60_000,
    ),
    number(
        Config::FlushMessages,
        "flush.messages",
        1,
        i64::MAX,
        i64::MAX,
    ),
    number(Config::FlushMs, "flush.ms", 0, i64::MAX, i64::MAX),
    number(
        Config::IndexIntervalBytes,
        "index.interval.bytes",
        0,
        INT_MAX,
        4096,
    ),
    number(
        Config::MaxCompactionLagMs,
        "max.compaction.lag.ms",
        1,
        i64::MAX,
        i64::MAX,
    ),
    number(
        Config::MaxMessageBytes,
        "max.message.bytes",
        0,
        INT_MAX,
        1_048_588,
    ),
    number(
        Config::TimestampAfterMaxMs,
        "message.timestamp.after.max.ms",
        0,
        i64::MAX,
        3_600_000,
    ),
    word(
        Config::TimestampType,
        "message.timestamp.type",
        TIMESTAMP_TYPES,
        0,
    ),
    Entry {
        config: Config::MinCleanableDirtyRatio,
        name: "min.cleanable.dirty.ratio",
        scope: Scope::Topic,
        kind: Kind::Ratio,
        default: HALF,
    },
    number(
        Config::MinCompactionLagMs,
        "min.compaction.lag.ms",
        0,
        i64::MAX,
        0,
    ),
    number(Config::RecordVersion, "record.version", 1, 2, 2),
    number(Config::RetentionBytes, "retention.bytes", -1, i64::MAX, -1),
    number(Config::RetentionMs, "retention.ms", -1, i64::MAX, WEEK_MS),
    number(Config::SegmentBytes, "segment.bytes", 14, INT_MAX, 1 << 30),
    number(
        Config::SegmentIndexBytes,
        "segment.index.bytes",
        24,
        INT_MAX,
        10 << 20,
    ),
    number(Config::SegmentMs, "segment.ms", 1, i64::MAX, WEEK_MS),
    of_broker(word(
        Config::AutoCreateTopicsEnable,
        "auto.create.topics.enable",
        FALSE_TRUE,
        1,
    )),
    of_broker(number(
        Config::CleanerBackoffMs,
        "log.cleaner.backoff.ms",
        0,
        i64::MAX,
        15_000,
    )),
    of_broker(number(
        Config::CleanerDedupeBufferSize,
        "log.cleaner.dedupe.buffer.size",
        1024,
        i64::MAX,
        128 << 20,
    )),
    of_broker(number(
        Config::InitialTaskDelayMs,
        "log.initial.task.delay.ms",
        0,
        i64::MAX,
        30_000,
    )),
    of_broker(number(
        Config::RetentionCheckIntervalMs,
        "log.retention.check.interval.ms",
        1,
        i64::MAX,
        300_000,
    )),
    of_broker(number(
        Config::NumPartitions,
        "num.partitions",
        1,
        INT_MAX,
        1,
    )),
    of_broker(number(
        Config::OffsetsRetentionMinutes,
        "offsets.retention.minutes",
        1,
        INT_MAX,
        7 * 24 * 60,
    )),
];

/// 0.5, as a ratio is kept.
const HALF: i64 = 0.5_f64.to_bits().cast_signed();

impl Kind {
    /// The value that the text means; `None` where it is none of this kind.
    pub(super) fn parse(self, text: &str) -> Option<i64> {
        match self {
            Self::Number { min, max } => {
                let is_plain = is_digits(text) || text == "-1";
                let value = text.parse().ok().filter(|_| is_plain)?;
                (min..=max).contains(&value).then_some(value)
            }
            Self::Ratio => {
                let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
                let is_plain = is_digits(whole) && is_digits(part);
                let value: f64 = text.parse().ok().filter(|_| is_plain)?;
                (0.0..=1.0)
                    .contains(&value)
                    .then(|| value.to_bits().cast_signed())
            }
            Self::Word(words) => {
                let place = words.iter().position(|&word| word == text)?;
                i64::try_from(place).ok()
            }
        }
    }

    /// The text that means the value.
    pub(super) fn show(self, value: i64) -> String {
        match self {
            Self::Number { .. } => value.to_string(),
            Self::Ratio => f64::from_bits(value.cast_unsigned()).to_string(),
            Self::Word(words) => {
                let word = usize::try_from(value)
                    .ok()
                    .and_then(|place| words.get(place));
                word.map(ToString::to_string).unwrap_or_default()
            }
        }
    }

    /// What is allowed, for a person.
    pub(super) fn allowed(self) -> String {
        match self {
            Self::Number { min: -1, max } => {
                format!("a plain number from -1 to {max}, -1 for no limit")
            }
            Self::Number { min, max } => format!("a plain number from {min} to {max}"),
            Self::Ratio => "a decimal from 0 to 1, as in 0.25".to_owned(),
            Self::Word(words) => words.join(" or "),
        }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
