//! A broker that answers what a test says: for answers that a real one gives only on a bad day.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What is answered to a BATCH or PRODUCE.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// It is stored.
    Store,
    /// This line.
    Say(&'static str),
    /// The connection ends before the answer, and the request is stored all the same.
    StoreAndHangUp,
}

/// A partition `t/0`, and what is to happen.
#[derive(Debug)]
struct Script {
    /// What becomes of requests; `Store` once there is none.
    answers: Vec<Answer>,
    stored: Vec<Vec<u8>>,
}

/// See the module. Its threads end with the test's process.
pub(crate) struct Scripted {
    pub(crate) address: String,
    script: Arc<Mutex<Script>>,
}

impl Scripted {
    pub(crate) fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let script = Arc::new(Mutex::new(Script {
            answers,
            stored: Vec::new(),
        }));
        let shared = Arc::clone(&script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&stream.unwrap(), &shared));
            }
        });
        Self { address, script }
    }

    /// The values that were stored, in their order.
    pub(crate) fn stored(&self) -> Vec<String> {
        let script = self.script.lock().unwrap();
        script
            .stored
            .iter()
            .map(|value| String::from_utf8(value.clone()).unwrap())
            .collect()
    }
}

fn serve(stream: &TcpStream, script: &Mutex<Script>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "OFFSETS" {
            (&*stream).write_all(b"OK 1\n0\t0\t0\n").unwrap();
            continue;
        }
        let values = payload(&words, &mut reader);
        let mut script = script.lock().unwrap();
        let answer = if script.answers.is_empty() {
            Answer::Store
        } else {
            script.answers.remove(0)
        };
        let first = script.stored.len();
        if !matches!(answer, Answer::Say(_)) {
            script.stored.extend(values);
        }
        let reply = match answer {
            Answer::Say(line) => format!("{line}\n"),
            Answer::Store if words[0] == "BATCH" => {
                format!("OK 0 {first} {}\n", script.stored.len() - 1)
            }
            Answer::Store => format!("OK 0 {first}\n"),
            Answer::StoreAndHangUp => return,
        };
        if (&*stream).write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// The values in the payload of a request.
fn payload(words: &[&str], reader: &mut BufReader<&TcpStream>) -> Vec<Vec<u8>> {
    let number = |at: usize| words[at].parse::<i64>().unwrap().max(0);
    let lengths: Vec<i64> = match words[0] {
        "BATCH" => vec![number(3)],
        "PRODUCE" => {
            let headers = words.iter().find_map(|word| word.strip_prefix("headers="));
            vec![
                number(2),
                number(3),
                headers.map_or(0, |n| n.parse().unwrap()),
            ]
        }
        other => panic!("{other} has no script"),
    };
    let total: i64 = lengths.iter().sum();
    let mut bytes = vec![0; usize::try_from(total).unwrap() + 1];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.pop(), Some(b'\n'));
    if words[0] == "PRODUCE" {
        let start = usize::try_from(lengths[0]).unwrap();
        return vec![bytes[start..start + usize::try_from(lengths[1]).unwrap()].to_vec()];
    }
    let mut values = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        for is_value in [false, true] {
            let (len, behind) = rest.split_first_chunk::<4>().unwrap();
            let len = usize::try_from(i32::from_be_bytes(*len).max(0)).unwrap();
            if is_value {
                values.push(behind[..len].to_vec());
            }
            rest = &behind[len..];
        }
    }
    values
}
