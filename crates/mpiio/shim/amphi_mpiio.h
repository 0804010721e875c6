/* The C interface of the cache (src/capi.rs). Functions return 0 or an errno value unless they say otherwise. */
#ifndef AMPHI_MPIIO_H
#define AMPHI_MPIIO_H
#include <stddef.h>
#include <stdint.h>

typedef struct amphi_file amphi_file;

/* A range of the file; ranges of a request ascend and do not overlap. */
typedef struct {
    uint64_t offset, length;
} amphi_extent;

/* Where the leader of a node listens, and the rank of the caller's proxy there. */
typedef struct {
    char host[64];
    uint32_t port, rank; /* with messages, port is the leader's rank in the communicator */
    uint64_t nonce;
} amphi_leader;

/* Equal on all ranks of a node but for `rank`; `clients` are the ranks of other nodes. */
typedef struct {
    uint32_t ranks, rank, clients, readable, writable, direct, group, relaxed, references;
    uint64_t page_bytes, limit_bytes, bypass_bytes, stream_bytes, run_bytes, idle_ms, prefetch_bytes, copies,
        merges, balance;
} amphi_settings;

/* Messages between the ranks of a communicator. They come in order from one rank with one tag. */
typedef struct {
    void *context;
    /* From anybody if `from` is negative. Returns at once; `source` is negative when there is none. */
    int (*probe)(void *context, int32_t from, int32_t tag, int32_t *source, uint64_t *bytes);
    int (*receive)(void *context, int32_t from, int32_t tag, void *to, uint64_t bytes); /* one that probe has shown */
    int (*send)(void *context, int32_t to, int32_t tag, const void *from, uint64_t bytes);
} amphi_messages;

/* Where rank 0 has the shared memory; plain numbers to be broadcast. */
typedef struct {
    int32_t pid, fd;
    uint64_t nonce;
} amphi_token;

/* How a collective call is cut into rounds (src/rounds.rs); none: each rank goes its own way. */
typedef struct {
    uint64_t touched[2], first, window_bytes, count;
} amphi_rounds;

/* The part of a rank in a meeting. */
typedef struct {
    uint32_t round, pauses;
} amphi_arrival;

uint64_t amphi_mpiio_page_bytes(const char *path, int readable); /* 0: the file cannot be cached */
uint64_t amphi_mpiio_stripe_bytes(const char *path);             /* 0: not striped, as far as one can tell */
int amphi_mpiio_identity(const char *path, uint64_t identity[2]); /* device and inode */
int amphi_mpiio_is_coherent(const char *path);                   /* nodes see each other's writes at once */
uint64_t amphi_mpiio_limit(uint64_t limit_bytes, uint32_t ranks);
int amphi_mpiio_open(const char *path, const amphi_settings *settings, amphi_token *token, amphi_file **file);
int amphi_mpiio_serve(const amphi_file *file, int loopback, uint32_t *port, uint64_t *nonce);
int amphi_mpiio_connect(const amphi_file *file, uint32_t node, uint32_t nodes, const amphi_leader *leaders,
                        uint32_t *failed); /* the leader that could not be reached */
int amphi_mpiio_serve_messages(const amphi_file *file, const amphi_messages *messages, const int32_t *leaders,
                               uint32_t nodes, uint64_t *nonce);
int amphi_mpiio_connect_messages(const amphi_file *file, const amphi_messages *messages, uint32_t node, uint32_t nodes,
                                 const amphi_leader *leaders, uint32_t *failed);
void amphi_mpiio_part(const amphi_file *file);
void amphi_mpiio_see_off(const amphi_file *file);
int amphi_mpiio_group_join(const amphi_file *file, uint64_t group);
void amphi_mpiio_group_rejoin(const amphi_file *file);
void amphi_mpiio_relax(const amphi_file *file, int on);
/* Meetings of all ranks of the file, which are of one node: a barrier with a maximum. */
void amphi_mpiio_arrive(const amphi_file *file, int value, amphi_arrival *arrival);
int amphi_mpiio_await(const amphi_file *file, amphi_arrival *arrival, int *largest); /* EAGAIN: not all have come */
void amphi_mpiio_want(const amphi_file *file, uint64_t start, uint64_t end); /* ahead of a meeting */
uint64_t amphi_mpiio_wanted(const amphi_file *file);                        /* bytes from the first to the last one */
void amphi_mpiio_cut(const amphi_file *file, amphi_rounds *rounds);
void amphi_mpiio_bring(const amphi_file *file, uint64_t number);
uint64_t amphi_mpiio_before(const amphi_file *file); /* what the ranks below brought, in all */
void amphi_mpiio_say(const amphi_file *file, uint64_t number);
uint64_t amphi_mpiio_said(const amphi_file *file);
void amphi_mpiio_close(amphi_file *file);
int amphi_mpiio_write(const amphi_file *file, const amphi_extent *extents, size_t count, const void *memory);
int amphi_mpiio_read(const amphi_file *file, const amphi_extent *extents, size_t count, void *memory, uint64_t *done);
int amphi_mpiio_flush(const amphi_file *file, uint32_t share, uint32_t shares);
int amphi_mpiio_flush_parts(const amphi_file *file, uint64_t start, uint64_t end, uint32_t share, uint32_t shares);
int amphi_mpiio_settle_alone(const amphi_file *file, int stable);
int amphi_mpiio_set_size_alone(const amphi_file *file, uint64_t size);
int amphi_mpiio_allocate_alone(const amphi_file *file, uint64_t size);
int amphi_mpiio_save(const amphi_file *file);           /* EBUSY: in the middle of a call */
int amphi_mpiio_end(const amphi_file *file, int flush); /* EBUSY: in the middle of a call */
int amphi_mpiio_drop_clean(const amphi_file *file);
int amphi_mpiio_discard(const amphi_file *file);
int amphi_mpiio_sync(const amphi_file *file);
int amphi_mpiio_size(const amphi_file *file, uint64_t *size);
void amphi_mpiio_agree_size(const amphi_file *file, uint64_t size);
int amphi_mpiio_set_size(const amphi_file *file, uint64_t size);
int amphi_mpiio_allocate(const amphi_file *file, uint64_t size);
int amphi_mpiio_refresh_size(const amphi_file *file);
int amphi_mpiio_pointer_add(const amphi_file *file, uint64_t add, uint64_t *before);
int amphi_mpiio_pointer_set(const amphi_file *file, uint64_t value);
int amphi_mpiio_pointer(const amphi_file *file, uint64_t *value);
int amphi_mpiio_late_error(const amphi_file *file);
void amphi_mpiio_clear_late_error(const amphi_file *file);
uint32_t amphi_mpiio_stat_count(void);
void amphi_mpiio_stat_name(uint32_t index, char *name, size_t room);
void amphi_mpiio_stats(const amphi_file *file, uint64_t *values);
void amphi_mpiio_stats_of_all(const amphi_file *file, uint64_t *values); /* of the node, as of each rank's last call */
#endif
