//! Time that does not go as it should: a wall clock that steps, a process that stands still.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::Stage;
use crate::harness::Server;
use crate::history::{Load, Loss, Model, TOPIC};
use crate::kills::{CONFIGS, create_topic, recorded, verify};

/// Steps of the wall clock, milliseconds: below the default retention of seven days, beyond which old records rightly go.
const STEPS_MS: [i64; 7] = [
    0,
    -1,
    1_000,
    -3_600_000,
    3_600_000,
    -86_400_000 * 365,
    86_400_000 * 3,
];
/// How long a READ waits, and how much longer it may take on a busy machine.
const WAIT_MS: u64 = 50;
const WAITED_MAX: Duration = Duration::from_secs(15);

/// The wall clock goes back and forth under load: nothing is lost, and waiting goes by the other clock.
pub(crate) fn clock(stage: &mut Stage) -> String {
    let mut model = Model::default();
    let data_dir = stage.directory.join("data");
    let shift = stage.directory.join("shift");
    let journal = stage.directory.join("journal");
    std::fs::write(&shift, "0").unwrap();
    let command = || {
        let mut command = recorded(&journal, "20ms");
        command
            .arg("--clock")
            .arg(&shift)
            .args(["--config", "log.retention.check.interval.ms=100"]);
        command
    };
    let mut server = Server::start_command(command(), &data_dir);
    create_topic(&server);
    let mut steps = 0;
    while steps == 0 || Instant::now() < stage.until {
        let load = Load::start(server.address, &mut model, 3, 4);
        for _ in 0..5 {
            let step = *stage.random.choice(&STEPS_MS).unwrap();
            // Replaced whole: the broker never reads half of it. Padded, since a shorter number may follow.
            std::fs::write(&shift, format!("{step:<20}")).unwrap();
            steps += 1;
            let mut client = server.client();
            let begin = Instant::now();
            let reply = client.ask(&format!("READ empty 0 wait={WAIT_MS}"));
            assert!(reply.starts_with("ERR UNKNOWN_TOPIC "), "{reply}");
            let (latest, wait) = (client.list(&format!("OFFSETS {TOPIC}/0")).1, WAIT_MS);
            let latest = latest[0].split('\t').nth(2).unwrap().to_owned();
            client.list(&format!("READ {TOPIC}/0 {latest} wait={wait}"));
            assert!(
                begin.elapsed() < WAITED_MAX,
                "a wait of {WAIT_MS} ms took {:?} after a step",
                begin.elapsed()
            );
            let reply = client.ask(&format!("AT {TOPIC}/0 -1h"));
            assert!(reply.starts_with("OK "), "{reply}");
        }
        let done = load.finish();
        for produced in &done.produced {
            assert_eq!(
                produced.last_error, None,
                "a step of the clock is nobody's fault"
            );
        }
        model.check(&mut server.client(), &done, Loss::Nothing);
        if stage.random.bool() {
            server.kill();
            server = Server::start_command(command(), &data_dir);
        }
    }
    model.check(
        &mut server.client(),
        &crate::history::Done::default(),
        Loss::Nothing,
    );
    format!(
        "{steps} steps of up to six days; {} records acknowledged, all there",
        model.acked
    )
}

/// SIGSTOP and SIGCONT under load.
pub(crate) fn stop(stage: &mut Stage) -> String {
    let (mut model, mut stops) = (Model::default(), 0);
    let data_dir = stage.directory.join("data");
    let mut args = vec!["--fsync", "20ms"];
    args.extend(CONFIGS);
    let server = Server::start(&data_dir, &args);
    create_topic(&server);
    while stops == 0 || Instant::now() < stage.until {
        let load = Load::start(server.address, &mut model, 3, 4);
        std::thread::sleep(Duration::from_millis(stage.random.u64(20..200)));
        server.signal("STOP");
        std::thread::sleep(stage.pause);
        server.signal("CONT");
        stops += 1;
        std::thread::sleep(Duration::from_millis(100));
        assert!(!load.is_over(), "clients were dropped by a pause");
        let done = load.finish();
        for produced in &done.produced {
            assert_eq!(produced.last_error, None, "a pause is nobody's fault");
        }
        model.check(&mut server.client(), &done, Loss::Nothing);
    }
    assert_eq!(server.stop().code(), Some(0));
    verify(&data_dir);
    format!(
        "{stops} stops of {:?}; {} records acknowledged, all there",
        stage.pause, model.acked
    )
}
