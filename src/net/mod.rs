//! The edge: sockets, the event loop, and the time as a value.
//!
//! [`EventLoop`] owns every socket, the clock and the broker, and runs turns of fixed phases. What a connection says is the
//! business of its session, which sees bytes and the broker but no socket; the socket around it is in
//! `connection`. Everything below this module is handed `now`.

#![forbid(unsafe_code)]

mod bind;
mod connection;
mod event_loop;
mod input;
mod listener;
mod session;
mod socket;
mod table;
mod tails;

pub use bind::{Bound, bind};
pub use event_loop::{EventLoop, Limits};
pub use listener::LISTENERS_MAX;

/// How many bytes a connection reads in one turn at most, about: one read, so that many clients get their turn soon.
pub const READ_BUDGET: usize = input::READ_BYTES;

/// The same where every turn ends with an fdatasync: the more bytes share it, the less each pays.
pub const READ_BUDGET_SYNCED: usize = 8 * input::READ_BYTES;
