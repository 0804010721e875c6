/* The same calls by one of three ways: a client in this process, the C library over a mount, or system calls on the
 * mount. Prints a line for each result, so that the three can be compared.
 * usage: twin cluster|node|calls WHERE DIRECTORY */
#define _GNU_SOURCE
#include <amphi.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static int by_calls;
static amphi_handle fs; /* The directory of the test. */
static int base;
static char proc_path[64];

static long long told(long long result) { return result < 0 ? -errno : result; }

static void show(const char *what, long long result) {
  if (result < 0)
    printf("%s: %s\n", what, strerrorname_np((int)-result));
  else
    printf("%s: %lld\n", what, result);
}

static long long t_open(const char *path, int flags, unsigned mode) {
  return by_calls ? told(openat(base, path, flags | O_CLOEXEC, mode)) : amphi_open(fs, path, flags, mode);
}
static long long t_close(long long f) { return by_calls ? told(close((int)f)) : amphi_close(f); }
static long long t_pread(long long f, void *b, size_t n, long long at) {
  return by_calls ? told(pread((int)f, b, n, at)) : amphi_pread(f, b, n, at);
}
static long long t_pwrite(long long f, const void *b, size_t n, long long at) {
  return by_calls ? told(pwrite((int)f, b, n, at)) : amphi_pwrite(f, b, n, at);
}
static long long t_preadv(long long f, struct iovec *v, int n, long long at) {
  return by_calls ? told(preadv((int)f, v, n, at)) : amphi_preadv(f, v, n, at);
}
static long long t_pwritev(long long f, struct iovec *v, int n, long long at) {
  return by_calls ? told(pwritev((int)f, v, n, at)) : amphi_pwritev(f, v, n, at);
}
static long long t_fsync(long long f) { return by_calls ? told(fsync((int)f)) : amphi_fsync(f); }
static long long t_fdatasync(long long f) { return by_calls ? told(fdatasync((int)f)) : amphi_fdatasync(f); }
static long long t_ftruncate(long long f, long long n) {
  return by_calls ? told(ftruncate((int)f, n)) : amphi_ftruncate(f, n);
}
static long long t_fallocate(long long f, int mode, long long at, long long n) {
  return by_calls ? told(fallocate((int)f, mode, at, n)) : amphi_fallocate(f, mode, at, n);
}
static long long t_seek(long long f, long long at, int whence) {
  return by_calls ? told(lseek((int)f, at, whence)) : amphi_seek(f, at, whence);
}
static long long t_copy(long long f, long long at, long long g, long long to, size_t n) {
  if (!by_calls) return amphi_copy_range(f, at, g, to, n);
  off_t a = at, b = to;
  return told(copy_file_range((int)f, &a, (int)g, &b, n, 0));
}
static long long t_mkdir(const char *p, unsigned mode) {
  return by_calls ? told(mkdirat(base, p, mode)) : amphi_mkdir(fs, p, mode);
}
static long long t_rmdir(const char *p) {
  return by_calls ? told(unlinkat(base, p, AT_REMOVEDIR)) : amphi_rmdir(fs, p);
}
static long long t_unlink(const char *p) { return by_calls ? told(unlinkat(base, p, 0)) : amphi_unlink(fs, p, 0); }
static long long t_rename(const char *a, const char *b, unsigned flags) {
  return by_calls ? told(renameat2(base, a, base, b, flags)) : amphi_rename(fs, a, fs, b, flags);
}
static long long t_link(const char *a, const char *b, int follow) {
  return by_calls ? told(linkat(base, a, base, b, follow ? AT_SYMLINK_FOLLOW : 0))
                  : amphi_link(fs, a, fs, b, follow ? AMPHI_FOLLOW : 0);
}
static long long t_symlink(const char *target, const char *p) {
  return by_calls ? told(symlinkat(target, base, p)) : amphi_symlink(target, fs, p);
}
static long long t_readlink(const char *p, char *b, size_t n) {
  return by_calls ? told(readlinkat(base, p, b, n)) : amphi_readlink(fs, p, b, n);
}
static const char *of(const char *p) {
  static char whole[8192];
  snprintf(whole, sizeof whole, "%s/%s", proc_path, p);
  return whole;
}
static long long t_getxattr(const char *p, const char *name, void *b, size_t n) {
  return by_calls ? told(getxattr(of(p), name, b, n)) : amphi_getxattr(fs, p, name, b, n, 0);
}
static long long t_setxattr(const char *p, const char *name, const void *b, size_t n, int how) {
  return by_calls ? told(setxattr(of(p), name, b, n, how)) : amphi_setxattr(fs, p, name, b, n, (unsigned)how, 0);
}
static long long t_lsetxattr(const char *p, const char *name, const void *b, size_t n) {
  return by_calls ? told(lsetxattr(of(p), name, b, n, 0)) : amphi_setxattr(fs, p, name, b, n, 0, AMPHI_NOFOLLOW);
}
static long long t_listxattr(const char *p, char *b, size_t n) {
  return by_calls ? told(listxattr(of(p), b, n)) : amphi_listxattr(fs, p, b, n, 0);
}
static long long t_removexattr(const char *p, const char *name) {
  return by_calls ? told(removexattr(of(p), name)) : amphi_removexattr(fs, p, name, 0);
}
static long long t_fgetxattr(long long f, const char *name, void *b, size_t n) {
  return by_calls ? told(fgetxattr((int)f, name, b, n)) : amphi_fgetxattr(f, name, b, n);
}
static long long t_fsetxattr(long long f, const char *name, const void *b, size_t n) {
  return by_calls ? told(fsetxattr((int)f, name, b, n, 0)) : amphi_fsetxattr(f, name, b, n, 0);
}

static void show_stat(const char *what, long long result, unsigned mode, unsigned long long size, unsigned nlink,
                      unsigned uid, unsigned gid, long long mtime) {
  if (result < 0) {
    show(what, result);
    return;
  }
  /* Times that were set are told from those of now; the length of a directory is nobody's business. */
  if (S_ISDIR(mode)) size = 0;
  printf("%s: %o %llu %u %u %u %lld\n", what, mode, size, nlink, uid, gid, mtime < 1000000000 ? mtime : -1);
}
static void t_stat(const char *p, int follow) {
  char what[5000];
  snprintf(what, sizeof what, "stat %.300s %d", p, follow);
  if (by_calls) {
    struct stat s;
    long long r = told(fstatat(base, p, &s, follow ? 0 : AT_SYMLINK_NOFOLLOW));
    show_stat(what, r, s.st_mode, (unsigned long long)s.st_size, (unsigned)s.st_nlink, s.st_uid, s.st_gid, s.st_mtime);
  } else {
    struct amphi_stat s = {.struct_size = sizeof s};
    long long r = amphi_stat(fs, p, &s, follow ? 0 : AMPHI_NOFOLLOW);
    show_stat(what, r, s.mode, s.size, s.nlink, s.uid, s.gid, s.mtime.sec);
  }
}
static void t_fstat(long long f) {
  if (by_calls) {
    struct stat s;
    long long r = told(fstat((int)f, &s));
    show_stat("fstat", r, s.st_mode, (unsigned long long)s.st_size, (unsigned)s.st_nlink, s.st_uid, s.st_gid, s.st_mtime);
  } else {
    struct amphi_stat s = {.struct_size = sizeof s};
    long long r = amphi_fstat(f, &s);
    show_stat("fstat", r, s.mode, s.size, s.nlink, s.uid, s.gid, s.mtime.sec);
  }
}
static long long t_chmod(const char *p, unsigned mode) {
  if (by_calls) return told(fchmodat(base, p, mode, 0));
  struct amphi_setattr set = {.struct_size = sizeof set, .valid = AMPHI_SET_MODE, .mode = mode};
  return amphi_setattr(fs, p, &set, 0);
}
static long long t_chown(const char *p, unsigned uid, unsigned gid, int follow) {
  if (by_calls) return told(fchownat(base, p, uid, gid, follow ? 0 : AT_SYMLINK_NOFOLLOW));
  struct amphi_setattr set = {.struct_size = sizeof set, .valid = AMPHI_SET_UID | AMPHI_SET_GID, .uid = uid, .gid = gid};
  return amphi_setattr(fs, p, &set, follow ? 0 : AMPHI_NOFOLLOW);
}
static long long t_utimes(const char *p, long long atime, long long mtime) {
  if (by_calls) {
    struct timespec t[2] = {{.tv_sec = atime}, {.tv_sec = mtime}};
    return told(utimensat(base, p, t, 0));
  }
  struct amphi_setattr set = {.struct_size = sizeof set,
                              .valid = AMPHI_SET_ATIME | AMPHI_SET_MTIME,
                              .atime = {.sec = atime},
                              .mtime = {.sec = mtime}};
  return amphi_setattr(fs, p, &set, 0);
}
static long long t_truncate(const char *p, long long size) {
  if (by_calls) return told(truncate(of(p), size));
  struct amphi_setattr set = {.struct_size = sizeof set, .valid = AMPHI_SET_SIZE, .size = (unsigned long long)size};
  return amphi_setattr(fs, p, &set, 0);
}

static unsigned long long hash(const void *b, size_t n) {
  unsigned long long h = 1469598103934665603u;
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)b)[i]) * 1099511628211u;
  return h;
}
static int before(const void *a, const void *b) { return strcmp(a, b); }

static void t_list(const char *p) {
  static char names[4096][300];
  size_t n = 0;
  if (by_calls) {
    int fd = openat(base, p, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
      show("list", -errno);
      return;
    }
    DIR *d = fdopendir(fd);
    for (struct dirent *e; n < 4096 && (e = readdir(d));) {
      struct stat s;
      fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW);
      snprintf(names[n++], 300, "%s %d %o", e->d_name, e->d_type, s.st_mode);
    }
    closedir(d);
  } else {
    amphi_handle d = amphi_opendir(fs, p, AMPHI_DIR_ATTRIBUTES);
    if (d < 0) {
      show("list", d);
      return;
    }
    struct amphi_entry some[7];
    for (long long k; n < 4096 && (k = amphi_readdir(d, some, 7, sizeof some[0])) != 0;) {
      if (k < 0) {
        show("readdir", k);
        break;
      }
      for (long long i = 0; i < k && n < 4096; i++)
        snprintf(names[n++], 300, "%s %u %o", some[i].name, some[i].kind, some[i].stat.mode);
    }
    amphi_close(d);
  }
  qsort(names, n, 300, before);
  printf("list %s: %zu %llx\n", p, n, hash(names, n * 300));
  for (size_t i = 0; i < n && n < 20; i++) printf("  %s\n", names[i]);
  memset(names, 0, sizeof names);
}

static char bytes[3 << 20], back[3 << 20];

static void data(void) {
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 131 + (i >> 9) * 7);
  show("open missing", t_open("missing", O_RDONLY, 0));
  show("open in missing", t_open("missing/x", O_RDWR | O_CREAT, 0644));
  show("open empty", t_open("", O_RDWR | O_CREAT, 0644));
  long long f = t_open("f", O_RDWR | O_CREAT | O_EXCL, 0640);
  printf("open f: %d\n", f >= 0);
  show("open excl", t_open("f", O_RDWR | O_CREAT | O_EXCL, 0640));
  show("open slash", t_open("f/", O_RDWR, 0));
  show("create slash", t_open("new/", O_RDWR | O_CREAT, 0640));
  show("open below file", t_open("f/x", O_RDWR, 0));
  show("open dir for writing", t_open(".", O_RDWR, 0));
  show("open as dir", t_open("f", O_RDONLY | O_DIRECTORY, 0));
  t_fstat(f);
  static const long long at[] = {0, 1, 4095, 4096, 65535, 65536, 1000000, 2999999};
  static const size_t len[] = {1, 2, 511, 4096, 4097, 65536, 100000, 1 << 20};
  for (size_t i = 0; i < 8; i++)
    for (size_t k = 0; k < 8; k++) {
      show("write", t_pwrite(f, bytes + i * 1000 + k * 77, len[k], at[i]));
      long long n = t_pread(f, back, len[k] + 10, at[i] > 5 ? at[i] - 5 : at[i]);
      printf("read: %lld %llx\n", n, n > 0 ? hash(back, (size_t)n) : 0);
    }
  show("read at the end", t_pread(f, back, 10, 3999999 + (1 << 10)));
  show("read beyond", t_pread(f, back, 10, 1ll << 40));
  show("read nothing", t_pread(f, back, 0, 0));
  show("write nothing", t_pwrite(f, bytes, 0, 1ll << 41));
  show("read negative", t_pread(f, back, 10, -1));
  show("write negative", t_pwrite(f, bytes, 10, -1));
  show("write at the largest", t_pwrite(f, bytes, 10, 0x7fffffffffffffffll));
  show("read at the largest", t_pread(f, back, 10, 0x7fffffffffffffffll));
  show("read up to the largest", t_pread(f, back, 10, 0x7fffffffffffffffll - 10));
  t_fstat(f);
  struct iovec v[3] = {{bytes, 100}, {bytes + 5000, 0}, {bytes + 9000, 5000}};
  show("writev", t_pwritev(f, v, 3, 777));
  struct iovec w[3] = {{back, 10}, {back + 10, 4000}, {back + 4010, 2000}};
  long long n = t_preadv(f, w, 3, 770);
  printf("readv: %lld %llx\n", n, n > 0 ? hash(back, (size_t)n) : 0);
  show("readv none", t_preadv(f, w, 0, 0));
  show("readv negative", t_preadv(f, w, -1, 0));
  show("readv many", t_preadv(f, w, 1025, 0));
  show("fsync", t_fsync(f));
  show("fdatasync", t_fdatasync(f));
  show("ftruncate", t_ftruncate(f, 12345));
  t_fstat(f);
  show("ftruncate up", t_ftruncate(f, 70000));
  n = t_pread(f, back, 70000, 0);
  printf("zeros: %lld %llx\n", n, n > 0 ? hash(back, (size_t)n) : 0);
  show("ftruncate negative", t_ftruncate(f, -1));
  show("fallocate", t_fallocate(f, 0, 60000, 40000));
  t_fstat(f);
  show("fallocate keep", t_fallocate(f, FALLOC_FL_KEEP_SIZE, 0, 200000));
  t_fstat(f);
  show("write", t_pwrite(f, bytes, 100000, 0));
  show("punch", t_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 30000));
  show("zero", t_fallocate(f, FALLOC_FL_ZERO_RANGE, 90000, 30000));
  n = t_pread(f, back, 200000, 0);
  printf("punched: %lld %llx\n", n, n > 0 ? hash(back, (size_t)n) : 0);
  show("collapse", t_fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
  show("fallocate none", t_fallocate(f, 0, 0, 0));
  show("fallocate negative", t_fallocate(f, 0, -1, 10));
  show("fallocate huge", t_fallocate(f, 0, 0x7ffffffffffffff0ll, 0x1000));
  show("fsync", t_fsync(f));
  show("seek data", t_seek(f, 0, SEEK_DATA));
  show("seek hole", t_seek(f, 0, SEEK_HOLE));
  show("seek data in hole", t_seek(f, 8192, SEEK_DATA));
  show("seek beyond", t_seek(f, 1 << 30, SEEK_DATA));
  show("seek negative", t_seek(f, -1, SEEK_DATA));
  long long g = t_open("g", O_RDWR | O_CREAT, 0600);
  show("copy", t_copy(f, 100, g, 50, 20000));
  show("copy beyond", t_copy(f, 1 << 30, g, 0, 20000));
  show("copy onto itself", t_copy(f, 0, f, 10, 20000));
  n = t_pread(g, back, 30000, 0);
  printf("copied: %lld %llx\n", n, n > 0 ? hash(back, (size_t)n) : 0);
  show("close", t_close(g));
  long long r = t_open("f", O_RDONLY, 0), o = t_open("f", O_WRONLY, 0), a = t_open("f", O_RDWR | O_APPEND, 0);
  show("write to read-only", t_pwrite(r, bytes, 10, 0));
  show("write nothing to read-only", t_pwrite(r, bytes, 0, 0));
  show("truncate read-only", t_ftruncate(r, 0));
  show("fallocate read-only", t_fallocate(r, 0, 0, 10));
  show("read from write-only", t_pread(o, back, 10, 0));
  show("append", t_pwrite(a, bytes, 10, 3));
  t_fstat(a);
  show("copy to append", t_copy(f, 0, a, 0, 10));
  show("truncate", t_truncate("f", 50));
  show("append", t_pwrite(a, bytes, 10, 3));
  t_fstat(a);
  show("close", t_close(r));
  show("close", t_close(o));
  show("close", t_close(a));
  show("close again", t_close(a));
  show("read closed", t_pread(a, back, 10, 0));
  long long t = t_open("f", O_RDWR | O_TRUNC, 0);
  t_fstat(t);
  show("write", t_pwrite(t, bytes, 100, 0));
  show("unlink open", t_unlink("f"));
  t_fstat(t);
  show("write unlinked", t_pwrite(t, bytes, 100, 200));
  show("read unlinked", t_pread(t, back, 1000, 0));
  show("close", t_close(t));
  show("close", t_close(f));
  long long d = t_open("direct", O_RDWR | O_CREAT | O_DIRECT, 0644);
  void *m = by_calls ? aligned_alloc(2 << 20, 2 << 20) : amphi_alloc(2 << 20);
  memcpy(m, bytes, 2 << 20);
  show("direct write", t_pwrite(d, m, 2 << 20, 1 << 20));
  show("direct write", t_pwrite(d, m, 4096, 0));
  memset(m, 0, 2 << 20);
  n = t_pread(d, m, 2 << 20, 4096 * 5);
  printf("direct read: %lld %llx\n", n, n > 0 ? hash(m, (size_t)n) : 0);
  show("close", t_close(d));
  long long tmp = t_open(".", O_TMPFILE | O_RDWR, 0600);
  show("write", t_pwrite(tmp, bytes, 100, 0));
  t_fstat(tmp);
  show("close", t_close(tmp));
}

static void names(void) {
  char b[5000], longer[5000], name[300];
  memset(name, 'n', sizeof name);
  name[256] = 0;
  memset(longer, 'l', sizeof longer);
  for (size_t i = 99; i < sizeof longer; i += 100) longer[i] = '/';
  longer[4999] = 0;
  show("mkdir", t_mkdir("d", 0777));
  show("mkdir again", t_mkdir("d", 0777));
  show("mkdir slash", t_mkdir("d2/", 02755));
  show("mkdir dot", t_mkdir("d/.", 0777));
  show("mkdir dotdot", t_mkdir("d/..", 0777));
  show("mkdir in missing", t_mkdir("missing/d", 0777));
  show("mkdir long", t_mkdir(name, 0777));
  name[255] = 0;
  show("mkdir longest", t_mkdir(name, 0777));
  show("rmdir longest", t_rmdir(name));
  show("mkdir long path", t_mkdir(longer, 0777));
  t_stat("d", 1);
  t_stat("d2", 1);
  t_stat("d/../d/./..", 1);
  t_stat("missing", 1);
  t_stat("", 1);
  t_stat(longer, 1);
  long long f = t_open("d/file", O_RDWR | O_CREAT, 0666);
  show("write", t_pwrite(f, "content", 7, 0));
  show("close", t_close(f));
  t_stat("d/file", 1);
  t_stat("d/file/", 1);
  t_stat("d/file/x", 1);
  t_stat("d/file/.", 1);
  show("symlink", t_symlink("d/file", "s"));
  show("symlink again", t_symlink("d/file", "s"));
  show("symlink empty", t_symlink("", "e"));
  show("symlink long", t_symlink(longer, "l"));
  show("symlink slash", t_symlink("x", "newlink/"));
  show("symlink dangling", t_symlink("nowhere", "dangling"));
  show("symlink to dir", t_symlink("d", "sd"));
  show("symlink loop", t_symlink("loop2", "loop1"));
  show("symlink loop", t_symlink("loop1", "loop2"));
  show("symlink dot", t_symlink("../d/file", "d/up"));
  t_stat("s", 1);
  t_stat("s", 0);
  t_stat("s/", 0);
  t_stat("sd", 0);
  t_stat("sd/", 0);
  t_stat("sd/file", 0);
  t_stat("sd/up", 1);
  t_stat("loop1", 1);
  t_stat("loop1/x", 0);
  t_stat("dangling", 1);
  show("open nofollow", t_open("s", O_RDONLY | O_NOFOLLOW, 0));
  show("open dangling", t_open("dangling", O_RDONLY, 0));
  show("open excl dangling", t_open("dangling", O_RDWR | O_CREAT | O_EXCL, 0644));
  show("open loop", t_open("loop1", O_RDWR | O_CREAT, 0644));
  f = t_open("dangling", O_RDWR | O_CREAT, 0644);
  printf("create through a link: %d\n", f >= 0);
  show("close", t_close(f));
  t_stat("nowhere", 1);
  memset(b, 0, sizeof b);
  show("readlink", t_readlink("s", b, sizeof b));
  printf("  %s\n", b);
  memset(b, 0, sizeof b);
  show("readlink cut", t_readlink("s", b, 3));
  printf("  %s\n", b);
  show("readlink file", t_readlink("d/file", b, sizeof b));
  show("readlink dir", t_readlink("sd/", b, sizeof b));
  show("readlink missing", t_readlink("missing", b, sizeof b));
  show("link", t_link("d/file", "hard", 0));
  show("link again", t_link("d/file", "hard", 0));
  show("link dir", t_link("d", "harddir", 0));
  show("link dir there", t_link("d", "hard", 0));
  show("link missing", t_link("missing", "x", 0));
  show("link slash", t_link("d/file", "x/", 0));
  show("link symlink", t_link("s", "hards", 0));
  show("link followed", t_link("s", "hardf", 1));
  t_stat("hards", 0);
  t_stat("hardf", 0);
  show("rename", t_rename("hard", "renamed", 0));
  show("rename missing", t_rename("missing", "x", 0));
  show("rename onto itself", t_rename("renamed", "renamed", 0));
  show("rename same inode", t_rename("renamed", "hardf", 0));
  show("rename noreplace", t_rename("hardf", "s", 1));
  show("rename exchange", t_rename("hardf", "s", 2));
  show("rename exchange back", t_rename("hardf", "s", 2));
  show("rename exchange missing", t_rename("hardf", "missing", 2));
  show("rename flags", t_rename("hardf", "s", 3));
  show("rename dir into itself", t_rename("d", "d/x", 0));
  show("rename dir onto file", t_rename("d", "hardf", 0));
  show("rename file onto dir", t_rename("hardf", "d2", 0));
  show("rename dir onto full", t_rename("d2", "d", 0));
  show("rename slash", t_rename("hardf", "y/", 0));
  show("rename dot", t_rename("d/.", "y", 0));
  show("rename dotdot", t_rename("d/..", "y", 0));
  show("rename dir slash", t_rename("d2/", "d3/", 0));
  t_stat("d3", 1);
  t_list("d");
  t_list(".");
  t_list("d/file");
  t_list("missing");
  t_list("sd");
  show("unlink dir", t_unlink("d"));
  show("unlink slash", t_unlink("hardf/"));
  show("unlink dir slash", t_unlink("d/"));
  show("unlink missing", t_unlink("missing"));
  show("unlink dot", t_unlink("d/."));
  show("unlink symlink slash", t_unlink("sd/"));
  show("unlink symlink", t_unlink("sd"));
  show("rmdir file", t_rmdir("hardf"));
  show("rmdir full", t_rmdir("d"));
  show("rmdir dot", t_rmdir("d3/."));
  show("rmdir dotdot", t_rmdir("d3/.."));
  show("rmdir missing", t_rmdir("missing"));
  show("rmdir", t_rmdir("d3/"));
  show("mkdir many", t_mkdir("many", 0755));
  for (int i = 0; i < 3000; i++) {
    snprintf(b, sizeof b, "many/%c%d", 'a' + i % 26, i);
    long long one = t_open(b, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (one < 0 || t_close(one) != 0) show("many", one);
  }
  t_list("many");
}

static void attributes(void) {
  char b[70000];
  long long f = t_open("at", O_RDWR | O_CREAT, 0666);
  t_stat("at", 1);
  show("chmod", t_chmod("at", 04751));
  t_stat("at", 1);
  show("chown", t_chown("at", 12, 34, 1));
  t_stat("at", 1);
  show("chmod", t_chmod("at", 06777));
  show("truncate", t_truncate("at", 1000));
  t_stat("at", 1);
  show("write", t_pwrite(f, "x", 1, 0));
  t_stat("at", 1);
  show("utimes", t_utimes("at", 1000, 2000));
  t_stat("at", 1);
  show("utimes negative", t_utimes("at", -5, -7));
  t_stat("at", 1);
  t_fstat(f);
  show("truncate missing", t_truncate("missing", 1));
  show("truncate dir", t_truncate(".", 1));
  show("chmod missing", t_chmod("missing", 0600));
  show("mkdir", t_mkdir("atd", 0755));
  show("chmod", t_chmod("atd", 03777));
  show("chown", t_chown("atd", 12, 34, 1));
  t_stat("atd", 1);
  show("symlink", t_symlink("at", "ats"));
  show("chown symlink", t_chown("ats", 56, 78, 0));
  t_stat("ats", 0);
  t_stat("ats", 1);
  memset(b, 'v', sizeof b);
  show("setxattr", t_setxattr("at", "user.one", "value", 5, 0));
  show("setxattr create", t_setxattr("at", "user.one", "value", 5, XATTR_CREATE));
  show("setxattr replace", t_setxattr("at", "user.two", "value", 5, XATTR_REPLACE));
  show("setxattr empty", t_setxattr("at", "user.empty", "", 0, 0));
  show("setxattr large", t_setxattr("at", "user.large", b, 65536, 0));
  show("setxattr too large", t_setxattr("at", "user.large", b, 65537, 0));
  show("setxattr no name", t_setxattr("at", "", b, 1, 0));
  show("setxattr no space", t_setxattr("at", "noname", b, 1, 0));
  show("setxattr symlink", t_lsetxattr("ats", "user.one", b, 1));
  show("setxattr trusted", t_setxattr("at", "trusted.one", b, 9, 0));
  show("getxattr", t_getxattr("at", "user.one", b, sizeof b));
  printf("  %.5s\n", b);
  show("getxattr length", t_getxattr("ats", "user.one", NULL, 0));
  show("getxattr short", t_getxattr("at", "user.one", b, 3));
  show("getxattr missing", t_getxattr("at", "user.none", b, 3));
  show("getxattr empty", t_getxattr("at", "user.empty", b, 3));
  show("getxattr no file", t_getxattr("missing", "user.none", b, 3));
  show("fgetxattr", t_fgetxattr(f, "user.large", b, sizeof b));
  show("fsetxattr", t_fsetxattr(f, "user.f", "abc", 3));
  long long n = t_listxattr("at", b, sizeof b);
  printf("listxattr: %lld\n", n);
  for (char *p = b; n > 0 && p < b + n; p += strlen(p) + 1) printf("  %s\n", p);
  show("listxattr length", t_listxattr("at", NULL, 0));
  show("listxattr short", t_listxattr("at", b, 3));
  show("removexattr", t_removexattr("at", "user.one"));
  show("removexattr again", t_removexattr("at", "user.one"));
  show("close", t_close(f));
}

static void space(void) {
  unsigned long long blocks, block, name;
  if (by_calls) {
    struct statvfs s;
    fstatvfs(base, &s);
    blocks = s.f_blocks, block = s.f_frsize, name = s.f_namemax;
  } else {
    struct amphi_statfs s = {.struct_size = sizeof s};
    show("statfs", amphi_statfs(fs, &s));
    blocks = s.blocks, block = s.block_bytes, name = s.name_max;
  }
  printf("space: %llu %llu %llu\n", blocks, block, name);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  umask(022);
  setvbuf(stdout, NULL, _IOFBF, 1 << 20);
  by_calls = !strcmp(argv[1], "calls");
  if (by_calls) {
    int root = open(argv[2], O_RDONLY | O_DIRECTORY);
    base = openat(root, argv[3], O_RDONLY | O_DIRECTORY);
    if (base < 0) return 3;
    snprintf(proc_path, sizeof proc_path, "/proc/self/fd/%d", base);
  } else {
    struct amphi_options o = {.size = sizeof o, .servers = argv[2], .umask = -1};
    amphi_handle whole = strcmp(argv[1], "node") ? amphi_open_cluster(&o) : amphi_attach(argv[2]);
    fs = amphi_opendir(whole, argv[3], 0);
    if (fs < 0) {
      fprintf(stderr, "%s\n", amphi_error());
      return 3;
    }
  }
  data();
  names();
  attributes();
  if (by_calls) printf("statfs: 0\n");
  space();
  return 0;
}
