//! The journal of a stage: which pieces of which files are durable in the temporary tree.
//!
//! Owns the file, its lock (one process works on a stage) and the contents from an earlier run. Does not own when a
//! piece is durable (`checkpoint`). Invariants: a piece is in the journal only after its bytes were made stable.
//! Records are only appended. A record that is incomplete because of a crash ends the journal, and later bytes are cut
//! off. The format is in docs/design/staging.md.

pub(crate) mod record;

use crate::entries::Identity;
use record::{NO_TREE, Record};
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of one read of the journal.
const READ_BYTES: usize = 1 << 20;

/// A piece that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// CRC-32C of the piece, holes as zeros.
    pub(crate) crc: u32,
    /// The piece was read back and compared.
    pub(crate) compared: bool,
}

/// The journal's state of a file of the source.
#[derive(Clone, Debug)]
pub(crate) struct KnownFile {
    pub(crate) number: u32,
    pub(crate) identity: Identity,
    pub(crate) pieces: BTreeMap<u64, Piece>,
}

/// The state from an earlier run.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The subject of the stage; `None` if the journal is new.
    pub(crate) begin: Option<record::Begin>,
    /// Files by their path below the root.
    pub(crate) files: BTreeMap<Vec<u8>, KnownFile>,
    /// Inode of the tree that was about to get the target's name.
    pub(crate) publish: Option<u64>,
    /// Numbers of files that were given.
    pub(crate) next_number: u32,
}

impl Known {
    fn take(&mut self, paths: &mut BTreeMap<u32, Vec<u8>>, record: Record) {
        match record {
            Record::Begin(begin) => self.begin = Some(begin),
            Record::File { number, identity, path } => {
                self.next_number = self.next_number.max(number.saturating_add(1));
                paths.insert(number, path.clone());
                // A file that is copied anew has nothing durable yet.
                self.files.insert(path, KnownFile { number, identity, pieces: BTreeMap::new() });
            }
            Record::Piece { number, index, crc } => {
                if let Some(file) = self.file(paths, number) {
                    file.pieces.insert(index, Piece { crc, compared: false });
                }
            }
            Record::Compared { number, index } => {
                if let Some(piece) = self.file(paths, number).and_then(|f| f.pieces.get_mut(&index)) {
                    piece.compared = true;
                }
            }
            // Many file systems have another device number after each mount, so it says nothing.
            Record::Publish { dev: _, ino } => self.publish = (ino != NO_TREE).then_some(ino),
        }
    }

    /// A file by its number, unless the path has a later number.
    fn file(&mut self, paths: &BTreeMap<u32, Vec<u8>>, number: u32) -> Option<&mut KnownFile> {
        self.files.get_mut(paths.get(&number)?).filter(|f| f.number == number)
    }
}

/// The reason why no journal is available.
pub(crate) enum NoJournal {
    /// Another process uses the journal.
    InUse,
    /// The file is no journal, or of another version.
    NotOne,
    Failed(Errno),
}

impl From<Errno> for NoJournal {
    fn from(e: Errno) -> NoJournal {
        NoJournal::Failed(e)
    }
}

/// An open journal that is locked.
pub(crate) struct Journal {
    file: OwnedFd,
    end: u64,
}

impl Journal {
    /// Opens or creates a journal, locks it and reads its contents.
    pub(crate) fn open(dir: impl AsFd, name: &OsStr, create: bool) -> Result<(Journal, Known), NoJournal> {
        let create = if create { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        let file = loop {
            let file = fs::openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?;
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Without such locks no other process is excluded.
                Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {}
                Err(Errno::WOULDBLOCK) => return Err(NoJournal::InUse),
                Err(e) => return Err(e.into()),
            }
            // The owner of the journal may have finished and removed it between the two calls.
            let own = fs::fstat(&file)?;
            match fs::statat(&dir, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => break file,
                Ok(_) => {}
                Err(Errno::NOENT) if !create.is_empty() => {}
                Err(e) => return Err(e.into()),
            }
        };
        let bytes = read_all(&file)?;
        let (known, end) = parse(&bytes);
        if known.begin.is_none() && !bytes.is_empty() && !record::is_cut_begin(&bytes) {
            return Err(NoJournal::NotOne);
        }
        if known.begin.as_ref().is_some_and(|b| b.version != record::VERSION) {
            return Err(NoJournal::NotOne);
        }
        fs::ftruncate(&file, end)?;
        Ok((Journal { file, end }, known))
    }

    /// Appends records.
    pub(crate) fn append(&mut self, records: &[Record]) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        records.iter().for_each(|r| r.encode(&mut bytes));
        let mut done = 0;
        while done < bytes.len() {
            done += rustix::io::pwrite(&self.file, &bytes[done..], self.end + done as u64)?;
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything that was appended durable.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        fs::fdatasync(&self.file)
    }
}

fn read_all(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    loop {
        let at = bytes.len();
        bytes.resize(at + READ_BYTES, 0);
        let n = rustix::io::pread(file, &mut bytes[at..], at as u64)?;
        bytes.truncate(at + n);
        if n == 0 {
            return Ok(bytes);
        }
    }
}

/// The journal up to the first record that is not whole, and the offset of that record.
fn parse(bytes: &[u8]) -> (Known, u64) {
    let (mut known, mut paths, mut at) = (Known::default(), BTreeMap::new(), 0);
    while let Some((record, len)) = Record::decode(&bytes[at..]) {
        if at == 0 && !matches!(record, Record::Begin(_)) {
            break;
        }
        known.take(&mut paths, record);
        at += len;
    }
    (known, at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{Begin, VERSION};

    fn records() -> Vec<Record> {
        let identity = Identity { ino: 7, size: 1 << 40, mtime_ns: -5, ctime_ns: i128::from(i64::MAX) };
        let file = |number| Record::File { number, identity, path: b"a/\xff\nb".to_vec() };
        vec![
            Record::Begin(Begin {
                version: VERSION,
                mode: 1,
                piece_bytes: 64 << 20,
                source: b"/s".to_vec(),
                target: b"t".to_vec(),
            }),
            file(0),
            Record::Piece { number: 0, index: 3, crc: 9 },
            Record::Compared { number: 0, index: 3 },
            file(1),
            Record::Piece { number: 0, index: 4, crc: 9 },
            Record::Piece { number: 1, index: 5, crc: 10 },
            Record::Publish { dev: 1, ino: 2 },
        ]
    }

    /// Goal: a journal that a crash cut at any byte returns its complete records, and no damaged byte is accepted.
    /// Method: all prefixes of a journal; every byte of it changed.
    #[test]
    fn cut_and_damaged_journals() {
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for record in records() {
            record.encode(&mut bytes);
            ends.push(bytes.len());
        }
        for len in 0..=bytes.len() {
            let (_, end) = parse(&bytes[..len]);
            assert_eq!(end as usize, *ends.iter().rfind(|e| **e <= len).expect("0 is one"));
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let (_, end) = parse(&bad);
            assert_eq!(end as usize, *ends.iter().rfind(|e| **e <= at).expect("0 is one"), "byte {at}");
        }
    }

    /// Goal: pieces of a file that is copied anew do not count. Method: two numbers for one path.
    #[test]
    fn later_numbers_count() {
        let mut bytes = Vec::new();
        records().iter().for_each(|r| r.encode(&mut bytes));
        let (known, _) = parse(&bytes);
        let file = &known.files[&b"a/\xff\nb".to_vec()];
        assert_eq!(file.number, 1);
        assert_eq!(file.pieces, BTreeMap::from([(5, Piece { crc: 10, compared: false })]));
        assert_eq!((known.next_number, known.publish), (2, Some(2)));
        Record::Publish { dev: 0, ino: NO_TREE }.encode(&mut bytes);
        assert_eq!(parse(&bytes).0.publish, None, "the tree is worked on again");
    }
}
