/* Messages of the MPI library as a transport between nodes, and the thread support that they need.
 *
 * Threads of the cache use a communicator of their own while the program is in other calls, so the library has to give
 * MPI_THREAD_MULTIPLE. Where the hint for all files asks for messages, MPI_Init asks for that in the program's name.
 * Nothing here spins, and nothing waits for ever: what does not move for LIMIT_S is given up, with its memory. */
#include "shim.h"
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A message that does not move for so long is given up. */
#define LIMIT_S 20
/* So often a request is looked at before the first pause, which then grow to the longest one. */
#define LOOKS 8
#define PAUSE_LEAST_NS 20000L
#define PAUSE_MOST_NS 200000L

struct mail {
    MPI_Comm comm;
    atomic_int closed, inside; /* closed: no call of the library any more; threads that are in one */
    atomic_int warned;
    atomic_ullong sent;
    amphi_messages table;
};

static int enter(struct mail *mail)
{
    atomic_fetch_add(&mail->inside, 1);
    if (!atomic_load(&mail->closed))
        return 0;
    atomic_fetch_sub(&mail->inside, 1);
    return ECANCELED;
}

/* Leaves with what the library said; tells of the first error. */
static int leave(struct mail *mail, const char *doing, int rank, int error)
{
    if (error != MPI_SUCCESS && !atomic_exchange(&mail->warned, 1)) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        PMPI_Error_string(error, text, &length);
        fprintf(stderr, "amphi-mpiio: %s rank %d by MPI messages: %s\n", doing, rank, text);
    }
    atomic_fetch_sub(&mail->inside, 1);
    return error == MPI_SUCCESS ? 0 : EIO;
}

static int mail_probe(void *context, int32_t from, int32_t tag, int32_t *source, uint64_t *bytes)
{
    struct mail *mail = context;
    MPI_Status status;
    int there = 0, count = 0;
    *source = -1;
    if (enter(mail))
        return ECANCELED;
    int error = PMPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, tag, mail->comm, &there, &status);
    if (!error && there)
        error = PMPI_Get_count(&status, MPI_BYTE, &count);
    if (!error && there) {
        *source = status.MPI_SOURCE;
        *bytes = (uint64_t)count;
    }
    return leave(mail, "look for a message of", from, error);
}

/* Waits for a request with pauses that grow. ETIMEDOUT: it is still under way. */
static int finish_request(MPI_Request *request, int *error)
{
    struct timespec begun, now, pause = {0, PAUSE_LEAST_NS};
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int looks = 0;; looks++) {
        int done = 0;
        *error = PMPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (*error || done)
            return 0;
        if (looks < LOOKS) {
            sched_yield();
            continue;
        }
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < PAUSE_MOST_NS ? pause.tv_nsec * 2 : PAUSE_MOST_NS;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec > LIMIT_S)
            return ETIMEDOUT;
    }
}

/* Sends `from`, or receives into `to`; the other one is NULL. The library may touch the memory of a request that was
 * given up at any time, so it has a copy of its own, which then stays. */
static int mail_move(struct mail *mail, int32_t peer, int32_t tag, const void *from, void *to, uint64_t bytes)
{
    MPI_Request request;
    int late = 0, error;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy)
        return ENOMEM;
    if (enter(mail)) {
        free(copy);
        return ECANCELED;
    }
    if (from) {
        memcpy(copy, from, bytes);
        atomic_fetch_add(&mail->sent, 1);
        error = PMPI_Isend(copy, (int)bytes, MPI_BYTE, peer, tag, mail->comm, &request);
    } else {
        error = PMPI_Irecv(copy, (int)bytes, MPI_BYTE, peer, tag, mail->comm, &request);
    }
    if (!error)
        late = finish_request(&request, &error);
    if (to && !late && !error)
        memcpy(to, copy, bytes);
    if (!late)
        free(copy);
    int result = leave(mail, from ? "send to" : "receive from", peer, error);
    return late ? late : result;
}

static int mail_receive(void *context, int32_t from, int32_t tag, void *to, uint64_t bytes)
{
    return mail_move(context, from, tag, NULL, to, bytes);
}

static int mail_send(void *context, int32_t to, int32_t tag, const void *from, uint64_t bytes)
{
    return mail_move(context, to, tag, from, NULL, bytes);
}

/* A communicator for the messages of a file; all ranks call. */
struct mail *mail_open(MPI_Comm comm)
{
    struct mail *mail = calloc(1, sizeof *mail);
    if (!mail || PMPI_Comm_dup(comm, &mail->comm) != MPI_SUCCESS) {
        /* The others wait in the same call. */
        fprintf(stderr, "amphi-mpiio: no memory for a communicator\n");
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    }
    /* An error ends the call on the file, not the program. */
    PMPI_Comm_set_errhandler(mail->comm, MPI_ERRORS_RETURN);
    mail->table = (amphi_messages){mail, mail_probe, mail_receive, mail_send};
    return mail;
}

const amphi_messages *mail_table(const struct mail *mail)
{
    return &mail->table;
}

uint64_t mail_sent(struct mail *mail)
{
    return mail ? atomic_load(&mail->sent) : 0;
}

/* No thread calls the library for this file any more, as soon as those that do are back; for the end of the program. */
void mail_close(struct mail *mail)
{
    struct timespec pause = {0, 1000000};
    atomic_store(&mail->closed, 1);
    for (int i = 0; i < 1000 && atomic_load(&mail->inside); i++)
        nanosleep(&pause, NULL);
}

/* Frees it when the cache is closed; all ranks call. */
void mail_free(struct mail *mail)
{
    if (!mail)
        return;
    PMPI_Comm_free(&mail->comm);
    free(mail);
}

/* Whether several threads of this process may call the library at once. */
bool has_threads(void)
{
    int provided = MPI_THREAD_SINGLE;
    return PMPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
}

/* Messages for all files are wanted, which the environment says before any file is opened. */
static bool wants_threads(void)
{
    struct hints hints;
    const char *environment = getenv("AMPHI_MPIIO_HINTS");
    if (!environment || !strstr(environment, "cache_transport"))
        return false;
    hints_read(MPI_INFO_NULL, &hints);
    return hints.cache != 0 && hints.transport == TRANSPORT_MPI;
}

int MPI_Init(int *argc, char ***argv)
{
    int provided;
    if (!wants_threads())
        return finish_init(NATIVE(MPI_Init)(argc, argv));
    return finish_init(NATIVE(MPI_Init_thread)(argc, argv, MPI_THREAD_MULTIPLE, &provided));
}
BOTH_NAMES(MPI_Init);

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int asked = wants_threads() ? MPI_THREAD_MULTIPLE : required;
    return finish_init(NATIVE(MPI_Init_thread)(argc, argv, asked, provided));
}
BOTH_NAMES(MPI_Init_thread);
