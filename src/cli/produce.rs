//! `mini-broker produce`: lines, JSON records or whole files into a topic.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use serde::Deserialize;

use crate::api::quoted;
use crate::client::{Delivery, Message, Producer};

use super::online::{Connect, Progress, failure};
use super::target::parse_target;
use super::{Failure, start_log};

/// Records between two looks at what the broker answered.
const SETTLE_RECORDS: usize = 1024;

/// Bring records into a topic: each line of stdin is a value.
///
/// Exits with 0 once all of them are stored; nothing is printed then.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where the records go; the topic is created where it is missing
    #[arg(value_name = "TOPIC[/PARTITION]")]
    target: String,

    /// What stands between key and value of a line, which is split at the first; a line without it is an error
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key_separator: Option<String>,

    /// Each line is a record as `consume --as json` prints it; its offset is given anew, its partition counts where none is named
    #[arg(long, conflicts_with = "key_separator")]
    json: bool,

    /// Files, each of which is a value, instead of stdin
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["key_separator", "json"])]
    file: Vec<PathBuf>,

    #[command(flatten)]
    connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  printf '%s\\n' one two | mini-broker produce orders
  mini-broker produce orders --key-separator : < lines     anna:shoes has the key anna
  mini-broker produce pictures --file *.png                a record for each file
  mini-broker consume orders --as json | mini-broker produce orders --json --connect other:9092";

/// Produces all there is.
///
/// # Errors
/// What could not be read, understood or stored, with the line it was in; and how many records were stored all the same.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    start_log(log::LevelFilter::Warn);
    let (topic, partition) = parse_target(&args.target)?;
    let mut sink = Sink::open(args, topic, partition)?;
    let read = if args.file.is_empty() {
        sink.lines(args)
    } else {
        sink.files(&args.file)
    };
    sink.close(read)
}

/// Where a record was read.
#[derive(Debug)]
enum Place {
    Line(u64),
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A topic, and the records that are on their way to it.
#[derive(Debug)]
struct Sink<'t> {
    producer: Producer,
    topic: &'t str,
    partition: Option<u32>,
    waiting: VecDeque<(Place, Delivery)>,
    stored: u64,
    progress: Progress,
}

impl<'t> Sink<'t> {
    fn open(args: &Args, topic: &'t str, partition: Option<u32>) -> Result<Self, Failure> {
        let files = args.file.len() as u64;
        let (total, unit) = match files {
            0 => (None, "records"),
            _ => (Some(files), "files"),
        };
        // Whoever types the lines sees how far it is.
        let may_show = files > 0 || !io::stdin().is_terminal();
        Ok(Self {
            producer: Producer::connect(&args.connect.address()).map_err(failure)?,
            topic,
            partition,
            waiting: VecDeque::new(),
            stored: 0,
            progress: Progress::new(total, unit, may_show),
        })
    }

    fn lines(&mut self, args: &Args) -> Result<(), Failure> {
        let separator = args.key_separator.as_ref().map(String::as_bytes);
        let mut stdin = io::stdin().lock();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let len = stdin
                .read_until(b'\n', &mut line)
                .map_err(|e| Failure::Failed(format!("cannot read stdin: {e}")))?;
            if len == 0 {
                break;
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let place = Place::Line(number);
            match separator {
                _ if args.json => self.json(place, &line)?,
                Some(separator) => self.keyed(place, &line, separator)?,
                None => {
                    let message = self.message().value(&line);
                    self.send(place, &message)?;
                }
            }
        }
        Ok(())
    }

    fn files(&mut self, files: &[PathBuf]) -> Result<(), Failure> {
        for path in files {
            let value = fs::read(path)
                .map_err(|e| Failure::Failed(format!("cannot read {}: {e}", path.display())))?;
            let message = self.message().value(&value);
            self.send(Place::File(path.clone()), &message)?;
        }
        Ok(())
    }

    fn message<'a>(&self) -> Message<'a>
    where
        't: 'a,
    {
        let message = Message::to(self.topic);
        match self.partition {
            Some(partition) => message.partition(partition),
            None => message,
        }
    }

    /// A line of key, separator and value.
    fn keyed(&mut self, place: Place, line: &[u8], separator: &[u8]) -> Result<(), Failure> {
        let Some(at) = memmem::find(line, separator) else {
            return Err(Failure::Failed(format!(
                "{place} has no '{}' behind a key: '{}'",
                quoted(separator),
                quoted(line)
            )));
        };
        let (key, rest) = line.split_at(at);
        let value = rest.get(separator.len()..).unwrap_or_default();
        let message = self.message().key(key).value(value);
        self.send(place, &message)
    }

    /// A line that is a record in JSON.
    fn json(&mut self, place: Place, line: &[u8]) -> Result<(), Failure> {
        let words = |what: String| {
            Failure::Failed(format!(
                "{place} is no record in JSON ({what}): '{}'",
                quoted(line)
            ))
        };
        let record = JsonRecord::parse(line).map_err(words)?;
        let mut message = self.message();
        if let (None, Some(partition)) = (self.partition, record.partition) {
            message = message.partition(partition);
        }
        if let Some(ms) = record.timestamp {
            message = message.timestamp(ms);
        }
        if let Some(key) = &record.key {
            message = message.key(key);
        }
        if let Some(value) = &record.value {
            message = message.value(value);
        }
        for (name, value) in &record.headers {
            message = message.header(name, value.as_deref());
        }
        self.send(place, &message)
    }

    fn send(&mut self, place: Place, message: &Message<'_>) -> Result<(), Failure> {
        let delivery = self
            .producer
            .send(message)
            .map_err(|error| Failure::Failed(format!("{place}: {error}")))?;
        self.waiting.push_back((place, delivery));
        self.progress.advance(1);
        if self.waiting.len().is_multiple_of(SETTLE_RECORDS) {
            self.settle()?;
        }
        Ok(())
    }

    /// Looks at the answers that came.
    fn settle(&mut self) -> Result<(), Failure> {
        while let Some((place, delivery)) = self.waiting.front()
            && let Some(result) = delivery.peek()
        {
            let failed = result
                .err()
                .map(|error| Failure::Failed(format!("{place}: {error}")));
            self.waiting.pop_front();
            match failed {
                Some(failure) => return Err(failure),
                None => self.stored += 1,
            }
        }
        Ok(())
    }

    /// Waits for what is on its way. What went wrong first is what is told.
    fn close(mut self, read: Result<(), Failure>) -> Result<ExitCode, Failure> {
        let mut result = read;
        // Failures are told by their records, which know their lines.
        let _ = self.producer.flush();
        while !self.waiting.is_empty() {
            let settled = self.settle();
            result = result.and(settled);
        }
        match result {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Failure::Usage(words) | Failure::Failed(words)) => Err(Failure::Failed(format!(
                "{words}; {} records were produced",
                self.stored
            ))),
        }
    }
}

/// A record as `consume --as json` prints it, with its bytes decoded.
#[derive(Debug, PartialEq, Eq)]
struct JsonRecord {
    partition: Option<u32>,
    timestamp: Option<i64>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

/// As it stands in the line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonFields {
    partition: Option<u32>,
    #[serde(rename = "offset")]
    _offset: Option<i64>,
    timestamp: Option<i64>,
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    #[serde(default)]
    headers: Vec<Vec<Option<String>>>,
    crc: Option<String>,
}

impl JsonRecord {
    fn parse(line: &[u8]) -> Result<Self, String> {
        // The derived reader would take an array for the fields in their order.
        let first = line.trim_ascii_start().first();
        if first.is_some_and(|&byte| byte != b'{') {
            return Err(r#"a record is an object, such as {"value":"x"}"#.to_owned());
        }
        let fields: JsonFields = serde_json::from_slice(line).map_err(|e| e.to_string())?;
        if fields.crc.is_some() {
            return Err("it is marked as damaged".to_owned());
        }
        let headers = fields.headers.into_iter().map(header);
        Ok(Self {
            partition: fields.partition,
            timestamp: fields.timestamp,
            key: bytes("key", fields.key, fields.key_base64)?,
            value: bytes("value", fields.value, fields.value_base64)?,
            headers: headers.collect::<Result<_, _>>()?,
        })
    }
}

/// Text as it stands, or bytes in base64.
fn bytes(
    name: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("it has both {name} and {name}_base64")),
        (text, None) => Ok(text.map(String::into_bytes)),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map(Some)
            .map_err(|e| format!("{name}_base64 is no base64: {e}")),
    }
}

/// `[name, value]`, or `[name, null, base64]`.
fn header(fields: Vec<Option<String>>) -> Result<(String, Option<Vec<u8>>), String> {
    let mut fields = fields.into_iter();
    match (fields.next(), fields.next(), fields.next(), fields.next()) {
        (Some(Some(name)), Some(value), None, None) => Ok((name, value.map(String::into_bytes))),
        (Some(Some(name)), Some(None), Some(Some(base64)), None) => {
            let value = bytes("a header's value", None, Some(base64))?;
            Ok((name, value))
        }
        _ => Err("a header is [name, value] or [name, null, base64]".to_owned()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn json_says_what_the_record_has() {
        let line = r#"{"partition":3,"offset":9,"timestamp":-5,"key_base64":"/w==","value":null,
            "headers":[["a","x"],["b",null],["c",null,"/w=="]]}"#;
        let record = JsonRecord::parse(line.as_bytes()).unwrap();
        let expected = JsonRecord {
            partition: Some(3),
            timestamp: Some(-5),
            key: Some(vec![0xff]),
            value: None,
            headers: vec![
                ("a".into(), Some(b"x".to_vec())),
                ("b".into(), None),
                ("c".into(), Some(vec![0xff])),
            ],
        };
        assert_eq!(record, expected);
        let record = JsonRecord::parse(br#"{"value":"v\u0000"}"#).unwrap();
        assert_eq!((record.key, record.value), (None, Some(b"v\0".to_vec())));
    }

    #[test]
    fn what_is_no_record_is_refused_with_what_is_wrong() {
        for (line, words) in [
            ("", "EOF"),
            ("[1]", "is an object"),
            (r#"[0,1,"key",null,"value",null,[],null]"#, "is an object"),
            (r#"{"valu":"x"}"#, "unknown field `valu`"),
            (r#"{"value":5}"#, "invalid type"),
            (r#"{"partition":-1}"#, "invalid value"),
            (r#"{"value":"x","value_base64":"eA=="}"#, "both value"),
            (r#"{"key_base64":"?"}"#, "no base64"),
            (r#"{"headers":[["a"]]}"#, "a header is"),
            (r#"{"headers":[[null,"x"]]}"#, "a header is"),
            (r#"{"value":"x","crc":"bad"}"#, "damaged"),
        ] {
            let error = JsonRecord::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
