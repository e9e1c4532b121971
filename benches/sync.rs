//! `cargo bench --bench sync`: what it costs to make a page of each of many files durable, by the ways there are, and what the broker under
//! `always` takes for a turn with a record for each of as many partitions.
#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use mini_broker::fs::disk::{DiskFile, DiskFs};
use mini_broker::fs::{File as _, Fs as _, OpenMode};
use serde_json::json;

use support::broker::{Broker, Client};
use support::cleanup::{self, TempDir};
use support::table::Table;
use support::{Result, machine, units};

/// Bytes written to each file in a turn.
const WRITE_BYTES: usize = 4096;
/// Bytes of a value sent to the broker: as many requests as there are partitions are then read in one turn. On the disk it is a page all the same.
const VALUE_BYTES: usize = 100;
/// Partitions of a turn.
const PARTITIONS: [usize; 4] = [1, 10, 100, 1000];

/// A page of each of many files, durable.
#[derive(Debug, Parser)]
#[command(name = "sync", disable_version_flag = true)]
struct Options {
    /// Turns of each kind, whose median is shown.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Where the temporary data directory goes; if left out, beside cargo's output.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// JSON lines on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// A short run, to see that everything works: its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// What `cargo bench` adds; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How files are made durable.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// fdatasync of one after the other.
    OneByOne,
    /// Writing out of all is begun before the first fdatasync.
    Begun,
    /// One syncfs.
    Together,
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("sync: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    cleanup::install()?;
    let turns = if options.quick { 3 } else { options.turns };
    let parent = options.data_dir.as_deref();
    let mut table = Table::new(&[
        "partitions",
        "fdatasync, one by one",
        "begun before",
        "one syncfs",
        "broker, always",
    ]);
    for partitions in PARTITIONS {
        let files = Files::create(parent, partitions)?;
        let broker = Turns::start(parent, partitions)?;
        let mut rounds = Vec::new();
        // All ways in each round, so that what else happens on the disk meets all of them.
        for _ in 0..turns {
            rounds.push([
                files.turn(Way::OneByOne)?,
                files.turn(Way::Begun)?,
                files.turn(Way::Together)?,
                broker.turn()?,
            ]);
        }
        let [one, begun, together, turn] = std::array::from_fn(|way| {
            let times = rounds.iter().filter_map(|round| round.get(way));
            units::median(&times.map(Duration::as_secs_f64).collect::<Vec<f64>>())
        });
        if options.json {
            println!(
                "{}",
                json!({"partitions": partitions, "one_by_one_s": one, "begun_s": begun, "syncfs_s": together, "broker_s": turn})
            );
        }
        let micros = |seconds: f64| units::micros(seconds * 1e6);
        table.row([
            partitions.to_string(),
            micros(one),
            micros(begun),
            micros(together),
            micros(turn),
        ]);
    }
    if !options.json {
        println!("{}\n", machine::describe(&machine::data_parent(parent)));
        print!("{}", table.render());
    }
    Ok(())
}

/// Files of a turn.
struct Files {
    directory: TempDir,
    open: Vec<DiskFile>,
    position: std::cell::Cell<u64>,
}

impl Files {
    fn create(parent: Option<&Path>, count: usize) -> Result<Self> {
        let directory = TempDir::new(parent)?;
        let mut files = Vec::new();
        for number in 0..count {
            let path = directory.path().join(number.to_string());
            let file = DiskFs.open(&path, OpenMode::CreateNew)?;
            file.write_all_at(&[1; WRITE_BYTES], 0)?;
            file.sync_data()?;
            files.push(file);
        }
        fs::File::open(directory.path())?.sync_all()?;
        Ok(Self {
            directory,
            open: files,
            position: std::cell::Cell::new(WRITE_BYTES as u64),
        })
    }

    /// Appends to each file and makes all durable.
    fn turn(&self, way: Way) -> Result<Duration> {
        let position = self.position.get();
        self.position.set(position + WRITE_BYTES as u64);
        let begin = Instant::now();
        for file in &self.open {
            file.write_all_at(&[2; WRITE_BYTES], position)?;
        }
        match way {
            Way::Together => DiskFs.sync_all(self.directory.path())?,
            Way::OneByOne => {}
            Way::Begun => {
                for file in &self.open {
                    file.start_writeback(position, WRITE_BYTES as u64);
                }
            }
        }
        if !matches!(way, Way::Together) {
            for file in &self.open {
                file.sync_data()?;
            }
        }
        Ok(begin.elapsed())
    }
}

/// A broker and a client that sends a record for each partition at once.
struct Turns {
    client: std::cell::RefCell<Client>,
    requests: Vec<u8>,
    partitions: usize,
    _broker: Broker,
    _directory: TempDir,
}

impl Turns {
    fn start(parent: Option<&Path>, partitions: usize) -> Result<Self> {
        let directory = TempDir::new(parent)?;
        let broker = Broker::start(&directory.path().join("data"), "always", &[])?;
        let mut client = Client::connect(broker.addr)?;
        client.call(format!("CREATE t partitions={partitions}"))?;
        let value = "v".repeat(VALUE_BYTES);
        let mut requests = Vec::new();
        for number in 0..partitions {
            writeln!(requests, "PUT t/{number} {value}")?;
        }
        let turns = Self {
            client: client.into(),
            requests,
            partitions,
            _broker: broker,
            _directory: directory,
        };
        // The first record of a partition makes its index rows.
        turns.turn()?;
        Ok(turns)
    }

    /// From the first byte sent to the last answer.
    fn turn(&self) -> Result<Duration> {
        let mut client = self.client.borrow_mut();
        let begin = Instant::now();
        client.send(&self.requests)?;
        for _ in 0..self.partitions {
            let line = client.line()?;
            if !line.starts_with("OK ") {
                return Err(line.into());
            }
        }
        Ok(begin.elapsed())
    }
}
