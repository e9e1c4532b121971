//! `mini-broker shell`: the lines of nc, with history, and replies that are read to their end.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::addr::Address;
use crate::api::escape;
use crate::config::LISTEN;
use crate::protocol::line::payload_bytes;
use crate::protocol::line::verbs::{self, Kind};

use super::Failure;
use super::client::{Client, Rest, rest_of};
use super::tail::{self, Interrupt, Stdin, Terminal};

/// Bytes of a FETCH that a terminal gets in a line.
const FETCH_LINE_BYTES: usize = 64;

/// Talk to a broker: an interactive prompt, the commands given, or lines from stdin.
///
/// Exits with 1 if the reply to a command was ERR.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Lines to send, one after another; without any, a prompt (or lines from stdin where it is no terminal)
    #[arg(value_name = "COMMAND")]
    commands: Vec<OsString>,

    /// Address of the broker, HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    connect: Address,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker shell                                    a prompt; HELP lists the verbs
  mini-broker shell 'CREATE orders' 'PUT orders hello' 'READ orders 0'
  mini-broker shell 'PRODUCE orders -1 5' hello        a payload is the next argument
  printf 'PUT orders %s\\n' one two | mini-broker shell";

/// Talks until the commands, stdin or the patience of the person end.
///
/// # Errors
/// The broker cannot be reached, or the connection is lost.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = Client::connect(&args.connect)?;
    let mut source = Source::of(args)?;
    // Behind the editor, which takes Ctrl-C for itself when it is made.
    let interrupt =
        Interrupt::new().map_err(|e| Failure::Failed(format!("cannot catch Ctrl-C: {e}")))?;
    let mut shell = Shell {
        client,
        interrupt,
        out: BufWriter::new(io::stdout().lock()),
        is_terminal: io::stdout().is_terminal(),
        had_error: false,
    };
    let is_interactive = matches!(source, Source::Editor(..));
    let done = if is_interactive {
        shell.interact(&mut source, &args.connect)
    } else {
        shell.lines(&mut source)
    };
    match done {
        Err(Stop::Failed(failure)) => Err(failure),
        Ok(()) if shell.had_error && !is_interactive => Ok(ExitCode::FAILURE),
        // Quiet: whoever read the output has gone, and there is nobody to talk to any more.
        Ok(()) | Err(Stop::Quiet) => Ok(ExitCode::SUCCESS),
    }
}

/// Why a conversation ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// Nobody reads stdout any more.
    Quiet,
    /// Something failed.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Stop {
    /// What a failed write to stdout means.
    #[expect(clippy::needless_pass_by_value, reason = "its callers are `map_err`")]
    pub(super) fn stdout(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Quiet;
        }
        Self::Failed(Failure::Failed(format!("cannot write to stdout: {error}")))
    }

    /// What a failed read of stdin means.
    pub(super) fn stdin(error: &io::Error) -> Self {
        Self::Failed(Failure::Failed(format!("cannot read stdin: {error}")))
    }
}

/// Where lines come from.
#[derive(Debug)]
enum Source {
    Arguments(VecDeque<Vec<u8>>),
    Stdin(Stdin),
    Editor(Box<DefaultEditor>, Stdin),
}

impl Source {
    /// Where the arguments say.
    fn of(args: &Args) -> Result<Self, Failure> {
        if !args.commands.is_empty() {
            let lines = args.commands.iter().flat_map(|command| {
                let bytes = command.clone().into_vec();
                let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
                lines.collect::<Vec<_>>()
            });
            return Ok(Self::Arguments(lines.collect()));
        }
        if !io::stdin().is_terminal() {
            return Ok(Self::Stdin(Stdin::default()));
        }
        let editor = DefaultEditor::new()
            .map_err(|e| Failure::Failed(format!("cannot use the terminal: {e}")))?;
        Ok(Self::Editor(Box::new(editor), Stdin::default()))
    }

    /// The next line; `None` at the end.
    fn next(&mut self, prompt: &str) -> Result<Option<Vec<u8>>, Stop> {
        match self {
            Self::Arguments(lines) => Ok(lines.pop_front()),
            Self::Stdin(stdin) => stdin.line(),
            Self::Editor(editor, _) => loop {
                match editor.readline(prompt) {
                    Ok(line) => {
                        // A history that cannot be kept is no reason to stop.
                        let _ = editor.add_history_entry(line.as_str());
                        return Ok(Some(line.into_bytes()));
                    }
                    Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {}
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => {
                        return Err(
                            Failure::Failed(format!("cannot read the terminal: {error}")).into(),
                        );
                    }
                }
            },
        }
    }

    /// After a QUIT: commands that follow it can no longer be sent.
    fn check_end(&self) -> Result<(), Stop> {
        let Self::Arguments(lines) = self else {
            return Ok(());
        };
        let mut left = lines.iter().filter(|line| !is_idle(line));
        let Some(first) = left.next() else {
            return Ok(());
        };
        let mut shown = Vec::new();
        escape(first, &mut shown);
        let more = match left.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(Failure::Failed(format!(
            "QUIT ended the connection, and what follows it was not sent: {}{more}; put QUIT last",
            String::from_utf8_lossy(&shown)
        ))
        .into())
    }

    /// What ends a tail, beside Ctrl-C.
    fn terminal(&mut self) -> Terminal<'_> {
        match self {
            Self::Arguments(_) => Terminal::None,
            Self::Stdin(stdin) => Terminal::Lines(stdin),
            Self::Editor(_, stdin) => Terminal::Enter(stdin),
        }
    }
}

/// A conversation.
struct Shell<W: Write> {
    client: Client,
    interrupt: Interrupt,
    out: W,
    /// Whether a person looks at the output.
    is_terminal: bool,
    had_error: bool,
}

/// What comes after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Line,
    End,
}

impl<W: Write> Shell<W> {
    fn interact(&mut self, source: &mut Source, address: &Address) -> Result<(), Stop> {
        let history = history_file();
        if let (Source::Editor(editor, _), Some(path)) = (&mut *source, &history) {
            // A missing history is an empty one.
            let _ = editor.load_history(path);
        }
        println_quietly(&format!(
            "{address}: HELP lists the verbs, HELP <verb> says more, Ctrl-D ends"
        ));
        let done = self.lines(source);
        if let (Source::Editor(editor, _), Some(path)) = (&mut *source, &history) {
            let kept = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if let Err(error) = kept
                .map_err(ReadlineError::from)
                .and_then(|()| editor.save_history(path))
            {
                println_quietly(&format!(
                    "the history was not kept in {}: {error}",
                    path.display()
                ));
            }
        }
        done
    }

    fn lines(&mut self, source: &mut Source) -> Result<(), Stop> {
        while let Some(line) = self.next(source, "mini-broker> ")? {
            if self.line(&line, source)? == Next::End {
                return source.check_end();
            }
        }
        Ok(())
    }

    /// The next line. While the editor has the terminal, an interrupt is its business: ending the process would leave the terminal
    /// without echo.
    fn next(&mut self, source: &mut Source, prompt: &str) -> Result<Option<Vec<u8>>, Stop> {
        self.interrupt
            .set_caught(matches!(source, Source::Editor(..)));
        let line = source.next(prompt);
        self.interrupt.set_caught(false);
        line
    }

    /// Sends a line, with its payload where it has one, and prints the reply.
    fn line(&mut self, line: &[u8], source: &mut Source) -> Result<Next, Stop> {
        if is_idle(line) {
            return Ok(Next::Line);
        }
        let mut request = [line, b"\n"].concat();
        if let Some(bytes) = payload_bytes(line) {
            let Some(payload) = self.payload(bytes, source)? else {
                return Ok(Next::Line);
            };
            request.extend_from_slice(&payload);
            request.push(b'\n');
        }
        self.client.send(&request)?;
        let reply = self.client.line()?;
        self.had_error |= reply.starts_with(b"ERR");
        self.print(&reply)?;
        self.rest(rest_of(line, &reply), line, source)
    }

    fn rest(&mut self, rest: Rest, line: &[u8], source: &mut Source) -> Result<Next, Stop> {
        match rest {
            Rest::Lines(lines) => {
                for _ in 0..lines {
                    let line = self.client.line()?;
                    self.print(&line)?;
                }
            }
            Rest::Bytes(bytes) => self.bytes(bytes, verb(line) == Some(Kind::Fetch))?,
            Rest::Stream { are_values } => {
                self.out.flush().map_err(Stop::stdout)?;
                let Self {
                    client,
                    interrupt,
                    out,
                    ..
                } = self;
                let ended = tail::follow(client, are_values, source.terminal(), interrupt, out)?;
                self.had_error |= ended.was_error;
                self.out.flush().map_err(Stop::stdout)?;
                return Ok(if ended.is_quit { Next::End } else { Next::Line });
            }
        }
        self.out.flush().map_err(Stop::stdout)?;
        Ok(if verb(line) == Some(Kind::Quit) {
            Next::End
        } else {
            Next::Line
        })
    }

    /// The payload that a line announces, from the lines that follow; `None` where they are not as long as it says.
    fn payload(&mut self, bytes: u64, source: &mut Source) -> Result<Option<Vec<u8>>, Stop> {
        let mut payload = Vec::new();
        let mut has_line = false;
        while !has_line || (payload.len() as u64) < bytes {
            let Some(line) = self.next(source, "payload> ")? else {
                break;
            };
            if has_line {
                payload.push(b'\n');
            }
            payload.extend_from_slice(&line);
            has_line = true;
        }
        if has_line && payload.len() as u64 == bytes {
            return Ok(Some(payload));
        }
        self.had_error = true;
        println_quietly(&format!(
            "the line says {bytes} bytes of payload, and there were {}: nothing was sent",
            payload.len()
        ));
        Ok(None)
    }

    fn print(&mut self, line: &[u8]) -> Result<(), Stop> {
        self.out
            .write_all(line)
            .and_then(|()| self.out.write_all(b"\n"))
            .map_err(Stop::stdout)
    }

    /// Prints counted bytes: as they stand, but stored records on a terminal with escapes.
    fn bytes(&mut self, bytes: u64, are_records: bool) -> Result<(), Stop> {
        let Self { client, out, .. } = self;
        if !(are_records && self.is_terminal) {
            return client.bytes(bytes, &mut |part| out.write_all(part).map_err(Stop::stdout));
        }
        let mut text = Vec::new();
        client.bytes(bytes, &mut |part| {
            text.clear();
            for line in part.chunks(FETCH_LINE_BYTES) {
                escape(line, &mut text);
                text.push(b'\n');
            }
            out.write_all(&text).map_err(Stop::stdout)
        })
    }
}

/// Whether a line is empty or a remark: the broker would not answer it.
fn is_idle(line: &[u8]) -> bool {
    let first = line.iter().find(|byte| **byte != b' ' && **byte != b'\r');
    first.is_none_or(|byte| *byte == b'#')
}

fn verb(line: &[u8]) -> Option<Kind> {
    let word = line
        .split(|byte| matches!(byte, b' ' | b'\r'))
        .find(|word| !word.is_empty())?;
    verbs::find(word).ok().map(|verb| verb.kind)
}

/// A word to the person, beside the replies.
fn println_quietly(text: &str) {
    // Nobody there to read it is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Where the history is kept; `None` for in memory only.
fn history_file() -> Option<PathBuf> {
    let state = PathBuf::from(std::env::var_os("XDG_STATE_HOME")?);
    state
        .is_absolute()
        .then(|| state.join("mini-broker").join("history"))
}
