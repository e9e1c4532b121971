//! `mini-broker dump`.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::dump::print::{self, Style};
use crate::dump::rows::{Rows, offset_rows, time_rows};
use crate::dump::segment::{Segment, Summary};
use crate::dump::{Error, rows::RowFault};
use crate::fs::disk::DiskFs;
use crate::fs::{Fs, OpenMode};

use super::Failure;

/// How long to wait for a broker that may be writing what was just read.
const PAUSE: Duration = Duration::from_millis(20);

/// Print what stands in .log, .index and .timeindex files.
///
/// Reads only, and may run beside the broker. Exits with 1 where something is damaged.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Files of a partition's directory
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print keys, values and headers, too
    #[arg(long)]
    payload: bool,

    /// Print a JSON object a line
    #[arg(long)]
    json: bool,

    /// Hold an index against the log beside it
    #[arg(long)]
    verify: bool,
}

const EXAMPLES: &str = "\
Examples:
  mini-broker dump data/orders-0/00000000000000000000.log
  mini-broker dump --payload --json data/orders-0/*.log
  mini-broker dump --verify data/orders-0/00000000000000000000.index

A .log prints offset, position, timestamp, sizes (-1 is null) and crc (ok or bad; none in record version 1) of each record.
A .index prints offset and position of each row, a .timeindex timestamp and offset.";

/// Prints the files, one after another.
///
/// # Errors
/// A file cannot be read, or is none of these three.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let mut dump = Dump {
        style: Style {
            json: args.json,
            payload: args.payload,
        },
        verify: args.verify,
        out,
        line: Vec::new(),
        damaged: 0,
    };
    finish(dump.files(&args.files), || dump.damaged)
}

/// Waits a moment.
pub(super) fn pause() {
    std::thread::sleep(PAUSE);
}

/// The end of a command that prints: a reader who went away is content, damage is exit code 1.
pub(super) fn finish(
    result: Result<(), Error>,
    damaged: impl FnOnce() -> u64,
) -> Result<ExitCode, Failure> {
    match result {
        Ok(()) if damaged() == 0 => Ok(ExitCode::SUCCESS),
        Ok(()) => Ok(ExitCode::FAILURE),
        Err(Error::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

struct Dump<W: Write> {
    style: Style,
    verify: bool,
    out: W,
    /// The line in the making, reused.
    line: Vec<u8>,
    damaged: u64,
}

impl<W: Write> Dump<W> {
    fn files(&mut self, files: &[PathBuf]) -> Result<(), Error> {
        for path in files {
            if files.len() > 1 && !self.style.json {
                writeln!(self.out, "{}", path.display()).map_err(Error::Write)?;
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("log") => self.log(path)?,
                Some("index") => self.index(path)?,
                Some("timeindex") => self.time_index(path)?,
                _ => {
                    return Err(Error::Unfit(format!(
                        "{} is not a .log, .index or .timeindex file",
                        path.display()
                    )));
                }
            }
        }
        self.out.flush().map_err(Error::Write)
    }

    fn log(&mut self, path: &Path) -> Result<(), Error> {
        let segment = Segment {
            path: path.to_owned(),
            ..Segment::of_file(&DiskFs, path)?
        };
        let Self {
            style, out, line, ..
        } = self;
        let summary = segment.check(&DiskFs, &pause, &mut |event| {
            line.clear();
            print::event(*style, &event, line);
            out.write_all(line).map_err(Error::Write)
        })?;
        self.damaged += summary.damaged;
        Ok(())
    }

    fn index(&mut self, path: &Path) -> Result<(), Error> {
        let file = DiskFs
            .open(path, OpenMode::Read)
            .map_err(Error::read(path))?;
        let rows = offset_rows(&file).map_err(Error::read(path))?;
        let segment = Segment::of_file(&DiskFs, path)?;
        let base = segment.base.unwrap_or(0);
        for row in &rows.rows {
            self.line.clear();
            print::offset_row(self.style, base, *row, &mut self.line);
            self.out.write_all(&self.line).map_err(Error::Write)?;
        }
        self.faults(rows, path, &segment, |summary| summary.offset_faults)
    }

    fn time_index(&mut self, path: &Path) -> Result<(), Error> {
        let file = DiskFs
            .open(path, OpenMode::Read)
            .map_err(Error::read(path))?;
        let rows = time_rows(&file).map_err(Error::read(path))?;
        let segment = Segment::of_file(&DiskFs, path)?;
        let base = segment.base.unwrap_or(0);
        for row in &rows.rows {
            self.line.clear();
            print::time_row(self.style, base, *row, &mut self.line);
            self.out.write_all(&self.line).map_err(Error::Write)?;
        }
        self.faults(rows, path, &segment, |summary| summary.time_faults)
    }

    /// Prints what is wrong with an index: by itself, and with --verify against its log.
    fn faults<R>(
        &mut self,
        rows: Rows<R>,
        path: &Path,
        segment: &Segment,
        choose: fn(Summary) -> Vec<RowFault>,
    ) -> Result<(), Error> {
        let mut faults = rows.faults;
        if self.verify {
            if segment.base.is_none() {
                return Err(Error::Unfit(format!(
                    "{} has not the name of an index, so its log cannot be told: \
                     20 digits and .index or .timeindex would be right",
                    path.display()
                )));
            }
            let mut summary = segment.check(&DiskFs, &pause, &mut |_| Ok(()))?;
            if summary.has_faults() {
                // A broker writes a log and its indexes one after another, and may be between the two.
                pause();
                let segment = Segment::of_file(&DiskFs, path)?;
                summary.keep_faults_of(&segment.check(&DiskFs, &pause, &mut |_| Ok(()))?);
            }
            faults = choose(summary);
        }
        for fault in &faults {
            self.line.clear();
            print::fault(self.style, fault, &mut self.line);
            self.out.write_all(&self.line).map_err(Error::Write)?;
        }
        self.damaged += faults.len() as u64;
        Ok(())
    }
}
