//! The record of a publication: the number of ranks, and the files that each has finished.
//!
//! A record is written under another name, synced, and renamed, so it is complete or absent.

use crate::error::{During, Error, Result, show};
use crate::place::{Publication, sync_dir};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The record of a publication that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begun {
    pub(crate) ranks: u32,
    /// The time in seconds since 1970.
    pub(crate) at_s: u64,
}

/// A file in the state in which its rank left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finished {
    /// The path within the tree; bytes that are no UTF-8 are escaped by `tree::relative`.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) mtime_ns: i128,
}

/// The record of a rank that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) files: Vec<Finished>,
}

/// Reads a record; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.during("read", path)?,
    };
    let broken = |e| Error::failed(format!("{}: is damaged ({e}); abort this publication", show(path)));
    serde_json::from_slice(&text).map(Some).map_err(broken)
}

/// Writes a record; it is stable on return.
pub(crate) fn write<T: Serialize>(of: &Publication, name: &str, value: &T) -> Result<()> {
    let (folder, path) = (of.folder(), of.folder().join(name));
    let unfinished = folder.join(format!("{name}.{}", std::process::id()));
    let text = serde_json::to_vec(value).map_err(std::io::Error::from).during("write", &path)?;
    let mut file = File::create(&unfinished).during("create", &unfinished)?;
    file.write_all(&text).and_then(|()| file.sync_all()).during("write", &unfinished)?;
    fs::rename(&unfinished, &path).during("write", &path)?;
    sync_dir(&folder)
}

/// The name of a rank's record.
pub(crate) fn ready_name(rank: u32) -> String {
    format!("ready.{rank}")
}
