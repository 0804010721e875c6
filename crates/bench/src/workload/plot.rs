//! Pictures of workloads: lengths of calls, and bars beside each other.

use super::latency::Latency;
use crate::report::digits;
use amphi_host::failure::{Failure, Outcome};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Lengths of the calls of a phase.
pub struct Curve {
    /// The label in the legend.
    pub name: String,
    /// Its calls.
    pub latency: Latency,
}

/// Colours that can be distinguished, also by people who do not distinguish red and green.
const COLORS: [RGBColor; 12] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
    RGBColor(0, 0, 0),
    RGBColor(174, 199, 232),
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

/// Pictures of groups of bars, in panels side by side and below each other.
pub struct Bars<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// The unit of the values, e.g. MiB/s.
    pub unit: &'a str,
    /// Names of the bars of a group, in the legend.
    pub names: &'a [String],
    /// The panels in rows.
    pub panels: &'a [Panel],
    /// Panels side by side.
    pub columns: usize,
}

/// Groups of bars on one scale.
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Name of each group, and a value for each name.
    pub groups: Vec<(String, Vec<f64>)>,
}

const WIDTH: i32 = 1100;
/// Heights of a panel: one that is alone in its column, and one of several.
const HEIGHTS: [i32; 2] = [440, 280];
const TITLE_HEIGHT: i32 = 34;
const LEGEND_HEIGHT: i32 = 20;

/// The places of the entries of a legend: x and row; as many rows as are needed.
fn legend(names: &[String]) -> Vec<(i32, i32)> {
    let (mut x, mut row) = (12, 0);
    let place = |name: &String| {
        // Letters of this size are narrower than that on average.
        let width = 30 + 8 * name.chars().count() as i32;
        if x + width > WIDTH && x > 12 {
            (x, row) = (12, row + 1);
        }
        let at = (x, row);
        x += width;
        at
    };
    names.iter().map(place).collect()
}

/// Draws groups of bars as SVG.
pub fn bars(bars: &Bars<'_>, path: &Path) -> Outcome {
    drawn(path, try_bars(bars, path))
}

fn try_bars(bars: &Bars<'_>, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let columns = bars.columns.clamp(1, bars.panels.len().max(1));
    let rows = bars.panels.len().div_ceil(columns);
    let legend = legend(bars.names);
    let top = TITLE_HEIGHT + LEGEND_HEIGHT * (1 + legend.last().map_or(0, |l| l.1));
    let height = top + rows as i32 * HEIGHTS[usize::from(rows > 1)];
    let root = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(bars.title, (12, 10), ("sans-serif", 19).into_font()))?;
    for (i, (name, (x, row))) in bars.names.iter().zip(&legend).enumerate() {
        let y = TITLE_HEIGHT + LEGEND_HEIGHT * row;
        root.draw(&Rectangle::new([(*x, y), (x + 14, y + 11)], color(i).filled()))?;
        root.draw(&Text::new(name.as_str(), (x + 19, y), ("sans-serif", 14).into_font()))?;
    }
    let (_, below) = root.split_vertically(top);
    for (area, panel) in below.split_evenly((rows, columns)).iter().zip(bars.panels) {
        draw_panel(&root, area, bars, panel)?;
    }
    root.present()?;
    Ok(())
}

fn color(i: usize) -> RGBColor {
    COLORS[i % COLORS.len()]
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_panel(
    root: &Area<'_>,
    area: &Area<'_>,
    bars: &Bars<'_>,
    panel: &Panel,
) -> Result<(), Box<dyn std::error::Error>> {
    let values = panel.groups.iter().flat_map(|g| &g.1).copied();
    let top = values.filter(|v| v.is_finite()).fold(0.001, f64::max) * 1.05;
    let mut builder = ChartBuilder::on(area);
    builder.margin(10).x_label_area_size(24).y_label_area_size(64);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, ("sans-serif", 15));
    }
    let mut chart = builder.build_cartesian_2d(0.0..panel.groups.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(1)
        .x_label_formatter(&|_| String::new())
        .y_labels(6)
        .y_label_formatter(&|y| digits(*y))
        .y_desc(bars.unit)
        .light_line_style(WHITE)
        .draw()?;
    let width = 0.84 / bars.names.len().max(1) as f64;
    for i in 0..bars.names.len() {
        let bar = |(at, (_, values)): (usize, &(String, Vec<f64>))| {
            let left = at as f64 + 0.08 + width * i as f64;
            let value = values.get(i).copied().filter(|v| v.is_finite()).unwrap_or(0.0);
            Rectangle::new([(left, 0.0), (left + width * 0.92, value)], color(i).filled())
        };
        chart.draw_series(panel.groups.iter().enumerate().map(bar))?;
    }
    let centered = ("sans-serif", 13).into_font().into_text_style(root);
    let centered = centered.pos(Pos::new(HPos::Center, VPos::Top));
    for (at, (name, _)) in panel.groups.iter().enumerate() {
        let (x, y) = chart.plotting_area().map_coordinate(&(at as f64 + 0.5, 0.0));
        root.draw(&Text::new(name.as_str(), (x, y + 7), centered.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries of a legend neither overlap nor leave the picture. Method: many names of several lengths.
    #[test]
    fn legend_has_room() {
        let names: Vec<String> = (0..30).map(|i| "n".repeat(1 + i * 7 % 28)).collect();
        let places = legend(&names);
        for (name, pair) in names.iter().zip(places.windows(2)) {
            let end = pair[0].0 + 19 + 8 * name.len() as i32;
            assert!(end <= WIDTH, "{name}");
            assert!(pair[1].1 > pair[0].1 || pair[1].0 >= end, "{name}: {pair:?}");
        }
        assert!(places.iter().any(|p| p.1 > 1));
    }

    /// Goal: the picture contains every name, group and title. Method: the texts of a file of two panels.
    #[test]
    fn bars_are_labelled() {
        let dir = std::env::temp_dir().join(format!("amphi-plot-{}", std::process::id()));
        let path = dir.with_extension("svg");
        let names = ["one", "two"].map(String::from);
        let panel = |title: &str| Panel {
            title: title.into(),
            groups: vec![(format!("{title} a"), vec![1.0, 2.0]), (format!("{title} b"), vec![3.0, f64::NAN])],
        };
        let panels = [panel("write"), panel("read")];
        bars(&Bars { title: "all", unit: "MiB/s", names: &names, panels: &panels, columns: 2 }, &path).expect("drawn");
        let text = std::fs::read_to_string(&path).expect("a picture");
        std::fs::remove_file(&path).expect("removed");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for word in ["all", "one", "two", "write", "read", "write a", "write b", "read a", "read b"] {
            assert!(lines.contains(&word), "{word} in {text}");
        }
    }
}
