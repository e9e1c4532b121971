//! The client library against a real broker in the test's process, and against one that answers by a script.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod admin;
mod consumer;
mod group;
mod producer;
mod scripted;

use std::time::Duration;

use mini_broker::client::{Consumer, OffsetSpec};

/// What takes longer fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

/// The values that a partition holds, as text.
fn values(address: &str, topic: &str, partition: u32) -> Vec<String> {
    let mut consumer = Consumer::connect(address).unwrap();
    consumer
        .assign(topic, &[partition], OffsetSpec::Earliest)
        .unwrap();
    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
    let mut found = Vec::new();
    loop {
        let records = consumer.poll(Duration::ZERO).unwrap();
        if records.is_empty() {
            return found;
        }
        found.extend(records.iter().map(|record| text(record.value)));
    }
}
