//! A broker inside a program's own tests: a real one, with its event loop in a thread of the test's process.
//!
//! It starts in milliseconds on a free port of 127.0.0.1, keeps its data in memory or in a directory that is removed with it, and stops when
//! it is dropped.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::addr::Address;
use crate::broker::{self, Settings};
use crate::clock::SystemClock;
use crate::config::{MAX_BACKLOG_BYTES, MAX_CONNECTIONS};
use crate::fs::Fs;
use crate::fs::disk::DiskFs;
use crate::fs::mem::MemFs;
use crate::net::{self, EventLoop, Limits};
use crate::protocol::line;
use crate::storage::FsyncPolicy;

/// The descriptors that the loop believes the process may have: what the test has itself is its own business.
const DESCRIPTORS: u64 = 10_000;

/// What a broker of a test is to be like.
#[derive(Debug, Clone)]
pub struct Builder {
    settings: Settings,
    storage: Storage,
}

#[derive(Debug, Clone)]
enum Storage {
    Memory,
    /// A new directory, removed at the end.
    Temporary,
    /// One that is the test's.
    Directory,
}

impl Builder {
    /// Keeps the data in a new directory, which is removed with the broker, instead of in memory.
    #[must_use]
    pub fn temporary(mut self) -> Self {
        self.storage = Storage::Temporary;
        self
    }

    /// Keeps the data in that directory, and leaves it there: another broker can be started on it afterwards.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.data_dir = path.into();
        self.storage = Storage::Directory;
        self
    }

    /// Sets a config, as `--config name=value` does.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.settings
            .configs
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets when records are on the disk before they are acknowledged: always, if nothing else is said.
    #[must_use]
    pub fn fsync(mut self, policy: FsyncPolicy) -> Self {
        self.settings.fsync = policy;
        self
    }

    /// Starts it on a free port.
    ///
    /// # Errors
    /// One line that says why it cannot start, as `serve` would print it.
    pub fn start(self) -> Result<Broker, String> {
        self.start_on("127.0.0.1:0")
    }

    /// Starts it on an address of your own, `host:port` or `unix:PATH`: that of a broker that was stopped, for instance.
    ///
    /// # Errors
    /// One line that says why it cannot start, as `serve` would print it.
    pub fn start_on(mut self, listen: &str) -> Result<Broker, String> {
        let mut directory = None;
        if let Storage::Temporary = self.storage {
            let made = Temporary::new().map_err(|e| format!("no temporary directory: {e}"))?;
            self.settings.data_dir = made.path.join("data");
            directory = Some(made);
        }
        let (stop, stopped) = UnixStream::pair().map_err(|e| format!("no socket: {e}"))?;
        let (sender, receiver) = mpsc::channel();
        let (settings, listen) = (self.settings, listen.to_owned());
        let is_memory = matches!(self.storage, Storage::Memory);
        // A broker stays in the thread that it was made in.
        let thread = thread::spawn(move || {
            if is_memory {
                serve(MemFs::new(), settings, &listen, stopped, &sender)
            } else {
                serve(DiskFs, settings, &listen, stopped, &sender)
            }
        });
        match receiver.recv() {
            Ok(address) => Ok(Broker {
                address,
                stop,
                thread: Some(thread),
                _directory: directory,
            }),
            Err(_) => Err(match thread.join() {
                Ok(Err(words)) => words,
                Ok(Ok(())) | Err(_) => "the thread of the broker ended".to_owned(),
            }),
        }
    }
}

/// Serves until the other end of `stopped` says so; sends the address once it listens.
fn serve<F: Fs>(
    fs: F,
    settings: Settings,
    listen: &str,
    stopped: UnixStream,
    ready: &mpsc::Sender<String>,
) -> Result<(), String> {
    let clock = SystemClock::new();
    let batch_bytes = usize::try_from(settings.max_batch_bytes).unwrap_or(usize::MAX);
    let listen: Address = listen.parse()?;
    let mut listeners = Vec::new();
    let broker = broker::Broker::open(fs, settings, &clock, || {
        listeners.push(net::bind(&listen)?);
        Ok(())
    })?;
    let address = listeners.first().map(net::Bound::address);
    let limits = Limits {
        max_connections: usize::try_from(MAX_CONNECTIONS.default).unwrap_or(usize::MAX),
        max_backlog_bytes: MAX_BACKLOG_BYTES.default,
        read_budget: net::READ_BUDGET,
        line: line::Limits::new(batch_bytes),
        max_descriptors: DESCRIPTORS,
    };
    let serving = EventLoop::new(broker, listeners, stopped, Box::new(clock), limits)
        .map_err(|e| e.to_string())?;
    // Nobody waits for it any more: then the other end of `stopped` is closed, too.
    let _ = ready.send(address.map_or_else(String::new, |address| address.to_string()));
    serving.run()
}

/// A broker for tests.
///
/// ```
/// use mini_broker::client::Admin;
/// use mini_broker::testing::Broker;
///
/// let broker = Broker::start();
/// Admin::connect(broker.addr())?.create("orders", Some(3), &[])?;
///
/// let strict = Broker::builder().config("auto.create.topics.enable", "false").start().unwrap();
/// assert!(Admin::connect(strict.addr())?.describe("orders").is_err());
/// # Ok::<(), mini_broker::client::Error>(())
/// ```
#[derive(Debug)]
pub struct Broker {
    address: String,
    stop: UnixStream,
    thread: Option<JoinHandle<Result<(), String>>>,
    /// Removed behind the thread.
    _directory: Option<Temporary>,
}

impl Broker {
    /// One whose data is in memory and gone with it.
    ///
    /// # Panics
    /// Where it cannot start: no socket is to be had.
    #[must_use]
    pub fn start() -> Self {
        match Self::builder().start() {
            Ok(broker) => broker,
            Err(words) => panic!("the broker of the test cannot start: {words}"),
        }
    }

    /// One that is to be set up first.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            settings: Settings::new(Path::new("data")),
            storage: Storage::Memory,
        }
    }

    /// Where it listens, as the clients take it.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.address
    }

    /// Stops it in order and waits until it is gone.
    ///
    /// # Errors
    /// What did not go well, as `serve` would print it.
    pub fn stop(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        // A loop that has ended already needs no word.
        let _ = self.stop.write_all(b"x");
        thread
            .join()
            .unwrap_or_else(|_| Err("the thread of the broker panicked".to_owned()))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Err(words) = self.end() {
            log::error!("the broker of the test did not stop in order: {words}");
        }
    }
}

/// A directory of our own below the system's.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new() -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let name = format!("mini-broker-{:016x}", u64::from_be_bytes(random));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What is left of it is the system's to clean.
        let _ = fs::remove_dir_all(&self.path);
    }
}
