//! The data store of one target: where the bytes of objects lie.
//!
//! Owns: objects (end, mtime, generation), their extents, the block allocator, and the plans by which a server reads,
//! writes, truncates, punches and preallocates. Does not own: I/O, locks, the log (`zone`), the size of a file (the
//! maximum over its objects, which the inode's owner knows).
//!
//! It is a pure state machine: a call makes a *plan*, the server does the plan's I/O, then commits or aborts the plan.
//! Objects are addressed by offsets in the file, so they are sparse outside their stripes.
//!
//! Invariants:
//!
//! * No block with durable bytes is overwritten in part. Whole blocks are overwritten in place, and edge blocks with
//!   bytes to keep are written to new blocks.
//! * In a written block, every byte that no write has covered is zero, also beyond the object's end.
//! * A block is in exactly one of these states: in one extent, in one plan, in one pending `Freed`, or free.
//! * Items that are appended to a `Txn` are absolute (`types::item`). The bitmap is not stored but rebuilt from
//!   extents.
//! * A block that has a checksum is not overwritten in place (`checksums`).
//! * Delayed bytes (`delayed`) hide the content of the blocks beneath, until a record ends that.
//!
//! The caller must hold range locks: from plan to commit or abort, a write, truncate, punch or preallocation holds its
//! range, *rounded out to blocks*, exclusively. A read holds it shared until its I/O is done. A truncate holds
//! everything from its size (rounded down) on, and a destroy holds the whole object. So two plans that share an edge
//! block never overlap in time, although their byte ranges are disjoint. There is one exception, for writes of
//! different bytes. The later one may be planned with `Fresh::Edges`, build its edge blocks on those of the earlier one
//! (`WritePlan::build_on`), and commit after it.
//!
//! The number that drove the design: one extent of 1 MiB costs about 40 bytes of memory and 40 bytes of log, and an
//! object with one extent 85 bytes of memory. So a zone of 20 GiB in stripe units of 1 MiB has less than 2 MiB of
//! extents.
#![forbid(unsafe_code)]

pub mod alloc;
mod charges;
mod checksums;
mod delayed;
mod extent;
mod extents;
mod fsck;
mod grants;
mod logged;
mod memory;
mod objects;
mod plan;
mod recent;
mod room;
mod store;
mod trim;
mod write;

pub use checksums::{CHECKSUM_ITEM_BYTES, Checksum, Checksums};
pub use delayed::{DELAYED_ITEM_BYTES, Delayed, Overlay, UNIT};
pub use extents::{EXTENT_BLOCKS_MAX, Extent};
pub use fsck::{DataReport, fsck_items};
pub use grants::Grants;
pub use memory::{Memory, PagePool, Slot};
pub use plan::{
    Edge, Freed, Fresh, ReadPlan, ReadSegment, Resize, Segment, SegmentKind, TrimEdge, TrimPlan, WritePlan,
    complete_edges,
};
pub use store::{DataStore, Destroyed, ObjectInfo, Preallocate};
