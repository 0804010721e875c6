//! Segments: sorted runs of changes in the metadata region, as chains of pages.
//!
//! Owns: the slot map, writing, streaming, searching and verifying segments. Does not own: which segments are named by
//! the root (`checkpoint`). Invariants: keys ascend strictly over a whole segment; a slot is in one segment or free;
//! changes may span pages, so that all pages but the last are full. A page of which one block is damaged is served
//! (`parity`). A segment never changes, and each page contains the id of its segment. So a page that was read is right
//! even if the segment has been replaced meanwhile; a page that cannot be read may have been overwritten after its
//! segment was replaced.

mod index;
mod page;
mod reader;
mod run;
mod slots;
mod writer;

pub use reader::{IndexUse, SegmentReader};
pub use run::Segment;
pub use slots::SlotMap;
pub use writer::{SegmentWriter, WriteError};
