//! The listening socket: who is let in, and when that has to wait.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};

use crate::sys;

/// How many connections are accepted in one turn at most.
const ACCEPTS_PER_TURN: u64 = 64;

/// Descriptors that are left for the log: a roll opens three files before it closes three, a topic opens three for each of
/// its partitions, a text file that is replaced needs one for itself and one for its directory.
const RESERVED_DESCRIPTORS: u64 = 64;

/// How many may wait to be let in. Where more come at once, the system drops what they send, and they try again after a second.
const WAITING_MAX: i32 = 4096;

/// How long accepting pauses when it has failed or descriptors have run short, unless a connection closes before.
const PAUSE: Duration = Duration::from_millis(100);

/// The log is told of the same thing once in so long.
const QUIET: Duration = Duration::from_mins(1);

/// A peer that vanished is noticed after about so many seconds.
const KEEPALIVE_SECS: u32 = 120;

/// Binds a listening socket to the first address of `listen` (`host:port`) that can be had.
///
/// # Errors
/// One line for the operator that says what to do.
pub fn bind(listen: &str) -> Result<TcpListener, String> {
    let addresses = listen.to_socket_addrs().map_err(|e| {
        format!("--listen {listen} is not an address: {e}; give <ip or host name>:<port>")
    })?;
    let mut failure = format!("--listen {listen}: the name has no address");
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => {
                if let Err(e) = sys::set_listen_backlog(listener.as_fd(), WAITING_MAX) {
                    log::warn!("few connections may wait to be accepted: {e}");
                }
                return Ok(listener);
            }
            Err(e) => failure = bind_failure(address, &e),
        }
    }
    Err(failure)
}

fn bind_failure(address: SocketAddr, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has that port: stop it, or choose another port with --listen (0: any free one)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: use one of its own, 127.0.0.1 or 0.0.0.0"
        }
        io::ErrorKind::PermissionDenied => "choose a port of 1024 or above with --listen",
        _ => "choose another address with --listen",
    };
    format!("cannot listen on {address}: {error}; {advice}")
}

/// What one call of [`Listener::accept`] gave.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A socket, ready to be served.
    Socket(TcpStream, SocketAddr),
    /// Nobody waits, or accepting waits.
    Nobody,
}

/// The listening socket and its state.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
    /// The soft limit of descriptors.
    descriptors_max: u64,
    /// Whether somebody may be waiting to be let in.
    is_ready: bool,
    /// How many more may be let in this turn.
    allowance: u64,
    /// Until when accepting pauses, by the monotonic clock.
    paused_until: Option<Duration>,
    warnings: Warnings,
}

impl Listener {
    pub(super) fn new(socket: TcpListener, descriptors_max: u64) -> Self {
        Self {
            socket,
            descriptors_max,
            is_ready: true,
            allowance: 0,
            paused_until: None,
            warnings: Warnings::default(),
        }
    }

    /// An event says that somebody waits.
    pub(super) fn note(&mut self) {
        self.is_ready = true;
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
            Some(until) if self.is_ready => Some(until),
            None if self.is_ready => Some(Duration::ZERO),
            Some(_) | None => None,
        }
    }

    /// Begins a turn: sees how many may be let in.
    pub(super) fn begin_turn(&mut self, now: Duration) {
        self.allowance = 0;
        if !self.is_ready || self.paused_until.is_some_and(|until| now < until) {
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
        while self.is_ready && self.allowance > 0 {
            self.allowance -= 1;
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    self.paused_until = None;
                    set_options(&socket);
                    return Accepted::Socket(socket, peer);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.paused_until = None;
                    self.is_ready = false;
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

/// A socket that refuses an option is served without it.
fn set_options(socket: &TcpStream) {
    let options = socket
        .set_nodelay(true)
        .and_then(|()| sys::set_keepalive(socket.as_fd(), KEEPALIVE_SECS));
    if let Err(e) = options {
        log::debug!("a socket option was refused: {e}");
    }
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
