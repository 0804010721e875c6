/* Collective calls with pieces of 8 bytes of all ranks in turn, over more of the file than memory holds: without gaps
 * between them, with gaps, in which the file keeps what it had, and with a rank that has less to do than the others.
 * usage: rounds FILE [PIECES], of each rank in each call */
#include "check.h"

enum { PIECE = 8, CALLS = 2 };

static int64_t pieces = 20000;

static uint64_t word_of(int64_t index)
{
    return (uint64_t)index * 0x9e3779b97f4a7c15u + 1;
}

/* A view in which a rank has one piece in so many. */
static void view(MPI_File file, int64_t displacement, int of, int slots)
{
    MPI_Datatype type;
    MPI_Type_create_resized(MPI_UINT64_T, 0, (MPI_Aint)slots * PIECE, &type);
    MPI_Type_commit(&type);
    OK(MPI_File_set_view(file, displacement + (int64_t)of * PIECE, MPI_UINT64_T, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
}

/* Writes with as many slots in a row, and reads what the next rank wrote. In memory every second word is used. */
static void pass(MPI_File file, int64_t displacement, int slots, int lazy)
{
    uint64_t *memory = malloc((size_t)pieces * 2 * PIECE);
    MPI_Datatype spread;
    MPI_Status status;
    MPI_Type_create_resized(MPI_UINT64_T, 0, 2 * PIECE, &spread);
    MPI_Type_commit(&spread);
    view(file, displacement, rank, slots);
    for (int call = 0; call < CALLS; call++) {
        int mine = (int)(rank == lazy ? call * pieces / 3 : pieces);
        for (int64_t i = 0; i < mine; i++)
            memory[2 * i] = word_of(displacement / PIECE + (call * pieces + i) * slots + rank);
        OK(MPI_File_write_at_all(file, call * pieces, memory, mine, spread, &status));
        int count = 0;
        MPI_Get_elements(&status, MPI_UINT64_T, &count);
        CHECK(count == mine);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int next = (rank + 1) % ranks, wrong = 0;
    view(file, displacement, next, slots);
    for (int call = 0; call < CALLS; call++) {
        int mine = (int)(next == lazy ? call * pieces / 3 : pieces);
        memset(memory, 0, (size_t)pieces * 2 * PIECE);
        OK(MPI_File_read_at_all(file, call * pieces, memory, mine, spread, &status));
        for (int64_t i = 0; i < mine; i++)
            wrong += memory[2 * i] != word_of(displacement / PIECE + (call * pieces + i) * slots + next);
    }
    CHECK(wrong == 0);
    MPI_Type_free(&spread);
    free(memory);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    if (argc > 2)
        pieces = atol(argv[2]);
    int64_t dense = CALLS * pieces * ranks * PIECE, gaps = 2 * dense + 24;
    if (rank == 0) {
        FILE *before = fopen(argv[1], "w");
        for (int64_t i = 0; i < (2 * dense + gaps) / 4; i++)
            fputs("gap.", before);
        fclose(before);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    pass(file, 0, ranks, -1);
    pass(file, dense, 2 * ranks + 1, -1);
    pass(file, dense + gaps, ranks, 1);
    OK(MPI_File_close(&file));
    return finish();
}
