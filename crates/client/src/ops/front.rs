//! Whether the kernel or the mount serves the reads of an open file, and the knowledge about the programs that read it.
//!
//! Owns: collecting the inputs of `kernel_reads` for one open file, noting at its close how it was read, and which
//! pages a front end may keep. Does not own: the rules (`policy::kernel_reads`), the knowledge about readers
//! (`policy::readers`), how pages get locks (`pages`).
//!
//! Invariants: no function here waits or reads a file. The knowledge about readers is used only for large files for
//! which no other rule decides, and is collected only if a front end with pages has asked.

use crate::api::Ctx;
use crate::coherence::tokens;
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::policy::decision::{self, Mode, Reason};
use crate::policy::kernel_reads::{self, Input, Server};
use crate::policy::readers::{Chosen, Reader, Reads};
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_pagecache::Dirty;
use amphi_types::ByteRange;
use std::sync::atomic::Ordering::SeqCst;

/// How a front end with a page cache treats an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontCache {
    /// The front end serves reads of the file from its pages.
    pub serves: bool,
    /// Pages of the file that the front end has from before are valid.
    pub keeps: bool,
}

/// Decides for a file that `ctx` has just opened, and counts it.
pub(crate) fn front_cache(mount: &Mount, ctx: &Ctx, open: &OpenFile) -> FrontCache {
    let t = &mount.tunables;
    let file = &open.file;
    let alone = mount.coherence.sharing.is_alone();
    let (executable, size) = {
        let attr = &file.known.lock().view.attr;
        (attr.perm & 0o111 != 0, attr.size)
    };
    let only_reads = open.flags.read && !open.flags.write && !open.flags.direct && !open.flags.truncate;
    // In shared mode, a mount that holds the attributes token knows that no other mount has the file open for writing.
    // But another mount may open it for writing later.
    let follows = || mount.coherence.sharing.pages().is_some_and(|front| front.follows_sizes());
    let written = || file.has_writers() || !(alone || (tokens::holds_attributes(mount, file.ino) && follows()));
    let input = Input {
        kernel_cache: kernel_reads::asked(file.hints.advice().kernel_cache(), t.kernel_cache()),
        only_reads,
        asked: decision::asked([open.io_mode(), file.io_mode()], open.process_mode, t.mode()),
        contended: t.on(Tunable::Contention) && mount.is_contended(file),
        written: only_reads && written(),
        executable,
        size: size.max(file.size()),
        large_bytes: t.get(Tunable::LargeRead),
        memory_short: false,
        advised: open.program.reads,
        known: None,
        look: false,
    };
    let server = decide(mount, ctx, open, input);
    mount.stats.count(count_of(server));
    open.file.stats.reads_served_by(count_of(server));
    let serves = server.is_kernel();
    open.front.choose(serves, chosen(server));
    let rule = mount.coherence.sharing.rule();
    // In sole mode the front end has seen every change. The mount does not see a read that the front end serves, so the
    // mount has to serve the first one itself.
    let covered = mount.coherence.sharing.has_always_been_alone() || file.pages.covered_rule.load(SeqCst) == rule;
    let keeps = covered && !(serves && read_is_missed(mount, open));
    open.front.emptied_rule.store(if keeps { 0 } else { rule }, SeqCst);
    FrontCache { serves, keeps }
}

/// Decides, and looks up the knowledge about readers only if it matters.
fn decide(mount: &Mount, ctx: &Ctx, open: &OpenFile, input: Input) -> Server {
    let server = kernel_reads::decide(&input);
    if !matches!(server, Server::KernelUnknown | Server::KernelAdvised | Server::MountAdvised) {
        return server;
    }
    let reader = reader_of(mount, open);
    let known = mount.policy.readers.known(reader);
    let is_known = reader.program != 0;
    let server = kernel_reads::decide(&Input {
        memory_short: mount.is_group_short(ctx),
        known: known.pieces(is_known),
        look: mount.tunables.on(Tunable::Learn) && known.program.is_due(),
        ..input
    });
    if server == Server::MountLook {
        mount.policy.readers.looks(reader);
    }
    server
}

fn reader_of(mount: &Mount, open: &OpenFile) -> Reader {
    let file = open.ino();
    let directory = mount.prefetch.small_files.state.lock().directory_of(file);
    Reader { file, directory, program: open.program.executable }
}

/// Called when an open file was closed after these reads. The sizes are used for the next open of this file, of its
/// neighbours, or of another file by this program.
pub(crate) fn note_readers(mount: &Mount, open: &OpenFile, reads: Reads) {
    let t = &mount.tunables;
    let (chosen, bounds) = (open.front.chosen(), (t.get(Tunable::Small), t.get(Tunable::LargeRead)));
    let says = chosen != Chosen::NotAsked && !open.flags.direct && reads.says_something(bounds.1);
    if says && open.file.size() >= bounds.1 {
        mount.policy.readers.closed(reader_of(mount, open), chosen, reads, bounds);
    }
}

/// Called when a read was answered whose bytes a front end keeps in its pages. Clean bytes among them are dropped from
/// the client's cache. If the pages will not be kept until the next open, the bytes stay in the client's cache.
pub(crate) fn kept_by_front(mount: &Mount, open: &OpenFile, range: ByteRange) {
    if keeps_pages(mount, open) {
        mount.cache.forget(&open.file, range, Dirty::Keep);
    }
}

/// Returns whether bytes that are read into pages of the front end stay there, so that they are not requested again.
pub(crate) fn keeps_pages(mount: &Mount, open: &OpenFile) -> bool {
    let keeps = || !mount.coherence.sharing.is_alone() || mount.coherence.sharing.has_always_been_alone();
    open.front.serves.load(SeqCst) && keeps()
}

/// Returns whether a read for pages of `bytes` is buffered or direct in shared mode, and why.
pub(crate) fn way_of_pages(mount: &Mount, open: &OpenFile, bytes: u64) -> (Mode, Reason) {
    match keeps_pages(mount, open) && bytes >= mount.tunables.get(Tunable::Small) {
        true => (Mode::Direct, Reason::DirectKernel),
        false => (Mode::Buffered, Reason::BufferedDefault),
    }
}

/// Returns whether a read has to reach the mount because it renews the access time.
fn read_is_missed(mount: &Mount, open: &OpenFile) -> bool {
    !open.flags.no_atime && mount.tunables.on(Tunable::Atime) && open.file.access_is_due(mount.clock.wall())
}

/// The rule that decided who serves the reads.
fn chosen(server: Server) -> Chosen {
    match server {
        Server::MountLarge => Chosen::Known,
        Server::MountLook => Chosen::Look,
        Server::MountOff
        | Server::MountOpen
        | Server::MountUser
        | Server::MountContended
        | Server::MountWritten
        | Server::MountMemory
        | Server::MountAdvised => Chosen::Otherwise,
        _ => Chosen::Kernel,
    }
}

fn count_of(server: Server) -> Count {
    match server {
        Server::KernelSmallFile => Count::OpenKernelSmallFile,
        Server::KernelExecutable => Count::OpenKernelExecutable,
        Server::KernelSmallReads => Count::OpenKernelSmallReads,
        Server::KernelUnknown => Count::OpenKernelUnknown,
        Server::KernelAdvised => Count::OpenKernelAdvised,
        Server::KernelUser => Count::OpenKernelUser,
        Server::MountOff => Count::OpenMountOff,
        Server::MountOpen => Count::OpenMountOpen,
        Server::MountUser => Count::OpenMountUser,
        Server::MountContended => Count::OpenMountContended,
        Server::MountWritten => Count::OpenMountWritten,
        Server::MountMemory => Count::OpenMountMemory,
        Server::MountAdvised => Count::OpenMountAdvised,
        Server::MountLarge => Count::OpenMountLarge,
        Server::MountLook => Count::OpenMountLook,
    }
}
