//! A program's side of the line protocol: a producer, a consumer and an administrator, over blocking sockets.
//!
//! Nothing here needs an async runtime. A [`Producer`] has two threads of its own; a [`Consumer`] and an [`Admin`] have none. docs/client.md is
//! the guide; [`crate::testing::Broker`] is a broker for a program's own tests.
//!
//! ```
//! use std::time::Duration;
//! use mini_broker::client::{Consumer, Message, OffsetSpec, Producer};
//!
//! let broker = mini_broker::testing::Broker::start();
//! let producer = Producer::connect(broker.addr())?;
//! let handle = producer.send(&Message::to("orders").key("anna").value("shoes"))?;
//! assert_eq!(handle.wait()?.offset, 0);
//!
//! let mut consumer = Consumer::connect(broker.addr())?;
//! consumer.assign_all("orders", OffsetSpec::Earliest)?;
//! let records = consumer.poll(Duration::from_secs(1))?;
//! assert_eq!(records.iter().next().and_then(|record| record.value), Some(&b"shoes"[..]));
//! # Ok::<(), mini_broker::client::Error>(())
//! ```

#![forbid(unsafe_code)]

mod admin;
mod consumer;
mod error;
mod producer;
mod wire;

pub use crate::api::{
    ConfigSource, ErrorCode, OffsetSpec, PartitionHealth, PartitionInfo, StartAt, TimeSpec,
    TopicInfo,
};
pub use admin::{Admin, Committed, Description, GroupInfo, PartitionOffsets, TopicConfig};
pub use consumer::{Consumer, Fetched, GroupOptions, Options as ConsumerOptions, Records, Reset};
pub use error::{Error, Refusal};
pub use producer::{Delivery, Message, Options as ProducerOptions, Placed, Producer};
