//! The event loop: sockets, connections, one turn after another.
