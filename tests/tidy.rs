//! What no compiler checks: who may name whom, where the time is read, how long things are, what must be documented.
//!
//! It reads the source as text and relies on rustfmt's shape of it: an item that begins at some column ends with a brace at the same
//! column. Comments, and test modules at the end of a file, do not count for the rules about code.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which modules each module may name, itself aside. What is not here is an absence that the architecture lives by.
const LAYERS: &[(&str, &[&str])] = &[
    ("addr", &[]),
    ("murmur2", &[]),
    ("record", &[]),
    ("sys", &[]),
    ("format", &["record"]),
    ("fs", &["sys"]),
    ("json", &["format", "record"]),
    ("api", &["fs", "record"]),
    ("clock", &["api"]),
    ("outbox", &["api", "sys"]),
    ("storage", &["api", "format", "fs", "record"]),
    (
        "broker",
        &[
            "api", "clock", "format", "fs", "murmur2", "record", "storage",
        ],
    ),
    ("protocol", &["api", "format", "json", "outbox", "record"]),
    (
        "dump",
        &["api", "format", "fs", "json", "record", "storage"],
    ),
    ("config", &["broker", "storage"]),
    (
        "net",
        &[
            "addr", "api", "broker", "clock", "fs", "outbox", "protocol", "sys",
        ],
    ),
    (
        "client",
        &["addr", "api", "format", "json", "murmur2", "record"],
    ),
    (
        "testing",
        &[
            "addr", "broker", "clock", "config", "fs", "net", "protocol", "storage",
        ],
    ),
    (
        "cli",
        &[
            "addr", "api", "broker", "client", "clock", "config", "dump", "format", "fs", "json",
            "net", "protocol", "record", "storage", "sys",
        ],
    ),
];

/// Where a clock may be read: the edge, and the clients' side. Everything else is handed the time as a value.
const CLOCK_READERS: &[&str] = &["clock", "net", "cli", "client"];

/// Where threads may be: what is no part of the broker. A shell waits on a terminal and a socket at once, a producer writes while it
/// reads, and a test has its broker beside it.
const WITH_THREADS: &[&str] = &["cli", "client", "testing"];

/// Functions have at most so many lines.
const FUNCTION_LINES_MAX: usize = 70;
/// Longer ones, each with the most that it may have and why it is one function all the same. The list and its numbers may only shrink.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[
    (
        "src/dump/segment.rs",
        "check",
        78,
        "one pass over a log with three kinds of step that share eight values",
    ),
    (
        "src/storage/scan.rs",
        "walk",
        71,
        "one pass over a log with three kinds of step",
    ),
    (
        "tests/sim.rs",
        "fetch",
        80,
        "one step of a history: the call, and the model's judgement of it",
    ),
];

/// Files have at most so many lines.
const FILE_LINES_MAX: usize = 600;
/// Longer ones, each with the most that it may have and why it is one subject all the same. The list and its numbers may only shrink.
const LONG_FILES: &[(&str, usize, &str)] = &[
    (
        "src/storage/data_dir/tests.rs",
        720,
        "tests of one module, each short",
    ),
    (
        "tests/sim.rs",
        1100,
        "a model, and the histories that it judges",
    ),
];

/// A file with its path from the root of the repository.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The top module that it belongs to; empty for lib.rs and main.rs.
    fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let first = inside.split('/').next().unwrap_or_default();
        match first.strip_suffix(".rs").unwrap_or(first) {
            "lib" | "main" => "",
            module => module,
        }
    }

    /// Its lines of code with their numbers: no comments, and nothing from the test module on.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .zip(1..)
            .take_while(|(line, _)| *line != "#[cfg(test)]")
            .map(|(line, number)| (number, line.split("//").next().unwrap_or_default()))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a directory whose name ends like that.
fn sources(directory: &str, ending: &str) -> Vec<Source> {
    let mut directories = vec![root().join(directory)];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let source = |path: PathBuf| Source {
        path: path
            .strip_prefix(root())
            .unwrap()
            .to_string_lossy()
            .into_owned(),
        text: fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(source).collect()
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// The words behind each `crate::` of a line, braces opened: `crate::{api, fs::Fs}` names api and fs.
fn named_modules(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = line.get(at + "crate::".len()..).unwrap_or_default();
        let list = rest
            .strip_prefix('{')
            .map_or(rest, |inside| inside.split('}').next().unwrap_or(inside));
        let parts = if rest.starts_with('{') {
            list.split(',').collect()
        } else {
            vec![list]
        };
        for part in parts {
            let name: String = part
                .trim()
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            names.push(name);
        }
    }
    names
}

#[test]
fn modules_name_only_what_is_below_them() {
    let mut found = Vec::new();
    for source in sources("src", ".rs") {
        let module = source.module();
        if module.is_empty() {
            continue;
        }
        let allowed = LAYERS
            .iter()
            .find(|(name, _)| *name == module)
            .map(|(_, allowed)| *allowed);
        let allowed = allowed.unwrap_or_else(|| panic!("{module} has no place in LAYERS"));
        for (number, line) in source.code() {
            for name in named_modules(line) {
                let is_module = LAYERS.iter().any(|(module, _)| *module == name);
                if is_module && name != module && !allowed.contains(&name.as_str()) {
                    found.push(format!("{}:{number}: {module} names {name}", source.path));
                }
            }
        }
    }
    assert_none("layers are broken", &found);
}

#[test]
fn only_the_edge_reads_a_clock() {
    let mut found = Vec::new();
    for source in sources("src", ".rs") {
        if CLOCK_READERS.contains(&source.module()) {
            continue;
        }
        for (number, line) in source.code() {
            if ["Instant::now", "SystemTime::now", ".elapsed()"]
                .iter()
                .any(|call| line.contains(call))
            {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none("a clock is read inside", &found);
}

#[test]
fn unsafe_code_is_in_one_module() {
    let mut found = Vec::new();
    for source in sources("src", ".rs") {
        let is_sys = source.module() == "sys";
        // Test modules are below a module that forbids it.
        let is_test = source.path.contains("/tests");
        let has_forbid = source.text.contains("#![forbid(unsafe_code)]");
        if !is_sys && !is_test && source.path != "src/lib.rs" && !has_forbid {
            found.push(format!("{}: no #![forbid(unsafe_code)]", source.path));
        }
        for (number, line) in source.code() {
            let has_unsafe = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe");
            if has_unsafe && !is_sys {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none("unsafe code outside sys", &found);
}

#[test]
fn the_data_path_shares_nothing_between_threads() {
    let mut found = Vec::new();
    for source in sources("src", ".rs") {
        if WITH_THREADS.contains(&source.module()) {
            continue;
        }
        for (number, line) in source.code() {
            for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
                let is_shared = matches!(word, "Arc" | "Mutex" | "RwLock" | "Condvar" | "mpsc");
                if is_shared || word.starts_with("Atomic") || line.contains("thread::spawn") {
                    found.push(format!("{}:{number}: {}", source.path, line.trim()));
                    break;
                }
            }
        }
    }
    assert_none("threads, or what they share, on the data path", &found);
}

/// Functions with their first line and length: from the line with `fn` to the brace at its column.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let words: Vec<&str> = code.split(' ').collect();
        let is_qualifier = |word: &&str| {
            matches!(*word, "pub" | "const" | "async" | "extern")
                || word.starts_with("pub(")
                || *word == "unsafe"
        };
        let at = words.iter().take_while(|word| is_qualifier(word)).count();
        if words.get(at) != Some(&"fn") {
            continue;
        }
        let name: String = words
            .get(at + 1)
            .unwrap_or(&"")
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let end = lines.iter().skip(i).position(|later| {
            let code = later.trim_start();
            later.len() - code.len() == indent
                && (code == "}" || code.ends_with(';') || code.ends_with(" {}"))
        });
        found.push((name, i + 1, end.map_or(1, |end| end + 1)));
    }
    found
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    for directory in ["src", "benches", "tests"] {
        for source in sources(directory, ".rs") {
            for (name, line, length) in functions(&source) {
                let listed = LONG_FUNCTIONS
                    .iter()
                    .find(|(path, function, ..)| *path == source.path && *function == name);
                match listed {
                    Some((_, _, lines, _)) => {
                        used.insert((source.path.clone(), name.clone()));
                        if length > *lines || length <= FUNCTION_LINES_MAX {
                            found.push(format!(
                                "{}:{line}: {name} has {length} lines, the list says {lines}",
                                source.path
                            ));
                        }
                    }
                    None if length > FUNCTION_LINES_MAX => {
                        found.push(format!("{}:{line}: {name} has {length} lines", source.path));
                    }
                    None => {}
                }
            }
        }
    }
    for (path, name, ..) in LONG_FUNCTIONS {
        if !used.contains(&((*path).to_owned(), (*name).to_owned())) {
            found.push(format!("{path}: {name} is on the list and not there"));
        }
    }
    assert_none(
        &format!("functions over {FUNCTION_LINES_MAX} lines"),
        &found,
    );
}

#[test]
fn files_are_short() {
    let mut found = Vec::new();
    for directory in ["src", "benches", "tests"] {
        for source in sources(directory, ".rs") {
            let length = source.text.lines().count();
            match LONG_FILES.iter().find(|(path, ..)| *path == source.path) {
                Some((_, lines, _)) if length > *lines || length <= FILE_LINES_MAX => {
                    found.push(format!(
                        "{} has {length} lines, the list says {lines}",
                        source.path
                    ));
                }
                None if length > FILE_LINES_MAX => {
                    found.push(format!("{} has {length} lines", source.path));
                }
                Some(_) | None => {}
            }
        }
    }
    for (path, ..) in LONG_FILES {
        if !root().join(path).exists() {
            found.push(format!("{path} is on the list and not there"));
        }
    }
    assert_none(&format!("files over {FILE_LINES_MAX} lines"), &found);
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not find itself.
    let marks = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let notes = ["FIX", "TO"].map(|half| half.to_owned() + if half == "FIX" { "ME" } else { "DO" });
    let mut found = Vec::new();
    for directory in ["src", "benches", "tests"] {
        for source in sources(directory, ".rs") {
            for (line, number) in source.text.lines().zip(1..) {
                if marks
                    .iter()
                    .chain(&notes)
                    .any(|mark| line.contains(mark.as_str()))
                {
                    found.push(format!("{}:{number}: {}", source.path, line.trim()));
                }
            }
        }
    }
    assert_none("left undone", &found);
}

/// README.md and every page of docs/, and the test transcripts of none.
fn pages() -> Vec<Source> {
    let readme = Source {
        path: "README.md".into(),
        text: fs::read_to_string(root().join("README.md")).unwrap(),
    };
    let mut pages = sources("docs", ".md");
    pages.insert(0, readme);
    pages
}

#[test]
fn every_page_is_linked_and_every_link_leads_somewhere() {
    let mut linked = BTreeSet::new();
    let mut found = Vec::new();
    for page in pages() {
        let directory = root().join(&page.path).parent().unwrap().to_owned();
        for (at, _) in page.text.match_indices("](") {
            let target = page
                .text
                .get(at + 2..)
                .unwrap()
                .split(')')
                .next()
                .unwrap_or_default();
            let (file, anchor) = target
                .split_once('#')
                .map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            if file.contains("://") {
                continue;
            }
            let path = if file.is_empty() {
                root().join(&page.path)
            } else {
                directory.join(file)
            };
            let Ok(path) = path.canonicalize() else {
                found.push(format!("{}: {target} is not there", page.path));
                continue;
            };
            if let Some(anchor) = anchor
                && !anchors(&fs::read_to_string(&path).unwrap()).contains(anchor)
            {
                found.push(format!("{}: {target} has no such heading", page.path));
            }
            linked.insert(path);
        }
    }
    for page in pages().iter().skip(1) {
        if !linked.contains(&root().join(&page.path).canonicalize().unwrap()) {
            found.push(format!("{} is not linked from any page", page.path));
        }
    }
    assert_none("documents", &found);
}

/// The anchors that a Markdown page's headings make.
fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// What README.md and docs/ say, the change log aside.
fn documentation() -> String {
    pages()
        .iter()
        .filter(|page| !page.path.ends_with("CHANGELOG.md"))
        .map(|page| page.text.as_str())
        .collect()
}

#[test]
fn every_flag_is_documented() {
    let mut found = Vec::new();
    let documentation = documentation();
    for subcommand in [
        "serve", "import", "dump", "verify", "shell", "produce", "consume",
    ] {
        let help = Command::new(env!("CARGO_BIN_EXE_mini-broker"))
            .args([subcommand, "--help"])
            .output()
            .unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let flags = help
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with("--") || line.starts_with("-h, --"));
        for line in flags {
            let start = line.find("--").unwrap();
            let flag: String = line
                .get(start..)
                .unwrap()
                .chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '-')
                .collect();
            if flag != "--help" && !documentation.contains(&flag) {
                found.push(format!("{subcommand} {flag}"));
            }
        }
    }
    assert_none("flags that no page names", &found);
}

#[test]
fn every_config_is_documented() {
    // The refusal of an unknown name lists those there are.
    let refusal = mini_broker::broker::configs::Overrides::of_broker([("no.such.name", "1")])
        .unwrap_err()
        .message;
    let is_name =
        |word: &&str| word.contains('.') && *word != "no.such.name" && !word.starts_with('.');
    let words = refusal
        .split(|c: char| !c.is_ascii_lowercase() && c != '.')
        .map(|word| word.trim_end_matches('.'));
    let names: Vec<&str> = words.filter(is_name).collect();
    assert!(names.len() >= 13, "{refusal}");
    let documentation = documentation();
    let missing: Vec<String> = names
        .iter()
        .filter(|name| !documentation.contains(&format!("`{name}`")))
        .map(ToString::to_string)
        .collect();
    assert_none("configs that no page names", &missing);
}

#[test]
fn every_verb_and_error_code_is_documented() {
    let page = fs::read_to_string(root().join("docs/protocol.md")).unwrap();
    let api = fs::read_to_string(root().join("src/api.rs")).unwrap();
    let codes = api
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""));
    let missing: Vec<String> = codes
        .filter_map(|(_, rest)| rest.split('"').next())
        .filter(|code| !page.contains(code))
        .map(ToOwned::to_owned)
        .collect();
    assert_none("error codes that docs/protocol.md does not name", &missing);
}
