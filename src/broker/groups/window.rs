//! What was sent of one partition and is not acknowledged yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Offsets that were sent and not acknowledged, as runs without gaps.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// First offset and number of each run, ascending.
    runs: VecDeque<(i64, u64)>,
}

impl Window {
    /// A record was sent; offsets rise.
    pub(super) fn push(&mut self, offset: i64) {
        match self.runs.back_mut() {
            Some((first, count)) if first.checked_add_unsigned(*count) == Some(offset) => {
                *count += 1;
            }
            _ => self.runs.push_back((offset, 1)),
        }
    }

    /// Everything below that offset is acknowledged; returns how many records that were.
    pub(super) fn acknowledge(&mut self, below: i64) -> u64 {
        let mut acknowledged = 0;
        while let Some((first, count)) = self.runs.front_mut() {
            let done = u64::try_from(below.saturating_sub(*first)).unwrap_or(0);
            if done == 0 {
                break;
            }
            if done < *count {
                *first = below;
                *count -= done;
                return acknowledged + done;
            }
            acknowledged += *count;
            self.runs.pop_front();
        }
        acknowledged
    }

    /// How many records are out.
    pub(super) fn len(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_across_gaps() {
        let mut window = Window::default();
        for offset in [5, 6, 7, 10, 11, 20] {
            window.push(offset);
        }
        assert_eq!((window.len(), window.runs.len()), (6, 3));
        assert_eq!(window.acknowledge(5), 0);
        assert_eq!(window.acknowledge(7), 2);
        assert_eq!(window.acknowledge(7), 0);
        assert_eq!(window.acknowledge(11), 2, "7 and 10");
        assert_eq!(window.len(), 2);
        assert_eq!(window.acknowledge(i64::MAX), 2);
        assert_eq!(window.len(), 0);
        window.push(30);
        assert_eq!(window.len(), 1);
    }
}
