//! Layout 1: what the original Java program wrote.
//!
//! `CA FE | offset i64 | timestamp i64 | keyLen i16 | key | valueLen i16 | value`, lengths 0 to 32,767 or -1 for null.
//! No checksum and no total length: the end is known only after both lengths, and damage shows only where the magic,
//! the offset or a length is impossible.

#![forbid(unsafe_code)]

use crate::record::{Record, StoredRecord};

use super::{DecodeError, EncodeError, EntryHead, MAGIC, Reason};

/// Bytes of the fixed fields.
pub const HEADER_BYTES: usize = 22;
/// The longest key or value.
pub const FIELD_BYTES_MAX: usize = i16::MAX as usize;
/// Bytes up to and including the length of a longest key's value.
pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + FIELD_BYTES_MAX;

/// Where the key begins: after magic, offset, timestamp and keyLen.
const KEY_AT: usize = 20;

/// Bytes that [`encode`] would write.
///
/// # Errors
/// Where a field is longer than [`FIELD_BYTES_MAX`], or there are headers.
pub fn encoded_len(record: &Record<'_>) -> Result<u32, EncodeError> {
    if !record.headers.is_empty() {
        return Err(EncodeError::NoHeaders);
    }
    let len = HEADER_BYTES + field_len("key", record.key)? + field_len("value", record.value)?;
    // Two fields of at most 32,767 bytes: far below u32::MAX.
    Ok(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Appends the record's bytes.
///
/// # Errors
/// As [`encoded_len`]; `out` is then as it was.
pub fn encode(offset: i64, record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    put(offset, record, encoded_len(record)?, out);
    Ok(())
}

/// Appends the record's bytes; `len` is what [`encoded_len`] said of it.
pub(super) fn put(offset: i64, record: &Record<'_>, len: u32, out: &mut Vec<u8>) {
    out.reserve(len as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&record.timestamp.to_be_bytes());
    for field in [record.key, record.value] {
        let len = field.map_or(-1, |f| i16::try_from(f.len()).unwrap_or(i16::MAX));
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(field.unwrap_or_default());
    }
}

fn field_len(name: &'static str, field: Option<&[u8]>) -> Result<usize, EncodeError> {
    let len = field.map_or(0, <[u8]>::len);
    if len > FIELD_BYTES_MAX {
        return Err(EncodeError::TooLong {
            field: name,
            len,
            max: FIELD_BYTES_MAX,
        });
    }
    Ok(len)
}

/// See [`super::Layout::head`].
///
/// # Errors
/// See there.
pub fn head(bytes: &[u8]) -> Result<EntryHead, DecodeError> {
    let (head, _, _) = frame(bytes)?;
    Ok(head)
}

/// See [`super::Layout::decode`].
///
/// # Errors
/// See there.
pub fn decode(bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
    let (head, key_len, value_len) = frame(bytes)?;
    let whole = bytes
        .get(..head.length as usize)
        .ok_or(DecodeError::Incomplete(u64::from(head.length)))?;
    let value_at = KEY_AT + key_len.unwrap_or(0) + 2;
    let key = key_len.and_then(|len| whole.get(KEY_AT..KEY_AT + len));
    let value = value_len.and_then(|len| whole.get(value_at..value_at + len));
    let record = Record {
        timestamp: head.max_timestamp,
        key,
        value,
        headers: &[],
    };
    Ok((
        head,
        StoredRecord {
            offset: head.first_offset,
            crc_ok: true,
            record,
        },
    ))
}

type Frame = (EntryHead, Option<usize>, Option<usize>);

fn frame(bytes: &[u8]) -> Result<Frame, DecodeError> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<KEY_AT>() else {
        return Err(begin(bytes)
            .err()
            .unwrap_or(DecodeError::Incomplete(HEADER_BYTES as u64)));
    };
    begin(fixed)?;
    let [
        _,
        _,
        o0,
        o1,
        o2,
        o3,
        o4,
        o5,
        o6,
        o7,
        t0,
        t1,
        t2,
        t3,
        t4,
        t5,
        t6,
        t7,
        k0,
        k1,
    ] = *fixed;
    let offset = i64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
    let max_timestamp = i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
    let key_len = length(i16::from_be_bytes([k0, k1]))?;
    let key_bytes = key_len.unwrap_or(0);
    let value_len = rest
        .get(key_bytes..)
        .and_then(|rest| rest.split_first_chunk::<2>())
        .ok_or(DecodeError::Incomplete((HEADER_BYTES + key_bytes) as u64))?;
    let value_len = length(i16::from_be_bytes(*value_len.0))?;
    let bytes = HEADER_BYTES + key_bytes + value_len.unwrap_or(0);
    let length = u32::try_from(bytes).unwrap_or(u32::MAX);
    let head = EntryHead {
        first_offset: offset,
        last_offset: offset,
        max_timestamp,
        length,
    };
    Ok((head, key_len, value_len))
}

/// Checks as much of magic and offset's sign as is there, so that a short tail is only called incomplete where an entry may begin
/// like that.
fn begin(bytes: &[u8]) -> Result<(), DecodeError> {
    for (&found, expected) in bytes.iter().zip(MAGIC) {
        if found != expected {
            let second = bytes.get(1).copied().unwrap_or(0);
            let first = bytes.first().copied().unwrap_or(0);
            return Err(DecodeError::Corrupt(Reason::Magic(u16::from_be_bytes([
                first, second,
            ]))));
        }
    }
    match bytes.get(2) {
        Some(&third) if third >= 0x80 => Err(DecodeError::Corrupt(Reason::Version(third))),
        _ => Ok(()),
    }
}

fn length(field: i16) -> Result<Option<usize>, DecodeError> {
    match field {
        -1 => Ok(None),
        len => usize::try_from(len)
            .map(Some)
            .map_err(|_| DecodeError::Corrupt(Reason::Length(i64::from(len)))),
    }
}
