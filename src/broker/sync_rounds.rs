//! SYNC: rounds through the partitions that hold something unsynced, a slice in a flush.
//!
//! A sync may take a disk milliseconds, and without `always` every one of thousands of partitions may need one. So a round goes
//! over as many turns as it takes. Who asks while one is under way waits for the next: the partitions behind it may have been appended to since.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::{ConnectionId, PartitionKey};
use crate::clock::Clock;
use crate::fs::Fs;

use super::Broker;
use super::delayed_fetch::{Parked, Wait};

/// Partitions that one flush syncs for a round at most.
pub(super) const ROUND_SYNCS: usize = 64;

/// After so long a flush leaves the rest of a round to the next.
const ROUND_TIME: Duration = Duration::from_millis(5);

/// The rounds.
#[derive(Debug, Default)]
pub(super) struct SyncRounds {
    /// How many are over.
    over: u64,
    /// The one under way.
    round: Option<Round>,
    /// Who waits for the next.
    waiters: Vec<ConnectionId>,
}

#[derive(Debug)]
struct Round {
    left: VecDeque<PartitionKey>,
    waiters: Vec<ConnectionId>,
}

impl SyncRounds {
    /// Whether a flush has something to do for one.
    pub(super) fn is_wanted(&self) -> bool {
        self.round.is_some() || !self.waiters.is_empty()
    }

    /// Whether the round of that number is over.
    pub(super) fn is_over(&self, round: u64) -> bool {
        self.over >= round
    }
}

impl<F: Fs> Broker<F> {
    /// SYNC: the connection waits for the round that begins with the next flush, or for the one behind that which is under way.
    pub(super) fn park_sync(&mut self, connection: ConnectionId) {
        let rounds = &mut self.sync_rounds;
        let round = rounds.over + 1 + u64::from(rounds.round.is_some());
        rounds.waiters.push(connection);
        let wait = Wait::Parked(Parked::Sync { round });
        self.delayed.park(connection, wait, None);
    }

    /// A flush's part of the round that is wanted.
    pub(super) fn sync_slice(&mut self, clock: &dyn Clock) {
        let rounds = &mut self.sync_rounds;
        let mut round = rounds.round.take().unwrap_or_else(|| Round {
            left: self
                .partitions
                .keys_of(|p| p.log.is_dirty() || p.log.is_read_only()),
            waiters: std::mem::take(&mut rounds.waiters),
        });
        let started = clock.now().mono;
        for _ in 0..ROUND_SYNCS {
            let Some(key) = round.left.pop_front() else {
                break;
            };
            self.sync(key, clock);
            self.publish(key);
            if clock.now().mono.saturating_sub(started) >= ROUND_TIME {
                break;
            }
        }
        if !round.left.is_empty() {
            self.sync_rounds.round = Some(round);
            return;
        }
        self.sync_rounds.over += 1;
        for connection in round.waiters {
            self.delayed.wake_one(connection);
        }
    }
}
