//! The only unsafe code: kernel calls that neither std nor mio wraps, and raw mappings.
//!
//! Every function here takes borrowed descriptors or files and returns values; none keeps a descriptor, and none is more than a
//! call and the check of its result. What is built from them stands in [`crate::fs::disk`] and [`crate::net`].

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};

/// Sends up to `len` bytes of `file` from `position` to a socket, without a copy through this process; the file's own cursor does not
/// move. Returns how many; 0 means that the file ends before `position`.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is full.
pub fn sendfile(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    position: u64,
    len: usize,
) -> io::Result<usize> {
    let mut at = offset(position)?;
    retried(|| {
        // SAFETY: both descriptors are borrowed, so open; `at` outlives the call, which writes only to it.
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut at, len) }
    })
}

/// Sends bytes with `MSG_NOSIGNAL`, and with `MSG_MORE` where `more` follows at once, so that a header and what sendfile sends behind it share packets.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is full.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    retried(|| {
        // SAFETY: the descriptor is borrowed, so open; pointer and length are those of a live slice that is only read.
        unsafe {
            libc::send(
                socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                flags,
            )
        }
    })
}

/// Raises the soft limit of file descriptors to the hard one, and returns it.
///
/// # Errors
/// What the system says.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live value of the type that the call fills.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer is to a live value of the type that the call reads.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}

/// Sets `TCP_NODELAY`-independent keepalive and `TCP_USER_TIMEOUT`, so that a peer that vanished is noticed after about `after_secs`:
/// an idle one by probes that begin at half that time, one that bytes are on the way to by the user timeout.
///
/// # Errors
/// What the system says.
pub fn set_keepalive(socket: BorrowedFd<'_>, after_secs: u32) -> io::Result<()> {
    let after = i32::try_from(after_secs.max(2))
        .unwrap_or(i32::MAX / 1000)
        .min(i32::MAX / 1000);
    let idle = after / 2;
    let interval = ((after - idle) / PROBES).max(1);
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES)?;
    set_option(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        after * 1000,
    )
}

/// Lets so many connections wait until they are accepted, on a socket that listens already; the system caps it at its own limit.
///
/// # Errors
/// What the system says.
pub fn set_listen_backlog(socket: BorrowedFd<'_>, connections: i32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so open; the call touches no memory of ours.
    checked(unsafe { libc::listen(socket.as_raw_fd(), connections) })
}

/// Whether the process ignores a signal: it may have been started so.
///
/// # Errors
/// There is no such signal.
pub fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and the pointer is to memory of the type that the call fills.
    checked(unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled all of it.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Calls with those bits of a new file's mode taken away, beside what is taken away already. The mask is the whole process's: this is for a start,
/// while nothing else makes files.
pub fn with_umask<T>(mask: u32, call: impl FnOnce() -> T) -> T {
    // SAFETY: both calls only exchange a number that the kernel keeps for the process.
    let before = unsafe { libc::umask(libc::mode_t::MAX) };
    // SAFETY: as above.
    unsafe { libc::umask(before | mask) };
    let result = call();
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    result
}

/// Keepalive probes that may stay without an answer.
const PROBES: i32 = 5;

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is borrowed, so open; the pointer is to a live i32, whose size is given.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size,
        )
    })
}

/// Allocates the first `len` bytes of a file for real; a shorter file grows to `len` bytes of zeros.
///
/// # Errors
/// What the system says; `StorageFull` where there is no room.
pub fn allocate(file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let len = offset(len)?;
    loop {
        // SAFETY: the descriptor is borrowed, so open; the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => {}
            // This call returns its error and leaves errno alone.
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Starts to write dirty pages of the range out, without waiting for them.
///
/// # Errors
/// What the system says.
pub fn start_writeback(file: BorrowedFd<'_>, position: u64, len: u64) -> io::Result<()> {
    let (at, len) = (offset(position)?, offset(len)?);
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: the descriptor is borrowed, so open; the call touches no memory of ours.
    checked(unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, flags) })
}

/// Writes dirty pages of the range out and waits for them. What the file system keeps about the file stays where it is.
///
/// # Errors
/// What the system says; an error of the write is told once, here or by the next sync of this descriptor.
pub fn finish_writeback(file: BorrowedFd<'_>, position: u64, len: u64) -> io::Result<()> {
    let (at, len) = (offset(position)?, offset(len)?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is borrowed, so open; the call touches no memory of ours.
    checked(unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, flags) })
}

/// What is said to the kernel about pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Clean pages can go.
    DontNeed,
    /// Pages will be read soon.
    WillNeed,
    /// Nothing beyond what is read or asked for is to be read ahead.
    Random,
}

/// Advises on a range of a file; a `len` of 0 reaches to its end.
///
/// # Errors
/// What the system says.
pub fn advise(file: BorrowedFd<'_>, position: u64, len: u64, advice: Advice) -> io::Result<()> {
    let (at, len) = (offset(position)?, offset(len)?);
    let advice = match advice {
        Advice::DontNeed => libc::POSIX_FADV_DONTNEED,
        Advice::WillNeed => libc::POSIX_FADV_WILLNEED,
        Advice::Random => libc::POSIX_FADV_RANDOM,
    };
    // SAFETY: the descriptor is borrowed, so open; the call touches no memory of ours.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), at, len, advice) } {
        0 => Ok(()),
        // This call returns its error and leaves errno alone.
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether the byte at `position` can be read without waiting for the disk. Yes behind the file's end, and where the file system
/// cannot tell.
///
/// # Errors
/// What the system says.
pub fn is_byte_resident(file: BorrowedFd<'_>, position: u64) -> io::Result<bool> {
    let at = offset(position)?;
    let mut byte = 0_u8;
    let place = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let result = retried(|| {
        // SAFETY: the descriptor is borrowed, so open; the one iovec is live and names one live byte.
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const place, 1, at, libc::RWF_NOWAIT) }
    });
    match result {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(true),
        Err(e) => Err(e),
    }
}

/// Writes out what is dirty of the file system that holds the open file.
///
/// # Errors
/// What the system says.
pub fn sync_filesystem(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the call takes nothing else.
    checked(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// Bytes that a process without privileges can still write on the file system that holds `path`.
///
/// # Errors
/// What the system says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string; the pointer is to memory of the type that the call fills.
    checked(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled all of it.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// A read-only, shared mapping of a file, from which bytes are copied out by volatile reads: the file may be written meanwhile, so
/// there must never be a slice over it.
#[derive(Debug)]
pub struct RawMap {
    raw: MmapRaw,
}

impl RawMap {
    /// Maps the first `len` bytes. Whoever shortens the file below that drops the mapping first: a row read behind the file's end is
    /// a SIGBUS (not undefined behaviour, but the end of the process).
    ///
    /// # Errors
    /// `InvalidInput` for no bytes; else what the system says.
    pub fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let raw = MmapOptions::new().len(len).map_raw_read_only(file)?;
        Ok(Self { raw })
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether nothing is mapped: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `N` bytes out at `position`; `None` where they are not all mapped.
    #[must_use]
    pub fn row<const N: usize>(&self, position: usize) -> Option<[u8; N]> {
        let end = position.checked_add(N)?;
        if end > self.len() {
            return None;
        }
        // SAFETY: `position..end` lies within the mapping, which lives as long as `self`; an array of bytes needs no alignment and any
        // bytes are a valid value; volatile, since the kernel may change them at any time.
        Some(unsafe {
            self.raw
                .as_ptr()
                .add(position)
                .cast::<[u8; N]>()
                .read_volatile()
        })
    }
}

fn offset(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn checked(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Calls until it is not interrupted; a negative result is an error.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(n) = usize::try_from(call()) {
            return Ok(n);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "a test may panic"
    )]

    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_header_and_a_file_range_arrive_in_order() {
        let (near, mut far) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        assert_eq!(send(near.as_fd(), b"OK 4\n", true).unwrap(), 5);
        assert_eq!(sendfile(near.as_fd(), file.as_fd(), 3, 4).unwrap(), 4);
        assert_eq!(
            sendfile(near.as_fd(), file.as_fd(), 10, 4).unwrap(),
            0,
            "the end"
        );
        drop(near);
        let mut got = String::new();
        far.read_to_string(&mut got).unwrap();
        assert_eq!(got, "OK 4\n3456");
    }

    #[test]
    fn a_full_socket_would_block_and_a_closed_one_is_no_signal() {
        let (near, far) = pair();
        near.set_nonblocking(true).unwrap();
        let bytes = vec![0; 1 << 20];
        let error = loop {
            if let Err(e) = send(near.as_fd(), &bytes, false) {
                break e;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(far);
        let error = loop {
            if let Err(e) = send(near.as_fd(), &bytes, false) {
                break e;
            }
        };
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn keepalive_is_set_as_asked() {
        let (near, _far) = pair();
        set_keepalive(near.as_fd(), 60).unwrap();
        let mut value = 0_i32;
        let mut size = libc::socklen_t::try_from(size_of::<i32>()).unwrap();
        // SAFETY: both pointers are to live values, and the size is the value's.
        let result = unsafe {
            libc::getsockopt(
                near.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_USER_TIMEOUT,
                (&raw mut value).cast(),
                &raw mut size,
            )
        };
        assert_eq!((result, value), (0, 60_000));
        set_keepalive(near.as_fd(), 0).unwrap();
        set_keepalive(near.as_fd(), 30_000).unwrap();
    }

    #[test]
    fn the_descriptor_limit_reaches_the_hard_one() {
        let first = raise_descriptor_limit().unwrap();
        assert!(first >= 64);
        assert_eq!(raise_descriptor_limit().unwrap(), first);
    }

    #[test]
    fn a_map_sees_later_writes_and_ends_where_it_ends() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(20).unwrap();
        assert!(RawMap::new(&file, 0).is_err());
        let map = RawMap::new(&file, 20).unwrap();
        assert_eq!(map.row::<8>(12), Some([0; 8]));
        file.write_all_at(&[1, 2, 3, 4, 5, 6, 7, 8], 12).unwrap();
        assert_eq!(map.row::<8>(12), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(map.row::<8>(13), None);
        assert_eq!(map.row::<8>(usize::MAX), None);
    }

    #[test]
    fn free_bytes_are_told_and_a_missing_path_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).unwrap() > 0);
        assert!(free_bytes(&dir.path().join("missing")).is_err());
    }
}
