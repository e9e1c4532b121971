//! `mini-broker retention`.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::broker::configs::{InForce, Overrides};
use crate::clock::{Clock, SystemClock};
use crate::config::parse_config;
use crate::fs::disk::DiskFs;
use crate::storage::Error;
use crate::storage::data_dir::{Checkpoints, partition_dir_name, topics_of};
use crate::storage::retention::{Reason, forecast};

use super::Failure;

/// List which sealed segments retention would delete now, and why.
///
/// Reads only, and may run beside the broker. The broker itself deletes as it runs; what an idle topic's active segment holds goes after the broker
/// has sealed it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Only list: there is no other way yet, so that nothing is deleted by a forgotten flag
    #[arg(long, required = true)]
    dry_run: bool,

    /// A broker's config, as serve takes it; repeat for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_config)]
    config: Vec<(String, String)>,

    /// Print a JSON object for each segment, and nothing else
    #[arg(long)]
    json: bool,
}

/// A line of `--json`.
#[derive(serde::Serialize)]
struct Line<'a> {
    topic: &'a str,
    partition: u32,
    segment: i64,
    bytes: u64,
    reason: String,
}

/// Lists the segments.
///
/// # Errors
/// It is no data directory, or cannot be read.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let failed = |error: Error| Failure::Failed(error.to_string());
    if !args.dir.join("topics").is_dir() {
        return Err(Failure::Failed(format!(
            "{} is no data directory: there is no topics/ in it; name the directory that the broker was started with (--data-dir)",
            args.dir.display()
        )));
    }
    let broker = overrides(&args.config, false)?;
    let checkpoints = Checkpoints::load(DiskFs, &args.dir);
    let now_ms = SystemClock::new().now().wall_ms;
    let mut out = io::stdout().lock();
    let (mut segments, mut total) = (0_u64, 0_u64);
    for topic in topics_of(&DiskFs, &args.dir).map_err(failed)? {
        let own = overrides(&topic.configs, true)?;
        let in_force = InForce {
            broker: &broker,
            topic: Some(&own),
        };
        let config = in_force.log_config();
        for partition in 0..topic.partitions {
            let dir = args.dir.join(partition_dir_name(&topic.name, partition));
            let log_start = checkpoints.log_start(&topic.name, partition);
            let taken = match forecast(&DiskFs, &dir, log_start, &config, now_ms) {
                // A broker deletes topics and segments while this looks.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                taken => taken.map_err(failed)?,
            };
            for (base, bytes, reason) in taken {
                segments += 1;
                total += bytes;
                let line = text(&topic.name, partition, (base, bytes, reason), args.json);
                if writeln!(out, "{line}").is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
    if !args.json {
        let _ = writeln!(out, "segments that would go: {segments}, bytes: {total}");
    }
    Ok(ExitCode::SUCCESS)
}

fn overrides(configs: &[(String, String)], is_topic: bool) -> Result<Overrides, Failure> {
    let pairs = configs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let parsed = if is_topic {
        Overrides::of_topic(pairs)
    } else {
        Overrides::of_broker(pairs)
    };
    parsed.map_err(|error| Failure::Failed(error.message))
}

fn text(topic: &str, partition: u32, taken: (i64, u64, Reason), json: bool) -> String {
    let (segment, bytes, reason) = taken;
    if json {
        let line = Line {
            topic,
            partition,
            segment,
            bytes,
            reason: reason.to_string(),
        };
        return serde_json::to_string(&line).unwrap_or_default();
    }
    format!("{topic}/{partition} segment {segment:020}.log: {bytes} bytes, {reason}")
}
