//! The command line: `serve`, `import`, `dump`, `verify`, `shell`.
