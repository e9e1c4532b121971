//! What every file system must do; each implementation runs it over an empty directory.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::io::ErrorKind;
use std::path::Path;

use super::{DirEntry, File, Fs, Map, OpenMode, ReadAt, read_file};

pub(super) fn check<F: Fs>(fs: &F, root: &Path) {
    opening(fs, &root.join("opening"));
    reading_and_writing(fs, &root.join("reading"));
    lengths(fs, &root.join("lengths"));
    names(fs, &root.join("names"));
    directories(fs, &root.join("directories"));
    mappings(fs, &root.join("mappings"));
    locks(fs, &root.join("locks"));
}

fn opening<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let path = dir.join("f");
    let kind = |mode| fs.open(&path, mode).unwrap_err().kind();
    assert_eq!(kind(OpenMode::Read), ErrorKind::NotFound);
    assert_eq!(kind(OpenMode::Write), ErrorKind::NotFound);
    fs.open(&path, OpenMode::CreateNew)
        .unwrap()
        .write_all_at(b"x", 0)
        .unwrap();
    assert_eq!(kind(OpenMode::CreateNew), ErrorKind::AlreadyExists);
    for mode in [OpenMode::CreateOrKeep, OpenMode::Write, OpenMode::Read] {
        assert_eq!(
            fs.open(&path, mode).unwrap().len().unwrap(),
            1,
            "{mode:?} keeps it"
        );
    }
    let reader = fs.open(&path, OpenMode::Read).unwrap();
    assert!(reader.write_at(b"y", 0).is_err());
    assert!(reader.set_len(0).is_err());
    let error = fs
        .open(&path.join("below"), OpenMode::CreateOrKeep)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory);
    let error = fs
        .open(&dir.join("no/f"), OpenMode::CreateOrKeep)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

fn reading_and_writing<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let file = fs.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    assert!(file.is_empty().unwrap());
    let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.to_be_bytes()[3]).collect();
    file.write_all_at(&bytes, 5).unwrap();
    assert_eq!(file.len().unwrap(), 10_005);
    let mut buf = vec![9; 10_100];
    assert_eq!(
        file.read_at(&mut buf, 0).unwrap(),
        10_005,
        "short only at the end"
    );
    assert_eq!(&buf[..5], [0; 5], "the gap reads as zeros");
    assert_eq!(&buf[5..10_005], bytes);
    assert_eq!(buf[10_005], 9, "nothing is touched behind the end");
    assert_eq!(file.read_at(&mut buf, 10_005).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(file.write_at(&[], 3).unwrap(), 0);
    file.write_all_at(b"over", 4094).unwrap();
    assert_eq!(file.read_at(&mut buf[..6], 4093).unwrap(), 6);
    assert_eq!(&buf[1..5], b"over");
    file.start_writeback(0, 10_005);
    file.finish_writeback(0, 10_005).unwrap();
    file.sync_data().unwrap();
    file.drop_cache();
    assert_eq!(file.read_at(&mut buf[..4], 4094).unwrap(), 4);
    assert_eq!(&buf[..4], b"over");
    let other = fs.open(&dir.join("f"), OpenMode::Write).unwrap();
    other.write_all_at(b"O", 4094).unwrap();
    file.read_at(&mut buf[..4], 4094).unwrap();
    assert_eq!(&buf[..4], b"Over", "handles see each other's writes");
    assert_eq!(read_file(fs, &dir.join("f"), 10_005).unwrap().len(), 10_005);
    let error = read_file(fs, &dir.join("f"), 10_004).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

fn lengths<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let file = fs.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[7; 9000], 0).unwrap();
    file.set_len(4100).unwrap();
    file.set_len(9000).unwrap();
    let mut buf = vec![1; 9000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 9000);
    assert!(buf[..4100].iter().all(|&b| b == 7));
    assert!(
        buf[4100..].iter().all(|&b| b == 0),
        "what was cut does not come back"
    );
    file.allocate(20_000).unwrap();
    assert_eq!(file.len().unwrap(), 20_000);
    file.allocate(10).unwrap();
    assert_eq!(file.len().unwrap(), 20_000, "never shorter");
    file.allocate(0).unwrap();
    file.read_at(&mut buf, 0).unwrap();
    assert!(buf[..4100].iter().all(|&b| b == 7), "content stays");
    file.set_len(1 << 33).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 33, "a hole costs nothing");
    file.set_len(0).unwrap();
    assert!(file.is_empty().unwrap());
}

fn names<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let (a, b) = (dir.join("a"), dir.join("b"));
    let file = fs.open(&a, OpenMode::CreateNew).unwrap();
    file.write_all_at(b"a", 0).unwrap();
    fs.open(&b, OpenMode::CreateNew).unwrap();
    fs.rename(&a, &b).unwrap();
    assert!(!fs.exists(&a).unwrap());
    assert_eq!(
        read_file(fs, &b, 10).unwrap(),
        b"a",
        "the target is replaced"
    );
    fs.rename(&b, &b).unwrap();
    assert_eq!(fs.rename(&a, &b).unwrap_err().kind(), ErrorKind::NotFound);
    fs.remove_file(&b).unwrap();
    assert_eq!(fs.remove_file(&b).unwrap_err().kind(), ErrorKind::NotFound);
    let mut buf = [0];
    assert_eq!(
        file.read_at(&mut buf, 0).unwrap(),
        1,
        "an open file outlives its name"
    );
    file.write_all_at(b"z", 0).unwrap();
    fs.sync_dir(dir).unwrap();
    let missing = dir.join("missing");
    assert_eq!(
        fs.sync_dir(&missing).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs.free_bytes(&missing).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert!(fs.free_bytes(dir).unwrap() > 0);
}

fn directories<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    assert_eq!(
        fs.create_dir(dir).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert!(fs.exists(dir).unwrap());
    assert_eq!(fs.read_dir(dir).unwrap(), []);
    let below = dir.join("below");
    assert_eq!(
        fs.create_dir(&below.join("x")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(fs.read_dir(&below).unwrap_err().kind(), ErrorKind::NotFound);
    fs.create_dir(&below).unwrap();
    fs.open(&dir.join("f"), OpenMode::CreateNew)
        .unwrap()
        .write_all_at(b"abc", 0)
        .unwrap();
    let mut entries = fs.read_dir(dir).unwrap();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(
        entries,
        [
            DirEntry {
                name: "below".into(),
                is_dir: true,
                len: 0
            },
            DirEntry {
                name: "f".into(),
                is_dir: false,
                len: 3
            },
        ]
    );
    assert_eq!(
        fs.remove_dir(dir).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(
        fs.remove_dir(&dir.join("f")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    assert!(fs.remove_file(&below).is_err());
    assert_eq!(
        fs.read_dir(&dir.join("f")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    fs.remove_dir(&below).unwrap();
    assert!(!fs.exists(&below).unwrap());
    assert_eq!(
        fs.remove_dir(&below).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

fn mappings<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let file = fs.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
    file.set_len(5000).unwrap();
    assert!(file.map(0).is_err());
    let map = file.map(5000).unwrap();
    assert_eq!((map.len(), map.is_empty()), (5000, false));
    assert_eq!(map.row::<4>(4094), Some([0; 4]));
    file.write_all_at(&[1, 2, 3, 4], 4094).unwrap();
    assert_eq!(
        map.row::<4>(4094),
        Some([1, 2, 3, 4]),
        "a mapping is shared"
    );
    assert_eq!(map.row::<4>(4996), Some([0; 4]));
    assert_eq!(map.row::<4>(4997), None);
    assert_eq!(map.row::<4>(usize::MAX - 1), None);
    drop(map);
    file.set_len(10).unwrap();
}

fn locks<F: Fs>(fs: &F, dir: &Path) {
    fs.create_dir(dir).unwrap();
    let path = dir.join("LOCK");
    let lock = fs.lock(&path).unwrap();
    assert!(fs.exists(&path).unwrap());
    assert_eq!(fs.lock(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(lock);
    fs.lock(&path).unwrap();
}
