//! What the text of a paper states about the shape of a figure, tried on measured panels.
//!
//! Owns: verdicts, and the few kinds of statements of which all checks are made. Does not own: which statement belongs
//! to which figure. Invariants: an order counts as reproduced when it holds by 10 % in the median of ratios within
//! rounds (`AHEAD`); "as good as" means at least nine tenths (`AS_GOOD`); what was not measured is never reproduced;
//! a factor of a paper is shown and not demanded, since it belongs to the paper's machines.

use super::graph::Panel;
use crate::report::digits;
use serde::{Deserialize, Serialize};

/// One thing is faster than another if its median ratio is at least this.
pub const AHEAD: f64 = 1.1;
/// One thing is as good as another if its median ratio is at least this.
pub const AS_GOOD: f64 = 0.9;

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The shape is that of the paper.
    Reproduced,
    /// It is not.
    NotReproduced,
    /// This machine or this run cannot show it.
    CannotBeTried,
}

impl Verdict {
    /// The words for it.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Reproduced => "REPRODUCED",
            Verdict::NotReproduced => "NOT REPRODUCED",
            Verdict::CannotBeTried => "CANNOT BE TRIED HERE",
        }
    }

    /// The verdict on a figure from those on its statements: one that fails makes all fail, and statements that cannot
    /// be tried neither help nor harm as long as there is another one.
    pub fn of(checks: &[Check]) -> Verdict {
        let any = |verdict| checks.iter().any(|check| check.verdict == verdict);
        match (any(Verdict::NotReproduced), any(Verdict::Reproduced)) {
            (true, _) => Verdict::NotReproduced,
            (false, true) => Verdict::Reproduced,
            (false, false) => Verdict::CannotBeTried,
        }
    }
}

/// A statement with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What the paper states.
    pub claim: String,
    /// What came out.
    pub verdict: Verdict,
    /// The numbers behind the verdict, or why there is none.
    pub seen: String,
}

impl Check {
    fn new(claim: impl Into<String>, holds: bool, seen: String) -> Check {
        let verdict = if holds { Verdict::Reproduced } else { Verdict::NotReproduced };
        Check { claim: claim.into(), verdict, seen }
    }

    /// A statement that cannot be tried, with the reason.
    pub fn untried(claim: impl Into<String>, why: impl Into<String>) -> Check {
        Check { claim: claim.into(), verdict: Verdict::CannotBeTried, seen: why.into() }
    }

    /// That nothing of a figure can be tried, with the reason.
    pub fn whole(why: impl Into<String>) -> Check {
        Check::untried(WHOLE, why)
    }

    /// The check if `here` holds, else that it cannot be tried because of `why`; its numbers stay.
    pub fn only_if(self, here: bool, why: &str) -> Check {
        if here {
            return self;
        }
        let seen = format!("{why}; measured: {}", self.seen);
        Check { verdict: Verdict::CannotBeTried, seen, ..self }
    }
}

/// The statement of a figure of which nothing can be tried.
pub const WHOLE: &str = "the whole figure";
const NOT_MEASURED: &str = "not measured in this run";

/// `a` is at least `factor` times `b` at `label`.
pub fn at_least(claim: &str, panel: Option<&Panel>, (a, b): (&str, &str), label: &str, factor: f64) -> Check {
    match panel.and_then(|panel| panel.ratio(a, b, label)) {
        None => Check::untried(claim, NOT_MEASURED),
        Some(ratio) => {
            let seen = format!("{a} / {b} at {label}: {}, wanted at least {}", digits(ratio), digits(factor));
            Check::new(claim, ratio >= factor, seen)
        }
    }
}

/// `a` is ahead of `b` at `label`.
pub fn ahead(claim: &str, panel: Option<&Panel>, pair: (&str, &str), label: &str) -> Check {
    at_least(claim, panel, pair, label, AHEAD)
}

/// `a` reaches `share` of the best of `others` at every label.
pub fn everywhere(claim: &str, panel: Option<&Panel>, a: &str, others: &[&str], share: f64) -> Check {
    let Some(panel) = panel else { return Check::untried(claim, NOT_MEASURED) };
    let worst_of = |label: &str| -> Option<f64> {
        let ratios: Option<Vec<f64>> = others.iter().map(|other| panel.ratio(a, other, label)).collect();
        ratios?.into_iter().reduce(f64::min)
    };
    let found: Vec<(&str, f64)> =
        panel.labels().into_iter().filter_map(|label| Some((label, worst_of(label)?))).collect();
    let Some((at, least)) = found.iter().copied().reduce(|one, other| if other.1 < one.1 { other } else { one }) else {
        return Check::untried(claim, NOT_MEASURED);
    };
    let good = found.iter().filter(|(_, ratio)| *ratio >= share).count();
    let seen = format!(
        "{a} / best of {}: {good} of {} at {} or more, least {} at {at}",
        others.join(" and "),
        found.len(),
        digits(share),
        digits(least)
    );
    Check::new(claim, good == found.len(), seen)
}

/// There is a label from which on `a` is not behind `b`, and `a` is ahead at the last one; `at_most` is the last place
/// on the axis where that may begin.
pub fn from_some_point_on(claim: &str, panel: Option<&Panel>, (a, b): (&str, &str), at_most: f64) -> Check {
    let Some(panel) = panel else { return Check::untried(claim, NOT_MEASURED) };
    let ratios: Vec<(&str, f64)> =
        panel.labels().into_iter().filter_map(|label| Some((label, panel.ratio(a, b, label)?))).collect();
    let Some(&(last, at_last)) = ratios.last() else { return Check::untried(claim, NOT_MEASURED) };
    let begin = ratios.iter().rev().take_while(|(_, ratio)| *ratio >= 1.0).last().map(|(label, _)| *label);
    let x =
        |label: &str| panel.curves.iter().flat_map(|c| &c.points).find(|p| p.label == label).map_or(f64::NAN, |p| p.x);
    let is_early = begin.is_some_and(|label| x(label) <= at_most);
    let seen = match begin {
        None => format!("{a} / {b} is {} at {last}: {a} never passes {b}", digits(at_last)),
        Some(label) => format!("{a} is not behind {b} from {label} on, and {} times {b} at {last}", digits(at_last)),
    };
    Check::new(claim, is_early && at_last >= AHEAD, seen)
}

/// Each of `order` is as good as the one before it at `label` (0.95), and the last is ahead of the first.
pub fn rising(claim: &str, panel: Option<&Panel>, order: &[&str], label: &str) -> Check {
    let steps: Option<Vec<f64>> =
        panel.and_then(|panel| order.windows(2).map(|two| panel.ratio(two[1], two[0], label)).collect());
    let whole = match order {
        [first, .., last] => panel.and_then(|panel| panel.ratio(last, first, label)),
        _ => None,
    };
    let (Some(steps), Some(whole)) = (steps, whole) else { return Check::untried(claim, NOT_MEASURED) };
    let shown: Vec<String> = order
        .windows(2)
        .zip(&steps)
        .map(|(two, ratio)| format!("{} / {} {}", two[1], two[0], digits(*ratio)))
        .collect();
    let holds = steps.iter().all(|ratio| *ratio >= 0.95) && whole >= AHEAD;
    Check::new(claim, holds, format!("{}; the last / the first {}", shown.join(", "), digits(whole)))
}

/// A value lies in `low..=high`.
pub fn between(claim: &str, value: Option<f64>, (low, high): (f64, f64), unit: &str) -> Check {
    match value.filter(|v| v.is_finite()) {
        None => Check::untried(claim, NOT_MEASURED),
        Some(v) => {
            let wanted = if high.is_finite() {
                format!("{} to {}", digits(low), digits(high))
            } else {
                format!("at least {}", digits(low))
            };
            Check::new(claim, (low..=high).contains(&v), format!("{} {unit}, wanted {wanted}", digits(v)))
        }
    }
}

/// The curve never falls below `share` of what it had reached before.
pub fn keeps_up(claim: &str, panel: Option<&Panel>, curve: &str, share: f64) -> Check {
    let Some(panel) = panel else { return Check::untried(claim, NOT_MEASURED) };
    let found: Vec<(&str, f64)> =
        panel.labels().into_iter().filter_map(|label| Some((label, panel.median(curve, label)?))).collect();
    let mut best = f64::MIN;
    let kept = found.iter().map(|(label, value)| {
        let kept = value / best;
        best = best.max(*value);
        (*label, kept)
    });
    let Some((at, least)) = kept.skip(1).reduce(|one, other| if other.1 < one.1 { other } else { one }) else {
        return Check::untried(claim, "fewer than two places were measured in this run");
    };
    let seen = format!("{curve}: at least {} of the best before it, at {at}; wanted {}", digits(least), digits(share));
    Check::new(claim, least >= share, seen)
}

/// The curve grows from its first to its last place by at least `share` of proportion.
pub fn grows(claim: &str, panel: Option<&Panel>, curve: &str, share: f64) -> Check {
    let Some(found) = panel.and_then(|panel| panel.curves.iter().find(|c| c.name == curve)) else {
        return Check::untried(claim, NOT_MEASURED);
    };
    let mut points: Vec<_> = found.points.iter().filter(|p| !p.samples.is_empty()).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let value = |p: &super::graph::Point| crate::series::Series(p.samples.clone()).median();
    let [first, .., last] = &points[..] else {
        return Check::untried(claim, "fewer than two places were measured in this run");
    };
    let (gained, proportion) = (value(last) / value(first), last.x / first.x);
    let seen = format!(
        "{curve} at {} is {} times that at {}, wanted at least {}",
        last.label,
        digits(gained),
        first.label,
        digits(proportion * share)
    );
    Check::new(claim, gained.is_finite() && gained >= proportion * share, seen)
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Axis, Kind};
    use super::*;

    fn panel(rows: &[(&str, &[f64])]) -> Panel {
        let mut panel = Panel::new("p", Kind::Lines, Axis::new("size", "B").log(), Axis::new("rate", "MiB/s"));
        for (name, values) in rows {
            for (i, value) in values.iter().enumerate() {
                let x = f64::from(1 << i);
                panel.push(name, x, &format!("{x}"), &[*value]);
            }
        }
        panel
    }

    fn verdict(check: Check) -> Verdict {
        check.verdict
    }

    use Verdict::{CannotBeTried, NotReproduced, Reproduced};

    /// Goal: each kind of statement is reproduced where it holds, not where it does not, and never where nothing was
    /// measured. Method: three made-up panels for each kind.
    #[test]
    fn each_kind_of_statement() {
        let holds = panel(&[("a", &[1.0, 2.0, 4.0]), ("b", &[2.0, 2.0, 2.0])]);
        let fails = panel(&[("a", &[2.0, 1.0, 1.0]), ("b", &[2.0, 2.0, 2.0])]);
        let nothing = panel(&[("c", &[1.0])]);
        let all = [(&holds, Reproduced), (&fails, NotReproduced), (&nothing, CannotBeTried)];
        for (panel, wanted) in all {
            let panel = Some(panel);
            assert_eq!(verdict(ahead("c", panel, ("a", "b"), "4")), wanted);
            assert_eq!(verdict(from_some_point_on("c", panel, ("a", "b"), 2.0)), wanted);
            assert_eq!(verdict(grows("c", panel, "a", 0.8)), wanted);
            assert_eq!(verdict(keeps_up("c", panel, "a", 0.9)), wanted);
        }
        assert_eq!(
            verdict(from_some_point_on("c", Some(&holds), ("a", "b"), 1.0)),
            NotReproduced,
            "it begins too late"
        );
        assert_eq!(verdict(everywhere("c", Some(&holds), "b", &["a"], 0.9)), NotReproduced);
        assert_eq!(verdict(everywhere("c", Some(&fails), "b", &["a"], 0.9)), Reproduced);
        assert_eq!(verdict(everywhere("c", Some(&nothing), "b", &["a"], 0.9)), CannotBeTried);
        assert_eq!(verdict(ahead("c", None, ("a", "b"), "4")), CannotBeTried);
        for (value, wanted) in [(Some(2.0), Reproduced), (Some(3.1), NotReproduced), (None, CannotBeTried)] {
            assert_eq!(verdict(between("c", value, (1.0, 3.0), "%")), wanted);
        }
        assert_eq!(verdict(between("c", Some(f64::NAN), (1.0, 3.0), "%")), CannotBeTried);
    }

    /// Goal: parts that are added one by one each pay or cost nothing, and all together pay. Method: made-up values.
    #[test]
    fn parts_one_by_one() {
        let of = |a, b, c| rising("c", Some(&panel(&[("a", &[a]), ("b", &[b]), ("c", &[c])])), &["a", "b", "c"], "1");
        assert_eq!(verdict(of(1.0, 1.0, 1.2)), Reproduced);
        assert_eq!(verdict(of(1.0, 0.8, 1.2)), NotReproduced, "the second part costs");
        assert_eq!(verdict(of(1.0, 1.0, 1.05)), NotReproduced, "nothing is gained");
        assert_eq!(verdict(rising("c", Some(&panel(&[("a", &[1.0])])), &["a", "b"], "1")), CannotBeTried);
    }

    /// Goal: one statement that fails makes the figure fail, and statements that cannot be tried do not make it
    /// reproduced. Method: all combinations that differ.
    #[test]
    fn the_verdict_on_a_figure() {
        let check = |verdict| Check { verdict, ..Check::untried("c", "") };
        let of = |all: &[Verdict]| Verdict::of(&all.iter().map(|v| check(*v)).collect::<Vec<_>>());
        assert_eq!(of(&[Reproduced, NotReproduced, CannotBeTried]), NotReproduced);
        assert_eq!(of(&[Reproduced, CannotBeTried]), Reproduced);
        assert_eq!(of(&[CannotBeTried]), CannotBeTried);
        assert_eq!(of(&[]), CannotBeTried);
    }

    /// Goal: a condition of the machine turns a verdict into none, and its numbers stay. Method: one check.
    #[test]
    fn conditions_of_the_machine() {
        let check = ahead("c", Some(&panel(&[("a", &[1.0]), ("b", &[2.0])])), ("a", "b"), "1");
        assert_eq!(check.clone().only_if(true, "w"), check);
        let without = check.only_if(false, "2 cores");
        assert_eq!(without.verdict, CannotBeTried);
        assert!(without.seen.contains("2 cores") && without.seen.contains("0.50"), "{without:?}");
    }
}
