//! What a connection remembers of its socket.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use super::*;
use crate::api::ConnectionId;
use crate::protocol::line::{Limits, LineCodec};

/// A connection whose socket may have bytes, and its peer.
fn pair() -> (Connection, StdUnixStream) {
    let (ours, peer) = StdUnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let socket = Socket::Unix(mio::net::UnixStream::from_std(ours));
    let codec = Box::new(LineCodec::new(Limits::new(1 << 20)));
    let session = Session::new(ConnectionId(1), "peer".into(), codec, 1 << 20);
    let mut connection = Connection::new(socket, Peer::Unix(Path::new("/s").into()), session);
    connection.is_readable = true;
    (connection, peer)
}

#[test]
fn a_socket_found_empty_is_read_again_only_after_an_event() {
    let (mut connection, mut peer) = pair();
    let mut buffer = ReadBuffer::new();
    assert!(connection.wants_input());
    assert_eq!(connection.read(&mut buffer).unwrap(), None);
    assert!(!connection.wants_input(), "it would be asked in every turn");

    peer.write_all(
        b"PING
",
    )
    .unwrap();
    connection.is_readable = true;
    assert_eq!(connection.read(&mut buffer).unwrap(), Some(5));
    assert!(!connection.wants_input(), "a short read has emptied it");
}
