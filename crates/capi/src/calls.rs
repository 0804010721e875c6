//! The functions that C sees.
//!
//! Owns: checking pointers and sizes, finding the object of a number, one function for each call; here those that open
//! and close. Does not own: the operations of the calls (`cluster`, `node`, `queue`).

mod data;
mod names;
mod queues;

pub use data::*;
pub use names::*;
pub use queues::*;

use crate::abi::*;
use crate::cluster::{Cluster, How};
use crate::failure::{self, Done, Fail, Subject, border, fail};
use crate::lookup::{At, at, fs, path_of};
use crate::node::Node;
use crate::object::{Dir, File, Fs, Object};
use crate::process::note_cluster;
use crate::registry::{registry, registry_or_new};
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::{Arc, Once, mpsc};
use std::time::Duration;

/// How long the library's thread polls by default.
const SPIN: Duration = Duration::from_micros(100);
/// How long the end of a program waits for what is written back.
const LAST: Duration = Duration::from_secs(10);

/// A string of the program.
///
/// Errors: `EINVAL` for a null pointer.
unsafe fn text<'a>(pointer: *const c_char) -> Done<&'a CStr> {
    if pointer.is_null() {
        return Err(Fail::new(libc::EINVAL, "a null pointer stands where a string should"));
    }
    // SAFETY: the program vouches for a string that ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A path of the program, for texts.
unsafe fn shown(pointer: *const c_char) -> String {
    // SAFETY: as `text`.
    unsafe { text(pointer) }.map_or_else(|_| "(null)".into(), |path| path.to_string_lossy().into_owned())
}

unsafe fn words(pointer: *const c_char) -> Done<Vec<String>> {
    if pointer.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: as `text`.
    let text = unsafe { text(pointer) }?.to_str().map_err(|_| Fail::new(libc::EINVAL, "it has to be UTF-8"))?;
    Ok(text.split_whitespace().map(String::from).collect())
}

unsafe fn path(pointer: *const c_char) -> Done<Option<PathBuf>> {
    use std::os::unix::ffi::OsStrExt;
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as `text`.
    let bytes = unsafe { text(pointer) }?.to_bytes();
    Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes))))
}

/// Smallest struct that begins with its size.
const STRUCT_MIN: usize = 8;

/// A struct of the program that begins with its size: what it does not have counts as zero.
///
/// Errors: `EINVAL` for a null pointer or a size that is none, `E2BIG` if a newer program sets what is not known here.
unsafe fn given<T>(pointer: *const T) -> Done<T> {
    if pointer.is_null() {
        return Err(Fail::new(libc::EINVAL, "a null pointer stands where a struct should"));
    }
    // SAFETY: the program vouches for a struct that begins with its size, and for so many bytes.
    unsafe {
        let size = std::ptr::read_unaligned(pointer.cast::<u32>()) as usize;
        if !(STRUCT_MIN..=4096).contains(&size) {
            return Err(Fail::new(libc::EINVAL, "the struct has to begin with its size"));
        }
        let known = size.min(size_of::<T>());
        let more = std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known);
        if more.iter().any(|byte| *byte != 0) {
            return Err(Fail::new(libc::E2BIG, "the program is newer than the library, and asks for more than it can"));
        }
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast(), known);
        Ok(value.assume_init())
    }
}

/// Fills a struct of the program as far as it goes; its size stays.
///
/// Errors: `EINVAL` for a null pointer or a size that is none.
unsafe fn fill<T: Copy>(pointer: *mut T, value: T) -> Done<i64> {
    if pointer.is_null() {
        return Err(Fail::new(libc::EINVAL, "a null pointer stands where a struct should"));
    }
    // SAFETY: the program vouches for a struct that begins with its size, and for so many bytes.
    unsafe {
        let size = std::ptr::read_unaligned(pointer.cast::<u32>());
        if (size as usize) < STRUCT_MIN {
            return Err(Fail::new(libc::EINVAL, "the struct has to begin with its size"));
        }
        let known = (size as usize).min(size_of::<T>());
        let from = std::ptr::from_ref(&value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.add(4), pointer.cast::<u8>().add(4), known - 4);
    }
    Ok(0)
}

/// Fails if `flags` has bits other than `known`.
fn only(flags: u32, known: u32) -> Done<()> {
    if flags & !known == 0 { Ok(()) } else { Err(Fail::new(libc::EINVAL, format!("there is no flag {flags:#x}"))) }
}

fn open_object(make: impl FnOnce() -> Done<Object>) -> Done<i64> {
    let registry = registry_or_new()?;
    registry.insert(make()?)
}

/// The version of the library: see `AMPHI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_version() -> u32 {
    AMPHI_VERSION
}

/// What the latest failure of this thread was: call, path, meaning and what to do about it. Stays until the next
/// failure of the thread. Empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_error() -> *const c_char {
    failure::text()
}

/// A client of a cluster in this process, with one thread of its own and without a mount. Returns its handle when it is
/// connected.
///
/// Errors: `EINVAL` for options that make no sense, `ENOTCONN` if no server can be reached or it refuses, or in a child
/// of a process that has had a client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_open_cluster(options: *const AmphiOptions) -> AmphiHandle {
    border("amphi_open_cluster", Subject::None, || {
        // SAFETY: the program vouches for its struct and strings.
        let how = unsafe {
            let options = given(options)?;
            let servers = words(options.servers)?;
            if servers.is_empty() || options.reserved != 0 {
                return Err(Fail::new(libc::EINVAL, "name a server, such as HOST:PORT or unix:PATH"));
            }
            How {
                servers,
                key: path(options.key_file)?,
                identity: path(options.identity_file)?,
                spin: match options.spin_us {
                    0 => SPIN,
                    us => Duration::from_micros(u64::from(us).min(1_000_000)),
                },
                cache_bytes: Some(options.cache_bytes).filter(|bytes| *bytes != 0),
                tunables: words(options.tunables)?,
                umask: u16::try_from(options.umask).ok().map(|mask| mask & 0o777),
            }
        };
        let registry = registry_or_new()?;
        note_cluster()?;
        let number = registry.insert(Object::Fs(Fs::Cluster(Arc::new(Cluster::open(how)?))))?;
        close_at_exit();
        Ok(number)
    })
}

/// Writes back what is left when a program ends without closing its clusters.
fn close_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that stays as long as the library.
        unsafe { libc::atexit(at_exit) };
    });
}

#[expect(clippy::disallowed_methods, reason = "a thread that may be left behind")]
extern "C" fn at_exit() {
    border("exit", Subject::None, || {
        let clusters: Vec<Arc<Cluster>> = registry()?
            .numbers()
            .into_iter()
            .filter_map(|number| match fs(number) {
                Ok(Fs::Cluster(cluster)) => Some(cluster),
                _ => None,
            })
            .collect();
        if !clusters.is_empty() {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                let _ = tell.send(clusters.iter().all(|cluster| cluster.close().is_ok()));
            });
            let _ = told.recv_timeout(LAST);
        }
        Ok(0)
    });
}

/// The file system that is mounted on this machine at `directory`, or on one above it; paths begin at `directory`.
/// Needs no thread and no server.
///
/// Errors: `ENODEV` if it is not on a mount of AmphiFS, those of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_attach(directory: *const c_char) -> AmphiHandle {
    // SAFETY: the program vouches for its string.
    border("amphi_attach", Subject::Path(&|| unsafe { shown(directory) }), || {
        // SAFETY: as above.
        open_object(|| Ok(Object::Fs(Fs::Node(Arc::new(Node::attach(unsafe { text(directory) }?)?)))))
    })
}

/// Closes any handle. Of a file: returns failures of write-back that it has not told yet, as close(2) does. Of a queue:
/// waits for all its requests. Of a cluster: writes everything back, leaves the cluster, and ends its thread; what is
/// open of it fails with `ENOTCONN` from then on. In any case the handle is closed on return.
///
/// Errors: `EBADF` for a number that is not open, `EIO`, `ENOSPC` and `EDQUOT` for bytes that were lost.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_close(handle: AmphiHandle) -> c_int {
    let path = path_of_open(handle);
    let show = || path.clone().unwrap_or_else(|| format!("handle {handle:#x}"));
    border("amphi_close", Subject::Path(&show), || {
        match registry()?.remove(handle)? {
            Object::Fs(Fs::Cluster(cluster)) => cluster.close()?,
            Object::Fs(Fs::Node(_)) | Object::Dir(_) => {}
            Object::File(File::Cluster(file)) => file.close()?,
            Object::File(File::Node(file)) => file.close()?,
            Object::Queue(queue) => queue.close()?,
        }
        Ok(0)
    }) as c_int
}

/// The path for the text of a close that fails: known only before it.
fn path_of_open(handle: AmphiHandle) -> Option<String> {
    registry().ok().map(|_| path_of(handle))
}

/// Writes back everything that is dirty in a cluster, and makes it stable, as syncfs(2).
#[unsafe(no_mangle)]
pub extern "C" fn amphi_sync(fs_handle: AmphiHandle) -> c_int {
    border("amphi_sync", Subject::Path(&|| path_of(fs_handle)), || {
        match fs(fs_handle)? {
            Fs::Cluster(cluster) => cluster.sync()?,
            Fs::Node(node) => node.sync()?,
        }
        Ok(0)
    }) as c_int
}

/// Sets the permission bits that new files and directories of a cluster do not get, and returns those of before.
///
/// Errors: `EOPNOTSUPP` over a mount, where umask(2) counts; `EINVAL`.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_umask(fs_handle: AmphiHandle, mask: u32) -> c_int {
    border("amphi_umask", Subject::Path(&|| path_of(fs_handle)), || match fs(fs_handle)? {
        _ if mask > 0o777 => fail(libc::EINVAL),
        Fs::Cluster(cluster) => Ok(cluster.set_umask(mask as u16).into()),
        Fs::Node(_) => fail(libc::EOPNOTSUPP),
    }) as c_int
}

/// Flags of open(2) that a file can be opened with.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_DIRECT
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_DIRECTORY
    | libc::O_TMPFILE
    | libc::O_CLOEXEC
    | libc::O_LARGEFILE
    | libc::O_NOCTTY
    | libc::O_NONBLOCK;

/// Opens a regular file. `at`: a file system or an open directory; `flags` and `mode` are those of open(2).
///
/// Errors: those of open(2); `EISDIR` for a directory (`amphi_opendir`), `EOPNOTSUPP` for devices, pipes and sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_open(
    at_handle: AmphiHandle,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> AmphiHandle {
    // SAFETY: the program vouches for its string.
    border("amphi_open", Subject::Path(&|| unsafe { shown(path) }), || {
        // SAFETY: as above.
        let (at, path) = (at(at_handle)?, unsafe { text(path) }?);
        if flags & !OPEN_FLAGS != 0 || flags & libc::O_ACCMODE == libc::O_ACCMODE {
            return Err(Fail::new(libc::EINVAL, format!("no file is opened with the flags {flags:#o}")));
        }
        open_object(|| {
            Ok(Object::File(match at.way() {
                Way::Cluster(cluster, ino) => {
                    File::Cluster(Arc::new(cluster.open_file(ino, path.to_bytes(), flags, mode)?))
                }
                Way::Node(base) => File::Node(Arc::new(base.open_file(path, flags, mode)?)),
            }))
        })
    })
}

/// A file of a mount that is open already, by a descriptor of its own: `fd` may be closed.
///
/// Errors: `EXDEV` if it is on another file system, `EOPNOTSUPP` in a cluster.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_from_fd(fs_handle: AmphiHandle, fd: c_int) -> AmphiHandle {
    border("amphi_from_fd", Subject::Path(&|| format!("descriptor {fd}")), || {
        let Fs::Node(node) = fs(fs_handle)? else { return fail(libc::EOPNOTSUPP) };
        open_object(|| Ok(Object::File(File::Node(Arc::new(node.adopt(fd)?)))))
    })
}

/// The descriptor of an open file of a mount, for calls that are not here. It belongs to the library: do not close it.
///
/// Errors: `EOPNOTSUPP` in a cluster.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_fd(file: AmphiHandle) -> c_int {
    border("amphi_fd", Subject::Path(&|| path_of(file)), || match crate::lookup::file(file)? {
        File::Node(file) => Ok(file.raw().into()),
        File::Cluster(_) => fail(libc::EOPNOTSUPP),
    }) as c_int
}

/// Opens a directory, to list it and as the beginning of paths. `flags`: `AMPHI_DIR_ATTRIBUTES` or 0.
///
/// Errors: those of open(2) with `O_DIRECTORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_opendir(at_handle: AmphiHandle, path: *const c_char, flags: u32) -> AmphiHandle {
    // SAFETY: the program vouches for its string.
    border("amphi_opendir", Subject::Path(&|| unsafe { shown(path) }), || {
        // SAFETY: as above.
        let (at, path) = (at(at_handle)?, unsafe { text(path) }?);
        only(flags, AMPHI_DIR_ATTRIBUTES)?;
        let attributes = flags & AMPHI_DIR_ATTRIBUTES != 0;
        open_object(|| {
            Ok(Object::Dir(match at.way() {
                Way::Cluster(cluster, ino) => {
                    Dir::Cluster(Arc::new(cluster.open_dir(ino, path.to_bytes(), attributes)?))
                }
                Way::Node(base) => Dir::Node(Arc::new(base.open_dir(path, attributes)?)),
            }))
        })
    })
}

/// The start of a path, by the way to it.
enum Way<'a> {
    Cluster(&'a Arc<Cluster>, amphi_types::Ino),
    Node(crate::node::Base),
}

impl At {
    fn way(&self) -> Way<'_> {
        match self {
            At::Fs(Fs::Cluster(cluster)) => Way::Cluster(cluster, cluster.root()),
            At::Fs(Fs::Node(node)) => Way::Node(node.base()),
            At::Dir(Dir::Cluster(dir)) => Way::Cluster(&dir.fs, dir.ino),
            At::Dir(Dir::Node(dir)) => Way::Node(dir.base()),
        }
    }
}
