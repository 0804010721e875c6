//! The state both halves share.
//!
//! Owns: what a mount has one of, sending a request, room in the cache. Does not own: what operations do (`ops`), the
//! public interface (`client`), the connection (`io`).

use crate::api::{ClientConfig, Clock, ReadText};
use crate::cache::PageCache;
use crate::cache::limit::Trees;
use crate::coherence::bare::Bare;
use crate::coherence::directories::Directories;
use crate::coherence::file_locks::FileLockTable;
use crate::coherence::group_lock::GroupNews;
use crate::coherence::locks::Locks;
use crate::coherence::sharing::Company;
use crate::coherence::tokens::Tokens;
use crate::coherence::walks::Walks;
use crate::conn::pauses::Pauses;
use crate::conn::queue::{Item, Outgoing, Queue};
use crate::inode::unlinked::Removed;
use crate::inode::{File, FileTable, Moment, Signal};
use crate::policy::caller_memory::Callers;
use crate::policy::rotational::Rotating;
use crate::policy::throughput::Learned;
use crate::prefetch::large_reads::DirectStreams;
use crate::prefetch::small_files::Siblings;
use crate::telemetry::jobs::{Job, JobName, Jobs};
use crate::telemetry::stats::{Count, FileEvent, Stats, messages};
use crate::telemetry::tunables::{Knob, Tunables};
use crate::writeback::backlog::Backlog;
use crate::writeback::batch::SmallFiles;
use crate::writeback::deferred_close::Closes;
use crate::writeback::flush::{self, Spreading};
use crate::writeback::free_space::Room;
use crate::writeback::writeback_errors::Losses;
use amphi_env::Buf;
use amphi_types::{ByteRange, Cred, Errno, Layout, ObjectId, Result, TargetId, Timespec};
use amphi_wire::{Answer, Call, ClusterMap, Lane, Reply, Request, ServerInfo};
use futures_channel::oneshot;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a server may take to say something about itself.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);

/// State that both halves share.
pub(crate) struct Core {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Tunables,
    pub(crate) stats: Stats,
    pub(crate) jobs: Jobs,
    /// The job of opens that name none.
    own_job: Option<JobName>,
    pub(crate) job_variables: Vec<String>,
    pub(crate) cache: PageCache,
    pub(crate) files: FileTable,
    pub(crate) locks: Locks,
    pub(crate) tokens: Tokens,
    pub(crate) directories: Directories,
    pub(crate) removed: Removed,
    pub(crate) seek_maps: crate::ops::seek::Maps,
    pub(crate) walks: Walks,
    pub(crate) bare: Bare,
    pub(crate) company: Company,
    pub(crate) file_locks: FileLockTable,
    pub(crate) spreading: Spreading,
    /// Small files that wait for company.
    pub(crate) small_files: SmallFiles,
    pub(crate) siblings: Siblings,
    pub(crate) closes: Closes,
    pub(crate) queue: Queue,
    pub(crate) owner_uid: u32,
    pub(crate) read_text: Option<ReadText>,
    /// Targets of the cluster, from `Welcome`; 0 before.
    pub(crate) pool: AtomicU16,
    /// How long a front end may keep names and attributes while the mount is alone, ms.
    pub(crate) token_ms: AtomicU32,
    pub(crate) cluster: AtomicU64,
    /// Which server has which targets; no servers before the first connection.
    pub(crate) map: Mutex<ClusterMap>,
    /// The last thing a control attribute complained about.
    pub(crate) complaint: Mutex<String>,
    /// The statuses that were shown last, by the process that asked: who reads a long one reads on in its own.
    pub(crate) shown_status: Mutex<VecDeque<(u32, Vec<u8>)>>,
    /// The memory group is above its share; measured by the I/O half.
    pub(crate) group_short: AtomicBool,
    /// Where memory groups are, for the I/O half.
    pub(crate) memory_trees: OnceLock<Trees>,
    /// The same of the processes that call.
    pub(crate) callers: Callers,
    /// Targets on rotating storage.
    pub(crate) rotating: Rotating,
    /// What direct requests and the cache carry.
    pub(crate) learned: Learned,
    /// Bytes of write-back under way.
    pub(crate) flight_bytes: AtomicU64,
    /// Runs of write-back under way.
    pub(crate) flight_parts: AtomicUsize,
    /// Memory of direct writes under way that have returned.
    pub(crate) piped_bytes: AtomicU64,
    /// Targets that writes will not find full.
    pub(crate) room: Room,
    /// What could not be written back.
    pub(crate) losses: Losses,
    /// Why the end of the mount was not in order.
    pub(crate) lost_at_end: Mutex<Option<Errno>>,
    /// Bytes of fills under way.
    pub(crate) fill_bytes: AtomicU64,
    /// Direct reads that were asked for ahead.
    pub(crate) direct_streams: DirectStreams,
    pub(crate) backlog: Backlog,
    /// Write-back requests that have ended, and who waits for one.
    pub(crate) landings: AtomicU64,
    /// The time of the last tick: cheap to read, at most a second behind.
    pub(crate) coarse_ns: AtomicU64,
    pub(crate) group_news: GroupNews,
    pub(crate) pauses: Pauses,
    pub(crate) landed: Signal,
    /// Programs that wait for much of it.
    pub(crate) drains: AtomicU64,
    pub(crate) stopping: AtomicBool,
    /// Everything was written back after `stopping`.
    pub(crate) drained: AtomicBool,
    pub(crate) stopped: AtomicBool,
}

/// Of the cache's size: what write-back may have under way beside it, and what one stream is read ahead by.
const BESIDE_PART: u64 = 8;
/// A stream may always be read ahead by so much.
const WINDOW_MIN_BYTES: u64 = 1 << 20;

impl Core {
    /// The state of a mount that has not connected yet.
    pub(crate) fn new(config: ClientConfig) -> Core {
        let tunables = Tunables::new();
        let read = config.read_text.clone();
        let memory = read.as_ref().and_then(|read| crate::cache::limit::cache_bytes(&**read));
        if let Some(bytes) = config.cache_bytes.or(memory) {
            tunables.put(Knob::CacheBytes, bytes);
        }
        let mut complaint = String::new();
        for (name, value) in &config.tunables {
            if let Err(text) = tunables.set(name, value) {
                tracing::warn!("{text}");
                complaint = text;
            }
        }
        Core {
            stats: Stats::new(config.clock.now_ns()),
            jobs: Jobs::default(),
            own_job: config.job,
            job_variables: config.job_variables,
            coarse_ns: AtomicU64::new(config.clock.now_ns()),
            cache: PageCache::new(),
            files: FileTable::new(),
            locks: Locks::new(&tunables),
            tokens: Tokens::new(),
            directories: Directories::default(),
            removed: Removed::default(),
            seek_maps: Default::default(),
            walks: Walks::default(),
            bare: Bare::default(),
            company: Company::new(),
            file_locks: FileLockTable::default(),
            spreading: Spreading::default(),
            small_files: SmallFiles::default(),
            closes: Closes::default(),
            siblings: Siblings::default(),
            queue: Queue::default(),
            clock: config.clock,
            tunables,
            owner_uid: config.owner_uid,
            read_text: config.read_text,
            pool: AtomicU16::new(0),
            token_ms: AtomicU32::new(0),
            cluster: AtomicU64::new(0),
            map: Mutex::default(),
            complaint: Mutex::new(complaint),
            shown_status: Mutex::default(),
            group_short: AtomicBool::new(false),
            memory_trees: OnceLock::new(),
            callers: Callers::default(),
            rotating: Rotating::default(),
            learned: Learned::default(),
            flight_bytes: AtomicU64::new(0),
            flight_parts: AtomicUsize::new(0),
            piped_bytes: AtomicU64::new(0),
            room: Room::default(),
            losses: Losses::default(),
            lost_at_end: Mutex::default(),
            fill_bytes: AtomicU64::new(0),
            direct_streams: DirectStreams::default(),
            backlog: Backlog::default(),
            landings: AtomicU64::new(0),
            group_news: GroupNews::default(),
            pauses: Pauses::default(),
            landed: Signal::default(),
            drains: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn wall(&self) -> Timespec {
        self.clock.wall()
    }

    pub(crate) fn pool(&self) -> u16 {
        self.pool.load(Ordering::Relaxed).max(1)
    }

    /// The target of an object on a cluster of the present size; files made on another one have it in their layout.
    pub(crate) fn target_of(&self, object: ObjectId) -> TargetId {
        match self.files.get(object.ino) {
            Some(file) => file.layout().target(object.ino, object.stripe),
            None => Layout::growing(self.pool()).target(object.ino, object.stripe),
        }
    }

    /// Takes what the server says of itself.
    pub(crate) fn learn(&self, welcome: &amphi_wire::Welcome) {
        self.pool.store(welcome.pool, Ordering::Relaxed);
        self.cluster.store(welcome.cluster, Ordering::Relaxed);
        self.token_ms.store(welcome.token_ms, Ordering::Relaxed);
    }

    /// Remembers for a while that a server called the file contended.
    pub(crate) fn note_contention(&self, file: &File, contended: bool) {
        if contended {
            self.stats.count(Count::ContendedTold);
            file.stats.count(FileEvent::Contended);
            let until = self.clock.now_ns() + self.tunables.get(Knob::ContendedMs) * 1_000_000;
            file.contended_until_ns.store(until, Ordering::Relaxed);
        }
    }

    /// Bytes that write-back may have under way: those are copies beside the cache, so of a small one only a part.
    pub(crate) fn flight_max(&self) -> u64 {
        self.tunables.get(Knob::FlightBytes).min(self.tunables.get(Knob::CacheBytes) / BESIDE_PART)
    }

    /// Whether no more write-back may set out: enough of it is under way, in bytes or in runs.
    pub(crate) fn flight_is_full(&self) -> bool {
        self.flight_bytes.load(Ordering::SeqCst) >= self.flight_max()
            || self.flight_parts.load(Ordering::SeqCst) >= flush::FLIGHT_PARTS_MAX
    }

    /// Whether so much may set out that it is worth looking for what is dirty everywhere.
    pub(crate) fn flight_has_room(&self) -> bool {
        self.flight_parts.load(Ordering::SeqCst) <= flush::FLIGHT_PARTS_MAX / 2
    }

    /// Bytes that one stream may be read ahead: the less, the more is under way for all, since that is beside the cache
    /// as well.
    pub(crate) fn window_max(&self) -> u64 {
        let part = self.tunables.get(Knob::CacheBytes) / BESIDE_PART;
        let left = (2 * part).saturating_sub(self.fill_bytes.load(Ordering::SeqCst));
        self.tunables.get(Knob::ReadAheadBytes).min(part).min(left.max(WINDOW_MIN_BYTES))
    }

    /// Bytes that may be dirty.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.tunables.get(Knob::CacheBytes) / 100 * self.tunables.get(Knob::DirtyPercent)
    }

    /// Whether writers of `bytes` more have to wait for write-back.
    pub(crate) fn dirty_is_full(&self, bytes: u64) -> bool {
        let limit = self.dirty_max();
        let dirty = self.cache.dirty_bytes();
        // A request larger than the limit gets through alone.
        dirty > 0 && dirty + bytes > limit
    }

    /// Whether half of what may be dirty is.
    pub(crate) fn dirty_is_high(&self) -> bool {
        let limit = self.tunables.get(Knob::CacheBytes) / 100 * self.tunables.get(Knob::DirtyPercent);
        self.cache.dirty_bytes() > limit / 2
    }

    /// Makes room for `bytes` more in the cache. Returns whether there is.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let limit = self.tunables.get(Knob::CacheBytes);
        self.cache.set_limit(limit);
        if self.cache.used_bytes() + bytes <= limit {
            return true;
        }
        for file in self.cache.evict(limit.saturating_sub(bytes)) {
            self.files.reap(&file);
        }
        self.cache.used_bytes() + bytes <= limit
    }

    /// Copies what is valid in the cache of `range` to a reader; returns the parts that are not
    /// (`PageCache::read_valid`).
    pub(crate) fn copy_valid(&self, file: &File, range: ByteRange, into: &mut [u8]) -> Vec<ByteRange> {
        let gaps = self.cache.read_valid(file, range, into);
        self.stats.moved(Count::CopiedOut, range.len() - gaps.iter().map(ByteRange::len).sum::<u64>());
        gaps
    }

    /// The job for which a file is opened.
    pub(crate) fn job_of(&self, job: Option<&JobName>) -> Arc<Job> {
        let job = job.or(self.own_job.as_ref()).filter(|_| self.tunables.on(Knob::Jobs));
        self.jobs.opened(self, job)
    }

    /// Runs `task` on the I/O half. Refused, hence dropped, once the client has stopped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _ = self.queue.push(Item::Task(Box::pin(task)));
    }

    /// Now, for a question to a server.
    pub(crate) fn moment(&self) -> Moment {
        Moment::now(self.company.rule())
    }

    /// Sends a request; the answer's contention bit is returned beside the result.
    pub(crate) fn send(
        &self,
        lane: Lane,
        target: TargetId,
        cred: &Cred,
        op: Request,
        payload: Option<Buf>,
        pad: usize,
    ) -> impl Future<Output = Result<(Answer, Option<Buf>)>> + Send + use<> {
        self.send_call(lane, Call { target, cred: cred.clone(), op }, payload, pad, false)
    }

    /// Sends what the server of `target` has to hear for as long as the session lasts: that something is given back. It
    /// is not given up where that server cannot be reached for long; an error means that the session, or the mount, has
    /// ended.
    pub(crate) fn insist(
        &self,
        lane: Lane,
        target: TargetId,
        op: Request,
    ) -> impl Future<Output = Result<(Answer, Option<Buf>)>> + Send + use<> {
        self.send_call(lane, Call { target, cred: Cred::root(), op }, None, 0, true)
    }

    fn send_call(
        &self,
        lane: Lane,
        call: Call,
        payload: Option<Buf>,
        pad: usize,
        insist: bool,
    ) -> impl Future<Output = Result<(Answer, Option<Buf>)>> + Send + use<> {
        self.stats.count(Count::Calls);
        messages::note(&self.files, &call.op);
        let (answer, answered) = oneshot::channel();
        let out = Outgoing { lane, call, payload, pad, answer, deadline: None, insist };
        let queued = crate::coherence::sharing::check(self).and_then(|()| self.queue.push_call(out));
        async move {
            queued?;
            match answered.await {
                Ok(outcome) => outcome,
                Err(_) => Err(Errno::NotConnected),
            }
        }
    }

    /// Asks each server of the cluster something about itself, in the order of the map; one that does not answer soon
    /// is `TimedOut`.
    pub(crate) fn ask_servers(
        &self,
        cred: &Cred,
        op: &Request,
    ) -> impl Future<Output = Vec<Result<Reply>>> + Send + use<> {
        let first = |s: &ServerInfo| s.targets.first().copied();
        let mut targets: Vec<Option<TargetId>> = self.map.lock().servers.iter().map(first).collect();
        if targets.is_empty() {
            targets.push(Some(TargetId(0)));
        }
        let asked: Vec<_> = targets
            .into_iter()
            .map(|target| {
                self.stats.count(Count::Calls);
                let (answer, answered) = oneshot::channel();
                let reachable = target.ok_or(Errno::NxIo);
                let call = Call { target: target.unwrap_or_default(), cred: cred.clone(), op: op.clone() };
                let (lane, deadline) = (Lane::Normal, Some(SERVER_PATIENCE));
                let out = Outgoing { lane, call, payload: None, pad: 0, answer, deadline, insist: false };
                let queued = reachable.and_then(|_| self.queue.push(Item::Call(out)));
                async move {
                    queued?;
                    answered.await.unwrap_or(Err(Errno::NotConnected))?.0.result
                }
            })
            .collect();
        join_all(asked)
    }

    /// The lane of a request that does I/O: where the target locks for it, it may wait for others.
    pub(crate) fn lane(server_lock: bool) -> Lane {
        if server_lock { Lane::Locking } else { Lane::Normal }
    }

    /// As `call`, of a request for data of a file that the target locks for if `server_lock` says so.
    pub(crate) fn call_for_io(
        self: &Arc<Self>,
        file: &Arc<File>,
        target: TargetId,
        op: Request,
        server_lock: bool,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let sent = self.send(Core::lane(server_lock), target, &Cred::root(), op, None, 0);
        let (core, file) = (self.clone(), file.clone());
        async move {
            let (answer, _) = sent.await?;
            core.note_contention(&file, answer.contended);
            answer.result
        }
    }

    /// An ordinary request.
    pub(crate) fn call(
        &self,
        target: TargetId,
        cred: &Cred,
        op: Request,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let sent = self.send(Lane::Normal, target, cred, op, None, 0);
        async move { sent.await?.0.result }
    }
}

/// A reply of another kind than the request promises.
pub(crate) fn unexpected(reply: &Reply) -> Errno {
    tracing::error!(?reply, "a reply does not fit its request");
    Errno::Proto
}
