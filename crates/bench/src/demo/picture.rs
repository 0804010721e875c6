//! The demo's picture: throughput over transfer size, one panel per direction and alignment, and below them how near
//! `auto` came to the better fixed mode.
//!
//! Lines are medians, bars the range over all rounds. Both axes are in powers of two: a step is a doubling. Legends
//! have strips of their own, so that they hide no curve.

use super::table::{Row, Sample};
use amphi_host::failure::{Failure, Outcome};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 1080);
/// Height of a strip with a legend, and of the panel with the ratios, pixels.
const STRIP: u32 = 34;
const RATIO: u32 = 300;
/// Distance of the entries of a legend, pixels.
const ENTRY: i32 = 190;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Trouble = Box<dyn std::error::Error>;
type Value = fn(&Row) -> Option<&Sample>;

/// The curve of each value: name, colour, width of the line.
const SERIES: [(&str, RGBColor, u32, Value); 5] = [
    ("raw folder, buffered", RGBColor(190, 190, 190), 1, |r| Some(&r.raw.0)),
    ("raw folder, O_DIRECT", RGBColor(110, 110, 110), 1, |r| r.raw.1.as_ref()),
    ("buffered", RGBColor(31, 119, 180), 2, |r| Some(&r.modes[0])),
    ("direct", RGBColor(214, 39, 40), 2, |r| Some(&r.modes[1])),
    ("auto", RGBColor(44, 160, 44), 3, |r| Some(&r.modes[2])),
];

/// The panels: whether it is writes, whether unaligned, title, colour among the ratios.
const PANELS: [(bool, bool, &str, RGBColor); 4] = [
    (true, false, "write + fsync, aligned", RGBColor(148, 103, 189)),
    (true, true, "write + fsync, unaligned by 8 bytes", RGBColor(255, 127, 14)),
    (false, false, "cold read, aligned", RGBColor(23, 160, 190)),
    (false, true, "cold read, unaligned by 8 bytes", RGBColor(140, 86, 75)),
];

/// Draws `rows` as SVG to `path`.
pub fn draw(rows: &[Row], path: &Path) -> Outcome {
    try_draw(rows, path).map_err(|e| Failure::broken(format!("cannot draw {}: {e}", path.display())))
}

fn try_draw(rows: &[Row], path: &Path) -> Result<(), Trouble> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (strip, rest) = root.split_vertically(STRIP);
    legend(&strip, SERIES.iter().map(|(name, color, width, _)| (*name, *color, *width)))?;
    let (above, below) = rest.split_vertically(SIZE.1 - 2 * STRIP - RATIO);
    for (area, (write, unaligned, title, _)) in above.split_evenly((2, 2)).iter().zip(PANELS) {
        throughput(area, title, &of_panel(rows, write, unaligned))?;
    }
    let (strip, below) = below.split_vertically(STRIP);
    legend(&strip, PANELS.iter().map(|(_, _, title, color)| (*title, *color, 2)))?;
    ratios(&below, rows)?;
    root.present()?;
    Ok(())
}

fn of_panel(rows: &[Row], write: bool, unaligned: bool) -> Vec<&Row> {
    rows.iter().filter(|r| r.write == write && r.unaligned == unaligned).collect()
}

/// A line of names with their colours.
fn legend<'a>(area: &Area, entries: impl Iterator<Item = (&'a str, RGBColor, u32)>) -> Result<(), Trouble> {
    let mut x = 66;
    for (name, color, width) in entries {
        area.draw(&PathElement::new([(x, 20), (x + 22, 20)], color.stroke_width(width)))?;
        area.draw(&Text::new(name.to_string(), (x + 28, 13), ("sans-serif", 14)))?;
        x += ENTRY.max(40 + 7 * name.len() as i32);
    }
    Ok(())
}

fn power_of_two(exponent: f64) -> String {
    amphi_host::size::show(exponent.exp2().round() as u64)
}

fn transfer(row: &Row) -> f64 {
    (row.transfer as f64).log2()
}

/// From the smallest transfer to the largest, in powers of two, with space for labels at the ends.
fn transfers(rows: &[&Row]) -> std::ops::Range<f64> {
    let all = || rows.iter().map(|r| transfer(r));
    all().fold(f64::MAX, f64::min) - 0.3..all().fold(0.0, f64::max) + 0.3
}

fn throughput(area: &Area, title: &str, rows: &[&Row]) -> Result<(), Trouble> {
    if rows.is_empty() {
        return Ok(());
    }
    let samples = || rows.iter().flat_map(|r| SERIES.iter().filter_map(|s| s.3(r)));
    let least = samples().map(Sample::least).fold(f64::MAX, f64::min).max(1.0).log2().floor();
    let most = samples().map(Sample::most).fold(2.0, f64::max).log2().ceil();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(transfers(rows), least..most)?;
    chart
        .configure_mesh()
        .x_labels(9)
        .y_labels((most - least) as usize + 1)
        .x_label_formatter(&|x| power_of_two(*x))
        .y_label_formatter(&|y| format!("{:.0}", y.exp2()))
        .y_desc("MiB/s")
        .light_line_style(WHITE)
        .draw()?;
    for (_, color, width, value) in SERIES {
        let points = || rows.iter().filter_map(|r| Some((transfer(r), value(r)?)));
        let log = |rate: f64| rate.max(1.0).log2();
        chart.draw_series(LineSeries::new(points().map(|(x, s)| (x, log(s.median()))), color.stroke_width(width)))?;
        let ranges = points()
            .map(|(x, s)| PathElement::new([(x, log(s.least())), (x, log(s.most()))], color.mix(0.6).stroke_width(2)));
        chart.draw_series(ranges)?;
    }
    Ok(())
}

/// `auto` over the better fixed mode, all panels together.
fn ratios(area: &Area, rows: &[Row]) -> Result<(), Trouble> {
    let all: Vec<&Row> = rows.iter().collect();
    if all.is_empty() {
        return Ok(());
    }
    let most = rows.iter().map(Row::ratio).fold(1.2, f64::max);
    let across = transfers(&all);
    let mut chart = ChartBuilder::on(area)
        .caption("auto / better fixed mode (medians; the dashed line is 1)", ("sans-serif", 17))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(across.clone(), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_labels(17)
        .y_labels(7)
        .x_label_formatter(&|x| power_of_two(*x))
        .y_desc("auto / best")
        .light_line_style(WHITE)
        .draw()?;
    let one = DashedLineSeries::new([(across.start, 1.0), (across.end, 1.0)], 6, 4, BLACK.mix(0.5).stroke_width(1));
    chart.draw_series(one)?;
    for (write, unaligned, _, color) in PANELS {
        let points: Vec<_> = of_panel(rows, write, unaligned).iter().map(|r| (transfer(r), r.ratio())).collect();
        chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
    }
    Ok(())
}
