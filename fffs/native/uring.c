/* The io_uring backend: a ring for each slice of a batch, FFFS_DEPTH reads in flight, checksums as reads complete. */
#include "uring.h"
#include "fault.h"
#include "flight.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>

/* Headers before liburing 2.2 lack it. Kernels that do not know it return -EINVAL. */
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif

/* Completions handled before freed slots are filled again: the device's queue stays full during checksums. */
enum { BURST = 8 };

/* Reads submitted in one system call. The kernel takes 20 to 40 us to prepare one of 100 KiB, and gives the device
 * none before it has prepared all of a call (up to 32). An idle disk would stay idle meanwhile. */
enum { GROUP = 4 };

/* System calls in a row that may fail with EAGAIN, EBUSY or EINTR before the ring is given up. */
enum { STALL_LIMIT = 1000 };

struct uring {
    struct fffs_context head; /* must be first: the pool knows only this member */
    struct io_uring ring;
};

/* One batch on one ring. */
struct voyage {
    struct io_uring *ring;
    struct fffs_flight flight;
    uint32_t queued;    /* submission entries that the kernel has not accepted yet */
    uint32_t in_flight; /* accepted, with completions not yet seen */
    uint32_t stalls;    /* failed system calls since the last progress */
};

static void nap(void)
{
    const struct timespec moment = {0, 100000};

    nanosleep(&moment, NULL);
}

/* ---------------------------------------------------------------- the context */

/* Whether reads are supported (Linux 5.6). Older kernels complete each with -EINVAL. */
static bool can_read(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ);

    io_uring_free_probe(probe);
    return can;
}

static int open_ring(struct fffs_context **context)
{
    struct uring *new = fffs_allocate(sizeof *new);

    if (!new)
        return -ENOMEM;
    int32_t fault;
    int failed;
    if (fffs_fault(FFFS_FAULT_URING_SETUP, &fault)) {
        failed = fault < 0 ? fault : -EIO;
    } else {
        /* Since Linux 5.19 completions need not interrupt this thread, which enters the kernel to wait for them
         * anyway. The flags for a single submitter are not possible, because threads use a ring in turn. */
        failed = io_uring_queue_init(FFFS_DEPTH, &new->ring, IORING_SETUP_COOP_TASKRUN);
        if (failed == -EINVAL)
            failed = io_uring_queue_init(FFFS_DEPTH, &new->ring, 0);
    }
    if (!failed && !can_read(&new->ring)) {
        io_uring_queue_exit(&new->ring);
        failed = -EOPNOTSUPP;
    }
    if (failed) {
        free(new);
        return failed;
    }
    *context = &new->head;
    return 0;
}

/* Also used in a forked child: the ring belongs to the open file, and works as long as the parent has it open. The
 * parent's threads submitted its reads, which complete there. */
static void close_ring(struct fffs_context *context)
{
    struct uring *closed = (struct uring *)context;

    io_uring_queue_exit(&closed->ring);
    free(closed);
}

/* ---------------------------------------------------------------- a batch */

/* Writes submission entries for the next group. Returns false if there are no more pieces, or no room for them. */
static bool fill(struct voyage *self)
{
    while (self->queued < GROUP) {
        int slot = fffs_flight_next(&self->flight);

        if (slot < 0)
            return false;
        const struct fffs_slot *next = &self->flight.slots[slot];
        int32_t fault;
        struct io_uring_sqe *entry =
            fffs_fault(FFFS_FAULT_URING_GET_SQE, &fault) ? NULL : io_uring_get_sqe(self->ring);

        if (!entry) {
            fffs_flight_again(&self->flight, slot);
            return false;
        }
        io_uring_prep_read(entry, fffs_slot_fd(next), fffs_slot_data(next), fffs_slot_size(next),
                           (uint64_t)fffs_slot_offset(next));
        entry->user_data = (uint64_t)slot;
        self->queued++;
    }
    return true;
}

/* Submits what is queued; with wait, waits for a completion if none is there. Returns false if that does not work. */
static bool submit(struct voyage *self, bool wait)
{
    unsigned wanted = wait && io_uring_cq_ready(self->ring) == 0 ? 1 : 0;
    int32_t fault;

    if (wanted == 0 && self->queued == 0)
        return true;
    int result = fffs_fault(FFFS_FAULT_URING_SUBMIT, &fault) ? fault : io_uring_submit_and_wait(self->ring, wanted);
    if (result >= 0) {
        uint32_t accepted = (uint32_t)result < self->queued ? (uint32_t)result : self->queued;

        self->queued -= accepted;
        self->in_flight += accepted;
        self->stalls = accepted > 0 ? 0 : self->stalls;
        return true;
    }
    if ((result != -EINTR && result != -EAGAIN && result != -EBUSY) || self->stalls++ == STALL_LIMIT)
        return false;
    if (result != -EINTR)
        nap(); /* the kernel is short of memory for requests; completions free some */
    return true;
}

/* Handles at most limit completions. */
static void reap(struct voyage *self, uint32_t limit)
{
    struct io_uring_cqe *entry;

    for (; limit > 0 && self->in_flight > 0 && io_uring_peek_cqe(self->ring, &entry) == 0; limit--) {
        int slot = (int)entry->user_data;
        int64_t result = fffs_fault_completion(FFFS_FAULT_URING_COMPLETE, entry->res);

        io_uring_cqe_seen(self->ring, entry);
        self->in_flight--;
        self->stalls = 0;
        fffs_flight_landed(&self->flight, slot, result);
    }
}

static bool run_ring(struct fffs_context *context, struct fffs_piece **pieces, size_t count)
{
    struct voyage self = {.ring = &((struct uring *)context)->ring};
    bool works = true;

    fffs_flight_open(&self.flight, pieces, count);
    for (;;) {
        bool more = fill(&self);

        if (self.queued == 0 && self.in_flight == 0) {
            /* All is done, unless the ring had no room for a read although it is empty. */
            works = self.flight.again_count == 0;
            break;
        }
        works = submit(&self, !more);
        if (!works)
            break;
        reap(&self, BURST);
    }
    /* Entries that the kernel has not accepted are dropped with the ring. The others write into the caller's memory
     * until they complete, which needs no further call: it is enough to poll. */
    while (self.in_flight > 0) {
        nap();
        reap(&self, FFFS_DEPTH);
    }
    fffs_flight_close(&self.flight);
    return works;
}

const struct fffs_backend fffs_uring = {"uring", open_ring, close_ring, close_ring, run_ring};
