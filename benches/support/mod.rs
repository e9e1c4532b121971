//! What the benches share.
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "no bench uses all of it")]

pub(crate) mod broker;
pub(crate) mod cleanup;
pub(crate) mod engine;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod table;
pub(crate) mod units;

/// Errors of a bench: a sentence for the person who started it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
