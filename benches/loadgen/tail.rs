//! From the intended time of a PUT to its line in a TAIL: an open loop on one connection, a reader on another.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::TOPIC;
use super::recorder::{Recorded, Recorder};
use super::requests::Values;
use crate::support::Result;

/// A schedule: record n is to be sent n times `every` after `first`.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    first: Instant,
    every: Duration,
}

impl Schedule {
    fn time_of(&self, record: u64) -> Instant {
        self.first
            + Duration::from_nanos(u64::try_from(self.every.as_nanos()).unwrap_or(0) * record)
    }
}

/// Sends so many records of `size` bytes at `rate` a second and takes down when each comes out of the tail.
///
/// # Errors
/// An ERR, a connection that ended, or a record that does not come.
pub(crate) fn run(addr: SocketAddr, records: u64, size: usize, rate: f64) -> Result<Recorded> {
    let mut reader = BufReader::with_capacity(256 * 1024, TcpStream::connect(addr)?);
    reader
        .get_ref()
        .set_read_timeout(Some(Duration::from_mins(1)))?;
    reader
        .get_mut()
        .write_all(format!("TAIL {TOPIC}/0 latest as=value\n").as_bytes())?;
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if !line.starts_with(b"OK") {
        return Err(format!("TAIL was answered {:?}", String::from_utf8_lossy(&line)).into());
    }
    let writer = TcpStream::connect(addr)?;
    writer.set_nodelay(true)?;
    let mut replies = writer.try_clone()?;
    // Replies to PUTs are read past: the tail shows whether the records arrived.
    std::thread::spawn(move || while matches!(replies.read(&mut [0; 16 * 1024]), Ok(1..)) {});
    let mut recorder = Recorder::start("tail", records)?;
    let schedule = Schedule {
        first: recorder.began(),
        every: Duration::from_secs_f64(1.0 / rate),
    };
    let sender = std::thread::spawn(move || send(writer, records, size, schedule));
    for record in 0..records {
        line.clear();
        reader
            .read_until(b'\n', &mut line)
            .map_err(|e| format!("record {record} did not come: {e}"))?;
        let number = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        if number != record.to_string().as_bytes() {
            let line = String::from_utf8_lossy(&line).into_owned();
            return Err(format!("instead of record {record} came {line:?}").into());
        }
        let now = Instant::now();
        let latency = now.saturating_duration_since(schedule.time_of(record));
        recorder.answered(now, latency, 1, 1);
    }
    sender.join().map_err(|_| "the sender panicked")??;
    Ok(recorder.finish())
}

fn send(
    mut stream: TcpStream,
    records: u64,
    size: usize,
    schedule: Schedule,
) -> std::io::Result<()> {
    let mut filler = Vec::new();
    Values::new(1).append(size, &mut filler);
    let mut requests = Vec::new();
    let mut record = 0;
    while record < records {
        let now = Instant::now();
        let due = schedule.time_of(record);
        if due > now {
            // A sleep wakes tens of microseconds late: it ends early, and the rest is spun.
            std::thread::sleep((due - now).saturating_sub(Duration::from_micros(100)));
            while Instant::now() < due {
                std::hint::spin_loop();
            }
        }
        requests.clear();
        let now = Instant::now();
        while record < records && schedule.time_of(record) <= now && requests.len() < 64 * 1024 {
            let number = record.to_string();
            let rest = filler.get(number.len() + 1..).unwrap_or_default();
            requests.extend_from_slice(format!("PUT {TOPIC}/0 {number} ").as_bytes());
            requests.extend_from_slice(rest);
            requests.push(b'\n');
            record += 1;
        }
        stream.write_all(&requests)?;
    }
    Ok(())
}
