/* The entry points of the functions that move data, in all their forms: blocking, nonblocking, split; with explicit
 * offsets, the individual pointer and the shared pointer; with counts of either width.
 *
 * On one node a collective call is as good as independent ones, since the ranks share the pages; over several nodes
 * the ranks exchange what they move (collective.c). What is done nonblocking is done at once, and waits for nobody. */
#include "shim.h"

#define IN const void *buffer
#define OUT void *buffer

#define BLOCKING(name, memory, direction, pointer, company, Count)                                                             \
    int name(MPI_File handle, memory, Count count, MPI_Datatype type, MPI_Status *status)                             \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, buffer, count, type, status);                                                  \
        int64_t bytes;                                                                                                 \
        int error = access_data(f, direction, pointer, company, 0, (void *)buffer, count, type, &bytes);                        \
        status_set(status, bytes);                                                                                     \
        return error;                                                                                                  \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define BLOCKING_AT(name, memory, direction, company, Count)                                                                    \
    int name(MPI_File handle, MPI_Offset offset, memory, Count count, MPI_Datatype type, MPI_Status *status)          \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, offset, buffer, count, type, status);                                          \
        int64_t bytes;                                                                                                 \
        int error = access_data(f, direction, EXPLICIT, company, offset, (void *)buffer, count, type, &bytes);                  \
        status_set(status, bytes);                                                                                     \
        return error;                                                                                                  \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define NONBLOCKING(name, memory, direction, pointer, Count)                                                          \
    int name(MPI_File handle, memory, Count count, MPI_Datatype type, MPI_Request *request)                           \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, buffer, count, type, request);                                                 \
        int64_t bytes;                                                                                                 \
        int error = access_data(f, direction, pointer, ONE_RANK, 0, (void *)buffer, count, type, &bytes);                        \
        return error ? error : fail(handle, request_done(bytes, request));                                             \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define NONBLOCKING_AT(name, memory, direction, Count)                                                                 \
    int name(MPI_File handle, MPI_Offset offset, memory, Count count, MPI_Datatype type, MPI_Request *request)        \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, offset, buffer, count, type, request);                                         \
        int64_t bytes;                                                                                                 \
        int error = access_data(f, direction, EXPLICIT, ONE_RANK, offset, (void *)buffer, count, type, &bytes);                  \
        return error ? error : fail(handle, request_done(bytes, request));                                             \
    }                                                                                                                  \
    BOTH_NAMES(name);

/* The first half does it all and keeps the number of bytes for the second one. One split operation at a time. */
static int split_begin(struct shadow *f, enum direction direction, enum pointer pointer, MPI_Offset offset,
                       void *buffer, MPI_Count count, MPI_Datatype type)
{
    if (f->split)
        return fail(f->handle, MPI_ERR_OTHER);
    int error = access_data(f, direction, pointer, ALL_RANKS, offset, buffer, count, type, &f->split_bytes);
    f->split = !error;
    return error;
}

static int split_end(struct shadow *f, MPI_Status *status)
{
    if (!f->split)
        return fail(f->handle, MPI_ERR_OTHER);
    f->split = false;
    status_set(status, f->split_bytes);
    return MPI_SUCCESS;
}

#define BEGIN(name, memory, direction, pointer, Count)                                                                \
    int name(MPI_File handle, memory, Count count, MPI_Datatype type)                                                 \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, buffer, count, type);                                                          \
        return split_begin(f, direction, pointer, 0, (void *)buffer, count, type);                                     \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define BEGIN_AT(name, memory, direction, Count)                                                                       \
    int name(MPI_File handle, MPI_Offset offset, memory, Count count, MPI_Datatype type)                              \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        if (!f)                                                                                                        \
            return NATIVE(name)(handle, offset, buffer, count, type);                                                  \
        return split_begin(f, direction, EXPLICIT, offset, (void *)buffer, count, type);                               \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define END(name, memory)                                                                                              \
    int name(MPI_File handle, memory, MPI_Status *status)                                                             \
    {                                                                                                                  \
        struct shadow *f = shadow_find(handle);                                                                        \
        return f ? split_end(f, status) : NATIVE(name)(handle, buffer, status);                                        \
    }                                                                                                                  \
    BOTH_NAMES(name);

#define ALL(suffix, Count)                                                                                             \
    BLOCKING(MPI_File_read##suffix, OUT, READ, INDIVIDUAL, ONE_RANK, Count)                                                     \
    BLOCKING(MPI_File_read_all##suffix, OUT, READ, INDIVIDUAL, ALL_RANKS, Count)                                                 \
    BLOCKING(MPI_File_read_shared##suffix, OUT, READ, SHARED, ONE_RANK, Count)                                                  \
    BLOCKING(MPI_File_read_ordered##suffix, OUT, READ, ORDERED, ALL_RANKS, Count)                                                \
    BLOCKING(MPI_File_write##suffix, IN, WRITE, INDIVIDUAL, ONE_RANK, Count)                                                    \
    BLOCKING(MPI_File_write_all##suffix, IN, WRITE, INDIVIDUAL, ALL_RANKS, Count)                                                \
    BLOCKING(MPI_File_write_shared##suffix, IN, WRITE, SHARED, ONE_RANK, Count)                                                 \
    BLOCKING(MPI_File_write_ordered##suffix, IN, WRITE, ORDERED, ALL_RANKS, Count)                                               \
    BLOCKING_AT(MPI_File_read_at##suffix, OUT, READ, ONE_RANK, Count)                                                            \
    BLOCKING_AT(MPI_File_read_at_all##suffix, OUT, READ, ALL_RANKS, Count)                                                        \
    BLOCKING_AT(MPI_File_write_at##suffix, IN, WRITE, ONE_RANK, Count)                                                           \
    BLOCKING_AT(MPI_File_write_at_all##suffix, IN, WRITE, ALL_RANKS, Count)                                                       \
    NONBLOCKING(MPI_File_iread##suffix, OUT, READ, INDIVIDUAL, Count)                                                 \
    NONBLOCKING(MPI_File_iread_all##suffix, OUT, READ, INDIVIDUAL, Count)                                             \
    NONBLOCKING(MPI_File_iread_shared##suffix, OUT, READ, SHARED, Count)                                              \
    NONBLOCKING(MPI_File_iwrite##suffix, IN, WRITE, INDIVIDUAL, Count)                                                \
    NONBLOCKING(MPI_File_iwrite_all##suffix, IN, WRITE, INDIVIDUAL, Count)                                            \
    NONBLOCKING(MPI_File_iwrite_shared##suffix, IN, WRITE, SHARED, Count)                                             \
    NONBLOCKING_AT(MPI_File_iread_at##suffix, OUT, READ, Count)                                                        \
    NONBLOCKING_AT(MPI_File_iread_at_all##suffix, OUT, READ, Count)                                                    \
    NONBLOCKING_AT(MPI_File_iwrite_at##suffix, IN, WRITE, Count)                                                       \
    NONBLOCKING_AT(MPI_File_iwrite_at_all##suffix, IN, WRITE, Count)                                                   \
    BEGIN(MPI_File_read_all_begin##suffix, OUT, READ, INDIVIDUAL, Count)                                              \
    BEGIN(MPI_File_read_ordered_begin##suffix, OUT, READ, ORDERED, Count)                                             \
    BEGIN(MPI_File_write_all_begin##suffix, IN, WRITE, INDIVIDUAL, Count)                                             \
    BEGIN(MPI_File_write_ordered_begin##suffix, IN, WRITE, ORDERED, Count)                                            \
    BEGIN_AT(MPI_File_read_at_all_begin##suffix, OUT, READ, Count)                                                     \
    BEGIN_AT(MPI_File_write_at_all_begin##suffix, IN, WRITE, Count)

ALL(, int)
#if MPI_VERSION >= 4
ALL(_c, MPI_Count)
#endif

END(MPI_File_read_all_end, OUT)
END(MPI_File_read_at_all_end, OUT)
END(MPI_File_read_ordered_end, OUT)
END(MPI_File_write_all_end, IN)
END(MPI_File_write_at_all_end, IN)
END(MPI_File_write_ordered_end, IN)
