//! The functions of the same names in the libraries loaded after this one: libc's, or those of another library.
//!
//! Owns: finding them, in the constructor and nowhere else. Before that, and for those that libc does not have, callers
//! make the system call by themselves or answer ENOSYS.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function that comes behind this library.
pub(crate) struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Real {
        Real { name, at: AtomicPtr::new(core::ptr::null_mut()) }
    }

    pub(crate) fn find(&self) {
        // SAFETY: a lookup of a symbol in the libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Relaxed);
    }

    /// The address of the function, if it was found.
    #[inline]
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let at = self.at.load(Relaxed);
        (!at.is_null()).then_some(at)
    }
}

/// Calls a real function, or uses its replacement if there is none.
macro_rules! real {
    ($place:expr, fn($($type:ty),*) -> $result:ty, ($($value:expr),*), else $other:expr) => {
        match $place.address() {
            // SAFETY: the function of this name in libc has this type.
            Some(at) => unsafe {
                let function: unsafe extern "C" fn($($type),*) -> $result = core::mem::transmute(at);
                function($($value),*)
            },
            None => $other,
        }
    };
}
pub(crate) use real;

/// The error of a function that this system does not have.
#[cold]
pub(crate) fn absent() -> i32 {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}
