/* Pointers, lengths, modes and errors: what MPI says about them, on a small file. */
#include "check.h"
#include <sys/stat.h>

static int class_of(int error)
{
    int class;
    MPI_Error_class(error, &class);
    return class;
}

static void individual(const char *path)
{
    MPI_File file;
    MPI_Status status;
    MPI_Offset at, size;
    int numbers[8], n;
    MPI_Datatype vector, etype, filetype;
    char datarep[MPI_MAX_DATAREP_STRING];
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    MPI_Type_vector(2, 1, 2, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    /* Ranks share one region here: rank 0 writes, all look. */
    OK(MPI_File_set_view(file, 8, MPI_INT, vector, "native", MPI_INFO_NULL));
    OK(MPI_File_get_byte_offset(file, 1, &at));
    CHECK(at == 16);
    OK(MPI_File_get_byte_offset(file, 2, &at));
    CHECK(at == 8 + 12);
    for (int i = 0; i < 8; i++)
        numbers[i] = 100 + i;
    if (rank == 0)
        OK(MPI_File_write(file, numbers, 5, MPI_INT, &status));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == (rank == 0 ? 5 : 0));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 8 + 24 + 4);
    OK(MPI_File_seek(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 5);
    OK(MPI_File_seek(file, -3, MPI_SEEK_CUR));
    memset(numbers, 0xff, sizeof numbers);
    OK(MPI_File_read(file, numbers, 8, MPI_INT, &status));
    MPI_Get_count(&status, MPI_INT, &n);
    CHECK(n == 3);
    CHECK(numbers[0] == 102 && numbers[1] == 103 && numbers[2] == 104 && numbers[3] == -1);
    OK(MPI_File_get_position(file, &at));
    CHECK(at == 5);
    CHECK(MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS);
    OK(MPI_File_get_view(file, &at, &etype, &filetype, datarep));
    CHECK(at == 8 && etype == MPI_INT && !strcmp(datarep, "native"));
    int integers, addresses, types, combiner;
    MPI_Type_get_envelope(filetype, &integers, &addresses, &types, &combiner);
    CHECK(combiner == MPI_COMBINER_DUP || combiner == MPI_COMBINER_VECTOR);
    MPI_Type_free(&filetype);
    MPI_Type_free(&vector);
    MPI_Barrier(MPI_COMM_WORLD);

    /* Lengths. */
    OK(MPI_File_set_size(file, 30));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 30);
    OK(MPI_File_set_size(file, 100));
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    char bytes[128];
    OK(MPI_File_read_at(file, 0, bytes, 128, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &n);
    CHECK(n == 100);
    for (int i = 30; i < 100; i++)
        CHECK(bytes[i] == 0);
    OK(MPI_File_read_at(file, 4000, bytes, 128, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &n);
    CHECK(n == 0);
    OK(MPI_File_preallocate(file, 5000));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 5000);
    OK(MPI_File_sync(file));
    struct stat stat_of;
    CHECK(stat(path, &stat_of) == 0 && stat_of.st_size == 5000);
    OK(MPI_File_close(&file));
}

static void shared(const char *path)
{
    MPI_File file;
    MPI_Status status;
    MPI_Request request;
    MPI_Offset at, size;
    int record[4], n, *all = calloc((size_t)ranks * 40, sizeof(int));
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_size(file, 0));
    OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 4; j++)
            record[j] = rank * 1000 + i;
        if (i % 2) {
            OK(MPI_File_iwrite_shared(file, record, 4, MPI_INT, &request));
            OK(MPI_Wait(&request, &status));
        } else {
            OK(MPI_File_write_shared(file, record, 4, MPI_INT, &status));
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == ranks * 40);
    OK(MPI_File_read_at(file, 0, all, ranks * 40, MPI_INT, &status));
    int seen[64] = {0};
    for (int i = 0; i < ranks * 10; i++) {
        int who = all[4 * i] / 1000;
        CHECK(who >= 0 && who < ranks && all[4 * i] % 1000 == seen[who]);
        seen[who % 64]++;
        CHECK(all[4 * i] == all[4 * i + 1] && all[4 * i] == all[4 * i + 3]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    /* Every rank another length, in the order of the ranks. */
    for (int i = 0; i < 4; i++)
        record[i] = 7000 + rank;
    OK(MPI_File_write_ordered(file, record, rank % 4 + 1, MPI_INT, &status));
    OK(MPI_File_write_ordered_begin(file, record, 1, MPI_INT));
    OK(MPI_File_write_ordered_end(file, record, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    int place = 0;
    OK(MPI_File_read_at(file, 0, all, ranks * 5, MPI_INT, &status));
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < r % 4 + 1; i++)
            CHECK(all[place++] == 7000 + r);
    for (int r = 0; r < ranks; r++)
        CHECK(all[place++] == 7000 + r);
    CHECK(at == place);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_read_ordered(file, record, 1, MPI_INT, &status));
    CHECK(record[0] == all[rank]);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position_shared(file, &at));
    OK(MPI_File_get_size(file, &size));
    CHECK(at * 4 == size);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_shared(file, record, 4, MPI_INT, &status));
    MPI_Get_count(&status, MPI_INT, &n);
    CHECK(n == 0);
    OK(MPI_File_close(&file));
    free(all);
}

static void modes(const char *path)
{
    MPI_File file;
    MPI_Status status;
    MPI_Offset at;
    MPI_Info info;
    int number = rank, flag, cached;
    char text[MPI_MAX_INFO_VAL + 1];
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file));
    OK(MPI_File_set_size(file, 0));
    OK(MPI_File_write_at(file, rank * 4, &number, 4, MPI_BYTE, &status));
    CHECK(MPI_File_read_at(file, 0, &number, 4, MPI_BYTE, &status) != MPI_SUCCESS);
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    OK(MPI_File_get_info(file, &info));
    MPI_Info_get(info, "cache", MPI_MAX_INFO_VAL, text, &cached);
    if (cached) {
        CHECK(!strcmp(text, "enable"));
        MPI_Info_get(info, "romio_visibility_immediate", MPI_MAX_INFO_VAL, text, &flag);
        CHECK(flag && !strcmp(text, "true"));
    }
    MPI_Info_free(&info);
    number = -1;
    OK(MPI_File_read_at_all(file, (ranks - 1 - rank) * 4, &number, 4, MPI_BYTE, &status));
    CHECK(number == ranks - 1 - rank);
    if (cached) {
        /* A view may name bytes twice as long as nobody writes; Open MPI itself refuses that. */
        MPI_Datatype twice;
        int lengths[2] = {2, 1}, places[2] = {0, 1}, both[6];
        MPI_Type_indexed(2, lengths, places, MPI_INT, &twice);
        MPI_Type_commit(&twice);
        OK(MPI_File_set_view(file, 0, MPI_INT, twice, "native", MPI_INFO_NULL));
        OK(MPI_File_read_all(file, both, 3, MPI_INT, &status));
        CHECK(both[0] == 0 && both[1] == 1 && both[2] == 1);
        OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        MPI_Type_free(&twice);
    }
    int error = MPI_File_write_at(file, 0, &number, 4, MPI_BYTE, &status);
    CHECK(error != MPI_SUCCESS);
    if (cached)
        CHECK(class_of(error) == MPI_ERR_READ_ONLY);
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_APPEND, MPI_INFO_NULL, &file));
    OK(MPI_File_get_position(file, &at));
    CHECK(at == ranks * 4);
    OK(MPI_File_get_position_shared(file, &at));
    CHECK(at == ranks * 4);
    OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_get_atomicity(file, &flag));
    CHECK(flag);
    OK(MPI_File_close(&file));
    CHECK(MPI_File_open(MPI_COMM_WORLD, "/nowhere/at/all", MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS);
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
    OK(MPI_File_write_at(file, rank * 4, &number, 4, MPI_BYTE, &status));
    OK(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(access(path, F_OK) != 0);
}

/* Two handles on one file: what was synced through one is seen through the other after its sync. */
static void two_handles(const char *path)
{
    MPI_File one, two;
    MPI_Status status;
    MPI_Comm comm;
    int number = 11 + rank, seen = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &one));
    OK(MPI_File_open(comm, path, MPI_MODE_RDWR, MPI_INFO_NULL, &two));
    OK(MPI_File_read_at(two, rank * 4, &seen, 4, MPI_BYTE, &status));
    OK(MPI_File_write_at(one, rank * 4, &number, 4, MPI_BYTE, &status));
    OK(MPI_File_sync(one));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(two));
    OK(MPI_File_read_at(two, (rank + 1) % ranks * 4, &seen, 4, MPI_BYTE, &status));
    CHECK(seen == 11 + (rank + 1) % ranks);
    OK(MPI_File_close(&two));
    OK(MPI_File_close(&one));
    MPI_Comm_free(&comm);
}

/* A message that is under way arrives while its sender waits for the others in a collective call on the file, which they
 * come to when they have it. */
static void messages_go_on(const char *path)
{
    enum { LARGE = 8 << 20 };
    MPI_File file;
    MPI_Request sent = MPI_REQUEST_NULL;
    char *bytes = calloc(1, LARGE);
    OK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int round = 0; round < 3; round++) {
        if (rank == 0) {
            memset(bytes, round + 1, LARGE);
            OK(MPI_Isend(bytes, LARGE, MPI_BYTE, ranks - 1, round, MPI_COMM_WORLD, &sent));
        } else if (rank == ranks - 1) {
            OK(MPI_Recv(bytes, LARGE, MPI_BYTE, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            CHECK(bytes[0] == round + 1 && bytes[LARGE - 1] == round + 1);
        }
        OK(round == 0 ? MPI_File_sync(file) : round == 1 ? MPI_File_set_size(file, 5) : MPI_File_close(&file));
        OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
    }
    free(bytes);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char path[4096];
    snprintf(path, sizeof path, "%s.pointers", argv[1]);
    individual(path);
    MPI_Barrier(MPI_COMM_WORLD);
    shared(path);
    MPI_Barrier(MPI_COMM_WORLD);
    modes(path);
    MPI_Barrier(MPI_COMM_WORLD);
    two_handles(argv[1]);
    messages_go_on(argv[1]);
    return finish();
}
