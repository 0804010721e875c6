//! The plan of a replay: what exists before, and the steps of each thread.
//!
//! Owns: going through the calls in the order in which they began, with a model of names, inodes and open files. Does
//! not own: which step waits for which (`order`).
//!
//! An object exists before the replay if calls found it and no call had made it: a name that a look-up found, an inode
//! that was opened, a name that was removed or renamed. Names that were never seen are numbers of inodes. Directories
//! that were never seen by name lie at the top.

mod order;
mod places;

use amphi_trace::{Call, Op, Trace, flags};
use order::Order;
pub(crate) use places::{NodeId, Place, Slot};
use std::collections::BTreeMap;

/// Most bytes of one call: more than any front end passes on at a time.
const CALL_MAX: u64 = 64 << 20;
/// Longest name of an entry, bytes.
const NAME_MAX: usize = 255;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    File,
    Dir,
}

/// A file or directory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    /// The node exists before the replay, under this path, with this many bytes.
    pub(crate) before: Option<Vec<u8>>,
    pub(crate) size: u64,
    /// Ranges that are read, either before anybody writes them or at any time.
    pub(crate) reads: Vec<(u64, u64)>,
    /// Some of the bytes may never have been written.
    pub(crate) holes: bool,
    /// Bytes were copied into the file, so they are those of another place.
    pub(crate) copied: bool,
    /// The path of the node at this moment of the plan.
    place: Option<Place>,
}

/// The action of a step. Paths are below the directory of the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Look {
        path: Vec<u8>,
    },
    Stat {
        slot: Slot,
    },
    Open {
        path: Vec<u8>,
        slot: Slot,
        flags: u32,
    },
    Create {
        path: Vec<u8>,
        slot: Slot,
        flags: u32,
    },
    Close {
        slot: Slot,
    },
    Read {
        slot: Slot,
        node: NodeId,
        offset: u64,
        len: u64,
        got: u64,
    },
    Write {
        slot: Slot,
        node: NodeId,
        offset: u64,
        len: u64,
    },
    Sync {
        slot: Slot,
        data_only: bool,
    },
    SetSize {
        path: Vec<u8>,
        slot: Option<Slot>,
        size: u64,
    },
    Touch {
        path: Vec<u8>,
    },
    Mkdir {
        path: Vec<u8>,
    },
    Mknod {
        path: Vec<u8>,
    },
    Symlink {
        path: Vec<u8>,
    },
    Readlink {
        path: Vec<u8>,
    },
    Unlink {
        path: Vec<u8>,
    },
    Rmdir {
        path: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
        exchange: bool,
    },
    Link {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    List {
        path: Vec<u8>,
    },
    Reserve {
        slot: Slot,
        offset: u64,
        len: u64,
    },
    Copy {
        from: Slot,
        from_offset: u64,
        slot: Slot,
        offset: u64,
        len: u64,
    },
    /// No call: a part of another step's work.
    Nothing,
}

/// A step of a thread.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) op: Op,
    pub(crate) start_ns: u64,
    pub(crate) took_ns: u64,
    /// Whether the call succeeded.
    pub(crate) worked: bool,
    /// Steps of other threads that have to be done: thread and number.
    pub(crate) after: Vec<(usize, usize)>,
}

/// Calls that are not repeated, by operation.
pub type Skipped = BTreeMap<Op, u64>;

/// The steps of a replay.
#[derive(Debug, Default)]
pub struct Plan {
    pub(crate) nodes: Vec<Node>,
    pub(crate) threads: Vec<Vec<Step>>,
    pub(crate) slots: usize,
    /// When the first call began.
    pub(crate) start_ns: u64,
    /// Time from the first call to the last answer, nanoseconds.
    pub span_ns: u64,
    /// Calls that are not made again: locks, attributes, device controls, calls that failed.
    pub skipped: Skipped,
}

impl Plan {
    /// Calls that are made.
    pub fn calls(&self) -> usize {
        self.threads.iter().flatten().filter(|step| step.act != Act::Nothing).count()
    }

    /// Number of threads that make the calls.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Bytes that have to exist before.
    pub fn bytes_before(&self) -> u64 {
        let before = self.nodes.iter().filter(|node| node.before.is_some());
        let bytes = |node: &Node| joined(&node.reads, node.size).iter().map(|(from, to)| to - from).sum::<u64>();
        before.map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that steps write, counted as often as they write them.
    pub fn bytes_written(&self) -> u64 {
        let steps = self.threads.iter().flatten();
        let writes =
            steps.map(|step| if let Act::Write { len, .. } | Act::Copy { len, .. } = step.act { len } else { 0 });
        writes.fold(0, u64::saturating_add)
    }
}

/// An open file while the plan is made.
struct OpenFile {
    slot: Slot,
    node: NodeId,
    opener: usize,
    /// Whether it can be read.
    reads: bool,
    /// The last close of one of its descriptors, if the file has not been used since.
    closed: Option<(usize, usize)>,
}

struct Planner {
    plan: Plan,
    threads: BTreeMap<u32, usize>,
    inodes: BTreeMap<u64, NodeId>,
    names: BTreeMap<Place, NodeId>,
    open: BTreeMap<u64, OpenFile>,
    order: Order,
}

/// Plans the calls of a trace.
pub fn plan(trace: &Trace) -> Plan {
    let mut planner = Planner {
        plan: Plan::default(),
        threads: BTreeMap::new(),
        inodes: BTreeMap::new(),
        names: BTreeMap::new(),
        open: BTreeMap::new(),
        order: Order::default(),
    };
    // The root of the mount.
    let root = planner.add(NodeKind::Dir, None);
    planner.plan.nodes[root].before = Some(Vec::new());
    planner.inodes.insert(1, root);
    let first = trace.calls.first().map_or(0, |call| call.start_ns);
    let last = trace.calls.iter().map(Call::end_ns).max().unwrap_or(first);
    (planner.plan.start_ns, planner.plan.span_ns) = (first, last - first);
    for call in &trace.calls {
        planner.call(call);
    }
    planner.plan
}

impl Planner {
    fn add(&mut self, kind: NodeKind, place: Option<Place>) -> NodeId {
        let node = Node { kind, before: None, size: 0, reads: Vec::new(), holes: false, copied: false, place };
        self.plan.nodes.push(node);
        self.plan.nodes.len() - 1
    }

    /// The present path of a node; `None` for a node that was removed.
    fn path(&self, node: NodeId) -> Option<Vec<u8>> {
        let (mut parts, mut at) = (Vec::new(), node);
        while at != 0 {
            let (dir, name) = self.plan.nodes[at].place.as_ref()?;
            parts.push(name.clone());
            at = *dir;
            if parts.len() > 1000 {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    fn path_in(&self, dir: NodeId, name: &[u8]) -> Option<Vec<u8>> {
        let dir = self.path(dir)?;
        Some(if dir.is_empty() { name.to_vec() } else { [&dir[..], b"/", name].concat() })
    }

    /// A node exists before the replay, at this path.
    fn before(&mut self, kind: NodeKind, place: Place, size: Option<u64>) -> NodeId {
        let node = self.add(kind, Some(place.clone()));
        self.names.insert(place, node);
        let path = self.path(node);
        let known = &mut self.plan.nodes[node];
        (known.before, known.size) = (path, size.unwrap_or(0));
        node
    }

    /// The node of an inode; an inode that was never seen exists before the replay, under its number.
    fn node(&mut self, ino: u64, kind: NodeKind, size: Option<u64>) -> NodeId {
        if let Some(node) = self.inodes.get(&ino) {
            return *node;
        }
        let letter = if kind == NodeKind::Dir { "dir" } else { "file" };
        let node = self.before(kind, (0, format!("{letter}-{ino:x}").into_bytes().into()), size);
        self.inodes.insert(ino, node);
        node
    }

    fn dir(&mut self, ino: u64) -> NodeId {
        self.node(ino, NodeKind::Dir, None)
    }

    /// The node to which a name leads; a name that was never seen exists before the replay.
    fn named(&mut self, dir: NodeId, name: &[u8], kind: NodeKind) -> NodeId {
        match self.names.get(&(dir, name.into())) {
            Some(node) => *node,
            None => self.before(kind, (dir, name.into()), None),
        }
    }

    fn put(&mut self, node: NodeId, place: Place) {
        self.plan.nodes[node].place = Some(place.clone());
        self.names.insert(place, node);
    }

    fn take(&mut self, dir: NodeId, name: &[u8]) {
        if let Some(node) = self.names.remove(&(dir, name.into()))
            && self.plan.nodes[node].place.as_ref().is_some_and(|(d, n)| *d == dir && **n == *name)
        {
            self.plan.nodes[node].place = None;
        }
    }

    fn thread(&mut self, tid: u32) -> usize {
        let next = self.plan.threads.len();
        let thread = *self.threads.entry(tid).or_insert(next);
        if thread == next {
            self.plan.threads.push(Vec::new());
        }
        thread
    }

    fn skip(&mut self, op: Op) {
        *self.plan.skipped.entry(op).or_default() += 1;
    }

    /// Adds a step to a thread; it waits for the steps that `order` has found for it.
    fn step(&mut self, thread: usize, call: &Call, act: Act) -> (usize, usize) {
        let at = (thread, self.plan.threads[thread].len());
        let after = self.order.take(thread, at.1 == 0);
        let step =
            Step { act, op: call.op, start_ns: call.start_ns, took_ns: call.took_ns, worked: call.is_done(), after };
        self.plan.threads[thread].push(step);
        self.order.added(at, call.end_ns());
        at
    }

    fn call(&mut self, call: &Call) {
        // Closes by the kernel itself have no caller; pages are read and written for any program that has the file
        // open.
        let opener = self.open.get(&call.handle).filter(|_| call.tid == 0).map(|open| open.opener);
        let thread = match opener {
            Some(opener) => opener,
            None if call.tid == 0 => {
                return if call.op == Op::Release { self.released(call) } else { self.skip(call.op) };
            }
            None => self.thread(call.tid),
        };
        self.order.begins(call.start_ns);
        match call.op {
            // A forged name could lead out of the directory.
            _ if [&call.name, &call.new_name].into_iter().any(|name| leads_away(name)) => self.skip(call.op),
            _ if call.op.is_data() && call.len > CALL_MAX => self.skip(call.op),
            Op::Read | Op::Write | Op::Fsync | Op::Fallocate | Op::Copy => self.data(thread, call),
            Op::Close => self.closed(thread, call),
            Op::Release => self.released(call),
            Op::Open | Op::Create => self.opened(thread, call),
            Op::Lookup => self.lookup(thread, call),
            Op::Stat | Op::SetAttr | Op::Readlink => self.attributes(thread, call),
            Op::ReadDir => self.listed(thread, call),
            Op::OpenDir | Op::ReleaseDir => {}
            Op::Mkdir | Op::Mknod | Op::Symlink | Op::Unlink | Op::Rmdir | Op::Rename | Op::Link if call.is_done() => {
                self.names_change(thread, call);
            }
            op => self.skip(op),
        }
    }

    fn data(&mut self, thread: usize, call: &Call) {
        let Some(open) = self.open.get(&call.handle) else { return self.skip(call.op) };
        let (slot, node) = (open.slot, open.node);
        let (from, to) = call.moved();
        // A kernel may read for a program that only writes, to fill the rest of a page.
        let for_itself = call.op == Op::Read && !open.reads;
        if !call.is_done() || to - from > CALL_MAX || for_itself {
            return self.skip(call.op);
        }
        self.uses_open(call.handle, slot);
        let act = match call.op {
            Op::Read => {
                self.reads(node, from, to);
                Act::Read { slot, node, offset: call.offset, len: call.len, got: to - from }
            }
            Op::Write => {
                self.order.writes(node, from, to);
                Act::Write { slot, node, offset: from, len: to - from }
            }
            Op::Copy => {
                let Some((handle, source, from_slot)) = self.source(thread, call) else { return self.skip(call.op) };
                let (begin, end) = call.copied();
                self.uses_open(handle, from_slot);
                self.reads(source, begin, end);
                self.order.writes(node, from, to);
                self.plan.nodes[node].copied = true;
                Act::Copy { from: from_slot, from_offset: begin, slot, offset: from, len: to - from }
            }
            Op::Fsync => Act::Sync { slot, data_only: call.has(flags::DATA_ONLY) },
            _ => {
                self.plan.nodes[node].holes = true;
                Act::Reserve { slot, offset: call.offset, len: call.len }
            }
        };
        let source = if let Act::Copy { from, .. } = act { Some(from) } else { None };
        let at = self.step(thread, call, act);
        [Some(slot), source].into_iter().flatten().for_each(|slot| self.order.used_slot(slot, at));
    }

    /// The open file from which a copy reads. A trace has only its inode, so this is an open file for reading; if
    /// possible one that the copying thread opened and that is not closed.
    fn source(&self, thread: usize, call: &Call) -> Option<(u64, NodeId, Slot)> {
        let node = *self.inodes.get(&call.other)?;
        let of_it = self.open.iter().filter(|(_, open)| open.node == node && open.reads);
        let (handle, open) = of_it.max_by_key(|(_, open)| (open.opener == thread, open.closed.is_none()))?;
        Some((*handle, node, open.slot))
    }

    /// The step that is planned uses an open file, so the closes before it have not closed that file.
    fn uses_open(&mut self, handle: u64, slot: Slot) {
        self.order.uses_slot(slot);
        if let Some(open) = self.open.get_mut(&handle) {
            open.closed = None;
        }
    }

    /// Bytes that were read existed before the replay, unless a recorded call has written them.
    fn reads(&mut self, node: NodeId, from: u64, to: u64) {
        let known = &mut self.plan.nodes[node];
        known.reads.push((from, to));
        if known.before.is_some() && !self.order.is_written(node, from, to) {
            known.size = known.size.max(to);
        }
        self.order.reads(node, from, to);
    }

    /// Called when one descriptor of an open file was closed; the last one closes it.
    fn closed(&mut self, thread: usize, call: &Call) {
        let Some(slot) = self.open.get(&call.handle).map(|open| open.slot) else { return self.skip(call.op) };
        self.order.closes_slot(slot);
        let at = self.step(thread, call, Act::Nothing);
        if let Some(open) = self.open.get_mut(&call.handle) {
            open.closed = Some(at);
        }
    }

    fn released(&mut self, call: &Call) {
        let Some(open) = self.open.remove(&call.handle) else { return };
        let close = Act::Close { slot: open.slot };
        match open.closed {
            Some((thread, n)) => self.plan.threads[thread][n].act = close,
            None => {
                self.order.begins(call.start_ns);
                self.order.closes_slot(open.slot);
                self.step(open.opener, call, close);
            }
        }
    }

    fn opened(&mut self, thread: usize, call: &Call) {
        if !call.is_done() {
            return self.skip(call.op);
        }
        let mut makes = false;
        let node = if call.op == Op::Open {
            self.node(call.ino, NodeKind::File, call.size)
        } else {
            let dir = self.dir(call.ino);
            let place = (dir, call.name.clone());
            self.order.changes_name(&place);
            // Empty, or with bytes that were there: it was made, or only opened.
            makes = call.size.unwrap_or(0) == 0 && !self.inodes.contains_key(&call.other);
            let known = self.inodes.get(&call.other).copied();
            let node = match known {
                Some(node) => node,
                None if makes => self.add(NodeKind::File, None),
                None => self.before(NodeKind::File, place.clone(), call.size),
            };
            if !call.name.is_empty() {
                self.put(node, place);
            }
            self.inodes.insert(call.other, node);
            node
        };
        let Some(path) = self.path(node) else { return self.skip(call.op) };
        if call.has(flags::SETS_SIZE) {
            self.order.writes(node, 0, u64::MAX);
        }
        self.order.uses_node(node);
        let slot = self.plan.slots;
        self.plan.slots += 1;
        let act = match makes {
            true => Act::Create { path, slot, flags: call.flags },
            false => Act::Open { path, slot, flags: call.flags },
        };
        let at = self.step(thread, call, act);
        self.order.opened(slot, node, at);
        if call.op == Op::Create {
            let dir = self.dir(call.ino);
            self.order.changed_name((dir, call.name.clone()), node, at);
        }
        self.open
            .insert(call.handle, OpenFile { slot, node, opener: thread, reads: call.has(flags::READS), closed: None });
    }

    fn lookup(&mut self, thread: usize, call: &Call) {
        let dir = self.dir(call.ino);
        let place = (dir, call.name.clone());
        if call.is_done() {
            let kind = if call.has(flags::DIRECTORY) { NodeKind::Dir } else { NodeKind::File };
            match (self.inodes.get(&call.other).copied(), self.names.get(&place).copied()) {
                (Some(known), _) if self.plan.nodes[known].place.is_some() => {}
                (None, Some(there)) => drop(self.inodes.insert(call.other, there)),
                _ => {
                    let node = self.before(kind, place.clone(), call.size);
                    self.inodes.insert(call.other, node);
                }
            }
        }
        let Some(path) = self.path_in(dir, &call.name) else { return self.skip(call.op) };
        self.order.uses_name(&place);
        let at = self.step(thread, call, Act::Look { path });
        self.order.used_name(place, at);
    }

    fn attributes(&mut self, thread: usize, call: &Call) {
        if !call.is_done() {
            return self.skip(call.op);
        }
        let slot = self.open.get(&call.handle).map(|open| open.slot);
        let node = match self.open.get(&call.handle) {
            Some(open) => open.node,
            None => match self.inodes.get(&call.ino) {
                Some(node) => *node,
                // The trace does not contain the kind of the inode.
                None => return self.skip(call.op),
            },
        };
        let path = self.path(node);
        let act = match (call.op, slot, path) {
            (Op::SetAttr, _, Some(path)) if call.has(flags::SETS_SIZE) => {
                self.plan.nodes[node].holes = true;
                self.order.writes(node, call.len, u64::MAX);
                Act::SetSize { path, slot, size: call.len }
            }
            (Op::Stat, Some(slot), _) => Act::Stat { slot },
            (Op::Stat, None, Some(path)) => Act::Look { path },
            (Op::SetAttr, _, Some(path)) => Act::Touch { path },
            (Op::Readlink, _, Some(path)) => Act::Readlink { path },
            _ => return self.skip(call.op),
        };
        self.order.uses_node(node);
        if let Some(slot) = slot {
            self.uses_open(call.handle, slot);
        }
        let at = self.step(thread, call, act);
        self.order.used_node(node, at);
        if let Some(slot) = slot {
            self.order.used_slot(slot, at);
        }
    }

    fn listed(&mut self, thread: usize, call: &Call) {
        let node = self.dir(call.ino);
        let Some(path) = self.path(node).filter(|_| call.is_done()) else { return self.skip(call.op) };
        // The first part lists all of it.
        let act = if call.offset == 0 { Act::List { path } } else { Act::Nothing };
        self.order.uses_node(node);
        let at = self.step(thread, call, act);
        self.order.used_node(node, at);
    }

    fn names_change(&mut self, thread: usize, call: &Call) {
        let first = if call.op == Op::Link { &call.new_name } else { &call.name };
        let dir = self.dir(call.ino);
        let place: Place = (dir, first.clone());
        self.order.uses_node(dir);
        self.order.changes_name(&place);
        let path = self.path_in(dir, first);
        let mut second = None;
        let (act, node) = match call.op {
            Op::Mkdir | Op::Mknod | Op::Symlink => {
                let kind = if call.op == Op::Mkdir { NodeKind::Dir } else { NodeKind::File };
                let node = self.add(kind, None);
                self.put(node, place.clone());
                self.inodes.insert(call.other, node);
                let act = path.map(|path| match call.op {
                    Op::Mkdir => Act::Mkdir { path },
                    Op::Mknod => Act::Mknod { path },
                    _ => Act::Symlink { path },
                });
                (act, node)
            }
            Op::Unlink | Op::Rmdir => {
                let kind = if call.op == Op::Rmdir { NodeKind::Dir } else { NodeKind::File };
                let node = self.named(dir, first, kind);
                self.order.removes(node);
                self.take(dir, first);
                (path.map(|path| if call.op == Op::Rmdir { Act::Rmdir { path } } else { Act::Unlink { path } }), node)
            }
            Op::Link => {
                let from = self.node(call.other, NodeKind::File, None);
                self.order.uses_node(from);
                let old = self.path(from);
                self.names.insert(place.clone(), from);
                (old.zip(path).map(|(from, to)| Act::Link { from, to }), from)
            }
            _ => {
                let node = self.named(dir, first, NodeKind::File);
                let to_dir = self.dir(call.other);
                let to: Place = (to_dir, call.new_name.clone());
                let exchange = call.has(flags::EXCHANGE);
                let other = exchange.then(|| self.named(to_dir, &call.new_name, NodeKind::File));
                self.order.uses_node(to_dir);
                self.order.changes_name(&to);
                // Calls that opened the node by its old path have to be done before.
                self.order.removes(node);
                let new = self.path_in(to_dir, &call.new_name);
                self.take(to_dir, &call.new_name);
                self.take(dir, first);
                self.put(node, to.clone());
                if let Some(other) = other {
                    self.put(other, place.clone());
                }
                if self.plan.nodes[node].kind == NodeKind::Dir {
                    // The paths of all that lies in it change.
                    self.order.waits_for_all();
                }
                second = Some(to);
                (path.zip(new).map(|(from, to)| Act::Rename { from, to, exchange }), node)
            }
        };
        let Some(act) = act else { return self.skip(call.op) };
        let at = self.step(thread, call, act);
        self.order.changed_name(place, node, at);
        if let Some(to) = second {
            self.order.changed_name(to, node, at);
        }
    }
}

/// Ranges are made in units of this many bytes.
const MADE_BYTES: u64 = 64 << 10;

/// Ranges rounded out and joined, inside of a file of `size` bytes.
pub(crate) fn joined(reads: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let out = |to: u64| to.div_ceil(MADE_BYTES).saturating_mul(MADE_BYTES).min(size);
    let rounded = reads.iter().map(|(from, to)| (from / MADE_BYTES * MADE_BYTES, out(*to)));
    let mut all: Vec<(u64, u64)> = rounded.filter(|(from, to)| from < to).collect();
    all.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// Returns whether a name is none of an entry that can be made.
fn leads_away(name: &[u8]) -> bool {
    name.len() > NAME_MAX || matches!(name, b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests;
