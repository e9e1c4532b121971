//! The two kinds of socket, where they differ: in what is set on them, and in what their peer is called.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::addr::UNIX_PREFIX;
use crate::sys;

/// A TCP peer that vanished is noticed after about so many seconds. Over a Unix socket none can: its end is seen at once.
const KEEPALIVE_SECS: u32 = 120;

/// A connection's socket. What goes out is sent through its descriptor, the same way for both.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Sets what helps; a socket that refuses an option is served without it.
    pub(super) fn set_options(&self) {
        let options = match self {
            Self::Tcp(stream) => stream
                .set_nodelay(true)
                .and_then(|()| sys::set_keepalive(stream.as_fd(), KEEPALIVE_SECS)),
            Self::Unix(_) => Ok(()),
        };
        if let Err(e) = options {
            log::debug!("a socket option was refused: {e}");
        }
    }

    /// Ends our side: the peer reads what was sent, and then the end.
    pub(super) fn end_output(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Asks for all of its events.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        let source: &mut dyn Source = match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        };
        source.register(registry, token, interests)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Who is at the other end: `ip:port`; of a Unix socket, whose clients have no address, the path by which they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    Unix(Rc<Path>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}
