/* Several threads of each rank use one handle at once, where the library supports that; then a view with another data
 * representation gives the file back to the library. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 3, STEPS = 200, RECORD = 100 };

static MPI_File file;

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument;
    char record[RECORD], back[RECORD];
    MPI_Status status;
    for (int i = 0; i < STEPS; i++) {
        MPI_Offset at = (MPI_Offset)((i * ranks + rank) * THREADS + thread) * RECORD;
        memset(record, 'a' + (i + rank + thread) % 26, RECORD);
        OK(MPI_File_write_at(file, at, record, RECORD, MPI_BYTE, &status));
        OK(MPI_File_read_at(file, at, back, RECORD, MPI_BYTE, &status));
        CHECK(!memcmp(record, back, RECORD));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided, n;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (provided == MPI_THREAD_MULTIPLE)
            pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
        else
            work((void *)(intptr_t)i);
    }
    for (int i = 0; i < THREADS && provided == MPI_THREAD_MULTIPLE; i++)
        pthread_join(threads[i], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Not every library supports it; in any case what was written is in the file, and the handle can be closed. */
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL);
    FILE *plain = fopen(argv[1], "r");
    CHECK(plain != NULL);
    for (int i = 0; plain && i < STEPS * ranks * THREADS; i++) {
        char record[RECORD];
        n = (int)fread(record, 1, RECORD, plain);
        int step = i / (ranks * THREADS), who = i / THREADS % ranks, thread = i % THREADS;
        CHECK(n == RECORD && record[0] == 'a' + (step + who + thread) % 26 && record[RECORD - 1] == record[0]);
    }
    if (plain)
        fclose(plain);
    OK(MPI_File_close(&file));
    return finish();
}
