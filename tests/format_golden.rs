//! The bytes of both record layouts: fixtures that are never edited, and what a decoder must notice.
//!
//! `golden-v1.log` and `golden-v2.log` were made by a program that shares no line with this one; `original-v1.log` was written by the
//! original Java program. Random cases print their seed; `SEED=<n>` runs that one again.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use mini_broker::format::{DecodeError, EncodeError, Layout, Reason, check_headers, headers};
use mini_broker::record::Record;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

const GOLDEN_V1: &[u8] = include_bytes!("data/golden-v1.log");
const GOLDEN_V2: &[u8] = include_bytes!("data/golden-v2.log");
const ORIGINAL: &[u8] = include_bytes!("data/original-v1.log");

/// Two headers, `src` = `unit` and an empty name without a value, as layout 2 stores them.
const HEADERS: &[u8] =
    b"\x00\x02\x00\x00\x00\x03src\x00\x00\x00\x04unit\x00\x00\x00\x00\xff\xff\xff\xff";

/// What the golden logs hold, from offset 0 on; layout 1 ends before the one with headers.
fn golden_records() -> Vec<Record<'static>> {
    static BYTES: [u8; 256] = {
        let mut bytes = [0; 256];
        let mut i = 0;
        while i < 256 {
            bytes[i] = i.to_le_bytes()[0];
            i += 1;
        }
        bytes
    };
    let record = |timestamp, key, value| Record {
        timestamp,
        key,
        value,
        headers: b"",
    };
    vec![
        record(0, Some(b"k"), Some(b"v")),
        record(-5, None, Some(b"no key")),
        record(i64::MAX, Some(b"tomb"), None),
        record(i64::MIN, Some(b""), Some(b"")),
        record(1_767_225_600_000, Some("키".as_bytes()), Some(&BYTES)),
        Record {
            headers: HEADERS,
            ..record(7, None, None)
        },
    ]
}

fn encode(layout: Layout, offset: i64, record: &Record<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    layout.encode(offset, record, &mut out).unwrap();
    assert_eq!(out.len(), layout.encoded_len(record).unwrap() as usize);
    out
}

fn plain<'a>(key: Option<&'a [u8]>, value: Option<&'a [u8]>) -> Record<'a> {
    Record {
        timestamp: 0,
        key,
        value,
        headers: b"",
    }
}

/// Runs a property; a failure names the seed.
fn check<S: Strategy>(
    cases: u32,
    strategy: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let seed: u64 = match std::env::var("SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    match TestRunner::new_with_rng(config, rng).run(strategy, property) {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("SEED={seed}: {reason}\nfor {value:?}"),
        Err(error) => panic!("SEED={seed}: {error}"),
    }
}

#[test]
fn the_golden_cases_of_the_format_page() {
    let record = plain(Some(b"k"), Some(b"v"));
    let v1 = "CAFE 0000000000000000 0000000000000000 0001 6B 0001 76";
    let v2 =
        "CAFE 82 191E83CA 0000001B 00 0000000000000000 0000000000000000 00000001 6B 00000001 76";
    for (layout, hex) in [(Layout::V1, v1), (Layout::V2, v2)] {
        let bytes = encode(layout, 0, &record);
        let hex = hex.replace(' ', "");
        let pairs = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        let expected: Vec<u8> = pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect();
        assert_eq!(bytes, expected);
        assert_eq!(Layout::of(&bytes), Ok(layout));
    }
    let bytes = encode(Layout::V2, 0, &record);
    assert_eq!(
        crc32fast::hash(&bytes[7..]),
        0x191E_83CA,
        "of the 31 bytes behind it"
    );
}

#[test]
fn the_golden_logs_are_what_is_written_and_what_is_read() {
    let records = golden_records();
    for (layout, golden, records) in [
        (Layout::V1, GOLDEN_V1, &records[..5]),
        (Layout::V2, GOLDEN_V2, &records[..]),
    ] {
        let mut written = Vec::new();
        let mut rest = golden;
        for (offset, record) in (0..).zip(records) {
            layout.encode(offset, record, &mut written).unwrap();
            let (head, stored) = layout.decode(rest).unwrap();
            assert_eq!(
                (stored.offset, stored.crc_ok, stored.record),
                (offset, true, *record)
            );
            assert_eq!((head.first_offset, head.last_offset), (offset, offset));
            assert_eq!(head.max_timestamp, record.timestamp);
            assert_eq!(layout.head(rest), Ok(head));
            rest = &rest[head.length as usize..];
        }
        assert_eq!(written, golden);
        assert!(rest.is_empty());
    }
}

#[test]
fn headers_are_told_apart_from_their_absence() {
    let found: Vec<_> = headers(HEADERS).collect();
    assert_eq!(found, [(&b"src"[..], Some(&b"unit"[..])), (b"", None)]);
    assert!(check_headers(HEADERS));
    for (broken, why) in [
        (&HEADERS[..HEADERS.len() - 1], "a byte short"),
        (&[HEADERS, b"x"].concat(), "a byte over"),
        (
            b"\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff\xff",
            "a name that is no UTF-8",
        ),
        (
            b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff",
            "a name that is null",
        ),
        (
            b"\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe",
            "a length below -1",
        ),
        (b"\x00\x01\x7f\xff\xff\xff", "a length beyond the end"),
        (b"\x00", "half a count"),
    ] {
        assert!(!check_headers(broken), "{why}");
    }
    let with = Record {
        headers: HEADERS,
        ..plain(None, None)
    };
    assert_eq!(Layout::V1.encoded_len(&with), Err(EncodeError::NoHeaders));
}

#[test]
fn every_record_of_the_original_program_is_read() {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let zeros = vec![0; 32_767];
    let mut rest = ORIGINAL;
    let mut again = Vec::new();
    for offset in 0..108_i64 {
        let (head, stored) = Layout::V1.decode(rest).unwrap();
        let Record {
            timestamp,
            key,
            value,
            headers,
        } = stored.record;
        assert_eq!((stored.offset, headers), (offset, &b""[..]));
        let (numbered_key, numbered_value) = (format!("key-{offset}"), format!("value-{offset}"));
        let expected: (Option<&[u8]>, Option<&[u8]>) = match offset {
            0..=99 => (
                Some(numbered_key.as_bytes()),
                Some(numbered_value.as_bytes()),
            ),
            100 => (None, Some(b"no key")),
            101 => (Some(b"no value"), None),
            102 => (None, None),
            103 => (Some(b""), Some(b"")),
            104 => (Some(&all_bytes), Some(&all_bytes)),
            106 => (Some(b"big"), Some(&zeros)),
            _ => (key, value),
        };
        assert_eq!((key, value), expected, "offset {offset}");
        if offset < 100 {
            assert_eq!(timestamp, 1_767_225_600_000 + 1000 * offset);
        }
        if offset == 105 {
            let is_korean = |field: Option<&[u8]>| {
                std::str::from_utf8(field.unwrap())
                    .unwrap()
                    .chars()
                    .any(|c| ('가'..='힣').contains(&c))
            };
            assert!(is_korean(key) || is_korean(value));
        }
        if offset == 107 {
            let holds_magic =
                |field: Option<&[u8]>| field.unwrap().windows(2).any(|pair| pair == [0xCA, 0xFE]);
            assert!(holds_magic(key) && holds_magic(value));
        }
        Layout::V1
            .encode(offset, &stored.record, &mut again)
            .unwrap();
        rest = &rest[head.length as usize..];
    }
    assert!(rest.is_empty());
    assert_eq!(
        again, ORIGINAL,
        "what the original wrote is what is written"
    );
    let timestamp = |offset: usize| {
        let mut rest = ORIGINAL;
        for _ in 0..offset {
            rest = &rest[Layout::V1.head(rest).unwrap().length as usize..];
        }
        Layout::V1.head(rest).unwrap().max_timestamp
    };
    assert!(timestamp(104) < timestamp(103) && timestamp(104) < timestamp(105));
}

#[test]
fn every_truncation_of_an_entry_is_incomplete() {
    let records = golden_records();
    for (layout, records) in [(Layout::V1, &records[..5]), (Layout::V2, &records[..])] {
        for record in records {
            let bytes = encode(layout, 3, record);
            for len in 0..bytes.len() {
                let cut = &bytes[..len];
                for result in [layout.decode(cut), layout.decode_lenient(cut)] {
                    let Err(DecodeError::Incomplete(needed)) = result else {
                        panic!("{layout:?} cut at {len}: {result:?}");
                    };
                    assert!(
                        needed > len as u64 && needed <= bytes.len() as u64,
                        "{len} {needed}"
                    );
                }
                match layout.head(cut) {
                    Ok(head) => assert_eq!(head.length as usize, bytes.len()),
                    Err(DecodeError::Incomplete(needed)) => assert!(needed > len as u64),
                    Err(error) => panic!("{layout:?} head cut at {len}: {error:?}"),
                }
                match Layout::of(cut) {
                    Ok(found) => assert_eq!((found, len >= 3), (layout, true)),
                    Err(error) => assert_eq!(error, DecodeError::Incomplete(3)),
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_a_version_2_entry_is_noticed() {
    for record in golden_records() {
        let bytes = encode(Layout::V2, 3, &record);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer length may ask for more: give it more.
            damaged.extend_from_slice(&bytes);
            assert!(Layout::V2.decode(&damaged).is_err(), "bit {bit}");
            if let Ok((_, stored)) = Layout::V2.decode_lenient(&damaged) {
                assert!(!stored.crc_ok, "bit {bit}");
            }
        }
    }
}

#[test]
fn a_wrong_checksum_alone_is_named_with_both_values() {
    let mut bytes = encode(Layout::V2, 0, &plain(Some(b"k"), Some(b"v")));
    bytes[37] ^= 1;
    let computed = crc32fast::hash(&bytes[7..]);
    let expected = Reason::Crc {
        stored: 0x191E_83CA,
        computed,
    };
    assert_eq!(
        Layout::V2.decode(&bytes).unwrap_err(),
        DecodeError::Corrupt(expected)
    );
    let (_, stored) = Layout::V2.decode_lenient(&bytes).unwrap();
    assert_eq!(
        (stored.crc_ok, stored.record.value),
        (false, Some(&b"w"[..]))
    );
}

#[test]
fn impossible_fields_are_corrupt() {
    let v1 = encode(Layout::V1, 5, &plain(Some(b"k"), Some(b"v")));
    let v2 = encode(Layout::V2, 5, &plain(Some(b"k"), Some(b"v")));
    let patched = |bytes: &[u8], at: usize, patch: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        // A right checksum, so that the fields speak.
        if bytes[2] == 0x82 {
            let crc = crc32fast::hash(&bytes[7..]);
            bytes[3..7].copy_from_slice(&crc.to_be_bytes());
        }
        bytes
    };
    let cases = [
        (Layout::V1, patched(&v1, 0, &[0, 0]), Reason::Magic(0)),
        (Layout::V1, patched(&v1, 2, &[0x80]), Reason::Version(0x80)),
        (
            Layout::V1,
            patched(&v1, 18, &[0xff, 0xfe]),
            Reason::Length(-2),
        ),
        (
            Layout::V1,
            patched(&v1, 21, &[0x80, 0]),
            Reason::Length(-32_768),
        ),
        (Layout::V2, patched(&v2, 2, &[0x83]), Reason::Version(0x83)),
        (
            Layout::V2,
            patched(&v2, 7, &[0, 0, 0, 24]),
            Reason::Length(24),
        ),
        (
            Layout::V2,
            patched(&v2, 7, &[0xff; 4]),
            Reason::Length(0xffff_ffff),
        ),
        (Layout::V2, patched(&v2, 11, &[2]), Reason::Attributes(2)),
        (Layout::V2, patched(&v2, 12, &[0xff; 8]), Reason::Offset(-1)),
        (
            Layout::V2,
            patched(&v2, 28, &[0xff, 0xff, 0xff, 0xfe]),
            Reason::Length(-2),
        ),
        (
            Layout::V2,
            patched(&v2, 28, &[0x7f, 0xff, 0xff, 0xff]),
            Reason::Length(0x7fff_ffff),
        ),
        (Layout::V2, patched(&v2, 33, &[0, 0, 0, 0]), Reason::Headers),
        (Layout::V2, patched(&v2, 11, &[1]), Reason::Headers),
    ];
    for (layout, bytes, reason) in cases {
        let error = layout.decode(&bytes).unwrap_err();
        assert_eq!(error, DecodeError::Corrupt(reason), "{bytes:02X?}");
    }
}

#[test]
fn a_claimed_length_is_not_believed() {
    let mut bytes = encode(Layout::V2, 0, &plain(None, None));
    bytes[7..11].copy_from_slice(&0x7fff_ff00_u32.to_be_bytes());
    assert_eq!(
        Layout::V2.decode(&bytes).unwrap_err(),
        DecodeError::Incomplete(0x7fff_ff0b)
    );
    bytes[7..11].copy_from_slice(&0x7fff_fff5_u32.to_be_bytes());
    let error = Layout::V2.decode(&bytes).unwrap_err();
    assert!(
        matches!(error, DecodeError::Corrupt(Reason::Length(_))),
        "beyond any segment: {error:?}"
    );
}

#[test]
fn layout_1_holds_32767_bytes_a_field_and_not_one_more() {
    let fits = vec![7; 32_767];
    let over = vec![7; 32_768];
    let bytes = encode(Layout::V1, 0, &plain(Some(&fits), Some(&fits)));
    let (_, stored) = Layout::V1.decode(&bytes).unwrap();
    assert_eq!(
        (stored.record.key, stored.record.value),
        (Some(&fits[..]), Some(&fits[..]))
    );
    for (record, field) in [
        (plain(Some(&over), None), "key"),
        (plain(None, Some(&over)), "value"),
    ] {
        let mut out = b"before".to_vec();
        let error = Layout::V1.encode(0, &record, &mut out).unwrap_err();
        assert_eq!(
            error,
            EncodeError::TooLong {
                field,
                len: 32_768,
                max: 32_767
            }
        );
        assert_eq!(out, b"before", "nothing is written");
        encode(Layout::V2, 0, &record);
    }
}

/// Bytes that look more like entries than noise would.
fn suspicious() -> impl Strategy<Value = Vec<u8>> {
    let noise = vec(any::<u8>(), 0..200);
    let start = prop_oneof![
        Just(vec![]),
        Just(vec![0xCA, 0xFE]),
        Just(vec![0xCA, 0xFE, 0x82]),
        Just(vec![0xCA, 0xFE, 0x82, 0, 0, 0, 0, 0, 0, 0, 60]),
        Just(vec![
            0xCA, 0xFE, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1
        ]),
    ];
    let damaged =
        (0..GOLDEN_V2.len(), any::<u8>(), 0..GOLDEN_V2.len()).prop_map(|(at, byte, end)| {
            let mut bytes = GOLDEN_V2.to_vec();
            bytes[at] = byte;
            bytes.truncate(end);
            bytes
        });
    prop_oneof![
        (start, noise).prop_map(|(start, noise)| [start, noise].concat()),
        damaged
    ]
}

#[test]
fn no_bytes_make_a_decoder_panic_or_look_beyond_them() {
    check(20_000, &suspicious(), |bytes| {
        let _ = Layout::of(&bytes);
        let _ = check_headers(&bytes);
        prop_assert!(headers(&bytes).count() <= 65_535);
        for layout in [Layout::V1, Layout::V2] {
            if let Ok((head, stored)) = layout.decode(&bytes) {
                prop_assert!(head.length as usize <= bytes.len());
                prop_assert!(stored.record.payload_bytes() < head.length as usize);
                prop_assert_eq!(layout.head(&bytes), Ok(head));
                prop_assert!(stored.offset >= 0);
            }
            let _ = layout.decode_lenient(&bytes);
            match layout.head(&bytes) {
                Err(DecodeError::Incomplete(needed)) => {
                    prop_assert!(needed > bytes.len() as u64);
                    prop_assert!(needed <= layout.head_bytes_max() as u64);
                }
                Ok(_) | Err(DecodeError::Corrupt(_)) => {}
            }
        }
        Ok(())
    });
}

#[test]
fn what_is_encoded_is_what_is_decoded() {
    let field = || proptest::option::of(vec(any::<u8>(), 0..300));
    let strategy = (
        0..=i64::MAX,
        any::<i64>(),
        field(),
        field(),
        any::<bool>(),
        vec(any::<u8>(), 0..40),
    );
    check(
        2_000,
        &strategy,
        |(offset, timestamp, key, value, has_headers, rest)| {
            let headers = if has_headers { HEADERS } else { b"" };
            let record = Record {
                timestamp,
                key: key.as_deref(),
                value: value.as_deref(),
                headers,
            };
            for layout in [Layout::V1, Layout::V2] {
                let mut bytes = Vec::new();
                match layout.encode(offset, &record, &mut bytes) {
                    Err(error) => {
                        prop_assert_eq!((error, layout), (EncodeError::NoHeaders, Layout::V1));
                        continue;
                    }
                    Ok(()) => bytes.extend_from_slice(&rest),
                }
                let (head, stored) = layout.decode(&bytes).unwrap();
                prop_assert_eq!((stored.offset, stored.record), (offset, record));
                prop_assert_eq!(head.length as usize + rest.len(), bytes.len());
                prop_assert_eq!(Layout::of(&bytes), Ok(layout));
            }
            Ok(())
        },
    );
}
