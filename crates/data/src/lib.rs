//! The data store of one target: where the bytes of objects lie.
//!
//! Owns: objects (end, mtime, generation), their extents, the block allocator, and the plans by which a server
//! reads, writes, truncates, punches and preallocates. Does not own: I/O, locks, the log (`zone`), the size of
//! a file (maximum over its objects, known to the inode's owner).
//!
//! It is a pure state machine: a call makes a *plan*, the server does the plan's I/O, then commits or aborts it.
//! Objects are addressed by offset in the file, so they are sparse outside their stripes.
//!
//! Invariants
//! * No block that holds durable bytes is partly overwritten: whole blocks are overwritten in place, edge blocks
//!   with bytes to keep go to new blocks.
//! * In a written block every byte that no write covered is zero, also beyond the object's end.
//! * A block is in one extent, in one plan, in one pending `Freed`, or free; never in two of them.
//! * Items appended to a `Txn` are absolute (types::item); the bitmap is not persisted but rebuilt from extents.
//! * A block that has a checksum is not overwritten in place (`checksums`).
//! * Delayed bytes (`delayed`) count instead of what the blocks beneath have, until a record says otherwise.
//!
//! What the caller holds (range locks): from plan to commit or abort a write, truncate, punch or preallocation holds
//! its range *rounded out to blocks* alone, a read holds it shared until its I/O is done; a truncate holds everything
//! from its size, rounded down, on; a destroy holds the whole object. So two plans that share an edge block never
//! overlap in time, though their byte ranges are disjoint. Exception: writes of different bytes, if the later one is
//! planned with `Fresh::Edges`, builds its edge blocks on what the earlier one makes of them (`WritePlan::build_on`),
//! and commits after it.
//!
//! The number that drove the design: one extent of 1 MiB costs about 60 bytes of memory and 40 bytes of log, so
//! a zone of 20 GiB in stripe units of 1 MiB stays below 2 MiB of extents.
#![forbid(unsafe_code)]

pub mod alloc;
mod checksums;
mod delayed;
mod extent;
mod fsck;
mod grants;
mod logged;
mod memory;
mod plan;
mod recent;
mod room;
mod store;
mod trim;
mod write;

pub use checksums::{CHECKSUM_ITEM_BYTES, Checksum, Checksums};
pub use delayed::{DELAYED_ITEM_BYTES, Delayed, Overlay, UNIT};
pub use extent::{EXTENT_BLOCKS_MAX, Extent};
pub use fsck::{DataReport, fsck_items};
pub use grants::Grants;
pub use memory::{Memory, PagePool, Slot};
pub use plan::{
    Edge, Freed, Fresh, ReadPlan, ReadSegment, Resize, Segment, SegmentKind, TrimEdge, TrimPlan, WritePlan,
    complete_edges,
};
pub use store::{DataStore, Destroyed, ObjectInfo, Preallocate};
