//! Every example of README.md and docs/ runs, and answers what the page says.
//!
//! A fenced block's first word says what it is:
//!
//! - `session`: lines to a broker and its answers. The blocks of a page run in order, each on a connection of its own, against one
//!   broker that begins with an empty data directory. `> ` begins a line that is sent, with its LF; `>x ` bytes in hex, without one; every
//!   other line is expected. `...` in it stands for any text, and a line that is only `...` for any number of lines.
//! - `sh` with `text` behind it: commands, and what they print (with `...` as above). The blocks of a page run in order in one directory, in
//!   which the broker's `data` is. An `sh` block without a `text` block calls cargo, and `.ci/run` does the same.
//! - `hex`: bytes that are decoded and encoded again.
//! - `rust`: a program; src/lib.rs includes the page, so that `cargo test --doc` runs it.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "../harness/mod.rs"]
mod harness;
mod hex;
mod markdown;
mod session;
mod shell;

use markdown::pages;

#[test]
fn every_session_goes_as_its_page_says() {
    for page in pages() {
        session::run(&page);
    }
}

#[test]
fn every_command_prints_what_its_page_says() {
    for page in pages() {
        shell::run(&page);
    }
}

#[test]
fn every_hex_example_is_what_the_code_writes_and_reads() {
    let mut examples = 0;
    for block in pages().iter().flat_map(|page| &page.blocks) {
        if block.kind() == "hex" {
            hex::check(block);
            examples += 1;
        }
    }
    assert!(examples >= 7, "docs/format.md has lost its examples");
}

#[test]
fn no_block_is_of_a_kind_that_nothing_runs() {
    for page in pages() {
        for (i, block) in page.blocks.iter().enumerate() {
            let next = page.blocks.get(i + 1);
            let is_run = match block.kind() {
                "session" | "hex" => true,
                "sh" => {
                    next.is_some_and(|next| next.kind() == "text")
                        || block.text.lines().all(|line| line.starts_with("cargo "))
                }
                "rust" => {
                    let page = block.place.split(':').next().unwrap();
                    include_str!("../../src/lib.rs").contains(&format!("\"../{page}\""))
                }
                "text" => i > 0 && page.blocks[i - 1].kind() == "sh",
                _ => false,
            };
            assert!(is_run, "{}: `{}`", block.place, block.info);
        }
    }
}
