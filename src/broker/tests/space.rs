//! A disk that is full, or nearly: what is refused, what goes on, what comes back by itself.

use super::*;

fn rig(min_free_bytes: u64, segment_bytes: &str) -> Rig {
    Rig::with(Settings {
        min_free_bytes,
        configs: vec![
            ("segment.bytes".into(), segment_bytes.into()),
            ("file.delete.delay.ms".into(), "0".into()),
        ],
        ..settings(FsyncPolicy::Always)
    })
}

/// Appends until the disk is full; what was acknowledged.
fn fill(rig: &mut Rig, target: &str) -> Vec<String> {
    let mut good = Vec::new();
    for n in 0..1000 {
        let value = format!("{n} {}", "-".repeat(1000));
        let appended = rig.append(target, None, &value);
        rig.flush();
        let is_good = appended
            .as_ref()
            .is_ok_and(|run| is_good(rig.broker.verdict(run), run.first_offset));
        let verdict = appended.as_ref().map_or_else(
            |error| Some(error.clone()),
            |run| rig.broker.verdict(run).error.clone(),
        );
        rig.broker.end_turn();
        if !is_good {
            assert_eq!(verdict.map(|error| error.code), Some(ErrorCode::DiskFull));
            return good;
        }
        good.push(value);
    }
    panic!("it is never full");
}

#[test]
fn a_full_disk_refuses_whole_records_and_everything_else_goes_on() {
    let mut rig = rig(0, "8192");
    rig.create("a", 1, &[]);
    rig.create("b", 1, &[]);
    rig.put("b", "early");
    rig.mem.set_capacity(Some(rig.mem.used_bytes() + 100_000));
    let good = fill(&mut rig, "a");
    assert!(good.len() > 25);
    assert_eq!(rig.values("a"), good, "nothing half-written");
    assert!(matches!(rig.sync(), Response::Done));
    let end = i64::try_from(good.len()).unwrap();
    assert_eq!(rig.offsets("a"), [(0, 0, end)]);
    // A restart needs no room, and finds the same.
    let mut rig = rig.killed();
    assert_eq!(rig.values("a"), good);
    let more = fill(&mut rig, "a");
    let good = [good, more].concat();
    assert_eq!(rig.values("a"), good);
    let end = i64::try_from(good.len()).unwrap();
    assert!(matches!(
        rig.trim("a", 20),
        Response::Trimmed { earliest: 20, .. }
    ));
    rig.settle();
    assert_eq!(
        rig.put("a", "there is room again"),
        (0, end),
        "without a restart"
    );
    fill(&mut rig, "a");
    assert!(matches!(rig.reply(&Request::Delete(b"a")), Response::Done));
    rig.settle();
    assert_eq!(rig.put("b", "late"), (0, 1));
    assert_eq!(rig.crashed().values("b"), ["early", "late"]);
}

#[test]
fn retention_makes_room_on_a_full_disk() {
    let mut rig = rig(0, "8192");
    rig.create("a", 1, &[("retention.ms", "60000")]);
    rig.mem.set_capacity(Some(rig.mem.used_bytes() + 100_000));
    let good = fill(&mut rig, "a");
    rig.later(Duration::from_mins(10));
    let end = i64::try_from(good.len()).unwrap();
    assert_eq!(rig.put("a", "next"), (0, end));
    assert_eq!(rig.values("a"), ["next"]);
}

#[test]
fn appends_stop_before_the_disk_is_full_and_come_back() {
    let mut rig = rig(50_000, "1000000");
    rig.create("a", 1, &[]);
    let full = rig.mem.used_bytes() + 100_000;
    rig.mem.set_capacity(Some(full));
    rig.pass(Duration::from_millis(100));
    let good = fill(&mut rig, "a");
    let free = rig.mem.free_bytes(Path::new("/data")).unwrap();
    assert!((35_000..50_000).contains(&free), "{free}");
    let error = rig.append("new", None, "x").unwrap_err();
    assert_eq!(error.code, ErrorCode::DiskFull);
    assert!(
        error.message.contains("--min-free-bytes is 50000"),
        "{error}"
    );
    assert_eq!(rig.topic_names(), ["a"], "nothing was created");
    assert_eq!(rig.values("a"), good);
    assert!(matches!(rig.sync(), Response::Done));
    assert!(matches!(
        rig.alter("a", &[("segment.ms", "7")]),
        Response::Done
    ));
    rig.mem.set_capacity(Some(full + 1_000_000));
    assert!(
        rig.append("a", None, "x").is_err(),
        "the answer counts for 100 ms"
    );
    rig.pass(Duration::from_millis(100));
    rig.put("a", "x");
}
