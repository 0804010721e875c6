//! The start of a server over a log with arbitrary items.

use amphi_env::sim::{CrashKind, SimConfig};
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_server::{Server, ServerConfig, fsck};
use amphi_transport::{Link, LinkConfig, LinkEvents, Recovery, Timeouts};
use amphi_types::item::{Key, Txn, tag};
use amphi_types::{ByteRange, Cred, Errno, Ino, Name, ObjectId, SessionId, TargetId, Timespec};
use amphi_wire::{Access, Call, Lane, Make, Push, Reply, Request, Role, XattrMode};
use amphi_zone::{OpenOptions, Order, Zone};
use arbitrary::Unstructured;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const ADDR: &str = "unix:/run/server";
const RW: Access = Access { read: true, write: true };
/// Changes that one run adds to the log.
const CHANGES_MAX: usize = 8;
/// Bytes of an added key or value.
const ITEM_BYTES_MAX: usize = 300;
/// Inodes that the walk looks at.
const WALK_MAX: usize = 64;
/// Virtual time that a server gets to start, and a walk to end.
const PATIENCE: Duration = Duration::from_secs(120);
const TAGS: [u8; 14] = [
    tag::INODE,
    tag::DENTRY,
    tag::XATTR,
    tag::META,
    tag::OBJECT,
    tag::EXTENT,
    tag::DELAYED,
    tag::LOGGED,
    tag::CHECKSUM,
    tag::GRANT,
    tag::SESSION,
    tag::REPLY,
    tag::INTENT,
    tag::CONFIG,
];

/// Fills a file system with a little of everything, stops its server, appends changes made of `bytes` to the log, kills
/// the process, checks the folder, starts the server again and walks the tree.
///
/// A start that refuses is fine, as are findings of the check and errors of requests; a panic is not.
pub fn log_replay(bytes: &[u8]) {
    let sim = Sim::new(1, SimConfig::default());
    let config = config();
    sim.block_on(fill(&sim, &config)).expect("filling ends");
    if sim.block_on(append(&sim, &config, bytes)).is_err() {
        return;
    }
    sim.crash("server", CrashKind::Process);
    let node = sim.node("server");
    let _ = sim.block_on(fsck(&node, "data"));
    let started = sim.block_on(Server::start(sim.node("server"), config.clone()));
    if let Ok(Ok(_server)) = started {
        // A server that never answers because it lacks information is an error too, but this property does not check
        // that.
        let env = sim.node("client");
        env.spawn(walk(env.clone()));
        let _ = sim.run_for(PATIENCE);
    }
}

fn config() -> ServerConfig {
    let mut config = ServerConfig::new("data");
    config.targets = Some(1);
    config.workers = 1;
    config.listen = vec![ADDR.into()];
    config.zone_bytes = Some(32 << 20);
    config.log_bytes = 1 << 20;
    config.tunables = vec![("server.checksums".into(), "on".into())];
    config
}

/// A client that holds nothing.
struct Nothing;

impl LinkEvents<SimEnv> for Nothing {
    fn push(&self, _push: Push) {}

    async fn restarted(&self, _recovery: Recovery<SimEnv>) -> Result<(), Errno> {
        Ok(())
    }
}

async fn connect(env: SimEnv, session: u64) -> std::io::Result<Rc<Link<SimEnv>>> {
    let config = LinkConfig {
        addrs: vec![ADDR.into()],
        session: SessionId(session),
        role: Role::Mount,
        name: "client:1".into(),
        key: None,
        identity: None,
        secure: amphi_transport::Secure::Off,
        timeouts: Timeouts::default(),
    };
    Link::connect(env, config, Rc::new(Nothing)).await
}

async fn ask(link: &Link<SimEnv>, op: Request, payload: Option<Buf>) -> Result<Reply, Errno> {
    let call = Call { target: TargetId(0), cred: Cred::root(), op };
    link.call(Lane::Normal, call, payload, 0).await.map_err(|e| e.errno())?.0.result
}

async fn fill(sim: &Sim, config: &ServerConfig) {
    let server = Server::start(sim.node("server"), config.clone()).await.expect("a fresh server starts");
    let link = connect(sim.node("client"), 1).await.expect("it lets a client in");
    let name = |text: &str| Name::new(text).expect("a valid name");
    let made = async |dir, text: &str, make| {
        let reply = ask(&link, Request::Make { dir, name: name(text), make, perm: 0o755, umask: 0 }, None).await;
        match reply {
            Ok(Reply::Made { inode, .. } | Reply::Inode(inode)) => inode.attr.ino,
            other => panic!("{text} was not made: {other:?}"),
        }
    };
    let dir = made(Ino::ROOT, "dir", Make::Dir).await;
    made(dir, "link", Make::Symlink(b"file".to_vec())).await;
    let ino = made(dir, "file", Make::File { open: Some(RW), exclusive: true }).await;
    let object = ObjectId { ino, stripe: 0 };
    for offset in [0, 40_000, 1 << 20] {
        let write = Request::Write {
            object,
            offset,
            generation: 0,
            mtime: Timespec { sec: 1, nsec: 1 },
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        ask(&link, write, Some(Buf::zeroed(10_000))).await.expect("written");
    }
    let set = Request::SetXattr { ino, name: b"user.a".to_vec(), value: vec![7; 40], mode: XattrMode::Set };
    ask(&link, set, None).await.expect("set");
    ask(&link, Request::Link { ino, dir: Ino::ROOT, name: name("second") }, None).await.expect("linked");
    server.stop().await.expect("stopped");
}

/// Appends changes that `bytes` select to the existing items.
async fn append(sim: &Sim, config: &ServerConfig, bytes: &[u8]) -> Result<(), Errno> {
    let env = sim.node("server");
    let (zone, found) = Zone::open(&env, &config.zone_path(0), &OpenOptions::default()).await.expect("opens");
    let mut txn = Txn::default();
    // The bytes may end within a change: those before it count.
    let _ = add_changes(&mut txn, &found.items, &mut Unstructured::new(bytes));
    if txn.is_empty() {
        return Ok(());
    }
    zone.reserve(0).await?;
    let lsn = zone.append(txn, Order::Plain);
    zone.stable(lsn).await
}

fn add_changes(txn: &mut Txn, items: &BTreeMap<Key, Vec<u8>>, bytes: &mut Unstructured) -> arbitrary::Result<()> {
    let keys: Vec<&Key> = items.keys().collect();
    while !bytes.is_empty() && txn.len() < CHANGES_MAX {
        let key = bytes.choose(&keys)?;
        match bytes.int_in_range(0..=3u8)? {
            // An item is missing.
            0 => txn.delete(key),
            // The altered item belongs to another object, name or session.
            1 => txn.put(altered(key, bytes)?, &items[*key]),
            // The altered item has another value.
            2 => txn.put(key, altered(&items[*key], bytes)?),
            // The record gets one more item.
            _ => {
                let mut key = vec![*bytes.choose(&TAGS)?];
                key.extend_from_slice(some(bytes)?);
                txn.put(key, some(bytes)?);
            }
        }
    }
    Ok(())
}

fn some<'a>(bytes: &mut Unstructured<'a>) -> arbitrary::Result<&'a [u8]> {
    let len = usize::from(bytes.arbitrary::<u16>()?) % ITEM_BYTES_MAX;
    bytes.bytes(len.min(bytes.len()))
}

/// `old` with one byte changed, cut short, or with further bytes at the end. The tag is not changed.
fn altered(old: &[u8], bytes: &mut Unstructured) -> arbitrary::Result<Vec<u8>> {
    let mut new = old.to_vec();
    let at = usize::from(bytes.arbitrary::<u8>()?);
    match bytes.int_in_range(0..=3u8)? {
        0 => new.truncate(1 + at % new.len().max(1)),
        1 => new.extend_from_slice(some(bytes)?),
        _ if new.len() > 1 => {
            let last = new.len() - 1;
            new[1 + at % last] = bytes.arbitrary()?;
        }
        _ => {}
    }
    Ok(new)
}

/// Asks for everything that can be reached.
async fn walk(env: SimEnv) {
    let Ok(link) = connect(env, 2).await else { return };
    let mut found = vec![Ino::ROOT];
    let mut next = 0;
    while next < found.len().min(WALK_MAX) {
        let ino = found[next];
        next += 1;
        let _ = ask(&link, Request::GetAttr { ino }, None).await;
        let _ = ask(&link, Request::ListXattr { ino }, None).await;
        let _ = ask(&link, Request::ReadLink { ino }, None).await;
        let list = Request::ReadDir { dir: ino, cookie: 0, max: 20, plus: true };
        if let Ok(Reply::Entries { entries, .. }) = ask(&link, list, None).await {
            found.extend(entries.iter().map(|e| e.ino));
        }
        if ask(&link, Request::Open { ino, access: RW, exec: false }, None).await.is_ok() {
            let object = ObjectId { ino, stripe: 0 };
            for start in [0, 40_000, 1 << 20] {
                let range = ByteRange { start, end: start + 10_000 };
                let _ =
                    ask(&link, Request::Read { object, range, server_lock: true, advice: Default::default() }, None)
                        .await;
            }
            let _ = ask(&link, Request::Extents { object, offset: 0, extents_max: 100 }, None).await;
            let _ = ask(&link, Request::Close { ino, access: RW, atime: None }, None).await;
        }
    }
}
