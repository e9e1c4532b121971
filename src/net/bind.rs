//! Listening sockets: how they are had, and that the file of a Unix socket goes with it.
//!
//! A Unix socket's file stays behind when its process is killed, and then nobody can bind to it. So where it is in the way, it is asked: if
//! somebody answers, it is in use; if nobody does, it is stale and is replaced. What is no socket is never removed.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

use crate::addr::{Address, UNIX_PREFIX};
use crate::sys;

use super::socket::{Peer, Socket};

/// How many may wait to be let in. Where more come at once, the system drops what they send, and they try again after a second.
const WAITING_MAX: i32 = 4096;

/// What a Unix socket's file never allows: anything to others. Of the rest the process's umask may take away more.
const UNIX_UMASK: u32 = 0o117;

/// A listening socket. One of a Unix socket removes its file when it is dropped.
#[derive(Debug)]
pub struct Bound(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

/// Binds a listening socket: to the first address of a host's name that can be had, or to a path, where a file that a dead process left is
/// replaced.
///
/// # Errors
/// One line for the operator that says what to do.
pub fn bind(listen: &Address) -> Result<Bound, String> {
    let bound = match listen {
        Address::Tcp(name) => bind_tcp(name)?,
        Address::Unix(path) => bind_unix(path)?,
    };
    let descriptor = match &bound.0 {
        Kind::Tcp(listener, _) => listener.as_fd(),
        Kind::Unix(listener, _) => listener.as_fd(),
    };
    if let Err(e) = sys::set_listen_backlog(descriptor, WAITING_MAX) {
        log::warn!("few connections may wait to be accepted: {e}");
    }
    Ok(bound)
}

impl Bound {
    /// Where it listens: with the real port, and a path as it was given.
    #[must_use]
    pub fn address(&self) -> Address {
        match &self.0 {
            Kind::Tcp(_, address) => Address::Tcp(address.to_string()),
            Kind::Unix(_, file) => Address::Unix(file.path.to_path_buf()),
        }
    }

    /// Lets one in.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` where nobody waits.
    pub(super) fn accept(&self) -> io::Result<(Socket, Peer)> {
        match &self.0 {
            Kind::Tcp(listener, _) => {
                let (stream, peer) = listener.accept()?;
                Ok((Socket::Tcp(stream), Peer::Tcp(peer)))
            }
            Kind::Unix(listener, file) => {
                let (stream, _) = listener.accept()?;
                Ok((Socket::Unix(stream), Peer::Unix(Rc::clone(&file.path))))
            }
        }
    }

    /// Asks for the event that somebody waits.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let source: &mut dyn Source = match &mut self.0 {
            Kind::Tcp(listener, _) => listener,
            Kind::Unix(listener, _) => listener,
        };
        source.register(registry, token, Interest::READABLE)
    }
}

fn bind_tcp(name: &str) -> Result<Bound, String> {
    let addresses = name.to_socket_addrs().map_err(|e| {
        format!("--listen {name} is not an address: {e}; give <ip or host name>:<port>")
    })?;
    let mut failure = format!("--listen {name}: the name has no address");
    for address in addresses {
        let bound = TcpListener::bind(address)
            .and_then(|listener| listener.local_addr().map(|real| Kind::Tcp(listener, real)));
        match bound {
            Ok(kind) => return Ok(Bound(kind)),
            Err(e) => failure = bind_failure(address, &e),
        }
    }
    Err(failure)
}

fn bind_failure(address: SocketAddr, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has that port: stop it, or choose another port with --listen (0: any free one)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: use one of its own, 127.0.0.1 or 0.0.0.0"
        }
        io::ErrorKind::PermissionDenied => "choose a port of 1024 or above with --listen",
        _ => "choose another address with --listen",
    };
    format!("cannot listen on {address}: {error}; {advice}")
}

fn bind_unix(path: &Path) -> Result<Bound, String> {
    let bound = match listen_at(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            listen_at(path)
        }
        bound => bound,
    };
    let listener = bound.map_err(|e| unix_failure(path, &e))?;
    let file = SocketFile::of(path).map_err(|e| unix_failure(path, &e))?;
    Ok(Bound(Kind::Unix(listener, file)))
}

/// Binds with the mode that the file is to have: a change after it would leave a moment in which others may connect.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    sys::with_umask(UNIX_UMASK, || UnixListener::bind(path))
}

/// Removes a socket's file that nobody listens on any more.
fn remove_stale(path: &Path) -> Result<(), String> {
    let place = format!("cannot listen on {UNIX_PREFIX}{}", path.display());
    let metadata = fs::symlink_metadata(path).map_err(|e| format!("{place}: {e}"))?;
    if !metadata.file_type().is_socket() {
        return Err(format!(
            "{place}: what is there is no socket, and is left alone; choose another path with --listen, or move it away"
        ));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
        Ok(_) => return Err(in_use(&place)),
        // So many wait there already that no more may.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(in_use(&place)),
        Err(e) => {
            return Err(format!(
                "{place}: there is a socket, and whether anybody listens on it cannot be told ({e}); remove it if nobody does"
            ));
        }
    }
    log::info!("replacing {}, on which nobody listens", path.display());
    fs::remove_file(path).map_err(|e| {
        format!("{place}: the socket there is stale, and cannot be removed: {e}; remove it")
    })
}

fn in_use(place: &str) -> String {
    format!("{place}: another process listens there: stop it, or choose another path with --listen")
}

fn unix_failure(path: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "make its directory first",
        io::ErrorKind::PermissionDenied => "choose a path in a directory that you may write to",
        _ => "choose another path with --listen",
    };
    format!(
        "cannot listen on {UNIX_PREFIX}{}: {error}; {advice}",
        path.display()
    )
}

/// The file of a Unix socket of ours.
#[derive(Debug)]
struct SocketFile {
    path: Rc<Path>,
    /// Device and inode: by now another process's socket may have that path.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            identity: Self::identity(path)?,
        })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !Self::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            return;
        }
        if let Err(e) = fs::remove_file(&self.path) {
            log::warn!("{} stays behind: {e}", self.path.display());
        }
    }
}
