//! The table: name, how the broker ended, what was damaged, what is expected.

#![forbid(unsafe_code)]

use super::*;

type Damage = fn(&Faulty) -> Expect;

/// The table.
const CASES: &[(&str, End, Damage)] = &[
    ("nothing", End::Kill, |_| Expect::all()),
    ("nothing, noted", End::Noted, |_| Expect::all()),
    ("nothing, clean", End::Clean, |_| Expect::all()),
    // The end of the last segment, beyond the recovery point.
    ("a flipped bit in the last value", End::Kill, |fs| {
        flip_value(fs, 29);
        Expect::cut(29, ENTRY)
    }),
    ("a broken frame at the end", End::Kill, |fs| {
        break_frame(fs, 29);
        Expect::cut(29, ENTRY)
    }),
    ("zeros behind the end", End::Kill, |fs| {
        append_bytes(fs, ACTIVE, &[0; 10_000]);
        Expect {
            torn: vec![("00000000000000000024.torn", 10_000)],
            ..Expect::all()
        }
    }),
    (
        "a magic and a length that claims two gigabytes",
        End::Kill,
        |fs| {
            append_bytes(
                fs,
                ACTIVE,
                b"\xCA\xFE\x82\x00\x00\x00\x00\x7f\xff\xff\x00 and no more",
            );
            Expect {
                torn: vec![("00000000000000000024.torn", 23)],
                ..Expect::all()
            }
        },
    ),
    (
        "a copy of an earlier entry behind the end",
        End::Kill,
        |fs| {
            let copy = content(fs, ACTIVE)[..80].to_vec();
            append_bytes(fs, ACTIVE, &copy);
            Expect {
                torn: vec![("00000000000000000024.torn", ENTRY)],
                ..Expect::all()
            }
        },
    ),
    ("garbage behind a clean end", End::Clean, |fs| {
        append_bytes(fs, ACTIVE, b"garbage");
        Expect {
            torn: vec![("00000000000000000024.torn", 7)],
            ..Expect::all()
        }
    }),
    (
        "the last segment lost beyond the recovery point",
        End::Kill,
        |fs| {
            cut_log(fs, ACTIVE, 0);
            Expect::cut(24, 0)
        },
    ),
    // Damage in the last segment that good entries follow.
    ("a flipped bit in the middle", End::Kill, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    ("two flipped bits in a row", End::Kill, |fs| {
        flip_value(fs, 26);
        flip_value(fs, 27);
        Expect::damaged(26, 28)
    }),
    (
        "a broken frame that a row of the index leads over",
        End::Kill,
        |fs| {
            break_frame(fs, 26);
            Expect::damaged(26, 28)
        },
    ),
    ("a length of two gigabytes in the middle", End::Kill, |fs| {
        let (name, at) = place(26);
        patch(fs, &name, at + 7, &0x7fff_ff00_u32.to_be_bytes());
        Expect::damaged(26, 28)
    }),
    ("zeros in the middle", End::Kill, |fs| {
        let (name, at) = place(25);
        patch(fs, &name, at, &[0; 160]);
        Expect::damaged(25, 28)
    }),
    ("a broken frame and no index to lead on", End::Kill, |fs| {
        break_frame(fs, 26);
        remove(fs, &[ACTIVE_INDEX]);
        Expect::cut(26, 4 * ENTRY)
    }),
    ("a flipped bit and no index", End::Kill, |fs| {
        flip_value(fs, 26);
        remove(fs, &[ACTIVE_INDEX]);
        Expect::damaged(26, 27)
    }),
    // Below the recovery point nothing is cut.
    ("a flipped bit below the recovery point", End::Noted, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    (
        "a broken frame below the recovery point",
        End::Noted,
        |fs| {
            break_frame(fs, 26);
            Expect::damaged(26, 28)
        },
    ),
    ("a flipped bit in the middle, clean", End::Clean, |fs| {
        flip_value(fs, 26);
        Expect::damaged(26, 27)
    }),
    // A log that ends below its recovery point.
    ("the last durable value flipped", End::Noted, |fs| {
        flip_value(fs, 29);
        Expect::gap(29, ENTRY)
    }),
    ("cut within a durable entry", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 4 * ENTRY + 11);
        Expect::gap(28, 11)
    }),
    ("cut between durable entries", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 4 * ENTRY);
        Expect::gap(28, 0)
    }),
    ("the last segment emptied", End::Noted, |fs| {
        cut_log(fs, ACTIVE, 0);
        Expect::gap(24, 0)
    }),
    ("the last clean value flipped", End::Clean, |fs| {
        flip_value(fs, 29);
        Expect::gap(29, ENTRY)
    }),
    ("cut within a clean entry", End::Clean, |fs| {
        cut_log(fs, ACTIVE, 5 * ENTRY + 79);
        Expect::gap(29, 79)
    }),
    ("a clean last segment emptied", End::Clean, |fs| {
        cut_log(fs, ACTIVE, 0);
        Expect::gap(24, 0)
    }),
    // Sealed segments.
    ("a flipped bit in a sealed segment", End::Clean, |fs| {
        flip_value(fs, 5);
        Expect::damaged(5, 6)
    }),
    ("a broken frame before a row", End::Kill, |fs| {
        break_frame(fs, 5);
        Expect::damaged(5, 6)
    }),
    ("a broken frame at a row", End::Kill, |fs| {
        break_frame(fs, 4);
        Expect::damaged(4, 6)
    }),
    (
        "a broken frame at the end of a sealed segment",
        End::Clean,
        |fs| {
            break_frame(fs, 11);
            Expect::damaged(11, 12)
        },
    ),
    (
        "the last value of a sealed segment flipped",
        End::Clean,
        |fs| {
            flip_value(fs, 23);
            Expect::damaged(23, 24)
        },
    ),
    (
        "the first entry of a sealed segment broken",
        End::Clean,
        |fs| {
            break_frame(fs, 12);
            Expect::damaged(12, 14)
        },
    ),
    (
        "the layout byte of the first entry says version 1",
        End::Clean,
        |fs| {
            let (name, at) = place(12);
            patch(fs, &name, at + 2, &[0]);
            Expect::damaged(12, 14)
        },
    ),
    ("a sealed segment cut within an entry", End::Clean, |fs| {
        cut_log(fs, "00000000000000000012.log", 10 * ENTRY + 3);
        Expect::damaged(22, 24)
    }),
    (
        "an entry of the next segment behind a sealed one",
        End::Clean,
        |fs| {
            let mut stale = Vec::new();
            let other = Rec::new(NOW, b"stale");
            Layout::V2.encode(24, &other.borrow(), &mut stale).unwrap();
            append_bytes(fs, "00000000000000000012.log", &stale);
            Expect::all()
        },
    ),
    (
        "a broken frame and no index in a sealed segment",
        End::Clean,
        |fs| {
            break_frame(fs, 5);
            remove(fs, &["00000000000000000000.index"]);
            Expect::damaged(5, 12)
        },
    ),
    (
        "damage in every segment, and no recovery point",
        End::Kill,
        |fs| {
            fs.remove_file(Path::new("/data/recovery-point")).unwrap();
            for offset in [3, 15, 27] {
                flip_value(fs, offset);
            }
            let damage = vec![(3, 4), (15, 16), (27, 28)];
            Expect {
                lost: vec![3, 15, 27],
                damage,
                ..Expect::all()
            }
        },
    ),
    // Indexes are a cache.
    ("no index at all", End::Clean, |fs| {
        let indexes: Vec<_> = names(fs)
            .into_iter()
            .filter(|name| name.ends_with("index"))
            .collect();
        for name in &indexes {
            remove(fs, &[name]);
        }
        Expect::all()
    }),
    ("indexes without a byte", End::Clean, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            cut_log(fs, &name, 0);
        }
        Expect::all()
    }),
    ("indexes of zeros", End::Kill, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            let len = content(fs, &name).len();
            put_file(fs, &file(&name), &vec![0; len]);
        }
        Expect::all()
    }),
    ("indexes of garbage", End::Kill, |fs| {
        for name in names(fs).into_iter().filter(|name| name.ends_with("index")) {
            put_file(fs, &file(&name), &[0x5a; 601]);
        }
        Expect::all()
    }),
    ("rows of a sealed index swapped", End::Clean, |fs| {
        let name = "00000000000000000000.index";
        let mut rows = content(fs, name);
        let (left, right) = rows.split_at_mut(16);
        left[8..16].swap_with_slice(&mut right[..8]);
        put_file(fs, &file(name), &rows);
        Expect::all()
    }),
    ("the index of another segment", End::Clean, |fs| {
        let rows = content(fs, "00000000000000000012.index");
        put_file(fs, &file("00000000000000000000.index"), &rows[8..]);
        put_file(fs, &file("00000000000000000000.timeindex"), b"");
        Expect::all()
    }),
    ("a row that points behind the end", End::Clean, |fs| {
        let name = "00000000000000000000.index";
        append_bytes(fs, name, &[0, 0, 0, 11, 0x7f, 0xff, 0xff, 0xff]);
        Expect::all()
    }),
    // Text files.
    ("no recovery point", End::Kill, |fs| {
        fs.remove_file(Path::new("/data/recovery-point")).unwrap();
        Expect::all()
    }),
    ("half a recovery point", End::Noted, |fs| {
        put_file(fs, Path::new("/data/recovery-point"), b"t 0 3");
        Expect::all()
    }),
    ("text files without a byte", End::Noted, |fs| {
        for name in [
            "recovery-point",
            "log-start-offset",
            "t-0/append-times",
            "broker.properties",
        ] {
            put_file(fs, &Path::new("/data").join(name), b"");
        }
        Expect::all()
    }),
    ("text files of garbage", End::Noted, |fs| {
        for name in ["recovery-point", "log-start-offset", "t-0/append-times"] {
            put_file(
                fs,
                &Path::new("/data").join(name),
                b"\xff\xfe garbage\n\n0 0 0 0\n",
            );
        }
        Expect::all()
    }),
    // Strangers and leftovers.
    ("strangers", End::Kill, |fs| {
        for name in [
            "foo.log",
            "123.log",
            "00000000000000000000.log.bak",
            "-0000000000000000001.log",
        ] {
            put_file(fs, &file(name), b"not ours");
        }
        fs.create_dir(&file("00000000000000000099.log")).unwrap();
        fs.create_dir(&file("sub")).unwrap();
        Expect::all()
    }),
    ("an index without its log", End::Kill, |fs| {
        put_file(fs, &file("00000000000000000042.index"), &[1; 16]);
        put_file(fs, &file("00000000000000000042.timeindex"), &[1; 24]);
        Expect::all()
    }),
];

#[test]
fn every_row_of_the_table() {
    for (name, end, damage) in CASES {
        let fs = build(*end, small_config());
        let expect = damage(&fs);
        check(&format!("{name} ({end:?})"), &fs, &expect);
    }
}
