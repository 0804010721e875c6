//! `Mount`: the single instances of a mount, one service of each floor, shared by the callers' threads and the I/O
//! half.
//!
//! Owns: sending a request, room in the cache, the end of the mount. Does not own: what the services do (their floors),
//! operations (`ops`), the public interface (`client`), the connection (`io`).

use crate::api::{ClientConfig, Clock, Ctx, OpenFlags, ReadText};
use crate::cache::PageCache;
use crate::conn::cluster::Cluster;
use crate::conn::messages;
use crate::conn::pauses::Pauses;
use crate::conn::pending::Keeper;
use crate::conn::queue::{Item, Outgoing, Queue};
use crate::inode::{AskedAt, Inode, InodeTable, OpenFile};
use crate::policy::{Policy, growth};
use crate::tables::coherence::Coherence;
use crate::tables::prefetch::Prefetch;
use crate::tables::writeback::{FLIGHT_PARTS_MAX, WriteBack};
use crate::telemetry::calls::{self, Wait};
use crate::telemetry::jobs::{Job, JobName, Jobs};
use crate::telemetry::record::Recorder;
use crate::telemetry::stats::{Count, FileEvent, Stats};
use crate::telemetry::tunables::{Tunable, Tunables};
use amphi_env::Buf;
use amphi_types::{ByteRange, Cred, Errno, Result, TargetId, Timespec};
use amphi_wire::{Answer, Call, Lane, Reply, Request, ServerInfo};
use futures_channel::oneshot;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a server may take to report its state.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);

/// State that both halves share: a few services, each of which belongs to the layer that uses it.
pub(crate) struct Mount {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Tunables,
    pub(crate) stats: Stats,
    pub(crate) jobs: Jobs,
    pub(crate) policy: Policy,
    pub(crate) queue: Queue,
    pub(crate) cluster: Cluster,
    pub(crate) cache: PageCache,
    pub(crate) files: InodeTable,
    pub(crate) coherence: Coherence,
    pub(crate) writeback: WriteBack,
    pub(crate) prefetch: Prefetch,
    pub(crate) panel: Panel,
    pub(crate) host: Host,
    pub(crate) life: Life,
}

/// Properties of the machine that a mount uses.
pub(crate) struct Host {
    /// The user who may change tunables, in addition to root.
    pub(crate) owner_uid: u32,
    /// Reads a file of the machine, for memory groups.
    pub(crate) read_text: Option<ReadText>,
    /// Most connections to a server.
    pub(crate) links_max: u16,
    /// The time of the last tick. It is cheap to read and at most a second old.
    pub(crate) coarse_ns: AtomicU64,
}

/// The state of the control attributes: the texts that they have shown, and the recordings that they have begun.
pub(crate) struct Panel {
    pub(crate) recorder: Arc<Recorder>,
    /// The last thing that a control attribute complained about.
    pub(crate) complaint: Mutex<String>,
    /// The statuses that were shown last, by calling process. A process that reads a long status in parts continues in
    /// its own.
    pub(crate) shown_status: Mutex<VecDeque<(u32, Vec<u8>)>>,
}

/// How far the end of the mount has progressed.
pub(crate) struct Life {
    pub(crate) stopping: AtomicBool,
    /// All dirty bytes were written back after `stopping` was set.
    pub(crate) drained: AtomicBool,
    pub(crate) stopped: AtomicBool,
    /// The reason why the end of the mount was not in order.
    pub(crate) lost_at_end: Mutex<Option<Errno>>,
    pub(crate) pauses: Pauses,
}

/// Write-back may have this part of the cache's size under way in addition to the cache; it is also the most by which
/// one stream is read ahead.
const BESIDE_PART: u64 = 8;
/// Part of the bounds on dirty bytes, and on those under way, that targets which cannot be reached have.
const AWAY_PART: u64 = 2;
/// A stream may always be read ahead by this many bytes.
const WINDOW_MIN_BYTES: u64 = 1 << 20;

impl Keeper for Mount {
    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn spin(&self) -> Duration {
        Duration::from_micros(self.tunables.spin_us())
    }

    fn keep(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let _ = self.queue.push(Item::Task(task));
    }
}

impl Mount {
    /// The state of a mount that has not connected yet.
    pub(crate) fn new(config: ClientConfig) -> Mount {
        let tunables = Tunables::new();
        let read = config.read_text.clone();
        let memory = read.as_ref().and_then(|read| amphi_env::memory_groups::cache_bytes(&**read));
        if let Some(bytes) = config.cache_bytes.or(memory) {
            tunables.put(Tunable::CacheBytes, bytes);
        }
        let mut complaint = String::new();
        for (name, value) in &config.tunables {
            if let Err(text) = tunables.set(name, value) {
                tracing::warn!("{text}");
                complaint = text;
            }
        }
        let writeback = WriteBack::default();
        Mount {
            stats: Stats::new(config.clock.now_ns()),
            jobs: Jobs::new(config.job, config.job_variables),
            policy: Policy { commit: config.commit, ..Policy::default() },
            queue: Queue::default(),
            cluster: Cluster::default(),
            cache: PageCache::above(writeback.grants.clone()),
            files: InodeTable::new(),
            coherence: Coherence::new(&tunables),
            writeback,
            prefetch: Prefetch::default(),
            panel: Panel { recorder: Arc::default(), complaint: Mutex::new(complaint), shown_status: Mutex::default() },
            host: Host {
                owner_uid: config.owner_uid,
                read_text: config.read_text,
                links_max: config.links_max,
                coarse_ns: AtomicU64::new(config.clock.now_ns()),
            },
            life: Life {
                stopping: AtomicBool::new(false),
                drained: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
                lost_at_end: Mutex::default(),
                pauses: Pauses::new(config.clock.clone()),
            },
            clock: config.clock,
            tunables,
        }
    }

    pub(crate) fn wall(&self) -> Timespec {
        self.clock.wall()
    }

    /// Remembers for a while that a server called the file contended.
    pub(crate) fn note_contention(&self, file: &Inode, contended: bool) {
        if contended {
            self.stats.count(Count::ContendedTold);
            file.stats.count(FileEvent::Contended);
            let until = self.clock.now_ns() + self.tunables.get(Tunable::ContendedMs) * 1_000_000;
            file.locks.contended_until_ns.store(until, Ordering::Relaxed);
        }
    }

    /// Returns whether a write to the file may land after it has returned, without a lock.
    pub(crate) fn is_commit(&self, file: &Inode) -> bool {
        self.policy.commit || file.is_commit()
    }

    /// Bytes that write-back may have under way. These bytes are copies in addition to the cache, so they are bounded
    /// by a part of its size.
    pub(crate) fn flight_max(&self) -> u64 {
        self.tunables.get(Tunable::FlightBytes).min(self.tunables.get(Tunable::CacheBytes) / BESIDE_PART)
    }

    /// Returns whether write-back may send nothing more, because enough is under way, in bytes or in runs. What waits
    /// for targets that cannot be reached does not count, up to as much again.
    pub(crate) fn flight_is_full(&self) -> bool {
        let (max, away) = (self.flight_max(), self.writeback.loads.away());
        let bytes = self.writeback.flight_bytes.load(Ordering::SeqCst);
        bytes.saturating_sub(away.flight_bytes.min(max)) >= max || self.reachable_parts() >= FLIGHT_PARTS_MAX
    }

    fn reachable_parts(&self) -> usize {
        let away = self.writeback.loads.away().flight_parts.min(FLIGHT_PARTS_MAX);
        self.writeback.flight_parts.load(Ordering::SeqCst).saturating_sub(away)
    }

    /// Returns whether write-back may send nothing more to targets that cannot be reached, because enough waits for
    /// them.
    pub(crate) fn away_is_full(&self) -> bool {
        let away = self.writeback.loads.away();
        away.flight_bytes >= self.flight_max() / AWAY_PART || away.flight_parts >= FLIGHT_PARTS_MAX / AWAY_PART as usize
    }

    /// Returns whether write-back may send nothing more to this target, because it is one of those.
    pub(crate) fn is_held_back(&self, target: TargetId) -> bool {
        self.writeback.loads.is_away(target) && self.away_is_full()
    }

    /// Returns whether a target of `range` cannot be reached.
    pub(crate) fn is_away(&self, file: &Inode, range: ByteRange) -> bool {
        let loads = &self.writeback.loads;
        let (layout, ino) = (file.layout(), file.ino);
        loads.any_away()
            && layout.pieces(ino, range).any(|(object, _)| loads.is_away(layout.target(ino, object.stripe)))
    }

    /// Returns whether a direct write of `range` may not return early, because too much memory is under way.
    pub(crate) fn pipe_is_full(&self, file: &Inode, range: ByteRange, memory: u64) -> bool {
        let (max, away) = (self.flight_max(), self.writeback.loads.away());
        let away = away.flight_bytes + away.piped_bytes;
        let all =
            self.writeback.piped_bytes.load(Ordering::SeqCst) + self.writeback.flight_bytes.load(Ordering::SeqCst);
        let (under_way, max) = match self.is_away(file, range) {
            true => (away, max / AWAY_PART),
            false => (all.saturating_sub(away.min(max)), max),
        };
        under_way > 0 && under_way + memory > max
    }

    /// Returns whether enough may be sent that a search for all dirty bytes pays.
    pub(crate) fn flight_has_room(&self) -> bool {
        self.reachable_parts() <= FLIGHT_PARTS_MAX / 2
    }

    /// Returns whether nothing is under way but to targets that cannot be reached.
    pub(crate) fn flight_is_over(&self) -> bool {
        self.writeback.flight_bytes.load(Ordering::SeqCst) <= self.writeback.loads.away().flight_bytes
    }

    /// Returns whether streams are read ahead at all.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.tunables.get(Tunable::ReadAheadBytes) > 0
    }

    /// Bytes that one stream may be read ahead. This is less if more is under way for all streams, because these bytes
    /// are in addition to the cache.
    pub(crate) fn window_max(&self) -> u64 {
        let part = self.tunables.get(Tunable::CacheBytes) / BESIDE_PART;
        let left = (2 * part).saturating_sub(self.prefetch.fill_bytes.load(Ordering::SeqCst));
        self.tunables.get(Tunable::ReadAheadBytes).min(part).min(left.max(WINDOW_MIN_BYTES))
    }

    /// Bytes that may be dirty.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.cache_bytes() / 100 * self.tunables.get(Tunable::DirtyPercent)
    }

    /// Returns how much memory the cache may take now.
    pub(crate) fn cache_bytes(&self) -> u64 {
        let most = self.tunables.get(Tunable::CacheBytes);
        if !self.policy.growth.is_dear() {
            return most;
        }
        growth::bound(growth::Memory {
            most,
            first: self.first_cache_bytes(),
            used: self.cache.used_bytes(),
            waiting: amphi_env::buf::waiting_bytes() as u64,
            returned: self.cache.returned_bytes(),
        })
    }

    /// The memory that the cache starts with.
    pub(crate) fn first_cache_bytes(&self) -> u64 {
        self.tunables.get(Tunable::PopulateBytes).min(self.tunables.get(Tunable::CacheBytes) / 4)
    }

    /// Returns whether writers of `range` have to wait for write-back. Dirty bytes of targets that cannot be reached
    /// have a share of their own, and are left out of the others up to that share.
    pub(crate) fn dirty_is_full(&self, file: &Inode, range: ByteRange) -> bool {
        let (limit, bytes) = (self.dirty_max(), range.len());
        // A request larger than the limit is admitted when no other one is.
        let is_full = |dirty: u64, limit: u64| dirty > 0 && dirty + bytes > limit;
        let dirty = self.cache.dirty_bytes();
        if !self.writeback.loads.any_away() {
            return is_full(dirty, limit);
        }
        let (share, targets) = (limit / AWAY_PART, self.writeback.loads.away_targets());
        let away: u64 = targets.iter().map(|target| self.writeback.grants.used_bytes(*target)).sum();
        if self.is_away(file, range) {
            return is_full(away.min(dirty), share) || is_full(dirty, limit + share);
        }
        is_full(dirty.saturating_sub(away.min(share)), limit)
    }

    /// Returns whether at least half of the bytes that may be dirty are dirty.
    pub(crate) fn dirty_is_high(&self) -> bool {
        self.cache.dirty_bytes() > self.dirty_max() / 2
    }

    /// Makes room for `bytes` more in the cache. Returns whether there is enough room now.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let most = self.tunables.get(Tunable::CacheBytes);
        self.cache.set_limit(most);
        let limit = if self.cache.used_bytes() + bytes <= self.first_cache_bytes() { most } else { self.cache_bytes() };
        if self.cache.used_bytes() + bytes <= limit {
            return true;
        }
        for file in self.cache.evict(limit.saturating_sub(bytes)) {
            self.files.reap(&file);
        }
        self.cache.used_bytes() + bytes <= limit
    }

    /// Copies the bytes of `range` that are valid in the cache to a reader. Returns the parts that are not valid
    /// (`PageCache::read_valid`).
    pub(crate) fn copy_valid(&self, file: &Inode, range: ByteRange, into: &mut [u8]) -> Vec<ByteRange> {
        let gaps = self.cache.read_valid(file, range, into);
        self.stats.moved(Count::CopiedOut, range.len() - gaps.iter().map(ByteRange::len).sum::<u64>());
        gaps
    }

    /// All jobs, including the counts of files that are still open.
    pub(crate) fn booked_jobs(&self) -> &Jobs {
        self.files.all().iter().for_each(|file| file.stats.book());
        &self.jobs
    }

    /// The job for which a file is opened.
    pub(crate) fn job_of(&self, job: Option<&JobName>) -> Arc<Job> {
        let job = job.or(self.jobs.own.as_ref()).filter(|_| self.tunables.on(Tunable::Jobs));
        self.jobs.opened(&self.stats, job)
    }

    /// An open of `file`, made for `ctx`. `ahead`: the open was made ahead of a program, so its close waits for others
    /// with which to share a message.
    pub(crate) fn open_file(self: &Arc<Self>, file: Arc<Inode>, flags: OpenFlags, ctx: &Ctx, ahead: bool) -> OpenFile {
        let closer: Weak<Mount> = Arc::downgrade(self);
        OpenFile::new(closer, self.job_of(ctx.job.as_ref()), file, flags, ctx, ahead)
    }

    /// Runs `task` on the I/O half. Refused, hence dropped, once the client has stopped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _ = self.queue.push(Item::Task(Box::pin(task)));
    }

    /// Informs the front end that the conditions of a `Posting` have changed.
    pub(crate) fn postings_may_end(&self) {
        self.coherence.sharing.ring();
    }

    /// Now, for a question to a server.
    pub(crate) fn asked_at(&self) -> AskedAt {
        AskedAt::now(self.coherence.sharing.rule())
    }

    /// Sends a request. The result comes with the contention bit of the answer.
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

    /// Sends a message that returns something to the server of `target`, and that the server has to get as long as the
    /// session lasts. The message is not given up even if that server cannot be reached for a long time. An error means
    /// that the session, or the mount, has ended.
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
        let target = call.target;
        let (answer, answered) = oneshot::channel();
        let out = Outgoing { lane, call, payload, pad, answer, deadline: None, insist };
        let queued = self.coherence.sharing.check().and_then(|()| self.queue.push_call(out));
        let grants = self.writeback.grants.clone();
        let noted = calls::current().map(|_| (self.clock.clone(), self.clock.now_ns()));
        async move {
            queued?;
            let answered = answered.await;
            if let Some((clock, asked_ns)) = noted {
                calls::note_wait(Wait::Server, clock.now_ns().saturating_sub(asked_ns));
            }
            match answered {
                Ok(outcome) => {
                    if let Ok((Answer { grant: Some(grant), .. }, _)) = &outcome {
                        grants.limits.told(target, grant);
                    }
                    outcome
                }
                Err(_) => Err(Errno::NotConnected),
            }
        }
    }

    /// Sends each server of the cluster a request about itself, in the order of the map. A server that does not answer
    /// soon gives `TimedOut`.
    pub(crate) fn ask_servers(
        &self,
        cred: &Cred,
        op: &Request,
    ) -> impl Future<Output = Vec<Result<Reply>>> + Send + use<> {
        let first = |s: &ServerInfo| s.targets.first().copied();
        let mut targets: Vec<Option<TargetId>> = self.cluster.map.lock().servers.iter().map(first).collect();
        if targets.is_empty() {
            targets.push(Some(TargetId(0)));
        }
        join_all(targets.into_iter().map(|target| self.ask_server(target, cred, op)).collect::<Vec<_>>())
    }

    /// Asks the server of `target` something about itself; without an answer soon it is `TimedOut`.
    pub(crate) fn ask_server(
        &self,
        target: Option<TargetId>,
        cred: &Cred,
        op: &Request,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
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
    }

    /// The lane of an I/O request: a request for which the target takes locks may have to wait for others.
    pub(crate) fn lane(server_lock: bool) -> Lane {
        if server_lock { Lane::Locking } else { Lane::Normal }
    }

    /// Works as `call`, for a request for data of a file. With `server_lock` the target itself locks the bytes.
    pub(crate) fn call_for_io(
        self: &Arc<Self>,
        file: &Arc<Inode>,
        target: TargetId,
        op: Request,
        server_lock: bool,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let sent = self.send(Mount::lane(server_lock), target, &Cred::root(), op, None, 0);
        let (mount, file) = (self.clone(), file.clone());
        async move {
            let (answer, _) = sent.await?;
            mount.note_contention(&file, answer.contended);
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
