/* Two-phase collective I/O: the ranks exchange their data so that each of them works on parts of the file of its own.
 *
 * Between nodes an independent call asks the leaders of all nodes whose pages it touches, step by step. A collective one
 * can do better: the file is cut into domains, each rank gets what lies in its domains from all others in one exchange,
 * and hands it to the cache of its own node. With the cyclic domains each rank has runs whose pages its node caches, so
 * nothing but the exchange goes over the network.
 *
 * Every rank takes part in every round, whatever is wrong with its own arguments or its part of the file, so no rank
 * waits for one that has given up. Where ranks write the same bytes the later rank's stay, which MPI leaves open; in
 * atomic mode calls are not exchanged. Bounds: a round moves ROUND_BYTES of each rank and as many ranges as fit. */
#include "shim.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that one rank gives to one round, at most; less with many ranks, since counts of MPI are ints. */
#define ROUND_BYTES ((int64_t)16 << 20)
/* Bytes that all ranks together may send to one in a round. */
#define ROUND_TOTAL ((int64_t)256 << 20)

/* How the file is cut. */
struct domains {
    enum domain kind;
    int64_t unit, low, high; /* the part of the file that the round touches */
    int ranks, nodes, group;
    const int *of_node; /* ranks by node: those of node n begin at of_node[n] in by_node */
    const int *by_node;
};

/* Where a unit begins; the end of the largest file for those beyond. */
static int64_t start_of(int64_t index, int64_t unit)
{
    int64_t start;
    return __builtin_mul_overflow(index, unit, &start) ? INT64_MAX : start;
}

/* The rank whose domain a byte lies in, and where that domain, or a part of it, goes on to. */
static int owner_of(const struct domains *d, int64_t offset, int64_t *end)
{
    int64_t at = offset / d->unit;
    *end = start_of(at + 1, d->unit);
    if (d->kind == DOMAIN_CYCLIC) {
        /* As the nodes share out the runs of the file (src/team.rs). */
        int node = (int)(at % d->nodes), first = d->of_node[node], there = d->of_node[node + 1] - first;
        return d->by_node[first + at / d->nodes % there];
    }
    int parts = d->kind == DOMAIN_EVEN ? d->ranks : (d->ranks + d->group - 1) / d->group;
    int64_t first = d->low / d->unit, units = d->high / d->unit - first + 1, each = (units + parts - 1) / parts;
    int64_t part = (at - first) / each;
    if (d->kind == DOMAIN_EVEN) {
        *end = start_of(first + (part + 1) * each, d->unit);
        return (int)part;
    }
    int members = part == parts - 1 ? d->ranks - (parts - 1) * d->group : d->group;
    return (int)part * d->group + (int)(at % members);
}

/* What goes to or comes from each rank. */
struct side {
    amphi_extent *extents;
    char *bytes;
    int *extent_counts, *extent_places, *byte_counts, *byte_places; /* in bytes */
};

static int side_alloc(struct side *s, int ranks)
{
    s->extent_counts = calloc((size_t)ranks * 4, sizeof(int));
    if (!s->extent_counts)
        return ENOMEM;
    s->extent_places = s->extent_counts + ranks;
    s->byte_counts = s->extent_places + ranks;
    s->byte_places = s->byte_counts + ranks;
    return 0;
}

/* Makes room for what the counts say. */
static int side_fill(struct side *s, int ranks)
{
    int64_t extents = 0, bytes = 0;
    for (int r = 0; r < ranks; r++) {
        s->extent_places[r] = (int)extents;
        s->byte_places[r] = (int)bytes;
        extents += s->extent_counts[r];
        bytes += s->byte_counts[r];
    }
    if (extents > INT_MAX || bytes > INT_MAX)
        return EFBIG;
    s->extents = malloc((size_t)extents + 1);
    s->bytes = malloc((size_t)bytes + 1);
    return s->extents && s->bytes ? 0 : ENOMEM;
}

static void side_free(struct side *s)
{
    free(s->extents);
    free(s->bytes);
    free(s->extent_counts);
}

/* Cuts the ranges of this rank at the ends of domains. Counts, or with `fill` also lists the parts and copies data that
 * is written; reads are copied back with `back`. */
enum pass { PASS_COUNT, PASS_FILL, PASS_BACK };

static void cut(const struct domains *d, const struct extents *list, struct side *s, char *stage, enum pass pass,
                bool data)
{
    int64_t in_stage = 0;
    for (int r = 0; r < d->ranks && pass != PASS_BACK; r++)
        s->extent_counts[r] = s->byte_counts[r] = 0;
    int *taken = s->byte_counts;
    if (pass == PASS_BACK)
        memset(taken, 0, (size_t)d->ranks * sizeof *taken);
    for (size_t i = 0; i < list->count; i++) {
        int64_t offset = (int64_t)list->list[i].offset, end = offset + (int64_t)list->list[i].length;
        while (offset < end) {
            int64_t stop;
            int owner = owner_of(d, offset, &stop);
            int64_t length = (stop < end ? stop : end) - offset;
            char *place = pass == PASS_COUNT ? NULL : s->bytes + s->byte_places[owner] + taken[owner];
            if (pass == PASS_FILL) {
                char *slot = (char *)s->extents + s->extent_places[owner] + s->extent_counts[owner];
                *(amphi_extent *)slot = (amphi_extent){(uint64_t)offset, (uint64_t)length};
                if (data)
                    memcpy(place, stage + in_stage, (size_t)length);
            } else if (pass == PASS_BACK) {
                memcpy(stage + in_stage, place, (size_t)length);
            }
            if (pass != PASS_BACK)
                s->extent_counts[owner] += (int)sizeof(amphi_extent);
            taken[owner] += (int)length;
            in_stage += length;
            offset += length;
        }
    }
}

/* One round: `list` and `stage` are this rank's part; tells how much of it there was. */
static int exchange(struct shadow *f, enum direction direction, const struct domains *d, const struct extents *list,
                    char *stage, int64_t *got)
{
    int ranks = f->ranks;
    struct side out = {0}, in = {0};
    int64_t *answers = calloc((size_t)ranks * 4, sizeof *answers), *told = answers ? answers + 2 * ranks : NULL;
    int error = answers ? side_alloc(&out, ranks) : ENOMEM;
    error = error ? error : side_alloc(&in, ranks);
    if (!error) {
        cut(d, list, &out, stage, PASS_COUNT, false);
        error = side_fill(&out, ranks);
    }
    *got = 0;
    /* From here on all ranks go the same way. */
    error = worst(f->comm, error);
    if (error)
        goto end;
    cut(d, list, &out, stage, PASS_FILL, direction == WRITE);
    PMPI_Alltoall(out.extent_counts, 1, MPI_INT, in.extent_counts, 1, MPI_INT, f->comm);
    PMPI_Alltoall(out.byte_counts, 1, MPI_INT, in.byte_counts, 1, MPI_INT, f->comm);
    error = worst(f->comm, side_fill(&in, ranks));
    if (error)
        goto end;
    PMPI_Alltoallv(out.extents, out.extent_counts, out.extent_places, MPI_BYTE, in.extents, in.extent_counts,
                   in.extent_places, MPI_BYTE, f->comm);
    if (direction == WRITE)
        PMPI_Alltoallv(out.bytes, out.byte_counts, out.byte_places, MPI_BYTE, in.bytes, in.byte_counts, in.byte_places,
                       MPI_BYTE, f->comm);
    for (int r = 0; r < ranks; r++) {
        const amphi_extent *extents = (const amphi_extent *)((char *)in.extents + in.extent_places[r]);
        size_t count = (size_t)in.extent_counts[r] / sizeof *extents;
        char *bytes = in.bytes + in.byte_places[r];
        uint64_t there = 0;
        if (count == 0)
            continue;
        answers[2 * r] = direction == WRITE ? amphi_mpiio_write(f->cache, extents, count, bytes)
                                            : amphi_mpiio_read(f->cache, extents, count, bytes, &there);
        answers[2 * r + 1] = (int64_t)there;
    }
    PMPI_Alltoall(answers, 2, MPI_INT64_T, told, 2, MPI_INT64_T, f->comm);
    for (int r = 0; r < ranks; r++) {
        error = error ? error : (int)told[2 * r];
        *got += direction == WRITE ? out.byte_counts[r] : told[2 * r + 1];
    }
    if (error)
        *got = 0;
    if (direction == READ) {
        PMPI_Alltoallv(in.bytes, in.byte_counts, in.byte_places, MPI_BYTE, out.bytes, out.byte_counts, out.byte_places,
                       MPI_BYTE, f->comm);
        cut(d, list, &out, stage, PASS_BACK, true);
    }
end:
    side_free(&out);
    side_free(&in);
    free(answers);
    return error;
}

/* The part of the file that all ranks touch in a round. */
static void agree_part(struct shadow *f, struct domains *d, const struct extents *list)
{
    if (d->kind == DOMAIN_CYCLIC)
        return;
    /* One reduction: the least start, and the least of what is left above the end. */
    int64_t mine[2] = {INT64_MAX, INT64_MAX}, all[2];
    if (list->count) {
        const amphi_extent *last = &list->list[list->count - 1];
        mine[0] = (int64_t)list->list[0].offset;
        mine[1] = INT64_MAX - (int64_t)(last->offset + last->length - 1);
    }
    PMPI_Allreduce(mine, all, 2, MPI_INT64_T, MPI_MIN, f->comm);
    d->low = all[0];
    d->high = INT64_MAX - all[1];
}

/* As `move_data` in access.c, by all ranks together; a rank without data takes part all the same. */
int move_together(struct shadow *f, enum direction direction, int64_t data_byte, const struct typemap *map,
                  char *origin, int64_t bytes, int64_t *done)
{
    *done = 0;
    struct domains d = {.kind = f->domain, .unit = (int64_t)f->settings.run_bytes, .ranks = f->ranks,
                        .nodes = f->nodes, .group = f->domain_group, .of_node = f->of_node, .by_node = f->by_node};
    int64_t chunk = ROUND_TOTAL / f->ranks < ROUND_BYTES ? ROUND_TOTAL / f->ranks : ROUND_BYTES;
    struct extents extents = {.most = (size_t)(chunk / (int64_t)sizeof(amphi_extent))};
    struct memory memory = {map, origin, 0, 0, 0};
    struct cursor cursor = {0};
    char *stage = malloc((size_t)(bytes < chunk ? bytes : chunk) + 1);
    int error = stage ? 0 : ENOMEM, own = 0;
    if (bytes > 0 && f->view.map.count == 0)
        own = EINVAL;
    else if (bytes > 0)
        cursor = cursor_at(&f->view, data_byte);
    error = worst(f->comm, error);
    while (!error) {
        int64_t want = bytes - *done < chunk ? bytes - *done : chunk, taken = 0, got = 0;
        extents.count = 0;
        if (!own && want > 0)
            own = cursor_take(&cursor, want, false, &extents, &taken);
        if (own) {
            taken = 0;
            extents.count = 0;
        }
        if (!worst(f->comm, taken > 0))
            break;
        agree_part(f, &d, &extents);
        if (direction == WRITE)
            memory_copy(&memory, stage, taken, WRITE);
        int failed = exchange(f, direction, &d, &extents, stage, &got);
        if (direction == READ && !failed)
            memory_copy(&memory, stage, got, READ);
        own = own ? own : failed;
        *done += got;
        /* Behind the end of the file there is nothing more for this rank. */
        if (got < taken)
            bytes = *done;
    }
    free(extents.list);
    free(stage);
    return error ? error : own;
}
