/* Which ranks of a job share a node, and how the nodes are connected when a file is opened. */
#include "shim.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Zeroed memory for what all ranks need to agree; the others wait, so without it there is no way on. */
void *must_alloc(struct shadow *f, size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "amphi-mpiio: %s: no memory to open it\n", f->path);
        PMPI_Abort(MPI_COMM_WORLD, MPI_ERR_NO_MEM);
    }
    return memory;
}

/* Names the machine and the name space of processes: ranks with equal ones can open each other's memory. */
uint64_t host_id(void)
{
    char text[512] = "";
    size_t length = 0;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot) {
        length = fread(text, 1, 64, boot);
        fclose(boot);
    }
    ssize_t more = readlink("/proc/self/ns/pid", text + length, 128);
    length += more > 0 ? (size_t)more : 0;
    gethostname(text + length, sizeof text - length - 1);
    length += strlen(text + length);
    uint64_t id = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        id = (id ^ (unsigned char)text[i]) * 1099511628211u;
    return id;
}

/* Finds which ranks share a node, and numbers the nodes by their first ranks. `first` gets the first rank of the node
 * of each rank. With `ranks_per_node` set, the ranks of one real node count as several nodes. On one host nobody needs
 * to be asked. */
int find_nodes(struct shadow *f, MPI_Comm comm, int ranks_per_node, bool one_host, int *first)
{
    uint64_t mine = host_id(), *hosts = must_alloc(f, (size_t)f->ranks * sizeof *hosts);
    int error = one_host ? MPI_SUCCESS : PMPI_Allgather(&mine, 1, MPI_UINT64_T, hosts, 1, MPI_UINT64_T, comm);
    for (int r = 0; r < f->ranks; r++) {
        first[r] = r;
        if (one_host)
            first[r] = ranks_per_node > 0 ? r / ranks_per_node * ranks_per_node : 0;
        else if (r > 0 && hosts[r] == hosts[r - 1])
            first[r] = first[r - 1];
        else
            for (int q = 0; q < r && first[r] == r; q++)
                first[r] = hosts[q] == hosts[r] ? q : r;
    }
    for (int r = 0; r < f->ranks; r++) {
        f->node += first[r] == r && r < first[f->rank];
        f->nodes += first[r] == r;
        f->local_rank += first[r] == first[f->rank] && r < f->rank;
        f->local_ranks += first[r] == first[f->rank];
    }
    free(hosts);
    return error ? EIO : 0;
}

/* The leaders as they told of themselves, one for each node, with the rank of our proxy there. */
static void list_leaders(const struct shadow *f, const int *first, const amphi_leader *all, amphi_leader *leaders)
{
    for (int r = 0, node = 0; r < f->ranks; r++) {
        if (first[r] != r)
            continue;
        /* Behind the node's own ranks come the proxies of the others, in the order of their ranks. */
        int local = 0, before = 0;
        for (int other = 0; other < f->ranks; other++) {
            local += first[other] == r;
            before += first[other] != r && other < f->rank;
        }
        leaders[node] = all[r];
        leaders[node++].rank = (uint32_t)(local + before);
    }
}

/* Lets this rank, which leads a node, serve the others, and says how it is reached. */
int serve_nodes(struct shadow *f, const int *first, bool one_host, amphi_leader *mine)
{
    if (f->mail) {
        int32_t *leaders = must_alloc(f, (size_t)f->nodes * sizeof *leaders);
        for (int r = 0, node = 0; r < f->ranks; r++)
            if (first[r] == r)
                leaders[node++] = r;
        int error = amphi_mpiio_serve_messages(f->cache, mail_table(f->mail), leaders, (uint32_t)f->nodes, &mine->nonce);
        free(leaders);
        mine->port = (uint32_t)f->rank;
        return error;
    }
    const char *named = getenv("AMPHI_MPIIO_ADDRESS");
    if (named)
        strncpy(mine->host, named, sizeof mine->host - 1);
    else if (one_host)
        strcpy(mine->host, "127.0.0.1");
    else
        gethostname(mine->host, sizeof mine->host - 1);
    return amphi_mpiio_serve(f->cache, one_host, &mine->port, &mine->nonce);
}

/* Connects this rank with the leaders of other nodes; `all` has what each leader said of itself. */
int connect_nodes(struct shadow *f, const int *first, const amphi_leader *all)
{
    amphi_leader *leaders = must_alloc(f, (size_t)f->nodes * sizeof *leaders);
    list_leaders(f, first, all, leaders);
    uint32_t failed = 0, node = (uint32_t)f->node, nodes = (uint32_t)f->nodes;
    int error = f->mail ? amphi_mpiio_connect_messages(f->cache, mail_table(f->mail), node, nodes, leaders, &failed)
                        : amphi_mpiio_connect(f->cache, node, nodes, leaders, &failed);
    if (error && f->mail)
        fprintf(stderr, "amphi-mpiio: %s: rank %d cannot reach rank %u by MPI messages: %s\n", f->path, f->rank,
                leaders[failed].port, strerror(error));
    else if (error)
        fprintf(stderr, "amphi-mpiio: %s: rank %d cannot reach %.64s port %u: %s\n", f->path, f->rank,
                leaders[failed].host, leaders[failed].port, strerror(error));
    free(leaders);
    return error;
}
