//! File names of a partition's directory.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use crate::fs::DirEntry;

/// Digits of a base offset in a file name.
const DIGITS: usize = 20;

/// What a file name in a partition's directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `<base>.log`
    Log(i64),
    /// `<base>.index`
    Index(i64),
    /// `<base>.timeindex`
    TimeIndex(i64),
    /// `<base>.torn`, `<base>.torn.1` ...
    Torn(i64),
    /// `<base>.damaged`, `<base>.damaged.1` ...: what a repair moved aside.
    Damaged(i64),
    /// The text file with the times of last appends.
    AppendTimes,
    /// The text file that says how far compaction has come.
    Cleaned,
    /// `<base>.replace`: what a clean-up is replacing.
    Replace(i64),
    /// A leftover of a clean-up that can only be removed: `.deleted`, `.cleaned`.
    Leftover,
    /// Anything else: left alone.
    Unknown,
}

/// Tells a file by its name; only canonical names (20 digits) are ours.
#[must_use]
pub fn file_kind(name: &str) -> FileKind {
    if name == APPEND_TIMES {
        return FileKind::AppendTimes;
    }
    if name == CLEANED {
        return FileKind::Cleaned;
    }
    let Some((digits, suffix)) = name.split_once('.') else {
        return FileKind::Unknown;
    };
    if digits.len() != DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return FileKind::Unknown;
    }
    // Every offset of a segment is within 31 bits of its base.
    let Some(base) = digits
        .parse()
        .ok()
        .filter(|base| *base <= i64::MAX - i64::from(i32::MAX))
    else {
        return FileKind::Unknown;
    };
    match suffix {
        "log" => FileKind::Log(base),
        "index" => FileKind::Index(base),
        "timeindex" => FileKind::TimeIndex(base),
        "replace" => FileKind::Replace(base),
        "torn" => FileKind::Torn(base),
        other => {
            let is_numbered = other
                .strip_prefix("torn.")
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if is_numbered {
                FileKind::Torn(base)
            } else if other == "damaged" || other.starts_with("damaged.") {
                FileKind::Damaged(base)
            } else if [".deleted", ".cleaned", ".swap"]
                .iter()
                .any(|end| other.ends_with(end))
            {
                FileKind::Leftover
            } else {
                FileKind::Unknown
            }
        }
    }
}

/// What an entry of a partition's directory is: a directory is none of ours, whatever its name.
#[must_use]
pub fn entry_kind(entry: &DirEntry) -> FileKind {
    let name = entry.name.to_str().filter(|_| !entry.is_dir);
    name.map_or(FileKind::Unknown, file_kind)
}

/// The name of the text file that says how far compaction has come.
pub const CLEANED: &str = "cleaned";

/// The three files of a segment, by what stands behind the base offset: every list of them is this one.
pub const SEGMENT_SUFFIXES: [&str; 3] = ["log", "index", "timeindex"];

/// The name of the text file that holds, for each sealed segment, the time of its last append.
pub const APPEND_TIMES: &str = "append-times";

/// `<dir>/<20 digits>.<suffix>`.
#[must_use]
pub fn segment_file(dir: &Path, base: i64, suffix: &str) -> PathBuf {
    dir.join(format!("{base:020}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_segments() {
        assert_eq!(file_kind("00000000000000000042.log"), FileKind::Log(42));
        assert_eq!(file_kind("00000000000000000042.index"), FileKind::Index(42));
        assert_eq!(
            file_kind("00000000000000000042.timeindex"),
            FileKind::TimeIndex(42)
        );
        assert_eq!(file_kind("00000000000000000042.torn"), FileKind::Torn(42));
        assert_eq!(file_kind("00000000000000000042.torn.7"), FileKind::Torn(42));
        assert_eq!(
            file_kind("00000000000000000042.log.deleted"),
            FileKind::Leftover
        );
        for foreign in [
            "42.log",
            "foo.log",
            "00000000000000000042.log.bak",
            "00000000000000000042.torn.",
            "99999999999999999999.log",
            "+0000000000000000042.log",
            "log",
        ] {
            assert_eq!(file_kind(foreign), FileKind::Unknown, "{foreign}");
        }
    }
}
