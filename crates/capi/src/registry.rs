//! Numbers for what is open.
//!
//! Owns: the numbers, and the guarantee that the object of a number stays while a call uses it. Does not own: the
//! objects (`object`).
//!
//! A number consists of a place (20 bits), a generation (32 bits) and the kind of its object (4 bits), and is never
//! negative. A thread that uses a number writes it into a cell of its own, and then checks whether the table still has
//! it. A close first removes it from the table, and then waits until no cell shows the number (hazard pointers). So a
//! call takes no lock and writes to no memory that other threads write to. A close waits for the short calls that use
//! the object itself. Longer calls hold a reference to it.
//!
//! The table belongs to one process (`process`): a child of `fork` has none of the numbers.

use crate::failure::{Done, fail};
use crate::object::{Kind, Object};
use crate::process::{own, own_or_new};
use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Mutex, PoisonError};

const PLACE_BITS: u32 = 20;
const KIND_SHIFT: u32 = 56;
/// Places of one piece of the table.
const CHUNK: usize = 1024;
/// Handles that may be open at a time, at most.
const HANDLES_MAX: usize = 1 << PLACE_BITS;

/// The object of a number.
struct Place {
    /// The number that is valid; 0 means none.
    number: AtomicU64,
    object: UnsafeCell<Option<Object>>,
}

// SAFETY: the object is written only by a thread that has taken the place from the free ones, or that has emptied it
// and waited for those who use it; otherwise it is only read.
unsafe impl Sync for Place {}

/// The table of a process.
pub(crate) struct Registry {
    chunks: [AtomicPtr<Place>; HANDLES_MAX / CHUNK],
    free: Mutex<Free>,
}

struct Free {
    places: Vec<usize>,
    used: usize,
    generation: u32,
}

/// The table of this process.
///
/// Errors: `ENOTCONN` in a child of `fork` that has opened nothing, `EBADF` if nothing was ever opened.
#[inline]
pub(crate) fn registry() -> Done<&'static Registry> {
    match own()?.registry.load(Acquire) {
        0 => fail(libc::EBADF),
        // SAFETY: a table is never given back.
        table => Ok(unsafe { &*(table as *const Registry) }),
    }
}

/// The table of this process, made if need be. Errors: those of `own_or_new`.
pub(crate) fn registry_or_new() -> Done<&'static Registry> {
    let root = &own_or_new()?.registry;
    if root.load(Acquire) == 0 {
        let free = Free { places: Vec::new(), used: 0, generation: std::process::id().wrapping_mul(0x9e37_79b1) };
        let chunks = [const { AtomicPtr::new(std::ptr::null_mut()) }; HANDLES_MAX / CHUNK];
        let made = Box::into_raw(Box::new(Registry { chunks, free: Mutex::new(free) }));
        if root.compare_exchange(0, made as usize, SeqCst, SeqCst).is_err() {
            // SAFETY: nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    registry()
}

impl Registry {
    #[inline]
    fn place(&self, number: u64) -> Option<&Place> {
        let at = (number & (HANDLES_MAX as u64 - 1)) as usize;
        let chunk = self.chunks[at / CHUNK].load(Acquire);
        // SAFETY: a piece of the table has `CHUNK` places, and stays.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(at % CHUNK) })
    }

    /// Gives a number to an object.
    ///
    /// Errors: `EMFILE` if there are too many.
    pub(crate) fn insert(&self, object: Object) -> Done<i64> {
        let kind = object.kind() as u64;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match free.places.pop() {
            Some(at) => at,
            None if free.used == HANDLES_MAX => return fail(libc::EMFILE),
            None => {
                free.used += 1;
                free.used - 1
            }
        };
        let chunk = &self.chunks[at / CHUNK];
        if chunk.load(Acquire).is_null() {
            let places: Box<[Place]> =
                (0..CHUNK).map(|_| Place { number: AtomicU64::new(0), object: UnsafeCell::new(None) }).collect();
            chunk.store(Box::into_raw(places).cast(), Release);
        }
        free.generation = free.generation.wrapping_add(1);
        let number = kind << KIND_SHIFT | u64::from(free.generation) << PLACE_BITS | at as u64;
        let Some(place) = self.place(number) else { return fail(libc::EMFILE) };
        // SAFETY: the place was free, and its number does not count yet.
        unsafe { *place.object.get() = Some(object) };
        place.number.store(number, SeqCst);
        Ok(number as i64)
    }

    /// Removes the object of a number from the table, once no call uses it.
    ///
    /// Errors: `EBADF`.
    pub(crate) fn remove(&self, number: i64) -> Done<Object> {
        let number = number as u64;
        let Some(place) = self.place(number) else { return fail(libc::EBADF) };
        if number == 0 || place.number.compare_exchange(number, 0, SeqCst, SeqCst).is_err() {
            return fail(libc::EBADF);
        }
        wait_for_users(number);
        // SAFETY: the number does not count any more, so nobody begins to use the object, and nobody uses it.
        let object = unsafe { (*place.object.get()).take() };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.places.push((number & (HANDLES_MAX as u64 - 1)) as usize);
        object.map_or_else(|| fail(libc::EBADF), Ok)
    }

    /// Every object that is open.
    pub(crate) fn numbers(&self) -> Vec<i64> {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        let places = (0..used).filter_map(|at| self.place(at as u64));
        places.map(|place| place.number.load(SeqCst) as i64).filter(|number| *number != 0).collect()
    }
}

/// Uses the object of a number, which stays meanwhile: only for operations that do not wait.
///
/// Errors: `EBADF` for a number that is not open, or of another kind; those of `registry`.
#[inline]
pub(crate) fn with<R>(number: i64, kinds: &[Kind], use_it: impl FnOnce(&Object) -> Done<R>) -> Done<R> {
    let registry = registry()?;
    let number = number as u64;
    if number == 0 || !kinds.iter().any(|kind| *kind as u64 == number >> KIND_SHIFT) {
        return fail(libc::EBADF);
    }
    let Some(place) = registry.place(number) else { return fail(libc::EBADF) };
    let shown = Shown::new(number);
    if place.number.load(SeqCst) != number {
        return fail(libc::EBADF);
    }
    // SAFETY: the number was still valid after this thread had shown that it uses it, so a thread that closes it waits.
    let object = unsafe { (*place.object.get()).as_ref() };
    let done = object.map_or_else(|| fail(libc::EBADF), use_it);
    drop(shown);
    done
}

/// Which number a thread uses. A cell is never freed. When a thread ends, another one uses its cell.
#[repr(align(128))]
struct Cell {
    number: AtomicU64,
    taken: AtomicU32,
    next: AtomicPtr<Cell>,
}

static CELLS: AtomicPtr<Cell> = AtomicPtr::new(std::ptr::null_mut());

fn cells() -> impl Iterator<Item = &'static Cell> {
    let mut at = CELLS.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: cells are never given back.
        let cell = unsafe { at.as_ref() }?;
        at = cell.next.load(Acquire);
        Some(cell)
    })
}

fn take_cell() -> &'static Cell {
    if let Some(cell) = cells().find(|cell| cell.taken.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()) {
        return cell;
    }
    let cell: &'static Cell = Box::leak(Box::new(Cell {
        number: AtomicU64::new(0),
        taken: AtomicU32::new(1),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let place = std::ptr::from_ref(cell).cast_mut();
    let mut first = CELLS.load(Acquire);
    loop {
        cell.next.store(first, Release);
        match CELLS.compare_exchange(first, place, SeqCst, Acquire) {
            Ok(_) => return cell,
            Err(now) => first = now,
        }
    }
}

struct OwnCell(&'static Cell);

impl Drop for OwnCell {
    fn drop(&mut self) {
        self.0.number.store(0, SeqCst);
        self.0.taken.store(0, SeqCst);
    }
}

thread_local! {
    static OWN: OwnCell = OwnCell(take_cell());
}

/// While this value lives, other threads see that the thread uses a number.
struct Shown {
    cell: &'static Cell,
    is_own: bool,
}

impl Shown {
    #[inline]
    fn new(number: u64) -> Shown {
        match OWN.try_with(|own| own.0) {
            Ok(cell) if cell.number.load(Relaxed) == 0 => {
                cell.number.store(number, SeqCst);
                Shown { cell, is_own: true }
            }
            // A thread that ends, or a signal handler in the middle of a call.
            _ => {
                let cell = take_cell();
                cell.number.store(number, SeqCst);
                Shown { cell, is_own: false }
            }
        }
    }
}

impl Drop for Shown {
    #[inline]
    fn drop(&mut self) {
        self.cell.number.store(0, Release);
        if !self.is_own {
            self.cell.taken.store(0, SeqCst);
        }
    }
}

fn wait_for_users(number: u64) {
    for cell in cells() {
        while cell.number.load(SeqCst) == number {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Fs;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn node() -> Object {
        let path = std::ffi::CString::new("/proc").expect("a path");
        // Any directory serves for this, because no file in it is used.
        Object::Fs(Fs::Node(Arc::new(crate::node::Node::unchecked(&path).expect("a directory"))))
    }

    fn open(number: i64) -> Result<(), i32> {
        with(number, &[Kind::Fs], |_| Ok(())).map_err(|failed| failed.errno)
    }

    /// Goal: a number is valid from its insertion to its removal, only for its kind, and is not used again. Method: a
    /// place that is used many times, numbers that were changed.
    #[test]
    fn numbers_count_once() {
        let registry = registry_or_new().expect("a table");
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..300 {
            let number = registry.insert(node()).expect("room");
            assert!(number > 0 && seen.insert(number));
            assert_eq!(open(number), Ok(()));
            assert_eq!(with(number, &[Kind::File], |_| Ok(())).map_err(|failed| failed.errno), Err(libc::EBADF));
            for wrong in [0, -number, number ^ 1 << 25, number ^ 1 << 57, number | 1 << 62, i64::MAX, i64::MIN] {
                assert_eq!(open(wrong), Err(libc::EBADF), "{wrong:#x}");
                assert!(registry.remove(wrong).is_err());
            }
            assert!(registry.remove(number).is_ok() && registry.remove(number).is_err());
            assert_eq!(open(number), Err(libc::EBADF));
        }
    }

    /// Goal: an object in use by a thread exists until the thread has finished, even if another thread removes it.
    /// Method: threads use numbers that one thread replaces, and each use reads the object twice.
    #[test]
    fn objects_stay_while_they_are_used() {
        let registry = registry_or_new().expect("a table");
        let current = AtomicU64::new(registry.insert(node()).expect("room") as u64);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let users: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut used = 0u64;
                        while !ends.load(SeqCst) {
                            let looked = with(current.load(SeqCst) as i64, &[Kind::Fs], |object| match object {
                                Object::Fs(Fs::Node(node)) => {
                                    let before = Arc::strong_count(node);
                                    std::hint::spin_loop();
                                    Ok(before == 1 && node.name == "/proc")
                                }
                                _ => Ok(false),
                            });
                            if let Ok(is_whole) = looked {
                                assert!(is_whole);
                                used += 1;
                            }
                        }
                        used
                    })
                })
                .collect();
            for _ in 0..2000 {
                let next = registry.insert(node()).expect("room") as u64;
                assert!(registry.remove(current.swap(next, SeqCst) as i64).is_ok());
            }
            ends.store(true, SeqCst);
            assert!(users.into_iter().map(|user| user.join().expect("a thread")).sum::<u64>() > 0);
        });
    }
}
