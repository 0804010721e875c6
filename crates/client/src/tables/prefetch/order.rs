//! The order in which the files of a directory are opened: a pure state machine from opens to the files that come next.
//!
//! Owns: the known names of a directory, recognising readers that follow one of its orders, how far to be ahead of
//! them, and noticing that prefetching is useless. Does not own: fetching, what was fetched already.
//!
//! Programs read a directory in the order of the listing (`tar`, `grep -r`) or of the names (`dir/*` in a shell, data
//! loaders). Where the files were made in the order in which they are read (numbered names without leading zeros), it
//! is the order of the inodes. All three orders are followed, each for several readers at once. A reader may skip or
//! swap some files. A reader counts as continuing if its next file is at most [8] places away, as long as it reads half
//! of the files. If a reader seems to follow several orders, the one in which it skips the fewest files counts. For
//! example, files that four programs made at once are neighbours by inode, and apart by name.
//!
//! After three files in an order the next [8] files are fetched. Whenever half of the fetched files were used, twice as
//! many are fetched, up to a bound. If a reader takes longer than [4 s] for what was fetched, fewer are fetched,
//! because they are not kept for long. When more files were fetched without use than were used, nothing is fetched for
//! the directory for [10 s], and twice as long each time.
//!
//! Bound: `NAMES_MAX` names of a directory, about 250 bytes each. If a listing is longer, the latest names are kept.

use amphi_types::{Ino, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Most names kept of a directory.
pub(crate) const NAMES_MAX: usize = 8192;
/// Most readers that are distinguished in each order.
const STREAMS: usize = 8;
/// How many places a reader may skip.
const SLACK: usize = 8;
/// The unit of `reach`, which is one place. It is also the largest average distance from one file to the next at which
/// a reader is followed. If the distance were larger, less than half of the fetched files would be used.
const ONE: usize = 16;
const REACH_MAX: usize = 2 * ONE;
/// Number of steps in one order before anything is fetched.
const SURE: u32 = 2;
/// Number of files that are fetched at first.
const WINDOW_MIN: usize = 8;
/// Opens of unknown files before the names of a directory are requested, at first and later.
const STRANGERS_FIRST: usize = 4;
const STRANGERS_LATER: usize = 64;
/// If a reader takes longer than this for half a window, it gets a smaller window.
const SLOW_NS: u64 = 4_000_000_000;
/// Up to this number, files that were fetched and not used are ignored.
const WASTE_MIN: u64 = 32;
/// How long nothing is fetched after prefetching was useless, at first and at most.
const PAUSE_NS: u64 = 10_000_000_000;
const PAUSE_MAX_NS: u64 = 600_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Listing,
    Name,
    Inode,
}

const ORDERS: [Order; 3] = [Order::Listing, Order::Name, Order::Inode];

/// A reader that follows an order. Places are cookies of the listing.
#[derive(Debug)]
struct Stream {
    order: Order,
    last: u64,
    steps: u32,
    /// Average number of places from one file to the next, in parts of `ONE`.
    reach: usize,
    /// The last place that was fetched, and its distance from the reader.
    head: u64,
    ahead: usize,
    window: usize,
    fetched_ns: u64,
    age: u64,
}

/// Whether prefetching was useful: how many fetched files were used and how many were not since the last pause, and
/// that pause.
#[derive(Debug, Default)]
struct Benefit {
    used: u64,
    wasted: u64,
    pause_ns: u64,
    paused_until_ns: u64,
}

impl Benefit {
    /// Notes that a file was fetched and not used. Returns whether nothing is fetched for a while from now on.
    fn note_wasted(&mut self, now_ns: u64) -> bool {
        self.wasted += 1;
        let is_useless = self.wasted > WASTE_MIN + self.used;
        if is_useless {
            self.pause_ns = (self.pause_ns * 2).clamp(PAUSE_NS, PAUSE_MAX_NS);
            self.paused_until_ns = now_ns + self.pause_ns;
            (self.used, self.wasted) = (0, 0);
        }
        is_useless
    }
}

/// The known names of a directory, and the programs that read it.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    files: BTreeMap<u64, (Name, Ino)>,
    by_name: BTreeMap<Name, u64>,
    by_inode: BTreeMap<Ino, u64>,
    streams: Vec<Stream>,
    clock: u64,
    benefit: Benefit,
    /// Opens of files whose names are not known here, and of known ones, since the names were requested.
    strangers: usize,
    familiar: usize,
    /// Number of unknown files after which the names are requested again. `None`: the names were never requested.
    patience: Option<usize>,
    /// Average bytes of the files that were fetched.
    pub(crate) mean_bytes: u64,
    /// Files that the server could not return without waiting, and that are requested once more.
    later: BTreeMap<Ino, Name>,
    tried: BTreeSet<Ino>,
    /// The value of a counter over all directories when this one was used last.
    pub(crate) touched: u64,
}

impl Directory {
    /// Adds a part of the listing: the files among the entries after cookie `from`, up to `to`, or to the end if that
    /// is `None`.
    pub(crate) fn learn(&mut self, from: u64, to: Option<u64>, files: impl IntoIterator<Item = (u64, Name, Ino)>) {
        let upto = to.unwrap_or(u64::MAX);
        let old: Vec<u64> = self.files.range((Excluded(from), Unbounded)).map(|(c, _)| *c).collect();
        old.into_iter().take_while(|c| *c <= upto).for_each(|c| self.forget(c));
        for (cookie, name, ino) in files {
            self.forget(cookie);
            if let Some(before) = self.by_name.get(&name).copied() {
                self.forget(before);
            }
            self.by_name.insert(name.clone(), cookie);
            self.by_inode.insert(ino, cookie);
            self.files.insert(cookie, (name, ino));
        }
        while self.files.len() > NAMES_MAX
            && let Some((&first, _)) = self.files.first_key_value()
        {
            self.forget(first);
        }
        assert!(self.files.len() <= NAMES_MAX, "{} names of a directory, at most {NAMES_MAX}", self.files.len());
        assert_eq!(self.by_name.len(), self.files.len(), "each name of a directory has one place");
    }

    fn forget(&mut self, cookie: u64) {
        if let Some((name, ino)) = self.files.remove(&cookie) {
            self.by_name.remove(&name);
            if self.by_inode.get(&ino) == Some(&cookie) {
                self.by_inode.remove(&ino);
            }
        }
    }

    /// Number of known names.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether the file is known to be in this directory.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        self.by_inode.contains_key(&ino)
    }

    /// Called when a file of this directory is opened. Returns whether the names should be requested, because too many
    /// files were not known. If that does not help, the names are requested again after twice as many files, up to a
    /// quarter of the names.
    pub(crate) fn wants_names(&mut self, ino: Ino) -> bool {
        if self.knows(ino) {
            self.familiar += 1;
            if self.familiar >= STRANGERS_LATER {
                self.patience = self.patience.map(|_| STRANGERS_LATER);
            }
            return false;
        }
        self.strangers += 1;
        if self.strangers < self.patience.unwrap_or(STRANGERS_FIRST) {
            return false;
        }
        let most = STRANGERS_LATER.max(self.len() / 4);
        let patience = self.patience.map_or(STRANGERS_LATER, |patience| patience * 2);
        (self.strangers, self.familiar, self.patience) = (0, 0, Some(patience.min(most)));
        true
    }

    /// Called when a fetched file was used.
    pub(crate) fn note_used(&mut self) {
        self.benefit.used += 1;
    }

    /// Called when a fetched file was not used.
    pub(crate) fn note_wasted(&mut self, now_ns: u64) {
        if self.benefit.note_wasted(now_ns) {
            self.streams.clear();
        }
    }

    /// Notes how large the fetched files were.
    pub(crate) fn note_sizes(&mut self, files: u64, bytes: u64) {
        if let Some(mean) = bytes.checked_div(files) {
            self.mean_bytes = if self.mean_bytes == 0 { mean } else { (self.mean_bytes * 3 + mean) / 4 };
        }
    }

    /// The server could not return these files without waiting, so they are requested again with the next open, once.
    pub(crate) fn ask_later(&mut self, files: impl IntoIterator<Item = (Name, Ino)>) {
        for (name, ino) in files {
            if !self.tried.remove(&ino) {
                self.later.insert(ino, name);
            }
        }
    }

    /// The place `count` steps away from `at` in an order, and those in between, nearest first.
    fn walk(&self, order: Order, at: u64, forward: bool, count: usize) -> Vec<u64> {
        let Some((name, ino)) = self.files.get(&at) else { return Vec::new() };
        match (order, forward) {
            (Order::Listing, true) => {
                self.files.range((Excluded(at), Unbounded)).map(|(c, _)| *c).take(count).collect()
            }
            (Order::Listing, false) => self.files.range(..at).rev().map(|(c, _)| *c).take(count).collect(),
            (Order::Name, true) => {
                self.by_name.range((Excluded(name), Unbounded)).map(|(_, c)| *c).take(count).collect()
            }
            (Order::Name, false) => self.by_name.range(..name).rev().map(|(_, c)| *c).take(count).collect(),
            (Order::Inode, true) => {
                self.by_inode.range((Excluded(ino), Unbounded)).map(|(_, c)| *c).take(count).collect()
            }
            (Order::Inode, false) => self.by_inode.range(..ino).rev().map(|(_, c)| *c).take(count).collect(),
        }
    }

    /// Called when a file is opened for reading. Returns the files to fetch, in the order in which they are expected.
    /// No reader gets more than `window_max` files ahead.
    pub(crate) fn on_open(&mut self, now_ns: u64, ino: Ino, window_max: usize) -> Vec<(Name, Ino)> {
        let Some(at) = self.by_inode.get(&ino).copied() else { return Vec::new() };
        self.clock += 1;
        // If a reader seems to follow several orders, the one of which it skips least counts.
        let mut best: Option<(usize, Order)> = None;
        for order in ORDERS {
            if let Some(i) = self.advance(now_ns, order, at) {
                let reach = self.streams[i].reach;
                if best.is_none_or(|(least, _)| reach < least) {
                    best = Some((reach, order));
                }
            }
        }
        let of_best = |s: &&Stream| best.is_some_and(|(_, order)| s.order == order && s.last == at);
        let followed = self.streams.iter().position(|s| of_best(&s));
        let plan = followed.map(|i| self.fetch_for(now_ns, i, window_max)).unwrap_or_default();
        if now_ns < self.benefit.paused_until_ns {
            self.later.clear();
            return Vec::new();
        }
        let (mut files, mut seen) = (Vec::new(), BTreeSet::from([ino]));
        self.later.remove(&ino);
        if window_max > 0 {
            let later = std::mem::take(&mut self.later);
            // If a file is refused a second time, it is not requested again.
            self.tried = later.keys().copied().collect();
            files.extend(later.into_iter().filter(|(ino, _)| seen.insert(*ino)).map(|(ino, name)| (name, ino)));
        }
        let next = plan.iter().filter_map(|cookie| self.files.get(cookie));
        files.extend(next.filter(|(_, ino)| seen.insert(*ino)).cloned());
        files
    }

    /// Moves the reader on that has come to `at` in an order. Returns the reader's index if files should be fetched for
    /// it.
    fn advance(&mut self, now_ns: u64, order: Order, at: u64) -> Option<usize> {
        let behind = self.walk(order, at, false, SLACK);
        // The nearest reader is the one with the fewest files in between.
        let place =
            |s: &Stream| if s.last == at { Some(0) } else { behind.iter().position(|c| *c == s.last).map(|p| p + 1) };
        let streams = self.streams.iter().enumerate().filter(|(_, s)| s.order == order);
        let found = streams.filter_map(|(i, s)| place(s).map(|distance| (distance, i))).min();
        if let Some((distance, i)) = found {
            if distance > 0 {
                let s = &mut self.streams[i];
                (s.last, s.steps, s.age) = (at, s.steps + 1, self.clock);
                s.ahead = s.ahead.saturating_sub(distance);
                s.reach = if s.steps == 1 { distance * ONE } else { (s.reach * 3 + distance * ONE) / 4 };
            }
            let s = &self.streams[i];
            return (s.steps >= SURE && s.reach <= REACH_MAX).then_some(i);
        }
        // This reader is one of several that share the files, a little behind the others.
        let before = self.walk(order, at, true, SLACK);
        if self.streams.iter().any(|s| s.order == order && before.contains(&s.last)) {
            return None;
        }
        let of_order: Vec<usize> = (0..self.streams.len()).filter(|&i| self.streams[i].order == order).collect();
        if of_order.len() >= STREAMS
            && let Some(oldest) = of_order.into_iter().min_by_key(|&i| self.streams[i].age)
        {
            self.streams.swap_remove(oldest);
        }
        let (steps, reach, head, ahead, window, fetched_ns, age) = (0, 0, at, 0, 0, now_ns, self.clock);
        assert!(self.streams.len() < ORDERS.len() * STREAMS, "{} readers of a directory", self.streams.len());
        self.streams.push(Stream { order, last: at, steps, reach, head, ahead, window, fetched_ns, age });
        None
    }

    /// The files to fetch for a reader.
    fn fetch_for(&mut self, now_ns: u64, i: usize, window_max: usize) -> Vec<u64> {
        let s = &self.streams[i];
        if s.ahead > s.window / 2 || window_max == 0 {
            return Vec::new();
        }
        let slow = s.window > 0 && now_ns.saturating_sub(s.fetched_ns) > SLOW_NS;
        let window = if slow { s.window / 2 } else { s.window * 2 }.clamp(WINDOW_MIN.min(window_max), window_max);
        let (head, ahead) = if s.ahead == 0 { (s.last, 0) } else { (s.head, s.ahead) };
        let next = self.walk(s.order, head, true, window.saturating_sub(ahead));
        let s = &mut self.streams[i];
        (s.window, s.fetched_ns, s.ahead) = (window, now_ns, ahead + next.len());
        s.head = next.last().copied().unwrap_or(head);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrambled(i: u64) -> u64 {
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1
    }

    /// A directory of `count` files made in the order of their numbers: cookies are random, and the names are the
    /// numbers.
    fn directory(count: u64) -> Directory {
        let mut dir = Directory::default();
        let mut files: Vec<_> = (0..count).map(|i| (scrambled(i), name(i), Ino(100 + i))).collect();
        files.sort();
        for page in files.chunks(100) {
            let from = dir.files.last_key_value().map_or(0, |(c, _)| *c);
            dir.learn(from, page.last().map(|f| f.0), page.iter().cloned());
        }
        dir.learn(files.last().expect("files").0, None, []);
        dir
    }

    fn name(i: u64) -> Name {
        Name::new(format!("f{i}").into_bytes()).expect("a name")
    }

    fn open(dir: &mut Directory, ino: Ino) -> Vec<Ino> {
        dir.on_open(0, ino, 64).into_iter().map(|(_, ino)| ino).collect()
    }

    /// Goal: prefetching follows readers in each of the three orders. After a few files each next file has been
    /// fetched, once, and almost nothing else. Method: 1,000 files, opened in each order, also with every second one
    /// left out.
    #[test]
    fn orders_are_followed() {
        for keep in [1, 2] {
            for order in ORDERS {
                let mut dir = directory(1000);
                let first = match order {
                    Order::Listing => *dir.files.first_key_value().expect("files").0,
                    Order::Name => *dir.by_name.first_key_value().expect("files").1,
                    Order::Inode => *dir.by_inode.first_key_value().expect("files").1,
                };
                let places: Vec<u64> = [first].into_iter().chain(dir.walk(order, first, true, 1000)).collect();
                let (mut fetched, mut opened) = (Vec::new(), 0);
                for cookie in places.into_iter().step_by(keep) {
                    let ino = dir.files[&cookie].1;
                    if opened > 3 {
                        assert!(fetched.contains(&ino), "{order:?}, file {opened}");
                    }
                    opened += 1;
                    fetched.extend(open(&mut dir, ino));
                }
                // If two orders agree for a while, the function returns a file twice; the caller fetches it once.
                fetched.sort();
                fetched.dedup();
                assert!(fetched.len() <= 1000, "{order:?}: {}", fetched.len());
            }
        }
    }

    /// Goal: names are requested after a few unknown files, and again after 64 if all files have been replaced. If
    /// requesting the names does not help, they are requested less and less often. Method: a directory of 4,000 names,
    /// opens of known and unknown files.
    #[test]
    fn names_are_asked_for() {
        let opens_until =
            |dir: &mut Directory, ino: u64| (1..).find(|_| dir.wants_names(Ino(ino))).expect("sooner or later");
        let mut dir = Directory::default();
        assert_eq!(opens_until(&mut dir, 7), 4);
        let mut dir = directory(4000);
        let stranger = 1 << 40;
        assert_eq!(opens_until(&mut dir, stranger), 4);
        for expected in [64, 128, 256, 512, 1000, 1000] {
            assert_eq!(opens_until(&mut dir, stranger), expected);
        }
        for _ in 0..64 {
            assert!(!dir.wants_names(Ino(100)));
        }
        assert_eq!(opens_until(&mut dir, stranger), 64, "the names were of use");
    }

    /// Goal: if a program reads every fourth file by inode, which is every file by name, only those files are fetched.
    /// Method: files that four programs made in turn.
    #[test]
    fn the_order_that_fits_best_counts() {
        let mut dir = Directory::default();
        let of = |maker: u64, i: u64| Name::new(format!("m{maker}.{i:03}").into_bytes()).expect("a name");
        let files = (0..800).map(|k| (scrambled(k), of(k % 4, k / 4), Ino(k)));
        let mut files: Vec<_> = files.collect();
        files.sort();
        dir.learn(0, None, files);
        let mut fetched = Vec::new();
        for i in 0..200 {
            assert!(i < 4 || fetched.contains(&Ino(4 * i + 1)), "file {i}");
            fetched.extend(open(&mut dir, Ino(4 * i + 1)));
        }
        assert!(fetched.iter().filter(|ino| ino.0 % 4 != 1).count() < 70, "what follows the last one alone");
    }

    /// Goal: several readers that share the files of one order, and sometimes overtake each other, are recognised as
    /// one reader. Method: pairs swapped.
    #[test]
    fn readers_who_share_are_followed() {
        let mut dir = directory(600);
        let mut fetched = Vec::new();
        for i in 0..600u64 {
            let i = if i % 3 == 1 && i + 1 < 600 {
                i + 1
            } else if i % 3 == 2 {
                i - 1
            } else {
                i
            };
            assert!(i < 8 || fetched.contains(&Ino(100 + i)), "file {i}");
            fetched.extend(open(&mut dir, Ino(100 + i)));
        }
    }

    /// Goal: for a program that opens files of a large directory at random, almost nothing is fetched. Method: 2,000 of
    /// 5,000 files are opened.
    #[test]
    fn random_opens_fetch_little() {
        let mut dir = directory(5000);
        let fetched: usize = (0..2000).map(|i| open(&mut dir, Ino(100 + scrambled(i * 7 + 3) % 5000)).len()).sum();
        assert!(fetched < 400, "{fetched}");
    }

    /// Goal: files that are fetched in vain stop prefetching, for longer each time, and use of fetched files keeps it
    /// going. Method: a reader in order whose files are counted as wasted, and one whose files are counted as used.
    #[test]
    fn waste_pauses() {
        let mut dir = directory(1000);
        let fetch = |dir: &mut Directory, now_ns: u64, from: u64| -> usize {
            (from..from + 50).map(|i| dir.on_open(now_ns, Ino(100 + i), 64).len()).sum()
        };
        assert!(fetch(&mut dir, 0, 0) > 50);
        (0..100).for_each(|_| dir.note_used());
        (0..130).for_each(|_| dir.note_wasted(0));
        assert!(fetch(&mut dir, 1, 50) > 0, "little more than a half");
        (0..10).for_each(|_| dir.note_wasted(1));
        assert_eq!(fetch(&mut dir, 2, 100), 0);
        assert_eq!(fetch(&mut dir, 9_000_000_000, 150), 0);
        assert!(fetch(&mut dir, 11_000_000_000, 200) > 0);
        (0..40).for_each(|_| dir.note_wasted(11_000_000_000));
        assert_eq!(fetch(&mut dir, 30_000_000_000, 250), 0, "twice as long");
        assert!(fetch(&mut dir, 32_000_000_000, 300) > 0);
    }

    /// Goal: the last listing replaces earlier ones, within its bound. Method: names are added and removed between two
    /// listings; one listing is longer than the bound.
    #[test]
    fn listings_replace_each_other() {
        let mut dir = Directory::default();
        dir.learn(0, Some(30), [(10, name(1), Ino(1)), (20, name(2), Ino(2)), (30, name(3), Ino(3))]);
        dir.learn(0, Some(20), [(20, name(2), Ino(9))]);
        assert_eq!((dir.len(), dir.knows(Ino(1)), dir.knows(Ino(2)), dir.knows(Ino(3))), (2, false, false, true));
        dir.learn(20, None, [(40, name(2), Ino(9))]);
        assert_eq!((dir.len(), dir.knows(Ino(9)), dir.knows(Ino(3))), (1, true, false));
        let many = NAMES_MAX as u64 + 10;
        dir.learn(0, None, (1..=many).map(|i| (i, name(i), Ino(i))));
        assert_eq!((dir.len(), dir.knows(Ino(10)), dir.knows(Ino(11))), (NAMES_MAX, false, true));
        assert_eq!((dir.by_name.len(), dir.by_inode.len()), (NAMES_MAX, NAMES_MAX));
    }
}
