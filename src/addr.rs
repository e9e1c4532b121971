//! Where a broker listens and a client connects: `host:port`, or `unix:PATH`; and a client's stream to either.
//!
//! What is written is kept as it stands and looked up when it is used: a host's name may mean another machine by then. The path of
//! a socket is held to what the system can take (its length) and to what fits into the ready line and the log (text on one line).

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// What an address of a Unix socket begins with.
pub const UNIX_PREFIX: &str = "unix:";

/// The longest path of a Unix socket, bytes: the system has 108 for it, and ends it with a zero.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address, as it is written: `host:port`, `ip:port`, `[ipv6]:port` or `unix:PATH`. Displayed, it is that text again.
///
/// ```
/// use mini_broker::addr::Address;
///
/// let address: Address = "unix:/run/broker.sock".parse()?;
/// assert_eq!(address, Address::Unix("/run/broker.sock".into()));
/// assert_eq!("localhost:9092".parse::<Address>()?.to_string(), "localhost:9092");
/// assert!("localhost".parse::<Address>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host's name or number, a colon, and a port.
    Tcp(String),
    /// The path of a socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    /// The address that the text means.
    ///
    /// # Errors
    /// Words that say what would be right.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            return unix_path(path).map(Self::Unix);
        }
        let right = "give <ip or host name>:<port>, or unix:<path of a socket>";
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(format!("{text:?} has no port: {right}"));
        };
        let is_plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if !is_plain || port.parse::<u16>().is_err() {
            return Err(format!(
                "{port:?} in {text:?} is no port, which is a number from 0 to 65535: {right}"
            ));
        }
        let is_word = |c: char| !c.is_whitespace() && !c.is_control();
        if host.is_empty() || !host.chars().all(is_word) {
            return Err(format!("{text:?} has no host: {right}"));
        }
        Ok(Self::Tcp(text.to_owned()))
    }
}

fn unix_path(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err(format!(
            "{UNIX_PREFIX:?} has no path: give one, as in unix:/run/mini-broker.sock"
        ));
    }
    if path.chars().any(char::is_control) {
        return Err(format!(
            "the path {path:?} has a control character, which no line of a log can show: choose another"
        ));
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err(format!(
            "the path {path:?} has {} bytes, and that of a socket at most {UNIX_PATH_BYTES_MAX}: choose a shorter or a relative one",
            path.len()
        ));
    }
    Ok(PathBuf::from(path))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl Address {
    /// Connects, and waits until that is done. Over TCP, what is written is sent at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// What the system says, of the last address that the host's name has.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str())?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }

    /// The path, of a Unix socket.
    #[must_use]
    pub fn unix_path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

/// A client's connection, blocking where nothing else is asked for.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// Whether reading and writing give `WouldBlock` where they would wait.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(is_nonblocking),
            Self::Unix(stream) => stream.set_nonblocking(is_nonblocking),
        }
    }

    /// How long a read waits; `None` for as long as it takes.
    ///
    /// # Errors
    /// No time at all; else what the system says.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
            Self::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// How long a write waits; `None` for as long as it takes.
    ///
    /// # Errors
    /// No time at all; else what the system says.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
            Self::Unix(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// A second handle of the same connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Ends one side of the connection, or both.
    ///
    /// # Errors
    /// What the system says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be_right() {
        let longest = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX - 1));
        for right in [
            "127.0.0.1:9092",
            "localhost:0",
            "[::1]:65535",
            "unix:a",
            "unix:./with space.sock",
            "unix:9092",
            &longest,
        ] {
            let address: Address = right.parse().unwrap();
            assert_eq!(address.to_string(), right);
            assert_eq!(address.unix_path().is_some(), right.starts_with("unix:"));
        }
        let too_long = format!("{longest}x");
        for (wrong, words) in [
            ("", "no port"),
            ("localhost", "no port"),
            (":9092", "no host"),
            ("a b:9092", "no host"),
            ("host:", "65535"),
            ("host:65536", "65535"),
            ("host:+1", "65535"),
            ("host:http", "65535"),
            ("unix:", "has no path"),
            ("unix:a\nb", "control character"),
            (&too_long, "108 bytes, and that of a socket at most 107"),
        ] {
            let error = wrong.parse::<Address>().unwrap_err();
            assert!(error.contains(words), "{wrong:?}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn a_stream_carries_bytes_both_ways_over_either_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        let near = tcp.local_addr().unwrap().to_string();
        for text in [near, format!("unix:{}", path.display())] {
            let address: Address = text.parse().unwrap();
            let mut client = address.connect().unwrap();
            let mut peer = match client {
                Stream::Tcp(_) => Stream::Tcp(tcp.accept().unwrap().0),
                Stream::Unix(_) => Stream::Unix(unix.accept().unwrap().0),
            };
            client.write_all(b"ping").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut got = String::new();
            peer.read_to_string(&mut got).unwrap();
            assert_eq!(got, "ping");
            peer.try_clone().unwrap().write_all(b"pong").unwrap();
            drop(peer);
            got.clear();
            client.read_to_string(&mut got).unwrap();
            assert_eq!(got, "pong");
        }
        let gone: Address = "unix:/no/such/socket".parse().unwrap();
        assert_eq!(gone.connect().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
