//! The listening sockets: who is let in, and when that has to wait. They share one allowance, and pause together.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::time::Duration;

use super::bind::Bound;
use super::socket::{Peer, Socket};

/// How many listening sockets there may be.
pub const LISTENERS_MAX: usize = 64;

/// How many connections are accepted in one turn at most.
const ACCEPTS_PER_TURN: u64 = 64;

/// Descriptors that are left for the log: a roll opens three files before it closes three, a topic opens three for each of
/// its partitions, a text file that is replaced needs one for itself and one for its directory.
const RESERVED_DESCRIPTORS: u64 = 64;

/// How long accepting pauses when it has failed or descriptors have run short, unless a connection closes before.
const PAUSE: Duration = Duration::from_millis(100);

/// The log is told of the same thing once in so long.
const QUIET: Duration = Duration::from_mins(1);

/// What one call of [`Listener::accept`] gave.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A socket, ready to be served.
    Socket(Socket, Peer),
    /// Nobody waits, or accepting waits.
    Nobody,
}

/// The listening sockets and their state.
#[derive(Debug)]
pub(super) struct Listener {
    doors: Vec<Door>,
    /// Which of them is next: they take turns, so that a crowd at one keeps nobody out at another.
    next: usize,
    /// The soft limit of descriptors.
    descriptors_max: u64,
    /// How many more may be let in this turn.
    allowance: u64,
    /// Until when accepting pauses, by the monotonic clock.
    paused_until: Option<Duration>,
    warnings: Warnings,
}

/// One of them.
#[derive(Debug)]
struct Door {
    socket: Bound,
    /// Whether somebody may be waiting to be let in.
    is_ready: bool,
}

impl Listener {
    pub(super) fn new(sockets: Vec<Bound>, descriptors_max: u64) -> Self {
        let door = |socket| Door {
            socket,
            is_ready: true,
        };
        Self {
            doors: sockets.into_iter().map(door).collect(),
            next: 0,
            descriptors_max,
            allowance: 0,
            paused_until: None,
            warnings: Warnings::default(),
        }
    }

    /// An event says that somebody waits at the socket of that number.
    pub(super) fn note(&mut self, at: usize) {
        if let Some(door) = self.doors.get_mut(at) {
            door.is_ready = true;
        }
    }

    /// Whether somebody may be waiting.
    fn is_ready(&self) -> bool {
        self.doors.iter().any(|door| door.is_ready)
    }

    /// A connection closed: there is a descriptor again.
    pub(super) fn note_closed(&mut self) {
        if let Some(until) = &mut self.paused_until {
            *until = Duration::ZERO;
        }
    }

    /// When accepting is tried again, by the monotonic clock: zero for at once.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self.paused_until {
            Some(until) if self.is_ready() => Some(until),
            None if self.is_ready() => Some(Duration::ZERO),
            Some(_) | None => None,
        }
    }

    /// Begins a turn: sees how many may be let in.
    pub(super) fn begin_turn(&mut self, now: Duration) {
        self.allowance = 0;
        if !self.is_ready() || self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        let spare = self.spare_descriptors();
        if spare == 0 {
            self.pause(
                now,
                "few file descriptors are left, those who wait get in as others leave (raise the limit: ulimit -n)",
            );
            return;
        }
        self.allowance = spare.min(ACCEPTS_PER_TURN);
    }

    /// Lets one in.
    pub(super) fn accept(&mut self, now: Duration) -> Accepted {
        while self.allowance > 0
            && let Some(door) = next_ready(&mut self.doors, &mut self.next)
        {
            self.allowance -= 1;
            match door.socket.accept() {
                Ok((socket, peer)) => {
                    self.paused_until = None;
                    socket.set_options();
                    return Accepted::Socket(socket, peer);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.paused_until = None;
                    door.is_ready = false;
                }
                // The peer was gone before it was let in.
                Err(e) if is_of_one_peer(&e) => {}
                Err(e) => {
                    self.pause(now, &e.to_string());
                    self.allowance = 0;
                }
            }
        }
        Accepted::Nobody
    }

    /// Descriptors that connections may take.
    fn spare_descriptors(&self) -> u64 {
        let reserved = RESERVED_DESCRIPTORS.min(self.descriptors_max / 4);
        self.descriptors_max
            .saturating_sub(reserved)
            .saturating_sub(open_descriptors())
    }

    fn pause(&mut self, now: Duration, why: &str) {
        if self.paused_until.is_none() && self.warnings.is_due(now) {
            log::warn!("accepting connections pauses: {why}");
        }
        self.paused_until = Some(now + PAUSE);
    }
}

/// Keeps a warning from filling the log: at the edge of a limit each client that comes or goes would make another.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    quiet_until: Duration,
}

impl Warnings {
    /// Whether the last one that was due is long enough ago.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.quiet_until <= now;
        if is_due {
            self.quiet_until = now + QUIET;
        }
        is_due
    }
}

/// Errors of accept that concern one peer and not the listener (accept(2) names the network ones).
fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
    )
}

/// The next one in turn at which somebody may be waiting.
fn next_ready<'d>(doors: &'d mut [Door], next: &mut usize) -> Option<&'d mut Door> {
    let count = doors.len();
    let mut turns = (0..count).map(|step| (*next + step) % count);
    let at = turns.find(|at| doors.get(*at).is_some_and(|door| door.is_ready))?;
    *next = at + 1;
    doors.get_mut(at)
}

/// How many descriptors this process has open. Newer kernels tell it as the size of the directory, older ones want it counted.
fn open_descriptors() -> u64 {
    const OWN: &str = "/proc/self/fd";
    match fs::metadata(OWN) {
        Ok(metadata) if metadata.len() > 0 => metadata.len(),
        Ok(_) => fs::read_dir(OWN).map_or(0, |names| names.count() as u64),
        Err(_) => 0,
    }
}
