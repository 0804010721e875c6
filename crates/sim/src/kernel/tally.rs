//! `Tally`: counts of what the kernels of a game did. Owns: the counters. Does not own: when they count (`Kernel`).

/// Counts of a kernel's actions, for the summary and to verify that it did anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Pages that the kernel showed from its cache.
    pub hits: u64,
    /// Requests for pages.
    pub reads: u64,
    /// Reads that the mount served.
    pub passed: u64,
    /// Attributes that the kernel showed from its cache.
    pub attributes: u64,
    /// Names that the kernel showed from its cache.
    pub names: u64,
    /// Names that got a timeout in shared mode.
    pub lent_names: u64,
    /// Invalidations of pages.
    pub drops: u64,
    /// Pages that invalidations dropped.
    pub dropped: u64,
    /// Opens that kept existing pages.
    pub kept_opens: u64,
    /// Changed pages that were written back.
    pub written_back: u64,
    /// Listings that the kernel showed from its cache.
    pub listings: u64,
    /// Listings that were requested from the mount, through open directories whose listings the kernel may cache.
    pub listings_read: u64,
    /// Cached listings that were dropped, for another time or by an invalidation.
    pub listings_dropped: u64,
    /// Opens of a directory that continued with the cached listing.
    pub listings_opened: u64,
    /// Positions after appends that had to be right, and those that need not be, because another mount may have moved
    /// the end.
    pub positions: (u64, u64),
}

impl Tally {
    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.hits += other.hits;
        self.reads += other.reads;
        self.passed += other.passed;
        self.attributes += other.attributes;
        self.names += other.names;
        self.lent_names += other.lent_names;
        self.drops += other.drops;
        self.dropped += other.dropped;
        self.kept_opens += other.kept_opens;
        self.written_back += other.written_back;
        self.listings += other.listings;
        self.listings_read += other.listings_read;
        self.listings_dropped += other.listings_dropped;
        self.listings_opened += other.listings_opened;
        self.positions.0 += other.positions.0;
        self.positions.1 += other.positions.1;
    }
}
