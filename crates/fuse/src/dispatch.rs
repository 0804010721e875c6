//! Dispatch: calls the method of the file system that a request is for, and sends the reply.
//!
//! Owns: which operation becomes which call. Does not own: parsing (`request`), the form of replies (`reply`).
//!
//! Invariant: every request is answered exactly once. FORGET, BATCH_FORGET and INTERRUPT get no answer.

use crate::calls::{Entry, OpenReply, ReadHow};
use crate::data::{Payload, ReadSink};
use crate::directory::DirSink;
use crate::file_system::FileSystem;
use crate::interrupt::Interrupt;
use crate::kernel::structs as k;
use crate::later::{LateTable, Later};
use crate::node::Top;
use crate::reply::{ReplyTo, absent_out, attr_out, entry_out, lk_out, open_out, statfs_out, statx_out};
use crate::request::Caller;
use crate::request::{Deferral, Operation as Op, Request};
use amphi_client::Buf;
use amphi_types::{Errno, Ino, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

/// Largest byte count that a 32-bit reply can carry, in whole pages.
const COUNT_MAX_32: u64 = (u32::MAX as u64) & !4095;

/// The parts of a reader thread that the handling of one request uses.
pub(crate) struct Lent<'a> {
    /// The receive buffer that holds the request.
    pub receive: &'a mut Buf,
    /// The payload of a WRITE of one unit, if it is outside the receive buffer.
    pub unit: Option<&'a mut Buf>,
    /// Memory for listings.
    pub listing: &'a mut Vec<u8>,
    /// Set once a reply was sent, so that it is known if the handler panics afterwards.
    pub answered: &'a AtomicBool,
    /// The device from which the request was read, and the table of requests that are answered later.
    pub late: (&'a Arc<OwnedFd>, &'a Arc<LateTable>),
}

fn send<T: AsRef<[u8]>>(to: &ReplyTo<'_>, result: Result<T>) {
    match result {
        Ok(bytes) => to.ok(&[bytes.as_ref()]),
        Err(e) => to.error(e),
    }
}

fn send_struct<T: IntoBytes + zerocopy::Immutable>(to: &ReplyTo<'_>, result: Result<T>) {
    match result {
        Ok(value) => to.ok(&[value.as_bytes()]),
        Err(e) => to.error(e),
    }
}

fn send_empty(to: &ReplyTo<'_>, result: Result<()>) {
    send(to, result.map(|()| []));
}

fn send_entry(to: &ReplyTo<'_>, result: Result<Entry>) {
    send_struct(to, result.map(|e| entry_out(&e)));
}

fn send_created(to: &ReplyTo<'_>, result: Result<(Entry, OpenReply)>) {
    match result {
        Ok((entry, open)) => to.ok(&[entry_out(&entry).as_bytes(), open_out(&open).as_bytes()]),
        Err(e) => to.error(e),
    }
}

/// Answers with a value. If the kernel's buffer has size 0, the answer has only the size.
fn send_sized(to: &ReplyTo<'_>, room: usize, result: Result<Vec<u8>>) {
    match result {
        Ok(value) if room == 0 => to.ok(&[k::GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes()]),
        Ok(value) if value.len() > room => to.error(Errno::Range),
        Ok(value) => to.ok(&[&value]),
        Err(e) => to.error(e),
    }
}

/// Passes references that the kernel has dropped on to the file system.
pub(crate) fn forget(fs: &dyn FileSystem, request: &Request<'_>) {
    match request.op {
        Op::Forget { count } => fs.forget(request.ino, count),
        Op::BatchForget { elements } => {
            for one in elements.chunks_exact(size_of::<k::ForgetOne>()) {
                if let Ok(one) = k::ForgetOne::read_from_bytes(one) {
                    fs.forget(Ino(one.nodeid), one.nlookup);
                }
            }
        }
        _ => {}
    }
}

/// Handles every request that does not use the receive buffer as data memory.
fn dispatch(fs: &dyn FileSystem, caller: &Caller<'_>, request: &Request<'_>, listing: &mut Vec<u8>, to: &ReplyTo<'_>) {
    let ino = request.ino;
    match request.op {
        Op::Lookup { name } => match (fs.lookup(caller, ino, name), fs.negative_ttl()) {
            // Node id 0 says that the name does not exist, and for how long the kernel may cache that.
            (Err(Errno::NoEnt), ttl) if !ttl.is_zero() => to.ok(&[absent_out(ttl).as_bytes()]),
            (found, _) => send_entry(to, found),
        },
        Op::Getattr { handle } => send_struct(to, fs.getattr(caller, ino, handle).map(|a| attr_out(&a))),
        Op::Statx { handle } => send_struct(to, fs.getattr(caller, ino, handle).map(|a| statx_out(&a))),
        Op::Setattr { ref set, handle } => {
            send_struct(to, fs.setattr(caller, ino, set, handle).map(|a| attr_out(&a)));
        }
        Op::Readlink => send(to, fs.readlink(caller, ino)),
        Op::Symlink { name, target } => send_entry(to, fs.symlink(caller, ino, name, target)),
        Op::Mknod { name, mode, rdev } => send_entry(to, fs.mknod(caller, ino, name, mode, rdev)),
        Op::Mkdir { name, mode } => send_entry(to, fs.mkdir(caller, ino, name, mode)),
        Op::Unlink { name } => send_empty(to, fs.unlink(caller, ino, name)),
        Op::Rmdir { name } => send_empty(to, fs.rmdir(caller, ino, name)),
        Op::Rename { name, new_parent, new_name, flags } => {
            send_empty(to, fs.rename(caller, ino, name, new_parent, new_name, flags));
        }
        Op::Link { from, new_name } => send_entry(to, fs.link(caller, from, ino, new_name)),
        Op::Open { how } => send_struct(to, fs.open(caller, ino, how).map(|o| open_out(&o))),
        Op::Opendir { how } => send_struct(to, fs.opendir(caller, ino, how).map(|o| open_out(&o))),
        Op::Create { name, mode, how } => send_created(to, fs.create(caller, ino, name, mode, how)),
        Op::Tmpfile { mode, how } => send_created(to, fs.tmpfile(caller, ino, mode, how)),
        Op::Statfs => send_struct(to, fs.statfs(caller, ino).map(|s| statfs_out(&s))),
        Op::Release { handle } => {
            fs.release(ino, handle);
            send_empty(to, Ok(()));
        }
        Op::Releasedir { handle } => {
            fs.releasedir(ino, handle);
            send_empty(to, Ok(()));
        }
        Op::Fsync { handle, data_only } => send_empty(to, fs.fsync(caller, ino, handle, data_only)),
        Op::Fsyncdir { handle, data_only } => send_empty(to, fs.fsyncdir(caller, ino, handle, data_only)),
        Op::Setxattr { name, value, flags } => send_empty(to, fs.setxattr(caller, ino, name, value, flags)),
        Op::Getxattr { name, room } => send_sized(to, room, fs.getxattr(caller, ino, name)),
        Op::Listxattr { room } => send_sized(to, room, fs.listxattr(caller, ino)),
        Op::Removexattr { name } => send_empty(to, fs.removexattr(caller, ino, name)),
        Op::Flush { handle, lock_owner } => send_empty(to, fs.flush(caller, ino, handle, lock_owner)),
        Op::Readdir { handle, offset, room, plus } => {
            let mut sink = DirSink::new(listing, room, plus, handle);
            let result = fs.readdir(caller, ino, handle, offset, &mut sink);
            send(to, result.map(|()| &listing[..]));
        }
        Op::Access { mask } => send_empty(to, fs.access(caller, ino, mask)),
        Op::Ioctl { ref call } => match fs.ioctl(caller, ino, call) {
            Ok(r) => {
                let head = k::IoctlOut { result: r.result, ..k::IoctlOut::default() };
                to.ok(&[head.as_bytes(), &r.output[..r.output.len().min(call.output_max)]]);
            }
            Err(e) => to.error(e),
        },
        Op::Poll { handle, events } => {
            let result = fs.poll(caller, ino, handle, events);
            send_struct(to, result.map(|revents| k::PollOut { revents, padding: 0 }));
        }
        Op::Fallocate { handle, offset, len, mode } => {
            send_empty(to, fs.fallocate(caller, ino, handle, offset, len, mode));
        }
        Op::Lseek { handle, offset, whence } => {
            let result = fs.lseek(caller, ino, handle, offset, whence);
            send_struct(to, result.map(|offset| k::LseekOut { offset }));
        }
        Op::CopyFileRange { ref how, wide: true } => {
            let result = fs.copy_file_range(caller, how);
            send_struct(to, result.map(|bytes_copied| k::CopyFileRangeOut { bytes_copied }));
        }
        Op::CopyFileRange { mut how, wide: false } => {
            how.len = how.len.min(COUNT_MAX_32);
            let result = fs.copy_file_range(caller, &how);
            send_struct(to, result.map(|n| k::WriteOut { size: n.min(COUNT_MAX_32) as u32, padding: 0 }));
        }
        Op::Syncfs => send_empty(to, fs.syncfs(caller)),
        Op::Getlk { ref how } => send_struct(to, fs.getlk(caller, ino, how).map(|found| lk_out(how, found))),
        Op::Setlk { ref how, wait: false } => send_empty(to, fs.setlk(caller, ino, how)),
        Op::Destroy => send_empty(to, Ok(())),
        Op::Unsupported { opcode } => {
            tracing::debug!(opcode, "request of a kind that is not served");
            to.error(Errno::NoSys);
        }
        // A second INIT, or a request that `handle` serves itself.
        Op::Init { .. }
        | Op::Read { .. }
        | Op::Write { .. }
        | Op::Setlk { wait: true, .. }
        | Op::Forget { .. }
        | Op::BatchForget { .. }
        | Op::Interrupt { .. } => to.error(Errno::Proto),
    }
}

/// Reports to the file system that an answer was written, even if the handler panicked.
struct Answered<'a>(&'a dyn FileSystem);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// Gives a handler's thread back before the request is answered.
struct Deferred<'a> {
    device: &'a Arc<OwnedFd>,
    table: &'a Arc<LateTable>,
    to: &'a ReplyTo<'a>,
    interrupt: &'a Interrupt,
    answered: &'a AtomicBool,
}

impl Deferral for Deferred<'_> {
    fn take(&self) -> Later {
        self.to.give_away();
        self.answered.store(true, Relaxed);
        Later::new(self.device.clone(), self.to, self.table.clone(), self.interrupt)
    }
}

/// Handles one request that wants a reply. READ and WRITE use the receive buffer as data memory. Returns the READ if it
/// was answered with bytes.
pub(crate) fn handle(fs: &dyn FileSystem, caller: Caller<'_>, lent: Lent<'_>, to: &ReplyTo<'_>) -> Option<ReadHow> {
    let mut read = None;
    let top = Top(fs.root());
    let Ok(request) = crate::request::parse(lent.receive).map(|request| request.below(top)) else {
        to.error(Errno::Io);
        lent.answered.store(true, Relaxed);
        return None;
    };
    let (device, table) = lent.late;
    let deferred = Deferred { device, table, to, interrupt: caller.interrupt, answered: lent.answered };
    let (create_group, umask) = (request.create_group, request.umask);
    let caller = &Caller { create_group, umask, deferral: Some(&deferred), ..caller };
    let ino = request.ino;
    let _noting = fs.records(caller, &request).map(|recorded| to.record(recorded));
    let _arrival = match fs.arrives(caller, &request) {
        Ok(arrival) => arrival,
        Err(e) => {
            to.error(e);
            lent.answered.store(true, Relaxed);
            return None;
        }
    };
    match request.op {
        Op::Read { how } => {
            let mut sink = ReadSink::new(lent.receive, how.size);
            match fs.read(caller, ino, &how, &mut sink) {
                Ok(()) => {
                    to.ok(&sink.pieces());
                    read = Some(how).filter(|_| !to.is_given_away());
                }
                Err(e) => to.error(e),
            }
        }
        Op::Write { how, len } => {
            let data = match lent.unit {
                Some(unit) => Payload::of_unit(unit),
                None => Payload::new(lent.receive, len),
            };
            let result = fs.write(caller, ino, &how, data);
            send_struct(to, result.map(|n| k::WriteOut { size: n.min(len) as u32, padding: 0 }));
        }
        Op::Setlk { ref how, wait: true } => {
            let (device, table) = lent.late;
            let later = Later::new(device.clone(), to, table.clone(), caller.interrupt);
            lent.answered.store(true, Relaxed);
            fs.setlkw(caller, ino, how, later);
        }
        Op::Ioctl { ref call } if fs.ioctl_waits(call) => {
            let (device, table) = lent.late;
            let later = Later::new(device.clone(), to, table.clone(), caller.interrupt);
            lent.answered.store(true, Relaxed);
            fs.ioctl_later(caller, ino, call, later);
        }
        _ => {
            fs.begins();
            let _answered = Answered(fs);
            dispatch(fs, caller, &request, lent.listing, to);
        }
    }
    lent.answered.store(true, Relaxed);
    read
}
