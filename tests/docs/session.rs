//! `session` blocks.

use crate::harness::{Client, Server};
use crate::markdown::{Block, Page, matches};

/// Runs the blocks of a page against one broker.
pub(crate) fn run(page: &Page) {
    let blocks: Vec<&Block> = page
        .blocks
        .iter()
        .filter(|b| b.kind() == "session")
        .collect();
    if blocks.is_empty() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"), &[]);
    for block in blocks {
        run_block(block, server.client());
    }
}

fn run_block(block: &Block, mut client: Client) {
    let mut lines = block.text.lines().peekable();
    while lines.peek().is_some() {
        let mut sent = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with('>')) {
            sent.extend(bytes_of(block, line));
        }
        client.send(&sent);
        let mut expected = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('>')) {
            expected.push(line);
        }
        expect(
            block,
            &mut client,
            &String::from_utf8_lossy(&sent),
            &expected,
        );
    }
    client.half_close();
    let rest = client.rest();
    assert_eq!(rest, "", "{}: nothing more is expected", block.place);
}

/// What a line that begins with `>` sends.
fn bytes_of(block: &Block, line: &str) -> Vec<u8> {
    if let Some(hex) = line.strip_prefix(">x ") {
        return crate::hex::bytes(hex);
    }
    let text = line.strip_prefix('>').unwrap();
    let text = text.strip_prefix(' ').unwrap_or_else(|| {
        assert!(
            text.is_empty(),
            "{}: `>` without a space: {line}",
            block.place
        );
        text
    });
    format!("{text}\n").into_bytes()
}

/// Reads what the page expects of one exchange.
fn expect(block: &Block, client: &mut Client, sent: &str, expected: &[&str]) {
    // The lines that the last `OK <n>` announced and that are still to come.
    let mut owed: usize = 0;
    let mut next = || {
        let line = client.line();
        let count = line
            .strip_prefix("OK ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        owed = count.unwrap_or_else(|| owed.saturating_sub(1));
        (line, owed)
    };
    let mut left = 0;
    let mut expected = expected.iter().peekable();
    while let Some(&wanted) = expected.next() {
        if wanted != "..." {
            let (line, owed) = next();
            left = owed;
            assert!(
                matches(wanted, &line),
                "{}: {sent}got {line:?}, not {wanted:?}",
                block.place
            );
            continue;
        }
        let behind = expected.next();
        loop {
            if behind.is_none() && left == 0 {
                break;
            }
            let (line, owed) = next();
            left = owed;
            if behind.is_some_and(|behind| matches(behind, &line)) {
                break;
            }
            let what = behind.unwrap_or(&"...");
            assert!(
                behind.is_none() || left > 0,
                "{}: {sent}{what:?} did not come",
                block.place
            );
        }
    }
}
