//! What this turn commits: one record for each partition of a group, however many acknowledgements asked for it.

#![forbid(unsafe_code)]

use std::collections::hash_map::Entry;
use std::time::Duration;

use crate::api::{ApiError, CommitAnswer, ErrorCode};

use super::{COMMITS_MAX, Commit, Groups, Share, ShareId, offsets};

/// A commit that the next flush writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::broker) struct Pending {
    /// Whose; `None` where that is gone by now.
    pub(in crate::broker) place: Option<(ShareId, u32)>,
    pub(in crate::broker) offset: i64,
    pub(in crate::broker) lost: Option<i64>,
}

/// What an ACK or COMMIT waits for: its place among the commits of the turn, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(in crate::broker) pending: Option<usize>,
    /// What is answered where all is well.
    pub answer: CommitAnswer,
}

/// How many forgotten commits one flush writes.
const FORGOTTEN_PER_FLUSH: usize = 1000;

/// Where forgotten commits cannot be written, that is tried again after so long.
const FORGOTTEN_RETRY: Duration = Duration::from_secs(1);

impl Groups {
    /// Has the next flush commit that; returns its place.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where there are too many committed offsets.
    pub(in crate::broker) fn commit(
        &mut self,
        share: ShareId,
        partition: u32,
        offset: i64,
    ) -> Result<usize, ApiError> {
        self.put(
            share,
            partition,
            Pending {
                place: Some((share, partition)),
                offset,
                lost: None,
            },
        )
    }

    fn put(&mut self, share: ShareId, partition: u32, pending: Pending) -> Result<usize, ApiError> {
        let is_new = self
            .get(share)
            .is_none_or(|share| !share.commits.contains_key(&partition));
        if is_new && self.commits + self.pending.len() >= COMMITS_MAX {
            return Err(ApiError::new(
                ErrorCode::BadArgument,
                format!("there are {COMMITS_MAX} committed offsets already, and no more are kept"),
            ));
        }
        match self.pending_places.entry((share, partition)) {
            Entry::Occupied(place) => {
                let place = *place.get();
                if let Some(before) = self.pending.get_mut(place) {
                    *before = pending;
                }
                Ok(place)
            }
            Entry::Vacant(place) => {
                self.pending.push(pending);
                Ok(*place.insert(self.pending.len() - 1))
            }
        }
    }

    /// The commit of a partition that the next flush writes.
    pub(in crate::broker) fn pending(&self, share: ShareId, partition: u32) -> Option<usize> {
        self.pending_places.get(&(share, partition)).copied()
    }

    /// Whether the next flush has something to write.
    pub(in crate::broker) fn has_writes(&self, mono: Duration) -> bool {
        !self.pending.is_empty() || !self.forgotten.is_empty() && self.forgotten_due <= mono
    }

    /// When forgotten commits are to be written.
    pub(in crate::broker) fn forgotten_due(&self) -> Option<Duration> {
        (!self.forgotten.is_empty()).then_some(self.forgotten_due)
    }

    /// Begins a flush: what the last one decided is of no use any more.
    pub(in crate::broker) fn begin_flush(&mut self) {
        self.decided.clear();
    }

    /// Takes out what is to be written: forgotten keys, which come first, and commits.
    pub(in crate::broker) fn take_writes(
        &mut self,
        mono: Duration,
    ) -> (Vec<Box<[u8]>>, Vec<Pending>) {
        self.pending_places.clear();
        let pending = std::mem::take(&mut self.pending);
        let mut forgotten = Vec::new();
        if self.forgotten_due <= mono {
            while forgotten.len() < FORGOTTEN_PER_FLUSH
                && let Some(key) = self.forgotten.pop_first()
            {
                forgotten.push(key);
            }
        }
        (forgotten, pending)
    }

    /// A forgotten key could not be written.
    pub(in crate::broker) fn forget_later(&mut self, key: Box<[u8]>, mono: Duration) {
        self.forgotten.insert(key);
        self.forgotten_due = mono.saturating_add(FORGOTTEN_RETRY);
    }

    /// What became of the next commit of this flush, in their order.
    pub(in crate::broker) fn decide(&mut self, pending: &Pending, error: Option<ApiError>) {
        if let Some((id, partition)) = pending.place {
            if error.is_none() {
                let commit = Commit {
                    offset: pending.offset,
                    lost: pending.lost,
                    at_ms: self.wall_ms,
                };
                self.set(id, partition, commit);
            } else {
                self.take_back(id, partition);
            }
        }
        self.decided.push(error);
    }

    /// A commit failed: whoever has the partition has acknowledged only what is committed.
    pub(in crate::broker) fn take_back(&mut self, id: ShareId, partition: u32) {
        let commit = self.get(id).and_then(|share| share.commits.get(&partition));
        let committed = commit.map_or(i64::MIN, |commit| commit.offset);
        if let Some(owner) = self.owner(id, partition)
            && let Some(member) = self.member_mut(owner)
        {
            member.take_back(partition, committed);
        }
    }

    /// What became of a commit, between the flush and the end of the turn.
    pub(in crate::broker) fn decided(&self, ticket: Ticket) -> Option<&ApiError> {
        self.decided.get(ticket.pending?)?.as_ref()
    }

    /// Has a committed offset in memory.
    pub(in crate::broker) fn set(&mut self, id: ShareId, partition: u32, commit: Commit) {
        let Some(share) = self.shares.get_mut(id.0) else {
            return;
        };
        if share.commits.insert(partition, commit).is_none() {
            self.commits += 1;
        }
        if !self.forgotten.is_empty() {
            // What is committed anew is not to be forgotten.
            let key = offsets::key(&share.group, &share.topic, partition);
            self.forgotten.remove(&key);
        }
        if let Some(group) = self.by_name.get_mut(&share.group) {
            group.used_ms = group.used_ms.max(commit.at_ms);
        }
    }

    /// A committed offset is beyond the end of its log: it goes back to the end, and the next flush writes that.
    pub(in crate::broker) fn set_lost(&mut self, id: ShareId, partition: u32, end: i64) {
        let Some(commit) = self
            .shares
            .get_mut(id.0)
            .and_then(|share| share.commits.get_mut(&partition))
        else {
            return;
        };
        commit.lost = Some(commit.lost.unwrap_or(commit.offset));
        commit.offset = end;
        let pending = Pending {
            place: Some((id, partition)),
            offset: end,
            lost: commit.lost,
        };
        drop(self.put(id, partition, pending));
    }

    /// The commits of a share are forgotten, on the disk as well.
    pub(super) fn forget_commits(&mut self, share: &Share, id: ShareId) {
        for &partition in share.commits.keys() {
            let key = offsets::key(&share.group, &share.topic, partition);
            self.forgotten.insert(key);
        }
        for pending in &mut self.pending {
            if let Some((_, partition)) = pending.place.take_if(|(share, _)| *share == id) {
                self.pending_places.remove(&(id, partition));
            }
        }
    }

    /// One commit is forgotten, on the disk as well.
    pub(in crate::broker) fn forget_commit(&mut self, id: ShareId, partition: u32) {
        if let Some(share) = self.get(id) {
            let key = offsets::key(&share.group, &share.topic, partition);
            self.forgotten.insert(key);
        }
        self.remove(id, partition);
    }

    /// A record of the topic says that this was forgotten.
    pub(in crate::broker) fn remove(&mut self, id: ShareId, partition: u32) {
        if let Some(share) = self.shares.get_mut(id.0)
            && share.commits.remove(&partition).is_some()
        {
            self.commits -= 1;
        }
    }
}
