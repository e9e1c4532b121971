//! Rows of `.index`: where the entry that ends with an offset starts.

#![forbid(unsafe_code)]

use crate::fs::{File, Map};

use super::sparse_index::{Row, SparseIndex};

/// One row of `.index`: 8 bytes, big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetRow {
    /// The entry's last offset, less the segment's base.
    pub relative: u32,
    /// Where the entry starts in `.log`, bytes.
    pub position: u32,
}

impl OffsetRow {
    /// Bytes of a row.
    pub const SIZE: usize = 8;

    /// Decodes a row.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [r0, r1, r2, r3, p0, p1, p2, p3] = bytes;
        Self {
            relative: u32::from_be_bytes([r0, r1, r2, r3]),
            position: u32::from_be_bytes([p0, p1, p2, p3]),
        }
    }

    /// Whether it may stand directly behind `before`: both columns rise and stay within 31 bits.
    #[must_use]
    pub fn may_follow(&self, before: &Self) -> bool {
        self.relative > before.relative
            && self.position > before.position
            && i32::try_from(self.relative).is_ok()
            && i32::try_from(self.position).is_ok()
    }
}

impl Row for OffsetRow {
    const BYTES: usize = Self::SIZE;

    fn read<M: Map>(map: &M, number: usize) -> Option<Self> {
        map.row(number * Self::SIZE).map(Self::from_bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.relative.to_be_bytes());
        out.extend_from_slice(&self.position.to_be_bytes());
    }

    fn rises_above(&self, before: &Self) -> bool {
        self.may_follow(before)
    }
}

pub(super) type OffsetIndex<F> = SparseIndex<F, OffsetRow>;

impl<F: File> OffsetIndex<F> {
    /// Whether an entry that starts at `position` gets a row: the first does, and then one that starts `interval` bytes or more past
    /// the last row.
    pub(super) fn wants(&self, position: u64, interval: u32) -> bool {
        self.last()
            .is_none_or(|last| position - u64::from(last.position) >= u64::from(interval).max(1))
    }
}

/// Rows that a walk through damage can ask; garbage rows are among what it expects.
pub trait OffsetRows {
    /// Number of rows.
    fn row_count(&self) -> usize;

    /// Row `number`, from 0.
    fn row(&self, number: usize) -> Option<OffsetRow>;
}

impl<F: File> OffsetRows for OffsetIndex<F> {
    fn row_count(&self) -> usize {
        self.len()
    }

    fn row(&self, number: usize) -> Option<OffsetRow> {
        self.get(number)
    }
}

impl OffsetRows for Vec<OffsetRow> {
    fn row_count(&self) -> usize {
        self.len()
    }

    fn row(&self, number: usize) -> Option<OffsetRow> {
        self.get(number).copied()
    }
}
