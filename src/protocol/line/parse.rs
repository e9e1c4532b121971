//! From the fields of a line to a request, for every verb that has no payload behind its line.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::time::Duration;

use crate::api::{
    ApiError, CrcMode, ErrorCode, OffsetSpec, Payload, Request, TailFrom, Target, quoted,
};

use super::forms::Form;
use super::group_verbs;
use super::lexer::{Args, bad, check_clean, next_field, number, target};
use super::offsets;
use super::replies::{Own, listing};
use super::verbs::{self, Kind, Verb, of};

/// `max=` of READ where it is left out, records.
const READ_MAX_DEFAULT: u64 = 100;
/// `max_bytes=` of FETCH where it is left out.
const FETCH_MAX_BYTES_DEFAULT: u64 = 1024 * 1024;
/// `min_bytes=` of FETCH where it is left out: one record of any size.
const FETCH_MIN_BYTES_DEFAULT: u64 = 1;

/// What a line without a payload means.
#[derive(Debug)]
pub(super) enum Command<'a> {
    /// The broker's.
    Broker(Request<'a>, Remember),
    /// The codec's own; closes the connection where the flag is set.
    Own(Own, Then),
}

/// What the codec keeps of a request for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Remember {
    /// `as=`.
    pub(super) form: Form,
    /// Whether each line begins with the partition (a TAIL of all, a CONSUME).
    pub(super) with_partition: bool,
    /// The number that an EXPLAIN asked for.
    pub(super) asked: Option<i64>,
}

/// What becomes of the connection after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// It goes on.
    GoOn,
    /// It ends.
    Close,
}

/// The target and value of a PUT, `rest` being what follows the verb.
///
/// # Errors
/// `BAD_ARGUMENT` where there is no space behind the target, or the target is none.
#[inline]
pub(super) fn put(rest: &[u8]) -> Result<(Target<'_>, Payload<'_>), ApiError> {
    let mut tail = rest;
    let field = next_field(&mut tail);
    let (Some(field), Some((_, value))) = (field, tail.split_first()) else {
        return Err(bad(format!(
            "there is no value; usage: {} (an empty value has the space before it)",
            of(Kind::Put).usage
        )));
    };
    let (to, key) = match field.iter().position(|&byte| byte == b':') {
        None => (field, None),
        Some(colon) => {
            let (to, key) = field.split_at_checked(colon).unwrap_or((field, &[]));
            (to, key.get(1..))
        }
    };
    let target = target(to)?;
    if target.topic.is_empty() {
        return Err(bad(format!("'{}' names no topic", quoted(field))));
    }
    Ok((
        target,
        Payload::Record {
            timestamp: None,
            key,
            value: Some(value),
            headers: &[],
        },
    ))
}

/// Reads a line of any verb but PUT, PRODUCE and BATCH, `rest` being what follows the verb.
///
/// # Errors
/// `BAD_ARGUMENT`, with the value and what would be right.
pub(super) fn command<'a>(verb: &'static Verb, rest: &'a [u8]) -> Result<Command<'a>, ApiError> {
    let args = Args::new(verb, rest);
    match verb.kind {
        Kind::Put => {
            let (target, payload) = put(rest)?;
            Ok(broker(Request::Append(target, payload)))
        }
        Kind::Produce | Kind::Batch => {
            // They come with a payload and another way; a line alone cannot be one.
            Err(bad(format!(
                "the payload is missing; usage: {}",
                verb.usage
            )))
        }
        Kind::Read => read(args),
        Kind::Fetch => fetch(args),
        Kind::Tail => tail(args),
        Kind::Consume => group_verbs::consume(args),
        Kind::Ack => group_verbs::ack(args),
        Kind::Commit => group_verbs::commit(args),
        Kind::Committed => group_verbs::committed(args),
        Kind::Groups => alone(args, broker(Request::Groups)),
        Kind::Offsets => one_target(args, Request::Offsets),
        Kind::Segments => one_target(args, Request::Segments),
        Kind::At => at(args),
        Kind::Explain => explain(args),
        Kind::Create => create(args),
        Kind::Alter => alter(args),
        Kind::Partitions => partitions(args),
        Kind::Trim => trim(args),
        Kind::Delete => one_topic(args, Request::Delete),
        Kind::Describe => one_topic(args, Request::Describe),
        Kind::Topics => alone(args, broker(Request::Topics)),
        Kind::Sync => alone(args, broker(Request::Sync)),
        Kind::Stats => alone(args, broker(Request::Stats)),
        Kind::Help => help(args),
        Kind::Stop => alone(args, own(Own::Static("OK\n"))),
        Kind::Ping => alone(args, own(Own::Static("OK PONG\n"))),
        Kind::Version => {
            let version = concat!("OK mini-broker ", env!("CARGO_PKG_VERSION"), "\n");
            alone(args, own(Own::Static(version)))
        }
        Kind::Quit => alone(args, Command::Own(Own::Static("OK\n"), Then::Close)),
    }
}

pub(super) fn broker(request: Request<'_>) -> Command<'_> {
    Command::Broker(request, Remember::default())
}

fn own<'a>(own: Own) -> Command<'a> {
    Command::Own(own, Then::GoOn)
}

pub(super) fn alone<'a>(args: Args<'a>, command: Command<'a>) -> Result<Command<'a>, ApiError> {
    args.end()?;
    Ok(command)
}

fn one_target<'a>(
    mut args: Args<'a>,
    request: impl FnOnce(Target<'a>) -> Request<'a>,
) -> Result<Command<'a>, ApiError> {
    let target = target(args.required("the topic")?)?;
    alone(args, broker(request(target)))
}

fn one_topic<'a>(
    mut args: Args<'a>,
    request: impl FnOnce(&'a [u8]) -> Request<'a>,
) -> Result<Command<'a>, ApiError> {
    let topic = args.required("the topic")?;
    alone(args, broker(request(topic)))
}

fn read(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let target = target(args.required("the topic")?)?;
    let from = offsets::offset(args.required("the offset")?)?;
    let mut remember = Remember::default();
    let (mut max_records, mut wait, mut crc) = (READ_MAX_DEFAULT, Duration::ZERO, CrcMode::Check);
    while let Some((name, value)) = args.option()? {
        match name {
            "max" => max_records = number("max", value, 1)?,
            "wait" => wait = milliseconds(value)?,
            "as" => remember.form = form(value)?,
            _ => crc = crc_mode(value)?,
        }
    }
    Ok(Command::Broker(
        Request::Read {
            target,
            from,
            max_records,
            wait,
            crc,
        },
        remember,
    ))
}

fn fetch(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let target = target(args.required("the topic")?)?;
    let from = offsets::offset(args.required("the offset")?)?;
    let (mut max_bytes, mut min_bytes) = (FETCH_MAX_BYTES_DEFAULT, FETCH_MIN_BYTES_DEFAULT);
    let mut wait = Duration::ZERO;
    while let Some((name, value)) = args.option()? {
        match name {
            "max_bytes" => max_bytes = number("max_bytes", value, 1)?,
            "min_bytes" => min_bytes = number("min_bytes", value, 0)?,
            _ => wait = milliseconds(value)?,
        }
    }
    Ok(broker(Request::Fetch {
        target,
        from,
        max_bytes,
        min_bytes,
        wait,
    }))
}

fn tail(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let to = args.required("the topic")?;
    let all = to.strip_suffix(b"/*");
    let from = match args.optional()? {
        None => OffsetSpec::Latest,
        Some(field) => match (offsets::offset(field)?, all) {
            (OffsetSpec::Offset(_), Some(_)) => {
                return Err(bad(format!(
                    "'{}' is one partition's offset; a TAIL of all takes earliest, latest, -<n> or @<time>",
                    quoted(field)
                )));
            }
            (from, _) => from,
        },
    };
    let mut remember = Remember {
        with_partition: all.is_some(),
        ..Remember::default()
    };
    while let Some((_, value)) = args.option()? {
        remember.form = form(value)?;
    }
    let from = match all {
        Some(topic) => TailFrom::All(topic, from),
        None => TailFrom::One(target(to)?, from),
    };
    Ok(Command::Broker(Request::Tail(from), remember))
}

fn at(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let target = target(args.required("the topic")?)?;
    let time = offsets::time(args.required("the time")?)?;
    alone(args, broker(Request::At(target, time)))
}

fn explain(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let target = target(args.required("the topic")?)?;
    let offset = offsets::offset(args.required("the offset")?)?;
    let asked = match offset {
        OffsetSpec::Offset(offset) => Some(offset),
        OffsetSpec::Earliest | OffsetSpec::Latest | OffsetSpec::Last(_) | OffsetSpec::Time(_) => {
            None
        }
    };
    args.end()?;
    Ok(Command::Broker(
        Request::Explain(target, offset),
        Remember {
            asked,
            ..Remember::default()
        },
    ))
}

fn create(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let topic = args.required("the topic")?;
    let mut partitions = None;
    let mut configs = Vec::new();
    let mut names = HashSet::new();
    while let Some((name, value)) = args.pair()? {
        check_new(&mut names, name)?;
        if name == b"partitions" {
            partitions = Some(number("partitions", value, 1)?);
        } else {
            configs.push(config(name, value)?);
        }
    }
    Ok(broker(Request::Create {
        topic,
        partitions,
        configs,
    }))
}

fn alter(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let topic = args.required("the topic")?;
    let mut configs = Vec::new();
    let mut names = HashSet::new();
    while let Some((name, value)) = args.pair()? {
        check_new(&mut names, name)?;
        configs.push(config(name, value)?);
    }
    if configs.is_empty() {
        return Err(bad(format!(
            "nothing is to be changed; usage: {}",
            of(Kind::Alter).usage
        )));
    }
    Ok(broker(Request::Alter { topic, configs }))
}

fn check_new<'a>(names: &mut HashSet<&'a [u8]>, name: &'a [u8]) -> Result<(), ApiError> {
    if names.insert(name) {
        return Ok(());
    }
    Err(bad(format!(
        "'{}' came twice; once would be right",
        quoted(name)
    )))
}

fn config<'a>(name: &'a [u8], value: &'a [u8]) -> Result<(&'a str, &'a str), ApiError> {
    let pair = std::str::from_utf8(name)
        .ok()
        .zip(std::str::from_utf8(value).ok());
    pair.ok_or_else(|| {
        ApiError::new(
            ErrorCode::InvalidConfig,
            format!(
                "'{}={}' is not a config: it is not UTF-8",
                quoted(name),
                quoted(value)
            ),
        )
    })
}

fn partitions(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let topic = args.required("the topic")?;
    let count = number("partitions", args.required("how many")?, 1)?;
    alone(args, broker(Request::Partitions(topic, count)))
}

fn trim(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let target = target(args.required("the topic")?)?;
    let offset = number("the offset", args.required("the offset")?, 0)?;
    alone(args, broker(Request::Trim(target, offset)))
}

fn help(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let lines = match args.optional()? {
        None => verbs::help_all(),
        Some(word) => verbs::help(verbs::find(word)?),
    };
    args.end()?;
    Ok(own(Own::Text(listing(&lines))))
}

fn milliseconds(value: &[u8]) -> Result<Duration, ApiError> {
    number("wait", value, 0).map(Duration::from_millis)
}

pub(super) fn form(value: &[u8]) -> Result<Form, ApiError> {
    check_clean(value)?;
    Form::of(value).ok_or_else(|| bad(format!("as '{}' is not tsv, json or value", quoted(value))))
}

fn crc_mode(value: &[u8]) -> Result<CrcMode, ApiError> {
    match value {
        b"check" => Ok(CrcMode::Check),
        b"skip" => Ok(CrcMode::Skip),
        _ => Err(bad(format!("crc '{}' is not check or skip", quoted(value)))),
    }
}
