//! Memory of its own for a table of many megabytes that is looked up at random.

#![forbid(unsafe_code)]

use std::io;

use memmap2::{Advice, MmapMut, MmapOptions};

/// Zeroed memory, in small pages: nothing is taken from the system until it is touched, a page at a time, and all of it goes back at once
/// on drop. Huge pages would be found faster, but the kernel clears each when it is first touched: a hundred keys that fall into as many of
/// them make whoever notes them wait for hundreds of milliseconds.
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
        if let Err(error) = map.advise(Advice::NoHugePage) {
            log::debug!("huge pages may be used: {error}");
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
