/* Strided records, as the hard part of IO500 has them, written together and read back by the next rank: usage: records
 * FILE. The name may differ between ranks. */
#include "check.h"

enum { RECORD = 47008, RECORDS = 40 };

static char byte_of(int record, int at)
{
    return (char)(record * 7 + at / 11);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char *bytes = malloc(RECORD);
    MPI_File file;
    MPI_Status status;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int i = 0; i < RECORDS; i++) {
        int record = i * ranks + rank;
        for (int at = 0; at < RECORD; at++)
            bytes[at] = byte_of(record, at);
        OK(MPI_File_write_at_all(file, (MPI_Offset)record * RECORD, bytes, RECORD, MPI_BYTE, &status));
    }
    for (int i = 0; i < RECORDS; i++) {
        int record = i * ranks + (rank + 1) % ranks;
        OK(MPI_File_read_at_all(file, (MPI_Offset)record * RECORD, bytes, RECORD, MPI_BYTE, &status));
        for (int at = 0; at < RECORD; at++)
            failures += bytes[at] != byte_of(record, at);
    }
    OK(MPI_File_close(&file));
    free(bytes);
    return finish();
}
