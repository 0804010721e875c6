/* Programs of the tests of posted writes: each checks what it finds, and ends with 0 or says what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "%s:%d: %s, errno %d\n", __FILE__, __LINE__, #what, errno);        \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define MAX (1 << 20)

static unsigned char model[MAX], found[MAX];
static off_t size;
static uint64_t seed = 88172645463325252ull;

static uint64_t below(uint64_t n) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % n;
}

static char *name(const char *dir, const char *file) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return path;
}

static unsigned char *bytes(size_t len) {
    static unsigned char b[MAX];
    for (size_t i = 0; i < len; i++) b[i] = (unsigned char)below(256);
    return b;
}

/* What a write of these bytes makes of the file. */
static void wrote(const unsigned char *b, size_t len, off_t at) {
    memcpy(model + at, b, len);
    if (at + (off_t)len > size) size = at + len;
}

/* Writes often enough that the descriptor posts. */
static void warm(int fd) {
    for (int i = 0; i < 20; i++) {
        unsigned char *b = bytes(100);
        CHECK(pwrite(fd, b, 100, i * 10) == 100);
        wrote(b, 100, i * 10);
    }
}

static void is_right(int fd) {
    struct stat s;
    CHECK(fstat(fd, &s) == 0 && s.st_size == size);
    CHECK(pread(fd, found, MAX, 0) == size);
    CHECK(memcmp(found, model, size) == 0);
}

/* All functions that write, and all ways to look at what they did. */
static void functions_and(const char *dir, int look) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(fd >= 0);
    size = 0;
    memset(model, 0, MAX);
    for (int round = 0; round < 4; round++) {
        warm(fd);
        unsigned char *b = bytes(5000);
        CHECK(lseek(fd, 700 * round, SEEK_SET) == 700 * round);
        CHECK(write(fd, b, 5000) == 5000 && lseek(fd, 0, SEEK_CUR) == 700 * round + 5000);
        wrote(b, 5000, 700 * round);
        if (round % 3 == 0) is_right(fd);
        b = bytes(3000);
        struct iovec v[3] = {{b, 1000}, {b + 1000, 0}, {b + 1000, 2000}};
        CHECK(writev(fd, v, 3) == 3000 && lseek(fd, 0, SEEK_CUR) == 700 * round + 8000);
        wrote(b, 3000, 700 * round + 5000);
        if (round % 3 == 1) is_right(fd);
        b = bytes(3000);
        v[0].iov_base = b, v[1].iov_base = v[2].iov_base = b + 1000;
        CHECK(pwritev(fd, v, 3, 65000) == 3000);
        wrote(b, 3000, 65000);
        b = bytes(65536);
        CHECK(pwrite(fd, b, 65536, 100000 + round) == 65536);
        wrote(b, 65536, 100000 + round);
        b = bytes(70000);
        CHECK(pwrite(fd, b, 70000, 90000) == 70000);
        wrote(b, 70000, 90000);
        CHECK(pwrite(fd, b, 0, 1 << 19) == 0 && pwrite(fd, b, 10, -1) == -1 && errno == EINVAL);
        if (round == 2) {
            CHECK(ftruncate(fd, 5000) == 0);
            size = 5000;
            memset(model + size, 0, MAX - size);
            continue;
        }
        if (round < 3) continue;
        /* Ways to look. */
        b = bytes(4096);
        off_t end = size;
        CHECK(pwrite(fd, b, 4096, end) == 4096);
        wrote(b, 4096, end);
        struct stat s;
        switch (look) {
        case 5: {
            unsigned char *m = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
            CHECK(m != MAP_FAILED && memcmp(m, model, size) == 0);
            munmap(m, size);
            break;
        }
        case 1: {
            int p[2];
            off_t from = end;
            CHECK(pipe(p) == 0 && sendfile(p[1], fd, &from, 10000) == 4096);
            CHECK(read(p[0], found, 10000) == 4096 && memcmp(found, b, 4096) == 0);
            close(p[0]), close(p[1]);
            break;
        }
        case 2: {
            int to = open(name(dir, "copy"), O_RDWR | O_CREAT | O_TRUNC, 0644);
            loff_t from = 0;
            CHECK(copy_file_range(fd, &from, to, NULL, size + 1000, 0) == size);
            CHECK(pread(to, found, MAX, 0) == size && memcmp(found, model, size) == 0);
            close(to);
            break;
        }
        case 3: CHECK(lseek(fd, 0, SEEK_END) == size); break;
        case 4: CHECK(stat(name(dir, "file"), &s) == 0 && s.st_size == size); break;
        case 0: CHECK(fsync(fd) == 0 && close(dup(fd)) == 0); break;
        }
        is_right(fd);
    }
    CHECK(close(fd) == 0);
    fd = open(name(dir, "file"), O_RDONLY);
    CHECK(pwrite(fd, "x", 1, 0) == -1 && errno == EBADF);
    is_right(fd);
    CHECK(close(fd) == 0 && unlink(name(dir, "file")) == 0);
}

static int functions(const char *dir) {
    for (int look = 0; look < 6; look++) functions_and(dir, look);
    return 0;
}

/* Flags of the open file that change: by another process, without a call to the mount. */
static int flags(const char *dir) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    warm(fd);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) _exit(syscall(SYS_fcntl, fd, F_SETFL, round % 2 ? 0 : O_APPEND));
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        unsigned char *b = bytes(50);
        CHECK(pwrite(fd, b, 50, 3) == 50);
        wrote(b, 50, round % 2 ? 3 : size);
        b = bytes(60);
        CHECK(lseek(fd, 7, SEEK_SET) == 7 && write(fd, b, 60) == 60);
        wrote(b, 60, round % 2 ? 7 : size);
        if (round % 2) warm(fd);
        is_right(fd);
    }
    return 0;
}

/* Processes that share a position: each record is there once. */
static int records(const char *dir) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    int record[16], seen[4000] = {0};
    for (int n = 0; n < 20; n++) CHECK(pwrite(fd, record, sizeof record, 0) == sizeof record);
    for (int child = 0; child < 4; child++)
        if (fork() == 0) {
            for (int n = 0; n < 1000; n++) {
                for (int i = 0; i < 16; i++) record[i] = child * 1000 + n;
                CHECK(write(fd, record, sizeof record) == sizeof record);
            }
            exit(0);
        }
    for (int child = 0; child < 4; child++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    CHECK(lseek(fd, 0, SEEK_CUR) == 4000 * 64);
    for (int n = 0; n < 4000; n++) {
        CHECK(pread(fd, record, sizeof record, n * 64) == sizeof record);
        for (int i = 1; i < 16; i++) CHECK(record[i] == record[0]);
        CHECK(record[0] >= 0 && record[0] < 4000 && seen[record[0]]++ == 0);
    }
    return 0;
}

/* Threads that write parts of their own. */
static int shared_fd;
static void *writer(void *arg) {
    long me = (long)arg;
    unsigned char b[700];
    for (int n = 0; n < 2000; n++) {
        memset(b, (int)(me * 50 + n % 50), sizeof b);
        CHECK(pwrite(shared_fd, b, sizeof b, me * 70000 + n % 100 * 700) == sizeof b);
        if (n % 500 == 499) {
            CHECK(pread(shared_fd, b, 1, me * 70000 + n % 100 * 700) == 1);
            CHECK(b[0] == (unsigned char)(me * 50 + n % 50));
        }
    }
    return NULL;
}

static int threads(const char *dir) {
    shared_fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    pthread_t all[5];
    for (long n = 0; n < 5; n++) CHECK(pthread_create(&all[n], NULL, writer, (void *)n) == 0);
    for (int n = 0; n < 5; n++) pthread_join(all[n], NULL);
    unsigned char b[700];
    for (long me = 0; me < 5; me++)
        for (int n = 1900; n < 2000; n++) {
            CHECK(pread(shared_fd, b, sizeof b, me * 70000 + n % 100 * 700) == sizeof b);
            for (int i = 0; i < 700; i++) CHECK(b[i] == (unsigned char)(me * 50 + n % 50));
        }
    return 0;
}

/* Signal handlers that write while a write is under way, and sometimes never return. */
static sigjmp_buf back;
static volatile unsigned handled, jumps;
static void handler(int sig) {
    (void)sig;
    unsigned n = handled + 1;
    CHECK(pwrite(shared_fd, &n, sizeof n, 500000) == sizeof n);
    handled = n;
    if (n % 7 == 0) {
        jumps++;
        siglongjmp(back, 1);
    }
}

static int handlers(const char *dir) {
    shared_fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    volatile unsigned n = 0;
    unsigned b[1000], last;
    while (n < 200000 && jumps < 200) {
        sigsetjmp(back, 1);
        n++;
        for (int i = 0; i < 1000; i++) b[i] = n;
        CHECK(pwrite(shared_fd, b, sizeof b, n % 50 * 4000) == sizeof b);
        if (n % 1000 == 0) {
            sigset_t all, before;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, &before);
            CHECK(pread(shared_fd, b, sizeof b, n % 50 * 4000) == sizeof b);
            for (int i = 0; i < 1000; i++) CHECK(b[i] == n);
            CHECK(handled == 0 || (pread(shared_fd, &last, sizeof last, 500000) == sizeof last && last >= handled));
            sigprocmask(SIG_SETMASK, &before, NULL);
        }
    }
    return 0;
}

/* A limit on the length of files. */
static int limits(const char *dir) {
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    warm(fd);
    struct rlimit limit = {1000, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(pwrite(fd, "12345", 5, 998) == 2);
    CHECK(pwrite(fd, "12345", 5, 1000) == -1 && errno == EFBIG);
    return 0;
}

/* A program that stops posting still makes the kernel ask for the length that it has made by posts. */
static int stops(const char *dir) {
    enum { COUNT = 40, LEN = 4096 };
    for (int look = 0; look < 3; look++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            continue;
        }
        int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        warm(fd);
        CHECK(ftruncate(fd, 0) == 0);
        unsigned char *b = bytes(COUNT * LEN);
        for (int n = 0; n < COUNT; n++) CHECK(pwrite(fd, b + n * LEN, LEN, n * LEN) == LEN);
        struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        int to = open(name(dir, "copy"), O_RDWR | O_CREAT | O_TRUNC, 0644);
        off_t from = 0;
        if (look == 0) CHECK(copy_file_range(fd, &from, to, NULL, MAX, 0) == COUNT * LEN);
        if (look == 1) CHECK(sendfile(to, fd, &from, MAX) == COUNT * LEN);
        if (look < 2) {
            CHECK(pread(to, found, MAX, 0) == COUNT * LEN && memcmp(found, b, COUNT * LEN) == 0);
        } else {
            unsigned char *m = mmap(NULL, COUNT * LEN, PROT_READ, MAP_SHARED, fd, 0);
            CHECK(m != MAP_FAILED && memcmp(m, b, COUNT * LEN) == 0);
        }
        CHECK(close(fd) == 0 && close(to) == 0);
        exit(0);
    }
    return 0;
}

/* A mapping that was made before anything was posted reaches all that was written since. */
static int mapped(const char *dir) {
    enum { COUNT = 40, LEN = 4096 };
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *m = mmap(NULL, COUNT * LEN, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED && ftruncate(fd, COUNT / 2 * LEN) == 0);
    unsigned char *b = bytes(COUNT * LEN);
    for (int round = 0; round < 4; round++) {
        for (int n = 0; n < COUNT; n++) CHECK(pwrite(fd, b + n * LEN, LEN, n * LEN) == LEN);
    }
    CHECK(memcmp(m, b, COUNT * LEN) == 0);
    return 0;
}

/* Writes records one after the other, and counts in shared memory those that have returned. */
static int counts(const char *dir, const char *counter) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    int c = open(counter, O_RDWR);
    volatile uint64_t *returned = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, c, 0);
    CHECK(returned != MAP_FAILED);
    uint64_t record[64];
    for (uint64_t n = 0;; n++) {
        for (int i = 0; i < 64; i++) record[i] = n + 1;
        if (pwrite(fd, record, sizeof record, n % 2000 * sizeof record) != sizeof record) return 3;
        *returned = n + 1;
    }
}

/* Writes new bytes until there is no space; prints how many writes returned, and what fsync says. */
static int fill(const char *dir) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    uint64_t record[512], n = 0;
    for (;; n++) {
        for (int i = 0; i < 512; i++) record[i] = n;
        ssize_t done = pwrite(fd, record, sizeof record, n * sizeof record);
        if (done != sizeof record) break;
    }
    int e = errno;
    printf("%llu %d ", (unsigned long long)n, e);
    printf("%d\n", fsync(fd) == 0 ? 0 : errno);
    for (uint64_t k = 0; k < n; k++) {
        CHECK(pread(fd, record, sizeof record, k * sizeof record) == sizeof record);
        for (int i = 0; i < 512; i++) CHECK(record[i] == k);
    }
    return 0;
}

/* Random operations against a model, in this process and in children. */
static void is_right_here(int fd) {
    struct stat s;
    CHECK(fstat(fd, &s) == 0);
    if (s.st_size != size) fprintf(stderr, "size %lld instead of %lld\n", (long long)s.st_size, (long long)size);
    CHECK(s.st_size == size);
    off_t at = below(size + 1), len = below(60000);
    ssize_t expected = len < size - at ? len : size - at;
    CHECK(pread(fd, found, len, at) == expected);
    for (ssize_t i = 0; i < expected; i++)
        if (found[i] != model[at + i]) {
            fprintf(stderr, "byte %lld is %d instead of %d\n", (long long)(at + i), found[i], model[at + i]);
            exit(1);
        }
}

static int randomly(const char *dir, const char *steps, int maps) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    off_t at = 0;
    for (long n = atol(steps); n > 0; n--) {
        size_t len = 1 + below(below(10) ? 5000 : 80000);
        off_t to = below(MAX - len);
        if (below(3) == 0) to = size < (off_t)(MAX - len) ? size : to;
        unsigned char *b;
        switch (below(40)) {
        default:
            b = bytes(len);
            CHECK(pwrite(fd, b, len, to) == (ssize_t)len);
            wrote(b, len, to);
            break;
        case 20 ... 26:
            if (at + len > MAX) CHECK(lseek(fd, at = 0, SEEK_SET) == 0);
            b = bytes(len);
            CHECK(write(fd, b, len) == (ssize_t)len);
            wrote(b, len, at);
            at += len;
            break;
        case 27: CHECK(lseek(fd, at = to, SEEK_SET) == to); break;
        case 28:
            if (below(4)) break;
            if (to < size) memset(model + to, 0, size - to);
            CHECK(ftruncate(fd, size = to) == 0);
            break;
        case 29:
            if (below(2)) CHECK(fsync(fd) == 0);
            break;
        case 30 ... 31: is_right_here(fd); break;
        case 32: {
            int child = fork(), status;
            b = bytes(len);
            if (child == 0) {
                if (pwrite(fd, b, len, to) != (ssize_t)len) _exit(1);
                _exit(0);
            }
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            wrote(b, len, to);
            break;
        }
        case 33: {
            int other = dup(fd);
            b = bytes(len);
            CHECK(other >= 0 && pwrite(other, b, len, to) == (ssize_t)len && close(other) == 0);
            wrote(b, len, to);
            break;
        }
        case 34: {
            /* A file of which the kernel has pages is not posted to. */
            if (size == 0 || !maps) break;
            unsigned char *m = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
            CHECK(m != MAP_FAILED && memcmp(m, model, size) == 0);
            CHECK(munmap(m, size) == 0);
            break;
        }
        case 35: {
            int other = open(name(dir, "file"), O_RDWR);
            b = bytes(len);
            CHECK(other >= 0 && pwrite(other, b, len, to) == (ssize_t)len);
            wrote(b, len, to);
            is_right_here(below(2) ? other : fd);
            CHECK(close(other) == 0);
            break;
        }
        case 36: {
            int other = open(name(dir, "file"), O_WRONLY | O_APPEND);
            if (size + len > MAX) len = MAX - size;
            b = bytes(len);
            CHECK(other >= 0 && write(other, b, len) == (ssize_t)len);
            wrote(b, len, size);
            CHECK(close(other) == 0);
            break;
        }
        case 37:
            CHECK(close(fd) == 0);
            fd = open(name(dir, "file"), O_RDWR);
            CHECK(fd >= 0);
            at = 0;
            break;
        case 38: {
            struct iovec v = {bytes(len), len};
            if (size + len > MAX) break;
            CHECK(pwritev2(fd, &v, 1, 5, RWF_APPEND) == (ssize_t)len);
            wrote(v.iov_base, len, size);
            break;
        }
        case 39:
            CHECK(fchmod(fd, below(2) ? 0644 : 0600) == 0);
            break;
        }
    }
    is_right(fd);
    CHECK(close(fd) == 0);
    return 0;
}

/* A forged ring: what a program that has one file can do to another. */
struct identity {
    uint32_t version, is_shared, handle, generation;
    uint64_t ring;
    unsigned char secret[16], socket[16];
    uint64_t slots;
};

/* The ring of a file that this process may post to. */
static uint64_t *ring_of(const struct identity *own) {
    int s = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path + 1, "amphi-", 6), memcpy(a.sun_path + 7, own->socket, 16);
    CHECK(connect(s, (struct sockaddr *)&a, 2 + 1 + 22) == 0);
    struct { char magic[8]; uint64_t wanted; unsigned char secret[16]; } request = {"amphireq", 4, {0}};
    memcpy(request.magic, "amphireq", 8), memcpy(request.secret, own->secret, 16);
    CHECK(send(s, &request, sizeof request, 0) == sizeof request);
    char answer[8], control[64];
    struct iovec v = {answer, 8};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(s, &m, 0) == 8 && CMSG_FIRSTHDR(&m));
    int fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&m));
    CHECK(ftruncate(fd, 0) == -1 && ftruncate(fd, 1 << 30) == -1);
    uint64_t *ring = mmap(NULL, 65536 + 64 * 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(ring != MAP_FAILED);
    return ring;
}

static int forges(const char *dir) {
    int victim = open(name(dir, "victim"), O_RDWR), own = open(name(dir, "own"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct identity of_victim, of_own;
    CHECK(ioctl(victim, _IOR('A', 11, struct identity), &of_victim) == 0 && of_victim.is_shared == 1);
    int reader = open(name(dir, "victim"), O_RDONLY);
    CHECK(ioctl(reader, _IOR('A', 11, struct identity), &of_own) == 0 && of_own.is_shared == 0);
    CHECK(ioctl(own, _IOR('A', 11, struct identity), &of_own) == 0 && of_own.is_shared == 1);
    uint64_t *ring = ring_of(&of_own);
    memset((char *)ring + 65536, 'F', 64 * 65536);
    struct stat st;
    for (int round = 0; round < 3000; round++) {
        uint64_t *slot = ring + 512 + below(64) * 8;
        ring[16] = below(4) ? ring[16] + below(66) : below(~0ull);
        ring[8] = below(2) ? ~0ull >> 1 : below(~0ull);
        for (int n = 0; n < 64; n++) {
            slot = ring + 512 + n * 8;
            slot[0] = below(8) ? (ring[16] - 64 + below(64)) / 64 * 64 * 4 + n * 4 + below(4) : below(~0ull);
            slot[1] = below(4) ? below(100000) : below(~0ull);
            uint64_t handle = below(2) ? of_victim.handle : below(2) ? of_own.handle : below(1000);
            slot[2] = (below(3) ? below(65537) : below(1ull << 32)) << 32 | handle;
        }
        CHECK(fstat(own, &st) == 0);
    }
    /* Rings that are not in order are given up; a program can go on. */
    CHECK(ftruncate(own, 0) == 0);
    for (int n = 0; n < 100; n++) CHECK(pwrite(own, &n, sizeof n, n * 4) == 4);
    for (int n = 0, m; n < 100; n++) CHECK(pread(own, &m, sizeof m, n * 4) == 4 && m == n);
    return 0;
}

/* A write that stops in the middle: its position is claimed, and others post behind it. */
static int pauses(const char *dir) {
    int fd = open(name(dir, "file"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    warm(fd);
    struct identity own;
    CHECK(ioctl(fd, _IOR('A', 11, struct identity), &own) == 0 && own.is_shared == 1);
    uint64_t *ring = ring_of(&own);
    uint64_t position = __sync_fetch_and_add(&ring[16], 1);
    memset((char *)ring + 65536 + position % 64 * 65536, 'M', 100);
    for (int n = 0; n < 40; n++) CHECK(pwrite(fd, &n, sizeof n, n * 4) == 4);
    CHECK(ring[16] > position + 1);
    printf("posted\n"), fflush(stdout);
    CHECK(getchar() == 'g');
    CHECK(ring[8] == 0);
    __atomic_store_n(&ring[512 + position % 64 * 8], (position + 64) << 2, __ATOMIC_SEQ_CST);
    CHECK(pwrite(fd, "middle", 6, 0) == 6);
    printf("written\n"), fflush(stdout);
    CHECK(getchar() == 'g');
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    const char *what = argv[1], *dir = argv[2];
    if (!strcmp(what, "functions")) return functions(dir);
    if (!strcmp(what, "flags")) return flags(dir);
    if (!strcmp(what, "records")) return records(dir);
    if (!strcmp(what, "threads")) return threads(dir);
    if (!strcmp(what, "handlers")) return handlers(dir);
    if (!strcmp(what, "limits")) return limits(dir);
    if (!strcmp(what, "stops")) return stops(dir);
    if (!strcmp(what, "mapped")) return mapped(dir);
    if (!strcmp(what, "fill")) return fill(dir);
    if (!strcmp(what, "forges")) return forges(dir);
    if (!strcmp(what, "pauses")) return pauses(dir);
    if (!strcmp(what, "counts") && argc > 3) return counts(dir, argv[3]);
    if (!strcmp(what, "random") && argc > 3) {
        if (argc > 4) seed ^= strtoull(argv[4], NULL, 10) * 0x9e3779b97f4a7c15ull;
        return randomly(dir, argv[3], argc > 5);
    }
    return 2;
}
