/* Unusual opens. argv[1]: path; argv[2]: which.
 * hints: every rank has other hints; those of rank 0 count on all. groups: two communicators have the file open at the
 * same time, each a part of the ranks. nofiles: rank 1 may open no further file, so nobody's open may hang or be cached.
 * nomemory: rank 1 has no room for the shared memory, so the file stays with the library. large: one call moves more
 * than 2 GiB. forked: a child process of a rank ends while the rank goes on writing. idle: what was written leaves while
 * the ranks do something else, and the thread that sees to it costs next to nothing. nolength: rank 0 may make no file
 * as long as the shared memory. names: colons in names, which some libraries take for the end of a driver's name; no
 * other file than that of the library may change. folders: the path is another file on every second rank.
 * representation: a view that the library refuses changes nothing, with a second handle on the file and without.
 * transport: argv[3] is what the hints say is in use when the hint of the open is argv[4]; argv[5]: with a reason. */
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static MPI_File file;
static MPI_Status status;

static void open_all(const char *path, MPI_Comm comm, MPI_Info info)
{
    OK(MPI_File_open(comm, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
}

/* Every rank writes its records and reads those of all. */
static void write_and_look(MPI_Comm comm)
{
    char record[100], back[100];
    for (int i = 0; i < 20; i++) {
        memset(record, 'a' + (i + rank) % 26, sizeof record);
        OK(MPI_File_write_at(file, (MPI_Offset)(i * ranks + rank) * 100, record, 100, MPI_BYTE, &status));
    }
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    MPI_Barrier(comm);
    for (int i = 0; i < 20 * ranks; i++) {
        OK(MPI_File_read_at(file, (MPI_Offset)i * 100, back, 100, MPI_BYTE, &status));
        for (int j = 0; j < 100; j++)
            CHECK(back[j] == 'a' + (i / ranks + i % ranks) % 26);
    }
}

static void hints(const char *path)
{
    MPI_Info info;
    char text[MPI_MAX_INFO_VAL + 1] = "";
    int found = 0;
    MPI_Info_create(&info);
    snprintf(text, sizeof text, "  %d ", 4096 * (rank + 1));
    MPI_Info_set(info, "cache_page_size", text);
    MPI_Info_set(info, "cache", rank == 1 ? "disable" : "enable");
    MPI_Info_set(info, "cache_limit", rank == 2 ? "no number" : "1M");
    open_all(path, MPI_COMM_WORLD, info);
    MPI_Info_free(&info);
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, "cache_page_size", MPI_MAX_INFO_VAL, text, &found);
    CHECK(found && !strcmp(text, "4096"));
    MPI_Info_get(info, "cache_limit", MPI_MAX_INFO_VAL, text, &found);
    CHECK(found && !strcmp(text, "1048576"));
    MPI_Info_free(&info);
    write_and_look(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
}

static void groups(const char *path)
{
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    open_all(path, half, MPI_INFO_NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    write_and_look(half);
    OK(MPI_File_close(&file));
    MPI_Comm_free(&half);
}

static void limited(const char *path, int who, int resource, rlim_t most)
{
    struct rlimit old, now;
    /* The library has loaded its parts then. */
    OK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    getrlimit(resource, &old);
    now = (struct rlimit){most, old.rlim_max};
    if (rank == who)
        setrlimit(resource, &now);
    int error = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    setrlimit(resource, &old);
    if (resource == RLIMIT_NOFILE) {
        /* A library that lets the others have the file lets them have it natively; the rank itself is told. */
        CHECK(rank != 1 || error != MPI_SUCCESS);
        return;
    }
    CHECK(error == MPI_SUCCESS);
    write_and_look(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
}

/* Bytes of address space that this process has now. */
static rlim_t address_space(void)
{
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%ld", &pages) != 1)
        CHECK(!"statm");
    if (statm)
        fclose(statm);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void large(const char *path)
{
    /* One piece of memory of zeros but for its last bytes, which costs a page; and the same in elements of 1 MiB. */
    const size_t bytes = ((size_t)2 << 30) + (1 << 20);
    MPI_Datatype mega;
    MPI_Count moved = 0;
    MPI_Offset size;
    char back[8] = "", *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    if (memory == MAP_FAILED)
        return;
    memcpy(memory + bytes - 8, "the end", 8);
    MPI_Type_contiguous(1 << 20, MPI_BYTE, &mega);
    MPI_Type_commit(&mega);
    open_all(path, MPI_COMM_WORLD, MPI_INFO_NULL);
    int count = rank == 0 ? (int)(bytes >> 20) : 0;
    OK(MPI_File_write_at_all(file, 0, memory, count, mega, &status));
    MPI_Get_elements_x(&status, MPI_BYTE, &moved);
    CHECK(moved == (MPI_Count)count << 20);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &size));
    CHECK(size == (MPI_Offset)bytes);
    OK(MPI_File_read_at(file, size - 8, back, 8, MPI_BYTE, &status));
    CHECK(!memcmp(back, "the end", 8));
#if MPI_VERSION >= 4
    memset(memory + bytes - 8, 0, 8);
    OK(MPI_File_read_at_all_c(file, 0, memory, rank == 0 ? (MPI_Count)bytes : 0, MPI_BYTE, &status));
    CHECK(rank != 0 || !memcmp(memory + bytes - 8, "the end", 8));
#endif
    OK(MPI_File_close(&file));
    MPI_Type_free(&mega);
    munmap(memory, bytes);
    struct stat stat_of;
    CHECK(stat(path, &stat_of) == 0 && stat_of.st_size == (off_t)bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        truncate(path, 0);
}

static void forked(const char *path)
{
    open_all(path, MPI_COMM_WORLD, MPI_INFO_NULL);
    OK(MPI_File_write_at(file, rank, "x", 1, MPI_BYTE, &status));
    pid_t child = fork();
    if (child == 0)
        exit(0);
    int how = -1;
    waitpid(child, &how, 0);
    CHECK(how == 0);
    /* The end of the child is not the end of the rank: nothing was flushed. */
    struct stat stat_of;
    CHECK(stat(path, &stat_of) == 0 && stat_of.st_size == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    write_and_look(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
}

static void idle(const char *path)
{
    /* The last page of each rank is not whole, so it stays. */
    const int bytes = (2 << 20) + 100;
    char *memory = malloc((size_t)bytes);
    struct stat stat_of = {0};
    memset(memory, 'i', (size_t)bytes);
    open_all(path, MPI_COMM_WORLD, MPI_INFO_NULL);
    for (int at = 0; at < bytes; at += 50000)
        OK(MPI_File_write_at(file, (MPI_Offset)rank * (4 << 20) + at, memory + at, bytes - at < 50000 ? bytes - at : 50000,
                             MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 200 && (stat(path, &stat_of) || stat_of.st_blocks * 512 < (off_t)ranks * (2 << 20)); i++)
        usleep(100000);
    CHECK(stat_of.st_blocks * 512 >= (off_t)ranks * (2 << 20));
    MPI_Barrier(MPI_COMM_WORLD);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    sleep(2);
    getrusage(RUSAGE_SELF, &after);
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec - before.ru_utime.tv_usec;
    us += (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    /* One percent of a core. */
    CHECK(us < 20000);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
    free(memory);
}

/* Nodes that are connected in a certain way, whose pages take several messages of the library. */
static void transport(char **argv)
{
    const int bytes = 40 << 20;
    char text[MPI_MAX_INFO_VAL + 1] = "", *memory = malloc((size_t)bytes);
    int found = 0, with_reason = argv[5] && !strcmp(argv[5], "reason");
    MPI_Info info;
    MPI_Info_create(&info);
    if (strcmp(argv[4], "none"))
        MPI_Info_set(info, "cache_transport", argv[4]);
    open_all(argv[1], MPI_COMM_WORLD, info);
    MPI_Info_free(&info);
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, "cache_transport", MPI_MAX_INFO_VAL, text, &found);
    CHECK(found && !strcmp(text, argv[3]));
    MPI_Info_get(info, "cache_transport_reason", MPI_MAX_INFO_VAL, text, &found);
    CHECK(found == with_reason);
    MPI_Info_free(&info);
    for (int i = 0; i < bytes; i++)
        memory[i] = (char)(i / 5 + i / 70000);
    if (rank == 0)
        OK(MPI_File_write_at(file, 0, memory, bytes, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    memset(memory, 0, (size_t)bytes);
    if (rank == ranks - 1)
        OK(MPI_File_read_at(file, 0, memory, bytes, MPI_BYTE, &status));
    for (int i = 0; i < bytes && rank == ranks - 1 && !failures; i++)
        CHECK(memory[i] == (char)(i / 5 + i / 70000));
    MPI_Barrier(MPI_COMM_WORLD);
    write_and_look(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
    free(memory);
}

/* Goes to the directory of the file, or to one in it. */
static void go_to(const char *path, const char *part)
{
    char directory[4000];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    CHECK(slash && !chdir((*slash = 0, directory)));
    if (*part) {
        mkdir(part, 0777);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(!chdir(part));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void put_text(const char *name, const char *text)
{
    FILE *plain = fopen(name, "w");
    CHECK(plain && fputs(text, plain) >= 0 && !fclose(plain));
}

/* Whether a file has this text at a place. */
static int has_text(const char *name, long at, const char *text)
{
    char back[100] = "";
    FILE *plain = fopen(name, "r");
    size_t length = strlen(text);
    int same = plain && !fseek(plain, at, SEEK_SET) && fread(back, 1, length, plain) == length;
    if (plain)
        fclose(plain);
    return same && !memcmp(back, text, length);
}

static void names(const char *path)
{
    static const char *const all[] = {"run:out", "ufs:out", "nfs:other", "a:b"};
    go_to(path, "");
    for (int i = 0; i < 4; i++) {
        const char *name = all[i], *rest = strchr(name, ':') + 1;
        if (rank == 0 && i < 2)
            put_text(rest, "precious");
        MPI_Barrier(MPI_COMM_WORLD);
        int error = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
        struct stat stat_of;
        int whole = !stat(name, &stat_of);
        /* A library may not know the driver. */
        if (error == MPI_SUCCESS) {
            OK(MPI_File_write_at(file, 10 * rank, "0123456789", 10, MPI_BYTE, &status));
            OK(MPI_File_close(&file));
            CHECK(has_text(whole ? name : rest, 10 * rank, "0123456789"));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (i < 2 && (whole || error))
            CHECK(has_text(rest, 0, "precious"));
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void folders(const char *path)
{
    go_to(path, rank % 2 ? "odd" : "even");
    put_text("out", "");
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_open(MPI_COMM_WORLD, "out", MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_write_at(file, 10 * rank, "0123456789", 10, MPI_BYTE, &status));
    OK(MPI_File_close(&file));
    CHECK(has_text("out", 10 * rank, "0123456789"));
}

static void representation(const char *path)
{
    for (int second = 0; second < 2; second++) {
        MPI_File own;
        MPI_Offset at;
        MPI_Datatype etype, filetype;
        char name[MPI_MAX_DATAREP_STRING];
        long mine = 5000 + rank * 1000;
        open_all(path, MPI_COMM_WORLD, MPI_INFO_NULL);
        OK(MPI_File_set_view(file, mine, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
        OK(MPI_File_write(file, "aaaabbbb", 2, MPI_INT, &status));
        if (rank == 0)
            OK(MPI_File_write_shared(file, "cccc", 1, MPI_INT, &status));
        MPI_Barrier(MPI_COMM_WORLD);
        if (second) {
            OK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &own));
            OK(MPI_File_write_at(own, mine + 100, "own", 3, MPI_BYTE, &status));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "no representation", MPI_INFO_NULL) != MPI_SUCCESS);
        OK(MPI_File_get_view(file, &at, &etype, &filetype, name));
        CHECK(at == mine && etype == MPI_INT && filetype == MPI_INT);
        OK(MPI_File_get_position(file, &at));
        CHECK(at == 2);
        OK(MPI_File_get_position_shared(file, &at));
        CHECK(at == 1);
        OK(MPI_File_write(file, "dddd", 1, MPI_INT, &status));
        if (second) {
            OK(MPI_File_write_at(own, mine + 103, "ed", 2, MPI_BYTE, &status));
            OK(MPI_File_close(&own));
        }
        OK(MPI_File_close(&file));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(has_text(path, mine, rank == 0 ? "ccccbbbbdddd" : "aaaabbbbdddd"));
        CHECK(!second || has_text(path, mine + 100, "owned"));
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            unlink(path);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    const char *path = argv[1], *what = argv[2];
    if (!strcmp(what, "hints"))
        hints(path);
    else if (!strcmp(what, "groups"))
        groups(path);
    else if (!strcmp(what, "nofiles"))
        limited(path, 1, RLIMIT_NOFILE, 3);
    else if (!strcmp(what, "nolength"))
        limited(path, 0, RLIMIT_FSIZE, 64 << 20);
    else if (!strcmp(what, "names"))
        names(path);
    else if (!strcmp(what, "folders"))
        folders(path);
    else if (!strcmp(what, "representation"))
        representation(path);
    else if (!strcmp(what, "nomemory"))
        limited(path, 1, RLIMIT_AS, address_space() + (256 << 20));
    else if (!strcmp(what, "large"))
        large(path);
    else if (!strcmp(what, "forked"))
        forked(path);
    else if (!strcmp(what, "idle"))
        idle(path);
    else if (!strcmp(what, "transport"))
        transport(argv);
    else
        CHECK(!"a name");
    return finish();
}
