//! shell: arguments, lines from stdin, tails and their end.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::harness::{BINARY, Server};
use crate::setup::{Dir, tool, tool_with_input};

#[test]
fn shell_runs_its_arguments_and_says_by_its_exit_code_how_it_went() {
    let dir = Dir::new();
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let shell = |commands: &[&str]| {
        let mut args = vec!["shell", "--connect", &address];
        args.extend(commands);
        tool(&args)
    };
    let (code, out, _) = shell(&[
        "CREATE orders",
        "PUT orders:k one",
        "PRODUCE orders -1 7",
        "two\nold",
        "READ orders 0 as=value",
    ]);
    assert_eq!(
        (code, out.as_str()),
        (0, "OK\nOK 0 0\nOK 0 1\nOK 2 2 2 12\none\ntwo\nold\n")
    );
    let (code, out, _) = shell(&["OFFSETS orders", "TAIL orders/9", "# nothing", "PING"]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with("OK 1\n0\t0\t2\nERR UNKNOWN_PARTITION ") && out.ends_with("\nOK PONG\n"),
        "{out}"
    );
    let (code, out, err) = shell(&["PRODUCE orders -1 2", "toolong", "QUIT"]);
    assert_eq!((code, out.as_str()), (1, "OK\n"));
    assert_eq!(
        err,
        "the line says 2 bytes of payload, and there were 7: nothing was sent\n"
    );
    let (code, out, _) = shell(&["FETCH orders 0 max_bytes=1", "PING"]);
    assert!(
        code == 0 && out.starts_with("OK 40 0 1 2\n") && out.ends_with("oneOK PONG\n"),
        "{out}"
    );
    server.kill();
    let (code, _, err) = shell(&["PING"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("cannot connect to ") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn commands_behind_a_quit_are_not_dropped_in_silence() {
    let dir = Dir::new();
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let shell = |commands: &[&str]| tool(&[&["shell", "--connect", &address], commands].concat());
    let (code, out, err) = shell(&["PING", "quit", "# a remark", "PUT orders x", "PING"]);
    assert_eq!((code, out.as_str()), (1, "OK PONG\nOK\n"));
    assert_eq!(
        err,
        "mini-broker: QUIT ended the connection, and what follows it was not sent: PUT orders x and 1 more; put QUIT last\n"
    );
    let (code, out, err) = shell(&["PING", "QUIT", "", "# a remark"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "OK PONG\nOK\n", ""));
    let (code, _, _) = shell(&["PRODUCE orders -1 4", "QUIT", "QUIT"]);
    assert_eq!(code, 0, "a payload is no command");
}

#[test]
fn shell_takes_lines_from_stdin_and_a_line_ends_a_tail() {
    let dir = Dir::new();
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let shell = |input: &str| tool_with_input(&["shell", "--connect", &address], input.as_bytes());
    let (code, out, _) = shell(
        "PUT orders OK\nPUT orders x\n\n# note\nPRODUCE orders 0 3\na\nb\nREAD orders 2 as=value",
    );
    assert_eq!(
        (code, out.as_str()),
        (0, "OK 0 0\nOK 0 1\nOK 0 2\nOK 1 3 3 4\na\nb\n")
    );
    let (code, out, _) = shell("TAIL orders latest\n\nSTOP\nPING\n");
    assert_eq!((code, out.as_str()), (0, "OK 3\nOK\nOK PONG\n"));
    let (code, out, _) = shell("TAIL orders latest\nQUIT\nPING\n");
    assert_eq!((code, out.as_str()), (0, "OK 3\nOK\n"));
    let (code, _, _) = shell("FROB\nPING\n");
    assert_eq!(code, 1);
}

#[test]
fn a_value_that_reads_like_the_end_of_a_tail_is_not_taken_for_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // A broker that has pushed two more values by the time it reads the STOP.
    let broker = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let script: [(&[u8], &[u8]); 3] = [
            (b"TAIL orders as=value\n", b"OK 7\n"),
            (b"STOP\nPING\n", b"OK\nx\nOK\nOK PONG\n"),
            (b"VERSION\n", b"OK fake\n"),
        ];
        for (request, reply) in script {
            let mut bytes = vec![0; request.len()];
            std::io::Read::read_exact(&mut stream, &mut bytes).unwrap();
            assert_eq!(bytes, request);
            stream.write_all(reply).unwrap();
        }
    });
    let input = b"TAIL orders as=value\nSTOP\nVERSION\n";
    let (code, out, _) = tool_with_input(&["shell", "--connect", &address], input);
    assert_eq!((code, out.as_str()), (0, "OK 7\nOK\nx\nOK\nOK fake\n"));
    broker.join().unwrap();
}

#[test]
fn ctrl_c_ends_a_tail_and_not_the_shell() {
    let dir = Dir::new();
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    server.client().ask("PUT orders hello");
    let mut child = Command::new(BINARY)
        .args(["shell", "--connect", &address, "TAIL orders 0", "PING"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
        line
    };
    assert_eq!(line(), "OK 0\n");
    assert!(line().ends_with("\thello\n"));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", "INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!((line().as_str(), line().as_str()), ("OK\n", "OK PONG\n"));
    assert!(child.wait().unwrap().success());
}
