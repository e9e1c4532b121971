//! One request at a time on one connection, without epoll: what a careful client waits.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::recorder::{Recorded, Recorder};
use crate::support::Result;

/// Where a reply ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyEnd {
    /// At the first LF.
    Line,
    /// When so many bytes came as were sent (an echo).
    SameLength,
}

/// Sends `request` so often, each time after the reply to the one before.
///
/// # Errors
/// An ERR, or a connection that ended.
pub(crate) fn run(
    name: &str,
    addr: SocketAddr,
    request: &[u8],
    end: ReplyEnd,
    times: u64,
    records_each: u64,
) -> Result<Recorded> {
    let mut stream =
        TcpStream::connect(addr).map_err(|e| format!("cannot connect to {addr}: {e}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    let mut buffer = vec![0; request.len().max(4096)];
    // The first exchanges set up what later ones find there: the topic's files, the socket's buffers.
    for _ in 0..times.min(200) {
        exchange(&mut stream, request, end, &mut buffer)?;
    }
    let mut recorder = Recorder::start(name, times * records_each)?;
    for _ in 0..times {
        let begin = Instant::now();
        exchange(&mut stream, request, end, &mut buffer)?;
        let now = Instant::now();
        recorder.answered(now, now - begin, 1, records_each);
    }
    Ok(recorder.finish())
}

fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    end: ReplyEnd,
    buffer: &mut [u8],
) -> Result<()> {
    stream.write_all(request)?;
    let mut have = 0;
    loop {
        let n = stream.read(&mut buffer[have..])?;
        if n == 0 {
            return Err("the connection was closed".into());
        }
        have += n;
        match end {
            ReplyEnd::SameLength if have == request.len() => return Ok(()),
            ReplyEnd::Line if buffer[have - 1] == b'\n' => break,
            ReplyEnd::SameLength | ReplyEnd::Line => {}
        }
    }
    if buffer.starts_with(b"OK") {
        return Ok(());
    }
    Err(format!(
        "a request was answered {:?}",
        String::from_utf8_lossy(&buffer[..have])
    )
    .into())
}
