/* Two ranks in turn use the same pages several times in a row: usage: moves FILE. */
#include "check.h"

enum { PAGES = 8, PAGE = 4096, TIMES = 10 };

int main(int argc, char **argv)
{
    start(&argc, &argv);
    static char bytes[PAGES * PAGE];
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int turn = 0; turn < 4; turn++) {
        if (rank == turn % ranks) {
            for (int time = 0; time < TIMES; time++) {
                for (int page = 0; page < PAGES; page++) {
                    memset(bytes, turn * 50 + time * 5 + page % 5, 100);
                    OK(MPI_File_write_at(file, page * PAGE + time * 100, bytes, 100, MPI_BYTE, MPI_STATUS_IGNORE));
                }
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_read_at(file, 0, bytes, (PAGES - 1) * PAGE + TIMES * 100, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int page = 0; page < PAGES; page++)
            for (int i = 0; i < TIMES * 100; i++)
                CHECK((unsigned char)bytes[page * PAGE + i] == (unsigned char)(turn * 50 + i / 100 * 5 + page % 5));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    return finish();
}
