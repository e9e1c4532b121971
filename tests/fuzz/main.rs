//! Every decoder's entry point with random input, for a short time. `FUZZ_RUNS=100000 cargo test --test fuzz` takes longer; the same entry points
//! are under a fuzzer in `cargo/`, and what either finds becomes a test below.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod entries;
mod inputs;
#[path = "../world/mod.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use entries::{ENTRIES, Entry};

/// Runs of each entry point where `FUZZ_RUNS` says nothing.
const RUNS: usize = 500;

/// Calls an entry point with random input; where it panics, says with what.
fn run(name: &str) {
    let seed: u64 = std::env::var("SEED").map_or_else(
        |_| fastrand::u64(..),
        |seed| seed.parse().expect("SEED is a number"),
    );
    let runs = std::env::var("FUZZ_RUNS")
        .map_or(RUNS, |runs| runs.parse().expect("FUZZ_RUNS is a number"));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let entry = entry(name);
    for _ in 0..runs {
        let input = inputs::input(name, &mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| entry(&input)));
        assert!(
            outcome.is_ok(),
            "{name} panics with the input \"{}\"",
            input.escape_ascii()
        );
    }
}

fn entry(name: &str) -> Entry {
    ENTRIES.iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn any_session_is_answered_as_its_pieces_are() {
    run("session");
}

#[test]
fn any_bytes_are_a_record_or_are_refused() {
    run("record");
}

#[test]
fn any_index_leaves_every_record_readable() {
    run("index");
}

#[test]
fn any_text_file_is_read_or_refused() {
    run("text_file");
}

#[test]
fn any_config_is_read_or_refused() {
    run("config");
}

#[test]
fn any_damage_to_a_directory_gives_no_record_that_was_not_written() {
    run("directory");
}
