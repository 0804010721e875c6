/* What the parts of the shim share.
 *
 * The shim stands between a program and its MPI library: it defines the MPI_File_* functions that touch data, pointers,
 * views or lengths, under both of their names (MPI_x and PMPI_x, since Fortran bindings call either). A file that is
 * cached has a `struct shadow`, found by the native handle, which stays the program's handle. A file without one is
 * the native library's alone: every rank decides the same way, so cached and native access never mix.
 *
 * Parts: native.c (the library's own functions, the table of handles), flatten.c (derived types), hints.c, open.c
 * (open, close, end of the program), nodes.c (which ranks share a node, and how the nodes are connected), meet.c (how
 * the ranks agree), messages.c (messages of the library between nodes), access.c (reads and writes), collective.c (those
 * of all ranks together), state.c (views, pointers, lengths, sync), data.c (the entry points of data functions). */
#ifndef AMPHI_SHIM_H
#define AMPHI_SHIM_H
#define _GNU_SOURCE
#include "amphi_mpiio.h"
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

/* Gives a function its profiling name, too. */
#define BOTH_NAMES(name) __typeof__(name) P##name __attribute__((alias(#name)))
/* The library's own function of this name. */
#define NATIVE(name) ((__typeof__(&P##name))native_function("P" #name))

/* A range of the typemap of a datatype, relative to its origin. */
struct segment {
    int64_t offset, length;
};

/* The typemap of a datatype in the order of its elements, neighbours merged. */
struct typemap {
    struct segment *segments;
    size_t count, room;
    int64_t size;   /* bytes of data */
    int64_t extent; /* distance of two elements */
};

/* Most ranges of one typemap; what needs more is refused. */
#define TYPEMAP_SEGMENTS ((size_t)1 << 24)

struct view {
    MPI_Datatype etype, filetype; /* ours: duplicates of derived types */
    int64_t displacement, etype_size;
    struct typemap map;
    int64_t *before; /* bytes of data before each segment */
    char datarep[MPI_MAX_DATAREP_STRING];
    bool ascends; /* later data lies behind in the file, over tiles, too */
};

/* The ranges of a request, growing; a request has `most` of them unless it has to be one. */
struct extents {
    amphi_extent *list;
    size_t count, room, most;
};

/* Walks through the data of a view. */
struct cursor {
    const struct view *view;
    int64_t tile;
    size_t segment;
    int64_t inside;
};

/* Walks through the memory of a call. */
struct memory {
    const struct typemap *map;
    char *origin;
    int64_t element;
    size_t segment;
    int64_t inside;
};

/* How the file is cut for collective calls; not at all: each rank goes its own way. */
enum domain { DOMAIN_NONE, DOMAIN_CYCLIC, DOMAIN_EVEN, DOMAIN_GROUP_CYCLIC, DOMAIN_AUTOMATIC };

/* How ranks reach other nodes. Automatic: by sockets, or by messages where these do not reach. */
enum transport { TRANSPORT_AUTOMATIC, TRANSPORT_SOCKETS, TRANSPORT_MPI, TRANSPORT_MEMORY };

struct hints {
    int domain, domain_group, transport;
    int cache, direct; /* 0 disable, 1 enable, 2 automatic */
    int group, relaxed, migration, copies, merges, balance;
    int64_t page_bytes, limit_bytes, bypass_bytes, stream_bytes, flush_bytes, ranks_per_node, idle_ms,
        prefetch_bytes;
};

/* What becomes of pages that are dirty in many parts: they leave as they are; as one part, with what is read between;
 * so after a collective call in rounds, which the library would do so, too. */
enum merges { MERGE_NEVER, MERGE_ALWAYS, MERGE_IN_ROUNDS };

struct shadow {
    struct shadow *next; /* in the table */
    MPI_File handle;
    MPI_Comm comm; /* ours; none where the ranks need no messages: on one node, unless they exchange data (collective.c) */
    pid_t process; /* the one that opened it */
    int rank, ranks, amode;
    /* A handle of one rank on a file that another handle of this process caches uses that one's cache. Its own are the
     * view and both pointers. */
    struct shadow *lender;
    int64_t own_pointer; /* its shared pointer, which it shares with nobody */
    dev_t device;
    ino_t inode;
    /* The first rank of a node is its leader. */
    int node, nodes, local_rank, local_ranks;
    bool atomic;
    bool reports; /* somebody wants the statistics at close */
    enum domain domain;
    int domain_group;       /* ranks of a group of group-cyclic domains */
    int *of_node, *by_node; /* the ranks by node (collective.c) */
    enum transport transport; /* in use: memory on one node */
    const char *transport_reason; /* why it is not what was asked for; NULL: it is */
    struct mail *mail;        /* with messages */
    char *path;
    amphi_file *cache;
    amphi_settings settings;
    struct view view;
    bool scattered;      /* all on one node, of which some have views of small pieces: collective calls may be cut */
    amphi_rounds rounds; /* as of the last such call */
    int64_t position; /* individual pointer, in etypes */
    bool pointer_used; /* this rank has moved the shared pointer since the last view */
    /* The one split collective operation under way. */
    bool split;
    int64_t split_bytes;
    pthread_mutex_t mutex; /* view, pointers */
};

enum direction { READ, WRITE };
enum pointer { EXPLICIT, INDIVIDUAL, SHARED, ORDERED };
/* Whether all ranks are in the same call and wait for each other. */
enum company { ONE_RANK, ALL_RANKS };

/* native.c */
void *native_function(const char *name);
struct shadow *shadow_find(MPI_File handle);
void shadow_insert(struct shadow *shadow);
void shadow_remove(struct shadow *shadow);
void shadow_each(void (*visit)(struct shadow *));
struct shadow *shadow_lender(const struct shadow *borrower);
struct shadow *shadow_borrower(const struct shadow *lender);
void native_enter(void);
void native_leave(void);
int fail(MPI_File handle, int class);
int fail_errno(MPI_File handle, int error);
int worst(MPI_Comm comm, int error);

/* flatten.c */
int typemap_of(MPI_Datatype type, struct typemap *map); /* MPI_SUCCESS or an error class */
void typemap_free(struct typemap *map);
bool typemap_contiguous(const struct typemap *map);
bool type_is_named(MPI_Datatype type);

/* hints.c */
void hints_read(MPI_Info info, struct hints *hints);
int hints_write(MPI_Info info, const struct shadow *shadow);
const char *transport_name(enum transport transport);

/* messages.c */
struct mail *mail_open(MPI_Comm comm);
const amphi_messages *mail_table(const struct mail *mail);
uint64_t mail_sent(struct mail *mail);
void mail_close(struct mail *mail);
void mail_free(struct mail *mail);
bool has_threads(void);

/* nodes.c */
void *must_alloc(struct shadow *f, size_t bytes);
uint64_t host_id(void);
int find_nodes(struct shadow *f, MPI_Comm comm, int ranks_per_node, bool one_host, int *first);
int serve_nodes(struct shadow *f, const int *first, bool one_host, amphi_leader *mine);
int connect_nodes(struct shadow *f, const int *first, const amphi_leader *all);

/* meet.c */
int agree(struct shadow *f, int value);
int ordered_place(struct shadow *f, int64_t etypes, int64_t *place);

/* open.c */
int finish_init(int error);
void shadow_flush_alone(struct shadow *shadow);
void shadow_forget(struct shadow *shadow);

/* state.c */
int view_set_default(struct view *view);
void give_back(struct shadow *borrower);
int pointer_add(struct shadow *shadow, uint64_t add, uint64_t *before);
int pointer_set(struct shadow *shadow, uint64_t value);
int pointer_get(struct shadow *shadow, uint64_t *value);
void view_free(struct view *view);
size_t view_segment(const struct view *view, int64_t rest);
int64_t view_byte(const struct view *view, int64_t data_byte);
bool view_scattered(const struct view *view, int64_t page_bytes);
int64_t view_data_before(const struct view *view, int64_t file_byte);

/* access.c */
int access_data(struct shadow *f, enum direction direction, enum pointer pointer, enum company company,
                MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type, int64_t *bytes);
struct cursor cursor_at(const struct view *view, int64_t data_byte);
int cursor_take(struct cursor *cursor, int64_t bytes, bool whole, struct extents *extents, int64_t *taken);
void memory_copy(struct memory *memory, char *piece, int64_t bytes, enum direction direction);
void status_set(MPI_Status *status, int64_t bytes);
int request_done(int64_t bytes, MPI_Request *request);

/* collective.c */
int move_together(struct shadow *f, enum direction direction, int64_t data_byte, const struct typemap *map,
                  char *origin, int64_t bytes, int64_t *done);
#endif
