//! Record layouts: the bytes of one stored entry, for reader and writer alike.
//!
//! A layout belongs to a segment. The engine knows an entry only by its [`EntryHead`]; in both layouts here an entry
//! is one record, so first and last offset are equal, but nothing above relies on it. docs/format.md has the byte
//! tables and examples.
//!
//! Decoding tells apart what is cut short ([`DecodeError::Incomplete`]) from what cannot be an entry
//! ([`DecodeError::Corrupt`]), never panics, and allocates nothing: it borrows.

#![forbid(unsafe_code)]

pub mod v1;
pub mod v2;

use std::fmt;

use crate::record::{Record, StoredRecord};

/// The first two bytes of an entry in every layout.
pub const MAGIC: [u8; 2] = [0xCA, 0xFE];

/// What the engine knows of a stored entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHead {
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of its last record.
    pub last_offset: i64,
    /// The largest timestamp in it, milliseconds.
    pub max_timestamp: i64,
    /// Bytes of the whole entry, this head included.
    pub length: u32,
}

/// Why bytes are not an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end before the entry does: at least so many bytes are needed, counted from its start.
    Incomplete(u64),
    /// No entry of this layout looks like that.
    Corrupt(Reason),
}

/// What is wrong with a damaged entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The first two bytes are not [`MAGIC`].
    Magic(u16),
    /// The third byte names a layout that is not known.
    Version(u8),
    /// The checksum that is stored and the one that the bytes have.
    Crc {
        /// In the entry.
        stored: u32,
        /// Over the bytes.
        computed: u32,
    },
    /// A length field below what is possible, or lengths that do not add up.
    Length(i64),
    /// An attribute bit that this version does not know.
    Attributes(u8),
    /// Negative, or not above the one before, or beyond the segment.
    Offset(i64),
    /// Header bytes that do not add up.
    Headers,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(found) => write!(f, "magic is {found:04X}, not CAFE"),
            Self::Version(found) => write!(f, "layout byte {found:#04x} is not known"),
            Self::Crc { stored, computed } => {
                write!(f, "crc is {stored:08x}, the bytes have {computed:08x}")
            }
            Self::Length(found) => write!(f, "length {found} is impossible"),
            Self::Attributes(found) => write!(f, "attribute bits {found:#04x} are not known"),
            Self::Offset(found) => write!(f, "offset {found} is impossible here"),
            Self::Headers => f.write_str("header bytes do not add up"),
        }
    }
}

/// Why a record cannot be stored in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeError {
    /// A key, value or header block longer than the layout's length field holds.
    TooLong {
        /// `"key"`, `"value"` or `"headers"`.
        field: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Layout 1 has no headers.
    NoHeaders,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { field, len, max } => {
                write!(
                    f,
                    "the {field} has {len} bytes; this record version holds {max}"
                )
            }
            Self::NoHeaders => f.write_str("record version 1 cannot hold headers"),
        }
    }
}

/// A record layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The original: 22-byte header, 16-bit lengths, no checksum.
    V1,
    /// The default: CRC, total length, headers.
    V2,
}

/// Bytes that tell an entry's layout.
pub const LAYOUT_BYTES: usize = 3;

impl Layout {
    /// The layout of the entry that starts with these bytes.
    ///
    /// # Errors
    /// `Incomplete` below [`LAYOUT_BYTES`] bytes, `Corrupt` where no layout starts like that.
    pub fn of(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((&[m0, m1, third], _)) = bytes.split_first_chunk::<LAYOUT_BYTES>() else {
            return Err(DecodeError::Incomplete(LAYOUT_BYTES as u64));
        };
        if [m0, m1] != MAGIC {
            return Err(DecodeError::Corrupt(Reason::Magic(u16::from_be_bytes([
                m0, m1,
            ]))));
        }
        match third {
            0..0x80 => Ok(Self::V1),
            v2::VERSION => Ok(Self::V2),
            other => Err(DecodeError::Corrupt(Reason::Version(other))),
        }
    }

    /// The value of `record.version` that chooses this layout.
    #[must_use]
    pub fn version(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Bytes that [`Layout::encode`] would write.
    ///
    /// # Errors
    /// Where the layout cannot hold the record.
    #[inline]
    pub fn encoded_len(self, record: &Record<'_>) -> Result<u32, EncodeError> {
        match self {
            Self::V1 => v1::encoded_len(record),
            Self::V2 => v2::encoded_len(record),
        }
    }

    /// Appends the record's bytes to `out`.
    ///
    /// # Errors
    /// Where the layout cannot hold the record; `out` is then as it was.
    pub fn encode(
        self,
        offset: i64,
        record: &Record<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        match self {
            Self::V1 => v1::encode(offset, record, out),
            Self::V2 => v2::encode(offset, record, out),
        }
    }

    /// As [`Layout::encode`] of a record whose encoded length is known to be `len`, but what must be computed over the whole
    /// entry is left open until [`Layout::seal`].
    #[inline]
    pub fn put(self, offset: i64, record: &Record<'_>, len: u32, out: &mut Vec<u8>) {
        match self {
            Self::V1 => v1::put(offset, record, len, out),
            Self::V2 => v2::put(offset, record, len, out),
        }
    }

    /// Completes the entries that [`Layout::put`] appended, all of them, one behind another.
    pub fn seal(self, entries: &mut [u8]) {
        match self {
            // It has no checksum.
            Self::V1 => {}
            Self::V2 => v2::seal(entries),
        }
    }

    /// Reads an entry's head from the bytes at its start, which may end before the entry does. Nothing is
    /// checked but the frame: magic, version, the range of lengths, and in layout 1 the sign of the offset.
    ///
    /// # Errors
    /// `Incomplete(n)` where n bytes (more than given) are needed to tell; `Corrupt` where the frame does not hold.
    pub fn head(self, bytes: &[u8]) -> Result<EntryHead, DecodeError> {
        match self {
            Self::V1 => v1::head(bytes),
            Self::V2 => v2::head(bytes),
        }
    }

    /// The largest number of bytes that [`Layout::head`] may ask for.
    #[must_use]
    pub fn head_bytes_max(self) -> usize {
        match self {
            Self::V1 => v1::HEAD_BYTES_MAX,
            Self::V2 => v2::HEAD_BYTES,
        }
    }

    /// Decodes the entry at the start of `bytes` whole and checks everything that the layout can check.
    ///
    /// # Errors
    /// `Incomplete` where the entry is cut short, `Corrupt` where it is damaged.
    pub fn decode(self, bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
        match self {
            Self::V1 => v1::decode(bytes),
            Self::V2 => v2::decode(bytes),
        }
    }

    /// As [`Layout::decode`], but an entry whose checksum is wrong while its fields hold together comes back with
    /// `crc_ok` false.
    ///
    /// # Errors
    /// `Incomplete` where the entry is cut short, `Corrupt` where its fields do not hold together.
    pub fn decode_lenient(
        self,
        bytes: &[u8],
    ) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
        match self {
            Self::V1 => v1::decode(bytes),
            Self::V2 => v2::decode_lenient(bytes),
        }
    }

    /// As [`Layout::decode`], for an entry that was decoded before: its checksum is not computed again.
    ///
    /// # Errors
    /// As [`Layout::decode`], save for what only the checksum tells.
    pub fn decode_again(self, bytes: &[u8]) -> Result<(EntryHead, StoredRecord<'_>), DecodeError> {
        match self {
            Self::V1 => v1::decode(bytes),
            Self::V2 => v2::decode_again(bytes),
        }
    }
}

/// One header: its name, and its value or null.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// The headers in a block as layout 2 stores it; stops early where the block does not add up.
pub fn headers(block: &[u8]) -> impl Iterator<Item = Header<'_>> {
    let (count, mut rest) = match block.split_first_chunk::<2>() {
        Some((count, rest)) => (u16::from_be_bytes(*count), rest),
        None => (0, block),
    };
    (0..count).map_while(move |_| {
        let (header, tail) = split_header(rest)?;
        rest = tail;
        Some(header)
    })
}

/// Whether the bytes are a header block: a count, then so many headers with UTF-8 names, and nothing behind.
#[must_use]
pub fn check_headers(block: &[u8]) -> bool {
    let Some((count, mut rest)) = block.split_first_chunk::<2>() else {
        return false;
    };
    for _ in 0..u16::from_be_bytes(*count) {
        match split_header(rest) {
            Some(((name, _), tail)) if std::str::from_utf8(name).is_ok() => rest = tail,
            _ => return false,
        }
    }
    rest.is_empty()
}

fn split_header(bytes: &[u8]) -> Option<(Header<'_>, &[u8])> {
    let (name_len, rest) = bytes.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(i32::from_be_bytes(*name_len).try_into().ok()?)?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    match i32::from_be_bytes(*value_len) {
        -1 => Some(((name, None), rest)),
        len => {
            let (value, rest) = rest.split_at_checked(len.try_into().ok()?)?;
            Some(((name, Some(value)), rest))
        }
    }
}
