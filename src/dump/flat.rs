//! A flat file of version-1 records, as the original program wrote it: one log without segments or indexes.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::path::Path;

use crate::format::{DecodeError, Layout};
use crate::fs::{File, Fs, OpenMode};
use crate::record::StoredRecord;
use crate::storage::walk::Bounds;
use crate::storage::window::Window;

use super::Error;

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// Opens the file.
///
/// # Errors
/// It cannot be read, or its first record is of another version.
pub fn open<F: Fs>(fs: &F, path: &Path) -> Result<F::File, Error> {
    let file = fs.open(path, OpenMode::Read).map_err(Error::read(path))?;
    let len = file.len().map_err(Error::read(path))?;
    let window = Window::new(&file, len, CHUNK_BYTES, Vec::new());
    let (bytes, filled) = window.peek(0).map_err(Error::read(path))?;
    if let Ok(layout @ Layout::V2) = Layout::of(bytes.get(..filled).unwrap_or_default()) {
        return Err(Error::Unfit(format!(
            "{} holds records of version {}; import takes a flat file of version 1",
            path.display(),
            layout.version()
        )));
    }
    Ok(file)
}

/// What stands next in the file.
#[derive(Debug)]
pub enum Next<'r> {
    /// A good record. Version 1 has no checksum: it is good if its fields are possible, and the end of the file or a record with a
    /// higher offset follows.
    Record(u64, StoredRecord<'r>),
    /// At that position stands none; what follows is not looked at.
    Damage(u64, DecodeError),
    /// The file ends.
    End,
}

/// The records of a flat file, up to the first that is damaged.
pub struct Flat<'f> {
    window: Window<'f>,
    position: u64,
    /// The lowest offset that the next record may have.
    expected: i64,
}

impl fmt::Debug for Flat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flat")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl<'f> Flat<'f> {
    /// The records of an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn new<F: File>(file: &'f F) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self {
            window: Window::new(file, len, CHUNK_BYTES, Vec::new()),
            position: 0,
            expected: 0,
        })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.window.limit()
    }

    /// Whether the file holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next record.
    ///
    /// # Errors
    /// What the system says.
    pub fn next_record(&mut self) -> io::Result<Next<'_>> {
        let position = self.position;
        if position >= self.window.limit() {
            return Ok(Next::End);
        }
        // A file of its own has no base; any offset may follow any lower one.
        let head = self.window.head(Layout::V1, position)?;
        let base = head.map_or(self.expected, |head| head.first_offset);
        let bounds = Bounds {
            base,
            upper: i64::MAX,
            layout: Layout::V1,
        };
        match bounds.good_entry(&mut self.window, position, self.expected)? {
            Ok((head, stored)) => {
                self.position = position + u64::from(head.length);
                self.expected = head.last_offset.saturating_add(1);
                Ok(Next::Record(position, stored))
            }
            Err(error) => Ok(Next::Damage(position, error)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::fs::mem::MemFs;
    use crate::record::Record;

    fn flat(offsets: &[i64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &offset in offsets {
            let record = Record {
                timestamp: offset,
                key: None,
                value: Some(b"vvvv"),
                headers: b"",
            };
            Layout::V1
                .encode(offset, &record, &mut bytes)
                .expect("small");
        }
        bytes
    }

    /// Offsets of the records, and where damage stands.
    fn read(bytes: &[u8]) -> (Vec<i64>, Option<u64>) {
        let fs = MemFs::new();
        let file = fs
            .open(Path::new("/f"), OpenMode::CreateNew)
            .expect("create");
        file.write_all_at(bytes, 0).expect("write");
        let mut flat = Flat::new(&file).expect("open");
        let mut offsets = Vec::new();
        loop {
            match flat.next_record().expect("read") {
                Next::Record(_, stored) => offsets.push(stored.offset),
                Next::Damage(position, _) => return (offsets, Some(position)),
                Next::End => return (offsets, None),
            }
        }
    }

    #[test]
    fn records_come_up_to_the_first_that_is_not_good() {
        let bytes = flat(&[5, 6, 9_000_000_000, 9_000_000_001]);
        assert_eq!(
            read(&bytes),
            (vec![5, 6, 9_000_000_000, 9_000_000_001], None)
        );
        assert_eq!(read(&[]), (vec![], None));
        // Cut short, followed by something else, offsets that fall.
        assert_eq!(
            read(&bytes[..bytes.len() - 1]),
            (vec![5, 6, 9_000_000_000], Some(78))
        );
        assert_eq!(read(&[&bytes[..52], b"xx"].concat()), (vec![5], Some(26)));
        assert_eq!(read(&flat(&[5, 7, 6])), (vec![5], Some(26)));
    }
}
