//! Layout 2: the default.
//!
//! ```text
//! at  0 magic CA FE | 2 version 82 | 3 crc u32 | 7 length u32 | 11 attributes u8 | 12 offset i64 | 20 timestamp i64
//!    28 keyLen i32 | 32 key | valueLen i32 | value | headers where attributes has bit 0
//! ```
//!
//! The CRC-32 (IEEE) covers everything behind it, the length included; the length counts everything behind itself.

#![forbid(unsafe_code)]

use crate::record::{Record, StoredRecord};

use super::{DecodeError, EncodeError, EntryHead, MAGIC, Reason};

/// The third byte: a versioned header, version 2.
pub const VERSION: u8 = 0x82;
/// Bytes of the fixed fields.
pub const HEADER_BYTES: usize = 36;
/// Bytes that [`head`] reads: up to and including the timestamp.
pub const HEAD_BYTES: usize = 28;
/// The longest entry: its position in a segment must fit 31 bits.
pub const ENTRY_BYTES_MAX: usize = i32::MAX as usize;

/// Where the CRC stands.
const CRC_AT: usize = 3;
/// Where the bytes begin that the CRC covers.
const CRC_FROM: usize = 7;
/// Where the bytes begin that the length counts.
const LENGTH_FROM: u32 = 11;
/// Where the attributes stand: the first byte that the length counts.
const ATTRIBUTES_AT: usize = 11;
/// The smallest value of the length field: attributes, offset, timestamp and two lengths.
const LENGTH_MIN: usize = HEADER_BYTES - ATTRIBUTES_AT;
/// The attribute bit that says that headers follow the value.
const HAS_HEADERS: u8 = 1;
/// Where keyLen stands.
const KEY_LEN_AT: usize = 28;

/// Bytes that [`encode`] would write.
///
/// # Errors
/// Where the entry would be longer than [`ENTRY_BYTES_MAX`].
#[inline]
pub fn encoded_len(record: &Record<'_>) -> Result<u32, EncodeError> {
    let len = HEADER_BYTES + record.payload_bytes();
    match u32::try_from(len) {
        Ok(fits) if len <= ENTRY_BYTES_MAX => Ok(fits),
        _ => Err(EncodeError::TooLong {
            field: "value",
            len,
            max: ENTRY_BYTES_MAX,
        }),
    }
}

/// Appends the record's bytes.
///
/// # Errors
/// As [`encoded_len`]; `out` is then as it was.
pub fn encode(offset: i64, record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let len = encoded_len(record)?;
    let start = out.len();
    put(offset, record, len, out);
    seal(out.get_mut(start..).unwrap_or_default());
    Ok(())
}

/// Appends the record's bytes with a checksum of 0, for [`seal`] to fill in; `len` is what [`encoded_len`] said of it.
#[inline]
pub(super) fn put(offset: i64, record: &Record<'_>, len: u32, out: &mut Vec<u8>) {
    let length = len - LENGTH_FROM;
    let attributes = u8::from(!record.headers.is_empty()) * HAS_HEADERS;
    let offset = offset.cast_unsigned();
    // The fixed fields up to the key as two numbers: magic, version, crc, length, attributes, offset, timestamp, keyLen.
    let front = u128::from(u16::from_be_bytes(MAGIC)) << 112
        | u128::from(VERSION) << 104
        | u128::from(length) << 40
        | u128::from(attributes) << 32
        | u128::from(offset >> 32);
    let back = u128::from(offset) << 96
        | u128::from(record.timestamp.cast_unsigned()) << 32
        | u128::from(field_len(record.key).cast_unsigned());
    out.reserve(len as usize);
    out.extend_from_slice([front.to_be_bytes(), back.to_be_bytes()].as_flattened());
    out.extend_from_slice(record.key.unwrap_or_default());
    out.extend_from_slice(&field_len(record.value).to_be_bytes());
    out.extend_from_slice(record.value.unwrap_or_default());
    out.extend_from_slice(record.headers);
}

/// The length of a field as it is stored: -1 is null.
#[inline]
fn field_len(field: Option<&[u8]>) -> i32 {
    field.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

/// Fills in the checksums of whole entries that stand one behind another, as [`put`] appended them.
///
/// Many at once cost less than each behind its `put`: a checksum needs the stores before it to have reached the cache, and
/// those of neighbours do not wait for each other.
pub(super) fn seal(entries: &mut [u8]) {
    let unused = crc32fast::Hasher::new();
    let mut rest = entries;
    while let Some(counted) = rest
        .get(CRC_FROM..ATTRIBUTES_AT)
        .and_then(<[u8]>::first_chunk)
    {
        let len = (LENGTH_FROM + u32::from_be_bytes(*counted)) as usize;
        let Some((entry, behind)) = rest.split_at_mut_checked(len) else {
            break;
        };
        let mut hasher = unused.clone();
        hasher.update(entry.get(CRC_FROM..).unwrap_or_default());
        if let Some(place) = entry.get_mut(CRC_AT..CRC_FROM) {
            place.copy_from_slice(&hasher.finalize().to_be_bytes());
        }
        rest = behind;
    }
}

/// See [`super::Layout::head`].
///
/// # Errors
/// See there.
pub fn head(bytes: &[u8]) -> Result<EntryHead, DecodeError> {
    let Some((fixed, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Err(begin(bytes)
            .err()
            .unwrap_or(DecodeError::Incomplete(HEAD_BYTES as u64)));
    };
    begin(fixed)?;
    let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        l0,
        l1,
        l2,
        l3,
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
    ] = *fixed;
    let counted = u32::from_be_bytes([l0, l1, l2, l3]);
    if !(LENGTH_MIN..=ENTRY_BYTES_MAX - ATTRIBUTES_AT).contains(&(counted as usize)) {
        return Err(DecodeError::Corrupt(Reason::Length(i64::from(counted))));
    }
    let offset = i64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
    Ok(EntryHead {
        first_offset: offset,
        last_offset: offset,
        max_timestamp: i64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
        length: LENGTH_FROM + counted,
    })
}

/// See [`super::Layout::decode`].
///
/// # Errors
/// See there.
pub fn decode(bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
    let (head, entry) = whole(bytes)?;
    let (stored, computed) = crcs(entry);
    if stored != computed {
        return Err(DecodeError::Corrupt(Reason::Crc { stored, computed }));
    }
    fields(head, entry, true)
}

/// See [`super::Layout::decode_lenient`].
///
/// # Errors
/// See there.
pub fn decode_lenient(bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
    let (head, entry) = whole(bytes)?;
    let (stored, computed) = crcs(entry);
    fields(head, entry, stored == computed)
}

/// See [`super::Layout::decode_again`].
///
/// # Errors
/// See there.
pub fn decode_again(bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
    let (head, entry) = whole(bytes)?;
    fields(head, entry, true)
}

fn whole(bytes: &[u8]) -> Result<(EntryHead, &[u8]), DecodeError> {
    let head = head(bytes)?;
    let entry = bytes
        .get(..head.length as usize)
        .ok_or(DecodeError::Incomplete(u64::from(head.length)))?;
    Ok((head, entry))
}

/// The checksum that an entry holds, and the one that its bytes have.
fn crcs(entry: &[u8]) -> (u32, u32) {
    let stored = entry
        .get(3..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map_or(0, |crc| u32::from_be_bytes(*crc));
    (stored, entry.get(CRC_FROM..).map_or(0, crc32fast::hash))
}

fn fields(
    head: EntryHead,
    entry: &[u8],
    crc_ok: bool,
) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
    if head.first_offset < 0 {
        return Err(DecodeError::Corrupt(Reason::Offset(head.first_offset)));
    }
    let attributes = entry.get(ATTRIBUTES_AT).copied().unwrap_or(0);
    if attributes & !HAS_HEADERS != 0 {
        return Err(DecodeError::Corrupt(Reason::Attributes(attributes)));
    }
    let (key, rest) = field(entry.get(KEY_LEN_AT..).unwrap_or_default())?;
    let (value, headers) = field(rest)?;
    let sound = if attributes & HAS_HEADERS == 0 {
        headers.is_empty()
    } else {
        super::check_headers(headers)
    };
    if !sound {
        return Err(DecodeError::Corrupt(Reason::Headers));
    }
    let record = Record {
        timestamp: head.max_timestamp,
        key,
        value,
        headers,
    };
    Ok((
        head,
        StoredRecord {
            offset: head.first_offset,
            crc_ok,
            record,
        },
    ))
}

fn field(bytes: &[u8]) -> Result<(Option<&[u8]>, &[u8]), DecodeError> {
    let (len, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or(DecodeError::Corrupt(Reason::Length(0)))?;
    let len = i32::from_be_bytes(*len);
    if len == -1 {
        return Ok((None, rest));
    }
    usize::try_from(len)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .map(|(field, rest)| (Some(field), rest))
        .ok_or(DecodeError::Corrupt(Reason::Length(i64::from(len))))
}

/// Checks as much of magic and version as is there.
fn begin(bytes: &[u8]) -> Result<(), DecodeError> {
    for (&found, expected) in bytes.iter().zip(MAGIC) {
        if found != expected {
            let first = bytes.first().copied().unwrap_or(0);
            let second = bytes.get(1).copied().unwrap_or(0);
            return Err(DecodeError::Corrupt(Reason::Magic(u16::from_be_bytes([
                first, second,
            ]))));
        }
    }
    match bytes.get(2) {
        Some(&third) if third != VERSION => Err(DecodeError::Corrupt(Reason::Version(third))),
        _ => Ok(()),
    }
}
