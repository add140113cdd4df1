/* What the engine's parts (engine.c, contexts.c, flight.c, ahead.c, uring.c, aio.c, threads.c, buffer.c, fault.c)
 * share.
 *
 * A batch is cut into pieces of at most FFFS_BLOCK. First every piece is tried with reads that never wait (hot). What
 * is not in the page cache is then left to the selected backend (cold), and what a backend leaves behind, for
 * whatever reason, to plain blocking reads: so a broken backend is slow, not wrong. */
#ifndef FFFS_ENGINE_H
#define FFFS_ENGINE_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fffs.h"

/* ---------------------------------------------------------------- pieces of a batch (engine.c) */

/* A piece's status until it is finished; no errno is positive. */
enum { FFFS_PENDING = 1 };

/* At most FFFS_BLOCK of one request. Owned by the batch; at any time one thread or one I/O in flight has it. */
typedef struct {
    uint8_t *dest;  /* room for length bytes, or NULL: the bytes are checked and dropped */
    int64_t offset; /* in the file */
    uint32_t length;
    uint32_t done; /* bytes read so far; crc covers exactly these */
    uint32_t crc;
    int32_t fd;
    int32_t status; /* FFFS_PENDING, 0 or -errno */
    uint32_t request;
    uint32_t check;  /* FFFS_CHECK_* */
    uint32_t around; /* as in the request */
    uint32_t align;  /* the same */
    int32_t direct_fd;
} fffs_piece;

/* Takes the result of one read of data (the bytes after piece->done): counts and checksums a positive one, finishes
 * the piece at its end, at the end of the file and at an error of the file itself. True when the piece is finished;
 * else it needs another read, or, after an error that may be the backend's, a plain one. The piece's owner. */
bool fffs_piece_read(fffs_piece *piece, int64_t result, const uint8_t *data);

static inline int64_t fffs_piece_offset(const fffs_piece *piece)
{
    return piece->offset + piece->done;
}

/* Lets the kernel begin to read the blocks around pieces, where these want it (ahead.c). Best sorted by file and
 * offset. */
void fffs_announce_blocks(fffs_piece *const *pieces, size_t count);

/* ---------------------------------------------------------------- reads in flight (flight.c) */

/* Reads in flight at most on one ring or AIO context: as many as keep a disk busy, and few enough for it to be set up
 * in tens of microseconds. */
enum { FFFS_DEPTH = 64 };

/* The most that reads past the page cache may want their places to be multiples of: what pooled memory is. */
enum { FFFS_ALIGN_MAX = 4096 };

static inline bool fffs_is_alignment(uint32_t align)
{
    return (align & (align - 1)) == 0 && align <= FFFS_ALIGN_MAX;
}

/* The most that one of them brings; longer pieces take several, one after another. */
enum { FFFS_DIRECT_MAX = 256 * 1024 };

/* One read being prepared or in flight. */
typedef struct {
    fffs_piece *piece;
    uint8_t *scratch; /* a pooled buffer of the slot's, where the piece has no dest */
    uint8_t *direct;  /* room in the flight's memory, where the piece is read past the page cache */
} fffs_slot;

/* The cold pieces of one batch on their way through one I/O context. Owned and used by one thread. */
typedef struct {
    fffs_piece **pieces; /* sorted by file and offset; not owned */
    size_t count, next;
    uint32_t free_count, again_count, scratch_count;
    uint8_t *direct;           /* pooled, when some piece is read past the page cache; or NULL */
    uint32_t room;             /* so much of it for each slot: for the longest piece, or FFFS_DIRECT_MAX */
    uint8_t free[FFFS_DEPTH];  /* slots nothing is in */
    uint8_t again[FFFS_DEPTH]; /* slots whose piece needs another read */
    fffs_slot slots[FFFS_DEPTH];
} fffs_flight;

void fffs_flight_open(fffs_flight *flight, fffs_piece **pieces, size_t count);

/* A slot whose piece is to be read next (from fffs_slot_data, fffs_slot_size bytes), or -1 when there is none just
 * now: then either something is in flight, or all is done. The slot is the caller's until one of the next three. */
int fffs_flight_next(fffs_flight *flight);

/* Nothing could be started for the slot: the next call of fffs_flight_next returns it again. */
void fffs_flight_again(fffs_flight *flight, int slot);

/* The read of a slot came back, with a count or -errno. */
void fffs_flight_landed(fffs_flight *flight, int slot, int64_t result);

/* The slot is free again; its piece, if not finished, stays pending for a plain read. Nothing of it is in flight. */
void fffs_flight_leave(fffs_flight *flight, int slot);

/* Gives back what the slots hold. Nothing may be in flight. */
void fffs_flight_close(fffs_flight *flight);

/* What a read past the page cache brings along in front of the bytes that are wanted. */
static inline uint32_t fffs_slot_skip(const fffs_slot *slot)
{
    return slot->direct != NULL ? (uint32_t)(fffs_piece_offset(slot->piece) % slot->piece->align) : 0;
}
static inline int fffs_slot_fd(const fffs_slot *slot)
{
    return slot->direct != NULL ? slot->piece->direct_fd : slot->piece->fd;
}
static inline uint8_t *fffs_slot_data(const fffs_slot *slot)
{
    if (slot->direct != NULL)
        return slot->direct;
    return slot->scratch != NULL ? slot->scratch : slot->piece->dest + slot->piece->done;
}
static inline uint32_t fffs_slot_size(const fffs_slot *slot)
{
    uint32_t rest = slot->piece->length - slot->piece->done, whole;

    if (slot->direct == NULL)
        return rest;
    whole = (rest + fffs_slot_skip(slot) + slot->piece->align - 1) / slot->piece->align * slot->piece->align;
    return whole < FFFS_DIRECT_MAX ? whole : FFFS_DIRECT_MAX;
}
static inline int64_t fffs_slot_offset(const fffs_slot *slot)
{
    return fffs_piece_offset(slot->piece) - fffs_slot_skip(slot);
}

/* ---------------------------------------------------------------- I/O contexts (contexts.c) */

/* A ring or an AIO context: the head of a backend's own structure. Checked out by one batch at a time. */
typedef struct fffs_context {
    struct fffs_context *next, *previous; /* among all of the pool, idle or not: a forked child must find them */
    struct fffs_context *next_idle;
} fffs_context;

/* The asynchronous backends' interface: constants, and one pool per backend. */
typedef struct {
    const char *name;
    int (*open)(fffs_context **context);  /* 0 or -errno; the caller owns the new context */
    void (*close)(fffs_context *context); /* frees it; nothing is in flight */
    /* After fork, in the child: frees what the child inherited of it and leaves the parent's alone. */
    void (*forget)(fffs_context *context);
    /* Reads the pieces, each until it is finished or left. When it returns nothing is in flight.
     * False: the context is in an unknown state, and must be closed. */
    bool (*run)(fffs_context *context, fffs_piece **pieces, size_t count);
} fffs_backend;

extern const fffs_backend fffs_uring, fffs_aio;

/* Whether one of them is selected, and not "pread". Any thread. */
bool fffs_backend_selected(void);

/* Reads pieces, the caller's, through a context of the selected backend, each until it is finished or left. 0; or
 * -errno when there is no context, and then nothing was read. Any thread. */
int fffs_backend_run(fffs_piece **pieces, size_t count);

/* ---------------------------------------------------------------- helper threads (threads.c) */

/* What helpers are wanted for; each kind has a limit of its own on how many threads may work at it in a process. */
enum { FFFS_HOT = 0, FFFS_COLD = 1 };

/* Work that any number of threads may share. On its caller's stack. */
typedef struct fffs_job {
    void (*run)(void *work); /* called at most once by each helper that joins; returns when no work is left */
    void *work;              /* the caller's */
    struct fffs_job *next;
    int kind, reserved, wanted; /* under the pool's lock */
    _Atomic int active;         /* helpers inside run */
} fffs_job;

/* How many helpers are worth waking for so many cached pieces and bytes. */
int fffs_useful_helpers(size_t pieces, uint64_t bytes);

/* Publishes a job and wakes up to that many helpers, fewer where there are no more, or none. Never waits. Any thread;
 * the same thread must retire the job. */
void fffs_job_offer(fffs_job *job, int kind, void (*run)(void *work), void *work, int helpers);

/* Withdraws the job, and waits for the helpers that had joined. Afterwards nobody looks at it. */
void fffs_job_retire(fffs_job *job);

/* The limit for FFFS_HOT (caller included) is fffs_engine_set_threads; this is helpers for FFFS_COLD. */
enum { FFFS_COLD_HELPERS = 31 };

/* Nanoseconds on a clock that only goes forward. */
int64_t fffs_now(void);

/* Helper threads alive. */
int fffs_threads_alive(void);

/* ---------------------------------------------------------------- injected faults (fault.c) */

/* A bit for each kind that is armed: 1 << FFFS_FAULT_*. */
extern _Atomic uint32_t fffs_faults_armed;

/* Counts an operation of an armed kind, and holds it if it is to stall; true when it is one that must give *result.
 * Any thread. */
bool fffs_fault_strikes(int kind, int32_t *result);

/* Called before each operation that can be made to fail. */
static inline bool fffs_fault(int kind, int32_t *result)
{
    uint32_t armed = atomic_load_explicit(&fffs_faults_armed, memory_order_relaxed);

    if (__builtin_expect((armed & 1U << kind) == 0, 1))
        return false;
    return fffs_fault_strikes(kind, result);
}

/* The result of a read that was made, as an armed fault wants it: an error, or no more than so many bytes. */
static inline int64_t fffs_fault_completion(int kind, int64_t result)
{
    int32_t wanted;

    if (!fffs_fault(kind, &wanted))
        return result;
    return wanted < 0 || result > wanted ? wanted : result;
}

/* pread(2), and preadv2(2) with RWF_NOWAIT; -errno in the result. */
int64_t fffs_pread(int fd, void *data, size_t size, int64_t offset);
int64_t fffs_pread_nowait(int fd, void *data, size_t size, int64_t offset);

/* What a file's own error, from a read of it, is to our callers, to whom these two mean something else. A block
 * device says ENODATA for a bad sector. */
static inline int fffs_file_error(int64_t error)
{
    return error == -ENODATA || error == -EBADMSG ? -EIO : (int)error;
}

/* malloc, and calloc of one block. The caller frees it with free. */
void *fffs_allocate(size_t size);
void *fffs_allocate_zeroed(size_t count, size_t size);

#endif
