//! What a run says at its end: a table for people, JSON lines for machines.
#![forbid(unsafe_code)]

use serde_json::{Value, json};

use super::workload::Outcome;
use crate::support::table::Table;
use crate::support::units;

/// The table of one workload: a row for each run, then the ratio of the first to the last where that is a floor.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new(&[
        "",
        "records/s",
        "MB/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "CPU/record",
        "CPU/byte",
    ]);
    for outcome in outcomes {
        let latency = |quantile| units::micros(outcome.latency_us(quantile));
        table.row([
            outcome.name.clone(),
            units::grouped(outcome.records_per_s()),
            format!("{:.1}", megabytes_per_s(outcome)),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            latency(1.0),
            outcome
                .cpu_us_per_record()
                .map_or_else(|| "-".into(), units::micros),
            outcome
                .cpu_ns_per_byte()
                .map_or_else(|| "-".into(), |ns| format!("{ns:.3} ns")),
        ]);
    }
    if let [broker, .., floor] = outcomes
        && (floor.name == "floor" || floor.name == "echo")
    {
        let ratio = |a: f64, b: f64| format!("{:.2}", a / b);
        let latency = |quantile| ratio(broker.latency_us(quantile), floor.latency_us(quantile));
        let optional = |a: Option<f64>, b: Option<f64>| {
            a.zip(b).map_or_else(|| "-".into(), |(a, b)| ratio(a, b))
        };
        table.row([
            format!("ratio to the {}", floor.name),
            ratio(broker.records_per_s(), floor.records_per_s()),
            ratio(megabytes_per_s(broker), megabytes_per_s(floor)),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            latency(1.0),
            optional(broker.cpu_us_per_record(), floor.cpu_us_per_record()),
            optional(broker.cpu_ns_per_byte(), floor.cpu_ns_per_byte()),
        ]);
    }
    table.render()
}

/// A run as one JSON value.
pub(crate) fn json(workload: &str, outcome: &Outcome) -> Value {
    json!({
        "workload": workload,
        "run": outcome.name,
        "records": outcome.recorded.records,
        "seconds": outcome.recorded.elapsed.as_secs_f64(),
        "records_per_s": outcome.records_per_s(),
        "megabytes_per_s": megabytes_per_s(outcome),
        "p50_us": outcome.latency_us(0.5),
        "p99_us": outcome.latency_us(0.99),
        "p999_us": outcome.latency_us(0.999),
        "max_us": outcome.latency_us(1.0),
        "cpu_us_per_record": outcome.cpu_us_per_record(),
        "cpu_ns_per_byte": outcome.cpu_ns_per_byte(),
    })
}

/// Megabytes (10^6) of values a second.
fn megabytes_per_s(outcome: &Outcome) -> f64 {
    units::float(outcome.value_bytes) / 1e6 / outcome.recorded.elapsed.as_secs_f64().max(1e-9)
}
