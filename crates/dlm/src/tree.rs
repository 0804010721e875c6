//! Interval trees in one arena: which locks overlap a range, in O(log n).
//!
//! Owns: ranges ordered by (start, id), with the summaries that let a search skip subtrees. Does not own: the meaning
//! of the ranges.
//!
//! Each tree is a treap. The priorities are a hash of the id, so the shape depends only on the contents. A node knows
//! four things of its subtree:
//!
//! * the largest end, to find overlaps;
//! * the smallest id, to find earlier requests;
//! * whether all of it belongs to one session, whose own locks never conflict and are skipped as a whole;
//! * whether any lock in it was not called back yet, so that many requests for the same locks do not visit these locks
//!   repeatedly.
//!
//! Invariant: ranges are not empty, and (start, id) is unique in a tree.

use crate::mode::LockId;
use amphi_types::{ByteRange, SessionId};

const NIL: u32 = u32::MAX;

/// A range in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub range: ByteRange,
    pub id: LockId,
    pub session: SessionId,
}

#[cfg_attr(test, derive(Clone))]
struct Node {
    entry: Entry,
    called: bool,
    priority: u64,
    left: u32,
    right: u32,
    max_end: u64,
    min_id: LockId,
    one_session: bool,
    any_uncalled: bool,
}

/// Root of one tree in a [`Forest`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree(u32);

impl Tree {
    pub const EMPTY: Tree = Tree(NIL);

    pub fn is_empty(self) -> bool {
        self.0 == NIL
    }
}

/// The nodes of many trees.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Number of visited nodes: the cost that tests bound instead of time.
    pub visits: std::cell::Cell<u64>,
}

/// The criteria of a search: overlap with `range`, not of session `exempt`, id below `before`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub range: ByteRange,
    pub exempt: Option<SessionId>,
    pub before: LockId,
}

impl Search {
    pub fn overlap(range: ByteRange, exempt: Option<SessionId>) -> Search {
        Search { range, exempt, before: LockId(u64::MAX) }
    }
}

fn priority(id: LockId) -> u64 {
    // The finaliser of splitmix64: consecutive ids get unrelated priorities.
    let mut x = id.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Forest {
    fn node(&self, at: u32) -> &Node {
        self.visits.set(self.visits.get().wrapping_add(1));
        &self.nodes[at as usize]
    }

    fn key(&self, at: u32) -> (u64, LockId) {
        let entry = &self.node(at).entry;
        (entry.range.start, entry.id)
    }

    fn pull(&mut self, at: u32) {
        let node = self.node(at);
        let session = node.entry.session;
        let (mut max_end, mut min_id) = (node.entry.range.end, node.entry.id);
        let (mut one_session, mut any_uncalled) = (true, !node.called);
        for child in [node.left, node.right] {
            if child != NIL {
                let child = self.node(child);
                max_end = max_end.max(child.max_end);
                min_id = min_id.min(child.min_id);
                one_session &= child.one_session && child.entry.session == session;
                any_uncalled |= child.any_uncalled;
            }
        }
        let node = &mut self.nodes[at as usize];
        (node.max_end, node.min_id, node.one_session, node.any_uncalled) = (max_end, min_id, one_session, any_uncalled);
    }

    /// Cuts a tree into the nodes below `key` and those from `key` on.
    fn split(&mut self, at: u32, key: (u64, LockId)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.key(at) < key {
            let (low, high) = self.split(self.node(at).right, key);
            self.nodes[at as usize].right = low;
            self.pull(at);
            (at, high)
        } else {
            let (low, high) = self.split(self.node(at).left, key);
            self.nodes[at as usize].left = high;
            self.pull(at);
            (low, at)
        }
    }

    fn merge(&mut self, low: u32, high: u32) -> u32 {
        if low == NIL || high == NIL {
            return if low == NIL { high } else { low };
        }
        if self.node(low).priority > self.node(high).priority {
            let right = self.merge(self.node(low).right, high);
            self.nodes[low as usize].right = right;
            self.pull(low);
            low
        } else {
            let left = self.merge(low, self.node(high).left);
            self.nodes[high as usize].left = left;
            self.pull(high);
            high
        }
    }

    pub fn insert(&mut self, tree: &mut Tree, entry: Entry, called: bool) {
        debug_assert!(!entry.range.is_empty());
        let node = Node {
            entry,
            called,
            priority: priority(entry.id),
            left: NIL,
            right: NIL,
            max_end: entry.range.end,
            min_id: entry.id,
            one_session: true,
            any_uncalled: !called,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        let (low, high) = self.split(tree.0, (entry.range.start, entry.id));
        let low = self.merge(low, at);
        tree.0 = self.merge(low, high);
    }

    /// Removes one range; `false` if it is not in the tree.
    pub fn remove(&mut self, tree: &mut Tree, start: u64, id: LockId) -> bool {
        let (low, rest) = self.split(tree.0, (start, id));
        let (found, high) = self.split(rest, (start, LockId(id.0 + 1)));
        tree.0 = self.merge(low, high);
        if found != NIL {
            self.free.push(found);
        }
        found != NIL
    }

    /// Returns whether no node of the subtree can match.
    fn skip(&self, at: u32, search: &Search) -> bool {
        if at == NIL {
            return true;
        }
        let node = self.node(at);
        node.max_end <= search.range.start
            || node.min_id >= search.before
            || (node.one_session && Some(node.entry.session) == search.exempt)
    }

    fn matches(&self, at: u32, search: &Search) -> bool {
        let entry = &self.node(at).entry;
        entry.range.overlaps(&search.range) && entry.id < search.before && Some(entry.session) != search.exempt
    }

    /// Any match. Among ranges with the same start it is the one with the largest id.
    pub fn find(&self, tree: Tree, search: &Search) -> Option<LockId> {
        self.find_at(tree.0, search)
    }

    fn find_at(&self, at: u32, search: &Search) -> Option<LockId> {
        if self.skip(at, search) {
            return None;
        }
        let node = self.node(at);
        if node.entry.range.start < search.range.end {
            if let Some(id) = self.find_at(node.right, search) {
                return Some(id);
            }
            if self.matches(at, search) {
                return Some(node.entry.id);
            }
        }
        self.find_at(node.left, search)
    }

    /// Number of matches, counted up to `cap`.
    pub fn count(&self, tree: Tree, search: &Search, cap: usize) -> usize {
        let mut left = cap;
        self.count_at(tree.0, search, &mut left);
        cap - left
    }

    fn count_at(&self, at: u32, search: &Search, left: &mut usize) {
        if *left == 0 || self.skip(at, search) {
            return;
        }
        let node = self.node(at);
        self.count_at(node.left, search, left);
        if node.entry.range.start < search.range.end {
            if *left > 0 && self.matches(at, search) {
                *left -= 1;
            }
            self.count_at(node.right, search, left);
        }
    }

    /// Appends the first matches to `found`, ascending, until it holds `cap`.
    pub fn first(&self, tree: Tree, search: &Search, cap: usize, found: &mut Vec<Entry>) {
        self.first_at(tree.0, search, cap, found);
    }

    fn first_at(&self, at: u32, search: &Search, cap: usize, found: &mut Vec<Entry>) {
        if found.len() >= cap || self.skip(at, search) {
            return;
        }
        let node = self.node(at);
        self.first_at(node.left, search, cap, found);
        if node.entry.range.start < search.range.end {
            if found.len() < cap && self.matches(at, search) {
                found.push(node.entry);
            }
            self.first_at(node.right, search, cap, found);
        }
    }

    /// Smallest start at or after `from` of a range that is not of session `exempt`.
    pub fn next_start(&self, tree: Tree, from: u64, exempt: Option<SessionId>) -> Option<u64> {
        self.next_start_at(tree.0, from, exempt)
    }

    fn next_start_at(&self, at: u32, from: u64, exempt: Option<SessionId>) -> Option<u64> {
        if at == NIL {
            return None;
        }
        let node = self.node(at);
        if node.one_session && Some(node.entry.session) == exempt {
            return None;
        }
        let start = node.entry.range.start;
        if start >= from {
            if let Some(found) = self.next_start_at(node.left, from, exempt) {
                return Some(found);
            }
            if Some(node.entry.session) != exempt {
                return Some(start);
            }
        }
        self.next_start_at(node.right, from, exempt)
    }

    /// Marks every match that was not yet called back and appends it to `found`.
    pub fn call_back(&mut self, tree: Tree, search: &Search, found: &mut Vec<LockId>) {
        self.call_back_at(tree.0, search, found);
    }

    fn call_back_at(&mut self, at: u32, search: &Search, found: &mut Vec<LockId>) {
        if self.skip(at, search) || !self.node(at).any_uncalled {
            return;
        }
        let (left, right, start) = (self.node(at).left, self.node(at).right, self.node(at).entry.range.start);
        let before = found.len();
        self.call_back_at(left, search, found);
        if start < search.range.end {
            if !self.node(at).called && self.matches(at, search) {
                self.nodes[at as usize].called = true;
                found.push(self.node(at).entry.id);
            }
            self.call_back_at(right, search, found);
        }
        if found.len() > before {
            self.pull(at);
        }
    }

    /// A range that contains all of `range`.
    pub fn covering(&self, tree: Tree, range: ByteRange) -> Option<LockId> {
        self.covering_at(tree.0, range)
    }

    fn covering_at(&self, at: u32, range: ByteRange) -> Option<LockId> {
        if at == NIL || self.node(at).max_end < range.end {
            return None;
        }
        let node = self.node(at);
        if node.entry.range.contains(&range) {
            return Some(node.entry.id);
        }
        self.covering_at(node.left, range)
            .or_else(|| if node.entry.range.start <= range.start { self.covering_at(node.right, range) } else { None })
    }

    /// Calls `visit` with every range that overlaps `range`, ascending.
    pub fn visit(&self, tree: Tree, range: ByteRange, visit: &mut impl FnMut(&Entry)) {
        self.visit_at(tree.0, &Search::overlap(range, None), visit);
    }

    fn visit_at(&self, at: u32, search: &Search, visit: &mut impl FnMut(&Entry)) {
        if self.skip(at, search) {
            return;
        }
        let node = self.node(at);
        self.visit_at(node.left, search, visit);
        if node.entry.range.start < search.range.end {
            if self.matches(at, search) {
                visit(&node.entry);
            }
            self.visit_at(node.right, search, visit);
        }
    }

    /// The range with the highest (start, id) below `below`; without `below`, the highest of all.
    pub fn highest(&self, tree: Tree, below: Option<(u64, LockId)>) -> Option<Entry> {
        let (mut at, mut best) = (tree.0, None);
        while at != NIL {
            if below.is_none_or(|key| self.key(at) < key) {
                best = Some(self.node(at).entry);
                at = self.node(at).right;
            } else {
                at = self.node(at).left;
            }
        }
        best
    }

    /// Bytes of all nodes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<Node>()
    }

    /// Number of ranges in all trees.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Random;

    /// Goal: every search of two trees in one arena agrees with a plain list. Method: model check over random inserts,
    /// removals and searches on a small domain.
    #[test]
    fn trees_match_a_list() {
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let mut forest = Forest::default();
            let mut trees = [Tree::EMPTY; 2];
            let mut lists: [Vec<(Entry, bool)>; 2] = [Vec::new(), Vec::new()];
            for sequence in 1..600 {
                let which = random.below(2) as usize;
                let (tree, list) = (&mut trees[which], &mut lists[which]);
                if random.below(5) < 3 {
                    let entry = Entry {
                        range: random.range(40),
                        id: LockId(sequence),
                        session: SessionId(random.below(1 + seed % 3)),
                    };
                    let called = random.below(4) == 0;
                    forest.insert(tree, entry, called);
                    list.push((entry, called));
                } else if !list.is_empty() {
                    let (entry, _) = list.swap_remove(random.below(list.len() as u64) as usize);
                    assert!(forest.remove(tree, entry.range.start, entry.id));
                    assert!(!forest.remove(tree, entry.range.start, entry.id));
                }
                list.sort_by_key(|(entry, _)| (entry.range.start, entry.id));
                let tree = *tree;
                let exempt = (random.below(2) == 0).then(|| SessionId(random.below(3)));
                let before = LockId(if random.below(2) == 0 { u64::MAX } else { random.below(sequence + 1) });
                let search = Search { range: random.range(40), exempt, before };
                let hit = |entry: &Entry| {
                    entry.range.overlaps(&search.range) && Some(entry.session) != exempt && entry.id < before
                };
                let hits: Vec<LockId> =
                    list.iter().filter(|(entry, _)| hit(entry)).map(|(entry, _)| entry.id).collect();
                match forest.find(tree, &search) {
                    Some(id) => assert!(hits.contains(&id)),
                    None => assert!(hits.is_empty()),
                }
                let cap = random.below(6) as usize;
                assert_eq!(forest.count(tree, &search, cap), hits.len().min(cap));
                let mut first = Vec::new();
                forest.first(tree, &search, cap, &mut first);
                let first: Vec<LockId> = first.iter().map(|entry| entry.id).collect();
                assert_eq!(first, hits[..hits.len().min(cap)]);
                let from = search.range.start;
                let next = list
                    .iter()
                    .find(|(entry, _)| entry.range.start >= from && Some(entry.session) != exempt)
                    .map(|(entry, _)| entry.range.start);
                assert_eq!(forest.next_start(tree, from, exempt), next);
                let covering: Vec<LockId> = list
                    .iter()
                    .filter(|(entry, _)| entry.range.contains(&search.range))
                    .map(|(entry, _)| entry.id)
                    .collect();
                match forest.covering(tree, search.range) {
                    Some(id) => assert!(covering.contains(&id)),
                    None => assert!(covering.is_empty()),
                }
                let mut seen = Vec::new();
                forest.visit(tree, search.range, &mut |entry| seen.push(entry.id));
                let all: Vec<LockId> = list
                    .iter()
                    .filter(|(entry, _)| entry.range.overlaps(&search.range))
                    .map(|(entry, _)| entry.id)
                    .collect();
                assert_eq!(seen, all);
                let key = |entry: &Entry| (entry.range.start, entry.id);
                assert_eq!(forest.highest(tree, None).map(|e| e.id), list.last().map(|(e, _)| e.id));
                let below = (from, before);
                let lower = list.iter().rev().find(|(entry, _)| key(entry) < below).map(|(entry, _)| entry.id);
                assert_eq!(forest.highest(tree, Some(below)).map(|e| e.id), lower);
                if random.below(4) == 0 {
                    let mut called = Vec::new();
                    forest.call_back(tree, &search, &mut called);
                    let expected: Vec<LockId> = list
                        .iter()
                        .filter(|(entry, called)| hit(entry) && !called)
                        .map(|(entry, _)| entry.id)
                        .collect();
                    assert_eq!(called, expected);
                    for (entry, called) in list.iter_mut() {
                        *called |= hit(entry);
                    }
                }
                assert_eq!(forest.len(), lists[0].len() + lists[1].len());
            }
        }
    }
}
