//! A record as a program hands it over.

#![forbid(unsafe_code)]

use crate::record::Record;

use super::super::Error;

/// The most headers that a record can have: their count is a u16.
const HEADERS_MAX: usize = u16::MAX as usize;

/// A record on its way to a topic. What is left out is null, or the broker's business: the timestamp, and the partition where there is no key.
///
/// ```
/// use mini_broker::client::Message;
///
/// let message = Message::to("orders")
///     .key("anna")
///     .value(r#"{"item":"shoes"}"#)
///     .header("trace", Some(b"17"));
/// ```
#[derive(Debug, Clone)]
pub struct Message<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: Option<u32>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) timestamp: Option<i64>,
    /// In the record layout's own encoding.
    pub(super) headers: Vec<u8>,
    header_count: usize,
}

impl<'a> Message<'a> {
    /// A record without key and value for that topic.
    #[must_use]
    pub fn to(topic: &'a str) -> Self {
        Self {
            topic,
            partition: None,
            key: None,
            value: None,
            timestamp: None,
            headers: Vec::new(),
            header_count: 0,
        }
    }

    /// Names the partition.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Gives it a key, which chooses the partition where none is named.
    #[must_use]
    pub fn key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.key = Some(key.as_ref());
        self
    }

    /// Gives it a value; without one it is a tombstone where the topic is compacted.
    #[must_use]
    pub fn value<V: AsRef<[u8]> + ?Sized>(mut self, value: &'a V) -> Self {
        self.value = Some(value.as_ref());
        self
    }

    /// Gives it a timestamp, milliseconds since 1970-01-01 UTC, instead of the broker's.
    #[must_use]
    pub fn timestamp(mut self, ms: i64) -> Self {
        self.timestamp = Some(ms);
        self
    }

    /// Adds a header; its value may be null.
    #[must_use]
    pub fn header(mut self, name: &str, value: Option<&[u8]>) -> Self {
        if self.headers.is_empty() {
            self.headers.extend_from_slice(&[0; 2]);
        }
        self.header_count += 1;
        let count = u16::try_from(self.header_count).unwrap_or(u16::MAX);
        if let Some(place) = self.headers.first_chunk_mut::<2>() {
            *place = count.to_be_bytes();
        }
        put_field(Some(name.as_bytes()), &mut self.headers);
        put_field(value, &mut self.headers);
        self
    }

    /// Its headers in the record layout's own encoding.
    pub(in super::super) fn into_headers(self) -> Vec<u8> {
        self.headers
    }

    /// Whether it can go into a BATCH, which carries keys and values alone.
    pub(super) fn is_plain(&self) -> bool {
        self.timestamp.is_none() && self.headers.is_empty()
    }

    /// Bytes of key, value and headers.
    pub(super) fn payload_bytes(&self) -> usize {
        let record = Record {
            timestamp: 0,
            key: self.key,
            value: self.value,
            headers: &self.headers,
        };
        record.payload_bytes()
    }

    /// What no request can carry.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.header_count > HEADERS_MAX {
            return Err(Error::Usage(format!(
                "a record has {} headers, and at most {HEADERS_MAX} can be stored",
                self.header_count
            )));
        }
        let bytes = self.payload_bytes();
        if i32::try_from(bytes).is_err() {
            return Err(Error::Usage(format!(
                "a record has {bytes} bytes, and at most {} can be sent",
                i32::MAX
            )));
        }
        Ok(())
    }

    /// Appends it as one payload of a BATCH.
    pub(super) fn put_payload(&self, out: &mut Vec<u8>) {
        put_field(self.key, out);
        put_field(self.value, out);
    }

    /// Appends it as a counted PRODUCE.
    pub(super) fn put_request(&self, target: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PRODUCE ");
        out.extend_from_slice(target.as_bytes());
        for field in [self.key, self.value] {
            out.push(b' ');
            match field {
                Some(field) => crate::json::integer(field.len(), out),
                None => out.extend_from_slice(b"-1"),
            }
        }
        if let Some(ms) = self.timestamp {
            out.extend_from_slice(b" ts=");
            crate::json::integer(ms, out);
        }
        if !self.headers.is_empty() {
            out.extend_from_slice(b" headers=");
            crate::json::integer(self.headers.len(), out);
        }
        out.push(b'\n');
        for part in [self.key, self.value, Some(&self.headers)] {
            out.extend_from_slice(part.unwrap_or_default());
        }
        out.push(b'\n');
    }
}

/// A length and so many bytes; null is -1. Lengths were checked.
fn put_field(field: Option<&[u8]>, out: &mut Vec<u8>) {
    let len = field.map_or(-1, |field| i32::try_from(field.len()).unwrap_or(i32::MAX));
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(field.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_encoded_as_they_are_stored() {
        let message = Message::to("t")
            .header("a", Some(b"x"))
            .header("b", None)
            .header("", Some(b""));
        assert!(crate::format::check_headers(&message.headers));
        let found: Vec<_> = crate::format::headers(&message.headers).collect();
        assert_eq!(
            found,
            [(&b"a"[..], Some(&b"x"[..])), (b"b", None), (b"", Some(b""))]
        );
    }

    #[test]
    fn one_header_too_many_is_refused_before_it_is_sent() {
        let mut message = Message::to("t");
        for _ in 0..HEADERS_MAX {
            message = message.header("", None);
        }
        assert!(message.check().is_ok());
        assert!(message.header("", None).check().is_err());
    }

    #[test]
    fn a_counted_request_has_what_the_record_has() {
        let mut out = Vec::new();
        Message::to("t").value("v\n").put_request("t/3", &mut out);
        assert_eq!(out, b"PRODUCE t/3 -1 2\nv\n\n");
        out.clear();
        let message = Message::to("t").key("").timestamp(-5).header("n", None);
        message.put_request("t", &mut out);
        let expected = [
            &b"PRODUCE t 0 -1 ts=-5 headers=11\n"[..],
            &[0, 1, 0, 0, 0, 1],
            b"n\xff\xff\xff\xff\n",
        ];
        assert_eq!(out, expected.concat());
    }
}
