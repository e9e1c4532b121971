//! Web browsers, which are sent away.
#![forbid(unsafe_code)]

use super::lexer::next_field;

/// What a web browser is told; nothing it sent is executed.
pub(super) const REPLY: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
     Content-Length: 63\r\n\r\nThis port speaks the line protocol of mini-broker and no HTTP.\n";

/// Whether a connection's first line has the form `<word> /... HTTP/1.x`: a web page must not be able to send requests.
pub(super) fn is_request(line: &[u8]) -> bool {
    let mut rest = line;
    let is_path = next_field(&mut rest).is_some()
        && next_field(&mut rest).is_some_and(|path| path.starts_with(b"/"));
    let mut version = None;
    while let Some(field) = next_field(&mut rest) {
        version = Some(field);
    }
    let minor = version.and_then(|field| field.strip_prefix(b"HTTP/1."));
    is_path && minor.is_some_and(|minor| minor.len() == 1 && minor.iter().all(u8::is_ascii_digit))
}
