//! Counts and latencies of a run, whole and over time.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::support::Result;

/// The longest latency that is told apart, nanoseconds: ten minutes.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// The length of a point in the picture, at first.
const POINT: Duration = Duration::from_millis(5);
/// With so many points, each two become one of twice the length, so that a picture of any run has some hundreds.
const POINTS_MAX: usize = 400;

/// A stretch of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Its end, seconds from the start of the run.
    pub(crate) at_s: f64,
    /// Records answered in it, a second.
    pub(crate) records_per_s: f64,
    /// Latencies, microseconds: the middle one, that of one in a hundred, the longest. Of a point that was made of others: the mean,
    /// the larger, the larger.
    pub(crate) p50_us: f64,
    /// See `p50_us`.
    pub(crate) p99_us: f64,
    /// See `p50_us`.
    pub(crate) max_us: f64,
}

/// Takes down what comes back.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    end: Instant,
    records: u64,
    latencies: Histogram<u64>,
    points: Vec<Point>,
    point: Duration,
    point_start: Instant,
    point_records: u64,
    point_latencies: Histogram<u64>,
    bar: ProgressBar,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Records answered.
    pub(crate) records: u64,
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// Latencies of all requests, nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// The run over time.
    pub(crate) points: Vec<Point>,
}

impl Recorder {
    /// Starts the clock. The bar shows on stderr, and only on a terminal.
    ///
    /// # Errors
    /// None that is known: the histogram's bounds are constants.
    pub(crate) fn start(name: &str, records: u64) -> Result<Self> {
        let bar = ProgressBar::new(records).with_message(name.to_owned());
        bar.set_style(ProgressStyle::with_template(
            "{msg:32} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
        )?);
        let now = Instant::now();
        Ok(Self {
            start: now,
            end: now,
            records: 0,
            latencies: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?,
            points: Vec::new(),
            point: POINT,
            point_start: now,
            point_records: 0,
            point_latencies: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)?,
            bar,
        })
    }

    /// When the run began.
    pub(crate) fn began(&self) -> Instant {
        self.start
    }

    /// `requests` requests, each of so many records, were answered at `now`, each after `latency`.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        latency: Duration,
        requests: u64,
        records_each: u64,
    ) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.latencies.saturating_record_n(ns, requests);
        self.point_latencies.saturating_record_n(ns, requests);
        self.records += requests * records_each;
        self.point_records += requests * records_each;
        self.end = now;
        if now.duration_since(self.point_start) >= self.point {
            self.end_point(now);
        }
    }

    fn end_point(&mut self, now: Instant) {
        let span = now.duration_since(self.point_start).as_secs_f64();
        let us = |ns: u64| ns as f64 / 1e3;
        self.points.push(Point {
            at_s: now.duration_since(self.start).as_secs_f64(),
            records_per_s: self.point_records as f64 / span,
            p50_us: us(self.point_latencies.value_at_quantile(0.5)),
            p99_us: us(self.point_latencies.value_at_quantile(0.99)),
            max_us: us(self.point_latencies.max()),
        });
        self.point_start = now;
        self.point_records = 0;
        self.point_latencies.reset();
        if self.points.len() == POINTS_MAX {
            self.points = self.points.chunks(2).map(merged).collect();
            self.point *= 2;
        }
        self.bar.set_position(self.records);
    }

    /// Stops the clock at the last answer.
    pub(crate) fn finish(mut self) -> Recorded {
        if self.point_records > 0 && self.end > self.point_start {
            self.end_point(self.end);
        }
        self.bar.finish_and_clear();
        Recorded {
            records: self.records,
            elapsed: self.end.duration_since(self.start),
            latencies: self.latencies,
            points: self.points,
        }
    }
}

/// Neighbours as one point. They are of about the same length.
fn merged(points: &[Point]) -> Point {
    let mean = |f: fn(&Point) -> f64| points.iter().map(f).sum::<f64>() / points.len() as f64;
    let largest = |f: fn(&Point) -> f64| points.iter().map(f).fold(0.0, f64::max);
    Point {
        at_s: largest(|p| p.at_s),
        records_per_s: mean(|p| p.records_per_s),
        p50_us: mean(|p| p.p50_us),
        p99_us: largest(|p| p.p99_us),
        max_us: largest(|p| p.max_us),
    }
}
