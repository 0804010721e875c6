//! From values to shares of an axis, and the ticks of an axis.
//!
//! Invariants: a share is finite; a value that a logarithmic axis cannot show (0 or less) has none; an axis with one
//! value, or with none, still has a length.

use crate::figures::graph::Panel;

/// Ticks of a linear axis, about.
const TICKS: f64 = 5.0;

/// A scale from a least to a greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

/// The label of a tick.
fn tick(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 0.01 => format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').into(),
        _ => format!("{value:.1e}"),
    }
}

impl Scale {
    /// A scale that shows all of `values`, those that it can; a linear one begins at 0 if `from_zero`.
    pub fn new(values: impl Iterator<Item = f64>, log: bool, from_zero: bool) -> Scale {
        let kept = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let range = kept.fold(None, |range: Option<(f64, f64)>, v| {
            Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        });
        let (mut low, mut high) = range.unwrap_or(if log { (1.0, 10.0) } else { (0.0, 1.0) });
        if !log && from_zero {
            low = low.min(0.0);
        }
        // One value alone stands in the middle.
        if high <= low {
            match log {
                true => (low, high) = (low / 2.0, high * 2.0),
                false => (low, high) = (low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0)),
            }
        }
        Scale { low, high, log }
    }

    /// The scale of the samples of a panel, with some room above.
    pub fn upwards(panel: &Panel) -> Scale {
        let values = || panel.curves.iter().flat_map(|c| &c.points).flat_map(|p| p.samples.iter().copied());
        let scale = Scale::new(values(), panel.y.log, true);
        match scale.log {
            true => Scale { low: scale.low / 1.3, high: scale.high * 1.3, log: true },
            false => Scale { high: scale.high + (scale.high - scale.low) * 0.06, ..scale },
        }
    }

    /// The scale of the piles of a panel; always linear.
    pub fn stacked(panel: &Panel) -> Scale {
        let pile = |label: &str| -> f64 { panel.curves.iter().filter_map(|c| panel.median(&c.name, label)).sum() };
        let scale = Scale::new(panel.labels().into_iter().map(pile), false, true);
        Scale { high: scale.high * 1.06, ..scale }
    }

    /// The scale of the places of a panel, with some room on both sides.
    pub fn across(panel: &Panel) -> Scale {
        let scale = Scale::new(panel.curves.iter().flat_map(|c| &c.points).map(|p| p.x), panel.x.log, false);
        let edge = 0.04;
        match scale.log {
            true => {
                let part = (scale.high / scale.low).powf(edge);
                Scale { low: scale.low / part, high: scale.high * part, log: true }
            }
            false => {
                let part = (scale.high - scale.low) * edge;
                Scale { low: scale.low - part, high: scale.high + part, log: false }
            }
        }
    }

    /// Where a bar begins.
    pub fn floor(&self) -> f64 {
        if self.log { self.low } else { 0.0_f64.clamp(self.low, self.high) }
    }

    /// Where a value is on the axis, 0 to 1.
    pub fn share(&self, value: f64) -> Option<f64> {
        let share = match self.log {
            true if value <= 0.0 => return None,
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        share.is_finite().then_some(share.clamp(0.0, 1.0))
    }

    /// Places with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let powers = if self.log { self.powers() } else { Vec::new() };
        // A short part of a logarithmic axis holds no power of ten.
        let values = if powers.len() < 2 { self.steps() } else { powers };
        values.into_iter().filter_map(|v| Some((self.share(v)?, tick(v)))).collect()
    }

    /// Powers of ten, with 2 and 5 times these where they are few.
    fn powers(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let parts: &[f64] = if last - first > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (first..=last).flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
        all.filter(|v| (self.low..=self.high).contains(v)).collect()
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / TICKS;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|part| part * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil();
        // No axis has more ticks than twice what is wanted.
        (0..2 * TICKS as u32).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= self.high).collect()
    }
}
