//! Offsets and times as a reader names them.
#![forbid(unsafe_code)]

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::api::{ApiError, OffsetSpec, TimeSpec, quoted};

use super::lexer::{bad, check_clean, plain};

/// A number, `earliest`, `latest`, `-<n>`, or `@` and a time.
///
/// # Errors
/// `BAD_ARGUMENT` with the field and what would be right.
pub fn offset(field: &[u8]) -> Result<OffsetSpec, ApiError> {
    match field {
        b"earliest" => return Ok(OffsetSpec::Earliest),
        b"latest" => return Ok(OffsetSpec::Latest),
        _ => {}
    }
    let spec = match field.split_first() {
        Some((b'-', digits)) => plain(digits).filter(|&n| n > 0).map(OffsetSpec::Last),
        Some((b'@', time)) => return self::time(time).map(OffsetSpec::Time),
        _ => plain(field)
            .and_then(|n| i64::try_from(n).ok())
            .map(OffsetSpec::Offset),
    };
    spec.ok_or_else(|| {
        check_clean(field).err().unwrap_or_else(|| {
            bad(format!(
                "'{}' is not an offset: a number, earliest, latest, -<n> for the last n, \
                 @<ms>, @<RFC 3339 time> or @-<n>s|m|h|d",
                quoted(field)
            ))
        })
    })
}

/// Milliseconds, an RFC 3339 time, or `-<n>s|m|h|d`.
///
/// # Errors
/// `BAD_ARGUMENT` with the field and what would be right.
pub fn time(field: &[u8]) -> Result<TimeSpec, ApiError> {
    let spec = match field.split_first() {
        Some((b'-', ago)) => milliseconds_ago(ago).map(TimeSpec::Ago),
        _ => plain(field)
            .map_or_else(|| rfc3339(field), |ms| i64::try_from(ms).ok())
            .map(TimeSpec::At),
    };
    spec.ok_or_else(|| {
        check_clean(field).err().unwrap_or_else(|| {
            bad(format!(
                "'{}' is not a time: milliseconds since 1970, RFC 3339 as 2026-01-31T18:30:00Z, \
                 or -<n>s|m|h|d",
                quoted(field)
            ))
        })
    })
}

/// `<n>s|m|h|d` in milliseconds.
fn milliseconds_ago(field: &[u8]) -> Option<i64> {
    let (unit, digits) = field.split_last()?;
    let unit_ms: i64 = match unit {
        b's' => 1_000,
        b'm' => 60 * 1_000,
        b'h' => 60 * 60 * 1_000,
        b'd' => 24 * 60 * 60 * 1_000,
        _ => return None,
    };
    i64::try_from(plain(digits)?).ok()?.checked_mul(unit_ms)
}

/// The first millisecond that is not before that time.
fn rfc3339(field: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(field).ok()?;
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    let nanos = time.unix_timestamp_nanos();
    let whole = nanos.div_euclid(1_000_000);
    let ms = if nanos.rem_euclid(1_000_000) == 0 {
        whole
    } else {
        whole + 1
    };
    i64::try_from(ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_in_all_forms() {
        let cases: &[(&[u8], OffsetSpec)] = &[
            (b"0", OffsetSpec::Offset(0)),
            (b"9223372036854775807", OffsetSpec::Offset(i64::MAX)),
            (b"earliest", OffsetSpec::Earliest),
            (b"latest", OffsetSpec::Latest),
            (b"-1", OffsetSpec::Last(1)),
            (b"-18446744073709551615", OffsetSpec::Last(u64::MAX)),
            (b"@0", OffsetSpec::Time(TimeSpec::At(0))),
            (
                b"@1970-01-01T00:00:01Z",
                OffsetSpec::Time(TimeSpec::At(1000)),
            ),
            (b"@-2m", OffsetSpec::Time(TimeSpec::Ago(120_000))),
        ];
        for (field, expected) in cases {
            assert_eq!(offset(field).as_ref(), Ok(expected), "{}", quoted(field));
        }
        for wrong in [
            &b"+1"[..],
            b"-0",
            b"-",
            b"--1",
            b"1x",
            b"0x10",
            b"Earliest",
            b"9223372036854775808",
            b"-18446744073709551616",
            b"@",
            b"@-5",
            b"@+5",
            b"@latest",
            b"-5m",
            b"",
            b"1\t",
        ] {
            assert!(offset(wrong).is_err(), "{}", quoted(wrong));
        }
    }

    #[test]
    fn times_in_all_forms() {
        let cases: &[(&[u8], TimeSpec)] = &[
            (b"1767052800000", TimeSpec::At(1_767_052_800_000)),
            (b"2025-12-30T00:00:00Z", TimeSpec::At(1_767_052_800_000)),
            (
                b"2025-12-30T01:30:00+01:30",
                TimeSpec::At(1_767_052_800_000),
            ),
            (b"1970-01-01T00:00:00.0005Z", TimeSpec::At(1)),
            (b"1970-01-01T00:00:00.123Z", TimeSpec::At(123)),
            (b"1969-12-31T23:59:59.9985Z", TimeSpec::At(-1)),
            (b"-1s", TimeSpec::Ago(1_000)),
            (b"-3h", TimeSpec::Ago(10_800_000)),
            (b"-7d", TimeSpec::Ago(604_800_000)),
            (b"-0s", TimeSpec::Ago(0)),
        ];
        for (field, expected) in cases {
            assert_eq!(time(field).as_ref(), Ok(expected), "{}", quoted(field));
        }
        for wrong in [
            &b"-1"[..],
            b"-1w",
            b"-s",
            b"--1s",
            b"-1S",
            b"5m",
            b"-9223372036854775807d",
            b"9223372036854775808",
            b"2025-12-30",
            b"2025-12-30T00:00:00",
            b"2025-12-30T00:00Z",
            b"2025-13-30T00:00:00Z",
            b"2025-02-30T00:00:00Z",
            b"now",
            b"",
        ] {
            assert!(time(wrong).is_err(), "{}", quoted(wrong));
        }
    }
}
