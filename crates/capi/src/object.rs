//! The objects for which numbers stand.
//!
//! Owns: the kinds. Does not own: what the objects do, the numbers (`registry`).

use crate::queue::Queue;
pub(crate) use crate::ways::{Dir, File, Fs};
use std::sync::Arc;

/// The kind of an object, as in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fs = 1,
    File = 2,
    Dir = 3,
    Queue = 4,
}

/// The object of a number.
pub(crate) enum Object {
    Fs(Fs),
    File(File),
    Dir(Dir),
    Queue(Arc<Queue>),
}

impl Object {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Object::Fs(_) => Kind::Fs,
            Object::File(_) => Kind::File,
            Object::Dir(_) => Kind::Dir,
            Object::Queue(_) => Kind::Queue,
        }
    }
}
