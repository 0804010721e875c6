//! Directories whose names lie in shards, as servers store them.

use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::CrashKind;
use amphi_types::{Caps, FileFlags, SetAttr};
use futures_util::future::{Either, join, select};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

/// Distances in time between two requests.
const DISTANCES: u64 = 40;

/// Names that lie in different shards, one for each of `count`.
fn one_for_each(count: usize) -> Vec<String> {
    let in_shard = |shard: usize| {
        (0..)
            .map(|i| format!("n{i}"))
            .find(move |text| name(text).shard(count) == shard)
            .expect("a name for each shard")
    };
    (0..count).map(in_shard).collect()
}

/// Returns whether two seconds are too short for an answer.
async fn is_late<T>(place: &Place, asked: impl Future<Output = T>) -> bool {
    let clock = place.sim.node("client");
    let wait = pin!(clock.sleep(Duration::from_secs(2)));
    matches!(select(pin!(asked), wait).await, Either::Right(_))
}

/// Goal: the inodes of a directory with shards lie beside their names on all targets, a look at the directory itself is
/// refused, and it can be removed only when all shards are empty. Method: a name in each shard, removed one by one.
#[test]
fn names_lie_in_shards() {
    let place = Place::new(900, 4, 2);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(c.shards(dir).await, Ok(Vec::new()));
        c.call(Request::SetShards { ino: dir, count: 0 }).await.unwrap();
        let shards = c.shards(dir).await.unwrap();
        let mut targets: Vec<_> = shards.iter().map(|shard| shard.target().0).collect();
        targets.sort_unstable();
        assert_eq!(targets, [0, 1, 2, 3], "one on each target");
        assert_eq!(c.call(Request::SetShards { ino: dir, count: 2 }).await, Err(Errno::Exist));
        let names = one_for_each(4);
        for (text, shard) in names.iter().zip(&shards) {
            let file = c.create(dir, text).await.unwrap();
            assert_eq!(file.target(), shard.target(), "the inode lies beside its name");
        }
        let lookup = Request::Lookup { dir, name: name(&names[0]) };
        assert_eq!(c.ask(lookup, None).await.0, Err(Errno::Remote), "nothing lies in the directory itself");
        assert_eq!(c.list(dir).await.unwrap().len(), 4);
        for text in &names {
            assert_eq!(c.rmdir(Ino::ROOT, "d").await, Err(Errno::NotEmpty), "{text} is still there");
            c.unlink(dir, text).await.unwrap();
        }
        c.rmdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(c.shards(dir).await, Err(Errno::Stale));
        let full = c.mkdir(Ino::ROOT, "full").await.unwrap();
        c.create(full, "f").await.unwrap();
        assert_eq!(c.call(Request::SetShards { ino: full, count: 2 }).await, Err(Errno::NotEmpty));
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: attributes that were set on a directory hold in all of its shards when the answer arrives. Method:
/// permissions, flags, group and an access list of the directory; then another user makes names in each shard.
#[test]
fn shards_have_what_the_directory_has() {
    let place = Place::new(901, 3, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        *other.cred.borrow_mut() = Cred { caps: Caps::NONE, ..Cred::new(5, 6, vec![]) };
        let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
        c.call(Request::SetShards { ino: dir, count: 6 }).await.unwrap();
        let names = one_for_each(6);
        let set = |set: SetAttr| c.call(Request::SetAttr { ino: dir, set });
        for text in &names {
            assert_eq!(other.make(dir, text, Make::Dir).await, Err(Errno::Access), "{text}");
        }
        set(SetAttr { perm: Some(0o2777), gid: Some(9), ..SetAttr::default() }).await.unwrap();
        for text in &names {
            let sub = other.make(dir, text, Make::Dir).await.unwrap();
            let attr = other.stat(sub).await.unwrap();
            assert_eq!((attr.gid, attr.perm & 0o2000), (9, 0o2000), "{text}: group and setgid bit are inherited");
        }
        set(SetAttr { flags: Some(FileFlags::APPEND), ..SetAttr::default() }).await.unwrap();
        for text in &names {
            assert_eq!(c.rmdir(dir, text).await, Err(Errno::Perm), "{text}: names are added alone");
        }
        set(SetAttr { flags: Some(FileFlags::NONE), ..SetAttr::default() }).await.unwrap();
        set(SetAttr { project: Some(3), ..SetAttr::default() }).await.unwrap();
        for text in &names {
            c.rmdir(dir, text).await.unwrap();
        }
        c.call(Request::Goodbye).await.unwrap();
        other.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: no client is informed of shards while a name of the directory itself may be cached. Method: a mount holds a
/// name as absent and does not answer; the answer with the shards is sent only when it has answered.
#[test]
fn cached_names_go_before_shards_are_told() {
    let place = Place::new(902, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, holder) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(holder.lookup(dir, "x").await.map(drop), Err(Errno::NoEnt));
        holder.held.deaf.set(true);
        let set = async { c.call(Request::SetShards { ino: dir, count: 2 }).await.unwrap() };
        let answers = async {
            loop {
                let (target, id, keys) = holder.held.revoked().await;
                let is_name = keys.contains(&TokenKey::Name(dir, name("x").token_hash()));
                if is_name {
                    assert!(is_late(&place, holder.shards(dir)).await, "the name may still be cached");
                }
                holder.reply(&Push::Revoke { target, id, upto: 0, keys }).await;
                if is_name {
                    return;
                }
            }
        };
        join(set, answers).await;
        holder.held.deaf.set(false);
        assert_eq!(c.shards(dir).await.unwrap().len(), 2);
        c.create(dir, "x").await.unwrap();
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a request that names a shard itself cannot change it. Method: each request that could.
#[test]
fn shards_are_not_changed_alone() {
    let place = Place::new(904, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
        c.call(Request::SetShards { ino: dir, count: 2 }).await.unwrap();
        for ino in c.shards(dir).await.unwrap() {
            let (name, value, mode) = (b"user.a".to_vec(), b"1".to_vec(), amphi_wire::XattrMode::Set);
            for op in [
                Request::SetAttr { ino, set: SetAttr { perm: Some(0o777), ..SetAttr::default() } },
                Request::SetXattr { ino, name: name.clone(), value, mode },
                Request::RemoveXattr { ino, name },
                Request::SetLayout { ino, layout: None, advice: None },
                Request::SetShards { ino, count: 2 },
            ] {
                assert_eq!(c.call(op.clone()).await, Err(Errno::Inval), "{op:?}");
            }
        }
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: after a restart, a target answers `Shards` only when every mount has connected again and has dropped the names
/// that it cached before. Method: a mount that holds a name as absent is stopped while the server is killed.
#[test]
fn shards_wait_for_every_mount() {
    let place = Place::new(903, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, holder) =
            (place.client(1).await.unwrap(), place.client_on("other", 2, "other:2", Role::Mount).await.unwrap());
        let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(holder.lookup(dir, "x").await.map(drop), Err(Errno::NoEnt));
        c.call(Request::SetShards { ino: dir, count: 2 }).await.unwrap();
        place.sim.stop("other");
        place.sim.crash("server", CrashKind::Process);
        drop(server);
        let server = place.start().await.unwrap();
        assert!(is_late(&place, c.shards(dir)).await, "a mount may still cache names");
        place.sim.go_on("other");
        assert_eq!(c.shards(dir).await.unwrap().len(), 2);
        assert_eq!(holder.lookup(dir, "x").await.map(drop), Err(Errno::NoEnt));
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a name made in a shard while the directory is removed, or the directory getting shards at that time, comes
/// before the removal or after it. Method: both calls at once, with different delays; one of them succeeds, and the
/// zones are consistent.
#[test]
fn removals_meet_names_and_shards() {
    for distance in 0..DISTANCES {
        let place = Place::new(910 + distance, 3, 3);
        let run = async {
            let server = place.start().await.unwrap();
            let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let clock = place.sim.node("client");
            let pause = async |micros| clock.sleep(Duration::from_micros(micros)).await;
            let (before, after) =
                (20 * distance.saturating_sub(DISTANCES / 2), 20 * (DISTANCES / 2).saturating_sub(distance));
            let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
            c.call(Request::SetShards { ino: dir, count: 3 }).await.unwrap();
            let shards = c.shards(dir).await.unwrap();
            let make = Make::File { open: None, exclusive: true };
            let make = Request::Make { dir: shards[2], name: name(&one_for_each(3)[2]), make, perm: 0o644, umask: 0 };
            let made = async {
                pause(before).await;
                other.ask(make, None).await.0.map(drop)
            };
            let removed = async {
                pause(after).await;
                c.rmdir(Ino::ROOT, "d").await
            };
            match join(made, removed).await {
                (Ok(()), Err(Errno::NotEmpty)) => {}
                (Err(Errno::NoEnt | Errno::Stale), Ok(())) => {}
                both => panic!("a name and the removal of its directory: {both:?}"),
            }
            let dir = c.mkdir(Ino::ROOT, "e").await.unwrap();
            let set = async {
                pause(before).await;
                other.ask(Request::SetShards { ino: dir, count: 3 }, None).await.0.map(drop)
            };
            let removed = async {
                pause(after).await;
                c.rmdir(Ino::ROOT, "e").await
            };
            match join(set, removed).await {
                (Ok(()) | Err(Errno::NoEnt | Errno::Stale), Ok(())) => {}
                both => panic!("shards and the removal of their directory: {both:?}"),
            }
            c.call(Request::Goodbye).await.unwrap();
            other.call(Request::Goodbye).await.unwrap();
            server.stop().await.unwrap();
            let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
            assert!(report.is_clean(), "{report:?}");
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a change of a directory's attributes at the time when it gets shards holds in all of them, whichever comes
/// first. Method: `chmod` and the shards at once, with different delays; then names in each shard by somebody whom the
/// new permissions refuse, and the checker.
#[test]
fn attributes_meet_new_shards() {
    for distance in 0..DISTANCES {
        let place = Place::new(960 + distance, 3, 3);
        let run = async {
            let server = place.start().await.unwrap();
            let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let clock = place.sim.node("client");
            let pause = async |micros| clock.sleep(Duration::from_micros(micros)).await;
            let (before, after) =
                (20 * distance.saturating_sub(DISTANCES / 2), 20 * (DISTANCES / 2).saturating_sub(distance));
            let dir = c.mkdir(Ino::ROOT, "d").await.unwrap();
            c.call(Request::SetAttr { ino: dir, set: SetAttr { perm: Some(0o777), ..SetAttr::default() } })
                .await
                .unwrap();
            let set = async {
                pause(before).await;
                other.inode(Request::SetShards { ino: dir, count: 3 }).await.unwrap()
            };
            let changed = async {
                pause(after).await;
                let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
                c.inode(Request::SetAttr { ino: dir, set }).await.unwrap()
            };
            let (view, _) = join(set, changed).await;
            assert!(view.sharded && matches!(view.attr.perm, 0o777 | 0o700), "{view:?}");
            assert_eq!(c.stat(dir).await.unwrap().perm, 0o700);
            *other.cred.borrow_mut() = Cred { caps: Caps::NONE, ..Cred::new(5, 6, vec![]) };
            for text in one_for_each(3) {
                assert_eq!(other.make(dir, &text, Make::Dir).await, Err(Errno::Access), "{text} after {distance}");
            }
            c.call(Request::Goodbye).await.unwrap();
            other.call(Request::Goodbye).await.unwrap();
            server.stop().await.unwrap();
            let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
            assert!(report.is_clean(), "{report:?}");
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: the tests of shards see the mistakes that servers could make with them. Method: each is planted.
#[test]
fn mistakes_with_shards_are_found() {
    let tests: [(Mistake, fn()); 4] = [
        (Mistake::ShardLeftOut, shards_have_what_the_directory_has),
        (Mistake::ShardUnguarded, removals_meet_names_and_shards),
        (Mistake::ShardsToldEarly, cached_names_go_before_shards_are_told),
        (Mistake::ShardsToldAtStart, shards_wait_for_every_mount),
    ];
    for (mistake, test) in tests {
        plant(Some(mistake));
        let found = catch_unwind(AssertUnwindSafe(test)).is_err();
        plant(None);
        assert!(found, "{mistake:?} was not found");
    }
}
