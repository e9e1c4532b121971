//! What the logs of one broker share.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::fs::Fs;

use super::FsyncPolicy;
use super::data_dir::Checkpoints;
use super::sealed::Handles;

/// Write buffers that are kept for the next append, at the most; a partition that is not written to has none.
const SPARE_BUFFERS_MAX: usize = 8;
/// A buffer that grew beyond this (for a large batch) is given back to the allocator.
const SPARE_BUFFER_BYTES_MAX: usize = 1024 * 1024;

/// What the logs of one broker share: the file system, the policy, the checkpoints, a cache of open segments, spare buffers.
#[derive(Debug)]
pub struct LogContext<F: Fs> {
    /// The file system.
    pub fs: F,
    /// The broker's policy.
    pub fsync: FsyncPolicy,
    /// recovery-point and log-start-offset of the data directory.
    pub checkpoints: Rc<Checkpoints<F>>,
    pub(super) handles: Handles<F>,
    buffers: RefCell<Vec<Vec<u8>>>,
    next_log_id: Cell<u64>,
}

impl<F: Fs> LogContext<F> {
    /// A context with nothing open.
    pub fn new(fs: F, fsync: FsyncPolicy, checkpoints: Rc<Checkpoints<F>>) -> Self {
        Self {
            fs,
            fsync,
            checkpoints,
            handles: Handles::new(),
            buffers: RefCell::default(),
            next_log_id: Cell::new(0),
        }
    }

    pub(super) fn new_log_id(&self) -> u64 {
        self.next_log_id.replace(self.next_log_id.get() + 1)
    }

    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.buffers
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(1024))
    }

    pub(super) fn give_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= SPARE_BUFFER_BYTES_MAX {
            buffers.push(buffer);
        }
    }
}
