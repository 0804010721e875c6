//! Hostile peers: a server survives any input, and continues to serve correct clients.
//!
//! Owns: the inputs of an unauthenticated client, a mount, a mount that is bound to a tree, a server and an
//! administrator, which are sent to the real server in the simulator, and the checks meanwhile and afterwards. Does not
//! own: single cases with their right answers (`amphi_transport` and `amphi_server` have those).
//!
//! An input is a frame. Most are valid: a request that decodes, made of numbers that are likely to refer to existing
//! objects (inodes, ends of ranges, sizes that are too large), so it reaches the operations. The others are truncated,
//! flipped, or no frames at all. Requests are not listed by kind: they are any that decode from such numbers, so that a
//! new request is covered without a change here.
//!
//! Checks: nothing panics; an honest mount on the same server is answered all the time; every byte of its file is
//! unchanged where the hostile one may not touch it; the zones are sound at the end. (A server is trusted with the data
//! of others, and so is a mount that acts for root: these may remove any data, by valid requests.)

use crate::dice::Dice;
use amphi_env::sim::{CrashKind, SimConfig};
use amphi_env::{Buf, Conn, Env, Rx, Sim, SimEnv, Tx};
use amphi_server::{Server, ServerConfig};
use amphi_transport::{ClusterKey, Identity, Link, LinkConfig, LinkEvents, Recovery, Timeouts};
use amphi_types::{ByteRange, Cred, Errno, Ino, Name, ObjectId, SessionId, SetAttr, TargetId, Timespec};
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head};
use amphi_wire::handshake::SignedHello;
use amphi_wire::keys::{KeyChange, KeyEntry, KeyRole, Squash, Subtree};
use amphi_wire::{Access, Call, Hello, Lane, Make, Push, Reply, Request, RequestId, Role, VERSION};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The identity of the hostile peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guise {
    /// A peer that does not complete the handshake.
    Stranger,
    /// A mount of another user of the machine.
    User,
    /// A mount that acts for all users.
    Mount,
    /// A mount with a key that is bound to a tree, as root of which it counts.
    Bound,
    /// Another server of the cluster.
    Server,
    /// An administrator.
    Admin,
}

impl Guise {
    /// All identities.
    pub const ALL: [Guise; 6] = [Guise::Stranger, Guise::User, Guise::Mount, Guise::Bound, Guise::Server, Guise::Admin];

    fn role(self) -> Role {
        match self {
            Guise::Server => Role::Server,
            Guise::Admin => Role::Admin,
            _ => Role::Mount,
        }
    }

    /// Returns whether the peer may touch nothing of the honest mount.
    fn is_bound(self) -> bool {
        matches!(self, Guise::Stranger | Guise::User | Guise::Bound | Guise::Admin)
    }
}

/// The results of the attack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Frames sent.
    pub inputs: u64,
    /// Requests that decode.
    pub sound: u64,
    /// Answers.
    pub answered: u64,
    /// Answers that are no errors.
    pub done: u64,
    /// Connections.
    pub connections: u64,
}

impl Tally {
    /// Adds the counts of another attack.
    pub fn add(&mut self, other: &Tally) {
        self.inputs += other.inputs;
        self.sound += other.sound;
        self.answered += other.answered;
        self.done += other.done;
        self.connections += other.connections;
    }
}

const ADDR: &str = "unix:/run/server";
const USER: u32 = 1000;
const KEY: &[u8] = b"the key that a stranger does not know";
/// Frames on one connection, at most: then another session begins.
const FRAMES_A_CONNECTION: u64 = 400;
/// After this many inputs the honest mount is checked.
const LOOK_EVERY: u64 = 250;
/// Bytes of the honest mount's file.
const FILE_BYTES: usize = 20_000;
/// How long the honest mount may wait: an unresponsive mount is evicted after 5 s, one that hangs after the callback
/// deadline.
const PATIENCE: Duration = Duration::from_secs(45);

/// Sends `inputs` frames in one guise.
///
/// Errors: a description of the property that did not hold.
pub fn run(seed: u64, guise: Guise, inputs: u64) -> Result<Tally, String> {
    let config = SimConfig { max_steps: u64::MAX, ..SimConfig::default() };
    let sim = Sim::new(seed, config);
    let env = sim.node("server");
    sim.node("honest");
    sim.node("hostile");
    if guise == Guise::User {
        sim.run_as("hostile", Cred::new(USER, USER, vec![7]));
    }
    let story = async {
        let mut config = ServerConfig::new("data");
        (config.targets, config.workers, config.zone_bytes) = (Some(2), 2, Some(64 << 20));
        (config.log_bytes, config.listen) = (4 << 20, vec![ADDR.into()]);
        // The bytes on the connection have to be readable as frames.
        config.secure = amphi_transport::Secure::Off;
        // Only a peer without the key is a stranger; the others are admitted as the users that the socket reports.
        config.key = (guise == Guise::Stranger).then(|| KEY.to_vec());
        let key = config.key.as_deref().and_then(|key| ClusterKey::new(key).ok());
        let server = Server::start(env.clone(), config).await.map_err(|e| e.line)?;
        let honest = Honest::begin(&sim, key).await?;
        if guise == Guise::Bound {
            honest.bind().await?;
        }
        let attack = Attack::new(sim.node("hostile"), seed, guise, honest.inodes());
        let mut connection = None;
        for n in 0..inputs {
            if connection.is_none() || n % FRAMES_A_CONNECTION == 0 {
                if let Some(before) = connection.take() {
                    attack.leave(before).await;
                }
                connection = attack.dial().await;
            }
            if let Some(there) = &mut connection
                && !attack.send(there).await
            {
                connection = None;
            }
            if n % LOOK_EVERY == LOOK_EVERY - 1 {
                honest.look(guise).await.map_err(|e| format!("after {n} inputs: {e}"))?;
            }
        }
        drop(connection);
        honest.look(guise).await?;
        honest.end().await;
        server.stop().await.map_err(|e| e.line)?;
        drop(server);
        // Requests that wait for something keep their objects locked until their process ends.
        sim.crash("server", CrashKind::Process);
        let env = sim.node("server");
        if guise != Guise::Server {
            let report = amphi_server::fsck(&env, "data").await.map_err(|e| e.line)?;
            if !report.is_clean() {
                return Err(format!("the zones are damaged: {:#?}", report.findings));
            }
        }
        Ok(attack.tally.get())
    };
    sim.block_on(story).map_err(|e| format!("{e:?}"))?
}

/// A mount that keeps to the rules.
struct Honest {
    env: SimEnv,
    link: Rc<Link<SimEnv>>,
    file: Ino,
    dir: Ino,
}

#[derive(Default)]
struct Answers {
    link: RefCell<Weak<Link<SimEnv>>>,
    env: RefCell<Option<SimEnv>>,
}

impl LinkEvents<SimEnv> for Answers {
    fn push(&self, push: Push) {
        let (target, op) = match push {
            Push::Callback { target, lock, .. } => (target, Request::LockCancel { locks: vec![lock] }),
            Push::Glimpse { id, .. } => {
                (TargetId((id >> 48) as u16), Request::GlimpseReply { id, size: 0, mtime: Timespec::default() })
            }
            Push::Revoke { target, id, .. } => (target, Request::Revoked { ids: vec![id] }),
            Push::Company { change, .. } => (TargetId(0), Request::CompanyKnown { change }),
            Push::FileLockClosing { id, ino } => (ino.target(), Request::FileLockClosed { ino, id }),
            Push::WriteFailed { target, id, .. } => (target, Request::WriteFailedKnown { id }),
            Push::DirectoryChanged { target, id, .. } => (target, Request::DirectoryShown { id }),
            Push::GrantWanted { target } => (target, Request::Grant { give_back: Some(0) }),
            Push::Map { .. } | Push::FileLockNews { .. } | Push::GroupLockNews { .. } => {
                return;
            }
        };
        if let (Some(env), Some(link)) = (&*self.env.borrow(), self.link.borrow().upgrade()) {
            let call = Call { target, cred: Cred::root(), op };
            env.spawn(async move { drop(link.call(Lane::Urgent, call, None, 0).await) });
        }
    }

    async fn restarted(&self, _recovery: Recovery<SimEnv>) -> Result<(), Errno> {
        Ok(())
    }
}

fn content() -> Buf {
    let mut bytes = Buf::zeroed(FILE_BYTES);
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 251) as u8);
    bytes
}

impl Honest {
    async fn begin(sim: &Sim, key: Option<ClusterKey>) -> Result<Honest, String> {
        let env = sim.node("honest");
        let events = Rc::<Answers>::default();
        events.env.replace(Some(env.clone()));
        let (addrs, session, role) = (vec![ADDR.to_string()], SessionId(1), Role::Mount);
        let config = LinkConfig {
            addrs,
            session,
            role,
            name: "honest:1".into(),
            key,
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let link = Link::connect(env.clone(), config, events.clone()).await.map_err(|e| e.to_string())?;
        events.link.replace(Rc::downgrade(&link));
        let mut honest = Honest { env, link, file: Ino(0), dir: Ino(0) };
        let name = |text: &str| Name::new(text).expect("a name");
        let access = Access { read: true, write: true };
        // A place where the other user may write, too.
        let make = Request::Make { dir: Ino::ROOT, name: name("open"), make: Make::Dir, perm: 0o777, umask: 0 };
        honest.dir = honest.made(make).await?;
        let file = Make::File { open: Some(access), exclusive: true };
        honest.file = honest
            .made(Request::Make { dir: Ino::ROOT, name: name("honest"), make: file, perm: 0o600, umask: 0 })
            .await?;
        let object = ObjectId { ino: honest.file, stripe: 0 };
        let (mtime, server_lock) = (Timespec { sec: 1, nsec: 0 }, true);
        let write = Request::Write {
            object,
            offset: 0,
            generation: 0,
            mtime,
            server_lock,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        honest.ask(write, Some(content())).await?;
        Ok(honest)
    }

    async fn made(&self, op: Request) -> Result<Ino, String> {
        match self.ask(op, None).await?.0 {
            Reply::Made { inode, .. } => Ok(inode.attr.ino),
            other => Err(format!("{other:?}")),
        }
    }

    async fn ask(&self, op: Request, payload: Option<Buf>) -> Result<(Reply, Option<Buf>), String> {
        let call = Call { target: TargetId(0), cred: Cred::root(), op: op.clone() };
        let answer = self.link.call(Lane::Normal, call, payload, 0);
        match amphi_env::timeout(&self.env, PATIENCE, answer).await {
            None => Err(format!("the honest mount had no answer to {op:?} for {PATIENCE:?}")),
            Some(Err(e)) => Err(format!("the honest mount lost its server: {e}")),
            Some(Ok((answer, payload))) => Ok((answer.result.map_err(|e| format!("{op:?}: {e}"))?, payload)),
        }
    }

    /// Binds a key to the directory where others may write.
    async fn bind(&self) -> Result<(), String> {
        let Reply::Project(project) = self.ask(Request::NewProject, None).await?.0 else {
            return Err("no number for a project".into());
        };
        let set = SetAttr { project: Some(project), ..SetAttr::default() };
        self.ask(Request::SetAttr { ino: self.dir, set }, None).await?;
        let entry = KeyEntry {
            name: "bound".into(),
            fingerprint: Identity::new(SECRET).fingerprint(),
            next: None,
            role: KeyRole::Client,
            read_only: false,
            squash: Squash::default(),
            addresses: Vec::new(),
            sessions_max: 0,
            id: 0,
            subtree: Some(Subtree { root: self.dir, project, path: "/open".into() }),
        };
        match self.ask(Request::Keys { change: Some(KeyChange::Add(entry)) }, None).await?.0 {
            Reply::Keys(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Existing inodes.
    fn inodes(&self) -> Vec<u64> {
        vec![Ino::ROOT.0, self.file.0, self.dir.0]
    }

    async fn look(&self, guise: Guise) -> Result<(), String> {
        if !guise.is_bound() {
            return self.look_in().await;
        }
        let object = ObjectId { ino: self.file, stripe: 0 };
        let op = Request::Read {
            object,
            range: ByteRange::new(0, FILE_BYTES as u64),
            server_lock: true,
            advice: Default::default(),
        };
        let (_, data) = self.ask(op, None).await?;
        if data.is_none_or(|data| data[..] != content()[..]) {
            return Err("bytes of the honest mount's file have changed".into());
        }
        match self.ask(Request::GetAttr { ino: self.file }, None).await?.0 {
            Reply::Inode(view) if view.attr.uid == 0 && view.attr.perm == 0o600 && view.attr.nlink == 1 => {}
            other => return Err(format!("the honest mount's file has changed: {other:?}")),
        }
        if guise != Guise::Bound {
            return Ok(());
        }
        match self.ask(Request::ReadDir { dir: Ino::ROOT, cookie: 0, max: 9, plus: false }, None).await?.0 {
            Reply::Entries { entries, .. } if entries.len() == 2 => Ok(()),
            other => Err(format!("names outside the tree have changed: {other:?}")),
        }
    }

    /// Returns whether a server that may have lost the honest mount's session still answers new clients.
    async fn look_in(&self) -> Result<(), String> {
        let (addrs, session, role) = (vec![ADDR.to_string()], SessionId(self.env.rand()), Role::Admin);
        let (name, timeouts) = ("looks:1".into(), Timeouts::default());
        let config = LinkConfig {
            addrs,
            session,
            role,
            name,
            key: None,
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts,
        };
        let look = async {
            let link = Link::connect(self.env.clone(), config, Rc::<Answers>::default()).await;
            let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::StatFs };
            let answer = link.map_err(|e| e.to_string())?.call(Lane::Normal, call, None, 0).await;
            answer.map_err(|e| e.to_string())?.0.result.map(drop).map_err(|e| e.to_string())
        };
        let looked = amphi_env::timeout(&self.env, PATIENCE, look).await;
        looked.unwrap_or_else(|| Err(format!("no answer for {PATIENCE:?}")))
    }

    async fn end(self) {
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Goodbye };
        let _ = self.link.call(Lane::Urgent, call, None, 0).await;
    }
}

/// A connection of the hostile peer.
struct There {
    way: Way,
    /// Slots with a request in flight; all of them when the connection has ended.
    busy: Rc<RefCell<BTreeSet<u16>>>,
    ended: Rc<Cell<bool>>,
    seq: u64,
}

/// How the peer sends.
enum Way {
    /// Frames in the form in which the attack makes them.
    Raw(amphi_env::sim::SimTx),
    /// Requests behind a handshake that was proved.
    Proved(Rc<Link<SimEnv>>),
}

struct Attack {
    env: SimEnv,
    dice: RefCell<Dice>,
    guise: Guise,
    /// Numbers that are likely to mean something.
    numbers: Vec<u64>,
    sessions: Cell<u64>,
    tally: Rc<Cell<Tally>>,
}

/// The number that separates these choices of a seed from others.
const DICE: u64 = 0x0068_6f73_7469_6c65;
/// More than there are requests: numbers beyond the last request do not decode.
const REQUESTS: u64 = 90;
/// The key of the mount that is bound to a tree.
const SECRET: [u8; 32] = [77; 32];
/// Slots that the peer uses: the first of the normal lane.
const SLOTS: u64 = 16;

impl Attack {
    fn new(env: SimEnv, seed: u64, guise: Guise, inodes: Vec<u64>) -> Attack {
        let mut numbers = inodes;
        for near in numbers.clone() {
            numbers.extend([near.wrapping_sub(1), near + 1, near + 2]);
        }
        numbers.extend([0, 1, 2, 3, 7, 511, 512, 4095, 4096, 4097, FILE_BYTES as u64, 1 << 16, 1 << 20, 64 << 20]);
        numbers.extend([u64::from(USER), 1 << 32, 1 << 47, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX]);
        let (dice, sessions, tally) = (RefCell::new(Dice::new(seed, DICE)), Cell::new(1000), Rc::default());
        Attack { env, dice, guise, numbers, sessions, tally }
    }

    fn count(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    fn below(&self, n: u64) -> u64 {
        self.dice.borrow_mut().below(n)
    }

    async fn dial(&self) -> Option<There> {
        self.count(|t| t.connections += 1);
        if self.guise == Guise::Bound {
            return self.dial_proved().await;
        }
        let (mut tx, rx) = self.env.dial(ADDR).await.ok()?.split();
        if self.guise != Guise::Stranger {
            let (done, ..) = tx.send(Buf::copy_of(&self.hello()), None).await;
            done.ok()?;
        }
        let there = There { way: Way::Raw(tx), busy: Rc::default(), ended: Rc::default(), seq: 0 };
        self.env.spawn(hear(rx, there.busy.clone(), there.ended.clone(), self.tally.clone()));
        // Sometimes the peer speaks before it is welcomed.
        if self.below(20) > 0 {
            self.env.sleep(Duration::from_millis(2)).await;
        }
        Some(there)
    }

    async fn dial_proved(&self) -> Option<There> {
        self.sessions.set(self.sessions.get() + 1);
        let config = LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(self.sessions.get()),
            role: Role::Mount,
            name: "bound:1".into(),
            key: None,
            identity: Some(Identity::new(SECRET)),
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let link = Link::connect(self.env.clone(), config, Rc::<Answers>::default()).await.ok()?;
        Some(There { way: Way::Proved(link), busy: Rc::default(), ended: Rc::default(), seq: 0 })
    }

    /// Gives a connection up.
    async fn leave(&self, there: There) {
        if let Way::Proved(link) = there.way {
            amphi_env::timeout(&self.env, Duration::from_secs(1), link.close()).await;
        }
    }

    /// Sends a request behind the handshake. Returns false if the server answers no request for a while.
    async fn ask(&self, link: &Rc<Link<SimEnv>>, there: &There) -> bool {
        let Some(slot) = self.free_slot(there).await else { return false };
        let Some(call) = self.call() else { return true };
        there.busy.borrow_mut().insert(slot);
        self.count(|t| (t.inputs, t.sound) = (t.inputs + 1, t.sound + 1));
        let payload = (self.below(4) == 0).then(|| Buf::zeroed(self.below(9000) as usize + 1));
        let (link, busy, tally, ended) = (link.clone(), there.busy.clone(), self.tally.clone(), there.ended.clone());
        self.env.spawn(async move {
            match link.call(Lane::Normal, call, payload, 0).await {
                Ok((answer, _)) => {
                    let mut told = tally.get();
                    told.answered += 1;
                    told.done += u64::from(answer.result.is_ok());
                    tally.set(told);
                    busy.borrow_mut().remove(&slot);
                }
                Err(_) => ended.set(true),
            }
        });
        true
    }

    fn hello(&self) -> Vec<u8> {
        self.sessions.set(self.sessions.get() + 1);
        let name = match self.guise {
            Guise::Server => format!("{:016x} {:016x} evil\u{1b}[2J", self.sessions.get(), self.below(1 << 40)),
            _ => "evil:1\nWARN all is well \u{1b}[31m".into(),
        };
        // Sometimes it tries another user's identity. One that acts for all users may; others' numbers are not shown.
        let tries = self.guise.is_bound() && self.guise != Guise::Admin && self.below(30) == 0;
        let session = SessionId(if tries { 1 } else { self.sessions.get() });
        let role = if self.below(30) == 0 { Role::Mount } else { self.guise.role() };
        let clock = self.env.wall();
        let hello = Hello { version: VERSION, session, role, name, last_boot: 0, clock, link: 0, links: 1 };
        frame(Head::new(FrameKind::Hello), &SignedHello { hello, nonce: [3; 32], proof: None, identity: None })
    }

    /// Sends one frame. Returns false if the connection is of no use any more.
    async fn send(&self, there: &mut There) -> bool {
        if there.ended.get() {
            return false;
        }
        if let Way::Proved(link) = &there.way {
            return self.ask(link, there).await;
        }
        let mut bytes = match (self.guise, self.below(60)) {
            (Guise::Stranger, 0..=29) => self.hello(),
            (_, 0) => (0..self.below(300)).map(|_| self.below(256) as u8).collect(),
            _ => match self.request(there).await {
                Some(bytes) => bytes,
                None => return false,
            },
        };
        // In most cases a damaged frame ends the connection, and with it the answers that are under way.
        if self.below(if self.guise == Guise::Stranger { 6 } else { 40 }) == 0 {
            self.spoil(&mut bytes);
        }
        self.count(|t| t.inputs += 1);
        match &mut there.way {
            Way::Raw(tx) => tx.send(Buf::copy_of(&bytes), None).await.0.is_ok(),
            Way::Proved(_) => true,
        }
    }

    fn spoil(&self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len().max(1) as u64) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = self.below(256) as u8;
            }
        }
        if self.below(3) == 0 {
            bytes.truncate(self.below(bytes.len() as u64 + 1) as usize);
        }
    }

    /// A slot in which no request is under way. `None`: there is none for a while.
    async fn free_slot(&self, there: &There) -> Option<u16> {
        let mut slot = None;
        for _ in 0..50 {
            slot = (0..SLOTS as u16).find(|slot| !there.busy.borrow().contains(slot));
            if slot.is_some() || there.ended.get() {
                break;
            }
            self.env.sleep(Duration::from_micros(200)).await;
        }
        slot
    }

    /// Makes a request in a free slot. `None`: there is none for a while.
    async fn request(&self, there: &mut There) -> Option<Vec<u8>> {
        let slot = self.free_slot(there).await?;
        let call = self.call()?;
        there.seq += 1;
        there.busy.borrow_mut().insert(slot);
        self.count(|t| t.sound += 1);
        let payload: Vec<u8> = match self.below(4) {
            0 => (0..self.below(9000)).map(|i| i as u8).collect(),
            _ => Vec::new(),
        };
        let id = RequestId { slot, seq: there.seq };
        let (deadline_ms, payload_len) = (self.below(3) as u32 * 40, payload.len() as u32);
        let head = Head { id, target: call.target, deadline_ms, payload_len, ..Head::new(FrameKind::Request) };
        let mut bytes = frame(head, &call);
        bytes.extend(payload);
        Some(bytes)
    }

    /// Whatever decodes.
    fn call(&self) -> Option<Call> {
        (0..200).find_map(|_| {
            let mut bytes = vec![self.below(3) as u8];
            let uid = [0, 0, u64::from(USER), 5][self.below(4) as usize];
            varint(uid, &mut bytes);
            varint(uid, &mut bytes);
            // The credentials have no groups, and any capabilities.
            bytes.extend([0, self.below(256) as u8]);
            if self.guise == Guise::Server && self.below(8) > 0 {
                return self.question(&bytes);
            }
            bytes.push(self.below(REQUESTS) as u8);
            self.fields(&mut bytes, 60);
            postcard::take_from_bytes::<Call>(&bytes).ok().map(|(call, _)| call)
        })
    }

    /// Values one after another, as fields have them.
    fn fields(&self, bytes: &mut Vec<u8>, most: u64) {
        for _ in 0..4 + self.below(most) {
            match self.below(8) {
                0..=3 => bytes.push(self.below(3) as u8),
                4..=6 => varint(self.numbers[self.below(self.numbers.len() as u64) as usize], bytes),
                _ => bytes.push(self.below(256) as u8),
            }
        }
    }

    /// A query to a server, most of which decode there.
    fn question(&self, before: &[u8]) -> Option<Call> {
        let (call, _) = postcard::take_from_bytes::<Call>(&[before, &[0, 1, 1, b'x']].concat()).ok()?;
        let mut question = vec![self.below(10) as u8];
        self.fields(&mut question, 30);
        Some(Call { op: Request::Ask { question }, ..call })
    }
}

fn varint(mut n: u64, bytes: &mut Vec<u8>) {
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

fn frame(head: Head, body: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 2 << 20];
    let len = head.encode(body, &mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
}

/// Receives the server's messages, and counts answers; answers nothing.
async fn hear(
    mut rx: amphi_env::sim::SimRx,
    busy: Rc<RefCell<BTreeSet<u16>>>,
    ended: Rc<Cell<bool>>,
    tally: Rc<Cell<Tally>>,
) {
    while let (Ok(()), head) = rx.recv_exact(Buf::zeroed(HEAD_BYTES)).await {
        let parsed = <&[u8; HEAD_BYTES]>::try_from(&head[..]).ok().and_then(|head| Head::parse(head).ok());
        let Some(head) = parsed else { break };
        let (done, body) = rx.recv_exact(Buf::zeroed(head.body_len as usize)).await;
        if done.is_err() {
            break;
        }
        if head.inline_len() > 0 && rx.recv_exact(Buf::zeroed(head.inline_len())).await.0.is_err() {
            break;
        }
        if head.kind == FrameKind::Reply {
            busy.borrow_mut().remove(&head.id.slot);
            let mut told = tally.get();
            told.answered += 1;
            // The first byte of an answer says whether it is an error.
            told.done += u64::from(body.first() == Some(&0));
            tally.set(told);
        }
    }
    ended.set(true);
}
