/* What calls cost by one way: a client in this process, the library over a mount, or system calls, on a mount or on any
 * other file system. Prints a line for each number.
 *
 *   bench cluster|node|calls WHERE [DIRECTORY]
 *
 * scripts/capi-bench runs it by all ways. */
#define _GNU_SOURCE
#include <amphi.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int by_calls, base;
static amphi_handle fs;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void need(int is_good, const char *what) {
  if (is_good) return;
  fprintf(stderr, "bench: %s failed: %s; %s\n", what, strerror(errno), amphi_error());
  exit(1);
}
static long long opened(const char *name, int flags) {
  long long f = by_calls ? openat(base, name, flags, 0644) : amphi_open(fs, name, flags, 0644);
  need(f >= 0, name);
  return f;
}
static long long reads(long long f, void *b, size_t n, long long at) {
  return by_calls ? pread((int)f, b, n, at) : amphi_pread(f, b, n, at);
}
static long long writes(long long f, const void *b, size_t n, long long at) {
  return by_calls ? pwrite((int)f, b, n, at) : amphi_pwrite(f, b, n, at);
}
static int syncs(long long f) { return by_calls ? fsync((int)f) : amphi_fsync(f); }
static int closes(long long f) { return by_calls ? close((int)f) : amphi_close(f); }
static int cuts(long long f) { return by_calls ? ftruncate((int)f, 0) : amphi_ftruncate(f, 0); }
static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }
static double median(double *v, int n) {
  qsort(v, (size_t)n, sizeof *v, by_size);
  return v[n / 2];
}

enum { ROUNDS = 5 };
static double rounds[ROUNDS];

/* Reads of 4 KiB that the cache serves, ns a call. */
static void cached_reads(void) {
  enum { BYTES = 16 << 20, RECORD = 4096 };
  static char b[RECORD];
  long long f = opened("bench-cached", O_RDWR | O_CREAT | O_TRUNC);
  char *all = malloc(BYTES);
  memset(all, 7, BYTES);
  need(writes(f, all, BYTES, 0) == BYTES && syncs(f) == 0 && closes(f) == 0, "write");
  f = opened("bench-cached", O_RDONLY);
  for (int i = 0; i < 2; i++)
    for (long long at = 0; at < BYTES; at += RECORD) need(reads(f, b, RECORD, at) == RECORD, "read");
  for (int r = 0; r < ROUNDS; r++) {
    double start = now();
    for (int i = 0; i < 8; i++)
      for (long long at = 0; at < BYTES; at += RECORD) need(reads(f, b, RECORD, at) == RECORD, "read");
    rounds[r] = (now() - start) * 1e9 / (8 * BYTES / RECORD);
  }
  printf("cached pread 4 KiB: %.0f ns\n", median(rounds, ROUNDS));
  closes(f);
  free(all);
}

/* Writes of 4 KiB through the cache: ns a call, and MiB/s of a stream with the fsync behind it. */
static void buffered_writes(void) {
  enum { BYTES = 256 << 20, RECORD = 4096 };
  static char b[RECORD];
  memset(b, 3, sizeof b);
  double whole[ROUNDS];
  long long f = opened("bench-stream", O_RDWR | O_CREAT);
  for (int r = 0; r < ROUNDS; r++) {
    need(cuts(f) == 0, "truncate");
    double start = now();
    for (long long at = 0; at < BYTES; at += RECORD) need(writes(f, b, RECORD, at) == RECORD, "write");
    rounds[r] = (now() - start) * 1e9 / (BYTES / RECORD);
    need(syncs(f) == 0, "fsync");
    whole[r] = BYTES / 1048576.0 / (now() - start);
  }
  printf("buffered pwrite 4 KiB: %.0f ns\n", median(rounds, ROUNDS));
  printf("stream of 256 MiB with fsync: %.0f MiB/s\n", median(whole, ROUNDS));
  closes(f);
}

/* 1 MiB past the cache: MiB/s. */
static void direct(const char *what, int flags, char *memory) {
  enum { BYTES = 256 << 20, RECORD = 1 << 20 };
  double read[ROUNDS];
  memset(memory, 5, RECORD);
  long long f = opened("bench-direct", O_RDWR | O_CREAT | flags);
  for (int r = 0; r <= ROUNDS; r++) {
    double start = now();
    for (long long at = 0; at < BYTES; at += RECORD) need(writes(f, memory, RECORD, at) == RECORD, "write");
    need(syncs(f) == 0, "fsync");
    double between = now();
    for (long long at = 0; at < BYTES; at += RECORD) need(reads(f, memory, RECORD, at) == RECORD, "read");
    /* The first one makes the file. */
    if (r > 0) rounds[r - 1] = BYTES / 1048576.0 / (between - start), read[r - 1] = BYTES / 1048576.0 / (now() - between);
  }
  printf("1 MiB write, %s: %.0f MiB/s\n", what, median(rounds, ROUNDS));
  printf("1 MiB read, %s: %.0f MiB/s\n", what, median(read, ROUNDS));
  closes(f);
}

/* Reads of 4 KiB at random past the cache, 64 in flight: thousands a second. */
static void random_reads(void) {
  enum { BYTES = 256 << 20, RECORD = 4096, DEPTH = 64, COUNT = 100000 };
  amphi_handle q = amphi_queue_open(fs, DEPTH);
  long long f = opened("bench-direct", O_RDONLY | O_DIRECT);
  char *memory = amphi_alloc(DEPTH * RECORD);
  need(q > 0 && memory, "queue");
  unsigned long long x = 88172645463325252ull;
  for (int r = 0; r < ROUNDS; r++) {
    struct amphi_request requests[DEPTH];
    struct amphi_completion done[DEPTH];
    unsigned long long slots[DEPTH], free_slots = DEPTH, begun = 0, ended = 0;
    for (unsigned i = 0; i < DEPTH; i++) slots[i] = i;
    double start = now();
    while (ended < COUNT) {
      unsigned n = 0;
      while (free_slots > 0 && begun < COUNT) {
        unsigned long long slot = slots[--free_slots];
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        requests[n++] = (struct amphi_request){.size = sizeof requests[0], .op = AMPHI_OP_READ, .tag = slot, .file = f,
                                               .buffer = memory + slot * RECORD, .len = RECORD,
                                               .offset = (long long)(x % (BYTES / RECORD)) * RECORD};
        begun++;
      }
      need(n == 0 || amphi_submit(q, requests, n) == n, "submit");
      long long count = amphi_wait(q, done, DEPTH, begun < COUNT ? 16 : 1, -1);
      need(count > 0, "wait");
      for (long long i = 0; i < count; i++) {
        need(done[i].result == RECORD, "read");
        slots[free_slots++] = done[i].tag, ended++;
      }
    }
    rounds[r] = COUNT / (now() - start) / 1000;
  }
  printf("4 KiB random reads, 64 in flight: %.1f thousand/s\n", median(rounds, ROUNDS));
  amphi_close(q), closes(f), amphi_free(memory);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  by_calls = !strcmp(argv[1], "calls");
  if (by_calls) {
    base = open(argv[2], O_RDONLY | O_DIRECTORY);
    need(base >= 0, argv[2]);
  } else {
    struct amphi_options o = {.size = sizeof o, .servers = argv[2], .umask = -1};
    fs = strcmp(argv[1], "node") ? amphi_open_cluster(&o) : amphi_attach(argv[2]);
    need(fs > 0, argv[2]);
  }
  int is_raw = argc > 3;
  if (!is_raw) cached_reads(), buffered_writes();
  char *aligned = amphi_alloc(2 << 20), *plain = (char *)malloc((1 << 20) + 4096) + 24;
  direct("O_DIRECT, amphi_alloc", O_DIRECT, aligned);
  if (!is_raw) direct("automatic, malloc", 0, plain);
  if (!by_calls) random_reads();
  if (!by_calls) need(amphi_close(fs) == 0, "close");
  return 0;
}
