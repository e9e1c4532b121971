//! Committed offsets as records of `__consumer_offsets`, in words that a person can READ.
//!
//! The key is `<group> <topic>/<partition>`, as in a COMMIT line; the value is the next offset, and for an offset that had
//! to be taken back because the log had lost its end, `<offset> lost=<what it was>`. A null value forgets.

#![forbid(unsafe_code)]

/// The topic that holds them.
pub(in crate::broker) const TOPIC: &str = "__consumer_offsets";

/// Its configs: small segments, so that compaction soon has something to work on and a start has little to read.
pub(in crate::broker) const CONFIGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact"),
    ("max.message.bytes", "1048588"),
    ("record.version", "2"),
    ("segment.bytes", "1048576"),
];

/// A committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::broker) struct Commit {
    /// The next offset to be read.
    pub(in crate::broker) offset: i64,
    /// What it was before the log was found to end below it, until a consumer is told.
    pub(in crate::broker) lost: Option<i64>,
    /// When it was committed, by the wall clock.
    pub(in crate::broker) at_ms: i64,
}

/// The key of a partition's offset.
pub(in crate::broker) fn key(group: &[u8], topic: &str, partition: u32) -> Box<[u8]> {
    let mut key = group.to_vec();
    key.extend_from_slice(format!(" {topic}/{partition}").as_bytes());
    key.into()
}

/// Group, topic and partition of a key; `None` where it is none.
pub(in crate::broker) fn parse_key(key: &[u8]) -> Option<(&[u8], &str, u32)> {
    let space = key.iter().position(|&byte| byte == b' ')?;
    let (group, rest) = key.split_at_checked(space)?;
    let rest = std::str::from_utf8(rest.get(1..)?).ok()?;
    let (topic, partition) = rest.rsplit_once('/')?;
    Some((group, topic, partition.parse().ok()?))
}

/// The value of an offset.
pub(in crate::broker) fn value(offset: i64, lost: Option<i64>) -> String {
    match lost {
        None => offset.to_string(),
        Some(lost) => format!("{offset} lost={lost}"),
    }
}

/// Offset and lost offset of a value; `None` where it is none.
pub(in crate::broker) fn parse_value(value: &[u8]) -> Option<(i64, Option<i64>)> {
    let text = std::str::from_utf8(value).ok()?;
    match text.split_once(" lost=") {
        None => Some((text.parse().ok()?, None)),
        Some((offset, lost)) => Some((offset.parse().ok()?, Some(lost.parse().ok()?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_text_and_read_back() {
        let key = key(b"bill\xffing/x", "orders", 7);
        assert_eq!(&*key, b"bill\xffing/x orders/7");
        assert_eq!(parse_key(&key), Some((&b"bill\xffing/x"[..], "orders", 7)));
        for wrong in [
            &b""[..],
            b"g",
            b"g orders",
            b"g orders/x",
            b"g o\xff/1",
            b"g orders/-1",
        ] {
            assert_eq!(parse_key(wrong), None);
        }
        assert_eq!(value(42, None), "42");
        assert_eq!(parse_value(b"42"), Some((42, None)));
        assert_eq!(value(50, Some(100)), "50 lost=100");
        assert_eq!(parse_value(b"50 lost=100"), Some((50, Some(100))));
        for wrong in [&b""[..], b"x", b"5 lost=", b"5 x", b"\xff"] {
            assert_eq!(parse_value(wrong), None);
        }
    }
}
