//! Clients that read nothing, and clients that send what no client should.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::Stage;
use crate::harness::{Client, Server};
use crate::history::{Load, Loss, Model, TOPIC, drain};
use crate::kills::{CONFIGS, create_topic, verify};

/// What the broker may owe to one of the readers that read nothing.
const BACKLOG_BYTES: &str = "65536";
/// Resident memory of the broker among them: what it is by itself, and for each its backlog twice over (what is owed, and what it was made from).
const RESIDENT_BYTES: u64 = 128 << 20;
const RESIDENT_BYTES_EACH: u64 = 2 * 65_536;
/// How long producers work among them at least.
const LOAD_MIN: Duration = Duration::from_secs(2);
/// Descriptors that this program keeps for other things.
const DESCRIPTORS_KEPT: usize = 100;
/// Bad clients at a time.
const BAD_CLIENTS: usize = 50;

/// Descriptors that a process may have.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    line.split_whitespace()
        .nth(3)
        .unwrap()
        .parse()
        .unwrap_or(usize::MAX)
}

/// Readers that ask for everything and read nothing hold nobody up but themselves, and cost what was agreed.
pub(crate) fn slow_readers(stage: &mut Stage) -> String {
    let count = stage
        .slow_readers
        .min(descriptors().saturating_sub(DESCRIPTORS_KEPT));
    let mut model = Model::default();
    let data_dir = stage.directory.join("data");
    let mut args = vec!["--fsync", "never", "--max-backlog-bytes", BACKLOG_BYTES];
    args.extend(CONFIGS);
    let server = Server::start(&data_dir, &args);
    create_topic(&server);
    let load = Load::start(server.address, &mut model, 2, 0);
    std::thread::sleep(Duration::from_millis(300));
    let done = load.finish();
    model.check(&mut server.client(), &done, Loss::Nothing);
    let mut slow: Vec<TcpStream> = (0..count)
        .map(|i| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let request = match i % 3 {
                0 => format!("TAIL {TOPIC}/0 earliest\n"),
                1 => format!("FETCH {TOPIC}/1 0 max_bytes=16777216\n").repeat(3),
                _ => format!("READ {TOPIC}/0 0\n").repeat(100),
            };
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let load = Load::start(server.address, &mut model, 3, 4);
    let mut resident = 0;
    let until = stage.until.max(Instant::now() + LOAD_MIN);
    while Instant::now() < until {
        assert!(
            !load.is_over(),
            "the producers came to an end among slow readers"
        );
        resident = server.resident_bytes().max(resident);
        std::thread::sleep(Duration::from_millis(50));
    }
    let done = load.finish();
    let acked = done.acked();
    assert!(acked > 0, "nothing was appended among slow readers");
    let allowed = RESIDENT_BYTES + RESIDENT_BYTES_EACH * u64::try_from(count).unwrap();
    assert!(
        resident < allowed,
        "{resident} bytes resident, {allowed} are allowed"
    );
    // They still get what they asked for, from where they stopped.
    for (i, stream) in slow.iter_mut().enumerate().step_by(97) {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut head = [0; 3];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"OK ", "reader {i}");
        assert!(drain(stream) > 0, "reader {i}");
    }
    drop(slow);
    model.check(&mut server.client(), &done, Loss::Nothing);
    assert_eq!(server.stop().code(), Some(0));
    verify(&data_dir);
    format!(
        "{count} readers that read nothing, {} MiB resident at most; {acked} records acknowledged among them, all there",
        resident >> 20
    )
}

/// What a bad client sends: bytes, and how they are given.
fn nonsense(random: &mut fastrand::Rng) -> Vec<u8> {
    let number = random
        .choice(&[
            "2147483647",
            "4294967295",
            "-2",
            "99999999999999999999",
            "1048577",
            "0",
        ])
        .unwrap();
    // A wait that is allowed would hold its connection until keepalive finds nobody there, two minutes later.
    let wait = random
        .choice(&["100", "0", "99999999999999999999", "-1", "x"])
        .unwrap();
    match random.u8(..12) {
        0 => (0..random.usize(1..5000)).map(|_| random.u8(..)).collect(),
        1 => format!("PRODUCE other {number} {number}\nabc\n").into_bytes(),
        2 => format!("PRODUCE other -1 {number}\n").into_bytes(),
        3 => format!("BATCH other {number} {number}\n").into_bytes(),
        4 => [
            b"BATCH other 3 24\n".as_slice(),
            &[random.u8(..); 24],
            b"\n",
        ]
        .concat(),
        5 => vec![b'x'; random.usize(60_000..200_000)],
        6 => format!("READ other {number} max={number} wait={wait}\n").into_bytes(),
        7 => format!("FETCH other 0 max_bytes={number} min_bytes={number} wait={wait}\n")
            .into_bytes(),
        8 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nDELETE t\n".to_vec(),
        9 => b"\x16\x03\x01\x02\x00\x01\x00".to_vec(),
        10 => format!("CREATE {}\n", "n".repeat(random.usize(1..400))).into_bytes(),
        _ => (0..random.usize(1..3000))
            .map(|_| random.u8(b' '..0x7f))
            .collect(),
    }
}

/// A client that lives for one piece of nonsense.
fn bad_client(address: std::net::SocketAddr, random: &mut fastrand::Rng, pause: Duration) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let bytes = nonsense(random);
    let half = random.usize(..=bytes.len());
    let _ = match random.u8(..4) {
        // Half a request and gone.
        0 => stream.write_all(&bytes[..half]),
        // Half a request, and this side ends.
        1 => stream
            .write_all(&bytes[..half])
            .and_then(|()| stream.shutdown(Shutdown::Write)),
        // A few single bytes, each in its time.
        2 => bytes.iter().take(4).try_for_each(|byte| {
            std::thread::sleep(pause / 4);
            stream.write_all(&[*byte])
        }),
        _ => stream.write_all(&bytes),
    };
    drain(&mut stream);
}

/// A named figure of STATS.
fn stat(client: &mut Client, name: &str) -> u64 {
    let (_, lines) = client.list("STATS");
    let value = lines
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    value
        .unwrap_or_else(|| panic!("STATS has no {name}"))
        .parse()
        .unwrap()
}

/// Bad clients beside good ones, who notice nothing.
pub(crate) fn garbage(stage: &mut Stage) -> String {
    let mut model = Model::default();
    let data_dir = stage.directory.join("data");
    let server = Server::start(&data_dir, &CONFIGS);
    create_topic(&server);
    let load = Load::start(server.address, &mut model, 3, 4);
    let (until, pause, address) = (stage.until, stage.pause, server.address);
    let bad: Vec<_> = (0..BAD_CLIENTS)
        .map(|_| {
            let mut random = fastrand::Rng::with_seed(stage.random.u64(..));
            std::thread::spawn(move || {
                let mut count = 0;
                while count == 0 || Instant::now() < until {
                    bad_client(address, &mut random, pause);
                    count += 1;
                }
                count
            })
        })
        .collect();
    let bad: u64 = bad.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(
        !load.is_over(),
        "good clients came to an end among bad ones"
    );
    let done = load.finish();
    for produced in &done.produced {
        assert_eq!(produced.last_error, None, "a good client was refused");
    }
    model.check(&mut server.client(), &done, Loss::Nothing);
    let mut client = server.client();
    let begin = Instant::now();
    while stat(&mut client, "connections") > 1 {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "connections of bad clients stay"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let resident = server.resident_bytes();
    assert!(
        resident < RESIDENT_BYTES,
        "{resident} bytes resident after bad clients"
    );
    assert_eq!(server.stop().code(), Some(0));
    verify(&data_dir);
    format!(
        "{bad} bad clients; {} records acknowledged beside them, all there",
        done.acked()
    )
}
