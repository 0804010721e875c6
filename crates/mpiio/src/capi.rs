//! The C interface with which the shims use the cache; `shim/amphi_mpiio.h` is the same in C.
//!
//! Owns the translation of C arguments and of errors to errno values. Also owns a mutex for each open file, because an
//! MPI library with thread support lets several threads of a rank call at once. Functions return 0 or an errno value. A
//! panic ends the process: `extern "C"` lets none out.

use crate::backend::Backend;
use crate::backend::posix::{Direct, PosixFile};
use crate::error::{Error, Outcome};
use crate::file::idle::Looker;
use crate::file::{CachedFile, Extent, Settings};
use crate::meeting::{Arrival, Meeting};
use crate::pace::{Futex, sleep_on};
use crate::rounds::Rounds;
use crate::segment::{Geometry, Segment, Token};
use crate::stats::NAMES;
use crate::team::Team;
use crate::team::passing::{Dispatcher, Passing, SILENCE, Serving};
use crate::team::server::Server;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A range of this length costs more to copy twice than to request from the kernel, which takes about a microsecond.
const ASIDE_BYTES: u64 = 16 << 10;

/// How long the end of a process waits for a call of its own on the file. The end may have come in the middle of that
/// call, from a signal handler, and the call then never ends.
const LAST_CALL: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(1);

/// A node gives pages to another one only if it has had this many more recent references. Fewer are no burden.
const BALANCE_LEAST: u32 = 64;

/// Pause between two checks when nothing has to be written in the background.
const NEVER: Duration = Duration::from_secs(1 << 30);

pub mod about;
mod unasked;

pub use unasked::Unasked;

/// An open file in the form that C gets.
pub struct AmphiFile {
    team: Mutex<Team>,
    token: Token,
    path: CString,
    settings: OpenSettings,
    meeting: Meeting,
}

impl AmphiFile {
    fn locked(&self) -> MutexGuard<'_, Team> {
        self.team.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works as `locked`, but gives up if another call takes too long to end.
    fn locked_at_last(&self) -> Option<MutexGuard<'_, Team>> {
        let looks = LAST_CALL.as_micros() / LAST_LOOK.as_micros();
        (0..looks).find_map(|_| match self.team.try_lock() {
            Ok(team) => Some(team),
            Err(TryLockError::Poisoned(team)) => Some(team.into_inner()),
            Err(TryLockError::WouldBlock) => {
                sleep_on(&AtomicU32::new(0), 0, LAST_LOOK);
                None
            }
        })
    }
}

/// The address at which the leader of a node listens.
#[repr(C)]
pub struct Leader {
    /// Name or address, ending with a zero byte.
    host: [c_char; 64],
    /// If nodes communicate by messages: the leader's rank in the library.
    port: u32,
    /// The rank that the caller's proxy has there.
    rank: u32,
    nonce: u64,
}

/// How the ranks of a node open a file; equal on all of them but for the rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenSettings {
    /// Number of ranks of this node, and which of them this one is.
    ranks: u32,
    rank: u32,
    /// The number of proxies, which work for ranks of other nodes.
    clients: u32,
    readable: u32,
    writable: u32,
    /// Direct I/O: 0 off, 1 on, 2 where it suits the file system.
    direct: u32,
    /// Join the group lock of the job, where the file system has such.
    group: u32,
    /// Calls release each page as soon as they no longer need it.
    relaxed: u32,
    /// After this many consecutive references by another node a page moves there; 0 means that no page moves.
    references: u32,
    /// 0: what suits the file system.
    page_bytes: u64,
    limit_bytes: u64,
    bypass_bytes: u64,
    stream_bytes: u64,
    run_bytes: u64,
    unasked: Unasked,
}

fn code(outcome: Outcome) -> c_int {
    outcome.err().map_or(0, Error::errno)
}

/// Opens a file. Rank 0 makes the shared memory and fills in the token, the others are given that token.
///
/// # Safety
/// `path` ends with a zero byte; the other pointers are valid; `token` is written by rank 0 and read by the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_open(
    path: *const c_char,
    settings: *const OpenSettings,
    token: *mut Token,
    file: *mut *mut AmphiFile,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, settings, given) = unsafe { (CStr::from_ptr(path), *settings, *token) };
    let opened = open_rank(path, settings, settings.rank, given);
    match opened {
        Ok(cached) => {
            let meeting = Meeting::new(cached.memory().share());
            let mine = if settings.rank == 0 { cached.memory().token() } else { given };
            let looker = start_looker(path, &settings, &cached);
            let mut team = Team::new(cached);
            looker.into_iter().for_each(|looker| team.look(looker));
            let team = Mutex::new(team);
            let opened = AmphiFile { team, token: mine, path: path.to_owned(), settings, meeting };
            // SAFETY: the caller's promise.
            unsafe {
                *token = mine;
                *file = Box::into_raw(Box::new(opened));
            }
            0
        }
        Err(error) => error.errno(),
    }
}

/// The thread that writes out idle pages, on the first rank of each node. Without it all pages are written later.
fn start_looker(path: &CStr, settings: &OpenSettings, cached: &CachedFile) -> Option<Looker> {
    if settings.rank != 0 || settings.writable == 0 || (settings.unasked.idle_ms == 0 && settings.group == 0) {
        return None;
    }
    let mut backend = open_backend(path, settings).ok()?;
    let segment = cached.memory().again().ok()?;
    share(&mut backend, std::process::id() as i32, &segment).ok()?;
    let file = CachedFile::new(segment, Box::new(backend), *cached.settings(), Arc::new(Futex));
    let pause = if settings.unasked.idle_ms == 0 { NEVER } else { Duration::from_millis(settings.unasked.idle_ms) };
    Looker::start(file, pause).ok()
}

/// Takes over the descriptors of rank 0, if it has some to share: members of a group are open files, not processes.
fn share(backend: &mut PosixFile, leader: i32, segment: &Segment) -> Outcome {
    let descriptors = segment.header().descriptors.each_ref().map(|fd| fd.load(SeqCst));
    if descriptors[0] < 0 { Ok(()) } else { backend.share(leader, descriptors) }
}

fn open_backend(path: &CStr, settings: &OpenSettings) -> Outcome<PosixFile> {
    let direct = match settings.direct {
        0 => Direct::Off,
        1 => Direct::On,
        _ => Direct::Automatic,
    };
    let mut backend = PosixFile::open(path, settings.readable != 0, settings.writable != 0, direct)?;
    if settings.clients > 0 {
        backend.want_exact_locks();
    }
    Ok(backend)
}

/// From this length on, reads are left to the kernel's page cache of the node, but only if that cache is used at all
/// and all ranks are on this node.
fn aside_bytes(settings: &OpenSettings, backend: &PosixFile) -> u64 {
    let serves_all = settings.clients == 0 && settings.stream_bytes > 0 && !backend.is_direct();
    if serves_all { ASIDE_BYTES } else { 0 }
}

/// Opens the file as a rank of the node's shared memory, which rank 0 makes.
fn open_rank(path: &CStr, settings: OpenSettings, rank: u32, token: Token) -> Outcome<CachedFile> {
    let mut backend = open_backend(path, &settings)?;
    let page_bytes = u32::try_from(settings.page_bytes).map_err(|_| Error::Refused("the page is too large"))?;
    let all = u64::from(settings.ranks) + u64::from(settings.clients);
    // The memory of the node's ranks is shared out among them and the proxies.
    let limit = u128::from(settings.limit_bytes) * u128::from(settings.ranks) / u128::from(all.max(1));
    let ranks = u32::try_from(all).map_err(|_| Error::Refused("too many ranks"))?;
    let geometry = Geometry::new(ranks, page_bytes, limit as u64);
    let segment = match rank {
        0 => {
            let segment = Segment::create(geometry, backend.size()?)?;
            segment.identify(backend.identity()?, settings.ranks);
            segment
        }
        rank => {
            let segment = Segment::attach(token, geometry, rank)?;
            share(&mut backend, token.pid, &segment)?;
            segment
        }
    };
    let use_of = Settings {
        readable: settings.readable != 0,
        writable: settings.writable != 0,
        bypass_bytes: settings.bypass_bytes,
        stream_bytes: settings.stream_bytes,
        aside_bytes: aside_bytes(&settings, &backend),
        merge_parts: settings.unasked.merges == 1,
        run_bytes: settings.run_bytes,
        prefetch_bytes: settings.unasked.prefetch_bytes,
    };
    let file = CachedFile::new(segment, Box::new(backend), use_of, Arc::new(Futex));
    if rank == 0 && settings.group != 0 && settings.writable != 0 {
        file.offer_descriptors();
    }
    if rank == 0 {
        file.relax(settings.relaxed != 0);
    }
    Ok(file)
}

/// Serves the ranks of other nodes from now on, as leader. These ranks connect with `port` and `nonce`.
///
/// # Safety
/// `file` is open; `port` and `nonce` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_serve(
    file: *const AmphiFile,
    loopback: c_int,
    port: *mut u32,
    nonce: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let opened = unsafe { &*file };
    let (path, settings, token) = (opened.path.clone(), opened.settings, opened.token);
    let make = move |rank| open_rank(&path, settings, rank, token);
    let any = if loopback != 0 { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    match Server::start((any.into(), 0), settings.ranks, settings.clients, token.nonce, Arc::new(make)) {
        Ok(server) => {
            // SAFETY: the caller's promise.
            unsafe {
                *port = u32::from(server.port());
                *nonce = token.nonce;
            }
            opened.locked().serve(server);
            0
        }
        Err(error) => error.errno(),
    }
}

/// Connects with the leaders of all nodes; `node` is our own one. After an error, `failed` is the leader that could not
/// be reached.
///
/// # Safety
/// `file` is open; `leaders` has `nodes` elements; `failed` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_connect(
    file: *const AmphiFile,
    node: u32,
    nodes: u32,
    leaders: *const Leader,
    failed: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let (opened, leaders) = unsafe { (&*file, std::slice::from_raw_parts(leaders, nodes as usize)) };
    let mut found = Vec::new();
    for leader in leaders {
        let host: Vec<u8> = leader.host.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        let port = u16::try_from(leader.port).unwrap_or(0);
        found.push((String::from_utf8_lossy(&host).into_owned(), port, leader.rank, leader.nonce));
    }
    let mut team = opened.locked();
    let outcome = team.connect(node as usize, &found, opened.settings.references);
    opened.settings.unasked.tell(&team);
    if let Err((leader, _)) = &outcome {
        // SAFETY: the caller's promise.
        unsafe { *failed = *leader as u32 };
    }
    code(outcome.map_err(|(_, error)| error))
}

/// The library that passes messages, in the form in which the shim describes it. The functions return 0 or an errno
/// value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Messages {
    /// A pointer that is only handed back.
    context: usize,
    probe: extern "C" fn(usize, i32, i32, &mut i32, &mut u64) -> c_int,
    receive: extern "C" fn(usize, i32, i32, *mut u8, u64) -> c_int,
    send: extern "C" fn(usize, i32, i32, *const u8, u64) -> c_int,
}

fn passed(errno: c_int) -> Outcome {
    if errno == 0 { Ok(()) } else { Err(Error::Os { doing: "pass a message of the library", errno }) }
}

impl Passing for Messages {
    fn probe(&self, from: Option<i32>, tag: i32) -> Outcome<Option<(i32, usize)>> {
        let (mut source, mut bytes) = (-1, 0);
        passed((self.probe)(self.context, from.unwrap_or(-1), tag, &mut source, &mut bytes))?;
        Ok((source >= 0).then_some((source, bytes as usize)))
    }

    fn receive(&self, from: i32, tag: i32, into: &mut [u8]) -> Outcome {
        passed((self.receive)(self.context, from, tag, into.as_mut_ptr(), into.len() as u64))
    }

    fn send(&self, to: i32, tag: i32, data: &[u8]) -> Outcome {
        passed((self.send)(self.context, to, tag, data.as_ptr(), data.len() as u64))
    }
}

/// Works as `amphi_mpiio_serve`, by messages of the library; `leaders` has the rank of the leader of each node.
///
/// # Safety
/// `file` is open; `leaders` has `nodes` elements; `messages` and `nonce` are valid, and what `messages` names works
/// until the file is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_serve_messages(
    file: *const AmphiFile,
    messages: *const Messages,
    leaders: *const i32,
    nodes: u32,
    nonce: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let (opened, passing, leaders) =
        unsafe { (&*file, Arc::new(*messages), std::slice::from_raw_parts(leaders, nodes as usize).to_vec()) };
    let (path, settings, token) = (opened.path.clone(), opened.settings, opened.token);
    let mut team = opened.locked();
    let started = team.local().memory().again().and_then(|segment| {
        let lives = move |rank| u32::try_from(rank).is_ok_and(|rank| !segment.has_ended(rank));
        Dispatcher::start(
            passing,
            Serving {
                ranks: (settings.ranks, settings.clients),
                nonce: token.nonce,
                make: Arc::new(move |rank| open_rank(&path, settings, rank, token)),
                lives: Box::new(lives),
                leaders,
                silence: SILENCE,
            },
        )
    });
    code(started.map(|dispatcher| {
        // SAFETY: the caller's promise.
        unsafe { *nonce = token.nonce };
        team.serve(dispatcher);
    }))
}

/// Works as `amphi_mpiio_connect`, by messages of the library.
///
/// # Safety
/// As for `amphi_mpiio_connect` and `amphi_mpiio_serve_messages`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_connect_messages(
    file: *const AmphiFile,
    messages: *const Messages,
    node: u32,
    nodes: u32,
    leaders: *const Leader,
    failed: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let (opened, messages, leaders) =
        unsafe { (&*file, *messages, std::slice::from_raw_parts(leaders, nodes as usize)) };
    let passing: Arc<dyn Passing> = Arc::new(messages);
    let found: Vec<_> = leaders.iter().map(|leader| (leader.port as i32, leader.rank, leader.nonce)).collect();
    let references = opened.settings.references;
    let mut team = opened.locked();
    let outcome = team.connect_by_messages(node as usize, &found, references, &passing);
    opened.settings.unasked.tell(&team);
    if let Err((leader, _)) = &outcome {
        // SAFETY: the caller's promise.
        unsafe { *failed = *leader as u32 };
    }
    code(outcome.map_err(|(_, error)| error))
}

/// Leaves the file and frees everything that belongs to it. Dirty pages are not flushed.
///
/// # Safety
/// `file` came from `amphi_mpiio_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_close(file: *mut AmphiFile) {
    // SAFETY: the caller's promise.
    let file = unsafe { Box::from_raw(file) };
    file.team.into_inner().unwrap_or_else(PoisonError::into_inner).leave();
}

/// Called when the process ends though it has not closed the file. If `flush` is set, writes all dirty bytes of the
/// node; then leaves in order, so that the other ranks continue. EBUSY: the process is in the middle of a call, so it
/// ends as one that was killed.
///
/// # Safety
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_end(file: *const AmphiFile, flush: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(mut team) = (unsafe { (*file).locked_at_last() }) else { return libc::EBUSY };
    let written = if flush != 0 { team.local().flush_share(0, 1) } else { Ok(()) };
    team.local().leave();
    code(written)
}

/// Called when the job is about to be ended: writes all dirty bytes on all nodes. EBUSY: the process is in the middle
/// of a call.
///
/// # Safety
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_save(file: *const AmphiFile) -> c_int {
    // SAFETY: the caller's promise.
    let team = unsafe { (*file).locked_at_last() };
    team.map_or(libc::EBUSY, |mut team| code(team.settle_alone(false)))
}

/// Enters a barrier of all ranks, which are on one node, with a value that is not negative. The caller waits for the
/// others with `amphi_mpiio_await` before it enters the next round.
///
/// # Safety
/// `file` is open; `arrival` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_arrive(file: *const AmphiFile, value: c_int, arrival: *mut Arrival) {
    // SAFETY: the caller's promise.
    unsafe { *arrival = (*file).meeting.arrive(value) };
}

/// Waits for a short time until all ranks have arrived. EAGAIN means that they have not. `largest` is the largest value
/// of all ranks.
///
/// # Safety
/// `file` is open; `arrival` came from `amphi_mpiio_arrive`; `largest` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_await(
    file: *const AmphiFile,
    arrival: *mut Arrival,
    largest: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (file, arrival) = unsafe { (&*file, &mut *arrival) };
    match file.meeting.wait(arrival) {
        Ok(Some(value)) => {
            // SAFETY: the caller's promise.
            unsafe { *largest = value };
            0
        }
        Ok(None) => libc::EAGAIN,
        Err(error) => error.errno(),
    }
}

/// Defines functions of the meeting. They take no mutex, since a waiting thread must not exclude other threads.
macro_rules! meeting {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $result:ty = |$meeting:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `file` is open.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: *const AmphiFile, $($arg: $type),*) -> $result {
            // SAFETY: the caller's promise.
            let $meeting = unsafe { &(*file).meeting };
            $body
        }
    )*};
}

meeting! {
    /// Announces which bytes of the file this rank will access, before the next meeting.
    amphi_mpiio_want(start: u64, end: u64) -> () = |m| m.want(start..end);
    /// Number of bytes between the first and the last one that any rank announced at the last barrier.
    amphi_mpiio_wanted() -> u64 = |m| m.wanted().end - m.wanted().start;
    /// Brings a number to the next meeting.
    amphi_mpiio_bring(number: u64) -> () = |m| m.bring(number);
    /// The sum of the numbers that all lower ranks brought to the last completed meeting, which is a barrier of the
    /// ranks (`amphi_mpiio_arrive`).
    amphi_mpiio_before() -> u64 = |m| m.before();
    /// Sets a number that all ranks get at the next meeting. One rank calls it.
    amphi_mpiio_say(number: u64) -> () = |m| m.say(number);
    /// The value of the last barrier.
    amphi_mpiio_said() -> u64 = |m| m.said();
}

/// Divides the collective call in which the ranks have just met into rounds, by the ranges that they access. It does so
/// if this call and the previous ones touch more of the file than a rank has memory for. All ranks get the same.
///
/// # Safety
/// `file` is open; `rounds` is valid and unchanged since the last call, with zeros at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_cut(file: *const AmphiFile, rounds: *mut Rounds) {
    // SAFETY: the caller's promise.
    let (meeting, settings, rounds) = unsafe { (&(*file).meeting, &(*file).settings, &mut *rounds) };
    rounds.cut(meeting.wanted(), settings.page_bytes, settings.run_bytes, meeting.frames_per_rank());
}

/// Writes memory to the ranges, which ascend and are as long as the memory together.
///
/// # Safety
/// `file` is open; `extents` has `count` elements; `memory` has as many bytes as they name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_write(
    file: *const AmphiFile,
    extents: *const Extent,
    count: usize,
    memory: *const u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let extents = std::slice::from_raw_parts(extents, count);
        let Some(bytes) = total(extents) else { return libc::EINVAL };
        let memory = if bytes == 0 { &[] } else { std::slice::from_raw_parts(memory, bytes) };
        let mut team = (*file).locked();
        let outcome = team.write(extents, memory).map(|_| ());
        team.publish();
        code(outcome)
    }
}

/// Reads the ranges into memory; `done` returns how many bytes there were before the end of the file.
///
/// # Safety
/// As for `amphi_mpiio_write`; `done` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_read(
    file: *const AmphiFile,
    extents: *const Extent,
    count: usize,
    memory: *mut u8,
    done: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let extents = std::slice::from_raw_parts(extents, count);
        let Some(bytes) = total(extents) else { return libc::EINVAL };
        let memory = if bytes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(memory, bytes) };
        let mut team = (*file).locked();
        let outcome = team.read(extents, memory);
        team.publish();
        match outcome {
            Ok(n) => {
                *done = n;
                0
            }
            Err(error) => error.errno(),
        }
    }
}

fn total(extents: &[Extent]) -> Option<usize> {
    let total = extents.iter().try_fold(0u64, |sum, e| sum.checked_add(e.length))?;
    usize::try_from(total).ok().filter(|total| *total <= isize::MAX as usize)
}

/// Defines functions that take the file and plain numbers.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $result:ty = |$file:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `file` is open; pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: *const AmphiFile, $($arg: $type),*) -> $result {
            // SAFETY: the caller's promise.
            let mut guard = unsafe { (*file).locked() };
            let $file = &mut *guard;
            let result = $body;
            $file.publish();
            result
        }
    )*};
}

plain! {
    /// Writes the dirty bytes of all ranks of the node that fall to this share.
    amphi_mpiio_flush(share: u32, shares: u32) -> c_int = |f| code(f.local().flush_share(share, shares));
    /// Writes, of the pages in this part of the file that a collective call left in many parts, this rank's share.
    amphi_mpiio_flush_parts(start: u64, end: u64, share: u32, shares: u32) -> c_int =
        |f| code(f.local().flush_parts(start..end, share, shares));
    /// Writes the dirty bytes of all ranks on all nodes. `stable`: also makes them stable and drops what is clean.
    amphi_mpiio_settle_alone(stable: c_int) -> c_int = |f| code(f.settle_alone(stable != 0));
    /// Sets the length, without the other ranks.
    amphi_mpiio_set_size_alone(size: u64) -> c_int = |f| code(f.set_size_alone(size));
    /// Allocates space, without the other ranks.
    amphi_mpiio_allocate_alone(size: u64) -> c_int = |f| code(f.allocate_alone(size));
    /// Joins the group lock of the job for the node. The first rank of each node calls it, while no rank has a request
    /// under way.
    amphi_mpiio_group_join(group: u64) -> c_int = |f| code(f.local().join_group(group));
    /// Joins it again, if the node has left it for a program outside the job.
    amphi_mpiio_group_rejoin() -> () = |f| f.local().rejoin_group();
    /// Sets whether calls of this node give each page back as soon as they no longer need it; all ranks call this.
    amphi_mpiio_relax(on: c_int) -> () = |f| f.local().relax(on != 0);
    /// Takes leave of the other nodes; the file serves no call of this rank any more.
    amphi_mpiio_part() -> () = |f| f.part();
    /// Waits until the ranks of other nodes have left this node.
    amphi_mpiio_see_off() -> () = |f| f.see_off();
    /// Drops the clean pages of this rank.
    amphi_mpiio_drop_clean() -> c_int = |f| code(f.drop_clean());
    /// Drops all pages of this rank.
    amphi_mpiio_discard() -> c_int = |f| code(f.discard());
    /// Makes stable what the node wrote to the file system.
    amphi_mpiio_sync() -> c_int = |f| code(f.local().sync_backend());
    /// The length of the file.
    amphi_mpiio_size(size: *mut u64) -> c_int = |f| number(f.size(), size);
    /// Sets the length; nothing is cached, one rank of node 0 calls.
    amphi_mpiio_set_size(size: u64) -> c_int = |f| code(f.local().set_size(size));
    /// Adopts the length on which all ranks have agreed. One rank of each node calls it.
    amphi_mpiio_agree_size(size: u64) -> () = |f| f.local().agree_size(size);
    /// Allocates space; one rank of node 0 calls.
    amphi_mpiio_allocate(size: u64) -> c_int = |f| code(f.local().allocate(size));
    /// Adopts the length of the file system. Nothing is cached, and one rank of node 0 calls it.
    amphi_mpiio_refresh_size() -> c_int = |f| code(f.local().refresh_size());
    /// Adds to the shared pointer and returns its previous value.
    amphi_mpiio_pointer_add(add: u64, before: *mut u64) -> c_int = |f| number(f.pointer_add(add), before);
    /// Sets the shared pointer.
    amphi_mpiio_pointer_set(value: u64) -> c_int = |f| code(f.pointer_set(value));
    /// The shared pointer.
    amphi_mpiio_pointer(value: *mut u64) -> c_int = |f| number(f.pointer(), value);
    /// The first late error of the node as errno value; 0 means none.
    amphi_mpiio_late_error() -> c_int = |f| f.local().late_error();
    /// Forgets the late error of the node.
    amphi_mpiio_clear_late_error() -> () = |f| f.local().clear_late_error();
}

/// Passes a number to C. The place is valid by the promise of the function's caller.
fn number(outcome: Outcome<u64>, to: *mut u64) -> c_int {
    match outcome {
        Ok(value) => {
            // SAFETY: see above.
            unsafe { *to = value };
            0
        }
        Err(error) => error.errno(),
    }
}

/// Returns how many counters there are.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_mpiio_stat_count() -> u32 {
    NAMES.len() as u32
}

/// Copies the name of a counter, or nothing if the counter does not exist or the name does not fit.
///
/// # Safety
/// `name` has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_stat_name(index: u32, name: *mut c_char, room: usize) {
    if let Some(text) = NAMES.get(index as usize).filter(|t| t.len() < room) {
        // SAFETY: it fits with its zero byte.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len());
            *name.add(text.len()) = 0;
        }
    }
}

/// The counters of all ranks of the node as of the last call of each.
///
/// # Safety
/// `file` is open; `values` has room for `amphi_mpiio_stat_count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_stats_of_all(file: *const AmphiFile, values: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut team = (*file).locked();
        team.publish();
        let all = team.local().memory().counters_of_all();
        std::ptr::copy_nonoverlapping(all.as_ptr(), values, all.len());
    }
}

/// The counters of this rank.
///
/// # Safety
/// `file` is open; `values` has room for `amphi_mpiio_stat_count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_stats(file: *const AmphiFile, values: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let all = (*file).locked().stats();
        std::ptr::copy_nonoverlapping(all.as_ptr(), values, all.len());
    }
}
