//! One partition's log on the real file system, without a broker around it.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use mini_broker::fs::disk::DiskFs;
use mini_broker::storage::data_dir::{DataDir, partition_dir_name};
use mini_broker::storage::{FsyncPolicy, Log, LogConfig, LogContext, StartFrom};

use super::Result;

/// The only topic; it has one partition.
const TOPIC: &str = "bench";
/// What the clock shows: these benches hand it to the engine as a value, as the broker's loop does.
pub(crate) const NOW_MS: i64 = 1_767_225_600_000;

/// A log, and the data directory that it is in.
#[derive(Debug)]
pub(crate) struct Engine {
    /// The log.
    pub(crate) log: Log<DiskFs>,
    _data: DataDir<DiskFs>,
}

impl Engine {
    /// Opens the log in `root`, which is made where it is missing. A log that is there was closed in order.
    ///
    /// # Errors
    /// What the engine says.
    pub(crate) fn open(root: &Path, fsync: FsyncPolicy, config: LogConfig) -> Result<Self> {
        let mut data = DataDir::lock(DiskFs, root)?;
        data.begin()?;
        let directory = partition_dir(root);
        let is_clean = directory.is_dir();
        if !is_clean {
            std::fs::create_dir(&directory)?;
        }
        let context = Rc::new(LogContext::new(
            DiskFs,
            fsync,
            Rc::clone(data.checkpoints()),
        ));
        let start = StartFrom { is_clean };
        let (log, _) = Log::open(&context, root, TOPIC, 0, config, start, NOW_MS)?;
        Ok(Self { log, _data: data })
    }
}

/// Where the partition's files are.
pub(crate) fn partition_dir(root: &Path) -> PathBuf {
    root.join(partition_dir_name(TOPIC, 0))
}
