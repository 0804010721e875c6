//! `Linear`: whether what callers of one file saw can be explained by one event for each call, at a moment between its
//! begin and its return.
//!
//! Owns: the model of a file of cells, the search. Does not own: who makes the calls (`shared::cells`).
//!
//! The file is a row of cells of one length; every call covers whole cells, and a write fills its cells with its
//! number. Calls overlap as they like. The search keeps every explanation that is still possible: a content, and the
//! calls under way that have happened in it already, with what they will return. A call that returns removes the
//! explanations that disagree with its result; when none is left, the history is not linearizable. (J. Wing, C. Gong:
//! Testing and verifying concurrent objects, 1993; the order of the search is that of G. Lowe: Testing for
//! linearizability, 2017.) The number of explanations is that of the orders of the calls under way, which are few.

use std::collections::{BTreeMap, BTreeSet};

/// A call on cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellOp {
    /// Writes `n` cells from `at` on.
    Write {
        /// First cell.
        at: usize,
        /// Number of cells.
        n: usize,
        /// The content of the cells afterwards.
        tag: u64,
    },
    /// Writes a cell, if there is one.
    Store {
        /// The cell.
        at: usize,
        /// The content of the cell afterwards.
        tag: u64,
    },
    /// Writes `n` cells behind the last one.
    Append {
        /// Number of cells.
        n: usize,
        /// The values that the cells hold.
        tag: u64,
    },
    /// Writes a cell after the last one, and returns the number of cells after that.
    AppendTold {
        /// The value that it holds.
        tag: u64,
    },
    /// Reads up to `n` cells from `at` on.
    Read {
        /// First cell.
        at: usize,
        /// Most cells.
        n: usize,
    },
    /// Afterwards up to `n` cells from `at` on contain 0.
    Zero {
        /// First cell.
        at: usize,
        /// Most cells.
        n: usize,
    },
    /// Sets the number of cells; new ones hold 0.
    Resize {
        /// The number.
        n: usize,
    },
    /// Asks for the number of cells.
    Size,
}

/// The result of a call: the cells that were read, or the number of cells, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cells(pub Vec<u64>);

/// Number of a call.
pub type CallId = u64;

/// One explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Explanation {
    content: Vec<u64>,
    /// Calls under way that have happened, with their results.
    happened: BTreeMap<CallId, Cells>,
}

impl Explanation {
    fn apply(&mut self, op: &CellOp) -> Cells {
        match *op {
            CellOp::Write { at, n, tag } => {
                self.content.resize(self.content.len().max(at + n), 0);
                self.content[at..at + n].fill(tag);
            }
            CellOp::Store { at, tag } => self.content.iter_mut().skip(at).take(1).for_each(|cell| *cell = tag),
            CellOp::Append { n, tag } => self.content.resize(self.content.len() + n, tag),
            CellOp::AppendTold { tag } => {
                self.content.push(tag);
                return Cells(vec![self.content.len() as u64]);
            }
            CellOp::Zero { at, n } => self.content.iter_mut().skip(at).take(n).for_each(|cell| *cell = 0),
            CellOp::Resize { n } => self.content.resize(n, 0),
            CellOp::Size => return Cells(vec![self.content.len() as u64]),
            CellOp::Read { at, n } => {
                let end = (at + n).min(self.content.len());
                return Cells(self.content.get(at..end).unwrap_or_default().to_vec());
            }
        }
        Cells::default()
    }
}

/// A history in the making.
#[derive(Clone, Debug)]
pub struct Linear {
    possible: BTreeSet<Explanation>,
    under_way: BTreeMap<CallId, CellOp>,
    last: CallId,
    /// Numbers that were written to each cell, and those that were appended, wherever that was.
    written: BTreeMap<usize, BTreeSet<u64>>,
    appended: BTreeSet<u64>,
}

impl Default for Linear {
    fn default() -> Linear {
        Linear {
            possible: BTreeSet::from([Explanation::default()]),
            under_way: BTreeMap::new(),
            last: 0,
            written: BTreeMap::new(),
            appended: BTreeSet::new(),
        }
    }
}

impl Linear {
    /// A call begins.
    pub fn begin(&mut self, op: CellOp) -> CallId {
        self.last += 1;
        match op {
            CellOp::Write { at, n, tag } => {
                for cell in at..at + n {
                    self.written.entry(cell).or_default().insert(tag);
                }
            }
            CellOp::Store { at, tag } => {
                self.written.entry(at).or_default().insert(tag);
            }
            CellOp::Append { tag, .. } | CellOp::AppendTold { tag } => {
                self.appended.insert(tag);
            }
            _ => {}
        }
        self.under_way.insert(self.last, op);
        self.last
    }

    /// The call returns.
    ///
    /// Errors: no order of the calls explains what the call returned.
    pub fn end(&mut self, call: CallId, returned: &Cells) -> Result<(), String> {
        let Some(op) = self.under_way.get(&call).cloned() else { return Err(format!("call {call} is not under way")) };
        let mut after = BTreeSet::new();
        let mut seen = self.possible.clone();
        let mut left: Vec<Explanation> = std::mem::take(&mut self.possible).into_iter().collect();
        let mut instead = BTreeSet::new();
        while let Some(mut e) = left.pop() {
            if let Some(result) = e.happened.get(&call) {
                if result == returned {
                    e.happened.remove(&call);
                    after.insert(e);
                } else {
                    instead.insert(result.clone());
                }
                continue;
            }
            for next in self.steps(&e) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        self.under_way.remove(&call);
        self.possible = after;
        if self.possible.is_empty() {
            let instead: Vec<Cells> = instead.into_iter().take(6).collect();
            return Err(format!(
                "{op:?} returned {:x?}; every order of the calls gives one of {instead:x?}",
                returned.0
            ));
        }
        Ok(())
    }

    /// The call failed and cannot happen any more: it has happened whole, or not at all.
    pub fn give_up(&mut self, call: CallId) {
        let mut seen = self.possible.clone();
        let mut left: Vec<Explanation> = std::mem::take(&mut self.possible).into_iter().collect();
        while let Some(e) = left.pop() {
            for next in self.steps(&e) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        self.under_way.remove(&call);
        let forget = |mut e: Explanation| {
            e.happened.remove(&call);
            e
        };
        self.possible = seen.into_iter().map(forget).collect();
    }

    /// The call was refused: it has not happened, and cannot any more.
    ///
    /// Errors: it must have happened, by the results of others.
    pub fn refuse(&mut self, call: CallId) -> Result<(), String> {
        self.possible.retain(|e| !e.happened.contains_key(&call));
        let op = self.under_way.remove(&call);
        if self.possible.is_empty() {
            return Err(format!("{op:?} was refused; others have seen it happen"));
        }
        Ok(())
    }

    /// All explanations that result when one more of the calls under way has happened.
    fn steps(&self, e: &Explanation) -> Vec<Explanation> {
        let left = self.under_way.iter().filter(|(id, _)| !e.happened.contains_key(id));
        left.map(|(id, op)| {
            let mut next = e.clone();
            let result = next.apply(op);
            next.happened.insert(*id, result);
            next
        })
        .collect()
    }

    /// Every number that was ever written to a cell, or may have been appended to it, by calls that have begun.
    pub fn ever(&self, cell: usize) -> impl Iterator<Item = u64> + '_ {
        self.written.get(&cell).into_iter().flatten().chain(&self.appended).copied()
    }

    /// The possible contents of the cells once every call has returned: of each explanation.
    pub fn contents(&self) -> BTreeSet<Vec<u64>> {
        self.possible.iter().map(|e| e.content.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, n: usize, tag: u64) -> CellOp {
        CellOp::Write { at, n, tag }
    }

    fn done(l: &mut Linear, op: CellOp, result: &[u64]) -> Result<(), String> {
        let call = l.begin(op);
        l.end(call, &Cells(result.to_vec()))
    }

    /// Goal: calls that do not overlap are accepted with exactly the results that they must have. Method: each kind of
    /// call, with the result it must have, then with another.
    #[test]
    fn one_after_another() {
        let mut l = Linear::default();
        done(&mut l, write(1, 2, 7), &[]).unwrap();
        done(&mut l, CellOp::Read { at: 0, n: 9 }, &[0, 7, 7]).unwrap();
        done(&mut l, CellOp::Append { n: 1, tag: 8 }, &[]).unwrap();
        done(&mut l, CellOp::Size, &[4]).unwrap();
        done(&mut l, CellOp::Resize { n: 2 }, &[]).unwrap();
        done(&mut l, CellOp::Resize { n: 3 }, &[]).unwrap();
        done(&mut l, CellOp::Read { at: 1, n: 2 }, &[7, 0]).unwrap();
        assert_eq!(l.contents(), BTreeSet::from([vec![0, 7, 0]]));
        assert!(done(&mut l.clone(), CellOp::Size, &[4]).is_err());
        assert!(done(&mut l, CellOp::Read { at: 1, n: 2 }, &[7, 7]).is_err());
    }

    /// Goal: calls at the same time may happen in any order, but all callers see the same order, and each call happens
    /// as a whole. Method: two overlapping writes, reads during and after them.
    #[test]
    fn at_the_same_time() {
        let mut l = Linear::default();
        done(&mut l, write(0, 3, 1), &[]).unwrap();
        let (a, b) = (l.begin(write(0, 2, 2)), l.begin(write(1, 2, 3)));
        let read = CellOp::Read { at: 0, n: 3 };
        for whole in [[1, 1, 1], [2, 2, 1], [1, 3, 3], [2, 3, 3], [2, 2, 3]] {
            done(&mut l.clone(), read.clone(), &whole).unwrap();
        }
        for torn in [[2, 1, 1], [1, 2, 1], [1, 1, 3], [2, 3, 1]] {
            assert!(done(&mut l.clone(), read.clone(), &torn).is_err(), "{torn:?}");
        }
        done(&mut l, read.clone(), &[2, 2, 1]).unwrap();
        l.end(b, &Cells::default()).unwrap();
        l.end(a, &Cells::default()).unwrap();
        assert!(done(&mut l.clone(), read.clone(), &[2, 2, 3]).is_err(), "the first was seen first");
        done(&mut l, read, &[2, 3, 3]).unwrap();
    }

    /// Goal: a call has happened when it has returned, and no later call sees the state before. Method: a read that
    /// begins after a write has returned; two reads in sequence during one write.
    #[test]
    fn nothing_is_undone() {
        let mut l = Linear::default();
        done(&mut l, write(0, 1, 1), &[]).unwrap();
        assert!(done(&mut l.clone(), CellOp::Read { at: 0, n: 1 }, &[]).is_err());
        let _never_returns = l.begin(write(0, 1, 2));
        done(&mut l, CellOp::Read { at: 0, n: 1 }, &[2]).unwrap();
        assert!(done(&mut l, CellOp::Read { at: 0, n: 1 }, &[1]).is_err());
    }

    /// Goal: a call that failed has happened or not, and not later. Method: a write that fails before any read; both
    /// contents are possible, and once one was read the other is not.
    #[test]
    fn failed_calls_have_happened_or_not() {
        let mut l = Linear::default();
        let failed = l.begin(write(0, 1, 1));
        assert!(done(&mut l.clone(), CellOp::Size, &[0]).is_ok());
        done(&mut l, CellOp::Size, &[1]).unwrap();
        l.give_up(failed);
        assert_eq!(l.contents(), BTreeSet::from([vec![1]]));
        let failed = l.begin(write(0, 1, 2));
        done(&mut l, CellOp::Size, &[1]).unwrap();
        l.give_up(failed);
        assert_eq!(l.contents(), BTreeSet::from([vec![1], vec![2]]));
        done(&mut l, CellOp::Read { at: 0, n: 1 }, &[1]).unwrap();
        assert!(done(&mut l, CellOp::Read { at: 0, n: 1 }, &[2]).is_err(), "it happens no more");
    }

    /// Goal: a call that was refused has not happened. Method: a write that was not read, and one that was.
    #[test]
    fn refused_calls_have_not_happened() {
        let mut l = Linear::default();
        done(&mut l, write(0, 1, 1), &[]).unwrap();
        let refused = l.begin(write(0, 1, 2));
        done(&mut l, CellOp::Size, &[1]).unwrap();
        let mut seen = l.clone();
        l.refuse(refused).unwrap();
        assert_eq!(l.contents(), BTreeSet::from([vec![1]]));
        done(&mut seen, CellOp::Read { at: 0, n: 1 }, &[2]).unwrap();
        assert!(seen.refuse(refused).is_err());
    }

    /// Goal: an append returns the end of its own cell. Method: two appends at the same time; one returns each of the
    /// two ends, the other one first the same end, and then its own.
    #[test]
    fn appends_return_their_ends() {
        for end in [1, 2] {
            let mut l = Linear::default();
            let (a, b) = (l.begin(CellOp::AppendTold { tag: 1 }), l.begin(CellOp::AppendTold { tag: 2 }));
            l.end(a, &Cells(vec![end])).unwrap();
            assert!(l.clone().end(b, &Cells(vec![end])).is_err(), "the other one lies there");
            l.end(b, &Cells(vec![3 - end])).unwrap();
            let content = if end == 1 { vec![1, 2] } else { vec![2, 1] };
            assert_eq!(l.contents(), BTreeSet::from([content]));
        }
    }

    /// Goal: the data of appends at the same time is in sequence. Method: two appends; all contents that may result.
    #[test]
    fn appends_do_not_overlap() {
        let mut l = Linear::default();
        let (a, b) = (l.begin(CellOp::Append { n: 1, tag: 1 }), l.begin(CellOp::Append { n: 2, tag: 2 }));
        l.end(a, &Cells::default()).unwrap();
        l.end(b, &Cells::default()).unwrap();
        assert_eq!(l.contents(), BTreeSet::from([vec![1, 2, 2], vec![2, 2, 1]]));
    }
}
