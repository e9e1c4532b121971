//! mini-broker: a single-node log broker.
//!
//! The library is everything but `main`. Read it from the inside out:
//!
//! 1. [`record`]: the values; [`mod@format`]: their bytes on disk; [`addr`]: where a broker is reached.
//! 2. [`fs`]: the file seam, with a real, an in-memory and a failing implementation.
//! 3. [`storage`]: the log engine: segments, sparse indexes, recovery.
//! 4. [`api`]: the vocabulary that protocols and the broker share.
//! 5. [`broker`]: topics, durability, waiting readers.
//! 6. [`protocol`]: codecs from bytes to requests and back; [`outbox`]: what is owed to a peer.
//! 7. [`net`]: the event loop at the edge, and [`clock`], the only place that reads the time.
//! 8. [`client`]: the other end of a connection, for programs; [`testing`]: a broker for their tests.
//!
//! An arrow between modules only points down this list; `tests/tidy.rs` checks it.

#![deny(unsafe_code)]

pub mod addr;
pub mod api;
pub mod broker;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod dump;
pub mod format;
pub mod fs;
pub mod json;
pub mod murmur2;
pub mod net;
pub mod outbox;
pub mod protocol;
pub mod record;
pub mod storage;
#[expect(
    unsafe_code,
    reason = "the one module that talks to the kernel in its own words"
)]
pub mod sys;
pub mod testing;

/// The examples of docs/client.md, run with those of the code.
#[cfg(doctest)]
#[doc = include_str!("../docs/client.md")]
pub struct ClientPage;
