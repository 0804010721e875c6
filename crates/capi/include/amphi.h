/* libamphi: AmphiFS as a C library. docs/CAPI.md states what the functions promise.
 * Made by `cargo xtask header` of crates/capi; do not change it by hand. */

#ifndef AMPHI_H
#define AMPHI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/**
 * What `amphi_version` returns with this header: major version, then minor version in the lower 16 bits. Programs run
 * with any library of the same major version that is not older than the header they were compiled with.
 */
#define AMPHI_VERSION (1 << 16)

/**
 * Path functions: a symbolic link at the end of the path is itself meant.
 */
#define AMPHI_NOFOLLOW 1

/**
 * `amphi_link`: a symbolic link at the end of the old path is followed.
 */
#define AMPHI_FOLLOW 2

/**
 * `amphi_unlink`: removes an empty directory instead of a file.
 */
#define AMPHI_REMOVEDIR 4

/**
 * `amphi_rename`: fails with `EEXIST` if the new name exists.
 */
#define AMPHI_RENAME_NOREPLACE 1

/**
 * `amphi_rename`: exchanges the two names.
 */
#define AMPHI_RENAME_EXCHANGE 2

/**
 * `amphi_setxattr`: fails with `EEXIST` if the attribute exists.
 */
#define AMPHI_XATTR_CREATE 1

/**
 * `amphi_setxattr`: fails with `ENODATA` unless the attribute exists.
 */
#define AMPHI_XATTR_REPLACE 2

/**
 * `amphi_opendir`: entries come with attributes.
 */
#define AMPHI_DIR_ATTRIBUTES 1

/**
 * `amphi_setattr`: permission bits, `mode & 07777`.
 */
#define AMPHI_SET_MODE 1

/**
 * `amphi_setattr`: the owner.
 */
#define AMPHI_SET_UID 2

/**
 * `amphi_setattr`: the group.
 */
#define AMPHI_SET_GID 4

/**
 * `amphi_setattr`: the length.
 */
#define AMPHI_SET_SIZE 8

/**
 * `amphi_setattr`: the time of the last access.
 */
#define AMPHI_SET_ATIME 16

/**
 * `amphi_setattr`: the time of the last change of the content.
 */
#define AMPHI_SET_MTIME 32

/**
 * `amphi_setattr`: the time of the last access is now.
 */
#define AMPHI_SET_ATIME_NOW 64

/**
 * `amphi_setattr`: the time of the last change of the content is now.
 */
#define AMPHI_SET_MTIME_NOW 128

/**
 * `amphi_advise`: nothing any more.
 */
#define AMPHI_ADVISE_NORMAL 0

/**
 * `amphi_advise`: the file is read at random.
 */
#define AMPHI_ADVISE_RANDOM 1

/**
 * `amphi_advise`: the file is read in sequence.
 */
#define AMPHI_ADVISE_SEQUENTIAL 2

/**
 * `amphi_advise`: the range will be read soon.
 */
#define AMPHI_ADVISE_WILLNEED 3

/**
 * `amphi_advise`: the range is not needed any more.
 */
#define AMPHI_ADVISE_DONTNEED 4

/**
 * `amphi_advise`: the file is read once.
 */
#define AMPHI_ADVISE_ONCE 5

/**
 * `amphi_lock_ahead`: the range will be written, not only read.
 */
#define AMPHI_LOCK_WRITE 1

/**
 * `amphi_lock_ahead`: waits for the answer of the servers.
 */
#define AMPHI_LOCK_WAIT 2

/**
 * `amphi_lock_ahead` returns: the request was sent, or, after a wait, refused.
 */
#define AMPHI_LOCK_SENT 0

/**
 * `amphi_lock_ahead` returns: this client has the lock.
 */
#define AMPHI_LOCK_HELD 1

/**
 * `amphi_lock_ahead` returns: another lock of this client covers the range.
 */
#define AMPHI_LOCK_COVERED 2

/**
 * `amphi_group_lock`: fails with `EAGAIN` instead of waiting for another group.
 */
#define AMPHI_GROUP_NOWAIT 1

/**
 * Request: reads `len` bytes at `offset` into `buffer`.
 */
#define AMPHI_OP_READ 1

/**
 * Request: writes `len` bytes of `buffer` at `offset`.
 */
#define AMPHI_OP_WRITE 2

/**
 * Request: as `amphi_fsync`.
 */
#define AMPHI_OP_FSYNC 3

/**
 * Request: as `amphi_fdatasync`.
 */
#define AMPHI_OP_FDATASYNC 4

/**
 * A file system, an open file, an open directory or a queue; never negative. Functions that open something return a
 * handle or a negative errno.
 */
typedef int64_t amphi_handle;

/**
 * How a cluster is opened. All zeros but `size` and `servers` are the defaults.
 */
struct amphi_options {
  /**
   * `sizeof(struct amphi_options)`.
   */
  uint32_t size;
  /**
   * How long the library's thread polls for answers before it sleeps, microseconds; 0: 100.
   */
  uint32_t spin_us;
  /**
   * Addresses of servers, separated by blanks: `HOST:PORT` or `unix:PATH`.
   */
  const char *servers;
  /**
   * File with the cluster key, or NULL.
   */
  const char *key_file;
  /**
   * File with this host's own key pair, or NULL.
   */
  const char *identity_file;
  /**
   * Bytes of the page cache; 0: 1/4 of the memory of the machine.
   */
  uint64_t cache_bytes;
  /**
   * Tunables as in `amphi mount --set`, `NAME=VALUE` each, separated by blanks, or NULL.
   */
  const char *tunables;
  /**
   * Permission bits that new files and directories do not get; -1: the umask of the process as it is now.
   */
  int32_t umask;
  /**
   * Zero.
   */
  uint32_t reserved;
};

/**
 * A time since the epoch.
 */
struct amphi_time {
  /**
   * Seconds.
   */
  int64_t sec;
  /**
   * Nanoseconds, below 10^9.
   */
  uint32_t nsec;
  /**
   * Zero.
   */
  uint32_t reserved;
};

/**
 * Attributes, as those of stat(2).
 */
struct amphi_stat {
  /**
   * `sizeof(struct amphi_stat)`, set by the caller.
   */
  uint32_t struct_size;
  /**
   * Kind and permissions, as `st_mode`.
   */
  uint32_t mode;
  /**
   * Number of the inode.
   */
  uint64_t ino;
  /**
   * Length in bytes.
   */
  uint64_t size;
  /**
   * Storage in use, units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * Names of the inode.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Device that a device node stands for, as `makedev` makes it.
   */
  uint32_t rdev;
  /**
   * Last access.
   */
  struct amphi_time atime;
  /**
   * Last change of the content.
   */
  struct amphi_time mtime;
  /**
   * Last change of content or attributes.
   */
  struct amphi_time ctime;
  /**
   * Creation.
   */
  struct amphi_time btime;
};

/**
 * Attributes to set.
 */
struct amphi_setattr {
  /**
   * `sizeof(struct amphi_setattr)`.
   */
  uint32_t struct_size;
  /**
   * Which of the following count: `AMPHI_SET_*`.
   */
  uint32_t valid;
  /**
   * Permission bits.
   */
  uint32_t mode;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * Length in bytes.
   */
  uint64_t size;
  /**
   * Last access.
   */
  struct amphi_time atime;
  /**
   * Last change of the content.
   */
  struct amphi_time mtime;
};

/**
 * Space of a file system, as `statvfs`.
 */
struct amphi_statfs {
  /**
   * `sizeof(struct amphi_statfs)`, set by the caller.
   */
  uint32_t struct_size;
  /**
   * Bytes of a block.
   */
  uint32_t block_bytes;
  /**
   * Blocks.
   */
  uint64_t blocks;
  /**
   * Blocks that are free.
   */
  uint64_t blocks_free;
  /**
   * Inodes in use and free.
   */
  uint64_t inodes;
  /**
   * Inodes that are free.
   */
  uint64_t inodes_free;
  /**
   * Longest name, bytes.
   */
  uint32_t name_max;
  /**
   * Zero.
   */
  uint32_t reserved;
};

/**
 * An entry of a directory.
 */
struct amphi_entry {
  /**
   * Where `amphi_seekdir` goes on behind this entry.
   */
  uint64_t cookie;
  /**
   * Number of the inode.
   */
  uint64_t ino;
  /**
   * Kind, as `d_type` of readdir(3).
   */
  uint32_t kind;
  /**
   * Bytes of the name.
   */
  uint32_t name_len;
  /**
   * Attributes if the directory was opened with `AMPHI_DIR_ATTRIBUTES`; otherwise its `struct_size` is 0.
   */
  struct amphi_stat stat;
  /**
   * The name, ended by a zero byte.
   */
  char name[256];
};

/**
 * A request to a queue.
 */
struct amphi_request {
  /**
   * `sizeof(struct amphi_request)`, the same in all requests of a call.
   */
  uint32_t size;
  /**
   * `AMPHI_OP_*`.
   */
  uint32_t op;
  /**
   * Comes back with the completion.
   */
  uint64_t tag;
  /**
   * The open file.
   */
  amphi_handle file;
  /**
   * The memory, which belongs to the library until the completion was taken.
   */
  void *buffer;
  /**
   * Bytes.
   */
  uint64_t len;
  /**
   * Where in the file.
   */
  int64_t offset;
  /**
   * Zero.
   */
  uint32_t flags;
  /**
   * Zero.
   */
  uint32_t reserved;
};

/**
 * The end of a request.
 */
struct amphi_completion {
  /**
   * That of the request.
   */
  uint64_t tag;
  /**
   * What the call of the same name would have returned: bytes, 0, or a negative errno.
   */
  int64_t result;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library: see `AMPHI_VERSION`.
 */
uint32_t amphi_version(void);

/**
 * What the latest failure of this thread was: call, path, meaning and what to do about it. Stays until the next
 * failure of the thread. Empty if there was none.
 */
const char *amphi_error(void);

/**
 * A client of a cluster in this process, with one thread of its own and without a mount. Returns its handle when it is
 * connected.
 *
 * Errors: `EINVAL` for options that make no sense, `ENOTCONN` if no server can be reached or it refuses, or in a child
 * of a process that has had a client.
 */
amphi_handle amphi_open_cluster(const struct amphi_options *options);

/**
 * The file system that is mounted on this machine at `directory`, or on one above it; paths begin at `directory`.
 * Needs no thread and no server.
 *
 * Errors: `ENODEV` if it is not on a mount of AmphiFS, those of open(2).
 */
amphi_handle amphi_attach(const char *directory);

/**
 * Closes any handle. Of a file: returns failures of write-back that it has not told yet, as close(2) does. Of a queue:
 * waits for all its requests. Of a cluster: writes everything back, leaves the cluster, and ends its thread; what is
 * open of it fails with `ENOTCONN` from then on. In any case the handle is closed on return.
 *
 * Errors: `EBADF` for a number that is not open, `EIO`, `ENOSPC` and `EDQUOT` for bytes that were lost.
 */
int amphi_close(amphi_handle handle);

/**
 * Writes back everything that is dirty in a cluster, and makes it stable, as syncfs(2).
 */
int amphi_sync(amphi_handle fs_handle);

/**
 * Sets the permission bits that new files and directories of a cluster do not get, and returns those of before.
 *
 * Errors: `EOPNOTSUPP` over a mount, where umask(2) counts; `EINVAL`.
 */
int amphi_umask(amphi_handle fs_handle,
                uint32_t mask);

/**
 * Opens a regular file. `at`: a file system or an open directory; `flags` and `mode` are those of open(2).
 *
 * Errors: those of open(2); `EISDIR` for a directory (`amphi_opendir`), `EOPNOTSUPP` for devices, pipes and sockets.
 */
amphi_handle amphi_open(amphi_handle at_handle,
                        const char *path,
                        int flags,
                        uint32_t mode);

/**
 * A file of a mount that is open already, by a descriptor of its own: `fd` may be closed.
 *
 * Errors: `EXDEV` if it is on another file system, `EOPNOTSUPP` in a cluster.
 */
amphi_handle amphi_from_fd(amphi_handle fs_handle, int fd);

/**
 * The descriptor of an open file of a mount, for calls that are not here. It belongs to the library: do not close it.
 *
 * Errors: `EOPNOTSUPP` in a cluster.
 */
int amphi_fd(amphi_handle file);

/**
 * Opens a directory, to list it and as the beginning of paths. `flags`: `AMPHI_DIR_ATTRIBUTES` or 0.
 *
 * Errors: those of open(2) with `O_DIRECTORY`.
 */
amphi_handle amphi_opendir(amphi_handle at_handle, const char *path, uint32_t flags);

/**
 * Reads up to `len` bytes at `offset` into `buffer`. Returns how many: fewer at the end of the file.
 *
 * Errors: those of pread(2), but `EINVAL` for a null pointer.
 */
int64_t amphi_pread(amphi_handle file, void *buffer, size_t len, int64_t offset);

/**
 * Writes `len` bytes of `buffer` at `offset`, or at the end of a file that was opened with `O_APPEND`. Returns how
 * many: fewer only if storage or a limit ends there.
 *
 * Errors: those of pwrite(2), but `EINVAL` for a null pointer.
 */
int64_t amphi_pwrite(amphi_handle file,
                     const void *buffer,
                     size_t len,
                     int64_t offset);

/**
 * As `amphi_pread`, into up to 1,024 buffers one after the other.
 */
int64_t amphi_preadv(amphi_handle file_handle, const struct iovec *vector, int count, int64_t offset);

/**
 * As `amphi_pwrite`, from up to 1,024 buffers one after the other, as one write.
 */
int64_t amphi_pwritev(amphi_handle file_handle, const struct iovec *vector, int count, int64_t offset);

/**
 * Returns when all that was written to the file, and its attributes, are on stable storage; of a directory: its
 * entries.
 *
 * Errors: failures of write-back that this open file was not told of, once.
 */
int amphi_fsync(amphi_handle handle);

/**
 * As `amphi_fsync`, but only what is needed to find the data again.
 */
int amphi_fdatasync(amphi_handle handle);

/**
 * Sets the length: what is beyond it goes, what is added reads as zeros.
 *
 * Errors: those of ftruncate(2).
 */
int amphi_ftruncate(amphi_handle file, int64_t size);

/**
 * Reserves or frees storage; `mode` is that of fallocate(2): 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE |
 * FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_ZERO_RANGE`.
 *
 * Errors: those of fallocate(2).
 */
int amphi_fallocate(amphi_handle file,
                    int mode,
                    int64_t offset,
                    int64_t len);

/**
 * The attributes of an open file. The caller sets `struct_size`.
 */
int amphi_fstat(amphi_handle file, struct amphi_stat *stat);

/**
 * Sets attributes of an open file, those that `valid` names.
 */
int amphi_fsetattr(amphi_handle file, const struct amphi_setattr *set);

/**
 * Where data (`SEEK_DATA`) or a hole (`SEEK_HOLE`) begins, at `offset` or behind it. Files have no position: others
 * are refused.
 *
 * Errors: `ENXIO` beyond the end, or if no more data follows.
 */
int64_t amphi_seek(amphi_handle file,
                   int64_t offset,
                   int whence);

/**
 * Copies up to `len` bytes between files of one file system, without passing them through the program. Returns how
 * many.
 *
 * Errors: those of copy_file_range(2); `EXDEV` for files of two file systems.
 */
int64_t amphi_copy_range(amphi_handle from,
                         int64_t from_offset,
                         amphi_handle to,
                         int64_t to_offset,
                         size_t len);

/**
 * Says how `len` bytes at `offset` will be used (0: to the end), as posix_fadvise(2): `AMPHI_ADVISE_*`.
 */
int amphi_advise(amphi_handle file, int64_t offset, int64_t len, uint32_t advice);

/**
 * Asks for a lock of the cluster on bytes that will be read, or written with `AMPHI_LOCK_WRITE`, before they are; see
 * docs/IOCTL.md. Returns `AMPHI_LOCK_SENT`, `AMPHI_LOCK_HELD` or `AMPHI_LOCK_COVERED`.
 *
 * Errors: `EBADF` if it is not open for that, `EINVAL` for no bytes, `EBUSY` if too many are under way.
 */
int amphi_lock_ahead(amphi_handle file,
                     int64_t offset,
                     int64_t len,
                     uint32_t flags);

/**
 * Makes the open file a member of a group (not 0): until all members have left, they alone do I/O on the file, and
 * order it themselves; see docs/IOCTL.md.
 *
 * Errors: `EINVAL` if it is a member; `EAGAIN` with `AMPHI_GROUP_NOWAIT` if another group has the file.
 */
int amphi_group_lock(amphi_handle file,
                     uint64_t group,
                     uint32_t flags);

/**
 * Leaves the group. The last member of this client writes everything back.
 *
 * Errors: `EINVAL` if it is no member of it; failures of write-back.
 */
int amphi_group_unlock(amphi_handle file, uint64_t group);

/**
 * Whether anybody waits for the end of the group that the open file is a member of: 0 or 1.
 *
 * Errors: `EINVAL` if it is no member.
 */
int amphi_group_wanted(amphi_handle file);

/**
 * The attributes of what a path shows. `flags`: `AMPHI_NOFOLLOW` or 0. The caller sets `struct_size`.
 */
int amphi_stat(amphi_handle at, const char *path, struct amphi_stat *stat, uint32_t flags);

/**
 * Sets attributes of what a path shows, those that `valid` names, in a cluster in one step. `flags`: `AMPHI_NOFOLLOW`
 * or 0.
 */
int amphi_setattr(amphi_handle at,
                  const char *path,
                  const struct amphi_setattr *set,
                  uint32_t flags);

/**
 * Space of a file system, as it is seen from a directory with a limit of its own. The caller sets `struct_size`.
 */
int amphi_statfs(amphi_handle at_handle,
                 struct amphi_statfs *statfs);

/**
 * Makes a directory.
 */
int amphi_mkdir(amphi_handle at, const char *path, uint32_t mode);

/**
 * Removes an empty directory.
 */
int amphi_rmdir(amphi_handle at, const char *path);

/**
 * Removes a name that is no directory; with `AMPHI_REMOVEDIR` as `amphi_rmdir`.
 */
int amphi_unlink(amphi_handle at, const char *path, uint32_t flags);

/**
 * Renames, in one step: what has the new name is replaced. `flags`: one of `AMPHI_RENAME_*` or 0.
 */
int amphi_rename(amphi_handle from_at, const char *from, amphi_handle to_at, const char *to, uint32_t flags);

/**
 * Makes a further name. A symbolic link at the end of the old path is itself meant, unless `flags` is `AMPHI_FOLLOW`.
 */
int amphi_link(amphi_handle from_at,
               const char *from,
               amphi_handle to_at,
               const char *to,
               uint32_t flags);

/**
 * Makes a symbolic link to `target`.
 */
int amphi_symlink(const char *target, amphi_handle at, const char *path);

/**
 * The target of a symbolic link, without a zero byte behind it, cut at `size` bytes. Returns how many were stored.
 */
int64_t amphi_readlink(amphi_handle at,
                       const char *path,
                       char *buffer,
                       size_t size);

/**
 * The next entries of an open directory, up to `count`, in the order of the file system, with `.` and `..`.
 * `entry_size`: `sizeof(struct amphi_entry)`. Returns how many; 0 at the end. Entries that are made or removed
 * meanwhile are listed or not; all others are listed once.
 */
int64_t amphi_readdir(amphi_handle dir_handle,
                      struct amphi_entry *entries,
                      size_t count,
                      size_t entry_size);

/**
 * Goes on behind the entry that had this cookie; 0: from the start.
 */
int amphi_seekdir(amphi_handle dir_handle, uint64_t cookie);

/**
 * The value of an extended attribute. `size` 0 asks for its length. `flags`: `AMPHI_NOFOLLOW` or 0. Returns its
 * length.
 *
 * Errors: those of getxattr(2).
 */
int64_t amphi_getxattr(amphi_handle at,
                       const char *path,
                       const char *name,
                       void *buffer,
                       size_t size,
                       uint32_t flags);

/**
 * As `amphi_getxattr`, of an open file.
 */
int64_t amphi_fgetxattr(amphi_handle file_handle, const char *name, void *buffer, size_t size);

/**
 * Sets an extended attribute. `how`: one of `AMPHI_XATTR_*` or 0. `flags`: `AMPHI_NOFOLLOW` or 0.
 *
 * Errors: those of setxattr(2).
 */
int amphi_setxattr(amphi_handle at,
                   const char *path,
                   const char *name,
                   const void *buffer,
                   size_t size,
                   uint32_t how,
                   uint32_t flags);

/**
 * As `amphi_setxattr`, of an open file.
 */
int amphi_fsetxattr(amphi_handle file_handle,
                    const char *name,
                    const void *buffer,
                    size_t size,
                    uint32_t how);

/**
 * The names of the extended attributes, each ended by a zero byte. `size` 0 asks for their length. Returns their
 * length.
 */
int64_t amphi_listxattr(amphi_handle at,
                        const char *path,
                        char *buffer,
                        size_t size,
                        uint32_t flags);

/**
 * As `amphi_listxattr`, of an open file.
 */
int64_t amphi_flistxattr(amphi_handle file_handle, char *buffer, size_t size);

/**
 * Removes an extended attribute. `flags`: `AMPHI_NOFOLLOW` or 0.
 *
 * Errors: those of removexattr(2).
 */
int amphi_removexattr(amphi_handle at, const char *path, const char *name, uint32_t flags);

/**
 * As `amphi_removexattr`, of an open file.
 */
int amphi_fremovexattr(amphi_handle file_handle, const char *name);

/**
 * A queue of up to `depth` requests (at most 4,096) to files of a file system. One thread at a time uses it; a program
 * has as many as it likes.
 */
amphi_handle amphi_queue_open(amphi_handle fs_handle,
                              uint32_t depth);

/**
 * Begins requests. Returns how many were taken, from the first on: as many as the queue has room for. What is wrong
 * with a request its completion says. The memory of requests belongs to the library until their completions were
 * taken.
 *
 * Errors: `EAGAIN` if there was no room for any, `EBUSY` if another thread uses the queue.
 */
int64_t amphi_submit(amphi_handle queue_handle,
                     const struct amphi_request *requests,
                     size_t count);

/**
 * Takes up to `max` completions, in the order in which the requests ended, without waiting. Returns how many.
 */
int64_t amphi_peek(amphi_handle queue_handle, struct amphi_completion *into, size_t max);

/**
 * As `amphi_peek`, but waits until there are `min` completions (no more than are under way), or until `timeout_ns`
 * nanoseconds have gone by; negative: without a limit. Returns how many were taken.
 */
int64_t amphi_wait(amphi_handle queue_handle,
                   struct amphi_completion *into,
                   size_t max,
                   size_t min,
                   int64_t timeout_ns);

/**
 * Zeroed memory of `size` bytes for direct I/O: it begins on a page, and on a huge page from 2 MiB on. A write of it
 * to a file that is open with `O_DIRECT` is not copied in this process. NULL if there is none; `amphi_error` says why.
 */
void *amphi_alloc(size_t size);

/**
 * Gives memory of `amphi_alloc` back; NULL is nothing. No request may be under way with it.
 *
 * Errors: `EINVAL` if it is none.
 */
int amphi_free(void *memory);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AMPHI_H */
