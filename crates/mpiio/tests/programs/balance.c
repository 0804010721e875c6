/* All ranks but the first use the same pages, which are all of the first rank's node: usage: balance FILE. */
#include "check.h"

enum { PAGES = 16, PAGE = 4096, EVERY = 4, TIMES = 100, PIECE = 100 };

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char bytes[PIECE];
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int time = 1; time <= TIMES && rank > 0; time++) {
        for (int page = 0; page < PAGES; page++) {
            memset(bytes, time + rank + page, PIECE);
            OK(MPI_File_write_at(file, page * EVERY * PAGE + rank * PIECE, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int page = 0; page < PAGES; page++) {
        for (int other = 1; other < ranks; other++) {
            OK(MPI_File_read_at(file, page * EVERY * PAGE + other * PIECE, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE));
            for (int i = 0; i < PIECE; i++)
                CHECK((unsigned char)bytes[i] == (unsigned char)(TIMES + other + page));
        }
    }
    OK(MPI_File_close(&file));
    return finish();
}
