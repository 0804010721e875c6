//! Structures of the FUSE protocol in memory layout, sizes checked at compile time.
//!
//! Byte order is the machine's own. Names of members follow the kernel's documentation.

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($(#[$fdoc:meta])* $field:ident: $t:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $t,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

mod replies;
mod requests;

pub use replies::*;
pub use requests::*;

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Goal: members lie where the kernel's header puts them. Method: the offset of the member after each change of
    /// width, compared with offsets computed from the C declarations.
    #[test]
    fn offsets_match_the_kernel() {
        assert_eq!((offset_of!(InHeader, unique), offset_of!(InHeader, total_extlen)), (8, 36));
        assert_eq!((offset_of!(InitIn, flags2), offset_of!(InitOut, max_background)), (16, 16));
        assert_eq!((offset_of!(InitOut, max_pages), offset_of!(InitOut, flags2)), (28, 32));
        assert_eq!((offset_of!(Attr, atimensec), offset_of!(Attr, mode), offset_of!(Attr, blksize)), (48, 60, 80));
        assert_eq!((offset_of!(EntryOut, entry_valid_nsec), offset_of!(EntryOut, attr)), (32, 40));
        assert_eq!((offset_of!(SetattrIn, atimensec), offset_of!(SetattrIn, mode)), (56, 68));
        assert_eq!((offset_of!(SetattrIn, uid), offset_of!(SetattrIn, gid)), (76, 80));
        assert_eq!((offset_of!(StatxOut, stat), offset_of!(Statx, ino), offset_of!(Statx, atime)), (32, 32, 64));
        assert_eq!((offset_of!(Statx, btime), offset_of!(Statx, mtime), offset_of!(Statx, rdev_major)), (80, 112, 128));
        assert_eq!(
            (offset_of!(WriteIn, size), offset_of!(WriteIn, lock_owner), offset_of!(WriteIn, flags)),
            (16, 24, 32)
        );
        assert_eq!((offset_of!(LkIn, lk), offset_of!(LkIn, lk_flags), offset_of!(LkOut, kind)), (16, 40, 16));
        assert_eq!((offset_of!(IoctlIn, arg), offset_of!(FallocateIn, mode)), (16, 24));
        assert_eq!((offset_of!(CopyFileRangeIn, len), offset_of!(NotifyInvalInode, len)), (40, 16));
    }
}
