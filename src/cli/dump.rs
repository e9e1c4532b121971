//! `mini-broker dump`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use super::Failure;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
///
/// # Errors
/// What failed.
pub fn run(_args: &Args) -> Result<ExitCode, Failure> {
    todo!()
}
