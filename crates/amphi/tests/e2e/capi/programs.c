/* Programs of the tests of the C library.
 * usage: programs NAME cluster|node WHERE [MORE...] */
#define _GNU_SOURCE
#include <amphi.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                  \
  do {                                                                                               \
    if (!(what)) {                                                                                   \
      fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #what, amphi_error());                  \
      exit(1);                                                                                       \
    }                                                                                                \
  } while (0)

static amphi_handle entered(char **argv) {
  struct amphi_options o = {.size = sizeof o, .servers = argv[3], .umask = -1, .cache_bytes = 64 << 20};
  amphi_handle fs = strcmp(argv[2], "node") ? amphi_open_cluster(&o) : amphi_attach(argv[3]);
  CHECK(fs > 0);
  return fs;
}

static unsigned long long next(unsigned long long *x) {
  *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
  return *x;
}

/* Bytes that tell where they belong; the test makes the same. */
static void pattern(unsigned long long seed, unsigned char *b, size_t n) {
  unsigned long long x = seed * 0x9e3779b97f4a7c15ull | 1;
  for (size_t i = 0; i < n; i += 8) {
    next(&x);
    memcpy(b + i, &x, n - i < 8 ? n - i : 8);
  }
}

static unsigned long long hash(const unsigned char *b, size_t n) {
  unsigned long long h = 1469598103934665603u;
  for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 1099511628211u;
  return h;
}

/* Does what it is told, line by line, and answers each. */
static int model(char **argv) {
  amphi_handle fs = entered(argv), f = amphi_open(fs, argv[4], O_RDWR | O_CREAT, 0644);
  amphi_handle a = amphi_open(fs, argv[4], O_WRONLY | O_APPEND, 0), q = amphi_queue_open(fs, 4);
  CHECK(f > 0 && a > 0 && q > 0);
  static unsigned char b[4 << 20];
  char op;
  long long at, n, seed;
  while (scanf(" %c %lld %lld %lld", &op, &at, &n, &seed) == 4) {
    long long r = 0;
    struct amphi_stat s = {.struct_size = sizeof s};
    struct amphi_request req = {.size = sizeof req, .tag = 77, .file = f, .buffer = b, .len = (unsigned long long)n,
                                .offset = at};
    struct amphi_completion c = {0};
    if (op == 'w' || op == 'a' || op == 'W') pattern((unsigned long long)seed, b, (size_t)n);
    if (op == 'w') r = amphi_pwrite(f, b, (size_t)n, at);
    if (op == 'a') r = amphi_pwrite(a, b, (size_t)n, 0);
    if (op == 'r') r = amphi_pread(f, b, (size_t)n, at);
    if (op == 't') r = amphi_ftruncate(f, at);
    if (op == 'p') r = amphi_fallocate(f, 3, at, n);
    if (op == 'f') r = amphi_fsync(f);
    if (op == 's') r = amphi_fstat(f, &s) ? -1 : (long long)s.size;
    if (op == 'W' || op == 'R') {
      req.op = op == 'W' ? AMPHI_OP_WRITE : AMPHI_OP_READ;
      CHECK(amphi_submit(q, &req, 1) == 1 && amphi_wait(q, &c, 1, 1, -1) == 1 && c.tag == 77);
      r = c.result;
    }
    printf("%lld %llu\n", r, (op == 'r' || op == 'R') && r > 0 ? hash(b, (size_t)r) : 0ull);
    fflush(stdout);
  }
  CHECK(amphi_close(f) == 0 && amphi_close(a) == 0 && amphi_close(q) == 0 && amphi_close(fs) == 0);
  return 0;
}

/* Writes records and says which of them are stable, until it is killed. */
static int records(char **argv) {
  amphi_handle fs = entered(argv), f = amphi_open(fs, argv[4], O_RDWR | O_CREAT, 0644);
  CHECK(f > 0);
  unsigned char b[8192];
  for (unsigned long long i = 0;; i++) {
    pattern(i + 1, b, sizeof b);
    CHECK(amphi_pwrite(f, b, sizeof b, (long long)(i * sizeof b)) == sizeof b);
    if (i % 8 == 7) {
      CHECK(amphi_fsync(f) == 0);
      printf("%llu\n", i);
      fflush(stdout);
    } else if (argv[5]) {
      /* Acknowledged, and not synced. */
      printf("%llu\n", i);
      fflush(stdout);
    }
  }
}

/* Whatever is wrong is an error, and never a crash. */
static int hostile(char **argv) {
  static char b[1 << 16];
  struct amphi_completion c[4];
  struct amphi_stat s = {.struct_size = sizeof s};
  struct amphi_setattr set = {.struct_size = sizeof set};
  struct amphi_entry e;
  struct amphi_options o = {0};
  CHECK(amphi_pread(0, b, 1, 0) == -EBADF && amphi_pread(-1, b, 1, 0) == -EBADF && amphi_close(12345) == -EBADF);
  CHECK(amphi_open(0, "x", O_RDONLY, 0) == -EBADF && amphi_peek(7, c, 4) == -EBADF);
  CHECK(amphi_open_cluster(NULL) == -EINVAL && amphi_open_cluster(&o) == -EINVAL && amphi_attach(NULL) == -EINVAL);
  o.size = sizeof o;
  CHECK(amphi_open_cluster(&o) == -EINVAL);
  o.servers = "unix:/nowhere/at/all";
  CHECK(amphi_open_cluster(&o) == -ENOTCONN && strstr(amphi_error(), "/nowhere/at/all"));
  o.key_file = "/nowhere/key";
  CHECK(amphi_open_cluster(&o) == -EINVAL && strstr(amphi_error(), "/nowhere/key"));
  o.key_file = NULL, o.tunables = "no.such=1";
  CHECK(amphi_open_cluster(&o) == -EINVAL && strstr(amphi_error(), "no.such"));
  o.tunables = NULL, o.cache_bytes = 1;
  CHECK(amphi_open_cluster(&o) == -EINVAL);
  CHECK(amphi_attach("/proc") == -ENODEV && amphi_attach("/nowhere") == -ENOENT);
  /* A program of tomorrow may set what this library does not know, but only to nothing. */
  struct { struct amphi_options o; char more[64]; } later = {0};
  later.o.size = sizeof later, later.o.servers = "unix:/nowhere";
  CHECK(amphi_open_cluster(&later.o) == -ENOTCONN);
  later.more[10] = 1;
  CHECK(amphi_open_cluster(&later.o) == -E2BIG);

  amphi_handle fs = entered(argv), f = amphi_open(fs, "hostile", O_RDWR | O_CREAT, 0644), d = amphi_opendir(fs, "/", 0);
  amphi_handle q = amphi_queue_open(fs, 4);
  CHECK(f > 0 && d > 0 && q > 0);
  amphi_handle all[] = {fs, f, d, q, f ^ 1, f + (1ll << 20), f ^ (1ll << 40), f | 1ll << 62, -f, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    amphi_handle h = all[i];
    int is_at = h == fs || h == d;
    if (h != f) {
      CHECK(amphi_pread(h, b, 1, 0) == -EBADF && amphi_pwrite(h, b, 1, 0) == -EBADF && amphi_fstat(h, &s) == -EBADF);
      CHECK(amphi_ftruncate(h, 0) == -EBADF && amphi_fallocate(h, 0, 0, 1) == -EBADF && amphi_seek(h, 0, SEEK_DATA) == -EBADF);
      CHECK(amphi_fgetxattr(h, "user.x", b, 1) == -EBADF && amphi_advise(h, 0, 0, 0) == -EBADF);
      CHECK(amphi_copy_range(h, 0, f, 0, 1) == -EBADF && amphi_copy_range(f, 0, h, 0, 1) == -EBADF);
      CHECK(amphi_lock_ahead(h, 0, 1, 0) == -EBADF && amphi_group_lock(h, 1, 0) == -EBADF && amphi_fd(h) == -EBADF);
    }
    if (!is_at) {
      CHECK(amphi_open(h, "x", O_RDONLY, 0) == -EBADF && amphi_stat(h, "x", &s, 0) == -EBADF);
      CHECK(amphi_rename(h, "x", fs, "y", 0) == -EBADF && amphi_rename(fs, "x", h, "y", 0) == -EBADF);
    }
    if (h != d) CHECK(amphi_readdir(h, &e, 1, sizeof e) == -EBADF && amphi_seekdir(h, 0) == -EBADF);
    if (h != q) CHECK(amphi_peek(h, c, 4) == -EBADF && amphi_submit(h, NULL, 0) == -EBADF);
    if (h != fs) CHECK(amphi_queue_open(h, 1) == -EBADF && amphi_sync(h) == -EBADF && amphi_umask(h, 0) == -EBADF);
  }
  CHECK(amphi_pread(f, NULL, 1, 0) == -EINVAL && amphi_pwrite(f, NULL, 1, 0) == -EINVAL);
  CHECK(amphi_pread(f, NULL, 0, 0) == 0 && amphi_pwrite(f, NULL, 0, 0) == 0);
  CHECK(amphi_pread(f, b, SIZE_MAX, 0) == -EINVAL && amphi_pwrite(f, b, SIZE_MAX / 2 + 1, 0) == -EINVAL);
  CHECK(amphi_pread(f, b, 10, INT64_MIN) == -EINVAL && amphi_pwrite(f, b, 10, INT64_MAX) == -EINVAL);
  struct iovec v[2] = {{b, SIZE_MAX}, {b, SIZE_MAX}}, null[1] = {{NULL, 5}};
  CHECK(amphi_preadv(f, v, 2, 0) == -EINVAL && amphi_pwritev(f, v, 2, 0) == -EINVAL);
  CHECK(amphi_preadv(f, NULL, 2, 0) == -EINVAL && amphi_pwritev(f, NULL, 2, 0) == -EINVAL);
  CHECK(amphi_preadv(f, null, 1, 0) == -EINVAL && amphi_pwritev(f, null, 1, 0) == -EINVAL);
  CHECK(amphi_preadv(f, v, -1, 0) == -EINVAL && amphi_preadv(f, v, 2000, 0) == -EINVAL);
  CHECK(amphi_open(fs, NULL, O_RDONLY, 0) == -EINVAL && amphi_open(fs, "x", -1, 0) == -EINVAL);
  CHECK(amphi_open(fs, "x", 3, 0) == -EINVAL && amphi_open(fs, "/", O_RDONLY, 0) == -EISDIR);
  CHECK(amphi_stat(fs, "hostile", NULL, 0) == -EINVAL && amphi_stat(fs, NULL, &s, 0) == -EINVAL);
  CHECK(amphi_stat(fs, "hostile", &s, 99) == -EINVAL && amphi_fstat(f, NULL) == -EINVAL);
  s.struct_size = 0;
  CHECK(amphi_fstat(f, &s) == -EINVAL);
  s.struct_size = 8, s.size = 4711;
  CHECK(amphi_fstat(f, &s) == 0 && s.size == 4711 && (s.mode & S_IFMT) == S_IFREG);
  CHECK(amphi_setattr(fs, "hostile", NULL, 0) == -EINVAL && amphi_fsetattr(f, NULL) == -EINVAL);
  set.valid = 1 << 20;
  CHECK(amphi_setattr(fs, "hostile", &set, 0) == -EINVAL);
  set.valid = AMPHI_SET_ATIME, set.atime.nsec = 1000000000;
  CHECK(amphi_setattr(fs, "hostile", &set, 0) == -EINVAL);
  set.valid = AMPHI_SET_ATIME | AMPHI_SET_ATIME_NOW, set.atime.nsec = 0;
  CHECK(amphi_fsetattr(f, &set) == -EINVAL);
  set.valid = AMPHI_SET_SIZE, set.size = UINT64_MAX;
  CHECK(amphi_fsetattr(f, &set) == -EINVAL);
  CHECK(amphi_symlink(NULL, fs, "x") == -EINVAL && amphi_readlink(fs, "x", NULL, 5) == -EINVAL);
  CHECK(amphi_link(fs, NULL, fs, "x", 0) == -EINVAL && amphi_link(fs, "hostile", fs, NULL, 0) == -EINVAL);
  CHECK(amphi_readdir(d, NULL, 5, sizeof e) == -EINVAL && amphi_readdir(d, &e, 1, 8) == -EINVAL);
  CHECK(amphi_getxattr(fs, "hostile", NULL, b, 1, 0) == -EINVAL && amphi_setxattr(fs, "hostile", "user.x", NULL, 9, 0, 0) == -EINVAL);
  CHECK(amphi_setxattr(fs, "hostile", "user.x", b, 1, 9, 0) == -EINVAL && amphi_getxattr(fs, "hostile", "user.x", NULL, 9, 0) == -EINVAL);
  CHECK(amphi_advise(f, -1, 0, 0) == -EINVAL && amphi_advise(f, 0, 0, 99) == -EINVAL);
  CHECK(amphi_lock_ahead(f, 0, 0, 0) == -EINVAL && amphi_lock_ahead(f, 0, -5, 0) == -EINVAL && amphi_lock_ahead(f, 0, 1, 99) == -EINVAL);
  CHECK(amphi_group_lock(f, 0, 0) == -EINVAL && amphi_group_unlock(f, 5) == -EINVAL && amphi_group_wanted(f) == -EINVAL);
  CHECK(amphi_group_lock(f, 5, 0) == 0 && amphi_group_lock(f, 5, 0) == -EINVAL && amphi_group_wanted(f) == 0);
  CHECK(amphi_group_unlock(f, 6) == -EINVAL && amphi_group_unlock(f, 5) == 0);
  for (unsigned advice = 0; advice < 6; advice++) CHECK(amphi_advise(f, 0, 4096, advice) == 0);
  CHECK(amphi_lock_ahead(f, 0, 4096, AMPHI_LOCK_WRITE | AMPHI_LOCK_WAIT) >= 0);
  CHECK(amphi_queue_open(fs, 0) == -EINVAL && amphi_queue_open(fs, 1 << 30) == -EINVAL);
  CHECK(amphi_submit(q, NULL, 3) == -EINVAL && amphi_peek(q, NULL, 3) == -EINVAL && amphi_peek(q, NULL, 0) == 0);
  CHECK(amphi_wait(q, c, 4, 100, -1) == 0);
  struct amphi_request r[6] = {{.size = sizeof r[0]}, {.size = sizeof r[0]}, {.size = sizeof r[0]}, {.size = sizeof r[0]}};
  r[0].op = 99, r[0].file = f;
  r[1].op = AMPHI_OP_READ, r[1].file = 4711, r[1].buffer = b, r[1].len = 5;
  r[2].op = AMPHI_OP_WRITE, r[2].file = f, r[2].len = 5;
  r[3].op = AMPHI_OP_READ, r[3].file = f, r[3].buffer = b, r[3].len = 5, r[3].offset = -3;
  for (unsigned i = 0; i < 4; i++) r[i].tag = i;
  CHECK(amphi_submit(q, r, 6) == 4 && amphi_submit(q, r, 1) == -EAGAIN && amphi_wait(q, c, 4, 4, -1) == 4);
  for (unsigned i = 0; i < 4; i++) {
    long long want = c[i].tag == 1 ? -EBADF : -EINVAL;
    if (c[i].result != want) fprintf(stderr, "request %llu: %lld\n", (unsigned long long)c[i].tag, (long long)c[i].result);
    CHECK(c[i].result == want);
  }
  r[0].size = 4;
  CHECK(amphi_submit(q, r, 1) == -EINVAL);
  CHECK(amphi_alloc(0) == NULL && amphi_alloc(SIZE_MAX) == NULL && amphi_free(b) == -EINVAL && amphi_free(NULL) == 0);
  void *m = amphi_alloc(1);
  CHECK(m && (size_t)m % 4096 == 0 && amphi_free((char *)m + 4096) == -EINVAL && amphi_free(m) == 0 && amphi_free(m) == -EINVAL);
  CHECK(amphi_close(f) == 0 && amphi_close(f) == -EBADF && amphi_pread(f, b, 1, 0) == -EBADF);
  CHECK(strstr(amphi_error(), "amphi_pread") && strstr(amphi_error(), "EBADF"));
  /* Numbers are not used again soon. */
  amphi_handle g = amphi_open(fs, "hostile", O_RDWR, 0);
  CHECK(g > 0 && g != f && amphi_pread(f, b, 1, 0) == -EBADF);
  CHECK(amphi_close(q) == 0 && amphi_close(fs) == 0 && amphi_close(fs) == -EBADF);
  long long after = amphi_pread(g, b, 1, 0);
  CHECK(after == (strcmp(argv[2], "node") ? -ENOTCONN : 0));
  if (strcmp(argv[2], "node")) {
    struct amphi_stat last = {.struct_size = sizeof last};
    CHECK(amphi_fstat(g, &last) == -ENOTCONN && amphi_stat(d, "hostile", &last, 0) == -ENOTCONN);
    CHECK(amphi_pwrite(g, b, 1, 0) == -ENOTCONN && amphi_fsync(g) == -ENOTCONN && amphi_fsync(d) == -ENOTCONN);
    CHECK(amphi_readdir(d, &e, 1, sizeof e) == -ENOTCONN);
  }
  amphi_close(g), amphi_close(d);
  return 0;
}

/* A child of fork is told that what is open is not its own; its parent goes on. */
static int forks(char **argv) {
  amphi_handle fs = entered(argv), f = amphi_open(fs, "forks", O_RDWR | O_CREAT, 0644), q = amphi_queue_open(fs, 4);
  CHECK(f > 0 && q > 0 && amphi_pwrite(f, "parent", 6, 0) == 6);
  pid_t child = fork();
  if (child == 0) {
    char b[8];
    struct amphi_completion c;
    CHECK(amphi_pread(f, b, 6, 0) == -ENOTCONN && strstr(amphi_error(), "fork"));
    CHECK(amphi_pwrite(f, "child!", 6, 0) == -ENOTCONN && amphi_fsync(f) == -ENOTCONN && amphi_close(f) == -ENOTCONN);
    CHECK(amphi_open(fs, "x", O_RDONLY, 0) == -ENOTCONN && amphi_wait(q, &c, 1, 1, -1) == -ENOTCONN);
    CHECK(amphi_close(fs) == -ENOTCONN);
    struct amphi_options o = {.size = sizeof o, .servers = argv[3], .umask = -1};
    if (strcmp(argv[2], "node")) {
      CHECK(amphi_open_cluster(&o) == -ENOTCONN);
    } else {
      amphi_handle own = amphi_attach(argv[3]), g = amphi_open(own, "forks", O_RDONLY, 0);
      CHECK(g > 0 && amphi_pread(g, b, 6, 0) == 6 && !memcmp(b, "parent", 6));
      CHECK(amphi_pread(f, b, 6, 0) == -EBADF);
    }
    void *m = amphi_alloc(4096);
    CHECK(m && amphi_free(m) == 0);
    CHECK(!strcmp(argv[2], "node") || amphi_open_cluster(&o) == -ENOTCONN);
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  char b[8];
  CHECK(amphi_pread(f, b, 6, 0) == 6 && !memcmp(b, "parent", 6));
  CHECK(amphi_close(q) == 0 && amphi_close(f) == 0 && amphi_close(fs) == 0);
  return 0;
}

static amphi_handle shared_fs;
static amphi_handle shared_files[8];
static volatile int ends;

/* Threads that open, use and close the same numbers meet errors and right bytes, and nothing else. */
static void *tumult(void *arg) {
  unsigned long long x = (unsigned long long)(size_t)arg * 977 + 5, uses = 0;
  unsigned char b[4096], want[4096];
  while (!ends) {
    unsigned i = (unsigned)(next(&x) % 8);
    amphi_handle h = __atomic_load_n(&shared_files[i], __ATOMIC_SEQ_CST);
    if (next(&x) % 16 == 0) {
      char name[16];
      snprintf(name, sizeof name, "tumult%u", i);
      amphi_handle fresh = amphi_open(shared_fs, name, O_RDONLY, 0);
      CHECK(fresh > 0);
      h = __atomic_exchange_n(&shared_files[i], fresh, __ATOMIC_SEQ_CST);
      CHECK(amphi_close(h) == 0);
      CHECK(amphi_pread(h, b, 4096, 0) == -EBADF);
    } else {
      long long n = amphi_pread(h, b, 4096, 8192);
      CHECK(n == 4096 || n == -EBADF);
      if (n == 4096) {
        pattern(i + 1, want, 4096);
        CHECK(!memcmp(b, want, 4096));
        uses++;
      }
    }
  }
  return (void *)(size_t)uses;
}

static int threads(char **argv) {
  shared_fs = entered(argv);
  for (unsigned i = 0; i < 8; i++) {
    char name[16];
    unsigned char b[4096];
    snprintf(name, sizeof name, "tumult%u", i);
    shared_files[i] = amphi_open(shared_fs, name, O_RDWR | O_CREAT, 0644);
    pattern(i + 1, b, 4096);
    CHECK(amphi_pwrite(shared_files[i], b, 4096, 8192) == 4096);
  }
  pthread_t t[6];
  size_t uses = 0;
  for (size_t i = 0; i < 6; i++) pthread_create(&t[i], NULL, tumult, (void *)(i + 1));
  sleep(2);
  ends = 1;
  for (size_t i = 0; i < 6; i++) {
    void *n;
    pthread_join(t[i], &n);
    uses += (size_t)n;
  }
  CHECK(uses > 1000);
  return 0;
}

/* A queue with many requests in flight: each has one completion, and bytes are where they belong. */
static void *queued(void *arg) {
  enum { BLOCK = 16384, BLOCKS = 256, DEPTH = 32 };
  unsigned number = (unsigned)(size_t)arg;
  unsigned long long x = number * 7919 + 3, *version = calloc(BLOCKS, sizeof *version);
  unsigned char *memory = amphi_alloc(DEPTH * BLOCK), *want = malloc(BLOCK);
  char name[16], busy[BLOCKS] = {0}, used[DEPTH] = {0};
  unsigned block_of[DEPTH], is_write[DEPTH];
  snprintf(name, sizeof name, "queued%u", number);
  int direct = number % 2 ? O_DIRECT : 0;
  amphi_handle f = amphi_open(shared_fs, name, O_RDWR | O_CREAT | direct, 0644), q = amphi_queue_open(shared_fs, DEPTH);
  CHECK(f > 0 && q > 0 && memory && amphi_ftruncate(f, BLOCK * BLOCKS) == 0);
  unsigned in_flight = 0, done = 0, begun = 0;
  while (done < 3000) {
    struct amphi_request r[DEPTH];
    unsigned count = 0;
    while (in_flight + count < DEPTH && begun < 3000) {
      unsigned block = (unsigned)(next(&x) % BLOCKS), slot = 0;
      if (busy[block]) break;
      while (used[slot]) slot++;
      used[slot] = busy[block] = 1, block_of[slot] = block, is_write[slot] = next(&x) % 2;
      unsigned char *b = memory + slot * BLOCK;
      if (is_write[slot])
        pattern(++version[block] * 1000003 + block * 17 + number, b, BLOCK);
      else
        memset(b, 0xee, BLOCK);
      r[count] = (struct amphi_request){.size = sizeof r[0], .op = is_write[slot] ? AMPHI_OP_WRITE : AMPHI_OP_READ,
                                        .tag = slot, .file = f, .buffer = b, .len = BLOCK,
                                        .offset = (long long)block * BLOCK};
      count++, begun++;
    }
    CHECK(count == 0 || amphi_submit(q, r, count) == count);
    in_flight += count;
    struct amphi_completion c[DEPTH];
    long long n = amphi_wait(q, c, DEPTH, in_flight ? 1 + next(&x) % in_flight : 0, -1);
    CHECK(n > 0 || in_flight == 0);
    for (long long i = 0; i < n; i++) {
      unsigned slot = (unsigned)c[i].tag, block = block_of[slot];
      CHECK(c[i].result == BLOCK && used[slot]);
      if (!is_write[slot]) {
        memset(want, 0, BLOCK);
        if (version[block]) pattern(version[block] * 1000003 + block * 17 + number, want, BLOCK);
        CHECK(!memcmp(want, memory + slot * BLOCK, BLOCK));
      }
      used[slot] = busy[block] = 0, in_flight--, done++;
    }
  }
  struct amphi_completion c;
  struct amphi_request r = {.size = sizeof r, .op = AMPHI_OP_FSYNC, .tag = 9, .file = f};
  CHECK(amphi_wait(q, &c, 1, 1, 1000000) == 0);
  CHECK(amphi_submit(q, &r, 1) == 1 && amphi_wait(q, &c, 1, 1, 60000000000ll) == 1 && c.result == 0 && c.tag == 9);
  CHECK(amphi_close(q) == 0 && amphi_close(f) == 0 && amphi_free(memory) == 0);
  free(version), free(want);
  return NULL;
}

static int queues(char **argv) {
  shared_fs = entered(argv);
  pthread_t t[4];
  for (size_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, queued, (void *)i);
  for (size_t i = 0; i < 4; i++) pthread_join(t[i], NULL);
  CHECK(amphi_close(shared_fs) == 0);
  return 0;
}

/* A client that ends leaves no request without a completion. */
static int ends_early(char **argv) {
  enum { DEPTH = 64, LEN = 1 << 16 };
  amphi_handle fs = entered(argv), f = amphi_open(fs, "ends", O_RDWR | O_CREAT | O_DIRECT, 0644);
  amphi_handle q = amphi_queue_open(fs, DEPTH);
  unsigned char *memory = amphi_alloc(DEPTH * LEN);
  CHECK(f > 0 && q > 0 && memory && amphi_pwrite(f, memory, DEPTH * LEN, 0) == DEPTH * LEN);
  struct amphi_request r[DEPTH];
  for (unsigned i = 0; i < DEPTH; i++)
    r[i] = (struct amphi_request){.size = sizeof r[0], .op = i % 2 ? AMPHI_OP_READ : AMPHI_OP_WRITE, .tag = i, .file = f,
                                  .buffer = memory + i * LEN, .len = LEN, .offset = (long long)i * LEN};
  CHECK(amphi_submit(q, r, DEPTH) == DEPTH);
  long long closed = amphi_close(fs);
  CHECK(closed == 0);
  struct amphi_completion c[DEPTH];
  CHECK(amphi_wait(q, c, DEPTH, DEPTH, 60000000000ll) == DEPTH);
  int is_node = !strcmp(argv[2], "node");
  for (unsigned i = 0; i < DEPTH; i++) CHECK(c[i].result == LEN || (!is_node && c[i].result == -ENOTCONN));
  CHECK(amphi_submit(q, r, 4) == 4 && amphi_wait(q, c, 4, 4, 60000000000ll) == 4);
  for (unsigned i = 0; i < 4; i++) CHECK(c[i].result == (is_node ? LEN : -ENOTCONN));
  CHECK(amphi_close(q) == 0 && amphi_free(memory) == 0);
  amphi_close(f);
  return 0;
}

/* Writes from memory that another thread changes all the time store some mixture, and every block can be read. A child
 * of fork changes nothing of its parent's memory. */
static unsigned char *scribbled;
enum { SCRIBBLED = 4 << 20 };

static void *scribble(void *arg) {
  unsigned long long x = 77;
  while (!ends) scribbled[next(&x) % SCRIBBLED] ^= (unsigned char)x;
  return arg;
}

static int scribbles(char **argv) {
  amphi_handle fs = entered(argv), f = amphi_open(fs, "scribbles", O_RDWR | O_CREAT | O_DIRECT, 0644);
  amphi_handle q = amphi_queue_open(fs, 16);
  scribbled = amphi_alloc(SCRIBBLED);
  CHECK(f > 0 && q > 0 && scribbled);
  pthread_t t;
  ends = 0;
  CHECK(pthread_create(&t, NULL, scribble, NULL) == 0);
  for (long long i = 0; i < 48; i++) {
    size_t n = (size_t)(64 << 10) << i % 5, at = (size_t)i * 8192 % (SCRIBBLED - n);
    CHECK(amphi_pwrite(f, scribbled + at, n, i << 20) == (long long)n);
    struct amphi_request r = {.size = sizeof r, .op = AMPHI_OP_WRITE, .tag = 1, .file = f, .buffer = scribbled + at,
                              .len = n, .offset = i << 20};
    struct amphi_completion c;
    CHECK(amphi_submit(q, &r, 1) == 1 && amphi_wait(q, &c, 1, 1, -1) == 1 && c.result == (long long)n);
  }
  ends = 1;
  CHECK(pthread_join(t, NULL) == 0 && amphi_fsync(f) == 0 && amphi_close(f) == 0);
  f = amphi_open(fs, "scribbles", O_RDWR | O_DIRECT, 0);
  static unsigned char b[1 << 20];
  for (long long i = 0; i < 48; i++) CHECK(amphi_pread(f, b, sizeof b, i << 20) >= 64 << 10);
  pattern(5, scribbled, sizeof b);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    unsigned char *own = amphi_alloc(1 << 20);
    CHECK(own && amphi_free(scribbled) == -EINVAL);
    memset(own, 1, 1 << 20);
    CHECK(amphi_free(own) == 0);
    /* In a cluster it is not there. */
    scribbled[0] ^= 1;
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGSEGV && strcmp(argv[2], "node"));
  CHECK(amphi_pwrite(f, scribbled, sizeof b, 0) == sizeof b && amphi_pread(f, b, sizeof b, 0) == sizeof b);
  CHECK(!memcmp(b, scribbled, sizeof b));
  CHECK(amphi_close(q) == 0 && amphi_close(f) == 0 && amphi_close(fs) == 0 && amphi_free(scribbled) == 0);
  return 0;
}

/* Ends without closing anything: what was written is there all the same. */
static int leaves(char **argv) {
  amphi_handle fs = entered(argv), f = amphi_open(fs, "left", O_RDWR | O_CREAT, 0644);
  CHECK(f > 0 && amphi_pwrite(f, "left behind", 11, 0) == 11);
  exit(0);
}

/* Cached reads over a mount come from memory that it shares; a descriptor of the program's own counts as well. */
static int descriptors(char **argv) {
  amphi_handle fs = entered(argv);
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", argv[3], argv[4]);
  int fd = open(path, O_RDONLY), pipes[2];
  amphi_handle f = amphi_from_fd(fs, fd);
  CHECK(f > 0 && close(fd) == 0 && amphi_fd(f) >= 0);
  static unsigned char b[65536], want[65536];
  pattern(3, want, sizeof want);
  for (int i = 0; i < 2000; i++) {
    size_t at = (size_t)i * 31 % 60000;
    CHECK(amphi_pread(f, b, 4096, (long long)at) == 4096 && !memcmp(b, want + at, 4096));
  }
  CHECK(pipe(pipes) == 0 && amphi_from_fd(fs, pipes[0]) == -EXDEV && amphi_from_fd(fs, -1) == -EBADF);
  int root = open(argv[3], O_RDONLY | O_DIRECTORY);
  CHECK(amphi_from_fd(fs, root) == -EISDIR);
  CHECK(amphi_close(f) == 0 && amphi_close(fs) == 0);
  return 0;
}

int main(int argc, char **argv) {
  static const struct { const char *name; int (*run)(char **); } all[] = {
      {"model", model}, {"records", records}, {"hostile", hostile}, {"forks", forks}, {"threads", threads},
      {"queues", queues}, {"ends_early", ends_early}, {"scribbles", scribbles}, {"leaves", leaves}, {"descriptors", descriptors}};
  if (argc < 4 || amphi_version() >> 16 != AMPHI_VERSION >> 16) return 2;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (!strcmp(all[i].name, argv[1])) return all[i].run(argv);
  return 2;
}
