/* Collective calls: strided records of all ranks through a view, uneven shares, ends of files, a rank whose arguments
 * are wrong, atomic mode. MPI lets a collective call return before others have begun theirs, hence the barriers. */
#include "check.h"

enum { RECORD = 700, RECORDS = 200, STEPS = 3 };

static char byte_of(int step, int64_t record, int i)
{
    return (char)(step * 31 + record * 7 + i);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    MPI_File file;
    MPI_Status status;
    MPI_Datatype record, strided;
    int count;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    MPI_Type_contiguous(RECORD, MPI_BYTE, &record);
    MPI_Type_create_resized(record, 0, (MPI_Aint)RECORD * ranks, &strided);
    MPI_Type_commit(&strided);
    OK(MPI_File_set_view(file, (MPI_Offset)rank * RECORD, MPI_BYTE, strided, "native", MPI_INFO_NULL));
    char *memory = malloc((size_t)RECORD * RECORDS);
    for (int step = 0; step < STEPS; step++) {
        for (int r = 0; r < RECORDS; r++)
            for (int i = 0; i < RECORD; i++)
                memory[r * RECORD + i] = byte_of(step, (int64_t)r * ranks + rank, i);
        OK(MPI_File_write_at_all(file, (MPI_Offset)step * RECORDS * RECORD, memory, RECORDS * RECORD, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == RECORDS * RECORD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Everybody reads all; the last call ends behind the end of the file. */
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    int64_t size = (int64_t)STEPS * RECORDS * RECORD * ranks;
    for (int64_t at = 0, chunk = size / 5 + 11; at < size; at += chunk) {
        char *got = calloc(1, (size_t)chunk);
        OK(MPI_File_read_all(file, got, (int)chunk, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == (at + chunk < size ? chunk : size - at));
        int wrong = 0;
        for (int64_t b = at; b < at + count; b++)
            wrong += got[b - at] != byte_of((int)(b / RECORD / ranks / RECORDS), b / RECORD % ((int64_t)RECORDS * ranks),
                                            (int)(b % RECORD));
        CHECK(wrong == 0);
        free(got);
    }
    OK(MPI_File_read_all(file, memory, 10, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Some ranks have nothing, one has arguments that are wrong: the others get what they asked for. */
    memset(memory, 'a' + rank, 5000);
    int mine = rank % 2 ? 0 : 5000;
    int error = MPI_File_write_at_all(file, rank == 2 ? -1 : size + rank * 5000, memory, mine, MPI_BYTE, &status);
    CHECK(rank == 2 ? error != MPI_SUCCESS : error == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at_all(file, size, memory, rank == 1 ? 5000 : 0, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(rank == 1 ? count == 5000 && memory[0] == 'a' && memory[4999] == 'a' : count == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Atomic mode, and back: the same bytes of all ranks are one rank's. */
    OK(MPI_File_set_atomicity(file, 1));
    memset(memory, 'A' + rank, 20000);
    OK(MPI_File_write_at_all(file, 1000, memory, 20000, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at_all(file, 1000, memory, 20000, MPI_BYTE, &status));
    for (int i = 1, wrong = 0; i < 20000; i++)
        if ((wrong += memory[i] != memory[0]) == 1)
            CHECK(!"one rank's bytes");
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_atomicity(file, 0));
    /* What stays in the file is the same however it went. */
    memset(memory, 'z', 20000);
    OK(MPI_File_write_at_all(file, 1000 + rank * 5000, memory, rank < 4 ? 5000 : 0, MPI_BYTE, &status));
    OK(MPI_File_close(&file));
    MPI_Type_free(&record);
    MPI_Type_free(&strided);
    free(memory);
    return finish();
}
