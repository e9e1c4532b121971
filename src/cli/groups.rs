//! `mini-broker groups`: how far consumers are, and where they go on.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Subcommand;

use crate::api::{ErrorCode, OffsetSpec, TimeSpec};
use crate::client::{Admin, Committed};

use super::Failure;
use super::online::{self, Cell, Connect, Rows, failure};
use super::target::parse_target;

/// List, describe or reset consumer groups.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker groups list
  mini-broker groups describe billing
  mini-broker groups reset billing --topic orders --to-earliest --dry-run
  mini-broker groups reset billing --topic orders --to-time 2026-01-31T00:00:00Z";

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a line for each group: name, members, topics
    List {
        /// Print JSON, an object a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Print a line for each partition: topic, partition, committed offset, latest, lag, owner
    Describe {
        /// The group
        group: String,
        /// Only of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Print JSON, an object a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Set where a group goes on, and print a line for each partition: topic, partition, committed offset before, and after
    Reset(Reset),
}

#[derive(Debug, clap::Args)]
struct Reset {
    /// The group
    group: String,
    /// The topic, or one partition of it
    #[arg(long, value_name = "TOPIC[/PARTITION]")]
    topic: String,
    #[command(flatten)]
    to: To,
    /// Print what would be, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Though consumers hold the topic (the next acknowledgement of each wins), and though nobody ever used the group
    #[arg(long)]
    force: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct To {
    /// To the first record there is
    #[arg(long = "to-earliest")]
    earliest: bool,
    /// To the end
    #[arg(long = "to-latest")]
    latest: bool,
    /// To that offset
    #[arg(long = "to-offset", value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
    /// To the first record at or after a time: milliseconds, RFC 3339, or `-<n>s|m|h|d`
    #[arg(long = "to-time", value_name = "TIME", value_parser = online::time, allow_hyphen_values = true)]
    time: Option<TimeSpec>,
}

impl To {
    fn offset(&self) -> OffsetSpec {
        match (self.offset, self.time) {
            (Some(offset), _) => OffsetSpec::Offset(offset),
            (None, Some(time)) => OffsetSpec::Time(time),
            (None, None) if self.latest => OffsetSpec::Latest,
            (None, None) => OffsetSpec::Earliest,
        }
    }
}

/// Does it.
///
/// # Errors
/// What the broker refused, or that it cannot be reached.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.action {
        Action::List { json, connect } => list(&mut connect.admin()?, *json)?,
        Action::Describe {
            group,
            topic,
            json,
            connect,
        } => describe(&mut connect.admin()?, group, topic.as_deref(), *json)?,
        Action::Reset(reset) => reset.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(admin: &mut Admin, is_json: bool) -> Result<(), Failure> {
    let mut rows = Rows::new(is_json);
    for group in admin.groups().map_err(failure)? {
        rows.row(&[
            ("group", group.name.as_str().into()),
            ("members", group.members.into()),
            ("topics", group.topics.into()),
        ]);
    }
    rows.print()
}

fn describe(
    admin: &mut Admin,
    group: &str,
    topic: Option<&str>,
    is_json: bool,
) -> Result<(), Failure> {
    let topics: Vec<String> = if let Some(topic) = topic {
        vec![topic.to_owned()]
    } else {
        let topics = admin.topics().map_err(failure)?;
        topics.into_iter().map(|topic| topic.name).collect()
    };
    let mut rows = Rows::new(is_json);
    for name in &topics {
        let partitions = admin.committed(group, name).map_err(failure)?;
        let is_used = |row: &Committed| row.offset.is_some() || row.owner.is_some();
        if topic.is_none() && !partitions.iter().any(is_used) {
            continue;
        }
        for row in &partitions {
            rows.row(&[
                ("topic", name.as_str().into()),
                ("partition", row.partition.into()),
                ("committed", Cell::of(row.offset)),
                ("latest", row.latest.into()),
                ("lag", row.lag.into()),
                ("owner", Cell::of(row.owner.as_deref())),
            ]);
        }
    }
    rows.print()
}

impl Reset {
    fn run(&self) -> Result<(), Failure> {
        let (topic, only) = parse_target(&self.topic)?;
        let mut admin = self.connect.admin()?;
        let offsets = admin.offsets(topic).map_err(failure)?;
        let before = match admin.committed(&self.group, topic) {
            Err(error) if self.force && error.is_refusal(ErrorCode::UnknownGroup) => Vec::new(),
            result => result.map_err(failure)?,
        };
        let partitions: Vec<u32> = offsets
            .iter()
            .map(|ends| ends.partition)
            .filter(|partition| only.is_none_or(|only| only == *partition))
            .collect();
        if partitions.is_empty() {
            return Err(Failure::Failed(format!(
                "topic {topic} has {} partitions: {} is none of them",
                offsets.len(),
                only.unwrap_or_default()
            )));
        }
        let held = before
            .iter()
            .find(|row| partitions.contains(&row.partition) && row.owner.is_some());
        if let (Some(row), false) = (held, self.force || self.dry_run) {
            return Err(Failure::Failed(format!(
                "{} consumes {topic}/{} in group {}: stop the group's consumers, or use --force (the next acknowledgement of each wins)",
                row.owner.as_deref().unwrap_or_default(),
                row.partition,
                self.group
            )));
        }
        self.reset(&mut admin, topic, &partitions, &before)
    }

    fn reset(
        &self,
        admin: &mut Admin,
        topic: &str,
        partitions: &[u32],
        before: &[Committed],
    ) -> Result<(), Failure> {
        // All are found before the first is set: a refusal changes nothing.
        let mut found = Vec::new();
        for &partition in partitions {
            let to = admin
                .resolve(topic, partition, self.to.offset())
                .map_err(failure)?;
            found.push((partition, to));
        }
        let mut rows = Rows::new(self.json);
        for (partition, to) in found {
            if !self.dry_run {
                let next = OffsetSpec::Offset(to);
                admin
                    .commit(&self.group, topic, partition, next)
                    .map_err(failure)?;
            }
            let row = before.iter().find(|row| row.partition == partition);
            rows.row(&[
                ("topic", topic.into()),
                ("partition", partition.into()),
                ("from", Cell::of(row.and_then(|row| row.offset))),
                ("to", to.into()),
            ]);
        }
        rows.print()
    }
}
