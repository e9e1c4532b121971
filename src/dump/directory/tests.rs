use super::*;
use crate::fs::mem::MemFs;
use crate::fs::{File, OpenMode};
use crate::storage::data_dir::{Checkpoints, DataDir, topics_of};

const ROOT: &str = "/data";

fn put(fs: &MemFs, name: &str, bytes: &[u8]) {
    let path = Path::new(ROOT).join(name);
    let file = fs.open(&path, OpenMode::CreateNew).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// A data directory without topics.
fn directory() -> MemFs {
    let fs = MemFs::new();
    fs.create_dir(Path::new(ROOT)).unwrap();
    fs.create_dir(Path::new("/data/topics")).unwrap();
    fs
}

/// What is found, as file and sentence.
fn findings(fs: &MemFs) -> Result<Vec<(String, String)>, Error> {
    let mut found = Vec::new();
    check(fs, Path::new(ROOT), &|| {}, &mut |finding| {
        let What::File(what) = &finding.what else {
            panic!("{finding:?}")
        };
        found.push((finding.file.clone(), what.clone()));
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn a_check_and_a_start_judge_checkpoints_alike() {
    const GOOD: &[u8] = b"format=1\n";
    // What the file holds, and which offset it gives partition 7 of t: `None` where it is damaged and none counts.
    let table: &[(&[u8], Option<i64>)] = &[
        (b"", Some(0)),
        (b"t 7 5\n", Some(5)),
        (b"a 0 1\nt 7 0\n", Some(0)),
        (b"t 7 5\nt 7 6\n", Some(6)),
        (b"t 7 9223372036854775807\n", Some(i64::MAX)),
        (b"t 7 5", None),
        (b"t 7 -5\n", None),
        (b"a 0 -1\nt 7 5\n", None),
        (b"t 7 5\n\n", None),
        (b"\n", None),
        (b"t 7\n", None),
        (b"t 7 5 6\n", None),
        (b"t  7 5\n", None),
        (b"t seven 5\n", None),
        (b"t -7 5\n", None),
        (b"t 7 9223372036854775808\n", None),
        (b" 7 5\n", None),
        (b"a/b 0 5\nt 7 5\n", None),
        (b"t 7 5\r\n", None),
        (b"t 7 5\n\xff\n", None),
    ];
    for (bytes, expected) in table {
        for name in ["recovery-point", "log-start-offset"] {
            let fs = directory();
            put(&fs, "broker.properties", GOOD);
            put(&fs, name, bytes);
            let shown = String::from_utf8_lossy(bytes);
            let found = findings(&fs).unwrap();
            match expected {
                Some(_) => assert_eq!(found, [], "{name} {shown:?}"),
                None => assert!(
                    matches!(found.as_slice(), [(file, what)]
                        if file == name && what.ends_with("; all of it counts as 0")),
                    "{name} {shown:?}: {found:?}"
                ),
            }
            let checkpoints = Checkpoints::load(fs, Path::new(ROOT));
            let point = checkpoints.recovery_point("t", 7).unwrap_or(0);
            let start = checkpoints.log_start("t", 7);
            let read = if name == "recovery-point" {
                point
            } else {
                start
            };
            assert_eq!(read, expected.unwrap_or(0), "{name} {shown:?}");
        }
    }
}

#[test]
fn a_check_and_a_start_judge_topics_alike() {
    let table: &[(&[u8], bool)] = &[
        (b"partitions=2\n", true),
        (b"partitions=2", true),
        (b"# a remark\npartitions=2\nretention.ms=5\n", true),
        (b"partitions=100000\n", true),
        (b"partitions=100001\n", false),
        (b"partitions=0\n", false),
        (b"partitions=-1\n", false),
        (b"partitions=2\npartitions=x\n", false),
        (b"partitions = 2\n", false),
        (b"", false),
        (b"partitions=2\n\xff\n", false),
    ];
    for (bytes, is_good) in table {
        let fs = directory();
        put(&fs, "broker.properties", b"format=1\n");
        put(&fs, "topics/t", bytes);
        let shown = String::from_utf8_lossy(bytes);
        let found = findings(&fs).unwrap();
        assert_eq!(found.is_empty(), *is_good, "{shown:?}: {found:?}");
        let topics = topics_of(&fs, Path::new(ROOT)).unwrap();
        assert_eq!(!topics.is_empty(), *is_good, "{shown:?}");
    }
}

#[test]
fn a_check_and_a_start_judge_properties_alike() {
    let table: &[(&[u8], bool)] = &[
        (b"format=1\nbroker.id=3\ncluster.id=x\n", true),
        (b" format = 1 \n", true),
        (b"broker.id=0\n", false),
        (b"format=0\n", false),
        (b"format=2\n", false),
        (b"format=one\n", false),
        (b"format=1\nbroker.id=none\n", false),
        (b"format=1\n\xff\n", false),
    ];
    for (bytes, is_good) in table {
        let fs = directory();
        put(&fs, "broker.properties", bytes);
        let shown = String::from_utf8_lossy(bytes);
        let is_clean = findings(&fs).is_ok_and(|found| found.is_empty());
        assert_eq!(is_clean, *is_good, "{shown:?}");
        let locked = DataDir::lock(fs, Path::new(ROOT));
        assert_eq!(locked.is_ok(), *is_good, "{shown:?}");
    }
}

#[test]
fn a_partition_whose_files_are_all_gone_is_a_finding() {
    for (point, topic, is_found) in [
        ("t 0 5\n", "partitions=1\n", true),
        ("t 0 0\n", "partitions=1\n", false),
        ("u 0 5\n", "partitions=1\n", false),
        ("t 0 5\n", "deleted=true\npartitions=1\n", false),
    ] {
        let fs = directory();
        put(&fs, "broker.properties", b"format=1\n");
        put(&fs, "topics/t", topic.as_bytes());
        put(&fs, "recovery-point", point.as_bytes());
        fs.create_dir(Path::new("/data/t-0")).unwrap();
        let found = findings(&fs).unwrap();
        assert_eq!(!found.is_empty(), is_found, "{point:?} {found:?}");
        if let Some((file, what)) = found.first() {
            assert_eq!(file, "t-0");
            assert!(what.contains("below offset 5"), "{what}");
        }
    }
}
