//! The lines of consumer groups.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{AckMode, ApiError, Consume, INFLIGHT_MAX, Request, StartAt, quoted};

use super::forms::Form;
use super::lexer::{Args, bad, number, target};
use super::offsets;
use super::parse::{Command, Remember, alone, broker, form};

/// `max_inflight=` of CONSUME where it is left out.
const MAX_INFLIGHT_DEFAULT: u64 = 1000;

/// CONSUME.
///
/// # Errors
/// `BAD_ARGUMENT`, with the value and what would be right.
pub(super) fn consume(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let group = args.required("the group")?;
    let topic = args.required("the topic")?;
    let mut remember = Remember {
        with_partition: true,
        ..Remember::default()
    };
    let (mut from, mut ack) = (StartAt::Earliest, AckMode::Manual);
    let (mut max_inflight, mut ack_wait) = (None, None);
    while let Some((name, value)) = args.option()? {
        match name {
            "from" => from = start(value)?,
            "ack" => ack = mode(value)?,
            "max_inflight" => max_inflight = Some(inflight(value)?),
            "as" => remember.form = form(value)?,
            _ => ack_wait = Some(Duration::from_millis(number("ack_wait", value, 1)?)),
        }
    }
    if remember.form == Form::Value && ack == AckMode::Manual {
        return Err(bad(
            "as=value shows no offset that could be acknowledged; it needs ack=auto",
        ));
    }
    let max_inflight = max_inflight.unwrap_or(match ack {
        AckMode::Manual => MAX_INFLIGHT_DEFAULT,
        AckMode::Auto => INFLIGHT_MAX,
    });
    let consume = Consume {
        group,
        topic,
        from,
        ack,
        max_inflight,
        ack_wait,
    };
    Ok(Command::Broker(Request::Consume(consume), remember))
}

fn start(value: &[u8]) -> Result<StartAt, ApiError> {
    match value {
        b"earliest" => Ok(StartAt::Earliest),
        b"latest" => Ok(StartAt::Latest),
        _ => Err(bad(format!(
            "from '{}' is not earliest or latest",
            quoted(value)
        ))),
    }
}

fn mode(value: &[u8]) -> Result<AckMode, ApiError> {
    match value {
        b"manual" => Ok(AckMode::Manual),
        b"auto" => Ok(AckMode::Auto),
        _ => Err(bad(format!(
            "ack '{}' is not manual or auto",
            quoted(value)
        ))),
    }
}

fn inflight(value: &[u8]) -> Result<u64, ApiError> {
    let count = number("max_inflight", value, 1)?;
    if count > INFLIGHT_MAX {
        return Err(bad(format!(
            "max_inflight {count} is too large; 1 to {INFLIGHT_MAX} are possible"
        )));
    }
    Ok(count)
}

/// ACK.
///
/// # Errors
/// `BAD_ARGUMENT`, with the value and what would be right.
pub(super) fn ack(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let partition = number("the partition", args.required("the partition")?, 0)?;
    let offset = number("the offset", args.required("the offset")?, 0)?;
    alone(args, broker(Request::Ack { partition, offset }))
}

/// COMMIT.
///
/// # Errors
/// `BAD_ARGUMENT`, with the value and what would be right.
pub(super) fn commit(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let group = args.required("the group")?;
    let target = target(args.required("the topic")?)?;
    let offset = offsets::offset(args.required("the next offset")?)?;
    let commit = Request::Commit {
        group,
        target,
        offset,
    };
    alone(args, broker(commit))
}

/// COMMITTED.
///
/// # Errors
/// `BAD_ARGUMENT`, with the value and what would be right.
pub(super) fn committed(mut args: Args<'_>) -> Result<Command<'_>, ApiError> {
    let group = args.required("the group")?;
    let target = target(args.required("the topic")?)?;
    alone(args, broker(Request::Committed { group, target }))
}
