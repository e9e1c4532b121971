//! The only unsafe code: kernel calls that neither std nor mio wraps, and raw mappings.

use std::io;
use std::os::fd::BorrowedFd;

/// Sends up to `len` bytes of `file` from `position` to a socket, without a copy through this process; the file's own cursor does not
/// move. Returns how many; 0 means that the file ends before `position`.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is full.
pub fn sendfile(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, position: u64, len: usize) -> io::Result<usize> { todo!() }

/// Sends bytes with `MSG_NOSIGNAL`, and with `MSG_MORE` where `more` follows at once, so that a header and what sendfile sends behind it share packets.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is full.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> { todo!() }

/// Raises the soft limit of file descriptors to the hard one, and returns it.
///
/// # Errors
/// What the system says.
pub fn raise_descriptor_limit() -> io::Result<u64> { todo!() }

/// Sets `TCP_NODELAY`-independent keepalive and `TCP_USER_TIMEOUT`, so that a peer that vanished is noticed after about `after_secs`.
///
/// # Errors
/// What the system says.
pub fn set_keepalive(socket: BorrowedFd<'_>, after_secs: u32) -> io::Result<()> { todo!() }
