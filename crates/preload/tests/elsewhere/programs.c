/* Programs of elsewhere.rs: each prints what its calls returned, so that runs with and without the library can be
   compared, or checks it by itself and ends with 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <dirent.h>

#define MIB (1 << 20)
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

static uint64_t state;
static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}
static uint64_t below(uint64_t n) { return next() % n; }

static unsigned char *fill(unsigned char *bytes, size_t len, uint64_t seed) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = x >> 56;
    }
    return bytes;
}
static uint64_t hash(const unsigned char *bytes, size_t len) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < len; i++) h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

/* A line of the log goes out by one call, since two processes write to it. */
static void say(int n, const char *what, long result, uint64_t more, int fd) {
    char line[200];
    int error = result < 0 ? errno : 0;
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    int len = snprintf(line, sizeof line, "%d %s %ld %d %llx at %lld size %lld\n", n, what, result, error,
                       (unsigned long long)more, (long long)lseek(fd, 0, SEEK_CUR), (long long)st.st_size);
    CHECK(write(1, line, len) == len);
}

enum { FILE_MAX = 6 * MIB, LEN_MAX = 3 * MIB };
static unsigned char *memory;

static uint64_t an_offset(void) {
    uint64_t at = below(4) ? below(FILE_MAX / 4096) * 4096 : below(FILE_MAX);
    return below(3) ? at : at + 4095 + below(3);
}
static size_t a_length(void) {
    switch (below(5)) {
        case 0: return below(5000);
        case 1: return (1 + below(64)) * 4096 - 1 + below(3);
        case 2: return 4096 << below(10);
        default: return below(LEN_MAX);
    }
}

/* One random operation on one of two descriptors of the file. */
static void operate(int n, int *fds) {
    int fd = fds[below(2)];
    uint64_t offset = an_offset();
    size_t len = a_length();
    unsigned char *at = memory + below(3) * 4096 + (below(2) ? below(100) : 0);
    struct iovec parts[3] = {{at, len / 3}, {at + len / 3, len / 2 - len / 3}, {at + len / 2, len - len / 2}};
    memset(at, 0, len);
    long r;
    switch (below(15)) {
        case 0: case 1: r = pread(fd, at, len, offset); say(n, "pread", r, hash(at, len), fd); break;
        case 2: case 3: r = read(fd, at, len); say(n, "read", r, hash(at, len), fd); break;
        case 4: r = readv(fd, parts, 3); say(n, "readv", r, hash(at, len), fd); break;
        case 5: r = preadv(fd, parts, 3, offset); say(n, "preadv", r, hash(at, len), fd); break;
        case 6: case 7: r = pwrite(fd, fill(at, len, n), len, offset); say(n, "pwrite", r, len, fd); break;
        case 8: case 9:
            if (lseek(fd, 0, SEEK_CUR) > FILE_MAX) lseek(fd, offset, SEEK_SET);
            r = write(fd, fill(at, len, n), len); say(n, "write", r, len, fd); break;
        case 10: fill(at, len, n); r = pwritev2(fd, parts, 3, offset, 0); say(n, "pwritev2", r, len, fd); break;
        case 11: r = lseek(fd, offset, SEEK_SET); say(n, "lseek", r, 0, fd); break;
        case 12:
            switch (below(4)) {
                case 0: r = ftruncate(fd, offset); say(n, "ftruncate", r, 0, fd); break;
                case 1: r = fsync(fd); say(n, "fsync", r, 0, fd); break;
                case 2: r = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, len + 1);
                        say(n, "punch", r, 0, fd); break;
                default: r = fcntl(fd, F_SETFL, below(3) ? 0 : O_APPEND); say(n, "setfl", r, 0, fd); break;
            }
            break;
        case 13: {
            unsigned char *map = mmap(0, LEN_MAX, PROT_READ, MAP_PRIVATE, fd, 4096 * below(512));
            CHECK(map != MAP_FAILED);
            struct stat st;
            CHECK(fstat(fd, &st) == 0);
            size_t there = st.st_size > 512 * 4096 + 4096 ? 4096 : 0;
            say(n, "map", 0, hash(map, there), fd);
            munmap(map, LEN_MAX);
            break;
        }
        default: {
            int copy = dup(fd);
            say(n, "dup", copy, 0, fd);
            r = pwrite(copy, fill(at, len, n), len, offset);
            close(fd);
            CHECK(dup2(copy, fd) == fd);
            close(copy);
            say(n, "dupped", r, len, fd);
        }
    }
}

static void turns(int from, int to, int in, int out, int *fds) {
    char token;
    for (int n = from; n < to; n++) {
        CHECK(read(in, &token, 1) == 1);
        operate(n, fds);
        CHECK(write(out, "t", 1) == 1);
    }
}

/* random FILE SEED alone|fork|mixed: operations; from the middle on, a second process takes turns. With `mixed` it has
   no library. */
static int random_operations(char **args) {
    int count = 150;
    memory = mmap(0, LEN_MAX + 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fds[2] = {100, 101};
    state = strtoull(args[1], 0, 0) * 2654435761u + 88172645463325252u;
    if (!strcmp(args[2], "child")) {
        state ^= 0x5555;
        turns(1000, 1000 + count, 102, 105, fds);
        return 0;
    }
    int made = open(args[0], O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(dup2(made, 100) == 100);
    CHECK(close(made) == 0);
    made = open(args[0], O_RDWR);
    CHECK(dup2(made, 101) == 101);
    CHECK(close(made) == 0);
    for (int n = 0; n < count; n++) operate(n, fds);
    if (!strcmp(args[2], "alone")) return 0;
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    CHECK(dup2(there[0], 102) == 102 && dup2(there[1], 103) == 103);
    CHECK(dup2(back[0], 104) == 104 && dup2(back[1], 105) == 105);
    pid_t child = fork();
    if (!child) {
        if (!strcmp(args[2], "mixed")) {
            unsetenv("LD_PRELOAD");
            execl("/proc/self/exe", "programs", "random", args[0], args[1], "child", NULL);
            _exit(1);
        }
        state ^= 0x5555;
        turns(1000, 1000 + count, 102, 105, fds);
        _exit(0);
    }
    CHECK(write(103, "t", 1) == 1);
    turns(2000, 2000 + count, 104, 103, fds);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

static int a_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    return fd;
}

/* locks FILE: record locks of the process stay while it writes and reads. */
static int locks(char **args) {
    int fd = a_file(args[0]);
    unsigned char *bytes = fill(malloc(9 * MIB), 9 * MIB, 1);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 100};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    for (int i = 0; i < 5; i++) {
        CHECK(pwrite(fd, bytes, 9 * MIB, i) == 9 * MIB);
        CHECK(pread(fd, bytes, 9 * MIB, i) == 9 * MIB);
        pid_t child = fork();
        if (!child) {
            struct flock found = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
            CHECK(fcntl(fd, F_GETLK, &found) == 0);
            _exit(found.l_type == F_WRLCK && found.l_pid == getppid() ? 0 : 1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}

static int count_entries(const char *path) {
    DIR *dir = opendir(path);
    CHECK(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static volatile int stop;
struct writer { int fd; int n; };
static void *writes(void *p) {
    struct writer *w = p;
    unsigned char *bytes = malloc(2 * MIB + 1), *found = malloc(2 * MIB + 1);
    for (int round = 0; round < 6; round++) {
        off_t at = (off_t)w->n * (2 * MIB + 1);
        CHECK(pwrite(w->fd, fill(bytes, 2 * MIB + 1, w->n * 100 + round), 2 * MIB + 1, at) == 2 * MIB + 1);
        CHECK(pread(w->fd, found, 2 * MIB + 1, at) == 2 * MIB + 1);
        CHECK(!memcmp(bytes, found, 2 * MIB + 1));
    }
    free(bytes);
    free(found);
    return 0;
}
static void *streams(void *p) {
    int fd = *(int *)p;
    unsigned char *bytes = fill(malloc(3 * MIB), 3 * MIB, 5);
    while (!stop) CHECK(pwrite(fd, bytes, 3 * MIB, 777) == 3 * MIB);
    free(bytes);
    return 0;
}

/* descriptors FILE: while a thread writes, other threads and children of fork find no descriptor and no number taken. */
static int descriptors(char **args) {
    int fd = a_file(args[0]);
    int before = count_entries("/proc/self/fd");
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, streams, &fd) == 0);
    for (int i = 0; i < 3000; i++) {
        int null = open("/dev/null", O_RDONLY);
        CHECK(null == fd + 1);
        CHECK(close(null) == 0);
        if (i % 50 == 0) {
            CHECK(count_entries("/proc/self/fd") == before);
            pid_t child = fork();
            if (!child) _exit(count_entries("/proc/self/fd") == before ? 0 : 1);
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
    }
    stop = 1;
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(count_entries("/proc/self/task") == 3);
    return 0;
}

/* alone FILE: when a request has returned, the process has one thread, and may do what takes that. */
static int alone(char **args) {
    int fd = a_file(args[0]);
    unsigned char *bytes = fill(malloc(3 * MIB), 3 * MIB, 1);
    for (int i = 0; i < 50; i++) {
        CHECK(pwrite(fd, bytes, 3 * MIB, i) == 3 * MIB);
        CHECK(count_entries("/proc/self/task") == 3);
    }
    CHECK(pwrite(fd, bytes, 3 * MIB, 1) == 3 * MIB);
    CHECK(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL);
    return 0;
}

/* full FILE: no descriptor is left. */
static int full(char **args) {
    int fd = a_file(args[0]);
    struct rlimit limit = {fd + 1, fd + 1};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(dup(fd) == -1 && errno == EMFILE);
    unsigned char *bytes = fill(malloc(9 * MIB), 9 * MIB, 1), *found = malloc(9 * MIB);
    CHECK(write(fd, bytes, 9 * MIB - 5) == 9 * MIB - 5);
    CHECK(pread(fd, found, 9 * MIB, 0) == 9 * MIB - 5 && !memcmp(bytes, found, 9 * MIB - 5));
    return 0;
}

/* threads FILE: more threads than there is memory for. */
static int threads(char **args) {
    enum { THREADS = 24 };
    int fd = a_file(args[0]);
    pthread_t all[THREADS];
    struct writer writers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        writers[i] = (struct writer){fd, i};
        CHECK(pthread_create(&all[i], 0, writes, &writers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(all[i], 0) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == (off_t)THREADS * (2 * MIB + 1));
    return 0;
}

/* position FILE: processes and threads that share a position write and read each byte once. */
static int position(char **args) {
    enum { CHILDREN = 3, RECORDS = 8, LEN = 2 * MIB + 4096 };
    int fd = a_file(args[0]);
    unsigned char *bytes = malloc(LEN);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CHILDREN; i++) {
            if (fork()) continue;
            for (int n = 0; n < RECORDS; n++) {
                if (round == 0) {
                    memset(bytes, 1 + i * RECORDS + n, LEN);
                    CHECK(write(fd, bytes, LEN) == LEN);
                } else {
                    CHECK(read(fd, bytes, LEN) == LEN);
                    for (size_t b = 1; b < LEN; b++) CHECK(bytes[b] == bytes[0]);
                    CHECK(printf("%d\n", bytes[0]) > 0 && fflush(stdout) == 0);
                }
            }
            _exit(0);
        }
        for (int i = 0, status; i < CHILDREN; i++) CHECK(wait(&status) > 0 && status == 0);
        CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)CHILDREN * RECORDS * LEN);
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
    }
    return 0;
}

/* space FILE: the file system fills up. */
static int space(char **args) {
    enum { LEN = 3 * MIB + 17 };
    int fd = a_file(args[0]);
    unsigned char *bytes = fill(malloc(LEN), LEN, 7), *found = malloc(LEN);
    off_t sum = 0;
    ssize_t n;
    while ((n = write(fd, bytes, LEN)) > 0) sum += n;
    CHECK(n == -1 && errno == ENOSPC);
    CHECK(lseek(fd, 0, SEEK_CUR) == sum);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == sum);
    CHECK(fsync(fd) == 0);
    for (off_t at = 0; at < sum; at += LEN) {
        size_t there = sum - at < LEN ? sum - at : LEN;
        CHECK(pread(fd, found, LEN, at) == (ssize_t)there && !memcmp(found, bytes, there));
    }
    CHECK(ftruncate(fd, 0) == 0);
    return 0;
}

/* mapped FILE: stores by a mapping and large writes. */
static int mapped(char **args) {
    enum { LEN = 4 * MIB };
    int fd = a_file(args[0]);
    unsigned char *bytes = fill(malloc(LEN), LEN, 3);
    CHECK(write(fd, bytes, LEN) == LEN);
    unsigned char *map = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        map[i * 4096] ^= 0xff;
        CHECK(pread(fd, bytes, LEN, 0) == LEN && !memcmp(bytes, map, LEN));
        CHECK(pwrite(fd, fill(bytes, LEN, i), LEN, 0) == LEN && !memcmp(bytes, map, LEN));
    }
    CHECK(msync(map, LEN, MS_SYNC) == 0 && fsync(fd) == 0);
    /* A mapping that only reads sees what is written directly to another file. */
    char other[4096];
    snprintf(other, sizeof other, "%s.read", args[0]);
    int second = a_file(other);
    CHECK(ftruncate(second, LEN) == 0);
    int reader = open(other, O_RDONLY);
    const unsigned char *seen = mmap(0, LEN, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(seen != MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        CHECK(hash(seen, LEN) != 0);
        CHECK(pwrite(second, fill(bytes, LEN, 100 + i), LEN, 0) == LEN && !memcmp(bytes, seen, LEN));
    }
    CHECK(fsync(second) == 0);
    return 0;
}

/* limits FILE: a limit on the length of files. */
static int limits(char **args) {
    enum { LEN = 3 * MIB };
    int fd = a_file(args[0]);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {5 * MIB + 11, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    unsigned char *bytes = fill(malloc(LEN), LEN, 3);
    CHECK(write(fd, bytes, LEN) == LEN);
    CHECK(write(fd, bytes, LEN) == 2 * MIB + 11);
    CHECK(write(fd, bytes, LEN) == -1 && errno == EFBIG);
    CHECK(lseek(fd, 0, SEEK_END) == 5 * MIB + 11);
    return 0;
}

/* bad FILE: buffers that are not there, by AMPHI_PRELOAD=strict. */
static int bad(char **args) {
    enum { LEN = 10 * MIB };
    int fd = a_file(args[0]);
    unsigned char *bytes = mmap(0, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(bytes, LEN, 9);
    CHECK(mprotect(bytes + LEN, LEN, PROT_NONE) == 0);
    CHECK(pwrite(fd, bytes, LEN, 0) == LEN);
    CHECK(pwrite(fd, bytes + LEN, LEN, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, bytes + LEN, LEN, 0) == -1 && errno == EFAULT);
    CHECK(write(fd, bytes + LEN, LEN) == -1 && errno == EFAULT && lseek(fd, 0, SEEK_CUR) == 0);
    ssize_t n = write(fd, bytes + LEN - 3 * MIB, LEN);
    CHECK(n > 0 && n <= 3 * MIB && lseek(fd, 0, SEEK_CUR) == n);
    CHECK(close(fd) == 0 && pwrite(fd, bytes, LEN, 0) == -1 && errno == EBADF);
    int reads = open(args[0], O_RDONLY);
    CHECK(pwrite(reads, bytes, LEN, 0) == -1 && errno == EBADF);
    CHECK(pwrite(a_file(args[0]), bytes, LEN, -5) == -1 && errno == EINVAL);
    return 0;
}

static int handler_fd;
static volatile sig_atomic_t handled;
static void handler(int signal) {
    (void)signal;
    static unsigned char bytes[2 * MIB];
    int error = errno;
    CHECK(pread(handler_fd, bytes, sizeof bytes, 4096) == sizeof bytes);
    CHECK(bytes[0] == bytes[sizeof bytes - 1]);
    handled++;
    errno = error;
}

/* handlers FILE: signal handlers read and write during large requests; a thread is cancelled. */
static int handlers(char **args) {
    enum { LEN = 4 * MIB };
    int fd = a_file(args[0]);
    handler_fd = fd;
    unsigned char *bytes = malloc(LEN);
    memset(bytes, 1, LEN);
    CHECK(pwrite(fd, bytes, LEN, 0) == LEN);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    struct itimerval often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    for (int i = 0; handled < 20 || i < 30; i++) {
        memset(bytes, i, LEN);
        CHECK(pwrite(fd, bytes, LEN, 0) == LEN);
        CHECK(pread(fd, bytes, LEN, 0) == LEN && bytes[LEN / 2] == (unsigned char)i);
    }
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, streams, &fd) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0);
    void *result;
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    return 0;
}

/* keeps FILE: an append, O_SYNC, a lease, a file without rights to open it again. */
static int keeps(char **args) {
    enum { LEN = 3 * MIB + 1 };
    unsigned char *bytes = fill(malloc(LEN), LEN, 3), *found = malloc(LEN);
    int fd = open(args[0], O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    CHECK(write(fd, bytes, LEN) == LEN && pwrite(fd, bytes, LEN, 0) == LEN);
    CHECK(lseek(fd, 0, SEEK_END) == 2 * LEN);
    CHECK(close(fd) == 0);
    fd = open(args[0], O_RDWR | O_SYNC | O_TRUNC);
    CHECK(write(fd, bytes, LEN) == LEN && pread(fd, found, LEN, 0) == LEN && !memcmp(bytes, found, LEN));
    CHECK(close(fd) == 0);
    CHECK(unlink(args[0]) == 0);
    fd = open(args[0], O_RDWR | O_CREAT | O_EXCL, 0444);
    CHECK(write(fd, bytes, LEN) == LEN && fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
    CHECK(pwrite(fd, bytes, LEN, 0) == LEN && fcntl(fd, F_GETLEASE) == F_WRLCK);
    CHECK(unlink(args[0]) == 0);
    CHECK(pwrite(fd, bytes, LEN, 0) == LEN && pread(fd, found, LEN, 0) == LEN && !memcmp(bytes, found, LEN));
    CHECK(fcntl(fd, F_SETLEASE, F_UNLCK) == 0);
    CHECK(pwrite(fd, bytes, LEN, 0) == LEN && pread(fd, found, LEN, 0) == LEN && !memcmp(bytes, found, LEN));
    return 0;
}

int main(int count, char **args) {
    static const struct { const char *name; int (*run)(char **); } all[] = {
        {"random", random_operations}, {"locks", locks}, {"alone", alone}, {"descriptors", descriptors}, {"full", full},
        {"threads", threads}, {"position", position}, {"space", space}, {"mapped", mapped}, {"limits", limits},
        {"bad", bad}, {"handlers", handlers}, {"keeps", keeps},
    };
    for (size_t i = 0; count > 2 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, args[1])) return all[i].run(args + 2);
    return 2;
}
