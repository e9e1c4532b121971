//! The last offset of each key, in a bounded memory: what compaction decides by.
//!
//! Keys are held as 128 bits of two keyed hashes, as Kafka's `SkimpyOffsetMap` holds their MD5: two keys that fall together would cost a
//! record, and do so about once in 10^25 runs of a billion keys. The hash keys are random, so nobody can choose such keys.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};

/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 24;

/// Key to offset. A slot is free where its offset is 0 (offsets are stored plus one).
#[derive(Debug)]
pub(super) struct OffsetMap {
    slots: Vec<(u64, u64, u64)>,
    used: usize,
    hashers: (RandomState, RandomState),
}

impl OffsetMap {
    /// A map of at most `max_bytes`, and no more than `entries` need. The memory is touched only as it fills.
    pub(super) fn new(max_bytes: u64, entries: u64) -> Self {
        let most = usize::try_from(max_bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
        let needed = usize::try_from(entries.saturating_mul(10) / 9 + 2).unwrap_or(usize::MAX);
        Self {
            slots: vec![(0, 0, 0); most.min(needed).max(2)],
            used: 0,
            hashers: (RandomState::new(), RandomState::new()),
        }
    }

    /// Whether no other key fits: nine tenths of the slots are taken, so that probes stay short.
    pub(super) fn is_full(&self) -> bool {
        self.used + 1 > (self.slots.len() - 1).min(self.slots.len() / 10 * 9 + 1)
    }

    /// Notes that the key's last record so far is at `offset`. The caller has asked [`OffsetMap::is_full`].
    pub(super) fn put(&mut self, key: &[u8], offset: i64) {
        let (first, second, at) = self.find(key);
        if let Some(slot) = self.slots.get_mut(at) {
            self.used += usize::from(slot.2 == 0);
            *slot = (first, second, offset.unsigned_abs() + 1);
        }
    }

    /// The offset of the key's last record.
    pub(super) fn get(&self, key: &[u8]) -> Option<i64> {
        let (_, _, at) = self.find(key);
        let stored = self.slots.get(at).map_or(0, |slot| slot.2);
        stored
            .checked_sub(1)
            .and_then(|offset| i64::try_from(offset).ok())
    }

    /// Keys held.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// The key's hashes, and its slot or the free one that it would take. There always is a free one.
    fn find(&self, key: &[u8]) -> (u64, u64, usize) {
        let (first, second) = (self.hashers.0.hash_one(key), self.hashers.1.hash_one(key));
        let len = self.slots.len();
        let mut at = usize::try_from(first % len as u64).unwrap_or(0);
        loop {
            match self.slots.get(at) {
                Some(slot) if slot.2 != 0 && (slot.0, slot.1) != (first, second) => {
                    at = (at + 1) % len;
                }
                _ => return (first, second, at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_offset_of_each_key_is_found() {
        let mut map = OffsetMap::new(1 << 20, 1000);
        for offset in 0..3000_i64 {
            map.put(&(offset % 700).to_be_bytes(), offset);
        }
        assert_eq!(map.len(), 700);
        for key in 0..700_i64 {
            let last = (0..3000).rev().find(|offset| offset % 700 == key);
            assert_eq!(map.get(&key.to_be_bytes()), last);
        }
        assert_eq!(map.get(b"never"), None);
    }

    #[test]
    fn it_says_full_in_time_and_stays_within_its_memory() {
        for slots in [2_u64, 3, 10, 11, 100] {
            let mut map = OffsetMap::new(slots * SLOT_BYTES as u64, u64::MAX / 100);
            let mut keys = 0_u64;
            while !map.is_full() {
                map.put(&keys.to_be_bytes(), 0);
                keys += 1;
            }
            assert!(keys >= 1 && keys < slots, "{keys} keys in {slots} slots");
            assert_eq!(map.get(b"another"), None, "a probe ends");
        }
    }
}
