//! The loop that runs one thread: spin for a while after the last progress, then park in the ring.
//!
//! Owns: the ring's flags, spinning and parking, the tasks of the thread and their end. Does not own: the
//! operations (`disk`, `net`).
//!
//! Invariants: a task that panics ends the loop, and the panic leaves `run`; when `run` returns, every task has
//! been dropped and no buffer is in the kernel's hands (or it is leaked, see `lent`).
//!
//! Driving numbers: a parked thread needs 40 us to wake, a spinning one 0.5 us; a non-blocking poll of the stock
//! driver sleeps 25 us in the kernel, which is why the loop notifies the driver before it polls without waiting.
//! `taskrun_flag` lets that one system call submit and reap.

use super::cores::Keep;
use super::lent::Leases;
use super::spin::{BusyTurns, Spin, clock};
use compio::driver::ProactorBuilder;
use compio::runtime::{JoinHandle, Runtime, RuntimeBuilder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Submission queue entries of a ring; a full queue is submitted at once, so this bounds batching, not work.
const RING_ENTRIES: u32 = 1024;
/// Wake-ups from other threads that may be queued before a waking thread has to wait.
const REMOTE_WAKES_MAX: usize = 4096;
/// Ready tasks of a round.
const TASKS_MAX: usize = 4;
/// Rounds of tasks between two submissions to the ring, where operations go to the kernel. A task that wakes another
/// one adds a round, and a submission costs 0.4 us even if there is nothing to submit. A request passes about four
/// tasks. After a round in which a large transfer was begun, the submission comes at once. Otherwise tasks that copy 1
/// MiB each would keep an idle disk waiting for milliseconds.
const TICKS_MAX: u32 = 64;
/// How long `run` waits at its end for operations that the kernel has not finished.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

type Panic = Box<dyn Any + Send>;

/// The state that all clones of one thread's environment share.
pub(super) struct Shared {
    tasks: RefCell<Tasks>,
    polls: Cell<u64>,
    panic: RefCell<Option<Panic>>,
    closing: Cell<bool>,
    pub(super) spin: Cell<Duration>,
    pub(super) turns: Cell<BusyTurns>,
    pub(super) keeps_core: Cell<bool>,
    pub(super) leases: Arc<Leases>,
    /// How long each write of a disk is held back before the kernel gets it: a slow disk, for tests and benchmarks.
    pub(super) write_delay: Rc<Cell<Duration>>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Option<JoinHandle<()>>>,
    free: Vec<usize>,
}

impl Shared {
    fn new(spin: Duration) -> Rc<Shared> {
        Rc::new(Shared {
            tasks: RefCell::default(),
            polls: Cell::new(0),
            panic: RefCell::new(None),
            closing: Cell::new(false),
            spin: Cell::new(spin),
            turns: Cell::default(),
            keeps_core: Cell::new(false),
            leases: Arc::default(),
            write_delay: Rc::default(),
        })
    }

    /// Starts a task; during shutdown it is dropped instead.
    pub(super) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        if self.closing.get() {
            return;
        }
        let slot = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.free.pop() {
                Some(slot) => slot,
                None => {
                    tasks.slots.push(None);
                    tasks.slots.len() - 1
                }
            }
        };
        let handle = compio::runtime::spawn(Watched { task, leave: Leave { shared: self.clone(), slot } });
        self.tasks.borrow_mut().slots[slot] = Some(handle);
    }
}

pin_project_lite::pin_project! {
    /// A task whose polls are counted and whose panic ends the loop. An `async` block around it would hold it twice,
    /// and move it when it begins.
    struct Watched<F> {
        #[pin]
        task: F,
        leave: Leave,
    }
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let shared = &this.leave.shared;
        shared.polls.set(shared.polls.get() + 1);
        match catch_unwind(AssertUnwindSafe(|| this.task.poll(cx))) {
            Ok(poll) => poll,
            Err(panic) => {
                shared.panic.borrow_mut().get_or_insert(panic);
                Poll::Ready(())
            }
        }
    }
}

/// Frees the slot of a task that ended or was dropped.
struct Leave {
    shared: Rc<Shared>,
    slot: usize,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let handle = {
            let mut tasks = self.shared.tasks.borrow_mut();
            let handle = tasks.slots.get_mut(self.slot).and_then(Option::take);
            if handle.is_some() {
                tasks.free.push(self.slot);
            }
            handle
        };
        if let Some(handle) = handle {
            handle.detach();
        }
    }
}

/// Wakes the root future, from any thread.
struct RootWake {
    woken: AtomicBool,
    driver: Waker,
}

impl Wake for RootWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.driver.wake_by_ref();
        }
    }
}

/// Builds a ring on this thread and runs the future that `f` makes to its end.
pub(super) fn run<T, Fut: Future<Output = T>>(spin: Duration, f: impl FnOnce(Rc<Shared>) -> Fut) -> io::Result<T> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(RING_ENTRIES).single_issuer(true).defer_taskrun(true).taskrun_flag(true);
    let mut builder = RuntimeBuilder::new();
    let runtime =
        builder.with_proactor(proactor).sync_queue_size(REMOTE_WAKES_MAX).event_interval(TASKS_MAX).build()?;
    let shared = Shared::new(spin);
    let outcome = runtime.enter(|| {
        let outcome = catch_unwind(AssertUnwindSafe(|| block_on(&runtime, &shared, f(shared.clone())))).and_then(|r| r);
        shutdown(&runtime, &shared);
        outcome
    });
    shared.leases.close();
    drop(runtime);
    match outcome {
        Ok(value) => Ok(value),
        Err(panic) => resume_unwind(panic),
    }
}

fn block_on<T>(runtime: &Runtime, shared: &Shared, root: impl Future<Output = T>) -> Result<T, Panic> {
    let driver = runtime.waker();
    let wake = Arc::new(RootWake { woken: AtomicBool::new(true), driver: driver.clone() });
    let root_waker = Waker::from(wake.clone());
    let mut cx = Context::from_waker(&root_waker);
    let mut root = pin!(root);
    let mut polls_seen = u64::MAX;
    let mut spin = Spin::new();
    let mut keep = Keep::new();
    loop {
        let mut progress = false;
        let mut more = false;
        for _ in 0..TICKS_MAX {
            if wake.woken.swap(false, Ordering::AcqRel) {
                progress = true;
                if let Poll::Ready(value) = root.as_mut().poll(&mut cx) {
                    return Ok(value);
                }
            }
            more = runtime.run();
            if let Some(panic) = shared.panic.borrow_mut().take() {
                return Err(panic);
            }
            if shared.leases.take_large() || (!more && !wake.woken.load(Ordering::Acquire)) {
                break;
            }
        }
        progress |= shared.polls.get() != polls_seen;
        polls_seen = shared.polls.get();
        shared.turns.set(shared.turns.get().after(progress));
        if progress {
            spin.progress();
            if shared.keeps_core.get() {
                keep.progress();
            }
        }
        // Checking the ring after progress does not count as a turn; only a check without result does.
        let budget = shared.spin.get();
        let look = more || (progress && !budget.is_zero()) || spin.turn(budget);
        if !look {
            runtime.poll();
        } else {
            // Notified, the driver neither waits nor arms a kernel timer.
            driver.wake_by_ref();
            runtime.poll_with(Some(Duration::ZERO));
        }
    }
}

/// Drops every task, then waits until the kernel has given all buffers back.
fn shutdown(runtime: &Runtime, shared: &Shared) {
    shared.closing.set(true);
    let handles = std::mem::take(&mut shared.tasks.borrow_mut().slots);
    drop(handles);
    run_out(runtime);
    let end = clock() + DRAIN;
    while shared.leases.out() > 0 {
        let left = end.saturating_duration_since(clock());
        if left.is_zero() {
            tracing::warn!(
                buffers = shared.leases.out(),
                "operations still in flight at shutdown, their memory is leaked"
            );
            break;
        }
        runtime.poll_with(Some(left));
        run_out(runtime);
    }
}

/// Runs until no task is ready. In between it submits the cancellations of operations whose tasks were dropped, since a
/// cancellation that finds the ring's queue full is lost.
fn run_out(runtime: &Runtime) {
    let mut ticks = 0u32;
    while runtime.run() {
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(TICKS_MAX) {
            runtime.poll_with(Some(Duration::ZERO));
        }
    }
}
