/* Derived datatypes as lists of byte ranges, by their envelopes and contents, which both MPI libraries have.
 *
 * Types that were made by large-count constructors have no envelope of the old form, so MPI 4 is asked in the new one;
 * both are brought into one order of 64-bit numbers (`struct contents`). */
#include "shim.h"
#include <stdlib.h>
#include <string.h>

struct contents {
    int combiner;
    int64_t *numbers; /* in the order of the C binding's arguments, displacements and sizes included */
    MPI_Datatype *types;
    size_t types_count;
    int order; /* of arrays */
};

void typemap_free(struct typemap *map)
{
    free(map->segments);
    memset(map, 0, sizeof *map);
}

bool typemap_contiguous(const struct typemap *map)
{
    return map->count <= 1 && map->size == map->extent;
}

static int append(struct typemap *map, int64_t offset, int64_t length)
{
    if (length == 0)
        return MPI_SUCCESS;
    if (map->count) {
        struct segment *last = &map->segments[map->count - 1];
        if (last->offset + last->length == offset) {
            last->length += length;
            return MPI_SUCCESS;
        }
    }
    if (map->count == map->room) {
        size_t room = map->room ? 2 * map->room : 8;
        struct segment *more = room > TYPEMAP_SEGMENTS ? NULL : realloc(map->segments, room * sizeof *more);
        if (!more)
            return MPI_ERR_NO_MEM;
        map->segments = more;
        map->room = room;
    }
    map->segments[map->count++] = (struct segment){offset, length};
    return MPI_SUCCESS;
}

/* Appends `count` elements of a type, one behind the other from `offset` on. */
static int append_block(struct typemap *map, const struct typemap *child, int64_t offset, int64_t count)
{
    if (child->count == 0)
        return MPI_SUCCESS;
    if (typemap_contiguous(child))
        return append(map, offset + child->segments[0].offset, count * child->size);
    for (int64_t i = 0; i < count; i++)
        for (size_t s = 0; s < child->count; s++) {
            const struct segment *segment = &child->segments[s];
            int error = append(map, offset + i * child->extent + segment->offset, segment->length);
            if (error)
                return error;
        }
    return MPI_SUCCESS;
}

/* Which indices of one dimension of an array are ours: blocks of `block` every `step`, from `first` on. */
struct dimension {
    int64_t size, first, block, step;
};

static int append_array(struct typemap *map, const struct typemap *child, const struct dimension *dims, int count,
                        int64_t stride, int64_t offset)
{
    /* The first dimension given varies slowest; `stride` is that of its elements. */
    const struct dimension *d = &dims[0];
    for (int64_t start = d->first; start < d->size; start += d->step) {
        int64_t n = d->block < d->size - start ? d->block : d->size - start;
        int error = MPI_SUCCESS;
        if (count == 1)
            error = append_block(map, child, offset + start * stride, n);
        else
            for (int64_t i = 0; i < n && !error; i++)
                error = append_array(map, child, dims + 1, count - 1, stride / (dims[1].size ? dims[1].size : 1),
                                     offset + (start + i) * stride);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

static int append_dimensions(struct typemap *map, const struct typemap *child, struct dimension *dims, int count,
                             int order)
{
    if (order == MPI_ORDER_FORTRAN)
        for (int i = 0; i < count / 2; i++) {
            struct dimension other = dims[i];
            dims[i] = dims[count - 1 - i];
            dims[count - 1 - i] = other;
        }
    int64_t stride = child->extent;
    for (int i = 1; i < count; i++) {
        if (dims[i].size == 0)
            return MPI_SUCCESS;
        stride *= dims[i].size;
    }
    return append_array(map, child, dims, count, stride, 0);
}

static int append_subarray(struct typemap *map, const struct typemap *child, const struct contents *c)
{
    int count = (int)c->numbers[0];
    const int64_t *sizes = c->numbers + 1, *subsizes = sizes + count, *starts = subsizes + count;
    struct dimension *dims = calloc((size_t)count + 1, sizeof *dims);
    if (!dims)
        return MPI_ERR_NO_MEM;
    bool empty = false;
    for (int i = 0; i < count; i++) {
        /* One block only: the next one would begin behind the end. */
        dims[i] = (struct dimension){sizes[i], starts[i], subsizes[i], sizes[i] + 1};
        empty |= subsizes[i] == 0;
    }
    int error = empty || count == 0 ? MPI_SUCCESS : append_dimensions(map, child, dims, count, c->order);
    free(dims);
    return error;
}

static int append_darray(struct typemap *map, const struct typemap *child, const struct contents *c)
{
    int64_t rank = c->numbers[1];
    int count = (int)c->numbers[2];
    const int64_t *sizes = c->numbers + 3, *distribs = sizes + count, *dargs = distribs + count,
                  *psizes = dargs + count;
    struct dimension *dims = calloc((size_t)count + 1, sizeof *dims);
    if (!dims)
        return MPI_ERR_NO_MEM;
    /* The grid of processes is always in the order of C. */
    for (int i = count - 1; i >= 0; i--) {
        int64_t place = rank % psizes[i];
        rank /= psizes[i];
        int64_t n = psizes[i], block = dargs[i];
        if (distribs[i] == MPI_DISTRIBUTE_NONE)
            n = 1, place = 0, block = sizes[i];
        else if (distribs[i] == MPI_DISTRIBUTE_BLOCK)
            block = block == MPI_DISTRIBUTE_DFLT_DARG ? (sizes[i] + n - 1) / n : block;
        else
            block = block == MPI_DISTRIBUTE_DFLT_DARG ? 1 : block;
        if (block < 1)
            block = 1;
        dims[i] = (struct dimension){sizes[i], place * block, block, n * block};
    }
    int error = count ? append_dimensions(map, child, dims, count, c->order) : MPI_SUCCESS;
    free(dims);
    return error;
}

#if MPI_VERSION >= 4
typedef MPI_Count envelope_count;
#else
typedef int envelope_count;
#endif

static int envelope(MPI_Datatype type, envelope_count n[4], int *combiner)
{
#if MPI_VERSION >= 4
    return PMPI_Type_get_envelope_c(type, &n[0], &n[1], &n[2], &n[3], combiner);
#else
    n[2] = 0;
    return PMPI_Type_get_envelope(type, &n[0], &n[1], &n[3], combiner);
#endif
}

/* Predefined types, those that Fortran asks for by precision included; they are not to be freed. */
bool type_is_named(MPI_Datatype type)
{
    envelope_count n[4];
    int combiner = MPI_COMBINER_NAMED;
    envelope(type, n, &combiner);
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

/* Orders the numbers of a type as the C binding orders its arguments. With large counts everything but the integers
 * of arrays (dimensions, order, distribution) lies in one list; otherwise addresses lie apart. */
static void arrange(struct contents *c, const int *ints, const MPI_Aint *addresses, const int64_t *large, bool is_large,
                    size_t n_ints, size_t n_addresses, size_t n_large)
{
    int64_t *out = c->numbers;
    bool subarray = c->combiner == MPI_COMBINER_SUBARRAY, darray = c->combiner == MPI_COMBINER_DARRAY;
    if (!is_large || !(subarray || darray)) {
        for (size_t i = 0; i < n_ints; i++)
            *out++ = ints[i];
        for (size_t i = 0; i < n_addresses; i++)
            *out++ = addresses[i];
        for (size_t i = 0; i < n_large; i++)
            *out++ = large[i];
    } else if (subarray) {
        *out++ = ints[0];
        for (size_t i = 0; i < n_large; i++)
            *out++ = large[i];
        *out++ = ints[1];
    } else {
        size_t dims = (size_t)ints[2];
        for (size_t i = 0; i < 3; i++)
            *out++ = ints[i];
        for (size_t i = 0; i < n_large; i++)
            *out++ = large[i];
        for (size_t i = 3; i < 3 + 3 * dims + 1 && i < n_ints; i++)
            *out++ = ints[i];
    }
    if (subarray || darray)
        c->order = (int)c->numbers[n_ints + n_addresses + n_large - 1];
}

static int contents_of(MPI_Datatype type, const envelope_count n[4], struct contents *c)
{
    size_t n_ints = (size_t)n[0], n_addresses = (size_t)n[1], n_large = (size_t)n[2], n_types = (size_t)n[3];
    int *ints = calloc(n_ints + 1, sizeof *ints);
    MPI_Aint *addresses = calloc(n_addresses + 1, sizeof *addresses);
    MPI_Count *large = calloc(n_large + 1, sizeof *large);
    int64_t *wide = calloc(n_large + 1, sizeof *wide);
    c->numbers = calloc(n_ints + n_addresses + n_large + 1, sizeof *c->numbers);
    c->types = calloc(n_types + 1, sizeof *c->types);
    int error = MPI_ERR_NO_MEM;
    if (ints && addresses && large && wide && c->numbers && c->types) {
#if MPI_VERSION >= 4
        error = PMPI_Type_get_contents_c(type, n[0], n[1], n[2], n[3], ints, addresses, large, c->types);
#else
        error = PMPI_Type_get_contents(type, n[0], n[1], n[3], ints, addresses, c->types);
#endif
        if (!error) {
            c->types_count = n_types;
            for (size_t i = 0; i < n_large; i++)
                wide[i] = large[i];
            arrange(c, ints, addresses, wide, n_large > 0, n_ints, n_addresses, n_large);
        }
    }
    free(ints);
    free(addresses);
    free(large);
    free(wide);
    return error;
}

static int append_contents(struct typemap *map, const struct contents *c, const struct typemap *children)
{
    const int64_t *v = c->numbers;
    const struct typemap *child = &children[0];
    int64_t extent = child->extent;
    int error = MPI_SUCCESS;
    switch (c->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return append_block(map, child, 0, 1);
    case MPI_COMBINER_CONTIGUOUS:
        return append_block(map, child, 0, v[0]);
    case MPI_COMBINER_VECTOR:
    case MPI_COMBINER_HVECTOR: {
        int64_t stride = c->combiner == MPI_COMBINER_VECTOR ? v[2] * extent : v[2];
        for (int64_t i = 0; i < v[0] && !error; i++)
            error = append_block(map, child, i * stride, v[1]);
        return error;
    }
    case MPI_COMBINER_INDEXED:
    case MPI_COMBINER_HINDEXED: {
        int64_t unit = c->combiner == MPI_COMBINER_INDEXED ? extent : 1;
        for (int64_t i = 0; i < v[0] && !error; i++)
            error = append_block(map, child, v[1 + v[0] + i] * unit, v[1 + i]);
        return error;
    }
    case MPI_COMBINER_INDEXED_BLOCK:
    case MPI_COMBINER_HINDEXED_BLOCK: {
        int64_t unit = c->combiner == MPI_COMBINER_INDEXED_BLOCK ? extent : 1;
        for (int64_t i = 0; i < v[0] && !error; i++)
            error = append_block(map, child, v[2 + i] * unit, v[1]);
        return error;
    }
    case MPI_COMBINER_STRUCT:
        for (int64_t i = 0; i < v[0] && !error; i++)
            error = append_block(map, &children[i], v[1 + v[0] + i], v[1 + i]);
        return error;
    case MPI_COMBINER_SUBARRAY:
        return append_subarray(map, child, c);
    case MPI_COMBINER_DARRAY:
        return append_darray(map, child, c);
    default:
        return MPI_ERR_UNSUPPORTED_OPERATION;
    }
}

static int append_named(struct typemap *map, MPI_Datatype type)
{
    if (type == MPI_SHORT_INT) {
        /* The one pair with a hole in it. */
        struct {
            short value;
            int index;
        } pair;
        int error = append(map, 0, sizeof pair.value);
        return error ? error : append(map, (char *)&pair.index - (char *)&pair, sizeof pair.index);
    }
    return append(map, 0, map->size);
}

int typemap_of(MPI_Datatype type, struct typemap *map)
{
    memset(map, 0, sizeof *map);
    /* The library would call the error handler of MPI_COMM_WORLD, which mostly ends the program. */
    if (type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    MPI_Count size, lower, extent;
    if (PMPI_Type_size_x(type, &size) || PMPI_Type_get_extent_x(type, &lower, &extent) || size == MPI_UNDEFINED)
        return MPI_ERR_TYPE;
    map->size = size;
    map->extent = extent;
    envelope_count n[4];
    int combiner;
    if (envelope(type, n, &combiner))
        return MPI_ERR_TYPE;
    if (type_is_named(type))
        return append_named(map, type);
    struct contents c = {.combiner = combiner};
    struct typemap *children = NULL;
    int error = contents_of(type, n, &c);
    if (!error) {
        children = calloc(c.types_count + 1, sizeof *children);
        error = children ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    }
    for (size_t i = 0; i < c.types_count && !error; i++)
        error = typemap_of(c.types[i], &children[i]);
    if (!error)
        error = append_contents(map, &c, children);
    for (size_t i = 0; i < c.types_count; i++) {
        if (children)
            typemap_free(&children[i]);
        if (!type_is_named(c.types[i]))
            PMPI_Type_free(&c.types[i]);
    }
    free(children);
    free(c.numbers);
    free(c.types);
    if (error)
        typemap_free(map);
    return error;
}
