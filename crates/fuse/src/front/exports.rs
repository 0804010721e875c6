//! `Exports`: memory in which programs of this machine read cached files without a call (docs/design/preload.md).
//!
//! Owns: the board of the mount, which files have an export, which programs may have the memory of an export, and the
//! thread that passes it to them and renews the lease. Does not own: the content and how long it is valid (the client),
//! the layout (`amphi_shm`).
//!
//! None of this exists before the first program identifies a descriptor. The memory of a file is sent to a program for
//! a secret of 16 bytes, which the mount gives only to a program with a descriptor of the file that is open for
//! reading. So a program can read only the bytes that `mmap` of that descriptor would show.
//!
//! Invariants: the generation of a handle is raised before the close of one of its descriptors is answered. The thread
//! waits for no program: a request that does not arrive at once is dropped. Bounds: `EXPORTS_MAX` files,
//! `cache.shared_bytes` of memory, `WAITING_MAX` connections.

use super::posts::{Posts, Secret, secret};
use amphi_client::{Client, OpenFile, PostedWrites, Posting};
use amphi_shm::export::Export;
use amphi_shm::layout::{HANDLES, RING_SLOTS, VERSION};
use amphi_shm::memory::Board;
use amphi_shm::talk::{Identity, Request, SOCKET_PREFIX, WANT_BOARD, WANT_EXPORT, WANT_RING};
use amphi_types::Ino;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Files with an export at a time: each takes a descriptor of the mount process.
const EXPORTS_MAX: usize = 1024;
/// Connections without a request; the oldest is replaced by a new one.
const WAITING_MAX: usize = 64;
/// How often the lease is renewed and closed files are forgotten: four times in a lease.
const RENEWAL: Duration = Duration::from_millis(500);

/// A file that is shown.
struct Shown {
    ino: Ino,
    secret: Secret,
    export: Arc<Export>,
}

#[derive(Default)]
struct State {
    /// The exports by number, so the oldest is the first.
    shown: BTreeMap<u64, Shown>,
    last_id: u64,
    stopped: bool,
}

/// The state that exists once a program has asked.
struct Office {
    board: Board,
    socket: OwnedFd,
    name: Secret,
    bell: OwnedFd,
    state: Mutex<State>,
    posts: Arc<Posts>,
    client: Client,
}

/// The exports of a mount.
#[derive(Default)]
pub(crate) struct Exports {
    office: OnceLock<Option<Arc<Office>>>,
    is_on: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Exports {
    /// Returns whether a program has ever identified a file, so that exports may exist.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Acquire)
    }

    /// Called when a descriptor of the handle is being closed. It has to be called before that request is answered.
    pub(crate) fn raise(&self, handle: u64) {
        if let Some(office) = self.office() {
            office.board.raise(handle);
        }
    }

    fn office(&self) -> Option<&Arc<Office>> {
        if self.is_on() { self.office.get()?.as_ref() } else { None }
    }

    /// The identity of a descriptor of this handle, for the program that holds it.
    pub(crate) fn identify(&self, client: &Client, posts: &Arc<Posts>, handle: u64, file: &OpenFile) -> Identity {
        let none = Identity { version: VERSION as u32, ..Identity::default() };
        let Some((office, head)) = self.head(client, posts, handle) else { return none };
        let Some(shown) = office.show(client, file) else { return none };
        Identity { export: shown.1.id(), secret: shown.0, slots: shown.1.slots() as u64, ..head }
    }

    /// Works as `identify`, for a program that posts writes: `admit` gives the number of the ring and its secret.
    pub(crate) fn identify_writer(
        &self,
        client: &Client,
        posts: &Arc<Posts>,
        handle: u64,
        admit: impl FnOnce() -> Option<(u64, Secret)>,
    ) -> Identity {
        let none = Identity { version: VERSION as u32, ..Identity::default() };
        // The generation is that of a moment before the handle is admitted.
        let Some((office, head)) = self.head(client, posts, handle) else { return none };
        let Some((export, secret)) = admit() else { return none };
        office.board.set_lease(client.exports_end_ns());
        office.ring();
        Identity { export, secret, slots: RING_SLOTS as u64, ..head }
    }

    /// The information about a handle that every program gets.
    fn head(&self, client: &Client, posts: &Arc<Posts>, handle: u64) -> Option<(&Arc<Office>, Identity)> {
        if handle >= HANDLES as u64 || client.exports_max_bytes() == 0 {
            return None;
        }
        let office = self.office.get_or_init(|| self.start(client, posts)).as_ref()?;
        let generation = office.board.generation(handle)?;
        let socket = office.name;
        let version = VERSION as u32;
        Some((
            office,
            Identity { version, is_shared: 1, handle: handle as u32, generation, socket, ..Identity::default() },
        ))
    }

    fn start(&self, client: &Client, posts: &Arc<Posts>) -> Option<Arc<Office>> {
        let started = Office::new(client.clone(), posts.clone()).map(Arc::new).and_then(|office| {
            let own = office.clone();
            let thread = std::thread::Builder::new().name("fuse exports".into()).spawn(move || own.run());
            *self.thread.lock() = Some(thread.map_err(|_| Errno::AGAIN)?);
            Posting::set_front(client, Some(Arc::new(Taker(Arc::downgrade(&office)))));
            Ok(office)
        });
        match started {
            Ok(office) => {
                self.is_on.store(true, Release);
                Some(office)
            }
            Err(e) => {
                tracing::warn!("programs cannot read cached files without calls: {e}");
                None
            }
        }
    }

    /// Called when the mount ends: nothing is shown any more.
    pub(crate) fn stop(&self) {
        if let Some(office) = self.office() {
            office.stop();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread of exports has panicked");
        }
    }
}

impl Drop for Exports {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Takes posted writes when the client says so.
struct Taker(Weak<Office>);

impl PostedWrites for Taker {
    fn ring(&self) {
        self.0.upgrade().into_iter().for_each(|office| office.ring());
    }

    fn take(&self, ino: Ino) -> u64 {
        self.0.upgrade().map_or(0, |office| office.posts.take(ino))
    }
}

impl Office {
    fn new(client: Client, posts: Arc<Posts>) -> Result<Office, Errno> {
        let name = secret()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(&[&SOCKET_PREFIX[..], &name[..]].concat())?)?;
        listen(&socket, WAITING_MAX as i32)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Office { board: Board::new()?, socket, name, bell, state: Mutex::default(), posts, client })
    }

    /// The export of a file, made if need be, with its secret.
    fn show(&self, client: &Client, file: &OpenFile) -> Option<(Secret, Arc<Export>)> {
        let mut state = self.state.lock();
        if state.stopped {
            return None;
        }
        let make = |size| {
            let id = state.last_id + 1;
            let export = Export::new(id, size).map(Arc::new).inspect_err(|e| tracing::debug!("no export: {e}")).ok()?;
            state.last_id = id;
            let before =
                state.shown.insert(id, Shown { ino: file.ino(), secret: secret().ok()?, export: export.clone() });
            assert!(before.is_none(), "two exports have the number {id}");
            Some(export)
        };
        let export = client.export(file, make)?;
        let secret = state.shown.get(&export.id())?.secret;
        self.keep_bounds(&mut state, Some(export.id()));
        drop(state);
        self.board.set_lease(client.exports_end_ns());
        self.ring();
        Some((secret, export))
    }

    /// Drops exports whose files are gone, and the oldest ones beyond the bounds, but never `kept`.
    fn keep_bounds(&self, state: &mut State, kept: Option<u64>) {
        state.shown.retain(|_, shown| !shown.export.is_given_up());
        let max_bytes = self.client.exports_max_bytes();
        let mut bytes: u64 = state.shown.values().map(|shown| shown.export.used_bytes()).sum();
        while state.shown.len() > EXPORTS_MAX || bytes > max_bytes {
            let oldest = state.shown.keys().find(|id| Some(**id) != kept).copied();
            let Some(gone) = oldest.and_then(|id| state.shown.remove(&id)) else { return };
            // Other threads may have filled it since it was counted.
            bytes = bytes.saturating_sub(gone.export.used_bytes());
            gone.export.give_up();
            self.client.unexport(gone.ino);
        }
    }

    fn ring(&self) {
        // If the counter is full, the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.board.set_lease(0);
        std::mem::take(&mut state.shown).into_values().for_each(|shown| shown.export.give_up());
        drop(state);
        self.ring();
    }

    /// Hands memory out, renews the lease while anything is shown, until `stop`.
    fn run(&self) {
        let mut waiting: Vec<OwnedFd> = Vec::new();
        loop {
            let any_shown = {
                let mut state = self.state.lock();
                if state.stopped {
                    return;
                }
                self.keep_bounds(&mut state, None);
                let any = !state.shown.is_empty() || self.posts.any();
                if any {
                    self.board.set_lease(self.client.exports_end_ns());
                }
                any
            };
            self.posts.tick();
            let ready = self.wait(&waiting, any_shown.then_some(RENEWAL));
            let (mut asked, mut later) = (Vec::new(), Vec::new());
            for (at, connection) in std::mem::take(&mut waiting).into_iter().enumerate() {
                if ready.contains(&at) { asked.push(connection) } else { later.push(connection) }
            }
            waiting = later;
            asked.iter().for_each(|connection| self.answer(connection));
            while let Ok(connection) = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                if waiting.len() == WAITING_MAX {
                    waiting.remove(0);
                }
                waiting.push(connection);
                assert!(waiting.len() <= WAITING_MAX, "{} connections wait, at most {WAITING_MAX}", waiting.len());
            }
        }
    }

    /// Waits until a request or a wake arrives. Returns which of the connections have something to read, or have ended.
    fn wait(&self, waiting: &[OwnedFd], longest: Option<Duration>) -> Vec<usize> {
        let own = [self.bell.as_fd(), self.socket.as_fd()];
        let mut all: Vec<PollFd<'_>> = own
            .into_iter()
            .chain(waiting.iter().map(|w| w.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        if poll(&mut all, longest.as_ref()).is_err() {
            return Vec::new();
        }
        let mut rung = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut rung);
        (0..waiting.len()).filter(|at| !all[at + own.len()].revents().is_empty()).collect()
    }

    /// Answers the request of a program; a request for something that does not exist gets no descriptor.
    fn answer(&self, connection: &OwnedFd) {
        let mut bytes = [0u8; size_of::<Request>() + 1];
        let Ok((len, _)) = recv(connection, &mut bytes[..], RecvFlags::DONTWAIT) else { return };
        let Some(request) = bytes.get(..len).and_then(Request::from_bytes) else { return };
        let export = {
            let state = self.state.lock();
            let shown = state.shown.values().find(|shown| shown.secret == request.secret);
            shown.map(|shown| shown.export.clone())
        };
        let posted = self.posts.find(&request.secret);
        // A program that does not know the secret of a file gets nothing, not even the board.
        let memory = match request.wanted & (WANT_EXPORT | WANT_RING) {
            WANT_EXPORT => export.as_ref().map(|export| export.fd()),
            WANT_RING => posted.as_ref().map(|posted| posted.fd()),
            _ => None,
        };
        let Some(memory) = memory else { return };
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        if request.wanted & WANT_BOARD != 0 {
            fds.push(self.board.fd());
        }
        fds.push(memory);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if control.push(SendAncillaryMessage::ScmRights(&fds)) {
            // A program that has gone needs no answer.
            let _ =
                sendmsg(connection, &[IoSlice::new(&[0; 8])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
