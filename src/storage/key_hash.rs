//! `SipHash` of keys with 128 bits of result: the standard library's gives 64, and two of those take twice the time.
//!
//! One round a word and three at the end, as the standard library has it; the tests check the published vectors of two and four.

#![forbid(unsafe_code)]

/// 128 bits that stand for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyHash(pub(super) u64, pub(super) u64);

/// Hashes keys under a secret of its own.
#[derive(Debug)]
pub(super) struct KeyHasher {
    secret: (u64, u64),
}

impl KeyHasher {
    pub(super) fn new(first: u64, second: u64) -> Self {
        Self {
            secret: (first, second),
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        sip_128::<1, 3>(self.secret, key)
    }
}

/// The four words of `SipHash`.
struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[inline]
    fn rounds<const N: usize>(&mut self) {
        for _ in 0..N {
            self.v0 = self.v0.wrapping_add(self.v1);
            self.v2 = self.v2.wrapping_add(self.v3);
            self.v1 = self.v1.rotate_left(13) ^ self.v0;
            self.v3 = self.v3.rotate_left(16) ^ self.v2;
            self.v0 = self.v0.rotate_left(32);
            self.v2 = self.v2.wrapping_add(self.v1);
            self.v0 = self.v0.wrapping_add(self.v3);
            self.v1 = self.v1.rotate_left(17) ^ self.v2;
            self.v3 = self.v3.rotate_left(21) ^ self.v0;
            self.v2 = self.v2.rotate_left(32);
        }
    }

    #[inline]
    fn take<const N: usize>(&mut self, word: u64) {
        self.v3 ^= word;
        self.rounds::<N>();
        self.v0 ^= word;
    }
}

/// `C` rounds for each word, `D` at the end.
#[inline]
fn sip_128<const C: usize, const D: usize>(secret: (u64, u64), bytes: &[u8]) -> KeyHash {
    let mut state = State {
        v0: secret.0 ^ 0x736f_6d65_7073_6575,
        v1: secret.1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        v2: secret.0 ^ 0x6c79_6765_6e65_7261,
        v3: secret.1 ^ 0x7465_6462_7974_6573,
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state.take::<C>(u64::from_le_bytes(*word));
    }
    // The last word: the bytes left over, and the length's low byte on top.
    let mut last = (bytes.len() as u64) << 56;
    for (place, byte) in rest.iter().enumerate() {
        last |= u64::from(*byte) << (8 * place);
    }
    state.take::<C>(last);
    state.v2 ^= 0xee;
    state.rounds::<D>();
    let first = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
    state.v1 ^= 0xdd;
    state.rounds::<D>();
    let second = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
    KeyHash(first, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_come_out() {
        // From the reference implementation: key 00..0f, messages of no byte and of one.
        let secret = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        for (message, expected) in [
            (&[][..], 0xa381_7f04_ba25_a8e6_6df6_7214_c755_0293_u128),
            (&[0][..], 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45),
        ] {
            let KeyHash(first, second) = sip_128::<2, 4>(secret, message);
            let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
            let found = bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u128::from(*byte));
            assert_eq!(found, expected, "{message:?}");
        }
    }

    #[test]
    fn every_byte_the_length_and_the_secret_count() {
        let hasher = KeyHasher::new(1, 2);
        let mut seen = vec![hasher.hash(b"")];
        let mut note = |hash: KeyHash, what: &str| {
            assert!(!seen.contains(&hash), "{what}");
            seen.push(hash);
        };
        for len in 1..40_usize {
            let mut key = vec![0; len];
            note(hasher.hash(&key), "a length");
            for at in 0..len {
                if let Some(byte) = key.get_mut(at) {
                    *byte = 1;
                }
                note(hasher.hash(&key), "a byte");
                key.fill(0);
            }
            note(KeyHasher::new(1, 3).hash(&key), "a secret");
        }
    }
}
