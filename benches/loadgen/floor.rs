//! The floor: what any server on this machine pays that moves the same bytes, in a process of its own so that its time is
//! accounted as a broker's is, driven by the same generator.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use mini_broker::sys;
use serde::{Deserialize, Serialize};

use crate::support::Result;
use crate::support::cleanup::Kept;

/// Bytes that a turn receives at most.
const TURN_BYTES: usize = 256 * 1024;
/// The same where each turn ends in a sync: it takes all that is there, so that it needs fewer of them.
const TURN_BYTES_SYNCED: usize = 2 * 1024 * 1024;

/// What the child does, for one connection after the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Receives, writes what came to a file, and sends a reply for each whole request.
    Produce {
        /// The file.
        file: PathBuf,
        /// Bytes of a request.
        request_bytes: u64,
        /// A reply, with its LF.
        reply: String,
        /// fdatasync after each write.
        sync: bool,
    },
    /// Sends the next piece of a file with sendfile, behind a header, for each line that comes.
    Fetch {
        /// The file; the child makes it.
        file: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// A piece.
        chunk_bytes: u64,
        /// Bytes of a record, for the header's offsets.
        record_bytes: u64,
    },
    /// Sends back what comes.
    Echo,
}

/// The first argument that makes this program a floor.
pub(crate) const ARGUMENT: &str = "floor-server";

/// A floor that runs; killed when dropped.
#[derive(Debug)]
pub(crate) struct Floor {
    process: Kept,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
}

impl Floor {
    /// Starts this program again as a floor.
    ///
    /// # Errors
    /// Where it does not come up.
    pub(crate) fn start(task: &Task) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([ARGUMENT, &serde_json::to_string(task)?])
            .stdout(Stdio::piped());
        let mut process = Kept::spawn(&mut command)?;
        let stdout = process
            .with(|child| child.stdout.take())
            .flatten()
            .ok_or("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let addr = line
            .trim()
            .parse()
            .map_err(|_| "the floor did not come up")?;
        Ok(Self { process, addr })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }
}

/// The child's main: never returns while it is let live.
///
/// # Errors
/// What the system says.
pub(crate) fn serve(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let file = match &task {
        Task::Produce { file, .. } => Some(File::create(file)?),
        Task::Fetch {
            file, file_bytes, ..
        } => Some(filled_file(file, *file_bytes)?),
        Task::Echo => None,
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        // An error is the driver's closing of the connection.
        let _ = match (&task, &file) {
            (
                Task::Produce {
                    request_bytes,
                    reply,
                    sync,
                    ..
                },
                Some(file),
            ) => produce(stream, file, *request_bytes, reply, *sync),
            (
                Task::Fetch {
                    file_bytes,
                    chunk_bytes,
                    record_bytes,
                    ..
                },
                Some(file),
            ) => fetch(stream, file, *file_bytes, *chunk_bytes, *record_bytes),
            _ => echo(stream),
        };
    }
}

fn produce(
    mut stream: TcpStream,
    file: &File,
    request_bytes: u64,
    reply: &str,
    sync: bool,
) -> std::io::Result<()> {
    let replies = reply.repeat(TURN_BYTES / reply.len());
    let replies_in_buffer = (replies.len() / reply.len()) as u64;
    let mut buffer = vec![0; if sync { TURN_BYTES_SYNCED } else { TURN_BYTES }];
    let (mut received, mut answered) = (0, 0);
    loop {
        let mut n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        if sync {
            n = read_what_is_there(&mut stream, &mut buffer, n)?;
        }
        let bytes = buffer.get(..n).unwrap_or_default();
        file.write_all_at(bytes, received)?;
        if sync {
            file.sync_data()?;
        }
        received += n as u64;
        while answered < received / request_bytes {
            let count = (received / request_bytes - answered).min(replies_in_buffer);
            let len = usize::try_from(count).unwrap_or(0) * reply.len();
            stream.write_all(replies.as_bytes().get(..len).unwrap_or_default())?;
            answered += count;
        }
    }
}

/// Fills the buffer from `n` on with what has come already; returns how many bytes are in it.
fn read_what_is_there(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    mut n: usize,
) -> std::io::Result<usize> {
    stream.set_nonblocking(true)?;
    while let Some(free) = buffer.get_mut(n..)
        && !free.is_empty()
    {
        match stream.read(free) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    stream.set_nonblocking(false)?;
    Ok(n)
}

fn fetch(
    mut stream: TcpStream,
    file: &File,
    file_bytes: u64,
    chunk_bytes: u64,
    record_bytes: u64,
) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let mut position = 0;
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        for _ in buffer.iter().take(n).filter(|&&byte| byte == b'\n') {
            if position + chunk_bytes > file_bytes {
                position = 0;
            }
            let (first, next) = (
                position / record_bytes,
                (position + chunk_bytes) / record_bytes,
            );
            let header = format!(
                "OK {chunk_bytes} {first} {next} {}\n",
                file_bytes / record_bytes
            );
            sys::send(stream.as_fd(), header.as_bytes(), true)?;
            let end = position + chunk_bytes;
            while position < end {
                let len = usize::try_from(end - position).unwrap_or(usize::MAX);
                position += sys::sendfile(stream.as_fd(), file.as_fd(), position, len)? as u64;
            }
        }
    }
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(buffer.get(..n).unwrap_or_default())?;
    }
}

/// A file of so many bytes that are really there, not a hole.
fn filled_file(path: &PathBuf, bytes: u64) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let block: Vec<u8> = (0..TURN_BYTES).map(|_| fastrand::u8(..)).collect();
    let mut position = 0;
    while position < bytes {
        file.write_all_at(&block, position)?;
        position += block.len() as u64;
    }
    Ok(file)
}
