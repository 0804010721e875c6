/* Programs of the tests of `amphi run`: each checks what it reads, and ends with 0 or says what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s, errno %d\n", __FILE__, __LINE__, #what, errno); exit(1); } } while (0)
#define RECORD 4096

/* Byte `at` of file `n`, as the test has written it. Records are different up to number 250. */
static unsigned char expected(int n, off_t at) { return (unsigned char)(n * 37 + at / RECORD * 11 + at % 251); }

static int is_of(const unsigned char *bytes, size_t len, int n, off_t at) {
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != expected(n, at + i)) return 0;
    return 1;
}

static char *file_name(const char *dir, int n) {
    static __thread char name[4096];
    snprintf(name, sizeof name, "%s/n%d", dir, n);
    return name;
}

static int open_file(const char *dir, int n) {
    int fd = open(file_name(dir, n), O_RDONLY);
    CHECK(fd >= 0);
    return fd;
}

/* Reads often enough that the descriptor is read without calls. */
static void warm(int fd, int n) {
    unsigned char b[RECORD];
    for (int i = 0; i < 14; i++) {
        CHECK(pread(fd, b, sizeof b, 0) == sizeof b);
        CHECK(is_of(b, sizeof b, n, 0));
    }
}

/* All functions that read. */
static int functions(const char *dir) {
    int fd = open_file(dir, 1);
    unsigned char b[3 * RECORD];
    warm(fd, 1);
    for (int round = 0; round < 5; round++) {
        off_t at = round * RECORD + 77;
        CHECK(pread64(fd, b, 100, at) == 100 && is_of(b, 100, 1, at));
        struct iovec v[3] = {{b, 10}, {b + 10, 0}, {b + 10, 5000}};
        CHECK(preadv(fd, v, 3, at) == 5010 && is_of(b, 5010, 1, at));
        CHECK(preadv2(fd, v, 3, at, 0) == 5010 && is_of(b, 5010, 1, at));
        CHECK(lseek(fd, at, SEEK_SET) == at);
        CHECK(readv(fd, v, 3) == 5010 && is_of(b, 5010, 1, at));
        CHECK(preadv2(fd, v, 3, -1, 0) == 5010 && is_of(b, 5010, 1, at + 5010));
        CHECK(read(fd, b, RECORD) == RECORD && is_of(b, RECORD, 1, at + 2 * 5010));
        CHECK(lseek(fd, 0, SEEK_CUR) == at + 2 * 5010 + RECORD);
        CHECK(pread(fd, b, 10, -1) == -1 && errno == EINVAL);
        CHECK(read(fd, b, 0) == 0);
    }
    off_t size = lseek(fd, 0, SEEK_END);
    for (int i = 0; i < 5; i++) {
        CHECK(pread(fd, b, sizeof b, size - 5) == 5 && is_of(b, 5, 1, size - 5));
        CHECK(pread(fd, b, sizeof b, size) == 0 && pread(fd, b, sizeof b, size + 100000) == 0);
        CHECK(lseek(fd, -7, SEEK_END) == size - 7 && read(fd, b, 100) == 7 && lseek(fd, 0, SEEK_CUR) == size);
        CHECK(read(fd, b, 100) == 0);
    }
    int w = open(file_name(dir, 1), O_WRONLY);
    for (int i = 0; i < 5; i++) CHECK(pread(w, b, 1, 0) == -1 && errno == EBADF);
    errno = 4711;
    CHECK(pread(fd, b, 100, 0) == 100 && errno == 4711);
    return 0;
}

/* `dup`, `dup2`, closes and opens of numbers that were used before, by functions and by system calls. */
static int numbers(const char *dir) {
    enum { FILES = 6, NUMBERS = 12, FIRST = 40 };
    int holds[NUMBERS];
    unsigned char b[RECORD];
    memset(holds, -1, sizeof holds);
    srandom(5);
    for (int round = 0; round < 6000; round++) {
        int at = random() % NUMBERS, n = random() % FILES, other = random() % NUMBERS;
        switch (random() % 8) {
        case 0:
            if (holds[at] >= 0) { close(FIRST + at); holds[at] = -1; }
            break;
        case 1: {
            int fd = open_file(dir, n);
            CHECK(dup2(fd, FIRST + at) == FIRST + at);
            close(fd);
            holds[at] = n;
            break;
        }
        case 2:
            if (holds[other] >= 0) { CHECK(dup3(FIRST + other, FIRST + at, O_CLOEXEC) >= 0 || at == other); holds[at] = holds[other]; }
            break;
        case 3: /* past the functions of libc */
            if (holds[other] >= 0) { CHECK(syscall(SYS_dup2, FIRST + other, FIRST + at) >= 0); holds[at] = holds[other]; }
            break;
        case 4: {
            long fd = syscall(SYS_openat, AT_FDCWD, file_name(dir, n), O_RDONLY, 0);
            CHECK(fd >= 0 && syscall(SYS_dup3, fd, FIRST + at, 0) >= 0);
            syscall(SYS_close, fd);
            holds[at] = n;
            break;
        }
        case 5:
            if (holds[at] >= 0) { syscall(SYS_close, FIRST + at); holds[at] = -1; }
            break;
        case 6:
            if (holds[at] >= 0) {
                close(FIRST + at);
                holds[at] = -1;
                CHECK(fcntl(open_file(dir, n), F_DUPFD, FIRST + at) >= 0);
                close_range(FIRST + NUMBERS, 900, 0);
                for (int i = 3; i < FIRST; i++) close(i);
                unsigned char c[10];
                if (pread(FIRST + at, c, 10, 5) == 10 && is_of(c, 10, n, 5)) holds[at] = n;
                else CHECK(0);
            }
            break;
        default:
            break;
        }
        for (int i = 0; i < NUMBERS; i++) {
            off_t where = random() % 20 * 500;
            ssize_t got = pread(FIRST + i, b, 600, where);
            if (holds[i] < 0) CHECK(got == -1 && errno == EBADF);
            else CHECK(got == 600 && is_of(b, 600, holds[i], where));
        }
    }
    return 0;
}

/* Threads that read while another one puts other files in the place of their numbers: each read is of one file. */
static const char *thread_dir;
static volatile int thread_stop;
static void *reads(void *arg) {
    unsigned char b[700];
    long count = 0;
    while (!thread_stop) {
        ssize_t got = pread(60 + (count % 3), b, sizeof b, count % 50 * 100);
        CHECK(got == sizeof b);
        int n = 0;
        while (n < 6 && !is_of(b, sizeof b, n, count % 50 * 100)) n++;
        CHECK(n < 6);
        count++;
    }
    return arg;
}

static int threads(const char *dir) {
    thread_dir = dir;
    int files[6];
    for (int n = 0; n < 6; n++) files[n] = open_file(dir, n);
    for (int i = 0; i < 3; i++) CHECK(dup2(files[i], 60 + i) >= 0);
    pthread_t all[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&all[i], NULL, reads, NULL) == 0);
    unsigned char b[300];
    srandom(9);
    for (int round = 0; round < 4000; round++) {
        int at = random() % 3, n = random() % 6;
        if (random() % 2) CHECK(dup2(files[n], 60 + at) >= 0);
        else CHECK(syscall(SYS_dup2, files[n], 60 + at) >= 0);
        if (round % 7 == 0) continue;
        for (int i = 0; i < 4; i++) CHECK(pread(60 + at, b, sizeof b, 1234) == sizeof b && is_of(b, sizeof b, n, 1234));
    }
    thread_stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(all[i], NULL);
    return 0;
}

/* Children that share a position claim records of their own; both sides of a fork go on. */
static int position(const char *dir) {
    int fd = open_file(dir, 1), pipes[2];
    off_t records = lseek(fd, 0, SEEK_END) / RECORD;
    warm(fd, 1);
    for (off_t at = 0; at < 3 * records; at++) {
        unsigned char b[RECORD];
        CHECK(pread(fd, b, RECORD, at % records * RECORD) == RECORD);
    }
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && pipe(pipes) == 0);
    for (int child = 0; child < 4; child++) {
        if (fork() == 0) {
            unsigned char b[RECORD];
            for (;;) {
                ssize_t got = read(fd, b, RECORD);
                CHECK(got == RECORD || got == 123 || got == 0);
                if (got == 0) exit(0);
                if (got < RECORD) continue;
                int at = -1;
                for (off_t r = 0; r < records; r++)
                    if (b[0] == expected(1, r * RECORD) && is_of(b, RECORD, 1, r * RECORD)) { at = r; break; }
                CHECK(at >= 0 && write(pipes[1], &at, sizeof at) == sizeof at);
            }
        }
    }
    close(pipes[1]);
    char *seen = calloc(records, 1);
    int at, count = 0;
    while (read(pipes[0], &at, sizeof at) == sizeof at) {
        seen[at]++;
        count++;
    }
    int status;
    while (wait(&status) > 0) CHECK(status == 0);
    CHECK(count == records && lseek(fd, 0, SEEK_CUR) == records * RECORD + 123);
    for (off_t r = 0; r < records; r++) CHECK(seen[r] == 1);
    unsigned char b[100];
    CHECK(pread(fd, b, 100, 5) == 100 && is_of(b, 100, 1, 5));
    return 0;
}

/* What a child of vfork does with its own descriptors is nothing to its parent. */
static int in_vfork(const char *dir) {
    int a = open_file(dir, 1), b = open_file(dir, 2);
    unsigned char bytes[500];
    for (int round = 0; round < 300; round++) {
        warm(a, 1);
        pid_t child = vfork();
        if (child == 0) {
            int right = dup2(b, a) == a;
            for (int i = 0; i < 6; i++) right &= pread(a, bytes, sizeof bytes, 100) == sizeof bytes && is_of(bytes, sizeof bytes, 2, 100);
            _exit(right ? 0 : 1);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        for (int i = 0; i < 6; i++) CHECK(pread(a, bytes, sizeof bytes, 100) == sizeof bytes && is_of(bytes, sizeof bytes, 1, 100));
    }
    return 0;
}

/* A handler that reads while its own thread reads, and one that never returns. */
static int signal_fd;
static sigjmp_buf back;
static volatile int signals, jumps;
static void on_signal(int number) {
    unsigned char b[3000];
    CHECK(pread(signal_fd, b, sizeof b, 9000) == sizeof b && is_of(b, sizeof b, 1, 9000));
    signals++;
    if (jumps && signals % 3 == 0) siglongjmp(back, number);
}

static int handlers(const char *dir) {
    signal_fd = open_file(dir, 1);
    warm(signal_fd, 1);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGALRM, &act, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    for (jumps = 0; jumps < 2; jumps++) {
        signals = 0;
        setitimer(ITIMER_REAL, &often, NULL);
        while (signals < 500) {
            static unsigned char b[50000];
            sigsetjmp(back, 1);
            CHECK(pread(signal_fd, b, sizeof b, 4321) == sizeof b && is_of(b, sizeof b, 1, 4321));
        }
        setitimer(ITIMER_REAL, &(struct itimerval){}, NULL);
    }
    return 0;
}

/* A read of a pipe is a point of cancellation, as it is without the library. */
static void *waits(void *arg) {
    char b[1];
    read(*(int *)arg, b, 1);
    return NULL;
}
static int cancel(const char *dir) {
    (void)dir;
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, waits, &pipes[0]) == 0);
        usleep(1000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    return 0;
}

/* A program that forbids itself all calls but read and write goes on reading. */
static int sandbox(const char *dir) {
    int fd = open_file(dir, 1);
    unsigned char b[RECORD];
    warm(fd, 1);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, b, RECORD) == RECORD);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    for (int i = 1; i < 5; i++)
        if (read(fd, b, RECORD) != RECORD || !is_of(b, RECORD, 1, i * RECORD)) syscall(SYS_exit, 1);
    syscall(SYS_exit, 0);
    return 1;
}

/* What is stored through a mapping is seen by reads, and what is written by mappings. */
static int mapping(const char *dir) {
    int fd = open(file_name(dir, 3), O_RDWR);
    unsigned char b[100];
    CHECK(fd >= 0);
    warm(fd, 3);
    CHECK(pwrite(fd, "written", 7, 50) == 7);
    for (int i = 0; i < 5; i++) CHECK(pread(fd, b, 7, 50) == 7 && memcmp(b, "written", 7) == 0);
    char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && memcmp(at + 50, "written", 7) == 0);
    for (int i = 0; i < 200; i++) {
        at[4096 + i] = 'm';
        CHECK(pread(fd, b, 1, 4096 + i) == 1 && b[0] == 'm');
        CHECK(pwrite(fd, "w", 1, 300 + i) == 1 && pread(fd, b, 1, 300 + i) == 1 && b[0] == 'w');
        CHECK(at[300 + i] == 'w');
    }
    CHECK(msync(at, 8192, MS_SYNC) == 0 && munmap(at, 8192) == 0);
    for (int i = 0; i < 5; i++) CHECK(pread(fd, b, 1, 4100) == 1 && b[0] == 'm');
    return 0;
}

/* Descriptors that come over a socket, one after the other under the same number. */
static int passed(const char *dir) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    if (fork() == 0) {
        for (int i = 0; i < 200; i++) {
            int fd = open_file(dir, i % 6);
            char byte = 'x', space[CMSG_SPACE(sizeof(int))] = {0};
            struct iovec v = {&byte, 1};
            struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &fd, sizeof fd);
            CHECK(sendmsg(ends[1], &m, 0) == 1);
            close(fd);
        }
        _exit(0);
    }
    for (int i = 0; i < 200; i++) {
        char byte, space[CMSG_SPACE(sizeof(int))];
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        CHECK(recvmsg(ends[0], &m, 0) == 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
        warm(fd, i % 6);
        /* Closed without a function of libc, and used again for the next one. */
        syscall(SYS_close, fd);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    return 0;
}

/* A buffer that is not there, with AMPHI_PRELOAD=strict. */
static int bad_buffer(const char *dir) {
    int fd = open_file(dir, 1);
    warm(fd, 1);
    char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(at + 4096, 4096) == 0);
    for (int i = 0; i < 5; i++) {
        CHECK(pread(fd, at + 4096, 100, 0) == -1 && errno == EFAULT);
        CHECK(pread(fd, at, 100, 0) == 100 && is_of((unsigned char *)at, 100, 1, 0));
    }
    return 0;
}

/* Reads a descriptor that it is given until that fails, for the test that kills the mount. */
static int until_error(const char *dir) {
    int fd = open_file(dir, 1);
    unsigned char b[RECORD];
    warm(fd, 1);
    printf("reading\n");
    fflush(stdout);
    while (pread(fd, b, RECORD, RECORD) == RECORD) CHECK(is_of(b, RECORD, 1, RECORD));
    printf("%d\n", errno);
    return 0;
}

int main(int count, char **words) {
    CHECK(count == 3);
    struct { const char *name; int (*run)(const char *); } all[] = {
        {"functions", functions}, {"numbers", numbers}, {"threads", threads}, {"position", position},
        {"in_vfork", in_vfork}, {"handlers", handlers}, {"cancel", cancel}, {"sandbox", sandbox},
        {"mapping", mapping}, {"passed", passed}, {"bad_buffer", bad_buffer}, {"until_error", until_error},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, words[1]) == 0) return all[i].run(words[2]);
    return 2;
}
