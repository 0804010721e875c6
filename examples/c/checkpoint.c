/* Writes a checkpoint with several threads into one file, which appears under its name when all of it is stable.
 *
 *   checkpoint WHERE NAME THREADS BYTES
 *
 * Each thread writes BYTES bytes of its own. WHERE is as in copy.c. */
#define _POSIX_C_SOURCE 200809L
#include <amphi.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 20 };

struct part {
  pthread_t thread;
  amphi_handle file; /* Threads share an open file: offsets are explicit. */
  uint64_t number, bytes;
  int failed;
};

static void *write_part(void *argument) {
  struct part *part = argument;
  unsigned char *memory = amphi_alloc(PIECE);
  if (!memory) {
    part->failed = 1;
    return NULL;
  }
  for (uint64_t done = 0; done < part->bytes && !part->failed;) {
    size_t len = part->bytes - done < PIECE ? (size_t)(part->bytes - done) : PIECE;
    for (size_t i = 0; i < len; i++) memory[i] = (unsigned char)(part->number * 31 + (done + i) % 251);
    int64_t written = amphi_pwrite(part->file, memory, len, (int64_t)(part->number * part->bytes + done));
    if (written < 0) {
      fprintf(stderr, "checkpoint: %s\n", amphi_error());
      part->failed = 1;
    } else {
      done += (uint64_t)written;
    }
  }
  amphi_free(memory);
  return NULL;
}

static int failed(void) {
  fprintf(stderr, "checkpoint: %s\n", amphi_error());
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: checkpoint WHERE NAME THREADS BYTES\n");
    return 2;
  }
  unsigned threads = (unsigned)strtoul(argv[3], NULL, 10);
  struct amphi_options options = {.size = sizeof options, .servers = argv[1], .umask = -1};
  amphi_handle fs = argv[1][0] == '/' ? amphi_attach(argv[1]) : amphi_open_cluster(&options);
  if (fs < 0) return failed();
  char partial[4096];
  snprintf(partial, sizeof partial, "%s.partial", argv[2]);
  amphi_handle file = amphi_open(fs, partial, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return failed();
  struct part *parts = calloc(threads, sizeof *parts);
  if (!parts) return 1;
  int bad = 0;
  for (unsigned i = 0; i < threads; i++) {
    parts[i] = (struct part){.file = file, .number = i, .bytes = strtoull(argv[4], NULL, 10)};
    if (pthread_create(&parts[i].thread, NULL, write_part, &parts[i]) != 0) return 1;
  }
  for (unsigned i = 0; i < threads; i++) {
    pthread_join(parts[i].thread, NULL);
    bad |= parts[i].failed;
  }
  free(parts);
  /* Stable first, then the name: after a crash there is all of it or nothing. */
  if (bad) return 1;
  if (amphi_fsync(file) < 0 || amphi_close(file) < 0) return failed();
  if (amphi_rename(fs, partial, fs, argv[2], 0) < 0) return failed();
  amphi_handle directory = amphi_opendir(fs, "/", 0);
  if (directory < 0 || amphi_fsync(directory) < 0) return failed();
  amphi_close(directory);
  return amphi_close(fs) < 0 ? failed() : 0;
}
