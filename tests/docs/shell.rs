//! `sh` blocks with a `text` block behind them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{BINARY, Server};
use crate::markdown::{Block, Page, all_match};

/// A netcat for machines that have none, and the same on all: it ends when the broker closes.
const NC: &str = r#"#!/usr/bin/env bash
exec 3<>"/dev/tcp/$1/$2" 4<&0
cat <&4 >&3 &
cat <&3
"#;

/// Runs the blocks of a page in one directory, with a broker whose data is in it.
pub(crate) fn run(page: &Page) {
    let pairs: Vec<(&Block, &Block)> = page
        .blocks
        .iter()
        .zip(page.blocks.iter().skip(1))
        .filter(|(sh, text)| sh.kind() == "sh" && text.kind() == "text")
        .collect();
    if pairs.is_empty() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let tools = directory.path().join(".tools");
    let server = Server::start(&directory.path().join("data"), &[]);
    let port = server.address.port().to_string();
    fs::create_dir(&tools).unwrap();
    script(&tools.join("nc"), NC);
    // The commands of the pages talk to the default port.
    let broker = format!(
        "#!/bin/sh\ncase \"$1\" in shell) shift; exec '{BINARY}' shell --connect 127.0.0.1:{port} \"$@\";; produce|consume|topics|groups) exec '{BINARY}' \"$@\" --connect 127.0.0.1:{port};; *) exec '{BINARY}' \"$@\";; esac\n"
    );
    script(&tools.join("mini-broker"), &broker);
    for (commands, output) in pairs {
        let found = sh(
            &commands.text.replace("9092", &port),
            directory.path(),
            &tools,
        );
        let expected: Vec<&str> = output.text.lines().collect();
        let lines: Vec<&str> = found.lines().collect();
        assert!(
            all_match(&expected, &lines),
            "{}: {}\nprinted\n{found}\nand not\n{}",
            commands.place,
            commands.text,
            output.text
        );
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What the commands print, on stdout and stderr together.
fn sh(commands: &str, directory: &Path, tools: &Path) -> String {
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    // A command that waits for ever fails the test.
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", &format!("exec 2>&1\n{commands}")])
        .current_dir(directory)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
