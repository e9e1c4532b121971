//! produce, consume, topics and groups: the real binary, against a broker in the test's process.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod consume;
mod groups;
mod produce;
mod topics;

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use mini_broker::testing::Broker;

/// The binary under test.
const BINARY: &str = env!("CARGO_BIN_EXE_mini-broker");

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Ended {
    fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// What it printed, after a good end without a word on stderr.
    fn good(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""));
        self.text()
    }
}

/// Starts a command; `--connect` goes behind the arguments.
fn spawn(broker: &Broker, args: &[&str]) -> Child {
    Command::new(BINARY)
        .args(args)
        .args(["--connect", broker.addr()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run_with_input(broker: &Broker, args: &[&str], input: &[u8]) -> Ended {
    let mut child = spawn(broker, args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that refuses its input may end before it has read it.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Ended {
        code: status.code().unwrap(),
        out: stdout,
        err: String::from_utf8(stderr).unwrap(),
    }
}

fn run(broker: &Broker, args: &[&str]) -> Ended {
    run_with_input(broker, args, b"")
}

/// So many bytes that a running command prints.
fn printed(child: &mut Child, len: usize) -> String {
    let mut bytes = vec![0; len];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    String::from_utf8(bytes).unwrap()
}
