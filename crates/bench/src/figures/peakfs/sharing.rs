//! Figure 20: threads that share all indexes beside threads that own one each.
//!
//! Owns: both ways on the same index. Shared everything: any thread works on any index under its lock. Shared nothing:
//! a thread forwards the requests that belong to another one through a queue between the two (`sched::mesh`), and gets
//! an answer. Invariants: both do the same operations on the same keys; each `get` and `delete` must find its key.

use crate::clock::now;
use crate::figures::claim::{Check, ahead};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made};
use crate::turns::order;
use amphi_cart::Cart;
use amphi_host::failure::{Failure, Outcome};
use amphi_sched::{Lane, MeshRx, MeshTx, Port, mesh};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, PoisonError};

const WAYS: [&str; 2] = ["shared everything", "shared nothing"];
const OPERATIONS: [&str; 3] = ["put", "get", "delete"];
/// Requests that a thread has under way at most; a queue holds more.
const WINDOW: usize = 64;
const QUEUE: usize = 256;
/// The directory of all names.
const DIR: u64 = 1;
/// Fewer cores than this hardly meet in a lock.
const CORES_WANTED: usize = 4;

/// What one thread sends another.
#[derive(Clone, Copy)]
enum Message {
    /// Work on this key.
    Ask(u64),
    /// It is done.
    Done,
}

fn name(key: u64) -> Vec<u8> {
    format!("checkpoint12.{}.{}", key / 1000, key % 1000).into_bytes()
}

/// The index that a key belongs to (a multiplicative hash).
fn owner(key: u64, threads: usize) -> usize {
    ((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % threads as u64) as usize
}

/// Does an operation; whether it found what it had to find.
fn work(index: &mut Cart, operation: usize, key: u64) -> bool {
    let name = name(key);
    match operation {
        0 => index.insert(DIR, &name, key).is_none(),
        1 => index.get(DIR, &name) == Some(key),
        _ => index.remove(DIR, &name) == Some(key),
    }
}

/// Operations in millions a second; each thread does `count` of each kind.
fn everything(threads: usize, count: u64) -> Outcome<[f64; 3]> {
    let indexes: Vec<Mutex<Cart>> = (0..threads).map(|_| Mutex::new(Cart::new())).collect();
    let wrong = AtomicU64::new(0);
    let mut rates = [0.0; 3];
    for (operation, rate) in rates.iter_mut().enumerate() {
        let start = now();
        std::thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let (indexes, wrong) = (&indexes, &wrong);
                scope.spawn(move || {
                    for key in thread * count..(thread + 1) * count {
                        let index = &indexes[owner(key, threads)];
                        let found = work(&mut index.lock().unwrap_or_else(PoisonError::into_inner), operation, key);
                        wrong.fetch_add(u64::from(!found), Relaxed);
                    }
                });
            }
        });
        *rate = (threads as u64 * count) as f64 / start.elapsed().as_secs_f64() / 1e6;
    }
    sound(wrong.into_inner(), rates)
}

fn sound(wrong: u64, rates: [f64; 3]) -> Outcome<[f64; 3]> {
    match wrong {
        0 => Ok(rates),
        n => Err(Failure::broken(format!("an index answered wrongly {n} times"))),
    }
}

/// A thread that owns an index.
struct Owner<'a> {
    index: Cart,
    tx: MeshTx<Message>,
    rx: MeshRx<Message>,
    under_way: usize,
    wrong: &'a AtomicU64,
}

impl Owner<'_> {
    fn send(&self, to: usize, message: Message) -> bool {
        self.tx.try_send(to, Lane::Normal, message).is_ok()
    }

    /// Takes a message, if there is one.
    fn turn(&mut self, operation: usize) -> bool {
        let Some((from, _, message)) = self.rx.try_recv() else { return false };
        match message {
            Message::Done => self.under_way -= 1,
            Message::Ask(key) => {
                let found = work(&mut self.index, operation, key);
                self.wrong.fetch_add(u64::from(!found), Relaxed);
                // A queue has room: nobody has more than a window under way.
                let sent = self.send(from, Message::Done);
                self.wrong.fetch_add(u64::from(!sent), Relaxed);
            }
        }
        true
    }

    fn operation(&mut self, operation: usize, keys: std::ops::Range<u64>, done: &AtomicUsize) {
        let threads = self.tx.workers();
        for key in keys {
            let to = owner(key, threads);
            if to == self.tx.id() {
                let found = work(&mut self.index, operation, key);
                self.wrong.fetch_add(u64::from(!found), Relaxed);
            } else {
                while self.under_way >= WINDOW {
                    if !self.turn(operation) {
                        std::thread::yield_now();
                    }
                }
                while !self.send(to, Message::Ask(key)) {
                    self.turn(operation);
                }
                self.under_way += 1;
            }
            self.turn(operation);
        }
        while self.under_way > 0 {
            if !self.turn(operation) {
                std::thread::yield_now();
            }
        }
        // Others may still want something.
        done.fetch_add(1, Relaxed);
        while done.load(Relaxed) < threads {
            if !self.turn(operation) {
                std::thread::yield_now();
            }
        }
    }
}

fn nothing(threads: usize, count: u64) -> Outcome<[f64; 3]> {
    let (wrong, barrier) = (AtomicU64::new(0), Barrier::new(threads));
    let done: [AtomicUsize; 3] = Default::default();
    let seconds = Mutex::new([0.0f64; 3]);
    std::thread::scope(|scope| {
        for (thread, port) in mesh::<Message>(threads, QUEUE).into_iter().enumerate() {
            let (wrong, barrier, done, seconds) = (&wrong, &barrier, &done, &seconds);
            scope.spawn(move || {
                let port: Port<Message> = port;
                let (tx, rx) = port.split();
                let mut owner = Owner { index: Cart::new(), tx, rx, under_way: 0, wrong };
                for operation in 0..OPERATIONS.len() {
                    barrier.wait();
                    let start = now();
                    let first = thread as u64 * count;
                    owner.operation(operation, first..first + count, &done[operation]);
                    let taken = start.elapsed().as_secs_f64();
                    let mut all = seconds.lock().unwrap_or_else(PoisonError::into_inner);
                    all[operation] = all[operation].max(taken);
                }
            });
        }
    });
    let seconds = seconds.into_inner().unwrap_or_else(PoisonError::into_inner);
    sound(wrong.into_inner(), seconds.map(|taken| (threads as u64 * count) as f64 / taken / 1e6))
}

/// Figure 20.
pub fn schedules(lab: &mut Lab) -> Outcome<Made> {
    let count: u64 = lab.sized(500_000, 30_000);
    let most = lab.run.report.machine.cores.max(2);
    let threads: Vec<usize> = [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|n| *n <= most).collect();
    let y = Axis::new("operations", "millions/s");
    let mut panels = OPERATIONS.map(|name| Panel::new(name, Kind::Lines, Axis::new("threads", ""), y.clone()));
    for &threads in &threads {
        let mut found: [Vec<[f64; 3]>; 2] = Default::default();
        for round in 0..lab.run.pairs {
            for way in order(round, WAYS.len()) {
                lab.run.check_stop()?;
                found[way].push(if way == 0 { everything(threads, count)? } else { nothing(threads, count)? });
            }
        }
        for (way, found) in WAYS.iter().zip(&found) {
            for (operation, panel) in panels.iter_mut().enumerate() {
                let samples: Vec<f64> = found.iter().map(|rates| rates[operation]).collect();
                panel.push(way, threads as f64, &threads.to_string(), &samples);
            }
        }
    }
    let how = format!("Compact radix trees, one for each thread, {count} operations of each kind by each thread.");
    Ok(Made::new(panels.into(), how))
}

/// Statements of figure 20.
pub fn schedules_shape(seen: &Seen<'_>) -> Vec<Check> {
    let few = format!("{} threads at a time hardly meet in a lock", seen.cores);
    let of = |operation: &str| {
        let claim = format!("Shared nothing is faster on all threads (2 to 6): {operation}.");
        let panel = seen.panel(operation);
        let most = panel.and_then(|panel| panel.labels().last().map(|label| label.to_string())).unwrap_or_default();
        ahead(&claim, panel, (WAYS[1], WAYS[0]), &most).only_if(seen.cores >= CORES_WANTED, &few)
    };
    OPERATIONS.map(of).into()
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::curves;
    let apart = if holds { [1.0, 16.0] } else { [1.0, 3.0] };
    let rows = [(WAYS[0], [1.0, 4.0]), (WAYS[1], apart)];
    OPERATIONS.map(|operation| curves(operation, &["1", "16"], &[1.0, 16.0], &rows)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: both ways do every operation, each key is found where it belongs, and threads end. Method: some thousand
    /// keys on one and on three threads; a wrong answer is an error of the measurement itself.
    #[test]
    fn both_ways_answer() {
        for threads in [1, 3] {
            for rates in [everything(threads, 2000), nothing(threads, 2000)] {
                assert!(rates.expect("right answers").iter().all(|rate| *rate > 0.0));
            }
        }
    }
}
