#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;

use super::*;
use crate::fs::read_file;

/// A small generator, so that outcomes are many and the same in every run.
fn chooser(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % n
    }
}

/// What is seen of a file in many crashes: `None` where it is not there.
fn outcomes(fs: &MemFs, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    let read = |seed| {
        let disk = fs.crash(&mut chooser(seed));
        let path = Path::new(path);
        disk.exists(path)
            .unwrap()
            .then(|| read_file(&disk, path, 1 << 20).unwrap())
    };
    (0..400).map(read).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "it is what an outcome looks like")]
fn some(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

#[test]
fn it_passes_the_conformance_tests() {
    crate::fs::conformance::check(&MemFs::new(), Path::new("/"));
}

#[test]
fn a_name_is_certain_only_after_its_directory_was_synced() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(outcomes(&fs, "/f"), BTreeSet::from([None, some(b"abc")]));
    fs.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&fs, "/f"), BTreeSet::from([some(b"abc")]));
    fs.remove_file(Path::new("/f")).unwrap();
    assert_eq!(outcomes(&fs, "/f"), BTreeSet::from([None, some(b"abc")]));
}

#[test]
fn unsynced_pages_and_lengths_are_kept_in_any_subset() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[2; 8192], 0).unwrap();
    file.set_len(8193).unwrap();
    let seen: BTreeSet<(u8, u8, usize)> = outcomes(&fs, "/f")
        .into_iter()
        .map(|content| {
            let content = content.unwrap();
            (content[0], content[8191], content.len())
        })
        .collect();
    let all = [1, 2].into_iter().flat_map(|a| [1, 2].map(|b| (a, b)));
    let all = all
        .flat_map(|(a, b)| [8192, 8193].map(|len| (a, b, len)))
        .collect();
    assert_eq!(seen, all);
}

#[test]
fn what_lies_behind_the_length_that_was_kept_is_gone() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"XYZdef", 0).unwrap();
    for seed in 0..50 {
        let disk = fs.crash(&mut chooser(seed));
        let file = disk.open(Path::new("/f"), OpenMode::Write).unwrap();
        let len = usize::try_from(file.len().unwrap()).unwrap();
        file.set_len(9).unwrap();
        let content = read_file(&disk, Path::new("/f"), 9).unwrap();
        assert!(
            content[len..].iter().all(|&byte| byte == 0),
            "{len} {content:?}"
        );
    }
}

#[test]
fn what_was_cut_may_come_back_until_a_sync() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.write_all_at(b"abcdef", 0).unwrap();
    file.sync_data().unwrap();
    file.set_len(2).unwrap();
    file.write_all_at(b"XY", 2).unwrap();
    let seen = outcomes(&fs, "/f");
    assert!(seen.contains(&some(b"abcdef")));
    assert!(seen.contains(&some(b"abXY")));
    assert!(
        seen.contains(&some(b"abXY\0\0")),
        "the new page, the old length: {seen:?}"
    );
    file.sync_data().unwrap();
    assert_eq!(outcomes(&fs, "/f"), BTreeSet::from([some(b"abXY")]));
}

#[test]
fn a_rename_is_old_or_new_and_certain_after_both_directories() {
    let fs = MemFs::new();
    let write = |path: &str, bytes: &[u8]| {
        let file = fs.open(Path::new(path), OpenMode::CreateOrKeep).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_data().unwrap();
    };
    fs.create_dir(Path::new("/d")).unwrap();
    write("/d/f", b"old");
    fs.sync_dir(Path::new("/d")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    write("/tmp", b"new");
    fs.rename(Path::new("/tmp"), Path::new("/d/f")).unwrap();
    assert_eq!(
        outcomes(&fs, "/d/f"),
        BTreeSet::from([some(b"old"), some(b"new")])
    );
    fs.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(outcomes(&fs, "/d/f"), BTreeSet::from([some(b"new")]));
    assert_eq!(
        outcomes(&fs, "/tmp"),
        BTreeSet::from([None, some(b"new")]),
        "the other name"
    );
    fs.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&fs, "/tmp"), BTreeSet::from([None]));
}

#[test]
fn a_directory_that_its_parent_does_not_know_is_lost_with_all_in_it() {
    let fs = MemFs::new();
    fs.create_dir(Path::new("/d")).unwrap();
    let file = fs.open(Path::new("/d/f"), OpenMode::CreateNew).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(outcomes(&fs, "/d/f"), BTreeSet::from([None, some(b"")]));
}

#[test]
fn a_kill_keeps_everything_and_drops_locks() {
    let fs = MemFs::new();
    let lock = fs.lock(Path::new("/LOCK")).unwrap();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    let after = fs.kill();
    file.write_all_at(b"xyz", 0).unwrap();
    assert_eq!(
        read_file(&after, Path::new("/f"), 9).unwrap(),
        b"abc",
        "a thing of its own"
    );
    after.lock(Path::new("/LOCK")).unwrap();
    assert!(
        fs.lock(Path::new("/LOCK")).is_err(),
        "the old one still has its lock"
    );
    drop(lock);
    let seen = outcomes(&after, "/f");
    assert!(seen.contains(&None), "still not synced");
    assert!(seen.contains(&some(b"abc")));
    after
        .open(Path::new("/f"), OpenMode::Read)
        .unwrap()
        .sync_data()
        .unwrap();
    after.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&after, "/f"), BTreeSet::from([some(b"abc")]));
}

#[test]
fn versions_between_two_syncs_may_stay_where_the_system_wrote_them() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.write_all_at(b"1", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"2", 0).unwrap();
    fs.write_back(&mut |_| 0);
    file.write_all_at(b"3", 0).unwrap();
    assert_eq!(
        outcomes(&fs, "/f"),
        BTreeSet::from([some(b"2"), some(b"3")])
    );
}

#[test]
fn space_runs_out_for_pages_and_not_for_holes_or_names() {
    let fs = MemFs::new();
    fs.set_capacity(Some(3 * 4096 + 100));
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.set_len(1 << 30).unwrap();
    assert_eq!(fs.free_bytes(Path::new("/")).unwrap(), 3 * 4096);
    file.allocate(4096).unwrap();
    assert_eq!(
        file.allocate(5 * 4096).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(
        file.write_at(&vec![1; 20_000], 0).unwrap(),
        3 * 4096,
        "as much as fits"
    );
    let error = file.write_at(&[1], 3 * 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    file.write_all_at(&[2; 3 * 4096], 0).unwrap();
    fs.create_dir(Path::new("/d")).unwrap();
    file.set_len(4096).unwrap();
    assert_eq!(
        (fs.free_bytes(Path::new("/")).unwrap(), fs.used_bytes()),
        (2 * 4096, 4096)
    );
    file.write_all_at(&[1], 1 << 20).unwrap();
}

#[test]
#[should_panic(expected = "under mappings")]
fn a_file_is_not_cut_under_a_mapping() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.set_len(100).unwrap();
    let _map = file.map(100).unwrap();
    file.set_len(99).unwrap();
}

#[test]
fn reads_are_counted_and_cold_bytes_warm_up() {
    let fs = MemFs::new();
    let file = fs.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    file.read_at(&mut [0; 20], 3).unwrap();
    assert_eq!(fs.bytes_read(), 7);
    fs.set_cold(1);
    assert!(!file.is_resident(0, 10).unwrap());
    assert!(file.is_resident(0, 10).unwrap());
}
