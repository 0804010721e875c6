//! Rings between workers: two lanes from each to each, itself included.
//!
//! Owns: the rings and the bell of each receiver. Does not own: credits. Callers hold one for each message that
//! they may have outstanding, so a full ring is a programmer's error.
//!
//! Invariants: messages of one lane between one pair arrive in order; an urgent message (a flush, a cancel) is
//! received before every normal one that has not been received yet; no wake-up is lost (`bell`).
//!
//! Driving numbers: a hop costs 0.1 us while the receiver runs and 40 us when its core must be woken; the wake-up
//! call itself costs the sender 0.5 us or more, so it is made only for a receiver that sleeps.

use crate::bell::Bell;
use rtrb::{Consumer, Producer, RingBuffer};
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Messages that a receiver takes at once before it lets other tasks of its worker run.
const BURST_MAX: u32 = 64;

/// A name for one of the two rings of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Flushes, cancels, callbacks: received first, so that messages which free resources never wait behind those which
    /// need them.
    Urgent,
    /// The ring for all other messages.
    Normal,
}

const LANES: [Lane; 2] = [Lane::Urgent, Lane::Normal];

/// A message that could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError<M> {
    /// The ring is full: the sender overdrew its credits.
    Full(M),
    /// The receiver is gone.
    Gone(M),
}

impl<M> SendError<M> {
    /// The message.
    pub fn into_inner(self) -> M {
        match self {
            SendError::Full(m) | SendError::Gone(m) => m,
        }
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the ring to the worker is full",
            SendError::Gone(_) => "the worker is gone",
        })
    }
}

impl<M: fmt::Debug> std::error::Error for SendError<M> {}

/// One worker's ends of all rings; it is sent to the worker's thread and split there.
pub struct Port<M> {
    id: usize,
    tx: Vec<[Producer<M>; 2]>,
    rx: Vec<[Consumer<M>; 2]>,
    bells: Arc<[Bell]>,
}

/// Makes the ports of `n` workers; each ring holds `capacity` messages.
pub fn mesh<M: Send>(n: usize, capacity: usize) -> Vec<Port<M>> {
    let bells: Arc<[Bell]> = (0..n).map(|_| Bell::default()).collect();
    let mut ports: Vec<Port<M>> =
        (0..n).map(|id| Port { id, tx: Vec::new(), rx: Vec::new(), bells: bells.clone() }).collect();
    for from in 0..n {
        for to in 0..n {
            let (urgent_tx, urgent_rx) = RingBuffer::new(capacity);
            let (normal_tx, normal_rx) = RingBuffer::new(capacity);
            ports[from].tx.push([urgent_tx, normal_tx]);
            ports[to].rx.push([urgent_rx, normal_rx]);
        }
    }
    ports
}

impl<M: Send> Port<M> {
    /// The worker's number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The two halves, for the tasks of this thread.
    pub fn split(self) -> (MeshTx<M>, MeshRx<M>) {
        let tx = MeshTx { id: self.id, rings: Rc::new(RefCell::new(self.tx)), bells: self.bells.clone() };
        (tx, MeshRx { id: self.id, rings: self.rx, bells: self.bells, next: 0, burst: 0 })
    }
}

/// Sending half; clones are for the tasks of one thread.
pub struct MeshTx<M> {
    id: usize,
    rings: Rc<RefCell<Vec<[Producer<M>; 2]>>>,
    bells: Arc<[Bell]>,
}

impl<M> Clone for MeshTx<M> {
    fn clone(&self) -> MeshTx<M> {
        MeshTx { id: self.id, rings: self.rings.clone(), bells: self.bells.clone() }
    }
}

impl<M: Send> MeshTx<M> {
    /// The sending worker's number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.bells.len()
    }

    /// Sends to worker `to` without waiting. The caller holds a credit, so a full ring is asserted against in debug
    /// builds; the message is returned if it could not be sent.
    pub fn send(&self, to: usize, lane: Lane, message: M) -> Result<(), SendError<M>> {
        let result = self.try_send(to, lane, message);
        debug_assert!(!matches!(result, Err(SendError::Full(_))), "worker {} overdrew its credits at {to}", self.id);
        result
    }

    /// Works as `send`, for callers without credits.
    pub fn try_send(&self, to: usize, lane: Lane, message: M) -> Result<(), SendError<M>> {
        {
            let mut rings = self.rings.borrow_mut();
            let ring = &mut rings[to][lane as usize];
            if ring.is_abandoned() {
                return Err(SendError::Gone(message));
            }
            if let Err(rtrb::PushError::Full(message)) = ring.push(message) {
                return Err(SendError::Full(message));
            }
        }
        self.bells[to].ring();
        Ok(())
    }
}

/// Receiving half; one task receives.
pub struct MeshRx<M> {
    id: usize,
    rings: Vec<[Consumer<M>; 2]>,
    bells: Arc<[Bell]>,
    /// The ring at which the next scan begins, so that no sender starves another.
    next: usize,
    burst: u32,
}

impl<M: Send> MeshRx<M> {
    /// The receiving worker's number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The next message and its sender, if one waits.
    pub fn try_recv(&mut self) -> Option<(usize, Lane, M)> {
        take(&mut self.rings, &mut self.next)
    }

    /// The next message and its sender. Dropping the future loses no message.
    pub async fn recv(&mut self) -> (usize, Lane, M) {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next message.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Lane, M)> {
        self.burst += 1;
        if self.burst > BURST_MAX {
            self.burst = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(got) = self.try_recv() {
            return Poll::Ready(got);
        }
        self.burst = 0;
        self.bells[self.id].wait(cx, || take(&mut self.rings, &mut self.next))
    }
}

/// The next message of the rings, urgent ones first; the scan starts with the sender `next`.
fn take<M>(rings: &mut [[Consumer<M>; 2]], next: &mut usize) -> Option<(usize, Lane, M)> {
    let n = rings.len();
    for lane in LANES {
        for i in 0..n {
            let from = (*next + i) % n;
            if let Ok(message) = rings[from][lane as usize].pop() {
                *next = (from + 1) % n;
                return Some((from, lane, message));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_env::sim::{Sim, SimConfig};
    use amphi_env::{Env, RealEnv};
    use std::time::Duration;

    /// Goal: order within a lane, urgent before normal, fairness between senders, messages back when a ring is
    /// full or its receiver gone. Method: script without an executor.
    #[test]
    fn lanes_and_bounds() {
        let mut ports = mesh::<u32>(3, 2).into_iter();
        let (tx0, mut rx0) = ports.next().expect("port").split();
        let (tx1, rx1) = ports.next().expect("port").split();
        assert_eq!((tx0.id(), rx1.id(), tx0.workers()), (0, 1, 3));
        for (tx, m) in [(&tx0, 1), (&tx0, 2), (&tx1, 11), (&tx1, 12)] {
            tx.send(0, Lane::Normal, m).expect("room");
        }
        assert_eq!(tx0.try_send(0, Lane::Normal, 3), Err(SendError::Full(3)));
        tx1.send(0, Lane::Urgent, 99).expect("a lane of its own");
        let got: Vec<_> = std::iter::from_fn(|| rx0.try_recv()).collect();
        assert_eq!(got[0], (1, Lane::Urgent, 99));
        assert_eq!(got[1..].iter().map(|(_, _, m)| *m).collect::<Vec<_>>(), [1, 11, 2, 12]);
        drop(rx1);
        assert_eq!(tx0.send(1, Lane::Normal, 5).expect_err("gone").into_inner(), 5);
    }

    /// Goal: no message and no wake-up is lost between threads. Method: two threads pass a million messages each way
    /// within their credits, in bursts and with pauses; they park at once or spin; the sums must agree.
    #[test]
    fn two_threads() {
        const CREDITS: u64 = 64;
        for (spin, count) in [(Duration::ZERO, 100_000u64), (Duration::from_micros(50), 900_000)] {
            let threads: Vec<_> = mesh::<u64>(2, CREDITS as usize * 2)
                .into_iter()
                .map(|port| {
                    let body = move || {
                        RealEnv::run(spin, |_env| async move {
                            let peer = 1 - port.id();
                            let (tx, mut rx) = port.split();
                            let (mut sent, mut got, mut sum, mut answered) = (0, 0u64, 0u64, 0);
                            while got < count || answered < count {
                                while sent < count && sent - answered < CREDITS {
                                    sent += 1;
                                    tx.send(peer, Lane::Normal, sent).expect("credit");
                                }
                                match rx.recv().await {
                                    (_, Lane::Urgent, n) => answered += n,
                                    (_, Lane::Normal, n) => {
                                        (got, sum) = (got + 1, sum + n);
                                        assert_eq!(n, got, "out of order");
                                        tx.send(peer, Lane::Urgent, 1).expect("answers have a lane");
                                    }
                                }
                            }
                            sum
                        })
                    };
                    std::thread::Builder::new().spawn(body).expect("thread")
                })
                .collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), count * (count + 1) / 2);
            }
        }
    }

    /// Goal: the mesh runs under any executor. Method: four workers as tasks of simulated nodes pass tokens
    /// around, deterministically.
    #[test]
    fn in_the_simulator() {
        let run = |seed| {
            let sim = Sim::new(seed, SimConfig::default());
            let done = Rc::new(std::cell::Cell::new(0));
            for port in mesh::<u32>(4, 8) {
                let (env, done) = (sim.node(&format!("n{}", port.id() % 2)), done.clone());
                let (tx, mut rx) = port.split();
                if tx.id() == 0 {
                    (0..8).for_each(|_| tx.send(1, Lane::Normal, 0).expect("room"));
                }
                env.spawn(async move {
                    loop {
                        let (_, lane, hops) = rx.recv().await;
                        done.set(done.get() + 1);
                        if hops < 999 {
                            tx.send((tx.id() + 1) % tx.workers(), lane, hops + 1).expect("8 tokens fit");
                        }
                    }
                });
            }
            sim.run_until(|| done.get() == 8000).expect("no deadlock");
            sim.trace_hash()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    /// Goal: a flood does not starve other tasks of the receiving worker. Method: a worker that floods itself
    /// beside a timer.
    #[test]
    fn bursts_end() {
        RealEnv::run(Duration::ZERO, |env| async move {
            let (tx, mut rx) = mesh::<u32>(1, 4).remove(0).split();
            tx.send(0, Lane::Normal, 0).expect("room");
            env.spawn(async move {
                loop {
                    let (_, lane, m) = rx.recv().await;
                    tx.send(0, lane, m).expect("room");
                }
            });
            env.sleep(Duration::from_millis(1)).await;
        });
    }
}
