//! Which partition an append goes to.
#![forbid(unsafe_code)]

use crate::api::{ApiError, Now, PartitionKey, Payload, Target};
use crate::fs::Fs;

use super::{Broker, errors};

/// Where the append before went: a producer mostly stays with one target, which then costs a comparison of the name.
#[derive(Debug, Default)]
pub(super) struct LastTarget {
    /// Its memory is used again.
    topic: Vec<u8>,
    partition: Option<u32>,
    route: Route,
}

/// Where an append goes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Route {
    pub(super) key: PartitionKey,
    /// The partition's number in its topic.
    pub(super) number: u32,
    /// Whether every append to that target goes there, as long as the topic is as it is.
    pub(super) is_fixed: bool,
}

impl<F: Fs> Broker<F> {
    /// The partition that an append goes to.
    #[inline]
    pub(super) fn route(
        &mut self,
        target: Target<'_>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<Route, ApiError> {
        match &self.last {
            Some(last) if last.partition == target.partition && last.topic == target.topic => {
                Ok(last.route)
            }
            Some(_) | None => self.find_route(target, payload, now),
        }
    }

    #[inline(never)]
    fn find_route(
        &mut self,
        target: Target<'_>,
        payload: &Payload<'_>,
        now: Now,
    ) -> Result<Route, ApiError> {
        let id = match self.topics.last_named(target.topic) {
            Some(id) => id,
            None => self.find_or_create(target, payload, now)?,
        };
        if self.topics.get(id).is_some_and(|topic| topic.is_doubtful) {
            self.restore_topic(id)?;
        }
        let topic = self
            .topics
            .get(id)
            .ok_or_else(|| errors::unknown_topic(target.topic))?;
        let number = match (target.partition, topic.partitions.as_slice()) {
            (Some(number), _) => number,
            (None, &[_]) => 0,
            (None, _) => self.choose_partition(id, payload)?,
        };
        let topic = self
            .topics
            .get(id)
            .ok_or_else(|| errors::unknown_topic(target.topic))?;
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        match topic.partitions.get(place) {
            Some(&key) => {
                let route = Route {
                    key,
                    number,
                    is_fixed: target.partition.is_some() || topic.partitions.len() == 1,
                };
                if route.is_fixed {
                    let last = self.last.get_or_insert_default();
                    last.topic.clear();
                    last.topic.extend_from_slice(target.topic);
                    (last.partition, last.route) = (target.partition, route);
                }
                Ok(route)
            }
            None => Err(errors::unknown_partition(
                &topic.name,
                number,
                topic.partition_count(),
            )),
        }
    }
}
