//! Segments: sorted runs of changes in the metadata region, as chains of pages.
//!
//! Owns: the slot map, writing, streaming, searching and verifying segments. Does not own: which segments are named by
//! the root (`checkpoint`). Invariants: keys ascend strictly over a whole segment; a slot is in one segment or free;
//! changes may span pages, so pages but the last are full. A page of which one block is damaged is served (`parity`).
//! A segment never changes, and a page says to which segment it belongs, so what was read of a segment is right even
//! if the segment has been replaced meanwhile; what cannot be read of a replaced one may have been overwritten.

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
