//! Which partition a key belongs to: the hash that Kafka's default partitioner uses, so that its clients, this broker and the clients
//! of this crate send the same key to the same partition.

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
}
