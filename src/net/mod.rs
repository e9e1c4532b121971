//! The edge: sockets, the event loop, and the time as a value.
//!
//! [`EventLoop`] owns every socket, the clock and the broker, and runs turns of fixed phases. What a connection says is the
//! business of its session, which sees bytes and the broker but no socket; the socket around it is in
//! `connection`. Everything below this module is handed `now`.

#![forbid(unsafe_code)]

mod connection;
mod event_loop;
mod input;
mod listener;
mod session;
mod table;
mod tails;

pub use event_loop::{EventLoop, Limits};
pub use listener::bind;
