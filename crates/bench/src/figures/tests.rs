//! Every statement of every figure holds on made-up numbers of the paper's shape, and fails on others.

use super::catalog::{Source, all};
use super::claim::Verdict;
use super::graph::{Panel, Seen};
use super::*;
use std::collections::BTreeSet;

/// Cores enough for every statement.
const CORES: usize = 64;

/// Made-up panels of a figure: in which all statements hold, or none.
type MadeUp = fn(bool) -> Vec<Panel>;

fn made_up() -> Vec<(&'static str, MadeUp)> {
    use autoio::made_up as a;
    use peakfs::made_up as p;
    vec![
        ("autoio-1", |holds| a::streams::stream(holds, ["write", "read"])),
        ("autoio-2", a::costs),
        ("autoio-4", |holds| a::streams::stream(holds, ["write", "cold read"])),
        ("autoio-5", |holds| a::streams::stream(holds, ["write", "cold read"])),
        ("autoio-8", |holds| a::streams::stream(holds, ["write", "cold read"])),
        ("autoio-t2", a::streams::overused),
        ("autoio-9", a::small_files),
        ("autoio-10", a::shared::easy),
        ("autoio-11", a::shared::hard),
        ("autoio-13", a::copies),
        ("autoio-14", a::copies),
        ("autoio-15", a::shared::vpic),
        ("autoio-t3", |holds| {
            a::shared::shares("32 KiB", if holds { [0.0, 98.5, 0.1, 1.4] } else { [5.0, 50.0, 0.0, 45.0] })
        }),
        ("autoio-17", a::shared::nek),
        ("autoio-t4", |holds| {
            a::shared::shares("all sizes", if holds { [20.2, 20.9, 58.9, 0.0] } else { [5.0, 40.0, 40.0, 15.0] })
        }),
        ("slides-contention", a::shared::contention),
        ("slides-overuse", |holds| a::streams::stream(holds, ["write", "read"])),
        ("slides-processes", a::shared::writers),
        ("peakfs-10", p::metadata),
        ("peakfs-11", p::metadata),
        ("peakfs-12", p::data::scaling),
        ("peakfs-13", p::data::scaling),
        ("peakfs-14", p::metadata),
        ("peakfs-15", p::data::scaling),
        ("peakfs-18", p::data::limit),
        ("peakfs-19", p::data::limit),
        ("peakfs-20", p::sharing),
        ("peakfs-21", p::indexes),
        ("peakfs-22", p::data::parts),
        ("mpiio-4", mpiio::made_up::patterns),
        ("mpiio-6", mpiio::made_up::natively),
    ]
}

/// Goal: each statement of each measured figure can hold and can fail. Method: made-up panels in which all statements
/// hold, and others in which none does.
#[test]
fn every_statement_can_fail() {
    let made_up = made_up();
    let named: BTreeSet<&str> = made_up.iter().map(|(id, _)| *id).collect();
    for figure in all() {
        let Source::Measured { check, .. } = figure.source else { continue };
        assert!(named.contains(figure.id), "{} has no made-up numbers", figure.id);
        let (_, panels) = made_up.iter().find(|(id, _)| *id == figure.id).expect("it is there");
        for (holds, wanted) in [(true, Verdict::Reproduced), (false, Verdict::NotReproduced)] {
            for check in check(&Seen { panels: &panels(holds), cores: CORES }) {
                assert_eq!(check.verdict, wanted, "{}: {check:?}", figure.id);
            }
        }
    }
}

/// Goal: on a machine with few cores no figure that needs more is judged, in either direction. Method: the statements
/// on scaling, with numbers that hold and that fail.
#[test]
fn few_cores_judge_nothing_that_needs_more() {
    let made_up = made_up();
    for id in ["peakfs-10", "peakfs-11", "peakfs-12", "peakfs-20"] {
        let figure = all().into_iter().find(|figure| figure.id == id).expect("it is there");
        let Source::Measured { check, .. } = figure.source else { panic!("{id} is measured") };
        let (_, panels) = made_up.iter().find(|(name, _)| *name == id).expect("it is there");
        for holds in [true, false] {
            let checks = check(&Seen { panels: &panels(holds), cores: 2 });
            assert_eq!(Verdict::of(&checks), Verdict::CannotBeTried, "{id}: {checks:?}");
        }
    }
}

/// Goal: the time left follows the pace so far. Method: nothing done yet, and all done; words for people.
#[test]
fn time_left() {
    let progress = |done| Progress { start: clock::now(), done, all: 100 };
    assert_eq!((progress(0).left(), progress(100).left()), (100.0, 0.0));
    assert_eq!((minutes(20.0), minutes(240.0)), ("20 s".to_string(), "4 min".to_string()));
}

/// Goal: the page of the papers lists every figure as the program does, with the reason where none is measured. Method:
/// a row for each, and no row more.
#[test]
fn the_page_lists_every_figure() {
    let page = include_str!("../../../../docs/PAPERS.md");
    for figure in all() {
        let here = match figure.source {
            Source::Measured { .. } => "measured",
            Source::Untried(why) => why,
        };
        let row = format!("| `{}` | {} | {here} |", figure.id, figure.title);
        assert!(page.lines().any(|line| line == row), "docs/PAPERS.md has no row {row}");
    }
    let begins = |line: &&str| catalog::PAPERS.iter().any(|paper| line.starts_with(&format!("| `{}-", paper.0)));
    assert_eq!(page.lines().filter(begins).count(), all().len());
}
