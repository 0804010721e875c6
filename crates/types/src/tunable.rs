//! Tunables: named numbers of a mount or a server that can be read and set while it runs.
//!
//! Owns: the contents of a row of a table, its values, patterns of names, setting all or nothing. Does not own: the two
//! tables (`client::telemetry::tunables`, `server::tunables`), how sizes and switches are spelt (`setting`), the effect
//! of a tunable. Reading a value is one relaxed load.
//!
//! docs/TUNABLES.md has every row of both tables; a test of the program compares the document with the tables.

use crate::setting;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How a value is meant and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, with suffixes K, M, G, T.
    Bytes,
    /// Bytes, a power of two.
    PowerOfTwo,
    /// A plain number.
    Count,
    /// Hundredths.
    Percent,
    /// Seconds.
    Seconds,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
    /// `on` or `off`.
    Switch,
    /// One of these words, stored as its place in the list.
    Words(&'static [&'static str]),
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::PowerOfTwo => "bytes, a power of two",
            Unit::Count => "count",
            Unit::Percent => "percent",
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "us",
            Unit::Switch | Unit::Words(_) => "",
        }
    }

    /// Reads a value.
    pub fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        match self {
            Unit::Bytes => setting::bytes(text),
            Unit::PowerOfTwo => setting::bytes(text).filter(|n| n.is_power_of_two()),
            Unit::Switch => setting::switch(text).map(u64::from),
            Unit::Words(words) => words.iter().position(|word| *word == text).map(|at| at as u64),
            _ => text.parse().ok(),
        }
    }

    /// Writes a value in the form that `parse` parses.
    pub fn show(self, value: u64) -> String {
        match self {
            Unit::Bytes | Unit::PowerOfTwo => setting::size(value),
            Unit::Switch => setting::on_off(value != 0).into(),
            Unit::Words(words) => words[(value as usize).min(words.len() - 1)].into(),
            _ => value.to_string(),
        }
    }
}

/// One row of a table of tunables.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, such as `hybrid.mode`.
    pub name: &'static str,
    /// The unit of the value.
    pub unit: Unit,
    /// The value at the start.
    pub default: u64,
    /// The least value that is allowed.
    pub least: u64,
    /// Greatest value.
    pub most: u64,
    /// The effect of the tunable, described in one line.
    pub help: &'static str,
    /// The default in words where it depends on the machine; otherwise empty.
    pub default_words: &'static str,
    /// The tunable is for tests and measurements: a pattern does not match it; only its whole name does.
    pub for_tests: bool,
}

impl Row {
    /// Returns the default in the form in which people read it.
    pub fn default_text(&self) -> String {
        if self.default_words.is_empty() { self.unit.show(self.default) } else { self.default_words.into() }
    }

    /// Returns the allowed values in the form in which people read them.
    pub fn range_text(&self) -> String {
        match self.unit {
            Unit::Switch => "on or off".into(),
            Unit::Words(words) => words.join(", "),
            unit => format!("{}..{}", unit.show(self.least), unit.show(self.most)),
        }
    }

    /// Meaning, unit, default and range in one line.
    fn explain(&self) -> String {
        let unit = self.unit.name();
        let comma = if unit.is_empty() { "" } else { ", " };
        format!("{} [{unit}{comma}default {}, {}]", self.help, self.default_text(), self.range_text())
    }

    fn is_meant(&self, pattern: &str) -> bool {
        if self.for_tests { pattern == self.name } else { setting::glob(pattern, self.name) }
    }
}

/// Makes a table of rows and the enum of its places: `Place = "name", Unit, default, least => most, "help";`. The help
/// is followed by `default "words"` where the default depends on the machine, and by `for_tests` where a pattern must
/// not match the tunable.
#[macro_export]
macro_rules! tunables {
    ($($place:ident = $name:literal, $unit:expr, $default:expr, $least:expr => $most:expr, $help:literal
        $(, $more:ident $($words:literal)?)?;)*) => {
        /// Places in the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tunable { $(#[doc = $help] $place,)* }
        /// The table, in the order of `Tunable`.
        pub const TABLE: &[$crate::tunable::Row] = &[$($crate::tunable::Row {
            name: $name,
            unit: { use $crate::tunable::Unit::*; $unit },
            default: $default,
            least: $least,
            most: $most,
            help: $help,
            default_words: concat!("" $($(, $words)?)?),
            for_tests: $crate::tunables!(@ $($more)?),
        },)*];
    };
    (@ $(default)?) => { false };
    (@ for_tests) => { true };
}

/// Values that fit their rows.
#[derive(Debug)]
pub struct Puts(Vec<(usize, u64)>);

impl Puts {
    /// Returns whether no row was meant.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The present values of a table.
#[derive(Debug)]
pub struct Values {
    rows: &'static [Row],
    values: Vec<AtomicU64>,
    /// The value was set by a user or a program.
    set: Vec<AtomicBool>,
}

impl Values {
    /// The defaults of `rows`.
    pub fn new(rows: &'static [Row]) -> Values {
        let values = rows.iter().map(|row| AtomicU64::new(row.default)).collect();
        Values { rows, values, set: rows.iter().map(|_| AtomicBool::new(false)).collect() }
    }

    /// Returns the value at a place.
    pub fn get(&self, at: usize) -> u64 {
        self.values[at].load(Relaxed)
    }

    /// Sets the value at a place, or the nearest one in its range.
    pub fn put(&self, at: usize, value: u64) {
        let row = &self.rows[at];
        self.values[at].store(value.clamp(row.least, row.most), Relaxed);
    }

    /// The value of everything that matches `pattern` after a set to `value`; nothing if nothing matches.
    ///
    /// Errors: a sentence about the value.
    pub fn check(rows: &[Row], pattern: &str, value: &str) -> Result<Puts, String> {
        let mut puts = Vec::new();
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.is_meant(pattern)) {
            let number =
                row.unit.parse(value).ok_or_else(|| format!("{}: cannot read the value {value:?}", row.name))?;
            if number < row.least || number > row.most {
                let (least, most) = (row.unit.show(row.least), row.unit.show(row.most));
                return Err(format!("{}: {value} is not within {least} and {most}", row.name));
            }
            puts.push((at, number));
        }
        Ok(Puts(puts))
    }

    /// Stores what was found fit.
    pub fn store(&self, puts: &Puts) {
        for &(at, number) in &puts.0 {
            self.values[at].store(number, Relaxed);
            self.set[at].store(true, Relaxed);
        }
    }

    /// Returns whether a user has set the value at a place, even to the default.
    pub fn is_set(&self, at: usize) -> bool {
        self.set[at].load(Relaxed)
    }

    /// Sets everything that matches `pattern`; all or nothing.
    ///
    /// Errors: a sentence about the pattern or the value.
    pub fn set(&self, pattern: &str, value: &str) -> Result<usize, String> {
        let puts = Values::check(self.rows, pattern, value)?;
        if puts.is_empty() {
            return Err(format!("no tunable matches {pattern:?}"));
        }
        self.store(&puts);
        Ok(puts.0.len())
    }

    /// Name, value and explanation of everything that matches `pattern`.
    pub fn list(&self, pattern: &str) -> Vec<(String, String, String)> {
        let meant = self.rows.iter().zip(&self.values).filter(|(row, _)| row.is_meant(pattern));
        meant.map(|(row, value)| (row.name.into(), row.unit.show(value.load(Relaxed)), row.explain())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    tunables! {
        Mode = "a.mode", Words(&["auto", "fixed"]), 0, 0 => 1, "how";
        Large = "a.large_bytes", Bytes, 2 << 20, 0 => 1 << 30, "from where on";
        Page = "a.page_bytes", PowerOfTwo, 1, 1 => 1 << 20, "units";
        Share = "b.share_percent", Percent, 50, 1 => 90, "how much";
        Memory = "b.memory_bytes", Bytes, 1 << 30, 0 => 1 << 40, "of it", default "a quarter";
        Wait = "b.wait_ms", Milliseconds, 5, 1 => 1000, "how long", for_tests;
        On = "b.on", Switch, 1, 0 => 1, "whether";
    }

    /// Goal: values survive being shown and read. Method: every row's default and bounds.
    #[test]
    fn values_round_trip() {
        for row in TABLE {
            for value in [row.default, row.least, row.most] {
                let text = row.unit.show(value);
                assert!(text == "0" || row.unit.parse(&text) == Some(value), "{}", row.name);
            }
        }
    }

    /// Goal: setting is by pattern, all or nothing, names the error, and leaves tunables for tests alone unless they
    /// are named. Method: good and bad sets.
    #[test]
    fn set_by_pattern() {
        let values = Values::new(TABLE);
        let get = |knob: Tunable| values.get(knob as usize);
        assert_eq!(values.set("a.*_bytes", "4M"), Err("a.page_bytes: 4M is not within 1 and 1M".into()));
        assert_eq!(get(Tunable::Large), 2 << 20, "nothing is changed");
        assert!(!values.is_set(Tunable::Large as usize));
        assert_eq!(values.set("a.larg?_bytes", "4 MiB"), Ok(1));
        assert_eq!(get(Tunable::Large), 4 << 20);
        assert!(values.is_set(Tunable::Large as usize) && !values.is_set(Tunable::Page as usize));
        assert!(values.set("a.larg", "4M").unwrap_err().contains("no tunable matches"));
        assert!(values.set("b.*", "4M").is_err(), "a switch takes no size");
        assert!(values.set("a.page_bytes", "3000").unwrap_err().contains("cannot read"), "no power of two");
        assert!(values.set("b.share_percent", "91").unwrap_err().contains("not within"));
        assert_eq!(values.set("b.wait*", "7"), Err("no tunable matches \"b.wait*\"".into()));
        assert_eq!((values.set("b.wait_ms", "7"), get(Tunable::Wait)), (Ok(1), 7));
        values.set("a.mode", "fixed").unwrap();
        assert_eq!((get(Tunable::Mode), get(Tunable::Page), get(Tunable::On)), (1, 1, 1));
        values.put(Tunable::Share as usize, 99);
        assert_eq!((get(Tunable::Share), get(Tunable::Memory)), (90, 1 << 30));
    }

    /// Goal: a line says all of a row. Method: one of each kind.
    #[test]
    fn lists() {
        let values = Values::new(TABLE);
        let all: Vec<_> =
            values.list("*").into_iter().map(|(name, value, help)| format!("{name}={value} {help}")).collect();
        let expected = [
            "a.mode=auto how [default auto, auto, fixed]",
            "a.large_bytes=2M from where on [bytes, default 2M, 0..1G]",
            "a.page_bytes=1 units [bytes, a power of two, default 1, 1..1M]",
            "b.share_percent=50 how much [percent, default 50, 1..90]",
            "b.memory_bytes=1G of it [bytes, default a quarter, 0..1T]",
            "b.on=on whether [default on, on or off]",
        ];
        assert_eq!(all, expected);
        assert_eq!(values.list("b.wait_ms").len(), 1);
    }
}
