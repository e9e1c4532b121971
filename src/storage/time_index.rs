//! Rows of `.timeindex`: the largest timestamp so far, and the record that carries it.

#![forbid(unsafe_code)]

use crate::fs::Map;

use super::sparse_index::{Row, SparseIndex};

/// One row of `.timeindex`: 12 bytes, big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRow {
    /// The largest timestamp up to and including the record at `relative`, milliseconds.
    pub timestamp: i64,
    /// The offset of the record that carries it, less the segment's base.
    pub relative: u32,
}

impl TimeRow {
    /// Bytes of a row.
    pub const SIZE: usize = 12;

    /// Decodes a row.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [t0, t1, t2, t3, t4, t5, t6, t7, r0, r1, r2, r3] = bytes;
        Self {
            timestamp: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            relative: u32::from_be_bytes([r0, r1, r2, r3]),
        }
    }

    /// Whether it may stand directly behind `before`.
    #[must_use]
    pub fn may_follow(&self, before: &Self) -> bool {
        self.timestamp > before.timestamp
            && self.relative > before.relative
            && i32::try_from(self.relative).is_ok()
    }
}

impl Row for TimeRow {
    const BYTES: usize = Self::SIZE;

    fn read<M: Map>(map: &M, number: usize) -> Option<Self> {
        map.row(number * Self::SIZE).map(Self::from_bytes)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        out.extend_from_slice(&self.relative.to_be_bytes());
    }

    fn rises_above(&self, before: &Self) -> bool {
        self.may_follow(before)
    }
}

pub(super) type TimeIndex<F> = SparseIndex<F, TimeRow>;
