//! Squashes and revocations while the server is killed and connections break.

use super::*;
use amphi_env::sim::CrashKind;
use futures_util::future::join;

/// Random numbers of a story.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The registry after a change (or without one), as a command requests it. `None`: the change was refused, or the
/// connection was lost before it was answered.
async fn registry(place: &Place, change: Option<KeyChange>) -> Option<KeyRegistry> {
    let env = place.sim.node("client");
    let mut session = 1_000_000 + env.now().0;
    let boss = loop {
        // The server may be on its way up.
        match place.keyed(session, Role::Admin, 3).await {
            Ok(boss) => break boss,
            Err(_) => env.sleep(Duration::from_millis(20)).await,
        }
        session += 1;
    };
    match boss.call(Request::Keys { change }).await {
        Ok(Reply::Keys(registry)) => Some(*registry),
        _ => None,
    }
}

/// The server's present entry of the key that is squashed.
async fn present(place: &Place) -> Option<KeyEntry> {
    loop {
        if let Some(registry) = registry(place, None).await {
            return registry.keys.into_iter().find(|key| key.name == "k");
        }
    }
}

async fn story(place: &Place, seed: u64) -> (u64, u64) {
    let server = RefCell::new(Some(place.start().await.expect("it starts")));
    let env = place.sim.node("client");
    let root = place.client(1).await.expect("root mounts");
    root.chmod(Ino::ROOT, 0o777).await;
    root.add(entry("boss", 3, KeyRole::Admin)).await;
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut mount, mut session, mut made, mut ended) = (None::<Client>, 20, 0, 0);
    // Changes that were not answered: the server may still be about to make them, until they are seen.
    let unsure = RefCell::new(Vec::<SquashTo>::new());
    for step in 0..50 {
        // The restart happens in the middle of other requests.
        let (fault, after) = (dice.below(6), Duration::from_micros(dice.below(3_000)));
        let strike = async {
            env.sleep(after).await;
            match fault {
                0 => {
                    place.sim.crash("server", CrashKind::Process);
                    drop(server.take());
                    server.replace(Some(place.start().await.expect("it starts again")));
                }
                1 => place.sim.break_connections("client", "server"),
                _ => {}
            }
        };
        let to = SquashTo { uid: 600 + dice.below(50) as u32, gid: 700 };
        let what = dice.below(8);
        let text = format!("f{step}");
        let act = async {
            let Some(known) = present(place).await else {
                let squash = Squash { all: Some(to), ..Squash::default() };
                registry(place, Some(KeyChange::Add(KeyEntry { squash, ..entry("k", 1, KeyRole::Client) }))).await;
                return;
            };
            unsure.borrow_mut().retain(|to| Some(*to) != known.squash.all);
            let Some(client) = &mount else { return };
            match what {
                0 => {
                    if registry(place, Some(KeyChange::Remove("k".into()))).await.is_none() {
                        return;
                    }
                    assert_eq!(present(place).await, None, "seed {seed}, step {step}");
                    ended += 1;
                    // No request of the mount is executed from now on.
                    let make = Make::File { open: None, exclusive: true };
                    let asked =
                        amphi_env::timeout(&env, Duration::from_secs(5), client.make(Ino::ROOT, &text, make)).await;
                    assert!(asked.is_none_or(|a| a.is_err()), "seed {seed}, step {step}: a removed key makes a file");
                    assert_eq!(root.lookup(Ino::ROOT, &text).await.map(drop), Err(Errno::NoEnt), "seed {seed}, {step}");
                }
                1 => {
                    let settings = Box::new(KeySettings { all: Some(Some(to)), ..KeySettings::default() });
                    if registry(place, Some(KeyChange::Set { name: "k".into(), settings })).await.is_some() {
                        let now = present(place).await.and_then(|key| key.squash.all);
                        let is_late = now.is_some_and(|now| unsure.borrow().contains(&now));
                        assert!(is_late || now == Some(to), "seed {seed}, step {step}: {now:?}");
                    } else {
                        unsure.borrow_mut().push(to);
                    }
                }
                _ => {
                    let make = Make::File { open: None, exclusive: true };
                    let asked =
                        amphi_env::timeout(&env, Duration::from_secs(30), client.make(Ino::ROOT, &text, make)).await;
                    if let Ok(found) = root.lookup(Ino::ROOT, &text).await {
                        let owner = SquashTo { uid: found.attr.uid, gid: found.attr.gid };
                        let is_late = unsure.borrow().contains(&owner);
                        let squash = known.squash.all;
                        assert!(
                            is_late || Some(owner) == squash,
                            "seed {seed}, {step}: {owner:?}, {squash:?}: {asked:?}"
                        );
                        made += 1;
                    }
                }
            }
        };
        join(strike, act).await;
        let is_there = present(place).await.is_some();
        if !is_there {
            mount = None;
        } else if mount.is_none() {
            session += 1;
            // The mount reconnects by itself after a fault, as soon as the server answers.
            mount = place.keyed(session, Role::Mount, 1).await.ok();
        }
    }
    (made, ended)
}

/// Goal: answers to an administrator remain true across kills of the server and broken connections. A squashed user
/// makes nothing under another name, and no request of a removed key is executed, even by a server that has been
/// restarted since. Method: random changes of an entry and creates by its mount, with faults in the middle.
#[test]
fn squashes_and_revocations_hold_under_faults() {
    let (mut made, mut ended) = (0, 0);
    for seed in 700..724 {
        let place = Place::new(seed, 2, 2);
        let (more, ends) = place.sim.block_on(story(&place, seed)).expect("no deadlock");
        made += more;
        ended += ends;
    }
    assert!(made > 200 && ended > 30, "{made} files, {ended} keys removed");
}
