//! Memory of its own for a table of many megabytes that is looked up at random.

#![forbid(unsafe_code)]

use std::io;

use memmap2::{Advice, MmapMut, MmapOptions};

/// Zeroed memory, in huge pages where the kernel has some: a table larger than what the processor keeps addresses of would pay for
/// most look-ups twice. Nothing is taken from the system until it is touched, and all of it goes back at once on drop.
#[derive(Debug)]
pub struct Memory {
    map: MmapMut,
}

impl Memory {
    /// So many bytes, one at the least.
    ///
    /// # Errors
    /// Where the system has no room for them.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes.max(1)).map_anon()?;
        if let Err(error) = map.advise(Advice::HugePage) {
            log::debug!("no huge pages: {error}");
        }
        Ok(Self { map })
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_and_keeps_what_is_written() {
        let mut memory = Memory::zeroed(3 << 20).expect("room");
        assert_eq!(memory.bytes().len(), 3 << 20);
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut().fill(7);
        assert!(memory.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(Memory::zeroed(0).expect("room").bytes(), [0]);
    }
}
