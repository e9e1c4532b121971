//! JSON text of bytes that may or may not be text: what READ, dump and verify have in common.
//!
//! Lines are put together by hand, because the order of their members is promised; strings go through `serde_json`.
#![forbid(unsafe_code)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::format::headers;

/// Appends a number in decimal.
pub fn integer(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `"<name>":` and the number.
pub fn number_member(name: &str, number: impl itoa::Integer, out: &mut Vec<u8>) {
    key(name, out);
    integer(number, out);
}

/// Appends `"<name>":` and the text as a string.
pub fn text_member(name: &str, text: &str, out: &mut Vec<u8>) {
    key(name, out);
    string(text, out);
}

/// Appends `"<name>":` and the bytes as a string or null, or `"<name>_base64":` and base64 where they are not UTF-8.
pub fn bytes_member(name: &str, bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => {
            key(name, out);
            out.extend_from_slice(b"null");
        }
        Some(Ok(text)) => text_member(name, text, out),
        Some(Err(bytes)) => {
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"_base64\":");
            string(&STANDARD.encode(bytes), out);
        }
    }
}

/// Appends `"headers":` and a list of `[name, value]`; a value that is not UTF-8 is `[name, null, "<base64>"]`.
pub fn headers_member(block: &[u8], out: &mut Vec<u8>) {
    key("headers", out);
    out.push(b'[');
    for (at, (name, value)) in headers(block).enumerate() {
        out.extend_from_slice(if at == 0 { b"[" } else { b",[" });
        // Names are checked to be UTF-8 on the way in; one that is damaged on the disk is shown as well as it can be.
        string(&String::from_utf8_lossy(name), out);
        match value.map(|value| std::str::from_utf8(value).map_err(|_| value)) {
            None => out.extend_from_slice(b",null"),
            Some(Ok(text)) => {
                out.push(b',');
                string(text, out);
            }
            Some(Err(bytes)) => {
                out.extend_from_slice(b",null,");
                string(&STANDARD.encode(bytes), out);
            }
        }
        out.push(b']');
    }
    out.push(b']');
}

/// Appends a string with its quotes and escapes.
pub fn string(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    // A string always serialises and a Vec takes every byte; should that ever change, the line stays JSON.
    if serde_json::to_writer(&mut *out, text).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// The names are this program's own, and need no escape.
fn key(name: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}
