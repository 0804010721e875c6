//! Compares indexes of names: bytes of memory for each name, and the time to insert, find and remove one.
//!
//! `cargo run --release -p amphi-cart --features compare --example indexes -- [ROUNDS [NAMES]]` prints a table for each
//! set of names. Names are inserted in their own order, and found and removed in a random one. Times are processor
//! times, the best of all rounds. In each round every index has its turn, so that other work of the machine affects all
//! of them.
//!
//! Memory is what the index has taken from the allocator: the bytes that it requested, and these with what glibc's
//! allocator adds (8 bytes, multiples of 16, at least 32).

use amphi_cart::Cart;
use blart::TreeMap;
use congee::{Congee, DefaultAllocator};
use hashbrown::HashMap;
use rart::{AdaptiveRadixTree, VectorKey};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts the bytes in use: as requested, and as glibc's allocator takes them.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call is passed to the system's allocator with its own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Relaxed);
        TAKEN.fetch_add(taken(layout), Relaxed);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ASKED.fetch_sub(layout.size(), Relaxed);
        TAKEN.fetch_sub(taken(layout), Relaxed);
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Names in the order in which they are inserted. Every name is in one piece of memory, with the directory in front of
/// it and NUL after it, so that no index has to build a key.
struct Names {
    what: &'static str,
    bytes: Vec<u8>,
    /// Offset of each name in the text, its length, and its directory.
    places: Vec<(u32, u8, u32)>,
    /// The number of each name in the original order, if the present order is another one.
    values: Vec<u32>,
    /// Whether the directory is a part of the key of an index that knows no directories.
    dirs: bool,
}

/// Bytes of a directory in front of a name, none of them NUL.
const DIR_BYTES: usize = 4;

struct Key<'a> {
    dir: u64,
    name: &'a [u8],
    /// The key of the name in an index without directories; the two forms end without and with NUL.
    whole: &'a [u8],
    c_str: &'a CStr,
    value: u64,
}

impl Names {
    fn new(what: &'static str, dirs: bool) -> Names {
        Names { what, bytes: Vec::new(), places: Vec::new(), values: Vec::new(), dirs }
    }

    fn add(&mut self, dir: u32, name: &[u8]) {
        let digits = [dir % 250, dir / 250 % 250, dir / 62_500 % 250, 0];
        self.bytes.extend(digits.iter().rev().map(|digit| *digit as u8 + 1));
        self.places.push((self.bytes.len() as u32, name.len() as u8, dir));
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    /// The same names in another order, of positions and of memory. The searched name is in the processor's cache, as
    /// on a server, where a request has just brought it.
    fn reordered(&self, order: &[u32]) -> Names {
        let mut names = Names::new(self.what, self.dirs);
        for at in order {
            let (begin, len, dir) = self.places[*at as usize];
            names.add(dir, &self.bytes[begin as usize..][..len.into()]);
        }
        names.values = order.to_vec();
        names
    }

    fn key(&self, at: usize) -> Key<'_> {
        let (begin, len, dir) = self.places[at];
        let (begin, end) = (begin as usize, begin as usize + usize::from(len));
        let from = if self.dirs { begin - DIR_BYTES } else { begin };
        // SAFETY: `add` put one NUL behind the name, and names have none.
        let c_str = unsafe { CStr::from_bytes_with_nul_unchecked(&self.bytes[from..=end]) };
        // Numbers as a target assigns them to inodes, one after the other, and the kind of each inode.
        let value = (100_000_000 + self.values.get(at).map_or(at as u64, |value| u64::from(*value))) << 3;
        Key { dir: dir.into(), name: &self.bytes[begin..end], whole: &self.bytes[from..end], c_str, value }
    }
}

trait Index {
    const NAME: &'static str;
    fn new() -> Self;
    fn insert(&mut self, key: &Key<'_>);
    fn get(&self, key: &Key<'_>) -> Option<u64>;
    fn remove(&mut self, key: &Key<'_>) -> bool;
}

impl Index for Cart {
    const NAME: &'static str = "cart";

    fn new() -> Cart {
        Cart::new()
    }

    fn insert(&mut self, key: &Key<'_>) {
        Cart::insert(self, key.dir, key.name, key.value);
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        Cart::get(self, key.dir, key.name)
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        Cart::remove(self, key.dir, key.name).is_some()
    }
}

impl Index for BTreeMap<Box<[u8]>, u64> {
    const NAME: &'static str = "BTreeMap";

    fn new() -> Self {
        BTreeMap::new()
    }

    fn insert(&mut self, key: &Key<'_>) {
        BTreeMap::insert(self, key.whole.into(), key.value);
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        BTreeMap::get(self, key.whole).copied()
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        BTreeMap::remove(self, key.whole).is_some()
    }
}

impl Index for HashMap<Box<[u8]>, u64> {
    const NAME: &'static str = "hashbrown";

    fn new() -> Self {
        HashMap::new()
    }

    fn insert(&mut self, key: &Key<'_>) {
        HashMap::insert(self, key.whole.into(), key.value);
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        HashMap::get(self, key.whole).copied()
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        HashMap::remove(self, key.whole).is_some()
    }
}

impl Index for TreeMap<CString, u64> {
    const NAME: &'static str = "blart";

    fn new() -> Self {
        TreeMap::new()
    }

    fn insert(&mut self, key: &Key<'_>) {
        TreeMap::insert(self, key.c_str.into(), key.value);
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        TreeMap::get(self, key.c_str).copied()
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        TreeMap::remove(self, key.c_str).is_some()
    }
}

impl Index for AdaptiveRadixTree<VectorKey, u64> {
    const NAME: &'static str = "rart";

    fn new() -> Self {
        AdaptiveRadixTree::new()
    }

    fn insert(&mut self, key: &Key<'_>) {
        self.insert_k(&VectorKey::new_from_vec(key.c_str.to_bytes_with_nul().to_vec()), key.value);
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        self.get_bytes(key.c_str.to_bytes_with_nul()).copied()
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        self.remove_k(&VectorKey::new_from_vec(key.c_str.to_bytes_with_nul().to_vec())).is_some()
    }
}

/// congee has keys of 8 bytes, so the keys are hashes, and the names are stored beside it.
struct Hashed {
    tree: Congee<usize, usize>,
    names: Vec<(Box<[u8]>, u64)>,
    hasher: hashbrown::DefaultHashBuilder,
}

impl Hashed {
    fn hash(&self, name: &[u8]) -> usize {
        use std::hash::BuildHasher;
        self.hasher.hash_one(name) as usize
    }
}

impl Index for Hashed {
    const NAME: &'static str = "congee and names";

    fn new() -> Self {
        Hashed { tree: Congee::new(DefaultAllocator {}), names: Vec::new(), hasher: Default::default() }
    }

    fn insert(&mut self, key: &Key<'_>) {
        let guard = self.tree.pin();
        let _ = self.tree.insert(self.hash(key.whole), self.names.len(), &guard);
        self.names.push((key.whole.into(), key.value));
    }

    fn get(&self, key: &Key<'_>) -> Option<u64> {
        let at = self.tree.get(&self.hash(key.whole), &self.tree.pin())?;
        let (name, value) = &self.names[at];
        (**name == *key.whole).then_some(*value)
    }

    fn remove(&mut self, key: &Key<'_>) -> bool {
        let guard = self.tree.pin();
        let Some(at) = self.tree.remove(&self.hash(key.whole), &guard) else { return false };
        self.names[at] = (Box::default(), 0);
        true
    }
}

#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    asked: f64,
    taken: f64,
    insert_ns: f64,
    get_ns: f64,
    remove_ns: f64,
}

/// Time of the processor that this thread has used, in ns.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn run<I: Index>(names: &Names, asked_for: &Names) -> Row {
    let count = names.places.len() as f64;
    let per_name = |begin: f64| (cpu_ns() - begin) / count;
    let (asked, taken) = (ASKED.load(Relaxed), TAKEN.load(Relaxed));
    let mut index = I::new();
    let begin = cpu_ns();
    for at in 0..names.places.len() {
        index.insert(&names.key(at));
    }
    let insert_ns = per_name(begin);
    let asked = (ASKED.load(Relaxed) - asked) as f64 / count;
    let taken = (TAKEN.load(Relaxed) - taken) as f64 / count;
    let begin = cpu_ns();
    let mut wrong = 0;
    for at in 0..asked_for.places.len() {
        let key = asked_for.key(at);
        wrong += u32::from(black_box(index.get(&key)) != Some(key.value));
    }
    let get_ns = per_name(begin);
    let begin = cpu_ns();
    for at in 0..asked_for.places.len() {
        wrong += u32::from(!index.remove(&asked_for.key(at)));
    }
    let remove_ns = per_name(begin);
    assert_eq!(wrong, 0, "{} answers wrongly", I::NAME);
    Row { name: I::NAME, asked, taken, insert_ns, get_ns, remove_ns }
}

fn shuffled(count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for at in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, (state % (at as u64 + 1)) as usize);
    }
    order
}

/// An index by its name, and its measurement.
type Run = (&'static str, fn(&Names, &Names) -> Row);

fn compare(names: &Names, rounds: usize) {
    let asked_for = names.reordered(&shuffled(names.places.len()));
    let one = std::env::var("AMPHI_INDEX").ok();
    let runs: Vec<Run> = vec![
        (Cart::NAME, run::<Cart>),
        (<BTreeMap<Box<[u8]>, u64>>::NAME, run::<BTreeMap<Box<[u8]>, u64>>),
        (<HashMap<Box<[u8]>, u64>>::NAME, run::<HashMap<Box<[u8]>, u64>>),
        (<TreeMap<CString, u64>>::NAME, run::<TreeMap<CString, u64>>),
        (<AdaptiveRadixTree<VectorKey, u64>>::NAME, run::<AdaptiveRadixTree<VectorKey, u64>>),
        (Hashed::NAME, run::<Hashed>),
    ];
    let mut best: Vec<Option<Row>> = vec![None; runs.len()];
    for _ in 0..rounds {
        for ((name, run), best) in runs.iter().zip(&mut best) {
            if one.as_deref().is_some_and(|one| one != *name) {
                continue;
            }
            let row = run(names, &asked_for);
            let so_far = best.get_or_insert(row);
            so_far.insert_ns = so_far.insert_ns.min(row.insert_ns);
            so_far.get_ns = so_far.get_ns.min(row.get_ns);
            so_far.remove_ns = so_far.remove_ns.min(row.remove_ns);
        }
    }
    println!("\n{}: {} names", names.what, names.places.len());
    println!("| index | bytes a name | with malloc's | insert ns | find ns | remove ns |\n|---|--:|--:|--:|--:|--:|");
    for row in best.into_iter().flatten() {
        println!(
            "| {} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} |",
            row.name, row.asked, row.taken, row.insert_ns, row.get_ns, row.remove_ns
        );
    }
}

/// Adds the names below a folder, for each directory in the order in which the kernel lists them.
fn collect(folder: &Path, dirs: &mut u32, add: &mut impl FnMut(u32, &[u8])) {
    use std::os::unix::ffi::OsStrExt;
    let mut todo = vec![folder.to_path_buf()];
    while let Some(folder) = todo.pop() {
        let dir = *dirs;
        *dirs += 1;
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            add(dir, entry.file_name().as_bytes());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(entry.path());
            }
        }
    }
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse().expect("a number")).collect();
    let rounds = args.first().copied().unwrap_or(3);
    let count = args.get(1).copied().unwrap_or(1_000_000) as u64;

    // Two serial numbers behind a fixed prefix of 12 bytes, the three parts separated by dots (PeakFS, section IV).
    let mut names = Names::new("the paper's keys", false);
    (0..count).for_each(|n| names.add(1, format!("checkpoint12.{}.{}", n / 1000, n % 1000).as_bytes()));
    compare(&names, rounds);
    let mut names = Names::new("names of mdtest", false);
    (0..count).for_each(|n| names.add(1, format!("file.mdtest.0.{n}").as_bytes()));
    compare(&names, rounds);

    let mut by_dirs = Names::new("/usr, by its directories", true);
    let mut all = std::collections::BTreeSet::new();
    let mut in_one = Names::new("/usr, all names in one directory", false);
    let mut dirs = 0;
    collect(Path::new("/usr"), &mut dirs, &mut |dir, name| {
        by_dirs.add(dir, name);
        if all.insert(name.to_vec()) {
            in_one.add(1, name);
        }
    });
    drop(all);
    println!("\n{dirs} directories below /usr");
    compare(&in_one, rounds * 3);
    compare(&by_dirs, rounds * 3);
}
