//! `mini-broker repair`.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use crate::clock::{Clock, SystemClock};
use crate::fs::disk::DiskFs;
use crate::fs::{File, Fs, OpenMode};
use crate::storage::data_dir::{Checkpoints, DataDir, partition_dir_name, topics_of};
use crate::storage::repair::{PartitionPlan, apply, finish_interrupted, plan};
use crate::storage::{Error, FsyncPolicy, LogContext};

use super::Failure;

/// Say what a repair of a data directory would do, and with --yes do it.
///
/// Indexes are rebuilt, and damaged stretches of a log are moved into .damaged files beside it, so that reading passes over them without an error.
/// No byte of a log is deleted. The broker must not run; a report is left in the directory. Exits with 1 where something is to be done and --yes
/// is missing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Do it
    #[arg(long)]
    yes: bool,
}

/// Plans, and does it where that is asked for.
///
/// # Errors
/// It is no data directory, a broker owns it, or the system refuses something.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.dir.join("topics").is_dir() {
        return Err(Failure::Failed(format!(
            "{} is no data directory: there is no topics/ in it; name the directory that the broker was started with (--data-dir)",
            args.dir.display()
        )));
    }
    let result = if args.yes {
        repair(&args.dir)
    } else {
        look(&args.dir)
    };
    let (report, code) = result.map_err(|error| Failure::Failed(error.to_string()))?;
    // A reader who has gone away missed nothing.
    let _ = io::stdout().lock().write_all(report.as_bytes());
    Ok(code)
}

/// Each partition with something to be done.
fn plans<F: Fs>(
    fs: &F,
    root: &Path,
    checkpoints: &Checkpoints<F>,
) -> Result<Vec<(String, PathBuf, PartitionPlan)>, Error> {
    let mut plans = Vec::new();
    for topic in topics_of(fs, root)? {
        for partition in 0..topic.partitions {
            let dir = root.join(partition_dir_name(&topic.name, partition));
            if !fs.exists(&dir).map_err(Error::io("look-up", &dir))? {
                continue;
            }
            let durable = checkpoints
                .recovery_point(&topic.name, partition)
                .unwrap_or(0);
            let floor = durable.max(checkpoints.log_start(&topic.name, partition));
            let plan = plan(fs, &dir, floor)?;
            if !plan.is_empty() {
                plans.push((format!("{}/{partition}", topic.name), dir, plan));
            }
        }
    }
    Ok(plans)
}

/// What would be done.
fn look(root: &Path) -> Result<(String, ExitCode), Error> {
    let plans = plans(&DiskFs, root, &Checkpoints::load(DiskFs, root))?;
    let mut report = String::new();
    for (place, _, plan) in &plans {
        describe(place, plan, "would be", &mut report);
    }
    if plans.is_empty() {
        report.push_str("nothing is to be repaired\n");
        return Ok((report, ExitCode::SUCCESS));
    }
    report.push_str("nothing was changed; stop the broker and add --yes to do it\n");
    Ok((report, ExitCode::from(1)))
}

/// Does it, under the directory's lock, and leaves a report.
fn repair(root: &Path) -> Result<(String, ExitCode), Error> {
    let mut data_dir = DataDir::lock(DiskFs, root)?;
    data_dir.begin()?;
    let checkpoints = Rc::clone(data_dir.checkpoints());
    for topic in topics_of(&DiskFs, root)? {
        for partition in 0..topic.partitions {
            let dir = root.join(partition_dir_name(&topic.name, partition));
            if DiskFs.exists(&dir).map_err(Error::io("look-up", &dir))? {
                finish_interrupted(&DiskFs, &dir)?;
            }
        }
    }
    let plans = plans(&DiskFs, root, &checkpoints)?;
    if plans.is_empty() {
        return Ok(("nothing is to be repaired\n".to_owned(), ExitCode::SUCCESS));
    }
    let context = LogContext::new(DiskFs, FsyncPolicy::Always, checkpoints);
    let mut report = String::new();
    for (place, dir, plan) in &plans {
        let aside = apply(&context, dir, plan)?;
        describe(place, plan, "was", &mut report);
        for path in aside {
            let _ = writeln!(report, "{place} kept in {}", path.display());
        }
    }
    let path = root.join(format!("repair-{}.txt", SystemClock::new().now().wall_ms));
    write_report(&path, &report).map_err(Error::io("write", &path))?;
    let _ = writeln!(report, "this report is kept in {}", path.display());
    Ok((report, ExitCode::SUCCESS))
}

fn write_report(path: &Path, report: &str) -> io::Result<()> {
    let file = DiskFs.open(path, OpenMode::CreateNew)?;
    file.write_all_at(report.as_bytes(), 0)?;
    file.sync_data()
}

fn describe(place: &str, plan: &PartitionPlan, was: &str, out: &mut String) {
    // Writing into a string does not fail.
    for segment in &plan.segments {
        let base = segment.base;
        for range in &segment.damaged {
            let next = match range.next_offset {
                i64::MAX => "the log end".to_owned(),
                next => next.to_string(),
            };
            let _ = writeln!(
                out,
                "{place} {base:020}.log: damaged from offset {} to {next}, bytes {} to {}: {was} moved aside",
                range.offset, range.position, range.end
            );
        }
        if segment.damaged.is_empty() {
            let _ = writeln!(out, "{place} {base:020}: indexes are wrong: {was} rebuilt");
        }
    }
    for (_, name) in &plan.torn {
        let _ = writeln!(
            out,
            "{place} {name}: {was} renamed to .damaged, and the offsets it stands for passed over"
        );
    }
    if let Some(base) = plan.goes_on_at {
        let _ = writeln!(
            out,
            "{place} ends before offset {base}, which was durable: {was} continued there"
        );
    }
    if plan.is_interrupted {
        let _ = writeln!(
            out,
            "{place} has a clean-up that was interrupted: {was} finished first"
        );
    }
}
