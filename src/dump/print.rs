//! The lines of dump and verify, for people and for machines.
#![forbid(unsafe_code)]

use std::fmt::Write as _;

use crate::api::escape;
use crate::format::Layout;
use crate::json::{self, integer};
use crate::record::StoredRecord;
use crate::storage::{OffsetRow, TimeRow};

use super::directory::{Finding, What};
use super::rows::RowFault;
use super::segment::{Damage, Event};

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// An object a line.
    pub json: bool,
    /// Keys, values and headers, too.
    pub payload: bool,
}

/// Appends the line of what a walk came by.
pub fn event(style: Style, event: &Event<'_>, out: &mut Vec<u8>) {
    match event {
        Event::Record {
            position,
            layout,
            stored,
        } => {
            let crc = match layout {
                Layout::V1 => None,
                Layout::V2 => Some("ok"),
            };
            record(style, *position, stored, crc, None, out);
        }
        Event::Damage {
            damage,
            stored: Some(stored),
        } => {
            record(
                style,
                damage.position,
                stored,
                Some("bad"),
                Some(damage),
                out,
            );
        }
        Event::Damage {
            damage,
            stored: None,
        } => stretch(style, damage, out),
    }
}

fn record(
    style: Style,
    position: u64,
    stored: &StoredRecord<'_>,
    crc: Option<&str>,
    damage: Option<&Damage>,
    out: &mut Vec<u8>,
) {
    let record = &stored.record;
    let size = |field: Option<&[u8]>| {
        field.map_or(-1, |field| i64::try_from(field.len()).unwrap_or(i64::MAX))
    };
    let mut line = Line::begin(style.json, out);
    line.number("offset", stored.offset);
    line.number("position", i128::from(position));
    line.number("timestamp", record.timestamp);
    line.number("key_size", size(record.key));
    line.number("value_size", size(record.value));
    line.text_or_null("crc", crc, "none");
    if style.payload {
        line.bytes("key", record.key);
        line.bytes("value", record.value);
        if !record.headers.is_empty() {
            line.headers(record.headers);
        }
    }
    if let Some(damage) = damage {
        line.text("error", &damage.error_text());
    }
    line.end();
}

fn stretch(style: Style, damage: &Damage, out: &mut Vec<u8>) {
    if !style.json {
        out.extend_from_slice(if damage.is_torn {
            b"torn "
        } else {
            b"damaged "
        });
    }
    let mut line = Line::begin(style.json, out);
    line.number("offset", damage.offset);
    line.number("position", i128::from(damage.position));
    line.number_or_null("next_offset", damage.next_offset);
    line.number("next_position", i128::from(damage.next_position));
    line.text("error", &damage.error_text());
    line.end();
}

impl Damage {
    /// What is wrong, in words.
    #[must_use]
    pub fn error_text(&self) -> String {
        use crate::format::DecodeError;
        match self.error {
            DecodeError::Corrupt(reason) => reason.to_string(),
            DecodeError::Incomplete(_) if self.is_torn => {
                "cut short at the end of the log; the next start puts it aside".to_owned()
            }
            DecodeError::Incomplete(_) => "cut short, or a length is wrong".to_owned(),
        }
    }
}

/// Appends the line of a `.index` row.
pub fn offset_row(style: Style, base: i64, row: OffsetRow, out: &mut Vec<u8>) {
    let mut line = Line::begin(style.json, out);
    line.number("offset", i128::from(base) + i128::from(row.relative));
    line.number("position", row.position);
    line.end();
}

/// Appends the line of a `.timeindex` row.
pub fn time_row(style: Style, base: i64, row: TimeRow, out: &mut Vec<u8>) {
    let mut line = Line::begin(style.json, out);
    line.number("timestamp", row.timestamp);
    line.number("offset", i128::from(base) + i128::from(row.relative));
    line.end();
}

/// Appends the line of what is wrong with an index.
pub fn fault(style: Style, fault: &RowFault, out: &mut Vec<u8>) {
    if style.json {
        let mut line = Line::begin(true, out);
        line.number_or_null("row", Some(fault.row).filter(|row| *row > 0));
        line.text("error", &fault.what);
        line.end();
    } else {
        out.extend_from_slice(format!("damaged {}\n", fault_text(fault)).as_bytes());
    }
}

fn fault_text(fault: &RowFault) -> String {
    match fault.row {
        0 => format!("index: {}", fault.what),
        row => format!("row {row}: {}", fault.what),
    }
}

/// Appends the line of what is wrong in a data directory.
pub fn finding(style: Style, finding: &Finding, out: &mut Vec<u8>) {
    if style.json {
        finding_json(finding, out);
    } else {
        finding_text(finding, out);
    }
}

fn finding_json(finding: &Finding, out: &mut Vec<u8>) {
    let mut line = Line::begin(true, out);
    line.text_or_null("topic", finding.topic.as_deref(), "-");
    line.number_or_null("partition", finding.partition);
    line.text("file", &finding.file);
    match &finding.what {
        What::Damage(damage) => {
            line.number("offset", damage.offset);
            line.number("position", i128::from(damage.position));
            line.number_or_null("next_offset", damage.next_offset);
        }
        What::Lost {
            offset,
            position,
            next_offset,
        } => {
            line.number("offset", *offset);
            line.number("position", i128::from(*position));
            line.number("next_offset", *next_offset);
        }
        What::Row(fault) => line.number_or_null("row", Some(fault.row).filter(|row| *row > 0)),
        What::File(_) => {}
    }
    line.text("error", &finding.what.error_text());
    line.end();
}

fn finding_text(finding: &Finding, out: &mut Vec<u8>) {
    let mut text = match (&finding.topic, finding.partition) {
        (Some(topic), Some(partition)) => format!("topic: {topic} partition: {partition} "),
        (Some(topic), None) => format!("topic: {topic} "),
        (None, _) => String::new(),
    };
    match &finding.what {
        What::Damage(damage) => {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "offset: {} position: {} ",
                damage.offset, damage.position
            );
        }
        What::Lost {
            offset, position, ..
        } => {
            let _ = write!(text, "offset: {offset} position: {position} ");
        }
        What::Row(_) | What::File(_) => {}
    }
    let _ = write!(
        text,
        "file: {} error: {}",
        finding.file,
        finding.what.error_text()
    );
    match &finding.what {
        What::Damage(Damage {
            next_offset: Some(next),
            ..
        })
        | What::Lost {
            next_offset: next, ..
        } => {
            let _ = write!(text, "; reading goes on at offset {next}");
        }
        What::Damage(_) | What::Row(_) | What::File(_) => {}
    }
    out.extend_from_slice(text.as_bytes());
    out.push(b'\n');
}

impl What {
    /// What is wrong, in words.
    #[must_use]
    pub fn error_text(&self) -> String {
        match self {
            Self::Damage(damage) => damage.error_text(),
            Self::Lost { .. } => {
                "the log ends here, and records that should follow are gone".to_owned()
            }
            Self::Row(fault) => fault_text(fault),
            Self::File(what) => what.clone(),
        }
    }
}

/// A line of `name: value` pairs, or of one JSON object.
struct Line<'o> {
    json: bool,
    is_first: bool,
    out: &'o mut Vec<u8>,
}

impl<'o> Line<'o> {
    fn begin(json: bool, out: &'o mut Vec<u8>) -> Self {
        if json {
            out.push(b'{');
        }
        Self {
            json,
            is_first: true,
            out,
        }
    }

    fn end(self) {
        self.out
            .extend_from_slice(if self.json { b"}\n" } else { b"\n" });
    }

    fn separate(&mut self) {
        if !self.is_first {
            self.out.push(if self.json { b',' } else { b' ' });
        }
        self.is_first = false;
    }

    fn label(&mut self, name: &str) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
    }

    fn number(&mut self, name: &str, number: impl itoa::Integer) {
        self.separate();
        if self.json {
            json::number_member(name, number, self.out);
        } else {
            self.label(name);
            integer(number, self.out);
        }
    }

    fn number_or_null(&mut self, name: &str, number: Option<impl itoa::Integer>) {
        match number {
            Some(number) => self.number(name, number),
            None => self.text_or_null(name, None, "-"),
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        self.text_or_null(name, Some(text), "-");
    }

    fn text_or_null(&mut self, name: &str, text: Option<&str>, none: &str) {
        self.separate();
        if self.json {
            json::bytes_member(name, text.map(str::as_bytes), self.out);
        } else {
            self.label(name);
            self.out.extend_from_slice(text.unwrap_or(none).as_bytes());
        }
    }

    fn bytes(&mut self, name: &str, bytes: Option<&[u8]>) {
        self.separate();
        if self.json {
            json::bytes_member(name, bytes, self.out);
        } else {
            self.label(name);
            match bytes {
                Some(bytes) => escape(bytes, self.out),
                None => self.out.extend_from_slice(b"\\N"),
            }
        }
    }

    fn headers(&mut self, block: &[u8]) {
        self.separate();
        if self.json {
            json::headers_member(block, self.out);
            return;
        }
        self.label("headers");
        let mut text = Vec::new();
        json::headers_member(block, &mut text);
        let list = text.strip_prefix(b"\"headers\":").unwrap_or(&text);
        self.out.extend_from_slice(list);
    }
}
