//! Errors of the engine in the words of the peer: a code, then what value, which place, what to do.

#![forbid(unsafe_code)]

use crate::api::{ApiError, ErrorCode, quoted};
use crate::storage::Error;

/// EMFILE and ENFILE of Linux, which std has no kind for.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];

/// What a peer is told of an engine's error in that partition.
pub(super) fn of_partition(error: &Error, topic: &str, number: u32) -> ApiError {
    let place = format!("{topic}/{number}");
    match error {
        Error::Io { .. } => of_system(error),
        Error::OutOfRange {
            offset,
            earliest,
            latest,
        } => ApiError::new(
            ErrorCode::OffsetOutOfRange,
            format!(
                "offset {offset} of {place} is not from earliest {earliest} to latest {latest}"
            ),
        ),
        Error::Corrupt(damage) => ApiError::new(
            ErrorCode::Corrupt,
            format!(
                "{place} offset={} position={} next={} segment={:020}.log",
                damage.offset, damage.position, damage.next, damage.segment
            ),
        ),
        Error::TooLarge { bytes, max } => ApiError::new(
            ErrorCode::MessageTooLarge,
            format!("the record has {bytes} bytes; max.message.bytes of {topic} is {max}"),
        ),
        Error::Unstorable(reason) => ApiError::new(
            ErrorCode::InvalidRecord,
            format!("{reason}; record.version of {topic} says which it is"),
        ),
        Error::NoKey => ApiError::new(
            ErrorCode::InvalidRecord,
            format!("{topic} is compacted, so a record needs a key: PUT {topic}:<key> <value>"),
        ),
        Error::FutureTimestamp { timestamp, latest } => ApiError::new(
            ErrorCode::InvalidTimestamp,
            format!(
                "timestamp {timestamp} is later than {latest}, the broker's clock plus message.timestamp.after.max.ms of {topic}"
            ),
        ),
        Error::ReadOnly => ApiError::new(
            ErrorCode::ReadOnly,
            format!(
                "{place} takes no appends since a write to its disk failed; check the disk and restart the broker"
            ),
        ),
        Error::Exhausted => ApiError::new(
            ErrorCode::Storage,
            format!("{place} has no offset left to give"),
        ),
    }
}

/// What a peer is told of an error that is no partition's own: the system refused something.
pub(super) fn of_system(error: &Error) -> ApiError {
    let descriptors = |source: &std::io::Error| {
        source
            .raw_os_error()
            .is_some_and(|code| NO_DESCRIPTORS.contains(&code))
    };
    let remedy = match error {
        _ if error.is_disk_full() => {
            return ApiError::new(
                ErrorCode::DiskFull,
                format!("{error}; nothing was stored, free some space and send it again"),
            );
        }
        Error::Io { source, .. } if descriptors(source) => {
            "raise the limit of open files (ulimit -n)"
        }
        Error::Io { .. }
        | Error::OutOfRange { .. }
        | Error::Corrupt(_)
        | Error::TooLarge { .. }
        | Error::Unstorable(_)
        | Error::NoKey
        | Error::FutureTimestamp { .. }
        | Error::ReadOnly
        | Error::Exhausted => "check the disk and the broker's log",
    };
    ApiError::new(ErrorCode::Storage, format!("{error}; {remedy}"))
}

/// What a peer is told after a failed fsync, whatever its reason: even a full disk is final then.
pub(super) fn of_sync(error: &Error, topic: &str, number: u32) -> ApiError {
    ApiError::new(
        ErrorCode::Storage,
        format!(
            "{topic}/{number} cannot be made durable: {error}; check the disk and restart the broker"
        ),
    )
}

/// No such topic.
pub(super) fn unknown_topic(topic: &[u8]) -> ApiError {
    let shown = quoted(topic);
    let words = if topic.starts_with(b"__") {
        format!(
            "there is no topic {shown}; names that begin with __ are the broker's own, and TOPICS lists those that there are"
        )
    } else {
        format!("there is no topic {shown}; CREATE {shown} makes it")
    };
    ApiError::new(ErrorCode::UnknownTopic, words)
}

/// The topic was deleted in this turn.
pub(super) fn topic_is_gone() -> ApiError {
    ApiError::new(ErrorCode::UnknownTopic, "the topic was deleted")
}

/// The topic was deleted under a reader.
pub(super) fn topic_deleted(topic: &str) -> ApiError {
    ApiError::new(
        ErrorCode::UnknownTopic,
        format!("topic {topic} was deleted"),
    )
}

/// The topic has no such partition.
pub(super) fn unknown_partition(topic: &str, number: u32, partitions: u32) -> ApiError {
    let there_is = match partitions {
        0 | 1 => "only 0".to_owned(),
        more => format!("0 to {}", more - 1),
    };
    ApiError::new(
        ErrorCode::UnknownPartition,
        format!("{topic} has no partition {number}; there is {there_is}"),
    )
}

/// Several partitions and none named.
pub(super) fn ambiguous_partition(topic: &str, partitions: u32) -> ApiError {
    ApiError::new(
        ErrorCode::AmbiguousPartition,
        format!("{topic} has {partitions} partitions; name one, as in {topic}/0"),
    )
}

/// A BATCH larger than the limit.
pub(super) fn batch_too_large(bytes: usize, max: u64) -> ApiError {
    ApiError::new(
        ErrorCode::MessageTooLarge,
        format!("the batch has {bytes} bytes; --max-batch-bytes is {max}"),
    )
}
