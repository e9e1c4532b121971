//! The shell's side of a TAIL: lines are printed as they come, until the person has seen enough.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memchr;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use signal_hook::consts::SIGINT;
use signal_hook::{flag, low_level};

use crate::protocol::line::verbs::{self, Kind};

use super::Failure;
use super::client::Client;
use super::shell::Stop;

const SOCKET: Token = Token(0);
const STDIN: Token = Token(1);
const SIGNAL: Token = Token(2);

/// Bytes of stdin read at once: so many that std's own buffer is passed by, and nothing waits in it unseen.
const STDIN_CHUNK_BYTES: usize = 64 * 1024;

/// Lines of stdin, with what was read ahead in sight.
#[derive(Debug, Default)]
pub(super) struct Stdin {
    bytes: Vec<u8>,
    is_at_end: bool,
}

impl Stdin {
    /// The next line without its LF; `None` at the end. A last line without an LF is one, too.
    pub(super) fn line(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        loop {
            if let Some(end) = memchr(b'\n', &self.bytes) {
                let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.is_at_end {
                let rest = std::mem::take(&mut self.bytes);
                return Ok(Some(rest).filter(|rest| !rest.is_empty()));
            }
            self.fill()?;
        }
    }

    fn has_line(&self) -> bool {
        memchr(b'\n', &self.bytes).is_some() || (self.is_at_end && !self.bytes.is_empty())
    }

    fn fill(&mut self) -> Result<(), Stop> {
        let len = self.bytes.len();
        self.bytes.resize(len + STDIN_CHUNK_BYTES, 0);
        let result = io::stdin()
            .lock()
            .read(self.bytes.get_mut(len..).unwrap_or_default());
        self.bytes
            .truncate(len + result.as_ref().copied().unwrap_or(0));
        match result {
            Ok(filled) => self.is_at_end |= filled == 0,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Stop::stdin(&e)),
        }
        Ok(())
    }
}

/// What ends a tail, beside Ctrl-C.
#[derive(Debug)]
pub(super) enum Terminal<'s> {
    /// Nothing.
    None,
    /// The next line that is not empty, as the protocol has it.
    Lines(&'s mut Stdin),
    /// Enter.
    Enter(&'s mut Stdin),
}

/// How a tail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// By the broker, with an ERR.
    pub(super) was_error: bool,
    /// By a QUIT.
    pub(super) is_quit: bool,
}

/// Prints what a tail pushes until it ends.
///
/// # Errors
/// The connection is lost, or nobody reads stdout any more.
pub(super) fn follow(
    client: &mut Client,
    are_values: bool,
    mut terminal: Terminal<'_>,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<Ended, Stop> {
    client
        .stream
        .set_nonblocking(true)
        .map_err(|e| client.failure(&e))?;
    interrupt.clear();
    interrupt.set_caught(true);
    let watched = watch(client, are_values, &mut terminal, interrupt, out);
    interrupt.set_caught(false);
    client
        .stream
        .set_nonblocking(false)
        .map_err(|e| client.failure(&e))?;
    match watched? {
        Seen::Error => Ok(Ended {
            was_error: true,
            is_quit: false,
        }),
        Seen::Enough { is_quit } => {
            stop(client, are_values, is_quit, out)?;
            Ok(Ended {
                was_error: false,
                is_quit,
            })
        }
    }
}

/// Why nothing more is to be watched.
enum Seen {
    Error,
    Enough { is_quit: bool },
}

fn watch(
    client: &mut Client,
    are_values: bool,
    terminal: &mut Terminal<'_>,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<Seen, Stop> {
    let failed = |e: io::Error| Failure::Failed(format!("cannot wait for lines: {e}"));
    let mut poll = Poll::new().map_err(failed)?;
    let socket = client.stream.as_fd().as_raw_fd();
    let registry = poll.registry();
    registry
        .register(&mut SourceFd(&socket), SOCKET, Interest::READABLE)
        .map_err(failed)?;
    let signal = interrupt.receiver.as_raw_fd();
    registry
        .register(&mut SourceFd(&signal), SIGNAL, Interest::READABLE)
        .map_err(failed)?;
    let stdin = io::stdin().as_raw_fd();
    let mut is_stdin_ready = false;
    if !matches!(terminal, Terminal::None) {
        // A plain file cannot be waited for: it is always ready.
        let registered = registry.register(&mut SourceFd(&stdin), STDIN, Interest::READABLE);
        is_stdin_ready = registered.is_err();
    }
    let mut events = Events::with_capacity(8);
    loop {
        loop {
            while let Some(line) = client.buffered_line() {
                out.write_all(&line)
                    .and_then(|()| out.write_all(b"\n"))
                    .map_err(Stop::stdout)?;
                if !are_values && line.starts_with(b"ERR ") {
                    return Ok(Seen::Error);
                }
            }
            if !client.fill()? {
                break;
            }
        }
        out.flush().map_err(Stop::stdout)?;
        if let Some(is_quit) = terminal.enough(is_stdin_ready)? {
            return Ok(Seen::Enough { is_quit });
        }
        let is_at_end = terminal.is_at_end();
        let timeout = (is_stdin_ready && !is_at_end).then_some(std::time::Duration::ZERO);
        match poll.poll(&mut events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => result.map_err(failed)?,
        }
        if events.iter().any(|event| event.token() == SIGNAL) {
            return Ok(Seen::Enough { is_quit: false });
        }
        if events.iter().any(|event| event.token() == STDIN)
            && let Some(is_quit) = terminal.enough(true)?
        {
            return Ok(Seen::Enough { is_quit });
        }
    }
}

impl Terminal<'_> {
    /// Whether a line came that ends the tail, and if so, whether it is a QUIT. With `is_ready`, stdin is read once.
    fn enough(&mut self, is_ready: bool) -> Result<Option<bool>, Stop> {
        let (stdin, takes_empty) = match self {
            Self::None => return Ok(None),
            Self::Lines(stdin) => (stdin, false),
            Self::Enter(stdin) => (stdin, true),
        };
        if is_ready && !stdin.is_at_end {
            stdin.fill()?;
        }
        while stdin.has_line() {
            let Some(line) = stdin.line()? else { break };
            let word = line
                .split(|byte| matches!(byte, b' ' | b'\r'))
                .find(|word| !word.is_empty());
            if takes_empty || word.is_some() {
                let verb = word.and_then(|word| verbs::find(word).ok());
                return Ok(Some(verb.is_some_and(|verb| verb.kind == Kind::Quit)));
            }
        }
        Ok(None)
    }

    fn is_at_end(&self) -> bool {
        match self {
            Self::None => true,
            Self::Lines(stdin) | Self::Enter(stdin) => stdin.is_at_end,
        }
    }
}

/// Ends the tail and prints up to the OK that says so.
fn stop(
    client: &mut Client,
    are_values: bool,
    is_quit: bool,
    out: &mut dyn Write,
) -> Result<(), Stop> {
    let mut print = |line: &[u8]| {
        out.write_all(line)
            .and_then(|()| out.write_all(b"\n"))
            .map_err(Stop::stdout)
    };
    // A value may read like the OK; the answer to a second request tells them apart.
    if are_values && !is_quit {
        client.send(b"STOP\nPING\n")?;
        let mut before = None;
        loop {
            let line = client.line()?;
            if line == b"OK PONG" && before.as_deref() == Some(&b"OK"[..]) {
                return print(b"OK");
            }
            if let Some(before) = before.replace(line) {
                print(&before)?;
            }
        }
    }
    client.send(if is_quit { b"QUIT\n" } else { b"STOP\n" })?;
    loop {
        let line = client.line()?;
        print(&line)?;
        if line == b"OK" || line.starts_with(b"ERR ") {
            return Ok(());
        }
    }
}

/// Ctrl-C as something that can be waited for during a tail; otherwise it ends the process, as ever.
#[derive(Debug)]
pub(super) struct Interrupt {
    receiver: UnixStream,
    /// Whether Ctrl-C ends the process.
    ends: Arc<AtomicBool>,
}

impl Interrupt {
    /// # Errors
    /// What the system says.
    pub(super) fn new() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        let ends = Arc::new(AtomicBool::new(true));
        flag::register_conditional_default(SIGINT, Arc::clone(&ends))?;
        low_level::pipe::register(SIGINT, sender)?;
        Ok(Self { receiver, ends })
    }

    /// Says whether Ctrl-C is caught, or ends the process.
    pub(super) fn set_caught(&self, caught: bool) {
        self.ends.store(!caught, Ordering::Relaxed);
    }

    /// Forgets what was caught.
    fn clear(&self) {
        // The receiver does not block; a full buffer of interrupts is as good as one.
        let _ = (&self.receiver).read(&mut [0; 64]);
    }
}
