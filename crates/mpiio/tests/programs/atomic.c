/* Atomic mode: every rank writes the same scattered ranges again and again, each time with one value everywhere; a read
 * must find one value. Prints how many of the reads found several. */
#include "check.h"

int main(int argc, char **argv)
{
    start(&argc, &argv);
    enum { PIECES = 60, PIECE = 700, STRIDE = 1700, ROUNDS = 450 };
    MPI_File file;
    MPI_Status status;
    MPI_Datatype vector;
    static unsigned char memory[PIECES * PIECE];
    int mixed = 0, all = 0, rounds = 0;
    MPI_Type_vector(PIECES, PIECE, STRIDE, MPI_BYTE, &vector);
    MPI_Type_commit(&vector);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_view(file, 0, MPI_BYTE, vector, "native", MPI_INFO_NULL));
    OK(MPI_File_set_atomicity(file, 1));
    memset(memory, 255, sizeof memory);
    OK(MPI_File_write_at_all(file, 0, memory, sizeof memory, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = rank; round < ROUNDS; round += ranks) {
        memset(memory, round % 200 + 1, sizeof memory);
        OK(MPI_File_write_at(file, 0, memory, sizeof memory, MPI_BYTE, &status));
        OK(MPI_File_read_at(file, 0, memory, sizeof memory, MPI_BYTE, &status));
        int differs = 0;
        for (size_t i = 1; i < sizeof memory; i++)
            differs |= memory[i] != memory[0];
        mixed += differs;
        rounds++;
    }
    MPI_Type_free(&vector);
    OK(MPI_File_close(&file));
    MPI_Reduce(&mixed, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d mixed\n", all);
    return finish();
}
