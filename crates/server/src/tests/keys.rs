//! Clients with keys: roles, read-only keys, squashes, maps of users, bounds of mounts, the audit log; each tried with
//! every request there is.

use super::*;
use crate::config::AuditFull;
use amphi_transport::Identity;
use amphi_types::{Account, AccountKind, ByteRange, Caps, Layout, Limits, SetAttr};
use amphi_wire::keys::{
    AddressRange, Fingerprint, IdRange, KeyChange, KeyEntry, KeyRegistry, KeyRole, KeySettings, NOBODY, Squash,
    SquashTo,
};
use amphi_wire::{
    BatchPart, Cover, FileLockFamily, FileLockOwner, LockExtent, LockMode, ReadPart, ServerInfo, XattrMode,
};
use std::sync::{Arc, Mutex};

/// The identity whose number all these tests use.
pub(super) fn identity(n: u8) -> Identity {
    Identity::new([n; 32])
}

/// An entry for the key of `identity(n)`.
pub(super) fn entry(name: &str, n: u8, role: KeyRole) -> KeyEntry {
    KeyEntry {
        name: name.into(),
        fingerprint: identity(n).fingerprint(),
        next: None,
        role,
        read_only: false,
        squash: Squash::default(),
        addresses: Vec::new(),
        sessions_max: 0,
        id: 0,
    }
}

impl Place {
    /// A client that proves the key of `identity(n)`.
    async fn keyed(&self, session: u64, role: Role, n: u8) -> std::io::Result<Client> {
        let config = LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(session),
            role,
            name: format!("keyed:{session}"),
            key: None,
            identity: Some(identity(n)),
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let held = Rc::<Held>::default();
        held.mortal.set(true);
        let env = self.sim.node("client");
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect(env, config, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok(Client { link, held, cred: RefCell::new(Cred::root()), opens: Cell::new(false) })
    }
}

impl Client {
    /// Changes the registry.
    async fn keys(&self, change: KeyChange) -> std::result::Result<KeyRegistry, String> {
        match self.call(Request::Keys { change: Some(change) }).await.expect("an administrator") {
            Reply::Keys(registry) => Ok(*registry),
            Reply::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    async fn add(&self, entry: KeyEntry) {
        self.keys(KeyChange::Add(entry)).await.expect("added");
    }

    async fn chmod(&self, ino: Ino, perm: u16) {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        self.inode(Request::SetAttr { ino, set }).await.expect("the owner changes it");
    }
}

fn why<T>(result: std::io::Result<T>) -> String {
    result.err().expect("refused").to_string()
}

/// One request of each kind, about these inodes, each with all its optional fields.
fn every_request(dir: Ino, ino: Ino) -> Vec<Request> {
    let object = ObjectId { ino, stripe: 0 };
    let (range, mtime) = (ByteRange::new(0, 4096), Timespec::default());
    let owner = FileLockOwner { family: FileLockFamily::Posix, id: 1 };
    let lock = FileLockSpec { ino, owner, pid: 1, mode: LockMode::Read, range };
    let (name, access) = (name("n"), RW);
    let write = |server_lock| Request::Write {
        object,
        offset: 0,
        generation: 0,
        mtime,
        server_lock,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Cover::None,
    };
    let server = ServerInfo { id: 9, name: "evil".into(), addrs: vec!["tcp:evil:1".into()], targets: Vec::new() };
    vec![
        Request::Lookup { dir, name: name.clone() },
        Request::Parent { dir },
        Request::GetAttr { ino },
        Request::GetAttrNow { ino },
        Request::SetAttr { ino, set: SetAttr { perm: Some(0o777), ..SetAttr::default() } },
        Request::Make { dir, name: name.clone(), make: Make::Dir, perm: 0o777, umask: 0 },
        Request::MakeTmp { dir, perm: 0o600, umask: 0, open: access },
        Request::Link { ino, dir, name: name.clone() },
        Request::Unlink { dir, name: name.clone() },
        Request::RmDir { dir, name: name.clone() },
        Request::Rename {
            from: dir,
            from_name: name.clone(),
            to: dir,
            to_name: name.clone(),
            mode: RenameMode::Replace,
        },
        Request::ReadLink { ino },
        Request::ReadDir { dir, cookie: 0, max: 10, plus: true },
        Request::Open { ino, access, exec: false },
        Request::Close { ino, access, atime: Some(mtime) },
        Request::Discard { ino, opens: 1 },
        Request::GetXattr { ino, name: b"user.a".to_vec() },
        Request::ListXattr { ino },
        Request::SetXattr { ino, name: b"user.a".to_vec(), value: b"b".to_vec(), mode: XattrMode::Set },
        Request::RemoveXattr { ino, name: b"user.a".to_vec() },
        Request::SetLayout { ino, layout: Some(Layout::growing(1)), advice: None },
        Request::StatFs,
        Request::Read { object, range, server_lock: true, advice: Default::default() },
        write(true),
        Request::Punch { object, range, generation: 0, mtime, server_lock: true },
        Request::Allocate { object, range, generation: 0, mtime, server_lock: true },
        Request::DataMap { object, offset: 0, runs_max: 9 },
        Request::Extents { object, offset: 0, extents_max: 9 },
        Request::Sync { file: Some(ino) },
        Request::Spread { ino },
        Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact },
        Request::GroupLock { object, group: 1, wait: false, asked: None },
        Request::LockCancel { locks: vec![1] },
        Request::LockKept { locks: vec![1] },
        Request::GlimpseReply { id: 1, size: 1, mtime },
        Request::Represent { opens: vec![(ino, access)], locks: Vec::new() },
        Request::RepresentFor { opens: vec![(ino, access)], locks: Vec::new(), users: Box::default() },
        Request::Goodbye,
        Request::Status,
        Request::Tunables { pattern: "server.token_ms".into(), value: None },
        Request::Tunables { pattern: "server.token_ms".into(), value: Some("7".into()) },
        Request::Counters { reset: false },
        Request::Counters { reset: true },
        Request::Revoked { ids: vec![1] },
        Request::CompanyKnown { change: 0 },
        Request::Map,
        Request::Join { server, cluster: 0, new_targets: 1, epoch: 0 },
        Request::Ask { question: vec![1, 2, 3] },
        Request::FileLockSet { lock, number: 1, wait: false },
        Request::FileLockCancel { lock, number: 1 },
        Request::FileLockUnlock { ino, owner, range },
        Request::FileLockTest { lock, number: 1 },
        Request::RepresentFileLocks { locks: Vec::new(), converted: Vec::new() },
        Request::WriteBatch {
            parts: vec![BatchPart {
                object,
                offset: 0,
                len: 1,
                generation: 0,
                mtime,
                checksums: Default::default(),
                cover: Cover::None,
            }],
        },
        Request::CloseBatch { closes: vec![(ino, access, Some(mtime))] },
        Request::ReadBatch {
            dir,
            parts: vec![ReadPart { name, ino, data: false }],
            bytes_max: 10,
            ask_back: false,
            tokens: false,
        },
        Request::PagesLeft { ino },
        Request::PagesTaken { ino, left: 1 },
        Request::PagesRead { object, range, left: 1 },
        Request::PagesWrite { object, offset: 0, generation: 0, mtime, left: 1, checksums: Default::default() },
        Request::CompanyKept { change: 0 },
        Request::FileLockClosed { ino, id: 1 },
        Request::WriteFailedKnown { id: 1 },
        Request::Grant { give_back: None },
        Request::GroupWanted { object },
        Request::Keys { change: None },
        Request::Keys { change: Some(KeyChange::RequireIdentity(false)) },
        Request::Evict { who: "0000000000000001".into() },
        Request::DirectoryShown { id: 1 },
        Request::Charged { ino },
        Request::Account { account: TREE },
        Request::Accounts { after: None },
        Request::SetLimits { account: TREE, limits: Limits::default() },
        Request::NewProject,
    ]
}

/// A tree that does not exist.
const TREE: Account = Account { kind: AccountKind::Project, id: 4_000_000 };

/// Place of a request in the list of all.
fn variant(op: &Request) -> u8 {
    amphi_wire::handshake::proven_bytes(op)[0]
}

/// The name of `op`, for messages and lists.
fn called(op: &Request) -> String {
    format!("{op:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// Goal: the list above has every request. Method: their places are all there; the one behind the last is none.
#[test]
fn the_list_is_whole() {
    let all = every_request(Ino::ROOT, Ino::ROOT);
    let mut places: Vec<u8> = all.iter().map(variant).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places, (0..places.len() as u8).collect::<Vec<u8>>());
    // As the next request would begin, with enough zeros for anything.
    let mut behind = vec![0; 64];
    behind[0] = places.len() as u8;
    assert!(postcard::take_from_bytes::<Request>(&behind).is_err(), "a request is missing in the list");
}

/// Goal: a key has the rights of its role and no others: a client's does not serve, administer, or read others'
/// counters or sessions; an administrator's does not mount, touches no file and acts for no server. Method: all
/// connections with all keys, then all requests on those that are admitted.
#[test]
fn a_role_is_all_that_a_key_has() {
    with_server(91, 2, 2, async |place, root| {
        let f = root.make(Ino::ROOT, "f", Make::File { open: None, exclusive: true }).await.unwrap();
        root.chmod(f, 0o666).await;
        root.chmod(Ino::ROOT, 0o777).await;
        for (name, n, role) in [("c", 1, KeyRole::Client), ("s", 2, KeyRole::Server), ("a", 3, KeyRole::Admin)] {
            root.add(entry(name, n, role)).await;
        }
        for (n, role, words) in [
            (1, Role::Server, "this is the key of a client; a server needs one with the role server"),
            (2, Role::Mount, "this is the key of a server, which does not mount"),
            (2, Role::Admin, "this is the key of a server"),
            (3, Role::Mount, "this is the key of an administrator, which does not mount"),
            (3, Role::Server, "this is the key of a admin"),
            (4, Role::Mount, "is not one of this cluster's"),
            (4, Role::Admin, "is not one of this cluster's"),
            (4, Role::Server, "is not one of this cluster's"),
        ] {
            let refused = why(place.keyed(50 + u64::from(n), role, n).await);
            assert!(refused.contains(words), "{refused}");
        }
        let client = place.keyed(11, Role::Mount, 1).await.expect("a client mounts");
        let looks = place.keyed(12, Role::Admin, 1).await.expect("a client looks around");
        let admin = place.keyed(13, Role::Admin, 3).await.expect("an administrator");
        let administration = ["Counters", "Keys", "Evict"];
        let peers = ["Join", "Ask", "RepresentFor"];
        let around = ["StatFs", "Status", "Map", "Goodbye"];
        for op in every_request(Ino::ROOT, f) {
            let name = called(&op);
            let sets = matches!(op, Request::Tunables { value: Some(_), .. });
            let no_mount = peers.contains(&name.as_str()) || administration.contains(&name.as_str()) || sets;
            if name == "Goodbye" {
                continue;
            }
            let asked = client.call(op.clone()).await;
            assert_eq!(asked == Err(Errno::Perm), no_mount, "a client's mount: {name} {asked:?}");
            let tunes = matches!(op, Request::Tunables { value: None, .. });
            let looked = looks.call(op.clone()).await;
            let allowed = around.contains(&name.as_str()) || tunes;
            // Requests for mounts alone are refused behind the gate, or have no effect without a mount's session.
            assert!(allowed == looked.is_ok() || name.starts_with("Company"), "a client looks: {name} {looked:?}");
            let asked = admin.call(op.clone()).await;
            let allowed = allowed || sets || administration.contains(&name.as_str());
            assert!(allowed == asked.is_ok() || name.starts_with("Company"), "an administrator: {name} {asked:?}");
        }
        let Ok(Reply::Status { sessions, .. }) = looks.call(Request::Status).await else { panic!("no status") };
        let seen: Vec<(u64, &str)> = sessions.iter().map(|s| (s.session.0, s.key.as_str())).collect();
        assert_eq!(seen, [(11, "c")], "its own alone");
        let Ok(Reply::Status { sessions, .. }) = admin.call(Request::Status).await else { panic!("no status") };
        assert_eq!(sessions.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(), ["", "c"], "all of them");
    });
}

/// Goal: an entry is changed without being removed: existing mounts continue in their sessions and have the rights of
/// the entry from the change on, in each point; a client whose address is no longer permitted loses its connection and
/// is not admitted again. Method: one mount, its entry changed step by step.
#[test]
fn settings_change_while_a_mount_is_there() {
    // The second one is served by another worker than the one that changes its entry.
    for session in [2, 5] {
        with_server(97, 2, 2, async |place, root| {
            root.chmod(Ino::ROOT, 0o777).await;
            let f = root.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
            root.chmod(f, 0o666).await;
            root.add(entry("k", 1, KeyRole::Client)).await;
            let c = place.keyed(session, Role::Mount, 1).await.expect("it mounts");
            let made = async |name: &str| {
                let ino = c.make(Ino::ROOT, name, Make::File { open: None, exclusive: true }).await?;
                root.stat(ino).await.map(|attr| (attr.uid, attr.gid))
            };
            let set = async |settings: KeySettings| {
                root.keys(KeyChange::Set { name: "k".into(), settings: Box::new(settings) }).await
            };
            let plain = KeySettings::default;
            assert_eq!(made("a").await, Ok((0, 0)));
            let to = |id| Some(Some(SquashTo { uid: id, gid: id }));
            set(KeySettings { root: to(77), ..plain() }).await.unwrap();
            assert_eq!(made("b").await, Ok((77, 77)), "root of a mount that was there is squashed");
            set(KeySettings { all: to(78), ..plain() }).await.unwrap();
            assert_eq!(made("c").await, Ok((78, 78)));
            set(KeySettings { root: Some(None), all: Some(None), ..plain() }).await.unwrap();
            assert_eq!(made("d").await, Ok((0, 0)));
            let range = IdRange { client: 0, server: 5000, count: 10 };
            set(KeySettings { uids: Some(vec![range]), gids: Some(vec![range]), ..plain() }).await.unwrap();
            assert_eq!(made("e").await, Ok((5000, 5000)));
            set(KeySettings { uids: Some(Vec::new()), gids: Some(Vec::new()), ..plain() }).await.unwrap();
            set(KeySettings { read_only: Some(true), ..plain() }).await.unwrap();
            assert_eq!(made("g").await, Err(Errno::ReadOnly));
            assert!(c.stat(f).await.is_ok(), "it reads");
            set(KeySettings { read_only: Some(false), ..plain() }).await.unwrap();
            assert_eq!(made("g").await, Ok((0, 0)));
            set(KeySettings { sessions_max: Some(1), ..plain() }).await.unwrap();
            assert!(why(place.keyed(3, Role::Mount, 1).await).contains("which is the most"));
            assert!(c.stat(f).await.is_ok(), "it goes on in its session");
            let registry =
                set(KeySettings { addresses: Some(vec![AddressRange::V4([10, 0, 0, 0], 8)]), ..plain() }).await;
            assert_eq!(registry.unwrap().keys.len(), 1);
            let env = place.sim.node("client");
            env.sleep(Duration::from_secs(1)).await;
            let asked = amphi_env::timeout(&env, Duration::from_secs(2), c.stat(f)).await;
            assert!(asked.is_none_or(|a| a.is_err()), "it does not count from there any more");
            assert!(why(place.keyed(session, Role::Mount, 1).await).contains("does not count from"));
            set(KeySettings { addresses: Some(vec![AddressRange::Unix]), ..plain() }).await.unwrap();
            env.sleep(Duration::from_secs(5)).await;
            assert!(c.stat(f).await.is_ok(), "the same session goes on where it may come again");
            let refused = set(KeySettings { sessions_max: Some(1), ..plain() }).await;
            assert!(refused.is_err_and(|why| why.contains("is that way already")));
        });
    }
}

/// Goal: a read-only key changes nothing by any request, not even access times, and reads. Method: every request; what
/// the files are afterwards.
#[test]
fn a_read_only_key_changes_nothing() {
    with_server(92, 1, 1, async |place, root| {
        let f = root.make(Ino::ROOT, "n", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        root.chmod(f, 0o666).await;
        root.chmod(Ino::ROOT, 0o777).await;
        let object = ObjectId { ino: f, stripe: 0 };
        root.add(KeyEntry { read_only: true, ..entry("reader", 1, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let before = (root.stat(f).await.unwrap(), root.stat(Ino::ROOT).await.unwrap());
        let read = Access { read: true, write: false };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("it reads");
        let changes = [
            "SetAttr",
            "Make",
            "MakeTmp",
            "Link",
            "Unlink",
            "RmDir",
            "Rename",
            "Open",
            "SetXattr",
            "RemoveXattr",
            "SetLayout",
            "SetLimits",
            "NewProject",
            "Write",
            "Punch",
            "Allocate",
            "Spread",
            "LockEnqueue",
            "GroupLock",
            "Represent",
            "WriteBatch",
            "PagesWrite",
            "Grant",
        ];
        for op in every_request(Ino::ROOT, f).into_iter().filter(|op| *op != Request::Goodbye) {
            let asked = c.call(op.clone()).await;
            let name = called(&op);
            assert_eq!(asked == Err(Errno::ReadOnly), changes.contains(&name.as_str()), "{name} {asked:?}");
        }
        let later = Timespec { sec: 3_000_000_000, nsec: 0 };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("again");
        c.call(Request::Close { ino: f, access: read, atime: Some(later) }).await.expect("closed");
        let bytes =
            Request::Read { object, range: ByteRange::new(0, 10), server_lock: true, advice: Default::default() };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("again");
        c.call(bytes).await.expect("its data");
        c.call(Request::LockEnqueue {
            object,
            mode: LockMode::Read,
            range: ByteRange::new(0, 10),
            extent: LockExtent::Exact,
        })
        .await
        .expect("a lock to read under");
        assert_eq!((root.stat(f).await.unwrap(), root.stat(Ino::ROOT).await.unwrap()), before);
        assert_eq!(root.list(Ino::ROOT).await.unwrap(), ["n"]);
    });
}

/// Goal: root of a client is nobody where he is squashed, whatever groups and capabilities his requests name, in every
/// check: owners, modes, sticky directories, set-group-id, times, attributes. Other users are themselves, without
/// capabilities and without group 0. Method: requests of a hostile mount beside a trusted one's.
#[test]
fn root_is_squashed_everywhere() {
    with_server(93, 2, 2, async |place, root| {
        root.chmod(Ino::ROOT, 0o1777).await;
        let secret = root.make(Ino::ROOT, "secret", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        root.chmod(secret, 0o640).await;
        let closed = root.mkdir(Ino::ROOT, "closed").await.unwrap();
        root.chmod(closed, 0o700).await;
        let squash = Squash { root: Some(SquashTo { uid: 600, gid: 601 }), ..Squash::default() };
        root.add(KeyEntry { squash, ..entry("node", 1, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let all = |uid, gid, groups: &[u32]| Cred { caps: Caps::ALL, ..Cred::new(uid, gid, groups.to_vec()) };
        for (said, counts) in [
            (Cred::root(), (600, 601)),
            (all(0, 0, &[0, 4]), (600, 601)),
            (all(0, 1000, &[]), (600, 601)),
            (all(1000, 1000, &[]), (1000, 1000)),
            (all(1000, 0, &[]), (1000, 601)),
        ] {
            *c.cred.borrow_mut() = said.clone();
            let text = format!("f-{}-{}-{}", said.uid, said.gid, said.groups.len());
            let made = c.make(Ino::ROOT, &text, Make::File { open: None, exclusive: true }).await.unwrap();
            let attr = root.stat(made).await.unwrap();
            assert_eq!((attr.uid, attr.gid), counts, "{said:?}");
            for (op, refused) in [
                (Request::Open { ino: secret, access: RW, exec: false }, Errno::Access),
                (
                    Request::Open { ino: secret, access: Access { read: true, write: false }, exec: false },
                    Errno::Access,
                ),
                (Request::Lookup { dir: closed, name: name("x") }, Errno::Access),
                (Request::ReadDir { dir: closed, cookie: 0, max: 9, plus: true }, Errno::Access),
                (Request::Unlink { dir: Ino::ROOT, name: name("secret") }, Errno::Perm),
                (
                    Request::SetXattr {
                        ino: secret,
                        name: b"trusted.x".to_vec(),
                        value: Vec::new(),
                        mode: XattrMode::Set,
                    },
                    Errno::Perm,
                ),
                (
                    Request::SetXattr {
                        ino: made,
                        name: b"security.capability".to_vec(),
                        value: vec![0; 20],
                        mode: XattrMode::Set,
                    },
                    Errno::Perm,
                ),
            ] {
                assert_eq!(c.call(op.clone()).await.map(drop), Err(refused), "{said:?}: {op:?}");
            }
            for set in [
                SetAttr { uid: Some(0), ..SetAttr::default() },
                SetAttr { gid: Some(0), ..SetAttr::default() },
                SetAttr { perm: Some(0o4755), uid: Some(0), ..SetAttr::default() },
            ] {
                assert_eq!(c.call(Request::SetAttr { ino: made, set }).await.map(drop), Err(Errno::Perm), "{set:?}");
            }
            let mtime = Some(amphi_types::TimeSet::At(Timespec::default()));
            for set in [
                SetAttr { perm: Some(0o777), ..SetAttr::default() },
                SetAttr { mtime, ..SetAttr::default() },
                SetAttr { size: Some(0), ..SetAttr::default() },
                SetAttr { size: Some(0), open_for_write: true, ..SetAttr::default() },
            ] {
                let asked = c.call(Request::SetAttr { ino: secret, set }).await.map(drop);
                assert!(matches!(asked, Err(Errno::Perm | Errno::Access)), "{said:?}: {set:?} {asked:?}");
            }
            let node = Make::Node { kind: Kind::CharDev, rdev: 1 };
            assert_eq!(c.make(Ino::ROOT, &format!("dev-{text}"), node).await, Err(Errno::Perm), "devices are root's");
        }
        // Set-group-id of a group that he only claims to be in.
        *c.cred.borrow_mut() = all(1000, 0, &[0]);
        let f = c.make(Ino::ROOT, "sgid", Make::File { open: None, exclusive: true }).await.unwrap();
        c.chmod(f, 0o2755).await;
        let attr = root.stat(f).await.unwrap();
        assert_ne!(attr.gid, 0, "group 0 is squashed as root is");
        let kept = entry("kept", 2, KeyRole::Client);
        root.add(kept).await;
        let trusted = place.keyed(3, Role::Mount, 2).await.expect("it mounts");
        assert!(trusted.call(Request::Open { ino: secret, access: RW, exec: false }).await.is_ok(), "root=keep");
    });
}

/// Goal: after a restart of the server a mount whose root is squashed continues with the open files of its users,
/// whoever they are, and gets nothing else by presenting it: neither files of root nor those of users that it does not
/// act for. A client's own statement of an open's user is not trusted. Method: a restart; files of several owners and
/// modes, all of which the mount presents as open.
#[test]
fn opens_are_believed_for_users_of_the_client() {
    let place = Place::new(99, 2, 1);
    let run = async {
        let server = place.start().await.expect("it starts");
        let root = place.client(1).await.unwrap();
        root.chmod(Ino::ROOT, 0o777).await;
        let squash = Squash {
            root: Some(SquashTo { uid: 600, gid: 600 }),
            uids: vec![IdRange { client: 1000, server: 1000, count: 10 }],
            gids: vec![IdRange { client: 1000, server: 1000, count: 10 }],
            ..Squash::default()
        };
        root.add(KeyEntry { squash, ..entry("node", 1, KeyRole::Client) }).await;
        let object = |ino| ObjectId { ino, stripe: 0 };
        let read = |ino| Request::Read {
            object: object(ino),
            range: ByteRange::new(0, 10),
            server_lock: true,
            advice: Default::default(),
        };
        let mut files = Vec::new();
        for (n, (uid, gid, perm, allowed)) in [
            (1000, 1000, 0o600, true),
            (1009, 5, 0o400, true),
            (0, 1001, 0o640, true),
            (0, 0, 0o644, true),
            (600, 600, 0o600, true),
            (0, 0, 0o600, false),
            (0, 0, 0o660, false),
            (1010, 1010, 0o600, false),
            (1010, 1010, 0o660, false),
            (2000, 600, 0o606, true),
            // The owner's bits alone count for the owner, also where others have more.
            (1003, 1003, 0o066, true),
            (0, 5, 0o640, false),
        ]
        .into_iter()
        .enumerate()
        {
            let f = root.make(Ino::ROOT, &format!("f{n}"), Make::File { open: None, exclusive: true }).await.unwrap();
            let set = SetAttr { uid: Some(uid), gid: Some(gid), perm: Some(perm), ..SetAttr::default() };
            root.inode(Request::SetAttr { ino: f, set }).await.unwrap();
            files.push((f, allowed));
        }
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let hostile = Request::RepresentFor { opens: Vec::new(), locks: Vec::new(), users: Box::default() };
        assert_eq!(c.call(hostile.clone()).await.map(drop), Err(Errno::Perm));
        assert_eq!(root.call(hostile).await.map(drop), Err(Errno::Perm));
        let access = Access { read: true, write: false };
        *c.held.opens.borrow_mut() = files.iter().map(|(f, _)| (*f, access)).collect();
        server.stop().await.expect("it stops");
        let server = place.start().await.expect("again");
        for (f, allowed) in files {
            let asked = c.call(read(f)).await;
            assert_eq!(asked.is_ok(), allowed, "{f:?} {asked:?}");
            assert!(allowed || asked == Err(Errno::BadFd), "{asked:?}");
        }
        assert!(c.held.restarts.get() > 0, "it presented them");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: with `all` everybody is one user; with maps users are others on the servers, are shown as themselves, and
/// those outside are refused or shown as nobody; the numbers of `chown` and of access control lists are translated as
/// well. Method: a mount with maps beside a trusted one.
#[test]
fn users_are_mapped_both_ways() {
    with_server(94, 2, 2, async |place, root| {
        root.chmod(Ino::ROOT, 0o1777).await;
        let theirs = root.make(Ino::ROOT, "roots", Make::File { open: None, exclusive: true }).await.unwrap();
        root.chmod(theirs, 0o644).await;
        let all = Squash { all: Some(SquashTo { uid: 99, gid: 98 }), ..Squash::default() };
        root.add(KeyEntry { squash: all, ..entry("all", 1, KeyRole::Client) }).await;
        let ids = |client, server| vec![IdRange { client, server, count: 100 }];
        let squash = Squash { uids: ids(1000, 50_000), gids: ids(1000, 60_000), ..Squash::default() };
        root.add(KeyEntry { squash, ..entry("mapped", 2, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        for (n, cred) in [Cred::root(), Cred::new(5, 6, vec![0])].into_iter().enumerate() {
            *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..cred };
            let f = c.make(Ino::ROOT, &format!("all-{n}"), Make::File { open: None, exclusive: true }).await.unwrap();
            let attr = root.stat(f).await.unwrap();
            assert_eq!((attr.uid, attr.gid), (99, 98));
        }
        let c = place.keyed(3, Role::Mount, 2).await.expect("it mounts");
        assert!(c.stat(theirs).await.is_ok_and(|a| (a.uid, a.gid) == (NOBODY, NOBODY)), "what it does for itself");
        *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..Cred::new(1005, 1006, vec![1007, 4, 1099]) };
        let f = c.make(Ino::ROOT, "mapped", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let (here, there) = (c.stat(f).await.unwrap(), root.stat(f).await.unwrap());
        assert_eq!(((here.uid, here.gid), (there.uid, there.gid)), ((1005, 1006), (50_005, 60_006)));
        let set = |uid, gid| Request::SetAttr { ino: f, set: SetAttr { uid, gid, ..SetAttr::default() } };
        let view = c.inode(set(None, Some(1099))).await.expect("a group that he is in");
        assert_eq!((view.attr.gid, root.stat(f).await.unwrap().gid), (1099, 60_099));
        for (uid, gid) in [(Some(0), None), (None, Some(0)), (Some(50_006), None), (None, Some(4)), (Some(1006), None)]
        {
            assert_eq!(c.call(set(uid, gid)).await.map(drop), Err(Errno::Perm), "{uid:?} {gid:?}");
        }
        for uid in [999, 1100, 50_005] {
            *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..Cred::new(uid, 1000, vec![]) };
            assert_eq!(c.lookup(Ino::ROOT, "mapped").await.map(drop), Err(Errno::Perm), "{uid} is none of them");
        }
        // Names and their inodes, as listings and look-ups show them.
        *c.cred.borrow_mut() = Cred::new(1005, 1006, vec![]);
        assert_eq!(c.lookup(Ino::ROOT, "mapped").await.unwrap().attr.uid, 1005);
        let listed = c.call(Request::ReadDir { dir: Ino::ROOT, cookie: 0, max: 100, plus: true }).await.unwrap();
        let Reply::Entries { entries, .. } = listed else { panic!("no entries") };
        let views: Vec<_> = entries.iter().filter_map(|e| e.inode).collect();
        assert!(!views.is_empty() && views.iter().all(|v| [1005, NOBODY].contains(&v.attr.uid)), "{views:?}");
        // user::rw-, user:1007:r--, group::r--, group:1008:rw-, mask::rw-, other::---
        let acl = |user: u32, group: u32| {
            let entries: [(u16, u16, u32); 6] =
                [(1, 6, u32::MAX), (2, 4, user), (4, 4, u32::MAX), (8, 6, group), (16, 6, u32::MAX), (32, 0, u32::MAX)];
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in entries {
                bytes.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
            }
            bytes
        };
        let name = || b"system.posix_acl_access".to_vec();
        let put = |value| Request::SetXattr { ino: f, name: name(), value, mode: XattrMode::Set };
        assert_eq!(c.call(put(acl(5, 1008))).await.map(drop), Err(Errno::Perm), "a user outside");
        let view = c.inode(put(acl(1007, 1008))).await.expect("a list");
        assert_eq!(view.attr.uid, 1005);
        let get = || Request::GetXattr { ino: f, name: name() };
        assert_eq!(c.call(get()).await, Ok(Reply::Bytes(acl(1007, 1008))));
        assert_eq!(root.call(get()).await, Ok(Reply::Bytes(acl(50_007, 60_008))), "as the servers have it");
        root.inode(put(acl(7, 60_009))).await.expect("root changes it");
        assert_eq!(c.call(get()).await, Ok(Reply::Bytes(acl(NOBODY, 1009))));
    });
}

/// Goal: a removed key ends at once: its mount's requests are refused, its locks go to the waiting requests, it does
/// not come back, nor does a second mount; other mounts of the cluster continue. So with `Evict`, after which it may
/// come back. Method: a mount with a lock that another one waits for.
#[test]
fn a_removed_key_is_over() {
    with_server(95, 2, 2, async |place, root| {
        root.chmod(Ino::ROOT, 0o777).await;
        let f = root.create(Ino::ROOT, "f").await.unwrap();
        root.chmod(f, 0o666).await;
        root.add(entry("k", 1, KeyRole::Client)).await;
        root.add(entry("boss", 3, KeyRole::Admin)).await;
        let boss = place.keyed(9, Role::Admin, 3).await.expect("an administrator");
        let env = place.sim.node("client");
        let object = ObjectId { ino: f, stripe: 0 };
        let lock = Request::LockEnqueue {
            object,
            mode: LockMode::Write,
            range: ByteRange::new(0, 4096),
            extent: LockExtent::Exact,
        };
        for (session, removes) in [(20, false), (21, true)] {
            let c = place.keyed(session, Role::Mount, 1).await.expect("it mounts");
            c.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
            c.call(lock.clone()).await.unwrap();
            c.held.deaf.set(true);
            let begun = env.now();
            match removes {
                true => drop(boss.keys(KeyChange::Remove("k".into())).await.unwrap()),
                false => assert_eq!(boss.call(Request::Evict { who: "k".into() }).await, Ok(Reply::Evicted(1))),
            }
            let asked = amphi_env::timeout(&env, Duration::from_secs(5), c.stat(f)).await;
            assert!(asked.is_none_or(|a| a.is_err()), "it is over");
            root.call(lock.clone()).await.expect("granted to who waits");
            assert!(env.now().since(begun) < Duration::from_secs(6), "it was not waited for");
            // The client of the test comes back under its id, as a new session, if it may.
            loop {
                if !removes {
                    break;
                }
                let Ok(Reply::Status { sessions, .. }) = boss.call(Request::Status).await else { panic!("no status") };
                if sessions.iter().all(|s| s.session.0 != session) {
                    break;
                }
                assert!(env.now().since(begun) < Duration::from_secs(8), "it is gone");
                env.sleep(Duration::from_millis(100)).await;
            }
            let again = place.keyed(session + 100, Role::Mount, 1).await;
            assert_eq!(again.is_ok(), !removes, "after an eviction it may come again");
            if let Ok(again) = again {
                again.call(Request::Goodbye).await.unwrap();
            }
        }
        let refused = boss.call(Request::Evict { who: "no\nbody".into() }).await.unwrap();
        assert!(matches!(&refused, Reply::Refused(why) if why.contains("no\\nbody")), "{refused:?}");
        assert!(root.stat(f).await.is_ok());
        boss.keys(KeyChange::Remove("boss".into())).await.unwrap();
        let asked = amphi_env::timeout(&env, Duration::from_secs(5), boss.call(Request::Keys { change: None })).await;
        assert!(asked.is_none_or(|a| a.is_err()), "he removed himself");
    });
}

/// Goal: a session belongs to its key: neither another key, nor a client without one, can continue it; a rotated key's
/// session continues under the second key and ends with the first if it was admitted by that; no more mounts than the
/// bound; an address outside the ranges is refused. Method: a sequence of steps.
#[test]
fn sessions_are_their_keys() {
    with_server(96, 1, 1, async |place, root| {
        root.chmod(Ino::ROOT, 0o777).await;
        root.add(KeyEntry { sessions_max: 2, ..entry("a", 1, KeyRole::Client) }).await;
        root.add(entry("b", 2, KeyRole::Client)).await;
        let a = place.keyed(11, Role::Mount, 1).await.expect("it mounts");
        for (who, result) in [("b", place.keyed(11, Role::Mount, 2).await), ("none", place.client(11).await)] {
            let refused = why(result);
            assert!(refused.contains("another user's"), "{who}: {refused}");
        }
        assert!(why(place.keyed(1, Role::Mount, 2).await).contains("another user's"), "that of root");
        let second = place.keyed(12, Role::Mount, 1).await.expect("a second mount");
        let refused = why(place.keyed(13, Role::Mount, 1).await);
        assert!(refused.contains("key a has 2 mounts, which is the most"), "{refused}");
        let new = identity(7).fingerprint();
        root.keys(KeyChange::Rotate { name: "a".into(), next: new }).await.unwrap();
        second.call(Request::Goodbye).await.unwrap();
        let rotated = place.keyed(14, Role::Mount, 7).await.expect("with the second key");
        let refused = why(place.keyed(15, Role::Mount, 7).await);
        assert!(refused.contains("the most"), "both keys share the bound: {refused}");
        root.keys(KeyChange::FinishRotation("a".into())).await.unwrap();
        let env = place.sim.node("client");
        let asked = amphi_env::timeout(&env, Duration::from_secs(5), a.stat(Ino::ROOT)).await;
        assert!(asked.is_none_or(|a| a.is_err()), "it came by the first key");
        assert!(rotated.stat(Ino::ROOT).await.is_ok());
        assert!(why(place.keyed(16, Role::Mount, 1).await).contains("is not one of this cluster's"));
        let addresses = vec![AddressRange::V4([10, 0, 0, 0], 8)];
        root.add(KeyEntry { addresses, ..entry("far", 4, KeyRole::Client) }).await;
        let refused = why(place.keyed(17, Role::Mount, 4).await);
        assert!(refused.contains("key far: it does not count from"), "{refused}");
        root.add(KeyEntry { addresses: vec![AddressRange::Unix], ..entry("near", 5, KeyRole::Client) }).await;
        assert!(place.keyed(18, Role::Mount, 5).await.is_ok());
    });
}

/// Goal: 1,000 keys are kept over a restart, travel in one message, and two administrators at once lose nothing of each
/// other's. Method: two of them add keys by turns that the simulation chooses; the server is restarted.
#[test]
fn two_administrators_and_many_keys() {
    let mut place = Place::new(97, 1, 1);
    place.config.log_bytes = 8 << 20;
    place.config.zone_bytes = Some(64 << 20);
    let run = async {
        let server = place.start().await.expect("it starts");
        let (one, two) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let adds = async |c: &Client, who: u8| {
            for n in 0..500u16 {
                let mut fingerprint = [who; 32];
                fingerprint[..2].copy_from_slice(&n.to_be_bytes());
                let name = format!("{}-{n:03}", ["one", "two"][usize::from(who)]);
                c.add(KeyEntry { fingerprint: Fingerprint(fingerprint), ..entry(&name, 0, KeyRole::Client) }).await;
                // Both want this one.
                let both = KeyChange::Add(entry(&format!("both-{n}"), 100 + (n % 100) as u8, KeyRole::Admin));
                let _ = c.keys(both).await;
            }
        };
        futures_util::future::join(adds(&one, 0), adds(&two, 1)).await;
        let Ok(Reply::Keys(before)) = one.call(Request::Keys { change: None }).await else { panic!("no keys") };
        let count = |begins: &str| before.keys.iter().filter(|e| e.name.starts_with(begins)).count();
        assert_eq!((count("one"), count("two"), count("both")), (500, 500, 100));
        assert_eq!(before.version, 1100, "each change counts once");
        let mut ids: Vec<u64> = before.keys.iter().map(|e| e.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1100);
        server.stop().await.expect("it stops");
        let server = place.start().await.expect("again");
        let three = place.client(3).await.unwrap();
        assert_eq!(three.call(Request::Keys { change: None }).await, Ok(Reply::Keys(before)));
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: events are logged, with the key and the result; while the log fails, and the setting requires it, no new
/// client is admitted and no key is changed, but existing ones continue. Method: a sequence of steps; a log that fails.
#[test]
fn what_happens_is_written_down() {
    for full in [AuditFull::GoOn, AuditFull::Stop] {
        let mut place = Place::new(98, 1, 1);
        let (lines, works) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(true)));
        let (kept, may) = (lines.clone(), works.clone());
        place.config.audit_full = full;
        place.config.audit = Some(Arc::new(move |line| {
            let works = *may.lock().expect("no panic");
            if works {
                kept.lock().expect("no panic").push(line.into());
            }
            works
        }));
        let said = |words: &[&str]| {
            let lines = lines.lock().expect("no panic");
            assert!(lines.iter().any(|l| words.iter().all(|w| l.contains(w))), "{words:?} in {lines:#?}");
        };
        let run = async {
            let server = place.start().await.expect("it starts");
            let root = place.client(1).await.unwrap();
            root.chmod(Ino::ROOT, 0o777).await;
            let squash = Squash { root: Some(SquashTo { uid: 600, gid: 600 }), ..Squash::default() };
            root.add(KeyEntry { squash, ..entry("k", 1, KeyRole::Client) }).await;
            let key = identity(1).fingerprint().to_string();
            said(&["\"kind\":\"keys\"", "\"by\":\"client:1\"", "add k", &key, "\"result\":\"done\""]);
            assert!(root.keys(KeyChange::Add(entry("k", 2, KeyRole::Client))).await.is_err());
            said(&["\"kind\":\"keys\"", "there is a key k already"]);
            let c = place.keyed(2, Role::Mount, 1).await.unwrap();
            said(&["\"kind\":\"admitted\"", "\"key\":\"k\"", &key, "\"as\":\"Mount\"", "\"proved\":\"identity\""]);
            for n in 0..25 {
                c.mkdir(Ino::ROOT, &format!("d{n}")).await.unwrap();
            }
            said(&["\"kind\":\"squashed\"", "\"key\":\"k\"", "\"requests\":\"1\""]);
            said(&["\"kind\":\"squashed\"", "\"key\":\"k\"", "\"requests\":\"10\""]);
            assert!(place.keyed(3, Role::Mount, 2).await.is_err());
            said(&["\"kind\":\"refused\"", &identity(2).fingerprint().to_string(), "not one of this cluster's"]);
            let tune = Request::Tunables { pattern: "server.token_ms".into(), value: Some("7".into()) };
            root.call(tune).await.unwrap();
            said(&["\"kind\":\"tunables\"", "\"value\":\"7\"", "\"result\":\"done\""]);
            *works.lock().expect("no panic") = false;
            let goes_on = full == AuditFull::GoOn;
            assert_eq!(place.keyed(4, Role::Mount, 1).await.is_ok(), goes_on, "{full:?}");
            assert_eq!(root.keys(KeyChange::Add(entry("x", 9, KeyRole::Admin))).await.is_ok(), goes_on, "{full:?}");
            c.mkdir(Ino::ROOT, "goes on").await.expect("who is in goes on");
            *works.lock().expect("no panic") = true;
            place.keyed(5, Role::Mount, 1).await.expect("let in again");
            root.keys(KeyChange::Remove("k".into())).await.unwrap();
            said(&["\"kind\":\"evicted\"", "\"key\":\"k\"", "its key has been removed"]);
            said(&["\"kind\":\"squashed\"", "\"requests\":\"26\""]);
            drop(server);
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}
