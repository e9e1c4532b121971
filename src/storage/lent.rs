//! Which files readers still send from.
//!
//! A segment that retention, compaction or a topic's deletion takes out stays readable for those who hold a piece of it: its file must not
//! be shortened before they are done. The log holds handles of its own, so the list says who holds a file only once the log has let go of it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// How many entries there are before those that nobody holds are looked for.
const PRUNE_MIN: usize = 32;

/// Files that were lent, by the base offset of their segment and the handle's address, which is not given anew while it is in here.
#[derive(Debug)]
pub(super) struct Lent<T> {
    files: BTreeMap<(i64, usize), Weak<T>>,
    prune_at: usize,
}

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            prune_at: PRUNE_MIN,
        }
    }
}

impl<T> Lent<T> {
    /// Remembers that a piece of the file goes out.
    pub(super) fn remember(&mut self, base: i64, file: &Rc<T>) {
        let key = (base, Rc::as_ptr(file).addr());
        if self.files.contains_key(&key) {
            return;
        }
        if self.files.len() >= self.prune_at {
            self.files.retain(|_, file| file.strong_count() > 0);
            self.prune_at = (self.files.len() * 2).max(PRUNE_MIN);
        }
        self.files.insert(key, Rc::downgrade(file));
    }

    /// Takes out the files of a segment.
    pub(super) fn take(&mut self, base: i64) -> Vec<Weak<T>> {
        self.files
            .extract_if((base, 0)..=(base, usize::MAX), |_, _| true)
            .map(|(_, file)| file)
            .collect()
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<Weak<T>> {
        std::mem::take(&mut self.files).into_values().collect()
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
        let counts = || taken.iter().map(Weak::strong_count).sum::<usize>();
        assert_eq!(counts(), 1);
        drop(file);
        assert_eq!(counts(), 0);
        assert_eq!(lent.take_all().len(), 1);
    }

    #[test]
    fn entries_that_nobody_holds_do_not_gather() {
        let mut lent = Lent::default();
        for base in 0..10_000 {
            lent.remember(base, &Rc::new(base));
        }
        assert!(lent.files.len() <= PRUNE_MIN);
    }

    #[test]
    fn files_that_stay_open_are_listed_once_in_whatever_order_they_are_read() {
        let mut lent = Lent::default();
        let files = [Rc::new(1), Rc::new(2)];
        for _ in 0..10_000 {
            for (base, file) in (0..).zip(&files) {
                lent.remember(base, file);
            }
        }
        assert_eq!(lent.files.len(), files.len());
    }
}
