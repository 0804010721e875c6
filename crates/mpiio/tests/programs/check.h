/* What the test programs share. A program prints "ok" on rank 0 when every rank found everything right. */
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks, failures;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            failures++;                                                                                                \
            fprintf(stderr, "rank %d: line %d: %s\n", rank, __LINE__, #what);                                          \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static uint64_t random_state = 1;

/* The same numbers on every rank as long as every rank asks as often. */
static inline int chance(int bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)bound);
}

static inline void start(int *argc, char ***argv)
{
    int provided;
    if (getenv("CHECK_THREADS"))
        MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    else
        MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static inline int finish(void)
{
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf(all ? "%d failures\n" : "ok\n", all);
    MPI_Finalize();
    return all ? 1 : 0;
}
