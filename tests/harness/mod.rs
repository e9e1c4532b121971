//! A real broker process, or a loop in a thread, and clients that speak lines to it.
//!
//! Nothing here sleeps: a reply is waited for, with a time-out that fails the test.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use mini_broker::api::Now;
use mini_broker::broker::{Broker, Settings};
use mini_broker::clock::Clock;
use mini_broker::fs::Fs;
use mini_broker::fs::mem::MemFs;
use mini_broker::net::{self, EventLoop, Limits};
use mini_broker::protocol::line;
use mini_broker::storage::FsyncPolicy;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_mini-broker");

/// `--max-backlog-bytes` of a loop in a thread.
pub const BACKLOG_BYTES: u64 = 4 << 20;

/// A reply that takes longer fails the test.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A broker process; killed where the test forgets it.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub data_dir: PathBuf,
}

impl Server {
    /// Starts one on a free port and waits for its ready line.
    pub fn start(data_dir: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(args);
        Self::start_command(command, data_dir)
    }

    /// Starts one that ignores a signal, as nohup does.
    pub fn start_ignoring(data_dir: &Path, signal: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("trap '' {signal}; exec \"$0\" \"$@\""))
            .arg(BINARY);
        Self::start_command(command, data_dir)
    }

    /// Starts one with at most so many file descriptors.
    pub fn start_with_descriptors(data_dir: &Path, descriptors: u32, args: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""));
        command.arg(BINARY).args(args);
        Self::start_command(command, data_dir)
    }

    /// Starts what the command says, with the address and the directory behind it.
    pub fn start_command(mut command: Command, data_dir: &Path) -> Self {
        let log = data_dir.with_extension("stderr");
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let Some(address) = ready_address(&ready) else {
            let _ = child.kill();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("no ready line but {ready:?}; its log:\n{log}");
        };
        Self {
            child,
            address,
            data_dir: data_dir.to_owned(),
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As a power switch for the process: SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What its log says.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data_dir.with_extension("stderr")).unwrap()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Stops it in order.
    pub fn stop(self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// Its resident memory, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first address in `mini-broker <version> ready on <ip>:<port>, data in <dir>`: others may follow it.
fn ready_address(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix("mini-broker ")?;
    let (_, rest) = rest.split_once(" ready on ")?;
    let (addresses, _) = rest.split_once(", data in ")?;
    addresses.split(", ").next()?.parse().ok()
}

/// A clock that a test sets, in milliseconds since 1970; shared with a loop in another thread.
#[derive(Debug, Clone)]
pub struct SharedClock(Arc<AtomicU64>);

impl SharedClock {
    pub fn new(ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ms)))
    }

    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Now {
        let ms = self.0.load(Ordering::SeqCst);
        Now {
            wall_ms: i64::try_from(ms).unwrap(),
            mono: Duration::from_millis(ms),
        }
    }
}

/// A loop in a thread of this process, whose clock the test holds.
pub struct Thread {
    pub address: SocketAddr,
    pub clock: SharedClock,
    stop: UnixStream,
    serving: Option<JoinHandle<Result<(), String>>>,
}

impl Thread {
    /// Starts one in memory.
    pub fn in_memory(fsync: FsyncPolicy) -> Self {
        let settings = Settings {
            fsync,
            ..Settings::new("/data")
        };
        Self::start(MemFs::new, settings, BACKLOG_BYTES)
    }

    /// Starts one over the file system that `fs` makes.
    pub fn start<F: Fs>(
        fs: impl FnOnce() -> F + Send + 'static,
        settings: Settings,
        backlog_bytes: u64,
    ) -> Self {
        let clock = SharedClock::new(1_700_000_000_000);
        let loop_clock = clock.clone();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut listener = None;
            let broker = Broker::open(fs(), settings, &loop_clock, || {
                listener = Some(net::bind(&"127.0.0.1:0".parse()?)?);
                Ok(())
            })?;
            let listener = listener.unwrap();
            let address = listener.address().to_string();
            sender.send(address.parse().unwrap()).unwrap();
            let limits = Limits {
                max_connections: 1000,
                max_backlog_bytes: backlog_bytes,
                read_budget: net::READ_BUDGET,
                line: line::Limits::new(1 << 20),
                max_descriptors: 10_000,
            };
            EventLoop::new(
                broker,
                vec![listener],
                stopped,
                Box::new(loop_clock),
                limits,
            )
            .map_err(|e| e.to_string())?
            .run()
        });
        let address = receiver.recv().unwrap();
        Self {
            address,
            clock,
            stop,
            serving: Some(thread),
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops it in order.
    pub fn stop(mut self) -> Result<(), String> {
        self.stop.write_all(b"x").unwrap();
        self.serving.take().unwrap().join().unwrap()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.serving.take() {
            let _ = thread.join();
        }
    }
}

/// A client that speaks lines.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            reader: BufReader::new(stream),
        }
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub fn reader(&mut self) -> &mut BufReader<TcpStream> {
        &mut self.reader
    }

    /// Sends bytes as they stand.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.reader.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// One line, without its LF.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the connection ended at {line:?}");
        line.pop();
        line
    }

    /// Sends a line and returns the first line of its reply.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n"));
        self.line()
    }

    /// Sends a line whose reply lists something: the reply's own words, and the lines.
    pub fn list(&mut self, line: &str) -> (String, Vec<String>) {
        let head = self.ask(line);
        let count = head
            .strip_prefix("OK ")
            .and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok())
            .unwrap_or_else(|| panic!("{line:?} got {head:?}"));
        let lines = (0..count).map(|_| self.line()).collect();
        (head, lines)
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything up to the end of the connection.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Ends this side.
    pub fn half_close(&self) {
        self.stream().shutdown(Shutdown::Write).unwrap();
    }

    /// Whether nothing has come that was not read yet.
    pub fn is_silent(&mut self) -> bool {
        if !self.reader.buffer().is_empty() {
            return false;
        }
        self.stream().set_nonblocking(true).unwrap();
        let peeked = self.stream().peek(&mut [0]);
        self.stream().set_nonblocking(false).unwrap();
        matches!(peeked, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// A BATCH of so many records without keys.
pub fn batch(topic: &str, count: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for n in 0..count {
        let value = format!("of {count} number {n}");
        payload.extend_from_slice(&(-1_i32).to_be_bytes());
        payload.extend_from_slice(&i32::try_from(value.len()).unwrap().to_be_bytes());
        payload.extend_from_slice(value.as_bytes());
    }
    let mut bytes = format!("BATCH {topic} {count} {}\n", payload.len()).into_bytes();
    bytes.extend_from_slice(&payload);
    bytes.push(b'\n');
    bytes
}

/// The seed of a random test: from `SEED`, else a fresh one; printed either way, and seen where the test fails.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or_else(
        |_| fastrand::u64(..),
        |text| text.parse().expect("SEED is a number"),
    );
    println!("SEED={seed}");
    seed
}
