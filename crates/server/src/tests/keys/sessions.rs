//! Sessions of keys: whose they are, how many, how they end.

use super::*;

/// Goal: a removed key stops working at once. Requests of its mount are refused, waiting mounts get its locks, neither
/// this mount nor a second one is admitted again, and other mounts continue. The same holds with `Evict`, after which
/// it may connect again. Method: a mount with a lock that another one waits for.
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
            // The client of the test connects again under its id, as a new session, if it may.
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

/// Goal: a session belongs to its key. Neither another key nor a client without a key can continue it. The session of a
/// rotated key continues under the second key, and ends with the first if it was begun with that. There are no more
/// mounts than the bound, and an address outside the ranges is refused. Method: a story.
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
