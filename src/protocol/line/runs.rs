//! The answers to a run of appends, written without formatting each number anew.
#![forbid(unsafe_code)]

use crate::json::integer;

/// Lines that are written at one go.
const BLOCK: i64 = 100;

/// Appends `OK <partition> <offset>` for each offset from `first` to below `end`, in order.
pub(super) fn answers(partition: u32, first: i64, end: i64, out: &mut Vec<u8>) {
    let mut block = Vec::new();
    let mut next = first;
    while next < end {
        // A block has a hundred lines that differ in the last two digits alone, so that all have one length.
        if next % BLOCK != 0 || next < BLOCK || end - next < BLOCK {
            line(partition, next, out);
            next += 1;
            continue;
        }
        block.clear();
        (next..next + BLOCK).for_each(|offset| line(partition, offset, &mut block));
        next = blocks(&mut block, next, end, out);
    }
}

/// Appends blocks, the first of them given, and says which offset comes next: less than a block from `end`, or one that has a digit
/// more than those before it.
fn blocks(block: &mut [u8], mut next: i64, end: i64, out: &mut Vec<u8>) -> i64 {
    let line_bytes = block.len() / 100;
    // Before the LF and the two digits that differ.
    let hundreds_at = line_bytes - 4;
    loop {
        out.extend_from_slice(block);
        next += BLOCK;
        if end - next < BLOCK || !increment(block, line_bytes, hundreds_at) {
            return next;
        }
    }
}

/// Adds one to the digit there of every line, with its carry; false where the number has no digit left for that.
fn increment(block: &mut [u8], line_bytes: usize, mut at: usize) -> bool {
    loop {
        let digit = match block.get(at) {
            Some(digit @ b'0'..=b'8') => digit + 1,
            Some(b'9') => b'0',
            _ => return false,
        };
        for line in block.chunks_exact_mut(line_bytes) {
            if let Some(place) = line.get_mut(at) {
                *place = digit;
            }
        }
        if digit != b'0' {
            return true;
        }
        at -= 1;
    }
}

fn line(partition: u32, offset: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"OK ");
    integer(partition, out);
    out.push(b' ');
    integer(offset, out);
    out.push(b'\n');
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
            let lines: Vec<String> = (first..first + count)
                .map(|offset| format!("OK 7 {offset}\n"))
                .collect();
            let expected = format!("before\n{}", lines.concat());
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
