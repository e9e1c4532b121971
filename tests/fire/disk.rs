//! No room, no descriptors, and a directory that is copied while it changes.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Stage;
use crate::harness::{Client, Server};
use crate::history::{Load, Loss, Model, TOPIC};
use crate::kills::{CONFIGS, create_topic, verify};

/// The size of the small file system, and of the file that takes room away from it.
const SMALL_BYTES: u64 = 16 << 20;
const BALLAST_BYTES: usize = 8 << 20;
/// Descriptors of a broker that runs out of them.
const DESCRIPTORS: u32 = 64;
/// How long something may take to come about.
const PATIENCE: Duration = Duration::from_mins(1);

/// A mounted tmpfs; unmounted when dropped.
struct Small(PathBuf);

impl Small {
    /// `None` where this user may not mount.
    fn mount(path: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={SMALL_BYTES}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "fire"])
            .arg(&path)
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then_some(Self(path))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// Asks until the answer is good.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < PATIENCE,
            "{what} did not come about in {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Fills a small disk, kills a full broker, gives room back.
pub(crate) fn full(stage: &mut Stage) -> String {
    let Some(small) = Small::mount(stage.directory.join("small")) else {
        return "SKIPPED: this user may not mount a tmpfs; run it as root".into();
    };
    let (data_dir, ballast) = (small.0.join("data"), small.0.join("ballast"));
    let (mut model, mut rounds, mut refusals) = (Model::default(), 0, 0);
    while rounds == 0 || stage.goes_on(rounds) {
        rounds += 1;
        model.forget();
        let fsync = *stage.random.choice(&["always", "20ms", "never"]).unwrap();
        std::fs::write(&ballast, vec![0; BALLAST_BYTES]).unwrap();
        let mut args = vec!["--fsync", fsync];
        args.extend(CONFIGS);
        let server = Server::start(&data_dir, &args);
        create_topic(&server);
        refusals += fill(&server, &mut model);
        // What is there can be read, and a start works, with no byte free.
        let server = if stage.random.bool() {
            server.kill();
            let server = Server::start(&data_dir, &args);
            model.check(
                &mut server.client(),
                &crate::history::Done::default(),
                Loss::Nothing,
            );
            server
        } else {
            server
        };
        std::fs::remove_file(&ballast).unwrap();
        let mut client = server.client();
        wait_for("an append after space came back", || {
            // A topic of its own: the history's records are all its own.
            client.ask("PUT other x").starts_with("OK ")
        });
        let load = Load::start(server.address, &mut model, 2, 2);
        std::thread::sleep(Duration::from_millis(100));
        let done = load.finish();
        assert!(done.acked() > 0, "space came back, and no append did");
        model.check(&mut server.client(), &done, Loss::Nothing);
        assert_eq!(server.stop().code(), Some(0));
        verify(&data_dir);
        std::fs::remove_dir_all(&data_dir).unwrap();
    }
    format!(
        "{rounds} times full, {refusals} producers told so; {} records acknowledged, all there",
        model.acked
    )
}

/// Writes until everybody is told that the disk is full; returns how many were.
fn fill(server: &Server, model: &mut Model) -> usize {
    let load = Load::start(server.address, model, 3, 2);
    let mut client = server.client();
    wait_for("a full disk", || {
        client.ask("PUT other x").starts_with("ERR DISK_FULL ")
    });
    std::thread::sleep(Duration::from_millis(100));
    let done = load.finish();
    let told = done.produced.iter().filter_map(|p| p.last_error.as_deref());
    let told = told
        .inspect(|e| assert!(e.starts_with("ERR DISK_FULL "), "{e}"))
        .count();
    model.check(&mut server.client(), &done, Loss::Nothing);
    told
}

/// Takes all descriptors with connections, while rolls and new topics need more.
pub(crate) fn descriptors(stage: &mut Stage) -> String {
    let (mut model, mut rounds, mut refused) = (Model::default(), 0, 0);
    while rounds == 0 || stage.goes_on(rounds) {
        rounds += 1;
        model.forget();
        let data_dir = stage.directory.join(format!("data-{rounds}"));
        let mut args = vec!["--fsync", "never"];
        args.extend(CONFIGS);
        let server = Server::start_with_descriptors(&data_dir, DESCRIPTORS, &args);
        create_topic(&server);
        let load = Load::start(server.address, &mut model, 2, 2);
        let mut admin = server.client();
        // More than there are: those behind the limit wait in the kernel's queue.
        let idle: Vec<_> = (0..DESCRIPTORS * 2)
            .map(|_| std::net::TcpStream::connect(server.address).unwrap())
            .collect();
        for i in 0..DESCRIPTORS {
            let reply = admin.ask(&format!("CREATE more-{i}"));
            if !reply.starts_with("OK") {
                assert!(reply.starts_with("ERR STORAGE "), "{reply}");
                refused += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(idle);
        wait_for("a new connection", || {
            Client::connect(server.address).ask("PING") == "OK PONG"
        });
        let done = load.finish();
        assert!(done.acked() > 0, "no append while descriptors were short");
        model.check(&mut server.client(), &done, Loss::Nothing);
        // Everything works again.
        let load = Load::start(server.address, &mut model, 2, 2);
        std::thread::sleep(Duration::from_millis(100));
        let done = load.finish();
        for produced in &done.produced {
            assert_eq!(produced.last_error, None, "descriptors are back");
        }
        model.check(&mut server.client(), &done, Loss::Nothing);
        assert_eq!(server.stop().code(), Some(0));
        verify(&data_dir);
        std::fs::remove_dir_all(&data_dir).unwrap();
    }
    format!(
        "{rounds} rounds of {DESCRIPTORS} descriptors, {refused} topics refused; {} records acknowledged, all there",
        model.acked
    )
}

/// Copies the directory while it changes, as docs/configuration.md says, and starts the copy.
pub(crate) fn copy(stage: &mut Stage) -> String {
    let (mut model, mut rounds) = (Model::default(), 0);
    let mut records = 0;
    while rounds == 0 || stage.goes_on(rounds) {
        rounds += 1;
        model.forget();
        let fsync = *stage.random.choice(&["always", "20ms", "never"]).unwrap();
        let data_dir = stage.directory.join(format!("data-{rounds}"));
        let copy_dir = stage.directory.join(format!("copy-{rounds}"));
        let mut args = vec!["--fsync", fsync];
        args.extend(CONFIGS);
        let server = Server::start(&data_dir, &args);
        create_topic(&server);
        // What is there when the copy begins must be in it.
        let load = Load::start(server.address, &mut model, 3, 2);
        std::thread::sleep(Duration::from_millis(stage.random.u64(50..400)));
        let before = load.finish();
        model.check(&mut server.client(), &before, Loss::Nothing);
        let ends = [model.end(0), model.end(1)];
        let load = Load::start(server.address, &mut model, 3, 2);
        std::thread::sleep(Duration::from_millis(stage.random.u64(..100)));
        std::fs::create_dir(&copy_dir).unwrap();
        for name in ["recovery-point", "log-start-offset"] {
            if data_dir.join(name).exists() {
                std::fs::copy(data_dir.join(name), copy_dir.join(name)).unwrap();
            }
        }
        copy_rest(&data_dir, &copy_dir, stage);
        let done = load.finish();
        model.check(&mut server.client(), &done, Loss::Nothing);
        let copied = Server::start(&copy_dir, &args);
        records += compare(&mut server.client(), &mut copied.client(), ends);
        assert!(
            copied
                .client()
                .ask(&format!("PUT {TOPIC}/0 new"))
                .starts_with("OK 0 "),
            "the copy takes records"
        );
        assert_eq!(copied.stop().code(), Some(0));
        assert_eq!(server.stop().code(), Some(0));
        verify(&copy_dir);
        std::fs::remove_dir_all(&data_dir).unwrap();
        std::fs::remove_dir_all(&copy_dir).unwrap();
    }
    format!("{rounds} copies started, {records} records in them, each as in the original")
}

/// Copies in an order of chance what is not there yet.
fn copy_rest(from: &Path, to: &Path, stage: &mut Stage) {
    let mut entries: Vec<_> = std::fs::read_dir(from)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    stage.random.shuffle(&mut entries);
    for path in entries {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_rest(&path, &target, stage);
        } else if !target.exists() {
            // A name may be gone by now (`tmp`).
            let _ = std::fs::copy(&path, &target);
        }
    }
}

/// The copy holds what the original does, at least up to those ends; returns its records.
fn compare(original: &mut Client, copy: &mut Client, ends: [i64; 2]) -> i64 {
    let mut records = 0;
    for (partition, end) in ends.iter().enumerate() {
        let (_, offsets) = copy.list(&format!("OFFSETS {TOPIC}/{partition}"));
        let latest: i64 = offsets[0].split('\t').nth(2).unwrap().parse().unwrap();
        assert!(
            latest >= *end,
            "partition {partition} of the copy ends at {latest}, and had {end} when the copy began"
        );
        let mut offset = 0;
        while offset < latest {
            let request = format!(
                "READ {TOPIC}/{partition} {offset} max={}",
                (latest - offset).min(1000)
            );
            let (head, lines) = copy.list(&request);
            assert!(!lines.is_empty(), "{request}: {head}");
            assert_eq!(lines, original.list(&request).1, "{request}");
            offset += i64::try_from(lines.len()).unwrap();
        }
        records += latest;
    }
    records
}
