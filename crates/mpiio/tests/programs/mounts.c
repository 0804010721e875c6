/* A job whose ranks reach one file over two mounts: usage: mounts WHAT FILE OTHER [VICTIM], where FILE and OTHER are
 * the file on the first and on the second mount. The first half of the ranks uses the first one, as hints make it a
 * node.
 * specks: many small parts of each page. records: strided records, as the hard part of IO500 has them, written together
 * and read back by the next rank.
 * moves: pages go to the node whose ranks go on to write or read them; prints how many should have moved. reader: plain
 * reads over the other mount see what was synced, and what was written since, at once with a group lock and otherwise
 * when it has left the cache. killed: a rank is killed in the middle of a call, while all write, and pages move. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

enum { PAGES = 32, PAGE = 64 << 10, TURNS = 3, TIMES = 4, RECORD = 47008, RECORDS = 40 };

static MPI_File file;
static const char *own, *other;
static char page_bytes[PAGE], record_bytes[RECORD];
static int run_bytes;

static char byte_of_page(int turn, int page, int at)
{
    return (char)(turn * 31 + page * 7 + at / 13);
}

static char byte_of_record(int round, int record, int at)
{
    return (char)(round * 101 + record * 7 + at / 11);
}

static void open_file(void)
{
    MPI_Info info;
    char text[MPI_MAX_INFO_VAL + 1] = "0";
    int found = 0;
    OK(MPI_File_open(MPI_COMM_WORLD, own, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, "cache_flush_size", MPI_MAX_INFO_VAL, text, &found);
    MPI_Info_free(&info);
    run_bytes = atoi(text);
    CHECK(found && run_bytes >= PAGE);
}

/* The last rank and the first one write all pages in turn, several times; then each rank reads all of them. */
static void moves(void)
{
    open_file();
    OK(MPI_File_set_size(file, (MPI_Offset)PAGES * PAGE));
    /* Pages of the first node move to the last rank's; all go to and fro then, and with them who reads: the second
     * reference of a node makes a page move. */
    int expected = TURNS - 1 + 2;
    expected *= PAGES;
    for (int page = 0; page < PAGES; page++)
        expected += (int64_t)page * PAGE / run_bytes % 2 == 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int time = 0; rank == (turn % 2 ? 0 : ranks - 1) && time < TIMES; time++) {
            for (int page = 0; page < PAGES; page++) {
                for (int at = 0; at < PAGE; at++)
                    page_bytes[at] = byte_of_page(time == TIMES - 1 ? turn : 99, page, at);
                OK(MPI_File_write_at(file, (MPI_Offset)page * PAGE, page_bytes, PAGE, MPI_BYTE, MPI_STATUS_IGNORE));
            }
        }
        OK(MPI_File_sync(file));
    }
    for (int reader = 0; reader < ranks; reader++) {
        for (int page = 0; rank == reader && page < PAGES; page++) {
            OK(MPI_File_read_at(file, (MPI_Offset)page * PAGE, page_bytes, PAGE, MPI_BYTE, MPI_STATUS_IGNORE));
            int wrong = 0;
            for (int at = 0; at < PAGE; at++)
                wrong += page_bytes[at] != byte_of_page(TURNS - 1, page, at);
            CHECK(wrong == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    if (rank == 0)
        printf("moved %d runs %d\n", expected, PAGES * PAGE / run_bytes);
}

/* So few bytes in so many places that no page is ever dirty as a whole. */
static void specks(void)
{
    enum { SPECK = 4, APART = 64, SPECKS = 4 * PAGE / APART };
    open_file();
    for (int speck = rank; speck < SPECKS; speck += ranks) {
        char bytes[SPECK] = {(char)speck, (char)(speck >> 8), 'x', 'y'};
        OK(MPI_File_write_at(file, (MPI_Offset)speck * APART, bytes, SPECK, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    OK(MPI_File_close(&file));
}

static void write_records(int round)
{
    for (int i = 0; i < RECORDS; i++) {
        int record = i * ranks + rank;
        for (int at = 0; at < RECORD; at++)
            record_bytes[at] = byte_of_record(round, record, at);
        OK(MPI_File_write_at(file, (MPI_Offset)record * RECORD, record_bytes, RECORD, MPI_BYTE, MPI_STATUS_IGNORE));
    }
}

static void records(void)
{
    open_file();
    for (int i = 0; i < RECORDS; i++) {
        int record = i * ranks + rank;
        for (int at = 0; at < RECORD; at++)
            record_bytes[at] = byte_of_record(0, record, at);
        OK(MPI_File_write_at_all(file, (MPI_Offset)record * RECORD, record_bytes, RECORD, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    for (int i = 0; i < RECORDS; i++) {
        int record = i * ranks + (rank + 1) % ranks;
        OK(MPI_File_read_at_all(file, (MPI_Offset)record * RECORD, record_bytes, RECORD, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int at = 0; at < RECORD; at++)
            failures += record_bytes[at] != byte_of_record(0, record, at);
    }
    OK(MPI_File_close(&file));
}

/* How many of the first bytes of the file a plain reader finds wrong over a mount. */
static int64_t plainly_wrong(const char *path, int round, int64_t bytes)
{
    int64_t wrong = 0, done = 0;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    while (fd >= 0 && done < bytes) {
        ssize_t n = read(fd, record_bytes, RECORD);
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n && done < bytes; i++, done++)
            wrong += record_bytes[i] != byte_of_record(round, (int)(done / RECORD), (int)(done % RECORD));
    }
    if (fd >= 0)
        close(fd);
    return wrong + bytes - done;
}

static void reader(void)
{
    const char *hints = getenv("AMPHI_MPIIO_HINTS");
    int grouped = hints && strstr(hints, "cache_group_lock=enable") != NULL;
    int64_t all = (int64_t)ranks * RECORDS * RECORD, whole = all / PAGE * PAGE;
    open_file();
    write_records(0);
    OK(MPI_File_sync(file));
    /* The first reader with a group lock makes the job leave it. */
    CHECK(plainly_wrong(other, 0, all) == 0);
    CHECK(plainly_wrong(own, 0, all) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 1; round <= 2; round++) {
        OK(MPI_File_sync(file));
        write_records(round);
        MPI_Barrier(MPI_COMM_WORLD);
        /* One rank reads over the other mount; the other ones are in a call of the library. */
        if (rank == (round == 1 ? 0 : ranks - 1)) {
            int64_t wrong = plainly_wrong(other, round, grouped ? all : whole);
            /* Whole pages leave when nobody has written them for a while. */
            for (int i = 0; !grouped && wrong && i < 200; i++) {
                usleep(100000);
                wrong = plainly_wrong(other, round, whole);
            }
            CHECK(wrong == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    CHECK(plainly_wrong(other, 2, all) == 0);
    CHECK(plainly_wrong(own, 2, all) == 0);
}

static void *end_soon(void *nothing)
{
    usleep(50000);
    kill(getpid(), SIGKILL);
    return nothing;
}

/* What was synced has to stay; behind it pages move all the time, since all ranks write all of them. */
static void killed(int victim)
{
    pthread_t thread;
    open_file();
    write_records(0);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == victim)
        pthread_create(&thread, NULL, end_soon, NULL);
    MPI_Offset behind = (MPI_Offset)ranks * RECORDS * RECORD;
    for (int i = 0;; i++)
        if (MPI_File_write_at(file, behind + (i / 3 % PAGES) * PAGE + rank * 1000, page_bytes, PAGE, MPI_BYTE,
                              MPI_STATUS_IGNORE))
            break;
    printf("rank %d has lost the file\n", rank);
    fflush(stdout);
    sleep(30);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    int first = rank < ranks / 2;
    own = argv[first ? 2 : 3];
    other = argv[first ? 3 : 2];
    if (!strcmp(argv[1], "records"))
        records();
    else if (!strcmp(argv[1], "specks"))
        specks();
    else if (!strcmp(argv[1], "moves"))
        moves();
    else if (!strcmp(argv[1], "reader"))
        reader();
    else
        killed(atoi(argv[4]));
    return finish();
}
