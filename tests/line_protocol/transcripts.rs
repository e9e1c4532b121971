//! What requests mean and how replies read.

use std::path::Path;
use std::rc::Rc;

use mini_broker::api::{
    ApiError, ErrorCode, Explanation, FileRange, PartitionKey, RecordState, Response, Run, Verdict,
};
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{Fs, OpenMode};
use mini_broker::outbox::Outbox;
use mini_broker::protocol::Codec;
use mini_broker::protocol::line::{Limits, LineCodec, verbs};

use crate::peer::{Peer, asked, explanation, session};

#[test]
fn transcripts_of_every_verb() {
    let cases = [
        ("PUT orders:k v\n", "OK 0 0\n"),
        ("PRODUCE orders/2 1 -1\nk\n", "OK 2 0\n"),
        (
            "BATCH orders 1 8\n\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\n",
            "OK 0 0 0\n",
        ),
        (
            "READ orders 0\n",
            "OK 2 5 9\n3\t1000\tk\ta\\tb\n4\t1001\t\\N\t\\N\n",
        ),
        (
            "READ orders 0 as=json\n",
            "OK 2 5 9\n{\"partition\":1,\"offset\":3,\"timestamp\":1000,\"key\":\"k\",\"value\":\"a\\tb\"}\n\
             {\"partition\":1,\"offset\":4,\"timestamp\":1001,\"key\":null,\"value\":null}\n",
        ),
        ("READ orders 0 as=value\n", "OK 2 5 9 5\na\tb\n\n"),
        ("FETCH orders latest\n", "OK 0 9 9 9\n"),
        (
            "TAIL orders/1\nSTOP\n",
            "OK 3\n3\t1000\tk\ta\\tb\n4\t1001\t\\N\t\\N\n# corrupt 1 5 9\nOK\n",
        ),
        (
            "TAIL orders/*\nPING\nPING\n",
            "OK\n1\t3\t1000\tk\ta\\tb\n1\t4\t1001\t\\N\t\\N\n# corrupt 1 5 9\nOK\nOK PONG\n",
        ),
        ("STOP\n", "OK\n"),
        ("OFFSETS orders\n", "OK 2\n0\t0\t9\n1\t4\t5\n"),
        ("AT orders -5m\n", "OK -1 -1\n"),
        ("CREATE orders partitions=3 retention.ms=-1\n", "OK\n"),
        ("alter orders retention.ms=default segment.ms=5\n", "OK\n"),
        ("PARTITIONS orders 5\n", "OK\n"),
        ("TRIM orders/1 7\n", "OK 7 9\n"),
        (
            "DELETE orders\n",
            "ERR UNKNOWN_TOPIC no topic 'orders' with two lines\n",
        ),
        ("TOPICS\n", "OK 1\norders\t3\t12\t1234\n"),
        (
            "DESCRIBE orders\n",
            "OK 2\nconfig\tretention.ms\t-1\ttopic\npartition\t2\t0\t9\t400\t1\tread_only\n",
        ),
        (
            "SEGMENTS orders\n",
            "OK 2\n0\t10\t2\t1\t-3\t7\n2\t0\t0\t0\t-\t-\n",
        ),
        ("SYNC\n", "OK\n"),
        ("STATS\n", "OK 2\nuptime_ms\t5\ntopics\t1\n"),
        (
            "VERSION\n",
            concat!("OK mini-broker ", env!("CARGO_PKG_VERSION"), "\n"),
        ),
        ("PING\n", "OK PONG\n"),
        ("QUIT\nPING\n", "OK\n"),
    ];
    for (input, expected) in cases {
        assert_eq!(session(input), expected, "{input:?}");
    }
}

#[test]
fn transcripts_of_consumer_groups() {
    let cases = [
        (
            "CONSUME billing orders\n\n# a comment\nACK 1 3\nACK 1 100\nPING\nstop\nPING\n",
            "OK\n# assigned 0,2\n# reset 2 5 7\n# inflight 1000\n# assigned -\n\
             1\t3\t1000\tk\ta\\tb\n1\t4\t1001\t\\N\t\\N\n# corrupt 1 5 9\n\
             OK\nERR NOT_ASSIGNED not yours\nOK PONG\nOK\nOK PONG\n",
        ),
        ("ACK 1 3\n", "OK\n"),
        ("COMMIT billing orders/1 -5\n", "OK held\n"),
        (
            "COMMITTED billing orders\n",
            "OK 2\n0\t5\t9\t4\t127.0.0.1:5000\n1\t-1\t3\t3\t-\n",
        ),
        ("GROUPS\n", "OK 1\nbill\\xffing\t2\t1\n"),
    ];
    for (input, expected) in cases {
        assert_eq!(session(input), expected, "{input:?}");
    }
}

#[test]
fn a_fetch_owes_its_header_and_then_a_piece_of_the_file() {
    let file = MemFs::new()
        .open(Path::new("/log"), OpenMode::CreateNew)
        .unwrap();
    let range = FileRange {
        file: Rc::new(file),
        position: 100,
        len: 4096,
    };
    let response = Response::Fetched {
        range: Some(range),
        first_offset: 5,
        next_offset: 7,
        high_watermark: 9,
    };
    let mut outbox = Outbox::new();
    LineCodec::new(Limits::new(0)).encode(&response, &mut outbox);
    assert_eq!(outbox.len(), "OK 4096 5 7 9\n".len() as u64 + 4096);
    assert_eq!(outbox.tail_mut(), b"OK 4096 5 7 9\n");
}

#[test]
fn explain_reads_as_specified() {
    assert_eq!(
        session("EXPLAIN orders/0 8512393\n"),
        "OK 5\n\
         segment  00000000000008388608.log  the floor of 41 segments, base offsets 0 to 8912896\n\
         index    entry 1203 of 2621: relative offset 123700 at position 5033216, found in 12 probes\n\
         scan     3264 bytes from there, 85 records passed over\n\
         record   offset 8512393 at position 5036480, 112 bytes, timestamp 1767052800000, crc ok\n\
         time     0.9 us\n"
    );
    let reply = session("EXPLAIN orders/0 8512392\n");
    assert!(
        reply.contains("crc ok, the next there is: 8512392 was removed\n"),
        "{reply}"
    );
}

#[test]
fn explain_says_what_is_damaged_and_what_is_missing() {
    let lines = |change: fn(&mut Explanation)| {
        let mut way = explanation();
        change(&mut way);
        let mut outbox = Outbox::new();
        let response = Response::Explained {
            partition: 0,
            explanation: Box::new(way),
        };
        LineCodec::new(Limits::new(0)).encode(&response, &mut outbox);
        String::from_utf8(std::mem::take(outbox.tail_mut())).unwrap()
    };
    let text = lines(|way| way.state = RecordState::BadCrc);
    assert!(
        text.contains("112 bytes, timestamp 1767052800000, crc bad\n"),
        "{text}"
    );
    let text = lines(|way| way.state = RecordState::Damaged);
    assert!(
        text.contains("record   offset 8512393 at position 5036480, damaged\n"),
        "{text}"
    );
    let text = lines(|way| way.index = None);
    assert!(text.contains("\nindex    no entry"), "{text}");
}

#[test]
fn help_lists_every_verb() {
    let reply = session("HELP\n");
    let mut lines = reply.lines();
    assert_eq!(
        lines.next(),
        Some(format!("OK {}", verbs::VERBS.len()).as_str())
    );
    assert_eq!(lines.count(), verbs::VERBS.len());
    for verb in verbs::VERBS {
        assert!(reply.contains(verb.usage));
        let reply = session(format!("help {}\n", verb.name.to_lowercase()));
        let count: usize = reply.lines().next().unwrap()[3..].parse().unwrap();
        assert_eq!(reply.lines().count(), count + 1, "{reply}");
    }
}

#[test]
fn docs_show_every_verb_with_its_usage() {
    let docs = std::fs::read_to_string("docs/protocol.md").unwrap();
    for verb in verbs::VERBS {
        assert!(
            docs.contains(verb.usage),
            "docs/protocol.md lacks: {}",
            verb.usage
        );
        assert!(
            docs.contains(verb.reply),
            "docs/protocol.md lacks the reply of {}: {}",
            verb.name,
            verb.reply
        );
        let example = format!("> {}", verb.name);
        assert!(
            docs.contains(&example),
            "docs/protocol.md lacks an example of {}",
            verb.name
        );
    }
}

#[test]
fn requests_arrive_as_they_were_meant() {
    let cases = [
        (
            "  rEaD   orders/7   -3   wait=250 as=json   crc=skip max=5  ",
            "Read { target: Target { topic: [111, 114, 100, 101, 114, 115], partition: Some(7) }, from: Last(3), \
             max_records: 5, wait: 250ms, crc: Skip }",
        ),
        (
            "READ o earliest",
            "Read { target: Target { topic: [111], partition: None }, from: Earliest, max_records: 100, wait: 0ns, crc: Check }",
        ),
        (
            "FETCH o @-2h",
            "Fetch { target: Target { topic: [111], partition: None }, from: Time(Ago(7200000)), max_bytes: 1048576, \
             min_bytes: 1, wait: 0ns }",
        ),
        (
            "FETCH o 0 min_bytes=0 max_bytes=1 wait=0",
            "Fetch { target: Target { topic: [111], partition: None }, from: Offset(0), max_bytes: 1, min_bytes: 0, wait: 0ns }",
        ),
        (
            "TAIL o",
            "Tail(One(Target { topic: [111], partition: None }, Latest))",
        ),
        (
            "TAIL o/* @2025-12-30T00:00:00Z as=json",
            "Tail(All([111], Time(At(1767052800000))))",
        ),
        (
            "TAIL o as=value",
            "Tail(One(Target { topic: [111], partition: None }, Latest))",
        ),
        (
            "AT o/0 1767052800000",
            "At(Target { topic: [111], partition: Some(0) }, At(1767052800000))",
        ),
        (
            "CREATE o a.b==c partitions=2 d=",
            "Create { topic: [111], partitions: Some(2), configs: [(\"a.b\", \"=c\"), (\"d\", \"\")] }",
        ),
        (
            "ALTER o a.b=default c==d",
            "Alter { topic: [111], configs: [(\"a.b\", \"default\"), (\"c\", \"=d\")] }",
        ),
        ("PARTITIONS o 07", "Partitions([111], 7)"),
        (
            "TRIM o/3 9223372036854775807",
            "Trim(Target { topic: [111], partition: Some(3) }, 9223372036854775807)",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(asked(line), expected, "{line:?}");
    }
}

#[test]
fn records_arrive_as_they_were_meant() {
    let cases = [
        (
            "PUT o/1:a:b\tc  d ",
            "Append(Target { topic: [111], partition: Some(1) }, Record { timestamp: None, key: Some([97, 58, 98, 9, 99]), \
             value: Some([32, 100, 32]), headers: [] })",
        ),
        (
            "put   o: ",
            "Append(Target { topic: [111], partition: None }, Record { timestamp: None, key: Some([]), value: Some([]), \
             headers: [] })",
        ),
        (
            "PRODUCE o 0 2 ts=-9223372036854775808 headers=2\nab\u{0}\u{0}",
            "Append(Target { topic: [111], partition: None }, Record { timestamp: Some(-9223372036854775808), key: Some([]), \
             value: Some([97, 98]), headers: [] })",
        ),
        (
            "produce o -1 1 headers=11 ts=5\nv\u{0}\u{1}\u{0}\u{0}\u{0}\u{1}a\u{0}\u{0}\u{0}\u{0}",
            "Append(Target { topic: [111], partition: None }, Record { timestamp: Some(5), key: None, value: Some([118]), \
             headers: [0, 1, 0, 0, 0, 1, 97, 0, 0, 0, 0] })",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(asked(line), expected, "{line:?}");
    }
}

#[test]
fn empty_lines_and_comments_are_ignored() {
    assert_eq!(session("\n\r\n   \n# PING\n  # PING\nPING\n"), "OK PONG\n");
    assert_eq!(
        session("TAIL orders as=value\n\n\r\n  \n"),
        "OK 3\na\tb\n\n# corrupt 1 5 9\n"
    );
    assert_eq!(
        session("TAIL orders as=value\n# a comment\nPING\n"),
        "OK 3\na\tb\n\n# corrupt 1 5 9\nOK\nOK PONG\n"
    );
}

#[test]
fn a_line_ends_a_tail_and_is_not_executed() {
    let begin = "OK 3\na\tb\n\n# corrupt 1 5 9\n";
    let tail = "TAIL orders as=value\n";
    for line in [
        "STOP\n",
        "PING\n",
        "garbage\u{1}\n",
        "DELETE orders\n",
        "PRODUCE orders x y\n",
    ] {
        assert_eq!(
            session(format!("{tail}{line}PING\n")),
            format!("{begin}OK\nOK PONG\n"),
            "{line}"
        );
    }
    // The payload of what is not executed is not executed either.
    assert_eq!(
        session(format!("{tail}PRODUCE orders -1 4\nQUIT\nPING\n")),
        format!("{begin}OK\nOK PONG\n")
    );
    assert_eq!(
        session(format!("{tail}BATCH orders 1 4\nQUIT\nPING\n")),
        format!("{begin}OK\nOK PONG\n")
    );
    let mut peer = Peer::new();
    peer.turn(format!("{tail}quit\nPING\n").as_bytes());
    assert_eq!(peer.text(), format!("{begin}OK\n"));
    assert!(peer.is_closed);
}

#[test]
fn a_run_that_failed_half_way_answers_each_record() {
    let run = Run {
        key: PartitionKey(0),
        partition: 3,
        first_offset: 9,
        count: 4,
        is_batch: false,
    };
    let error = Some(ApiError::new(ErrorCode::DiskFull, "no space"));
    let text = |run: Run, good_below| {
        let mut outbox = Outbox::new();
        LineCodec::new(Limits::new(0)).encode_run(
            &run,
            &Verdict {
                good_below,
                error: error.clone(),
            },
            &mut outbox,
        );
        String::from_utf8(std::mem::take(outbox.tail_mut())).unwrap()
    };
    assert_eq!(
        text(run, 11),
        "OK 3 9\nOK 3 10\nERR DISK_FULL no space\nERR DISK_FULL no space\n"
    );
    assert_eq!(text(run, 13), "OK 3 9\nOK 3 10\nOK 3 11\nOK 3 12\n");
    assert_eq!(text(run, 2).lines().count(), 4);
    let batch = Run {
        is_batch: true,
        ..run
    };
    assert_eq!(text(batch, 13), "OK 3 9 12\n");
    assert_eq!(text(batch, 12), "ERR DISK_FULL no space\n");
}

#[test]
fn tails_share_lines_only_where_they_look_the_same() {
    let mut forms = std::collections::HashSet::new();
    for line in [
        "TAIL o",
        "TAIL o as=json",
        "TAIL o as=value",
        "TAIL o/*",
        "TAIL o/* as=json",
        "TAIL o/* as=value",
    ] {
        let mut peer = Peer::new();
        peer.turn(format!("{line}\n").as_bytes());
        assert!(forms.insert(peer.codec.tail_form().unwrap()), "{line}");
    }
}
