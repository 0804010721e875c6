//! A thousand sessions that all want the same bytes, at the real server.

use super::locks::{ask, counter, with_three};
use super::*;
use amphi_types::ByteRange;
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::{join_all, select};
use std::pin::pin;

const SESSIONS: u64 = 1000;
/// Grants in all.
const GRANTS: u64 = 10 * SESSIONS;
const RANGE: ByteRange = ByteRange { start: 0, end: 4096 };

/// The next operation of a session: three of ten of its requests read, three of ten go direct.
fn request(object: ObjectId, session: u64, round: u64) -> (Request, Option<Buf>) {
    let dice = (session * 7919 + round * 104_729) % 10;
    let mode = if dice.is_multiple_of(3) { LockMode::Read } else { LockMode::Write };
    let extent = if dice.is_multiple_of(2) { LockExtent::Grown } else { LockExtent::Exact };
    let (offset, generation, server_lock, kill_suidgid) = (RANGE.start, 0, true, false);
    let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
    match dice {
        7..=8 => {
            let write = Request::Write {
                object,
                offset,
                generation,
                mtime,
                server_lock,
                kill_suidgid,
                checksums: Default::default(),
                cover: Default::default(),
            };
            (write, Some(Buf::zeroed(RANGE.len() as usize)))
        }
        9 => (Request::Read { object, range: RANGE, server_lock, advice: Default::default() }, None),
        _ => (ask(object, mode, RANGE.start, RANGE.end, extent), None),
    }
}

/// One session.
struct Fighter {
    client: Client,
    /// How long it takes to answer a callback. `None` means that it answers at once.
    late: Option<Duration>,
    /// How long each of its requests took, virtual time, ms.
    waited_ms: RefCell<Vec<f64>>,
}

impl Fighter {
    /// Sends one request after the other, until all sessions together have got enough grants.
    async fn fight(&self, env: &SimEnv, object: ObjectId, session: u64, grants: &Cell<u64>) {
        for round in 0.. {
            if grants.get() >= GRANTS {
                return;
            }
            let (op, payload) = request(object, session, round);
            let from = env.now();
            self.client.ask(op, payload).await.0.expect("granted");
            self.waited_ms.borrow_mut().push(env.now().since(from).as_secs_f64() * 1e3);
            grants.set(grants.get() + 1);
        }
    }

    /// Answers callbacks late.
    async fn answer(&self, env: &SimEnv) {
        let Some(late) = self.late else { return };
        loop {
            let push = self.client.held.pushed(|push| Some(push.clone())).await;
            env.sleep(late).await;
            self.client.reply(&push).await;
        }
    }
}

/// Goal: 1,000 sessions request one range, cached and direct, to read and to write, and some of them answer callbacks
/// late. All sessions make progress at similar rates. Method: each session requests again as soon as it was granted,
/// until 10,000 requests are granted. Then the grants of each session are compared by Jain's index, and the waits in
/// virtual time.
#[test]
fn a_thousand_sessions_get_on() {
    with_three(103, async |place, [a, b, c], object| {
        let env = a.held.env.borrow().clone().expect("its environment");
        let mut clients = vec![a, b, c];
        for session in 4..=SESSIONS {
            clients.push(place.client(session).await.expect("it comes"));
        }
        for client in &clients {
            client.call(Request::Open { ino: object.ino, access: RW, exec: false }).await.expect("opened");
        }
        let late = |n: u64| n.is_multiple_of(10).then(|| Duration::from_millis(1 + n % 7));
        let fighter = |(n, client): (u64, Client)| {
            client.held.deaf.set(late(n).is_some());
            Fighter { client, late: late(n), waited_ms: RefCell::default() }
        };
        let fighters: Vec<Fighter> = (0..).zip(clients).map(fighter).collect();
        let (grants, from) = (Cell::new(0), env.now());
        let fights = join_all((0..).zip(&fighters).map(|(n, f)| f.fight(&env, object, n, &grants)));
        // Sessions that answer at once have nothing to do here, the others answer without end.
        let answers = join_all(fighters.iter().map(|f| f.answer(&env)));
        drop(select(pin!(fights), pin!(answers)).await);
        let all_ms = env.now().since(from).as_secs_f64() * 1e3;

        let counts: Vec<f64> = fighters.iter().map(|f| f.waited_ms.borrow().len() as f64).collect();
        let (sum, squares) = (counts.iter().sum::<f64>(), counts.iter().map(|x| x * x).sum::<f64>());
        let jain = sum * sum / (squares * counts.len() as f64);
        let (least, most) = counts.iter().fold((f64::MAX, 0f64), |(l, m), &x| (l.min(x), m.max(x)));
        let mut means: Vec<f64> = fighters.iter().map(|f| f.waited_ms.borrow().iter().sum::<f64>()).collect();
        means.iter_mut().zip(&counts).for_each(|(all, count)| *all /= count.max(1.0));
        means.sort_by(f64::total_cmp);
        let (median, slowest) = (means[means.len() / 2], means[means.len() - 1]);
        let longest = fighters.iter().flat_map(|f| f.waited_ms.borrow().clone()).fold(0.0, f64::max);
        // The time in which as many requests are granted as there are sessions.
        let round = all_ms * SESSIONS as f64 / sum;
        println!(
            "{sum} grants in {all_ms:.0} ms: {least} to {most} a session, Jain's index {jain:.4}; waits: median session {median:.1} ms, \
             slowest {slowest:.1} ms, longest request {longest:.1} ms, a round {round:.1} ms"
        );
        assert!(sum >= GRANTS as f64 && least > 0.0 && jain > 0.95 && most <= 2.0 * least, "grants");
        assert!(slowest <= 1.5 * median && longest <= 3.0 * round, "waits");
        let asker = &fighters[1].client;
        assert_eq!(counter(asker, "evictions").await, 0);
        assert!(counter(asker, "lock_callbacks").await > 2 * SESSIONS, "they took it from each other");
    });
}
