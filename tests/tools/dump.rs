//! dump and verify: what they print, what they find, and that they only read.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mini_broker::api::{
    ConnectionId, CrcMode, ErrorCode, Now, OffsetSpec, Request, Response, Target,
};
use mini_broker::broker::{Broker, Outcome, Settings};
use mini_broker::clock::{Clock, ManualClock};
use mini_broker::dump::directory::{self, What};
use mini_broker::fs::mem::MemFs;
use mini_broker::fs::{File, Fs, OpenMode, ReadAt};

use crate::harness::Server;
use crate::setup::{Dir, RECORDS, START_MS, edit, fill, str, tool};

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

#[test]
fn verify_and_a_reader_agree_on_what_is_lost() {
    // Every thirteenth byte, so that all parts of a record are met; the last segment is left out, because a start may cut it.
    for position in (0..1680).step_by(13) {
        for log in [0, 24] {
            let (fs, root) = (MemFs::new(), Path::new("/data"));
            fill(fs.clone(), root, RECORDS);
            let path = root.join(format!("orders-0/{log:020}.log"));
            let file = fs.open(&path, OpenMode::Write).unwrap();
            let mut byte = [0];
            file.read_at(&mut byte, position).unwrap();
            file.write_all_at(&[byte[0] ^ 0x40], position).unwrap();
            let mut found = Vec::new();
            directory::check(&fs, root, &|| {}, &mut |finding| {
                let What::Damage(damage) = &finding.what else {
                    panic!("{finding:?}")
                };
                found.push((damage.offset, damage.position, damage.next_offset.unwrap()));
                Ok(())
            })
            .unwrap();
            assert!(!found.is_empty());
            assert_eq!(
                lost_to_a_reader(fs, root),
                found,
                "segment {log}, byte {position}"
            );
        }
    }
}

/// Offset, position and next of each ERR CORRUPT that a reader of everything meets.
fn lost_to_a_reader(fs: MemFs, root: &Path) -> Vec<(i64, u64, i64)> {
    let clock = ManualClock::new(Now {
        wall_ms: START_MS,
        mono: Duration::ZERO,
    });
    let mut broker = Broker::open(fs, Settings::new(root), &clock, || Ok(())).unwrap();
    let mut lost = Vec::new();
    let mut offset = 0;
    while offset < RECORDS {
        let request = Request::Read {
            target: Target {
                topic: b"orders",
                partition: Some(0),
            },
            from: OffsetSpec::Offset(offset),
            max_records: 7,
            wait: Duration::ZERO,
            crc: CrcMode::Check,
        };
        match broker.handle(ConnectionId(1), &request, clock.now()) {
            Outcome::Reply(Response::Records { next_offset, .. }) => offset = next_offset,
            Outcome::Reply(Response::Error(error)) => {
                assert_eq!(error.code, ErrorCode::Corrupt, "{error}");
                let field = |name: &str| {
                    let value = error
                        .message
                        .split(' ')
                        .find_map(|word| word.strip_prefix(name));
                    value.unwrap().parse::<i64>().unwrap()
                };
                assert_eq!(field("offset="), offset);
                lost.push((offset, field("position=").unsigned_abs(), field("next=")));
                offset = field("next=");
            }
            other => panic!("{other:?}"),
        }
    }
    lost
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
