//! The client's side of a connection: lines out, replies in.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};

use memchr::memchr;

use crate::addr::{Address, Stream};
use crate::protocol::line::verbs::{self, Shape};

use super::Failure;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A connection to a broker.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: Stream,
    address: Address,
    /// Bytes that came and were not taken yet.
    input: Vec<u8>,
    /// How many of them were taken.
    taken: usize,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// What to do about it.
    pub(super) fn connect(address: &Address) -> Result<Self, Failure> {
        let stream = address.connect().map_err(|e| {
            Failure::Failed(format!(
                "cannot connect to {address}: {e}; is a broker running there? \
                 `mini-broker serve` starts one, --connect names another"
            ))
        })?;
        Ok(Self {
            stream,
            address: address.clone(),
            input: Vec::new(),
            taken: 0,
        })
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).map_err(|e| self.failure(&e))
    }

    /// A line without its LF.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn line(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(line) = self.buffered_line() {
                return Ok(line);
            }
            self.fill()?;
        }
    }

    /// A line that came already.
    pub(super) fn buffered_line(&mut self) -> Option<Vec<u8>> {
        let rest = self.input.get(self.taken..)?;
        let line = rest.get(..memchr(b'\n', rest)?)?.to_vec();
        self.taken += line.len() + 1;
        Some(line)
    }

    /// Hands on so many bytes as they come.
    ///
    /// # Errors
    /// The connection is lost, or `sink` fails.
    pub(super) fn bytes<E: From<Failure>>(
        &mut self,
        mut len: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while len > 0 {
            let rest = self.input.get(self.taken..).unwrap_or_default();
            let part = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            sink(rest.get(..part).unwrap_or_default())?;
            self.taken += part;
            len -= part as u64;
            if len > 0 {
                self.fill()?;
            }
        }
        Ok(())
    }

    /// Reads what is there, at least one byte; false where there is none yet (on a stream that does not block).
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn fill(&mut self) -> Result<bool, Failure> {
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
            Ok(0) => Err(Failure::Failed(format!(
                "the broker at {} closed the connection",
                self.address
            ))),
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(self.failure(&e)),
        }
    }

    pub(super) fn failure(&self, error: &io::Error) -> Failure {
        Failure::Failed(format!(
            "the connection to {} is lost: {error}",
            self.address
        ))
    }
}

/// What follows the first line of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// So many lines.
    Lines(u64),
    /// So many bytes.
    Bytes(u64),
    /// Lines until one is sent; whether they are values as they stand.
    Stream {
        /// `as=value`.
        are_values: bool,
    },
}

/// What follows the reply `first` to the request `line`.
pub(super) fn rest_of(line: &[u8], first: &[u8]) -> Rest {
    let words = |text: &[u8]| -> Vec<Vec<u8>> {
        text.split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let (request, reply) = (words(line), words(first));
    let number = |at: usize| {
        reply
            .get(at)
            .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
            .unwrap_or(0)
    };
    let shape = request
        .first()
        .and_then(|verb| verbs::find(verb).ok())
        .map(|verb| verb.shape);
    if reply.first().is_none_or(|word| word != b"OK") {
        return Rest::Lines(0);
    }
    let are_values = request.iter().any(|word| word == b"as=value");
    match shape {
        None | Some(Shape::Line) => Rest::Lines(0),
        Some(Shape::Records) if are_values => Rest::Bytes(number(4)),
        Some(Shape::Lines | Shape::Records) => Rest::Lines(number(1)),
        Some(Shape::Bytes) => Rest::Bytes(number(1)),
        Some(Shape::Stream) => Rest::Stream { are_values },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_long_as_they_say() {
        let cases: &[(&str, &str, Rest)] = &[
            ("PUT a b", "OK 0 5", Rest::Lines(0)),
            ("read a 0", "OK 2 5 9", Rest::Lines(2)),
            ("READ a 0 as=value", "OK 2 5 9 17", Rest::Bytes(17)),
            ("FETCH a 0", "OK 4096 0 9 9", Rest::Bytes(4096)),
            ("HELP", "OK 21", Rest::Lines(21)),
            ("TAIL a", "OK 7", Rest::Stream { are_values: false }),
            ("TAIL a/* as=value", "OK", Rest::Stream { are_values: true }),
            ("READ a 0", "ERR UNKNOWN_TOPIC no topic 'a'", Rest::Lines(0)),
            ("frob", "ERR UNKNOWN_VERB 5", Rest::Lines(0)),
        ];
        for (request, reply, expected) in cases {
            assert_eq!(
                rest_of(request.as_bytes(), reply.as_bytes()),
                *expected,
                "{request}"
            );
        }
    }
}
