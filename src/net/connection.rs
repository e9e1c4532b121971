//! A socket and the session on it.

#![forbid(unsafe_code)]

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::event::Event;
use mio::{Registry, Token};

use crate::fs::Fs;
use crate::outbox::{ColdReads, Progress};

use super::input::ReadBuffer;
use super::session::{Session, Turn};
use super::socket::{Peer, Socket};

/// How many bytes a connection is sent in one turn at most.
const WRITE_BUDGET: usize = 256 * 1024;

/// Where the end of a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is served.
    Serving,
    /// All was sent and our side is shut; what the peer still sends is dropped, so that it is not told of a reset before it has
    /// read the last reply.
    Lingering,
    /// It is removed at the end of the turn.
    Dead,
}

/// A socket and the session on it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, in any combination"
)]
pub(super) struct Connection {
    pub(super) session: Session,
    pub(super) stage: Stage,
    /// Whether it stands in the queue of those to take input from.
    pub(super) is_queued: bool,
    /// Whether it stands in the list of those to send to.
    pub(super) is_listed: bool,
    /// Whether its tail has more to give once there is room.
    pub(super) is_held: bool,
    /// Whether it counts against the limit of connections.
    pub(super) is_counted: bool,
    socket: Socket,
    /// Who is at the other end.
    pub(super) peer: Peer,
    /// Whether the socket may have bytes, or the end of input: an event said so, and no read has found it empty since.
    is_readable: bool,
    /// Whether the socket may have room.
    is_writable: bool,
    /// Whether the peer has sent the end of its input: then an empty socket is not the last news.
    is_ending: bool,
    /// Whether what it is owed next is being read into memory.
    is_cold: bool,
    /// Since when, by the monotonic clock.
    cold_since: Option<Duration>,
}

impl Connection {
    pub(super) fn new(socket: Socket, peer: Peer, session: Session) -> Self {
        Self {
            session,
            stage: Stage::Serving,
            is_queued: false,
            is_listed: false,
            is_held: false,
            is_counted: true,
            socket,
            peer,
            is_readable: false,
            is_writable: true,
            is_ending: false,
            is_cold: false,
            cold_since: None,
        }
    }

    /// Asks for the socket's events, all there will ever be.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) {
        if let Err(error) = self.socket.register(registry, token) {
            self.fail("polling", &error);
        }
    }

    /// Remembers what happened at the socket.
    pub(super) fn note(&mut self, event: &Event) {
        self.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.is_writable |= event.is_writable();
        self.is_ending |= event.is_read_closed();
        let is_gone = event.is_error() || event.is_write_closed();
        if is_gone && !self.session.wants_input() {
            // Nobody is there for what it waits for. Otherwise reading meets the error, behind whatever still came.
            self.stage = Stage::Dead;
        }
    }

    /// Whether it is not on its way out.
    pub(super) fn is_served(&self) -> bool {
        self.stage == Stage::Serving && !self.session.is_closing()
    }

    /// Whether [`Connection::input`] has something to do.
    pub(super) fn wants_input(&self) -> bool {
        match self.stage {
            Stage::Serving => {
                self.session.can_go_on() || self.is_readable && self.session.wants_input()
            }
            Stage::Lingering => self.is_readable,
            Stage::Dead => false,
        }
    }

    /// Whether [`Connection::output`] has something to do.
    pub(super) fn wants_output(&self) -> bool {
        let can_send = self.is_writable && !self.is_cold;
        match self.session.backlog() {
            0 => self.stage == Stage::Serving && self.session.is_closing(),
            _ => self.stage == Stage::Serving && can_send,
        }
    }

    /// Takes input: first what is pending, then from the socket, until the socket is empty, the session waits, or the budget is
    /// used up.
    pub(super) fn input<F: Fs>(&mut self, buffer: &mut ReadBuffer, turn: &mut Turn<'_, F>) {
        match self.stage {
            Stage::Dead => return,
            Stage::Lingering => return self.drop_input(buffer),
            Stage::Serving => {}
        }
        if self.session.can_go_on() {
            self.session.go_on(turn);
        }
        let mut budget = turn.read_budget;
        while budget > 0 && self.is_readable && self.session.wants_input() {
            match self.read(buffer) {
                Ok(Some(0)) => self.session.end_of_input(turn.broker),
                Ok(Some(len)) => {
                    self.session.receive(buffer, len, turn);
                    budget = budget.saturating_sub(len);
                    turn.bytes_read += len;
                }
                Ok(None) => {}
                Err(error) => return self.fail("reading", &error),
            }
        }
    }

    /// Sends what is owed, as far as the socket, the budget and the disk allow.
    pub(super) fn output(&mut self, cold: ColdReads) -> Progress {
        match self
            .session
            .outbox()
            .write_to(self.socket.as_fd(), WRITE_BUDGET, cold)
        {
            Ok(progress) => {
                self.session.note_sent();
                self.is_writable = progress != Progress::Blocked;
                self.is_cold = progress == Progress::Cold;
                if !self.is_cold {
                    self.cold_since = None;
                }
                progress
            }
            Err(error) => {
                self.fail("sending", &error);
                Progress::Drained
            }
        }
    }

    /// How long it has waited for what it is owed to be read into memory.
    pub(super) fn cold_wait(&mut self, now: Duration) -> Duration {
        now.saturating_sub(*self.cold_since.get_or_insert(now))
    }

    /// What was not in memory may be there now.
    pub(super) fn look_again(&mut self) {
        self.is_cold = false;
    }

    /// Ends a connection to which nothing is owed any more. Where the peer has not ended its side, it lingers.
    pub(super) fn end(&mut self) {
        let is_over = self.session.is_ended() || self.socket.end_output().is_err();
        self.stage = if is_over {
            Stage::Dead
        } else {
            Stage::Lingering
        };
    }

    /// Ends it without waiting for the peer, once what the peer has sent so far is dropped.
    pub(super) fn end_now(&mut self, buffer: &mut ReadBuffer) {
        self.is_readable = true;
        self.drop_input(buffer);
        self.stage = Stage::Dead;
    }

    /// Reads into the buffer: `None` where there is nothing, 0 for the end of input.
    fn read(&mut self, buffer: &mut ReadBuffer) -> io::Result<Option<usize>> {
        let room = buffer.room();
        match self.socket.read(room) {
            Ok(len) => {
                // A short read has emptied the socket: more makes an event. So does the end of input, unless it was there before.
                self.is_readable = len > 0 && (len == room.len() || self.is_ending);
                Ok(Some(len))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads and drops what the peer still sends.
    fn drop_input(&mut self, buffer: &mut ReadBuffer) {
        if self.is_readable && matches!(self.read(buffer), Ok(Some(0)) | Err(_)) {
            self.stage = Stage::Dead;
        }
    }

    fn fail(&mut self, what: &str, error: &io::Error) {
        let id = self.session.id().0;
        log::debug!("connection={id} peer={} {what} failed: {error}", self.peer);
        self.stage = Stage::Dead;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
