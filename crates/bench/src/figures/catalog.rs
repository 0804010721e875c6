//! All figures and tables of the papers, by paper and number.
//!
//! Owns: the list, and finding figures by what a user writes. Does not own: measurements and statements, which lie with
//! each paper. Invariant: every numbered figure and table of the papers is here, also one that cannot be tried.

use super::claim::Check;
use super::graph::Seen;
use super::lab::{Lab, Made};
use super::{autoio, mpiio, peakfs};
use amphi_host::failure::{Failure, Outcome};

/// Where a figure comes from.
#[derive(Clone, Copy)]
pub enum Source {
    /// A measurement here.
    Measured {
        /// About how many seconds it takes, whole and quick.
        seconds: [u32; 2],
        /// Measures.
        measure: fn(&mut Lab) -> Outcome<Made>,
        /// Tries the statements of the text.
        check: fn(&Seen<'_>) -> Vec<Check>,
    },
    /// Nothing can be measured here; the reason.
    Untried(&'static str),
}

/// A figure or a table.
#[derive(Clone, Copy)]
pub struct Figure {
    /// Paper and number: `autoio-5`, tables `autoio-t2`.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where it comes from.
    pub source: Source,
}

/// The papers: the beginning of their figures' names, and what they are.
pub const PAPERS: [(&str, &str); 4] = [
    ("autoio", "Qian et al., Combining Buffered I/O and Direct I/O in Distributed File Systems, FAST '24"),
    ("slides", "the slides of that talk, and Vef et al., Status of Lustre's Hybrid I/O, LUG 2026"),
    ("peakfs", "Chen et al., PeakFS, 2024"),
    ("mpiio", "Liao et al., cooperative client-side file caching for MPI applications"),
];

impl Figure {
    /// The paper that it is from.
    pub fn paper(&self) -> &'static str {
        let name = self.id.split('-').next().unwrap_or_default();
        PAPERS.iter().find(|paper| paper.0 == name).map_or("", |paper| paper.1)
    }

    /// The number behind the paper's name.
    fn number(&self) -> &'static str {
        self.id.split_once('-').map_or("", |(_, number)| number)
    }

    /// About how many seconds it takes.
    pub fn seconds(&self, is_quick: bool) -> u32 {
        match self.source {
            Source::Measured { seconds, .. } => seconds[usize::from(is_quick)],
            Source::Untried(_) => 0,
        }
    }
}

/// All of them, in the order in which they are made.
pub fn all() -> Vec<Figure> {
    [&autoio::FIGURES[..], &autoio::SLIDES, &peakfs::FIGURES, &mpiio::FIGURES].concat()
}

/// The figures that `names` mean: `autoio-5`, a paper (`autoio`), or a number alone, which means that number of each
/// paper. Without names all.
///
/// Errors: a name that means none.
pub fn wanted(names: &[String]) -> Outcome<Vec<Figure>> {
    let all = all();
    let means = |name: &str, figure: &Figure| {
        figure.id == name || figure.number() == name || figure.id.split('-').next() == Some(name)
    };
    let names: Vec<String> = names.iter().map(|name| name.trim().to_lowercase()).collect();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|figure| means(name, figure))) {
        return Err(Failure::refused(format!(
            "--only {unknown}: no figure of this name; `amphi bench figures --list` shows all"
        )));
    }
    let is_wanted = |figure: &Figure| names.is_empty() || names.iter().any(|name| means(name, figure));
    Ok(all.into_iter().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: a figure is found by name, by number and by paper, and a name of none is refused. Method: each kind.
    #[test]
    fn figures_by_name() {
        let of = |names: &[&str]| -> Outcome<Vec<&str>> {
            let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            Ok(wanted(&names)?.into_iter().map(|f| f.id).collect())
        };
        assert_eq!(of(&["autoio-5"]).expect("one"), ["autoio-5"]);
        assert_eq!(of(&["5", "AUTOIO-T2 "]).expect("three"), ["autoio-5", "autoio-t2", "peakfs-5", "mpiio-5"]);
        assert!(of(&["peakfs"]).expect("some").iter().all(|id| id.starts_with("peakfs-")));
        assert_eq!(of(&[]).expect("all").len(), all().len());
        let refused = of(&["autoio-5", "autoio-99"]).expect_err("there is no such figure");
        assert!(refused.code == 2 && refused.text.contains("autoio-99"), "{refused:?}");
    }

    /// Goal: names are unique, each belongs to a paper, and every numbered figure and table of the papers is there.
    /// Method: the numbers of the papers.
    #[test]
    fn every_figure_is_there() {
        let all = all();
        let ids: BTreeSet<&str> = all.iter().map(|f| f.id).collect();
        assert_eq!(ids.len(), all.len());
        assert!(all.iter().all(|f| !f.paper().is_empty() && !f.title.is_empty()));
        let numbered = |paper: &str, figures: u32, tables: u32| {
            let figures = (1..=figures).map(|n| format!("{paper}-{n}")).collect::<Vec<_>>();
            let tables = (1..=tables).map(|n| format!("{paper}-t{n}"));
            for id in figures.into_iter().chain(tables) {
                assert!(ids.contains(id.as_str()), "{id} is missing");
            }
        };
        numbered("autoio", 17, 4);
        numbered("peakfs", 22, 0);
        numbered("mpiio", 6, 1);
    }

    /// Goal: no check panics or reports success where nothing was measured. Method: every check on no panels.
    #[test]
    fn nothing_measured_is_nothing_reproduced() {
        use crate::figures::claim::Verdict;
        for figure in all() {
            let Source::Measured { check, .. } = figure.source else { continue };
            let checks = check(&Seen { panels: &[], cores: 64 });
            assert!(!checks.is_empty(), "{} states nothing", figure.id);
            assert!(checks.iter().all(|c| c.verdict == Verdict::CannotBeTried), "{}: {checks:?}", figure.id);
        }
    }
}
