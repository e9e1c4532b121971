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
