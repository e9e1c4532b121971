//! How far compaction of a log has come, in the text file `cleaned` of its directory.
//!
//! ```text
//! dirty 4711             records from this offset on were not looked at yet
//! round 1200 1767225600  a round that ended below offset 1200, at that time (ms)
//! round 4711 1767312000
//! ```
//!
//! A tombstone was first cleaned in the first round that ended behind it; `delete.retention.ms` later it may go. The file may be lost: then
//! everything is dirty again, and tombstones stay longer.

#![forbid(unsafe_code)]

use std::path::Path;

use crate::fs::{Fs, read_file};

use super::Error;
use super::context::LogContext;
use super::names::CLEANED;

const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A round of compaction that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Round {
    /// Records below this offset were cleaned.
    end: i64,
    /// By the broker's clock.
    at_ms: i64,
}

#[derive(Debug, Default)]
pub(super) struct Cleaned {
    /// Whether the file was there, or something was noted: then offsets may be missing.
    is_there: bool,
    dirty: i64,
    /// Ends and times rise.
    rounds: Vec<Round>,
}

impl Cleaned {
    /// Reads the file; what makes no sense counts as not there.
    pub(super) fn read<F: Fs>(fs: &F, dir: &Path) -> Self {
        let text = read_file(fs, &dir.join(CLEANED), FILE_BYTES_MAX).unwrap_or_default();
        if text.is_empty() {
            return Self::default();
        }
        // One that makes no sense still tells that records were removed.
        let parsed = Self::parse(&String::from_utf8_lossy(&text));
        parsed.unwrap_or(Self {
            is_there: true,
            ..Self::default()
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut cleaned = Self {
            is_there: true,
            ..Self::default()
        };
        for line in text.lines() {
            let mut words = line.split(' ');
            match (words.next()?, words.next()?.parse().ok()?, words.next()) {
                ("dirty", offset, None) => cleaned.dirty = offset,
                ("round", end, Some(at)) => {
                    cleaned.rounds.push(Round {
                        end,
                        at_ms: at.parse().ok()?,
                    });
                }
                _ => return None,
            }
        }
        cleaned
            .rounds
            .is_sorted_by_key(|round| round.end)
            .then_some(cleaned)
    }

    /// Whether records were removed here, by compaction or by a repair: a missing offset is then no loss.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Notes that records are about to be removed.
    pub(super) fn mark(&mut self) {
        self.is_there = true;
    }

    /// The first offset that was not looked at.
    pub(super) fn dirty(&self) -> i64 {
        self.dirty
    }

    /// Below this offset, tombstones may go: they were first cleaned `retention_ms` ago or earlier.
    pub(super) fn tombstones_end(&self, now_ms: i64, retention_ms: i64) -> i64 {
        let is_over = |round: &&Round| now_ms.saturating_sub(round.at_ms) >= retention_ms;
        self.rounds
            .iter()
            .filter(is_over)
            .map(|round| round.end)
            .max()
            .unwrap_or(0)
    }

    /// Notes a round that cleaned everything below `end`.
    pub(super) fn note(&mut self, end: i64, now_ms: i64, retention_ms: i64) {
        self.is_there = true;
        self.dirty = self.dirty.max(end);
        // Rounds whose tombstones may all go need one line together.
        let over = self.tombstones_end(now_ms, retention_ms);
        let last_over = self
            .rounds
            .iter()
            .rev()
            .find(|round| round.end == over)
            .copied();
        self.rounds.retain(|round| round.end > over);
        if let Some(round) = last_over {
            self.rounds.insert(0, round);
        }
        if self.rounds.last().is_none_or(|last| last.end < end) {
            self.rounds.push(Round { end, at_ms: now_ms });
        }
    }

    /// Replaces the file.
    pub(super) fn write<F: Fs>(&self, context: &LogContext<F>, dir: &Path) -> Result<(), Error> {
        let rounds = self
            .rounds
            .iter()
            .map(|round| format!("round {} {}\n", round.end, round.at_ms));
        let text = format!("dirty {}\n{}", self.dirty, rounds.collect::<String>());
        context.checkpoints.replace_text(&dir.join(CLEANED), &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_may_go_a_while_after_the_first_round_behind_it() {
        let mut cleaned = Cleaned::default();
        cleaned.note(100, 1000, 50);
        cleaned.note(200, 1040, 50);
        assert_eq!(cleaned.tombstones_end(1049, 50), 0);
        assert_eq!(cleaned.tombstones_end(1050, 50), 100);
        assert_eq!(cleaned.tombstones_end(1089, 50), 100);
        assert_eq!(cleaned.tombstones_end(1090, 50), 200);
        cleaned.note(300, 1095, 50);
        assert_eq!(cleaned.rounds.len(), 2, "rounds that are over share a line");
        assert_eq!(cleaned.tombstones_end(1100, 50), 200);
        assert_eq!(cleaned.dirty(), 300);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_no_file() {
        let good = Cleaned::parse("dirty 5\nround 3 10\nround 5 20\n");
        assert_eq!(
            good.map(|cleaned| (cleaned.dirty, cleaned.rounds.len())),
            Some((5, 2))
        );
        for bad in [
            "dirty",
            "dirty x",
            "round 5 1\nround 3 2",
            "what 1",
            "dirty 1 2 3",
            "round 1",
        ] {
            assert!(Cleaned::parse(bad).is_none(), "{bad}");
        }
    }
}
