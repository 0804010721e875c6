//! Tests with several mounts: admission, tokens, glimpses, eviction, restart.

use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::{join, join3};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Runs `story` with two mounts of a server with `targets` targets and `workers` workers.
pub(super) fn with_two<F>(seed: u64, targets: u16, workers: u16, story: F)
where
    F: AsyncFnOnce(&Place, &Client, &Client),
{
    let place = Place::new(seed, targets, workers);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let first = place.client(1).await.expect("the first comes");
        let second = place.client(2).await.expect("the second comes");
        story(&place, &first, &second).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

pub(super) fn lookup(dir: Ino, text: &str) -> Request {
    Request::Lookup { dir, name: name(text) }
}

pub(super) fn name_key(dir: Ino, text: &str) -> TokenKey {
    TokenKey::Name(dir, name(text).token_hash())
}

pub(super) fn lock(ino: Ino, mode: LockMode, start: u64, end: u64) -> Request {
    let object = ObjectId { ino, stripe: 0 };
    Request::LockEnqueue { object, mode, range: ByteRange::new(start, end), extent: LockExtent::Exact }
}

/// Runs `change`, which has to wait until `holder` answers revocations of exactly `keys`. It must not be done when they
/// arrive.
async fn waits_for<T>(holder: &Client, keys: &[TokenKey], change: impl Future<Output = T>) -> T {
    holder.held.pushes.borrow_mut().clear();
    holder.held.deaf.set(true);
    let done = Cell::new(false);
    let change = async {
        let value = change.await;
        done.set(true);
        value
    };
    let answers = async {
        let mut left: Vec<TokenKey> = keys.to_vec();
        while !left.is_empty() {
            let (target, id, keys) = holder.held.revoked().await;
            assert!(!done.get(), "a change does not overtake the answer");
            for key in &keys {
                assert!(left.contains(key), "{key:?} is revoked for nothing, or twice; awaited: {left:?}");
            }
            left.retain(|key| !keys.contains(key));
            holder.held.pushes.borrow_mut().clear();
            holder.reply(&Push::Revoke { target, id, upto: 0, keys }).await;
        }
        holder.held.deaf.set(false);
    };
    let (value, ()) = join(change, answers).await;
    assert!(holder.held.pushes.borrow().iter().all(|p| !matches!(p, Push::Revoke { .. })), "nothing else is revoked");
    value
}

/// Goal: a second mount is admitted when the first has acknowledged the switch of mode, and not before. With two mounts
/// there are tokens. When only one is left it is informed, and tokens end when it has acknowledged that. Method: the
/// first mount is unresponsive, and then answers. It requests tokens at each stage.
#[test]
fn alone_then_company_then_alone() {
    let place = Place::new(61, 3, 2);
    let run = async {
        let _server = place.start().await.unwrap();
        let a = place.client(1).await.unwrap();
        assert!(a.link.welcome().alone);
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        assert_eq!(a.told(lookup(Ino::ROOT, "f")).await.1, Tokens::default(), "alone");
        a.held.deaf.set(true);
        let (b, ()) = join(place.client(2), async {
            let change = a.held.pushed(|p| matches!(p, Push::Company { alone: false, .. }).then(|| p.clone())).await;
            // The admission takes a while: calls in between are served.
            assert!(
                a.told(lookup(Ino::ROOT, "f")).await.1.name.is_some(),
                "targets grant tokens before anybody is let in"
            );
            let Ok(Reply::Status { sessions, .. }) = a.call(Request::Status).await else { panic!("status") };
            assert_eq!(sessions.iter().filter(|s| s.connected).count(), 1, "the second waits");
            a.reply(&change).await;
        })
        .await;
        let b = b.expect("let in");
        a.held.deaf.set(false);
        assert!(!b.link.welcome().alone);
        let told = b.told(lookup(Ino::ROOT, "f")).await.1;
        assert!(told.name.is_some() && told.attributes.is_some() && told.changed.is_none(), "{told:?}");
        assert!(b.told(Request::GetAttr { ino: f }).await.1.attributes.is_some());
        a.held.deaf.set(true);
        b.call(Request::Goodbye).await.unwrap();
        let change = a.held.pushed(|p| matches!(p, Push::Company { alone: true, .. }).then(|| p.clone())).await;
        assert!(a.told(lookup(Ino::ROOT, "f")).await.1.name.is_some(), "until it knows");
        a.reply(&change).await;
        // The targets are informed after the answer.
        while a.told(lookup(Ino::ROOT, "f")).await.1.name.is_some() {}
        a.held.deaf.set(false);
        let c = place.client(3).await.expect("and again");
        assert!(!c.link.welcome().alone && c.told(lookup(Ino::ROOT, "f")).await.1.name.is_some());
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: the server waits for a mount without a connection as long as its kernel may use cached data, and notifies it
/// when it is back. Method: the first is cut off while it is in sole mode.
#[test]
fn a_mount_that_is_away_is_told_later() {
    let place = Place::new(62, 2, 1);
    let run = async {
        let _server = place.start().await.unwrap();
        place.sim.node("far");
        let a = place.client_on("far", 1, "far:1", Role::Mount).await.unwrap();
        let env = place.sim.node("client");
        place.sim.cut("far", "server");
        place.sim.break_connections("far", "server");
        let left = env.now();
        let b = place.client(2).await.expect("the first cannot use anything any more");
        let waited = env.now().since(left);
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(4), "its kernel's time: {waited:?}");
        place.sim.heal("far", "server");
        a.held.pushed(|p| matches!(p, Push::Company { alone: false, .. }).then_some(())).await;
        assert!(a.told(lookup(Ino::ROOT, "x")).await.1.name.is_some());
        drop(b);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: no mount uses a name, an absent name or attributes that another mount changes. Each change waits until all
/// mounts that cache the old state have answered, and revokes nothing else. Method: all operations on names, within a
/// target and over several. One mount caches and the other one changes. Afterwards the first sees the new state.
#[test]
fn changes_take_back_what_others_cache() {
    for (targets, workers) in [(1, 1), (3, 2)] {
        with_two(63, targets, workers, async |_, a, b| {
            let attributes = TokenKey::Attributes;
            let caches = async |op: Request| {
                let (result, tokens) = b.told(op).await;
                assert!(tokens.name.is_some() || tokens.attributes.is_some(), "{result:?} {tokens:?}");
                result
            };
            // First a missing name, then the name and the inode to which it leads.
            assert_eq!(caches(lookup(Ino::ROOT, "f")).await, Err(Errno::NoEnt));
            let f = waits_for(b, &[name_key(Ino::ROOT, "f")], a.create(Ino::ROOT, "f")).await.unwrap();
            caches(lookup(Ino::ROOT, "f")).await.unwrap();
            assert_eq!(caches(lookup(Ino::ROOT, "g")).await, Err(Errno::NoEnt));
            caches(Request::GetAttr { ino: Ino::ROOT }).await.unwrap();
            let keys = [name_key(Ino::ROOT, "g"), attributes(f), attributes(Ino::ROOT)];
            waits_for(b, &keys, a.link(f, Ino::ROOT, "g")).await.unwrap();
            assert_eq!(b.stat(f).await.unwrap().nlink, 2);
            let keys = [name_key(Ino::ROOT, "f"), attributes(f)];
            waits_for(b, &keys, a.unlink(Ino::ROOT, "f")).await.unwrap();
            assert_eq!(caches(lookup(Ino::ROOT, "f")).await, Err(Errno::NoEnt));
            // Only the attributes.
            caches(Request::GetAttr { ino: f }).await.unwrap();
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            waits_for(b, &[attributes(f)], a.call(Request::SetAttr { ino: f, set })).await.unwrap();
            assert_eq!(b.stat(f).await.unwrap().perm, 0o600);
            let set = SetAttr { size: Some(77), ..SetAttr::default() };
            waits_for(b, &[attributes(f)], a.call(Request::SetAttr { ino: f, set })).await.unwrap();
            let Ok(Reply::Inode(seen)) = caches(Request::GetAttr { ino: f }).await else { panic!("an inode") };
            assert_eq!(seen.attr.size, 77);
            let (xattr, value) = (b"user.x".to_vec(), b"y".to_vec());
            let op = Request::SetXattr { ino: f, name: xattr.clone(), value, mode: amphi_wire::XattrMode::Set };
            waits_for(b, &[attributes(f)], a.call(op)).await.unwrap();
            assert!(matches!(caches(Request::GetAttr { ino: f }).await, Ok(Reply::Inode(v)) if v.xattrs));
            let op = Request::RemoveXattr { ino: f, name: xattr };
            waits_for(b, &[attributes(f)], a.call(op)).await.unwrap();
            // Directories on other targets, and moves between them.
            let mut dirs = Vec::new();
            for text in ["d", "e"] {
                dirs.push(a.mkdir(Ino::ROOT, text).await.unwrap());
                assert_eq!(caches(lookup(dirs[dirs.len() - 1], "m")).await, Err(Errno::NoEnt));
                caches(Request::GetAttr { ino: dirs[dirs.len() - 1] }).await.unwrap();
            }
            caches(lookup(Ino::ROOT, "g")).await.unwrap();
            let keys = [name_key(Ino::ROOT, "g"), name_key(dirs[0], "m"), attributes(f), attributes(dirs[0])];
            waits_for(b, &keys, a.rename((Ino::ROOT, "g"), (dirs[0], "m"), RenameMode::Replace)).await.unwrap();
            caches(lookup(dirs[0], "m")).await.unwrap();
            let keys = [name_key(dirs[0], "m"), name_key(dirs[1], "m"), attributes(f), attributes(dirs[1])];
            waits_for(b, &keys, a.rename((dirs[0], "m"), (dirs[1], "m"), RenameMode::Replace)).await.unwrap();
            caches(lookup(Ino::ROOT, "d")).await.unwrap();
            let keys = [name_key(Ino::ROOT, "d"), attributes(dirs[0])];
            waits_for(b, &keys, a.rmdir(Ino::ROOT, "d")).await.unwrap();
            assert_eq!(b.list(Ino::ROOT).await.unwrap(), ["e"]);
            assert_eq!(b.list(dirs[1]).await.unwrap(), ["m"]);
        });
    }
}

/// Goal: a mount that changes a name keeps the tokens that its request named, gets a number, and receives revocations
/// of the tokens that it could not name. Method: one mount caches and changes, and no other one gets a revocation.
#[test]
fn own_changes_need_no_revocation() {
    with_two(64, 2, 2, async |_, a, _| {
        assert!(a.told(lookup(Ino::ROOT, "f")).await.1 != Tokens::default());
        assert!(a.told(Request::GetAttr { ino: Ino::ROOT }).await.1 != Tokens::default());
        a.held.deaf.set(true);
        let op = Request::Make {
            dir: Ino::ROOT,
            name: name("f"),
            make: Make::File { open: None, exclusive: true },
            perm: 0o644,
            umask: 0,
        };
        let (result, tokens) = a.told(op).await;
        let Ok(Reply::Made { inode, .. }) = result else { panic!("{result:?}") };
        let (changed, new) = (tokens.changed.expect("it changed"), tokens.name.expect("and shows the new").number);
        assert!(changed < new && changed < tokens.attributes.expect("with attributes").number);
        let f = inode.attr.ino;
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let (result, tokens) = a.told(Request::SetAttr { ino: f, set }).await;
        assert!(result.is_ok() && tokens.changed > Some(new) && tokens.attributes.is_some(), "{tokens:?}");
        assert_eq!(a.held.pushes.borrow().iter().filter(|p| matches!(p, Push::Revoke { .. })).count(), 0);
        // The client cannot know which inode the name leads to.
        waits_for(a, &[TokenKey::Attributes(f)], a.unlink(Ino::ROOT, "f")).await.unwrap();
    });
}

/// Goal: attributes of a file that another session writes are not granted, and opening the file for writing revokes
/// them from others. When the writer has closed it, they are granted again. Method: opens on the target of the request
/// and, through a name, on another one.
#[test]
fn writers_keep_attributes_from_others() {
    with_two(65, 2, 2, async |_, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let granted = async |c: &Client| c.told(Request::GetAttr { ino: f }).await.1.attributes.is_some();
        let open = || Request::Open { ino: f, access: RW, exec: false };
        let close = || Request::Close { ino: f, access: RW, atime: None };
        assert!(granted(a).await && granted(b).await);
        let (result, tokens) = waits_for(b, &[TokenKey::Attributes(f)], a.told(open())).await;
        assert!(result.is_ok() && tokens.changed.is_some() && tokens.attributes.is_some(), "{tokens:?}");
        assert!(granted(a).await && !granted(b).await, "only the writer");
        let Ok(Reply::Entries { entries, .. }) =
            b.call(Request::ReadDir { dir: Ino::ROOT, cookie: 0, max: 10, plus: true }).await
        else {
            panic!("entries")
        };
        assert!(entries[0].tokens.name.is_some() && entries[0].inode.is_none(), "its size is not at hand");
        waits_for(a, &[TokenKey::Attributes(f)], b.call(open())).await.unwrap();
        assert!(!granted(a).await && !granted(b).await, "two writers");
        a.call(close()).await.unwrap();
        assert!(!granted(a).await && granted(b).await);
        b.call(close()).await.unwrap();
        assert!(granted(a).await && granted(b).await);
        // The file is opened by a name, because the client names nothing else in its create.
        let d = a.mkdir(Ino::ROOT, "d").await.unwrap();
        a.link(f, d, "g").await.unwrap();
        assert!(granted(a).await && granted(b).await);
        let make = Make::File { open: Some(RW), exclusive: false };
        waits_for(b, &[TokenKey::Attributes(f)], a.make(d, "g", make)).await.unwrap();
    });
}

/// Goal: a session that does not answer is evicted, and the change continues when the lease of its cached data has
/// ended. Method: the holder is unresponsive, and its time to answer is far shorter than the lease of its cached data.
#[test]
fn who_does_not_answer_is_evicted() {
    with_two(66, 2, 2, async |place, a, b| {
        let op = Request::Tunables { pattern: "server.callback_deadline_ms".into(), value: Some("5000".into()) };
        a.call(op).await.unwrap();
        a.create(Ino::ROOT, "f").await.unwrap();
        assert!(b.told(lookup(Ino::ROOT, "f")).await.1 != Tokens::default());
        b.held.deaf.set(true);
        let env = place.sim.node("client");
        let (begun, evicted) = (env.now(), Cell::new(None));
        let busy = async {
            // The client is informed of this when it has connected again.
            while b.held.restarts.get() == 0 {
                env.sleep(Duration::from_millis(100)).await;
            }
            evicted.set(Some(env.now().since(begun)));
        };
        let (done, ()) = join(a.unlink(Ino::ROOT, "f"), busy).await;
        done.unwrap();
        let (evicted, took) = (evicted.get().expect("it notices"), env.now().since(begun));
        assert!(evicted >= Duration::from_secs(4) && evicted < Duration::from_secs(10), "{evicted:?}");
        assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(40), "{took:?}");
        let Ok(Reply::Counters(counters)) = a.call(Request::Counters { reset: false }).await else { panic!() };
        assert_eq!(counters.iter().find(|(n, _)| n == "evictions").unwrap().1, 1);
        assert_eq!(a.lookup(Ino::ROOT, "f").await, Err(Errno::NoEnt));
    });
}

/// Goal: tokens and locks of a process that has ended block no other mount. Method: its connection ends while a change
/// and a lock wait for it.
#[test]
fn the_dead_are_not_waited_for() {
    let mut place = Place::new(67, 2, 2);
    place.config.holder_gone = Arc::new(|name| name == "far:2");
    let run = async {
        let _server = place.start().await.unwrap();
        let a = place.client(1).await.unwrap();
        place.sim.node("far");
        let b = place.client_on("far", 2, "far:2", Role::Mount).await.unwrap();
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        b.held.deaf.set(true);
        assert!(b.told(lookup(Ino::ROOT, "f")).await.1 != Tokens::default());
        b.call(lock(f, LockMode::Write, 0, 100)).await.unwrap();
        let env = place.sim.node("client");
        let begun = env.now();
        let killed = async {
            b.held.revoked().await;
            b.held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(())).await;
            place.sim.crash("far", CrashKind::Process);
        };
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let changes = join(a.call(Request::SetAttr { ino: f, set }), a.call(lock(f, LockMode::Read, 0, 10)));
        let ((set, locked), ()) = join(changes, killed).await;
        set.unwrap();
        locked.unwrap();
        let took = env.now().since(begun);
        assert!(took < Duration::from_secs(1), "{took:?}");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a session that does not return a lock is evicted, a waiting session gets the lock, and no later message of the
/// evicted one is executed. Method: it is deaf and writes again under its lock after its time.
#[test]
fn locks_of_the_evicted_pass_on() {
    with_two(68, 2, 2, async |place, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let write = |byte: u8| {
            let (mtime, generation) = (Timespec::default(), 0);
            let op = Request::Write {
                object,
                offset: 0,
                generation,
                mtime,
                server_lock: false,
                kill_suidgid: false,
                checksums: Default::default(),
                cover: Default::default(),
            };
            let mut payload = Buf::zeroed(4096);
            payload.fill(byte);
            (op, Some(payload))
        };
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
        let (op, payload) = write(1);
        assert!(matches!(b.ask(op, payload).await.0, Ok(Reply::Written { .. })));
        b.held.deaf.set(true);
        b.held.mortal.set(true);
        a.call(lock(f, LockMode::Write, 0, 4096)).await.expect("granted in the end");
        let (op, payload) = write(2);
        assert!(b.ask(op, payload).await.0.is_err(), "too late");
        let op =
            Request::Read { object, range: ByteRange::new(0, 4096), server_lock: false, advice: Default::default() };
        let (_, data) = a.ask(op, None).await;
        assert!(data.expect("bytes").iter().all(|&byte| byte == 1));
        let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
        let Ok(Reply::Status { sessions, .. }) = status.call(Request::Status).await else { panic!("status") };
        assert!(sessions.iter().all(|s| s.session != SessionId(2) || s.locks == 0), "{sessions:?}");
    });
}

/// Goal: size and time of a file that another mount writes are those that its writer knows, although nothing is written
/// back. The glimpse ends with the answer, with the lock, or with the session. Method: one mount holds locks and
/// unwritten bytes on two objects, and the other one requests the size. The highest holder knows nothing, so the next
/// lower one gets a glimpse.
#[test]
fn unwritten_bytes_are_seen() {
    with_two(69, 2, 2, async |place, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        a.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        let Ok(Reply::Locked { lock: id, .. }) = a.call(lock(f, LockMode::Write, 0, 1 << 20)).await else {
            panic!("a lock")
        };
        let mtime = Timespec { sec: 5_000_000_000, nsec: 1 };
        a.held.unwritten.borrow_mut().insert(object, (12_345, mtime));
        let seen = b.stat(f).await.unwrap();
        assert_eq!((seen.size, seen.mtime), (12_345, mtime));
        let own = a.stat(f).await.unwrap();
        assert_eq!(own.size, 0, "it is not asked about itself");
        // The asker's own lock is above, and it has written nothing there.
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(lock(f, LockMode::Write, 1 << 20, 1 << 30)).await.unwrap();
        assert_eq!(b.stat(f).await.unwrap().size, 12_345);
        // A third client is asked about its lock and does not know of it; the same holds for the holder below.
        let c = place.client(3).await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().size, 12_345);
        assert_eq!(c.lookup(Ino::ROOT, "f").await.unwrap().attr.size, 12_345);
        assert_eq!(c.link(f, Ino::ROOT, "g").await.unwrap().attr.size, 12_345);
        // Written back and given up in place of an answer.
        a.held.deaf.set(true);
        let written = async {
            a.held.pushed(|p| matches!(p, Push::Glimpse { .. }).then_some(())).await;
            let op = Request::Write {
                object,
                offset: 20_000,
                generation: 0,
                mtime,
                server_lock: false,
                kill_suidgid: false,
                checksums: Default::default(),
                cover: Default::default(),
            };
            assert!(matches!(a.ask(op, Some(Buf::zeroed(10))).await.0, Ok(Reply::Written { .. })));
            a.call(Request::LockCancel { locks: vec![id] }).await.unwrap();
        };
        let (seen, ()) = join(c.stat(f), written).await;
        assert_eq!(seen.unwrap().size, 20_010);
        // The writer goes without an answer.
        a.call(lock(f, LockMode::Write, 0, 1 << 20)).await.unwrap();
        let goes = async {
            a.held.pushed(|p| matches!(p, Push::Glimpse { .. }).then_some(())).await;
            a.call(Request::Goodbye).await.unwrap();
        };
        let (seen, ()) = join(c.stat(f), goes).await;
        assert_eq!(seen.unwrap().size, 20_010);
    });
}

/// Goal: after a restart no mount gets a lock, reads directly or caches attributes before every mount that had locks
/// has presented them, or has ended. Presented locks are in force. Method: two mounts. One of them is kept away by a
/// partition while the other one requests a lock that excludes the first one's lock.
#[test]
fn the_absent_keep_their_locks() {
    for comes_back in [true, false] {
        let place = Place::new(70, 2, 2);
        let run = async {
            let server = place.start().await.unwrap();
            place.sim.node("far");
            let a = place.client_on("far", 1, "far:1", Role::Mount).await.unwrap();
            let b = place.client(2).await.unwrap();
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            let object = ObjectId { ino: f, stripe: 0 };
            a.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
            let held = HeldLock { object, mode: LockMode::Write, range: ByteRange::new(0, 4096), group: None };
            a.held.locks.borrow_mut().push(held);
            a.held.deaf.set(true);
            drop(server);
            place.sim.crash("server", CrashKind::Process);
            place.sim.cut("far", "server");
            let _server = place.start().await.unwrap();
            let env = place.sim.node("client");
            let begun = env.now();
            let granted = Cell::new(None);
            let asks = async {
                b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
                granted.set(Some(env.now().since(begun)));
            };
            let reads = async {
                let op = Request::Read {
                    object,
                    range: ByteRange::new(0, 4096),
                    server_lock: true,
                    advice: Default::default(),
                };
                let (tokens, read) = join(b.told(Request::GetAttr { ino: f }), b.call(op)).await;
                read.unwrap();
                drop(tokens);
            };
            let returns = async {
                if !comes_back {
                    return;
                }
                env.sleep(Duration::from_secs(7)).await;
                assert_eq!(granted.get(), None);
                place.sim.heal("far", "server");
                // The client has presented its lock, which is called back now.
                let back = a.held.pushed(|p| matches!(p, Push::Callback { .. }).then(|| p.clone())).await;
                assert_eq!(granted.get(), None, "its lock holds");
                a.reply(&back).await;
            };
            join3(asks, reads, returns).await;
            let waited = granted.get().expect("granted");
            match comes_back {
                true => assert!(waited >= Duration::from_secs(7) && waited < Duration::from_secs(20), "{waited:?}"),
                false => assert!(waited >= Duration::from_secs(29) && waited < Duration::from_secs(40), "{waited:?}"),
            }
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: after a restart a change waits for sessions that may cache the values that it changes, until they know of the
/// restart. Method: as above, but the mount that is kept away had cached the name.
#[test]
fn the_absent_keep_their_tokens() {
    let place = Place::new(71, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        place.sim.node("far");
        let a = place.client_on("far", 1, "far:1", Role::Mount).await.unwrap();
        let b = place.client(2).await.unwrap();
        b.mkdir(Ino::ROOT, "f").await.unwrap();
        b.mkdir(Ino::ROOT, "other").await.unwrap();
        assert!(a.told(lookup(Ino::ROOT, "f")).await.1.name.is_some());
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        place.sim.cut("far", "server");
        let _server = place.start().await.unwrap();
        let env = place.sim.node("client");
        let done = Cell::new(false);
        let change = async {
            b.rmdir(Ino::ROOT, "f").await.unwrap();
            done.set(true);
        };
        let returns = async {
            env.sleep(Duration::from_secs(5)).await;
            assert!(!done.get());
            b.lookup(Ino::ROOT, "other").await.expect("others are not concerned");
            place.sim.heal("far", "server");
        };
        join(change, returns).await;
        assert_eq!(a.held.restarts.get(), 1, "it knew before");
        assert_eq!(a.lookup(Ino::ROOT, "f").await, Err(Errno::NoEnt));
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: messages that were pushed over a connection that broke are pushed again over the next one. Method: an
/// unresponsive holder loses its connection after a revocation, a callback and a glimpse have arrived, and answers the
/// repeated ones.
#[test]
fn pushes_survive_a_broken_connection() {
    with_two(72, 2, 2, async |place, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 100)).await.unwrap();
        assert!(b.told(lookup(Ino::ROOT, "f")).await.1 != Tokens::default());
        b.held.unwritten.borrow_mut().insert(ObjectId { ino: f, stripe: 0 }, (50, Timespec::default()));
        b.held.deaf.set(true);
        let trouble = async {
            b.held.revoked().await;
            b.held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(())).await;
            b.held.pushed(|p| matches!(p, Push::Glimpse { .. }).then_some(())).await;
            b.held.deaf.set(false);
            place.sim.break_connections("client", "server");
        };
        let locked = async {
            a.call(lock(f, LockMode::Read, 0, 10)).await.unwrap();
        };
        let others = join(a.stat(f), a.rename((Ino::ROOT, "f"), (Ino::ROOT, "g"), RenameMode::Replace));
        let begun = place.sim.node("client").now();
        let ((seen, renamed), (), ()) = join3(others, locked, trouble).await;
        renamed.unwrap();
        assert!([0, 50].contains(&seen.unwrap().size));
        assert!(place.sim.node("client").now().since(begun) < Duration::from_secs(10), "nobody was evicted");
    });
}

/// Goal: a session that was cut off and removed may still use its cached values, and a restart takes account of that.
/// Method: its connection is cut for longer than the grace time, the server restarts right after the eviction, and
/// another mount changes the name. The same is done once more later, when nothing can be in use any more.
#[test]
fn a_restart_remembers_who_was_cut_off() {
    let place = Place::new(73, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        place.sim.node("far");
        let a = place.client_on("far", 1, "far:1", Role::Mount).await.unwrap();
        let b = place.client(2).await.unwrap();
        b.mkdir(Ino::ROOT, "f").await.unwrap();
        let (env, begun) = (place.sim.node("client"), place.sim.node("client").now());
        place.sim.cut("far", "server");
        place.sim.break_connections("far", "server");
        env.sleep(Duration::from_secs(29)).await;
        let evicted = async |c: &Client| {
            let Ok(Reply::Status { sessions, .. }) = c.call(Request::Status).await else { panic!("status") };
            sessions.len() == 1
        };
        assert!(!evicted(&b).await);
        env.sleep(Duration::from_secs(2)).await;
        assert!(evicted(&b).await);
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        let server = place.start().await.unwrap();
        b.rmdir(Ino::ROOT, "f").await.unwrap();
        let took = env.now().since(begun);
        assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(70), "{took:?}");
        env.sleep(Duration::from_secs(2)).await;
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        let _server = place.start().await.unwrap();
        let begun = env.now();
        b.mkdir(Ino::ROOT, "g").await.unwrap();
        assert!(env.now().since(begun) < Duration::from_secs(5), "long over");
        assert!(b.told(lookup(Ino::ROOT, "g")).await.1.name.is_none(), "alone");
        drop(a);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a holder that writes back for longer than the deadline is not evicted as long as it makes progress. Method: it
/// is called back, writes every ten seconds for a minute, then gives the lock back.
#[test]
fn progress_renews_the_deadline() {
    with_two(74, 1, 1, async |place, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        let Ok(Reply::Locked { lock: id, .. }) = b.call(lock(f, LockMode::Write, 0, 1 << 20)).await else {
            panic!("a lock")
        };
        b.held.deaf.set(true);
        let flushes = async {
            b.held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(())).await;
            for i in 0..6 {
                place.sim.node("client").sleep(Duration::from_secs(10)).await;
                let (offset, generation, mtime) = (i * 4096, 0, Timespec::default());
                let op = Request::Write {
                    object,
                    offset,
                    generation,
                    mtime,
                    server_lock: false,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                assert!(matches!(b.ask(op, Some(Buf::zeroed(4096))).await.0, Ok(Reply::Written { .. })));
            }
            b.call(Request::LockCancel { locks: vec![id] }).await.unwrap();
        };
        let (granted, ()) = join(a.call(lock(f, LockMode::Write, 0, 10)), flushes).await;
        granted.unwrap();
        let Ok(Reply::Counters(counters)) = a.call(Request::Counters { reset: false }).await else { panic!() };
        assert_eq!(counters.iter().find(|(n, _)| n == "evictions").unwrap().1, 0);
    });
}

/// Goal: a change of data revokes the attributes from other mounts, although its session has not opened the file.
/// Method: one mount caches, and the other one writes, punches and allocates without an open.
#[test]
fn writes_without_an_open_are_changes() {
    with_two(75, 1, 1, async |_, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let (range, mtime) = (ByteRange::new(0, 4096), Timespec { sec: 9, nsec: 0 });
        let write = Request::Write {
            object,
            offset: 0,
            generation: 0,
            mtime,
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let punch = Request::Punch { object, range, generation: 0, mtime, server_lock: true };
        let allocate = Request::Allocate { object, range, generation: 0, mtime, server_lock: true };
        for (op, payload) in [(write, Some(Buf::zeroed(4096))), (punch, None), (allocate, None)] {
            assert!(b.told(Request::GetAttr { ino: f }).await.1.attributes.is_some());
            waits_for(b, &[TokenKey::Attributes(f)], a.ask(op, payload)).await.0.unwrap();
        }
    });
}

/// Goal: a write that an evicted session has on its way to the disk completes before another mount gets a lock over its
/// bytes. Method: a slow disk and a short deadline. The mount that gets the lock reads the size at once.
#[test]
fn late_writes_land_before_locks_pass_on() {
    let mut place = Place::new(76, 1, 1);
    let disk_ns = 300_000_000..400_000_000;
    place.sim = Sim::new(76, SimConfig { disk_ns, ..SimConfig::default() });
    place.sim.node("client");
    place.config.callback_deadline = Duration::from_millis(100);
    let run = async {
        let _server = place.start().await.unwrap();
        let a = place.client(1).await.unwrap();
        let b = place.client(2).await.unwrap();
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
        b.held.deaf.set(true);
        let (generation, mtime) = (0, Timespec::default());
        let op = Request::Write {
            object,
            offset: 0,
            generation,
            mtime,
            server_lock: false,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let write = b.ask(op, Some(Buf::zeroed(4096)));
        let lands = async {
            a.call(lock(f, LockMode::Read, 0, 4096)).await.unwrap();
            assert_eq!(a.stat(f).await.unwrap().size, 4096, "it was on its way");
        };
        let (_, ()) = join(write, lands).await;
        let Ok(Reply::Counters(counters)) = a.call(Request::Counters { reset: false }).await else { panic!() };
        assert_eq!(counters.iter().find(|(n, _)| n == "evictions").unwrap().1, 1);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: if the session of a file's maker ends while the file is being made and opened, no session holds the file.
/// Others need not wait for a lock or an open that no client knows. Method: a slow disk. The process ends at many
/// moments while the file is made.
#[test]
fn the_dead_hold_nothing_that_was_under_way() {
    let made = (0..40).filter(|at| dies_while_making(Duration::from_millis(50 * at))).count();
    assert!((5..40).contains(&made), "{made} of 40 files were there in the end");
}

/// Returns whether the file was there in the end.
fn dies_while_making(after: Duration) -> bool {
    let mut place = Place::new(77, 1, 1);
    let disk_ns = 300_000_000..400_000_000;
    place.sim = Sim::new(77, SimConfig { disk_ns, ..SimConfig::default() });
    place.sim.node("client");
    place.sim.node("far");
    let gone = Arc::new(AtomicBool::new(false));
    let seen = gone.clone();
    place.config.holder_gone = Arc::new(move |name| name == "far:2" && seen.load(Relaxed));
    let run = async {
        let _server = place.start().await.unwrap();
        let a = place.client(1).await.unwrap();
        let b = place.client_on("far", 2, "far:2", Role::Mount).await.unwrap();
        let make = Make::File { open: Some(RW), exclusive: true };
        let makes = b.call(Request::Make { dir: Ino::ROOT, name: name("f"), make, perm: 0o644, umask: 0 });
        let env = place.sim.node("client");
        let killed = async {
            env.sleep(after).await;
            place.sim.crash("far", CrashKind::Process);
            gone.store(true, Relaxed);
        };
        join(amphi_env::timeout(&env, Duration::from_secs(4), makes), killed).await;
        let Ok(f) = a.lookup(Ino::ROOT, "f").await else { return false };
        let begun = env.now();
        a.stat(f.attr.ino).await.unwrap();
        a.call(lock(f.attr.ino, LockMode::Write, 0, 10)).await.unwrap();
        let took = env.now().since(begun);
        assert!(took < Duration::from_secs(1), "killed after {after:?}: others wait for {took:?}");
        true
    };
    place.sim.block_on(run).unwrap()
}
