//! One consumer: its partitions, where it is in each, what it was sent and has not acknowledged.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::api::{AckMode, ConnectionId, Consume, PartitionKey, StartAt};
use crate::record::Records;

use super::window::Window;
use super::{Groups, ShareId};

/// A partition that a member has.
#[derive(Debug)]
pub(in crate::broker) struct Held {
    pub(in crate::broker) number: u32,
    pub(in crate::broker) key: PartitionKey,
    /// The next offset to be sent; `None` until it is looked up.
    pub(in crate::broker) position: Option<i64>,
    /// Below it, this member has acknowledged everything or had nothing to.
    acked: i64,
    /// Whether the next ACK is committed whatever it says: what is committed came from elsewhere.
    is_contested: bool,
    window: Window,
}

impl Held {
    /// The offset behind what was sent, where that is more than was acknowledged.
    pub(super) fn sent(&self) -> Option<i64> {
        self.position.filter(|position| *position > self.acked)
    }
}

/// What an acknowledgement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::broker) enum Acknowledged {
    /// The connection does not have the partition.
    NotHeld,
    /// It was sent less: up to and without that offset.
    NotSent(Option<i64>),
    /// Nothing is to be committed.
    Nothing,
    /// That is to be committed.
    Commit(i64),
}

/// What a member is given next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::broker) struct Next {
    /// Its place among the member's partitions.
    pub(in crate::broker) place: usize,
    pub(in crate::broker) number: u32,
    pub(in crate::broker) key: PartitionKey,
    /// See [`Held::position`].
    pub(in crate::broker) position: Option<i64>,
}

/// A consumer.
#[derive(Debug)]
pub(in crate::broker) struct Member {
    pub(in crate::broker) share: ShareId,
    pub(in crate::broker) name: Box<str>,
    pub(in crate::broker) ack: AckMode,
    pub(in crate::broker) from: StartAt,
    max_inflight: u64,
    ack_wait: Option<Duration>,
    /// By number.
    pub(in crate::broker) held: Vec<Held>,
    /// What it had and was not told yet that it has no more: where it comes back before that, nothing has happened.
    parted: Vec<Held>,
    /// The place in `held` that is looked at first.
    turn: usize,
    inflight: u64,
    /// Whether it is to be told which partitions it has.
    pub(in crate::broker) is_untold: bool,
    /// Whether it was told that delivery is held back, since it last was not.
    is_told_full: bool,
    /// Since when it has records and acknowledges none.
    idle_since: Option<Duration>,
    /// The same before it had to give back the last partition of which it has some.
    parted_idle_since: Option<Duration>,
}

impl Member {
    pub(super) fn new(share: ShareId, name: Box<str>, consume: &Consume<'_>) -> Self {
        Self {
            share,
            name,
            ack: consume.ack,
            from: consume.from,
            max_inflight: consume.max_inflight,
            ack_wait: consume.ack_wait,
            held: Vec::new(),
            parted: Vec::new(),
            turn: 0,
            inflight: 0,
            is_untold: true,
            is_told_full: false,
            idle_since: None,
            parted_idle_since: None,
        }
    }

    /// It has a partition from here on.
    pub(super) fn hold(&mut self, number: u32, key: PartitionKey) {
        let place = self.held.partition_point(|held| held.number < number);
        let parted = self.parted.iter().position(|held| held.number == number);
        let held = match parted.map(|at| self.parted.swap_remove(at)) {
            Some(held) => Held {
                // What is committed may be somebody else's word by now.
                is_contested: true,
                ..held
            },
            None => Held {
                number,
                key,
                position: None,
                acked: 0,
                is_contested: false,
                window: Window::default(),
            },
        };
        self.inflight += held.window.len();
        if self.inflight > 0 && self.idle_since.is_none() {
            self.idle_since = self.parted_idle_since;
        }
        self.held.insert(place, held);
        self.is_untold = true;
    }

    /// It has a partition no more; returns what is committed of it by that, where it does not acknowledge.
    pub(super) fn release(&mut self, number: u32) -> Option<i64> {
        let place = self.place(number)?;
        let held = self.held.remove(place);
        let sent = held.sent().filter(|_| self.ack == AckMode::Auto);
        self.inflight = self.inflight.saturating_sub(held.window.len());
        self.is_untold = true;
        self.turn = 0;
        if self.room() > 0 {
            self.is_told_full = false;
        }
        if self.inflight == 0 {
            self.parted_idle_since = self.idle_since.take().or(self.parted_idle_since);
        }
        self.parted.push(held);
        sent
    }

    /// It is told which partitions it has: their numbers.
    pub(super) fn tell(&mut self) -> Option<Vec<u32>> {
        if !std::mem::take(&mut self.is_untold) {
            return None;
        }
        self.parted.clear();
        self.parted_idle_since = None;
        Some(self.held.iter().map(|held| held.number).collect())
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.held
            .binary_search_by_key(&number, |held| held.number)
            .ok()
    }

    /// The keys of its partitions.
    pub(in crate::broker) fn keys(&self) -> Vec<PartitionKey> {
        self.held.iter().map(|held| held.key).collect()
    }

    /// The numbers of its partitions, for a person.
    pub(in crate::broker) fn numbers(&self) -> String {
        if self.held.is_empty() {
            return "none".to_owned();
        }
        let numbers: Vec<String> = self
            .held
            .iter()
            .map(|held| held.number.to_string())
            .collect();
        numbers.join(",")
    }

    pub(super) fn next(&self, is_wanted: impl Fn(&Held) -> bool) -> Option<Next> {
        let places = (self.turn..self.held.len()).chain(0..self.turn);
        let mut found = places.filter_map(|place| Some((place, self.held.get(place)?)));
        let (place, held) = found.find(|(_, held)| is_wanted(held))?;
        Some(Next {
            place,
            number: held.number,
            key: held.key,
            position: held.position,
        })
    }

    /// How many records it may be sent now.
    pub(in crate::broker) fn room(&self) -> u64 {
        self.max_inflight.saturating_sub(self.inflight)
    }

    /// How many records are out, where it has to be told that this holds delivery back.
    pub(in crate::broker) fn tell_full(&mut self) -> Option<u64> {
        let is_told = std::mem::replace(&mut self.is_told_full, true);
        (!is_told).then_some(self.inflight)
    }

    /// Begins or goes on at that offset, in the partition at that place; `acked` where nothing before it is waited for.
    pub(in crate::broker) fn begin(&mut self, place: usize, offset: i64) {
        if let Some(held) = self.held.get_mut(place) {
            held.position = Some(offset);
            held.acked = offset;
        }
    }

    /// Goes on behind what is not to be had, in the partition at that place.
    pub(in crate::broker) fn skip(&mut self, place: usize, next: i64) {
        if let Some(held) = self.held.get_mut(place) {
            held.position = Some(next);
        }
    }

    /// Records were sent from the partition at that place; the turn goes to the one behind it.
    pub(in crate::broker) fn sent(
        &mut self,
        place: usize,
        records: &Records,
        next: i64,
        mono: Duration,
    ) {
        self.skip(place, next);
        if let Some(held) = self.held.get_mut(place) {
            for record in records.iter() {
                held.window.push(record.offset);
            }
        }
        self.inflight += u64::try_from(records.len()).unwrap_or(u64::MAX);
        if self.inflight > 0 {
            self.idle_since.get_or_insert(mono);
        }
        self.turn = if place + 1 < self.held.len() {
            place + 1
        } else {
            0
        };
    }

    /// Everything of a partition below that offset is done with.
    pub(in crate::broker) fn acknowledge(
        &mut self,
        number: u32,
        below: i64,
        mono: Duration,
    ) -> Acknowledged {
        let place = self.place(number);
        let Some(held) = place.and_then(|place| self.held.get_mut(place)) else {
            return Acknowledged::NotHeld;
        };
        match held.position {
            Some(position) if below <= position => {}
            position => return Acknowledged::NotSent(position),
        }
        let done = held.window.acknowledge(below);
        if done > 0 {
            self.inflight = self.inflight.saturating_sub(done);
            self.is_told_full = false;
            self.idle_since = (self.inflight > 0).then_some(mono);
        }
        let is_contested = std::mem::take(&mut held.is_contested);
        if below <= held.acked && !is_contested {
            return Acknowledged::Nothing;
        }
        held.acked = held.acked.max(below);
        Acknowledged::Commit(held.acked)
    }

    /// Something else was committed: the next ACK wins over it.
    pub(super) fn contest(&mut self, number: u32) {
        let place = self.place(number);
        if let Some(held) = place.and_then(|place| self.held.get_mut(place)) {
            held.is_contested = true;
        }
    }

    /// What it acknowledged could not be committed: only so much is.
    pub(super) fn take_back(&mut self, number: u32, committed: i64) {
        let place = self.place(number);
        if let Some(held) = place.and_then(|place| self.held.get_mut(place)) {
            held.acked = held.acked.min(committed);
        }
    }

    /// When it loses its place, unless it acknowledges something.
    pub(in crate::broker) fn deadline(&self) -> Option<Duration> {
        Some(self.idle_since?.saturating_add(self.ack_wait?))
    }

    /// `ack_wait`.
    pub(in crate::broker) fn ack_wait(&self) -> Duration {
        self.ack_wait.unwrap_or_default()
    }
}

impl Groups {
    /// Commits what a member without acknowledgements was sent of a partition that it has no more: it must not come twice.
    pub(super) fn commit_sent(&mut self, share: ShareId, partition: u32, sent: i64) {
        // Where there is no room for one more commit, the records come twice.
        drop(self.commit(share, partition, sent));
    }

    /// What was committed of a partition came from elsewhere; returns whether somebody has it.
    pub(in crate::broker) fn contest(&mut self, share: ShareId, partition: u32) -> bool {
        let owner: Option<ConnectionId> = self.owner(share, partition);
        match owner.and_then(|owner| self.member_mut(owner)) {
            Some(member) => {
                member.contest(partition);
                true
            }
            None => false,
        }
    }
}
