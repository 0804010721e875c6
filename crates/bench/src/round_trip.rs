//! Bare round trips: what a message costs without a file system behind it.
//!
//! Owns: the transport terms: a ping-pong over a Unix or TCP socket between two threads with the environment's own
//! loop, and a hand-over between two threads of one process, each with the polling times of what it is compared with.
//! Does not own: frames and requests.

use super::Run;
use super::clock::now;
use amphi_env::{Buf, Conn, Env, Listener, RealEnv, Rx, Tx};
use amphi_host::failure::{Failure, Outcome};
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread::{Builder, Thread};
use std::time::Duration;

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Unix socket.
    Unix,
    /// TCP over loopback.
    Tcp,
    /// Between two threads of one process.
    Thread,
}

impl Way {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Way::Unix => "unix",
            Way::Tcp => "tcp",
            Way::Thread => "in-process",
        }
    }
}

/// A bare ping-pong.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Which way.
    pub way: Way,
    /// How long the side that asks polls before it sleeps.
    pub client_spin: Duration,
    /// How long the side that answers polls before it sleeps.
    pub server_spin: Duration,
    /// Bytes that go along with the 64 of the request.
    pub sent: usize,
    /// Bytes that come back with the 64 of the answer.
    pub received: usize,
    /// Pause between an answer and the next request.
    pub gap: Duration,
}

impl RoundTrip {
    /// Requests of 64 bytes in each direction, one after the other.
    pub fn of(way: Way, client_spin: Duration, server_spin: Duration) -> RoundTrip {
        RoundTrip { way, client_spin, server_spin, sent: 0, received: 0, gap: Duration::ZERO }
    }

    /// Median microseconds of `rounds` round trips, after a tenth as many to warm up.
    pub fn sample_us(self, run: &Run, rounds: usize) -> Outcome<f64> {
        let mut times = match self.way {
            Way::Thread => self.thread(rounds + rounds / 10),
            Way::Unix | Way::Tcp => self.socket(run, rounds + rounds / 10),
        }
        .map_err(|e| Failure::broken(format!("the bare {} round trip failed: {e}", self.way.name())))?;
        let counted = &mut times[rounds / 10..];
        counted.sort_unstable();
        Ok(counted[counted.len() / 2] as f64 / 1000.0)
    }

    fn socket(self, run: &Run, rounds: usize) -> io::Result<Vec<u64>> {
        let addr = match self.way {
            Way::Tcp => "tcp:127.0.0.1:0".to_string(),
            // The socket is not in the storage folder, because its path must be short.
            _ => format!("unix:{}/amphi-bench-{}.sock", std::env::temp_dir().display(), std::process::id()),
        };
        let (tell, told) = mpsc::channel();
        let answer = Builder::new().name("bench-answer".into()).spawn(move || {
            RealEnv::try_run(self.server_spin, |env| async move {
                let listener = env.listen(&addr).await?;
                let _ = tell.send(listener.local_addr());
                let (mut tx, mut rx) = listener.accept().await?.split();
                let (mut head, mut body) = (Buf::zeroed(64), Buf::zeroed(self.sent));
                let mut back = (self.received > 0).then(|| Buf::zeroed(self.received));
                for _ in 0..rounds {
                    head = finished(rx.recv_exact(head).await)?;
                    if self.sent > 0 {
                        body = finished(rx.recv_exact(body).await)?;
                    }
                    let done;
                    (done, head, back) = tx.send(head, back).await;
                    done?;
                }
                Ok(())
            })?
        })?;
        // The other end of the channel is dropped if the thread fails: its error then says more.
        let times = told.recv().map_err(io::Error::other).and_then(|addr| {
            RealEnv::try_run(self.client_spin, |env| async move {
                let (mut tx, mut rx) = env.dial(&addr).await?.split();
                let (mut head, mut body) = (Buf::zeroed(64), (self.sent > 0).then(|| Buf::zeroed(self.sent)));
                let mut back = Buf::zeroed(self.received);
                let mut times = Vec::with_capacity(rounds);
                for _ in 0..rounds {
                    let start = env.now();
                    let done;
                    (done, head, body) = tx.send(head, body).await;
                    done?;
                    head = finished(rx.recv_exact(head).await)?;
                    if self.received > 0 {
                        back = finished(rx.recv_exact(back).await)?;
                    }
                    times.push(env.now().0 - start.0);
                    if !self.gap.is_zero() {
                        env.sleep(self.gap).await;
                    }
                }
                Ok(times)
            })?
        });
        let _ = run;
        match answer.join() {
            Ok(Ok(())) => times,
            Ok(Err(e)) => Err(e),
            Err(_) => Err(io::Error::other("the answering thread panicked")),
        }
    }

    /// One thread sends requests as a caller of the client does (spins, then parks); the other answers as a worker
    /// does.
    fn thread(self, rounds: usize) -> io::Result<Vec<u64>> {
        let slot = Arc::new(Slot::default());
        let theirs = slot.clone();
        let caller = std::thread::current();
        let answer = Builder::new().name("bench-answer".into()).spawn(move || {
            RealEnv::try_run(self.server_spin, |_| async move {
                for round in 1..=rounds as u64 {
                    theirs.asked(round).await;
                    theirs.answer(round, &caller);
                }
            })
        })?;
        let mut times = Vec::with_capacity(rounds);
        for round in 1..=rounds as u64 {
            let start = now();
            slot.ask(round);
            slot.answered(round, self.client_spin, || answer.is_finished())?;
            times.push(start.elapsed().as_nanos() as u64);
            if !self.gap.is_zero() {
                super::clock::pause(self.gap);
            }
        }
        match answer.join() {
            Ok(Ok(())) => Ok(times),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(io::Error::other("the answering thread panicked")),
        }
    }
}

fn finished((result, buf): (io::Result<()>, Buf)) -> io::Result<Buf> {
    result.map(|()| buf)
}

/// The slot by which two threads hand over to each other.
#[derive(Default)]
struct Slot {
    asked: AtomicU64,
    answered: AtomicU64,
    /// The asking thread is about to sleep.
    parked: AtomicBool,
    worker: Mutex<Option<Waker>>,
}

impl Slot {
    fn ask(&self, round: u64) {
        self.asked.store(round, SeqCst);
        let waker = self.worker.lock().ok().and_then(|mut w| w.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn asked(&self, round: u64) {
        poll_fn(|cx| {
            if self.asked.load(SeqCst) >= round {
                return Poll::Ready(());
            }
            if let Ok(mut worker) = self.worker.lock() {
                *worker = Some(cx.waker().clone());
            }
            if self.asked.load(SeqCst) >= round { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn answer(&self, round: u64, caller: &Thread) {
        self.answered.store(round, SeqCst);
        if self.parked.swap(false, SeqCst) {
            caller.unpark();
        }
    }

    fn answered(&self, round: u64, spin: Duration, ended: impl Fn() -> bool) -> io::Result<()> {
        let until = (!spin.is_zero()).then(|| now() + spin);
        while self.answered.load(SeqCst) < round {
            if until.is_some_and(|t| now() < t) {
                std::hint::spin_loop();
                continue;
            }
            self.parked.store(true, SeqCst);
            if self.answered.load(SeqCst) < round {
                if ended() {
                    return Err(io::Error::other("the answering thread ended"));
                }
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
        Ok(())
    }
}
