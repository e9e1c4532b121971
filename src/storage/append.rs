//! Appending: records into the write buffer, one by one or many as one.

#![forbid(unsafe_code)]

use crate::fs::Fs;
use crate::record::Record;

use super::log::{Log, WRITE_BUFFER_BYTES};
use super::{Error, TimestampType};

impl<F: Fs> Log<F> {
    /// Appends one record to the write buffer and returns its offset. `record.timestamp` is what the producer said or the
    /// caller's clock; under `LogAppendTime` it is replaced by `now_ms`. Rolls first where a rule says so.
    ///
    /// # Errors
    /// The record is then not in the log. After an `Io` error everything that was appended and not written is gone, too:
    /// [`Log::log_end_offset`] is back at [`Log::written_offset`], and the caller answers for those appends.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>, now_ms: i64) -> Result<i64, Error> {
        let (record, bytes) = self.admit(record, now_ms)?;
        let offset = self.next_offset;
        if self
            .active
            .must_roll_for(offset, record.timestamp, bytes, &self.config)
        {
            self.write()?;
            self.roll(now_ms, true)?;
        }
        self.encode(&record, bytes, now_ms);
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.spill()?;
        }
        Ok(offset)
    }

    /// Appends records one after the other, as [`Log::append`] would, until one is refused. Returns how many were appended, and why the
    /// one behind them was not; no more is taken from the iterator then. Many cost less than each by itself.
    pub fn append_many<'a>(
        &mut self,
        mut records: impl Iterator<Item = Record<'a>>,
        now_ms: i64,
    ) -> (u32, Option<Error>) {
        let mut count = 0;
        let mut next = records.next();
        while let Some(record) = next {
            if let Err(error) = self.append(&record, now_ms) {
                return (count, Some(error));
            }
            count += 1;
            let room = WRITE_BUFFER_BYTES.saturating_sub(self.buffer.len()) as u64;
            let timestamp = self.stamp(&record, now_ms);
            let alike;
            (alike, next) = self.encode_alike(&mut records, timestamp, room, now_ms);
            count += alike;
        }
        (count, None)
    }

    /// Appends records as one: all or none, contiguous, visible together. Returns first and last offset.
    ///
    /// # Errors
    /// As [`Log::append`]; none of the records is in the log then, and segments they opened are gone.
    ///
    /// # Panics
    /// Where there is no record at all.
    pub fn append_batch<'a>(
        &mut self,
        records: impl Iterator<Item = Record<'a>> + Clone,
        now_ms: i64,
    ) -> Result<(i64, i64), Error> {
        let mut total = 0;
        let mut count = 0_i64;
        let mut latest = i64::MIN;
        for record in records.clone() {
            let (record, bytes) = self.admit(&record, now_ms)?;
            total += u64::from(bytes);
            latest = latest.max(record.timestamp);
            count += 1;
        }
        assert!(count > 0, "a batch holds at least one record");
        let first = self.next_offset;
        let last = first.checked_add(count).ok_or(Error::Exhausted)? - 1;
        if self.buffer.len() as u64 + total > WRITE_BUFFER_BYTES as u64 {
            self.spill()?;
        }
        let sum = u32::try_from(total).unwrap_or(u32::MAX);
        let rows_max = total / u64::from(self.config.index_interval_bytes.max(1)) + 2;
        let is_within =
            count == 1 || self.active.now.bytes + total <= u64::from(self.config.segment_bytes);
        let fits = is_within
            && !self.active.must_roll_for(last, latest, sum, &self.config)
            && self.active.has_room_for_rows(rows_max);
        if fits {
            let mut records = records;
            let mut next = records.next();
            while let Some(record) = next {
                let (record, bytes) = self.admit(&record, now_ms)?;
                self.encode(&record, bytes, now_ms);
                (_, next) = self.encode_alike(&mut records, record.timestamp, u64::MAX, now_ms);
            }
            if self.buffer.len() >= WRITE_BUFFER_BYTES {
                self.spill()?;
            }
        } else {
            self.write()?;
            self.append_in_steps(records, now_ms)?;
        }
        Ok((first, last))
    }

    /// Appends a batch that may open segments; on an error those are removed, and the one it began in is active again.
    fn append_in_steps<'a>(
        &mut self,
        records: impl Iterator<Item = Record<'a>>,
        now_ms: i64,
    ) -> Result<(), Error> {
        let savepoint = self.savepoint();
        let mut steps = records.map(|record| self.append_step(&record, now_ms));
        let result = steps.find(Result::is_err).unwrap_or(Ok(()));
        drop(steps);
        let result = result.and_then(|()| self.write());
        match &result {
            Ok(()) => {
                if self.active.base != savepoint.base() {
                    self.after_rolls();
                }
            }
            Err(_) => self.go_back(&savepoint, now_ms),
        }
        result
    }

    fn append_step(&mut self, record: &Record<'_>, now_ms: i64) -> Result<(), Error> {
        let (record, bytes) = self.admit(record, now_ms)?;
        if self
            .active
            .must_roll_for(self.next_offset, record.timestamp, bytes, &self.config)
        {
            self.write()?;
            self.roll(now_ms, false)?;
        }
        self.encode(&record, bytes, now_ms);
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.spill()?;
        }
        Ok(())
    }

    /// Checks whether a record may be stored; gives it with the timestamp it will have, and its stored size.
    #[inline]
    fn admit<'r>(&mut self, record: &Record<'r>, now_ms: i64) -> Result<(Record<'r>, u32), Error> {
        if self.is_read_only {
            return Err(Error::ReadOnly);
        }
        if self.pending_cut.is_some() {
            self.cut_pending(now_ms)?;
        }
        let mut record = *record;
        record.timestamp = self.stamp(&record, now_ms);
        let latest = now_ms.saturating_add(self.config.timestamp_after_max_ms);
        if record.timestamp > latest {
            return Err(Error::FutureTimestamp {
                timestamp: record.timestamp,
                latest,
            });
        }
        let bytes = self.stored_bytes(&record)?;
        if self.next_offset == i64::MAX {
            return Err(Error::Exhausted);
        }
        Ok((record, bytes))
    }

    /// The timestamp that a record will have.
    #[inline]
    fn stamp(&self, record: &Record<'_>, now_ms: i64) -> i64 {
        match self.config.timestamp_type {
            TimestampType::LogAppendTime => now_ms,
            TimestampType::CreateTime => record.timestamp,
        }
    }

    /// How many bytes a record will have, where size and key allow it to be stored.
    #[inline]
    fn stored_bytes(&self, record: &Record<'_>) -> Result<u32, Error> {
        let (payload, max) = (record.payload_bytes(), self.config.max_message_bytes);
        if payload > max as usize {
            return Err(Error::TooLarge {
                bytes: payload,
                max: max as usize,
            });
        }
        if record.key.is_none() && self.config.cleanup.compacts() {
            return Err(Error::NoKey);
        }
        let layout = self.config.record_version;
        layout.encoded_len(record).map_err(Error::Unstorable)
    }

    /// Puts records into the write buffer as long as nothing has to be decided about them that was not decided for the record
    /// before, which was just put there with that timestamp: the same time again, no index row, no roll, at most `room` bytes. Returns
    /// how many, and the first record that is not like that.
    #[inline]
    fn encode_alike<'a>(
        &mut self,
        records: &mut impl Iterator<Item = Record<'a>>,
        timestamp: i64,
        room: u64,
        now_ms: i64,
    ) -> (u32, Option<Record<'a>>) {
        let Some(window) = self.active.window(&self.config) else {
            return (0, records.next());
        };
        let layout = self.active.layout;
        let mut position = self.active.now.bytes;
        let end = window.end.min(position.saturating_add(room));
        let (mut count, mut other) = (0, None);
        for mut record in records {
            record.timestamp = self.stamp(&record, now_ms);
            let is_alike = record.timestamp == timestamp
                && position < window.row_due
                && self.next_offset <= window.offset_max;
            match self.stored_bytes(&record) {
                Ok(bytes) if is_alike && position + u64::from(bytes) <= end => {
                    layout.put(self.next_offset, &record, bytes, &mut self.buffer);
                    position += u64::from(bytes);
                    self.next_offset += 1;
                    count += 1;
                }
                Ok(_) | Err(_) => {
                    other = Some(record);
                    break;
                }
            }
        }
        self.active.now.bytes = position;
        (count, other)
    }

    /// Puts a record that was admitted into the write buffer, as the next of the active segment.
    #[inline]
    fn encode(&mut self, record: &Record<'_>, bytes: u32, now_ms: i64) {
        if self.buffer.capacity() == 0 {
            self.buffer = self.context.take_buffer();
        }
        if self.active.now.bytes == 0 {
            self.active.layout = self.config.record_version;
        }
        let offset = self.next_offset;
        self.active
            .layout
            .put(offset, record, bytes, &mut self.buffer);
        self.active.note(
            offset,
            record.timestamp,
            bytes,
            self.config.index_interval_bytes,
        );
        self.active.last_append_ms = now_ms;
        self.next_offset += 1;
    }
}
