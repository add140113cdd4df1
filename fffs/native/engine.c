/* Batches: cuts requests into pieces, reads them at once or through a backend, and judges the checksums. */
#include "engine.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

/* ---------------------------------------------------------------- constants */

/* What one thread reads before it checksums: it is then still in any second-level cache. */
enum { HOT_CHUNK = 256 * 1024 };

/* A thread takes about this much work at a time, and at most so many pieces: cheap for tiny records, and the last
 * thread to finish is late by little. */
enum { GROUP_BYTES = 96 * 1024, GROUP_PIECES = 32 };

/* A batch smaller than this is done before a helper would have woken up. One read costs about as much as checking
 * READ_BYTES bytes. */
enum { ALONE_BYTES = 256 * 1024, READ_BYTES = 2048 };

/* After so many misses in a row the batch is taken for cold: nothing more is tried inline. */
enum { COLD_AFTER = 8 };

/* See is_trusted. */
enum { TRUST_AFTER = 32, TRUST_BYTES = 16 * 1024, TRUST_CHECK = 8 };

/* A plain read has waited for the device if it takes this long beside its bytes. */
enum { SLOW_NANOSECONDS = 50000 };

/* Cold pieces that are worth a ring of their own. */
enum { SLICE_PIECES = 16 };

/* How often a plain read may say "again" before that is taken for its answer. */
enum { AGAIN_LIMIT = 1000 };

/* Pieces of a batch that needs no allocation. */
enum { FEW_PIECES = 16 };

/* ---------------------------------------------------------------- pieces */

/* Errors that say nothing about the file, or may not: a plain blocking read decides. */
static bool is_backends_error(int64_t error)
{
    switch (error) {
    case -EAGAIN: /* would wait, or is busy */
    case -EINTR:
    case -EOPNOTSUPP: /* no RWF_NOWAIT on this file system; opcode unknown to this kernel */
    case -ENOSYS:     /* forbidden, or not there */
    case -EPERM:
    case -EACCES:
    case -EINVAL: /* an older kernel's way to say the same */
    case -ENOMEM:
    case -ENOBUFS:
    case -EBUSY:
    case -ECANCELED: return true;
    default: return false;
    }
}

bool fffs_piece_read(fffs_piece *piece, int64_t result, const uint8_t *data)
{
    if (result > 0) {
        piece->crc = fffs_checksum(piece->check, piece->crc, data, (size_t)result);
        piece->done += (uint32_t)result;
        if (piece->done < piece->length)
            return false;
        piece->status = 0;
    } else if (result == 0) {
        piece->status = -ENODATA;
    } else if (is_backends_error(result)) {
        return false;
    } else {
        piece->status = fffs_file_error(result);
    }
    return true;
}

/* Where the next bytes of a piece go: its dest, or one scratch buffer per thread, taken when first wanted. */
static uint8_t *piece_data(fffs_piece *piece, uint8_t **scratch)
{
    if (piece->dest != NULL)
        return piece->dest + piece->done;
    if (*scratch == NULL)
        *scratch = fffs_buffer_take(FFFS_BLOCK);
    return *scratch;
}

/* Reads a piece as far as the page cache has it, or, with wait set, to its end. 0 when it is finished, -EOPNOTSUPP
 * when its file system cannot tell what is cached, -EAGAIN when a read would have to wait, or plain reads must decide
 * for another reason. */
static int read_hot(fffs_piece *piece, uint8_t **scratch, bool wait)
{
    for (;;) {
        uint32_t rest = piece->length - piece->done, size = rest < HOT_CHUNK ? rest : HOT_CHUNK;
        uint8_t *data = piece_data(piece, scratch);
        int64_t result;

        if (data == NULL)
            return -EAGAIN;
        result = (wait ? fffs_pread : fffs_pread_nowait)(piece->fd, data, size, fffs_piece_offset(piece));
        if (fffs_piece_read(piece, result, data))
            return 0;
        if (result <= 0)
            return result == -EOPNOTSUPP ? -EOPNOTSUPP : -EAGAIN;
    }
}

/* Reads a piece to its end, waiting as long as it takes: what comes out is final. */
static void read_plain(fffs_piece *piece, uint8_t **scratch)
{
    const struct timespec moment = {0, 100000};
    int again = 0;

    while (piece->status == FFFS_PENDING) {
        uint8_t *data = piece_data(piece, scratch);
        int64_t result;

        if (data == NULL) {
            piece->status = -ENOMEM;
            return;
        }
        result = fffs_pread(piece->fd, data, piece->length - piece->done, fffs_piece_offset(piece));
        if (fffs_piece_read(piece, result, data) || result > 0)
            continue;
        if ((result != -EINTR && result != -EAGAIN) || again++ == AGAIN_LIMIT)
            piece->status = (int32_t)result;
        else if (result == -EAGAIN)
            nanosleep(&moment, NULL);
    }
}

/* ---------------------------------------------------------------- batches */

typedef struct {
    fffs_request *requests;
    size_t count;
    fffs_piece *pieces;
    size_t piece_count;
    /* What the hot phase leaves, room for all: pieces that would wait from the front, and from the back those on file
     * systems that do not tell. */
    fffs_piece **left;
    fffs_piece **plain; /* those to be read plainly */
    size_t plain_count;
    uint64_t bytes;
    bool direct;  /* what is to be read past the page cache can be: alone a piece is not worth a ring */
    size_t group; /* pieces that a thread takes at a time */
    /* Shared by the threads: */
    _Alignas(64) _Atomic size_t cursor;
    _Alignas(64) _Atomic size_t miss_count;
    _Atomic size_t blind_count;
    _Atomic int misses_in_row;
    fffs_piece few_pieces[FEW_PIECES];
    fffs_piece *few_left[FEW_PIECES];
} batch;

static bool is_valid(const fffs_request *request)
{
    return request->offset >= 0 && request->length >= 0 && request->offset <= INT64_MAX - request->length &&
           request->check <= FFFS_CHECK_CRC32C && fffs_is_alignment(request->align);
}

static uint64_t count_pieces(const fffs_request *request)
{
    if (!is_valid(request) || request->length <= FFFS_BLOCK)
        return 1;
    return ((uint64_t)request->length - 1) / FFFS_BLOCK + 1;
}

/* Writes the pieces of one request; at least one, finished from the start if there is nothing to read. */
static fffs_piece *cut_request(const fffs_request *request, uint32_t number, fffs_piece *piece)
{
    uint64_t count = count_pieces(request);
    int32_t status = !is_valid(request) ? -EINVAL : request->length == 0 ? 0 : FFFS_PENDING;

    for (uint64_t i = 0; i < count; i++, piece++) {
        int64_t start = (int64_t)i * FFFS_BLOCK, rest = request->length - start;

        piece->dest = request->dest != NULL ? request->dest + start : NULL;
        piece->offset = request->offset + start;
        piece->length = status != FFFS_PENDING ? 0 : rest < FFFS_BLOCK ? (uint32_t)rest : FFFS_BLOCK;
        piece->done = 0;
        piece->crc = 0;
        piece->fd = request->fd;
        piece->status = status;
        piece->request = number;
        piece->check = request->check;
        piece->around = request->around;
        piece->align = request->align;
        piece->direct_fd = request->direct_fd;
    }
    return piece;
}

static int open_batch(batch *self, fffs_request *requests, size_t count)
{
    uint64_t total = 0;
    fffs_piece *piece;

    if (count > UINT32_MAX)
        return -EINVAL;
    self->requests = requests;
    self->count = count;
    self->bytes = 0;
    for (size_t i = 0; i < count; i++) {
        total += count_pieces(&requests[i]); /* at most 2^32 times 2^43: no overflow that matters goes unseen */
        if (total > UINT32_MAX)
            return -ENOMEM;
        self->bytes += is_valid(&requests[i]) ? (uint64_t)requests[i].length : 0;
    }
    self->piece_count = (size_t)total;
    self->direct = total > 1 && fffs_backend_selected();
    self->pieces = self->few_pieces;
    self->left = self->few_left;
    if (total > FEW_PIECES) {
        self->pieces = fffs_allocate((size_t)total * (sizeof *self->pieces + sizeof *self->left));
        if (self->pieces == NULL)
            return -ENOMEM;
        self->left = (fffs_piece **)(self->pieces + total);
    }
    piece = self->pieces;
    for (size_t i = 0; i < count; i++)
        piece = cut_request(&requests[i], (uint32_t)i, piece);
    atomic_init(&self->cursor, 0);
    atomic_init(&self->miss_count, 0);
    atomic_init(&self->blind_count, 0);
    atomic_init(&self->misses_in_row, 0);
    return 0;
}

/* Joins the pieces of each request, judges it, and frees the batch. */
static int close_batch(batch *self)
{
    const fffs_piece *piece = self->pieces, *end = self->pieces + self->piece_count;
    int result = 0;

    for (size_t i = 0; i < self->count; i++) {
        fffs_request *request = &self->requests[i];

        request->status = piece->status;
        request->actual = piece->crc;
        for (piece++; piece < end && piece->request == i; piece++) {
            if (request->status == 0)
                request->status = piece->status;
            request->actual = fffs_checksum_combine(piece->check, request->actual, piece->crc, piece->length);
        }
        if (request->status != 0)
            request->actual = 0;
        else if (request->check != FFFS_CHECK_NONE && request->actual != request->expected)
            request->status = -EBADMSG;
        if (request->status != 0)
            result = -EIO;
    }
    if (self->pieces != self->few_pieces)
        free(self->pieces);
    return result;
}

/* ---------------------------------------------------------------- sharing the work */

/* How many pieces of a batch a thread takes at a time. */
static size_t group_of(size_t pieces, uint64_t bytes)
{
    size_t group = (size_t)(GROUP_BYTES / (bytes / pieces + 1));

    return group < 1 ? 1 : group > GROUP_PIECES ? GROUP_PIECES : group;
}

int fffs_useful_helpers(size_t pieces, uint64_t bytes)
{
    uint64_t work = (bytes + pieces * READ_BYTES) / ALONE_BYTES;
    uint64_t groups = pieces > 0 ? (pieces - 1) / group_of(pieces, bytes) : 0;

    work = work > groups ? groups : work;
    return work > INT_MAX ? INT_MAX : (int)work;
}

/* Takes the next group of count pieces: from *begin to *end. False: none is left. */
static bool take_group(batch *self, size_t count, size_t *begin, size_t *end)
{
    *begin = atomic_fetch_add_explicit(&self->cursor, self->group, memory_order_relaxed);
    *end = *begin + self->group < count ? *begin + self->group : count;
    return *begin < count;
}

/* ---------------------------------------------------------------- the hot phase */

/* What a thread knows of its part of the batch. */
typedef struct {
    uint8_t *scratch;
    int64_t hits; /* in a row */
    int64_t checked;
} hot_worker;

/* pread takes a tenth less time than preadv2 for tiny reads. After TRUST_AFTER hits in a row tiny pieces are expected
 * to be cached; every TRUST_CHECK, the clock tells if they were not: then the thread asks again, to the end. */
static bool is_trusted(hot_worker *self, const fffs_piece *piece)
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
static void note_miss(batch *self, fffs_piece *piece)
{
    self->left[atomic_fetch_add_explicit(&self->miss_count, 1, memory_order_relaxed)] = piece;
}

/* Tries one piece, and notes what it left. */
static void try_piece(batch *self, fffs_piece *piece, hot_worker *worker)
{
    int result = -EAGAIN;

    if (piece->status != FFFS_PENDING)
        return;
    if (self->direct && piece->align != 0) {
        note_miss(self, piece);
        return;
    }
    if (atomic_load_explicit(&self->misses_in_row, memory_order_relaxed) < COLD_AFTER)
        result = read_hot(piece, &worker->scratch, is_trusted(worker, piece));
    if (result == 0) {
        worker->hits++;
        if (atomic_load_explicit(&self->misses_in_row, memory_order_relaxed) != 0)
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
    hot_worker worker = {NULL, 0, 0};
    batch *self = work;
    size_t i, end;

    while (take_group(self, self->piece_count, &i, &end))
        for (; i < end; i++)
            try_piece(self, &self->pieces[i], &worker);
    fffs_buffer_give(worker.scratch);
}

static void run_hot(batch *self)
{
    fffs_job job;

    self->group = group_of(self->piece_count, self->bytes);
    fffs_job_offer(&job, FFFS_HOT, share_hot, self, fffs_useful_helpers(self->piece_count, self->bytes));
    share_hot(self);
    fffs_job_retire(&job);
}

/* ---------------------------------------------------------------- plain reads */

/* One thread's share. */
static void share_plain(void *work)
{
    batch *self = work;
    uint8_t *scratch = NULL;
    size_t i, end;

    while (take_group(self, self->plain_count, &i, &end))
        for (; i < end; i++)
            read_plain(self->plain[i], &scratch);
    fffs_buffer_give(scratch);
}

/* The caller's share as long as no read waits. True: one took longer than copying and checking at 4 GB/s, so the rest
 * is for as many threads as make a deep queue. */
static bool share_until_slow(batch *self)
{
    uint8_t *scratch = NULL;
    bool slow = false;
    size_t i, end;

    while (!slow && take_group(self, self->plain_count, &i, &end)) {
        for (; i < end; i++) {
            int64_t start = fffs_now();

            read_plain(self->plain[i], &scratch);
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

/* Pieces known to wait: a queue as deep as there are threads, at once. */
static void run_misses(batch *self)
{
    fffs_job job;

    self->group = 1;
    fffs_job_offer(&job, FFFS_COLD, share_plain, self, queue_helpers(self->plain_count));
    share_plain(self);
    fffs_job_retire(&job);
}

/* Pieces that may be cached or not. */
static void run_blind(batch *self)
{
    fffs_job hot, cold;

    uint64_t bytes = self->bytes / self->piece_count * self->plain_count;

    fffs_job_offer(&hot, FFFS_HOT, share_plain, self, fffs_useful_helpers(self->plain_count, bytes));
    if (share_until_slow(self)) {
        fffs_announce_blocks(self->plain, self->plain_count);
        fffs_job_offer(&cold, FFFS_COLD, share_plain, self, queue_helpers(self->plain_count));
        share_plain(self);
        fffs_job_retire(&cold);
    }
    fffs_job_retire(&hot);
}

static void run_plain(batch *self, fffs_piece **pieces, size_t count, void (*run)(batch *))
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
    const fffs_piece *left = *(fffs_piece *const *)a, *right = *(fffs_piece *const *)b;

    if (left->fd != right->fd)
        return left->fd < right->fd ? -1 : 1;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* One thread's share of what goes through the selected backend: a slice on a ring of its own. */
static void share_backend(void *work)
{
    batch *self = work;
    size_t i, end;

    while (take_group(self, self->plain_count, &i, &end))
        if (fffs_backend_run(self->plain + i, end - i) != 0)
            return;
}

/* Submitting a cold read and copying what came take a core at little more than 1 GB/s, whatever the disk can. */
static void run_slices(batch *self)
{
    size_t slices = self->plain_count / SLICE_PIECES, threads = (size_t)fffs_engine_threads();
    fffs_job job;

    slices = slices > threads ? threads : slices < 1 ? 1 : slices;
    self->group = (self->plain_count - 1) / slices + 1;
    fffs_job_offer(&job, FFFS_HOT, share_backend, self, (int)slices - 1);
    share_backend(self);
    fffs_job_retire(&job);
}

/* Reads pieces through the selected backend. Returns how many it left, which are then the first. */
static size_t run_backend(batch *self, fffs_piece **pieces, size_t count)
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

/* What the hot phase left. On file systems without RWF_NOWAIT (overlayfs and tmpfs, for instance) a ring's reads all
 * go through worker threads of the kernel, cached or not: there plain reads were up to twice as fast. */
static void run_cold(batch *self)
{
    size_t misses = atomic_load(&self->miss_count), blind = atomic_load(&self->blind_count);
    fffs_piece **blind_pieces = self->left + self->piece_count - blind;

    run_plain(self, blind_pieces, blind, run_blind);
    qsort(self->left, misses, sizeof *self->left, compare_places);
    fffs_announce_blocks(self->left, misses);
    run_plain(self, self->left, run_backend(self, self->left, misses), run_misses);
}

int fffs_read_batch(fffs_request *requests, size_t count)
{
    batch self;
    int failed;

    if (count == 0)
        return 0;
    failed = open_batch(&self, requests, count);
    if (failed != 0)
        return failed;
    run_hot(&self);
    run_cold(&self); /* helpers were joined through atomics: all that they wrote can be seen */
    return close_batch(&self);
}

int fffs_read_one(int fd, int64_t offset, int64_t length, uint8_t *dest, uint32_t check, uint32_t expected)
{
    fffs_request request = {
        .offset = offset, .length = length, .dest = dest, .fd = fd, .check = check, .expected = expected};
    int status = fffs_read_batch(&request, 1);

    return status == -EIO ? request.status : status;
}
