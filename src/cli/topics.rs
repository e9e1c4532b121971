//! `mini-broker topics`: what there is, and what it is like.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Subcommand;

use crate::api::ErrorCode;
use crate::client::{Admin, ConfigSource, Error, PartitionHealth};

use super::Failure;
use super::online::{Cell, Connect, Rows, failure};

/// List, create, alter, describe or delete topics.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker topics list
  mini-broker topics create orders --partitions 3 --config retention.ms=-1 --if-not-exists
  mini-broker topics alter orders --partitions 6 --config retention.ms=default
  mini-broker topics describe orders --json
  mini-broker topics delete orders --if-exists";

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a line for each topic: name, partitions, records, bytes
    List {
        /// Print JSON, an object a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Create a topic
    Create {
        /// Its name
        topic: String,
        /// How many partitions; the broker's num.partitions if left out
        #[arg(long, value_name = "N")]
        partitions: Option<u32>,
        /// A config of it; may be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = config)]
        config: Vec<(String, String)>,
        /// Leave one that is there as it is
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Change configs of a topic, or give it more partitions
    Alter {
        /// Its name
        topic: String,
        /// How many partitions it is to have
        #[arg(long, value_name = "N", required_unless_present = "config")]
        partitions: Option<u32>,
        /// A config of it; the value `default` takes the topic's own away; may be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = config)]
        config: Vec<(String, String)>,
        #[command(flatten)]
        connect: Connect,
    },
    /// Print configs (name, value, source) and partitions (number, earliest, latest, bytes, segments, health) of a topic
    Describe {
        /// Its name
        topic: String,
        /// Print JSON, an object a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Delete topics with all that is in them
    Delete {
        /// Their names
        #[arg(required = true)]
        topics: Vec<String>,
        /// Be content where one is not there
        #[arg(long)]
        if_exists: bool,
        #[command(flatten)]
        connect: Connect,
    },
}

/// A config as it is typed. What is allowed is the broker's to say.
fn config(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("it has the form name=value".to_owned()),
    }
}

/// Does it. What changes something prints nothing.
///
/// # Errors
/// What the broker refused, or that it cannot be reached.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.action {
        Action::List { json, connect } => list(&mut connect.admin()?, *json)?,
        Action::Create {
            topic,
            partitions,
            config,
            if_not_exists,
            connect,
        } => {
            let created = connect
                .admin()?
                .create(topic, *partitions, &borrowed(config));
            content_with(created, *if_not_exists, ErrorCode::TopicExists)?;
        }
        Action::Alter {
            topic,
            partitions,
            config,
            connect,
        } => {
            let mut admin = connect.admin()?;
            if !config.is_empty() {
                admin.alter(topic, &borrowed(config)).map_err(failure)?;
            }
            if let Some(partitions) = partitions {
                admin.partitions(topic, *partitions).map_err(failure)?;
            }
        }
        Action::Describe {
            topic,
            json,
            connect,
        } => describe(&mut connect.admin()?, topic, *json)?,
        Action::Delete {
            topics,
            if_exists,
            connect,
        } => {
            let mut admin = connect.admin()?;
            for topic in topics {
                content_with(admin.delete(topic), *if_exists, ErrorCode::UnknownTopic)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A refusal with that code is as good as an OK, where it was said so.
fn content_with(
    result: Result<(), Error>,
    is_content: bool,
    code: ErrorCode,
) -> Result<(), Failure> {
    match result {
        Err(error) if is_content && error.is_refusal(code) => Ok(()),
        result => result.map_err(failure),
    }
}

fn borrowed(configs: &[(String, String)]) -> Vec<(&str, &str)> {
    configs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

fn list(admin: &mut Admin, is_json: bool) -> Result<(), Failure> {
    let mut rows = Rows::new(is_json);
    for topic in admin.topics().map_err(failure)? {
        rows.row(&[
            ("topic", topic.name.as_str().into()),
            ("partitions", topic.partitions.into()),
            ("records", topic.records.into()),
            ("bytes", topic.bytes.into()),
        ]);
    }
    rows.print()
}

fn describe(admin: &mut Admin, topic: &str, is_json: bool) -> Result<(), Failure> {
    let description = admin.describe(topic).map_err(failure)?;
    let mut rows = Rows::new(is_json);
    for config in &description.configs {
        let source = match config.source {
            ConfigSource::Topic => "topic",
            ConfigSource::Broker => "broker",
            ConfigSource::Default => "default",
        };
        let value = Cell::from(config.value.as_str());
        if is_json {
            let name = Cell::from(config.name.as_str());
            rows.row(&[
                ("config", name),
                ("value", value),
                ("source", source.into()),
            ]);
        } else {
            let name = config.name.as_str().into();
            rows.row(&[
                ("", "config".into()),
                ("", name),
                ("", value),
                ("", source.into()),
            ]);
        }
    }
    for partition in &description.partitions {
        let health = match partition.health {
            PartitionHealth::Ok => "ok",
            PartitionHealth::ReadOnly => "read_only",
            PartitionHealth::Damaged => "damaged",
        };
        let cells = [
            ("partition", partition.partition.into()),
            ("earliest", partition.earliest.into()),
            ("latest", partition.latest.into()),
            ("bytes", partition.bytes.into()),
            ("segments", partition.segments.into()),
            ("health", health.into()),
        ];
        if is_json {
            rows.row(&cells);
        } else {
            rows.row(&[&[("", "partition".into())], &cells[..]].concat());
        }
    }
    rows.print()
}
