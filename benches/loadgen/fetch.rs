//! FETCH, over any number of connections, in one thread.
//!
//! The next request goes out as soon as the header of a reply is there, which names the offset to go on at: so the broker
//! always has the next one at hand while it sends, and the run measures how fast it sends.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mini_broker::format::Layout;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::TOPIC;
use super::pipeline::interrupted;
use super::recorder::{Recorded, Recorder};
use crate::support::Result;

/// Bytes of a read at most.
const READ_BYTES: usize = 512 * 1024;
/// A header is one short line.
const HEADER_BYTES_MAX: usize = 256;
/// How long nothing may come before the run is given up.
const STALL: Duration = Duration::from_mins(1);

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    /// What the progress bar says.
    pub(crate) name: &'a str,
    /// Who is driven.
    pub(crate) addr: SocketAddr,
    /// Records of the whole run.
    pub(crate) records: u64,
    /// Connections; the i-th reads partition i modulo `partitions`.
    pub(crate) connections: u32,
    /// Partitions of the topic.
    pub(crate) partitions: u32,
    /// `max_bytes` of each.
    pub(crate) fetch_bytes: usize,
    /// Whether the end of the log means waiting for more (a writer runs), or starting over at 0.
    pub(crate) follow: bool,
    /// Whether each record is decoded and its checksum compared, as a consumer would, or bodies are only counted.
    pub(crate) decode: bool,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Counts and latencies of replies.
    pub(crate) recorded: Recorded,
    /// Bytes of bodies.
    pub(crate) bytes: u64,
}

/// One connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// How its requests begin, and end.
    request: (String, String),
    /// The header of the reply, as far as it is there.
    header: Vec<u8>,
    /// Bytes of the body still to come.
    body: u64,
    /// Records in the body.
    records: u64,
    /// The body so far, where it is to be decoded.
    entries: Option<Vec<u8>>,
    /// When the reply that is being read was asked for, and the next one.
    asked: Instant,
    asked_next: Instant,
    may_read: bool,
}

/// Runs the plan to its end.
///
/// # Errors
/// An ERR, a connection that ended, or a minute in which nothing came.
pub(crate) fn run(plan: &Plan<'_>) -> Result<Fetched> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut connections = connect(plan, &poll)?;
    let mut recorder = Recorder::start(plan.name, plan.records)?;
    for connection in &mut connections {
        connection.ask(0)?;
        connection.asked = connection.asked_next;
    }
    let mut buffer = vec![0; READ_BYTES];
    let (mut records, mut bytes) = (0, 0);
    let mut progress = Instant::now();
    while records < plan.records {
        let mut moved = false;
        for connection in connections.iter_mut().filter(|c| c.may_read) {
            let n = match connection.stream.read(&mut buffer) {
                Ok(0) => return Err("the broker closed the connection".into()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    connection.may_read = false;
                    continue;
                }
                Err(e) => return Err(format!("the connection broke: {e}").into()),
            };
            moved = true;
            let (more_records, more_bytes) =
                connection.take(&buffer[..n], plan.follow, &mut recorder)?;
            records += more_records;
            bytes += more_bytes;
        }
        if moved {
            progress = Instant::now();
            continue;
        }
        if progress.elapsed() > STALL {
            return Err("nothing came for a minute".into());
        }
        poll.poll(&mut events, Some(Duration::from_secs(1)))
            .or_else(interrupted)?;
        for event in events.iter().filter(|event| event.is_readable()) {
            if let Some(connection) = connections.get_mut(event.token().0) {
                connection.may_read = true;
            }
        }
    }
    Ok(Fetched {
        recorded: recorder.finish(),
        bytes,
    })
}

fn connect(plan: &Plan<'_>, poll: &Poll) -> Result<Vec<Connection>> {
    let wait = if plan.follow { " wait=1000" } else { "" };
    (0..plan.connections)
        .map(|i| {
            let stream = std::net::TcpStream::connect(plan.addr)
                .map_err(|e| format!("cannot connect to {}: {e}", plan.addr))?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(
                &mut stream,
                Token(usize::try_from(i)?),
                Interest::READABLE,
            )?;
            Ok(Connection {
                stream,
                request: (
                    format!("FETCH {TOPIC}/{} ", i % plan.partitions),
                    format!(" max_bytes={}{wait}\n", plan.fetch_bytes),
                ),
                header: Vec::new(),
                body: 0,
                records: 0,
                entries: plan.decode.then(Vec::new),
                asked: Instant::now(),
                asked_next: Instant::now(),
                may_read: true,
            })
        })
        .collect()
}

impl Connection {
    /// Sends the next request. It is short and the only one under way, so the socket has room for it.
    fn ask(&mut self, offset: i64) -> Result<()> {
        let (begin, end) = &self.request;
        self.asked_next = Instant::now();
        self.stream
            .write_all(format!("{begin}{offset}{end}").as_bytes())?;
        Ok(())
    }

    /// Reads on. Returns the records of replies that ended, and bytes of bodies.
    fn take(
        &mut self,
        mut input: &[u8],
        follow: bool,
        recorder: &mut Recorder,
    ) -> Result<(u64, u64)> {
        let (mut records, mut bytes) = (0, 0);
        while !input.is_empty() {
            if self.body > 0 {
                let part = self.body.min(input.len() as u64);
                let (taken, rest) = input.split_at(usize::try_from(part)?);
                input = rest;
                bytes += part;
                self.body -= part;
                if let Some(entries) = &mut self.entries {
                    entries.extend_from_slice(taken);
                }
                if self.body == 0 {
                    self.decode()?;
                    records += self.records;
                    let now = Instant::now();
                    recorder.answered(now, now - self.asked, 1, self.records);
                }
                continue;
            }
            let line = input
                .iter()
                .take(HEADER_BYTES_MAX)
                .position(|&byte| byte == b'\n');
            let used = line.map_or(input.len(), |at| at + 1);
            self.header.extend_from_slice(&input[..used]);
            input = &input[used..];
            if line.is_none() && self.header.len() > HEADER_BYTES_MAX {
                return Err("a reply's header has no end".into());
            }
            if line.is_some() {
                let next = self.header()?;
                self.asked = self.asked_next;
                let at_end = self.body == 0 && !follow;
                self.ask(if at_end { 0 } else { next })?;
            }
        }
        Ok((records, bytes))
    }

    /// Goes through the records of a whole body, where that is asked for.
    fn decode(&mut self) -> Result<()> {
        let Some(entries) = &mut self.entries else {
            return Ok(());
        };
        let mut rest = entries.as_slice();
        let mut records = 0;
        while !rest.is_empty() {
            let (head, stored) = Layout::of(rest)
                .and_then(|layout| layout.decode(rest))
                .map_err(|e| format!("record {records} of a body cannot be read: {e:?}"))?;
            std::hint::black_box(stored);
            rest = &rest[head.length as usize..];
            records += 1;
        }
        entries.clear();
        if records != self.records {
            let said = self.records;
            return Err(format!("a body of {said} records has {records}").into());
        }
        Ok(())
    }

    /// Understands `OK <bytes> <first> <next> <high watermark>`; returns next.
    fn header(&mut self) -> Result<i64> {
        let line = String::from_utf8_lossy(&self.header).into_owned();
        self.header.clear();
        let mut fields = line.trim_end().split(' ');
        if fields.next() != Some("OK") {
            return Err(format!("a FETCH was answered {line:?}").into());
        }
        let mut number = || {
            fields
                .next()
                .and_then(|f| f.parse::<i64>().ok())
                .ok_or("a short header")
        };
        let (bytes, first, next) = (number()?, number()?, number()?);
        self.body = u64::try_from(bytes)?;
        self.records = u64::try_from(next - first)?;
        Ok(next)
    }
}
