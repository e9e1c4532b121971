//! `mini-broker serve`: the broker itself.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use log::LevelFilter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::addr::Address;
use crate::broker::{Broker, Settings};
use crate::clock::SystemClock;
use crate::config::{
    self, DATA_DIR, LISTEN, MAX_BACKLOG_BYTES, MAX_BATCH_BYTES, MAX_CONNECTIONS, MAX_FETCH_BYTES,
    MAX_PARTITIONS, MAX_TOPICS, MIN_FREE_BYTES, RETENTION_TOTAL_BYTES,
};
use crate::fs::disk::DiskFs;
use crate::net::{self, Bound, EventLoop, LISTENERS_MAX, Limits};
use crate::protocol::line;
use crate::storage::FsyncPolicy;
use crate::sys;

use super::{Failure, start_log};

/// What stands below `--help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  mini-broker                                    serve ./data on 127.0.0.1:9092
  mini-broker --listen 127.0.0.1:0               any free port; the ready line names it
  mini-broker --listen 127.0.0.1:9092 --listen unix:/run/mini-broker.sock
  mini-broker --fsync 100ms --data-dir /srv/log  faster, at the price of 100 ms after a power cut
  mini-broker --config segment.bytes=67108864    defaults for topics, under Kafka's names
  printf 'PUT orders hello\\nREAD orders 0\\nQUIT\\n' | nc 127.0.0.1 9092

What OK means for a record (a killed broker loses nothing in any of the three):
  --fsync always  it is on the disk: a power cut does not lose it
  --fsync <n>ms   it is written: a power cut loses at most the last n ms and one sync
  --fsync never   it is written: a power cut loses what the system had not put on the disk

When it serves, one line on stdout says where:
  mini-broker <version> ready on <ip>:<port>, data in <dir>
(of several: <ip>:<port>, unix:<path>, data in <dir>).
Its log goes to stderr; RUST_LOG=debug shows more. SIGTERM, SIGINT and SIGHUP stop it in order, exit code 0.";

/// Serve the topics of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Args {
    /// Address to listen on, HOST:PORT (port 0 takes any free one) or unix:PATH; may be given several times
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    listen: Vec<Address>,

    /// Directory of the data; created where it is missing
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,

    /// When records are put on the disk: always (before their OK), never (the system decides), or every so many ms, as in 100ms
    #[arg(long, value_name = "always|never|<n>ms", default_value = "always")]
    fsync: FsyncPolicy,

    /// A config of the broker, or the default of one for topics; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = config::parse_config)]
    config: Vec<(String, String)>,

    #[arg(long, value_name = "N", help = MAX_CONNECTIONS.help,
        default_value_t = MAX_CONNECTIONS.default_count(), value_parser = |text: &str| MAX_CONNECTIONS.parse_count(text))]
    max_connections: u32,

    #[arg(long, value_name = "BYTES", help = MAX_BACKLOG_BYTES.help,
        default_value_t = MAX_BACKLOG_BYTES.default, value_parser = |text: &str| MAX_BACKLOG_BYTES.parse(text))]
    max_backlog_bytes: u64,

    #[arg(long, value_name = "BYTES", help = MAX_FETCH_BYTES.help,
        default_value_t = MAX_FETCH_BYTES.default, value_parser = |text: &str| MAX_FETCH_BYTES.parse(text))]
    max_fetch_bytes: u64,

    #[arg(long, value_name = "BYTES", help = MAX_BATCH_BYTES.help,
        default_value_t = MAX_BATCH_BYTES.default, value_parser = |text: &str| MAX_BATCH_BYTES.parse(text))]
    max_batch_bytes: u64,

    #[arg(long, value_name = "N", help = MAX_TOPICS.help,
        default_value_t = MAX_TOPICS.default_count(), value_parser = |text: &str| MAX_TOPICS.parse_count(text))]
    max_topics: u32,

    #[arg(long, value_name = "N", help = MAX_PARTITIONS.help,
        default_value_t = MAX_PARTITIONS.default_count(), value_parser = |text: &str| MAX_PARTITIONS.parse_count(text))]
    max_partitions: u32,

    #[arg(long, value_name = "BYTES", help = RETENTION_TOTAL_BYTES.help,
        default_value_t = RETENTION_TOTAL_BYTES.default, value_parser = |text: &str| RETENTION_TOTAL_BYTES.parse(text))]
    retention_total_bytes: u64,

    #[arg(long, value_name = "BYTES", help = MIN_FREE_BYTES.help,
        default_value_t = MIN_FREE_BYTES.default, value_parser = |text: &str| MIN_FREE_BYTES.parse(text))]
    min_free_bytes: u64,
}

impl Args {
    fn settings(&self) -> Settings {
        Settings {
            data_dir: self.data_dir.clone(),
            fsync: self.fsync,
            configs: self.config.clone(),
            max_topics: self.max_topics,
            max_partitions: self.max_partitions,
            max_fetch_bytes: self.max_fetch_bytes,
            max_batch_bytes: self.max_batch_bytes,
            min_free_bytes: self.min_free_bytes,
            retention_total_bytes: self.retention_total_bytes,
        }
    }

    fn limits(&self, max_descriptors: u64) -> Limits {
        let batch_bytes_max = usize::try_from(self.max_batch_bytes).unwrap_or(usize::MAX);
        Limits {
            max_connections: usize::try_from(self.max_connections).unwrap_or(usize::MAX),
            max_backlog_bytes: self.max_backlog_bytes,
            read_budget: match self.fsync {
                FsyncPolicy::Always => net::READ_BUDGET_SYNCED,
                FsyncPolicy::EveryMs(_) | FsyncPolicy::Never => net::READ_BUDGET,
            },
            line: line::Limits::new(batch_bytes_max),
            max_descriptors,
        }
    }
}

/// Serves until a signal stops it.
///
/// # Errors
/// The address or the data directory cannot be had, or the stop was not in order.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    start_log(LevelFilter::Info);
    config::check_configs(&args.config, args.max_partitions).map_err(Failure::Usage)?;
    if args.listen.len() > LISTENERS_MAX {
        return Err(Failure::Usage(format!(
            "--listen is given {} times, and {LISTENERS_MAX} times is the most: leave some out",
            args.listen.len()
        )));
    }
    let max_descriptors = sys::raise_descriptor_limit().unwrap_or_else(|e| {
        log::warn!("the limit of file descriptors cannot be raised: {e}");
        DESCRIPTORS_UNKNOWN
    });
    let clock = Box::new(SystemClock::new());
    let mut listeners = Vec::new();
    let broker = Broker::open(DiskFs, args.settings(), &*clock, || {
        for address in &args.listen {
            listeners.push(net::bind(address)?);
        }
        Ok(())
    });
    let broker = broker.map_err(Failure::Failed)?;
    let addresses = listeners.iter().map(Bound::address).collect();
    let stop = stop_signals().map_err(|e| failed("catching signals", e))?;
    let serving = EventLoop::new(broker, listeners, stop, clock, args.limits(max_descriptors))
        .map_err(|e| failed("polling sockets", e))?;
    announce(addresses, &args.data_dir);
    serving.run().map_err(Failure::Failed)?;
    log::info!("stopped in order");
    Ok(ExitCode::SUCCESS)
}

/// The one line on stdout, for whoever started the broker and waits for it: first the TCP addresses, then the others, each in the order they were
/// given.
fn announce(mut addresses: Vec<Address>, data_dir: &Path) {
    addresses.sort_by_key(|address| address.unix_path().is_some());
    let addresses: Vec<String> = addresses.iter().map(Address::to_string).collect();
    let line = format!(
        "mini-broker {} ready on {}, data in {}\n",
        env!("CARGO_PKG_VERSION"),
        addresses.join(", "),
        data_dir.display()
    );
    let mut stdout = std::io::stdout().lock();
    if let Err(e) = stdout
        .write_all(line.as_bytes())
        .and_then(|()| stdout.flush())
    {
        log::warn!("nobody reads the ready line: {e}");
    }
}

/// A socket on which a byte comes for each SIGTERM, SIGINT and SIGHUP; the last one not where whoever started the broker had it ignored, as
/// nohup does.
fn stop_signals() -> std::io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    if !sys::is_ignored(SIGHUP)? {
        pipe::register(SIGHUP, theirs.try_clone()?)?;
    }
    pipe::register(SIGTERM, theirs.try_clone()?)?;
    pipe::register(SIGINT, theirs)?;
    Ok(ours)
}

fn failed(what: &str, why: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{what} failed: {why}"))
}

/// The soft limit that is usual where the system does not tell it.
const DESCRIPTORS_UNKNOWN: u64 = 1024;
