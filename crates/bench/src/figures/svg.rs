//! Pictures of panels as SVG that can be read on light and on dark paper.
//!
//! Owns: the layout, scales, ticks and colours. Does not own: the numbers (`graph`). Invariants: every axis is named
//! with its unit; every curve is in the legend, also one that was not measured; a curve has the same colour, dashes and
//! marks in all panels of a picture; no coordinate is anything but a finite number, whatever the samples are; text is
//! escaped. Colours follow the reader's setting (`prefers-color-scheme`); dashes and marks tell curves apart without
//! them.

mod scale;

use super::graph::{Curve, Kind, Panel};
use crate::series::Series;
use scale::Scale;
use std::fmt::Write;

/// Width of a panel and of what is around it.
const PANEL_WIDTH: f64 = 560.0;
const PANEL_HEIGHT: f64 = 330.0;
/// Panels side by side.
const COLUMNS: usize = 2;
/// Of a line of the title.
const TITLE_HEIGHT: f64 = 21.0;
/// Above the first line.
const TITLE_ABOVE: f64 = 13.0;
const LEGEND_HEIGHT: f64 = 22.0;
/// The space of a panel around its axes: left, right, above, below.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 18.0;
const ABOVE: f64 = 30.0;
const BELOW: f64 = 52.0;
/// Width of a letter of the labels, on average.
const LETTER: f64 = 6.6;
/// Width of a letter of the title.
const TITLE_LETTER: f64 = 9.4;

/// Colours on light and on dark paper; people who do not distinguish red and green can tell them apart.
const COLORS: [(&str, &str); 12] = [
    ("#0b62a4", "#5db0f0"),
    ("#c44e00", "#ff9650"),
    ("#1a7f37", "#56d364"),
    ("#8b2fc9", "#c99bff"),
    ("#b3134b", "#ff7ba5"),
    ("#6b5900", "#d8bf3c"),
    ("#00737a", "#45d0d8"),
    ("#555555", "#b5b5b5"),
    ("#7a3b12", "#dba37c"),
    ("#1d1d6b", "#9a9aff"),
    ("#e0a000", "#ffd166"),
    ("#8fb08c", "#3f7a4b"),
];
const DASHES: [&str; 5] = ["none", "7 4", "2 3", "9 3 2 3", "12 5"];

/// Text in XML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A place of text: where its middle, begin or end is.
fn text(out: &mut String, (x, y): (f64, f64), class: &str, body: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escaped(body));
}

fn style() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (i, (on_light, on_dark)) in COLORS.iter().enumerate() {
        let _ = write!(light, ".c{i}{{stroke:{on_light};fill:{on_light}}}");
        let _ = write!(dark, ".c{i}{{stroke:{on_dark};fill:{on_dark}}}");
    }
    format!(
        "<style>.paper{{fill:#ffffff}}text{{font:12px sans-serif;fill:#1c1c1c}}.title{{font-size:16px;font-weight:600}}\
         .name{{font-weight:600}}.mid{{text-anchor:middle}}.end{{text-anchor:end}}.grid{{stroke:#dddddd}}\
         .axis{{stroke:#444444}}.line{{fill:none;stroke-width:2}}.range{{stroke-width:1;opacity:.55}}{light}\
         .line{{fill:none}}@media(prefers-color-scheme:dark){{.paper{{fill:#15181c}}text{{fill:#e6e6e6}}\
         .grid{{stroke:#363b42}}.axis{{stroke:#aaaaaa}}{dark}.line{{fill:none}}}}</style>\n"
    )
}

/// The names of all curves, each once, in their order: the place of a name is its colour.
fn names(panels: &[Panel]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if !all.contains(&curve.name.as_str()) {
            all.push(&curve.name);
        }
    }
    all
}

/// The places of the entries of a legend, x and row, within `width`.
fn legend(names: &[String], width: f64) -> Vec<(f64, usize)> {
    let (mut x, mut row) = (14.0, 0);
    let place = |name: &String| {
        let needed = 46.0 + (LETTER + 0.6) * name.chars().count() as f64;
        if x + needed > width && x > 14.0 {
            (x, row) = (14.0, row + 1);
        }
        let at = (x, row);
        x += needed;
        at
    };
    names.iter().map(place).collect()
}

/// A title in as many lines as `width` needs.
fn lines_of(title: &str, width: f64) -> Vec<String> {
    let most = ((width - 28.0) / TITLE_LETTER) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in title.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// A picture of all panels.
pub fn picture(title: &str, panels: &[Panel]) -> String {
    let columns = COLUMNS.min(panels.len()).max(1);
    let width = PANEL_WIDTH * columns as f64;
    let names = names(panels);
    let is_measured =
        |name: &str| panels.iter().flat_map(|p| &p.curves).any(|c| c.name == name && c.points.iter().any(is_point));
    let shown: Vec<String> = names
        .iter()
        .map(|name| if is_measured(name) { name.to_string() } else { format!("{name} (not measured)") })
        .collect();
    let places = legend(&shown, width);
    let title_lines = lines_of(title, width);
    let legend_top = TITLE_ABOVE + TITLE_HEIGHT * title_lines.len().max(1) as f64;
    let top = legend_top + LEGEND_HEIGHT * (1 + places.last().map_or(0, |p| p.1)) as f64;
    let height = top + PANEL_HEIGHT * panels.len().div_ceil(columns).max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">\n{}",
        escaped(title),
        style()
    );
    let _ = writeln!(out, "<rect width=\"{width:.0}\" height=\"{height:.0}\" class=\"paper\"/>");
    for (i, line) in title_lines.iter().enumerate() {
        text(&mut out, (14.0, 22.0 + TITLE_HEIGHT * i as f64), "title", line);
    }
    let bars_alone = panels.iter().all(|panel| panel.kind != Kind::Lines);
    for (i, (name, (x, row))) in shown.iter().zip(&places).enumerate() {
        let y = legend_top + LEGEND_HEIGHT * *row as f64 + 8.0;
        if bars_alone {
            let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"26\" height=\"10\" {}/>", y - 5.0, class(i));
        } else {
            line(&mut out, &[(*x, y), (x + 26.0, y)], i);
            mark(&mut out, (x + 13.0, y), i);
        }
        text(&mut out, (x + 32.0, y + 4.0), "", name);
    }
    for (i, panel) in panels.iter().enumerate() {
        let at = ((i % columns) as f64 * PANEL_WIDTH, top + (i / columns) as f64 * PANEL_HEIGHT);
        draw(&mut out, panel, at, &names);
    }
    out.push_str("</svg>\n");
    out
}

fn class(i: usize) -> String {
    format!("class=\"c{}\"", i % COLORS.len())
}

fn is_point(point: &super::graph::Point) -> bool {
    !point.samples.is_empty() && point.x.is_finite() && point.samples.iter().all(|v| v.is_finite())
}

fn line(out: &mut String, points: &[(f64, f64)], i: usize) {
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let dashes = DASHES[i % DASHES.len()];
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" class=\"c{} line\" stroke-dasharray=\"{dashes}\"/>",
        places.join(" "),
        i % COLORS.len()
    );
}

/// A mark of a form of its own.
fn mark(out: &mut String, (x, y): (f64, f64), i: usize) {
    let class = class(i);
    let _ = match i % 4 {
        0 => writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\" {class}/>"),
        1 => writeln!(out, "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6.4\" height=\"6.4\" {class}/>", x - 3.2, y - 3.2),
        2 => writeln!(
            out,
            "<polygon points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\" {class}/>",
            x,
            y - 4.4,
            x - 4.2,
            y + 3.2,
            x + 4.2,
            y + 3.2
        ),
        _ => writeln!(
            out,
            "<polygon points=\"{:.1},{y:.1} {x:.1},{:.1} {:.1},{y:.1} {x:.1},{:.1}\" {class}/>",
            x - 4.4,
            y - 4.4,
            x + 4.4,
            y + 4.4
        ),
    };
}

/// The part of a panel between its axes: left, top, width, height.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn x(&self, share: f64) -> f64 {
        self.left + share * self.width
    }

    fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }
}

fn draw(out: &mut String, panel: &Panel, (left, top): (f64, f64), names: &[&str]) {
    let area = Area {
        left: left + LEFT,
        top: top + ABOVE,
        width: PANEL_WIDTH - LEFT - RIGHT,
        height: PANEL_HEIGHT - ABOVE - BELOW,
    };
    text(out, (area.x(0.5), top + 18.0), "mid name", &panel.name);
    let (y_label, x_label) = (panel.y.label(), panel.x.label());
    text(out, (area.x(0.5), top + PANEL_HEIGHT - 10.0), "mid", &x_label);
    let (x, y) = (left + 16.0, area.y(0.5));
    let _ = writeln!(
        out,
        "<text class=\"mid\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{}</text>",
        escaped(&y_label)
    );
    let measured: Vec<&Curve> = panel.curves.iter().filter(|c| c.points.iter().any(is_point)).collect();
    let scale = match panel.kind {
        Kind::Stacks => Scale::stacked(panel),
        Kind::Lines | Kind::Bars => Scale::upwards(panel),
    };
    for (share, label) in scale.ticks() {
        let y = area.y(share);
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>",
            area.x(0.0),
            area.x(1.0)
        );
        text(out, (area.x(0.0) - 6.0, y + 4.0), "end", &label);
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\" class=\"axis\" fill=\"none\"/>",
        area.x(0.0),
        area.y(1.0),
        area.x(0.0),
        area.y(0.0),
        area.x(1.0),
        area.y(0.0)
    );
    if measured.is_empty() {
        text(out, (area.x(0.5), area.y(0.5)), "mid", "nothing was measured");
        return;
    }
    match panel.kind {
        Kind::Lines => lines(out, panel, area, &scale, names),
        Kind::Bars | Kind::Stacks => bars(out, panel, area, &scale, names),
    }
}

fn color_of(names: &[&str], curve: &Curve) -> usize {
    names.iter().position(|name| *name == curve.name).unwrap_or(0)
}

fn lines(out: &mut String, panel: &Panel, area: Area, scale: &Scale, names: &[&str]) {
    let across = Scale::across(panel);
    let mut last_end = f64::NEG_INFINITY;
    let labels = panel.labels();
    for label in &labels {
        let Some(point) = panel.curves.iter().flat_map(|c| &c.points).find(|p| p.label == *label) else { continue };
        let Some(share) = across.share(point.x) else { continue };
        let (x, half) = (area.x(share), LETTER * label.chars().count() as f64 / 2.0);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"axis\"/>",
            area.y(0.0),
            area.y(0.0) + 4.0
        );
        if x - half > last_end + 6.0 {
            text(out, (x, area.y(0.0) + 17.0), "mid", label);
            last_end = x + half;
        }
    }
    for curve in &panel.curves {
        let i = color_of(names, curve);
        let mut places = Vec::new();
        let mut points: Vec<_> = curve.points.iter().filter(|p| is_point(p)).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        for point in points {
            let series = Series(point.samples.clone());
            let (Some(x), Some(y)) = (across.share(point.x), scale.share(series.median())) else { continue };
            let (low, high) = series.range();
            if let (Some(low), Some(high)) = (scale.share(low), scale.share(high)) {
                let _ = writeln!(
                    out,
                    "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" class=\"c{3} range\"/>",
                    area.x(x),
                    area.y(low),
                    area.y(high),
                    i % COLORS.len()
                );
            }
            places.push((area.x(x), area.y(y)));
        }
        if places.len() > 1 {
            line(out, &places, i);
        }
        places.into_iter().for_each(|place| mark(out, place, i));
    }
}

fn bars(out: &mut String, panel: &Panel, area: Area, scale: &Scale, names: &[&str]) {
    let labels = panel.labels();
    let group = area.width / labels.len().max(1) as f64;
    let is_stacked = panel.kind == Kind::Stacks;
    let wide = if is_stacked { group * 0.6 } else { group * 0.84 / panel.curves.len().max(1) as f64 };
    for (at, label) in labels.iter().enumerate() {
        let begin = area.left + group * at as f64;
        let room = (group / LETTER).max(4.0) as usize;
        let short: String = match label.chars().count() > room {
            true => label.chars().take(room - 1).chain(['…']).collect(),
            false => label.to_string(),
        };
        text(out, (begin + group / 2.0, area.y(0.0) + 17.0), "mid", &short);
        let mut below = 0.0;
        for (nth, curve) in panel.curves.iter().enumerate() {
            let Some(median) = panel.median(&curve.name, label) else { continue };
            let (from, to) = if is_stacked { (below, below + median) } else { (scale.floor(), median) };
            let (Some(low), Some(high)) = (scale.share(from), scale.share(to)) else { continue };
            below = to;
            let x = if is_stacked { begin + group * 0.2 } else { begin + group * 0.08 + wide * nth as f64 };
            let (y, high) = (area.y(high), (area.y(low) - area.y(high)).max(0.0));
            let i = color_of(names, curve);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{high:.1}\" {}/>",
                (wide - 1.0).max(1.0),
                class(i)
            );
        }
    }
}

#[cfg(test)]
mod tests;
