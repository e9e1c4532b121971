//! A connection that speaks lines, and the words of the protocol in both directions.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use memchr::memchr;

use crate::addr::{Address, Stream};

use super::Error;

/// How long a connection may take to be made.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a reply may take where nothing else is said.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A reply's line is at most so long: a config's value is what can be long in one, and it came in a line.
const LINE_BYTES_MAX: usize = 1 << 30;

/// A connection to a broker.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    address: Address,
    /// Bytes that came, those that were taken first.
    input: Vec<u8>,
    /// How many were taken.
    taken: usize,
    /// The time-out that the stream has.
    timeout: Duration,
}

impl Connection {
    /// Connects.
    pub(super) fn open(address: &Address) -> Result<Self, Error> {
        let stream = connect(address).map_err(|source| Error::Connect {
            address: address.clone(),
            source: Arc::new(source),
        })?;
        let connection = Self {
            stream,
            address: address.clone(),
            input: Vec::new(),
            taken: 0,
            timeout: REPLY_TIMEOUT,
        };
        connection
            .stream
            .set_read_timeout(Some(REPLY_TIMEOUT))
            .and_then(|()| connection.stream.set_write_timeout(Some(REPLY_TIMEOUT)))
            .map_err(|e| connection.lost(e))?;
        Ok(connection)
    }

    /// A second handle of the stream, for writing while this one reads.
    pub(super) fn writer(&self) -> Result<Stream, Error> {
        self.stream.try_clone().map_err(|e| self.lost(e))
    }

    pub(super) fn lost(&self, source: io::Error) -> Error {
        Error::Lost {
            address: self.address.clone(),
            source: Arc::new(source),
        }
    }

    /// How long reads wait from now on; at least a millisecond.
    pub(super) fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = timeout.max(Duration::from_millis(1));
        if timeout != self.timeout {
            self.stream
                .set_read_timeout(Some(timeout))
                .map_err(|e| self.lost(e))?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|e| self.lost(e))
    }

    /// Whether a line came already.
    pub(super) fn has_line(&self) -> bool {
        let rest = self.input.get(self.taken..).unwrap_or_default();
        memchr(b'\n', rest).is_some()
    }

    /// A line that came already, without its LF.
    pub(super) fn buffered_line(&mut self) -> Option<&[u8]> {
        let start = self.taken;
        let len = memchr(b'\n', self.input.get(start..)?)?;
        self.taken += len + 1;
        self.input.get(start..start + len)
    }

    /// A line without its LF.
    pub(super) fn line(&mut self) -> Result<&[u8], Error> {
        let mut looked_at = 0;
        let len = loop {
            let rest = self.input.get(self.taken..).unwrap_or_default();
            if let Some(at) = memchr(b'\n', rest.get(looked_at..).unwrap_or_default()) {
                break looked_at + at;
            }
            looked_at = rest.len();
            if looked_at > LINE_BYTES_MAX {
                return Err(Error::unexpected(rest));
            }
            self.fill()?;
        };
        let start = self.taken;
        self.taken += len + 1;
        Ok(self.input.get(start..start + len).unwrap_or_default())
    }

    /// Reads so many bytes into the beginning of `out`, which grows where it is shorter.
    pub(super) fn body(&mut self, len: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        if out.len() < len {
            out.resize(len, 0);
        }
        let Some(target) = out.get_mut(..len) else {
            return Ok(());
        };
        let rest = self.input.get(self.taken..).unwrap_or_default();
        let part = rest.len().min(len);
        let (first, behind) = target.split_at_mut(part);
        first.copy_from_slice(rest.get(..part).unwrap_or_default());
        self.taken += part;
        self.stream.read_exact(behind).map_err(|e| self.lost(e))
    }

    /// Reads what is there, at least one byte.
    pub(super) fn fill(&mut self) -> Result<(), Error> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let len = self.input.len();
        self.input.resize(len + CHUNK_BYTES, 0);
        let result = loop {
            match self
                .stream
                .read(self.input.get_mut(len..).unwrap_or_default())
            {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.input
            .truncate(len + result.as_ref().copied().unwrap_or(0));
        match result {
            Ok(0) => Err(self.lost(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the broker closed it",
            ))),
            Ok(_) => Ok(()),
            Err(e) => Err(self.lost(e)),
        }
    }

    /// Sends a line and gives the first line of its reply, which is an OK.
    pub(super) fn ask(&mut self, line: &str) -> Result<Vec<u8>, Error> {
        self.send(format!("{line}\n").as_bytes())?;
        self.reply()
    }

    /// The first line of a reply, which is an OK.
    pub(super) fn reply(&mut self) -> Result<Vec<u8>, Error> {
        let line = self.line()?;
        if line.starts_with(b"ERR ") {
            return Err(Error::refused(line));
        }
        if line != b"OK" && !line.starts_with(b"OK ") {
            return Err(Error::unexpected(line));
        }
        Ok(line.to_vec())
    }

    /// Sends a line whose reply lists something, and gives each line to `row`.
    pub(super) fn list<T>(
        &mut self,
        line: &str,
        row: impl Fn(&[Vec<u8>]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let head = self.ask(line)?;
        let [count] = numbers(&head)?;
        let mut rows = Vec::new();
        for _ in 0..count {
            let line = self.line()?;
            let fields: Vec<Vec<u8>> = line.split(|byte| *byte == b'\t').map(unescape).collect();
            let found = row(&fields).ok_or_else(|| Error::unexpected(line))?;
            rows.push(found);
        }
        Ok(rows)
    }
}

fn connect(address: &Address) -> io::Result<Stream> {
    let Address::Tcp(name) = address else {
        return address.connect();
    };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for found in name.as_str().to_socket_addrs()? {
        match TcpStream::connect_timeout(&found, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(Stream::Tcp(stream));
            }
            Err(e) => failure = e,
        }
    }
    Err(failure)
}

/// Whether a read failed for want of time and of nothing else.
pub(super) fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Lost { source, .. }
        if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

/// The numbers behind an OK.
pub(super) fn numbers<const N: usize>(line: &[u8]) -> Result<[i64; N], Error> {
    let mut found = [0; N];
    let mut words = line.split(|byte| *byte == b' ').skip(1);
    for number in &mut found {
        *number = words
            .next()
            .and_then(number_of)
            .ok_or_else(|| Error::unexpected(line))?;
    }
    Ok(found)
}

/// A number in decimal.
pub(super) fn number_of<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// A text field.
pub(super) fn text_of(field: &[u8]) -> Option<String> {
    String::from_utf8(field.to_vec()).ok()
}

/// A word that can stand in a request's line.
pub(super) fn word<'a>(what: &str, text: &'a str) -> Result<&'a str, Error> {
    let is_word = !text.is_empty() && text.bytes().all(|byte| byte > b' ' && byte != 0x7f);
    if is_word {
        return Ok(text);
    }
    Err(Error::Usage(format!(
        "'{}' is no {what}: it has 1 or more characters, none of them a space or a control character",
        crate::api::quoted(text.as_bytes())
    )))
}

/// A topic's name that can stand in a request's line; a slash in it would name a partition.
pub(super) fn topic_word(text: &str) -> Result<&str, Error> {
    if text.contains(['/', ':']) {
        return Err(Error::Usage(format!(
            "'{}' is not the name of a topic: 1 to 249 of A-Z a-z 0-9 . _ -",
            crate::api::quoted(text.as_bytes())
        )));
    }
    word("topic", text)
}

/// The bytes that a text field with the escapes of the protocol stands for (null is not told from the text `\N`, which no list has).
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut bytes = field.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let digits = [bytes.next(), bytes.next()];
                let value = digits.into_iter().try_fold(0_u8, |value, digit| {
                    let digit = char::from(digit?).to_digit(16)?;
                    Some(value << 4 | u8::try_from(digit).ok()?)
                });
                out.extend(value);
            }
            Some(other) => out.push(other),
            None => out.push(b'\\'),
        }
    }
    out
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_escaped_comes_back(bytes: Vec<u8>) {
            let mut escaped = Vec::new();
            crate::api::escape(&bytes, &mut escaped);
            prop_assert_eq!(unescape(&escaped), bytes);
        }
    }

    #[test]
    fn replies_have_numbers_or_are_none() {
        assert_eq!(numbers(b"OK 3 -1").unwrap(), [3, -1]);
        assert_eq!(numbers::<0>(b"OK").unwrap(), [0_i64; 0]);
        for line in ["OK", "OK 3", "OK x y", "OK 3  4"] {
            assert!(numbers::<2>(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn what_would_be_another_request_is_no_word() {
        assert!(word("topic", "orders").is_ok());
        for text in ["", "a b", "a\nDELETE b", "a\tb", "a\u{7f}"] {
            assert!(
                matches!(word("topic", text), Err(Error::Usage(_))),
                "{text:?}"
            );
        }
        assert!(topic_word("orders/1").is_err());
        assert!(topic_word("orders:key").is_err());
    }
}
