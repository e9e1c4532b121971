//! `cargo bench --bench load`: the load generator and the goals table. `-- --help` says what it can be told.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a bench may panic, and its counts are far below 2^53"
)]

mod loadgen;
mod support;

use clap::Parser;
use loadgen::options::{Mode, Options};
use loadgen::workload::Workload;
use loadgen::{floor, goals, picture, report};
use support::{Result, cleanup, machine};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let result = match (arguments.next(), arguments.next()) {
        (Some(first), Some(task)) if first == floor::ARGUMENT => floor::serve(&task),
        _ => run(&Options::parse()),
    };
    if let Err(error) = result {
        eprintln!("load: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    cleanup::install()?;
    match options.mode {
        Some(mode) => one(options, mode),
        None => goals::run(options),
    }
}

/// One workload, on the broker and on the floor.
fn one(options: &Options, mode: Mode) -> Result<()> {
    let workload = Workload::from_options(options, mode);
    let parent = options.data_dir.as_deref();
    let mut outcomes = match options.addr {
        Some(addr) => workload.on_broker(addr, None)?,
        None => workload.on_own_broker(parent)?,
    };
    if !options.no_floor {
        outcomes.extend(workload.on_floor(parent)?);
    }
    if options.json {
        for outcome in &outcomes {
            println!("{}", report::json(&workload.describe(), outcome));
        }
    } else {
        println!(
            "{}\n{}\n",
            workload.describe(),
            machine::describe(&machine::data_parent(parent))
        );
        print!("{}", report::table(&outcomes));
    }
    if let Some(file) = &options.svg {
        picture::draw(
            file,
            &[picture::Row {
                title: workload.describe(),
                outcomes: &outcomes,
            }],
        )?;
    }
    Ok(())
}
