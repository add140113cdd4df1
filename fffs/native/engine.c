/* Runs batches of reads. First every piece is tried with reads that never wait (hot). The selected backend then reads
 * what is not in the page cache (cold). Plain blocking reads finish what a backend leaves, for whatever reason: a
 * broken backend is slow, not wrong. */
#include "ahead.h"
#include "batch.h"
#include "clock.h"
#include "contexts.h"
#include "remote.h"
#include "threads.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* ---------------------------------------------------------------- constants */

/* A thread takes about this many bytes at a time, and at most this many pieces: few steps for tiny records, and
 * threads finish at nearly the same time. */
enum { GROUP_BYTES = 96 * 1024, GROUP_PIECES = 32 };

/* A batch smaller than ALONE_BYTES is done before a helper would have woken up. One read costs about as much as
 * checking READ_BYTES bytes. */
enum { ALONE_BYTES = 256 * 1024, READ_BYTES = 2048 };

/* After this many misses in a row the batch counts as cold: no further piece is tried inline. */
enum { COLD_AFTER = 8 };

/* See is_trusted. */
enum { TRUST_AFTER = 32, TRUST_BYTES = 16 * 1024, TRUST_CHECK = 8 };

/* A plain read that takes this much longer than copying its bytes has waited for the device. */
enum { SLOW_NANOSECONDS = 50000 };

/* Cold pieces that justify one more ring. */
enum { SLICE_PIECES = 16 };

/* ---------------------------------------------------------------- sharing the work */

/* Returns how many pieces of a batch a thread takes at a time. */
static size_t group_of(size_t pieces, uint64_t bytes)
{
    size_t group = (size_t)(GROUP_BYTES / (bytes / pieces + 1));

    return group < 1 ? 1 : group > GROUP_PIECES ? GROUP_PIECES : group;
}

/* Returns how many helpers are worth waking for this many cached pieces and bytes. */
static int useful_helpers(size_t pieces, uint64_t bytes)
{
    uint64_t work = (bytes + pieces * READ_BYTES) / ALONE_BYTES;
    uint64_t groups = pieces > 0 ? (pieces - 1) / group_of(pieces, bytes) : 0;

    work = work > groups ? groups : work;
    return work > INT_MAX ? INT_MAX : (int)work;
}

void fffs_engine_expect(size_t count, uint64_t bytes)
{
    int helpers = useful_helpers(count, bytes);

    if (helpers > fffs_engine_threads() - 1)
        helpers = fffs_engine_threads() - 1;
    if (helpers > 0)
        fffs_threads_expect(helpers);
}

/* Takes the next group of count pieces, from *begin to *end. Returns false if none is left. */
static bool take_group(struct fffs_batch *self, size_t count, size_t *begin, size_t *end)
{
    *begin = atomic_fetch_add_explicit(&self->cursor, self->group, memory_order_relaxed);
    *end = *begin + self->group < count ? *begin + self->group : count;
    return *begin < count;
}

/* ---------------------------------------------------------------- the hot phase */

/* The state of one thread in the hot phase. */
struct hot_worker {
    uint8_t *scratch;
    int64_t hits; /* in a row */
    int64_t checked;
};

/* Whether to read a piece with pread, which takes a tenth less time than preadv2 for tiny reads. After TRUST_AFTER
 * hits in a row tiny pieces are expected to be cached. Every TRUST_CHECK pieces the clock shows whether they were; if
 * not, the thread uses preadv2 to the end. */
static bool is_trusted(struct hot_worker *self, const struct fffs_piece *piece)
{
    if (self->hits < TRUST_AFTER || piece->length > TRUST_BYTES)
        return false;
    if (self->hits % TRUST_CHECK == 0) {
        int64_t now = fffs_now();

        if (self->hits > TRUST_AFTER && now - self->checked > SLOW_NANOSECONDS) {
            self->hits = INT64_MIN / 2;
            return false;
        }
        self->checked = now;
    }
    return true;
}

/* Leaves a piece to the backend. */
static void note_miss(struct fffs_batch *self, struct fffs_piece *piece)
{
    self->left[atomic_fetch_add_explicit(&self->miss_count, 1, memory_order_relaxed)] = piece;
}

/* Tries one piece, and adds it to the left ones if it is not finished. */
static void try_piece(struct fffs_batch *self, struct fffs_piece *piece, struct hot_worker *worker)
{
    int result = -EAGAIN;

    if (piece->status != FFFS_PENDING)
        return;
    if (self->direct && piece->align) {
        note_miss(self, piece);
        return;
    }
    if (atomic_load_explicit(&self->misses_in_row, memory_order_relaxed) < COLD_AFTER)
        result = fffs_piece_read_hot(piece, &worker->scratch, is_trusted(worker, piece));
    if (result == 0) {
        worker->hits++;
        if (atomic_load_explicit(&self->misses_in_row, memory_order_relaxed))
            atomic_store_explicit(&self->misses_in_row, 0, memory_order_relaxed);
    } else if (result == -EOPNOTSUPP) {
        size_t number = atomic_fetch_add_explicit(&self->blind_count, 1, memory_order_relaxed);

        self->left[self->piece_count - 1 - number] = piece;
    } else {
        worker->hits = worker->hits < 0 ? worker->hits : 0;
        atomic_fetch_add_explicit(&self->misses_in_row, 1, memory_order_relaxed);
        note_miss(self, piece);
    }
}

/* One thread's share of the hot phase. */
static void share_hot(void *work)
{
    struct hot_worker worker = {NULL, 0, 0};
    struct fffs_batch *self = work;
    size_t i, end;

    while (take_group(self, self->piece_count, &i, &end))
        for (; i < end; i++)
            try_piece(self, &self->pieces[i], &worker);
    fffs_buffer_give(worker.scratch);
}

static void run_hot(struct fffs_batch *self)
{
    struct fffs_job job;

    self->group = group_of(self->piece_count, self->bytes);
    fffs_job_offer(&job, FFFS_HOT, share_hot, self, useful_helpers(self->piece_count, self->bytes));
    share_hot(self);
    fffs_job_retire(&job);
}

/* ---------------------------------------------------------------- plain reads */

/* One thread's share of the plain reads. */
static void share_plain(void *work)
{
    struct fffs_batch *self = work;
    uint8_t *scratch = NULL;
    size_t i, end;

    while (take_group(self, self->plain_count, &i, &end))
        for (; i < end; i++)
            fffs_piece_read_plain(self->plain[i], &scratch);
    fffs_buffer_give(scratch);
}

/* The caller's share until a read waits. Returns true if one took longer than copying and checking at 4 GB/s: then the
 * other pieces need as many threads as make a deep queue. */
static bool share_until_slow(struct fffs_batch *self)
{
    uint8_t *scratch = NULL;
    bool slow = false;
    size_t i, end;

    while (!slow && take_group(self, self->plain_count, &i, &end)) {
        for (; i < end; i++) {
            int64_t start = fffs_now();

            fffs_piece_read_plain(self->plain[i], &scratch);
            slow |= fffs_now() - start > SLOW_NANOSECONDS + self->plain[i]->length / 4;
        }
    }
    fffs_buffer_give(scratch);
    return slow;
}

static int queue_helpers(size_t count)
{
    return count > FFFS_COLD_HELPERS ? FFFS_COLD_HELPERS : (int)count - 1;
}

/* Reads pieces that will wait: with all threads at once, for a deep queue. */
static void run_misses(struct fffs_batch *self)
{
    struct fffs_job job;

    self->group = 1;
    fffs_job_offer(&job, FFFS_COLD, share_plain, self, queue_helpers(self->plain_count));
    share_plain(self);
    fffs_job_retire(&job);
}

/* Reads pieces that may be cached or not. */
static void run_blind(struct fffs_batch *self)
{
    struct fffs_job hot;
    uint64_t bytes = self->bytes / self->piece_count * self->plain_count;

    fffs_job_offer(&hot, FFFS_HOT, share_plain, self, useful_helpers(self->plain_count, bytes));
    if (share_until_slow(self)) {
        struct fffs_job cold;

        fffs_announce_blocks(self->plain, self->plain_count);
        fffs_job_offer(&cold, FFFS_COLD, share_plain, self, queue_helpers(self->plain_count));
        share_plain(self);
        fffs_job_retire(&cold);
    }
    fffs_job_retire(&hot);
}

static void run_plain(struct fffs_batch *self, struct fffs_piece **pieces, size_t count,
                      void (*run)(struct fffs_batch *))
{
    if (count == 0)
        return;
    self->plain = pieces;
    self->plain_count = count;
    atomic_store(&self->cursor, 0);
    run(self);
}

/* ---------------------------------------------------------------- the cold phase */

static int compare_places(const void *a, const void *b)
{
    const struct fffs_piece *left = *(struct fffs_piece *const *)a, *right = *(struct fffs_piece *const *)b;

    if (left->fd != right->fd)
        return left->fd < right->fd ? -1 : 1;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* One thread's share of the cold phase: slices, each on its own ring. */
static void share_backend(void *work)
{
    struct fffs_batch *self = work;
    size_t i, end;

    while (take_group(self, self->plain_count, &i, &end))
        if (fffs_backend_run(self->plain + i, end - i))
            return;
}

/* Uses several threads: one submits cold reads and copies their bytes at little more than 1 GB/s, on any disk. */
static void run_slices(struct fffs_batch *self)
{
    size_t slices = self->plain_count / SLICE_PIECES, threads = (size_t)fffs_engine_threads();
    struct fffs_job job;

    slices = slices > threads ? threads : slices < 1 ? 1 : slices;
    self->group = (self->plain_count - 1) / slices + 1;
    fffs_job_offer(&job, FFFS_HOT, share_backend, self, (int)slices - 1);
    share_backend(self);
    fffs_job_retire(&job);
}

/* Reads pieces through the selected backend. Moves those that it left to the front and returns their number. */
static size_t run_backend(struct fffs_batch *self, struct fffs_piece **pieces, size_t count)
{
    size_t left = 0;

    if (count < 2 || !fffs_backend_selected())
        return count;
    run_plain(self, pieces, count, run_slices);
    for (size_t i = 0; i < count; i++)
        if (pieces[i]->status == FFFS_PENDING)
            pieces[left++] = pieces[i];
    return left;
}

/* Reads what the hot phase left. On file systems without RWF_NOWAIT (overlayfs and tmpfs, for instance) the kernel
 * runs all reads of a ring in its worker threads, cached or not: plain reads were up to twice as fast there. */
static void run_cold(struct fffs_batch *self)
{
    size_t misses = atomic_load(&self->miss_count), blind = atomic_load(&self->blind_count);
    struct fffs_piece **blind_pieces = self->left + self->piece_count - blind;

    run_plain(self, blind_pieces, blind, run_blind);
    qsort(self->left, misses, sizeof *self->left, compare_places);
    fffs_announce_blocks(self->left, misses);
    run_plain(self, self->left, run_backend(self, self->left, misses), run_misses);
}

int fffs_read_batch(fffs_request *requests, size_t count)
{
    struct fffs_batch self;

    if (count == 0)
        return 0;
    if (fffs_is_remote(requests->fd)) /* a batch is of local files or of objects */
        return fffs_remote_read_batch(requests, count, NULL);
    int failed = fffs_batch_open(&self, requests, count);
    if (failed)
        return failed;
    run_hot(&self);
    run_cold(&self); /* helpers were joined through atomics, so their writes are visible */
    return fffs_batch_close(&self);
}

int fffs_read_one(int fd, int64_t offset, int64_t length, uint8_t *dest, uint32_t check, uint32_t expected)
{
    fffs_request request = {
        .offset = offset, .length = length, .dest = dest, .fd = fd, .check = check, .expected = expected};
    int status = fffs_read_batch(&request, 1);

    return status == -EIO ? request.status : status;
}
