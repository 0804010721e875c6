/* What goes wrong. argv[1]: path; argv[2]: which fault.
 * finalize: the file is still open at MPI_Finalize. late: so it is, and the last rank writes when the others have been
 * there for a while. callback: what MPI_Finalize calls, as an attribute of MPI_COMM_SELF says, writes and closes the
 * file, as HDF5 does. exit: no MPI_Finalize at all, on any rank.
 * full: the file may not grow as far as it was written (RLIMIT_FSIZE); every rank hears of it at close.
 * nospace: the file system is full; every rank hears of it at sync, and what was written is in the file as soon as there
 * is space again. argv[3]: a file whose removal makes space.
 * abort: one rank ends the job by MPI_Abort; what all wrote before is in the file. handler: the ranks call exit in a
 * signal handler, in the middle of calls; nobody hangs, and what was synced stays.
 * killed: one rank ends without a word while the others write; the job has to end, and what was synced stays. */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>

static MPI_File file;

/* Every rank writes to what another one had, and all read it. */
static int close_at_end(MPI_Comm comm, int key, void *value, void *extra)
{
    char seen[4];
    MPI_Status status;
    int other = (rank + 1) % ranks;
    (void)comm, (void)key, (void)value, (void)extra;
    OK(MPI_File_write_at_all(file, (MPI_Offset)other * 10000, "late", 4, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at_all(file, (MPI_Offset)rank * 10000, seen, 4, MPI_BYTE, &status));
    CHECK(!memcmp(seen, "late", 4));
    OK(MPI_File_close(&file));
    if (rank == 0 && !failures)
        printf("ok\n");
    fflush(stdout);
    return MPI_SUCCESS;
}

static void exit_now(int signal)
{
    (void)signal;
    exit(0);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    MPI_Status status;
    char line[1000];
    memset(line, 'a' + rank, sizeof line);
    const char *fault = argv[2];
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    /* The limit counts for shared memory, too, so it is set when that is there. */
    if (!strcmp(fault, "full")) {
        struct rlimit limit = {20000, 20000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (int i = 0; i < 10; i++)
        OK(MPI_File_write_at(file, (MPI_Offset)(i * ranks + rank) * 1000, line, 1000, MPI_BYTE, &status));
    if (!strcmp(fault, "late") && rank == ranks - 1) {
        usleep(700000);
        for (int i = 0; i < 4; i++)
            OK(MPI_File_write_at(file, (MPI_Offset)i * 10000, "late", 4, MPI_BYTE, &status));
    }
    if (!strcmp(fault, "late")) {
        if (rank == 0)
            printf("ok\n");
        fflush(stdout);
        MPI_Finalize();
        return 0;
    }
    if (!strcmp(fault, "callback")) {
        int key;
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, close_at_end, &key, NULL);
        MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
        MPI_Finalize();
        return failures != 0;
    }
    if (!strcmp(fault, "nospace")) {
        int class = MPI_SUCCESS;
        MPI_Error_class(MPI_File_sync(file), &class);
        CHECK(class == MPI_ERR_NO_SPACE);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            unlink(argv[3]);
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_sync(file));
        OK(MPI_File_close(&file));
    }
    if (!strcmp(fault, "killed")) {
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1)
            kill(getpid(), SIGKILL);
        /* Until the launcher ends the job; who has lost the file for another rank's sake waits for that, too. */
        for (int i = 0; MPI_File_write_at(file, (MPI_Offset)(40 + i % 1000) * 1000, line, 1000, MPI_BYTE, &status) == 0;)
            i++;
        printf("rank %d has lost the file\n", rank);
        fflush(stdout);
        sleep(30);
    }
    if (!strcmp(fault, "abort")) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == ranks - 1)
            MPI_Abort(MPI_COMM_WORLD, 3);
        sleep(60);
    }
    if (!strcmp(fault, "handler")) {
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        signal(SIGALRM, exit_now);
        ualarm(300000, 0);
        for (int i = 0;; i++)
            MPI_File_write_at(file, (MPI_Offset)(40 + i % 1000) * 1000, line, 1000, MPI_BYTE, &status);
    }
    if (!strcmp(fault, "exit")) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("ok\n");
        exit(0);
    }
    if (!strcmp(fault, "full"))
        CHECK(MPI_File_close(&file) != MPI_SUCCESS);
    return finish();
}
