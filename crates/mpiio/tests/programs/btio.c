/* The access pattern of NPB's BTIO in its simple form, class W on 4 ranks: 40 dumps of a cube of 24^3 points with 5
 * doubles each; a rank owns two cells of 12^3 and writes a row of 12 points (480 bytes) at a time. Then it all is read
 * back through a new handle. */
#include "check.h"

enum { N = 24, DUMPS = 40, ROW = 12 * 5 };

static double value(int dump, int i)
{
    return dump * 1e6 + i;
}

static void each_row(MPI_File file, int dump, int reading)
{
    MPI_Status status;
    double row[ROW];
    for (int cell = 0; cell < 2; cell++) {
        /* Cells lie on diagonals: rank (x, y) of a 2 x 2 grid has cells (x, y, 0) and (1 - x, 1 - y, 1). */
        int x = (rank % 2 + cell) % 2, y = (rank / 2 + cell) % 2, z = cell;
        for (int k = 0; k < 12; k++)
            for (int j = 0; j < 12; j++) {
                int first = ((z * 12 + k) * N + y * 12 + j) * N + x * 12;
                MPI_Offset at = ((MPI_Offset)dump * N * N * N + first) * 40;
                if (reading) {
                    memset(row, 0, sizeof row);
                    OK(MPI_File_read_at(file, at, row, ROW, MPI_DOUBLE, &status));
                    CHECK(row[0] == value(dump, first * 5) && row[ROW - 1] == value(dump, first * 5 + ROW - 1));
                } else {
                    for (int i = 0; i < ROW; i++)
                        row[i] = value(dump, first * 5 + i);
                    OK(MPI_File_write_at(file, at, row, ROW, MPI_DOUBLE, &status));
                }
            }
    }
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    CHECK(ranks == 4);
    MPI_File file;
    for (int reading = 0; reading < 2; reading++) {
        int mode = reading ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_WRONLY;
        OK(MPI_File_open(MPI_COMM_WORLD, argv[1], mode, MPI_INFO_NULL, &file));
        for (int dump = 0; dump < DUMPS; dump++)
            each_row(file, dump, reading);
        OK(MPI_File_close(&file));
    }
    return finish();
}
