//! Calls on queues, and memory for direct I/O.
//!
//! Owns: what is checked of arrays of requests and completions. Does not own: the queues (`queue`).

use super::{given, open_object};
use crate::abi::*;
use crate::failure::{Done, Fail, Subject, border, fail};
use crate::lookup::{file, fs, path_of, queue};
use crate::memory;
use crate::object::Object;
use crate::queue::Queue;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A queue of up to `depth` requests (at most 4,096) to files of a file system. One thread at a time uses it; a program
/// has as many as it likes.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_queue_open(fs_handle: AmphiHandle, depth: u32) -> AmphiHandle {
    border("amphi_queue_open", Subject::Path(&|| path_of(fs_handle)), || {
        let fs = fs(fs_handle)?;
        open_object(|| Ok(Object::Queue(Arc::new(Queue::open(&fs, depth)?))))
    })
}

/// Begins requests. Returns how many were taken, from the first on: as many as the queue has room for. What is wrong
/// with a request its completion says. The memory of requests belongs to the library until their completions were
/// taken.
///
/// Errors: `EAGAIN` if there was no room for any, `EBUSY` if another thread uses the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_submit(queue_handle: AmphiHandle, requests: *const AmphiRequest, count: usize) -> i64 {
    border("amphi_submit", Subject::Path(&|| format!("queue {queue_handle:#x}")), || {
        let queue = queue(queue_handle)?;
        if count == 0 {
            return Ok(0);
        }
        if requests.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the program vouches for requests that begin with their size.
        let size = unsafe { std::ptr::read_unaligned(requests.cast::<u32>()) } as usize;
        if size < size_of::<AmphiRequest>() || size > 4096 || !size.is_multiple_of(align_of::<AmphiRequest>()) {
            return Err(Fail::new(libc::EINVAL, "requests have to begin with their size"));
        }
        queue.submit(count, |at| {
            // SAFETY: the program vouches for so many requests of this size.
            let request = match unsafe { given(requests.cast::<u8>().add(at * size).cast::<AmphiRequest>()) } {
                Ok(request) if request.size as usize == size => request,
                // The request becomes one with an operation that does not exist, so its completion reports an error.
                Ok(request) => AmphiRequest { op: 0, ..request },
                Err(_) => {
                    // SAFETY: as above.
                    let tag = unsafe { (*requests.cast::<u8>().add(at * size).cast::<AmphiRequest>()).tag };
                    let buffer = std::ptr::null_mut();
                    AmphiRequest { size: 0, op: 0, tag, file: 0, buffer, len: 0, offset: 0, flags: 1, reserved: 0 }
                }
            };
            (request, file(request.file))
        })
    })
}

unsafe fn completions<'a>(into: *mut AmphiCompletion, max: usize) -> Done<&'a mut [AmphiCompletion]> {
    match max {
        0 => Ok(&mut []),
        _ if into.is_null() || max > isize::MAX as usize / size_of::<AmphiCompletion>() => fail(libc::EINVAL),
        // SAFETY: the program vouches for so many.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(into, max) }),
    }
}

/// Takes up to `max` completions, in the order in which the requests ended, without waiting. Returns how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_peek(queue_handle: AmphiHandle, into: *mut AmphiCompletion, max: usize) -> i64 {
    border("amphi_peek", Subject::Path(&|| format!("queue {queue_handle:#x}")), || {
        // SAFETY: the program vouches for its memory.
        queue(queue_handle)?.take(unsafe { completions(into, max) }?, 0, 0)
    })
}

/// As `amphi_peek`, but waits until there are `min` completions (no more than are under way), or until `timeout_ns`
/// nanoseconds have gone by; negative: without a limit. Returns how many were taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_wait(
    queue_handle: AmphiHandle,
    into: *mut AmphiCompletion,
    max: usize,
    min: usize,
    timeout_ns: i64,
) -> i64 {
    border("amphi_wait", Subject::Path(&|| format!("queue {queue_handle:#x}")), || {
        // SAFETY: the program vouches for its memory.
        queue(queue_handle)?.take(unsafe { completions(into, max) }?, min, timeout_ns)
    })
}

/// Zeroed memory of `size` bytes for direct I/O: it begins on a page, and on a huge page from 2 MiB on. A write of it
/// to a file that is open with `O_DIRECT` is not copied in this process. NULL if there is none; `amphi_error` says why.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_alloc(size: usize) -> *mut c_void {
    let memory = border("amphi_alloc", Subject::None, || Ok(memory::alloc(size)?.as_ptr() as i64));
    if memory > 0 { memory as *mut c_void } else { std::ptr::null_mut() }
}

/// Gives memory of `amphi_alloc` back; NULL is nothing. No request may be under way with it.
///
/// Errors: `EINVAL` if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_free(memory: *mut c_void) -> c_int {
    border("amphi_free", Subject::None, || {
        if !memory.is_null() {
            memory::free(memory)?;
        }
        Ok(0)
    }) as c_int
}
