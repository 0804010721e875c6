//! The registry of keys: changes while mounts are there, many keys, two administrators.

use super::*;

/// Goal: an entry is changed without being removed. Existing mounts continue in their sessions, and from the change on
/// they have the rights of the changed entry, for each of its settings. A mount whose address is no longer permitted
/// loses its connection and is not admitted again. Method: one mount, its entry changed step by step.
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

/// Goal: 1,000 keys are kept over a restart and fit into one message. If two administrators make changes at the same
/// time, none is lost. Method: two administrators add keys in an order that the simulation chooses, and the server is
/// restarted.
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
                // Both clients request this name.
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
