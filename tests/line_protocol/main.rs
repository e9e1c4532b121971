//! The line protocol's codec, without sockets: transcripts, refusals and boundaries, and the conformance suite that every codec
//! passes (byte by byte = all at once = any split; pipelined = sequential; garbage never panics).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod conformance;
mod peer;
mod refusals;
mod transcripts;
