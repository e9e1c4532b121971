//! Tests of the broker over the in-memory file system.
