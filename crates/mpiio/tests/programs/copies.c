/* All ranks read the same pages again and again, between two writes of one rank: usage: copies FILE. */
#include "check.h"

enum { PAGES = 8, PAGE = 4096, TIMES = 10 };

int main(int argc, char **argv)
{
    start(&argc, &argv);
    static char bytes[PAGES * PAGE];
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int turn = 0; turn < 2; turn++) {
        for (int page = 0; rank == (turn ? ranks - 1 : 0) && page < PAGES; page++) {
            memset(bytes, turn * 50 + page, PAGE);
            OK(MPI_File_write_at(file, page * PAGE, bytes, PAGE, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int time = 0; time < TIMES; time++) {
            for (int page = 0; page < PAGES; page++) {
                OK(MPI_File_read_at(file, page * PAGE + rank * 100, bytes, 200, MPI_BYTE, MPI_STATUS_IGNORE));
                for (int i = 0; i < 200; i++)
                    CHECK(bytes[i] == turn * 50 + page);
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    return finish();
}
