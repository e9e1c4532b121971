//! Nothing a bench started outlives it: children are killed and temporary directories removed on return, on a panic (by
//! `Drop`), and on SIGINT and SIGTERM (by the thread that [`install`] starts).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::Result;
use super::machine::data_parent;

/// What a signal has to clear away.
#[derive(Debug, Default)]
struct Registry {
    next: u64,
    children: BTreeMap<u64, Child>,
    directories: BTreeMap<u64, PathBuf>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears away on SIGINT and SIGTERM, and then exits with 130.
///
/// # Errors
/// Where the handlers cannot be set.
pub(crate) fn install() -> Result<()> {
    let (mut reader, writer) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    std::thread::spawn(move || {
        let _ = reader.read_exact(&mut [0]);
        let mut registry = registry();
        for child in registry.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for directory in registry.directories.values() {
            let _ = std::fs::remove_dir_all(directory);
        }
        std::process::exit(130);
    });
    Ok(())
}

/// A child process that dies with its owner.
#[derive(Debug)]
pub(crate) struct Kept {
    key: u64,
    /// Its process id.
    pub(crate) pid: u32,
}

impl Kept {
    /// Starts the command; the caller takes the pipes it asked for through [`Kept::with`].
    ///
    /// # Errors
    /// Where it cannot be started.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let mut registry = registry();
        let child = command
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
        let pid = child.id();
        let key = registry.next;
        registry.next += 1;
        registry.children.insert(key, child);
        Ok(Self { key, pid })
    }

    /// Does something with the child, which the registry owns.
    pub(crate) fn with<T>(&mut self, f: impl FnOnce(&mut Child) -> T) -> Option<T> {
        registry().children.get_mut(&self.key).map(f)
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = registry().children.remove(&self.key) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and waits until it is gone.
    ///
    /// # Errors
    /// Where it did not exit with 0.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let sent = Command::new("sh")
            .arg("-c")
            .arg(format!("kill -TERM {}", self.pid))
            .status()?;
        if !sent.success() {
            return Err(format!("no process {} to stop", self.pid).into());
        }
        let child = registry().children.remove(&self.key);
        match child.map(|mut child| child.wait()).transpose()? {
            Some(status) if status.success() => Ok(()),
            status => Err(format!("the broker stopped with {status:?}").into()),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A directory that is removed with its owner.
#[derive(Debug)]
pub(crate) struct TempDir {
    key: u64,
    path: PathBuf,
}

impl TempDir {
    /// A new, empty directory in `parent`, or where [`data_parent`] says.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Self> {
        let parent = data_parent(parent);
        std::fs::create_dir_all(&parent)
            .map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
        let path = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(parent)?
            .keep();
        let mut registry = registry();
        let key = registry.next;
        registry.next += 1;
        registry.directories.insert(key, path.clone());
        Ok(Self { key, path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        registry().directories.remove(&self.key);
    }
}
