//! Figure 21: speed and memory of indexes of names.
//!
//! Owns: the comparison of the compact radix tree with the maps of the standard library on the paper's keys. Each index
//! is measured in a process of its own, so that its memory is the growth of that process and nothing else.
//! `crates/cart/examples/indexes.rs` compares more indexes, and counts their memory to the byte.

use crate::clock::now;
use crate::figures::claim::{Check, everywhere};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made};
use crate::program::this_program;
use crate::turns::order;
use amphi_cart::Cart;
use amphi_host::failure::{During, Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::hint::black_box;
use std::process::Stdio;

#[expect(clippy::disallowed_types, reason = "the hash table of the standard library is what is compared with")]
type Table = std::collections::HashMap<Box<[u8]>, u64, BuildHasherDefault<DefaultHasher>>;

const NAMES: [&str; 3] = ["compact radix tree", "ordered map", "hash table"];
const OPERATIONS: [&str; 3] = ["put", "get", "delete"];
/// The directory of all names.
const DIR: u64 = 1;

/// An index of names.
trait Index: Default {
    fn put(&mut self, name: &[u8], value: u64);
    fn get(&self, name: &[u8]) -> Option<u64>;
    fn delete(&mut self, name: &[u8]) -> bool;
}

#[derive(Default)]
struct Radix(Cart);

impl Index for Radix {
    fn put(&mut self, name: &[u8], value: u64) {
        self.0.insert(DIR, name, value);
    }

    fn get(&self, name: &[u8]) -> Option<u64> {
        self.0.get(DIR, name)
    }

    fn delete(&mut self, name: &[u8]) -> bool {
        self.0.remove(DIR, name).is_some()
    }
}

impl Index for BTreeMap<Box<[u8]>, u64> {
    fn put(&mut self, name: &[u8], value: u64) {
        self.insert(name.into(), value);
    }

    fn get(&self, name: &[u8]) -> Option<u64> {
        BTreeMap::get(self, name).copied()
    }

    fn delete(&mut self, name: &[u8]) -> bool {
        self.remove(name).is_some()
    }
}

impl Index for Table {
    fn put(&mut self, name: &[u8], value: u64) {
        self.insert(name.into(), value);
    }

    fn get(&self, name: &[u8]) -> Option<u64> {
        Table::get(self, name).copied()
    }

    fn delete(&mut self, name: &[u8]) -> bool {
        self.remove(name).is_some()
    }
}

/// What a process found: millions of operations a second, and bytes a name.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    rates: [f64; 3],
    bytes: f64,
}

/// A key as the paper makes them: a prefix of 12 bytes and two serial numbers, with dots between them.
fn key(n: u64) -> Vec<u8> {
    format!("checkpoint12.{}.{}", n / 1000, n % 1000).into_bytes()
}

/// Resident bytes of this process.
fn resident() -> Outcome<u64> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).during(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure::broken(format!("{path} has no size of memory")))
}

fn measure<I: Index>(count: u64) -> Outcome<Found> {
    // The keys come first, so that the memory behind them is that of the index.
    let keys: Vec<Vec<u8>> = (0..count).map(key).collect();
    let before = resident()?;
    let mut index = I::default();
    let rate = |start: std::time::Instant| count as f64 / start.elapsed().as_secs_f64() / 1e6;
    let start = now();
    for (value, key) in (0..).zip(&keys) {
        index.put(key, value);
    }
    let put = rate(start);
    let bytes = resident()?.saturating_sub(before) as f64 / count as f64;
    // Each seventh name next, so that no index profits from the order.
    let at = |n: u64| (n.wrapping_mul(7) % count) as usize;
    let start = now();
    let wrong = (0..count).filter(|n| black_box(index.get(&keys[at(*n)])) != Some(at(*n) as u64)).count();
    let get = rate(start);
    let start = now();
    let missing = keys.iter().filter(|key| !index.delete(key)).count();
    let delete = rate(start);
    match wrong + missing {
        0 => Ok(Found { rates: [put, get, delete], bytes }),
        n => Err(Failure::broken(format!("an index answered wrongly {n} times"))),
    }
}

/// One index in this process; `what` is its place and the number of names. Prints what was found.
pub fn measure_one(what: &str) -> Outcome {
    let parts = what.split_once(':').and_then(|(at, count)| Some((at.parse::<usize>().ok()?, count.parse().ok()?)));
    let found = match parts {
        Some((0, count)) => measure::<Radix>(count),
        Some((1, count)) => measure::<BTreeMap<Box<[u8]>, u64>>(count),
        Some((2, count)) => measure::<Table>(count),
        _ => Err(Failure::refused(format!("--index {what}: this option is for `amphi bench` itself"))),
    }?;
    println!("{}", serde_json::to_string(&found).during(|| "write what was found".into())?);
    Ok(())
}

fn in_a_process(at: usize, count: u64) -> Outcome<Found> {
    let mut command = this_program(&[])?;
    command.args(["bench", "figures", "--index"]).arg(format!("{at}:{count}")).stdin(Stdio::null());
    let output = command.output().during(|| format!("measure the {}", NAMES[at]))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(Failure::broken(format!("the {}: {text}", NAMES[at])));
    }
    serde_json::from_slice(&output.stdout).during(|| format!("understand what the {} gave", NAMES[at]))
}

/// Figure 21.
pub fn compare(lab: &mut Lab) -> Outcome<Made> {
    let count: u64 = lab.sized(2_000_000, 100_000);
    let mut found: Vec<Vec<Found>> = NAMES.iter().map(|_| Vec::new()).collect();
    for round in 0..lab.run.pairs {
        for at in order(round, NAMES.len()) {
            lab.run.check_stop()?;
            found[at].push(in_a_process(at, count)?);
        }
    }
    let y = Axis::new("operations", "millions/s");
    let mut speed = Panel::new("speed", Kind::Bars, Axis::new("operation", ""), y);
    let y = Axis::new("memory", "bytes for a name");
    let mut memory = Panel::new("memory", Kind::Bars, Axis::new("index", ""), y);
    for (name, found) in NAMES.iter().zip(&found) {
        for (at, operation) in OPERATIONS.iter().enumerate() {
            speed.push(name, at as f64, operation, &found.iter().map(|f| f.rates[at]).collect::<Vec<_>>());
        }
        memory.push(name, 0.0, "all names", &found.iter().map(|f| f.bytes).collect::<Vec<_>>());
    }
    let how =
        format!("One thread, {count} names: a prefix of 12 bytes and two serial numbers; a process for each index.");
    Ok(Made::new(vec![speed, memory], how))
}

/// Statements of figure 21.
pub fn compare_shape(seen: &Seen<'_>) -> Vec<Check> {
    let memory = seen.panel("memory");
    let smaller = |other: &str| {
        let claim = format!("The compact radix tree takes a fifth of the memory: {other}.");
        let share = memory.and_then(|panel| panel.ratio(NAMES[0], other, "all names"));
        crate::figures::claim::between(&claim, share, (0.0, 1.0 / 3.0), "of its memory")
    };
    vec![
        everywhere("It is faster than the others in every operation.", seen.panel("speed"), NAMES[0], &NAMES[1..], 1.0),
        smaller(NAMES[1]),
        smaller(NAMES[2]),
    ]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::{curves, place};
    let (ours, bytes) = if holds { ([3.0; 3], 10.0) } else { ([3.0, 1.0, 3.0], 40.0) };
    let rows = [(NAMES[0], ours), (NAMES[1], [2.0; 3]), (NAMES[2], [2.5; 3])];
    let memory = [(NAMES[0], bytes), (NAMES[1], 60.0), (NAMES[2], 70.0)];
    vec![curves("speed", &OPERATIONS, &[0.0, 1.0, 2.0], &rows), place("memory", "all names", &memory)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every index finds and removes what it was given, and keys are those of the paper. Method: some thousand
    /// names; a wrong answer is an error of the measurement itself.
    #[test]
    fn indexes_answer() {
        assert_eq!(key(1_234_567), b"checkpoint12.1234.567");
        for found in [measure::<Radix>(3000), measure::<BTreeMap<Box<[u8]>, u64>>(3000), measure::<Table>(3000)] {
            assert!(found.expect("right answers").rates.iter().all(|rate| *rate > 0.0));
        }
        assert_eq!(measure_one("9:1").expect_err("there is no such index").code, 2);
    }
}
