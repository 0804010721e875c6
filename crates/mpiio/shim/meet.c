/* Where the ranks agree once a file is open. On one node they meet in the shared memory of the cache, which puts those
 * who wait to sleep; libraries may spin there, and with more ranks than cores keep the others from coming. */
#include "shim.h"
#include <errno.h>

static int nothing_to_query(void *state, MPI_Status *status)
{
    (void)state;
    status_set(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int nothing_to_free(void *state)
{
    (void)state;
    return MPI_SUCCESS;
}

static int nothing_to_cancel(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

/* While this rank waits, the library has to go on with what the program has under way: messages that are being sent,
 * and windows that others reach. It does when it is asked for a request that is not complete. (A probe does not do:
 * MPICH answers one on MPI_COMM_SELF without a look at anything else.) */
static void let_library_work(MPI_Request *waiting)
{
    int done;
    if (*waiting == MPI_REQUEST_NULL)
        PMPI_Grequest_start(nothing_to_query, nothing_to_free, nothing_to_cancel, NULL, waiting);
    PMPI_Test(waiting, &done, MPI_STATUS_IGNORE);
}

/* The largest value of all ranks; a barrier, too. */
int agree(struct shadow *f, int value)
{
    if (f->ranks == 1)
        return value;
    if (f->nodes > 1)
        return worst(f->comm, value);
    amphi_arrival arrival;
    MPI_Request waiting = MPI_REQUEST_NULL;
    int all = value, error;
    amphi_mpiio_arrive(f->cache, value, &arrival);
    while ((error = amphi_mpiio_await(f->cache, &arrival, &all)) == EAGAIN)
        let_library_work(&waiting);
    if (waiting != MPI_REQUEST_NULL) {
        PMPI_Grequest_complete(waiting);
        PMPI_Wait(&waiting, MPI_STATUS_IGNORE);
    }
    return error ? error : all;
}

/* Where an ordered call of this rank begins, in etypes: behind what the ranks before it move. The shared pointer moves
 * behind all. Returns an errno value. */
int ordered_place(struct shadow *f, int64_t etypes, int64_t *place)
{
    uint64_t start = 0;
    int64_t before = 0;
    int failed = 0, error = 0;
    if (f->ranks == 1) {
        failed = pointer_add(f, (uint64_t)etypes, &start);
    } else if (f->nodes == 1) {
        amphi_mpiio_bring(f->cache, (uint64_t)etypes);
        error = agree(f, 0);
        before = (int64_t)amphi_mpiio_before(f->cache);
        if (f->rank == f->ranks - 1) {
            failed = pointer_add(f, (uint64_t)(before + etypes), &start);
            amphi_mpiio_say(f->cache, start);
        }
        failed = agree(f, failed);
        start = amphi_mpiio_said(f->cache);
    } else {
        error = PMPI_Exscan(&etypes, &before, 1, MPI_INT64_T, MPI_SUM, f->comm);
        before = f->rank == 0 ? 0 : before;
        if (!error && f->rank == f->ranks - 1)
            failed = pointer_add(f, (uint64_t)(before + etypes), &start);
        if (!error)
            error = PMPI_Bcast(&start, 1, MPI_UINT64_T, f->ranks - 1, f->comm);
        failed = worst(f->comm, failed);
    }
    *place = (int64_t)start + before;
    return error || failed ? EIO : 0;
}
