//! What the commands that talk to a broker through the client library have in common.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::addr::Address;
use crate::api::{ErrorCode, OffsetSpec, TimeSpec};
use crate::client::{Admin, Error};
use crate::config::LISTEN;
use crate::protocol::line::offsets;

use super::Failure;
use super::shell::Stop;

/// Where the broker is.
#[derive(Debug, clap::Args)]
pub(super) struct Connect {
    /// Address of the broker, HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    connect: Address,
}

impl Connect {
    pub(super) fn address(&self) -> String {
        self.connect.to_string()
    }

    pub(super) fn admin(&self) -> Result<Admin, Failure> {
        Admin::connect(&self.address()).map_err(failure)
    }
}

/// What a person is told of an error of the library.
#[expect(clippy::needless_pass_by_value, reason = "its callers are `map_err`")]
pub(super) fn failure(error: Error) -> Failure {
    match &error {
        Error::Usage(words) => Failure::Usage(words.clone()),
        // As on the command line of `serve`.
        Error::Refused(_) if error.is_refusal(ErrorCode::InvalidConfig) => {
            Failure::Usage(error.to_string())
        }
        Error::Connect { .. } => Failure::Failed(format!(
            "{error} `mini-broker serve` starts one, --connect names another"
        )),
        _ => Failure::Failed(error.to_string()),
    }
}

/// An offset in any form of the protocol, for clap.
pub(super) fn offset(text: &str) -> Result<OffsetSpec, String> {
    offsets::offset(text.as_bytes()).map_err(|error| error.message)
}

/// A time in any form of the protocol, for clap.
pub(super) fn time(text: &str) -> Result<TimeSpec, String> {
    offsets::time(text.as_bytes()).map_err(|error| error.message)
}

/// Prints lines, each of fields or of members of a JSON object.
#[derive(Debug, Default)]
pub(super) struct Rows {
    is_json: bool,
    out: Vec<u8>,
}

/// A value in a row.
#[derive(Debug, Clone)]
pub(super) enum Cell<'a> {
    Text(Cow<'a, str>),
    Number(i128),
    /// `-`, or null.
    None,
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number.into())
    }
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number.into())
    }
}

impl Cell<'_> {
    /// The value, where there is one.
    pub(super) fn of<T: Into<Self>>(value: Option<T>) -> Self {
        value.map_or(Cell::None, Into::into)
    }
}

impl Rows {
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            is_json,
            out: Vec::new(),
        }
    }

    /// Adds a line. Names are seen in JSON alone.
    pub(super) fn row(&mut self, cells: &[(&str, Cell<'_>)]) {
        let Self { is_json, out } = self;
        for (at, (name, cell)) in cells.iter().enumerate() {
            if *is_json {
                out.push(if at == 0 { b'{' } else { b',' });
                crate::json::string(name, out);
                out.push(b':');
            } else if at > 0 {
                out.push(b'\t');
            }
            match cell {
                Cell::Text(text) if *is_json => crate::json::string(text, out),
                Cell::Text(text) => crate::api::escape(text.as_bytes(), out),
                Cell::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
                Cell::None if *is_json => out.extend_from_slice(b"null"),
                Cell::None => out.push(b'-'),
            }
        }
        out.extend_from_slice(if *is_json { b"}\n" } else { b"\n" });
    }

    /// Prints what was added; a reader who has gone is a quiet end.
    pub(super) fn print(&self) -> Result<(), Failure> {
        match write_out(&self.out) {
            Ok(()) | Err(Stop::Quiet) => Ok(()),
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }
}

/// Writes to stdout.
pub(super) fn write_out(bytes: &[u8]) -> Result<(), Stop> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(Stop::stdout)
}

/// A bar on a terminal, where something takes long; nothing anywhere else.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// One up to `total` of a unit (as far as is known), where a person looks at stderr and nothing else is printed there.
    pub(super) fn new(total: Option<u64>, unit: &str, may_show: bool) -> Self {
        if !(may_show && io::stderr().is_terminal()) {
            return Self { bar: None };
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                format!("{{bar:30}} {{percent}}% {{human_pos}} {unit}, {{per_sec}}, {{eta}} left"),
            ),
            None => (
                ProgressBar::new_spinner(),
                format!("{{spinner}} {{human_pos}} {unit}, {{per_sec}}"),
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self { bar: Some(bar) }
    }

    pub(super) fn advance(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(count);
        }
    }

    /// A line for the person, above the bar.
    pub(super) fn tell(&self, line: &str) {
        let tell = || {
            // Nobody there to read it is no reason to stop.
            let _ = writeln!(io::stderr(), "mini-broker: {line}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(tell),
            None => tell(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
