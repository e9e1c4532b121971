//! `mini-broker verify`.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::dump::Error;
use crate::dump::directory::{self, Totals};
use crate::dump::print::{self, Style};
use crate::fs::disk::DiskFs;

use super::Failure;
use super::dump::{finish, pause};

/// Check a whole data directory and list every damaged record.
///
/// Reads only, and may run beside the broker. Exits with 1 where something is damaged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Print a JSON object for each damaged record, and nothing else
    #[arg(long)]
    json: bool,
}

/// Checks the directory.
///
/// # Errors
/// It is no data directory, or cannot be read.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut damaged = 0;
    let result = check(args, &mut out, &mut damaged);
    finish(result, || damaged)
}

fn check(args: &Args, out: &mut impl Write, damaged: &mut u64) -> Result<(), Error> {
    let style = Style {
        json: args.json,
        payload: false,
    };
    let mut line = Vec::new();
    let totals = directory::check(&DiskFs, &args.dir, &pause, &mut |finding| {
        line.clear();
        print::finding(style, finding, &mut line);
        out.write_all(&line).map_err(Error::Write)
    })?;
    *damaged = totals.damaged;
    if !args.json {
        let line = summary(&args.dir, &totals);
        writeln!(out, "{line}").map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

fn summary(dir: &Path, totals: &Totals) -> String {
    let Totals {
        partitions,
        segments,
        records,
        bytes,
        damaged,
    } = totals;
    let verdict = match damaged {
        0 => "nothing is damaged".to_owned(),
        damaged => format!("damaged: {damaged}"),
    };
    format!(
        "{}: {verdict}; partitions: {partitions}, segments: {segments}, good records: {records}, bytes of logs: {bytes}",
        dir.display()
    )
}
