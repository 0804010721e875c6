//! Records that are written and read whole, and the log of appended ones.

use crate::dice::bytes_of;
use crate::reference::Reach;
use crate::survive::Level;
use std::collections::BTreeMap;

/// Time at which a write ended that has not.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Written {
    tag: u64,
    bytes: Vec<u8>,
    begin: u64,
    end: u64,
}

/// A part of a file that is always written and read whole.
#[derive(Clone, Debug)]
pub struct Record {
    /// The offset of the record in the file.
    pub offset: u64,
    /// The length of the record.
    pub len: u64,
    /// All writes since the last crash.
    writes: Vec<Written>,
    /// Begin of the newest write that the servers have acknowledged: at least this one survives killed processes.
    written: u64,
    /// Begin of the newest write that ended before a sync began, or was one itself: at least this one survives lost
    /// power.
    synced: u64,
    /// Completed reads: when each ended, number and begin of the write that it returned.
    reads: Vec<(u64, (u64, u64))>,
}

impl Record {
    /// A record that reads as zeros.
    pub fn new(offset: u64, len: u64) -> Record {
        let zeros = Written { tag: 0, bytes: vec![0; len as usize], begin: 0, end: 0 };
        Record { offset, len, writes: vec![zeros], written: 0, synced: 0, reads: Vec::new() }
    }

    /// A write begins; returns its bytes.
    pub fn begin_write(&mut self, tag: u64, now: u64) -> Vec<u8> {
        let bytes = bytes_of(tag, self.len as usize);
        self.writes.push(Written { tag, bytes: bytes.clone(), begin: now, end: NEVER });
        bytes
    }

    /// Called when the write has returned, and its bytes have got as far as `reach`.
    pub fn end_write(&mut self, tag: u64, now: u64, reach: Reach) {
        let Some(w) = self.writes.iter_mut().find(|w| w.tag == tag) else { return };
        w.end = now;
        if reach >= Reach::Server {
            self.written = self.written.max(w.begin);
        }
        if reach >= Reach::Disk {
            self.synced = self.synced.max(w.begin);
        }
    }

    /// The result of a read from `begin` to `end`: the number of the write.
    ///
    /// Errors: what rule it breaks.
    pub fn read(&mut self, begin: u64, end: u64, bytes: &[u8]) -> Result<u64, String> {
        let mut zeros;
        // Beyond the end of the file there are no bytes; a record reads so before its first write.
        let bytes = if bytes.len() < self.len as usize {
            zeros = bytes.to_vec();
            zeros.resize(self.len as usize, 0);
            &zeros[..]
        } else {
            bytes
        };
        // Short records of several writes may be equal: one of them has to fit, and the oldest that does says least of
        // later reads.
        let mut wrong = None;
        for found in self.writes.iter().filter(|w| w.bytes == bytes) {
            match self.judge(found, begin) {
                Ok(()) => {
                    let seen = (found.tag, found.begin);
                    self.reads.push((end, seen));
                    return Ok(seen.0);
                }
                Err(e) => wrong = wrong.or(Some(e)),
            }
        }
        Err(wrong.unwrap_or_else(|| self.describe(bytes)))
    }

    /// Returns whether a read that began at `begin` may return what `found` wrote.
    fn judge(&self, found: &Written, begin: u64) -> Result<(), String> {
        if let Some(later) = self.writes.iter().find(|w| found.end < w.begin && w.end < begin) {
            return Err(format!("returned #{:x}, which #{:x} overwrote before", found.tag, later.tag));
        }
        if let Some((_, newer)) = self.reads.iter().find(|(when, w)| *when < begin && found.end < w.1) {
            return Err(format!("returned #{:x}, an earlier read had #{:x}", found.tag, newer.0));
        }
        Ok(())
    }

    fn describe(&self, bytes: &[u8]) -> String {
        let mut parts: Vec<(usize, String)> = Vec::new();
        for (i, chunk) in bytes.chunks(512).enumerate() {
            let at = i * 512;
            let name = self.writes.iter().find(|w| &w.bytes[at..at + chunk.len()] == chunk);
            let name = name.map_or("mixed".to_string(), |w| format!("#{:x}", w.tag));
            if parts.last().is_none_or(|(_, n)| *n != name) {
                parts.push((at, name));
            }
        }
        parts.truncate(12);
        format!("{} bytes are of no single write: {parts:?}", bytes.len())
    }

    /// A sync that began at `begin` has returned: everything that was written before survives.
    pub fn synced(&mut self, begin: u64) {
        let newest = self.writes.iter().filter(|w| w.end < begin).map(|w| w.begin).max().unwrap_or(0);
        self.synced = self.synced.max(newest);
    }

    /// Judges the bytes after a crash: each is of the newest write that survives it for certain, or of a write that may
    /// have been made later. Then they are the contents of the record.
    ///
    /// Errors: where they are not.
    pub fn crashed(&mut self, level: Level, bytes: Vec<u8>) -> Result<(), String> {
        let safe = match level {
            Level::Written => self.written.max(self.synced),
            Level::Stable => self.synced,
        };
        // A write that ended before that one began cannot reappear.
        let may: Vec<&Written> = self.writes.iter().filter(|w| w.end >= safe || w.begin >= safe).collect();
        let bad = bytes.iter().enumerate().find(|(i, b)| !may.iter().any(|w| w.bytes[*i] == **b));
        if let Some((at, _)) = bad {
            return Err(format!("byte {at} is of no write that may be there"));
        }
        self.writes = vec![Written { tag: 0, bytes, begin: 0, end: 0 }];
        (self.written, self.synced, self.reads) = (0, 0, Vec::new());
        Ok(())
    }
}

/// Bytes before those of an appended record: its tag and length.
const HEAD: usize = 16;

/// The records appended to a file.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// For each tag: the length of the bytes behind the head, the begin and the end.
    appended: BTreeMap<u64, (u64, u64, u64)>,
}

impl Log {
    /// An append begins; returns what to write.
    pub fn begin(&mut self, tag: u64, len: u64, now: u64) -> Vec<u8> {
        self.appended.insert(tag, (len, now, NEVER));
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(bytes_of(tag, len as usize));
        bytes
    }

    /// The append has returned.
    pub fn end(&mut self, tag: u64, now: u64) {
        if let Some(a) = self.appended.get_mut(&tag) {
            a.2 = now;
        }
    }

    /// Judges the file when no task appends (Promise S4): every record whole, once, in an order that agrees with time.
    ///
    /// Errors: the first thing wrong.
    pub fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let mut at = 0;
        let mut order: Vec<u64> = Vec::new();
        while at < bytes.len() {
            let head = bytes.get(at..at + HEAD).ok_or(format!("a torn head at {at}"))?;
            let number = |b: &[u8]| b.iter().rev().fold(0u64, |n, x| n << 8 | u64::from(*x));
            let (tag, len) = (number(&head[..8]), number(&head[8..]));
            match self.appended.get(&tag) {
                Some((want, ..)) if *want == len => {}
                _ => return Err(format!("at {at} lies no head of a record but {head:02x?}")),
            }
            let body = bytes.get(at + HEAD..at + HEAD + len as usize).ok_or(format!("record #{tag:x} is cut off"))?;
            if body != bytes_of(tag, len as usize) {
                return Err(format!("record #{tag:x} at {at} is damaged"));
            }
            if order.contains(&tag) {
                return Err(format!("record #{tag:x} is there twice"));
            }
            order.push(tag);
            at += HEAD + len as usize;
        }
        if let Some((tag, _)) = self.appended.iter().find(|(t, a)| a.2 != NEVER && !order.contains(t)) {
            return Err(format!("record #{tag:x} is missing"));
        }
        let mut newest_begin = 0;
        for tag in &order {
            let (_, begin, end) = self.appended[tag];
            if end < newest_begin {
                return Err(format!("record #{tag:x} lies behind one that began after it had ended"));
            }
            newest_begin = newest_begin.max(begin);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: torn, old and vanished writes are distinguished from good ones by reads (Promise S2). Method: two writes
    /// one after the other, then reads at various times.
    #[test]
    fn reads_are_judged() {
        let mut r = Record::new(5, 1000);
        let a = r.begin_write(1, 10);
        r.end_write(1, 20, Reach::Cache);
        let b = r.begin_write(2, 30);
        r.end_write(2, 40, Reach::Cache);
        assert_eq!(r.clone().read(35, 36, &a), Ok(1), "both may be seen while the second is under way");
        assert_eq!(r.clone().read(35, 36, &b), Ok(2));
        assert!(r.clone().read(41, 42, &a).is_err(), "overwritten");
        assert!(r.clone().read(41, 42, &vec![0; 1000]).is_err());
        let torn = [&a[..500], &b[500..]].concat();
        assert!(r.clone().read(35, 36, &torn).is_err());
        r.read(33, 34, &b).unwrap();
        assert!(r.clone().read(35, 36, &a).is_err(), "a later read does not go back");
        assert!(r.clone().crashed(Level::Stable, torn.clone()).is_ok(), "a crash may mix what was not synced");
        assert!(r.clone().crashed(Level::Written, torn).is_ok());
        r.synced(41);
        for level in [Level::Written, Level::Stable] {
            assert!(r.clone().crashed(level, a.clone()).is_err());
            assert!(r.clone().crashed(level, b.clone()).is_ok());
        }
    }

    /// Goal: an acknowledged direct write or one with O_DSYNC has to survive a crash (Promise S9, Promise S10). Method:
    /// a second write of each range, then the bytes of the first write after a kill and after a loss of power; a later
    /// write that may be there.
    #[test]
    fn acknowledged_records_survive() {
        let (killed, lost) = (Level::Written, Level::Stable);
        for (reach, good) in
            [(Reach::Cache, [true, true]), (Reach::Server, [false, true]), (Reach::Disk, [false, false])]
        {
            let mut r = Record::new(0, 1000);
            let a = r.begin_write(1, 10);
            r.end_write(1, 20, Reach::Cache);
            let b = r.begin_write(2, 30);
            r.end_write(2, 40, reach);
            let found = [killed, lost].map(|level| r.clone().crashed(level, a.clone()).is_ok());
            assert_eq!(found, good, "{reach:?}");
            let c = r.begin_write(3, 50);
            for level in [killed, lost] {
                assert!(r.clone().crashed(level, b.clone()).is_ok(), "{reach:?}");
                assert!(r.clone().crashed(level, [&b[..500], &c[500..]].concat()).is_ok(), "under way");
            }
        }
    }

    /// Goal: short records that are equal by chance cause no false error, and hide no read of an older record behind a
    /// newer one. Method: three writes of one byte, the first and the last of which are equal.
    #[test]
    fn equal_records_are_told_apart_by_time() {
        let mut r = Record::new(0, 1);
        let first = r.begin_write(1, 10);
        r.end_write(1, 20, Reach::Cache);
        let equal = (2..).find(|tag| bytes_of(*tag, 1) == first).expect("one of 256");
        let other = (2..).find(|tag| bytes_of(*tag, 1) != first).expect("most");
        let between = r.begin_write(other, 30);
        r.end_write(other, 40, Reach::Cache);
        assert!(r.clone().read(41, 42, &first).is_err(), "overwritten");
        r.begin_write(equal, 50);
        r.end_write(equal, 60, Reach::Cache);
        assert_eq!(r.clone().read(61, 62, &first), Ok(equal));
        assert!(r.clone().read(61, 62, &between).is_err());
    }

    /// Goal: the log's rules are checked. Method: good files, and each kind of bad one.
    #[test]
    fn logs_are_judged() {
        let mut log = Log::default();
        let a = log.begin(1, 100, 0);
        log.end(1, 5);
        let b = log.begin(2, 50, 10);
        log.end(2, 15);
        let cat = |parts: &[&[u8]]| parts.concat();
        assert_eq!(log.check(&cat(&[&a, &b])), Ok(()));
        assert!(log.check(&cat(&[&b, &a])).unwrap_err().contains("behind"));
        assert!(log.check(&a).unwrap_err().contains("missing"));
        assert!(log.check(&cat(&[&a, &b, &a])).unwrap_err().contains("twice"));
        assert!(log.check(&cat(&[&a, &b[..60]])).unwrap_err().contains("cut off"));
        assert!(log.check(&cat(&[&a[..30], &b])).is_err());
    }
}
