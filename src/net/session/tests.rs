//! A session, and the loop around it by hand.

#![forbid(unsafe_code)]

use super::*;
use crate::broker::{Resumed, Settings};
use crate::clock::ManualClock;
use crate::fs::mem::MemFs;
use crate::protocol::line::Limits;

/// A session, and the loop around it by hand.
struct Bench {
    broker: Broker<MemFs>,
    clock: ManualClock,
    undecided: Vec<Undecided>,
    buffer: ReadBuffer,
    session: Session,
}

impl Bench {
    fn new(backlog_bytes_max: u64) -> Self {
        let clock = ManualClock::new(Now::default());
        let settings = Settings::new("/data");
        let broker = Broker::open(MemFs::new(), settings, &clock, || Ok(())).unwrap();
        let codec = Box::new(LineCodec::new(Limits::new(1 << 20)));
        Self {
            broker,
            clock,
            undecided: Vec::new(),
            buffer: ReadBuffer::new(),
            session: Session::new(ConnectionId(1), "peer".into(), codec, backlog_bytes_max),
        }
    }

    fn turn(&mut self, work: impl FnOnce(&mut Session, &mut ReadBuffer, &mut Turn<'_, MemFs>)) {
        let mut turn = Turn {
            broker: &mut self.broker,
            clock: &self.clock,
            now: self.clock.now(),
            read_budget: 0,
            bytes_read: 0,
            undecided: &mut self.undecided,
        };
        work(&mut self.session, &mut self.buffer, &mut turn);
    }

    fn receive(&mut self, text: &str) {
        self.turn(|session, buffer, turn| {
            buffer.room()[..text.len()].copy_from_slice(text.as_bytes());
            session.receive(buffer, text.len(), turn);
        });
    }

    fn go_on(&mut self) {
        self.turn(|session, _, turn| session.go_on(turn));
    }

    fn flush(&mut self) {
        self.broker.flush(&self.clock);
        for Undecided { append, .. } in self.undecided.drain(..) {
            self.session.decided(&append, &mut self.broker);
        }
        self.broker.end_turn();
    }

    /// Takes everything that is owed.
    fn sent(&mut self) -> String {
        let bytes = self.session.outbox().take_all().unwrap();
        self.session.note_sent();
        String::from_utf8(bytes).unwrap()
    }
}

#[test]
fn appends_in_a_row_are_one_run_and_are_answered_after_the_flush() {
    let mut bench = Bench::new(20 * REPLY_BYTES_MAX);
    bench.receive(&"PUT t x\n".repeat(20));
    assert_eq!(bench.undecided.len(), 1);
    assert_eq!(bench.sent(), "", "nothing is answered before the flush");
    bench.flush();
    assert!(bench.sent().ends_with("OK 0 18\nOK 0 19\n"));
}

#[test]
fn answers_to_come_count_as_owed() {
    let mut bench = Bench::new(4 * REPLY_BYTES_MAX);
    bench.receive(&"PUT t x\n".repeat(7));
    let decoded: u32 = bench
        .undecided
        .iter()
        .map(|undecided| match &undecided.append {
            Append::Run(run) => run.count,
            Append::Refused(_) | Append::Commit(_) => 1,
        })
        .sum();
    assert_eq!(decoded, 5, "one more than fits, as with any reply");
    bench.flush();
    bench.go_on();
    bench.flush();
    assert!(bench.sent().ends_with("OK 0 5\nOK 0 6\n"));
}

#[test]
fn refusals_and_batches_keep_their_place_between_appends() {
    let mut bench = Bench::new(1000);
    let batch = "BATCH t 1 8\n\0\0\0\0\0\0\0\0\n";
    bench.receive(&format!(
        "PUT t a\nPUT t/9 b\n{batch}PUT t c\nNONSENSE\nPUT t d\n"
    ));
    assert!(!bench.session.can_go_on() && !bench.session.wants_input());
    bench.flush();
    assert!(
        bench.session.can_go_on(),
        "what is behind the codec's own reply is pending"
    );
    bench.go_on();
    bench.flush();
    let replies = bench.sent();
    let words: Vec<&str> = replies
        .lines()
        .map(|line| line.split_once(' ').map_or(line, |(_, rest)| rest))
        .map(|rest| rest.strip_prefix("UNKNOWN").map_or(rest, |_| "refused"))
        .collect();
    assert_eq!(words, ["0 0", "refused", "0 1 1", "0 2", "refused", "0 3"]);
}

#[test]
fn a_request_behind_an_append_waits_for_the_flush_and_then_sees_it() {
    let mut bench = Bench::new(1000);
    bench.receive("PUT t x\nOFFSETS t\nPUT t y\n");
    assert!(!bench.session.can_go_on(), "it waits for the flush");
    bench.flush();
    assert_eq!(bench.sent(), "OK 0 0\n");
    bench.go_on();
    assert_eq!(bench.sent(), "OK 1\n0\t0\t1\n");
    bench.flush();
    assert_eq!(bench.sent(), "OK 0 1\n");
}

#[test]
fn at_the_backlog_limit_it_decodes_and_above_it_not_until_half_is_sent() {
    let pong = "OK PONG\n".len() as u64;
    let mut bench = Bench::new(4 * pong);
    bench.receive(&"PING\n".repeat(6));
    assert_eq!(
        bench.session.backlog(),
        5 * pong,
        "n + 1 stops it, n does not"
    );
    assert!(!bench.session.can_go_on() && !bench.session.wants_input());
    for (left, goes_on) in [(3, false), (2, true)] {
        let owed = bench.session.outbox().take_all().unwrap();
        let left = &owed[..usize::try_from(left * pong).unwrap()];
        bench.session.outbox().tail_mut().extend_from_slice(left);
        bench.session.note_sent();
        assert_eq!(
            bench.session.can_go_on(),
            goes_on,
            "{} bytes left",
            left.len()
        );
    }
    bench.go_on();
    assert_eq!(bench.session.backlog(), 3 * pong);
    assert!(bench.session.wants_input());
}

#[test]
fn a_parked_session_decodes_nothing_until_it_is_answered() {
    let mut bench = Bench::new(1000);
    bench.receive("CREATE t\nREAD t 0 wait=5 as=value\nPING\n");
    bench.flush();
    assert!(bench.session.is_waiting() && !bench.session.can_go_on());
    assert_eq!(bench.sent(), "OK\n");
    let mono = Duration::from_millis(5);
    bench.clock.set(Now { wall_ms: 5, mono });
    let now = bench.clock.now();
    assert_eq!(bench.broker.next_ready(now), Some(ConnectionId(1)));
    let Resumed::Reply(response) = bench.broker.resume(ConnectionId(1), now) else {
        panic!("its time is over");
    };
    bench.session.answered(&response, &mut bench.broker);
    assert!(bench.session.can_go_on());
    bench.go_on();
    assert_eq!(bench.sent(), "OK 0 0 0 0\nOK PONG\n");
}

#[test]
fn the_end_of_input_closes_when_every_whole_line_is_answered() {
    let mut bench = Bench::new(1000);
    bench.receive("PUT t x\n");
    bench.session.end_of_input(&mut bench.broker);
    assert!(!bench.session.is_closing(), "an answer is due");
    bench.flush();
    assert!(bench.session.is_closing());

    let mut bench = Bench::new(1000);
    bench.receive("PUT t x\nPING\nPUT t y");
    bench.session.end_of_input(&mut bench.broker);
    assert!(!bench.session.is_closing(), "answers are due");
    bench.flush();
    bench.go_on();
    assert!(bench.session.is_closing());
    assert_eq!(bench.sent(), "OK 0 0\nOK PONG\n");
    assert!(
        bench.session.input.is_empty(),
        "half a line holds no memory"
    );
}

#[test]
fn an_idle_connection_takes_less_than_a_kibibyte() {
    let own = size_of::<super::super::connection::Connection>() + size_of::<LineCodec>();
    assert!(own < 512, "{own} bytes");
}
