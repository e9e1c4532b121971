//! Which partition a record goes to where none was named and it has no key; [`crate::murmur2`] is for those that have one.
//!
//! Records without a key stick to a partition for a run, then move on: a run that spread each turn's records over all
//! partitions would cost one fdatasync for each of them.

#![forbid(unsafe_code)]

/// A run is over after so many records ...
const RUN_RECORDS: u64 = 1_000;
/// ... or so many payload bytes, at the next turn of the loop.
const RUN_BYTES: u64 = 64 * 1024;

/// The partition that records without a key stick to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sticky {
    partition: u32,
    records: u64,
    bytes: u64,
    turn: u64,
}

impl Sticky {
    /// The partition for what comes now in that turn of the loop: the same as before, or another of `partitions` once the run was long
    /// enough. It changes only between turns, and passes over those that `is_open` refuses.
    pub(super) fn choose(
        &mut self,
        turn: u64,
        partitions: u32,
        is_open: impl Fn(u32) -> bool,
    ) -> u32 {
        let is_over = self.turn != turn && (self.records >= RUN_RECORDS || self.bytes >= RUN_BYTES);
        if is_over || self.partition >= partitions || !is_open(self.partition) {
            let others = (1..=partitions).map(|step| (self.partition + step) % partitions.max(1));
            self.partition = others
                .into_iter()
                .find(|&other| is_open(other))
                .unwrap_or(0);
            (self.records, self.bytes) = (0, 0);
        }
        self.turn = turn;
        self.partition
    }

    /// Counts what went to the partition last chosen.
    pub(super) fn count(&mut self, records: u64, bytes: u64) {
        self.records += records;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_a_key_stick_for_a_run_and_move_on_between_turns() {
        let mut sticky = Sticky::default();
        let first = sticky.choose(1, 3, |_| true);
        for _ in 0..RUN_RECORDS - 1 {
            sticky.count(1, 10);
        }
        assert_eq!(sticky.choose(2, 3, |_| true), first, "the run is not over");
        sticky.count(1, 10);
        assert_eq!(sticky.choose(2, 3, |_| true), first, "not within a turn");
        let second = sticky.choose(3, 3, |_| true);
        assert_ne!(second, first);
        sticky.count(1, RUN_BYTES);
        let third = sticky.choose(4, 3, |_| true);
        assert!(third != first && third != second, "all in turn");
    }

    #[test]
    fn a_partition_that_takes_no_appends_is_passed_over() {
        let mut sticky = Sticky::default();
        assert_eq!(sticky.choose(1, 3, |p| p == 2), 2);
        assert_eq!(sticky.choose(1, 3, |_| false), 0, "somebody has to say no");
    }
}
