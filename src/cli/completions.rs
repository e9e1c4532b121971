//! `mini-broker completions` and `mini-broker man`: what a shell and `man` want to know of the command line, from the definitions that parse it.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, ValueEnum};
use clap_complete::shells;
use clap_mangen::Man;

use super::{Cli, Failure};

/// Print what lets a shell complete subcommands and flags.
#[derive(Debug, clap::Args)]
#[command(after_long_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(mini-broker completions bash)
  mini-broker completions zsh > ~/.zfunc/_mini-broker
  mini-broker completions fish > ~/.config/fish/completions/mini-broker.fish";

/// Print the manual page, of the program or of a subcommand, for man.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// A subcommand
    #[arg(value_name = "SUBCOMMAND")]
    subcommand: Option<String>,
}

const MAN_EXAMPLES: &str = "\
Examples:
  mini-broker man > mini-broker.1 && man ./mini-broker.1
  mini-broker man serve > mini-broker-serve.1";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions.
///
/// # Errors
/// Stdout cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    print(&script)
}

/// Prints the page.
///
/// # Errors
/// There is no such subcommand, or stdout cannot be written.
pub fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    // Gives the subcommands the names that their pages have.
    command.build();
    if let Some(name) = &args.subcommand {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            let names: Vec<&str> = command
                .get_subcommands()
                .map(clap::Command::get_name)
                .collect();
            Failure::Usage(format!(
                "{name:?} is no subcommand: there are {}",
                names.join(", ")
            ))
        })?;
    }
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|e| Failure::Failed(format!("the page cannot be made: {e}")))?;
    print(&page)
}

fn print(bytes: &[u8]) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // A reader who has gone away missed nothing.
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to stdout: {e}")))
        }
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}
