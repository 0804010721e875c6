//! Several mounts of several servers: coming and going, tokens and locks on all servers.

use super::*;
use crate::tests::company::{lock, lookup, name_key};
use amphi_types::ByteRange;
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::join;

const ATTEMPT: Duration = Duration::from_secs(60);

/// Mounts; if the server refuses, this tries again as long as the error says that it may succeed later.
async fn patiently<'a>(world: &'a World, session: u64) -> Mount<'a> {
    let begun = world.sim.node("client").now();
    loop {
        match world.mount(session).await {
            Ok(mount) => return mount,
            Err(e) if world.sim.node("client").now().since(begun) > ATTEMPT => panic!("{e}"),
            Err(e) => assert!(["try again", "just being started"].iter().any(|t| e.to_string().contains(t)), "{e}"),
        }
        sleep(world, Duration::from_millis(10)).await;
    }
}

async fn is_granted(m: &Mount<'_>, dir: Ino) -> bool {
    m.told(lookup(dir, "x")).await.1.name.is_some()
}

/// Goal: the only mount gets no tokens from any server. All servers grant tokens when a second mount has come, and stop
/// when only one is left. Method: each server is asked at each stage.
#[test]
fn all_servers_know_of_company() {
    let world = World::new(400, &[1, 1, 2], 2);
    let run = async {
        let servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let mut dirs = Vec::new();
        for target in 0..4 {
            dirs.push(a.dir_at(target).await);
        }
        sleep(&world, Duration::from_secs(3)).await;
        for dir in &dirs {
            assert!(!is_granted(&a, *dir).await, "alone, at {}", dir.target());
        }
        let b = world.mount_everywhere("b", 2).await;
        for dir in &dirs {
            assert!(is_granted(&a, *dir).await && is_granted(&b, *dir).await, "in company, at {}", dir.target());
        }
        b.goodbye().await;
        sleep(&world, Duration::from_secs(5)).await;
        for dir in &dirs {
            assert!(!is_granted(&a, *dir).await, "alone again, at {}", dir.target());
        }
        a.goodbye().await;
        world.stop_all(servers).await;
        assert!(world.fsck().await.is_clean());
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a server that the master cannot inform of a second mount grants tokens before that mount is admitted. A server
/// that restarts grants them from its start. Method: the link between the servers is cut while a mount in sole mode is
/// served. Then the server is killed.
#[test]
fn a_server_that_hears_nothing_grants() {
    let world = World::new(401, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let dir = a.dir_at(1).await;
        sleep(&world, Duration::from_secs(3)).await;
        assert!(!is_granted(&a, dir).await);
        world.sim.cut("s0", "s1");
        let begun = world.sim.node("client").now();
        let b = patiently(&world, 2).await;
        let took = world.sim.node("client").now().since(begun);
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_secs(5),
            "as long as it may not know: {took:?}"
        );
        assert!(is_granted(&a, dir).await, "by itself");
        world.sim.heal("s0", "s1");
        assert!(is_granted(&b, dir).await);
        drop(b);
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        servers[1] = Some(world.start(1).await.unwrap());
        assert!(is_granted(&a, dir).await, "after a restart");
    };
    world.sim.block_on(run).unwrap();
}

/// Runs `change`, which has to wait until `holder` answers revocations of just these keys, on whichever server.
async fn waits_for<T>(holder: &Mount<'_>, keys: &[TokenKey], change: impl Future<Output = T>) -> T {
    let held: Vec<(usize, Rc<Held>)> =
        holder.links.borrow().iter().map(|(at, (_, held))| (*at, held.clone())).collect();
    held.iter().for_each(|(_, held)| held.pushes.borrow_mut().clear());
    holder.set_deaf(true);
    let done = Cell::new(false);
    let change = async {
        let value = change.await;
        done.set(true);
        value
    };
    let answers = async {
        let mut left: Vec<TokenKey> = keys.to_vec();
        while !left.is_empty() {
            let revoked = held.iter().map(|(at, held)| Box::pin(async move { (*at, held.revoked().await) }));
            let ((at, (target, id, keys)), _, _) = futures_util::future::select_all(revoked).await;
            assert!(!done.get(), "a change does not overtake the answer");
            for key in &keys {
                assert!(left.contains(key), "{key:?} is revoked for nothing, or twice; awaited: {left:?}");
            }
            left.retain(|key| !keys.contains(key));
            holder.reply(at, &Push::Revoke { target, id, upto: 0, keys }).await;
        }
        holder.set_deaf(false);
    };
    let (value, ()) = join(change, answers).await;
    for (at, held) in &held {
        let more = held.pushes.borrow().iter().any(|p| matches!(p, Push::Revoke { .. }));
        assert!(!more, "nothing else is revoked by s{at}");
    }
    value
}

/// Goal: an operation over two servers revokes the tokens of other mounts on either before any mount sees it. Method:
/// one mount makes, renames, links, unlinks and removes names over two servers, and the other one caches them.
#[test]
fn changes_over_two_servers_take_back_on_both() {
    let world = World::new(402, &[1, 1, 1], 1);
    let run = async {
        let servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let attributes = TokenKey::Attributes;
        let caches = async |op: Request| {
            let (result, tokens) = b.told(op).await;
            assert!(tokens.name.is_some() || tokens.attributes.is_some(), "{result:?} {tokens:?}");
        };
        let (d, e) = (a.dir_at(1).await, a.dir_at(2).await);
        let f = a.create(d, "f").await.unwrap();
        caches(lookup(d, "f")).await;
        caches(lookup(e, "g")).await;
        caches(Request::GetAttr { ino: d }).await;
        caches(Request::GetAttr { ino: e }).await;
        let keys = [name_key(d, "f"), name_key(e, "g"), attributes(f), attributes(d), attributes(e)];
        waits_for(&b, &keys, a.rename((d, "f"), (e, "g"), RenameMode::Replace)).await.unwrap();
        assert_eq!(b.lookup(d, "f").await, Err(Errno::NoEnt));
        assert_eq!(b.lookup(e, "g").await.unwrap().attr.ino, f);
        caches(lookup(d, "h")).await;
        caches(Request::GetAttr { ino: f }).await;
        waits_for(&b, &[name_key(d, "h"), attributes(f)], a.link(f, d, "h")).await.unwrap();
        assert_eq!(b.stat(f).await.unwrap().nlink, 2);
        let keys = [name_key(d, "f"), name_key(e, "g"), name_key(d, "h"), attributes(f)];
        for (dir, text) in [(e, "g"), (d, "h")] {
            caches(lookup(dir, text)).await;
        }
        let _ = keys;
        waits_for(&b, &[name_key(e, "g"), attributes(f)], a.unlink(e, "g")).await.unwrap();
        assert_eq!(b.lookup(e, "g").await, Err(Errno::NoEnt));
        // A directory whose inode is on another server than its name.
        let text = dir_on(d, 2, 3);
        caches(lookup(d, &text)).await;
        let sub = waits_for(&b, &[name_key(d, &text)], a.mkdir(d, &text)).await.unwrap();
        assert_eq!(sub.target(), TargetId(2));
        caches(lookup(d, &text)).await;
        caches(Request::GetAttr { ino: sub }).await;
        waits_for(&b, &[name_key(d, &text), attributes(sub)], a.rmdir(d, &text)).await.unwrap();
        assert_eq!(b.lookup(d, &text).await, Err(Errno::NoEnt));
        a.goodbye().await;
        b.goodbye().await;
        world.stop_all(servers).await;
        assert!(world.fsck().await.is_clean());
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a server joins while there are several mounts. It knows them, and grants tokens and locks. Method: two mounts,
/// then a second and a third server.
#[test]
fn a_server_joins_several_mounts() {
    let world = World::new(403, &[1, 2, 1], 1);
    let run = async {
        let mut servers = vec![Some(world.start(0).await.unwrap())];
        let a = world.mount(1).await.unwrap();
        let b = world.mount(2).await.unwrap();
        for (at, pool) in [(1, 3), (2, 4)] {
            servers.push(Some(world.start(at).await.unwrap()));
            a.refresh().await;
            b.refresh().await;
            assert_eq!((a.pool(), b.pool()), (pool, pool));
            let dir = a.dir_at(pool - 1).await;
            assert!(is_granted(&b, dir).await && is_granted(&a, dir).await);
            waits_for(&b, &[name_key(dir, "x")], a.create(dir, "x")).await.unwrap();
        }
        a.goodbye().await;
        b.goodbye().await;
        world.stop_all(servers).await;
        assert!(world.fsck().await.is_clean());
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: messages that a server pushed over a connection that broke are pushed again over the next one. Method: an
/// unresponsive holder loses its connection to a server other than the master, after a revocation and a callback, and
/// answers the repeated ones.
#[test]
fn every_server_pushes_again() {
    let world = World::new(404, &[1, 1], 1);
    let run = async {
        let _servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let dir = a.dir_at(1).await;
        let f = a.create(dir, "f").await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 100)).await.unwrap();
        assert!(b.told(lookup(dir, "f")).await.1.name.is_some());
        b.set_deaf(true);
        let trouble = async {
            let held = b.held(1);
            held.revoked().await;
            held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(())).await;
            b.set_deaf(false);
            world.sim.break_connections("b", "s1");
        };
        let begun = world.sim.node("client").now();
        let (renamed, locked, ()) = futures_util::join!(
            a.rename((dir, "f"), (dir, "g"), RenameMode::Replace),
            a.call(lock(f, LockMode::Read, 0, 10)),
            trouble
        );
        renamed.unwrap();
        locked.unwrap();
        assert!(world.sim.node("client").now().since(begun) < Duration::from_secs(10), "nobody was evicted");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a size is right although another mount has not written it back, with inode and object on different servers.
/// Method: one mount holds a lock on an object of another server than the inode's and reports its unwritten size.
#[test]
fn unwritten_bytes_are_seen_over_servers() {
    let world = World::new(405, &[1, 1, 1], 1);
    let run = async {
        let _servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let dir = a.dir_at(1).await;
        let view = a.open_new(dir, "f").await.unwrap();
        a.call(Request::Spread { ino: view.attr.ino }).await.unwrap();
        let object = ObjectId { ino: view.attr.ino, stripe: 1 };
        let at = usize::from(object_target(object, 3).0);
        assert_ne!(at, 1);
        let (mode, range) = (LockMode::Write, ByteRange::ALL);
        a.call(Request::LockEnqueue { object, mode, range, extent: LockExtent::Grown }).await.unwrap();
        let mtime = Timespec { sec: 5_000_000_000, nsec: 1 };
        a.held(at).unwritten.borrow_mut().insert(object, (12_345_678, mtime));
        let seen = b.stat(view.attr.ino).await.unwrap();
        assert_eq!((seen.size, seen.mtime), (12_345_678, mtime));
    };
    world.sim.block_on(run).unwrap();
}
