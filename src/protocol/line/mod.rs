//! The line protocol: what a person types into nc, and a program pipelines (docs/protocol.md).
