/* Copies a file with a queue: several reads and writes are under way at a time.
 *
 *   copy WHERE FROM TO
 *
 * WHERE is the path of a mount, or the address of a server (HOST:PORT or unix:PATH): then no mount is needed. */
#define _POSIX_C_SOURCE 200809L
#include <amphi.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 16, PIECE = 1 << 20 };

/* A piece on its way: first it is read, then it is written, as often as it takes. */
struct piece {
  char *memory;
  int64_t offset; /* Of the file. */
  uint64_t len;   /* Bytes that were read. */
  uint64_t done;  /* Bytes that were written. */
  int writes;
};

static int failed(void) {
  fprintf(stderr, "copy: %s\n", amphi_error());
  return 1;
}

static struct amphi_request request(struct piece *pieces, unsigned i, amphi_handle from, amphi_handle to) {
  struct piece *p = &pieces[i];
  struct amphi_request r = {.size = sizeof r, .tag = i};
  r.op = p->writes ? AMPHI_OP_WRITE : AMPHI_OP_READ;
  r.file = p->writes ? to : from;
  r.buffer = p->memory + (p->writes ? p->done : 0);
  r.len = p->writes ? p->len - p->done : PIECE;
  r.offset = p->offset + (int64_t)(p->writes ? p->done : 0);
  return r;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: copy WHERE FROM TO\n");
    return 2;
  }
  struct amphi_options options = {.size = sizeof options, .servers = argv[1], .umask = -1};
  amphi_handle fs = argv[1][0] == '/' ? amphi_attach(argv[1]) : amphi_open_cluster(&options);
  if (fs < 0) return failed();
  amphi_handle from = amphi_open(fs, argv[2], O_RDONLY, 0);
  if (from < 0) return failed();
  struct amphi_stat stat = {.struct_size = sizeof stat};
  if (amphi_fstat(from, &stat) < 0) return failed();
  amphi_handle to = amphi_open(fs, argv[3], O_WRONLY | O_CREAT | O_TRUNC, stat.mode & 0777);
  if (to < 0) return failed();
  amphi_handle queue = amphi_queue_open(fs, DEPTH);
  if (queue < 0) return failed();

  struct piece pieces[DEPTH] = {{0}};
  char *memory = amphi_alloc((size_t)DEPTH * PIECE);
  if (!memory) return failed();
  int64_t next = 0;
  unsigned under_way = 0;
  for (unsigned i = 0; i < DEPTH && (uint64_t)next < stat.size; i++, next += PIECE) {
    pieces[i].memory = memory + (size_t)i * PIECE;
    pieces[i].offset = next;
    struct amphi_request r = request(pieces, i, from, to);
    if (amphi_submit(queue, &r, 1) != 1) return failed();
    under_way++;
  }
  while (under_way > 0) {
    struct amphi_completion done[DEPTH];
    int64_t count = amphi_wait(queue, done, DEPTH, 1, -1);
    if (count < 0) return failed();
    for (int64_t k = 0; k < count; k++) {
      unsigned i = (unsigned)done[k].tag;
      struct piece *p = &pieces[i];
      if (done[k].result < 0) {
        fprintf(stderr, "copy: a request at %lld failed: error %lld\n", (long long)p->offset, -(long long)done[k].result);
        return 1;
      }
      under_way--;
      if (!p->writes) {
        p->writes = 1, p->len = (uint64_t)done[k].result, p->done = 0;
      } else {
        p->done += (uint64_t)done[k].result;
      }
      if (p->done == p->len) {
        /* Written as a whole: the memory takes the next piece. */
        if ((uint64_t)next >= stat.size) continue;
        p->writes = 0, p->offset = next, next += PIECE;
      }
      struct amphi_request r = request(pieces, i, from, to);
      if (amphi_submit(queue, &r, 1) != 1) return failed();
      under_way++;
    }
  }
  /* Only now it is known that every byte is there for good. */
  if (amphi_fsync(to) < 0 || amphi_close(to) < 0) return failed();
  amphi_close(from);
  amphi_close(queue);
  amphi_free(memory);
  return amphi_close(fs) < 0 ? failed() : 0;
}
