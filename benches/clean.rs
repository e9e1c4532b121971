//! `cargo bench --bench clean`: compaction by the part of the records that it removes, beside the floor: reading the same files and
//! writing what is kept. `-- --pace`: the latency of a paced producer while a topic is compacted, beside that without.
#![forbid(unsafe_code)]

mod cleaning;
mod support;

use std::path::PathBuf;

use clap::Parser;

use support::{Result, cleanup};

/// Compaction of one log by the engine alone, or (--pace) beside a producer.
#[derive(Debug, Parser)]
#[command(name = "clean", disable_version_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// A paced producer beside the compaction of another topic, instead of the speed of the engine alone.
    #[arg(long)]
    pace: bool,
    /// Bytes of records before compaction; if left out, 512 MiB, with --pace 1 GiB.
    #[arg(long)]
    bytes: Option<u64>,
    /// Bytes of a value; if left out, 100 and 1,024, with --pace 1,024.
    #[arg(long)]
    size: Option<usize>,
    /// Rounds of each case, whose medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Records a second of the producer.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "pace")]
    rate: u32,
    /// The broker's --fsync beside the producer; if left out, never and always.
    #[arg(long, requires = "pace")]
    fsync: Option<String>,
    /// Where the temporary data directory goes; if left out, beside cargo's output.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// JSON lines on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// A short run, to see that everything works: its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// What `cargo bench` adds; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("clean: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    cleanup::install()?;
    if options.pace {
        return cleaning::pace::run(options);
    }
    cleaning::speed::run(options)?;
    if options.quick {
        // So that a short run of everything reaches both.
        cleaning::pace::run(options)?;
    }
    Ok(())
}
