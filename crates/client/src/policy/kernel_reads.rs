//! The choice whether the kernel's page cache or the mount serves the reads of an open file: one pure function, like
//! the hybrid decision.
//!
//! Owns: the order of the rules and their names. Does not own: the collection of the inputs at an open (`ops::front`),
//! the knowledge about readers (`readers`), and the dropping of pages (`ops::pages`).
//!
//! A read that the kernel serves costs no request: 1 us instead of 20. If the kernel serves a file and the mount would
//! be better, the reads take 1.2 times as long. In the opposite case they take 4 to 20 times as long. So the kernel
//! serves files of which nothing is known. The mount serves files that are known to be read in large pieces, each once;
//! it keeps no copy of them. A read that the mount serves is atomic beside writes (promise S2), and a read that the
//! kernel serves is not. So the kernel serves only files that nobody has open for writing at the open. The decision
//! holds for the life of the open file, because the kernel takes it with the answer to an open only. If the file
//! becomes contended later, `ops::pages` decides with each read how wide a lock it takes.

use super::readers::Pieces;
use amphi_types::{IoMode, KernelCache};

/// The server of the reads, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// The file is smaller than the size from which reads bypass all caches.
    KernelSmallFile,
    /// The file may be executed. Programs and libraries are read in pages, and repeatedly.
    KernelExecutable,
    /// The file is known to be read in small pieces.
    KernelSmallReads,
    /// Nothing is known about the size of pieces in which the file is read.
    KernelUnknown,
    /// The program says that it reads small pieces.
    KernelAdvised,
    /// The file or the mount is set to use the kernel's cache.
    KernelUser,
    /// The file or the mount is set not to use the kernel's cache.
    MountOff,
    /// The file is open for writing too, or bypasses caches.
    MountOpen,
    /// A mode is set for the file, the process or the mount.
    MountUser,
    /// A server reported lately that the file is contended.
    MountContended,
    /// A program has the file open for writing, or nothing guarantees that none has.
    MountWritten,
    /// The file is large, and the memory cgroup of the mount or of the caller is short, so pages would be taken from
    /// others.
    MountMemory,
    /// The program says that it reads large pieces.
    MountAdvised,
    /// The file is known to be read in large pieces.
    MountLarge,
    /// The mount serves the reads once more, to observe a program whose long streams the kernel serves.
    MountLook,
}

impl Server {
    /// Returns whether the kernel serves the reads.
    pub(crate) fn is_kernel(self) -> bool {
        use Server::{
            KernelAdvised, KernelExecutable, KernelSmallFile, KernelSmallReads, KernelUnknown, KernelUser,
            MountAdvised, MountContended, MountLarge, MountLook, MountMemory, MountOff, MountOpen, MountUser,
            MountWritten,
        };
        match self {
            KernelSmallFile | KernelExecutable | KernelSmallReads | KernelUnknown | KernelAdvised | KernelUser => true,
            MountOff | MountOpen | MountUser | MountContended | MountWritten | MountMemory | MountAdvised
            | MountLarge | MountLook => false,
        }
    }
}

/// The known facts about an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// The setting of the file, or else that of the mount.
    pub(crate) kernel_cache: KernelCache,
    /// The file is open for reading only, without `O_DIRECT`, and in no group.
    pub(crate) only_reads: bool,
    /// The mode that was set with the highest precedence.
    pub(crate) asked: IoMode,
    /// A server reported lately that an object of the file is contended.
    pub(crate) contended: bool,
    /// The file is open for writing, or may be.
    pub(crate) written: bool,
    /// The file has an execute permission.
    pub(crate) executable: bool,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// From this size on, reads bypass the cache.
    pub(crate) large_bytes: u64,
    /// The memory cgroup of the mount or of the caller has reached its share of the limit.
    pub(crate) memory_short: bool,
    /// The size of pieces in which the program says that it reads.
    pub(crate) advised: Option<Pieces>,
    /// The size of pieces in which the file is known to be read.
    pub(crate) known: Option<Pieces>,
    /// The program is due to be observed again.
    pub(crate) look: bool,
}

/// The setting with the highest precedence: the file's, then the mount's. `Auto` of a file is no setting.
pub(crate) fn asked(file: KernelCache, mount: KernelCache) -> KernelCache {
    if file == KernelCache::Auto { mount } else { file }
}

/// Decides who serves the reads of an open file.
pub(crate) fn decide(input: &Input) -> Server {
    let on = input.kernel_cache == KernelCache::On;
    if input.kernel_cache == KernelCache::Off {
        Server::MountOff
    } else if !input.only_reads {
        Server::MountOpen
    } else if input.asked != IoMode::Auto {
        Server::MountUser
    } else if input.contended && !on {
        Server::MountContended
    } else if input.written {
        Server::MountWritten
    } else if on {
        Server::KernelUser
    } else if input.executable {
        Server::KernelExecutable
    } else if input.size < input.large_bytes {
        Server::KernelSmallFile
    } else if input.memory_short {
        Server::MountMemory
    } else {
        by_pieces(input)
    }
}

/// Decides for a large file, by the pieces in which it is read.
fn by_pieces(input: &Input) -> Server {
    match (input.advised, input.known) {
        (Some(Pieces::Large), _) => Server::MountAdvised,
        (Some(Pieces::Small), _) => Server::KernelAdvised,
        (None, Some(Pieces::Large)) => Server::MountLarge,
        _ if input.look => Server::MountLook,
        (None, Some(Pieces::Small)) => Server::KernelSmallReads,
        (None, None) => Server::KernelUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the order of the rules. Method: a table. Each row turns on every condition whose rule comes later than the
    /// rule of its reason.
    #[test]
    fn order_of_the_rules() {
        const BASE: Input = Input {
            kernel_cache: KernelCache::Auto,
            only_reads: true,
            asked: IoMode::Auto,
            contended: false,
            written: false,
            executable: false,
            size: 4 << 20,
            large_bytes: 4 << 20,
            memory_short: false,
            advised: None,
            known: None,
            look: false,
        };
        let (large, small) = (Some(Pieces::Large), Some(Pieces::Small));
        let readers = Input { memory_short: true, advised: large, known: large, look: true, ..BASE };
        let all = Input { contended: true, written: true, executable: true, size: 1, ..readers };
        let (on, off) = (KernelCache::On, KernelCache::Off);
        let table = [
            (Input { kernel_cache: off, only_reads: false, asked: IoMode::Direct, ..all }, Server::MountOff),
            (Input { kernel_cache: on, only_reads: false, ..all }, Server::MountOpen),
            (Input { kernel_cache: on, asked: IoMode::Direct, ..all }, Server::MountUser),
            (Input { kernel_cache: on, ..all }, Server::MountWritten),
            (Input { kernel_cache: on, written: false, ..all }, Server::KernelUser),
            (Input { kernel_cache: on, size: 1 << 30, ..BASE }, Server::KernelUser),
            (Input { only_reads: false, asked: IoMode::Direct, ..all }, Server::MountOpen),
            (Input { asked: IoMode::Direct, ..all }, Server::MountUser),
            (Input { asked: IoMode::Buffered, ..all }, Server::MountUser),
            (all, Server::MountContended),
            (Input { contended: false, ..all }, Server::MountWritten),
            (Input { contended: false, written: false, ..all }, Server::KernelExecutable),
            (Input { executable: true, size: 1 << 30, ..BASE }, Server::KernelExecutable),
            (Input { size: BASE.size - 1, ..readers }, Server::KernelSmallFile),
            (Input { size: 0, ..BASE }, Server::KernelSmallFile),
            (readers, Server::MountMemory),
            (Input { memory_short: false, known: small, ..readers }, Server::MountAdvised),
            (Input { memory_short: false, advised: small, ..readers }, Server::KernelAdvised),
            (Input { memory_short: false, advised: None, ..readers }, Server::MountLarge),
            (Input { look: true, ..BASE }, Server::MountLook),
            (Input { look: true, known: small, ..BASE }, Server::MountLook),
            (Input { known: small, ..BASE }, Server::KernelSmallReads),
            (BASE, Server::KernelUnknown),
        ];
        for (input, server) in table {
            assert_eq!(decide(&input), server, "{input:?}");
            assert_eq!(server.is_kernel(), format!("{server:?}").starts_with("Kernel"));
        }
        assert_eq!([asked(KernelCache::Auto, off), asked(on, off), asked(off, on)], [off, on, off]);
    }
}
