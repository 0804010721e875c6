//! The hybrid decision (docs/HYBRID.md): one pure function decides from the known facts about a request whether it is
//! buffered or direct.
//!
//! Owns: the order of the rules, and their names. Does not own: how the inputs are measured, and which of several
//! settings counts (the callers).
//!
//! The order is that of autoIO (FAST'24): a size outside the window decides by itself. Within the window, the function
//! looks at contention first, then at memory, then at locality. Without locality, the measured throughput of both ways
//! counts as well. A large request also goes through the cache if no rule speaks against that and the cache was
//! measured to be faster.

/// Reads or writes, which are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// The way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Through the page cache of the mount.
    Buffered,
    /// Directly to the targets.
    Direct,
}

macro_rules! reasons {
    ($($name:ident = $text:literal, $help:literal;)*) => {
        /// Why a request was buffered or direct.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $help] $name,)* }
        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];
            /// The name in counters.
            pub fn name(self) -> &'static str { match self { $(Reason::$name => $text,)* } }
        }
    };
}

reasons! {
    DirectUser = "direct_user", "`O_DIRECT`, or the open file, file, process or mount is set to direct.";
    DirectLarge = "direct_large", "At least the large threshold.";
    DirectKernel = "direct_kernel", "It is for pages of the kernel, which keeps them and serves the reads of the open file.";
    DirectContention = "direct_contention", "In the window, the file is contended.";
    DirectMemory = "direct_memory", "In the window, memory is short.";
    DirectOvercache = "direct_overcache", "In the window, much of the file is in the cache already.";
    DirectLocality = "direct_locality", "In the window, the file's pages are not used again.";
    BufferedFaster = "buffered_faster", "In the window or above it, the file's pages are not used again, but the cache was measured to be the faster way.";
    BufferedUser = "buffered_user", "The open file, file, process or mount is set to buffered.";
    BufferedSmall = "buffered_small", "Below the small threshold.";
    BufferedUnaligned = "buffered_unaligned", "It would be direct, but is no multiple of blocks, and `hybrid.unaligned` is off.";
    BufferedDefault = "buffered_default", "In the window, nothing speaks against the cache.";
    CacheHit = "cache_hit", "All bytes were in the cache.";
}

/// The known facts about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Bytes that the application requested and that the cache does not serve; the pieces of one call are added.
    pub size: u64,
    /// The file is open with `O_DIRECT`.
    pub o_direct: bool,
    /// The mode that was set with the highest precedence; `None` if the rules decide.
    pub asked: Option<Mode>,
    /// Large threshold in bytes, for reads or writes and the kind of storage of this file.
    pub large_bytes: u64,
    /// Small threshold, bytes.
    pub small_bytes: u64,
    /// The read fills pages of the kernel, which keeps them. So the mount's cache would hold bytes that are not
    /// requested again.
    pub kernel_keeps: bool,
    /// A server reported lately that an object of the file is contended.
    pub contended: bool,
    /// The cache, or the memory cgroup of the mount or of the caller, has reached its share of the limit.
    pub memory_short: bool,
    /// The cached bytes of the file have reached their share of the limit for one file.
    pub overcache: bool,
    /// The file's pages were not used again lately, and this request is no probe. A large request is never a probe.
    pub no_locality: bool,
    /// Requests like this were measured to be faster through the cache.
    pub cache_is_faster: bool,
    /// The request is not a multiple of blocks, and such requests may not bypass the cache.
    pub misfit: bool,
}

/// The way of a request, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Buffered or direct.
    pub mode: Mode,
    /// The rule that decided.
    pub reason: Reason,
}

/// Decides how a request goes.
pub fn decide(input: &Input) -> Decision {
    match by_rules(input) {
        Decision { mode: Mode::Direct, .. } if input.misfit && !input.o_direct => {
            Decision { mode: Mode::Buffered, reason: Reason::BufferedUnaligned }
        }
        decision => decision,
    }
}

fn by_rules(input: &Input) -> Decision {
    let direct = |reason| Decision { mode: Mode::Direct, reason };
    let buffered = |reason| Decision { mode: Mode::Buffered, reason };
    if input.o_direct {
        return direct(Reason::DirectUser);
    }
    match input.asked {
        Some(Mode::Direct) => return direct(Reason::DirectUser),
        Some(Mode::Buffered) => return buffered(Reason::BufferedUser),
        None => {}
    }
    if input.size >= input.large_bytes {
        // If the cache is avoided because others need it or because memory is short, speed does not count.
        let others_lose = input.contended || input.memory_short || input.overcache || !input.no_locality;
        match input.cache_is_faster && !others_lose {
            true => buffered(Reason::BufferedFaster),
            false => direct(Reason::DirectLarge),
        }
    } else if input.size < input.small_bytes {
        buffered(Reason::BufferedSmall)
    } else if input.kernel_keeps {
        direct(Reason::DirectKernel)
    } else if input.contended {
        direct(Reason::DirectContention)
    } else if input.memory_short {
        direct(Reason::DirectMemory)
    } else if input.overcache {
        direct(Reason::DirectOvercache)
    } else if input.no_locality && !input.cache_is_faster {
        direct(Reason::DirectLocality)
    } else if input.no_locality {
        buffered(Reason::BufferedFaster)
    } else {
        buffered(Reason::BufferedDefault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Input = Input {
        size: 1 << 20,
        o_direct: false,
        asked: None,
        large_bytes: 2 << 20,
        small_bytes: 32 << 10,
        kernel_keeps: false,
        contended: false,
        memory_short: false,
        overcache: false,
        no_locality: false,
        cache_is_faster: false,
        misfit: false,
    };

    /// Goal: the order of the rules. Method: a table. Each row turns on every condition with a lower precedence than
    /// its reason.
    #[test]
    fn order_of_the_rules() {
        let all = Input { contended: true, memory_short: true, overcache: true, no_locality: true, ..BASE };
        let (buffered, direct) = (Some(Mode::Buffered), Some(Mode::Direct));
        let table = [
            (Input { o_direct: true, asked: buffered, size: 1, ..all }, Reason::DirectUser),
            (Input { asked: direct, size: 1, ..BASE }, Reason::DirectUser),
            (Input { asked: buffered, size: 1 << 30, ..all }, Reason::BufferedUser),
            (Input { size: 2 << 20, ..all }, Reason::DirectLarge),
            (Input { size: 2 << 20, no_locality: true, ..BASE }, Reason::DirectLarge),
            (Input { size: 2 << 20, no_locality: true, cache_is_faster: true, ..BASE }, Reason::BufferedFaster),
            (Input { size: 2 << 20, cache_is_faster: true, ..BASE }, Reason::DirectLarge),
            (
                Input { size: 2 << 20, cache_is_faster: true, contended: false, memory_short: false, ..all },
                Reason::DirectLarge,
            ),
            (
                Input { size: 2 << 20, cache_is_faster: true, contended: false, overcache: false, ..all },
                Reason::DirectLarge,
            ),
            (
                Input { size: 2 << 20, cache_is_faster: true, memory_short: false, overcache: false, ..all },
                Reason::DirectLarge,
            ),
            (Input { size: (32 << 10) - 1, ..all }, Reason::BufferedSmall),
            (Input { size: (32 << 10) - 1, kernel_keeps: true, ..all }, Reason::BufferedSmall),
            (Input { size: 2 << 20, kernel_keeps: true, ..all }, Reason::DirectLarge),
            (Input { kernel_keeps: true, ..all }, Reason::DirectKernel),
            (Input { kernel_keeps: true, asked: buffered, ..all }, Reason::BufferedUser),
            (Input { size: 32 << 10, ..all }, Reason::DirectContention),
            (Input { contended: false, ..all }, Reason::DirectMemory),
            (Input { contended: false, memory_short: false, ..all }, Reason::DirectOvercache),
            (Input { no_locality: true, ..BASE }, Reason::DirectLocality),
            (Input { no_locality: true, cache_is_faster: true, ..BASE }, Reason::BufferedFaster),
            (Input { cache_is_faster: true, ..BASE }, Reason::BufferedDefault),
            (Input { cache_is_faster: true, ..all }, Reason::DirectContention),
            (Input { size: (2 << 20) - 1, ..BASE }, Reason::BufferedDefault),
            (Input { large_bytes: 0, size: 1, ..BASE }, Reason::DirectLarge),
            (Input { misfit: true, size: 2 << 20, ..BASE }, Reason::BufferedUnaligned),
            (Input { misfit: true, ..all }, Reason::BufferedUnaligned),
            (Input { misfit: true, asked: direct, ..BASE }, Reason::BufferedUnaligned),
            (Input { misfit: true, o_direct: true, ..BASE }, Reason::DirectUser),
            (Input { misfit: true, size: 1, ..BASE }, Reason::BufferedSmall),
            (Input { misfit: true, ..BASE }, Reason::BufferedDefault),
        ];
        for (input, reason) in table {
            let d = decide(&input);
            assert_eq!(d.reason, reason, "{input:?}");
            assert_eq!(d.mode == Mode::Direct, reason.name().starts_with("direct"), "{input:?}");
        }
    }
}
