//! `amphi bench locks`: the cost of a lock when there are 100,000 on one file: time for each to enqueue, memory for
//! each.
//!
//! Owns: the workload. Two sessions of a server in a process of its own request locks of 8 bytes, each between two of
//! the other's, in an order that jumps about. They are sent as raw requests: a mount keeps at most `locks.max` of them.
//! The time is that of the whole round trip, some requests under way at a time; compared with the round trip of a
//! request that does nothing, and of one that conflicts with a lock of the other session, which is called back and
//! returned first.

use super::Run;
use super::idle::memory_mib;
use super::program::Program;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::Way;
use super::series::Series;
use amphi_env::{Env, RealEnv};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_transport::{Link, LinkEvents, Recovery};
use amphi_types::{ByteRange, Cred, Errno, Ino, Name, ObjectId, TargetId};
use amphi_wire::{Access, Call, Lane, LockExtent, LockMode, Make, Push, Reply, Request, Role};
use futures_util::future::join_all;
use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Locks that are held when times are taken.
const HELD: [u64; 3] = [1_000, 10_000, 100_000];
/// Requests of one sample.
const SAMPLE: u64 = 1_000;
/// Requests under way at a time.
const DEPTH: u64 = 16;
/// Bytes from one lock to the next; half of them are locked.
const STRIDE: u64 = 16;
/// Coprime to all numbers of locks: visits every place once, far from the one before.
const JUMP: u64 = 618_033;
/// The goal for the time of an enqueue.
const GOAL_US: f64 = 20.0;

/// Measures a server with more and more locks on one file.
pub fn run(run: &mut Run) -> Outcome {
    let dir = run.dir.join("locks");
    std::fs::create_dir_all(&dir).during(|| format!("make {}", dir.display()))?;
    let (server, addr) = Program::server(&dir.join("data"), Way::Unix)?;
    let bar = run.bar("locks", HELD[2]);
    let (pid, samples) = (server.pid(), run.pairs);
    let measured = RealEnv::try_run(super::DEFAULT_SPINS.1, |env| async move {
        let sessions = [connect(&env, &addr).await?, connect(&env, &addr).await?];
        let object = make_file(&sessions[0]).await?;
        let before = memory_mib(pid, "Rss:")?;
        // Conflicts change the holders to and fro: rounds are counted through.
        let (mut held, mut turn, mut rows) = (0, 0, Vec::new());
        for count in HELD {
            while held < count {
                let to = (held + SAMPLE).min(count);
                enqueue(&sessions, object, held..to).await?;
                held = to;
                bar.set_position(held);
            }
            let kib = (memory_mib(pid, "Rss:")? - before) * 1024.0;
            let mut row = Row { held, bytes: kib * 1024.0 / held as f64, ..Row::default() };
            for round in 0..=samples as u64 {
                // Beyond all that are held in the end, so that nothing of a sample stays.
                let first = HELD[2] * 2 + round * SAMPLE;
                let (took, ids) = timed(enqueue(&sessions, object, first..first + SAMPLE)).await?;
                let (idle, _) = timed(nothings(&sessions)).await?;
                let (met, _) = timed(conflicts(&sessions, object, turn)).await?;
                turn += 1;
                give_back(&sessions, ids).await?;
                if round > 0 {
                    row.enqueue.0.push(took);
                    row.nothing.0.push(idle);
                    row.conflict.0.push(met);
                }
            }
            rows.push(row);
        }
        bar.finish_and_clear();
        Ok::<_, Failure>(rows)
    });
    let rows = measured.during(|| "start a thread with its own ring".into())??;
    server.stop()?;
    std::fs::remove_dir_all(&dir).during(|| format!("remove {}", dir.display()))?;
    show(run, &rows);
    Ok(())
}

/// The results with this many locks held.
#[derive(Default)]
struct Row {
    held: u64,
    /// Growth of the server's memory for each.
    bytes: f64,
    enqueue: Series,
    nothing: Series,
    conflict: Series,
}

fn show(run: &mut Run, rows: &[Row]) {
    let mut table = Table::new(
        "Locks of one file (us for each request, median and range)",
        &[
            "held",
            "enqueue",
            "goal",
            "a request that does nothing",
            "enqueue that meets another's",
            "bytes for each lock",
        ],
    );
    for row in rows {
        let goal = Goal::AtMost(GOAL_US);
        table.row(vec![
            row.held.to_string(),
            spread(&row.enqueue),
            goal.show(row.enqueue.median()),
            spread(&row.nothing),
            spread(&row.conflict),
            digits(row.bytes),
        ]);
        run.report.findings.push(
            Finding::new("locks", format!("{} held", row.held))
                .with("requests_under_way", DEPTH)
                .with("bytes_for_each_lock", row.bytes)
                .series("enqueue_us", &row.enqueue)
                .series("nothing_us", &row.nothing)
                .series("conflict_us", &row.conflict)
                .goal(row.enqueue.median(), goal),
        );
    }
    table.note(format!(
        "{DEPTH} requests under way, {SAMPLE} in a sample. Memory: growth of the server's resident memory."
    ));
    run.show(&table);
}

/// Answers what the server asks, at once.
#[derive(Default)]
struct Events {
    link: RefCell<Weak<Link<RealEnv>>>,
    env: RefCell<Option<RealEnv>>,
}

impl LinkEvents<RealEnv> for Events {
    fn push(&self, push: Push) {
        let (target, op) = match push {
            Push::Callback { target, lock, .. } => (target, Request::LockCancel { locks: vec![lock] }),
            Push::Company { change, .. } => (TargetId(0), Request::CompanyKnown { change }),
            Push::Revoke { target, id, .. } => (target, Request::Revoked { ids: vec![id] }),
            // There are no writes and no requests for a size.
            _ => return,
        };
        if let (Some(env), Some(link)) = (&*self.env.borrow(), self.link.borrow().upgrade()) {
            let call = Call { target, cred: Cred::root(), op };
            env.spawn(async move { drop(link.call(Lane::Answer, call, None, 0).await) });
        }
    }

    async fn restarted(&self, _recovery: Recovery<RealEnv>) -> Result<(), Errno> {
        Err(Errno::Io)
    }
}

type Session = Rc<Link<RealEnv>>;

async fn connect(env: &RealEnv, addr: &str) -> Outcome<Session> {
    let config = amphi_host::link::link_config(vec![addr.to_string()], Role::Mount, None)?;
    let events = Rc::<Events>::default();
    *events.env.borrow_mut() = Some(env.clone());
    let link = Link::connect(env.clone(), config, events.clone()).await.during(|| format!("connect to {addr}"))?;
    *events.link.borrow_mut() = Rc::downgrade(&link);
    Ok(link)
}

async fn ask(session: &Session, lane: Lane, object: ObjectId, op: Request) -> Outcome<Reply> {
    let call = Call { target: object.ino.target(), cred: Cred::root(), op };
    let (answer, _) = session.call(lane, call, None, 0).await.during(|| "call the server".into())?;
    answer.result.during(|| "ask the server".into())
}

/// An open file without locks.
async fn make_file(session: &Session) -> Outcome<ObjectId> {
    let root = ObjectId { ino: Ino::ROOT, stripe: 0 };
    let name = Name::new("locked").during(|| "name a file".into())?;
    let open = Some(Access { read: true, write: true });
    let make =
        Request::Make { dir: Ino::ROOT, name, make: Make::File { open, exclusive: true }, perm: 0o644, umask: 0 };
    match ask(session, Lane::Normal, root, make).await? {
        Reply::Made { inode, lock, .. } => {
            let object = ObjectId { ino: inode.attr.ino, stripe: 0 };
            let locks = lock.into_iter().collect();
            ask(session, Lane::Answer, object, Request::LockCancel { locks }).await?;
            Ok(object)
        }
        other => Err(Failure::broken(format!("a file was made: {other:?}"))),
    }
}

/// Microseconds for each of `SAMPLE` requests, and their results.
async fn timed<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<(f64, T)> {
    let start = super::clock::now();
    let result = work.await?;
    Ok((start.elapsed().as_secs_f64() * 1e6 / SAMPLE as f64, result))
}

/// Does `one` for each number of the range, some at a time.
async fn each<T, F: Future<Output = Outcome<T>>>(
    range: std::ops::Range<u64>,
    one: impl Fn(u64) -> F,
) -> Outcome<Vec<T>> {
    let one = &one;
    let walker = |first: u64| {
        let range = range.clone();
        async move {
            let mut all = Vec::new();
            for n in range.skip(first as usize).step_by(DEPTH as usize) {
                all.push(one(n).await?);
            }
            Ok::<_, Failure>(all)
        }
    };
    let all = join_all((0..DEPTH).map(walker)).await.into_iter().collect::<Outcome<Vec<_>>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// The start of lock `n`: those below the largest number held mix, those beyond lie between them.
fn place(n: u64) -> u64 {
    let (most, beyond) = (HELD[2], n >= HELD[2]);
    n * JUMP % most * STRIDE + if beyond { STRIDE / 2 } else { 0 }
}

fn lock(object: ObjectId, start: u64) -> Request {
    let range = ByteRange::at(start, STRIDE / 2);
    Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact }
}

async fn enqueue(sessions: &[Session; 2], object: ObjectId, range: std::ops::Range<u64>) -> Outcome<Vec<(usize, u64)>> {
    each(range, |n| async move {
        let (at, start) = ((n % 2) as usize, place(n));
        match ask(&sessions[at], Lane::Normal, object, lock(object, start)).await? {
            Reply::Locked { lock, range } if range.start == start => Ok((at, lock)),
            other => Err(Failure::broken(format!("a lock at {start} was asked for: {other:?}"))),
        }
    })
    .await
}

async fn nothings(sessions: &[Session; 2]) -> Outcome<Vec<Reply>> {
    let object = ObjectId { ino: Ino::ROOT, stripe: 0 };
    let nothing = || Request::LockCancel { locks: Vec::new() };
    each(0..SAMPLE, |n| ask(&sessions[(n % 2) as usize], Lane::Normal, object, nothing())).await
}

/// Takes locks that the other session holds: they change hands, as many are held as before.
async fn conflicts(sessions: &[Session; 2], object: ObjectId, turn: u64) -> Outcome<Vec<Reply>> {
    each(0..SAMPLE, |n| ask(&sessions[((n + turn + 1) % 2) as usize], Lane::Normal, object, lock(object, place(n))))
        .await
}

async fn give_back(sessions: &[Session; 2], ids: Vec<(usize, u64)>) -> Outcome {
    for (at, session) in sessions.iter().enumerate() {
        let locks: Vec<u64> = ids.iter().filter(|(of, _)| *of == at).map(|(_, id)| *id).collect();
        let object = ObjectId { ino: Ino::ROOT, stripe: 0 };
        ask(session, Lane::Answer, object, Request::LockCancel { locks }).await?;
    }
    Ok(())
}
