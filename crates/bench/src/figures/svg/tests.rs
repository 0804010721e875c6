//! Tests of pictures: what they hold, and that nothing breaks them.

use super::super::graph::{Axis, Kind, Panel, Point};
use super::scale::Scale;
use super::*;

fn panel(kind: Kind, log: bool) -> Panel {
    let axis = |name, unit| if log { Axis::new(name, unit).log() } else { Axis::new(name, unit) };
    Panel::new("a panel", kind, axis("size", "B"), axis("rate", "MiB/s"))
}

/// Every number in attributes is finite, every tag is closed, and nothing but the five entities stands behind `&`.
fn is_sound(svg: &str) {
    for word in ["NaN", "inf", "=\"-inf"] {
        assert!(!svg.contains(word), "{word} in {svg}");
    }
    let opened = svg.matches("<text").count() + svg.matches("<style").count() + svg.matches("<svg").count();
    let closed = svg.matches("</text>").count() + svg.matches("</style>").count() + svg.matches("</svg>").count();
    assert_eq!(opened, closed, "{svg}");
    for rest in svg.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|e| rest.starts_with(e)), "&{rest}");
    }
}

/// Goal: titles, units and names stand in the picture, and names with markup do not break it. Method: hostile names in
/// every place that shows one.
#[test]
fn text_is_escaped() {
    let hostile = "<b>\"a\" & 'b'\u{1}";
    let axis = Axis::new(hostile, hostile);
    for kind in [Kind::Lines, Kind::Bars, Kind::Stacks] {
        let mut panel = Panel::new(hostile, kind, axis.clone(), axis.clone());
        panel.push(hostile, 1.0, hostile, &[1.0]);
        let svg = picture(hostile, &[panel]);
        is_sound(&svg);
        assert!(svg.contains("&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39; "), "{svg}");
        assert!(!svg.contains("<b>"), "{svg}");
    }
}

/// Goal: a sample that is no number is not drawn and breaks nothing, also on logarithmic axes, which cannot show 0
/// either. Method: points made without the check of `push`; marks are counted.
#[test]
fn no_number_no_mark() {
    for (log, marks) in [(false, 2), (true, 1)] {
        let mut panel = panel(Kind::Lines, log);
        panel.push("a", 1.0, "one", &[3.0]);
        panel.push("a", 2.0, "two", &[0.0]);
        panel.push("a", 4.0, "four", &[f64::NAN, 1.0]);
        panel.curves[0].points.push(Point { x: f64::INFINITY, label: "far".into(), samples: vec![1.0] });
        panel.curves[0].points.push(Point { x: 8.0, label: "eight".into(), samples: vec![f64::INFINITY] });
        let svg = picture("t", &[panel]);
        is_sound(&svg);
        // One mark more is in the legend.
        assert_eq!(svg.matches("<circle").count(), marks + 1, "{svg}");
    }
}

/// Goal: a curve without points is in the legend, marked as not measured, and a panel of such curves says so. Method:
/// one of each.
#[test]
fn empty_curves_and_panels() {
    let mut half = panel(Kind::Lines, true);
    half.push("measured", 1.0, "one", &[1.0]);
    half.push("missing", 1.0, "one", &[]);
    let mut empty = half.only(&["missing"]);
    empty.name = "empty".into();
    let svg = picture("t", &[half, empty, panel(Kind::Bars, false)]);
    is_sound(&svg);
    assert!(svg.contains("missing (not measured)") && !svg.contains("measured (not measured)"), "{svg}");
    assert_eq!(svg.matches("nothing was measured").count(), 2, "{svg}");
    is_sound(&picture("t", &[]));
}

/// Goal: one point alone is drawn within the axes, on each kind of axis. Method: its mark, and no line.
#[test]
fn one_point() {
    for log in [false, true] {
        for value in [0.001, 1.0, 5e9] {
            let mut panel = panel(Kind::Lines, log);
            panel.push("a", 4096.0, "4 KiB", &[value]);
            let svg = picture("t", &[panel]);
            is_sound(&svg);
            assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
            assert_eq!(svg.matches("class=\"c0 line\"").count(), 1, "the legend's alone: {svg}");
        }
    }
}

/// Goal: axes are named with their units, all curves are in the legend, and a curve has one colour in all panels.
/// Method: two panels that begin with different curves.
#[test]
fn axes_and_legend() {
    let (mut one, mut two) = (panel(Kind::Bars, false), panel(Kind::Bars, false));
    one.push("a", 0.0, "x", &[1.0]);
    two.push("b", 0.0, "x", &[1.0]);
    two.push("a", 0.0, "x", &[1.0]);
    let svg = picture("a title", &[one, two]);
    is_sound(&svg);
    for words in ["a title", ">size (B)<", ">rate (MiB/s)<", ">a<", ">b<"] {
        assert!(svg.contains(words), "{words} in {svg}");
    }
    // In the legend and once in each panel that has it.
    let counts = |class: &str| svg.lines().filter(|l| l.starts_with("<rect") && l.contains(class)).count();
    assert_eq!((counts("class=\"c0\""), counts("class=\"c1\"")), (3, 2), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"));
}

/// Goal: piles are as high as the sum of their parts. Method: heights of two parts of one pile, and of the whole of
/// another.
#[test]
fn piles_add_up() {
    let mut panel = panel(Kind::Stacks, false);
    panel.push("a", 0.0, "x", &[30.0]);
    panel.push("b", 0.0, "x", &[10.0]);
    panel.push("a", 1.0, "y", &[40.0]);
    let svg = picture("t", &[panel]);
    let heights: Vec<f64> = svg
        .lines()
        .filter(|l| l.starts_with("<rect x") && !l.contains("height=\"10\""))
        .filter_map(|l| l.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
        .collect();
    let [a, b, whole] = heights[..] else { panic!("{heights:?} in {svg}") };
    assert!((a + b - whole).abs() < 0.3 && (a / b - 3.0).abs() < 0.05, "{heights:?}");
}

/// Goal: a long title takes more lines instead of more width, and loses no word. Method: a title of many words on one
/// panel.
#[test]
fn long_titles() {
    let title = "word ".repeat(60);
    let lines = lines_of(&title, PANEL_WIDTH);
    assert!(lines.len() > 3 && lines.iter().all(|line| line.len() < 60), "{lines:?}");
    assert_eq!(lines.concat().matches("word").count(), 60);
    let svg = picture(&title, &[panel(Kind::Lines, false)]);
    assert_eq!(svg.matches("class=\"title\"").count(), lines.len());
    assert!(lines_of("", 100.0).is_empty() && lines_of("a", 1.0) == ["a"]);
}

/// Goal: ticks lie within the axis, are few, and a logarithmic axis has powers of ten. Method: ranges of all sizes.
#[test]
fn ticks_of_axes() {
    for log in [false, true] {
        for (low, high) in [(1.0, 10.0), (0.003, 0.004), (1.0, 1e12), (5.0, 5.0), (1e-9, 3e9)] {
            let scale = Scale::new([low, high].into_iter(), log, true);
            let ticks = scale.ticks();
            assert!((2..=25).contains(&ticks.len()), "{log} {low} {high}: {ticks:?}");
            assert!(ticks.iter().all(|(share, _)| (0.0..=1.0).contains(share)), "{ticks:?}");
        }
    }
    let ticks: Vec<String> = Scale::new([1.0, 1e6].into_iter(), true, false).ticks().into_iter().map(|t| t.1).collect();
    assert_eq!(ticks, ["1", "10", "100", "1000", "10000", "100000", "1000000"]);
}
