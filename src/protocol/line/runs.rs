//! The answers to a run of appends, written without formatting each number anew.
#![forbid(unsafe_code)]

use super::forms::integer;

/// Appends `OK <partition> <offset>` for each offset from `first` to below `end`, in order.
pub(super) fn answers(partition: u32, first: i64, end: i64, out: &mut Vec<u8>) {
    let mut line = Vec::with_capacity(48);
    let mut next = first;
    while next < end {
        line.clear();
        line.extend_from_slice(b"OK ");
        integer(partition, &mut line);
        line.push(b' ');
        let digits_at = line.len();
        integer(next, &mut line);
        let digits = line.len() - digits_at;
        line.push(b'\n');
        // Up to the next power of ten all lines have one length.
        let power = 10_i64
            .checked_pow(u32::try_from(digits).unwrap_or(u32::MAX))
            .unwrap_or(i64::MAX);
        let stop = end.min(power.max(next.saturating_add(1)));
        let count = usize::try_from(stop.saturating_sub(next)).unwrap_or(0);
        lines(&mut line, digits_at, count, out);
        next = stop;
    }
}

/// Appends `line` so many times, its number one higher each time; the number does not grow a digit on the way.
fn lines(line: &mut [u8], digits_at: usize, count: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + count * line.len(), 0);
    for place in out
        .get_mut(start..)
        .unwrap_or_default()
        .chunks_exact_mut(line.len())
    {
        place.copy_from_slice(line);
        increment(line.get_mut(digits_at..).unwrap_or_default());
    }
}

/// Adds one to the decimal digits in front of the LF.
#[inline]
fn increment(digits: &mut [u8]) {
    for digit in digits.iter_mut().rev().skip(1) {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_read_as_if_each_number_were_formatted() {
        for (first, count) in [
            (0, 1),
            (0, 1234),
            (8, 3),
            (99, 2),
            (998, 1103),
            (9_999_999_999, 2),
            (i64::MAX - 12, 12),
        ] {
            let mut out = b"before\n".to_vec();
            answers(7, first, first + count, &mut out);
            let mut expected = String::from("before\n");
            for offset in first..first + count {
                expected += &format!("OK 7 {offset}\n");
            }
            assert_eq!(
                String::from_utf8_lossy(&out),
                expected,
                "from {first}, {count} of them"
            );
        }
        let mut out = Vec::new();
        answers(0, 5, 5, &mut out);
        answers(0, 5, 4, &mut out);
        assert!(out.is_empty());
    }
}
