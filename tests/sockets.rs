//! Several listening sockets of both kinds, and the file of a Unix socket: made, kept, replaced, removed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{BINARY, Server};
use mini_broker::addr::{Address, Stream};

/// A reply that takes longer fails the test.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A client at an address of either kind.
struct Client(BufReader<Stream>);

impl Client {
    fn connect(address: &str) -> Self {
        let address: Address = address.parse().unwrap();
        let stream = address.connect().unwrap();
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the connection ended at {line:?}");
        line.pop();
        line
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n"));
        self.line()
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest
    }

    fn is_silent(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let is_silent = self
            .0
            .fill_buf()
            .is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        self.0.get_ref().set_nonblocking(false).unwrap();
        is_silent
    }
}

/// A directory for data and sockets.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.path(name).display())
    }
}

fn command(data_dir: &Path, listen: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("--data-dir").arg(data_dir).stdin(Stdio::null());
    for address in listen {
        command.args(["--listen", address]);
    }
    command
}

/// A broker that need not listen on TCP, and its ready line.
fn start(data_dir: &Path, listen: &[&str]) -> (Child, String) {
    let mut child = command(data_dir, listen)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut ready).unwrap();
    (child, ready)
}

fn stop(mut child: Child) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(status.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A start that fails: its exit code, and what it says on stderr beside the log.
fn refused(data_dir: &Path, listen: &[&str]) -> (i32, String) {
    let output = command(data_dir, listen).output().unwrap();
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    let mut said = text.lines().filter(|line| !line.starts_with('['));
    let line = said.next().unwrap().to_owned();
    assert_eq!(said.next(), None, "{text}");
    (output.status.code().unwrap(), line)
}

#[test]
fn the_ready_line_names_every_address_on_one_line() {
    let place = Place::new();
    let (one, two) = (place.unix("one"), place.unix("two"));
    let data = place.path("data");
    let tcp = "127.0.0.1:0";
    let (child, ready) = start(&data, &[&one, tcp, &two, tcp]);
    let version = env!("CARGO_PKG_VERSION");
    let words: Vec<&str> = ready.split(", ").collect();
    let first = words[0].strip_prefix(&format!("mini-broker {version} ready on 127.0.0.1:"));
    let second = words[1].strip_prefix("127.0.0.1:");
    let ports = [first.unwrap(), second.unwrap()].map(|port| port.parse::<u16>().unwrap());
    assert!(ports[0] != ports[1] && ports.iter().all(|port| *port > 0));
    let end = format!("data in {}\n", data.display());
    assert_eq!(words[2..], [one.as_str(), &two, &end]);
    let tcps = ports.map(|port| format!("127.0.0.1:{port}"));
    for address in [&one, &two, &tcps[0], &tcps[1]] {
        assert_eq!(Client::connect(address).ask("PING"), "OK PONG");
    }
    stop(child);

    let (child, ready) = start(&data, &[&one]);
    assert_eq!(
        ready,
        format!(
            "mini-broker {version} ready on {one}, data in {}\n",
            data.display()
        )
    );
    stop(child);
}

#[test]
fn both_kinds_of_socket_say_the_same() {
    let place = Place::new();
    let unix = place.unix("a.sock");
    let server = Server::start(&place.path("data"), &["--listen", &unix]);
    let tcp = server.address.to_string();
    let mut writer = Client::connect(&unix);
    let value = "v".repeat(60_000);
    let count = 200;
    // Pipelined, and far more than a socket holds.
    for n in 0..count {
        writer.send(format!("PUT t {n:06}{value}\n"));
    }
    for n in 0..count {
        assert_eq!(writer.line(), format!("OK 0 {n}"));
    }
    let mut replies = Vec::new();
    for address in [&unix, &tcp] {
        let mut client = Client::connect(address);
        // Read late: the broker meets a full socket, in the middle of a file's piece. The end of input is no close.
        client.send("FETCH t 0 max_bytes=8000000\nREAD t 190 as=value\nPING\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(Client::connect(address).ask("PING"), "OK PONG");
        replies.push(client.rest());

        let mut client = Client::connect(address);
        client.send("POST /topics HTTP/1.1\r\nHost: x\r\n\r\nDELETE t\n");
        assert!(client.rest().starts_with(b"HTTP/1.1 400 Bad Request\r\n"));
        let mut client = Client::connect(address);
        client.send([0, 0, 0, 1]);
        assert!(client.rest().starts_with(b"ERR FRAMING "));
        let mut client = Client::connect(address);
        client.send("DELETE t");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"", "half a line is no request");
    }
    assert!(replies[0].len() > 8_000_000);
    assert!(replies[0] == replies[1]);
    assert!(replies[0].ends_with(b"v\nOK PONG\n"));
}

#[test]
fn a_reader_that_goes_away_is_forgotten() {
    let place = Place::new();
    let unix = place.unix("a.sock");
    let server = Server::start(&place.path("data"), &["--listen", &unix]);
    let mut client = server.client();
    client.ask("CREATE t");
    for request in ["TAIL t\n", "READ t 0 wait=1000000\n"] {
        let mut reader = Client::connect(&unix);
        reader.send(request);
        let connections = || Client::connect(&unix).ask_stat("connections");
        while connections() < 3 {}
        drop(reader);
        while connections() > 2 {}
    }
}

impl Client {
    fn ask_stat(&mut self, name: &str) -> u64 {
        let head = self.ask("STATS");
        let count: usize = head.strip_prefix("OK ").unwrap().parse().unwrap();
        let lines: Vec<String> = (0..count).map(|_| self.line()).collect();
        let value = lines
            .iter()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        value.unwrap().parse().unwrap()
    }
}

#[test]
fn the_limits_are_those_of_all_sockets_together() {
    let place = Place::new();
    let unix = place.unix("a.sock");
    let server = Server::start(
        &place.path("data"),
        &["--listen", &unix, "--max-connections", "2"],
    );
    let tcp = server.address.to_string();
    let mut inside = [Client::connect(&unix), Client::connect(&tcp)];
    for client in &mut inside {
        assert_eq!(client.ask("PING"), "OK PONG");
    }
    for address in [&unix, &tcp] {
        let line = Client::connect(address).line();
        assert!(line.starts_with("ERR TOO_MANY_CONNECTIONS "), "{line}");
    }
    for client in &mut inside {
        assert_eq!(client.ask("PING"), "OK PONG");
    }
}

#[test]
fn without_file_descriptors_accepting_pauses_at_every_socket() {
    let place = Place::new();
    let unix = place.unix("a.sock");
    let server = Server::start_with_descriptors(&place.path("data"), 64, &["--listen", &unix]);
    let tcp = server.address.to_string();
    let mut first = Client::connect(&unix);
    assert_eq!(first.ask("PING"), "OK PONG");
    let mut clients: Vec<Client> = (0..100)
        .map(|n| Client::connect([&unix, &tcp][n % 2]))
        .collect();
    for client in &mut clients {
        client.send("PING\n");
    }
    assert_eq!(first.ask("PUT t x"), "OK 0 0");
    let mut waiting = || {
        [0, 1].map(|kind| {
            let clients = clients.iter_mut().skip(kind).step_by(2);
            clients
                .filter_map(|client| client.is_silent().then_some(()))
                .count()
        })
    };
    // Those who fit are let in over a few turns; each PING makes one.
    while waiting().iter().any(|count| *count >= 50) {
        assert_eq!(first.ask("PING"), "OK PONG");
    }
    for _ in 0..100 {
        assert_eq!(first.ask("PING"), "OK PONG");
    }
    for count in waiting() {
        assert!((20..50).contains(&count), "{count} of 50 wait outside");
    }
    for mut client in clients {
        assert_eq!(client.line(), "OK PONG");
    }
    assert_eq!(server.stop().code(), Some(0));
    assert!(!place.path("a.sock").exists());
}

#[test]
fn a_stale_socket_is_replaced_and_goes_with_the_broker() {
    let place = Place::new();
    let (unix, path) = (place.unix("a.sock"), place.path("a.sock"));
    // Left behind by somebody else.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::start(&place.path("data"), &["--listen", &unix]);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "nothing for others: {mode:o}");
    assert_eq!(mode & 0o600, 0o600, "{mode:o}");
    assert_eq!(Client::connect(&unix).ask("PUT t x"), "OK 0 0");
    server.kill();
    let left = std::fs::symlink_metadata(&path).unwrap();
    assert!(left.file_type().is_socket());
    let server = Server::start(&place.path("data"), &["--listen", &unix]);
    assert_eq!(Client::connect(&unix).ask("PUT t x"), "OK 0 1");
    // Not our file any more: it stays.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "somebody else's").unwrap();
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn a_path_that_is_in_use_is_named_and_what_is_there_stays() {
    let place = Place::new();
    let (unix, fresh) = (place.unix("a.sock"), place.path("fresh"));
    let server = Server::start(&place.path("data"), &["--listen", &unix]);
    for listen in [&[unix.as_str()][..], &["127.0.0.1:0", &unix]] {
        let (code, line) = refused(&fresh, listen);
        assert_eq!(code, 1);
        assert!(
            line.contains(&unix) && line.contains("another process"),
            "{line}"
        );
    }
    assert_eq!(Client::connect(&unix).ask("PING"), "OK PONG");
    let twice = place.unix("twice.sock");
    let (code, line) = refused(&fresh, &[&twice, &twice]);
    assert!(code == 1 && line.contains(&twice), "{line}");
    assert!(!place.path("twice.sock").exists());
    drop(server);

    let file = place.path("file");
    std::fs::write(&file, "precious").unwrap();
    let symlink = place.path("link");
    std::os::unix::fs::symlink(&file, &symlink).unwrap();
    let directory = place.path("directory");
    std::fs::create_dir(&directory).unwrap();
    for name in ["file", "link", "directory"] {
        let (code, line) = refused(&fresh, &[&place.unix(name)]);
        assert_eq!(code, 1);
        assert!(
            line.contains(&place.unix(name)) && line.contains("no socket"),
            "{line}"
        );
    }
    assert_eq!(std::fs::read(&symlink).unwrap(), b"precious");
    assert!(directory.is_dir());

    let (code, line) = refused(&fresh, &[&place.unix("missing/a.sock")]);
    assert!(code == 1 && line.contains("make its directory"), "{line}");
}

#[test]
fn the_tools_connect_to_a_unix_socket() {
    let place = Place::new();
    let unix = place.unix("a.sock");
    let (child, _) = start(&place.path("data"), &[&unix]);
    let flat = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/original-v1.log");
    let run = |args: &[&str]| {
        let output = Command::new(BINARY).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let flat = flat.to_str().unwrap();
    run(&["shell", "--connect", &unix, "CREATE t retention.ms=-1"]);
    let said = run(&["import", flat, "t", "--connect", &unix]);
    let count = said.split(' ').nth(1).unwrap();
    assert_eq!(
        run(&["shell", "--connect", &unix, "OFFSETS t"]),
        format!("OK 1\n0\t0\t{count}\n")
    );
    stop(child);
    let output = Command::new(BINARY)
        .args(["shell", "--connect", &unix, "PING"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains(&format!("cannot connect to {unix}")),
        "{error}"
    );
}
