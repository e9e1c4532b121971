//! Throughput and latency over time as an SVG picture: for each run a row of two charts.
#![forbid(unsafe_code)]

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::recorder::Point;
use super::workload::Outcome;
use crate::support::Result;

const WIDTH: u32 = 1280;
const ROW_HEIGHT: u32 = 400;
const TITLE_HEIGHT: u32 = 44;
const LEGEND_HEIGHT: u32 = 36;
const FONT: &str = "sans-serif";
const BLUE_LINE: RGBColor = RGBColor(31, 92, 168);
const ORANGE: RGBColor = RGBColor(222, 125, 22);
const GREY: RGBColor = RGBColor(140, 140, 140);

/// Runs of one workload under its description.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    /// The title.
    pub(crate) title: String,
    /// The broker's run first; a second one (the floor's) is drawn in grey beside it.
    pub(crate) outcomes: &'a [Outcome],
}

/// Draws the rows one below the other.
///
/// # Errors
/// Where the file cannot be written.
pub(crate) fn draw(file: &Path, rows: &[Row<'_>]) -> Result<()> {
    let rows: Vec<&Row<'_>> = rows.iter().filter(|row| !row.outcomes.is_empty()).collect();
    let height = ROW_HEIGHT * u32::try_from(rows.len().max(1))?;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, row) in area.split_evenly((rows.len().max(1), 1)).iter().zip(rows) {
        let (title, charts) = part.split_vertically(TITLE_HEIGHT);
        title.draw_text(&row.title, &(FONT, 19).into_text_style(&title), (16, 14))?;
        let (left, right) = charts.split_horizontally(WIDTH / 2);
        throughput(&left, row.outcomes)?;
        latency(&right, row.outcomes)?;
    }
    area.present()?;
    Ok(())
}

/// What is drawn of latencies: the curve's name, its colour, the value of a point.
type Line = (&'static str, RGBColor, fn(&Point) -> f64);
const LINES: [Line; 3] = [
    ("max", GREY, |p| p.max_us),
    ("p99", ORANGE, |p| p.p99_us),
    ("p50", BLUE_LINE, |p| p.p50_us),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn throughput(area: &Area<'_>, outcomes: &[Outcome]) -> Result<()> {
    let seconds = end_of(outcomes);
    let all = outcomes
        .iter()
        .flat_map(|o| &o.recorded.points)
        .map(|p| p.records_per_s);
    let top = all.fold(1.0, f64::max) * 1.1;
    let decimals = if seconds < 2.0 { 2 } else { 1 };
    let colors = [BLUE_LINE, GREY, ORANGE];
    let names = outcomes.iter().map(|o| o.name.as_str()).zip(colors);
    legend(area, "Throughput", names)?;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_top(LEGEND_HEIGHT)
        .margin_right(24)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..seconds, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc("records/s")
        .x_labels(8)
        .y_labels(6)
        .light_line_style(WHITE)
        .y_label_formatter(&|y| si(*y))
        .x_label_formatter(&|x| format!("{x:.decimals$}"))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .draw()?;
    for (outcome, color) in outcomes.iter().zip(colors) {
        let points = outcome
            .recorded
            .points
            .iter()
            .map(|p| (p.at_s, p.records_per_s));
        chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
    }
    Ok(())
}

fn latency(area: &Area<'_>, outcomes: &[Outcome]) -> Result<()> {
    let Some(outcome) = outcomes.first() else {
        return Ok(());
    };
    let points = &outcome.recorded.points;
    let low = points
        .iter()
        .map(|p| p.p50_us)
        .fold(f64::MAX, f64::min)
        .max(0.1);
    let high = points.iter().map(|p| p.max_us).fold(low, f64::max);
    // Whole decades, so that the axis begins and ends at a label.
    let (bottom, top) = (
        10_f64.powf(low.log10().floor()),
        10_f64.powf(high.log10().floor() + 1.0),
    );
    let seconds = end_of(outcomes);
    let decimals = if seconds < 2.0 { 2 } else { 1 };
    let title = format!("Latency of the {}", outcome.name);
    legend(area, &title, LINES.map(|(name, color, _)| (name, color)))?;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_top(LEGEND_HEIGHT)
        .margin_right(24)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..seconds, (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc("latency")
        .x_labels(8)
        .light_line_style(WHITE)
        .y_label_formatter(&|us| label(*us))
        .x_label_formatter(&|x| format!("{x:.decimals$}"))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .draw()?;
    for (_, color, pick) in LINES {
        let series = points.iter().map(|p| (p.at_s, pick(p).max(bottom)));
        chart.draw_series(LineSeries::new(series, color.stroke_width(2)))?;
    }
    Ok(())
}

/// The chart's title and, to the right of it, what each colour is: above the chart, where it hides nothing.
fn legend<'a>(
    area: &Area<'_>,
    title: &str,
    names: impl IntoIterator<Item = (&'a str, RGBColor)>,
) -> Result<()> {
    area.draw_text(title, &(FONT, 16).into_text_style(area), (96, 10))?;
    let mut x = 330;
    for (name, color) in names {
        area.draw(&PathElement::new(
            [(x, 18), (x + 22, 18)],
            color.stroke_width(3),
        ))?;
        area.draw_text(name, &(FONT, 15).into_text_style(area), (x + 28, 10))?;
        x += 50 + 9 * i32::try_from(name.len())?;
    }
    Ok(())
}

fn end_of(outcomes: &[Outcome]) -> f64 {
    outcomes
        .iter()
        .map(|o| o.recorded.elapsed.as_secs_f64())
        .fold(0.01, f64::max)
}

fn si(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.0} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn label(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.0} s", us / 1e6),
    }
}
