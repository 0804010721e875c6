//! `DataStorage`: the disk of a target, for file data, and how it is used.
//!
//! Owns: the ways to that disk. Does not own: which blocks are whose (`amphi_data`), the log (`amphi_zone`).

use crate::zone_target::free_space_below::RoomBelow;
use crate::zone_target::verifier::Verifier;
use crate::zone_target::write_back::WriteBack;
use amphi_env::Env;
use amphi_object::{DiskQueue, ObjectDisk};
use amphi_zone::Zone;
use std::cell::Cell;
use std::rc::Rc;

/// The disk of one target.
pub struct DataStorage<E: Env> {
    /// Whether the disk rotates.
    pub rotating: Cell<bool>,
    /// Free space of the local file system below the zone.
    pub below: RoomBelow,
    /// The disk, and cached blocks of the disk.
    pub disk: ObjectDisk<E::Disk>,
    /// How the blocks of the disk are verified.
    pub verifier: Verifier,
    /// Accepted bytes that are in memory instead of on the disk.
    pub write_back: WriteBack<E>,
}

impl<E: Env> DataStorage<E> {
    /// The data region of a zone.
    pub fn of(zone: &Zone<E>, reads: Rc<DiskQueue>, write_back: WriteBack<E>) -> DataStorage<E> {
        DataStorage {
            rotating: Cell::new(false),
            below: RoomBelow::default(),
            disk: ObjectDisk::new(zone.disk(), zone.data_offset(), reads),
            verifier: Verifier::default(),
            write_back,
        }
    }
}
