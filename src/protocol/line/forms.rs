//! How a record is printed: the forms of `as=`.
#![forbid(unsafe_code)]

use crate::api::escape;
use crate::json::{self, integer};
use crate::record::StoredRecord;

/// A form of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Fields separated by tabs, with the escapes of COPY.
    #[default]
    Tsv,
    /// An object a line.
    Json,
    /// The values as they stand.
    Value,
}

impl Form {
    /// The form of that name.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"tsv" => Some(Self::Tsv),
            b"json" => Some(Self::Json),
            b"value" => Some(Self::Value),
            _ => None,
        }
    }

    /// Appends a record and an LF. `with_partition` puts the partition in front of a tsv line; a json object always has it.
    pub fn line(
        self,
        partition: u32,
        with_partition: bool,
        stored: &StoredRecord<'_>,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Tsv => tsv(with_partition.then_some(partition), stored, out),
            Self::Json => json(partition, stored, out),
            Self::Value => out.extend_from_slice(stored.record.value.unwrap_or_default()),
        }
        out.push(b'\n');
    }
}

fn tsv(partition: Option<u32>, stored: &StoredRecord<'_>, out: &mut Vec<u8>) {
    if let Some(partition) = partition {
        integer(partition, out);
        out.push(b'\t');
    }
    integer(stored.offset, out);
    out.push(b'\t');
    integer(stored.record.timestamp, out);
    out.push(b'\t');
    field(stored.record.key, out);
    out.push(b'\t');
    field(stored.record.value, out);
}

/// Appends a text field; `\N` for null.
pub(super) fn field(value: Option<&[u8]>, out: &mut Vec<u8>) {
    match value {
        None => out.extend_from_slice(b"\\N"),
        // Most values need no escape at all, and a look costs less than the walk over characters.
        Some(text)
            if text
                .iter()
                .all(|&byte| matches!(byte, b' '..=b'~') && byte != b'\\') =>
        {
            out.extend_from_slice(text);
        }
        Some(text) => escape(text, out),
    }
}

fn json(partition: u32, stored: &StoredRecord<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    json::number_member("partition", partition, out);
    out.push(b',');
    json::number_member("offset", stored.offset, out);
    out.push(b',');
    json::number_member("timestamp", stored.record.timestamp, out);
    out.push(b',');
    json::bytes_member("key", stored.record.key, out);
    out.push(b',');
    json::bytes_member("value", stored.record.value, out);
    if !stored.record.headers.is_empty() {
        out.push(b',');
        json::headers_member(stored.record.headers, out);
    }
    if !stored.crc_ok {
        out.extend_from_slice(b",\"crc\":\"bad\"");
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn line(form: Form, with_partition: bool, stored: &StoredRecord<'_>) -> String {
        let mut out = Vec::new();
        form.line(3, with_partition, stored, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn stored<'a>(
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
        headers: &'a [u8],
    ) -> StoredRecord<'a> {
        StoredRecord {
            offset: 7,
            crc_ok: true,
            record: Record {
                timestamp: -5,
                key,
                value,
                headers,
            },
        }
    }

    #[test]
    fn tsv_tells_null_from_empty_and_escapes() {
        assert_eq!(
            line(Form::Tsv, false, &stored(None, Some(b""), b"")),
            "7\t-5\t\\N\t\n"
        );
        assert_eq!(
            line(Form::Tsv, true, &stored(Some(b"k\t"), None, b"")),
            "3\t7\t-5\tk\\t\t\\N\n"
        );
        assert_eq!(
            line(
                Form::Tsv,
                false,
                &stored(Some(b"\\N"), Some(b"a\xffb\n"), b"")
            ),
            "7\t-5\t\\\\N\ta\\xffb\\n\n"
        );
    }

    #[test]
    fn json_has_its_keys_in_order_and_base64_where_bytes_are_no_text() {
        assert_eq!(
            line(
                Form::Json,
                false,
                &stored(None, Some("한\"\n".as_bytes()), b"")
            ),
            "{\"partition\":3,\"offset\":7,\"timestamp\":-5,\"key\":null,\"value\":\"한\\\"\\n\"}\n"
        );
        let headers = [
            &[0, 3, 0, 0, 0, 1][..],
            b"a",
            &[0, 0, 0, 1],
            b"x",
            &[0, 0, 0, 1],
            b"b",
            &[255, 255, 255, 255, 0, 0, 0, 1],
            b"c",
            &[0, 0, 0, 1, 0xff],
        ]
        .concat();
        let mut record = stored(Some(b"\xff\xfe"), None, &headers);
        record.crc_ok = false;
        assert_eq!(
            line(Form::Json, true, &record),
            "{\"partition\":3,\"offset\":7,\"timestamp\":-5,\"key_base64\":\"//4=\",\"value\":null,\
             \"headers\":[[\"a\",\"x\"],[\"b\",null],[\"c\",null,\"/w==\"]],\"crc\":\"bad\"}\n"
        );
    }

    #[test]
    fn value_is_the_bytes_as_they_stand() {
        assert_eq!(
            line(
                Form::Value,
                true,
                &stored(Some(b"k"), Some(b"a\\b\tc"), b"")
            ),
            "a\\b\tc\n"
        );
        assert_eq!(line(Form::Value, false, &stored(None, None, b"")), "\n");
    }
}
