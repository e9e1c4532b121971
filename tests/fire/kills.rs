//! SIGKILL at any moment; and with it, the loss of what was not synced.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Stage;
use crate::harness::{BINARY, Server};
use crate::history::{Done, Load, Loss, Model, PARTITIONS, TOPIC};
use crate::power;

/// Rounds on one data directory before a new one.
const ROUNDS_PER_DIRECTORY: usize = 20;
/// Producers and readers of a round.
const PRODUCERS: u32 = 4;
const READERS: usize = 4;
/// A round lasts so many milliseconds at most.
const ROUND_MS_MAX: u64 = 500;
/// One start in so many is killed before or about when it is ready.
const EARLY_KILL_ONE_IN: u8 = 6;
/// The milliseconds after which such a start is killed at most.
const EARLY_KILL_MS_MAX: u64 = 60;
/// What a machine that is busy with something else may add to the interval of a policy.
const SYNC_MS_MAX: u64 = 5_000;
/// Small segments and indexes, so that rolls and preallocated files are met often.
pub(crate) const CONFIGS: [&str; 6] = [
    "--config",
    "segment.bytes=262144",
    "--config",
    "segment.index.bytes=65536",
    "--config",
    "index.interval.bytes=1024",
];

/// A topic for a history, where it is not there yet.
pub(crate) fn create_topic(server: &Server) {
    let reply = server
        .client()
        .ask(&format!("CREATE {TOPIC} partitions={PARTITIONS}"));
    assert!(
        reply == "OK" || reply.starts_with("ERR TOPIC_EXISTS"),
        "{reply}"
    );
}

/// Starts a broker and kills it before anybody asked for anything.
fn kill_a_start(stage: &mut Stage, mut command: Command) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(stage.random.u64(..EARLY_KILL_MS_MAX)));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Works until a random moment, at which the broker is killed.
fn work_and_kill(stage: &mut Stage, model: &mut Model, server: Server) -> Done {
    let load = Load::start(server.address, model, PRODUCERS, READERS);
    std::thread::sleep(Duration::from_millis(stage.random.u64(1..ROUND_MS_MAX)));
    server.kill();
    load.finish()
}

/// The broker of the real binary.
fn plain(fsync: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["--fsync", fsync]).args(CONFIGS);
    command
}

/// As `plain`, for a start that nobody waits for.
fn with_address(mut command: Command, data_dir: &Path) -> Command {
    command
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir);
    command
}

/// `kill -9` under each policy: nothing that was acknowledged or seen is gone.
pub(crate) fn kills(stage: &mut Stage) -> String {
    let (mut model, mut round, mut early) = (Model::default(), 0, 0);
    while stage.goes_on(round) {
        model.forget();
        let data_dir = stage.directory.join(format!("data-{round}"));
        let mut done = Done::default();
        let rounds = round + ROUNDS_PER_DIRECTORY;
        while stage.goes_on(round) && round < rounds {
            let fsync = *stage.random.choice(&["always", "20ms", "never"]).unwrap();
            round += 1;
            if stage.random.u8(..EARLY_KILL_ONE_IN) == 0 {
                kill_a_start(stage, with_address(plain(fsync), &data_dir));
                early += 1;
                continue;
            }
            let server = Server::start_command(plain(fsync), &data_dir);
            create_topic(&server);
            model.check(&mut server.client(), &done, Loss::Nothing);
            done = work_and_kill(stage, &mut model, server);
        }
        finish(&mut model, &data_dir, &done, Loss::Nothing);
    }
    format!(
        "{round} kills, {early} of them of a start; {} records acknowledged, {} seen by readers, all there",
        model.acked, model.seen
    )
}

/// The last start of a directory, after which it goes; `verify` finds nothing where nothing may be lost.
fn finish(model: &mut Model, data_dir: &Path, done: &Done, loss: Loss) {
    let server = Server::start(data_dir, &[]);
    create_topic(&server);
    model.check(&mut server.client(), done, loss);
    assert_eq!(server.stop().code(), Some(0));
    if matches!(loss, Loss::Nothing) {
        verify(data_dir);
    }
    std::fs::remove_dir_all(data_dir).unwrap();
}

/// `mini-broker verify` finds nothing to complain of.
pub(crate) fn verify(data_dir: &Path) {
    let output = Command::new(BINARY)
        .arg("verify")
        .arg(data_dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "verify: {text}");
}

/// A broker of this program, with a journal.
pub(crate) fn recorded(journal: &Path, fsync: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg("recorded")
        .arg("--journal")
        .arg(journal)
        .args(["--fsync", fsync])
        .args(CONFIGS);
    command
}

/// A kill, and what was not synced is taken away.
pub(crate) fn power(stage: &mut Stage, fsync: &str) -> String {
    let (mut model, mut round, mut taken) = (Model::default(), 0, 0);
    let journal = stage.directory.join("journal");
    let loss_at = |killed: Instant| match fsync {
        "always" => Loss::Nothing,
        "never" => Loss::Unsynced { since: None },
        interval => {
            let ms: u64 = interval.trim_end_matches("ms").parse().unwrap();
            Loss::Unsynced {
                since: killed.checked_sub(Duration::from_millis(ms + SYNC_MS_MAX)),
            }
        }
    };
    while stage.goes_on(round) {
        model.forget();
        let data_dir = stage.directory.join(format!("data-{round}"));
        let (mut done, mut killed) = (Done::default(), Instant::now());
        let rounds = round + ROUNDS_PER_DIRECTORY;
        while stage.goes_on(round) && round < rounds {
            round += 1;
            if stage.random.u8(..EARLY_KILL_ONE_IN) == 0 {
                kill_a_start(stage, with_address(recorded(&journal, fsync), &data_dir));
            } else {
                let server = Server::start_command(recorded(&journal, fsync), &data_dir);
                create_topic(&server);
                model.check(&mut server.client(), &done, loss_at(killed));
                done = work_and_kill(stage, &mut model, server);
                killed = Instant::now();
            }
            if journal.exists() && data_dir.exists() {
                taken += power::cut(&data_dir, &journal, &mut stage.random);
            }
        }
        finish(&mut model, &data_dir, &done, loss_at(killed));
    }
    format!(
        "{round} cuts, {taken} bytes taken away; {} records acknowledged, of which {} were lost where that may be; damage named {} times",
        model.acked, model.lost, model.damaged
    )
}
