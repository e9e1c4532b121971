//! A started broker, and a client of its lines for what is not measured.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Result;
use super::cleanup::Kept;

/// A broker that this bench started; killed when dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    process: Kept,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// From the start of the process to its ready line.
    pub(crate) ready_after: Duration,
}

impl Broker {
    /// Starts the binary on a free port of 127.0.0.1 and waits for its ready line. What it logs goes to `<data>.log`.
    ///
    /// # Errors
    /// Where it does not come up; its log's last lines are then in the message.
    pub(crate) fn start(data_dir: &Path, fsync: &str, more: &[&str]) -> Result<Self> {
        let log_path = data_dir.with_extension("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mini-broker"));
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--fsync",
            fsync,
            "--data-dir",
        ]);
        command
            .arg(data_dir)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.stderr(File::create(&log_path)?);
        let begin = Instant::now();
        let mut process = Kept::spawn(&mut command)?;
        let stdout = process
            .with(|child| child.stdout.take())
            .flatten()
            .ok_or("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready_after = begin.elapsed();
        let addr = line
            .split_once(" ready on ")
            .and_then(|(_, rest)| rest.split_once(','))
            .and_then(|(addr, _)| addr.parse().ok())
            .ok_or_else(|| format!("the broker did not come up: {line:?} {}", tail(log_path)))?;
        Ok(Self {
            process,
            addr,
            ready_after,
        })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// SIGTERM, and waits for its orderly end.
    ///
    /// # Errors
    /// Where it did not end with 0.
    pub(crate) fn terminate(mut self) -> Result<()> {
        self.process.terminate()
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }
}

/// The last lines of a log file.
fn tail(path: PathBuf) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(5)..)
        .unwrap_or_default()
        .join("\n")
}

/// One connection, one request at a time.
#[derive(Debug)]
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn connect(addr: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(addr).map_err(|e| format!("cannot connect to {addr}: {e}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends a request and returns the first line of its reply, without the LF.
    ///
    /// # Errors
    /// An ERR reply, or a connection that ended.
    pub(crate) fn call(&mut self, request: impl AsRef<[u8]>) -> Result<String> {
        let request = request.as_ref();
        self.reader
            .get_mut()
            .write_all(&[request, b"\n"].concat())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        if line.starts_with("OK") {
            return Ok(line.trim_end().to_owned());
        }
        let verb =
            String::from_utf8_lossy(request.get(..request.len().min(60)).unwrap_or_default());
        Err(format!("{verb} was answered {line:?}").into())
    }

    /// Sends whole requests, whose replies are read by [`Client::line`].
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<()> {
        Ok(self.reader.get_mut().write_all(requests)?)
    }

    /// Reads a line that follows a reply, without its LF.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        line.truncate(line.trim_end_matches('\n').len());
        Ok(line)
    }

    /// Reads so many bytes that follow a reply.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn body(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut body = vec![0; bytes];
        self.reader.read_exact(&mut body)?;
        Ok(body)
    }
}
