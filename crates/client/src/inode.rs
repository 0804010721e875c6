//! Files the client knows something about, and open files.
//!
//! Owns: for each inode its attributes (`known`), its size as this mount sees it (`size`), how much is cached and dirty
//! (`cached`), requests under way (`flights`, `fills`), and failures; for each open file its streams. Does not own:
//! cached bytes (`cache`), messages.
//!
//! The parts of an inode do not use the inode; `file` combines them. Open files, the table, and everything that refers
//! to an inode are in higher layers.

pub(crate) mod cluster_locks;
pub(crate) mod direct_stream;
pub(crate) mod exported;
pub(crate) mod failures;
mod file;
pub(crate) mod file_group;
pub(crate) mod fills;
pub(crate) mod flights;
pub(crate) mod front_pages;
pub(crate) mod known;
mod map_stamp;
pub(crate) mod open_file;
pub(crate) mod overwrite;
pub(crate) mod range_lock;
pub(crate) mod seek_maps;
mod settling;
mod signal;
pub(crate) mod size;
mod streams;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod ticks;
mod times;
pub(crate) mod unlinked;
mod untold;
pub(crate) mod without_lock;

pub(crate) use failures::Failures;
pub(crate) use file::{Inode, Use};
pub(crate) use flights::{FlightId, Flights};
pub(crate) use open_file::OpenFile;
pub(crate) use signal::Signal;
pub(crate) use table::InodeTable;
pub(crate) use ticks::AskedAt;
