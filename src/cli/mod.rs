//! The command line: one file for each subcommand, `serve` where none is named.
//!
//! A subcommand is a struct of arguments, whose doc comments are its `--help`, and a function `run` that takes them. Exit codes are
//! made here and nowhere else: 0, 2 for what was typed wrongly, 1 for what failed (or was found damaged).

#![forbid(unsafe_code)]

mod client;
pub mod completions;
pub mod consume;
pub mod dump;
pub mod groups;
pub mod import;
mod online;
pub mod produce;
pub mod repair;
pub mod retention;
pub mod serve;
pub mod shell;
mod tail;
mod target;
pub mod topics;
pub mod verify;

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Why a command ends early. Displayed, it is one line for the person who typed the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// What was typed is wrong: exit code 2.
    Usage(String),
    /// It could not be done: exit code 1.
    Failed(String),
}

impl Failure {
    /// The exit code that says so.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) => write!(f, "mini-broker: {message}"),
        }
    }
}

/// A single-node log broker that a person can drive with nc and see through to the last byte.
///
/// Without a subcommand it serves.
#[derive(Debug, Parser)]
#[command(
    name = "mini-broker",
    version,
    args_conflicts_with_subcommands = true,
    after_long_help = serve::EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve topics of a data directory (the default)
    #[command(after_long_help = serve::EXAMPLES)]
    Serve(serve::Args),
    /// Bring a flat version-1 log file into a topic
    Import(import::Args),
    /// Print what stands in .log, .index and .timeindex files
    Dump(dump::Args),
    /// Check a whole data directory and list what is damaged
    Verify(verify::Args),
    /// Say what a repair would do, and with --yes do it
    Repair(repair::Args),
    /// List what retention would delete
    Retention(retention::Args),
    /// Bring lines, JSON records or files into a topic
    Produce(produce::Args),
    /// Print the records of a topic
    Consume(consume::Args),
    /// List, create, alter, describe or delete topics
    Topics(topics::Args),
    /// List, describe or reset consumer groups
    Groups(groups::Args),
    /// Talk to a broker: lines with history, or one command
    Shell(shell::Args),
    /// Print what lets bash, zsh or fish complete subcommands and flags
    Completions(completions::CompletionsArgs),
    /// Print the manual page, of the program or of a subcommand
    Man(completions::ManArgs),
}

/// Does what the arguments (the program's name first) ask for, and says how the process is to end.
///
/// # Errors
/// What the person who typed the command has to know; nothing was printed of it yet.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return Err(Failure::Usage(usage_line(&error))),
        Err(answer) => return Ok(print(&answer)),
    };
    match cli.command {
        None => serve::run(&cli.serve),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Import(args)) => import::run(&args),
        Some(Command::Dump(args)) => dump::run(&args),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Repair(args)) => repair::run(&args),
        Some(Command::Retention(args)) => retention::run(&args),
        Some(Command::Produce(args)) => produce::run(&args),
        Some(Command::Consume(args)) => consume::run(&args),
        Some(Command::Topics(args)) => topics::run(&args),
        Some(Command::Groups(args)) => groups::run(&args),
        Some(Command::Shell(args)) => shell::run(&args),
        Some(Command::Completions(args)) => completions::completions(&args),
        Some(Command::Man(args)) => completions::man(&args),
    }
}

/// Starts the log on stderr: what `RUST_LOG` says, else that level.
pub(crate) fn start_log(level: log::LevelFilter) {
    let environment = env_logger::Env::default().default_filter_or(level.as_str());
    env_logger::Builder::from_env(environment).init();
}

/// Prints `--help` or `--version`.
fn print(answer: &clap::Error) -> ExitCode {
    // A reader who has gone away missed nothing.
    let _ = answer.print();
    ExitCode::SUCCESS
}

/// What is wrong with the arguments, what may have been meant, and how it is written: all on one line.
fn usage_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut parts: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n") {
        let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words.strip_prefix("error: ").unwrap_or(&words);
        let words = words.strip_prefix("tip: ").unwrap_or(words);
        if let Some(usage) = words.strip_prefix("Usage: ") {
            parts.push(format!("usage: {usage}"));
        } else if !words.is_empty() && !words.starts_with("For more information") {
            parts.push(words.to_owned());
        }
    }
    parts.push("--help says more".to_owned());
    let line = parts.join("; ");
    // What was typed may hold anything.
    line.replace(char::is_control, "?")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_is_meant_where_nothing_is_named() {
        let bare = Cli::try_parse_from(["mini-broker", "--listen", "127.0.0.1:0"]).unwrap();
        let named =
            Cli::try_parse_from(["mini-broker", "serve", "--listen", "127.0.0.1:0"]).unwrap();
        let Some(Command::Serve(named)) = named.command else {
            panic!("serve was named")
        };
        assert_eq!(bare.serve, named);
    }

    #[test]
    fn what_is_typed_wrongly_is_refused_with_the_values_that_are_right() {
        for (args, words) in [
            (["--fsync", "sometimes"], "always, never"),
            (["--fsync", "0ms"], "1ms"),
            (["--max-connections", "0"], "from 1 to"),
            (["--max-batch-bytes", "-1"], "unexpected argument"),
            (["--config", "nonsense=1"], "nonsense"),
            (["--config", "retention.ms"], "name=value"),
            (["--lissten", "x"], "--listen"),
        ] {
            let error = Cli::try_parse_from(["mini-broker"].into_iter().chain(args))
                .expect_err("it was refused");
            assert_eq!(error.exit_code(), 2);
            let line = usage_line(&error);
            assert!(line.contains(words), "{words}: {line}");
            assert!(line.ends_with("; --help says more"), "{line}");
            assert!(!line.contains(char::is_control), "{line}");
        }
    }
}
