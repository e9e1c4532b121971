//! The floor map: base offset to sealed segment, ordered.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::api::SegmentInfo;

/// A sealed segment, as the floor map holds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealed {
    /// Bytes of its .log.
    pub(super) bytes: u64,
    /// What it was found to hold, so that the next question does not open it again.
    pub(super) known: Known,
}

impl Sealed {
    /// One that nobody has looked into.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            known: Known::default(),
        }
    }
}

/// What is remembered of a sealed segment, as far as it was asked for: it does not change any more.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Its largest timestamp.
    pub(super) largest_timestamp: Option<i64>,
    /// What SEGMENTS shows of it.
    pub(super) info: Option<SegmentInfo>,
}

/// Sealed segments by base offset. It knows their bytes without asking each.
#[derive(Debug, Default)]
pub(super) struct FloorMap {
    by_base: BTreeMap<i64, Sealed>,
    bytes: u64,
}

impl FloorMap {
    pub(super) fn insert(&mut self, base: i64, segment: Sealed) {
        self.bytes += segment.bytes;
        if let Some(before) = self.by_base.insert(base, segment) {
            self.bytes -= before.bytes;
        }
    }

    pub(super) fn remove(&mut self, base: i64) {
        if let Some(segment) = self.by_base.remove(&base) {
            self.bytes -= segment.bytes;
        }
    }

    /// What is remembered of a segment; `None` where there is no such.
    pub(super) fn known_mut(&mut self, base: i64) -> Option<&mut Known> {
        self.by_base
            .get_mut(&base)
            .map(|segment| &mut segment.known)
    }

    /// Bytes of all .log files in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FromIterator<(i64, Sealed)> for FloorMap {
    fn from_iter<I: IntoIterator<Item = (i64, Sealed)>>(segments: I) -> Self {
        let mut map = Self::default();
        for (base, segment) in segments {
            map.insert(base, segment);
        }
        map
    }
}

impl Deref for FloorMap {
    type Target = BTreeMap<i64, Sealed>;

    fn deref(&self) -> &Self::Target {
        &self.by_base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_what_is_there() {
        let mut map: FloorMap = [(0, Sealed::new(10)), (5, Sealed::new(7))]
            .into_iter()
            .collect();
        map.insert(5, Sealed::new(3));
        map.insert(9, Sealed::new(1));
        map.remove(0);
        map.remove(0);
        assert_eq!(
            map.bytes(),
            map.values().map(|segment| segment.bytes).sum::<u64>()
        );
        assert_eq!(map.bytes(), 4);
    }
}
