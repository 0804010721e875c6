//! Pictures of workloads: lengths of calls, and bars beside each other.

use super::latency::Latency;
use crate::failure::{Failure, Outcome};
use plotters::prelude::*;
use std::path::Path;

/// Lengths of the calls of a phase.
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// Its calls.
    pub latency: Latency,
}

/// Colours that are told apart, also without red and green.
const COLORS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

fn drawn(path: &Path, result: Result<(), Box<dyn std::error::Error>>) -> Outcome {
    result.map_err(|e| Failure::broken(format!("cannot draw {}: {e}", path.display())))
}

/// Share of the calls that a length does not exceed, a line for each phase, as SVG.
pub fn latencies(title: &str, curves: &[Curve], path: &Path) -> Outcome {
    drawn(path, try_latencies(title, curves, path))
}

fn try_latencies(title: &str, curves: &[Curve], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .map(|curve| {
            let rows = curve.latency.rows();
            let total: u64 = rows.iter().map(|r| r.1).sum();
            let mut sum = 0;
            let share = |(ns, n): (u64, u64)| {
                sum += n;
                (ns as f64 / 1000.0, sum as f64 / total.max(1) as f64 * 100.0)
            };
            (curve.name.as_str(), rows.into_iter().map(share).collect())
        })
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.0));
    let (low, high) = (all().fold(f64::INFINITY, f64::min).min(1e6), all().fold(0.001, f64::max));
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((low * 0.9..high * 1.1).log_scale(), 0.0..100.0)?;
    chart.configure_mesh().x_desc("microseconds").y_desc("% of the calls").light_line_style(WHITE).draw()?;
    for (i, (name, points)) in lines.into_iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
    root.present()?;
    Ok(())
}

/// Groups of bars: for each group, a value for each name.
pub struct Bars<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// What the values are, e.g. MiB/s.
    pub unit: &'a str,
    /// Names of the bars of a group, in the legend.
    pub names: &'a [String],
    /// Name of the group and its values.
    pub groups: &'a [(String, Vec<f64>)],
}

/// Draws groups of bars as SVG.
pub fn bars(bars: &Bars<'_>, path: &Path) -> Outcome {
    drawn(path, try_bars(bars, path))
}

fn try_bars(bars: &Bars<'_>, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let top = bars.groups.iter().flat_map(|g| &g.1).copied().filter(|v| v.is_finite()).fold(0.001, f64::max) * 1.15;
    let root = SVGBackend::new(path, (1000, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(bars.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..bars.groups.len() as f64, 0.0..top)?;
    let name_of = |x: &f64| {
        let at = x.floor();
        let middle = (x - at - 0.5).abs() < 0.01;
        bars.groups.get(at as usize).filter(|_| middle).map_or_else(String::new, |g| g.0.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * bars.groups.len() + 1)
        .x_label_formatter(&name_of)
        .y_desc(bars.unit)
        .light_line_style(WHITE)
        .draw()?;
    let width = 0.8 / bars.names.len().max(1) as f64;
    for (i, name) in bars.names.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let bar = |(at, (_, values)): (usize, &(String, Vec<f64>))| {
            let left = at as f64 + 0.1 + width * i as f64;
            Rectangle::new([(left, 0.0), (left + width * 0.92, values.get(i).copied().unwrap_or(0.0))], color.filled())
        };
        chart
            .draw_series(bars.groups.iter().enumerate().map(bar))?
            .label(name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
    root.present()?;
    Ok(())
}
