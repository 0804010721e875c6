//! Who serves the reads of an open file: the kernel from its page cache, or the mount. One pure function, beside the
//! hybrid decision.
//!
//! Owns: the order of the rules and their names. Does not own: what they ask for at an open (`ops::front`), what is
//! known of those who read (`readers`), how pages are taken back (`ops::pages`).
//!
//! A read that the kernel serves costs no request: 1 us instead of 20. A file whose reads the kernel serves although
//! the mount would be better takes 1.2 times as long; one whose reads the mount serves although the kernel would be
//! better takes 4 to 20 times as long. So the kernel serves whatever is unknown, and the mount what is known to be read
//! in large pieces, each once, of which it keeps no copy. A read that the mount serves is one event beside writes
//! (Promise S2), which the kernel's are not; so the kernel serves only files that nobody has open for writing when they
//! are opened. The answer holds for the life of the open file, since the kernel takes it with the answer to an open
//! alone; how wide its reads are locked when the file has become contended is decided with each of them (`ops::pages`).

use super::readers::Pieces;
use amphi_types::{IoMode, KernelCache};

/// Who serves reads, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// The file is smaller than what is read past all caches.
    KernelSmallFile,
    /// It may be executed: programs and libraries are read in pages, and again.
    KernelExecutable,
    /// It is known to be read in small pieces.
    KernelSmallReads,
    /// Nothing is known of how it is read.
    KernelUnknown,
    /// The program says that it reads small pieces.
    KernelAdvised,
    /// The file or the mount is set to the kernel's cache.
    KernelUser,
    /// The file or the mount is set to do without the kernel's cache.
    MountOff,
    /// The open file may write, or passes caches.
    MountOpen,
    /// The file, the process or the mount is set to a mode.
    MountUser,
    /// A server said lately that the file is contended.
    MountContended,
    /// Somebody has it open for writing, or nobody vouches that nobody has.
    MountWritten,
    /// It is large, and the memory group of the mount or of the caller is short: pages would be taken from others.
    MountMemory,
    /// The program says that it reads large pieces.
    MountAdvised,
    /// It is known to be read in large pieces.
    MountLarge,
    /// To look anew at a program whose long streams the kernel serves.
    MountLook,
}

impl Server {
    /// Whether that is the kernel.
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

/// What is known of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// What the file asks for, or else the mount.
    pub(crate) kernel_cache: KernelCache,
    /// Open for reading alone, without `O_DIRECT`, outside of any group.
    pub(crate) only_reads: bool,
    /// What was asked for by whoever counts most.
    pub(crate) asked: IoMode,
    /// A server said lately that an object of the file is contended.
    pub(crate) contended: bool,
    /// Somebody has it open for writing, or may have.
    pub(crate) written: bool,
    /// It may be executed by somebody.
    pub(crate) executable: bool,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// From this size on reads pass the cache.
    pub(crate) large_bytes: u64,
    /// The memory group of the mount or that of the caller has reached its share of the limit.
    pub(crate) memory_short: bool,
    /// In which pieces the program says that it reads.
    pub(crate) advised: Option<Pieces>,
    /// In which pieces the file is known to be read.
    pub(crate) known: Option<Pieces>,
    /// A look at the program is due.
    pub(crate) look: bool,
}

/// What is asked for by whoever counts most: the file, then the mount. `Auto` of a file says nothing.
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

/// Of a large file: by the pieces in which it is read.
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

    /// Goal: the order of the rules. Method: a table; each row turns on everything that must lose to its reason.
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
