//! The interface of the crates above to the outside: disk, network, clock, randomness, memory that outlives the
//! process.
//!
//! Owns: the traits, and the checks of offsets and lengths that all disks make. Does not own: the implementations.

use crate::buf::Buf;
use amphi_types::limits::BLOCK;
use amphi_types::{Cred, Timespec};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Monotonic time in nanoseconds since an arbitrary origin; virtual in the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Time passed since `earlier`, zero if it is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

/// The load of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The percentage of the thread's last turns (some 64) in which it found work waiting.
    pub busy_percent: u8,
    /// Cores that this process may use.
    pub cores: u16,
}

/// How to open a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMode {
    /// Must exist; locked exclusively against other processes.
    Open,
    /// Must not exist; made with this size in bytes (sparse); locked exclusively.
    Create(u64),
    /// Must exist; read only, locked shared (fsck).
    ReadOnly,
}

/// The result of an operation that owns its buffer while it runs: the buffer is always returned.
pub type IoBuf<T> = (io::Result<T>, Buf);

/// The outside world as one thread sees it. A cheap clone; never Send.
pub trait Env: Clone + 'static {
    /// A zone's storage.
    type Disk: Disk;
    /// A byte-stream connection.
    type Conn: Conn;
    /// A listening socket.
    type Listener: Listener<Conn = Self::Conn>;
    /// Memory that outlives the process.
    type Kept: Kept;

    /// Monotonic time.
    fn now(&self) -> Time;
    /// Wall-clock time for time stamps of files.
    fn wall(&self) -> Timespec;
    /// 64 random bits that nobody can predict: in production they come from the system's generator.
    fn rand(&self) -> u64;
    /// Identifies one run of the machine, and is never 0. It is the same for every process from the start of the kernel
    /// until the machine loses power or is restarted. If it cannot be determined, every process gets a different one.
    fn boot_id(&self) -> u64;
    /// Completes after `d`.
    fn sleep(&self, d: Duration) -> impl Future<Output = ()> + 'static;
    /// Runs `task` on this thread. Dropped at shutdown or simulated crash, at any await point.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);
    /// Sets how long this thread polls after its last progress before it sleeps. It has no effect without real threads.
    fn set_spin(&self, _budget: Duration) {}
    /// The load of this thread. Never, where there are no real threads.
    fn load(&self) -> Load {
        Load::default()
    }
    /// Delays the start of each disk write by this time, to simulate a slow disk in tests and benchmarks. It has no
    /// effect in a simulation, where disks have a speed of their own.
    fn set_write_delay(&self, _delay: Duration) {}
    /// Opens a disk (a file or block device opened with O_DIRECT).
    ///
    /// Errors: `NotFound`, `AlreadyExists`, `WouldBlock` if another process holds its lock.
    fn disk(&self, path: &str, mode: DiskMode) -> impl Future<Output = io::Result<Rc<Self::Disk>>>;
    /// Names (not paths) of the files in directory `dir`, sorted. A missing directory is `NotFound`.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes a directory and its parents; no error if it exists.
    fn make_dir(&self, dir: &str) -> io::Result<()>;
    /// Bytes free for unprivileged use where `dir` lies.
    fn free_bytes(&self, dir: &str) -> io::Result<u64>;
    /// Makes the memory `name` (letters, digits, `-`), which is empty and replaces an older one. Bytes written to it
    /// survive a kill of the process, as long as the machine runs and nobody removes the memory. They do not survive a
    /// loss of power. The memory belongs to the file `of`: when that file has been deleted, a later call may remove the
    /// memory as well.
    ///
    /// Errors: `Unsupported` where there is no such memory.
    fn keep(&self, name: &str, of: &str) -> io::Result<Self::Kept>;
    /// The content of the memory `name`, up to the last byte written, at most `most` bytes. Errors: `NotFound` if there
    /// is no such memory that was made by this user, root, or the owner of the file `of`, and that no other user may
    /// write to.
    fn kept(&self, name: &str, of: &str, most: usize) -> io::Result<Vec<u8>>;
    /// Removes the memory `name`; it is no error if it does not exist. A process that has it open can continue to
    /// write, without effect.
    fn forget(&self, name: &str) -> io::Result<()>;
    /// Listens on `addr`: `unix:PATH` or `tcp:HOST:PORT`. Removes a stale Unix socket that nobody serves. Only this
    /// user can connect to a Unix socket (mode 0600) until `Listener::set_mode` opens it to others. Errors name the
    /// address.
    fn listen(&self, addr: &str) -> impl Future<Output = io::Result<Self::Listener>>;
    /// Connects to `addr` (same forms). Errors name the address.
    fn dial(&self, addr: &str) -> impl Future<Output = io::Result<Self::Conn>>;
    /// Takes over a connection that another thread gave up (`Conn::detach`). This thread uses the connection from now
    /// on, and gets the bytes that the other one had received and not delivered.
    fn adopt(&self, moved: <Self::Conn as Conn>::Moved) -> Self::Conn;
}

/// Block storage with O_DIRECT semantics. Offsets and lengths are multiples of `BLOCK` (4096); a violation is a
/// programmer's error and panics. Operations may run in parallel and complete in any order.
pub trait Disk: 'static {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// A number that identifies the device below the file. Disks with the same number share its speed.
    fn device(&self) -> u64;
    /// Fills the whole of `buf` from `at`. Reading beyond the end gives `UnexpectedEof`.
    fn read(&self, at: u64, buf: Buf) -> impl Future<Output = IoBuf<()>>;
    /// Writes the whole of `buf` at `at`. On return the bytes survive a crash of the process; they survive a crash of
    /// the machine only after `sync`. A crash before the return may leave any subset of its 4 KiB blocks, each whole or
    /// torn at 512 bytes.
    fn write(&self, at: u64, buf: Buf) -> impl Future<Output = IoBuf<()>>;
    /// Makes every write that returned before the call stable (survives power loss).
    fn sync(&self) -> impl Future<Output = io::Result<()>>;
    /// Ensures that writes to the range find storage in the local file system below, if there is one.
    ///
    /// Errors: `StorageFull` if that file system has no room; `Unsupported` if it cannot tell.
    fn reserve(&self, at: u64, len: u64) -> impl Future<Output = io::Result<()>>;
    /// Ranges of bytes, ascending, that have storage of the file system below for certain; it may have more.
    fn backed(&self) -> io::Result<Vec<(u64, u64)>>;
    /// Gives the storage of a range back; it reads as zeros or old bytes afterwards. This may fail without harm.
    fn discard(&self, at: u64, len: u64) -> impl Future<Output = io::Result<()>>;
}

/// Memory of the machine that outlives the process.
pub trait Kept: 'static {
    /// Writes all of `bytes` at byte `at`; when it returns, they survive a kill of the process. A kill during the call
    /// leaves any part of the bytes. The function never waits for a disk.
    ///
    /// Errors: `StorageFull` and others of memory. The content is then as after a kill.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills the whole of `into` with what was written from byte `at` on. Never waits for a disk.
    ///
    /// Errors: `UnexpectedEof` if nothing has been written as far as the end of the range.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// Returns whether the memory can be found by its name. Costs less than 1 us.
    fn is_there(&self) -> bool;
    /// The bytes of this memory that are still available, shared with all other kept memory and other programs.
    fn room(&self) -> io::Result<u64>;
}

/// Accepts connections.
pub trait Listener: 'static {
    /// The connections that it accepts.
    type Conn: Conn;
    /// The next connection. Dropping the future loses no connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Conn>>;
    /// The bound address in the form `dial` takes (a port 0 is resolved).
    fn local_addr(&self) -> String;
    /// The users who may connect to a Unix socket, as permission bits. It has no effect on other addresses.
    fn set_mode(&self, mode: u32) -> io::Result<()>;
}

/// A connected byte stream.
pub trait Conn: 'static {
    /// Sending half.
    type Tx: Tx;
    /// Receiving half.
    type Rx: Rx;
    /// A connection on its way from one thread to another. Dropping it closes the connection.
    type Moved: Send + 'static;
    /// A description of the peer, for log lines.
    fn peer(&self) -> String;
    /// The credentials of the peer process when it connected, from the kernel. Returns `None` for connections over a
    /// network, and for connections that were made by this side.
    fn peer_cred(&self) -> Option<Cred>;
    /// Returns whether bytes go over a network, which may damage them in ways that its own checksums do not detect.
    fn is_network(&self) -> bool;
    /// Two halves that can be used by different tasks of this thread. Dropping both closes.
    fn split(self) -> (Self::Tx, Self::Rx);
    /// Puts the halves together again and takes the connection off this thread, for `Env::adopt`. No operation of
    /// either half may be under way. No byte is lost: bytes that were received ahead travel with the connection.
    ///
    /// Errors: the connection cannot be moved, and is closed; also if an operation of it was dropped before its end.
    fn detach(tx: Self::Tx, rx: Self::Rx) -> io::Result<Self::Moved>;
}

/// Memory of the process at the other end of a connection, which that process shares with this one
/// (docs/design/shared_memory.md). The bytes may change at any time. A read returns a copy, and a second copy need not
/// be equal.
pub trait PeerMemory: Clone + 'static {
    /// Returns whether the memory has `len` bytes from byte `at` on.
    fn has(&self, at: u64, len: usize) -> bool;
    /// Copies bytes out of the memory. Panics beyond the end.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Copies bytes into the memory. Panics beyond the end.
    fn write(&self, at: u64, from: &[u8]);
}

/// Facts about the two ends of a connection within a machine, which each end knows without waiting.
pub trait Ends: Clone + 'static {
    /// Informs the other end that this one has given the connection up. Before this returns, `is_abandoned` is true at
    /// the other end, and a receive there ends.
    fn abandon(&self);
    /// Returns whether the other end has given the connection up, or has closed it.
    fn is_abandoned(&self) -> bool;
    /// Returns whether no task or process at the other end can use this connection any more.
    fn is_closed(&self) -> bool;
}

/// Sending half of a connection.
pub trait Tx: 'static {
    /// The facts about the other end.
    type Ends: Ends;

    /// Sends all of `head`, and with it the memory in which this process has its large buffers (`buf::pass_memory`):
    /// the other end may read and write all of it from then on (`Rx::memory`). Returns false if only the bytes were
    /// sent: this side has no such memory, or the connection cannot carry it.
    fn send_with_memory(&mut self, head: Buf) -> impl Future<Output = (io::Result<bool>, Buf)>;

    /// The state of the other end. Holding it keeps this end open.
    fn ends(&self) -> Self::Ends;

    /// Sends all of `head`, then all of `payload`, in one vectored write where possible. The buffers are returned so
    /// that the caller can use them again. If the future is dropped, half a frame may have been sent, and the
    /// connection has to be closed.
    fn send(&mut self, head: Buf, payload: Option<Buf>) -> impl Future<Output = (io::Result<()>, Buf, Option<Buf>)>;

    /// A function that breaks the connection from this side: a send under way whose peer reads nothing then fails soon,
    /// and returns its buffers.
    fn breaker(&self) -> impl Fn() + 'static;
}

/// Receiving half of a connection.
pub trait Rx: 'static {
    /// Memory of the other end's process.
    type Memory: PeerMemory;

    /// The memory that came with the bytes received so far, if it can be used without danger. Memory that is not
    /// sealed, too large or of another kind does not count. No memory is expected after this call.
    fn memory(&mut self) -> Option<Self::Memory>;

    /// Fills the whole of `buf`. `UnexpectedEof` when the peer closed. Small reads are served from a staging buffer;
    /// large ones go straight into `buf`. If the future is dropped, bytes are lost, and the connection has to be
    /// closed.
    fn recv_exact(&mut self, buf: Buf) -> impl Future<Output = IoBuf<()>>;
}

/// Runs `f` for at most `d`. A future that times out is dropped, together with the buffers that it passed to the
/// environment.
pub async fn timeout<E: Env, T>(env: &E, d: Duration, f: impl Future<Output = T>) -> Option<T> {
    use futures_util::future::{Either, select};
    match select(std::pin::pin!(f), std::pin::pin!(env.sleep(d))).await {
        Either::Left((v, _)) => Some(v),
        Either::Right(_) => None,
    }
}

/// The checks of every disk before a read: alignment (a panic) and the end (`UnexpectedEof`).
pub(crate) fn check_read(size: u64, at: u64, buf: &Buf) -> io::Result<()> {
    check_aligned(at, buf);
    if at.checked_add(buf.len() as u64).is_none_or(|end| end > size) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("read of {} at {at}, size {size}", buf.len()),
        ));
    }
    Ok(())
}

/// Works as `check_read`, for writes: beyond the end is `InvalidInput`.
pub(crate) fn check_write(size: u64, at: u64, buf: &Buf) -> io::Result<()> {
    check_aligned(at, buf);
    check_discard(size, at, buf.len() as u64)
}

pub(crate) fn check_discard(size: u64, at: u64, len: u64) -> io::Result<()> {
    assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK), "unaligned range {at}+{len}");
    if at.checked_add(len).is_none_or(|end| end > size) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("change of {len} at {at}, size {size}")));
    }
    Ok(())
}

pub(crate) fn check_aligned(at: u64, buf: &Buf) {
    let (start, len) = (buf.window().start as u64, buf.len() as u64);
    assert!(
        at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && start.is_multiple_of(BLOCK),
        "unaligned disk access: offset {at}, length {len}, memory {start}"
    );
}
