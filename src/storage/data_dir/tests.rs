#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use super::*;
use crate::fs::File;
use crate::fs::fault::{Fault, FaultFs, FaultKind};
use crate::fs::mem::MemFs;

type Faulty = FaultFs<MemFs>;

const ROOT: &str = "/data";

fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn topic(name: &str, partitions: u32) -> TopicFile {
    let configs = vec![("segment.bytes".to_owned(), "1000".to_owned())];
    TopicFile {
        name: name.to_owned(),
        partitions,
        configs,
    }
}

/// A whole start; the directory must be free.
fn start<F: Fs>(fs: F) -> (DataDir<F>, bool, Loaded) {
    let mut dir = DataDir::lock(fs, Path::new(ROOT)).unwrap();
    let is_clean = dir.begin().unwrap();
    let loaded = dir.load_topics().unwrap();
    dir.ensure_spare().unwrap();
    (dir, is_clean, loaded)
}

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded
        .topics
        .iter()
        .map(|topic| topic.name.as_str())
        .collect()
}

fn put<F: Fs>(fs: &F, path: &Path, bytes: &[u8]) {
    let file = fs.open(path, OpenMode::CreateOrKeep).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(path.parent().unwrap()).unwrap();
}

fn text<F: Fs>(fs: &F, name: &str) -> String {
    String::from_utf8(read_file(fs, &path(name), 1 << 20).unwrap()).unwrap()
}

fn chooser(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    move |n| rng.u64(..n)
}

/// Runs an operation with every fault at every place, each time followed by a kill and by power cuts, and asks `check` whether what is left is in
/// order; it is told whether the operation said that it succeeded.
fn at_every_operation(
    build: impl Fn(&Faulty) -> DataDir<Faulty>,
    operation: impl Fn(&DataDir<Faulty>) -> bool,
    check: impl Fn(MemFs, bool),
) {
    for kind in [
        FaultKind::Io,
        FaultKind::NoSpace,
        FaultKind::IoAfter,
        FaultKind::Torn(3),
    ] {
        for from_then_on in [true, false] {
            for at in 0.. {
                let fs = FaultFs::new(MemFs::new());
                let dir = build(&fs);
                fs.arm(Fault {
                    at,
                    from_then_on,
                    kind,
                    reads: false,
                });
                let is_ok = operation(&dir);
                let is_over = fs.struck() == 0;
                assert!(is_ok || !is_over, "it fails without a fault");
                fs.disarm();
                check(fs.inner().kill(), is_ok);
                for seed in 0..12 {
                    check(fs.inner().crash(&mut chooser(seed)), is_ok);
                }
                if is_over {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_new_directory_gets_its_files_and_keeps_its_identity() {
    let fs = MemFs::new();
    let (dir, is_clean, loaded) = start(fs.clone());
    assert!(!is_clean);
    assert_eq!(loaded, Loaded::default());
    let identity = dir.identity().unwrap().clone();
    assert_eq!(
        URL_SAFE_NO_PAD.decode(&identity.cluster_id).unwrap().len(),
        16
    );
    let expected = format!(
        "format=1\nbroker.id=0\ncluster.id={}\n",
        identity.cluster_id
    );
    assert_eq!(text(&fs, "broker.properties"), expected);
    assert_eq!(
        fs.used_bytes(),
        64 * 1024 + 4096,
        "spare and broker.properties"
    );
    drop(dir);
    let disk = fs.crash(&mut |_| 0);
    let (dir, _, _) = start(disk);
    assert_eq!(
        *dir.identity().unwrap(),
        identity,
        "durable when the start is over"
    );
}

#[test]
fn a_second_broker_is_refused_and_changes_nothing() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    let error = DataDir::lock(fs.clone(), Path::new(ROOT))
        .unwrap_err()
        .to_string();
    assert!(error.contains("another broker owns /data"), "{error}");
    assert!(error.contains("--data-dir"), "{error}");
    drop(dir);
    DataDir::lock(fs, Path::new(ROOT)).unwrap();
}

#[test]
fn a_lock_alone_leaves_the_marker() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    dir.write_clean_marker().unwrap();
    drop(dir);
    drop(DataDir::lock(fs.clone(), Path::new(ROOT)).unwrap());
    assert!(fs.exists(&path("clean-shutdown")).unwrap());
    let disk = fs.crash(&mut |_| 0);
    let (_, is_clean, _) = start(disk);
    assert!(is_clean, "the marker is durable when it is written");
}

#[test]
fn the_marker_is_gone_for_good_before_anything_else_changes() {
    let build = |fs: &Faulty| {
        let (dir, _, _) = start(fs.clone());
        dir.write_clean_marker().unwrap();
        drop(dir);
        // A file that the start will want to write.
        fs.remove_file(&path("broker.properties")).unwrap();
        fs.sync_dir(Path::new(ROOT)).unwrap();
        DataDir::lock(fs.clone(), Path::new(ROOT)).unwrap()
    };
    let fs = FaultFs::new(MemFs::new());
    for at in 0..3 {
        let mut dir = build(&fs);
        fs.arm(Fault {
            at,
            from_then_on: true,
            kind: FaultKind::Io,
            reads: false,
        });
        assert!(dir.begin().is_err());
        let disk = fs.inner().crash(&mut |n| n - 1);
        let is_written = disk.exists(&path("broker.properties")).unwrap();
        assert!(!is_written, "operation {at}");
        let may_stay = disk.exists(&path("clean-shutdown")).unwrap();
        assert!(at < 2 || !may_stay, "operation {at}");
        drop(dir);
        fs.disarm();
    }
}

#[test]
fn a_foreign_format_is_refused_by_name() {
    for (content, words) in [
        ("format=2\nbroker.id=0\n", "format=2"),
        ("broker.id=0\n", "no line format=1"),
        ("format=one\n", "no line format=1"),
        ("format=1\nbroker.id=x\n", "broker.id is no number"),
    ] {
        let fs = MemFs::new();
        fs.create_dir(Path::new(ROOT)).unwrap();
        put(&fs, &path("broker.properties"), content.as_bytes());
        let error = DataDir::lock(fs.clone(), Path::new(ROOT))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("/data/broker.properties"), "{error}");
        assert_eq!(text(&fs, "broker.properties"), content);
    }
}

#[test]
fn an_empty_properties_file_counts_as_absent_and_foreign_lines_stay() {
    let fs = MemFs::new();
    fs.create_dir(Path::new(ROOT)).unwrap();
    put(&fs, &path("broker.properties"), b"");
    let (dir, _, _) = start(fs.clone());
    assert!(dir.identity().is_some());
    drop(dir);
    let own = "# by hand\nformat=1\nbroker.id=7\ncluster.id=abc\nrack=west\n";
    put(&fs, &path("broker.properties"), own.as_bytes());
    let (dir, _, _) = start(fs.clone());
    let expected = Identity {
        broker_id: 7,
        cluster_id: "abc".to_owned(),
    };
    assert_eq!(dir.identity(), Some(&expected));
    assert_eq!(text(&fs, "broker.properties"), own);
}

#[test]
fn checkpoints_never_go_back_and_come_back_from_the_disk() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    let points = Rc::clone(dir.checkpoints());
    assert_eq!(
        (points.recovery_point("a", 0), points.log_start("a", 0)),
        (None, 0)
    );
    points.set_recovery_point("a", 0, 5);
    points.set_recovery_point("a", 0, 3);
    points.set_recovery_point("b.c-d", 11, 0);
    points.set_log_start("a", 0, 2);
    assert!(
        !fs.exists(&path("recovery-point")).unwrap(),
        "only in memory so far"
    );
    points.write_recovery_point().unwrap();
    points.write_log_start().unwrap();
    assert_eq!(text(&fs, "recovery-point"), "a 0 5\nb.c-d 11 0\n");
    assert_eq!(text(&fs, "log-start-offset"), "a 0 2\n");
    drop(dir);
    let (dir, _, _) = start(fs.crash(&mut |_| 0));
    let points = dir.checkpoints();
    assert_eq!(points.recovery_point("a", 0), Some(5));
    assert_eq!(points.recovery_point("b.c-d", 11), Some(0));
    assert_eq!(
        (points.recovery_point("a", 1), points.log_start("a", 0)),
        (None, 2)
    );
    points.forget_topic("a");
    points.write_recovery_point().unwrap();
    points.write_log_start().unwrap();
    assert_eq!(points.recovery_point("a", 0), None);
    points.set_recovery_point("a", 0, 1);
    assert_eq!(
        points.recovery_point("a", 0),
        Some(1),
        "a new topic of that name starts anew"
    );
}

#[test]
fn a_checkpoint_is_written_only_where_something_moved() {
    let fs = FaultFs::new(MemFs::new());
    let (dir, _, _) = start(fs.clone());
    let points = dir.checkpoints();
    points.set_recovery_point("a", 0, 5);
    points.write_recovery_point().unwrap();
    fs.arm(Fault {
        at: 0,
        from_then_on: true,
        kind: FaultKind::Io,
        reads: false,
    });
    points.set_recovery_point("a", 0, 5);
    points.write_recovery_point().unwrap();
    points.set_recovery_point("a", 0, 6);
    assert!(points.write_recovery_point().is_err());
    fs.disarm();
    points.write_recovery_point().unwrap();
    assert_eq!(
        text(&fs, "recovery-point"),
        "a 0 6\n",
        "a failure is made good"
    );
}

#[test]
fn an_unreadable_checkpoint_counts_as_nothing() {
    let unreadable: [&[u8]; 9] = [
        b"",
        b"a 0 5",
        b"a 0\n",
        b"a 0 5 6\n",
        b"a x 5\n",
        b"a 0 -5\n",
        b" 0 5\n",
        b"a 0 5\n\xff\n",
        b"a 0 5\n\n",
    ];
    for content in unreadable {
        let fs = MemFs::new();
        fs.create_dir(Path::new(ROOT)).unwrap();
        put(&fs, &path("recovery-point"), content);
        put(&fs, &path("log-start-offset"), content);
        let (dir, _, _) = start(fs);
        let points = dir.checkpoints();
        let found = (points.recovery_point("a", 0), points.log_start("a", 0));
        assert_eq!(found, (None, 0), "{content:?}");
    }
}

#[test]
fn a_text_is_replaced_whole_or_not_at_all() {
    at_every_operation(
        |fs| {
            let (dir, _, _) = start(fs.clone());
            dir.checkpoints()
                .replace_text(&path("topics/t"), "old\n")
                .unwrap();
            dir
        },
        |dir| {
            dir.checkpoints()
                .replace_text(&path("topics/t"), "new text\n")
                .is_ok()
        },
        |disk, is_ok| {
            let found = text(&disk, "topics/t");
            assert!(
                found == "new text\n" || (!is_ok && found == "old\n"),
                "{is_ok} {found}"
            );
            let (dir, _, _) = start(disk.clone());
            dir.checkpoints()
                .replace_text(&path("topics/u"), "next\n")
                .unwrap();
            assert_eq!(
                text(&disk, "topics/t"),
                found,
                "the temporary file was another one"
            );
        },
    );
}

#[test]
fn what_a_failed_replacement_left_is_not_in_the_way_of_the_next() {
    for at in 0..6 {
        let fs = FaultFs::new(MemFs::new());
        let (dir, _, _) = start(fs.clone());
        fs.arm(Fault {
            at,
            from_then_on: true,
            kind: FaultKind::Io,
            reads: false,
        });
        assert!(
            dir.checkpoints()
                .replace_text(&path("topics/t"), "first\n")
                .is_err()
        );
        fs.disarm();
        dir.checkpoints()
            .replace_text(&path("topics/t"), "second\n")
            .unwrap();
        assert_eq!(text(&fs, "topics/t"), "second\n");
    }
}

#[test]
fn a_full_disk_has_room_for_a_text_and_then_asks_for_the_spare_again() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    fs.set_capacity(Some(fs.used_bytes()));
    dir.checkpoints()
        .replace_text(&path("topics/t"), "new\n")
        .unwrap();
    assert_eq!(text(&fs, "topics/t"), "new\n");
    assert!(!fs.exists(&path("spare")).unwrap());
    let file = fs.open(&path("filler"), OpenMode::CreateNew).unwrap();
    file.allocate(4 * 4096).unwrap();
    assert!(dir.ensure_spare().unwrap_err().is_disk_full());
    file.set_len(0).unwrap();
    fs.set_capacity(None);
    dir.ensure_spare().unwrap();
    assert_eq!(
        read_file(&fs, &path("spare"), 1 << 20).unwrap().len(),
        64 * 1024
    );
}

#[test]
fn topics_come_back_with_their_configs() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    dir.create_topic(&topic("orders", 3)).unwrap();
    dir.create_topic(&topic("a-0.b", 1)).unwrap();
    assert_eq!(
        text(&fs, "topics/orders"),
        "partitions=3\nsegment.bytes=1000\n"
    );
    let changed = TopicFile {
        configs: vec![],
        ..topic("orders", 3)
    };
    dir.write_topic(&changed).unwrap();
    let again = dir.create_topic(&topic("orders", 1)).unwrap_err();
    assert!(again.to_string().contains("is damaged"), "{again}");
    drop(dir);
    let (_, _, loaded) = start(fs.crash(&mut |_| 0));
    let topics = vec![topic("a-0.b", 1), changed];
    assert_eq!(
        loaded,
        Loaded {
            topics,
            ..Loaded::default()
        }
    );
}

#[test]
fn a_creation_is_whole_or_nothing_wherever_it_breaks() {
    at_every_operation(
        |fs| {
            let (dir, _, _) = start(fs.clone());
            dir.create_topic(&topic("old", 1)).unwrap();
            dir.checkpoints().set_recovery_point("new", 1, 77);
            dir.checkpoints().write_recovery_point().unwrap();
            dir
        },
        |dir| dir.create_topic(&topic("new", 2)).is_ok(),
        |disk, is_ok| {
            let is_noted = text(&disk, "recovery-point").contains("new");
            let (dir, _, loaded) = start(disk.clone());
            assert!(names(&loaded).contains(&"old"));
            let is_there = names(&loaded).contains(&"new");
            assert!(is_there || !is_ok, "an OK holds");
            assert_eq!(loaded.lost, [], "nothing is missed");
            let (_, _, again) = start(disk.crash(&mut |_| 0));
            assert_eq!(again.topics, loaded.topics, "what a start found stays");
            if is_there {
                assert!(
                    !is_noted,
                    "the lines of an older topic of that name are gone"
                );
                for partition in 0..2 {
                    assert!(disk.exists(&dir.partition_dir("new", partition)).unwrap());
                }
            } else {
                dir.create_topic(&topic("new", 2)).unwrap();
            }
        },
    );
}

#[test]
fn a_deletion_is_whole_or_nothing_wherever_it_breaks() {
    at_every_operation(
        |fs| {
            let (dir, _, _) = start(fs.clone());
            dir.create_topic(&topic("unused", 1)).unwrap();
            for name in ["keep", "gone"] {
                dir.create_topic(&topic(name, 2)).unwrap();
                for partition in 0..2 {
                    let file = dir
                        .partition_dir(name, partition)
                        .join("00000000000000000000.log");
                    put(fs, &file, b"records");
                    dir.checkpoints().set_recovery_point(name, partition, 9);
                    dir.checkpoints().set_log_start(name, partition, 4);
                }
            }
            dir.checkpoints().write_recovery_point().unwrap();
            dir.checkpoints().write_log_start().unwrap();
            dir
        },
        |dir| dir.delete_topic("gone").is_ok() && dir.delete_topic("unused").is_ok(),
        |disk, is_ok| {
            for name in ["gone", "unused"] {
                let is_left = disk.exists(&path("topics").join(name)).unwrap();
                assert!(!is_ok || !is_left, "nothing is left to finish");
            }
            let (dir, _, loaded) = start(disk.clone());
            let there = names(&loaded);
            assert!(there.contains(&"keep"));
            let is_there = there.contains(&"gone");
            assert!(
                !(is_there || there.contains(&"unused")) || !is_ok,
                "an OK holds"
            );
            assert_eq!((&loaded.lost, &loaded.strangers), (&vec![], &vec![]));
            for partition in 0..2 {
                let gone = dir.partition_dir("gone", partition);
                assert_eq!(disk.exists(&gone).unwrap(), is_there);
                if is_there {
                    let file = gone.join("00000000000000000000.log");
                    assert_eq!(read_file(&disk, &file, 99).unwrap(), b"records");
                }
                let expected = is_there.then_some(9);
                assert_eq!(
                    dir.checkpoints().recovery_point("gone", partition),
                    expected
                );
                assert_eq!(dir.checkpoints().recovery_point("keep", partition), Some(9));
                let expected = if is_there { 4 } else { 0 };
                assert_eq!(dir.checkpoints().log_start("gone", partition), expected);
            }
            assert_eq!(disk.exists(&path("topics/gone")).unwrap(), is_there);
        },
    );
}

#[test]
fn a_deletion_goes_in_bounded_steps() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    dir.create_topic(&topic("t", 1)).unwrap();
    let log = path("t-0/00000000000000000000.log");
    let file = fs.open(&log, OpenMode::CreateNew).unwrap();
    file.set_len(200 << 20).unwrap();
    put(&fs, &path("t-0/00000000000000000000.torn.1"), b"x");
    put(&fs, &path("t-0/notes.txt"), b"a stranger's");
    let mut deletion = dir.mark_deleted("t").unwrap();
    assert_eq!(deletion.topic(), "t");
    let mut lens = Vec::new();
    while !dir.delete_step(&mut deletion).unwrap() {
        lens.push(file.len().unwrap() >> 20);
    }
    assert_eq!(
        lens,
        [200, 136, 72, 8, 8],
        "64 MiB at a time, after the other file"
    );
    let left: Vec<_> = fs
        .read_dir(&path("t-0"))
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(left, ["notes.txt"], "what is not the broker's stays");
    drop(dir);
    let (_, _, loaded) = start(fs);
    assert_eq!(loaded.strangers, [path("t-0")]);
}

#[test]
fn a_missing_directory_is_damage_only_with_a_line_in_the_recovery_point() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    dir.create_topic(&topic("t", 3)).unwrap();
    dir.checkpoints().set_recovery_point("t", 2, 40);
    dir.checkpoints().write_recovery_point().unwrap();
    drop(dir);
    fs.remove_dir(&path("t-1")).unwrap();
    fs.remove_dir(&path("t-2")).unwrap();
    let (dir, _, loaded) = start(fs.clone());
    assert_eq!(loaded.lost, [("t".to_owned(), 2)]);
    assert!(fs.exists(&path("t-1")).unwrap() && fs.exists(&path("t-2")).unwrap());
    assert_eq!(
        dir.checkpoints().recovery_point("t", 2),
        Some(40),
        "the offsets go on there"
    );
}

#[test]
fn strangers_are_named_and_left_alone() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    dir.create_topic(&topic("t", 1)).unwrap();
    drop(dir);
    for name in ["t-1", "t-00", "u-0", "t", "-0", "topics/sub"] {
        fs.create_dir(&path(name)).unwrap();
    }
    for name in [
        "notes",
        "t-5",
        "topics/.hidden!",
        "topics/empty",
        "topics/garbage",
    ] {
        put(&fs, &path(name), b"");
    }
    put(&fs, &path("topics/garbage"), b"\xff\xff");
    put(&fs, &path("topics/none"), b"partitions=0\n");
    put(&fs, &path("topics/many"), b"partitions=100001\n");
    let (_, _, loaded) = start(fs.clone());
    assert_eq!(names(&loaded), ["t"]);
    let mut strangers = loaded.strangers;
    strangers.sort();
    let mut expected: Vec<_> = [
        "t-1",
        "t-00",
        "u-0",
        "t",
        "-0",
        "notes",
        "t-5",
        "topics/sub",
        "topics/.hidden!",
        "topics/empty",
        "topics/garbage",
        "topics/none",
        "topics/many",
    ]
    .map(path)
    .into();
    expected.sort();
    assert_eq!(strangers, expected);
    assert!(expected.iter().all(|path| fs.exists(path).unwrap()));
}

#[test]
fn a_topic_is_not_created_over_records_of_a_stranger() {
    let fs = MemFs::new();
    let (dir, _, _) = start(fs.clone());
    for name in ["full-1", "empty-0"] {
        fs.create_dir(&path(name)).unwrap();
    }
    put(&fs, &path("full-1/00000000000000000007.log"), b"records");
    let refused = dir.create_topic(&topic("full", 2)).unwrap_err();
    assert!(matches!(&refused, CreateError::Stranger(dir) if *dir == path("full-1")));
    assert!(refused.to_string().contains("/data/full-1"), "{refused}");
    assert!(!fs.exists(&path("full-0")).unwrap() && !fs.exists(&path("topics/full")).unwrap());

    for (name, content) in [
        ("00000000000000000007.log", ""),
        ("00000000000000000007.index", "xx"),
        ("00000000000000000003.torn", "cut"),
        ("notes.log", "not ours"),
    ] {
        put(&fs, &path("empty-0").join(name), content.as_bytes());
    }
    dir.create_topic(&topic("empty", 1)).unwrap();
    let left: Vec<_> = fs
        .read_dir(&path("empty-0"))
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(left, ["00000000000000000003.torn", "notes.log"]);
}

#[test]
fn the_last_dash_splits_and_numbers_are_canonical() {
    assert_eq!(parse_partition_dir("orders-0"), Some(("orders", 0)));
    assert_eq!(parse_partition_dir("a.b-c-12"), Some(("a.b-c", 12)));
    assert_eq!(parse_partition_dir("--1"), Some(("-", 1)));
    assert_eq!(parse_partition_dir("t-99999"), Some(("t", 99_999)));
    let longest = "x".repeat(249);
    let name = partition_dir_name(&longest, PARTITIONS_MAX - 1);
    assert_eq!(name.len(), 255);
    assert_eq!(parse_partition_dir(&name), Some((longest.as_str(), 99_999)));
    for foreign in [
        "orders",
        "orders-",
        "-0",
        "orders-00",
        "orders-+1",
        "orders-1x",
        "or ders-1",
        ".-1",
        "..-1",
        "t-100000",
        "t-4294967296",
        "é-1",
    ] {
        assert_eq!(parse_partition_dir(foreign), None, "{foreign}");
    }
    assert_eq!(parse_partition_dir(&format!("{longest}y-0")), None);
}

#[test]
fn it_works_on_a_real_disk() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("data");
    let fs = crate::fs::disk::DiskFs;
    let mut dir = DataDir::lock(fs, &root).unwrap();
    assert!(!dir.begin().unwrap());
    assert_eq!(dir.load_topics().unwrap(), Loaded::default());
    dir.ensure_spare().unwrap();
    dir.create_topic(&topic("t", 2)).unwrap();
    assert!(dir.free_bytes().unwrap() > 0);
    assert!(DataDir::lock(fs, &root).is_err());
    dir.write_clean_marker().unwrap();
    drop(dir);
    let mut dir = DataDir::lock(fs, &root).unwrap();
    assert!(dir.begin().unwrap());
    assert_eq!(names(&dir.load_topics().unwrap()), ["t"]);
    dir.delete_topic("t").unwrap();
    assert_eq!(dir.load_topics().unwrap(), Loaded::default());
}
