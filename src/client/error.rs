//! What can go wrong between a program and a broker.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::Address;
use crate::api::ErrorCode;

/// Why something could not be done. Displayed, it is one line for a person; [`Error::is_retryable`] is for the program.
///
/// ```
/// use mini_broker::client::Admin;
///
/// let error = Admin::connect("127.0.0.1:1").expect_err("nobody listens there");
/// assert!(error.is_retryable(), "somebody may, later: {error}");
/// assert!(!Admin::connect("nowhere").expect_err("no port").is_retryable());
/// ```
#[derive(Debug, Clone)]
pub enum Error {
    /// No connection could be made.
    Connect {
        /// To there.
        address: Address,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A connection ended before the reply came: whether the request was carried out is not known.
    Lost {
        /// From there.
        address: Address,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A record was not acknowledged in time, with what stood in its way.
    TimedOut {
        /// How long it was tried.
        after: Duration,
        /// The last failure, where there was one.
        last: Option<Box<Error>>,
    },
    /// The broker said no.
    Refused(Refusal),
    /// Damage in a partition: nothing readable from `offset` up to `next`. The consumer goes on at `next`.
    Corrupt {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The first offset that cannot be read.
        offset: i64,
        /// Where reading goes on.
        next: i64,
    },
    /// The place where a consumer wanted to go on does not exist any more: records between `from` and `to` are not delivered. The
    /// consumer goes on at `to`.
    Reset {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// Where it wanted to go on.
        from: i64,
        /// Where it does.
        to: i64,
    },
    /// What came is no reply of this protocol.
    Protocol(String),
    /// What was asked for cannot be asked for; nothing was sent.
    Usage(String),
    /// The producer was closed.
    Closed,
}

/// An `ERR` of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code's word, as `UNKNOWN_TOPIC`; a newer broker may have words that [`ErrorCode`] does not know.
    pub word: String,
    /// What was wrong with what value, and what would be right.
    pub message: String,
}

impl Refusal {
    /// Whether it has that code.
    #[must_use]
    pub fn is(&self, code: ErrorCode) -> bool {
        self.word == code.word()
    }
}

impl Error {
    /// Whether the same may succeed later without anybody changing it: the broker was out of reach or full. Everything else is final.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::TimedOut { .. } => true,
            Self::Refused(refusal) => {
                refusal.is(ErrorCode::DiskFull) || refusal.is(ErrorCode::TooManyConnections)
            }
            Self::Corrupt { .. }
            | Self::Reset { .. }
            | Self::Protocol(_)
            | Self::Usage(_)
            | Self::Closed => false,
        }
    }

    /// Whether the broker refused with that code.
    #[must_use]
    pub fn is_refusal(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is(code))
    }

    /// Whether a [`Consumer`](super::Consumer) that said this goes on at another place with its next poll.
    #[must_use]
    pub fn is_skip(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Reset { .. })
    }

    /// The refusal in a line that begins with `ERR `.
    pub(super) fn refused(line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(line);
        let words = text.strip_prefix("ERR ").unwrap_or(&text);
        let (word, message) = words.split_once(' ').unwrap_or((words, ""));
        Self::Refused(Refusal {
            word: word.to_owned(),
            message: message.to_owned(),
        })
    }

    /// What came instead of what was expected.
    pub(super) fn unexpected(line: &[u8]) -> Self {
        Self::Protocol(format!(
            "'{}' is no reply to what was asked; is a mini-broker at that address?",
            crate::api::quoted(line)
        ))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { address, source } => write!(
                f,
                "cannot connect to {address}: {source}; is a broker running there?"
            ),
            Self::Lost { address, source } => {
                write!(f, "the connection to {address} is lost: {source}")
            }
            Self::TimedOut { after, last } => {
                write!(f, "not done within {} ms", after.as_millis())?;
                match last {
                    Some(last) => write!(f, ": {last}"),
                    None => Ok(()),
                }
            }
            Self::Refused(refusal) => write!(f, "{} {}", refusal.word, refusal.message),
            Self::Corrupt {
                topic,
                partition,
                offset,
                next,
            } => write!(
                f,
                "{topic}/{partition} is damaged: offsets {offset} to {} cannot be read",
                next - 1
            ),
            Self::Reset {
                topic,
                partition,
                from,
                to,
            } => write!(
                f,
                "{topic}/{partition} has no offset {from} any more: it goes on at {to}"
            ),
            Self::Protocol(words) | Self::Usage(words) => f.write_str(words),
            Self::Closed => f.write_str("the producer is closed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } | Self::Lost { source, .. } => Some(&**source),
            Self::TimedOut {
                last: Some(last), ..
            } => Some(&**last),
            Self::TimedOut { last: None, .. }
            | Self::Refused(_)
            | Self::Corrupt { .. }
            | Self::Reset { .. }
            | Self::Protocol(_)
            | Self::Usage(_)
            | Self::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_word_and_tells_whether_to_try_again() {
        for (line, word, is_retryable) in [
            ("ERR DISK_FULL no space", "DISK_FULL", true),
            ("ERR TOO_MANY_CONNECTIONS 3", "TOO_MANY_CONNECTIONS", true),
            ("ERR UNKNOWN_TOPIC no topic 'x'", "UNKNOWN_TOPIC", false),
            ("ERR READ_ONLY", "READ_ONLY", false),
            ("ERR OF_LATER something new", "OF_LATER", false),
        ] {
            let error = Error::refused(line.as_bytes());
            assert_eq!(error.is_retryable(), is_retryable, "{line}");
            assert_eq!(format!("ERR {error}").trim_end(), line);
            assert!(matches!(error, Error::Refused(refusal) if refusal.word == word));
        }
        assert!(Error::refused(b"ERR UNKNOWN_TOPIC x").is_refusal(ErrorCode::UnknownTopic));
    }
}
