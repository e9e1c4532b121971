//! Putting bytes of a log aside: the torn end of a last segment, and what a repair takes out.

#![forbid(unsafe_code)]

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::fs::{File, Fs, OpenMode};

use super::Error;
use super::log::Log;
use super::names::segment_file;
use super::rebuild::SCAN_CHUNK_BYTES;

/// The end of a last segment that is to be put aside: not done yet for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingCut {
    /// Where it starts, bytes.
    position: u64,
    /// When it was tried last, by the broker's clock.
    tried_ms: Option<i64>,
}

/// How long until a cut that found no room is tried again.
const RETRY_MS: i64 = 1000;

impl PendingCut {
    /// A cut at a position, bytes.
    pub(super) fn at(position: u64) -> Self {
        Self {
            position,
            tried_ms: None,
        }
    }
}

impl<F: Fs> Log<F> {
    /// Puts a torn end aside and cuts it off. Without room for that nothing is changed, and it is tried again at the next append.
    ///
    /// # Errors
    /// `Io` where it failed.
    pub(super) fn cut_pending(&mut self, now_ms: i64) -> Result<(), Error> {
        let Some(cut) = self.pending_cut else {
            return Ok(());
        };
        let base = self.active.base;
        let path = segment_file(&self.dir, base, "log");
        // Each try copies the end until the disk is full again: not at every append.
        if cut
            .tried_ms
            .is_some_and(|tried| (tried..tried + RETRY_MS).contains(&now_ms))
        {
            return Err(Error::io("put aside the torn end", &path)(
                io::ErrorKind::StorageFull.into(),
            ));
        }
        self.pending_cut = Some(PendingCut {
            tried_ms: Some(now_ms),
            ..cut
        });
        self.put_aside(base, cut.position)
            .map_err(Error::io("put aside the torn end", &path))?;
        let cut_off = self
            .active
            .log
            .set_len(cut.position)
            .and_then(|()| self.active.log.sync_data());
        if let Err(error) = &cut_off {
            self.turn_read_only("cut off a torn end", error);
        }
        cut_off.map_err(Error::io("cut", &path))?;
        self.pending_cut = None;
        if self.active.must_roll {
            self.roll(now_ms, true)?;
        }
        Ok(())
    }

    /// Copies the end of a segment to the first free `.torn` name, durably.
    fn put_aside(&self, base: i64, position: u64) -> io::Result<()> {
        let fs = &self.context.fs;
        let (path, file) = create_beside(fs, &self.dir, base, "torn")?;
        let copied = copy(&*self.active.log, &file, position..u64::MAX).and_then(|bytes| {
            file.sync_data()?;
            fs.sync_dir(&self.dir)?;
            Ok(bytes)
        });
        match copied {
            Ok(bytes) => {
                log::warn!(
                    "{}/{}: cut {bytes} bytes at position {position} of {base:020}.log, kept in {}",
                    self.topic,
                    self.partition,
                    path.display()
                );
                Ok(())
            }
            Err(error) => {
                drop(file);
                fs.remove_file(&path)?;
                Err(error)
            }
        }
    }
}

/// Creates `<base>.<suffix>`, or `<base>.<suffix>.1` and so on where that exists.
pub(super) fn create_beside<F: Fs>(
    fs: &F,
    dir: &Path,
    base: i64,
    suffix: &str,
) -> io::Result<(PathBuf, F::File)> {
    let mut path = segment_file(dir, base, suffix);
    for number in 1_u32.. {
        match fs.open(&path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                path = segment_file(dir, base, &format!("{suffix}.{number}"));
            }
            result => return result.map(|file| (path, file)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Copies a range of a file, as far as the file goes, to the start of another; gives the number of bytes.
pub(super) fn copy<R: File, W: File>(from: &R, to: &W, range: Range<u64>) -> io::Result<u64> {
    let mut buffer = vec![0; SCAN_CHUNK_BYTES];
    let mut position = range.start;
    while position < range.end {
        let filled = from.read_at(&mut buffer, position)?;
        let left = usize::try_from(range.end - position).unwrap_or(usize::MAX);
        let bytes = buffer.get(..filled.min(left)).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        to.write_all_at(bytes, position - range.start)?;
        position += bytes.len() as u64;
    }
    Ok(position - range.start)
}
