//! Going through a segment entry by entry, with every check, past damage.
//!
//! Recovery, reads that met damage, index rebuilds and `verify` all walk with this, so that they agree on what is damaged and
//! where reading goes on (docs/format.md, "A start"). Nothing looks for a magic to find its place again, since a payload may
//! hold one: behind a bad entry the walk goes on where the entry's own frame ends, or at an index row that meets its entry.

#![forbid(unsafe_code)]

use std::io;

use crate::format::{DecodeError, EntryHead, LAYOUT_BYTES, Layout, Reason};
use crate::record::StoredRecord;

use super::offset_index::{OffsetRow, OffsetRows};
use super::window::Window;

/// What is known of a segment before its entries are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The offset in its name.
    pub base: i64,
    /// Offsets in it are below this: the next segment's base, or the end that readers may see.
    pub upper: i64,
    /// The layout of its entries.
    pub layout: Layout,
}

impl Bounds {
    /// The entry at `position`, if it is whole, undamaged, and its offsets are at least `at_least`.
    ///
    /// A layout-1 entry has no checksum, so it also needs the window's limit behind it, or an entry with a higher offset, or the beginning
    /// of one that the limit cuts short.
    ///
    /// # Errors
    /// What the system says.
    pub fn good_entry<'w>(
        &self,
        window: &'w mut Window<'_>,
        position: u64,
        at_least: i64,
    ) -> io::Result<Result<(EntryHead, StoredRecord<'w>), DecodeError>> {
        let head = match self.good_head(window, position, at_least)? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        if self.layout == Layout::V1 && !self.is_followed(window, position, &head)? {
            return Ok(Err(DecodeError::Corrupt(Reason::Length(i64::from(
                head.length,
            )))));
        }
        let bytes = window.slice(position, u64::from(head.length))?;
        Ok(self.layout.decode(bytes))
    }

    /// The entry at the start of `bytes`, if these alone tell that it is good by the rules of [`Bounds::good_entry`]. `None` says nothing:
    /// the bytes may end too early.
    #[must_use]
    #[inline]
    pub fn good_in<'b>(
        &self,
        bytes: &'b [u8],
        at_least: i64,
    ) -> Option<(EntryHead, StoredRecord<'b>)> {
        let (head, stored) = self.layout.decode(bytes).ok()?;
        let is_sure = self.layout != Layout::V1 || {
            let next = self.layout.head(bytes.get(head.length as usize..)?).ok()?;
            next.first_offset > head.last_offset && next.first_offset < self.upper
        };
        (is_sure && self.may_hold(&head, at_least)).then_some((head, stored))
    }

    /// Whether an entry with these offsets may stand in the segment, behind what ends below `at_least`.
    #[inline]
    fn may_hold(&self, head: &EntryHead, at_least: i64) -> bool {
        head.first_offset >= at_least
            && head.last_offset < self.upper
            && i32::try_from(head.last_offset.saturating_sub(self.base)).is_ok()
    }

    /// The head of the entry at `position`, if its frame holds, it ends within the window's limit, and its offsets are possible.
    ///
    /// # Errors
    /// What the system says.
    pub fn good_head(
        &self,
        window: &mut Window<'_>,
        position: u64,
        at_least: i64,
    ) -> io::Result<Result<EntryHead, DecodeError>> {
        let limit = window.limit();
        Ok(window.head(self.layout, position)?.and_then(|head| {
            if position + u64::from(head.length) > limit {
                Err(DecodeError::Incomplete(u64::from(head.length)))
            } else if self.may_hold(&head, at_least) {
                Ok(head)
            } else {
                Err(DecodeError::Corrupt(Reason::Offset(head.first_offset)))
            }
        }))
    }

    fn is_followed(
        &self,
        window: &mut Window<'_>,
        position: u64,
        head: &EntryHead,
    ) -> io::Result<bool> {
        let end = position + u64::from(head.length);
        if end == window.limit() {
            return Ok(true);
        }
        let is_higher = |offset: i64| offset > head.last_offset && offset < self.upper;
        Ok(match window.head(self.layout, end)? {
            Ok(next) => is_higher(next.first_offset),
            Err(DecodeError::Incomplete(_)) => {
                let bytes = window.slice(end, 10)?;
                bytes
                    .get(2..)
                    .and_then(|rest| rest.first_chunk::<8>())
                    .is_none_or(|offset| is_higher(i64::from_be_bytes(*offset)))
            }
            Err(DecodeError::Corrupt(_)) => false,
        })
    }

    /// Whether the row's position holds an undamaged entry with the row's offset.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_met(
        &self,
        window: &mut Window<'_>,
        row: OffsetRow,
        at_least: i64,
    ) -> io::Result<bool> {
        let position = u64::from(row.position);
        // An index may hold a million garbage rows: most are told by a few bytes.
        let (bytes, filled) = window.peek(position)?;
        let looks_right = bytes
            .get(..filled)
            .is_some_and(|bytes| Layout::of(bytes).is_ok_and(|layout| layout == self.layout));
        if !looks_right {
            return Ok(false);
        }
        let entry = self.good_entry(window, position, at_least)?;
        Ok(entry.is_ok_and(|(head, _)| head.last_offset == self.base + i64::from(row.relative)))
    }
}

/// The layout of a segment's entries: that of the first good entry, the one at 0 or one that an index row meets; where
/// none is good, what the first bytes look like.
///
/// # Errors
/// What the system says.
pub fn detect_layout(
    window: &mut Window<'_>,
    base: i64,
    upper: i64,
    rows: &dyn OffsetRows,
) -> io::Result<Option<Layout>> {
    let mut guess = None;
    let first = OffsetRow {
        relative: 0,
        position: 0,
    };
    let candidates = (0..rows.row_count()).filter_map(|number| rows.row(number));
    for (number, row) in std::iter::once(first).chain(candidates).enumerate() {
        let position = u64::from(row.position);
        let is_unused = number > 0 && position == 0;
        if is_unused || position >= window.limit() {
            continue;
        }
        let Ok(layout) = Layout::of(
            window
                .peek(position)?
                .0
                .get(..LAYOUT_BYTES)
                .unwrap_or_default(),
        ) else {
            continue;
        };
        let bounds = Bounds {
            base,
            upper,
            layout,
        };
        let is_good = if number == 0 {
            bounds.good_entry(window, position, base)?.is_ok()
        } else {
            bounds.is_met(window, row, base)?
        };
        if is_good {
            return Ok(Some(layout));
        }
        guess = guess.or((number == 0).then_some(layout));
    }
    Ok(guess)
}

/// One step of a [`Walk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A whole and undamaged entry.
    Entry {
        /// Where it starts.
        position: u64,
        /// What it is.
        head: EntryHead,
    },
    /// A stretch that cannot be read.
    Damage {
        /// Where it starts.
        position: u64,
        /// The first offset lost.
        offset: i64,
        /// The first offset behind it: an entry's, or [`Bounds::upper`] where none was found.
        next_offset: i64,
        /// Where the walk goes on: an entry, or the limit.
        next_position: u64,
        /// What is wrong with the bytes at `position`.
        error: DecodeError,
    },
    /// The limit is reached.
    End,
}

/// A walk through a segment.
#[derive(Debug)]
pub struct Walk {
    bounds: Bounds,
    /// Where the next step begins.
    position: u64,
    /// The lowest offset that the next entry may have.
    expected: i64,
}

impl Walk {
    /// A walk from an entry's start, whose offsets are at least `expected`.
    #[must_use]
    pub fn new(bounds: Bounds, position: u64, expected: i64) -> Self {
        Self {
            bounds,
            position,
            expected,
        }
    }

    /// The lowest offset that the next entry may have: one past the last that was met.
    #[must_use]
    pub fn expected(&self) -> i64 {
        self.expected
    }

    /// Goes on by one entry or one stretch of damage. `rows` is the segment's index, however damaged.
    ///
    /// # Errors
    /// What the system says.
    pub fn step(&mut self, window: &mut Window<'_>, rows: &dyn OffsetRows) -> io::Result<Step> {
        if self.position >= window.limit() {
            return Ok(Step::End);
        }
        let position = self.position;
        let error = match self.bounds.good_entry(window, position, self.expected)? {
            Ok((head, _)) => {
                self.position += u64::from(head.length);
                self.expected = head.last_offset + 1;
                return Ok(Step::Entry { position, head });
            }
            Err(error) => error,
        };
        let offset = self.expected;
        (self.position, self.expected) = match self.next_by_frames(window)? {
            Some(place) => place,
            None => self
                .next_by_rows(window, rows)?
                .unwrap_or((window.limit(), self.bounds.upper)),
        };
        Ok(Step::Damage {
            position,
            offset,
            next_offset: self.expected,
            next_position: self.position,
            error,
        })
    }

    /// The good entry (or the limit) that stands behind bad entries whose frames hold, one after another.
    fn next_by_frames(&self, window: &mut Window<'_>) -> io::Result<Option<(u64, i64)>> {
        let mut position = self.position;
        let mut at_least = self.expected;
        loop {
            let Ok(head) = window.head(self.bounds.layout, position)? else {
                return Ok(None);
            };
            position += u64::from(head.length);
            at_least = at_least.saturating_add(1);
            if position == window.limit() {
                return Ok(Some((position, self.bounds.upper)));
            }
            if position > window.limit() {
                return Ok(None);
            }
            if let Ok((head, _)) = self.bounds.good_entry(window, position, at_least)? {
                return Ok(Some((position, head.first_offset)));
            }
        }
    }

    /// The good entry that the next row meets which points behind the damage.
    fn next_by_rows(
        &self,
        window: &mut Window<'_>,
        rows: &dyn OffsetRows,
    ) -> io::Result<Option<(u64, i64)>> {
        let at_least = self.expected.saturating_add(1);
        for number in 0..rows.row_count() {
            let Some(row) = rows.row(number) else {
                continue;
            };
            let position = u64::from(row.position);
            if position > self.position && self.bounds.is_met(window, row, at_least)? {
                let head = window.head(self.bounds.layout, position)?;
                return Ok(head.ok().map(|head| (position, head.first_offset)));
            }
        }
        Ok(None)
    }
}
