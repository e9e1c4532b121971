//! The broker under fire: killed, cut from its power, without room, without descriptors, among clients that stall and lie. Each scenario keeps a
//! history of what clients did and were told, and checks it against what the broker holds afterwards.
//!
//! `tests/fire/run` is the way to start it; `--help` says what it can be told. It is no part of `cargo test`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod clients;
mod disk;
#[path = "../harness/mod.rs"]
mod harness;
mod history;
mod kills;
mod pauses;
mod power;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};

/// Runs the scenarios one after the other, checks each, and says what was counted.
#[derive(Debug, Parser)]
#[command(name = "fire", disable_version_flag = true)]
struct Options {
    #[command(subcommand)]
    child: Option<Child>,
    /// Seconds for all scenarios together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// So many kills in `kills`, and so many cuts in each `power` scenario, however long they take.
    #[arg(long)]
    kills: Option<usize>,
    /// Seconds of a SIGSTOP, and between the bytes of slow clients.
    #[arg(long, default_value_t = 1)]
    pause: u64,
    /// Connections that read nothing.
    #[arg(long, default_value_t = 300)]
    slow_readers: usize,
    /// One scenario or several, with commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Replays what was drawn by chance (the moments of the machine are not replayed).
    #[arg(long)]
    seed: Option<u64>,
    /// Where data goes; if left out, beside cargo's output.
    #[arg(long)]
    directory: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Child {
    /// A broker that writes down what it synced.
    #[command(hide = true)]
    Recorded(power::Recorded),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// SIGKILL at any moment, a start's included.
    Kills,
    /// SIGKILL, and what was not synced is taken away; --fsync always.
    PowerAlways,
    /// The same with --fsync 50ms.
    PowerInterval,
    /// The same with --fsync never.
    PowerNever,
    /// A file system that is full, and has room again.
    DiskFull,
    /// No descriptors left.
    Descriptors,
    /// Thousands of connections that read nothing.
    SlowReaders,
    /// Garbage, giant lengths, single bytes, half requests.
    Garbage,
    /// The wall clock steps.
    Clock,
    /// SIGSTOP for a while.
    Stop,
    /// A data directory that is copied while the broker runs.
    Copy,
}

/// What a scenario is given.
#[derive(Debug)]
struct Stage {
    /// An empty directory of its own.
    directory: PathBuf,
    /// When it is to end, about.
    until: Instant,
    /// Rounds instead of a time.
    rounds: Option<usize>,
    pause: Duration,
    slow_readers: usize,
    random: fastrand::Rng,
}

impl Stage {
    /// Whether another round is to come after so many.
    fn goes_on(&self, rounds: usize) -> bool {
        self.rounds
            .map_or_else(|| Instant::now() < self.until, |all| rounds < all)
    }
}

impl Scenario {
    /// Its part of the time, in hundredths.
    fn share(self) -> u32 {
        match self {
            Self::Kills => 25,
            Self::PowerAlways | Self::PowerInterval | Self::PowerNever => 12,
            Self::DiskFull | Self::Descriptors | Self::SlowReaders | Self::Garbage => 6,
            Self::Clock | Self::Stop | Self::Copy => 5,
        }
    }

    /// Runs it; returns what was counted.
    fn run(self, stage: &mut Stage) -> String {
        match self {
            Self::Kills => kills::kills(stage),
            Self::PowerAlways => kills::power(stage, "always"),
            Self::PowerInterval => kills::power(stage, "50ms"),
            Self::PowerNever => kills::power(stage, "never"),
            Self::DiskFull => disk::full(stage),
            Self::Descriptors => disk::descriptors(stage),
            Self::SlowReaders => clients::slow_readers(stage),
            Self::Garbage => clients::garbage(stage),
            Self::Clock => pauses::clock(stage),
            Self::Stop => pauses::stop(stage),
            Self::Copy => disk::copy(stage),
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Child::Recorded(args)) = &options.child {
        let Err(error) = power::serve(args) else {
            return ExitCode::SUCCESS;
        };
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("fire: --seed {seed}");
    let parent = options
        .directory
        .clone()
        .unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("fire"));
    let scenarios = match options.only.as_slice() {
        [] => Scenario::value_variants(),
        only => only,
    };
    let shares: u32 = scenarios.iter().map(|s| s.share()).sum();
    let (mut passed, mut failed) = (0, 0);
    for scenario in scenarios {
        let name = scenario.to_possible_value().unwrap().get_name().to_owned();
        let directory = parent.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let begin = Instant::now();
        let mut stage = Stage {
            directory: directory.clone(),
            until: begin + Duration::from_secs(options.seconds) * scenario.share() / shares,
            rounds: options.kills,
            pause: Duration::from_secs(options.pause),
            slow_readers: options.slow_readers,
            random: fastrand::Rng::with_seed(seed),
        };
        if let Ok(counts) = catch_unwind(AssertUnwindSafe(|| scenario.run(&mut stage))) {
            println!(
                "ok     {:4.0} s  {name}: {counts}",
                begin.elapsed().as_secs_f64()
            );
            let _ = std::fs::remove_dir_all(&directory);
            passed += 1;
        } else {
            println!(
                "FAILED {:4.0} s  {name}: what is left is in {}",
                begin.elapsed().as_secs_f64(),
                directory.display()
            );
            failed += 1;
        }
    }
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
