//! The binary: the library's command line and nothing else.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match mini_broker::cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}
