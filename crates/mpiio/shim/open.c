/* Open, close, and the end of the program.
 *
 * A file is opened natively first: that makes it, checks the mode, and gives the handle. Then the ranks agree whether it
 * is cached; if anything speaks against it on any rank, the file stays the native library's alone. On one node that
 * takes two reductions of the library, over nodes of one machine four collective calls and a communicator: each costs
 * milliseconds where ranks that wait spin and have no cores of their own. */
#include "shim.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What rank 0 decides and all take. */
struct decision {
    int32_t cached, reason, reports, ranks_per_node, domain, domain_group, transport;
    amphi_settings settings;
};

/* What the ranks know before they talk about a file that they have opened. */
struct knowledge {
    uint64_t failed;         /* the library's open failed on some rank */
    uint64_t no_threads;     /* some rank may not call the library in several threads at once */
    uint64_t host, not_host; /* complements, put together too, if all ranks are on one host */
    /* Of rank 0 alone, zeros on the others. It has made the shared memory already, in case all ranks are of its node. */
    struct decision decision;
    amphi_token token;
    int32_t error;
    uint64_t file[2]; /* which file it is */
};

enum {
    REASON_NONE,
    REASON_OFF,
    REASON_ONE_RANK,
    REASON_SEQUENTIAL,
    REASON_NODES,
    REASON_FILE,
    REASON_MEMORY,
    REASON_NO_THREADS,
    REASON_OTHER_FILE
};

static const char *const reasons[] = {"",
                                      "switched off by a hint",
                                      "a single rank",
                                      "sequential access",
                                      "the ranks are on several nodes that cannot reach each other",
                                      "not a regular file that every rank can open",
                                      "no shared memory between the ranks",
                                      "the ranks are on several nodes that cannot reach each other by sockets, and "
                                      "the MPI library was started without MPI_THREAD_MULTIPLE for messages",
                                      "the path is not the same file on every rank"};

/* What an open returns where the path is another file than that of the rank which made the memory. */
#define OTHER_FILE EXDEV

/* Where statistics go; nowhere: NULL. */
static const char *reports_to(void)
{
    const char *where = getenv("AMPHI_MPIIO_STATS");
    return where && *where && strcmp(where, "0") ? where : NULL;
}

static void report(const char *path, const char *text)
{
    const char *where = reports_to();
    if (!where)
        return;
    FILE *to = !strcmp(where, "1") || !strcmp(where, "stderr") ? stderr : fopen(where, "a");
    if (!to)
        return;
    fprintf(to, "amphi-mpiio: %s: %s\n", path, text);
    if (to != stderr)
        fclose(to);
}

/* The drivers that a library may be told to use by a prefix of the name. */
static const char *const drivers[] = {"ufs:",   "nfs:",  "xfs:", "lustre:",  "gpfs:",   "panfs:", "pvfs2:",
                                      "testfs:", "ime:", "daos:", "quobyte:", "zoidfs:"};

/* The path without a prefix such as "ufs:". Any other colon is a part of a name, and in some libraries that one is.
 * So of both names the one that exists is meant, now that the library has opened it; where both do nobody can tell, and
 * the path that names nothing keeps the file with the library. */
static const char *plain_path(const char *name)
{
    struct stat unused;
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) {
        size_t length = strlen(drivers[i]);
        if (strncmp(name, drivers[i], length))
            continue;
        bool whole = !stat(name, &unused), rest = !stat(name + length, &unused);
        return whole && rest ? "" : whole ? name : name + length;
    }
    return name;
}

/* A message to another node costs about as much as a copy of so many bytes. */
enum { MESSAGE_BYTES = 64 << 10 };

/* After how many references in a row by another node a page moves there; 0: never. The paper's rule is two, but a large
 * page is worth moving only when these references would have cost as much as its copy. */
static void decide_migration(amphi_settings *s, int migration, const char *path)
{
    uint64_t worth = s->page_bytes / MESSAGE_BYTES;
    if (migration == 0 || (migration == 2 && !amphi_mpiio_is_coherent(path)))
        s->references = 0;
    else
        s->references = migration == 1 || worth < 2 ? 2 : worth > 1000 ? 1000 : (uint32_t)worth;
}

/* Whether collective writes of the library, as those of ROMIO, read what lies between the pieces of all ranks and write
 * it back with them; those of Open MPI write the pieces. Where pages of a collective call leave in such a way here, no
 * program loses what it would not lose without us. */
static bool library_reads_between_pieces(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    static const char *const with_romio[] = {"MPICH", "MVAPICH", "Intel(R) MPI"};
    PMPI_Get_library_version(version, &length);
    for (size_t i = 0; i < sizeof with_romio / sizeof *with_romio; i++)
        if (strstr(version, with_romio[i]))
            return true;
    return false;
}

static void decide(struct decision *d, MPI_Info info, const char *path, int amode, int ranks)
{
    struct hints hints;
    hints_read(info, &hints);
    const char *off = getenv("AMPHI_MPIIO");
    amphi_settings *s = &d->settings;
    s->readable = !(amode & MPI_MODE_WRONLY);
    s->writable = !(amode & MPI_MODE_RDONLY);
    if ((off && !strcmp(off, "off")) || hints.cache == 0)
        d->reason = REASON_OFF;
    else if (ranks == 1 && hints.cache == 2)
        d->reason = REASON_ONE_RANK;
    else if (amode & MPI_MODE_SEQUENTIAL)
        d->reason = REASON_SEQUENTIAL;
    if (d->reason)
        return;
    uint64_t unit = amphi_mpiio_page_bytes(path, (int)s->readable);
    if (unit == 0) {
        d->reason = REASON_FILE;
        return;
    }
    s->page_bytes = hints.page_bytes ? (uint64_t)hints.page_bytes : unit;
    s->limit_bytes = amphi_mpiio_limit((uint64_t)hints.limit_bytes, (uint32_t)ranks);
    s->bypass_bytes = hints.bypass_bytes ? (uint64_t)hints.bypass_bytes : s->limit_bytes;
    s->stream_bytes = (uint64_t)hints.stream_bytes;
    s->idle_ms = (uint64_t)hints.idle_ms;
    s->prefetch_bytes = (uint64_t)hints.prefetch_bytes;
    s->direct = (uint32_t)hints.direct;
    s->relaxed = (uint32_t)hints.relaxed;
    decide_migration(s, hints.migration, path);
    s->copies = hints.copies == 1;
    /* Balancing moves pages, which asks of the file system what migration does. */
    s->balance = hints.balance == 1 && (hints.migration == 1 || amphi_mpiio_is_coherent(path));
    /* Whoever asks for the only open of the file says that nobody else writes it. */
    s->merges = hints.merges != 2                ? (hints.merges ? MERGE_ALWAYS : MERGE_NEVER)
                : amode & MPI_MODE_UNIQUE_OPEN    ? MERGE_ALWAYS
                : library_reads_between_pieces() ? MERGE_IN_ROUNDS
                                                 : MERGE_NEVER;
    /* A group lock keeps nobody of the job from the other half of a block, so no block may have pages of two nodes. */
    s->group = hints.group == 1 && s->writable && s->page_bytes % 4096 == 0;
    d->ranks_per_node = (int32_t)hints.ranks_per_node;
    d->domain = hints.domain;
    d->domain_group = hints.domain_group;
    d->transport = hints.transport;
    /* A whole number of pages, and of stripes where the file has some. */
    uint64_t stripe = amphi_mpiio_stripe_bytes(path), flush = (uint64_t)hints.flush_bytes;
    s->run_bytes = (flush < s->page_bytes ? 1 : flush / s->page_bytes) * s->page_bytes;
    if (stripe > s->page_bytes && stripe % s->page_bytes == 0 && s->run_bytes % stripe)
        s->run_bytes += stripe - s->run_bytes % stripe;
    d->reports = reports_to() != NULL;
    d->cached = 1;
}

/* Lists the ranks by node, for the domains of collective calls. `first` has the first rank of the node of each rank. */
static void list_nodes(struct shadow *f, const int *first, const struct decision *d)
{
    f->of_node = must_alloc(f, ((size_t)f->nodes + 1) * sizeof *f->of_node);
    f->by_node = must_alloc(f, (size_t)f->ranks * sizeof *f->by_node);
    int at = 0;
    for (int r = 0, node = 0; r < f->ranks; r++) {
        if (first[r] != r)
            continue;
        f->of_node[node++] = at;
        for (int other = r; other < f->ranks; other++)
            if (first[other] == r)
                f->by_node[at++] = other;
    }
    f->of_node[f->nodes] = at;
    /* On one node the ranks share the pages anyway. */
    f->domain = d->domain != DOMAIN_AUTOMATIC ? (enum domain)d->domain : f->nodes > 1 ? DOMAIN_CYCLIC : DOMAIN_NONE;
    /* All ranks cut the file in the same way: rank 0's node counts. */
    f->domain_group = d->domain_group > 0 && d->domain_group < f->ranks ? d->domain_group : f->of_node[1];
}

/* The first rank of each node joins the group lock of the job for its node. A node that cannot goes on without it, and
 * then the others, whom it waits for, leave. */
static void join_group(struct shadow *f, uint64_t group)
{
    int error = f->local_rank == 0 ? amphi_mpiio_group_join(f->cache, group) : 0;
    if (error && f->rank == 0)
        fprintf(stderr, "amphi-mpiio: %s: no group lock: %s\n", f->path, strerror(error));
    agree(f, 0);
}

/* What is known of the nodes: the first rank of the node of each rank, whether all are one machine, and whether this
 * rank could not find out. */
struct nodes {
    int *first;
    bool one_host;
    int error;
};

/* Fails if the path is another file here than on the rank that says of it which file it is: by a working directory or a
 * mount of its own, or on the disk of another machine. Each of them would take a part of the bytes of all. Devices have
 * numbers of their own on each machine. */
static int same_file(const struct shadow *f, const uint64_t there[2], bool one_machine)
{
    uint64_t here[2];
    int error = amphi_mpiio_identity(f->path, here);
    if (error)
        return error;
    return here[1] == there[1] && (!one_machine || here[0] == there[0]) ? 0 : OTHER_FILE;
}

/* What a rank tells all others about its part of an open over nodes: which file it is; of a leader also the memory and
 * where it listens. */
struct shown {
    amphi_token token;
    amphi_leader leader;
    uint64_t file[2];
    int32_t error, unserved; /* the leader cannot make the memory; it cannot be reached */
};

/* What went wrong on a rank, so that the greatest number of all ranks says why no rank caches the file. */
enum { FAILED_CONNECTING = 1 << 16, FAILED_OPENING = 2 << 16 };

/* Opens the memory of this rank's node, which its leader has shown, and connects with the other nodes. */
static int enter_nodes(struct shadow *f, const struct nodes *nodes, struct shown *shown)
{
    struct shown *leader = &shown[nodes->first[f->rank]];
    int error = shown[f->rank].error ? shown[f->rank].error : leader->error;
    error = error ? error : same_file(f, shown[0].file, nodes->one_host);
    error = error ? error : same_file(f, leader->file, true);
    if (!error && f->local_rank != 0)
        error = amphi_mpiio_open(f->path, &f->settings, &leader->token, &f->cache);
    if (error)
        return FAILED_OPENING + error;
    amphi_leader *all = must_alloc(f, (size_t)f->ranks * sizeof *all);
    for (int r = 0; r < f->ranks; r++) {
        /* Who does not lead says nothing. */
        bool leads = nodes->first[r] == r;
        error = error ? error : leads && shown[r].error ? FAILED_OPENING + shown[r].error : 0;
        error = error ? error : leads && shown[r].unserved ? FAILED_CONNECTING + shown[r].unserved : 0;
        all[r] = shown[r].leader;
    }
    if (!error)
        error = connect_nodes(f, nodes->first, all);
    free(all);
    return error > 0 && error < FAILED_CONNECTING ? FAILED_CONNECTING + error : error;
}

/* Opens the cache with one transport, on all ranks or on none; returns the reason why not. */
static int open_with(struct shadow *f, const struct nodes *nodes, enum transport transport)
{
    /* The leaders make the memory, listen, and show both to all; each rank opens the memory of its own leader. */
    struct shown mine = {.error = nodes->error}, *shown = must_alloc(f, (size_t)f->ranks * sizeof *shown);
    f->mail = transport == TRANSPORT_MPI ? mail_open(f->comm) : NULL;
    if (!mine.error)
        mine.error = amphi_mpiio_identity(f->path, mine.file);
    if (!mine.error && f->local_rank == 0)
        mine.error = amphi_mpiio_open(f->path, &f->settings, &mine.token, &f->cache);
    if (!mine.error && f->local_rank == 0)
        mine.unserved = serve_nodes(f, nodes->first, nodes->one_host, &mine.leader);
    PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, shown, sizeof mine, MPI_BYTE, f->comm);
    uint64_t group = shown[0].token.nonce;
    int failed = worst(f->comm, enter_nodes(f, nodes, shown));
    free(shown);
    if (!failed && f->settings.group)
        join_group(f, group);
    f->transport = transport;
    if (!failed)
        return REASON_NONE;
    if (f->cache)
        amphi_mpiio_close(f->cache);
    mail_free(f->mail);
    f->cache = NULL;
    f->mail = NULL;
    if (failed < FAILED_OPENING)
        return REASON_NODES;
    return failed == FAILED_OPENING + OTHER_FILE ? REASON_OTHER_FILE : REASON_MEMORY;
}

/* Opens the cache with the transport that the hint asks for, or one that does; returns the reason why not. */
static int open_with_any(struct shadow *f, const struct nodes *nodes, enum transport wanted, bool threads)
{
    if (wanted == TRANSPORT_MPI && threads)
        return open_with(f, nodes, TRANSPORT_MPI);
    if (wanted == TRANSPORT_MPI)
        f->transport_reason = "the MPI library was started without MPI_THREAD_MULTIPLE";
    int reason = open_with(f, nodes, TRANSPORT_SOCKETS);
    if (reason != REASON_NODES || wanted == TRANSPORT_SOCKETS)
        return reason;
    if (!threads)
        return REASON_NO_THREADS;
    f->transport_reason = "sockets do not reach every node";
    return open_with(f, nodes, TRANSPORT_MPI);
}

/* As `open_with` for ranks of one node, whose first one has made the memory before. */
static int open_here(struct shadow *f, MPI_Comm comm, const struct knowledge *known)
{
    amphi_token token = known->token;
    int error = known->error;
    if (!error && f->rank != 0)
        error = same_file(f, known->file, true);
    if (!error && f->rank != 0)
        error = amphi_mpiio_open(f->path, &f->settings, &token, &f->cache);
    error = worst(comm, error);
    f->transport = TRANSPORT_MEMORY;
    if (!error && f->settings.group)
        join_group(f, token.nonce);
    if (!error)
        return REASON_NONE;
    if (f->cache)
        amphi_mpiio_close(f->cache);
    f->cache = NULL;
    return error == OTHER_FILE ? REASON_OTHER_FILE : REASON_MEMORY;
}

/* Whether all ranks are of one node if they are on one host. */
static bool one_node(const struct shadow *f, const struct decision *d)
{
    return d->ranks_per_node <= 0 || d->ranks_per_node >= f->ranks;
}

/* Rank 0 decides about the file and makes the memory of its node. */
static void prepare(struct shadow *f, MPI_Info info, struct knowledge *known)
{
    struct decision *d = &known->decision;
    decide(d, info, f->path, f->amode, f->ranks);
    if (!d->cached || !one_node(f, d))
        return;
    f->settings = d->settings;
    f->settings.ranks = (uint32_t)f->ranks;
    known->error = amphi_mpiio_identity(f->path, known->file);
    if (!known->error)
        known->error = amphi_mpiio_open(f->path, &f->settings, &known->token, &f->cache);
}

/* Puts together what the ranks know, bit by bit: all but rank 0 have zeros where it decides. (MPICH 4.0.2 takes the
 * maximum of MPI_UINT64_T as of signed numbers.) */
static int share_knowledge(struct knowledge *known, MPI_Comm comm)
{
    enum { WORDS = (sizeof *known + 7) / 8 };
    uint64_t mine[WORDS] = {0}, all[WORDS] = {0};
    memcpy(mine, known, sizeof *known);
    int error = PMPI_Allreduce(mine, all, WORDS, MPI_UINT64_T, MPI_BOR, comm);
    memcpy(known, all, sizeof *known);
    return error;
}

/* Opens the cache on all ranks or on none; returns the reason why not. */
static int open_cache(struct shadow *f, MPI_Comm comm, const struct knowledge *known)
{
    const struct decision *d = &known->decision;
    if (!d->cached)
        return d->reason;
    f->reports = d->reports;
    struct nodes nodes = {.first = must_alloc(f, (size_t)f->ranks * sizeof(int))};
    nodes.one_host = known->host == ~known->not_host;
    nodes.error = find_nodes(f, comm, d->ranks_per_node, nodes.one_host, nodes.first);
    list_nodes(f, nodes.first, d);
    f->settings = d->settings;
    f->settings.ranks = (uint32_t)f->local_ranks;
    f->settings.rank = (uint32_t)f->local_rank;
    f->settings.clients = (uint32_t)(f->ranks - f->local_ranks);
    int reason = REASON_MEMORY;
    bool messages = f->nodes > 1 || f->domain != DOMAIN_NONE;
    if (f->nodes > 1 && f->cache) {
        /* Made in vain. */
        amphi_mpiio_close(f->cache);
        f->cache = NULL;
    }
    if (messages && PMPI_Comm_dup(comm, &f->comm) != MPI_SUCCESS) {
        fprintf(stderr, "amphi-mpiio: %s: no communicator for it\n", f->path);
        PMPI_Abort(comm, MPI_ERR_INTERN);
    }
    if (f->nodes == 1)
        reason = open_here(f, comm, known);
    else
        reason = open_with_any(f, &nodes, (enum transport)d->transport, !known->no_threads);
    free(nodes.first);
    return reason;
}

void shadow_forget(struct shadow *f)
{
    view_free(&f->view);
    if (f->cache && !f->lender)
        amphi_mpiio_close(f->cache);
    mail_free(f->mail);
    if (f->comm != MPI_COMM_NULL)
        PMPI_Comm_free(&f->comm);
    pthread_mutex_destroy(&f->mutex);
    free(f->of_node);
    free(f->by_node);
    free(f->path);
    free(f);
}

/* A library such as PnetCDF has a second handle of each rank on its file and writes through both without a sync between,
 * since libraries show writes at once. So the second one uses the cache of the first one. */
static bool borrow_cache(struct shadow *f, MPI_Info info)
{
    struct hints hints;
    struct stat stat_of;
    hints_read(info, &hints);
    f->settings.readable = !(f->amode & MPI_MODE_WRONLY);
    f->settings.writable = !(f->amode & MPI_MODE_RDONLY);
    if (f->ranks != 1 || hints.cache == 0 || f->amode & MPI_MODE_SEQUENTIAL || stat(f->path, &stat_of))
        return false;
    f->device = stat_of.st_dev;
    f->inode = stat_of.st_ino;
    const struct shadow *lender = shadow_lender(f);
    if (!lender)
        return false;
    uint32_t readable = f->settings.readable, writable = f->settings.writable;
    f->settings = lender->settings;
    f->settings.readable = readable;
    f->settings.writable = writable;
    f->domain = DOMAIN_NONE;
    f->nodes = f->local_ranks = 1;
    f->transport = lender->transport;
    f->transport_reason = lender->transport_reason;
    f->cache = lender->cache;
    f->lender = (struct shadow *)lender;
    return true;
}

/* Remembers which file this is, for those that borrow. */
static void identify(struct shadow *f)
{
    struct stat stat_of;
    if (!f->lender && !stat(f->path, &stat_of)) {
        f->device = stat_of.st_dev;
        f->inode = stat_of.st_ino;
    }
}

/* A file that the library has opened, without a cache so far. */
static struct shadow *shadow_make(MPI_Comm comm, const char *name, int amode, MPI_File handle)
{
    struct shadow *f = calloc(1, sizeof *f);
    char *path = strdup(plain_path(name));
    if (!f || !path || view_set_default(&f->view)) {
        /* The others wait in the agreement: without memory for this there is no way on. */
        fprintf(stderr, "amphi-mpiio: %s: no memory to open it\n", name);
        PMPI_Abort(comm, MPI_ERR_NO_MEM);
    }
    PMPI_Comm_rank(comm, &f->rank);
    PMPI_Comm_size(comm, &f->ranks);
    f->comm = MPI_COMM_NULL;
    f->handle = handle;
    f->amode = amode;
    f->path = path;
    f->process = getpid();
    pthread_mutex_init(&f->mutex, NULL);
    return f;
}

int MPI_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *handle)
{
    native_enter();
    int error = NATIVE(MPI_File_open)(comm, name, amode, info, handle);
    native_leave();
    if (comm == MPI_COMM_NULL)
        return error;
    /* Libraries let an open fail on one rank alone. The others must not wait for that one, so it takes part. */
    struct knowledge known;
    memset(&known, 0, sizeof known);
    known.failed = error != MPI_SUCCESS;
    known.no_threads = !has_threads();
    known.host = host_id();
    known.not_host = ~known.host;
    struct shadow *f = error ? NULL : shadow_make(comm, name, amode, *handle);
    bool borrows = f && borrow_cache(f, info);
    if (f && !borrows && f->rank == 0)
        prepare(f, info, &known);
    int untold = share_knowledge(&known, comm);
    if (error)
        return error;
    if (known.failed || untold) {
        report(name, "not cached: some rank could not open it");
        shadow_forget(f);
        return MPI_SUCCESS;
    }
    int reason = borrows ? REASON_NONE : open_cache(f, comm, &known);
    if (reason) {
        if (f->rank == 0) {
            char text[160];
            snprintf(text, sizeof text, "not cached: %s", reasons[reason]);
            report(name, text);
        }
        shadow_forget(f);
        return MPI_SUCCESS;
    }
    if (amode & MPI_MODE_APPEND) {
        uint64_t size = 0;
        int error = amphi_mpiio_size(f->cache, &size);
        f->position = (int64_t)size;
        if (f->rank == 0 && !error)
            error = pointer_set(f, size);
        if (agree(f, error))
            fprintf(stderr, "amphi-mpiio: %s: its length cannot be told\n", name);
    }
    identify(f);
    shadow_insert(f);
    return MPI_SUCCESS;
}
BOTH_NAMES(MPI_File_open);

static void report_stats(struct shadow *f)
{
    uint32_t count = amphi_mpiio_stat_count();
    uint64_t mine[64] = {0}, all[64] = {0};
    if (count > 63)
        return;
    if (f->nodes == 1) {
        if (f->rank == 0)
            amphi_mpiio_stats_of_all(f->cache, all);
    } else {
        amphi_mpiio_stats(f->cache, mine);
        mine[count] = mail_sent(f->mail);
        PMPI_Reduce(mine, all, (int)count + 1, MPI_UINT64_T, MPI_SUM, 0, f->comm);
    }
    if (f->rank != 0)
        return;
    char text[2048];
    int at = snprintf(text, sizeof text, "ranks=%d nodes=%d page=%llu transport=%s", f->ranks, f->nodes,
                      (unsigned long long)f->settings.page_bytes, transport_name(f->transport));
    for (uint32_t i = 0; i < count && at < (int)sizeof text; i++) {
        char name[64] = "";
        amphi_mpiio_stat_name(i, name, sizeof name);
        at += snprintf(text + at, sizeof text - (size_t)at, " %s=%llu", name, (unsigned long long)all[i]);
    }
    if (f->mail && at < (int)sizeof text)
        at += snprintf(text + at, sizeof text - (size_t)at, " mpi_messages=%llu", (unsigned long long)all[count]);
    if (f->transport_reason && at < (int)sizeof text)
        snprintf(text + at, sizeof text - (size_t)at, " (%s)", f->transport_reason);
    report(f->path, text);
}

int MPI_File_close(MPI_File *handle)
{
    struct shadow *f = shadow_find(*handle);
    int class = MPI_SUCCESS;
    if (f && f->lender) {
        int error = f->amode & MPI_MODE_DELETE_ON_CLOSE ? 0 : amphi_mpiio_settle_alone(f->cache, 0);
        class = error ? fail_errno(*handle, error) : MPI_SUCCESS;
        shadow_remove(f);
        shadow_forget(f);
    } else if (f) {
        /* After this barrier no rank is in a call on the file any more. */
        agree(f, 0);
        int error = f->amode & MPI_MODE_DELETE_ON_CLOSE
                        ? amphi_mpiio_discard(f->cache)
                        : amphi_mpiio_flush(f->cache, (uint32_t)f->local_rank, (uint32_t)f->local_ranks);
        int late = f->amode & MPI_MODE_DELETE_ON_CLOSE ? 0 : amphi_mpiio_late_error(f->cache);
        error = agree(f, error > late ? error : late);
        if (f->reports)
            report_stats(f);
        for (struct shadow *borrower; (borrower = shadow_borrower(f));)
            give_back(borrower);
        if (error)
            class = fail_errno(*handle, error);
        /* The native library may give the handle to the next file as soon as it is closed. */
        shadow_remove(f);
        shadow_forget(f);
    }
    native_enter();
    int error = NATIVE(MPI_File_close)(handle);
    native_leave();
    return class ? class : error;
}
BOTH_NAMES(MPI_File_close);

/* A child process has the table of files, too, but it is no rank. */
static bool is_ours(const struct shadow *f)
{
    return f->process == getpid() && !f->lender;
}

static void warn_of_loss(const struct shadow *f, int error)
{
    if (error)
        fprintf(stderr, "amphi-mpiio: %s: cached writes may be lost: %s\n", f->path,
                error == EBUSY ? "the process ends in the middle of a call on the file" : strerror(error));
}

/* Writes all dirty pages that there are, without the other ranks, and leaves: ranks that still write must not take the
 * end of this one for a failure. */
void shadow_flush_alone(struct shadow *f)
{
    if (!is_ours(f))
        return;
    warn_of_loss(f, amphi_mpiio_end(f->cache, !(f->amode & MPI_MODE_DELETE_ON_CLOSE)));
    /* The program may be anywhere in the library, which is about to be unloaded. */
    if (f->mail)
        mail_close(f->mail);
}

/* Our attribute of MPI_COMM_SELF is set, and MPI_Finalize has come to it. */
static bool ends_with_self, in_self;

/* What MPI_Finalize calls first are the attributes of MPI_COMM_SELF, the one that was set last before the others. HDF5
 * writes and closes its files there. Ours is the first one, so what is still open when it is called stays open. With
 * messages of the library that is too late: MPICH keeps threads no longer apart by then. */
static bool ends_now(const struct shadow *f)
{
    return is_ours(f) && (in_self ? !f->mail : f->mail || !ends_with_self);
}

/* The file was forgotten on all ranks, which come here when they are done with it. So nobody may wait for one file
 * before he has taken leave of all. */
static void warn_and_part(struct shadow *f)
{
    if (!ends_now(f))
        return;
    if (f->rank == 0)
        fprintf(stderr, "amphi-mpiio: %s is still open at MPI_Finalize; its cached writes are flushed\n", f->path);
    amphi_mpiio_part(f->cache);
}

/* What ranks of other nodes wrote here until they came to the same place is flushed, too. */
static void see_off_and_flush(struct shadow *f)
{
    if (!ends_now(f))
        return;
    if (f->local_rank == 0)
        amphi_mpiio_see_off(f->cache);
    shadow_flush_alone(f);
}

/* Ends the files that are due. */
static void end_all(void)
{
    shadow_each(warn_and_part);
    shadow_each(see_off_and_flush);
}

static int at_end_of_self(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    in_self = true;
    end_all();
    return MPI_SUCCESS;
}

int finish_init(int error)
{
    int key;
    if (!error && !ends_with_self && !PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_end_of_self, &key, NULL))
        ends_with_self = !PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    return error;
}

int MPI_Finalize(void)
{
    end_all();
    return NATIVE(MPI_Finalize)();
}
BOTH_NAMES(MPI_Finalize);

/* Libraries have handed each write to the system by the time the program ends the job. */
static void save(struct shadow *f)
{
    if (is_ours(f) && !(f->amode & MPI_MODE_DELETE_ON_CLOSE))
        warn_of_loss(f, amphi_mpiio_save(f->cache));
}

int MPI_Abort(MPI_Comm comm, int code)
{
    shadow_each(save);
    return NATIVE(MPI_Abort)(comm, code);
}
BOTH_NAMES(MPI_Abort);

/* A program may end without MPI_Finalize; whatever ends it in order still has its writes written. */
__attribute__((destructor)) static void at_exit(void)
{
    shadow_each(shadow_flush_alone);
}
