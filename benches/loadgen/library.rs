//! The client library, as a program uses it: what it makes of the rates of BATCH and FETCH.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant};

use mini_broker::client::{Consumer, Message, OffsetSpec, Producer};

use super::TOPIC;
use super::requests::Values;
use crate::support::broker::{Broker, Client};
use crate::support::cleanup::TempDir;
use crate::support::{Result, machine, units};

/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// How many values there are; they are sent over and over.
const VALUES: usize = 1024;
/// Nothing came for so long: the run is given up.
const STALL: Duration = Duration::from_mins(1);

/// A run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// Records a second that a Producer had stored.
    pub(crate) produced_per_s: f64,
    /// Bytes a second that a Consumer took, records as they are stored, each decoded and looked at.
    pub(crate) consumed_bytes_per_s: f64,
}

/// Produces and consumes so many records, on a broker of its own.
///
/// # Errors
/// What went wrong, as a sentence.
pub(crate) fn run(parent: Option<&Path>, records: u64) -> Result<Run> {
    let directory = TempDir::new(parent)?;
    // Layout 2 adds 36 bytes.
    machine::touch_memory(directory.path(), records * 136)?;
    let broker = Broker::start(&directory.path().join("data"), "never", &[])?;
    Client::connect(broker.addr)?.call(format!("CREATE {TOPIC}"))?;
    let address = broker.addr.to_string();
    let produced = produce(&address, records)?;
    let (bytes, consumed) = consume(&address, records)?;
    Ok(Run {
        produced_per_s: units::float(records) / produced.as_secs_f64(),
        consumed_bytes_per_s: units::float(bytes) / consumed.as_secs_f64(),
    })
}

fn produce(address: &str, records: u64) -> Result<Duration> {
    let mut random = Values::new(1);
    let values: Vec<Vec<u8>> = std::iter::repeat_with(|| {
        let mut value = Vec::new();
        random.append(VALUE_BYTES, &mut value);
        value
    })
    .take(VALUES)
    .collect();
    let producer = Producer::connect(address)?;
    let begin = Instant::now();
    for value in values.iter().cycle().take(usize::try_from(records)?) {
        producer.send(&Message::to(TOPIC).value(value))?;
    }
    producer.close()?;
    Ok(begin.elapsed())
}

fn consume(address: &str, records: u64) -> Result<(u64, Duration)> {
    let mut consumer = Consumer::connect(address)?;
    consumer.assign(TOPIC, &[0], OffsetSpec::Earliest)?;
    let (mut count, mut bytes, mut value_bytes) = (0, 0, 0);
    let begin = Instant::now();
    while count < records {
        let polled = consumer.poll(STALL)?;
        if polled.is_empty() {
            return Err("nothing came for a minute".into());
        }
        bytes += polled.stored_bytes() as u64;
        for record in polled.iter() {
            count += 1;
            value_bytes += record.value.map_or(0, <[u8]>::len);
        }
    }
    let elapsed = begin.elapsed();
    if value_bytes as u64 != records * VALUE_BYTES as u64 {
        return Err(format!("{value_bytes} bytes of values came").into());
    }
    Ok((bytes, elapsed))
}
