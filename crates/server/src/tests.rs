//! The server in the simulator, driven by raw requests over a link.
//!
//! `Place` is a simulated world: a node with the server, a node with a client. Requests find their target by
//! themselves.

mod again;
mod at_once;
mod attributes;
mod batch;
mod check;
mod checksums;
mod cluster;
mod company;
mod contended;
mod data;
mod deaf;
mod edges;
mod file_locks;
mod fsync;
mod full;
mod glimpses;
mod inodes;
mod kept;
mod keys;
mod left_pages;
mod locks;
mod lost_power;
mod orphans;
mod quota;
mod read_batch;
mod read_cache;
mod reopen;
mod sessions;
mod shards;
mod small_reads;
mod spread;
mod stories;
mod storm;
mod sweep;
mod trees;
mod trust;
mod write_back;

use crate::{Server, ServerConfig};
use amphi_env::{Buf, Env, Sim, SimEnv, sim::SimConfig};
use amphi_transport::{Link, LinkConfig, LinkEvents, Recovery, Timeouts};
use amphi_types::{Cred, Errno, Ino, Kind, Name, ObjectId, Result, SessionId, TargetId, Timespec, TokenKey};
use amphi_wire::{
    Access, Answer, Call, FileLockSpec, HeldLock, InodeView, Lane, Make, Push, RenameMode, Reply, Request, Role, Tokens,
};
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

const ADDR: &str = "unix:/run/server";
const RW: Access = Access { read: true, write: true };

fn config(targets: u16, workers: u16) -> ServerConfig {
    let mut config = ServerConfig::new("data");
    config.targets = Some(targets);
    config.workers = workers;
    config.listen = vec![ADDR.into()];
    config.zone_bytes = Some(32 << 20);
    config.log_bytes = 1 << 20;
    // Clients here are deaf for as long as it takes; `deaf` has those that may not be.
    config.tunables = vec![("server.deaf_ms".into(), "0".into())];
    config
}

/// An option that half of the seeds enable.
fn on_by(seed: u64) -> &'static str {
    ["on", "off"][seed as usize % 2]
}

/// The memory for inodes: in a third of the seeds none stays in memory longer than a request.
fn inodes_by(seed: u64) -> Option<usize> {
    seed.is_multiple_of(3).then_some(0)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

/// The state that a client presents after a restart, and how it answers pushes. It answers all pushes at once unless it
/// is set to be unresponsive.
#[derive(Default)]
struct Held {
    opens: RefCell<Vec<(Ino, Access)>>,
    locks: RefCell<Vec<HeldLock>>,
    file_locks: RefCell<Vec<FileLockSpec>>,
    /// The exclusive ones among these that a request may have converted.
    converted: RefCell<Vec<FileLockSpec>>,
    pushes: RefCell<Vec<Push>>,
    restarts: Cell<u32>,
    /// Targets of the server. If the list is empty, these are all targets.
    targets: Option<Vec<TargetId>>,
    deaf: Cell<bool>,
    /// How long after a restart it begins to present its state.
    pause: Cell<Duration>,
    /// Its session does not begin again once it has ended, as with a mount.
    mortal: Cell<bool>,
    /// Its unwritten state of objects: sizes and times that are not written back.
    unwritten: RefCell<BTreeMap<ObjectId, (u64, Timespec)>>,
    /// The address at which it answers.
    link: RefCell<Weak<Link<SimEnv>>>,
    env: RefCell<Option<SimEnv>>,
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Held {
    /// Waits for a push that `wanted` recognises, also one that arrived before, and removes it from the list.
    async fn pushed<T>(&self, wanted: impl Fn(&Push) -> Option<T>) -> T {
        loop {
            let found = {
                let mut pushes = self.pushes.borrow_mut();
                let found = pushes.iter().enumerate().find_map(|(i, p)| wanted(p).map(|t| (i, t)));
                found.map(|(i, t)| {
                    pushes.remove(i);
                    t
                })
            };
            if let Some(found) = found {
                return found;
            }
            let (sender, receiver) = oneshot::channel();
            self.watchers.borrow_mut().push(sender);
            let _ = receiver.await;
        }
    }

    /// Waits for a revocation; returns its target, id and keys.
    async fn revoked(&self) -> (TargetId, u64, Vec<TokenKey>) {
        self.pushed(|p| match p {
            Push::Revoke { target, id, keys, .. } => Some((*target, *id, keys.clone())),
            _ => None,
        })
        .await
    }

    /// The answer to a push.
    fn answer(&self, push: &Push, pool: u16) -> Call {
        let (target, op) = match push {
            Push::Callback { target, lock, .. } => (*target, Request::LockCancel { locks: vec![*lock] }),
            Push::Glimpse { id, object } => {
                let (size, mtime) = self.unwritten.borrow().get(object).copied().unwrap_or_default();
                (object_target(*object, pool), Request::GlimpseReply { id: *id, size, mtime })
            }
            Push::Revoke { target, id, .. } => (*target, Request::Revoked { ids: vec![*id] }),
            Push::Company { change, .. } => (TargetId(0), Request::CompanyKnown { change: *change }),
            Push::FileLockClosing { id, ino } => (ino.target(), Request::FileLockClosed { ino: *ino, id: *id }),
            Push::GrantWanted { target } => (*target, Request::Grant { give_back: Some(0) }),
            Push::WriteFailed { target, id, .. } => (*target, Request::WriteFailedKnown { id: *id }),
            Push::DirectoryChanged { target, id, .. } => (*target, Request::DirectoryShown { id: *id }),
            Push::Map { .. } | Push::FileLockNews { .. } | Push::GroupLockNews { .. } => (TargetId(0), Request::Map),
        };
        Call { target, cred: Cred::root(), op }
    }
}

/// The target of an object of a striped file, or of a growing one in a pool of at most two targets.
fn object_target(object: ObjectId, pool: u16) -> TargetId {
    TargetId(((u32::from(object.ino.target().0) + object.stripe) % u32::from(pool)) as u16)
}

impl LinkEvents<SimEnv> for Held {
    fn push(&self, push: Push) {
        if let (false, Some(env), Some(link)) = (self.deaf.get(), &*self.env.borrow(), self.link.borrow().upgrade()) {
            let call = self.answer(&push, link.welcome().pool);
            env.spawn(async move { drop(link.call(Lane::Urgent, call, None, 0).await) });
        }
        self.pushes.borrow_mut().push(push);
        for watcher in self.watchers.take() {
            let _ = watcher.send(());
        }
    }

    async fn restarted(&self, recovery: Recovery<SimEnv>) -> Result<()> {
        if self.mortal.get() && !recovery.welcome().resumed {
            return Err(Errno::Io);
        }
        self.restarts.set(self.restarts.get() + 1);
        let env = self.env.borrow().clone();
        if let Some(env) = env {
            env.sleep(self.pause.get()).await;
        }
        let all = || (0..recovery.welcome().pool).map(TargetId).collect();
        for target in self.targets.clone().unwrap_or_else(all) {
            let opens = self.opens.borrow().iter().filter(|(ino, _)| ino.target() == target).copied().collect();
            let converted = self.converted.borrow().iter().filter(|l| l.ino.target() == target).copied().collect();
            let held = self.file_locks.borrow().iter().filter(|l| l.ino.target() == target).copied().collect();
            let op = Request::RepresentFileLocks { locks: held, converted };
            let answer = recovery.call(Call { target, cred: Cred::root(), op }).await?.result?;
            assert_eq!(answer, Reply::FileLocksLost(vec![]));
            let here = |l: &&HeldLock| l.object.ino.target() == target;
            let locks = self.locks.borrow().iter().filter(here).copied().collect();
            let op = Request::Represent { opens, locks };
            recovery.call(Call { target, cred: Cred::root(), op }).await?.result?;
        }
        Ok(())
    }
}

struct Place {
    sim: Sim,
    config: ServerConfig,
}

struct Client {
    link: Rc<Link<SimEnv>>,
    held: Rc<Held>,
    cred: RefCell<Cred>,
    /// Whether it opens the files of its requests.
    opens: Cell<bool>,
}

impl Place {
    fn new(seed: u64, targets: u16, workers: u16) -> Place {
        Place::with_sim(seed, targets, workers, SimConfig::default())
    }

    fn with_sim(seed: u64, targets: u16, workers: u16, sim: SimConfig) -> Place {
        let sim = Sim::new(seed, sim);
        sim.node("client");
        let mut config = config(targets, workers);
        config.tunables.push(("server.checksums".into(), on_by(seed).into()));
        config.inodes_bytes = inodes_by(seed);
        Place { sim, config }
    }

    /// Starts the server, for the first time or again. Its address stays the same, because clients know it.
    async fn start(&self) -> std::result::Result<Rc<Server<SimEnv>>, crate::ServerError> {
        Server::start(self.sim.node("server"), self.config.clone()).await
    }

    async fn client(&self, session: u64) -> std::io::Result<Client> {
        self.client_named(session, &format!("client:{session}"), Role::Mount).await
    }

    async fn client_named(&self, session: u64, name: &str, role: Role) -> std::io::Result<Client> {
        self.client_on("client", session, name, role).await
    }

    async fn client_on(&self, node: &str, session: u64, name: &str, role: Role) -> std::io::Result<Client> {
        let config = LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(session),
            role,
            name: name.into(),
            key: None,
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let held = Rc::<Held>::default();
        let env = self.sim.node(node);
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect(env, config, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok(Client { link, held, cred: RefCell::new(Cred::root()), opens: Cell::new(true) })
    }
}

fn target_of(op: &Request, pool: u16) -> TargetId {
    match op {
        Request::Lookup { dir, .. }
        | Request::Parent { dir }
        | Request::Shards { dir }
        | Request::Make { dir, .. }
        | Request::MakeTmp { dir, .. }
        | Request::Link { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::RmDir { dir, .. }
        | Request::ReadBatch { dir, .. }
        | Request::ReadDir { dir, .. } => dir.target(),
        Request::Rename { from, .. } => from.target(),
        Request::GetAttr { ino }
        | Request::SetAttr { ino, .. }
        | Request::ReadLink { ino }
        | Request::Open { ino, .. }
        | Request::Close { ino, .. }
        | Request::GetXattr { ino, .. }
        | Request::ListXattr { ino }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. }
        | Request::SetShards { ino, .. }
        | Request::FileLockUnlock { ino, .. }
        | Request::PagesLeft { ino }
        | Request::PagesTaken { ino, .. }
        | Request::Spread { ino } => ino.target(),
        Request::FileLockSet { lock, .. }
        | Request::FileLockCancel { lock, .. }
        | Request::FileLockTest { lock, .. } => lock.ino.target(),
        Request::FileLockClosed { ino, .. } => ino.target(),
        Request::Read { object, .. }
        | Request::Write { object, .. }
        | Request::PagesRead { object, .. }
        | Request::PagesWrite { object, .. }
        | Request::Punch { object, .. }
        | Request::Allocate { object, .. }
        | Request::DataMap { object, .. }
        | Request::Extents { object, .. }
        | Request::GroupLock { object, .. }
        | Request::GroupWanted { object }
        | Request::LockEnqueue { object, .. } => object_target(*object, pool),
        _ => TargetId(0),
    }
}

impl Client {
    async fn ask(&self, op: Request, payload: Option<Buf>) -> (Result<Reply>, Option<Buf>) {
        match self.answer(op, payload).await {
            Ok((answer, payload)) => (answer.result, payload),
            Err(e) => (Err(e), None),
        }
    }

    /// The answer to a request with its tokens.
    async fn told(&self, op: Request) -> (Result<Reply>, Tokens) {
        match self.answer(op, None).await {
            Ok((answer, _)) => (answer.result, answer.tokens.map_or(Tokens::default(), |t| *t)),
            Err(e) => (Err(e), Tokens::default()),
        }
    }

    /// The answer to a request. A client that opens files by itself. If it needs an open to access a file, it opens the
    /// file and closes it afterwards, and sends the request again.
    async fn answer(&self, op: Request, payload: Option<Buf>) -> Result<(Answer, Option<Buf>)> {
        let copy = payload.as_ref().map(|p| {
            let mut copy = Buf::padded(p.window().start % 4096, p.len());
            copy.copy_from_slice(p);
            copy
        });
        let told = self.answer_once(op.clone(), payload).await?;
        let refused = match &told.0.result {
            Err(Errno::BadFd) => true,
            Ok(Reply::WrittenBatch(parts)) => parts.contains(&Err(Errno::BadFd)),
            _ => false,
        };
        if !refused || !self.opens.get() {
            return Ok(told);
        }
        let files: Vec<Ino> = match &op {
            Request::Read { object, .. }
            | Request::Write { object, .. }
            | Request::Punch { object, .. }
            | Request::Allocate { object, .. }
            | Request::DataMap { object, .. }
            | Request::Extents { object, .. } => vec![object.ino],
            Request::GroupLock { object, .. } => vec![object.ino],
            Request::FileLockSet { lock, .. } => vec![lock.ino],
            Request::Spread { ino } => vec![*ino],
            Request::WriteBatch { parts } => parts.iter().map(|p| p.object.ino).collect(),
            _ => Vec::new(),
        };
        for ino in files {
            // The second answer reports an inode that has gone.
            let _ = self.answer_once(Request::Open { ino, access: RW, exec: false }, None).await?;
            let _ = self.answer_once(Request::Close { ino, access: RW, atime: None }, None).await?;
        }
        self.answer_once(op, copy).await
    }

    async fn answer_once(&self, op: Request, payload: Option<Buf>) -> Result<(Answer, Option<Buf>)> {
        let pool = self.link.welcome().pool;
        let pad = match &op {
            Request::Read { range, .. } => (range.start % 4096) as usize,
            _ => 0,
        };
        let call = Call { target: target_of(&op, pool), cred: self.cred.borrow().clone(), op };
        self.link.call(Lane::Normal, call, payload, pad).await.map_err(|e| e.errno())
    }

    /// Answers a push that arrived while the client did not answer.
    async fn reply(&self, push: &Push) {
        let call = self.held.answer(push, self.link.welcome().pool);
        self.link.call(Lane::Urgent, call, None, 0).await.unwrap().0.result.unwrap();
    }

    async fn call(&self, op: Request) -> Result<Reply> {
        match self.ask(op.clone(), None).await.0 {
            Err(Errno::Remote) => self.ask(self.in_shards(op).await?, None).await.0,
            answer => answer,
        }
    }

    /// The shards of a directory.
    async fn shards(&self, dir: Ino) -> Result<Vec<Ino>> {
        match self.ask(Request::Shards { dir }, None).await.0? {
            Reply::Shards(shards) => Ok(shards),
            other => panic!("{other:?}"),
        }
    }

    /// The directory or shard in which a name lies.
    async fn place_of(&self, dir: Ino, name: &Name) -> Result<Ino> {
        let shards = self.shards(dir).await?;
        Ok(if shards.is_empty() { dir } else { shards[name.shard(shards.len())] })
    }

    /// A request with the shards of its names in place of directories that have shards.
    async fn in_shards(&self, mut op: Request) -> Result<Request> {
        match &mut op {
            Request::Lookup { dir, name }
            | Request::Make { dir, name, .. }
            | Request::Link { dir, name, .. }
            | Request::Unlink { dir, name }
            | Request::RmDir { dir, name } => *dir = self.place_of(*dir, name).await?,
            Request::Rename { from, from_name, to, to_name, .. } => {
                *from = self.place_of(*from, from_name).await?;
                *to = self.place_of(*to, to_name).await?;
            }
            _ => {}
        }
        Ok(op)
    }

    async fn inode(&self, op: Request) -> Result<InodeView> {
        match self.call(op).await? {
            Reply::Inode(view) | Reply::Made { inode: view, .. } => Ok(view),
            other => panic!("no inode in {other:?}"),
        }
    }

    async fn lookup(&self, dir: Ino, text: &str) -> Result<InodeView> {
        self.inode(Request::Lookup { dir, name: name(text) }).await
    }

    async fn make(&self, dir: Ino, text: &str, make: Make) -> Result<Ino> {
        Ok(self.inode(Request::Make { dir, name: name(text), make, perm: 0o755, umask: 0 }).await?.attr.ino)
    }

    async fn mkdir(&self, dir: Ino, text: &str) -> Result<Ino> {
        self.make(dir, text, Make::Dir).await
    }

    async fn create(&self, dir: Ino, text: &str) -> Result<Ino> {
        let ino = self.make(dir, text, Make::File { open: Some(RW), exclusive: true }).await?;
        self.call(Request::Close { ino, access: RW, atime: None }).await?;
        Ok(ino)
    }

    async fn unlink(&self, dir: Ino, text: &str) -> Result<()> {
        self.call(Request::Unlink { dir, name: name(text) }).await.map(drop)
    }

    async fn rmdir(&self, dir: Ino, text: &str) -> Result<()> {
        self.call(Request::RmDir { dir, name: name(text) }).await.map(drop)
    }

    async fn link(&self, ino: Ino, dir: Ino, text: &str) -> Result<InodeView> {
        self.inode(Request::Link { ino, dir, name: name(text) }).await
    }

    async fn rename(&self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<()> {
        self.replaced(from, to, mode).await.map(drop)
    }

    /// Renames; the inode that has lost its last name by it.
    async fn replaced(&self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<Option<Ino>> {
        let op = Request::Rename { from: from.0, from_name: name(from.1), to: to.0, to_name: name(to.1), mode };
        match self.call(op).await? {
            Reply::Removed { last_name_of } => Ok(last_name_of),
            other => panic!("{other:?}"),
        }
    }

    async fn stat(&self, ino: Ino) -> Result<amphi_types::Attr> {
        Ok(self.inode(Request::GetAttr { ino }).await?.attr)
    }

    async fn list(&self, dir: Ino) -> Result<Vec<String>> {
        let (mut cookie, mut all) = (0, Vec::new());
        let (mut at, mut rest) = (dir, Vec::new());
        loop {
            let op = Request::ReadDir { dir: at, cookie, max: 7, plus: true };
            let (entries, end) = match self.call(op).await {
                Ok(Reply::Entries { entries, end, .. }) => (entries, end),
                Err(Errno::Remote) => {
                    rest = self.shards(dir).await?;
                    at = rest.remove(0);
                    continue;
                }
                Err(e) => return Err(e),
                other => panic!("no entries: {other:?}"),
            };
            for e in entries {
                assert!(e.cookie > cookie, "cookies grow over all shards");
                cookie = e.cookie;
                all.push(e.name.to_string());
            }
            match end {
                true if rest.is_empty() => {
                    all.sort();
                    return Ok(all);
                }
                true => at = rest.remove(0),
                false => {}
            }
        }
    }

    /// The tree below `dir` as lines: path, kind, links.
    async fn tree(&self, dir: Ino) -> Result<BTreeMap<String, (Kind, u32)>> {
        let mut found = BTreeMap::new();
        let mut todo = vec![(String::new(), dir)];
        while let Some((path, dir)) = todo.pop() {
            for text in self.list(dir).await? {
                let view = self.lookup(dir, &text).await?;
                let path = format!("{path}/{text}");
                if view.attr.kind == Kind::Dir {
                    todo.push((path.clone(), view.attr.ino));
                }
                found.insert(path, (view.attr.kind, view.attr.nlink));
            }
        }
        Ok(found)
    }
}

/// Runs `story` in a world with a running server of `targets` targets and `workers` workers.
fn with_server<F>(seed: u64, targets: u16, workers: u16, story: F)
where
    F: AsyncFnOnce(&Place, &Client),
{
    let place = Place::new(seed, targets, workers);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let client = place.client(1).await.expect("the client connects");
        story(&place, &client).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}
