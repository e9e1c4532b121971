//! What compaction costs: its own speed, and what a producer beside it notices.
#![forbid(unsafe_code)]

pub(crate) mod pace;
pub(crate) mod speed;
