//! The numbers of a figure: panels with axes, curves and points, each point with all its samples.
//!
//! Owns: the form in which they are kept and shown as text. Does not own: pictures (`svg`), what the numbers must look
//! like (`claim`). Invariants: the samples of a point are finite and in the order of their rounds, so that a ratio of
//! two curves is taken within a round; a point that could not be measured has no samples.

use crate::report::{Table, spread};
use crate::series::Series;
use serde::{Deserialize, Serialize};

/// How the curves of a panel are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Lines through points.
    Lines,
    /// Bars beside each other, a group for each label.
    Bars,
    /// Bars on top of each other, a pile for each label.
    Stacks,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity.
    pub name: String,
    /// Its unit; empty: none.
    pub unit: String,
    /// Whether it is logarithmic.
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    pub fn new(name: &str, unit: &str) -> Axis {
        Axis { name: name.into(), unit: unit.into(), log: false }
    }

    /// The same, logarithmic.
    pub fn log(self) -> Axis {
        Axis { log: true, ..self }
    }

    /// Quantity and unit in a line.
    pub fn label(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} ({})", self.name, self.unit) }
    }
}

/// A place on a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where it is on the axis; bars stand in the order in which their labels come.
    pub x: f64,
    /// The word for this place.
    pub label: String,
    /// One value for each round.
    pub samples: Vec<f64>,
}

/// A named curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// One system of axes with its curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// The title, and the name by which checks find it.
    pub name: String,
    /// How it is drawn.
    pub kind: Kind,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// All curves.
    pub curves: Vec<Curve>,
}

impl Panel {
    /// A panel without curves.
    pub fn new(name: impl Into<String>, kind: Kind, x: Axis, y: Axis) -> Panel {
        Panel { name: name.into(), kind, x, y, curves: Vec::new() }
    }

    /// Adds a point to the curve `curve`, which is made if it is new. A point with a sample that is no number counts as
    /// not measured.
    pub fn push(&mut self, curve: &str, x: f64, label: &str, samples: &[f64]) {
        let is_whole = samples.iter().all(|v| v.is_finite());
        let samples = if is_whole { samples.to_vec() } else { Vec::new() };
        let point = Point { x, label: label.into(), samples };
        match self.curves.iter_mut().find(|c| c.name == curve) {
            Some(found) => found.points.push(point),
            None => self.curves.push(Curve { name: curve.into(), points: vec![point] }),
        }
    }

    /// The same panel with these curves alone.
    pub fn only(&self, curves: &[&str]) -> Panel {
        let kept = self.curves.iter().filter(|c| curves.contains(&c.name.as_str())).cloned().collect();
        Panel { curves: kept, ..self.clone() }
    }

    /// The labels of all points, each once, in their order.
    pub fn labels(&self) -> Vec<&str> {
        let mut all: Vec<(f64, &str)> = Vec::new();
        for point in self.curves.iter().flat_map(|c| &c.points) {
            if all.iter().all(|(_, label)| *label != point.label) {
                all.push((point.x, &point.label));
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, label)| label).collect()
    }

    /// The samples of a curve at a label, if it was measured there.
    pub fn samples(&self, curve: &str, label: &str) -> Option<Series> {
        let curve = self.curves.iter().find(|c| c.name == curve)?;
        let point = curve.points.iter().find(|p| p.label == label && !p.samples.is_empty())?;
        Some(Series(point.samples.clone()))
    }

    /// The median of a curve at a label.
    pub fn median(&self, curve: &str, label: &str) -> Option<f64> {
        self.samples(curve, label).map(|series| series.median())
    }

    /// The median of `a / b` within rounds, if both were measured and the ratio is a number.
    pub fn ratio(&self, a: &str, b: &str, label: &str) -> Option<f64> {
        let (a, b) = (self.samples(a, label)?, self.samples(b, label)?);
        Some(a.over(&b).median()).filter(|ratio| ratio.is_finite())
    }

    /// Its numbers for people: a row for each label, a column for each curve.
    pub fn table(&self) -> Table {
        let mut heads = vec![self.x.name.as_str()];
        heads.extend(self.curves.iter().map(|c| c.name.as_str()));
        let mut table = Table::new(format!("{}: {}, median and range", self.name, self.y.label()), &heads);
        for label in self.labels() {
            let cell = |c: &Curve| self.samples(&c.name, label).map_or_else(|| "-".into(), |s| spread(&s));
            table.row(std::iter::once(label.to_string()).chain(self.curves.iter().map(cell)).collect());
        }
        table
    }
}

/// What the statements of a figure are tried on.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The panels of the figure.
    pub panels: &'a [Panel],
    /// Cores of the machine: what needs more can be measured and not judged.
    pub cores: usize,
}

impl<'a> Seen<'a> {
    /// The panel of this name.
    pub fn panel(&self, name: &str) -> Option<&'a Panel> {
        self.panels.iter().find(|panel| panel.name == name)
    }
}

/// Made-up panels for tests of statements.
#[cfg(test)]
pub mod made {
    use super::{Axis, Kind, Panel};

    /// Lines through one sample at each label; `xs` are the places of the labels.
    pub fn curves<const N: usize>(name: &str, labels: &[&str; N], xs: &[f64; N], rows: &[(&str, [f64; N])]) -> Panel {
        let mut panel = Panel::new(name, Kind::Lines, Axis::new("x", ""), Axis::new("y", ""));
        for (curve, values) in rows {
            for ((label, x), value) in labels.iter().zip(xs).zip(values) {
                panel.push(curve, *x, label, &[*value]);
            }
        }
        panel
    }

    /// One place with these values.
    pub fn place(name: &str, label: &str, rows: &[(&str, f64)]) -> Panel {
        let rows: Vec<(&str, [f64; 1])> = rows.iter().map(|(curve, value)| (*curve, [*value])).collect();
        curves(name, &[label], &[0.0], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let mut panel = Panel::new("p", Kind::Lines, Axis::new("size", "B").log(), Axis::new("rate", "MiB/s"));
        panel.push("a", 2.0, "two", &[2.0, 4.0, 6.0]);
        panel.push("a", 1.0, "one", &[f64::NAN, 1.0]);
        panel.push("b", 2.0, "two", &[1.0, 1.0, 3.0]);
        panel
    }

    /// Goal: ratios are taken within rounds, a point with a sample that is no number counts as not measured, and labels
    /// stand in the order of the axis. Method: three points.
    #[test]
    fn points_and_ratios() {
        let panel = panel();
        assert_eq!(panel.ratio("a", "b", "two"), Some(2.0));
        assert_eq!(
            (panel.ratio("a", "b", "one"), panel.ratio("a", "c", "two"), panel.median("a", "one")),
            (None, None, None)
        );
        assert_eq!(panel.labels(), ["one", "two"]);
        assert_eq!(panel.only(&["b"]).curves.len(), 1);
    }

    /// Goal: a division by zero is no ratio. Method: a curve of zeros.
    #[test]
    fn a_ratio_is_a_number() {
        let mut panel = panel();
        panel.push("zero", 2.0, "two", &[0.0, 0.0, 0.0]);
        assert_eq!(panel.ratio("a", "zero", "two"), None);
        assert_eq!(panel.ratio("zero", "a", "two"), Some(0.0));
    }

    /// Goal: the numbers survive being written and read. Method: JSON there and back.
    #[test]
    fn kept_as_json() {
        let text = serde_json::to_string(&panel()).expect("JSON");
        assert_eq!(serde_json::from_str::<Panel>(&text).expect("a panel"), panel());
    }

    /// Goal: a table has a row for each label and names the unit, and shows what is not there as a dash. Method: texts.
    #[test]
    fn numbers_for_people() {
        let text = panel().table().render();
        assert!(text.contains("rate (MiB/s)") && text.contains("| one") && text.contains("4.00 (2.00-6.00)"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("| one") && line.contains("- |")), "{text}");
    }
}
