//! dump, verify, import and shell: the real binary over data directories made through the library, and every byte of one damaged.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use harness::{BINARY, Server};
use mini_broker::api::{Now, Payload, Target};
use mini_broker::broker::{Broker, Settings};
use mini_broker::clock::{Clock, ManualClock};
use mini_broker::dump::directory::{self, What};
use mini_broker::fs::disk::DiskFs;
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode, ReadAt};

/// Records of [`fill`]; three segments of the topic `orders`.
const RECORDS: i64 = 60;
/// 2025-12-30T00:00:00Z.
const START_MS: i64 = 1_767_052_800_000;

/// A broker that was stopped in order after `records` appends to orders/0, one a second; 69 bytes each.
fn fill<F: Fs>(fs: F, data_dir: &Path, records: i64) {
    let mut settings = Settings::new(data_dir);
    let configs = [("segment.bytes", "1700"), ("index.interval.bytes", "300")];
    settings.configs = configs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let clock = ManualClock::new(Now {
        wall_ms: START_MS,
        mono: Duration::ZERO,
    });
    let mut broker = Broker::open(fs, settings, &clock, || Ok(())).unwrap();
    for number in 0..records {
        let (key, value) = (
            format!("key-{number:04}"),
            format!("the value of record # {number:04}"),
        );
        let payload = Payload::Record {
            timestamp: Some(START_MS + 1000 * number),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        };
        let target = Target {
            topic: b"orders",
            partition: Some(0),
        };
        broker.append(target, &payload, clock.now()).unwrap();
        broker.flush(&clock);
        broker.end_turn();
    }
    broker.close(&clock).unwrap();
}

struct Dir {
    _temp: tempfile::TempDir,
    data: PathBuf,
}

impl Dir {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("data");
        Self { _temp: temp, data }
    }

    fn filled() -> Self {
        let dir = Self::new();
        fill(DiskFs, &dir.data, RECORDS);
        dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.data.join("orders-0").join(name)
    }

    fn log(&self, base: i64) -> PathBuf {
        self.file(&format!("{base:020}.log"))
    }

    /// Every file with its content and when it was last changed.
    fn state(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let mut state = BTreeMap::new();
        let mut dirs = vec![self.data.clone()];
        while let Some(dir) = dirs.pop() {
            let changed = fs::metadata(&dir).unwrap().modified().unwrap();
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let changed = fs::metadata(&path).unwrap().modified().unwrap();
                    state.insert(path.clone(), (fs::read(&path).unwrap(), changed));
                }
            }
            state.insert(dir, (Vec::new(), changed));
        }
        state
    }
}

fn edit(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    edit(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Exit code, stdout, stderr.
fn tool(args: &[&str]) -> (i32, String, String) {
    tool_with_input(args, b"")
}

fn tool_with_input(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut child = Command::new(BINARY)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn dump_prints_every_record_of_a_log() {
    let dir = Dir::filled();
    let (code, out, _) = tool(&["dump", str(&dir.log(0))]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 24);
    assert_eq!(
        lines[2],
        "offset: 2 position: 140 timestamp: 1767052802000 key_size: 8 value_size: 26 crc: ok"
    );
    let (_, out, _) = tool(&["dump", "--payload", str(&dir.log(24))]);
    assert!(
        out.starts_with(
            "offset: 24 position: 0 timestamp: 1767052824000 key_size: 8 value_size: 26 crc: ok \
             key: key-0024 value: the value of record # 0024\n"
        ),
        "{out}"
    );
    let (_, out, _) = tool(&[
        "dump",
        "--json",
        "--payload",
        str(&dir.log(0)),
        str(&dir.log(24)),
    ]);
    assert_eq!(out.lines().count(), 48);
    assert_eq!(
        out.lines().next().unwrap(),
        "{\"offset\":0,\"position\":0,\"timestamp\":1767052800000,\"key_size\":8,\"value_size\":26,\
         \"crc\":\"ok\",\"key\":\"key-0000\",\"value\":\"the value of record # 0000\"}"
    );
}

#[test]
fn dump_prints_indexes_as_kafkas_tool_does_and_verifies_them() {
    let dir = Dir::filled();
    let index = dir.file("00000000000000000024.index");
    let expected = "offset: 24 position: 0\noffset: 29 position: 350\noffset: 34 position: 700\n\
                    offset: 39 position: 1050\noffset: 44 position: 1400\n";
    assert_eq!(
        tool(&["dump", str(&index)]),
        (0, expected.to_owned(), String::new())
    );
    assert_eq!(tool(&["dump", "--verify", str(&index)]).0, 0);
    let (_, out, _) = tool(&["dump", "--json", str(&index)]);
    assert!(
        out.starts_with("{\"offset\":24,\"position\":0}\n{\"offset\":29,\"position\":350}\n"),
        "{out}"
    );
    let time = dir.file("00000000000000000024.timeindex");
    let (code, out, _) = tool(&["dump", "--verify", str(&time)]);
    let first = "timestamp: 1767052824000 offset: 24\ntimestamp: 1767052829000 offset: 29\n";
    assert!(code == 0 && out.starts_with(first), "{out}");
    assert!(
        out.ends_with("timestamp: 1767052847000 offset: 47\n"),
        "{out}"
    );

    edit(&index, |bytes| bytes[15] += 1);
    assert_eq!(
        tool(&["dump", str(&index)]).0,
        0,
        "by itself the row may be right"
    );
    let (code, out, _) = tool(&["dump", "--verify", str(&index)]);
    assert_eq!(code, 1);
    assert!(
        out.ends_with("damaged row 2: points to position 351, where no entry starts\n"),
        "{out}"
    );
    edit(&index, |bytes| bytes.truncate(39));
    let (code, out, _) = tool(&["dump", "--json", str(&index)]);
    assert_eq!(code, 1);
    assert!(
        out.ends_with("{\"row\":null,\"error\":\"7 bytes are left over behind the last row\"}\n"),
        "{out}"
    );
}

#[test]
fn dump_reads_a_file_of_the_original_program() {
    let (code, out, _) = tool(&["dump", "--json", "tests/data/original-v1.log"]);
    assert_eq!(code, 0);
    assert_eq!(out.lines().count(), 108);
    assert_eq!(
        out.lines().nth(101).unwrap(),
        "{\"offset\":101,\"position\":3608,\"timestamp\":1767225800001,\"key_size\":8,\"value_size\":-1,\"crc\":null}"
    );
}

#[test]
fn a_damaged_record_is_named_and_stepped_over() {
    let dir = Dir::filled();
    // The last byte of record 26, and the first of record 30's magic.
    edit(&dir.log(24), |bytes| {
        bytes[3 * 70 - 1] ^= 1;
        bytes[6 * 70] ^= 1;
    });
    let (code, out, _) = tool(&["dump", str(&dir.log(24))]);
    assert_eq!(code, 1);
    assert!(
        out.contains("offset: 26 position: 140 timestamp: 1767052826000 key_size: 8 value_size: 26 crc: bad error: crc is "),
        "{out}"
    );
    assert!(
        out.contains(
            "damaged offset: 30 position: 420 next_offset: 34 next_position: 700 error: magic is CBFE, not CAFE\n"
        ),
        "{out}"
    );
    let (code, out, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with(
            "topic: orders partition: 0 offset: 26 position: 140 file: 00000000000000000024.log error: crc is "
        ) && lines[0].ends_with("; reading goes on at offset 27"),
        "{out}"
    );
    assert!(
        lines[1].starts_with("topic: orders partition: 0 offset: 30 position: 420 "),
        "{out}"
    );
    assert!(
        lines[2].contains("damaged: 2; partitions: 1, segments: 3, good records: 55, "),
        "{out}"
    );
    assert_eq!(lines.len(), 3);
    let (code, out, _) = tool(&["verify", "--json", str(&dir.data)]);
    assert_eq!((code, out.lines().count()), (1, 2));
    let found: serde_json::Value = serde_json::from_str(out.lines().nth(1).unwrap()).unwrap();
    assert_eq!(found["topic"], "orders");
    assert_eq!(found["partition"], 0);
    assert_eq!(found["offset"], 30);
    assert_eq!(found["position"], 420);
    assert_eq!(found["next_offset"], 34);
    assert_eq!(found["error"], "magic is CBFE, not CAFE");
}

#[test]
fn each_of_several_damaged_records_in_a_row_is_named() {
    let dir = Dir::filled();
    edit(&dir.log(24), |bytes| {
        for record in 2..5 {
            bytes[record * 70 + 69] ^= 1;
        }
    });
    let (_, out, _) = tool(&["verify", "--json", str(&dir.data)]);
    let found: Vec<(i64, i64, i64)> = out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|found| {
            let number = |name: &str| found[name].as_i64().unwrap();
            (number("offset"), number("position"), number("next_offset"))
        })
        .collect();
    assert_eq!(found, [(26, 140, 27), (27, 210, 28), (28, 280, 29)]);
}

#[test]
fn a_log_that_was_cut_is_told_from_one_that_is_whole() {
    let dir = Dir::filled();
    let last = dir.log(48);
    let whole = fs::read(&last).unwrap();
    // Half a record behind the last: what a killed broker may leave.
    fs::write(&last, [&whole[..], &whole[..35]].concat()).unwrap();
    let (code, out, _) = tool(&["dump", str(&last)]);
    assert_eq!(code, 1);
    assert!(
        out.lines()
            .last()
            .unwrap()
            .starts_with("torn offset: 60 position: 840 next_offset: - "),
        "{out}"
    );
    assert_eq!(tool(&["verify", str(&dir.data)]).0, 1);
    // Durable records that are gone, cut at a record's boundary.
    fs::write(&last, &whole[..70 * 10]).unwrap();
    let (code, out, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    let expected = "topic: orders partition: 0 offset: 58 position: 700 file: 00000000000000000048.log \
                    error: the log ends here, and records that should follow are gone; reading goes on at offset 60\n";
    assert!(out.contains(expected), "{out}");
    fs::write(&last, &whole).unwrap();
    edit(&dir.log(0), |bytes| bytes.truncate(23 * 70));
    let (code, out, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(
        out.contains("offset: 23 position: 1610 file: 00000000000000000000.log"),
        "{out}"
    );
}

#[test]
fn one_damaged_byte_anywhere_in_a_log_or_an_index_is_found() {
    let (fs, root) = (MemFs::new(), Path::new("/data"));
    fill(fs.clone(), root, RECORDS);
    let findings = || {
        let mut found = Vec::new();
        let totals = directory::check(&fs, root, &|| {}, &mut |finding| {
            found.push(finding.clone());
            Ok(())
        });
        (found, totals.unwrap())
    };
    let (found, totals) = findings();
    assert_eq!(
        (found, totals.records),
        (Vec::new(), RECORDS.unsigned_abs())
    );
    let dir = root.join("orders-0");
    let mut damaged = 0;
    for entry in fs.read_dir(&dir).unwrap() {
        let name = entry.name.to_str().unwrap();
        let Some((_, suffix)) = name.split_once('.') else {
            continue;
        };
        let file = fs.open(&dir.join(name), OpenMode::Write).unwrap();
        for position in 0..entry.len {
            let mut byte = [0];
            assert_eq!(file.read_at(&mut byte, position).unwrap(), 1);
            for bit in [0x01, 0x80] {
                file.write_all_at(&[byte[0] ^ bit], position).unwrap();
                let (found, totals) = findings();
                let place = format!("{name} byte {position} bit {bit:#x}: {found:?}");
                assert!(!found.is_empty(), "{place}");
                assert!(found.iter().all(|finding| finding.file == name), "{place}");
                match suffix {
                    "log" => assert!(names_its_record(&found, position), "{place}"),
                    _ => assert_eq!(totals.records, RECORDS.unsigned_abs(), "{place}"),
                }
                damaged += 1;
            }
            file.write_all_at(&byte, position).unwrap();
        }
    }
    assert!(damaged > 2 * 70 * RECORDS, "{damaged}");
}

/// Whether the first finding is the record that the byte is in.
fn names_its_record(found: &[directory::Finding], byte: u64) -> bool {
    match &found[0].what {
        What::Damage(damage) => {
            let first = found[0].file[..20].parse::<i64>().unwrap();
            damage.position == byte / 70 * 70
                && damage.offset == first + i64::try_from(byte / 70).unwrap()
                && damage.next_position > byte
        }
        What::Lost { .. } | What::Row(_) | What::File(_) => false,
    }
}

#[test]
fn dump_and_verify_change_nothing_and_create_nothing() {
    let dir = Dir::filled();
    edit(&dir.log(24), |bytes| bytes[100] ^= 1);
    let before = dir.state();
    let files: Vec<&Path> = before.keys().map(PathBuf::as_path).collect();
    for file in files.iter().filter(|file| file.extension().is_some()) {
        tool(&["dump", "--verify", "--payload", str(file)]);
    }
    tool(&["verify", str(&dir.data)]);
    assert_eq!(dir.state(), before);
    let missing = dir.file("00000000000000000099.log");
    assert_eq!(tool(&["dump", str(&missing)]).0, 1);
    assert_eq!(tool(&["verify", str(&dir.data.join("none"))]).0, 1);
    assert_eq!(dir.state(), before);
}

#[test]
fn verify_and_dump_work_beside_a_broker_that_writes() {
    let dir = Dir::new();
    let args = [
        "--fsync",
        "never",
        "--config",
        "segment.bytes=200000",
        "--config",
        "index.interval.bytes=500",
    ];
    let server = Server::start(&dir.data, &args);
    let address = server.address;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        let mut number = 0;
        while matches!(
            stopped.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Empty)
        ) {
            let lines = format!("PUT orders/0:k{number} {}\n", "v".repeat(number % 400)).repeat(50);
            stream.write_all(lines.as_bytes()).unwrap();
            for _ in 0..50 {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
                assert!(line.starts_with("OK "), "{line}");
            }
            number += 1;
        }
    });
    server.client().ask("CREATE others");
    for _ in 0..10 {
        let (code, out, err) = tool(&["verify", str(&dir.data)]);
        assert_eq!(code, 0, "{out}{err}");
        let mut logs: Vec<PathBuf> = fs::read_dir(dir.data.join("orders-0"))
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        logs.sort();
        for file in logs
            .iter()
            .rev()
            .filter(|path| path.extension().is_some())
            .take(3)
        {
            let (code, out, err) = tool(&["dump", "--verify", "--json", str(file)]);
            assert_eq!(
                code,
                0,
                "{}: {}{err}",
                file.display(),
                out.lines().last().unwrap_or_default()
            );
        }
    }
    drop(stop);
    writer.join().unwrap();
    assert!(server.stop().success());
    assert_eq!(tool(&["verify", str(&dir.data)]).0, 0);
}

#[test]
fn verify_refuses_what_is_no_data_directory_and_names_damaged_text_files() {
    let dir = Dir::filled();
    let parent = dir.data.parent().unwrap();
    let (code, out, err) = tool(&["verify", str(parent)]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.contains("is no data directory") && err.lines().count() == 1,
        "{err}"
    );
    fs::write(dir.data.join("topics/orders"), "partitions=many\n").unwrap();
    let (code, out, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with("topic: orders file: topics/orders error: it has no line partitions=<n>"),
        "{out}"
    );
    fs::write(dir.data.join("topics/orders"), "partitions=1\n").unwrap();
    fs::write(dir.data.join("recovery-point"), "orders zero 0\n").unwrap();
    let (code, out, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(out.starts_with("file: recovery-point error: "), "{out}");
    edit(&dir.data.join("broker.properties"), |bytes| bytes[7] = b'9');
    let (code, _, err) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(err.contains("has format 9"), "{err}");
}

#[test]
fn import_keeps_keys_values_and_timestamps() {
    let dir = Dir::new();
    let original = "tests/data/original-v1.log";
    let (code, out, err) = tool(&["import", original, "old", "--data-dir", str(&dir.data)]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(
        out,
        format!("imported 108 records of {original} into old\n")
    );
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let (code, _, err) = tool(&["import", original, "old", "--data-dir", str(&dir.data)]);
    assert_eq!(code, 1, "the directory is in use");
    assert!(err.contains("--connect"), "{err}");
    let (code, out, _) = tool(&["import", original, "old/0", "--connect", &address]);
    assert_eq!(
        (code, out),
        (
            0,
            format!("imported 108 records of {original} into old/0\n")
        )
    );
    let fields = |offset: usize| {
        let mut client = server.client();
        let line = client.ask(&format!("READ old {offset} max=1 as=json"));
        assert!(line.starts_with("OK 1 "), "{line}");
        let record: serde_json::Value = serde_json::from_str(&client.line()).unwrap();
        assert_eq!(record["offset"], offset);
        record
    };
    for offset in (0..108).chain([216 - 108, 215]) {
        let (imported, at) = (fields(offset), offset % 108);
        let mut again = fields(108 + at);
        again["offset"] = imported["offset"].clone();
        assert_eq!(imported, again, "the same through a broker");
        if at < 100 {
            assert_eq!(
                imported["timestamp"],
                1_767_225_600_000 + 1000 * i64::try_from(at).unwrap()
            );
            assert_eq!(imported["key"], format!("key-{at}"));
            assert_eq!(imported["value"], format!("value-{at}"));
        }
    }
    assert_eq!(
        (&fields(102)["key"], &fields(102)["value"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(
        (&fields(103)["key"], &fields(103)["value"]),
        (&"".into(), &"".into())
    );
    assert_eq!(fields(106)["value"].as_str().unwrap().len(), 32_767);
}

#[test]
fn import_takes_what_comes_before_damage_and_names_the_place() {
    let dir = Dir::new();
    let flat = dir.data.with_extension("flat");
    let original = fs::read("tests/data/original-v1.log").unwrap();
    fs::write(&flat, &original[..2000]).unwrap();
    let (code, out, err) = tool(&["import", str(&flat), "cut", "--data-dir", str(&dir.data)]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.contains(
            "is damaged at position 1996 (a record is cut short); the 56 records before it"
        ),
        "{err}"
    );
    // Version 1 has no checksum: a wrong length shows by what follows it, so the record itself is the bad one.
    let mut bytes = original.clone();
    bytes[19] += 1;
    fs::write(&flat, &bytes).unwrap();
    let (code, _, err) = tool(&["import", str(&flat), "none", "--data-dir", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(
        err.contains("damaged at position 0 (") && err.contains("the 0 records before it"),
        "{err}"
    );
    fs::copy("tests/data/golden-v2.log", &flat).unwrap();
    let (code, _, err) = tool(&["import", str(&flat), "v2", "--data-dir", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(
        err.contains("version 2; import takes a flat file of version 1"),
        "{err}"
    );
    let (code, _, _) = tool(&["verify", str(&dir.data)]);
    assert_eq!(code, 0);
    for (target, words) in [
        ("a b", "not the name of a topic"),
        ("a/x", "not the number of a partition"),
        ("a/-1", ""),
    ] {
        let (code, _, err) = tool(&["import", str(&flat), target, "--data-dir", str(&dir.data)]);
        assert!(code == 2 && err.contains(words), "{target}: {err}");
    }
}

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
    let (code, out, err) = shell(&["PRODUCE orders -1 2", "toolong", "QUIT", "PING"]);
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

#[test]
fn a_reader_that_goes_away_is_a_quiet_end() {
    let dir = Dir::new();
    fill(DiskFs, &dir.data, RECORDS);
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let many = vec!["tests/data/original-v1.log"; 40];
    let shell = [
        "shell",
        "--connect",
        &address,
        "READ orders 0 max=3000",
        "READ orders 0 max=3000",
    ];
    let dump = [&["dump", "--payload"][..], &many].concat();
    for args in [&shell[..], &dump] {
        let mut child = Command::new(BINARY)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn what_is_typed_wrongly_gets_one_clear_answer() {
    for (args, code, words) in [
        (&["dump"][..], 2, "<FILE>"),
        (
            &["dump", "Cargo.toml"],
            1,
            "is not a .log, .index or .timeindex file",
        ),
        (
            &["dump", "none.log"],
            1,
            "cannot read none.log: No such file",
        ),
        (&["verify"], 2, "<DIR>"),
        (&["verify", "none"], 1, "cannot read none: No such file"),
        (&["verify", "--frob", "x"], 2, "--frob"),
        (&["import", "x"], 2, "TOPIC"),
        (
            &["import", "none.log", "x"],
            1,
            "cannot read none.log: No such file",
        ),
        (
            &["import", "x", "y", "--connect", "a:1", "--data-dir", "d"],
            2,
            "--data-dir",
        ),
        (
            &["shell", "--connect", "127.0.0.1:1", "PING"],
            1,
            "cannot connect to 127.0.0.1:1: Connection refused",
        ),
        (
            &["shell", "--connect", "nowhere", "PING"],
            1,
            "cannot connect to nowhere",
        ),
    ] {
        let (found, _, err) = tool(args);
        assert!(
            found == code && err.contains(words),
            "{args:?}: {found} {err}"
        );
    }
    assert!(!Path::new("data").exists());
}
