//! A reference server: plain maps and vectors, no disk, no threads. It checks the rules that a client must never
//! violate.

use amphi_env::Buf;
use amphi_types::{
    Advice, Attr, ByteRange, Errno, Ino, Kind, Layout, Name, ObjectId, Pattern, RangeSet, SetAttr, TargetId, TimeSet,
    Timespec, setting,
};
use amphi_wire::*;
use std::collections::BTreeMap;

pub(crate) struct Node {
    pub(crate) view: InodeView,
    pub(crate) parent: Ino,
    pub(crate) link: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Object {
    pub(crate) bytes: Vec<u8>,
    pub(crate) data: RangeSet,
}

/// The server of a whole cluster of `pool` targets.
pub(crate) struct Server {
    pub(crate) pool: u16,
    pub(crate) nodes: BTreeMap<Ino, Node>,
    pub(crate) names: BTreeMap<(Ino, Vec<u8>), Ino>,
    pub(crate) objects: BTreeMap<ObjectId, Object>,
    pub(crate) opens: BTreeMap<(Ino, bool, bool), i64>,
    pub(crate) locks: BTreeMap<u64, (ObjectId, LockMode)>,
    pub(crate) called_back: Vec<u64>,
    /// Every request's name, for counting.
    pub(crate) log: Vec<String>,
    /// Writes to refuse: for each of these offsets, one write at or after it is refused.
    pub(crate) refuse_writes: Vec<(u64, Errno)>,
    /// Bytes that cannot be read.
    pub(crate) damaged: Vec<ByteRange>,
    /// Files of which the next part in a batch has to be sent separately.
    pub(crate) alone: std::collections::BTreeSet<Ino>,
    pub(crate) contended: bool,
    /// Only requests of this name get that report.
    pub(crate) contended_only: Option<&'static str>,
    /// Blocks that its targets grant.
    pub(crate) grant_blocks: u64,
    /// The target has little space.
    pub(crate) is_tight: bool,
    /// Files whose locks other mounts hold: the next lock-ahead for each of them is refused once.
    pub(crate) kept_elsewhere: std::collections::BTreeSet<Ino>,
    /// Answers to batches of reads come without their payload, like repeated answers.
    pub(crate) loses_payloads: bool,
    /// Number of runs of data in an answer. It is small, so that the known part ends at every place.
    pub(crate) runs_max: usize,
    pub(crate) clock_ns: u64,
    pub(crate) file_locks: super::file_locks::Desk,
    /// The values set for its tunables.
    pub(crate) tuned: BTreeMap<String, String>,
    next: u64,
}

impl Server {
    pub(crate) fn new(pool: u16) -> Server {
        let mut server = Server {
            pool,
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            objects: BTreeMap::new(),
            opens: BTreeMap::new(),
            locks: BTreeMap::new(),
            called_back: Vec::new(),
            log: Vec::new(),
            refuse_writes: Vec::new(),
            damaged: Vec::new(),
            grant_blocks: u64::from(u32::MAX),
            is_tight: false,
            alone: Default::default(),
            contended: false,
            contended_only: None,
            kept_elsewhere: Default::default(),
            loses_payloads: false,
            runs_max: 3,
            clock_ns: 1_000_000_000,
            file_locks: Default::default(),
            tuned: BTreeMap::new(),
            next: 1,
        };
        let root = server.node(Ino::ROOT, Ino::ROOT, Kind::Dir, 0o755);
        server.nodes.insert(Ino::ROOT, root);
        server
    }

    fn now(&self) -> Timespec {
        Timespec::from_ns(self.clock_ns)
    }

    fn node(&self, ino: Ino, parent: Ino, kind: Kind, perm: u16) -> Node {
        let t = self.now();
        let attr = Attr {
            ino,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        };
        let layout = self.nodes.get(&parent).map_or(Layout::growing(self.pool), |p| p.view.layout);
        let advice = self.nodes.get(&parent).map_or(Advice::default(), |p| p.view.advice);
        let view = InodeView {
            attr,
            layout,
            advice,
            generation: 0,
            spread: false,
            xattrs: false,
            capability: false,
            acl: false,
            flags: Default::default(),
            sharded: false,
        };
        Node { view, parent, link: Vec::new(), xattrs: BTreeMap::new() }
    }

    /// The file's bytes as the objects have them.
    pub(crate) fn contents(&self, ino: Ino) -> Vec<u8> {
        let view = self.nodes[&ino].view;
        let mut bytes = vec![0; view.attr.size as usize];
        for (object, r) in view.layout.pieces(ino, ByteRange::new(0, view.attr.size)) {
            if let Some(o) = self.objects.get(&object) {
                for k in r.start..r.end.min(o.bytes.len() as u64) {
                    bytes[k as usize] = o.bytes[k as usize];
                }
            }
        }
        bytes
    }

    fn inode(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::NoEnt)
    }

    fn found(&self, dir: Ino, name: &Name) -> Result<Ino, Errno> {
        self.names.get(&(dir, name.as_bytes().to_vec())).copied().ok_or(Errno::NoEnt)
    }

    fn open(&mut self, ino: Ino, a: Access) {
        *self.opens.entry((ino, a.read, a.write)).or_default() += 1;
    }

    /// Carries a request out.
    pub(crate) fn handle(&mut self, call: Call, payload: Option<Buf>) -> (Answer, Option<Buf>) {
        let text = format!("{:?}", call.op);
        let name = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_string();
        let told = self.contended && self.contended_only.is_none_or(|only| only == name);
        self.log.push(name);
        self.clock_ns += 1000;
        let mut out = None;
        let parts = match &call.op {
            Request::WriteBatch { parts } => Some(parts.len() as u16),
            Request::ReadBatch { parts, .. } => Some(parts.len() as u16),
            _ => None,
        };
        let result = self.execute(call, payload, &mut out);
        let grant = Some(Box::new(Grant { blocks: Some(self.grant_blocks), kept: self.clock_ns, limits: Vec::new() }));
        let contended = told && parts.is_none();
        let places = (0..parts.unwrap_or(0)).filter(|_| told).collect();
        let contended_parts = Some(Box::new(ContendedParts { places }));
        (Answer { contended, contended_parts, grant, ..Answer::of(result) }, out)
    }

    fn execute(&mut self, call: Call, payload: Option<Buf>, out: &mut Option<Buf>) -> Result<Reply, Errno> {
        let right_target = |ino: Ino| assert_eq!(call.target, ino.target(), "inode requests go to the owner");
        Ok(match call.op {
            Request::Lookup { dir, name } => Reply::Inode(self.nodes[&self.found(dir, &name)?].view),
            Request::FileLockSet { lock, number, wait } => {
                right_target(lock.ino);
                self.file_locks.set(super::file_locks::US, &lock, number, wait)?
            }
            Request::FileLockCancel { lock, number } => self.file_locks.cancel(&lock, number),
            Request::FileLockUnlock { ino, owner, range } => {
                right_target(ino);
                self.file_locks.unlock(super::file_locks::US, ino, owner, range)?
            }
            Request::FileLockTest { lock, .. } => self.file_locks.test(&lock)?,
            Request::FileLockClosed { ino, .. } => {
                right_target(ino);
                Reply::Done
            }
            Request::Parent { dir } => Reply::Ino(self.inode(dir)?.parent),
            Request::Shards { .. } => Reply::Shards(Vec::new()),
            Request::SetShards { .. } => return Err(Errno::NotSupported),
            Request::GetAttr { ino } | Request::GetAttrNow { ino } => {
                right_target(ino);
                Reply::Inode(self.inode(ino)?.view)
            }
            Request::SetAttr { ino, set } => {
                right_target(ino);
                Reply::Inode(self.set_attr(ino, set)?)
            }
            Request::Make { dir, name, make, perm, umask } => {
                let perm = perm & !umask;
                if let Ok(ino) = self.found(dir, &name) {
                    let Make::File { open, exclusive: false } = make else { return Err(Errno::Exist) };
                    open.into_iter().for_each(|a| self.open(ino, a));
                    return Ok(Reply::Made { inode: self.nodes[&ino].view, created: false, lock: None });
                }
                let ino = self.make(dir, &make, perm);
                self.names.insert((dir, name.as_bytes().to_vec()), ino);
                let writes = matches!(make, Make::File { open: Some(access), .. } if access.write);
                let lock = writes.then(|| {
                    self.next += 1;
                    self.locks.insert(self.next, (ObjectId { ino, stripe: 0 }, LockMode::Write));
                    self.next
                });
                Reply::Made { inode: self.nodes[&ino].view, created: true, lock }
            }
            Request::MakeTmp { dir, perm, umask, open } => {
                let perm = perm & !umask;
                let ino = self.make(dir, &Make::File { open: Some(open), exclusive: true }, perm);
                Reply::Made { inode: self.nodes[&ino].view, created: true, lock: None }
            }
            Request::Link { ino, dir, name } => {
                self.names.insert((dir, name.as_bytes().to_vec()), ino);
                Reply::Inode(self.inode(ino)?.view)
            }
            Request::Unlink { dir, name } | Request::RmDir { dir, name } => {
                let ino = self.found(dir, &name)?;
                self.names.remove(&(dir, name.as_bytes().to_vec()));
                if !self.opens.iter().any(|(k, n)| k.0 == ino && *n > 0) {
                    self.nodes.remove(&ino);
                }
                let named = self.names.values().any(|i| *i == ino);
                Reply::Removed { last_name_of: (!named).then_some(ino) }
            }
            Request::Rename { from, from_name, to, to_name, mode } => {
                let ino = self.found(from, &from_name)?;
                if mode == RenameMode::NoReplace && self.found(to, &to_name).is_ok() {
                    return Err(Errno::Exist);
                }
                self.names.remove(&(from, from_name.as_bytes().to_vec()));
                let replaced = self.names.insert((to, to_name.as_bytes().to_vec()), ino);
                let named = |ino: &Ino| self.names.values().any(|i| i == ino);
                Reply::Removed { last_name_of: replaced.filter(|ino| !named(ino)) }
            }
            Request::ReadLink { ino } => Reply::Bytes(self.inode(ino)?.link.clone()),
            Request::ReadDir { dir, cookie, max, plus } => {
                // Cookies: rank of the name, from 3, so that `.` and `..` have room.
                let all: Vec<_> = self.names.iter().filter(|((d, _), _)| *d == dir).collect();
                let entry = |(i, ((_, name), ino)): (usize, (&(Ino, Vec<u8>), &Ino))| DirEntry {
                    name: Name::new(name.clone()).unwrap(),
                    cookie: i as u64 + 3,
                    ino: *ino,
                    kind: self.nodes[ino].view.attr.kind,
                    inode: plus.then(|| self.nodes[ino].view),
                    tokens: Default::default(),
                };
                let entries = all.iter().map(|(k, v)| (*k, *v)).enumerate().map(entry);
                let entries: Vec<_> = entries_after(entries, cookie);
                let end = entries.len() <= max as usize;
                let parent = (cookie == 0).then_some(Ino::ROOT);
                Reply::Entries { parent, entries: entries.into_iter().take(max as usize).collect(), end }
            }
            Request::Open { ino, access, .. } => {
                let view = self.inode(ino)?.view;
                self.open(ino, access);
                Reply::Inode(view)
            }
            Request::Close { ino, access, .. } => {
                let n = self.opens.entry((ino, access.read, access.write)).or_default();
                *n -= 1;
                assert!(*n >= 0, "closed more often than opened");
                Reply::Done
            }
            Request::CloseBatch { closes } => {
                assert!(closes.len() > 1 && closes.len() <= BATCH_PARTS_MAX);
                for (ino, access, atime) in closes {
                    let op = Request::Close { ino, access, atime };
                    self.execute(Call { op, target: call.target, cred: call.cred.clone() }, None, out)?;
                }
                Reply::Done
            }
            Request::Discard { ino, opens } => {
                let open: i64 = self.opens.iter().filter(|(k, _)| k.0 == ino).map(|(_, n)| *n).sum();
                if self.names.values().any(|i| *i == ino) || open != i64::from(opens) {
                    return Err(Errno::Busy);
                }
                self.opens.retain(|k, _| k.0 != ino);
                self.nodes.remove(&ino);
                Reply::Done
            }
            Request::GetXattr { ino, name } => {
                Reply::Bytes(self.inode(ino)?.xattrs.get(&name).cloned().ok_or(Errno::NoData)?)
            }
            Request::ListXattr { ino } => {
                let names = self.inode(ino)?.xattrs.keys();
                Reply::Bytes(names.flat_map(|n| n.iter().copied().chain([0])).collect())
            }
            Request::SetXattr { ino, name, value, .. } => {
                self.inode(ino)?.xattrs.insert(name, value);
                Reply::Done
            }
            Request::RemoveXattr { ino, name } => {
                self.inode(ino)?.xattrs.remove(&name).ok_or(Errno::NoData)?;
                Reply::Done
            }
            Request::SetLayout { ino, layout, advice } => {
                let node = self.inode(ino)?;
                if layout.is_some() && node.view.attr.kind == Kind::File && node.view.attr.size > 0 {
                    return Err(Errno::Busy);
                }
                node.view.layout = layout.unwrap_or(node.view.layout);
                let now = node.view.advice;
                node.view.advice = advice.map_or(now, |asked| now.with(asked));
                Reply::Inode(node.view)
            }
            Request::Grant { .. } => Reply::Done,
            Request::StatFs => Reply::StatFs(TargetSpace { blocks: 100, free: 50, inodes: 3, inodes_free: 7 }),
            Request::Read { object, range, server_lock, .. } => {
                self.check_object(call.target, object, range);
                assert!(server_lock || self.locks.values().any(|(o, _)| *o == object), "a fill needs a lock");
                self.inode(object.ino)?;
                if self.damaged.iter().any(|bad| bad.overlaps(&range)) {
                    return Err(Errno::Io);
                }
                let bytes = self.objects.get(&object).map_or(&[][..], |o| &o.bytes);
                let end = (range.end as usize).min(bytes.len());
                let start = (range.start as usize).min(end);
                let mut buf = Buf::padded((range.start % 4096) as usize, end - start);
                buf.copy_from_slice(&bytes[start..end]);
                *out = Some(buf);
                Reply::Data
            }
            Request::Write { object, offset, generation, mtime, server_lock, .. } => {
                let data = payload.expect("a write has a payload");
                let range = ByteRange::at(offset, data.len() as u64);
                self.check_object(call.target, object, range);
                let locked = self.locks.values().any(|(o, m)| *o == object && *m == LockMode::Write);
                assert!(server_lock || locked, "write-back needs a write lock");
                if let Some(i) = self.refuse_writes.iter().position(|(from, _)| offset >= *from) {
                    return Err(self.refuse_writes.remove(i).1);
                }
                let node = self.inode(object.ino)?;
                assert!(object.stripe == 0 || node.view.spread, "spread comes before data beyond stripe 0");
                if generation < node.view.generation {
                    return Err(Errno::Stale);
                }
                node.view.attr.size = node.view.attr.size.max(range.end);
                node.view.attr.mtime = node.view.attr.mtime.max(mtime);
                let o = self.objects.entry(object).or_default();
                if o.bytes.len() < range.end as usize {
                    o.bytes.resize(range.end as usize, 0);
                }
                o.bytes[range.start as usize..range.end as usize].copy_from_slice(&data);
                o.data.insert(range);
                Reply::Written { roomy: !self.is_tight }
            }
            Request::WriteBatch { parts } => {
                let mut data = payload.expect("a batch has a payload");
                assert!(parts.len() > 1 && parts.len() <= BATCH_PARTS_MAX && data.len() <= BATCH_BYTES_MAX);
                for (a, b) in parts.iter().zip(&parts[1..]) {
                    let behind = a.range().end.next_multiple_of(4096) <= b.offset / 4096 * 4096;
                    assert!(a.object < b.object || (a.object == b.object && behind), "{a:?} {b:?}");
                }
                let results = parts.iter().map(|part| {
                    let bytes = data.split_to(part.len as usize);
                    if self.alone.remove(&part.object.ino) {
                        return Err(Errno::Again);
                    }
                    let BatchPart { object, offset, generation, mtime, .. } = *part;
                    let (server_lock, kill_suidgid) = (false, false);
                    let op = Request::Write {
                        object,
                        offset,
                        generation,
                        mtime,
                        server_lock,
                        kill_suidgid,
                        checksums: Default::default(),
                        cover: Default::default(),
                    };
                    self.execute(Call { op, target: call.target, cred: call.cred.clone() }, Some(bytes), out).map(drop)
                });
                let results = results.collect();
                assert!(data.is_empty(), "the payload is as long as its parts");
                Reply::WrittenBatch(results)
            }
            Request::ReadBatch { dir, parts, bytes_max, .. } => {
                right_target(dir);
                assert!(!parts.is_empty() && parts.len() <= BATCH_PARTS_MAX);
                let mut payload = Vec::new();
                let files =
                    parts.iter().map(|p| self.open_ahead(dir, p, &call.cred, bytes_max, &mut payload)).collect();
                *out = (!self.loses_payloads).then(|| Buf::copy_of(&payload));
                Reply::FilesAhead(files)
            }
            Request::Punch { object, range, .. } => {
                let o = self.objects.entry(object).or_default();
                let end = (range.end as usize).min(o.bytes.len());
                if (range.start as usize) < end {
                    o.bytes[range.start as usize..end].fill(0);
                }
                o.data.remove(range);
                Reply::Done
            }
            Request::Allocate { object, range, .. } => {
                self.check_object(call.target, object, range);
                Reply::Done
            }
            Request::DataMap { object, offset, runs_max } => {
                let mut blocks = RangeSet::new();
                let data = self.objects.get(&object).map(|o| o.data.clone()).unwrap_or_default();
                data.within(ByteRange::new(offset, u64::MAX)).for_each(|run| blocks.insert(run.align_out(4096)));
                let runs_max = (runs_max as usize).min(self.runs_max);
                let known_to = blocks.iter().nth(runs_max).map(|run| run.start);
                Reply::DataMap { runs: blocks.iter().take(runs_max).collect(), known_to }
            }
            Request::Extents { object, .. } => {
                let bytes = self.objects.get(&object).map_or(0, |o| o.data.iter().map(|run| run.len()).sum());
                Reply::Extents { total: 0, bytes, extents: Vec::new(), more: false, accepted: 0, unsynced: 7 }
            }
            Request::Sync { .. }
            | Request::Goodbye
            | Request::Revoked { .. }
            | Request::DirectoryShown { .. }
            | Request::Charged { .. }
            | Request::Account { .. }
            | Request::Accounts { .. }
            | Request::SetLimits { .. }
            | Request::NewProject
            | Request::WriteFailedKnown { .. }
            | Request::CompanyKnown { .. }
            | Request::CompanyKept { .. } => Reply::Done,
            Request::Map | Request::Join { .. } | Request::Ask { .. } => return Err(Errno::Proto),
            Request::Keys { .. } | Request::Evict { .. } | Request::RepresentFor { .. } => return Err(Errno::Perm),
            Request::RepresentFileLocks { .. } => return Err(Errno::Proto),
            Request::Spread { ino } => {
                right_target(ino);
                let node = self.inode(ino)?;
                node.view.spread = true;
                Reply::Inode(node.view)
            }
            Request::LockEnqueue { object, mode, .. } => {
                self.next += 1;
                self.locks.insert(self.next, (object, mode));
                Reply::Locked { lock: self.next, range: ByteRange::ALL }
            }
            Request::GroupLock { object, .. } => {
                self.next += 1;
                self.locks.insert(self.next, (object, LockMode::Write));
                Reply::Locked { lock: self.next, range: ByteRange::ALL }
            }
            Request::GroupWanted { .. } => Reply::GroupWanted(false),
            Request::LockCancel { locks } => {
                for id in locks {
                    assert!(self.locks.remove(&id).is_some(), "a lock is cancelled once");
                    self.called_back.retain(|l| *l != id);
                }
                Reply::Done
            }
            Request::Tunables { pattern, value } => {
                let names = ["server.x", "server.spin_us"].into_iter().filter(|n| setting::glob(&pattern, n));
                let names: Vec<&str> = names.collect();
                if names.is_empty() {
                    return Err(Errno::NoEnt);
                }
                match value {
                    Some(value) if value == "13" => return Err(Errno::Inval),
                    Some(value) => names.iter().for_each(|n| drop(self.tuned.insert(n.to_string(), value.clone()))),
                    None => {}
                }
                let now = |n: &str| self.tuned.get(n).map_or("1".into(), String::clone);
                Reply::Tunables(names.into_iter().map(|n| (n.into(), now(n), "help".into())).collect())
            }
            Request::Counters { .. } => Reply::Counters(vec![("requests".into(), 3)]),
            Request::Status => Reply::Status {
                uptime_s: 1,
                cluster: 0xab,
                targets: Vec::new(),
                sessions: Vec::new(),
                map_epoch: 1,
                servers: Vec::new(),
            },
            Request::LockKept { .. } | Request::GlimpseReply { .. } | Request::Represent { .. } => Reply::Done,
            Request::PagesLeft { .. } => Reply::PagesLeft(1),
            Request::PagesTaken { .. } => Reply::Done,
            Request::PagesRead { object, range, .. } => {
                let op = Request::Read { object, range, server_lock: true, advice: Default::default() };
                self.execute(Call { op, target: call.target, cred: call.cred }, payload, out)?
            }
            Request::PagesWrite { object, offset, generation, mtime, .. } => {
                let op = Request::Write {
                    object,
                    offset,
                    generation,
                    mtime,
                    server_lock: true,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                self.execute(Call { op, target: call.target, cred: call.cred }, payload, out)?
            }
        })
    }

    fn open_ahead(
        &mut self,
        dir: Ino,
        part: &ReadPart,
        cred: &amphi_types::Cred,
        bytes_max: u32,
        payload: &mut Vec<u8>,
    ) -> Result<FileAhead, Errno> {
        let ino = self.found(dir, &part.name)?;
        let inode = self.inode(ino)?.view;
        assert_eq!(inode.attr.kind, Kind::File, "files alone are read ahead");
        if ino != part.ino {
            return Err(Errno::Stale);
        }
        if cred.uid != 0 && inode.attr.perm & 0o004 == 0 {
            return Err(Errno::Access);
        }
        if inode.attr.size > u64::from(bytes_max) {
            return Err(Errno::FileTooBig);
        }
        if self.kept_elsewhere.remove(&ino) {
            return Err(Errno::Again);
        }
        self.open(ino, Access { read: true, write: false });
        let (mut lock, mut bytes) = (None, None);
        if part.data {
            let object = ObjectId { ino, stripe: 0 };
            self.next += 1;
            self.locks.insert(self.next, (object, LockMode::Read));
            lock = Some((self.next, ByteRange::ALL));
            let end = inode.attr.size as usize;
            let known = self.objects.get(&object).map_or(&[][..], |o| &o.bytes[..end.min(o.bytes.len())]);
            payload.extend_from_slice(known);
            bytes = Some(known.len() as u32);
        }
        Ok(FileAhead { inode, tokens: Default::default(), lock, bytes })
    }

    fn check_object(&self, target: TargetId, object: ObjectId, range: ByteRange) {
        let Some(node) = self.nodes.get(&object.ino) else { return };
        assert_eq!(target, node.view.layout.target(object.ino, object.stripe), "objects are on their targets");
        let pieces: Vec<_> = node.view.layout.pieces(object.ino, range).collect();
        assert_eq!(pieces, [(object, range)], "a data request stays within one piece of one object");
    }

    fn make(&mut self, dir: Ino, make: &Make, perm: u16) -> Ino {
        self.next += 1;
        let (target, kind) = match make {
            Make::Dir => (amphi_types::layout::directory_target(dir, &self.next.to_le_bytes(), self.pool), Kind::Dir),
            Make::File { .. } => (dir.target(), Kind::File),
            Make::Symlink(_) => (dir.target(), Kind::Symlink),
            Make::Node { kind, .. } => (dir.target(), *kind),
        };
        let ino = Ino::new(target, self.next);
        let mut node = self.node(ino, dir, kind, perm);
        if let Make::Symlink(to) = make {
            node.link = to.clone();
        }
        self.nodes.insert(ino, node);
        if let Make::File { open: Some(a), .. } = make {
            self.open(ino, *a);
        }
        ino
    }

    fn set_attr(&mut self, ino: Ino, set: SetAttr) -> Result<InodeView, Errno> {
        let now = self.now();
        let time = |t: TimeSet| match t {
            TimeSet::Now => now,
            TimeSet::At(t) => t,
        };
        let node = self.inode(ino)?;
        let attr = &mut node.view.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        if set.kill_suidgid {
            attr.perm &= !0o6000;
        }
        attr.ctime = now;
        if let Some(size) = set.size {
            (attr.size, attr.mtime) = (size, now);
            node.view.generation += 1;
        }
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        let view = node.view;
        if let Some(size) = set.size {
            for (_, o) in self.objects.range_mut(ObjectId { ino, stripe: 0 }..=ObjectId { ino, stripe: u32::MAX }) {
                o.bytes.truncate(size as usize);
                o.data.remove(ByteRange::new(size, u64::MAX));
            }
        }
        Ok(view)
    }

    /// A file that exists without having been made by a client.
    pub(crate) fn plant(&mut self, name: &str, bytes: &[u8], pattern: Pattern) -> Ino {
        let ino = self.make(Ino::ROOT, &Make::File { open: None, exclusive: true }, 0o644);
        self.names.insert((Ino::ROOT, name.as_bytes().to_vec()), ino);
        let node = self.nodes.get_mut(&ino).unwrap();
        node.view.layout.pattern = pattern;
        node.view.attr.size = bytes.len() as u64;
        let layout = node.view.layout;
        for (object, r) in layout.pieces(ino, ByteRange::new(0, bytes.len() as u64)) {
            let o = self.objects.entry(object).or_default();
            o.bytes.resize(r.end as usize, 0);
            o.bytes[r.start as usize..r.end as usize].copy_from_slice(&bytes[r.start as usize..r.end as usize]);
            o.data.insert(r);
        }
        ino
    }
}

fn entries_after(entries: impl IntoIterator<Item = DirEntry>, cookie: u64) -> Vec<DirEntry> {
    entries.into_iter().filter(|e| e.cookie > cookie).collect()
}
