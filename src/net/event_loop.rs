//! The loop: turns of fixed phases.
//!
//! 1. poll: until the nearest deadline, or not at all where a budget left something unfinished;
//! 2. now: both clocks, once;
//! 3. input: accept, read, decode, execute;
//! 4. flush: the durability point of everything that this turn appended;
//! 5. complete: answers to waiting readers, news for tails, one slice of background work;
//! 6. output: what is owed, as far as sockets and budgets allow;
//! 7. close: slots are used again only from here on, so that no event of this turn meets a slot's next tenant.
//!
//! No OK overtakes its fsync because 4 comes before 6, and all clients of a turn share one. An error of one connection
//! never ends the loop: only poll itself does.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};

use crate::api::{ApiError, ConnectionId, ErrorCode, Now};
use crate::broker::Broker;
use crate::clock::Clock;
use crate::fs::Fs;
use crate::outbox::{ColdReads, Progress};
use crate::protocol::line::{self, LineCodec};

use super::bind::Bound;
use super::connection::Stage;
use super::input::ReadBuffer;
use super::listener::{Accepted, LISTENERS_MAX, Listener, Warnings};
use super::session::{Session, Turn, Undecided};
use super::socket::{Peer, Socket};
use super::table::Table;
use super::tails::Tails;

/// What bounds the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `--max-connections`: one more is told so and closed.
    pub max_connections: usize,
    /// `--max-backlog-bytes`: with more owed to a peer, nothing is read from it.
    pub max_backlog_bytes: u64,
    /// How many bytes each connection reads in one turn at most, about: [`READ_BUDGET`](super::READ_BUDGET) or
    /// [`READ_BUDGET_SYNCED`](super::READ_BUDGET_SYNCED).
    pub read_budget: usize,
    /// What a connection may send.
    pub line: line::Limits,
    /// The soft limit of file descriptors: where few are left, accepting pauses.
    pub max_descriptors: u64,
}

/// How many events one poll gives at most.
const EVENTS_PER_POLL: usize = 1024;

/// After about so many bytes of input, of all connections, a turn goes on to its flush, so that no client waits long for it.
const TURN_BYTES: usize = 8 * 1024 * 1024;

/// What is not in memory is looked for again after so long.
const COLD_RETRY: Duration = Duration::from_millis(1);

/// What is not in memory after so long is read by waiting for it.
const COLD_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long the end of a peer's input is waited for, once the last reply was sent.
const LINGER: Duration = Duration::from_secs(2);

/// How long a stop waits for peers to take what they are owed.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

const STOP: Token = Token(usize::MAX - 1);
/// The first listening socket; the next ones count on from it. Slots of connections stay far below.
const LISTENER: usize = usize::MAX - 1 - LISTENERS_MAX;

/// The event loop: every socket, the clock and the broker.
#[derive(Debug)]
pub struct EventLoop<F: Fs> {
    poll: Poll,
    events: Events,
    clock: Box<dyn Clock>,
    now: Now,
    broker: Broker<F>,
    limits: Limits,
    /// `None` once the loop is stopping.
    listener: Option<Listener>,
    /// A byte on it, or its end, stops the loop.
    stop: UnixStream,
    /// Of connections that are one too many.
    refusals: Warnings,
    /// Of connections that speak something else.
    foreign: Warnings,
    /// Once the loop is stopping: until when peers may still take what they are owed.
    stopping_until: Option<Duration>,
    table: Table,
    buffer: ReadBuffer,
    undecided: Vec<Undecided>,
    tails: Tails,
    /// Those that wait for what they are owed to be read into memory.
    cold: Vec<ConnectionId>,
    cold_retry: Duration,
    /// Those that linger, each until that time, the nearest first.
    lingering: VecDeque<(Duration, ConnectionId)>,
    /// Buffers for the outboxes of those that are owed something.
    spares: Vec<Vec<u8>>,
}

impl<F: Fs> EventLoop<F> {
    /// A loop that serves `broker` to those who connect to one of `listeners`, until a byte (or the end) comes on `stop`.
    ///
    /// # Errors
    /// More than [`LISTENERS_MAX`] of them, or the system refuses to poll these.
    pub fn new(
        broker: Broker<F>,
        mut listeners: Vec<Bound>,
        stop: StdUnixStream,
        clock: Box<dyn Clock>,
        limits: Limits,
    ) -> io::Result<Self> {
        stop.set_nonblocking(true)?;
        let mut stop = UnixStream::from_std(stop);
        let poll = Poll::new()?;
        if listeners.len() > LISTENERS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (at, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(LISTENER + at))?;
        }
        poll.registry()
            .register(&mut stop, STOP, Interest::READABLE)?;
        let now = clock.now();
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            clock,
            now,
            broker,
            limits,
            listener: Some(Listener::new(listeners, limits.max_descriptors)),
            stop,
            refusals: Warnings::default(),
            foreign: Warnings::default(),
            stopping_until: None,
            table: Table::new(),
            buffer: ReadBuffer::new(),
            undecided: Vec::new(),
            tails: Tails::new(limits.max_backlog_bytes),
            cold: Vec::new(),
            cold_retry: Duration::ZERO,
            lingering: VecDeque::new(),
            spares: Vec::new(),
        })
    }

    /// Serves until it is stopped; then flushes, sends what is owed for a bounded time, and closes the broker.
    ///
    /// # Errors
    /// One line for the operator: polling failed, or the broker could not be closed in order.
    pub fn run(mut self) -> Result<(), String> {
        let polled = loop {
            if let Err(e) = self.turn() {
                break Err(format!("polling for events failed: {e}"));
            }
            if self.is_over() {
                break Ok(());
            }
        };
        let closed = self.broker.close(&*self.clock);
        polled.and(closed)
    }

    fn turn(&mut self) -> io::Result<()> {
        let timeout = self.timeout();
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.events.clear(),
            Err(e) => return Err(e),
        }
        self.now = self.clock.now();
        self.note_events();
        self.accept();
        self.input();
        self.flush();
        self.complete();
        self.output();
        self.close();
        Ok(())
    }

    /// How long poll may wait.
    fn timeout(&self) -> Option<Duration> {
        if self.table.has_work() || self.tails.is_unfinished() {
            return Some(Duration::ZERO);
        }
        let deadlines = [
            self.broker.next_deadline(),
            self.listener.as_ref().and_then(Listener::next_deadline),
            (!self.cold.is_empty()).then_some(self.cold_retry),
            self.lingering.front().map(|(until, _)| *until),
            self.stopping_until,
        ];
        deadlines
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_sub(self.clock.now().mono))
    }

    fn note_events(&mut self) {
        let mut is_stopped = false;
        for event in &self.events {
            match event.token() {
                STOP => is_stopped = true,
                Token(at @ LISTENER..) => {
                    if let Some(listener) = &mut self.listener {
                        listener.note(at - LISTENER);
                    }
                }
                Token(slot) => {
                    if let Some(connection) = self.table.get_mut(slot) {
                        connection.note(event);
                        self.table.attend(slot);
                    }
                }
            }
        }
        if is_stopped && self.stop_was_asked() {
            self.begin_stop();
        }
    }

    /// Reads what stands on the stop socket, so that it makes events again.
    fn stop_was_asked(&mut self) -> bool {
        !matches!(self.stop.read(&mut [0; 16]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    fn accept(&mut self) {
        let now = self.now.mono;
        if let Some(listener) = &mut self.listener {
            listener.begin_turn(now);
        }
        while let Some(listener) = &mut self.listener {
            match listener.accept(now) {
                Accepted::Socket(socket, peer) => self.let_in(socket, peer),
                Accepted::Nobody => break,
            }
        }
    }

    fn let_in(&mut self, socket: Socket, peer: Peer) {
        let Limits {
            line,
            max_connections,
            max_backlog_bytes,
            ..
        } = self.limits;
        let is_full = self.table.served() >= max_connections;
        let name = peer.to_string().into();
        let slot = self.table.insert(socket, peer, |id| {
            Session::new(id, name, Box::new(LineCodec::new(line)), max_backlog_bytes)
        });
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if is_full {
            if self.refusals.is_due(self.now.mono) {
                log::warn!("connections are refused: max_connections={max_connections}");
            }
            connection.session.reject(&ApiError::new(
                ErrorCode::TooManyConnections,
                format!(
                    "the broker serves {max_connections} connections already (--max-connections); try again later"
                ),
            ));
        }
        let id = connection.session.id();
        log::debug!(
            "connection={} peer={} refused={is_full}",
            id.0,
            connection.peer
        );
        connection.register(self.poll.registry(), Token(slot));
        self.table.attend(slot);
    }

    fn input(&mut self) {
        self.broker.set_connections(self.table.served() as u64);
        let mut turn = Turn {
            broker: &mut self.broker,
            clock: &*self.clock,
            now: self.now,
            read_budget: self.limits.read_budget,
            bytes_read: 0,
            undecided: &mut self.undecided,
        };
        // Those that a budget stops queue up again behind these, for the next turn.
        for _ in 0..self.table.ready_len() {
            if turn.bytes_read >= TURN_BYTES {
                break;
            }
            let Some((slot, connection)) = self.table.next_ready() else {
                continue;
            };
            connection.session.outbox().adopt(&mut self.spares);
            connection.input(&mut self.buffer, &mut turn);
            if let Some(byte) = connection.session.take_foreign_byte()
                && self.foreign.is_due(self.now.mono)
            {
                log::warn!(
                    "peer={} is refused: its first byte is {byte:#04x}, which begins no line of text",
                    connection.peer
                );
            }
            if !connection.session.is_undecided() {
                connection.session.outbox().release(&mut self.spares);
            }
            self.table.attend(slot);
        }
    }

    /// The durability point, and the answers to everything that it decided.
    fn flush(&mut self) {
        self.broker.flush(&*self.clock);
        for Undecided {
            connection: id,
            append,
        } in self.undecided.drain(..)
        {
            if let Some((slot, connection)) = self.table.find(id) {
                connection.session.decided(&append, &mut self.broker);
                self.table.attend(slot);
            }
        }
    }

    fn complete(&mut self) {
        self.tails
            .hand_out(&mut self.broker, &mut self.table, self.now);
        if self
            .broker
            .next_deadline()
            .is_some_and(|at| at <= self.now.mono)
        {
            self.broker.tick(&*self.clock);
        }
        self.broker.end_turn();
    }

    fn output(&mut self) {
        self.retry_cold();
        let owing = self.table.take_owing();
        for &slot in &owing {
            self.send(slot);
        }
        self.table.recycle_owing(owing);
    }

    fn send(&mut self, slot: usize) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if !connection.wants_output() {
            return;
        }
        let id = connection.session.id();
        let waited = connection.cold_wait(self.now.mono);
        let cold = if waited >= COLD_WAIT_MAX {
            ColdReads::Force
        } else {
            ColdReads::Wait
        };
        let progress = connection.output(cold);
        while let Some((partition, next_offset)) = connection.session.next_receipt() {
            self.broker.sent(id, partition, next_offset, self.now);
        }
        match progress {
            Progress::Drained => {
                connection.session.outbox().release(&mut self.spares);
                if connection.session.is_closing() && connection.stage == Stage::Serving {
                    self.end(slot);
                    return;
                }
            }
            Progress::Cold => {
                // The first one sets the time: one more must not put off the others.
                if self.cold.is_empty() {
                    self.cold_retry = self.now.mono + COLD_RETRY;
                }
                self.cold.push(id);
            }
            Progress::Blocked | Progress::Budget => {}
        }
        self.tails.note_sent(connection);
        self.table.attend(slot);
    }

    /// Looks again for what was not in memory.
    fn retry_cold(&mut self) {
        if self.cold.is_empty() || self.now.mono < self.cold_retry {
            return;
        }
        for id in std::mem::take(&mut self.cold) {
            if let Some((slot, connection)) = self.table.find(id) {
                connection.look_again();
                self.table.attend(slot);
            }
        }
    }

    /// Ends a connection that is owed nothing any more.
    fn end(&mut self, slot: usize) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if self.stopping_until.is_some() {
            connection.end_now(&mut self.buffer);
        } else {
            connection.end();
            self.lingering
                .push_back((self.now.mono + LINGER, connection.session.id()));
        }
        self.table.attend(slot);
    }

    fn close(&mut self) {
        while let Some(&(until, id)) = self.lingering.front() {
            let found = self.table.find(id);
            if found.is_some() && self.now.mono < until {
                break;
            }
            self.lingering.pop_front();
            if let Some((slot, connection)) = found {
                connection.end_now(&mut self.buffer);
                self.table.attend(slot);
            }
        }
        let (broker, listener) = (&mut self.broker, &mut self.listener);
        self.table.bury(|connection| {
            let id = connection.session.id();
            broker.forget(id);
            log::debug!("connection={} closed", id.0);
            if let Some(listener) = listener {
                listener.note_closed();
            }
        });
    }

    /// No one is let in and nothing more is read; what is answered by now is still sent.
    fn begin_stop(&mut self) {
        if self.stopping_until.is_some() {
            return;
        }
        log::info!("stopping: connections={}", self.table.served());
        self.listener = None;
        self.stopping_until = Some(self.now.mono + STOP_WAIT_MAX);
        for slot in self.table.slots() {
            if let Some(connection) = self.table.get_mut(slot) {
                match connection.stage {
                    Stage::Serving => connection.session.finish(),
                    Stage::Lingering | Stage::Dead => connection.end_now(&mut self.buffer),
                }
                self.table.attend(slot);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stopping_until
            .is_some_and(|until| self.table.is_empty() || self.now.mono >= until)
    }
}
