//! A stretch of a sealed segment in memory, its entries checked: what one slice of compaction works on.
//!
//! Decoding is a pass of its own, before the map of keys is asked: the map is far larger than the processor's caches, and look-ups that
//! follow one another closely wait for memory together rather than one after the other.

#![forbid(unsafe_code)]

use std::io;
use std::rc::Rc;

use crate::format::EntryHead;
use crate::fs::{Fs, ReadAt};
use crate::record::Record;

use super::Error;
use super::key_hash::KeyHash;
use super::log::Log;
use super::lookup::View;
use super::offset_map::OffsetMap;
use super::rebuild::SCAN_CHUNK_BYTES;
use super::walk::{Step, Walk};
use super::window::Window;

/// Where a scan of a segment stands between slices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The segment.
    pub(super) base: i64,
    /// Where the next entry begins, bytes.
    pub(super) position: u64,
    /// The lowest offset that it may have.
    pub(super) expected: i64,
}

impl Place {
    pub(super) fn start(base: i64) -> Self {
        Self {
            base,
            position: 0,
            expected: base,
        }
    }

    /// Goes past an entry.
    pub(super) fn pass(&mut self, head: &EntryHead) {
        self.position += u64::from(head.length);
        self.expected = head.last_offset + 1;
    }
}

/// What compaction asks of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) head: EntryHead,
    /// Its key, as the map knows it; `None` where it has none.
    pub(super) key: Option<KeyHash>,
    pub(super) is_tombstone: bool,
}

/// Whole and undamaged entries that follow one another, and their bytes.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The entries' bytes stand at the start; behind them may be others.
    pub(super) bytes: Vec<u8>,
    pub(super) seen: Vec<Seen>,
    /// Whether the segment ends behind the last of them.
    pub(super) is_end: bool,
}

impl Chunk {
    fn push(&mut self, head: EntryHead, record: &Record<'_>, map: &OffsetMap) {
        self.seen.push(Seen {
            head,
            key: record.key.map(|key| map.hash(key)),
            is_tombstone: record.value.is_none(),
        });
    }

    /// Reads at most `budget_bytes` from `at` on and takes the entries that these bytes alone show to be good.
    fn read<F: Fs>(
        &mut self,
        view: &View<'_, F>,
        at: Place,
        budget_bytes: u64,
        map: &OffsetMap,
    ) -> io::Result<()> {
        let len = budget_bytes.min(view.limit.saturating_sub(at.position));
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.bytes.resize(len, 0);
        let filled = view.log.read_at(&mut self.bytes, at.position)?;
        let bytes = std::mem::take(&mut self.bytes);
        let (mut rest, mut expected) = (bytes.get(..filled).unwrap_or_default(), at.expected);
        while let Some((head, stored)) = view.bounds.good_in(rest, expected) {
            self.push(head, &stored.record, map);
            expected = head.last_offset + 1;
            rest = rest.get(head.length as usize..).unwrap_or_default();
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Takes the one entry at `at`, however long it is, or gives the damage there: position, first offset lost, first offset behind it.
    fn step<F: Fs>(
        &mut self,
        view: &View<'_, F>,
        at: Place,
        map: &OffsetMap,
    ) -> io::Result<Option<(u64, i64, i64)>> {
        let log = Rc::clone(view.log);
        let mut window = Window::new(&*log, view.limit, SCAN_CHUNK_BYTES, Vec::new());
        let mut walk = Walk::new(view.bounds, at.position, at.expected);
        match walk.step(&mut window, view.index)? {
            Step::Entry { position, head } => {
                let entry = window.slice(position, u64::from(head.length))?;
                self.bytes.clear();
                self.bytes.extend_from_slice(entry);
                let decoded = view.bounds.layout.decode(entry);
                let (head, stored) = decoded.map_err(|_| io::ErrorKind::InvalidData)?;
                self.push(head, &stored.record, map);
                Ok(None)
            }
            Step::Damage {
                position,
                offset,
                next_offset,
                ..
            } => Ok(Some((position, offset, next_offset))),
            Step::End => Ok(None),
        }
    }
}

impl<F: Fs> Log<F> {
    /// Fills the chunk with what stands at `at`: about `budget_bytes`, and one entry at the least unless the segment ends there.
    ///
    /// # Errors
    /// `Io`; `Corrupt` where there is damage.
    pub(super) fn read_chunk(
        &mut self,
        at: Place,
        budget_bytes: u64,
        chunk: &mut Chunk,
        map: &OffsetMap,
    ) -> Result<(), Error> {
        chunk.seen.clear();
        let damage = self.with_view(at.base, |view: &View<'_, F>, _| {
            chunk.read(view, at, budget_bytes, map)?;
            let damage = if chunk.seen.is_empty() && at.position < view.limit {
                chunk.step(view, at, map)?
            } else {
                None
            };
            let taken: u64 = chunk
                .seen
                .iter()
                .map(|seen| u64::from(seen.head.length))
                .sum();
            chunk.is_end = at.position + taken >= view.limit;
            Ok(damage)
        })?;
        map.warm(chunk.seen.iter().filter_map(|seen| seen.key));
        match damage {
            Some((position, offset, next)) => Err(self.damage(at.base, position, offset, next)),
            None => Ok(()),
        }
    }
}
