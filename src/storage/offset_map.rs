//! The last offset of each key, in a bounded memory: what compaction decides by.
//!
//! Keys are held as 128 bits of a keyed hash, as Kafka's `SkimpyOffsetMap` holds their MD5: two keys that fall together would cost a
//! record, and do so about once in 10^20 runs of a billion keys. The hash key is random, so nobody can choose such keys.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::io;

use crate::fs::memory::Memory;

use super::key_hash::{KeyHash, KeyHasher};

/// Bytes of a slot: a key's hash, and its offset plus one; 0 where it is free.
pub(super) const SLOT_BYTES: usize = 24;

/// Key to offset.
#[derive(Debug)]
pub(super) struct OffsetMap {
    slots: Memory,
    used: usize,
    hasher: KeyHasher,
}

impl OffsetMap {
    /// A map of at most `max_bytes`, and no more than `entries` need. The memory is touched only as it fills.
    ///
    /// # Errors
    /// Where there is no room for it.
    pub(super) fn new(max_bytes: u64, entries: u64) -> io::Result<Self> {
        let most = usize::try_from(max_bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
        let needed = usize::try_from(entries.saturating_mul(10) / 9 + 2).unwrap_or(usize::MAX);
        let slots = most.min(needed).max(2);
        // The standard library's own hash keys, which differ in every state.
        let random = || RandomState::new().hash_one(0_u8);
        Ok(Self {
            slots: Memory::zeroed(slots.saturating_mul(SLOT_BYTES))?,
            used: 0,
            hasher: KeyHasher::new(random(), random()),
        })
    }

    /// The hash under which the map knows the key.
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// Notes that the key's last record so far is at `offset`; false where the key is new and no other fits: nine tenths of the slots are
    /// taken, so that probes stay short.
    #[inline]
    pub(super) fn note(&mut self, hash: KeyHash, offset: i64) -> bool {
        let at = self.find(hash);
        let is_full = self.is_full();
        let (slots, _) = self.slots.bytes_mut().as_chunks_mut::<SLOT_BYTES>();
        let Some(slot) = slots.get_mut(at) else {
            return false;
        };
        if read(slot).1 == 0 {
            if is_full {
                return false;
            }
            self.used += 1;
        }
        write(slot, hash, offset.unsigned_abs() + 1);
        true
    }

    /// The offset of the key's last record.
    #[inline]
    pub(super) fn get(&self, hash: KeyHash) -> Option<i64> {
        let slot = self.slots().get(self.find(hash));
        let stored = slot.map_or(0, |slot| read(slot).1);
        stored
            .checked_sub(1)
            .and_then(|offset| i64::try_from(offset).ok())
    }

    /// Brings the slots of keys that are asked for next into the processor's caches: these reads do not depend on each other and wait
    /// for memory together, where those of [`note`](Self::note) and [`get`](Self::get) wait one after the other.
    pub(super) fn warm(&self, hashes: impl Iterator<Item = KeyHash>) {
        let slots = self.slots();
        let touched = hashes.fold(0, |touched, hash| {
            touched ^ slots.get(self.home(hash)).map_or(0, |slot| slot[0])
        });
        std::hint::black_box(touched);
    }

    /// Keys held.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    #[inline]
    fn slots(&self) -> &[[u8; SLOT_BYTES]] {
        self.slots.bytes().as_chunks().0
    }

    #[inline]
    fn is_full(&self) -> bool {
        let slots = self.slots().len();
        self.used + 1 > (slots - 1).min(slots / 10 * 9 + 1)
    }

    /// The slot at which a key is looked for first.
    #[inline]
    fn home(&self, hash: KeyHash) -> usize {
        // The upper half of the product: below the number of slots, and as even as the hash.
        let product = u128::from(hash.0) * self.slots().len() as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }

    /// The key's slot or the free one that it would take. There always is a free one.
    #[inline]
    fn find(&self, hash: KeyHash) -> usize {
        let slots = self.slots();
        let mut at = self.home(hash);
        loop {
            match slots.get(at).map(read) {
                Some((held, offset)) if offset != 0 && held != hash => {
                    at += 1;
                    if at == slots.len() {
                        at = 0;
                    }
                }
                _ => return at,
            }
        }
    }
}

/// A slot's hash and stored offset.
#[inline]
fn read(slot: &[u8; SLOT_BYTES]) -> (KeyHash, u64) {
    let [first, second, offset] = std::array::from_fn(|word| {
        let word = slot.as_chunks::<8>().0.get(word);
        word.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    });
    (KeyHash(first, second), offset)
}

#[inline]
fn write(slot: &mut [u8; SLOT_BYTES], hash: KeyHash, offset: u64) {
    let (words, _) = slot.as_chunks_mut::<8>();
    for (word, number) in words.iter_mut().zip([hash.0, hash.1, offset]) {
        *word = number.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_offset_of_each_key_is_found() {
        let mut map = OffsetMap::new(1 << 20, 1000).expect("room");
        for offset in 0..3000_i64 {
            assert!(map.note(map.hash(&(offset % 700).to_be_bytes()), offset));
        }
        assert_eq!(map.len(), 700);
        for key in 0..700_i64 {
            let last = (0..3000).rev().find(|offset| offset % 700 == key);
            assert_eq!(map.get(map.hash(&key.to_be_bytes())), last);
        }
        assert_eq!(map.get(map.hash(b"never")), None);
    }

    #[test]
    fn it_says_full_in_time_and_stays_within_its_memory() {
        for slots in [2_u64, 3, 10, 11, 100] {
            let mut map = OffsetMap::new(slots * SLOT_BYTES as u64, u64::MAX / 100).expect("room");
            let mut keys = 0_i64;
            while map.note(map.hash(&keys.to_be_bytes()), keys) {
                keys += 1;
            }
            let held = keys.unsigned_abs();
            assert!(held >= 1 && held < slots, "{keys} keys in {slots} slots");
            assert_eq!(map.get(map.hash(b"another")), None, "a probe ends");
            let first = map.hash(&0_i64.to_be_bytes());
            assert!(map.note(first, 500), "a key that is held always fits");
            assert_eq!(map.get(first), Some(500));
        }
    }
}
