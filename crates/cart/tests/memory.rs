//! The index's own statement about its memory, compared with the allocations.

use amphi_cart::Cart;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes that each thread has from the system's allocator.
struct Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends may free memory after its counter is gone.
    let _ = BYTES.try_with(|all| all.set(all.get() + bytes));
}

// SAFETY: every call is passed to the system's allocator with its own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Goal: `bytes` is exactly what the allocator gave, at any time, and removed names give their memory back. Method: an
/// allocator that counts bytes. Names in many directories and in a large one are removed in another order and made
/// again.
#[test]
fn bytes_are_exact() {
    let (rounds, names) = if cfg!(miri) { (1, 60) } else { (3, 60_000) };
    let mut name = String::with_capacity(255);
    let before = BYTES.get();
    let mut cart = Cart::new();
    let taken = || (BYTES.get() - before) as usize;
    let set = |n: u64, name: &mut String| {
        use std::fmt::Write;
        name.clear();
        let _ = match n % 3 {
            0 => write!(name, "file.mdtest.{}.{n}", n % 7),
            1 => write!(name, "{:0width$}", n, width = (n % 200) as usize),
            _ => write!(name, "{n:x}-result of run {n}.hdf5"),
        };
        if n.is_multiple_of(5) { n % 1000 } else { 1 }
    };
    for _ in 0..rounds {
        let mut most = 0;
        for n in 0..names {
            let dir = set(n, &mut name);
            cart.insert(dir, name.as_bytes(), n << (n % 40));
            if n % 16 == 0 {
                assert_eq!(cart.bytes(), taken());
            }
            most = most.max(cart.bytes());
        }
        let step = 7_919;
        for n in (0..names).map(|n| n * step % names) {
            let dir = set(n, &mut name);
            assert_eq!(cart.remove(dir, name.as_bytes()), Some(n << (n % 40)));
            if n % 16 == 0 {
                assert_eq!(cart.bytes(), taken());
            }
        }
        assert_eq!((cart.bytes(), taken()), (0, 0));
        assert!(most > 0);
    }
}

/// Goal: consecutive names need the few bytes that the head of the crate promises. Method: a million of them, with
/// values as of a young file system.
#[test]
#[cfg(not(miri))]
fn consecutive_names_are_small() {
    let mut cart = Cart::new();
    for n in 0..1_000_000u64 {
        cart.insert(1, format!("file.mdtest.0.{n}").as_bytes(), n);
    }
    let bytes = cart.bytes() as f64 / 1e6;
    assert!(bytes < 7.0, "{bytes} bytes a name");
}
