//! Which files of sealed segments readers still send from.
//!
//! A segment that retention or compaction takes out stays readable for those who hold a piece of it: its file must not be shortened
//! before they are done.

#![forbid(unsafe_code)]

use std::rc::{Rc, Weak};

/// How many entries there are before those that nobody holds are looked for.
const PRUNE_MIN: usize = 32;

/// Files that were lent, by the base offset of their segment.
#[derive(Debug)]
pub(super) struct Lent<T> {
    files: Vec<(i64, Weak<T>)>,
    prune_at: usize,
}

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            prune_at: PRUNE_MIN,
        }
    }
}

impl<T> Lent<T> {
    /// Remembers that a piece of the file goes out.
    pub(super) fn remember(&mut self, base: i64, file: &Rc<T>) {
        let is_same =
            |(of, last): &(i64, Weak<T>)| *of == base && Weak::ptr_eq(last, &Rc::downgrade(file));
        if self.files.last().is_some_and(is_same) {
            return;
        }
        if self.files.len() >= self.prune_at {
            self.files.retain(|(_, file)| file.strong_count() > 0);
            self.prune_at = (self.files.len() * 2).max(PRUNE_MIN);
        }
        self.files.push((base, Rc::downgrade(file)));
    }

    /// Takes out the files of a segment.
    pub(super) fn take(&mut self, base: i64) -> Vec<Weak<T>> {
        let (taken, kept) = std::mem::take(&mut self.files)
            .into_iter()
            .partition(|(of, _)| *of == base);
        self.files = kept;
        taken.into_iter().map(|(_, file)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_lent_until_its_last_reader_is_done() {
        let mut lent = Lent::default();
        let file = Rc::new(1);
        lent.remember(10, &file);
        lent.remember(10, &file);
        lent.remember(20, &Rc::new(2));
        let taken = lent.take(10);
        assert_eq!(taken.len(), 1);
        assert!(lent.take(10).is_empty());
        let counts = || taken.iter().map(std::rc::Weak::strong_count).sum::<usize>();
        assert_eq!(counts(), 1);
        drop(file);
        assert_eq!(counts(), 0);
    }

    #[test]
    fn entries_that_nobody_holds_do_not_gather() {
        let mut lent = Lent::default();
        for base in 0..10_000 {
            lent.remember(base, &Rc::new(base));
        }
        assert!(lent.files.len() <= PRUNE_MIN);
    }
}
