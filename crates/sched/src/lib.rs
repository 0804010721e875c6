//! Workers: one thread for each, and the rings between them.
//!
//! Owns: the mesh of single-producer single-consumer rings (`mesh`) and the threads (`workers`). Does not own:
//! what a worker does, or credits, which keep the rings from filling.
//!
//! Invariants: a target's state is touched by one worker only; workers share nothing but the mesh; the mesh works
//! under any executor, so the simulator runs several workers as tasks of one thread.
#![forbid(unsafe_code)]

mod bell;
pub mod mesh;
pub mod workers;

pub use mesh::{Lane, MeshRx, MeshTx, Port, SendError, mesh};
pub use workers::{Cores, WorkerConfig, Workers, spawn_workers};
