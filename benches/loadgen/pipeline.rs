//! Pipelined requests over any number of connections, in one thread.
//!
//! The generator has one of two cores, so it does little: it writes large pieces of a block that was made before, and reads
//! replies by counting their LFs. A reply that is an ERR is known by its capital E, which no OK of PUT, PRODUCE or BATCH has.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::recorder::{Recorded, Recorder};
use super::requests::{Block, Cursor};
use crate::support::Result;

/// Bytes of a read at most.
const READ_BYTES: usize = 256 * 1024;
/// Bytes of a write at most.
const WRITE_BYTES: usize = 512 * 1024;
/// How long nothing may come back before the run is given up.
const STALL: Duration = Duration::from_mins(1);

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    /// What the progress bar says.
    pub(crate) name: &'a str,
    /// Who is driven.
    pub(crate) addr: SocketAddr,
    /// What is written, over and over: shared by all connections.
    pub(crate) block: Rc<Block>,
    /// Requests of the whole run.
    pub(crate) requests: u64,
    /// Records in each.
    pub(crate) records_each: u64,
    /// Connections.
    pub(crate) connections: u32,
    /// Requests in flight on each at most, where there is no rate.
    pub(crate) depth: u64,
    /// Requests a second of the whole run, in an open loop.
    pub(crate) rate: Option<f64>,
}

/// One connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    cursor: Cursor,
    /// Requests that are its share.
    requests: u64,
    answered: u64,
    /// Closed loop: requests written up to and including this one, and when.
    writes: VecDeque<(u64, Instant)>,
    /// Open loop.
    schedule: Option<Schedule>,
    may_read: bool,
    may_write: bool,
}

/// When a connection's requests are to be sent.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    first: Instant,
    every_s: f64,
}

impl Schedule {
    fn time_of(&self, request: u64) -> Instant {
        self.first + Duration::from_secs_f64(self.every_s * request as f64)
    }

    /// How many requests are due at `now`.
    fn due(&self, now: Instant) -> u64 {
        match now.checked_duration_since(self.first) {
            Some(since) => {
                crate::support::units::count((since.as_secs_f64() / self.every_s).floor()) + 1
            }
            None => 0,
        }
    }
}

/// Runs the plan to its end.
///
/// # Errors
/// An ERR, a connection that ended, or a minute in which nothing came back.
pub(crate) fn run(plan: &Plan<'_>) -> Result<Recorded> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut connections = connect(plan, &poll)?;
    let mut recorder = Recorder::start(plan.name, plan.requests * plan.records_each)?;
    if let Some(rate) = plan.rate {
        let every_s = f64::from(plan.connections) / rate;
        for (i, connection) in (0_u32..).zip(&mut connections) {
            let first = recorder.began() + Duration::from_secs_f64(f64::from(i) / rate);
            connection.schedule = Some(Schedule { first, every_s });
        }
    }
    let mut buffer = vec![0; READ_BYTES];
    let mut open = connections.iter().filter(|c| c.requests > 0).count();
    let mut progress = Instant::now();
    while open > 0 {
        let mut moved = false;
        for connection in connections.iter_mut().filter(|c| c.answered < c.requests) {
            moved |= connection.write(plan)?;
            if connection.read(&mut buffer, plan.records_each, &mut recorder)? {
                moved = true;
                open -= usize::from(connection.answered == connection.requests);
            }
        }
        if moved {
            progress = Instant::now();
            continue;
        }
        if progress.elapsed() > STALL {
            return Err("no reply came for a minute".into());
        }
        // In an open loop the generator spins: epoll's timeout counts milliseconds, and it has a core of its own.
        let timeout = if plan.rate.is_some() {
            Duration::ZERO
        } else {
            Duration::from_secs(1)
        };
        poll.poll(&mut events, Some(timeout)).or_else(interrupted)?;
        for event in &events {
            if let Some(connection) = connections.get_mut(event.token().0) {
                connection.may_read |= event.is_readable();
                connection.may_write |= event.is_writable();
            }
        }
    }
    Ok(recorder.finish())
}

fn connect(plan: &Plan<'_>, poll: &Poll) -> Result<Vec<Connection>> {
    let count = u64::from(plan.connections);
    (0..count)
        .map(|i| {
            let stream = std::net::TcpStream::connect(plan.addr)
                .map_err(|e| format!("cannot connect to {}: {e}", plan.addr))?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let mut stream = TcpStream::from_std(stream);
            let token = Token(usize::try_from(i)?);
            poll.registry().register(
                &mut stream,
                token,
                Interest::READABLE | Interest::WRITABLE,
            )?;
            Ok(Connection {
                stream,
                cursor: Cursor::default(),
                requests: plan.requests / count + u64::from(i < plan.requests % count),
                answered: 0,
                writes: VecDeque::new(),
                schedule: None,
                may_read: true,
                may_write: true,
            })
        })
        .collect()
}

impl Connection {
    /// One write of what may be written. Returns whether anything was.
    fn write(&mut self, plan: &Plan<'_>) -> Result<bool> {
        if !self.may_write {
            return Ok(false);
        }
        let limit = match &self.schedule {
            Some(schedule) => schedule.due(Instant::now()),
            None => self.answered + plan.depth,
        };
        let bytes = self.cursor.slice(&plan.block, limit.min(self.requests));
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        if bytes.is_empty() {
            return Ok(false);
        }
        let begin = Instant::now();
        match self.stream.write(bytes) {
            Ok(n) => {
                if self.cursor.advance(&plan.block, n) > 0 && self.schedule.is_none() {
                    self.writes.push_back((self.cursor.requests, begin));
                }
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.may_write = false;
                Ok(false)
            }
            Err(e) => Err(format!("the connection broke while it was written: {e}").into()),
        }
    }

    /// One read, whose replies are counted. Returns whether anything came.
    fn read(
        &mut self,
        buffer: &mut [u8],
        records_each: u64,
        recorder: &mut Recorder,
    ) -> Result<bool> {
        if !self.may_read {
            return Ok(false);
        }
        let n = match self.stream.read(buffer) {
            Ok(0) => return Err("the broker closed the connection".into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.may_read = false;
                return Ok(false);
            }
            Err(e) => return Err(format!("the connection broke while it was read: {e}").into()),
        };
        let replies = &buffer[..n];
        if count(replies, b'E') > 0 {
            return Err(format!("a request was refused: {}", first_error(replies)).into());
        }
        self.settle(count(replies, b'\n'), records_each, recorder);
        Ok(true)
    }

    /// Takes down that the next `replies` requests were answered now.
    fn settle(&mut self, mut replies: u64, records_each: u64, recorder: &mut Recorder) {
        let now = Instant::now();
        if let Some(schedule) = self.schedule {
            for request in self.answered..self.answered + replies {
                let latency = now.saturating_duration_since(schedule.time_of(request));
                recorder.answered(now, latency, 1, records_each);
            }
            self.answered += replies;
            return;
        }
        while replies > 0
            && let Some(&(upto, written)) = self.writes.front()
        {
            let of_this_write = replies.min(upto - self.answered);
            recorder.answered(now, now - written, of_this_write, records_each);
            self.answered += of_this_write;
            replies -= of_this_write;
            if self.answered == upto {
                self.writes.pop_front();
            }
        }
    }
}

/// How often a byte occurs. The inner sum is of bytes, which the compiler turns into wide instructions.
fn count(bytes: &[u8], wanted: u8) -> u64 {
    bytes
        .chunks(255)
        .map(|chunk| {
            u64::from(
                chunk
                    .iter()
                    .map(|&byte| u8::from(byte == wanted))
                    .sum::<u8>(),
            )
        })
        .sum()
}

fn first_error(replies: &[u8]) -> String {
    let text = String::from_utf8_lossy(replies);
    text.lines()
        .find(|line| line.contains('E'))
        .unwrap_or_default()
        .to_owned()
}

/// An interrupted wait is no error.
pub(crate) fn interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(())
    } else {
        Err(error)
    }
}
