//! The clocks: read by the event loop, once a turn, and handed on as a value.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt::Debug;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::api::Now;

/// Both clocks.
pub trait Clock: Debug {
    /// What they show.
    fn now(&self) -> Now;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic side starts at zero now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall_ms = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        Now {
            wall_ms,
            mono: self.start.elapsed(),
        }
    }
}

/// Clocks that stand still until they are set: for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Cell<Now>,
}

impl ManualClock {
    /// Clocks that show this.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            now: Cell::new(now),
        }
    }

    /// Sets both.
    pub fn set(&self, now: Now) {
        self.now.set(now);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        self.now.get()
    }
}
