//! Which partition a record goes to where none was named.
//!
//! A key is hashed exactly as Kafka's default partitioner does it, so that both send the same key to the same partition.
//! Records without one stick to a partition for a run, then move on: a run that spread each turn's records over all
//! partitions would cost one fdatasync for each of them.

#![forbid(unsafe_code)]

/// Kafka's `Utils.murmur2`: 32-bit, seed 0x9747b28c, little-endian words.
#[must_use]
pub fn murmur2(bytes: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    // Java's array length is an i32; a key of 2^31 bytes or more is refused long before.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ len;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (&byte, shift) in rest.iter().zip([0, 8, 16]) {
            hash ^= u32::from(byte) << shift;
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ (hash >> 15)).cast_signed()
}

/// The partition, of `partitions` (at least 1), that a key belongs to.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key).cast_unsigned() & 0x7fff_ffff) % partitions.max(1)
}

/// A run is over after so many records ...
const RUN_RECORDS: u64 = 1_000;
/// ... or so many payload bytes, at the next turn of the loop.
const RUN_BYTES: u64 = 64 * 1024;

/// The partition that records without a key stick to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sticky {
    partition: u32,
    records: u64,
    bytes: u64,
    turn: u64,
}

impl Sticky {
    /// The partition for what comes now in that turn of the loop: the same as before, or another of `partitions` once the run was long
    /// enough. It changes only between turns, and passes over those that `is_open` refuses.
    pub(super) fn choose(
        &mut self,
        turn: u64,
        partitions: u32,
        is_open: impl Fn(u32) -> bool,
    ) -> u32 {
        let is_over = self.turn != turn && (self.records >= RUN_RECORDS || self.bytes >= RUN_BYTES);
        if is_over || self.partition >= partitions || !is_open(self.partition) {
            let others = (1..=partitions).map(|step| (self.partition + step) % partitions.max(1));
            self.partition = others
                .into_iter()
                .find(|&other| is_open(other))
                .unwrap_or(0);
            (self.records, self.bytes) = (0, 0);
        }
        self.turn = turn;
        self.partition
    }

    /// Counts what went to the partition last chosen.
    pub(super) fn count(&mut self, records: u64, bytes: u64) {
        self.records += records;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_kafkas() {
        for (key, hash) in [
            (&b"21"[..], -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key), hash, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn a_key_has_one_partition_and_a_negative_hash_a_positive_one() {
        // -973,932,308 without its sign bit is 1,173,551,340.
        assert_eq!(partition_of(b"21", 10), 0);
        assert_eq!(partition_of(b"", 1), 0);
        assert!(partition_of(b"foobar", 7) < 7);
    }

    #[test]
    fn records_without_a_key_stick_for_a_run_and_move_on_between_turns() {
        let mut sticky = Sticky::default();
        let first = sticky.choose(1, 3, |_| true);
        for _ in 0..RUN_RECORDS - 1 {
            sticky.count(1, 10);
        }
        assert_eq!(sticky.choose(2, 3, |_| true), first, "the run is not over");
        sticky.count(1, 10);
        assert_eq!(sticky.choose(2, 3, |_| true), first, "not within a turn");
        let second = sticky.choose(3, 3, |_| true);
        assert_ne!(second, first);
        sticky.count(1, RUN_BYTES);
        let third = sticky.choose(4, 3, |_| true);
        assert!(third != first && third != second, "all in turn");
    }

    #[test]
    fn a_partition_that_takes_no_appends_is_passed_over() {
        let mut sticky = Sticky::default();
        assert_eq!(sticky.choose(1, 3, |p| p == 2), 2);
        assert_eq!(sticky.choose(1, 3, |_| false), 0, "somebody has to say no");
    }
}
