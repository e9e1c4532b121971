//! What is refused, with which code, and whether the connection goes on.

use mini_broker::protocol::line::{LINE_BYTES_MAX, Limits};

use crate::peer::{Peer, code, session};

#[test]
fn errors_name_the_value() {
    let cases = [
        (
            "FROB x",
            "ERR UNKNOWN_VERB there is no verb 'FROB'; HELP lists those there are\n",
        ),
        (
            "READ orders 12x",
            "ERR BAD_ARGUMENT '12x' is not an offset: a number, earliest, latest, -<n> for the last n, \
                             @<ms>, @<RFC 3339 time> or @-<n>s|m|h|d\n",
        ),
        (
            "READ orders 0 max=0",
            "ERR BAD_ARGUMENT max '0' is not a plain number of 1 or more (or is too large)\n",
        ),
        (
            "READ orders 0 foo=1",
            "ERR BAD_ARGUMENT READ has no option 'foo'; it has: max, wait, as, crc\n",
        ),
        (
            "PING now",
            "ERR BAD_ARGUMENT 'now' is a field too many; usage: PING\n",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(session(format!("{line}\n")), expected);
    }
    let long = "x".repeat(200);
    let reply = session(format!("{long}\n"));
    assert!(
        reply.contains(&format!("'{}...'", "x".repeat(80))),
        "{reply}"
    );
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_guessed() {
    let bad = concat!(
        "PUT; PUT orders; PUT  ; PUT orders/x v; PUT orders/-1 v; PUT :k v; PUT orders/1/2 v; ",
        "PUT or\tders v; PUT\torders v; READ; READ orders; READ orders +1; READ orders -0; ",
        "READ orders 1.5; READ orders @-5; READ orders 9223372036854775808; READ orders 0 1; ",
        "READ orders 0 max=; READ orders 0 max=-1; READ orders 0 max=1 max=1; READ orders 0 max=1x; ",
        "READ orders 0 max=18446744073709551616; READ orders 0 wait=-1; READ orders 0 wait=1s; ",
        "READ orders 0 as=xml; READ orders 0 as=; READ orders 0 as=TSV; READ orders 0 crc=maybe; ",
        "READ orders 0 MAX=1; READ orders 0 =1; READ max=1 orders 0; READ orders 0 a\tb=1; ",
        "READ orders 0\t; READ orders/ 0; READ orders/01x 0; FETCH orders; FETCH orders 0 max_bytes=0; ",
        "FETCH orders 0 min_bytes=x; FETCH orders 0 as=tsv; TAIL; TAIL orders x; TAIL orders/* 5; ",
        "TAIL orders 0 max=1; TAIL orders 0 0; STOP now; OFFSETS; OFFSETS a b; AT orders; AT orders -5; ",
        "AT orders now; AT orders 2025-12-30; AT orders 2025-12-30T25:00:00Z; AT orders @5; ",
        "EXPLAIN orders; EXPLAIN orders 1 2; CREATE; CREATE a b; CREATE a partitions=0; ",
        "CREATE a partitions=; CREATE a partitions=+1; CREATE a partitions=4294967296; ",
        "CONSUME; CONSUME g; CONSUME g o x; CONSUME g o as=value; CONSUME g o from=0; CONSUME g o ack=none; ",
        "CONSUME g o max_inflight=0; CONSUME g o max_inflight=10000001; CONSUME g o ack_wait=0; CONSUME g o wait=1; ",
        "ACK; ACK 1; ACK 1 -1; ACK x 1; ACK 1 latest; ACK 1 2 3; COMMIT; COMMIT g; COMMIT g o; COMMIT g o x; ",
        "COMMIT g o 1 2; COMMITTED; COMMITTED g; COMMITTED g o 1; GROUPS g; ",
        "ALTER; ALTER a; ALTER a b; ALTER a b=1 b=default; PARTITIONS; PARTITIONS a; PARTITIONS a 0; ",
        "PARTITIONS a -1; PARTITIONS a 1 2; PARTITIONS a n=2; PARTITIONS a 4294967296; TRIM; TRIM a; TRIM a -1; ",
        "TRIM a +1; TRIM a earliest; TRIM a latest; TRIM a @5; TRIM a 1 2; TRIM a/x 1; TRIM a/* 1; ",
        "TRIM a 9223372036854775808; TRIM a 1 x=2; ",
        "CREATE a partitions=1 partitions=1; CREATE a retention.ms=1 retention.ms=2; DELETE; ",
        "DELETE a b; TOPICS a; DESCRIBE; DESCRIBE a b; SEGMENTS; SYNC now; STATS 1; HELP PING PONG; ",
        "HELP PING=1; VERSION 1; PING PONG; QUIT now; PING\r; \u{1}PING; PI\u{7f}NG; ",
    );
    for line in bad.split_terminator("; ") {
        // The CR behind a line is dropped once.
        assert_eq!(code(&format!("PING\n{line}\r")), "OK");
        let reply = session(format!("PING\n{line}\r\n"));
        assert!(
            reply.starts_with("OK PONG\nERR BAD_ARGUMENT "),
            "{line:?}: {reply}"
        );
        assert_eq!(reply.lines().count(), 2, "{line:?}: {reply}");
    }
}

#[test]
fn a_refused_payload_is_never_taken_for_requests() {
    let cases = [
        ("PRODUCE refused -1 5\nPING\n\nVERSION\n", "UNKNOWN_TOPIC"),
        (
            "PRODUCE orders -1 5 foo=1\nPING\n\nVERSION\n",
            "BAD_ARGUMENT",
        ),
        (
            "PRODUCE orders -1 5 ts=x\nPING\n\nVERSION\n",
            "BAD_ARGUMENT",
        ),
        ("PRODUCE orders -1 5 7\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        (
            "PRODUCE orders -1 5 ts=1 ts=2\nPING\n\nVERSION\n",
            "BAD_ARGUMENT",
        ),
        ("PRODUCE ord\ters -1 5\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        ("PRODUCE orders/x -1 5\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        (
            "PRODUCE orders -1 -1 headers=5\nPING\n\nVERSION\n",
            "BAD_ARGUMENT",
        ),
        (
            "PRODUCE orders -1 -1 headers=5 x=1\nPING\n\nVERSION\n",
            "BAD_ARGUMENT",
        ),
        ("BATCH orders 0 5\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        ("BATCH orders x 5\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        ("BATCH orders 1 5 6\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
        ("BATCH ord/x 1 5\nPING\n\nVERSION\n", "BAD_ARGUMENT"),
    ];
    for (input, code) in cases {
        let reply = session(input);
        assert!(
            reply.starts_with(&format!("ERR {code} ")),
            "{input:?}: {reply}"
        );
        let second = reply.lines().nth(1);
        assert_eq!(
            second,
            Some(concat!("OK mini-broker ", env!("CARGO_PKG_VERSION"))),
            "{input:?}: {reply}"
        );
        assert_eq!(reply.lines().count(), 2, "{input:?}: {reply}");
    }
}

#[test]
fn a_payload_that_cannot_be_told_from_requests_closes() {
    let broken = [
        "PRODUCE\n",
        "PRODUCE orders\n",
        "PRODUCE orders 1\n",
        "PRODUCE orders a 1\n",
        "PRODUCE orders 1 a\n",
        "PRODUCE orders -2 1\n",
        "PRODUCE orders +1 1\n",
        "PRODUCE orders 2147483648 1\n",
        "PRODUCE orders 1 -1x\n",
        "PRODUCE orders 99999999999999999999 1\n",
        "PRODUCE orders -1 1 headers=x\n",
        "PRODUCE orders -1 1 headers=-1\n",
        "PRODUCE orders -1 1 headers=1 headers=1\n",
        "PRODUCE orders -1 1\nab\n",
        "PRODUCE orders -1 1\na\r\n",
        "PRODUCE orders 0 0\nPING\n",
        "PRODUCE orders -1 1 x=y\nab\n",
        "BATCH\n",
        "BATCH orders 1\n",
        "BATCH orders 1 x\n",
        "BATCH orders 1 -1\n",
        "BATCH orders 1 2147483648\n",
        "BATCH orders 2 8\n\0\0\0\0\0\0\0\0\n",
        "BATCH orders 1 8\n\0\0\0\x01\0\0\0\0\n",
        "BATCH orders 1 8\n\0\0\0\0\0\0\0\0x",
    ];
    for input in broken {
        let mut peer = Peer::new();
        peer.turn(format!("PUT a b\n{input}").as_bytes());
        peer.turn(b"PING\nPUT a b\n");
        let text = peer.text();
        assert!(
            text.starts_with("OK 0 0\nERR FRAMING "),
            "{input:?}: {text}"
        );
        assert_eq!(text.lines().count(), 2, "{input:?}: {text}");
        assert!(peer.is_closed, "{input:?}");
        assert_eq!(peer.asked.len(), 1, "{input:?}");
    }
}

#[test]
fn a_line_may_have_65536_bytes_and_not_one_more() {
    let line = |len: usize, end: &str| format!("PUT orders {}{end}PING\n", "x".repeat(len - 11));
    for end in ["\n", "\r\n"] {
        assert_eq!(session(line(LINE_BYTES_MAX, end)), "OK 0 0\nOK PONG\n");
        let reply = session(line(LINE_BYTES_MAX + 1, end));
        assert!(reply.starts_with("ERR LINE_TOO_LONG "), "{reply}");
        assert_eq!(reply.lines().count(), 1);
    }
    // The verdict does not wait for an LF that never comes.
    let mut peer = Peer::new();
    peer.turn("y".repeat(LINE_BYTES_MAX).as_bytes());
    assert_eq!(peer.text(), "");
    peer.turn(b"\r");
    assert_eq!(peer.text(), "");
    peer.turn(b"\r");
    assert!(peer.text().starts_with("ERR LINE_TOO_LONG "));
    let mut peer = Peer::new();
    peer.turn("y".repeat(LINE_BYTES_MAX + 1).as_bytes());
    assert!(peer.text().starts_with("ERR LINE_TOO_LONG "));
    assert!(peer.is_closed);
}

#[test]
fn a_payload_over_the_limit_is_read_past_without_being_buffered() {
    let limits = Limits {
        line_bytes_max: 64,
        record_bytes_max: 10,
        batch_bytes_max: 20,
    };
    let mut peer = Peer::with_limits(limits);
    peer.turn(b"PRODUCE orders 5 5\nkkkkkvvvvv\nPRODUCE orders 5 6\nkkkkkvvvvvv\nPING\n");
    let text = peer.text();
    assert!(
        text.starts_with("OK 0 0\nERR MESSAGE_TOO_LARGE the record has 11 bytes; at most 10 "),
        "{text}"
    );
    assert!(text.ends_with("OK PONG\n"), "{text}");

    let mut peer = Peer::with_limits(limits);
    peer.turn(b"PRODUCE orders -1 2147483647\n");
    let megabyte = vec![b'\n'; 1 << 20];
    for _ in 0..2047 {
        peer.turn(&megabyte);
        assert!(peer.input.is_empty() && peer.output.is_empty());
    }
    peer.turn(&megabyte[1..]);
    assert_eq!(peer.text(), "");
    peer.turn(b"\nPING\n");
    assert!(peer.text().starts_with("ERR MESSAGE_TOO_LARGE "));
    assert!(peer.text().ends_with("OK PONG\n"));

    let null = [255; 8];
    for (count, code) in [(2, "OK 0 0 1\n"), (3, "ERR MESSAGE_TOO_LARGE ")] {
        let mut peer = Peer::with_limits(limits);
        let bytes = null.repeat(count);
        peer.turn(format!("BATCH orders {count} {}\n", bytes.len()).as_bytes());
        peer.turn(&bytes);
        peer.turn(b"\nPING\n");
        assert!(peer.text().starts_with(code), "{}", peer.text());
        assert!(peer.text().ends_with("OK PONG\n"));
    }
}

#[test]
fn a_web_page_gets_400_and_executes_nothing() {
    for first in [
        "GET / HTTP/1.1",
        "POST /x?y HTTP/1.0",
        "PUT /orders HTTP/1.1",
        "x /a b HTTP/1.9",
    ] {
        let mut peer = Peer::new();
        peer.turn(format!("{first}\r\nHost: x\r\n\r\nDELETE orders\r\n").as_bytes());
        let text = peer.text();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{text}"
        );
        assert!(peer.is_closed && peer.asked.is_empty());
    }
    for not in [
        "GET / HTTP/2.0",
        "GET x HTTP/1.1",
        "GET / HTTP/1.10",
        "GET /",
    ] {
        assert_eq!(code(not), "UNKNOWN_VERB");
    }
    // Only the first line is a browser's.
    assert_eq!(session("PING\nPUT /x HTTP/1.1\nPING\n").lines().count(), 3);
}

#[test]
fn other_protocols_are_told_off_by_their_first_byte() {
    for byte in
        (0..=255_u8).filter(|byte| (*byte < 0x20 && !b"\n\r\t".contains(byte)) || *byte > 0x7f)
    {
        let mut peer = Peer::new();
        peer.turn(&[byte]);
        peer.turn(b"\nPING\n");
        let text = peer.text();
        assert!(
            text.starts_with(&format!("ERR FRAMING the first byte is {byte:#04x}")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
        assert!(peer.is_closed);
    }
    assert_eq!(session("\n\u{80}\nPING\n").lines().last(), Some("OK PONG"));
}
