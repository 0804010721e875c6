//! Named bounds that more than one crate must agree on.

/// Storage block: unit of allocation, of O_DIRECT alignment and of log writes, in bytes.
pub const BLOCK: u64 = 4096;
/// Longest entry name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Largest file in bytes: offsets are below 2^63.
pub const FILE_MAX: u64 = i64::MAX as u64;
/// Most hard links of an inode.
pub const LINK_MAX: u32 = 65_000;
/// Longest extended attribute name in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest extended attribute value in bytes.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// All extended attributes of one inode together, in bytes of names and values, and `XATTR_COST` for each.
pub const XATTR_TOTAL_MAX: usize = 131_072;
/// The cost of an extended attribute in addition to its bytes: more than its overhead in a record, so that one record
/// can remove all attributes of an inode.
pub const XATTR_COST: usize = 64;
/// Most payload bytes of one message.
pub const PAYLOAD_MAX: usize = 64 << 20;
/// Most bytes of an encoded message body, payload apart.
pub const BODY_MAX: usize = 1 << 20;
/// Most targets of a cluster.
pub const TARGETS_MAX: usize = 65_000;
/// Most supplementary groups that are sent with a request.
pub const GROUPS_MAX: usize = 1024;
