//! Who serves the reads of an open file: the kernel from its page cache, or the mount. One pure function, beside the
//! hybrid decision.
//!
//! Owns: the order of the rules and their names. Does not own: what they ask for at an open (`ops::input`), how pages
//! are taken back (`ops::pages`).
//!
//! A read that the kernel serves costs no request: 1 us instead of 20. It is worth that where the bytes are read again
//! or in small pieces, and only there: what is streamed once is better read in large requests, of which the mount knows
//! more than the kernel. A read that the mount serves is one event beside writes (Promise S2), which the kernel's are
//! not; so the kernel serves only files that nobody has open for writing when they are opened. The answer holds for the
//! life of the open file.

use amphi_types::IoMode;

/// Who serves reads, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// The file is smaller than what is read past all caches.
    KernelSmallFile,
    /// It may be executed: programs and libraries are read in pages, and again.
    KernelExecutable,
    /// Those who read it last asked for small pieces.
    KernelSmallReads,
    /// `hybrid.kernel_reads` is off.
    MountOff,
    /// The open file may write, or passes caches.
    MountOpen,
    /// The file, the process or the mount is set to a mode.
    MountUser,
    /// A server said lately that the file is contended.
    MountContended,
    /// Somebody has it open for writing, or nobody vouches that nobody has.
    MountWritten,
    /// It is large, and none of the others.
    MountLarge,
}

impl Server {
    /// Whether that is the kernel.
    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Server::KernelSmallFile | Server::KernelExecutable | Server::KernelSmallReads)
    }
}

/// What is known of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// `hybrid.kernel_reads`.
    pub(crate) on: bool,
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
    /// Those who read it last asked for less than the small threshold at a time.
    pub(crate) small_reads: bool,
}

/// Decides who serves the reads of an open file.
pub(crate) fn decide(input: &Input) -> Server {
    if !input.on {
        Server::MountOff
    } else if !input.only_reads {
        Server::MountOpen
    } else if input.asked != IoMode::Auto {
        Server::MountUser
    } else if input.contended {
        Server::MountContended
    } else if input.written {
        Server::MountWritten
    } else if input.executable {
        Server::KernelExecutable
    } else if input.size < input.large_bytes {
        Server::KernelSmallFile
    } else if input.small_reads {
        Server::KernelSmallReads
    } else {
        Server::MountLarge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the order of the rules. Method: a table; each row turns on everything that must lose to its reason.
    #[test]
    fn order_of_the_rules() {
        const BASE: Input = Input {
            on: true,
            only_reads: true,
            asked: IoMode::Auto,
            contended: false,
            written: false,
            executable: false,
            size: 4 << 20,
            large_bytes: 4 << 20,
            small_reads: false,
        };
        let all = Input { contended: true, written: true, executable: true, size: 1, small_reads: true, ..BASE };
        let table = [
            (Input { on: false, only_reads: false, asked: IoMode::Direct, ..all }, Server::MountOff),
            (Input { only_reads: false, asked: IoMode::Direct, ..all }, Server::MountOpen),
            (Input { asked: IoMode::Direct, ..all }, Server::MountUser),
            (Input { asked: IoMode::Buffered, ..all }, Server::MountUser),
            (all, Server::MountContended),
            (Input { contended: false, ..all }, Server::MountWritten),
            (Input { contended: false, written: false, ..all }, Server::KernelExecutable),
            (Input { executable: true, size: 1 << 30, ..BASE }, Server::KernelExecutable),
            (Input { small_reads: true, size: BASE.size - 1, ..BASE }, Server::KernelSmallFile),
            (Input { size: 0, ..BASE }, Server::KernelSmallFile),
            (Input { small_reads: true, ..BASE }, Server::KernelSmallReads),
            (BASE, Server::MountLarge),
        ];
        for (input, server) in table {
            assert_eq!(decide(&input), server, "{input:?}");
        }
    }
}
