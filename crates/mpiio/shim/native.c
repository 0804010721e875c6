/* The MPI library's own functions, and the table of cached files by native handle. */
#include "shim.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BUCKETS 64

static struct shadow *table[BUCKETS];
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static _Thread_local int inside_native;

void *native_function(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "amphi-mpiio: the MPI library has no function %s\n", name);
        abort();
    }
    return found;
}

static size_t bucket(MPI_File handle)
{
    return ((uintptr_t)handle >> 4) % BUCKETS;
}

/* The library may open and close files of its own while it serves a call of ours. */
void native_enter(void)
{
    inside_native++;
}

void native_leave(void)
{
    inside_native--;
}

struct shadow *shadow_find(MPI_File handle)
{
    if (inside_native || handle == MPI_FILE_NULL)
        return NULL;
    pthread_rwlock_rdlock(&table_lock);
    struct shadow *shadow = table[bucket(handle)];
    while (shadow && shadow->handle != handle)
        shadow = shadow->next;
    pthread_rwlock_unlock(&table_lock);
    return shadow;
}

void shadow_insert(struct shadow *shadow)
{
    pthread_rwlock_wrlock(&table_lock);
    struct shadow **place = &table[bucket(shadow->handle)];
    shadow->next = *place;
    *place = shadow;
    pthread_rwlock_unlock(&table_lock);
}

void shadow_remove(struct shadow *shadow)
{
    pthread_rwlock_wrlock(&table_lock);
    struct shadow **place = &table[bucket(shadow->handle)];
    while (*place && *place != shadow)
        place = &(*place)->next;
    if (*place)
        *place = shadow->next;
    pthread_rwlock_unlock(&table_lock);
}

void shadow_each(void (*visit)(struct shadow *))
{
    pthread_rwlock_rdlock(&table_lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct shadow *shadow = table[i]; shadow; shadow = shadow->next)
            visit(shadow);
    pthread_rwlock_unlock(&table_lock);
}

static struct shadow *find_where(bool (*wanted)(const struct shadow *, const struct shadow *), const struct shadow *of)
{
    struct shadow *found = NULL;
    pthread_rwlock_rdlock(&table_lock);
    for (size_t i = 0; i < BUCKETS && !found; i++)
        for (found = table[i]; found && !wanted(found, of);)
            found = found->next;
    pthread_rwlock_unlock(&table_lock);
    return found;
}

static bool lends(const struct shadow *lender, const struct shadow *borrower)
{
    const amphi_settings *has = &lender->settings, *wants = &borrower->settings;
    return !lender->lender && lender->device == borrower->device && lender->inode == borrower->inode &&
           has->readable >= wants->readable && has->writable >= wants->writable;
}

/* A handle of this process that caches the file that a new one is for, and may do with it what that one may. */
struct shadow *shadow_lender(const struct shadow *borrower)
{
    return find_where(lends, borrower);
}

static bool borrows(const struct shadow *borrower, const struct shadow *lender)
{
    return borrower->lender == lender;
}

/* A handle that uses this one's cache. */
struct shadow *shadow_borrower(const struct shadow *lender)
{
    return find_where(borrows, lender);
}

/* Calls the error handler of the file and returns the class, which is a valid error code. */
int fail(MPI_File handle, int class)
{
    if (class != MPI_SUCCESS)
        PMPI_File_call_errhandler(handle, class);
    return class;
}

static int class_of(int error)
{
    switch (error) {
    case 0:
        return MPI_SUCCESS;
    case ENOSPC:
        return MPI_ERR_NO_SPACE;
    case EDQUOT:
        return MPI_ERR_QUOTA;
    case EACCES:
    case EPERM:
    case EBADF:
        return MPI_ERR_ACCESS;
    case EROFS:
        return MPI_ERR_READ_ONLY;
    case EINVAL:
        return MPI_ERR_ARG;
    case ENOMEM:
        return MPI_ERR_NO_MEM;
    case EOWNERDEAD:
        fprintf(stderr, "amphi-mpiio: a rank of the job ended while it had a cached file open\n");
        return MPI_ERR_IO;
    default:
        return MPI_ERR_IO;
    }
}

int fail_errno(MPI_File handle, int error)
{
    return fail(handle, class_of(error));
}

/* The largest errno value of all ranks; a barrier, too. */
int worst(MPI_Comm comm, int error)
{
    int all = error;
    if (PMPI_Allreduce(&error, &all, 1, MPI_INT, MPI_MAX, comm) != MPI_SUCCESS)
        return error ? error : EIO;
    return all;
}
