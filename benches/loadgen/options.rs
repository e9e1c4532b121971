//! What the load generator can be told.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Drives a broker through its line protocol and measures it, beside the floor: a loop in a process of its own that moves the
/// same bytes and does nothing else.
///
/// Without --mode: every row of the goals table, interleaved, medians of several rounds.
#[derive(Debug, Clone, Parser)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own on the command line"
)]
#[command(name = "load", disable_version_flag = true)]
pub(crate) struct Options {
    /// One workload instead of the goals table.
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// How records are written.
    #[arg(long, value_enum, default_value_t = Verb::Produce, requires = "mode")]
    pub(crate) verb: Verb,
    /// Records in a BATCH.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), requires = "mode")]
    pub(crate) batch: u32,
    /// Records to move; if left out, about a gigabyte of them, or 20,000 one at a time.
    #[arg(long, requires = "mode")]
    pub(crate) records: Option<u64>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100, requires = "mode")]
    pub(crate) size: usize,
    /// Connections that write (and as many that read, in fetch).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "mode")]
    pub(crate) connections: u32,
    /// Partitions of the topic, written in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "mode")]
    pub(crate) partitions: u32,
    /// Requests in flight on each connection at most.
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..), requires = "mode")]
    pub(crate) depth: u64,
    /// The broker's --fsync: always, never, or <n>ms.
    #[arg(long, default_value = "never", requires = "mode")]
    pub(crate) fsync: String,
    /// An open loop of so many records a second: each latency counts from the time at which the record was to be sent, so
    /// that a stall is not hidden.
    #[arg(long, requires = "mode")]
    pub(crate) rate: Option<f64>,
    /// Bytes of a FETCH at most.
    #[arg(long, default_value_t = 1 << 20, requires = "mode")]
    pub(crate) fetch_bytes: usize,
    /// A running broker instead of one of its own (its process time is then not known).
    #[arg(long, requires = "mode")]
    pub(crate) addr: Option<SocketAddr>,
    /// Every fetched record is decoded and its checksum compared, as a consumer does; without it, bodies are only counted.
    #[arg(long, requires = "mode")]
    pub(crate) decode: bool,
    /// The broker's run alone, without the floor.
    #[arg(long, requires = "mode")]
    pub(crate) no_floor: bool,
    /// The topic may be there and stays; produce adds to it, and fetch reads what it holds once, `--records` in all.
    #[arg(long, requires = "addr")]
    pub(crate) keep: bool,
    /// Where the temporary data directory goes; if left out, beside cargo's output.
    #[arg(long)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Rounds of the goals table.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// JSON lines on stdout instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// A short run, to see that everything works: its numbers mean little.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Draws throughput and latency over time.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// What `cargo bench` adds; ignored.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Pipelined writes.
    Produce,
    /// FETCH of what was written before, from its start, over and over.
    Fetch,
    /// Pipelined writes and a FETCH that follows them.
    Both,
    /// One write at a time on each connection.
    Latency,
    /// From the intended time of a PUT to its line in a TAIL; --rate, or 1,000 a second.
    Tail,
}

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verb {
    /// A line a record.
    Put,
    /// Counted bytes.
    Produce,
    /// Many records in one request.
    Batch,
}

impl Verb {
    /// The word on the wire.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Put => "PUT",
            Self::Produce => "PRODUCE",
            Self::Batch => "BATCH",
        }
    }
}

impl Options {
    /// Records to move, given or by the size.
    pub(crate) fn records(&self) -> u64 {
        let by_size = match self.mode {
            Some(Mode::Latency) => 20_000 * u64::from(self.connections),
            Some(Mode::Tail) => 20_000,
            Some(Mode::Produce | Mode::Fetch | Mode::Both) | None => {
                ((1 << 30) / (self.size as u64 + 24)).clamp(1_000, 10_000_000)
            }
        };
        self.records
            .unwrap_or(if self.quick { by_size / 50 } else { by_size })
    }
}
