//! Reading a data directory without a broker: what `mini-broker dump` and `mini-broker verify` show.
//!
//! Everything here is strictly read-only and reads at positions, never through a mapping, because it may run beside a
//! broker that appends, rolls and trims. What is damage, and where reading goes on behind it, is decided by
//! [`storage::walk`](crate::storage::walk), the same code that the broker reads and recovers with.
//!
//! [`rows`] reads the sparse indexes, [`segment`] goes through one log and holds its indexes against it, [`directory`] does that for
//! a whole data directory, [`mod@print`] makes the lines; [`flat`] reads what import takes.
#![forbid(unsafe_code)]

pub mod directory;
pub mod flat;
mod index_check;
pub mod print;
pub mod rows;
pub mod segment;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a dump or a verification ended early.
#[derive(Debug)]
pub enum Error {
    /// A file could not be read.
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was found could not be handed on (a closed pipe, as a rule).
    Write(io::Error),
    /// It is not what it was said to be; a sentence.
    Unfit(String),
}

impl Error {
    /// Wraps what the system said about reading that file.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => {
                write!(f, "cannot read {}: {source}", path.display())
            }
            Self::Write(source) => write!(f, "cannot write: {source}"),
            Self::Unfit(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Write(source) => Some(source),
            Self::Unfit(_) => None,
        }
    }
}
