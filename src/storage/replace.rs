//! Putting a cleaned segment in the place of those it was made from, so that a crash at any step leaves the old or the new.
//!
//! A manifest `<base>.replace` names what is replaced, and is durable before the first rename. From then on the replacement is
//! finished, by whoever finds the manifest; before, the `.cleaned` files are rubbish. What is replaced is never derived from what survives: a
//! cleaned segment may be empty.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{Fs, read_file};

use super::Error;
use super::context::LogContext;
use super::names::{FileKind, SEGMENT_SUFFIXES, file_kind, segment_file};

const MANIFEST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Writes the manifest: the bases and sizes of what is replaced, oldest first. The cleaned segment takes the first's name.
pub(super) fn announce<F: Fs>(
    context: &LogContext<F>,
    dir: &Path,
    sources: &[(i64, u64)],
) -> Result<(), Error> {
    let Some((base, _)) = sources.first() else {
        return Ok(());
    };
    let lines = sources
        .iter()
        .map(|(base, bytes)| format!("{base} {bytes}\n"));
    let text = format!("{}end\n", lines.collect::<String>());
    context
        .checkpoints
        .replace_text(&segment_file(dir, *base, "replace"), &text)
}

/// Takes an announcement back that failed half-way: afterwards no manifest is on the disk.
pub(super) fn withdraw<F: Fs>(fs: &F, dir: &Path, base: i64) -> io::Result<()> {
    match fs.remove_file(&segment_file(dir, base, "replace")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs.sync_dir(dir)
}

/// Does what a manifest says, as far as it is not done. Gives the files that were replaced, under their new names.
pub(super) fn finish<F: Fs>(fs: &F, dir: &Path, bases: &[i64]) -> Result<Vec<PathBuf>, Error> {
    let replaced = rename_all(fs, dir, bases)?;
    if let Some(base) = bases.first() {
        conclude(fs, dir, *base)?;
    }
    Ok(replaced)
}

/// The renames of a replacement. Gives the files that were replaced, under their new names. Until [`conclude`] a start does the same again.
///
/// The old names are away durably before the first cleaned file takes one: a disk may keep two renames in the other order, and the
/// cleaned file would go the old one's way.
pub(super) fn rename_all<F: Fs>(fs: &F, dir: &Path, bases: &[i64]) -> Result<Vec<PathBuf>, Error> {
    let mut replaced = Vec::new();
    let Some((&base, others)) = bases.split_first() else {
        return Ok(replaced);
    };
    for other in others {
        for suffix in SEGMENT_SUFFIXES {
            set_aside(fs, dir, *other, suffix, &mut replaced)?;
        }
    }
    let mut waiting = Vec::new();
    for suffix in SEGMENT_SUFFIXES {
        let cleaned = segment_file(dir, base, &format!("{suffix}.cleaned"));
        // One that is not there has taken its name already.
        if fs
            .exists(&cleaned)
            .map_err(Error::io("look-up", &cleaned))?
        {
            set_aside(fs, dir, base, suffix, &mut replaced)?;
            waiting.push((cleaned, segment_file(dir, base, suffix)));
        }
    }
    fs.sync_dir(dir).map_err(Error::io("fsync", dir))?;
    for (cleaned, to) in waiting {
        fs.rename(&cleaned, &to)
            .map_err(Error::io("rename", &cleaned))?;
    }
    Ok(replaced)
}

/// Makes the renames durable and takes the manifest away, durably, too: one that came back would announce whatever `.cleaned` file is begun next.
pub(super) fn conclude<F: Fs>(fs: &F, dir: &Path, base: i64) -> Result<(), Error> {
    fs.sync_dir(dir).map_err(Error::io("fsync", dir))?;
    let manifest = segment_file(dir, base, "replace");
    fs.remove_file(&manifest)
        .map_err(Error::io("removal", &manifest))?;
    fs.sync_dir(dir).map_err(Error::io("fsync", dir))
}

fn set_aside<F: Fs>(
    fs: &F,
    dir: &Path,
    base: i64,
    suffix: &str,
    replaced: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let from = segment_file(dir, base, suffix);
    let to = segment_file(dir, base, &format!("{suffix}.deleted"));
    match fs.rename(&from, &to) {
        Ok(()) => replaced.push(to),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io("rename", &from)(error)),
    }
    Ok(())
}

/// At a start: finishes every replacement that was announced. A manifest is replaced whole, so one that is not whole was not written by a
/// broker: it is named and left, and the segments stay as they are.
pub(super) fn finish_all<F: Fs>(fs: &F, dir: &Path) -> Result<(), Error> {
    for entry in fs.read_dir(dir).map_err(Error::io("read", dir))? {
        let name = entry.name.to_string_lossy().into_owned();
        let FileKind::Replace(base) = file_kind(&name) else {
            continue;
        };
        let path = dir.join(&name);
        let text = read_file(fs, &path, MANIFEST_BYTES_MAX).map_err(Error::io("read", &path))?;
        match parse(&String::from_utf8_lossy(&text)) {
            Some(bases) if bases.first() == Some(&base) => {
                log::info!(
                    "finishing the replacement that {} announces",
                    path.display()
                );
                finish(fs, dir, &bases)?;
            }
            _ => log::warn!("{} makes no sense; left alone", path.display()),
        }
    }
    Ok(())
}

fn parse(text: &str) -> Option<Vec<i64>> {
    let lines = text.strip_suffix("end\n")?;
    let bases = lines
        .lines()
        .map(|line| line.split_once(' ')?.0.parse().ok());
    let bases: Vec<i64> = bases.collect::<Option<_>>()?;
    bases.is_sorted_by(|a, b| a < b).then_some(bases)
}
