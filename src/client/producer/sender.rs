//! The two threads of a producer: one writes requests and makes connections, one reads answers.

#![forbid(unsafe_code)]

use std::io::Write;
use std::net::Shutdown;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::Error;
use super::super::wire::{Connection, REPLY_TIMEOUT, is_timeout};
use super::Shared;
use super::batch::Outgoing;

/// Bytes that are taken from the queues at once.
const TAKE_BYTES: usize = 256 * 1024;

/// The longest wait between two attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Writes until the producer is closed; makes a lost connection again.
pub(super) fn run(shared: &Arc<Shared>, first: Connection) {
    let mut next = Ok(first);
    let mut backoff = shared.lock().options.backoff;
    loop {
        let error = match next {
            Ok(connection) => {
                let Some(error) = serve(shared, connection) else {
                    return;
                };
                let mut state = shared.lock();
                if state.answers > 0 {
                    backoff = state.options.backoff;
                }
                state.requeue(&error, Instant::now());
                error
            }
            Err(error) => error,
        };
        if !wait(shared, backoff, &error) {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
        next = Connection::open(&shared.address);
    }
}

/// Waits before the next attempt to connect, and until there is a reason for one. False where the producer is closed.
fn wait(shared: &Shared, backoff: Duration, error: &Error) -> bool {
    let until = Instant::now() + backoff;
    let mut state = shared.lock();
    loop {
        let now = Instant::now();
        state.expire_all(error, now);
        shared.note_room(&mut state);
        if state.is_closing && !state.has_work() {
            return false;
        }
        let left = until.saturating_duration_since(now);
        if left.is_zero() && state.has_work() {
            return true;
        }
        state = if left.is_zero() {
            let woken = shared.work.wait(state);
            woken.unwrap_or_else(PoisonError::into_inner)
        } else {
            let woken = shared.work.wait_timeout(state, left);
            woken.unwrap_or_else(PoisonError::into_inner).0
        };
    }
}

/// Writes to a connection until it is of no use any more, and says why; `None` once the producer is closed.
fn serve(shared: &Arc<Shared>, connection: Connection) -> Option<Error> {
    {
        let mut state = shared.lock();
        state.broken = None;
        state.answers = 0;
    }
    let mut stream = match connection.writer() {
        Ok(stream) => stream,
        Err(error) => return Some(error),
    };
    let reader = {
        let shared = Arc::clone(shared);
        thread::spawn(move || read(&shared, connection))
    };
    let mut outgoing = Vec::new();
    let error = loop {
        if let Some(end) = next(shared, &mut outgoing) {
            break end.err();
        }
        let written = outgoing
            .drain(..)
            .try_for_each(|out: Outgoing| stream.write_all(out.bytes()));
        if let Err(source) = written {
            break Some(Error::Lost {
                address: shared.address.clone(),
                source: Arc::new(source),
            });
        }
    };
    // It ends the reader; a connection that is gone already is as good.
    let _ = stream.shutdown(Shutdown::Both);
    if reader.join().is_err() {
        log::error!("the thread that reads a producer's answers panicked");
    }
    error
}

/// Waits for something to write; `Some` at the end, with the reason where it is not the producer's own.
fn next(shared: &Shared, out: &mut Vec<Outgoing>) -> Option<Result<(), Error>> {
    let mut state = shared.lock();
    loop {
        if let Some(error) = state.broken.take() {
            return Some(Err(error));
        }
        let now = Instant::now();
        let due = state.advance(now);
        shared.note_room(&mut state);
        state.next_outgoing(TAKE_BYTES, out);
        if !out.is_empty() {
            return None;
        }
        if state.is_closing && !state.has_work() {
            return Some(Ok(()));
        }
        state = if let Some(due) = due {
            let left = due.saturating_duration_since(now);
            let woken = shared.work.wait_timeout(state, left);
            woken.unwrap_or_else(PoisonError::into_inner).0
        } else {
            let woken = shared.work.wait(state);
            woken.unwrap_or_else(PoisonError::into_inner)
        };
    }
}

/// Reads answers until the connection ends.
fn read(shared: &Shared, mut connection: Connection) {
    loop {
        let result = connection.line().map(<[u8]>::to_vec);
        let mut state = shared.lock();
        let taken = match result {
            Ok(line) => {
                let now = Instant::now();
                let mut taken = state.answer(&line, now);
                while taken.is_ok()
                    && let Some(line) = connection.buffered_line()
                {
                    taken = state.answer(line, now);
                }
                shared.note_room(&mut state);
                taken
            }
            // Nothing was asked, so nothing has to come.
            Err(error) if is_timeout(&error) && !state.is_owed() => continue,
            Err(error) if is_timeout(&error) => Err(Error::TimedOut {
                after: REPLY_TIMEOUT,
                last: None,
            }),
            Err(error) => Err(error),
        };
        let is_over = taken.is_err();
        state.broken = state.broken.take().or(taken.err());
        drop(state);
        shared.work.notify_one();
        if is_over {
            return;
        }
    }
}
