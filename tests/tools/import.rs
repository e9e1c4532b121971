//! import: a flat version-1 file into a directory, or through a broker.

use std::fs;

use crate::harness::Server;
use crate::setup::{Dir, str, tool};

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
fn import_says_exactly_what_it_stored_where_a_record_is_refused() {
    let dir = Dir::new();
    let server = Server::start(&dir.data, &[]);
    let address = server.address.to_string();
    let original = "tests/data/original-v1.log";
    // Of its records only one has more bytes, the 107th.
    let config = "retention.ms=-1 max.message.bytes=20000";
    assert_eq!(server.client().ask(&format!("CREATE t {config}")), "OK");
    let (code, out, err) = tool(&["import", original, "t", "--connect", &address]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.starts_with("mini-broker: record 107 was refused: ERR MESSAGE_TOO_LARGE ")
            && err.ends_with(&format!(
                "; of {original} were imported: 107 records, 1 to 106, 108\n"
            )),
        "{err}"
    );
    assert_eq!(server.client().list("OFFSETS t").1, ["0\t0\t107"]);

    // So many that a window of them is on the way when the first is refused: nothing is sent after that.
    let flat = dir.data.with_extension("flat");
    let bytes = fs::read(original).unwrap();
    fs::write(&flat, bytes.repeat(200)).unwrap();
    let (code, _, err) = tool(&["import", str(&flat), "t", "--connect", &address]);
    assert_eq!(code, 1);
    assert!(err.contains("record 107 was refused"), "{err}");
    let (_, listed) = err.split_once("were imported: ").unwrap();
    let count: u64 = listed.split(' ').next().unwrap().parse().unwrap();
    assert!(count < 10_000, "{err}");
    let ranges = listed.trim_end().split(", ").skip(1).map(|range| {
        let (first, last) = range.split_once(" to ").unwrap_or((range, range));
        let number = |text: &str| text.parse::<u64>().unwrap();
        number(last) - number(first) + 1
    });
    assert_eq!(ranges.sum::<u64>(), count, "{err}");
    let latest = 107 + count;
    assert_eq!(
        server.client().list("OFFSETS t").1,
        [format!("0\t0\t{latest}")]
    );

    assert_eq!(server.stop().code(), Some(0));
    let (code, _, err) = tool(&["import", original, "t", "--data-dir", str(&dir.data)]);
    assert_eq!(code, 1);
    assert!(
        err.contains("record 107 was refused: ")
            && err.ends_with("were imported: 106 records, 1 to 106\n"),
        "{err}"
    );
}

#[test]
fn import_says_what_is_not_known_where_the_broker_goes_away() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let broker = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut first = [0; 7];
        std::io::Read::read_exact(&mut stream, &mut first).unwrap();
        std::io::Write::write_all(&mut stream, b"OK 0 0\nOK 0 1\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    });
    let original = "tests/data/original-v1.log";
    let (code, _, err) = tool(&["import", original, "t", "--connect", &address]);
    assert_eq!(code, 1);
    assert!(
        err.contains("closed the connection; whether records 3 to 108 arrived is not known; of ")
            && err.ends_with("were imported: 2 records, 1 to 2\n"),
        "{err}"
    );
    broker.join().unwrap();
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
