//! Tests of the whole client against a server in memory.
//!
//! `server` is a reference server for the requests that a client sends. `world` runs client, server and background
//! tasks in one thread, in an order drawn from a seed. The other files are the tests.

mod batch;
mod busy;
mod cluster;
mod coherence;
mod commit;
mod control;
mod counters;
mod damaged;
mod deadlocks;
mod decisions;
mod direct_ahead;
mod directories;
mod exports;
mod faults;
mod file_locks;
mod fsx;
mod full_target;
mod given_up;
mod joint_streams;
mod kept_opens;
mod kernel_reads;
mod left_pages;
mod lent_names;
mod locks;
mod losses;
mod messages;
mod names;
mod neighbours;
mod new_directories;
mod overwrites;
mod ping_pong;
mod pipeline;
mod policy;
mod posts;
mod server;
mod servers;
mod shards;
mod sharing;
mod sim_clock;
mod small_files_ahead;
mod small_files_shared;
mod switches;
mod unreachable;
mod walks;
mod wired;
mod world;
pub(crate) use world::World;

use std::future::Future;

/// Runs a future on this thread.
pub(crate) fn block_on<T>(f: impl Future<Output = T>) -> T {
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut f = std::pin::pin!(f);
    loop {
        match f.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(v) => return v,
            Poll::Pending => std::thread::park(),
        }
    }
}
