/* Access patterns of parallel programs, written anew: each writes a file with all ranks, then reads all of it back
 * through a new handle, every rank what another one wrote.
 *
 * usage: patterns PATTERN FILE SCALE [OTHER], where the second half of the ranks reaches the file as OTHER, over another
 * mount; rank 0 prints "write SECONDS read SECONDS wrong BYTES". Times are those of the
 * slowest rank, from before the open to behind the close. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, reading, scale;
static long wrong;
static MPI_File file;

/* The byte at a place of the file, whoever wrote it. */
static unsigned char byte_at(int64_t offset)
{
    return (unsigned char)(offset * 2654435761u >> 13);
}

static void move(int64_t offset, int length, int together)
{
    static unsigned char *memory;
    static int room;
    MPI_Status status;
    if (length > room)
        memory = realloc(memory, (size_t)(room = length));
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (!reading) {
        for (int i = 0; i < length; i++)
            memory[i] = byte_at(offset + i);
        int error = together ? MPI_File_write_at_all(file, offset, memory, length, MPI_BYTE, &status)
                             : MPI_File_write_at(file, offset, memory, length, MPI_BYTE, &status);
        wrong += error ? length : 0;
        return;
    }
    memset(memory, 0, (size_t)length);
    int error = together ? MPI_File_read_at_all(file, offset, memory, length, MPI_BYTE, &status)
                         : MPI_File_read_at(file, offset, memory, length, MPI_BYTE, &status);
    for (int i = 0; i < length && !error; i++)
        wrong += memory[i] != byte_at(offset + i);
    wrong += error ? length : 0;
}

/* NPB's BTIO in its simple form: dumps of a cube of 24^3 points of 40 bytes; a rank of a 2 x 2 grid has two cells of
 * 12^3 and moves a row of 12 points, 480 bytes, at a time. */
static void btio(int who)
{
    for (int dump = 0; dump < 4 * scale; dump++)
        for (int cell = 0; cell < 2; cell++)
            for (int k = 0; k < 12; k++)
                for (int j = 0; j < 12; j++) {
                    int x = (who % 2 + cell) % 2, y = (who / 2 + cell) % 2, z = cell;
                    int64_t first = ((int64_t)(z * 12 + k) * 24 + y * 12 + j) * 24 + x * 12;
                    move(((int64_t)dump * 24 * 24 * 24 + first) * 40, 480, 0);
                }
}

/* A checkpoint as FLASH I/O writes it: behind a header of odd length one variable after the other, of each the blocks
 * of all ranks in turn, by collective calls. */
static void flash(int who)
{
    int64_t blocks = 8 * scale, variable = blocks * 4096 * ranks;
    for (int v = 0; v < 24; v++)
        move(1000 + v * variable + who * blocks * 4096, (int)(blocks * 4096), 1);
}

/* IO500's ior-hard: records of 47,008 bytes of all ranks in turn. */
static void hard(int who)
{
    for (int r = 0; r < 20 * scale; r++)
        move(((int64_t)r * ranks + who) * 47008, 47008, 0);
}

/* A checkpoint of large contiguous parts. */
static void checkpoint(int who)
{
    for (int part = 0; part < scale; part++)
        move(((int64_t)part * ranks + who) * (8 << 20), 8 << 20, 0);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4 || argc > 5 || ranks != 4 || (scale = atoi(argv[3])) < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    void (*pattern)(int) = !strcmp(argv[1], "btio") ? btio : !strcmp(argv[1], "flash") ? flash :
                           !strcmp(argv[1], "hard") ? hard : checkpoint;
    const char *name = argc == 5 && rank >= ranks / 2 ? argv[4] : argv[2];
    double times[2], slowest[2];
    for (reading = 0; reading < 2; reading++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        int mode = reading ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_WRONLY;
        if (MPI_File_open(MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, &file))
            MPI_Abort(MPI_COMM_WORLD, 3);
        pattern(reading ? (rank + 1) % ranks : rank);
        wrong += MPI_File_close(&file) != MPI_SUCCESS;
        times[reading] = MPI_Wtime() - begin;
    }
    long all = 0;
    MPI_Reduce(times, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("write %.6f read %.6f wrong %ld\n", slowest[0], slowest[1], all);
    MPI_Finalize();
    return 0;
}
