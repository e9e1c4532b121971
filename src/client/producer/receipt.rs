//! What became of records: one receipt for a batch, a handle for each record in it.

#![forbid(unsafe_code)]

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::Error;
use super::Shared;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Placed {
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: i64,
}

/// What became of a run of records with neighbouring indexes.
#[derive(Debug)]
struct Piece {
    /// Index of the first.
    first: u32,
    count: u32,
    /// The place of the first (the others follow it), or why there is none.
    result: Result<Placed, Error>,
}

#[derive(Debug, Default)]
struct Results {
    /// In the order of their indexes.
    pieces: Vec<Piece>,
    decided: u32,
    /// How many records there are, once none is added any more.
    total: Option<u32>,
}

/// What became of the records of one batch.
#[derive(Debug)]
pub(super) struct Receipt {
    shared: Arc<Shared>,
    /// The queue that the batch belongs to.
    pub(super) queue: usize,
    results: Mutex<Results>,
    news: Condvar,
}

impl Receipt {
    pub(super) fn new(shared: Arc<Shared>, queue: usize) -> Self {
        Self {
            shared,
            queue,
            results: Mutex::default(),
            news: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No record is added any more.
    pub(super) fn seal(&self, total: u32) {
        self.lock().total = Some(total);
    }

    /// Takes down what became of the next records.
    pub(super) fn decide(&self, first: u32, count: u32, result: Result<Placed, Error>) {
        let mut results = self.lock();
        results.decided += count;
        let joins = match (results.pieces.last_mut(), &result) {
            (Some(piece), Ok(placed)) => {
                let follows = piece.result.as_ref().is_ok_and(|before| {
                    before.partition == placed.partition
                        && before.offset + i64::from(piece.count) == placed.offset
                });
                if follows && piece.first + piece.count == first {
                    piece.count += count;
                    true
                } else {
                    false
                }
            }
            (None, _) | (Some(_), Err(_)) => false,
        };
        if !joins {
            results.pieces.push(Piece {
                first,
                count,
                result,
            });
        }
        drop(results);
        self.news.notify_all();
    }

    /// Waits until all of its records are decided.
    pub(super) fn wait_all(&self) {
        let mut results = self.lock();
        while results.total != Some(results.decided) {
            results = self
                .news
                .wait(results)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Results {
    fn of(&self, index: u32) -> Option<Result<Placed, Error>> {
        let behind = self.pieces.partition_point(|piece| piece.first <= index);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        let distance = index - piece.first;
        (distance < piece.count).then(|| {
            piece.result.clone().map(|placed| Placed {
                offset: placed.offset + i64::from(distance),
                ..placed
            })
        })
    }
}

/// A record that was handed to a [`Producer`](super::Producer): it tells where the record is, or why it is nowhere. Dropping it changes
/// nothing; [`Producer::flush`](super::Producer::flush) tells of failures too.
#[derive(Debug, Clone)]
pub struct Delivery {
    receipt: Arc<Receipt>,
    index: u32,
}

impl Delivery {
    pub(super) fn new(receipt: Arc<Receipt>, index: u32) -> Self {
        Self { receipt, index }
    }

    /// Waits for the broker's answer. A batch that still waits for company leaves at once.
    ///
    /// # Errors
    /// Why the record is not stored (or, after [`Error::TimedOut`], is not known to be).
    pub fn wait(&self) -> Result<Placed, Error> {
        loop {
            if let Some(result) = self.wait_timeout(Duration::MAX) {
                return result;
            }
        }
    }

    /// As [`Delivery::wait`], but no longer than that; `None` where there is no answer by then.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<Placed, Error>> {
        if let Some(result) = self.peek() {
            return Some(result);
        }
        self.receipt.shared.hurry(&self.receipt);
        let until = Instant::now().checked_add(timeout);
        let mut results = self.receipt.lock();
        loop {
            if let Some(result) = results.of(self.index) {
                return Some(result);
            }
            let left = match until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::from_hours(1),
            };
            if left.is_zero() {
                return None;
            }
            let waited = self.receipt.news.wait_timeout(results, left);
            results = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The broker's answer, where it is there already.
    #[must_use]
    pub fn peek(&self) -> Option<Result<Placed, Error>> {
        self.receipt.lock().of(self.index)
    }
}
