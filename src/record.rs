//! The values: a record as a producer hands it over, a record as a log gives it back, and a buffer of many.
//!
//! Everything here borrows; [`Records`] is the one owner, a single allocation for the bytes and one for
//! the places in it, reused from read to read.

#![forbid(unsafe_code)]

/// A record on its way in: no offset yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Milliseconds since 1970-01-01 UTC; any value.
    pub timestamp: i64,
    /// `None` is null, which is not the empty key.
    pub key: Option<&'a [u8]>,
    /// `None` is null: a tombstone where the topic is compacted.
    pub value: Option<&'a [u8]>,
    /// Headers in the record layout's own encoding (docs/format.md), checked with
    /// [`crate::format::check_headers`]; empty where there are none (never a count of 0).
    pub headers: &'a [u8],
}

impl Record<'_> {
    /// Bytes of key, value and headers: what `max.message.bytes` bounds.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.headers.len()
    }
}

/// A record as most are: without a timestamp of its own, and without headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainRecord<'a> {
    /// See [`Record::key`].
    pub key: Option<&'a [u8]>,
    /// See [`Record::value`].
    pub value: Option<&'a [u8]>,
}

/// A record as it stands in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRecord<'a> {
    /// Its offset in the partition.
    pub offset: i64,
    /// False only where a reader asked for records whose checksum is wrong (`crc=skip`).
    pub crc_ok: bool,
    /// What the producer sent.
    pub record: Record<'a>,
}

/// Where one record's fields lie in [`Records::bytes`].
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: i64,
    timestamp: i64,
    start: usize,
    key_len: Option<usize>,
    value_len: Option<usize>,
    headers_len: usize,
    crc_ok: bool,
}

/// Records that were read, owned: fields one behind another in one buffer.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

impl Records {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies one record to the end.
    pub fn push(&mut self, stored: &StoredRecord<'_>) {
        let record = &stored.record;
        self.places.push(Place {
            offset: stored.offset,
            timestamp: record.timestamp,
            start: self.bytes.len(),
            key_len: record.key.map(<[u8]>::len),
            value_len: record.value.map(<[u8]>::len),
            headers_len: record.headers.len(),
            crc_ok: stored.crc_ok,
        });
        for part in [record.key, record.value, Some(record.headers)]
            .into_iter()
            .flatten()
        {
            self.bytes.extend_from_slice(part);
        }
    }

    /// The records in the order of their offsets.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = StoredRecord<'_>> {
        self.places.iter().map(|place| {
            let rest = self.bytes.get(place.start..).unwrap_or_default();
            let (key, rest) = take(rest, place.key_len);
            let (value, rest) = take(rest, place.value_len);
            let headers = rest.get(..place.headers_len).unwrap_or_default();
            StoredRecord {
                offset: place.offset,
                crc_ok: place.crc_ok,
                record: Record {
                    timestamp: place.timestamp,
                    key,
                    value,
                    headers,
                },
            }
        })
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of all keys, values and headers together.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets the records and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }
}

fn take(bytes: &[u8], len: Option<usize>) -> (Option<&[u8]>, &[u8]) {
    match len {
        None => (None, bytes),
        Some(len) => {
            let (field, rest) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
            (Some(field), rest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went_in() {
        let inputs = [
            Record {
                timestamp: -5,
                key: None,
                value: Some(b"v"),
                headers: b"",
            },
            Record {
                timestamp: 0,
                key: Some(b""),
                value: None,
                headers: b"hhh",
            },
            Record {
                timestamp: i64::MAX,
                key: Some(b"k"),
                value: Some(b""),
                headers: b"",
            },
        ];
        let mut records = Records::new();
        for (offset, record) in (7..).zip(inputs) {
            records.push(&StoredRecord {
                offset,
                crc_ok: offset != 8,
                record,
            });
        }
        let back: Vec<_> = records.iter().collect();
        assert_eq!(back.iter().map(|r| r.record).collect::<Vec<_>>(), inputs);
        assert_eq!(
            back.iter()
                .map(|r| (r.offset, r.crc_ok))
                .collect::<Vec<_>>(),
            [(7, true), (8, false), (9, true)]
        );
        records.clear();
        assert!(records.is_empty());
    }
}
