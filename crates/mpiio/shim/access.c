/* One read or write of a cached file: from counts, types and views to ranges of the file and one piece of memory. */
#include "shim.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ranges that one request of the cache has at most. A call of more is atomic in atomic mode only. */
#define REQUEST_EXTENTS ((size_t)1 << 20)
/* So many bytes that are scattered in memory are gathered at once, except in atomic mode. */
#define STAGE_BYTES ((int64_t)64 << 20)

void status_set(MPI_Status *status, int64_t bytes)
{
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
    PMPI_Status_set_cancelled(status, 0);
}

static int request_query(void *state, MPI_Status *status)
{
    status_set(status, *(int64_t *)state);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int request_free(void *state)
{
    free(state);
    return MPI_SUCCESS;
}

static int request_cancel(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

/* A request that is complete: the cache takes writes at once, so there is nothing to wait for. */
int request_done(int64_t bytes, MPI_Request *request)
{
    int64_t *state = malloc(sizeof *state);
    if (!state)
        return MPI_ERR_NO_MEM;
    *state = bytes;
    int error = PMPI_Grequest_start(request_query, request_free, request_cancel, state, request);
    return error ? error : PMPI_Grequest_complete(*request);
}

static int extent_add(struct extents *e, int64_t offset, int64_t length)
{
    if (e->count) {
        amphi_extent *last = &e->list[e->count - 1];
        if (last->offset + last->length == (uint64_t)offset) {
            last->length += (uint64_t)length;
            return 0;
        }
    }
    if (e->count == e->room) {
        size_t room = e->room ? 2 * e->room : 64;
        amphi_extent *more = realloc(e->list, room * sizeof *more);
        if (!more)
            return ENOMEM;
        e->list = more;
        e->room = room;
    }
    e->list[e->count++] = (amphi_extent){(uint64_t)offset, (uint64_t)length};
    return 0;
}

struct cursor cursor_at(const struct view *view, int64_t data_byte)
{
    struct cursor c = {view, 0, 0, 0};
    int64_t rest = data_byte % view->map.size;
    c.tile = data_byte / view->map.size;
    c.segment = view_segment(view, rest);
    c.inside = rest - view->before[c.segment];
    return c;
}

/* Adds ranges for up to `bytes` of data; stops early at a full list, or where the file type turns back. */
int cursor_take(struct cursor *c, int64_t bytes, bool whole, struct extents *e, int64_t *taken)
{
    const struct typemap *map = &c->view->map;
    *taken = 0;
    e->count = 0;
    while (*taken < bytes && (whole || e->count < e->most)) {
        const struct segment *s = &map->segments[c->segment];
        int64_t offset = 0, base = 0;
        if (__builtin_mul_overflow(c->tile, map->extent, &base) ||
            __builtin_add_overflow(base, c->view->displacement + s->offset + c->inside, &offset) || offset < 0)
            return EFBIG;
        if (e->count && (uint64_t)offset < e->list[e->count - 1].offset + e->list[e->count - 1].length)
            return 0;
        int64_t left = bytes - *taken, length = s->length - c->inside;
        if (map->count == 1 && map->size == map->extent)
            length = left; /* one range, however many tiles */
        length = length < left ? length : left;
        int error = extent_add(e, offset, length);
        if (error)
            return error;
        *taken += length;
        c->inside += length;
        if (map->count == 1 && map->size == map->extent) {
            c->tile += c->inside / map->size;
            c->inside %= map->size;
        } else if (c->inside == s->length) {
            c->inside = 0;
            if (++c->segment == map->count) {
                c->segment = 0;
                c->tile++;
            }
        }
    }
    return 0;
}

/* Copies the next bytes between the scattered memory of the call and one piece. */
void memory_copy(struct memory *m, char *piece, int64_t bytes, enum direction direction)
{
    while (bytes > 0) {
        const struct segment *s = &m->map->segments[m->segment];
        char *at = m->origin + m->element * m->map->extent + s->offset + m->inside;
        int64_t length = s->length - m->inside;
        length = length < bytes ? length : bytes;
        if (direction == READ)
            memcpy(at, piece, (size_t)length);
        else
            memcpy(piece, at, (size_t)length);
        piece += length;
        bytes -= length;
        m->inside += length;
        if (m->inside == s->length) {
            m->inside = 0;
            if (++m->segment == m->map->count) {
                m->segment = 0;
                m->element++;
            }
        }
    }
}

/* The data of one call on its way, by one rank. */
struct transfer {
    struct shadow *f;
    enum direction direction;
    int64_t first, bytes; /* of the view's data */
    int64_t done, chunk;
    char *direct, *stage; /* the memory where it lies in one piece; where it is gathered otherwise */
    struct memory memory;
    struct cursor cursor;
    struct extents extents;
};

/* Returns an errno value. */
static int transfer_begin(struct transfer *t, const struct typemap *map, char *origin)
{
    bool contiguous = typemap_contiguous(map);
    if (t->bytes == 0)
        return 0;
    if (t->f->view.map.count == 0)
        return EINVAL;
    t->chunk = contiguous || t->f->atomic || t->bytes < STAGE_BYTES ? t->bytes : STAGE_BYTES;
    t->stage = contiguous ? NULL : malloc((size_t)t->chunk);
    if (!contiguous && !t->stage)
        return ENOMEM;
    t->direct = contiguous ? origin + map->segments[0].offset : NULL;
    t->memory = (struct memory){map, origin, 0, 0, 0};
    t->cursor = cursor_at(&t->f->view, t->first);
    t->extents.most = REQUEST_EXTENTS;
    return 0;
}

/* Moves data up to `limit`; returns an errno value. At the end of the file nothing more is to be moved. */
static int transfer_until(struct transfer *t, int64_t limit)
{
    while (t->done < limit) {
        int64_t want = limit - t->done < t->chunk ? limit - t->done : t->chunk, taken = 0;
        int error = cursor_take(&t->cursor, want, t->f->atomic, &t->extents, &taken);
        if (error)
            return error;
        char *piece = t->stage ? t->stage : t->direct + t->done;
        if (taken > 0 && t->direction == WRITE) {
            if (t->stage)
                memory_copy(&t->memory, piece, taken, WRITE);
            error = amphi_mpiio_write(t->f->cache, t->extents.list, t->extents.count, piece);
            if (error)
                return error;
            t->done += taken;
            continue;
        }
        uint64_t got = 0;
        if (taken > 0)
            error = amphi_mpiio_read(t->f->cache, t->extents.list, t->extents.count, piece, &got);
        if (!error && t->stage)
            memory_copy(&t->memory, piece, (int64_t)got, READ);
        t->done += (int64_t)got;
        if (error)
            return error;
        if (taken == 0 || (int64_t)got < taken) {
            t->bytes = t->done;
            return 0;
        }
    }
    return 0;
}

static void transfer_end(struct transfer *t)
{
    free(t->extents.list);
    free(t->stage);
}

/* Moves `bytes` of data at a byte of the view's data; returns an errno value, and how much there was. */
static int move_data(struct shadow *f, enum direction direction, int64_t data_byte, const struct typemap *map,
                     char *origin, int64_t bytes, int64_t *done)
{
    struct transfer t = {.f = f, .direction = direction, .first = data_byte, .bytes = bytes};
    int error = transfer_begin(&t, map, origin);
    if (!error)
        error = transfer_until(&t, bytes);
    *done = t.done;
    transfer_end(&t);
    return error;
}

/* As `move_data`, in a collective call of ranks of one node, some of which have small pieces. If memory does not hold
 * what they touch, all move what lies in one window of the file after the other (src/rounds.rs). Every rank takes part
 * in every round, whatever is wrong with its own part. */
static int move_in_rounds(struct shadow *f, enum direction direction, int64_t data_byte, const struct typemap *map,
                          char *origin, int64_t bytes, int64_t *done)
{
    const struct view *view = &f->view;
    struct transfer t = {.f = f, .direction = direction, .first = data_byte, .bytes = bytes};
    int error = transfer_begin(&t, map, origin);
    if (error)
        t.bytes = 0;
    if (t.bytes > 0) {
        int64_t start = view_byte(view, data_byte), last = view_byte(view, data_byte + t.bytes - 1);
        if (start >= 0 && last >= start)
            amphi_mpiio_want(f->cache, (uint64_t)start, (uint64_t)last + 1);
    }
    int broken = agree(f, 0);
    if (!broken)
        amphi_mpiio_cut(f->cache, &f->rounds);
    const amphi_rounds *r = &f->rounds;
    bool whole = !broken && r->count == 0;
    if (whole && !error)
        error = transfer_until(&t, t.bytes);
    for (uint64_t round = 0; !broken && round < r->count; round++) {
        uint64_t start = r->first + round * r->window_bytes, end = start + r->window_bytes;
        bool all = round + 1 == r->count || !view->ascends || end > INT64_MAX;
        int64_t limit = all ? t.bytes : view_data_before(view, (int64_t)end) - data_byte;
        if (!error)
            error = transfer_until(&t, limit < t.bytes ? limit : t.bytes);
        broken = agree(f, 0);
        if (!broken && direction == WRITE && f->settings.merges == MERGE_IN_ROUNDS) {
            int flushed = amphi_mpiio_flush_parts(f->cache, start, end, (uint32_t)f->local_rank,
                                                  (uint32_t)f->local_ranks);
            error = error ? error : flushed;
        }
    }
    *done = t.done;
    transfer_end(&t);
    return broken ? broken : error;
}

int access_data(struct shadow *f, enum direction direction, enum pointer pointer, enum company company,
                MPI_Offset offset, void *buffer, MPI_Count count, MPI_Datatype type, int64_t *bytes)
{
    bool in_company = company == ALL_RANKS && !f->atomic;
    bool together = in_company && f->domain != DOMAIN_NONE, in_rounds = in_company && !together && f->scattered;
    *bytes = 0;
    struct typemap map = {0};
    int64_t total = 0, unit = f->view.etype_size, done = 0;
    int class = count < 0 ? MPI_ERR_COUNT : typemap_of(type, &map);
    if (!class && direction == READ && !f->settings.readable)
        class = MPI_ERR_ACCESS;
    if (!class && direction == WRITE && !f->settings.writable)
        class = MPI_ERR_READ_ONLY;
    if (!class && __builtin_mul_overflow((int64_t)count, map.size, &total))
        class = MPI_ERR_COUNT;
    if (!class && total > 0 && (unit == 0 || total % unit))
        class = MPI_ERR_IO;
    if (!class && pointer == EXPLICIT && offset < 0)
        class = MPI_ERR_ARG;
    int64_t etypes = class || unit == 0 ? 0 : total / unit, place = offset;
    /* Every rank takes part in the order, whatever is wrong with its own arguments. */
    if (pointer == ORDERED) {
        int error = ordered_place(f, etypes, &place) ? MPI_ERR_IO : MPI_SUCCESS;
        class = class ? class : error;
    } else if (pointer == SHARED && !class) {
        uint64_t before = 0;
        class = pointer_add(f, (uint64_t)etypes, &before) ? MPI_ERR_IO : MPI_SUCCESS;
        place = (int64_t)before;
    }
    int error = 0;
    if ((!class && total > 0) || together || in_rounds) {
        /* A rank whose arguments are wrong has nothing to move, and takes part. */
        int64_t mine = class ? 0 : total;
        if (pointer == INDIVIDUAL) {
            pthread_mutex_lock(&f->mutex);
            place = f->position;
        }
        int64_t first = 0;
        error = mine > 0 && __builtin_mul_overflow(place, unit, &first) ? EFBIG : 0;
        if (together || in_rounds) {
            int moved = (together ? move_together : move_in_rounds)(f, direction, first, &map, buffer, error ? 0 : mine,
                                                                    &done);
            error = error ? error : moved;
        } else if (!error) {
            error = move_data(f, direction, first, &map, buffer, mine, &done);
        }
        if (pointer == INDIVIDUAL) {
            f->position += unit ? done / unit : 0;
            pthread_mutex_unlock(&f->mutex);
        }
    }
    typemap_free(&map);
    *bytes = done;
    return class ? fail(f->handle, class) : fail_errno(f->handle, error);
}
