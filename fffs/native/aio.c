/* The Linux AIO backend, for kernels and sandboxes without io_uring: the raw system calls of linux/aio_abi.h.
 *
 * The kernel overlaps AIO reads only on files opened with O_DIRECT. On others io_submit blocks until the data is read.
 * So posix_fadvise announces the next pieces, and the reads that the kernel starts for that overlap instead. */
#include "aio.h"
#include "fault.h"
#include "flight.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Reads submitted at a time. On buffered files, also the reads between two rounds of checksums. */
enum { GROUP = 4 };

/* How far ahead pieces are announced: enough for a deep queue, but not so much that the first ones are evicted. */
enum { AHEAD_PIECES = 96, AHEAD_BYTES = 32 << 20 };

/* System calls in a row that may be interrupted before the context is given up. */
enum { STALL_LIMIT = 1000 };

struct aio {
    struct fffs_context head; /* must be first: the pool knows only this member */
    aio_context_t id;         /* 0: destroyed */
};

/* One batch on one context. */
struct voyage {
    struct aio *context;
    struct fffs_flight flight;
    uint32_t in_flight, stalls;
    size_t told;                    /* pieces announced */
    uint64_t told_bytes;            /* of pieces announced and not yet taken */
    struct iocb blocks[FFFS_DEPTH]; /* by slot */
};

/* ---------------------------------------------------------------- the context */

static int open_context(struct fffs_context **context)
{
    struct aio *new = fffs_allocate(sizeof *new);

    if (!new)
        return -ENOMEM;
    int32_t fault;
    int failed = 0;
    new->id = 0;
    if (fffs_fault(FFFS_FAULT_AIO_SETUP, &fault))
        failed = fault < 0 ? fault : -EIO;
    else if (syscall(SYS_io_setup, FFFS_DEPTH, &new->id))
        failed = -errno; /* EAGAIN: all contexts of a machine share /proc/sys/fs/aio-max-nr, 65536 by default */
    if (failed) {
        free(new);
        return failed;
    }
    *context = &new->head;
    return 0;
}

/* Waits for the reads in flight: io_destroy cannot cancel reads of files. */
static void destroy(struct aio *context)
{
    if (context->id)
        syscall(SYS_io_destroy, context->id);
    context->id = 0;
}

static void close_context(struct fffs_context *context)
{
    destroy((struct aio *)context);
    free(context);
}

/* A child inherits no AIO context, only the ring's pages. These stay mapped: only the kernel knows their size. */
static void forget_context(struct fffs_context *context)
{
    free(context);
}

/* ---------------------------------------------------------------- a batch */

/* Announces the next pieces, so that the kernel begins to read them. */
static void tell_ahead(struct voyage *self)
{
    const struct fffs_flight *flight = &self->flight;

    if (self->told < flight->next)
        self->told = flight->next;
    while (self->told < flight->count && self->told < flight->next + AHEAD_PIECES && self->told_bytes < AHEAD_BYTES) {
        const struct fffs_piece *piece = flight->pieces[self->told++];

        /* Only advice: the read works without it. */
        if (piece->align == 0)
            (void)posix_fadvise(piece->fd, fffs_piece_offset(piece), piece->length - piece->done,
                                POSIX_FADV_WILLNEED);
        self->told_bytes += piece->length;
    }
}

/* Fills control blocks for up to GROUP reads, and returns their number. */
static int fill(struct voyage *self, struct iocb **group)
{
    int count = 0, slot;

    tell_ahead(self);
    while (count < GROUP && (slot = fffs_flight_next(&self->flight)) >= 0) {
        const struct fffs_slot *next = &self->flight.slots[slot];
        struct iocb *block = &self->blocks[slot];

        memset(block, 0, sizeof *block);
        block->aio_data = (uint64_t)slot;
        block->aio_lio_opcode = IOCB_CMD_PREAD;
        block->aio_fildes = (uint32_t)fffs_slot_fd(next);
        block->aio_buf = (uint64_t)(uintptr_t)fffs_slot_data(next);
        block->aio_nbytes = fffs_slot_size(next);
        block->aio_offset = fffs_slot_offset(next);
        self->told_bytes -= self->told_bytes < next->piece->length ? self->told_bytes : next->piece->length;
        group[count++] = block;
    }
    return count;
}

static long call_submit(const struct voyage *self, struct iocb **group, int count)
{
    int32_t fault;

    if (fffs_fault(FFFS_FAULT_AIO_SUBMIT, &fault))
        return fault;
    long result = syscall(SYS_io_submit, self->context->id, (long)count, group);
    return result < 0 ? -errno : result;
}

static long call_getevents(const struct voyage *self, bool wait, struct io_event *events)
{
    int32_t fault;

    if (fffs_fault(FFFS_FAULT_AIO_WAIT, &fault))
        return fault < 0 ? fault : 0;
    struct timespec at_once = {0, 0};
    long result =
        syscall(SYS_io_getevents, self->context->id, wait ? 1L : 0L, (long)GROUP, events, wait ? NULL : &at_once);
    return result < 0 ? -errno : result;
}

/* Submits a group. What the kernel does not accept is left to plain reads, which also find the cause: an error of
 * io_submit may concern the first block's file or the context. */
static void submit(struct voyage *self, struct iocb **group, int count)
{
    int done = 0;

    while (done < count) {
        long accepted = call_submit(self, group + done, count - done);

        if (accepted > 0) {
            self->in_flight += (uint32_t)accepted;
            done += (int)accepted;
        } else {
            fffs_flight_leave(&self->flight, (int)group[done++]->aio_data);
        }
    }
}

/* Handles the available events, and waits for one if wait is set. Returns false if waiting does not work. */
static bool reap(struct voyage *self, bool wait)
{
    struct io_event events[GROUP];
    long result = call_getevents(self, wait, events);

    if (result <= 0)
        return result == 0 || (result == -EINTR && self->stalls++ < STALL_LIMIT);
    self->stalls = 0;
    for (long i = 0; i < result; i++) {
        self->in_flight--;
        fffs_flight_landed(&self->flight, (int)events[i].data,
                           fffs_fault_completion(FFFS_FAULT_AIO_COMPLETE, events[i].res));
    }
    return true;
}

static bool run_context(struct fffs_context *context, struct fffs_piece **pieces, size_t count)
{
    struct iocb *group[GROUP];
    struct voyage self = {.context = (struct aio *)context};
    bool works = true;

    fffs_flight_open(&self.flight, pieces, count);
    for (;;) {
        int filled = fill(&self, group);

        if (filled > 0)
            submit(&self, group, filled);
        else if (self.in_flight == 0)
            break;
        works = self.in_flight == 0 || reap(&self, filled == 0);
        if (!works)
            break;
    }
    /* Waiting for reads in flight failed: io_destroy waits for all. Their pieces stay pending, and are read again. */
    if (self.in_flight > 0)
        destroy(self.context);
    fffs_flight_close(&self.flight);
    return works;
}

const struct fffs_backend fffs_aio = {"aio", open_context, close_context, forget_context, run_context};
