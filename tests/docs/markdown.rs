//! Pages and their fenced blocks.

use std::fs;
use std::path::Path;

/// A Markdown page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its fenced blocks in order.
    pub(crate) blocks: Vec<Block>,
}

/// What stands between two fences.
#[derive(Debug)]
pub(crate) struct Block {
    /// Page and line, for messages.
    pub(crate) place: String,
    /// What stands behind the opening fence.
    pub(crate) info: String,
    /// The lines between the fences.
    pub(crate) text: String,
}

impl Block {
    /// The first word behind the fence.
    pub(crate) fn kind(&self) -> &str {
        self.info.split(' ').next().unwrap_or_default()
    }
}

/// README.md and every page of docs/.
pub(crate) fn pages() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("README.md")];
    paths.extend(
        fs::read_dir(root.join("docs"))
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    paths.retain(|path| path.extension().is_some_and(|e| e == "md"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            Page {
                blocks: blocks(&name, &fs::read_to_string(path).unwrap()),
            }
        })
        .collect()
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let inside = lines
            .by_ref()
            .map(|(line, _)| line)
            .take_while(|line| *line != "```");
        let text = inside.fold(String::new(), |text, line| text + line + "\n");
        blocks.push(Block {
            place: format!("{page}:{number}"),
            info: info.to_owned(),
            text,
        });
    }
    blocks
}

/// Whether a line is what was expected, where `...` stands for any text.
pub(crate) fn matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether lines are what was expected, where a line that is only `...` stands for any number of them.
pub(crate) fn all_match(expected: &[&str], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&"...", rest)), _) if all_match(rest, lines) => true,
        (Some((&"...", _)), Some((_, behind))) => all_match(expected, behind),
        (Some((first, rest)), Some((line, behind))) => {
            matches(first, line) && all_match(rest, behind)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[test]
fn dots_stand_for_text_and_for_lines() {
    assert!(matches("OK ... 2", "OK 17 2"));
    assert!(matches("OK ...", "OK "));
    assert!(!matches("OK ... 2", "OK 17 3"));
    assert!(!matches("OK 1", "OK 12"));
    assert!(all_match(&["a", "...", "b"], &["a", "b"]));
    assert!(all_match(&["a", "...", "b"], &["a", "x", "b", "y", "b"]));
    assert!(!all_match(&["a", "..."], &["b"]));
    assert!(!all_match(&["a"], &["a", "b"]));
}
