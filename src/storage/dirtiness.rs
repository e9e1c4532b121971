//! Which log needs compaction, and how far it may go now. Kafka's `LogCleanerManager` is the source of the rules.

#![forbid(unsafe_code)]

use crate::fs::Fs;

use super::Error;
use super::log::Log;

/// How much of a log waits for compaction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dirtiness {
    /// Dirty bytes that may be cleaned, as a part of those and the clean ones.
    pub ratio: f64,
    /// Those bytes.
    pub bytes: u64,
    /// Whether they must be cleaned now: they are over the ratio, or the oldest of them has waited for `max.compaction.lag.ms`.
    pub is_due: bool,
}

impl<F: Fs> Log<F> {
    /// The first offset that may not be cleaned now: of the active segment, of what readers cannot see yet, of what a power cut may take (the
    /// record that it replaces would be gone for nothing), or of the first dirty segment that holds something younger than `min.compaction.lag.ms`.
    pub(super) fn uncleanable(&mut self, dirty: i64, now_ms: i64) -> Result<i64, Error> {
        let youngest = now_ms.saturating_sub(self.config.min_compaction_lag_ms);
        let bases: Vec<i64> = self
            .sealed
            .range(self.floor_base(dirty)..)
            .map(|(b, _)| *b)
            .collect();
        for base in bases {
            let end = self.next_base(base).unwrap_or(self.active.base);
            if end > self.published.offset.min(self.durable.offset) {
                return Ok(base);
            }
            if self.config.min_compaction_lag_ms > 0 {
                let largest = self.largest_timestamp(base)?;
                let time = [largest, self.append_times.get(base)]
                    .into_iter()
                    .flatten()
                    .min();
                if time.is_some_and(|time| time > youngest) {
                    return Ok(base);
                }
            }
        }
        Ok(self.active.base)
    }

    /// Where the next round begins: the first offset that was not looked at and still exists.
    pub(super) fn first_dirty(&self) -> i64 {
        let dirty = self.cleaned.dirty();
        if dirty > self.next_offset {
            self.earliest
        } else {
            dirty.max(self.earliest)
        }
    }

    /// How much waits for compaction; `None` where nothing does, or the topic is not compacted.
    ///
    /// # Errors
    /// `Io`.
    pub fn dirtiness(&mut self, now_ms: i64) -> Result<Option<Dirtiness>, Error> {
        if !self.config.cleanup.compacts() || self.is_uncleanable || self.is_read_only {
            return Ok(None);
        }
        let dirty = self.first_dirty();
        let until = self.uncleanable(dirty, now_ms)?;
        let first = self.floor_base(dirty);
        let bytes: u64 = self
            .sealed
            .range(first.min(until)..until)
            .map(|(_, s)| s.bytes)
            .sum();
        if bytes == 0 || dirty >= until {
            return Ok(None);
        }
        let clean: u64 = self
            .sealed
            .range(..first.min(until))
            .map(|(_, s)| s.bytes)
            .sum();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a ratio of byte counts, compared with a config"
        )]
        let ratio = bytes as f64 / (bytes + clean) as f64;
        let oldest = self.with_view(first, |view, window| {
            Ok(window
                .head(view.bounds.layout, 0)?
                .ok()
                .map(|head| head.max_timestamp))
        })?;
        let waits = oldest.is_some_and(|oldest| {
            now_ms.saturating_sub(oldest) > self.config.max_compaction_lag_ms
        });
        let is_due = ratio > self.config.min_cleanable_dirty_ratio || waits;
        Ok(Some(Dirtiness {
            ratio,
            bytes,
            is_due,
        }))
    }
}
