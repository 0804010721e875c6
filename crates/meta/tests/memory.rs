//! Memory that the store takes for an empty file and for an attribute, counted by the allocator.

use amphi_meta::{MetaStore, NodeSpec, XattrMode};
use amphi_types::item::Txn;
use amphi_types::{Cred, Ino, Name, TargetId, Timespec};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes that each thread has, as glibc's allocator takes them: 8 bytes more, in multiples of 16, at least
/// 32.
struct Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(layout: Layout, sign: isize) {
    let bytes = (layout.size() + 8).next_multiple_of(16).max(32) as isize;
    // A thread that ends may free memory after its counter is gone.
    let _ = BYTES.try_with(|all| all.set(all.get() + sign * bytes));
}

// SAFETY: every call is passed to the system's allocator with its own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The bound in the head of the crate, in bytes.
const BYTES_MAX: f64 = 40.0;

/// Time between two operations, as on a busy server, in ns.
const STEP_NS: u64 = 40_000;

/// Bytes for each of `files` empty files in `dirs` directories.
fn bytes_per_file(files: u64, dirs: u64) -> f64 {
    let (root, mut ns) = (Cred::root(), 1_700_000_000_000_000_000);
    let before = BYTES.get();
    let (mut store, _) = MetaStore::format(TargetId(0), 1, Timespec::from_ns(ns), Some((0, 0)), 4);
    let mut make = |dir: Ino, name: String, spec: &NodeSpec| {
        let name = Name::new(name).expect("a name");
        ns += STEP_NS;
        store.make(&root, dir, &name, spec, Timespec::from_ns(ns), &mut Txn::default()).expect("it is made")
    };
    let spec = NodeSpec::dir(0o755);
    let dirs: Vec<Ino> = (0..dirs).map(|n| make(Ino::ROOT, format!("dir.mdtest.0.{n}"), &spec)).collect();
    let spec = NodeSpec::file(0o644);
    for n in 0..files {
        make(dirs[n as usize % dirs.len()], format!("file.mdtest.0.{n}"), &spec);
    }
    drop(dirs);
    let bytes = (BYTES.get() - before) as f64 / files as f64;
    let names = store.dentry_bytes() as f64 / files as f64;
    let inodes = store.inode_bytes() as f64 / files as f64;
    println!("{files} files: {bytes:.1} bytes a file, {names:.1} for its name, {inodes:.1} for its inode");
    let counted = names + inodes;
    assert!(
        (bytes - counted).abs() < 0.1 * bytes,
        "{counted} bytes by the store's own count, {bytes} by the allocator's"
    );
    bytes
}

/// Goal: an empty file takes the memory that the head of the crate promises. Method: files in one directory and in many
/// small ones.
#[test]
fn memory_of_an_empty_file() {
    let alone = bytes_per_file(100_000, 1);
    let spread = bytes_per_file(100_000, 1000);
    assert!(alone < BYTES_MAX && spread < BYTES_MAX, "{alone} and {spread} bytes");
}

/// Goal: an inode that is not in memory takes little, by the store's own count as well. Method: all inodes of files
/// leave memory that have been written and closed.
#[test]
fn memory_of_an_inode_that_is_away() {
    let (root, files) = (Cred::root(), 100_000);
    let at = |n: u64| Timespec::from_ns(1_700_000_000_000_000_000 + n * STEP_NS);
    let (mut store, _) = MetaStore::format(TargetId(0), 1, at(0), Some((0, 0)), 4);
    store.set_inodes_max(0);
    for n in 0..files {
        let name = Name::new(format!("f{n}")).expect("a name");
        let ino = store.make(&root, Ino::ROOT, &name, &NodeSpec::file(0o644), at(n), &mut Txn::default());
        let written = amphi_meta::Gathered { size: 3901, mtime: at(n + 7), blocks: 8 };
        store.settle(ino.expect("it is made"), &written, &mut Txn::default()).expect("it is a file");
    }
    let (before, counted) = (BYTES.get(), store.inode_bytes() as isize);
    while store.let_inodes_go(|_| false) {}
    assert_eq!((store.away_count(), store.inode_count()), (files, files + 1));
    let (freed, counted) = (before - BYTES.get(), counted - store.inode_bytes() as isize);
    let left = store.inode_bytes() as f64 / files as f64;
    println!("{} bytes of an inode are freed, {left:.1} are left", freed / files as isize);
    assert!(
        (freed - counted).abs() < freed / 10,
        "{counted} bytes by the store's own count, {freed} by the allocator's"
    );
    assert!(left < 3.0, "{left} bytes");
}

/// Goal: an attribute with a long value that is not in memory takes little, whatever the value. Method: one of 4 KiB
/// for each of many files, in a store that keeps 1 MiB of values.
#[test]
fn memory_of_a_long_value() {
    let (root, now, files, max) = (Cred::root(), Timespec::from_ns(1_700_000_000_000_000_000), 10_000, 1 << 20);
    let (mut store, _) = MetaStore::format(TargetId(0), 1, now, Some((0, 0)), 4);
    store.set_values_max(max);
    let mut inos = Vec::new();
    for n in 0..files {
        let name = Name::new(format!("f{n}")).expect("a name");
        let spec = NodeSpec::file(0o644);
        inos.push(store.make(&root, Ino::ROOT, &name, &spec, now, &mut Txn::default()).expect("it is made"));
    }
    let before = BYTES.get();
    for (n, ino) in inos.iter().enumerate() {
        let (value, txn) = (vec![n as u8; 4096], &mut Txn::default());
        store.setxattr(&root, *ino, b"user.a", &value, XattrMode::Set, now, txn).expect("it is set");
    }
    assert!(store.value_bytes() <= max, "{}", store.value_bytes());
    let bytes = (BYTES.get() - before - max as isize) as f64 / f64::from(files);
    println!("{bytes:.1} bytes an attribute");
    assert!(bytes < 256.0, "{bytes} bytes an attribute");
}
