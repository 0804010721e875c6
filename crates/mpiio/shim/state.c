/* Views, pointers, lengths, atomicity, hints and sync of a cached file. */
#include "shim.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void type_release(MPI_Datatype *type)
{
    if (*type != MPI_DATATYPE_NULL && !type_is_named(*type))
        PMPI_Type_free(type);
    *type = MPI_DATATYPE_NULL;
}

static int type_keep(MPI_Datatype type, MPI_Datatype *kept)
{
    if (!type_is_named(type))
        return PMPI_Type_dup(type, kept);
    *kept = type;
    return MPI_SUCCESS;
}

void view_free(struct view *view)
{
    if (view->before) {
        type_release(&view->etype);
        type_release(&view->filetype);
    }
    typemap_free(&view->map);
    free(view->before);
    view->before = NULL;
}

static bool view_ascends(const struct typemap *map)
{
    if (map->count == 0)
        return false;
    for (size_t i = 1; i < map->count; i++)
        if (map->segments[i].offset < map->segments[i - 1].offset + map->segments[i - 1].length)
            return false;
    const struct segment *last = &map->segments[map->count - 1];
    return map->extent + map->segments[0].offset >= last->offset + last->length;
}

/* Makes a view; an error class when the types do not do. */
static int view_make(struct view *view, int64_t displacement, MPI_Datatype etype, MPI_Datatype filetype,
                     const char *datarep, bool writable)
{
    memset(view, 0, sizeof *view);
    MPI_Count etype_size;
    if (displacement < 0)
        return MPI_ERR_ARG;
    if (etype == MPI_DATATYPE_NULL || PMPI_Type_size_x(etype, &etype_size))
        return MPI_ERR_TYPE;
    int error = typemap_of(filetype, &view->map);
    if (error)
        return error;
    view->displacement = displacement;
    view->etype_size = etype_size;
    view->before = calloc(view->map.count + 1, sizeof *view->before);
    error = view->before ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    int64_t data = 0, least = 0;
    for (size_t i = 0; i < view->map.count && !error; i++) {
        const struct segment *s = &view->map.segments[i];
        /* Displacements of a file type must not be negative and must not descend; what is written must not overlap. */
        if (s->offset < least)
            error = MPI_ERR_IO;
        view->before[i] = data;
        data += s->length;
        least = writable ? s->offset + s->length : s->offset;
    }
    if (!error && etype_size > 0 && view->map.size % etype_size)
        error = MPI_ERR_IO;
    view->ascends = !error && view_ascends(&view->map);
    view->etype = view->filetype = MPI_DATATYPE_NULL;
    if (!error)
        error = type_keep(etype, &view->etype);
    if (!error)
        error = type_keep(filetype, &view->filetype);
    strncpy(view->datarep, datarep, sizeof view->datarep - 1);
    if (error)
        view_free(view);
    return error;
}

/* Pages of so many pieces are better read and written as one (src/file/flush.rs: FEW_PARTS). */
#define MANY_PIECES 8

/* Whether the data lies in small pieces, of which a page has more than a few. */
bool view_scattered(const struct view *view, int64_t page_bytes)
{
    const struct typemap *map = &view->map;
    if (map->count == 0 || (map->count == 1 && map->size == map->extent))
        return false;
    const struct segment *first = &map->segments[0], *last = &map->segments[map->count - 1];
    int64_t span = map->count == 1 ? map->extent : last->offset + last->length - first->offset;
    return span / (int64_t)map->count < page_bytes / MANY_PIECES;
}

int view_set_default(struct view *view)
{
    return view_make(view, 0, MPI_BYTE, MPI_BYTE, "native", true);
}

/* The segment in which a byte of one file type's data lies. */
size_t view_segment(const struct view *view, int64_t rest)
{
    size_t low = 0, high = view->map.count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (view->before[middle] <= rest)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The place in the file of a byte of the view's data. */
int64_t view_byte(const struct view *view, int64_t data_byte)
{
    const struct typemap *map = &view->map;
    if (map->count == 0)
        return view->displacement;
    int64_t tile = data_byte / map->size, rest = data_byte % map->size;
    size_t low = view_segment(view, rest);
    return view->displacement + tile * map->extent + map->segments[low].offset + (rest - view->before[low]);
}

/* How many bytes of the view's data lie before a place in the file. */
int64_t view_data_before(const struct view *view, int64_t file_byte)
{
    const struct typemap *map = &view->map;
    int64_t at = file_byte - view->displacement;
    if (at <= 0 || map->count == 0 || map->extent <= 0)
        return 0;
    int64_t tile = at / map->extent, rest = at % map->extent, data = tile * map->size;
    size_t i = 0;
    if (view->ascends) {
        /* The last segment that begins before. */
        for (size_t high = map->count; high - i > 1;) {
            size_t middle = (i + high) / 2;
            if (map->segments[middle].offset < rest)
                i = middle;
            else
                high = middle;
        }
        data += view->before[i];
    }
    for (; i < map->count && map->segments[i].offset < rest; i++) {
        int64_t there = rest - map->segments[i].offset;
        data += there < map->segments[i].length ? there : map->segments[i].length;
    }
    return data;
}

int pointer_add(struct shadow *f, uint64_t add, uint64_t *before)
{
    f->pointer_used = true;
    if (!f->lender)
        return amphi_mpiio_pointer_add(f->cache, add, before);
    pthread_mutex_lock(&f->mutex);
    *before = (uint64_t)f->own_pointer;
    f->own_pointer += (int64_t)add;
    pthread_mutex_unlock(&f->mutex);
    return 0;
}

int pointer_set(struct shadow *f, uint64_t value)
{
    f->pointer_used = true;
    if (!f->lender)
        return amphi_mpiio_pointer_set(f->cache, value);
    f->own_pointer = (int64_t)value;
    return 0;
}

int pointer_get(struct shadow *f, uint64_t *value)
{
    if (!f->lender)
        return amphi_mpiio_pointer(f->cache, value);
    *value = (uint64_t)f->own_pointer;
    return 0;
}

/* Takes rank 0's length over on the other nodes; hands an error on. */
static int agree_size(struct shadow *f, int error)
{
    uint64_t size = 0;
    if (f->nodes == 1)
        return error;
    int first = f->rank == 0 ? amphi_mpiio_size(f->cache, &size) : 0;
    PMPI_Bcast(&size, 1, MPI_UINT64_T, 0, f->comm);
    if (f->local_rank == 0 && f->rank != 0)
        amphi_mpiio_agree_size(f->cache, size);
    return error ? error : first;
}

/* Writes everything, drops everything and lets the file system's length count, on all ranks. */
static int settle(struct shadow *f, bool stable)
{
    if (f->lender)
        return amphi_mpiio_settle_alone(f->cache, 1);
    /* All writes that came before on any rank are in the cache now. */
    agree(f, 0);
    int error = amphi_mpiio_flush(f->cache, (uint32_t)f->local_rank, (uint32_t)f->local_ranks);
    int late = amphi_mpiio_late_error(f->cache);
    error = agree(f, error > late ? error : late);
    if (!error && stable && f->local_rank == 0)
        error = amphi_mpiio_sync(f->cache);
    if (!error)
        error = amphi_mpiio_drop_clean(f->cache);
    error = agree(f, error);
    if (f->local_rank == 0)
        amphi_mpiio_clear_late_error(f->cache);
    /* No rank has a request under way. */
    if (f->local_rank == 0 && f->settings.group)
        amphi_mpiio_group_rejoin(f->cache);
    if (!error && f->rank == 0)
        error = amphi_mpiio_refresh_size(f->cache);
    return agree(f, agree_size(f, error));
}

/* The native library has the file alone from now on, as it is now: with its view and both pointers. All ranks call. */
void give_back(struct shadow *f)
{
    const struct view *view = &f->view;
    uint64_t shared = 0;
    int told = pointer_get(f, &shared);
    for (struct shadow *borrower; !f->lender && (borrower = shadow_borrower(f));)
        give_back(borrower);
    native_enter();
    int error = NATIVE(MPI_File_set_view)(f->handle, view->displacement, view->etype, view->filetype, view->datarep,
                                          MPI_INFO_NULL);
    error = error ? error : NATIVE(MPI_File_seek)(f->handle, f->position, MPI_SEEK_SET);
    /* A shared pointer that was never moved may cost the library a file of its own. */
    if (!error && !told && shared)
        error = NATIVE(MPI_File_seek_shared)(f->handle, (MPI_Offset)shared, MPI_SEEK_SET);
    if (!error && f->atomic)
        error = NATIVE(MPI_File_set_atomicity)(f->handle, 1);
    native_leave();
    if (error || told)
        fprintf(stderr, "amphi-mpiio: %s: a handle has lost its view or its pointers\n", f->path);
    shadow_remove(f);
    shadow_forget(f);
}

/* What the ranks agree on about a new view, the gravest first. It lies above all errno values, which tell that there
 * was no agreement. */
enum {
    VIEW_FOREIGN = 3 << 24, /* another representation than ours */
    VIEW_WRONG = 2 << 24,   /* with an error class: the types do not do */
    POINTER_USED = 1 << 24  /* the shared pointer may be elsewhere than at the start */
};

int MPI_File_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                      const char *datarep, MPI_Info info)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_set_view)(handle, displacement, etype, filetype, datarep, info);
    bool native = !strcasecmp(datarep, "native") || !strcasecmp(datarep, "internal");
    struct view view = {0};
    int class = native ? view_make(&view, displacement, etype, filetype, datarep, f->settings.writable != 0) : 0;
    int known = !native ? VIEW_FOREIGN : class ? VIEW_WRONG + class : f->pointer_used ? POINTER_USED : 0;
    bool may_cut = f->nodes == 1 && f->ranks > 1 && !f->lender;
    if (may_cut && !known && view_scattered(&view, (int64_t)f->settings.page_bytes))
        amphi_mpiio_want(f->cache, 0, 1);
    int all = agree(f, known);
    bool scattered = may_cut && amphi_mpiio_wanted(f->cache) > 0;
    if (all >= VIEW_WRONG || (all && all < POINTER_USED))
        view_free(&view);
    if (all && all < POINTER_USED)
        return fail_errno(handle, all);
    if (all >= VIEW_FOREIGN) {
        /* Other representations are the native library's; so is the file then, with its old view if the library does
         * not know the representation. */
        int error = settle(f, false);
        if (error)
            return fail_errno(handle, error);
        give_back(f);
        return NATIVE(MPI_File_set_view)(handle, displacement, etype, filetype, datarep, info);
    }
    if (all >= VIEW_WRONG)
        return fail(handle, class ? class : all - VIEW_WRONG);
    pthread_mutex_lock(&f->mutex);
    view_free(&f->view);
    f->view = view;
    f->scattered = scattered;
    f->position = 0;
    pthread_mutex_unlock(&f->mutex);
    if (all != POINTER_USED)
        return MPI_SUCCESS;
    int error = f->rank == 0 ? pointer_set(f, 0) : 0;
    f->pointer_used = false;
    return fail_errno(handle, agree(f, error));
}
BOTH_NAMES(MPI_File_set_view);

int MPI_File_get_view(MPI_File handle, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype,
                      char *datarep)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_view)(handle, displacement, etype, filetype, datarep);
    *displacement = f->view.displacement;
    strcpy(datarep, f->view.datarep);
    int error = type_keep(f->view.etype, etype);
    return fail(handle, error ? error : type_keep(f->view.filetype, filetype));
}
BOTH_NAMES(MPI_File_get_view);

int MPI_File_get_byte_offset(MPI_File handle, MPI_Offset offset, MPI_Offset *place)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_byte_offset)(handle, offset, place);
    if (offset < 0)
        return fail(handle, MPI_ERR_ARG);
    *place = view_byte(&f->view, offset * f->view.etype_size);
    return MPI_SUCCESS;
}
BOTH_NAMES(MPI_File_get_byte_offset);

/* Where a seek ends, in etypes; negative: before the view. */
static int64_t seek_target(struct shadow *f, MPI_Offset offset, int whence, int64_t now)
{
    uint64_t size = 0;
    int64_t from = 0, target;
    if (whence == MPI_SEEK_CUR) {
        from = now;
    } else if (whence == MPI_SEEK_END) {
        if (amphi_mpiio_size(f->cache, &size))
            return -1;
        int64_t data = view_data_before(&f->view, (int64_t)size), unit = f->view.etype_size;
        from = unit ? (data + unit - 1) / unit : 0;
    } else if (whence != MPI_SEEK_SET) {
        return -1;
    }
    return __builtin_add_overflow(from, offset, &target) ? -1 : target;
}

int MPI_File_seek(MPI_File handle, MPI_Offset offset, int whence)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_seek)(handle, offset, whence);
    pthread_mutex_lock(&f->mutex);
    int64_t target = seek_target(f, offset, whence, f->position);
    if (target >= 0)
        f->position = target;
    pthread_mutex_unlock(&f->mutex);
    return fail(handle, target < 0 ? MPI_ERR_ARG : MPI_SUCCESS);
}
BOTH_NAMES(MPI_File_seek);

int MPI_File_get_position(MPI_File handle, MPI_Offset *offset)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_position)(handle, offset);
    *offset = f->position;
    return MPI_SUCCESS;
}
BOTH_NAMES(MPI_File_get_position);

int MPI_File_seek_shared(MPI_File handle, MPI_Offset offset, int whence)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_seek_shared)(handle, offset, whence);
    agree(f, 0);
    int error = 0;
    if (f->rank == 0) {
        uint64_t now = 0;
        error = pointer_get(f, &now);
        int64_t target = error ? 0 : seek_target(f, offset, whence, (int64_t)now);
        if (target < 0)
            error = EINVAL;
        else if (!error)
            error = pointer_set(f, (uint64_t)target);
    }
    return fail_errno(handle, agree(f, error));
}
BOTH_NAMES(MPI_File_seek_shared);

int MPI_File_get_position_shared(MPI_File handle, MPI_Offset *offset)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_position_shared)(handle, offset);
    uint64_t value = 0;
    int error = pointer_get(f, &value);
    *offset = (MPI_Offset)value;
    return fail_errno(handle, error);
}
BOTH_NAMES(MPI_File_get_position_shared);

int MPI_File_get_size(MPI_File handle, MPI_Offset *size)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_size)(handle, size);
    uint64_t value = 0;
    int error = amphi_mpiio_size(f->cache, &value);
    *size = (MPI_Offset)value;
    return fail_errno(handle, error);
}
BOTH_NAMES(MPI_File_get_size);

int MPI_File_set_size(MPI_File handle, MPI_Offset size)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_set_size)(handle, size);
    int error = size < 0 ? EINVAL : f->settings.writable ? 0 : EROFS;
    if (f->lender)
        return fail_errno(handle, error ? error : amphi_mpiio_set_size_alone(f->cache, (uint64_t)size));
    error = agree(f, error);
    if (!error)
        error = settle(f, false);
    if (!error && f->rank == 0)
        error = amphi_mpiio_set_size(f->cache, (uint64_t)size);
    return fail_errno(handle, agree(f, agree_size(f, error)));
}
BOTH_NAMES(MPI_File_set_size);

int MPI_File_preallocate(MPI_File handle, MPI_Offset size)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_preallocate)(handle, size);
    int error = agree(f, size < 0 ? EINVAL : f->settings.writable ? 0 : EROFS);
    if (!error && f->lender)
        error = amphi_mpiio_allocate_alone(f->cache, (uint64_t)size);
    else if (!error && f->rank == 0)
        error = amphi_mpiio_allocate(f->cache, (uint64_t)size);
    return fail_errno(handle, agree(f, error));
}
BOTH_NAMES(MPI_File_preallocate);

int MPI_File_sync(MPI_File handle)
{
    struct shadow *f = shadow_find(handle);
    return f ? fail_errno(handle, settle(f, true)) : NATIVE(MPI_File_sync)(handle);
}
BOTH_NAMES(MPI_File_sync);

int MPI_File_set_atomicity(MPI_File handle, int flag)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_set_atomicity)(handle, flag);
    agree(f, 0);
    f->atomic = flag != 0;
    /* In atomic mode calls are atomic, whatever the hint says. */
    if (!f->lender)
        amphi_mpiio_relax(f->cache, f->settings.relaxed && !flag);
    agree(f, 0);
    return MPI_SUCCESS;
}
BOTH_NAMES(MPI_File_set_atomicity);

int MPI_File_get_atomicity(MPI_File handle, int *flag)
{
    struct shadow *f = shadow_find(handle);
    if (!f)
        return NATIVE(MPI_File_get_atomicity)(handle, flag);
    *flag = f->atomic;
    return MPI_SUCCESS;
}
BOTH_NAMES(MPI_File_get_atomicity);

int MPI_File_get_info(MPI_File handle, MPI_Info *info)
{
    struct shadow *f = shadow_find(handle);
    int error = NATIVE(MPI_File_get_info)(handle, info);
    return error || !f ? error : fail(handle, hints_write(*info, f));
}
BOTH_NAMES(MPI_File_get_info);

int MPI_File_set_info(MPI_File handle, MPI_Info info)
{
    /* The hints of the cache count at open only, which MPI allows; the native library may have others. */
    return NATIVE(MPI_File_set_info)(handle, info);
}
BOTH_NAMES(MPI_File_set_info);
