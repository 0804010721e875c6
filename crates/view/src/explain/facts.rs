//! A mount's statements about a file: the shapes of its JSON, and a few sums.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Requests and bytes of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Row {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Requests of one kind that were decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Side {
    /// Number of requests.
    pub requests: u64,
    /// How many are below a power of two and not below half of it; the last bounds nothing.
    pub sizes: Vec<(u64, u64)>,
    /// Requests that begin where the one before ended.
    pub follows: u64,
    /// Requests that begin before the end of the request before them.
    pub goes_back: u64,
    /// Begin or end is inside a block of 4 KiB.
    pub unaligned: u64,
}

impl Side {
    /// Share of the requests that are below `limit`, a power of two, per cent.
    pub fn below(&self, limit: u64) -> f64 {
        let small: u64 = self.sizes.iter().filter(|(below, _)| *below <= limit).map(|(_, n)| n).sum();
        crate::unit::share(small as f64, self.requests as f64)
    }

    /// `part` of the requests, per cent.
    pub fn part(&self, part: u64) -> f64 {
        crate::unit::share(part as f64, self.requests as f64)
    }
}

/// The pattern of the requests of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Portrait {
    /// Reads that the cache did not serve.
    pub reads: Side,
    /// Writes.
    pub writes: Side,
    /// `fsync` and `fdatasync`.
    pub fsyncs: u64,
    /// Time that calls have waited for its locks, ns; of several at a time the sum.
    pub lock_wait_ns: u64,
    /// The mount's counter of who serves reads and why; may be empty.
    pub reads_served_by: String,
}

/// An object of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Object {
    /// The target on which the object lies.
    pub target: u16,
    /// Number of extents of the object.
    pub extents: u64,
    /// Bytes on the disk.
    pub bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counters {
    counters: BTreeMap<String, Row>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Objects {
    objects: Vec<Object>,
}

/// The facts about a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileFacts {
    /// The path of the file, as it was given.
    pub path: String,
    /// The size of the file, bytes.
    pub size: u64,
    /// `growing`, `whole`, `striped,...`.
    pub layout: String,
    /// `auto`, `buffered`, `direct`.
    pub mode: String,
    /// `posix`, `commit`.
    pub consistency: String,
    /// Requests by way and reason, and messages, since the mount knows the file.
    pub counters: BTreeMap<String, Row>,
    /// The pattern of the file's requests.
    pub portrait: Portrait,
    /// The places of the file's data; empty if unavailable.
    pub objects: Vec<Object>,
    /// Targets of the cluster by server; empty if unknown.
    pub targets: BTreeMap<u16, String>,
    /// Values of tunables; empty if the caller may not see them.
    pub tunables: BTreeMap<String, String>,
}

/// The texts that make the facts of a file. All may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileTexts<'a> {
    /// `user.amphi.counters.json`.
    pub counters: &'a str,
    /// `user.amphi.portrait`.
    pub portrait: &'a str,
    /// `user.amphi.extents`.
    pub extents: &'a str,
    /// `user.amphi.tunables`: lines `name=value # help`.
    pub tunables: &'a str,
}

fn read<T: Default + for<'a> Deserialize<'a>>(what: &str, text: &str) -> Result<T, String> {
    if text.is_empty() { Ok(T::default()) } else { serde_json::from_str(text).map_err(|e| format!("{what}: {e}")) }
}

/// Values by name, of lines `name=value # help`.
pub fn tunables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split(" # ").next()?.split_once('='));
    pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

impl FileFacts {
    /// The facts, completed from these texts.
    ///
    /// Errors: a sentence that names the unreadable text.
    pub fn read(mut self, texts: FileTexts<'_>) -> Result<FileFacts, String> {
        self.counters = read::<Counters>("the counters of the file", texts.counters)?.counters;
        self.portrait = read("the portrait of the file", texts.portrait)?;
        self.objects = read::<Objects>("the extents of the file", texts.extents)?.objects;
        self.tunables = tunables(texts.tunables);
        Ok(self)
    }

    /// Requests and bytes of all rows whose names begin with `prefix`.
    pub fn sum(&self, prefix: &str) -> Row {
        let rows = self.counters.iter().filter(|(name, _)| name.starts_with(prefix));
        rows.fold(Row::default(), |sum, (_, row)| Row {
            requests: sum.requests + row.requests,
            bytes: sum.bytes + row.bytes,
        })
    }

    /// The row of this name.
    pub fn row(&self, name: &str) -> Row {
        self.counters.get(name).copied().unwrap_or_default()
    }
}
