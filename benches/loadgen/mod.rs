//! The load generator: a client of the line protocol, the floor beside it, and the report.
#![forbid(unsafe_code)]

pub(crate) mod fetch;
pub(crate) mod floor;
pub(crate) mod goals;
pub(crate) mod library;
pub(crate) mod options;
pub(crate) mod picture;
pub(crate) mod pipeline;
pub(crate) mod recorder;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod roundtrip;
pub(crate) mod start;
pub(crate) mod tail;
pub(crate) mod workload;

/// The topic that a run creates and deletes.
pub(crate) const TOPIC: &str = "bench";
