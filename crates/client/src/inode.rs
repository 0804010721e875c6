//! Files the client knows something about, and open files.
//!
//! Owns: per inode the size as this mount sees it, dirty units, requests under way, failures, the change log that
//! tells fills whether they are still true; per open file its streams. Does not own: cached bytes (`cache`).
//!
//! A `Inode` lives while it is open, has cached bytes or a close still to be sent. Who is right about the size: the
//! client while it is alone and has changes that the server has not confirmed, otherwise the latest answer that no
//! change overlapped. In company others change it too: then it is the server's with the end of this mount's own bytes,
//! as of the answer; whether that still holds is `tokens::is_sure`.

pub(crate) mod unlinked;

pub(crate) mod direct_stream;
pub(crate) mod failures;
pub(crate) mod file_group;
pub(crate) mod flights;
pub(crate) mod front_pages;
pub(crate) mod open_file;
pub(crate) mod range_lock;
pub(crate) mod seek_maps;
mod settling;
mod signal;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod untold;
pub(crate) mod whole_locks;

pub(crate) use failures::Failures;
pub(crate) use flights::{FlightId, Flights};
pub(crate) use open_file::OpenFile;
pub(crate) use signal::Signal;
pub(crate) use table::InodeTable;

use crate::policy::locality::Locality;
use crate::telemetry::stats::FileStats;
use amphi_types::{Advice, Attr, ByteRange, Errno, Ino, IoMode, Layout, Pattern, RangeSet, Timespec};
use amphi_wire::{Access, InodeView, ReadAdvice};
use file_group::FileGroup;
use front_pages::FilePages;
use parking_lot::Mutex;
use range_lock::RangeLock;
use settling::Settling;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Counts questions to servers and changes of files, so that an answer can be told from what happened since its
/// question.
static TICKS: AtomicU64 = AtomicU64::new(0);

fn tick() -> u64 {
    TICKS.fetch_add(1, SeqCst) + 1
}

/// When something was asked for, and under which rule of caching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedAt {
    at: u64,
    rule: u64,
}

impl AskedAt {
    pub(crate) fn now(rule: u64) -> AskedAt {
        AskedAt { at: tick(), rule }
    }

    pub(crate) fn rule(self) -> u64 {
        self.rule
    }

    /// Of an answer that is older than the latest change.
    pub(crate) const PAST: AskedAt = AskedAt { at: 0, rule: 0 };
}

/// What became of a view.
pub(crate) struct Adopted {
    /// Attributes with what only this client knows.
    pub(crate) attr: Attr,
    /// `Inode::size` is what the answer says with this mount's own changes: nothing here has come between.
    pub(crate) taken: bool,
    /// Nothing of this mount's own has reached the server since: with what it only knows itself, the view is the whole
    /// truth.
    pub(crate) current: bool,
}

/// Age of an access time from which on any read renews it: a day.
const ATIME_AGE_S: i64 = 86_400;

/// A layout in one word: pattern, log2 of the stripe size, count, pool.
fn pack(layout: Layout) -> u64 {
    let pattern = match layout.pattern {
        Pattern::Growing => 0,
        Pattern::Striped => 1,
        Pattern::Whole => 2,
    };
    let shift = u64::from(layout.stripe_size.trailing_zeros());
    pattern | shift << 8 | u64::from(layout.stripe_count) << 16 | u64::from(layout.pool) << 32
}

fn unpack(word: u64) -> Layout {
    let pattern = match word & 0xff {
        0 => Pattern::Growing,
        1 => Pattern::Striped,
        _ => Pattern::Whole,
    };
    let stripe_size = 1 << (word >> 8 & 31);
    Layout { pattern, stripe_size, stripe_count: (word >> 16) as u16, pool: (word >> 32) as u16 }
}

/// What is known of an inode beside its size.
pub(crate) struct Known {
    pub(crate) view: InodeView,
    /// When `view` was asked for; when it came, if it is of the answer to a change of this mount's own.
    at: u64,
    /// When an extended attribute was set last.
    xattrs_at: u64,
    /// Time of the last write that is only in the cache, or set explicitly after it.
    pub(crate) mtime: Timespec,
    /// That time is not yet known to be the server's: the cache holds writes with it, or nobody has asked since.
    pub(crate) mtime_local: bool,
    /// `mtime` was set, not that of a write.
    pub(crate) mtime_set: bool,
    /// Time of the latest read that counts; goes with the next close.
    pub(crate) accessed: Option<Timespec>,
    /// The server has not been told of it.
    pub(crate) accessed_due: bool,
    /// Opens that have not been released.
    pub(crate) opens: Vec<Access>,
    /// Closes that wait for write-back.
    pub(crate) closes: Vec<Access>,
    /// Closes that the server has not answered: one that restarts must hear of these opens before it hears the close.
    pub(crate) closing: Vec<Access>,
    /// `Spread` was answered since the last writer closed.
    pub(crate) spread: bool,
}

impl Known {
    /// What write-back says of when its bytes were written: nothing, if a time was set since.
    pub(crate) fn write_time(&self) -> Timespec {
        if self.mtime_set { Timespec::default() } else { self.mtime }
    }
}

/// Which units are dirty.
#[derive(Default)]
pub(crate) struct DirtyIndex {
    /// Unit index -> since when, nanoseconds.
    pub(crate) units: BTreeMap<u64, u64>,
}

/// A fill under way.
struct Fill {
    id: u64,
    range: ByteRange,
    /// Its bytes are kept for one reader and do not go into the cache, so nobody waits for it.
    held: bool,
    /// What changed since it was asked for: the answer may be older than that.
    spoiled: RangeSet,
}

/// Fills under way.
#[derive(Default)]
struct Fills {
    next: u64,
    list: Vec<Fill>,
}

impl Fills {
    /// Those that go into the cache.
    fn cached(&self) -> impl Iterator<Item = &Fill> {
        self.list.iter().filter(|f| !f.held)
    }
}

/// What is advised of a file.
struct Advised {
    /// As `known.view` has it.
    view: AtomicU8,
    /// How programs of this mount read it, as the last of them has said that has it open: a `ReadAdvice`.
    reads: AtomicU8,
}

/// A file.
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) known: Mutex<Known>,
    pub(crate) size: AtomicU64,
    /// The next read asks whether it brings the access time forward. Something has changed since the last one asked.
    pub(crate) atime_due: AtomicBool,
    /// Layout and advice of `known.view` again, for hits that take no lock.
    layout_packed: AtomicU64,
    advice: Advised,
    /// As `known.view` has it: a write takes its capabilities away first.
    capability: AtomicBool,
    /// As `known.view` has it: setuid or setgid, which others than root take away with a write.
    set_id: AtomicBool,
    /// When it became known.
    born: u64,
    /// The last begin or end of a change of the size or of what the server has.
    epoch: AtomicU64,
    /// The last one that answers from before cannot know of although this client no longer vouches for it: truncates,
    /// direct writes, locks given back.
    turned: AtomicU64,
    /// End of what was written into the cache under locks that are still held: the file is at least so long
    /// (`own_end()`).
    own_end: AtomicU64,
    /// The same as it was before, while it is found out anew; 0 otherwise.
    own_before: AtomicU64,
    finding_own: Mutex<()>,
    /// Writes past the cache that are under way.
    direct_writes: AtomicU64,
    /// The rule of caching under which the size was last taken from an answer.
    pub(crate) sure_rule: AtomicU64,
    /// Until when the size is certain under an attributes token; 0 without one.
    pub(crate) token_end_ns: AtomicU64,
    /// A lock was called back: others use the file. Nanoseconds.
    pub(crate) called_back_ns: AtomicU64,
    /// What a front end caches of it.
    pub(crate) pages: FilePages,
    /// Uses that are no opens: the file is not forgotten.
    pub(crate) uses: AtomicU32,
    pub(crate) range: RangeLock,
    pub(crate) dirty: Mutex<DirtyIndex>,
    pub(crate) flights: Mutex<Flights>,
    fills: Mutex<Fills>,
    /// Those that go into the cache.
    pub(super) fills_under_way: AtomicU32,
    /// All of them.
    pub(super) fills_entered: AtomicU32,
    pub(crate) signal: Signal,
    /// Bytes of cache memory.
    pub(crate) cached_bytes: AtomicU64,
    /// Its last name has gone, as far as is known here.
    pub(crate) nameless: AtomicBool,
    /// End of the bytes that were ever cached.
    pub(crate) cached_end: AtomicU64,
    /// Dirty bytes, those under way included.
    pub(crate) dirty_bytes: AtomicU64,
    /// Memory of writes past the cache that have returned and not landed (`pipeline`).
    pub(crate) piped_bytes: AtomicU64,
    /// The last use of cached bytes, as `Mount::coarse_ns` told it: hits pin no lock, and count for its age by this.
    pub(crate) used_ns: AtomicU64,
    /// The group of clients that has the file.
    pub(crate) group: FileGroup,
    /// Bit s: a write lock on all of stripe s is held and not on its way back.
    pub(crate) whole_locks: AtomicU64,
    /// Failures of write-back.
    pub(crate) failures: Failures,
    /// What follows from lost bytes.
    pub(crate) settling: Settling,
    /// `size` was asked for under write locks on all of every object; goes before one of them is given to this mount
    /// anew.
    pub(crate) end_kept: AtomicBool,
    /// When it was last asked for ahead of writes (`ops::attr::learn_end`); 0: never.
    pub(crate) end_asked_ns: AtomicU64,
    /// Of where it has data.
    pub(crate) map: seek_maps::MapStamp,
    /// Until when the file counts as contended, nanoseconds.
    pub(crate) contended_until_ns: AtomicU64,
    pub(crate) locality: Locality,
    pub(crate) stats: Arc<FileStats>,
}

/// A write past the cache under way.
pub(crate) struct DirectWrite<'a>(&'a Inode);

impl Drop for DirectWrite<'_> {
    fn drop(&mut self) {
        self.0.direct_writes.fetch_sub(1, SeqCst);
    }
}

impl Inode {
    pub(super) fn new(view: InodeView, asked_at: AskedAt, mount: &Arc<Locality>) -> Inode {
        let born = tick();
        Inode {
            born,
            ino: view.attr.ino,
            size: AtomicU64::new(view.attr.size),
            atime_due: AtomicBool::new(true),
            layout_packed: AtomicU64::new(pack(view.layout)),
            advice: Advised { view: AtomicU8::new(view.advice.into()), reads: AtomicU8::new(0) },
            capability: AtomicBool::new(view.capability),
            set_id: AtomicBool::new(view.attr.has_set_id()),
            known: Mutex::new(Known {
                mtime: view.attr.mtime,
                spread: false,
                at: asked_at.at,
                xattrs_at: 0,
                view,
                mtime_local: false,
                mtime_set: false,
                accessed: None,
                accessed_due: false,
                opens: Vec::new(),
                closes: Vec::new(),
                closing: Vec::new(),
            }),
            epoch: AtomicU64::new(born),
            turned: AtomicU64::new(1),
            own_end: AtomicU64::new(0),
            own_before: AtomicU64::new(0),
            finding_own: Mutex::default(),
            direct_writes: AtomicU64::new(0),
            sure_rule: AtomicU64::new(asked_at.rule),
            token_end_ns: AtomicU64::new(0),
            called_back_ns: AtomicU64::new(0),
            pages: FilePages::default(),
            uses: AtomicU32::new(0),
            range: RangeLock::default(),
            dirty: Mutex::default(),
            flights: Mutex::default(),
            fills: Mutex::default(),
            fills_under_way: AtomicU32::new(0),
            fills_entered: AtomicU32::new(0),
            signal: Signal::default(),
            cached_bytes: AtomicU64::new(0),
            nameless: AtomicBool::new(false),
            cached_end: AtomicU64::new(0),
            dirty_bytes: AtomicU64::new(0),
            piped_bytes: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            group: FileGroup::default(),
            whole_locks: AtomicU64::new(0),
            failures: Failures::default(),
            settling: Settling::default(),
            end_kept: AtomicBool::new(false),
            end_asked_ns: AtomicU64::new(0),
            map: seek_maps::MapStamp::new(born),
            contended_until_ns: AtomicU64::new(0),
            locality: Locality::of_file(mount),
            stats: Arc::new(FileStats::new()),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    pub(crate) fn view(&self) -> InodeView {
        self.known.lock().view
    }

    /// Time of the last write that is in the cache alone, or nothing.
    pub(crate) fn own_mtime(&self) -> Timespec {
        let known = self.known.lock();
        if known.mtime_local { known.write_time() } else { Timespec::default() }
    }

    /// How programs of this mount read it, as far as one that has it open has said.
    pub(crate) fn read_advice(&self) -> ReadAdvice {
        match self.advice.reads.load(Relaxed) {
            1 => ReadAdvice::Random,
            2 => ReadAdvice::Sequential,
            3 => ReadAdvice::Once,
            _ => ReadAdvice::Normal,
        }
    }

    /// A program says how it reads.
    pub(crate) fn advise_reads(&self, advice: ReadAdvice) {
        self.advice.reads.store(advice as u8, Relaxed);
    }

    /// What the owner of the file asked of mounts.
    pub(crate) fn advice(&self) -> Advice {
        Advice::try_from(self.advice.view.load(Relaxed)).unwrap_or_default()
    }

    /// What the owner of the file asked of the decision.
    pub(crate) fn io_mode(&self) -> IoMode {
        self.advice().mode()
    }

    /// Where the bytes lie.
    pub(crate) fn layout(&self) -> Layout {
        unpack(self.layout_packed.load(Relaxed))
    }

    /// Notes a use of cached bytes.
    #[inline]
    pub(crate) fn note_use(&self, coarse_ns: u64) {
        if self.used_ns.load(Relaxed) != coarse_ns {
            self.used_ns.store(coarse_ns, Relaxed);
        }
    }

    /// Whether this mount has it open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.known.lock().opens.iter().any(|a| a.write)
    }

    /// Whether this mount has changed it since it became known.
    fn has_changed(&self) -> bool {
        self.epoch.load(SeqCst) > self.born
    }

    /// Marks the begin or end of a change that answers under way may or may not have seen.
    pub(crate) fn mark_epoch(&self) {
        self.epoch.fetch_max(tick(), SeqCst);
    }

    /// The last turn: a number that is never 0.
    pub(crate) fn turned(&self) -> u64 {
        self.turned.load(SeqCst)
    }

    /// Marks a change of the size that `own_end` does not tell of, or that it no longer does.
    pub(crate) fn turn(&self) {
        let now = tick();
        // Another thread may have been given a later number and come first.
        self.turned.fetch_max(now, SeqCst);
        self.epoch.fetch_max(now, SeqCst);
        self.map.change(tick);
    }

    /// Storage of the file is about to be given or taken, or was.
    pub(crate) fn storage_changes(&self) {
        self.mark_epoch();
        self.map.change(tick);
    }

    /// Enters a fill. From now on changes of its bytes spoil it.
    pub(crate) fn fill_begins(&self, range: ByteRange) -> u64 {
        self.enter_fill(range, false)
    }

    /// As `fill_begins`, of bytes that are kept for one reader until `fill_ends` instead of going into the cache.
    pub(crate) fn held_fill_begins(&self, range: ByteRange) -> u64 {
        self.enter_fill(range, true)
    }

    fn enter_fill(&self, range: ByteRange, held: bool) -> u64 {
        let mut fills = self.fills.lock();
        fills.next += 1;
        let id = fills.next;
        fills.list.push(Fill { id, range, held, spoiled: RangeSet::new() });
        self.count_fills(&fills);
        id
    }

    fn count_fills(&self, fills: &Fills) {
        self.fills_entered.store(fills.list.len() as u32, SeqCst);
        self.fills_under_way.store(fills.cached().count() as u32, SeqCst);
    }

    /// Whether what fill `id` brings for `range` is still true. To be asked under the lock of the cache's shard.
    pub(crate) fn fill_is_true(&self, id: u64, range: ByteRange) -> bool {
        self.fills.lock().list.iter().any(|f| f.id == id && !f.spoiled.overlaps(range))
    }

    /// Ends a fill.
    pub(crate) fn fill_ends(&self, id: u64) {
        let mut fills = self.fills.lock();
        fills.list.retain(|f| f.id != id);
        self.count_fills(&fills);
        drop(fills);
        self.signal.notify();
    }

    /// What the server has of `range`, or the right to cache it, changed now: fills that were asked for before do not
    /// count there.
    pub(crate) fn spoil(&self, range: ByteRange) {
        if self.fills_entered.load(SeqCst) > 0 {
            for fill in self.fills.lock().list.iter_mut().filter(|f| f.range.overlaps(&range)) {
                fill.spoiled.insert(range.intersect(&fill.range));
            }
        }
    }

    /// The parts of `range` that no fill under way brings.
    pub(crate) fn not_being_filled(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut covered = RangeSet::new();
        self.fills.lock().cached().for_each(|f| covered.insert(f.range));
        covered.gaps(range).into_vec()
    }

    /// Whether a fill under way brings bytes of `range`.
    pub(crate) fn is_being_filled(&self, range: ByteRange) -> bool {
        self.fills_under_way.load(SeqCst) > 0 && self.fills.lock().cached().any(|f| f.range.overlaps(&range))
    }

    /// Whether whoever runs the file is given capabilities.
    #[inline]
    pub(crate) fn gives_capabilities(&self) -> bool {
        self.capability.load(Relaxed)
    }

    /// Whether it has setuid or setgid, as far as is known here.
    #[inline]
    pub(crate) fn has_set_id(&self) -> bool {
        self.set_id.load(Relaxed)
    }

    /// An extended attribute is set, of capabilities or another one.
    pub(crate) fn has_xattrs(&self, capability: bool) {
        let mut known = self.known.lock();
        // Answers to questions from before this may be from before it.
        known.xattrs_at = tick();
        known.at = known.xattrs_at;
        known.view.xattrs = true;
        known.view.capability |= capability;
        self.capability.store(known.view.capability, Relaxed);
    }

    /// Its capabilities were taken away by a request of `asked`. Some that were given since then may be there: the next
    /// write looks again.
    pub(crate) fn lose_capability(&self, asked: AskedAt) {
        let mut known = self.known.lock();
        if known.xattrs_at < asked.at {
            known.view.capability = false;
            self.capability.store(false, Relaxed);
        }
    }

    /// Whether bytes of `range` are on their way to the server.
    pub(crate) fn in_flight(&self, range: ByteRange) -> bool {
        self.flights.lock().overlap(range)
    }

    /// Whether such are that set out up to number `upto` (`Flights::last`).
    pub(crate) fn in_flight_upto(&self, range: ByteRange, upto: u64) -> bool {
        self.flights.lock().overlap_upto(range, upto)
    }

    /// The attributes with what only this client knows laid over them. Alone, its time of the last write is the truth,
    /// even if it was set back; in company another mount may have written later.
    pub(crate) fn overlay(&self, mut attr: Attr, alone: bool) -> Attr {
        let known = self.known.lock();
        attr.size = self.size();
        // Dirty bytes will take storage; a file without any would pass for sparse. Those that are written over others
        // take none.
        let dirty = self.dirty_bytes.load(SeqCst).div_ceil(512);
        let whole = attr.size.div_ceil(4096) * 8;
        attr.blocks = attr.blocks.max(whole.min(attr.blocks + dirty));
        if known.mtime_local {
            attr.mtime = if alone { known.mtime } else { attr.mtime.max(known.mtime) };
            attr.ctime = attr.ctime.max(known.write_time());
        }
        attr.atime = attr.atime.max(known.accessed.unwrap_or(attr.atime));
        attr
    }

    /// Takes a view that was asked for at `asked_at`.
    pub(crate) fn adopt(&self, view: InodeView, asked_at: AskedAt) -> Adopted {
        self.take_view(view, asked_at, None)
    }

    /// Takes the view that the answer to a change of this mount's own shows: the change was asked for at `asked`, the
    /// size counts as of `asked_at`. Questions that were asked later may have been answered before the change, so it
    /// counts from now on. If something else came since it was asked for, the time of the last change says which of
    /// both is of the later state.
    pub(crate) fn adopt_change(&self, view: InodeView, asked: AskedAt, asked_at: AskedAt) -> Adopted {
        self.take_view(view, asked_at, Some(asked))
    }

    fn take_view(&self, mut view: InodeView, asked_at: AskedAt, change: Option<AskedAt>) -> Adopted {
        let mut known = self.known.lock();
        let latest = asked_at.at >= known.at;
        let generation = known.view.generation.max(view.generation);
        known.view.generation = generation;
        let shown = view.attr;
        let counts = match change {
            None => latest,
            Some(asked) => asked.at >= known.at || view.attr.ctime >= known.view.attr.ctime,
        };
        if counts {
            if change.is_some_and(|asked| asked.at <= known.xattrs_at) {
                view.xattrs |= known.view.xattrs;
                view.capability |= known.view.capability;
            }
            known.view = InodeView { generation, ..view };
            known.at = if change.is_some() { tick() } else { asked_at.at };
            self.layout_packed.store(pack(view.layout), Relaxed);
            self.advice.view.store(view.advice.into(), Relaxed);
            self.capability.store(view.capability, Relaxed);
            self.set_id.store(view.attr.has_set_id(), Relaxed);
        }
        self.atime_due.store(true, Relaxed);
        let own_before = self.own_end();
        let current = latest && self.epoch.load(SeqCst) <= asked_at.at;
        let quiet = current && self.dirty_bytes.load(SeqCst) == 0;
        if quiet {
            // The answer is from after the last write-back, so it has that write's time.
            known.mtime_local = false;
        }
        let alone = asked_at.rule & 1 == 1;
        // Alone, what this client has in its cache counts for more than the answer, which may show a write by half.
        let knows = alone && self.sure_rule.load(SeqCst) == asked_at.rule;
        let whole = self.direct_writes.load(SeqCst) == 0;
        let news = if knows { quiet && whole } else { latest && self.turned.load(SeqCst) <= asked_at.at };
        if news {
            self.size.store(shown.size.max(if quiet { 0 } else { own_before }), SeqCst);
            let own = self.own_end();
            let disturbed = self.dirty_bytes.load(SeqCst) > 0 || self.epoch.load(SeqCst) > asked_at.at;
            if own > own_before || (quiet && disturbed) {
                // A write that came in between.
                self.size.fetch_max(own, SeqCst);
            }
            if alone {
                self.sure_rule.store(asked_at.rule, SeqCst);
            }
        }
        drop(known);
        let mut attr = self.overlay(shown, alone);
        if !current {
            // What has landed since is not in the answer, nor dirty any more: rather too much than a file that passes
            // for sparse.
            attr.blocks = attr.blocks.max(attr.size.div_ceil(4096) * 8);
        }
        Adopted { attr, taken: knows || news, current }
    }

    /// A write past the cache begins. Until the returned guard is dropped, answers may show some of its pieces.
    pub(crate) fn begin_direct(&self) -> DirectWrite<'_> {
        self.direct_writes.fetch_add(1, SeqCst);
        DirectWrite(self)
    }

    /// A write past the cache now ends at `end`. Answers from before are taken before this, or not at all.
    pub(crate) fn extend(&self, end: u64) {
        let _known = self.known.lock();
        self.turn();
        self.size.fetch_max(end, SeqCst);
    }

    /// A write into the cache now ends at `end`. To be called under the lock of the cluster that permits it.
    pub(crate) fn extend_own(&self, end: u64) {
        self.own_end.fetch_max(end, SeqCst);
        self.size.fetch_max(end, SeqCst);
    }

    /// End of what was written into the cache under locks that are still held: the file is at least so long.
    pub(crate) fn own_end(&self) -> u64 {
        // In this order one of them shows it at any moment of `own_is_at_least`.
        let first = self.own_end.load(SeqCst);
        first.max(self.own_before.load(SeqCst)).max(self.own_end.load(SeqCst))
    }

    /// It is at least `end`.
    pub(crate) fn own_reaches(&self, end: u64) {
        self.own_end.fetch_max(end, SeqCst);
    }

    /// It is `end` at most: the file was cut, or nothing of it lies beyond.
    pub(crate) fn own_ends_by(&self, end: u64) {
        let _finding = self.finding_own.lock();
        self.own_end.fetch_min(end, SeqCst);
    }

    /// What was written into the cache before counts no more, but for what is found there now; writes that come in
    /// between count, and at no moment less than what is there.
    pub(crate) fn own_is_at_least(&self, found: impl FnOnce() -> u64) {
        self.turn();
        let _finding = self.finding_own.lock();
        // What is written from now on is entered anew, and what was written before is found.
        let mut before = self.own_end.load(SeqCst);
        loop {
            self.own_before.store(before, SeqCst);
            match self.own_end.compare_exchange(before, 0, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(raised) => before = raised,
            }
        }
        self.own_end.fetch_max(found(), SeqCst);
        self.own_before.store(0, SeqCst);
    }

    /// Notes the time of a write that is in the cache alone.
    pub(crate) fn touch(&self, now: Timespec) {
        let mut known = self.known.lock();
        known.mtime = now;
        (known.mtime_local, known.mtime_set) = (true, false);
        self.atime_due.store(true, Relaxed);
        self.map.change(tick);
    }

    /// Notes a read at `now`, by the rule of relatime: the access time moves only if it is not later than the last
    /// change or older than a day. Called for the first read after a change alone, so that other reads pay a flag.
    #[cold]
    pub(crate) fn note_access(&self, now: Timespec) {
        self.atime_due.store(false, Relaxed);
        let mut known = self.known.lock();
        let (atime, changed) = Self::accessed_and_changed(&known);
        if atime <= changed || now.sec - atime.sec >= ATIME_AGE_S {
            known.accessed = Some(now);
            known.accessed_due = true;
        }
    }

    /// Whether a read now would renew the access time (`note_access`). If not, none does before the next change.
    pub(crate) fn access_is_due(&self, now: Timespec) -> bool {
        if !self.atime_due.load(Relaxed) {
            return false;
        }
        let known = self.known.lock();
        let (atime, changed) = Self::accessed_and_changed(&known);
        atime <= changed || now.sec - atime.sec >= ATIME_AGE_S
    }

    fn accessed_and_changed(known: &Known) -> (Timespec, Timespec) {
        let attr = &known.view.attr;
        let atime = attr.atime.max(known.accessed.unwrap_or(attr.atime));
        (atime, attr.mtime.max(attr.ctime).max(known.mtime))
    }

    /// The time of the last change was set: what is dirty was written before, and adds nothing to it when it leaves.
    pub(crate) fn time_was_set(&self, mtime: Timespec) {
        let mut known = self.known.lock();
        (known.mtime, known.mtime_set) = (mtime, true);
    }

    /// Everything of this client has been written back, and others may write from now on: its times are the server's.
    pub(crate) fn times_told(&self) {
        let mut known = self.known.lock();
        if self.dirty_bytes.load(SeqCst) == 0 {
            known.mtime_local = false;
        }
    }

    /// Notes the time of a write that went past the cache: what the cache still holds was written before.
    pub(crate) fn touched_past_cache(&self, at: Timespec) {
        let mut known = self.known.lock();
        if known.mtime_local {
            known.mtime = if known.mtime_set { at } else { known.mtime.max(at) };
            known.mtime_set = false;
        }
    }

    /// The error of lost bytes that nobody was told of and somebody may miss.
    pub(crate) fn untold_loss(&self) -> Option<Errno> {
        let is_gone = self.nameless.load(SeqCst) && self.open_count() == 0;
        if is_gone { None } else { self.failures.untold() }
    }

    /// Opens of this mount that have not been released.
    pub(crate) fn open_count(&self) -> u32 {
        let known = self.known.lock();
        known.opens.len() as u32
    }

    /// Every open the server knows of.
    pub(crate) fn opens(&self) -> Vec<Access> {
        let known = self.known.lock();
        known.opens.iter().chain(&known.closes).chain(&known.closing).copied().collect()
    }

    /// The server has answered a close.
    pub(crate) fn closed(&self, access: Access) {
        let mut known = self.known.lock();
        if let Some(i) = known.closing.iter().position(|a| *a == access) {
            known.closing.swap_remove(i);
        }
    }

    pub(crate) fn access_count(&self) -> u32 {
        let known = self.known.lock();
        (known.opens.len() + known.closes.len() + known.closing.len()) as u32
    }
}
