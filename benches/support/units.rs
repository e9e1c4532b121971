//! Numbers for people.
#![forbid(unsafe_code)]

use std::time::Duration;

/// `5012345.6` as `5,012,346`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Microseconds in a unit that fits, with three significant digits.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{us:.3} us"),
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1e3),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// A duration as [`micros`] has it.
pub(crate) fn duration(duration: Duration) -> String {
    micros(duration.as_secs_f64() * 1e6)
}

/// Bytes in a unit that fits.
pub(crate) fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1_024.0 => format!("{b:.0} B"),
        b if b < 1_048_576.0 => format!("{:.1} KiB", b / 1_024.0),
        b if b < 1_073_741_824.0 => format!("{:.1} MiB", b / 1_048_576.0),
        b => format!("{:.2} GiB", b / 1_073_741_824.0),
    }
}

/// The middle value; the mean of the two in the middle where their number is even; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.get(middle.wrapping_sub(1))) {
        (Some(&high), Some(&low)) if sorted.len().is_multiple_of(2) => f64::midpoint(low, high),
        (Some(&high), _) => high,
        (None, _) => 0.0,
    }
}

/// A count as a float. Counts of a bench are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// A float as a count: rounded, 0 where it is negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and the numbers of a bench are small"
)]
pub(crate) fn count(number: f64) -> u64 {
    number.round() as u64
}
