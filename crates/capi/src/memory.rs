//! Memory for direct I/O.
//!
//! Owns: the memory that `amphi_alloc` gives, and lending it to the client for the time of a write. Does not own: when
//! a write may take it (`cluster`).
//!
//! The memory begins on a page, and on a huge page if it is at least as long as one, so that direct I/O transfers
//! longer pieces. After `amphi_open_cluster` with a server of this machine, the memory comes from the memory that is
//! shared with the server. So a write from it is copied only once, by the server. A child of `fork` does not have that
//! memory at all.

use crate::failure::{Done, fail};
use crate::process::{own, own_or_new};
use amphi_client::Buf;
use parking_lot::RwLock;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// Shorter writes are cheaper to copy than to lend, bytes.
const LEND_MIN: usize = 64 << 10;
/// The interval between two checks whether memory has come back.
const LOOK: Duration = Duration::from_micros(20);

/// The memory that is in use, by its first byte.
type Arenas = RwLock<BTreeMap<usize, Arena>>;

struct Arena {
    len: usize,
    /// It is `None` if the memory is from the client's buffers, which a server on this machine can read directly.
    mapped: Option<(usize, usize)>,
}

/// The memory of this process. A child of `fork` has copies of its parent's, which it cannot return.
fn arenas() -> Done<&'static Arenas> {
    match own()?.arenas.load(Acquire) {
        0 => fail(libc::EINVAL),
        // SAFETY: never given back.
        arenas => Ok(unsafe { &*(arenas as *const Arenas) }),
    }
}

fn arenas_or_new() -> Done<&'static Arenas> {
    let root = &own_or_new()?.arenas;
    if root.load(Acquire) == 0 {
        let made = Box::into_raw(Box::<Arenas>::default());
        if root.compare_exchange(0, made as usize, SeqCst, SeqCst).is_err() {
            // SAFETY: nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    arenas()
}

/// Gives memory of this many bytes, zeroed.
pub(crate) fn alloc(len: usize) -> Done<NonNull<c_void>> {
    if len == 0 || len > isize::MAX as usize - HUGE - PAGE {
        return fail(libc::EINVAL);
    }
    let arenas = arenas_or_new()?;
    let len = len.next_multiple_of(PAGE);
    if len >= LEND_MIN
        && let Some(memory) = amphi_env::buf::take_passable(len)
    {
        arenas.write().insert(memory.as_ptr() as usize, Arena { len, mapped: None });
        return Ok(memory.cast());
    }
    let align = if len >= HUGE { HUGE } else { PAGE };
    let room = len + align - PAGE;
    // SAFETY: a new mapping.
    let base =
        unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    let first = (base as usize).next_multiple_of(align);
    if align == HUGE {
        // SAFETY: advice about the mapping just made; without it the pages are small.
        let _ = unsafe { madvise(first as *mut c_void, len, Advice::LinuxHugepage) };
    }
    arenas.write().insert(first, Arena { len, mapped: Some((base as usize, room)) });
    NonNull::new(first as *mut c_void).map_or_else(|| fail(libc::ENOMEM), Ok)
}

/// Takes memory back.
///
/// Errors: `EINVAL` if it is not from `alloc`.
pub(crate) fn free(memory: *mut c_void) -> Done<()> {
    let Some(arena) = arenas()?.write().remove(&(memory as usize)) else { return fail(libc::EINVAL) };
    match (arena.mapped, NonNull::new(memory.cast::<u8>())) {
        // SAFETY: mapped by `alloc`, and the caller gives it back.
        (Some((base, room)), _) => unsafe { munmap(base as *mut c_void, room) }?,
        (None, Some(memory)) => drop(amphi_env::buf::give_back_passable(memory, arena.len)),
        (None, None) => {}
    }
    Ok(())
}

/// Memory that a write uses; the waiting caller gets it back.
pub(crate) struct Lent(Arc<()>);

impl Lent {
    /// Waits until nobody holds the memory any more: a request that was sent again may hold it even after its answer.
    pub(crate) fn wait(self) {
        while !self.is_back() {
            std::thread::park_timeout(LOOK);
        }
    }

    pub(crate) fn is_back(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The bytes as a buffer without a copy, if they lie in memory of `alloc` and are long enough to gain by that.
pub(crate) fn lend(bytes: &[u8]) -> Option<(Buf, Lent)> {
    if bytes.len() < LEND_MIN {
        return None;
    }
    let first = bytes.as_ptr() as usize;
    let arenas = arenas().ok()?.read();
    let (start, arena) = arenas.range(..=first).next_back()?;
    if first + bytes.len() > start + arena.len {
        return None;
    }
    let held = Arc::new(());
    // SAFETY: the bytes lie in memory of `alloc`, which was zeroed; the caller of a write leaves them alone until it
    // has returned or its completion was taken, and neither happens before `Lent::is_back`.
    let buf = unsafe { Buf::lent(NonNull::new(bytes.as_ptr().cast_mut())?, bytes.len(), held.clone()) };
    Some((buf, Lent(held)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: memory is aligned and zeroed, and can be passed to the client only as a whole. The loan ends with the last
    /// part of the buffer. A second free is refused. Method: each of these cases once.
    #[test]
    fn memory_is_lent_and_comes_back() {
        for len in [1, 4096, 4097, 2 << 20, (2 << 20) + 1] {
            let memory = alloc(len).expect("memory");
            let align = if len >= HUGE { HUGE } else { PAGE };
            assert_eq!(memory.as_ptr() as usize % align, 0);
            // SAFETY: memory of this test.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<u8>(), len) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes[len - 1] = 7;
            match lend(bytes) {
                None => assert!(len < LEND_MIN),
                Some((mut buf, lent)) => {
                    assert_eq!((buf.as_ptr(), buf.len()), (bytes.as_ptr(), len));
                    let front = buf.split_to(4096);
                    drop(buf);
                    assert!(!lent.is_back());
                    drop(front);
                    assert!(lent.is_back());
                }
            }
            free(memory.as_ptr()).expect("freed");
            assert_eq!(free(memory.as_ptr()).expect_err("freed twice").errno, libc::EINVAL);
        }
        let other = vec![0; 1 << 20];
        assert!(lend(&other).is_none());
        assert!(alloc(0).is_err() && alloc(usize::MAX).is_err());
    }
}
