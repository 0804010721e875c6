//! Failures as C sees them: a negative errno, and a text of the thread with the event, the path and advice.
//!
//! Owns: the border that no panic crosses. Does not own: what failed.

use amphi_types::Errno;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The failure; `why` goes before the meaning of the errno.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) errno: i32,
    pub(crate) why: Option<String>,
}

/// The result of a call.
pub(crate) type Done<T = i64> = Result<T, Fail>;

impl Fail {
    pub(crate) fn new(errno: i32, why: impl Into<String>) -> Fail {
        Fail { errno, why: Some(why.into()) }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail { errno: errno.raw(), why: None }
    }
}

impl From<rustix::io::Errno> for Fail {
    fn from(errno: rustix::io::Errno) -> Fail {
        Fail { errno: errno.raw_os_error(), why: None }
    }
}

/// An errno of the system's functions, as a failure.
pub(crate) fn fail<T>(errno: i32) -> Done<T> {
    Err(Fail { errno, why: None })
}

/// Longest text, bytes; what is longer is cut.
const TEXT_MAX: usize = 1024;

thread_local! {
    // The text stays at one address for the life of the thread, so that a pointer to an old text shows the new one.
    static TEXT: RefCell<[u8; TEXT_MAX]> = const { RefCell::new([0; TEXT_MAX]) };
}

/// The meaning of an errno, for people.
fn meaning(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::Io if errno != libc::EIO => std::io::Error::from_raw_os_error(errno).to_string(),
        known => known.to_string(),
    }
}

/// Advice about an error, for its text.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::ENOENT => "check the path, which begins at the handle that it is given with",
        libc::EACCES | libc::EPERM => "ask the owner of the file for rights, or run as a user who has them",
        libc::ENOSPC => "remove files or add servers, then write again: what was not written is lost",
        libc::EDQUOT => "remove files of the same owner or tree, or have its quota raised (amphi quota)",
        libc::EBADF => "pass a handle that is open, of the right kind, and opened for this use",
        libc::EINVAL => "check the arguments against amphi.h",
        libc::ENOTCONN => "open the file system again",
        libc::EIO => "look at the log of the servers; what was not synced may be lost",
        libc::ESTALE => "open the file again: it was removed meanwhile",
        libc::ENAMETOOLONG => "names have 255 bytes at most, paths 4,095",
        libc::ELOOP => "look for symbolic links that lead to themselves",
        libc::EROFS => "use a key that may write",
        libc::EAGAIN => "try again later",
        libc::EBUSY => "wait until whoever uses it is done",
        libc::EOPNOTSUPP => "see docs/CAPI.md for what this way to the files can do",
        libc::EMFILE | libc::ENFILE => "close handles that are not used any more",
        libc::EEXIST => "choose another name, or remove what is there",
        _ => "",
    }
}

/// The source of the path in the text of a failure.
pub(crate) enum Subject<'a> {
    None,
    Path(&'a dyn Fn() -> String),
}

#[cold]
#[inline(never)]
fn note(call: &str, subject: &Subject<'_>, failed: Fail) -> i64 {
    let Fail { errno, why } = failed;
    let path = match subject {
        Subject::None => String::new(),
        Subject::Path(show) => format!(" {}", show()),
    };
    let why = why.map_or_else(String::new, |why| format!("{why}: "));
    let advice = match advice(errno) {
        "" => String::new(),
        advice => format!("; {advice}"),
    };
    set_text(&format!("{call}{path}: {why}{}{advice}", meaning(errno)));
    -i64::from(errno)
}

fn set_text(text: &str) {
    let _ = TEXT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.fill(0);
        let bytes = text.bytes().filter(|byte| *byte != 0);
        kept.iter_mut().take(TEXT_MAX - 1).zip(bytes).for_each(|(place, byte)| *place = byte);
    });
}

/// The text of the thread's latest failure.
pub(crate) fn text() -> *const c_char {
    TEXT.try_with(|text| text.borrow().as_ptr().cast()).unwrap_or(c"".as_ptr())
}

fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Runs a call, and returns its result, or its failure as a negative errno with a text. A panic is `EIO`.
#[inline]
pub(crate) fn border(call: &str, subject: Subject<'_>, run: impl FnOnce() -> Done<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => done,
        Ok(Err(failed)) => note(call, &subject, failed),
        Err(payload) => {
            let why = format!("the library has met a fault of its own ({}); please report it", said(&*payload));
            // A subject may be what has failed.
            note(call, &Subject::None, Fail::new(libc::EIO, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn shown() -> String {
        // SAFETY: the text of this thread, which nothing changes meanwhile.
        unsafe { CStr::from_ptr(text()) }.to_string_lossy().into_owned()
    }

    /// Goal: a failure is a negative errno and a text with call, path, meaning and advice; a panic is EIO. Method: one
    /// of each, and a result.
    #[test]
    fn failures_have_texts() {
        assert_eq!(border("call", Subject::None, || Ok(7)), 7);
        let path = || "a/b".to_string();
        assert_eq!(border("amphi_open", Subject::Path(&path), || Err(Errno::NoEnt.into())), -i64::from(libc::ENOENT));
        assert!(
            shown().starts_with("amphi_open a/b: no such file or directory (ENOENT); check the path"),
            "{}",
            shown()
        );
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(border("amphi_open", Subject::None, || panic!("planted")), -i64::from(libc::EIO));
        std::panic::set_hook(hook);
        assert!(shown().contains("fault of its own (planted)"), "{}", shown());
    }
}
