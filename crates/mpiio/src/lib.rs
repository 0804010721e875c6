//! The cooperative cache for MPI-IO: the processes of a job that have a file open together keep its pages once.
//!
//! Owns pages, their locks and metadata, eviction and flush, over memory that the ranks of a node share, and the C
//! interface (`capi`) with which the shims of the MPI libraries use it. Knows nothing of MPI: views, derived types,
//! file pointers and collective calls belong to the shim (`shim/`), which gives ranges of the file and one piece of
//! memory. After Liao et al., "Cooperative client-side file caching for MPI applications"; docs/MPIIO.md.
//!
//! Floors, upper ones use lower ones: `capi`, `live`; `team`; `file`; `locks`, `meeting`, `pool`; `segment`;
//! `intervals`, `backend`; `pace`, `placement`, `rounds`, `spare_memory`, `stats`, `error`.

pub mod backend;
pub mod capi;
pub mod error;
pub mod file;
pub mod intervals;
pub mod live;
pub mod locks;
pub mod meeting;
pub mod pace;
pub mod placement;
pub mod pool;
pub mod rounds;
pub mod segment;
pub mod spare_memory;
pub mod stats;
pub mod team;
