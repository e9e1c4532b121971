//! The table of verbs, from which parsing, HELP and the test of docs/protocol.md come.
#![forbid(unsafe_code)]

use crate::api::{ApiError, ErrorCode, quoted};

/// What a line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One record, value to the end of the line.
    Put,
    /// One record, counted bytes.
    Produce,
    /// Many records, counted bytes.
    Batch,
    /// Records, decoded.
    Read,
    /// Records as they are stored.
    Fetch,
    /// Records as they come.
    Tail,
    /// The end of a tail.
    Stop,
    /// A share of a topic's records as they come.
    Consume,
    /// The end of some of them.
    Ack,
    /// Where a group goes on.
    Commit,
    /// Where a group stands.
    Committed,
    /// All groups.
    Groups,
    /// Earliest and latest offsets.
    Offsets,
    /// The first offset at or after a time.
    At,
    /// The way of a lookup.
    Explain,
    /// A new topic.
    Create,
    /// The end of a topic.
    Delete,
    /// Other configs.
    Alter,
    /// More partitions.
    Partitions,
    /// A later log start.
    Trim,
    /// All topics.
    Topics,
    /// A topic's configs and partitions.
    Describe,
    /// A partition's segments.
    Segments,
    /// Everything durable.
    Sync,
    /// Counters.
    Stats,
    /// This table.
    Help,
    /// The version.
    Version,
    /// A sign of life.
    Ping,
    /// The end of the connection.
    Quit,
}

/// What follows the first line of a reply that begins with OK: what a client has to know to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Nothing.
    Line,
    /// As many lines as its first number says.
    Lines,
    /// The same, but with `as=value` as many bytes as its fourth number says.
    Records,
    /// As many bytes as its first number says.
    Bytes,
    /// Lines, until the client sends one.
    Stream,
}

/// One entry of the table.
#[derive(Debug)]
pub struct Verb {
    /// What it asks for.
    pub kind: Kind,
    /// Its word, in capitals.
    pub name: &'static str,
    /// The whole request line.
    pub usage: &'static str,
    /// The reply where all is well.
    pub reply: &'static str,
    /// How that reply is read.
    pub shape: Shape,
    /// The names of its options, as far as they are fixed; at most 32.
    pub options: &'static [&'static str],
    /// What it does, for a person: lines of text.
    pub about: &'static [&'static str],
}

/// Every verb that there is, in the order of HELP.
pub const VERBS: &[Verb] = &[
    Verb {
        kind: Kind::Put,
        name: "PUT",
        usage: "PUT <topic>[/<partition>][:<key>] <value to the end of the line>",
        reply: "OK <partition> <offset>",
        shape: Shape::Line,
        options: &[],
        about: &[
            "Appends one record. The value is everything after the one space behind the target, as it stands.",
            "The first colon splits off the key; without one there is none.",
        ],
    },
    Verb {
        kind: Kind::Produce,
        name: "PRODUCE",
        usage: "PRODUCE <topic>[/<partition>] <key bytes> <value bytes> [ts=<ms>] [headers=<bytes>]",
        reply: "OK <partition> <offset>",
        shape: Shape::Line,
        options: &["ts", "headers"],
        about: &[
            "Appends one record of any bytes: behind the line come exactly so many bytes of key, value and headers, and an LF.",
            "A count of -1 is null.",
        ],
    },
    Verb {
        kind: Kind::Batch,
        name: "BATCH",
        usage: "BATCH <topic>[/<partition>] <count> <bytes>",
        reply: "OK <partition> <first offset> <last offset>",
        shape: Shape::Line,
        options: &[],
        about: &[
            "Appends <count> records, all or none: behind the line come <bytes> bytes and an LF; for each record",
            "keyLen i32, key, valueLen i32, value, big-endian, -1 for null.",
        ],
    },
    Verb {
        kind: Kind::Read,
        name: "READ",
        usage: "READ <topic>[/<partition>] <offset> [max=<n>] [wait=<ms>] [as=tsv|json|value] [crc=check|skip]",
        reply: "OK <n> <next offset> <high watermark>, then n lines",
        shape: Shape::Records,
        options: &["max", "wait", "as", "crc"],
        about: &[
            "Reads records. tsv: offset, timestamp, key, value, separated by tabs; json: an object a line;",
            "value: OK has a fourth number, the bytes that follow: each value as it stands, and an LF.",
        ],
    },
    Verb {
        kind: Kind::Fetch,
        name: "FETCH",
        usage: "FETCH <topic>[/<partition>] <offset> [max_bytes=<n>] [min_bytes=<n>] [wait=<ms>]",
        reply: "OK <bytes> <first offset> <next offset> <high watermark>, then so many bytes",
        shape: Shape::Bytes,
        options: &["max_bytes", "min_bytes", "wait"],
        about: &[
            "Reads records as they are stored, sent from the file by the kernel; at least one where one is there.",
        ],
    },
    Verb {
        kind: Kind::Tail,
        name: "TAIL",
        usage: "TAIL <topic>[/<partition>] [<offset>] [as=tsv|json|value], or TAIL <topic>/* [<offset>] [as=...]",
        reply: "OK <offset>, then a line for each record as it comes; of all partitions OK",
        shape: Shape::Stream,
        options: &["as"],
        about: &[
            "Follows a partition, or all of a topic, from latest if no offset is given, until a line comes (STOP).",
            "Of all partitions the offset is earliest, latest, -<n> or @<time>, and each line begins with the partition.",
        ],
    },
    Verb {
        kind: Kind::Stop,
        name: "STOP",
        usage: "STOP",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &["Ends a TAIL or CONSUME; after its OK no pushed line follows."],
    },
    Verb {
        kind: Kind::Consume,
        name: "CONSUME",
        usage: "CONSUME <group> <topic> [from=earliest|latest] [ack=manual|auto] [max_inflight=<n>] [as=tsv|json|value] [ack_wait=<ms>]",
        reply: "OK, then a line for each record as it comes, and lines that begin with # about what happens",
        shape: Shape::Stream,
        options: &["from", "ack", "max_inflight", "as", "ack_wait"],
        about: &[
            "Shares a topic with the others that consume it in that group, until STOP. ACK says what is done with;",
            "what is not is delivered again. ack=auto needs no ACK; as=value needs ack=auto.",
            "# assigned <partitions>: those that are yours. # inflight <n>: no more before an ACK.",
            "# reset <partition> <from> <to>: the records between are gone. # corrupt <partition> <offset> <next>: damage.",
        ],
    },
    Verb {
        kind: Kind::Ack,
        name: "ACK",
        usage: "ACK <partition> <offset>",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &[
            "In a CONSUME: everything of that partition up to and including that offset is done with.",
        ],
    },
    Verb {
        kind: Kind::Commit,
        name: "COMMIT",
        usage: "COMMIT <group> <topic>[/<partition>] <next offset>",
        reply: "OK, or OK held where a consumer has the partition: its next ACK wins",
        shape: Shape::Line,
        options: &[],
        about: &["Says where a group goes on in a partition, also backwards."],
    },
    Verb {
        kind: Kind::Committed,
        name: "COMMITTED",
        usage: "COMMITTED <group> <topic>[/<partition>]",
        reply: "OK <n>, then n lines: partition, committed offset or -1, latest, lag, owner or -",
        shape: Shape::Lines,
        options: &[],
        about: &["Where a group stands in a topic, and who has which partition."],
    },
    Verb {
        kind: Kind::Groups,
        name: "GROUPS",
        usage: "GROUPS",
        reply: "OK <n>, then n lines: group, members, topics",
        shape: Shape::Lines,
        options: &[],
        about: &["All groups."],
    },
    Verb {
        kind: Kind::Offsets,
        name: "OFFSETS",
        usage: "OFFSETS <topic>[/<partition>]",
        reply: "OK <n>, then n lines: partition, earliest, latest",
        shape: Shape::Lines,
        options: &[],
        about: &[
            "The offsets that can be read: the earliest, and the latest, which is the next to come.",
        ],
    },
    Verb {
        kind: Kind::At,
        name: "AT",
        usage: "AT <topic>[/<partition>] <ms | RFC 3339 time | -<n>s|m|h|d>",
        reply: "OK <offset> <timestamp>, or OK -1 -1 where there is none",
        shape: Shape::Line,
        options: &[],
        about: &["The first record at or after that time."],
    },
    Verb {
        kind: Kind::Explain,
        name: "EXPLAIN",
        usage: "EXPLAIN <topic>[/<partition>] <offset>",
        reply: "OK <n>, then n lines",
        shape: Shape::Lines,
        options: &[],
        about: &[
            "How that offset is found: segment, index entry, scan, record, with the real figures.",
        ],
    },
    Verb {
        kind: Kind::Create,
        name: "CREATE",
        usage: "CREATE <topic> [partitions=<n>] [<config>=<value> ...]",
        reply: "OK",
        shape: Shape::Line,
        options: &["partitions"],
        about: &["Creates a topic. Configs have Kafka's names; DESCRIBE shows them all."],
    },
    Verb {
        kind: Kind::Delete,
        name: "DELETE",
        usage: "DELETE <topic>",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &["Deletes a topic and everything in it."],
    },
    Verb {
        kind: Kind::Alter,
        name: "ALTER",
        usage: "ALTER <topic> <config>=<value> ...",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &[
            "Changes configs of a topic, at once and for good; the value default goes back to the default.",
        ],
    },
    Verb {
        kind: Kind::Partitions,
        name: "PARTITIONS",
        usage: "PARTITIONS <topic> <n>",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &["Gives a topic more partitions, <n> in all; never fewer."],
    },
    Verb {
        kind: Kind::Trim,
        name: "TRIM",
        usage: "TRIM <topic>[/<partition>] <offset>",
        reply: "OK <earliest> <latest>",
        shape: Shape::Line,
        options: &[],
        about: &["Removes the records below that offset, which is a plain number."],
    },
    Verb {
        kind: Kind::Topics,
        name: "TOPICS",
        usage: "TOPICS",
        reply: "OK <n>, then n lines: topic, partitions, records stored, bytes",
        shape: Shape::Lines,
        options: &[],
        about: &["All topics."],
    },
    Verb {
        kind: Kind::Describe,
        name: "DESCRIBE",
        usage: "DESCRIBE <topic>",
        reply: "OK <n>, then n lines",
        shape: Shape::Lines,
        options: &[],
        about: &[
            "Lines: config, name, value, topic|broker|default.",
            "Lines: partition, number, earliest, latest, bytes, segments, ok|read_only|damaged.",
        ],
    },
    Verb {
        kind: Kind::Segments,
        name: "SEGMENTS",
        usage: "SEGMENTS <topic>[/<partition>]",
        reply: "OK <n>, then n lines: base offset, bytes, records, index entries, first timestamp, last timestamp",
        shape: Shape::Lines,
        options: &[],
        about: &["The segment files of a partition; - where there is no timestamp."],
    },
    Verb {
        kind: Kind::Sync,
        name: "SYNC",
        usage: "SYNC",
        reply: "OK",
        shape: Shape::Line,
        options: &[],
        about: &["Answers when everything appended so far is on the disk."],
    },
    Verb {
        kind: Kind::Stats,
        name: "STATS",
        usage: "STATS",
        reply: "OK <n>, then n lines: name, value",
        shape: Shape::Lines,
        options: &[],
        about: &["Counters since the start, and gauges."],
    },
    Verb {
        kind: Kind::Help,
        name: "HELP",
        usage: "HELP [<verb>]",
        reply: "OK <n>, then n lines",
        shape: Shape::Lines,
        options: &[],
        about: &["This list, or more about one verb."],
    },
    Verb {
        kind: Kind::Version,
        name: "VERSION",
        usage: "VERSION",
        reply: "OK mini-broker <version>",
        shape: Shape::Line,
        options: &[],
        about: &["The broker's version."],
    },
    Verb {
        kind: Kind::Ping,
        name: "PING",
        usage: "PING",
        reply: "OK PONG",
        shape: Shape::Line,
        options: &[],
        about: &["A sign of life."],
    },
    Verb {
        kind: Kind::Quit,
        name: "QUIT",
        usage: "QUIT",
        reply: "OK, and the connection is closed",
        shape: Shape::Line,
        options: &[],
        about: &["Ends the connection when everything before it is answered."],
    },
];

/// The entry of a verb, whatever its case.
///
/// # Errors
/// `UNKNOWN_VERB` with the word.
pub fn find(word: &[u8]) -> Result<&'static Verb, ApiError> {
    VERBS
        .iter()
        .find(|verb| verb.name.as_bytes().eq_ignore_ascii_case(word))
        .ok_or_else(|| {
            ApiError::new(
                ErrorCode::UnknownVerb,
                format!(
                    "there is no verb '{}'; HELP lists those there are",
                    quoted(word)
                ),
            )
        })
}

/// The entry of a kind.
#[must_use]
pub fn of(kind: Kind) -> &'static Verb {
    // Every kind has an entry, which a test checks; the first is a value to have one.
    const FIRST: &Verb = match VERBS {
        [first, ..] => first,
        [] => panic!("the table of verbs is empty"),
    };
    VERBS.iter().find(|verb| verb.kind == kind).unwrap_or(FIRST)
}

/// The lines of HELP.
#[must_use]
pub fn help_all() -> Vec<String> {
    VERBS.iter().map(|verb| verb.usage.to_owned()).collect()
}

/// The lines of HELP for one verb.
#[must_use]
pub fn help(verb: &Verb) -> Vec<String> {
    let mut lines = vec![verb.usage.to_owned(), format!("  -> {}", verb.reply)];
    lines.extend(verb.about.iter().map(|line| format!("  {line}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_entry_whose_usage_begins_with_its_name() {
        for verb in VERBS {
            assert_eq!(
                VERBS.iter().filter(|other| other.kind == verb.kind).count(),
                1,
                "{}",
                verb.name
            );
            assert!(
                verb.usage.split(' ').next() == Some(verb.name),
                "{}",
                verb.usage
            );
            assert_eq!(of(verb.kind).name, verb.name);
            assert!(verb.options.len() <= 32);
        }
        assert_eq!(VERBS.len(), 29);
    }

    #[test]
    fn verbs_are_found_in_any_case() {
        assert_eq!(find(b"pInG").map(|verb| verb.kind), Ok(Kind::Ping));
        for word in ["COMMITS", "PIN", "PINGG", ""] {
            assert_eq!(
                find(word.as_bytes()).map_err(|e| e.code).err(),
                Some(ErrorCode::UnknownVerb)
            );
        }
    }
}
