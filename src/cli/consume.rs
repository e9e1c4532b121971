//! `mini-broker consume`: records of a topic to stdout.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::api::{ErrorCode, OffsetSpec};
use crate::client::{Admin, Consumer, Error, Fetched, GroupOptions, PartitionOffsets, StartAt};
use crate::protocol::line::Form;
use crate::record::{Record, StoredRecord};

use super::online::{self, Connect, Progress, failure, write_out};
use super::shell::Stop;
use super::target::parse_target;
use super::{Failure, start_log};

/// How long a poll waits before it is seen whether something else is to be done.
const POLL: Duration = Duration::from_millis(200);
/// How often it is seen whether a topic is there by now.
const TOPIC_POLL: Duration = Duration::from_millis(50);
/// How often it is seen whether a topic that is followed has more partitions.
const PARTITIONS_POLL: Duration = Duration::from_secs(5);

/// Print the records of a topic.
///
/// From the earliest to what is the latest at the start, if nothing else is said. Each partition is printed in order. Exits with 1
/// where something could not be printed: damage, records that were deleted meanwhile, a time-out.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What is printed
    #[arg(value_name = "TOPIC[/PARTITION]")]
    target: String,

    /// Where to begin: a number, earliest, latest, `-<n>`, `@<ms>`, `@<RFC 3339>` or `@-<n>s|m|h|d`; earliest if left out
    #[arg(long, value_name = "OFFSET", value_parser = online::offset, allow_hyphen_values = true)]
    from: Option<OffsetSpec>,

    /// Where to end, in the same forms; that offset is not printed. The latest if left out
    #[arg(long, value_name = "OFFSET", value_parser = online::offset, allow_hyphen_values = true)]
    to: Option<OffsetSpec>,

    /// Begin with the last N records of each partition
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = clap::value_parser!(u64).range(1..))]
    last: Option<u64>,

    /// End after N records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Take a share of the topic in this group, and commit what was printed
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["to", "last"])]
    group: Option<String>,

    /// Go on with what comes later, and wait for a topic that is not there yet
    #[arg(long)]
    follow: bool,

    /// How records are printed: value, one a line; tsv: (partition,) offset, timestamp, key, value; json, an object a line
    #[arg(long = "as", value_name = "FORM", default_value = "value", value_parser = form)]
    form: Form,

    /// The same as `--as json`
    #[arg(long, conflicts_with = "form")]
    json: bool,

    /// Give up, with exit code 1, where nothing came for so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,

    #[command(flatten)]
    connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker consume orders                                   all values
  mini-broker consume orders --follow --last 10 --as tsv       like tail -f
  mini-broker consume orders --from @-2h --to @-1h --as json   an hour of them
  mini-broker consume orders --group billing --follow          a share of them, until Ctrl-C";

fn form(text: &str) -> Result<Form, String> {
    Form::of(text.as_bytes()).ok_or_else(|| "one of tsv, json, value".to_owned())
}

/// Prints what is asked for.
///
/// # Errors
/// The broker cannot be reached or refused, or nothing came in time.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    start_log(log::LevelFilter::Warn);
    let (topic, partition) = parse_target(&args.target)?;
    let mut run = Run::new(args, topic, partition);
    let done = match &args.group {
        Some(group) => run.group(group),
        None => run.assigned(),
    };
    match done {
        Err(Stop::Failed(failure)) => Err(failure),
        Ok(()) if run.skips > 0 => Ok(ExitCode::FAILURE),
        // Quiet: nobody reads the output any more.
        Ok(()) | Err(Stop::Quiet) => Ok(ExitCode::SUCCESS),
    }
}

/// A run of the command.
struct Run<'a> {
    args: &'a Args,
    topic: &'a str,
    partition: Option<u32>,
    form: Form,
    /// Records that are still to be printed, where there is a limit.
    left: Option<u64>,
    /// Where printing goes on in each partition.
    printed: BTreeMap<u32, i64>,
    /// When something came last.
    heard: Instant,
    /// How often records were not to be had.
    skips: u64,
    progress: Progress,
    out: Vec<u8>,
}

/// A partition that has an end.
#[derive(Debug, Clone, Copy)]
struct Part {
    partition: u32,
    start: i64,
    /// `None` for no end.
    end: Option<i64>,
}

impl Part {
    fn is_done(&self, position: Option<i64>) -> bool {
        self.end
            .is_some_and(|end| position.is_some_and(|position| position >= end))
    }
}

impl<'a> Run<'a> {
    fn new(args: &'a Args, topic: &'a str, partition: Option<u32>) -> Self {
        Self {
            args,
            topic,
            partition,
            form: if args.json { Form::Json } else { args.form },
            left: args.count,
            printed: BTreeMap::new(),
            heard: Instant::now(),
            skips: 0,
            progress: Progress::new(None, "records", false),
            out: Vec::new(),
        }
    }

    /// Where the topic begins and ends; waits for it where it is to be followed.
    fn offsets(&self, admin: &mut Admin) -> Result<Vec<PartitionOffsets>, Failure> {
        loop {
            match admin.offsets(self.topic) {
                Err(error) if self.args.follow && error.is_refusal(ErrorCode::UnknownTopic) => {
                    self.check_patience()?;
                    thread::sleep(TOPIC_POLL);
                }
                result => return result.map_err(failure),
            }
        }
    }

    /// Where nothing came for too long.
    fn check_patience(&self) -> Result<(), Failure> {
        match self.args.timeout {
            Some(ms) if self.heard.elapsed() >= Duration::from_millis(ms) => {
                Err(Failure::Failed(format!("nothing came for {ms} ms")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// How long a poll may take.
    fn wait(&self) -> Duration {
        let left = self
            .args
            .timeout
            .map(|ms| Duration::from_millis(ms).saturating_sub(self.heard.elapsed()));
        left.map_or(POLL, |left| left.clamp(Duration::from_millis(1), POLL))
    }

    /// Reads partitions up to their ends.
    fn assigned(&mut self) -> Result<(), Stop> {
        let mut admin = self.args.connect.admin()?;
        let offsets = self.offsets(&mut admin)?;
        let mut parts = self.parts(&mut admin, &offsets)?;
        let mut consumer = Consumer::connect(&self.args.connect.address()).map_err(failure)?;
        parts.retain(|part| part.end.is_none_or(|end| part.start < end));
        for part in &parts {
            let from = OffsetSpec::Offset(part.start);
            consumer
                .assign(self.topic, &[part.partition], from)
                .map_err(failure)?;
        }
        self.progress = Progress::new(self.total(&parts), "records", !is_stdout_a_terminal());
        let mut counted = Instant::now();
        while !parts.is_empty() {
            let records = consumer.poll(self.wait());
            let records = self.received(records)?;
            for record in records.iter().flat_map(crate::client::Records::iter) {
                let part = parts.iter().find(|part| part.partition == record.partition);
                let is_in = part.is_some_and(|part| part.end.is_none_or(|end| record.offset < end));
                if is_in && !self.print(&record)? {
                    break;
                }
            }
            self.flush()?;
            if self.left == Some(0) {
                return Ok(());
            }
            for part in &parts {
                let position = consumer.position(self.topic, part.partition);
                if part.is_done(position) {
                    consumer
                        .pause(self.topic, part.partition)
                        .map_err(failure)?;
                }
            }
            parts.retain(|part| !part.is_done(consumer.position(self.topic, part.partition)));
            if self.args.follow && counted.elapsed() > PARTITIONS_POLL {
                self.add_partitions(&mut admin, &mut consumer, &mut parts)?;
                counted = Instant::now();
            }
        }
        Ok(())
    }

    /// Records that will be printed, where that is known.
    fn total(&self, parts: &[Part]) -> Option<u64> {
        let mut sum: u64 = 0;
        for part in parts {
            sum += u64::try_from(part.end? - part.start).unwrap_or(0);
        }
        Some(self.left.map_or(sum, |left| left.min(sum)))
    }

    /// The partitions that are asked for, each with its first offset and its end.
    fn parts(&self, admin: &mut Admin, offsets: &[PartitionOffsets]) -> Result<Vec<Part>, Failure> {
        let args = self.args;
        for (flag, offset) in [("--from", args.from), ("--to", args.to)] {
            if let (Some(OffsetSpec::Offset(offset)), None) = (offset, self.partition)
                && offsets.len() > 1
            {
                return Err(Failure::Usage(format!(
                    "{flag} {offset} is an offset in one partition, and topic {} has {}: name the one, as in {0}/0",
                    self.topic,
                    offsets.len()
                )));
            }
        }
        let from = match args.last {
            Some(last) => OffsetSpec::Last(last),
            None => args.from.unwrap_or(OffsetSpec::Earliest),
        };
        let mut parts = Vec::new();
        for ends in offsets {
            if self.partition.is_some_and(|only| only != ends.partition) {
                continue;
            }
            let mut resolve = |offset| {
                admin
                    .resolve(self.topic, ends.partition, offset)
                    .map_err(failure)
            };
            let end = match args.to {
                None if args.follow => None,
                None => Some(ends.latest),
                // It may be one that does not exist yet.
                Some(OffsetSpec::Offset(to)) if args.follow => Some(to),
                Some(OffsetSpec::Offset(to)) => Some(to.min(ends.latest)),
                Some(to) => Some(resolve(to)?),
            };
            let start = resolve(from)?;
            parts.push(Part {
                partition: ends.partition,
                start,
                end,
            });
        }
        match self.partition {
            Some(partition) if parts.is_empty() => Err(Failure::Failed(format!(
                "topic {} has no partition {partition}, only 0 to {}",
                self.topic,
                offsets.len().saturating_sub(1)
            ))),
            Some(_) | None => Ok(parts),
        }
    }

    /// Reads partitions that the topic has got meanwhile, from their beginning.
    fn add_partitions(
        &self,
        admin: &mut Admin,
        consumer: &mut Consumer,
        parts: &mut Vec<Part>,
    ) -> Result<(), Failure> {
        if self.partition.is_some() || self.args.to.is_some() {
            return Ok(());
        }
        for ends in admin.offsets(self.topic).map_err(failure)? {
            if parts.iter().any(|part| part.partition == ends.partition) {
                continue;
            }
            consumer
                .assign(self.topic, &[ends.partition], OffsetSpec::Earliest)
                .map_err(failure)?;
            parts.push(Part {
                partition: ends.partition,
                start: ends.earliest,
                end: None,
            });
        }
        Ok(())
    }

    /// Takes a share in a group. Without --follow it ends when the group has everything that was there at the start.
    fn group(&mut self, group: &str) -> Result<(), Stop> {
        if self.partition.is_some() {
            return Err(Failure::Usage(format!(
                "a group shares out the partitions of {} itself: name none",
                self.topic
            ))
            .into());
        }
        let start = match self.args.from {
            None | Some(OffsetSpec::Earliest) => StartAt::Earliest,
            Some(OffsetSpec::Latest) => StartAt::Latest,
            Some(_) => {
                return Err(Failure::Usage(
                    "with --group, --from is earliest or latest, and counts where the group has committed nothing; \
                     `mini-broker groups reset` moves it"
                        .to_owned(),
                )
                .into());
            }
        };
        let mut admin = self.args.connect.admin()?;
        let ends = self.offsets(&mut admin)?;
        let options = GroupOptions {
            start,
            auto_commit: false,
            ..GroupOptions::default()
        };
        let address = self.args.connect.address();
        let mut consumer =
            Consumer::in_group(&address, group, self.topic, options).map_err(failure)?;
        loop {
            let records = consumer.poll(self.wait());
            let records = self.received(records)?;
            let mut is_empty = true;
            for record in records.iter().flat_map(crate::client::Records::iter) {
                is_empty = false;
                if !self.print(&record)? {
                    break;
                }
            }
            self.flush()?;
            if self.left == Some(0) {
                // A poll may have given more than was to be printed.
                for (partition, next) in &self.printed {
                    consumer
                        .commit_offset(self.topic, *partition, *next)
                        .map_err(failure)?;
                }
                return Ok(());
            }
            if !is_empty {
                consumer.commit().map_err(failure)?;
            } else if !self.args.follow && self.is_through(&mut admin, group, &ends)? {
                return Ok(());
            }
        }
    }

    /// Whether the group has committed everything up to those ends.
    fn is_through(
        &self,
        admin: &mut Admin,
        group: &str,
        ends: &[PartitionOffsets],
    ) -> Result<bool, Failure> {
        let committed = admin.committed(group, self.topic).map_err(failure)?;
        Ok(ends.iter().all(|ends| {
            let row = committed.iter().find(|row| row.partition == ends.partition);
            let is_new = row.is_none_or(|row| row.offset.is_none());
            let starts_at_the_end = self.args.from == Some(OffsetSpec::Latest);
            ends.earliest == ends.latest
                || is_new && starts_at_the_end
                || row.and_then(|row| row.offset).unwrap_or(0) >= ends.latest
        }))
    }

    /// What a poll gave; `None` where it told of records that are not to be had, which is passed on.
    fn received<T>(&mut self, records: Result<T, Error>) -> Result<Option<T>, Failure> {
        match records {
            Ok(records) => {
                self.check_patience()?;
                Ok(Some(records))
            }
            Err(error) if error.is_skip() => {
                self.progress.tell(&error.to_string());
                self.skips += 1;
                Ok(None)
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// Takes a record for printing; false where it is the last one.
    fn print(&mut self, record: &Fetched<'_>) -> Result<bool, Stop> {
        self.heard = Instant::now();
        let stored = StoredRecord {
            offset: record.offset,
            crc_ok: true,
            record: Record {
                timestamp: record.timestamp,
                key: record.key,
                value: record.value,
                headers: record.header_block,
            },
        };
        let with_partition = self.partition.is_none();
        self.form
            .line(record.partition, with_partition, &stored, &mut self.out);
        self.progress.advance(1);
        self.printed.insert(record.partition, record.offset + 1);
        if self.out.len() >= OUT_BYTES {
            self.flush()?;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Ok(self.left != Some(0))
    }

    fn flush(&mut self) -> Result<(), Stop> {
        if !self.out.is_empty() {
            write_out(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }
}

/// Bytes that are written at once.
const OUT_BYTES: usize = 64 * 1024;

fn is_stdout_a_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}
