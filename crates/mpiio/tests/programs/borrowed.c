/* Each rank has a handle of its own on a file that all have open together, and writes through both without a sync
 * between, as PnetCDF does; the second handle outlives the first one once. argv[1]: path. */
#include "check.h"

int main(int argc, char **argv)
{
    start(&argc, &argv);
    MPI_File all, own;
    MPI_Status status;
    MPI_Offset size, at;
    MPI_Datatype vector;
    char head[1000], record[100], back[1000];
    memset(head, 'h', sizeof head);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &all));
    if (rank == 0)
        OK(MPI_File_write_at(all, 0, head, 1000, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &own));
    OK(MPI_File_read_at(own, 0, back, 1000, MPI_BYTE, &status));
    CHECK(!memcmp(back, head, 1000));
    MPI_Barrier(MPI_COMM_WORLD);
    /* Over what the first handle wrote, and behind it; then back through the first handle. */
    memset(record, 'a' + rank, sizeof record);
    OK(MPI_File_write_at(own, rank * 100, record, 100, MPI_BYTE, &status));
    OK(MPI_File_write_at(own, 1000 + rank * 100, record, 100, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
        OK(MPI_File_read_at(all, r * 100, back, 100, MPI_BYTE, &status));
        CHECK(back[0] == 'a' + r && back[99] == 'a' + r);
    }
    OK(MPI_File_get_size(own, &size));
    CHECK(size == 1000 + ranks * 100);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Pointers and views are the handle's own. */
    MPI_Type_vector(4, 10, 20, MPI_BYTE, &vector);
    MPI_Type_commit(&vector);
    OK(MPI_File_set_view(own, 2000 + rank * 1000, MPI_BYTE, vector, "native", MPI_INFO_NULL));
    OK(MPI_File_write(own, record, 35, MPI_BYTE, &status));
    OK(MPI_File_write_shared(own, head, 5, MPI_BYTE, &status));
    OK(MPI_File_get_position_shared(own, &at));
    CHECK(at == 5);
    OK(MPI_File_get_position_shared(all, &at));
    CHECK(at == 0);
    OK(MPI_File_preallocate(own, 2000 + rank * 1000 + 80));
    OK(MPI_File_sync(own));
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *plain = fopen(argv[1], "r");
    CHECK(plain && !fseek(plain, 2000 + rank * 1000, SEEK_SET) && fread(back, 1, 10, plain) == 10);
    CHECK(!memcmp(back, "hhhhh", 5) && back[5] == 'a' + rank);
    if (plain)
        fclose(plain);
    OK(MPI_File_write_at(own, 35, "!", 1, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_close(&all));
    /* The library has the second handle now, with its view, its pointers and all that was written. */
    OK(MPI_File_get_position(own, &at));
    CHECK(at == 35);
    OK(MPI_File_read(own, back, 1, MPI_BYTE, &status));
    CHECK(back[0] == '!');
    OK(MPI_File_write(own, "?", 1, MPI_BYTE, &status));
    OK(MPI_File_close(&own));
    MPI_Barrier(MPI_COMM_WORLD);

    /* A length that one rank sets while the others make no call, and the end of the second handle first. */
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &all));
    OK(MPI_File_read_at(all, 2000, back, 1000, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1) {
        OK(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &own));
        OK(MPI_File_set_size(own, 2005));
        OK(MPI_File_set_size(own, 2500));
        OK(MPI_File_write_at(own, 2600, "end", 3, MPI_BYTE, &status));
        OK(MPI_File_close(&own));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(all, &size));
    CHECK(size == 2603);
    OK(MPI_File_read_at(all, 2000, back, 603, MPI_BYTE, &status));
    CHECK(!memcmp(back, "hhhhh", 5) && back[5] == 0 && back[30] == 0 && !memcmp(back + 600, "end", 3));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_write_at(all, rank, "z", 1, MPI_BYTE, &status));
    OK(MPI_File_close(&all));
    MPI_Type_free(&vector);
    return finish();
}
