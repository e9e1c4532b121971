//! The binary: the library's command line and nothing else.

fn main() {}
