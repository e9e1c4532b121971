//! What of a log may go: below the log start, over the size, past its time.
//!
//! The rules are asked in that order, of the oldest segment first, and stop at the first segment that none takes. The
//! active segment is never deleted: where nothing else is left and it, too, is due, it is sealed first, so that an empty
//! segment named after the log end remains and offsets go on.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Weak;

use crate::fs::Fs;

use super::Error;
use super::LogConfig;
use super::append_times::AppendTimes;
use super::log::Log;
use super::names::{FileKind, SEGMENT_SUFFIXES, file_kind, segment_file};
use super::sealed::{SealedFiles, SealedName};

/// Why a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// All of it lies below the log start offset.
    LogStart,
    /// Without it, at least `retention.bytes` are left.
    Size,
    /// Its last record is older than `retention.ms`.
    Time,
    /// The broker holds more than its limit for all topics together.
    TotalSize,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogStart => "below the log start",
            Self::Size => "over retention.bytes",
            Self::Time => "older than retention.ms",
            Self::TotalSize => "over the broker's total",
        })
    }
}

/// What the rules know of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFacts {
    /// The offset in its name.
    pub base: i64,
    /// The base of the one behind it, or the log end.
    pub next_base: i64,
    /// Bytes of its .log.
    pub bytes: u64,
    /// The largest timestamp of its records, milliseconds.
    pub largest_timestamp: Option<i64>,
    /// The broker's clock at its last append.
    pub last_append_ms: Option<i64>,
}

impl SegmentFacts {
    /// The age of a segment counts from here: its records' time, or the broker's own where a record claims to be from later than it came.
    #[must_use]
    pub fn time(&self) -> Option<i64> {
        let times = [self.largest_timestamp, self.last_append_ms];
        times.into_iter().flatten().min()
    }
}

/// Which rule, if any, takes a log's oldest segment. `total_bytes` counts all segments that are left.
#[must_use]
pub fn due(
    oldest: &SegmentFacts,
    total_bytes: u64,
    log_start: i64,
    config: &LogConfig,
    now_ms: i64,
) -> Option<Reason> {
    if oldest.next_base <= log_start {
        return Some(Reason::LogStart);
    }
    if !config.cleanup.deletes() {
        return None;
    }
    if let Ok(kept) = u64::try_from(config.retention_bytes)
        && total_bytes >= kept
        && total_bytes - kept >= oldest.bytes
    {
        return Some(Reason::Size);
    }
    if oldest.bytes == 0 {
        // Nothing in it that a reader could miss, and no time to tell.
        return (config.retention_ms >= 0).then_some(Reason::Time);
    }
    let is_old = |time: i64| now_ms.saturating_sub(time) > config.retention_ms;
    (config.retention_ms >= 0 && oldest.time().is_some_and(is_old)).then_some(Reason::Time)
}

/// A segment that was taken out of a log: its files have another name, and go when the caller says.
#[derive(Debug)]
pub struct Retired<T> {
    /// The offset in its name.
    pub base: i64,
    /// Bytes of its .log.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
    /// The files, under the names they have now.
    pub files: Vec<PathBuf>,
    /// Its .log, once for each handle that a reader may still send from: it is not to be shortened before they are gone.
    pub lent: Vec<Weak<T>>,
}

/// What the rules would take of a partition's sealed segments now, oldest first, without opening or changing it: base offset, bytes, reason. It
/// may run beside a broker.
///
/// # Errors
/// `Io`.
pub fn forecast<F: Fs>(
    fs: &F,
    dir: &Path,
    log_start: i64,
    config: &LogConfig,
    now_ms: i64,
) -> Result<Vec<(i64, u64, Reason)>, Error> {
    let mut logs = BTreeMap::new();
    for entry in fs.read_dir(dir).map_err(Error::io("read", dir))? {
        if let FileKind::Log(base) = file_kind(&entry.name.to_string_lossy())
            && !entry.is_dir
        {
            logs.insert(base, entry.len);
        }
    }
    let times = AppendTimes::read(fs, dir);
    let mut total_bytes = logs.values().sum::<u64>();
    let mut taken = Vec::new();
    for ((&base, &bytes), &next_base) in logs.iter().zip(logs.keys().skip(1)) {
        let name = SealedName {
            dir,
            base,
            upper: next_base,
            size: bytes,
            interval: config.index_interval_bytes,
        };
        let files = SealedFiles::open_checked(fs, &name)
            .map_err(Error::io("read", &segment_file(dir, base, "log")))?;
        let facts = SegmentFacts {
            base,
            next_base,
            bytes,
            largest_timestamp: files
                .and_then(|files| files.time.last())
                .map(|row| row.timestamp),
            last_append_ms: times.get(base),
        };
        let Some(reason) = due(&facts, total_bytes, log_start, config, now_ms) else {
            break;
        };
        total_bytes -= bytes;
        taken.push((base, bytes, reason));
    }
    Ok(taken)
}

impl<F: Fs> Log<F> {
    /// One slice of a retention pass: takes out the oldest segment, if a rule says so. An active segment that was idle for `segment.ms` by the
    /// broker's clock, or that is due itself, is sealed. `None`: nothing more to do.
    ///
    /// # Errors
    /// `Io`.
    pub fn retire_due(&mut self, now_ms: i64) -> Result<Option<Retired<F::File>>, Error> {
        if self.is_read_only {
            return Ok(None);
        }
        if let Some(facts) = self.oldest_sealed()? {
            let reason = due(&facts, self.bytes(), self.earliest, &self.config, now_ms);
            if let Some(reason) = reason {
                return self.retire(&facts, reason).map(Some);
            }
        }
        if self.must_seal_idle(now_ms) {
            self.write()?;
            self.roll(now_ms, true)?;
            self.publish();
            return match self.oldest_sealed()? {
                Some(facts) => {
                    let reason = due(&facts, self.bytes(), self.earliest, &self.config, now_ms);
                    reason.map(|reason| self.retire(&facts, reason)).transpose()
                }
                None => Ok(None),
            };
        }
        Ok(None)
    }

    /// Takes out the oldest sealed segment, whatever the rules say.
    ///
    /// # Errors
    /// `Io`.
    pub fn retire_oldest(&mut self) -> Result<Option<Retired<F::File>>, Error> {
        match self.oldest_sealed()? {
            Some(facts) => self.retire(&facts, Reason::TotalSize).map(Some),
            None => Ok(None),
        }
    }

    /// The oldest sealed segment whose records readers have been able to see; `None` where there is none.
    ///
    /// # Errors
    /// `Io`.
    pub fn oldest_sealed(&mut self) -> Result<Option<SegmentFacts>, Error> {
        let Some((&base, &segment)) = self.sealed.first_key_value() else {
            return Ok(None);
        };
        let next_base = self.next_base(base).unwrap_or(self.active.base);
        if next_base > self.published.offset {
            return Ok(None);
        }
        let largest_timestamp = self.largest_timestamp(base)?;
        Ok(Some(SegmentFacts {
            base,
            next_base,
            bytes: segment.bytes,
            largest_timestamp,
            last_append_ms: self.append_times.get(base),
        }))
    }

    fn must_seal_idle(&self, now_ms: i64) -> bool {
        let active = &self.active;
        if active.now.bytes == 0 || self.pending_cut.is_some() {
            return false;
        }
        let idle_ms = now_ms.saturating_sub(active.last_append_ms);
        let facts = SegmentFacts {
            base: active.base,
            next_base: self.next_offset,
            bytes: active.now.bytes,
            largest_timestamp: active.now.max_timestamp.map(|row| row.timestamp),
            last_append_ms: Some(active.last_append_ms),
        };
        let is_due = self.sealed.is_empty()
            && self.published.offset == self.next_offset
            && due(&facts, self.bytes(), self.earliest, &self.config, now_ms).is_some();
        idle_ms >= self.config.segment_ms_in_force() || is_due
    }

    /// Takes a segment out: the log start moves first, so that no reader finds the hole; then the files are renamed.
    fn retire(&mut self, facts: &SegmentFacts, reason: Reason) -> Result<Retired<F::File>, Error> {
        let base = facts.base;
        self.earliest = self.earliest.max(facts.next_base);
        // While the .log has its name the segment stays on the list, or a start would find it before a hole.
        let files = self.rename_deleted(base)?;
        self.sealed.remove(base);
        self.unsynced.retain(|segment| segment.base != base);
        self.context.handles.forget(self.id, base);
        self.append_times.remove(base);
        let fs = &self.context.fs;
        fs.sync_dir(&self.dir)
            .map_err(Error::io("fsync", &self.dir))?;
        log::info!(
            "{}/{} retired: segment={base} bytes={} earliest={} reason=\"{reason}\"",
            self.topic,
            self.partition,
            facts.bytes,
            self.earliest
        );
        Ok(Retired {
            base,
            bytes: facts.bytes,
            reason,
            files,
            lent: self.lent.take(base),
        })
    }

    /// Renames the files of a segment to `.deleted`, the .log first; the names they have then. An index that keeps its name is an orphan,
    /// which a start removes.
    pub(super) fn rename_deleted(&self, base: i64) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for suffix in SEGMENT_SUFFIXES {
            let from = segment_file(&self.dir, base, suffix);
            let to = segment_file(&self.dir, base, &format!("{suffix}.deleted"));
            match self.context.fs.rename(&from, &to) {
                Ok(()) => files.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if suffix == "log" => return Err(Error::io("rename", &from)(error)),
                Err(error) => log::warn!("{} keeps its name: {error}", from.display()),
            }
        }
        Ok(files)
    }

    /// Moves the log start to `offset`, durably: records below are gone for readers at once, and their segments with the next retention pass. An
    /// offset below the log start changes nothing.
    ///
    /// # Errors
    /// `OutOfRange` above the high watermark; `Io`, and then nothing has moved.
    pub fn trim(&mut self, offset: i64) -> Result<(), Error> {
        let latest = self.published.offset;
        if offset > latest || offset < 0 {
            return Err(Error::OutOfRange {
                offset,
                earliest: self.earliest,
                latest,
            });
        }
        let checkpoints = &self.context.checkpoints;
        // A retirement that failed has moved the log start and left the segment: a start would find it again.
        let first_base = self.sealed.iter().next().map(|(base, _)| *base);
        let durable = first_base
            .unwrap_or(self.active.base)
            .max(checkpoints.log_start(&self.topic, self.partition));
        if offset <= durable.min(self.earliest) {
            return Ok(());
        }
        checkpoints.move_log_start(&self.topic, self.partition, offset)?;
        self.earliest = self.earliest.max(offset);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(base: i64, bytes: u64, time: i64) -> SegmentFacts {
        SegmentFacts {
            base,
            next_base: base + 10,
            bytes,
            largest_timestamp: Some(time),
            last_append_ms: Some(1000),
        }
    }

    #[test]
    fn size_never_takes_a_log_below_its_limit() {
        // Kafka's worked example: three of 690 bytes and an active one of 69, retention.bytes 1400.
        let config = LogConfig {
            retention_bytes: 1400,
            retention_ms: -1,
            ..LogConfig::default()
        };
        assert_eq!(
            due(&facts(0, 690, 0), 2139, 0, &config, 0),
            Some(Reason::Size)
        );
        assert_eq!(due(&facts(10, 690, 0), 1449, 0, &config, 0), None);
        assert_eq!(
            due(&facts(0, 739, 0), 2139, 0, &config, 0),
            Some(Reason::Size),
            "equal"
        );
        assert_eq!(due(&facts(0, 740, 0), 2139, 0, &config, 0), None);
    }

    #[test]
    fn time_is_strict_and_a_record_from_the_future_counts_from_its_append() {
        let config = LogConfig {
            retention_ms: 100,
            ..LogConfig::default()
        };
        assert_eq!(due(&facts(0, 1, 500), 1, 0, &config, 600), None);
        assert_eq!(
            due(&facts(0, 1, 500), 1, 0, &config, 601),
            Some(Reason::Time)
        );
        assert_eq!(
            due(&facts(0, 1, i64::MAX), 1, 0, &config, 1101),
            Some(Reason::Time)
        );
        let unknown = SegmentFacts {
            largest_timestamp: None,
            last_append_ms: None,
            ..facts(0, 1, 0)
        };
        assert_eq!(
            due(&unknown, 1, 0, &config, i64::MAX),
            None,
            "unknown is not expired"
        );
    }

    #[test]
    fn a_compacted_log_loses_only_what_is_below_its_start() {
        let config = LogConfig {
            retention_ms: 0,
            retention_bytes: 0,
            cleanup: super::super::CleanupPolicy::Compact,
            ..LogConfig::default()
        };
        assert_eq!(due(&facts(0, 1, 0), 1, 9, &config, i64::MAX), None);
        assert_eq!(
            due(&facts(0, 1, 0), 1, 10, &config, i64::MAX),
            Some(Reason::LogStart)
        );
    }
}
