//! `mini-broker import`.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::addr::Address;
use crate::api::{Payload, Run, Target};
use crate::broker::{Broker, Settings};
use crate::clock::{Clock, SystemClock};
use crate::config::DATA_DIR;
use crate::dump::flat::{self, Flat, Next};
use crate::format::DecodeError;
use crate::fs::disk::DiskFs;
use crate::record::Record;

use super::client::Client;
use super::target::parse_target;
use super::{Failure, start_log};

/// Records between two syncs of an import into a data directory, and between two progress lines.
const BATCH_RECORDS: u64 = 4096;
/// Bytes between two syncs.
const BATCH_BYTES: usize = 1 << 20;
/// Requests on the way to a broker; so few that their replies fit between the two whatever the broker's backlog is.
const IN_FLIGHT_MAX: u64 = 2000;
/// Bytes sent at once.
const SEND_BYTES: usize = 64 * 1024;

/// Bring a flat version-1 log file into a topic.
///
/// Offsets are given anew; keys, values and timestamps are kept. Where the file is damaged, what comes before is imported, the
/// place is reported, and the exit code is 1. Where a record is refused, nothing more is sent, and the report says which records were
/// stored: through a broker, some that were on their way behind it may be.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The flat file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where its records go; the topic is created where it is missing
    #[arg(value_name = "TOPIC[/PARTITION]")]
    target: String,

    /// Import into this data directory, which no broker may be using
    #[arg(long, value_name = "DIR", default_value = DATA_DIR, conflicts_with = "connect")]
    data_dir: PathBuf,

    /// Import through the broker at this address, HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR")]
    connect: Option<Address>,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker import old.log orders                            into ./data, while no broker runs
  mini-broker import old.log orders/2 --connect 127.0.0.1:9092 through a broker";

/// Imports the file.
///
/// # Errors
/// The file cannot be read, the records cannot be stored, or the file is damaged.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    start_log(log::LevelFilter::Warn);
    let (topic, partition) = parse_target(&args.target)?;
    let unreadable =
        |e: io::Error| Failure::Failed(format!("cannot read {}: {e}", args.file.display()));
    let file = flat::open(&DiskFs, &args.file).map_err(|e| Failure::Failed(e.to_string()))?;
    let mut records = Flat::new(&file).map_err(unreadable)?;
    let mut sink: Box<dyn Sink> = match &args.connect {
        Some(address) => Box::new(Online::new(address, &args.target)?),
        None => Box::new(Offline::new(&args.data_dir, topic, partition)?),
    };
    let mut progress = Progress::new(records.len());
    let mut damage = None;
    let mut done = Ok(());
    loop {
        let next = match records.next_record() {
            Ok(next) => next,
            Err(error) => {
                done = Err(unreadable(error));
                break;
            }
        };
        match next {
            Next::End => break,
            Next::Damage(position, error) => {
                damage = Some((position, error));
                break;
            }
            Next::Record(position, stored) => {
                if let Err(error) = sink.append(&stored.record) {
                    done = Err(error);
                    break;
                }
                progress.show(position);
            }
        }
    }
    progress.clear();
    let finished = sink.finish();
    report(args, sink.stored(), damage, done.and(finished))
}

/// Says how it went.
fn report(
    args: &Args,
    stored: &Stored,
    damage: Option<(u64, DecodeError)>,
    done: Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let file = args.file.display();
    if let Err(failure) = done {
        let (Failure::Usage(words) | Failure::Failed(words)) = failure;
        return Err(Failure::Failed(format!(
            "{words}; of {file} were imported: {stored}"
        )));
    }
    let count = stored.count;
    if let Some((position, error)) = damage {
        let reason = match error {
            DecodeError::Incomplete(_) => "a record is cut short".to_owned(),
            DecodeError::Corrupt(reason) => reason.to_string(),
        };
        return Err(Failure::Failed(format!(
            "{file} is damaged at position {position} ({reason}); the {count} records before it were imported"
        )));
    }
    // A reader who has gone away missed nothing.
    let _ = writeln!(
        io::stdout(),
        "imported {count} records of {file} into {}",
        args.target
    );
    Ok(ExitCode::SUCCESS)
}

/// Which records of the file are known to be stored, counted from 1.
#[derive(Debug, Default)]
struct Stored {
    count: u64,
    /// Those whose fate is known.
    decided: u64,
    /// First and last of each stretch, rising.
    ranges: Vec<(u64, u64)>,
}

impl Stored {
    /// Notes what became of so many records more.
    fn note(&mut self, records: u64, are_stored: bool) {
        let first = self.decided + 1;
        self.decided += records;
        if !are_stored || records == 0 {
            return;
        }
        self.count += records;
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == first => *last = self.decided,
            Some(_) | None => self.ranges.push((first, self.decided)),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ranges.is_empty() {
            return f.write_str("no records");
        }
        write!(f, "{} records, ", self.count)?;
        for (at, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first} to {last}")?;
            }
        }
        Ok(())
    }
}

/// Where records go.
trait Sink {
    /// Takes a record; it may be stored later.
    fn append(&mut self, record: &Record<'_>) -> Result<(), Failure>;
    /// Waits until everything is stored.
    fn finish(&mut self) -> Result<(), Failure>;
    /// Records that are stored.
    fn stored(&self) -> &Stored;
}

/// A data directory, with a broker of our own on it.
struct Offline<'t> {
    broker: Broker<DiskFs>,
    clock: SystemClock,
    topic: &'t str,
    partition: Option<u32>,
    undecided: Vec<Run>,
    undecided_bytes: usize,
    stored: Stored,
}

impl<'t> Offline<'t> {
    fn new(
        data_dir: &std::path::Path,
        topic: &'t str,
        partition: Option<u32>,
    ) -> Result<Self, Failure> {
        let clock = SystemClock::new();
        let broker = Broker::open(DiskFs, Settings::new(data_dir), &clock, || Ok(()));
        Ok(Self {
            broker: broker.map_err(|words| {
                Failure::Failed(format!(
                    "{words} (--connect ADDR imports through a running broker)"
                ))
            })?,
            clock,
            topic,
            partition,
            undecided: Vec::new(),
            undecided_bytes: 0,
            stored: Stored::default(),
        })
    }

    fn decide(&mut self) -> Result<(), Failure> {
        self.broker.flush(&self.clock);
        let mut result = Ok(());
        for run in self.undecided.drain(..) {
            let verdict = self.broker.verdict(&run);
            let is_good = run.first_offset < verdict.good_below;
            self.stored.note(run.count.into(), is_good);
            if !is_good && result.is_ok() {
                let words = verdict
                    .error
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string);
                result = Err(Failure::Failed(format!(
                    "record {} could not be stored: {words}",
                    self.stored.decided
                )));
            }
        }
        self.broker.end_turn();
        self.undecided_bytes = 0;
        result
    }
}

impl Sink for Offline<'_> {
    fn append(&mut self, record: &Record<'_>) -> Result<(), Failure> {
        let target = Target {
            topic: self.topic.as_bytes(),
            partition: self.partition,
        };
        let Record {
            timestamp,
            key,
            value,
            headers,
        } = *record;
        let payload = Payload::Record {
            timestamp: Some(timestamp),
            key,
            value,
            headers,
        };
        let run = self.broker.append(target, &payload, self.clock.now());
        let number = self.stored.decided + self.undecided.len() as u64 + 1;
        self.undecided
            .push(run.map_err(|e| Failure::Failed(format!("record {number} was refused: {e}")))?);
        self.undecided_bytes += record.payload_bytes();
        if self.undecided.len() as u64 >= BATCH_RECORDS || self.undecided_bytes >= BATCH_BYTES {
            self.decide()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let decided = self.decide();
        let closed = self.broker.close(&self.clock).map_err(Failure::Failed);
        decided.and(closed)
    }

    fn stored(&self) -> &Stored {
        &self.stored
    }
}

/// A broker at the other end of a connection.
struct Online<'t> {
    client: Client,
    target: &'t str,
    /// Requests that are not sent yet.
    requests: Vec<u8>,
    in_flight: u64,
    stored: Stored,
}

impl<'t> Online<'t> {
    fn new(address: &Address, target: &'t str) -> Result<Self, Failure> {
        let client = Client::connect(address)?;
        Ok(Self {
            client,
            target,
            requests: Vec::new(),
            in_flight: 0,
            stored: Stored::default(),
        })
    }

    /// Sends what is there, and reads replies until so many requests are on the way; all of them, once one was refused: those on the way behind
    /// it may be stored, and nothing is sent any more.
    fn settle(&mut self, in_flight_max: u64) -> Result<(), Failure> {
        let requests = std::mem::take(&mut self.requests);
        self.client
            .send(&requests)
            .map_err(|lost| self.unanswered(lost))?;
        self.requests = requests;
        self.requests.clear();
        let mut refusal = None;
        while self.in_flight > if refusal.is_none() { in_flight_max } else { 0 } {
            let reply = self.client.line().map_err(|lost| self.unanswered(lost))?;
            self.in_flight -= 1;
            let is_stored = reply.starts_with(b"OK");
            self.stored.note(1, is_stored);
            if !is_stored {
                let words = String::from_utf8_lossy(&reply);
                let record = self.stored.decided;
                refusal.get_or_insert_with(|| {
                    Failure::Failed(format!("record {record} was refused: {words}"))
                });
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// What a lost connection leaves open.
    fn unanswered(&self, failure: Failure) -> Failure {
        let (Failure::Usage(words) | Failure::Failed(words)) = failure;
        let first = self.stored.decided + 1;
        let last = self.stored.decided + self.in_flight;
        Failure::Failed(format!(
            "{words}; whether records {first} to {last} arrived is not known"
        ))
    }
}

impl Sink for Online<'_> {
    fn append(&mut self, record: &Record<'_>) -> Result<(), Failure> {
        let length =
            |field: Option<&[u8]>| field.map_or("-1".to_owned(), |field| field.len().to_string());
        let line = format!(
            "PRODUCE {} {} {} ts={}\n",
            self.target,
            length(record.key),
            length(record.value),
            record.timestamp
        );
        self.requests.extend_from_slice(line.as_bytes());
        self.requests
            .extend_from_slice(record.key.unwrap_or_default());
        self.requests
            .extend_from_slice(record.value.unwrap_or_default());
        self.requests.push(b'\n');
        self.in_flight += 1;
        if self.requests.len() >= SEND_BYTES || self.in_flight >= IN_FLIGHT_MAX {
            self.settle(IN_FLIGHT_MAX / 2)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Failure> {
        if self.in_flight == 0 {
            return Ok(());
        }
        self.settle(0)
    }

    fn stored(&self) -> &Stored {
        &self.stored
    }
}

/// A line that tells a person at a terminal how far it is; nothing where nobody looks.
struct Progress {
    len: u64,
    records: u64,
    is_shown: bool,
}

impl Progress {
    fn new(len: u64) -> Self {
        Self {
            len,
            records: 0,
            is_shown: io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, position: u64) {
        self.records += 1;
        if self.is_shown && self.records.is_multiple_of(BATCH_RECORDS) {
            let percent = position * 100 / self.len.max(1);
            // A terminal that has gone away needs no progress.
            let _ = write!(io::stderr(), "\r{} records, {percent}%", self.records);
        }
    }

    fn clear(&self) {
        if self.is_shown && self.records >= BATCH_RECORDS {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
