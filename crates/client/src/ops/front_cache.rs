//! What a front end that has a page cache may do with an open file: serve its reads, keep its pages.
//!
//! Owns: gathering what `policy::kernel_reads` asks for, when an open file leaves the pages of a file true. Does not own: the
//! rules, nor how pages are taken back (`pages`).

use crate::coherence::tokens;
use crate::core::Core;
use crate::inode::OpenFile;
use crate::policy::decision;
use crate::policy::kernel_reads::{Input, Server, decide};
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Knob;
use std::sync::atomic::Ordering::SeqCst;

/// Fewer reads of an open file say nothing of its readers.
const READS_MIN: u64 = 16;

/// What a front end that has a page cache does with an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontCache {
    /// It serves reads from its pages.
    pub serves: bool,
    /// Pages of the file that it has from before are true.
    pub keeps: bool,
}

/// Decides for a file that was just opened, and counts it.
pub(crate) fn opened(core: &Core, open: &OpenFile) -> FrontCache {
    let t = &core.tunables;
    let file = &open.file;
    let alone = core.company.is_alone();
    let (executable, size) = {
        let attr = &file.known.lock().view.attr;
        (attr.perm & 0o111 != 0, attr.size)
    };
    let only_reads = open.flags.read && !open.flags.write && !open.flags.direct && !open.flags.truncate;
    let process_mode = open.process_mode.filter(|_| t.on(Knob::ProcessMode));
    // In company who holds the attributes' token knows that nobody else has the file open for writing.
    let written = || file.has_writers() || !(alone || tokens::holds_attributes(core, file.ino));
    let server = decide(&Input {
        on: t.on(Knob::KernelReads),
        only_reads,
        asked: decision::asked([open.io_mode(), file.io_mode()], process_mode, t.mode()),
        contended: t.on(Knob::Contention) && core.is_contended(file),
        written: only_reads && written(),
        executable,
        size: size.max(file.size()),
        large_bytes: t.get(Knob::LargeRead),
        small_reads: file.pages.small_reads.load(SeqCst),
    });
    core.stats.count(count(server));
    let serves = server.is_kernel();
    open.by_front.store(serves, SeqCst);
    let rule = core.company.rule();
    // Of a lone mount the front end has seen every change. A read that it serves is not seen here: the first one has to be.
    let covered = core.company.has_always_been_alone() || file.pages.covered_rule.load(SeqCst) == rule;
    let keeps = covered && !(serves && read_is_missed(core, open));
    open.emptied_rule.store(if keeps { 0 } else { rule }, SeqCst);
    FrontCache { serves, keeps }
}

/// Whether a read has to come here, since it renews the access time.
fn read_is_missed(core: &Core, open: &OpenFile) -> bool {
    !open.flags.no_atime && core.tunables.on(Knob::Atime) && open.file.access_is_due(core.clock.wall())
}

/// Notes how an open file was read, for those who open the file next.
pub(crate) fn closed(core: &Core, open: &OpenFile) {
    if open.by_front.load(SeqCst) || !open.flags.read {
        return;
    }
    let (requests, bytes) = open.ledger.reads();
    if requests >= READS_MIN {
        let small = bytes / requests < core.tunables.get(Knob::Small);
        open.file.pages.small_reads.store(small, SeqCst);
    }
}

fn count(server: Server) -> Count {
    match server {
        Server::KernelSmallFile => Count::OpenKernelSmallFile,
        Server::KernelExecutable => Count::OpenKernelExecutable,
        Server::KernelSmallReads => Count::OpenKernelSmallReads,
        Server::MountOff => Count::OpenMountOff,
        Server::MountOpen => Count::OpenMountOpen,
        Server::MountUser => Count::OpenMountUser,
        Server::MountContended => Count::OpenMountContended,
        Server::MountWritten => Count::OpenMountWritten,
        Server::MountLarge => Count::OpenMountLarge,
    }
}
