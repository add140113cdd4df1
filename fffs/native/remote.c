/* Batches of records of objects: what the caches have is read by the engine, what is missing is fetched into them, and what they
 * have no room for is fetched to its destination. */
#include "remote.h"
#include "fault.h"
#include "fetch.h"
#include "object_cache.h"
#include "object_totals.h"
#include "objects.h"
#include "remote_ahead.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are fetched into caches at a time, in memory. */
enum { STEP = 32 * 1024 * 1024 };

/* Bytes of a run of what is fetched before anybody asks for it, as many as requests to stores have at least: a place that cannot be
 * read costs only the run that it is in. */
enum { RUN_AHEAD = 1024 * 1024 };

/* Requests of which the blocks that two of them share become runs of their own: one of these two may be what the server cannot read.
 * Of more, something else came, or nothing will. */
enum { FEW = 64 };

/* Milliseconds between two looks at *cancel. */
enum { SLICE = 50 };

static struct fffs_object_cache *cache_of(const fffs_request *request)
{
    return fffs_object_cache_at(fffs_object_of(request->fd));
}

/* A range that is outside of the object must fail as a read of a file does, not as a wrong request. */
static bool is_inside(const fffs_request *request, int64_t size)
{
    return request->offset >= 0 && request->length > 0 && request->offset <= size - request->length;
}

static bool is_cancelled(const int32_t *cancel)
{
    return cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED);
}

/* Fetches requests. Returns 0 if their statuses are meaningful, or -errno. */
static int fetch_all(fffs_request *requests, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    fffs_fetch *fetch;
    int status = fffs_fetch_begin(requests, count, silence, &fetch);

    if (status)
        return status;
    while (!is_cancelled(cancel) && fffs_fetch_run(fetch, SLICE) == -EAGAIN)
        ;
    status = fffs_fetch_end(fetch);
    return status == -EIO ? 0 : status;
}

/* ---------------------------------------------------------------- filling caches */

/* Whose a run is. */
struct owner {
    struct fffs_object_claim *claim;
    const fffs_request *asked; /* who needs it */
};

/* Runs of missing blocks: requests without a checksum, and their memory. */
struct filling {
    const int32_t *cancel;
    struct fffs_silence *silence;
    fffs_request **sorted;      /* [sorted_count] by place: who needs the runs */
    size_t sorted_count, first; /* first: of those before it, nothing is fetched any more */
    fffs_request *runs;
    struct owner *owners; /* [room], of the runs */
    size_t count, room;
    int64_t bytes;
    uint8_t *memory;
};

/* Makes room for one more run. */
static int grow(struct filling *self)
{
    size_t room = self->room * 2 + 64;

    if (self->count < self->room)
        return 0;
    fffs_request *runs = realloc(self->runs, room * sizeof *runs);
    if (runs)
        self->runs = runs;
    struct owner *owners = realloc(self->owners, room * sizeof *owners);
    if (owners)
        self->owners = owners;
    if (!runs || !owners)
        return -ENOMEM;
    self->room = room;
    return 0;
}

/* Adds a run that a request needs, up to where another thread fetches. *end becomes where the run ends: at its start if another thread
 * put a part of it into the cache after the caller looked, and before the claim. */
static int add_run(struct filling *self, const fffs_request *request, int64_t start, int64_t *end)
{
    struct fffs_object_cache *cache = cache_of(request);
    int status = grow(self);
    int64_t from, until;

    if (status)
        return status;
    struct owner *owner = &self->owners[self->count];
    owner->asked = request;
    if (!fffs_object_cache_claim(request->fd, start, end, &owner->claim))
        return 0;
    if (!fffs_object_cache_missing(cache, start, *end - start, &from, &until) || from > start || until < *end) {
        fffs_object_cache_release(owner->claim, 0, 0, 0);
        *end = start;
        return 0;
    }
    self->runs[self->count++] = (fffs_request){.offset = start, .length = *end - start, .fd = request->fd};
    self->bytes += *end - start;
    return 0;
}

/* Finds the bytes of a run that were asked for. Its first and last block may have others. */
static void find_asked(const struct filling *self, size_t i, int64_t *from, int64_t *until)
{
    const fffs_request *run = &self->runs[i], *asked = self->owners[i].asked;
    int64_t end = run->offset + run->length, asked_end = asked->offset + asked->length;

    *from = run->offset > asked->offset ? run->offset : asked->offset;
    *until = end < asked_end ? end : asked_end;
}

static void release_all(struct filling *self)
{
    for (size_t i = 0; i < self->count; i++) {
        int status = self->runs[i].status;
        int64_t from, until;

        /* What nobody asked for is given up early: who waits for it asks itself. */
        if (self->silence->ahead || status == -ENOMEM || status == -ECANCELED)
            status = 0;
        find_asked(self, i, &from, &until);
        fffs_object_cache_release(self->owners[i].claim, status, from, until);
    }
    self->count = 0;
    self->bytes = 0;
}

/* Puts the runs that were fetched into their caches. Adjacent ones are adjacent in memory, too, and become one write: the page
 * cache then has larger folios, from which reads are a fifth faster. */
static void put_all(struct filling *self)
{
    for (size_t i = 0, next; i < self->count; i = next) {
        const fffs_request *first = &self->runs[i];
        int64_t length = first->length;

        for (next = i + 1; next < self->count && !first->status; next++) {
            const fffs_request *run = &self->runs[next];

            if (run->status || run->fd != first->fd || run->offset != first->offset + length)
                break;
            length += run->length;
        }
        if (!first->status)
            fffs_object_cache_put(cache_of(first), first->offset, first->dest, length);
    }
}

static bool is_before(const fffs_request *one, const fffs_request *other)
{
    return one->fd != other->fd ? one->fd < other->fd : one->offset + one->length <= other->offset;
}

/* Whether a request fails with a run that it needs a part of. One that only has a block in common with what was asked for is fetched
 * alone, if its server answered: to try it would else take as long again. */
static bool fails_with(const struct filling *self, size_t i, const fffs_request *request, bool answered)
{
    int64_t from, until;

    if (is_before(request, &self->runs[i]))
        return false;
    find_asked(self, i, &from, &until);
    return !answered || (request->offset < until && request->offset + request->length > from);
}

/* Gives requests the failures of the runs that they need: to fetch them again would take as long again. */
static void note_failures(struct filling *self)
{
    for (size_t i = 0; i < self->count; i++) {
        const fffs_request *run = &self->runs[i];

        if (!run->status || run->status == -ENOMEM)
            continue;
        bool answered = fffs_silence_answered(self->silence, fffs_object_of(run->fd));
        while (self->first < self->sorted_count && is_before(self->sorted[self->first], run))
            self->first++;
        for (size_t k = self->first; k < self->sorted_count && !is_before(run, self->sorted[k]); k++)
            if (fails_with(self, i, self->sorted[k], answered))
                self->sorted[k]->status = run->status;
    }
}

/* Has the next steps of reading ahead leave out what is between the first and the last run that failed. */
static void leave_out_failed(const struct filling *self)
{
    const fffs_request *first = NULL, *last = NULL;

    for (size_t i = 0; i < self->count; i++) {
        const fffs_request *run = &self->runs[i];

        if (!run->status || run->status == -ECANCELED)
            continue;
        first = first ? first : run;
        last = run;
    }
    if (first)
        fffs_object_cache_leave_out(cache_of(first), first->offset, last->offset + last->length);
}

/* Fetches the runs and puts them into their caches. */
static int fill(struct filling *self)
{
    uint8_t *memory = self->count ? fffs_buffer_take((size_t)self->bytes) : NULL, *next = memory;

    if (!self->count)
        return 0;
    if (!memory) {
        release_all(self);
        return -ENOMEM;
    }
    for (size_t i = 0; i < self->count; i++) {
        self->runs[i].dest = next;
        next += self->runs[i].length;
    }
    int status = fetch_all(self->runs, self->count, self->silence, self->cancel);
    if (!status) {
        put_all(self);
        note_failures(self);
        if (self->silence->ahead)
            leave_out_failed(self);
    }
    fffs_buffer_give(memory);
    release_all(self);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const fffs_request *one = *(fffs_request *const *)a, *other = *(fffs_request *const *)b;

    if (one->fd != other->fd)
        return one->fd < other->fd ? -1 : 1;
    return (one->offset > other->offset) - (one->offset < other->offset);
}

/* Returns where a run that begins at start ends: at stop, or before. */
static int64_t end_of_run(const struct filling *self, size_t i, int64_t start, int64_t stop)
{
    const fffs_request *next = i + 1 < self->sorted_count ? self->sorted[i + 1] : NULL;

    if (self->silence->ahead && stop - start > RUN_AHEAD)
        stop = start + RUN_AHEAD;
    if (next && self->sorted_count <= FEW && next->fd == self->sorted[i]->fd) {
        int64_t shared = next->offset / FFFS_CACHE_BLOCK * FFFS_CACHE_BLOCK;

        stop = start < shared && shared < stop ? shared : stop;
    }
    return stop;
}

/* Adds the missing blocks of a request, in order: blocks before *done were added for the request before. */
static int add_missing(struct filling *self, size_t i, int64_t *done)
{
    const fffs_request *request = self->sorted[i];
    struct fffs_object_cache *cache = cache_of(request);
    int64_t from = request->offset > *done ? request->offset : *done, end = request->offset + request->length, start,
            stop;
    int status = 0;

    while (!status && from < end && fffs_object_cache_missing(cache, from, end - from, &start, &stop)) {
        start = start > *done ? start : *done;
        stop = end_of_run(self, i, start, stop);
        /* What another thread fetches is skipped: see fill_or_wait. */
        status = start < stop ? add_run(self, request, start, &stop) : 0;
        *done = from = stop;
        if (!status && self->bytes >= STEP)
            status = fill(self);
    }
    return status;
}

/* Fetches what is missing of some requests, whose caches grow, and sets the statuses of those that fail. sorted: [count], by
 * place. */
static int fill_missing(fffs_request **sorted, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    struct filling filling = {.cancel = cancel, .silence = silence, .sorted = sorted, .sorted_count = count};
    int64_t done = 0;
    int status = 0, fd = 0;

    for (size_t i = 0; !status && i < count && !is_cancelled(cancel); i++) {
        if (sorted[i]->fd != fd)
            done = 0;
        fd = sorted[i]->fd;
        status = add_missing(&filling, i, &done);
    }
    if (!status)
        status = fill(&filling);
    release_all(&filling);
    free(filling.runs);
    free(filling.owners);
    return status;
}

void fffs_remote_fill(int fd, int64_t offset, int64_t length, const int32_t *cancel)
{
    fffs_request request = {.offset = offset, .length = length, .fd = fd}, *alone = &request;
    struct fffs_object_cache *cache = cache_of(&request);
    struct fffs_silence silence = {.ahead = true};

    if (cache && fffs_object_cache_grows(cache))
        (void)fill_missing(&alone, 1, &silence, cancel);
    fffs_silence_end(&silence);
}

/* Has more fetched if a read goes on where others ended. */
static void read_ahead(const fffs_request *request, bool missed)
{
    struct fffs_object_cache *cache = cache_of(request);
    int64_t from, step = 0;

    if (cache && fffs_object_cache_grows(cache))
        step = fffs_object_cache_step(cache, request->offset, request->length, missed, &from);
    if (step && !fffs_object_cache_has(cache, from, step, false, false))
        fffs_ahead_fill(request->fd, from, step);
}

/* Fetches what is missing of some requests as fill_missing, and waits until what other threads fetch of them is there, or failed: that
 * failure is theirs, too. It may come while this thread fetches what they do not. */
static int fill_or_wait(fffs_request **sorted, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    struct fffs_object_waiter waiter;
    int status = fffs_object_cache_expect(&waiter, sorted, count);

    if (status)
        return status;
    status = fill_missing(sorted, count, silence, cancel);
    for (size_t i = 0; i < count; i++)
        if (!sorted[i]->status)
            sorted[i]->status = fffs_object_cache_wait(&waiter, i, cancel);
    fffs_object_cache_forget(&waiter);
    return status;
}

/* ---------------------------------------------------------------- reading */

/* Reads requests from their caches, or fetches them: then there is silence. Returns 0 if their statuses are meaningful, or -errno. */
static int read_some(fffs_request **some, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    fffs_request *copies = fffs_allocate((count ? count : 1) * sizeof *copies);
    bool cached = !silence;

    if (!copies)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        copies[i] = *some[i];
        copies[i].status = 0;
        if (cached) {
            copies[i].fd = fffs_object_cache_fd(cache_of(some[i]));
            copies[i].around = 0;
        }
    }
    int status = cached ? fffs_read_batch(copies, count) : fetch_all(copies, count, silence, cancel);
    status = status == -EIO ? 0 : status;
    for (size_t i = 0; !status && i < count; i++) {
        bool lost = cached && copies[i].status && copies[i].status != -ENOMEM; /* as by a disk that fails */

        some[i]->status = lost ? -EBADMSG : copies[i].status;
        some[i]->actual = copies[i].actual;
    }
    free(copies);
    return status;
}

/* Moves the requests that a cache has in full to the front, and returns their number. */
static size_t divide(fffs_request **some, size_t count, bool wait)
{
    size_t front = 0;

    for (size_t i = 0; i < count; i++) {
        struct fffs_object_cache *cache = cache_of(some[i]);
        fffs_request *request = some[i];

        if (!cache ||
            !fffs_object_cache_has(cache, request->offset, request->length, request->check == FFFS_CHECK_NONE, wait))
            continue;
        some[i] = some[front];
        some[front++] = request;
    }
    return front;
}

/* Fetches damaged records once more: a byte may have changed on its way, or in the cache, which forgets them. */
static int repair(fffs_request **some, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    size_t bad = 0;

    for (size_t i = 0; i < count; i++) {
        struct fffs_object_cache *cache = cache_of(some[i]);

        if (some[i]->status != -EBADMSG)
            continue;
        if (cache) {
            fffs_object_cache_drop(cache, some[i]->offset, some[i]->length);
            fffs_object_cache_count(cache, 0, 1);
        }
        some[bad++] = some[i];
    }
    fffs_total_add(FFFS_TOTAL_DAMAGED_RECORDS, bad);
    int status = bad ? read_some(some, bad, silence, cancel) : 0;
    for (size_t i = 0; i < bad; i++) /* a record that the store has damaged says nothing about the cache */
        if (!status && !some[i]->status && cache_of(some[i]))
            fffs_object_cache_suspect(cache_of(some[i]));
    return status;
}

/* Moves the requests whose caches grow to the front, and returns their number. */
static size_t growing(fffs_request **some, size_t count)
{
    size_t front = 0;

    for (size_t i = 0; i < count; i++) {
        fffs_request *request = some[i];

        if (!cache_of(request) || !fffs_object_cache_grows(cache_of(request)))
            continue;
        some[i] = some[front];
        some[front++] = request;
    }
    return front;
}

/* Moves the requests that have not failed to the front, and returns their number. */
static size_t without_failed(fffs_request **some, size_t count)
{
    size_t front = 0;

    for (size_t i = 0; i < count; i++) {
        fffs_request *request = some[i];

        if (request->status)
            continue;
        some[i] = some[front];
        some[front++] = request;
    }
    return front;
}

/* Reads requests that have something to read. some: [count], in any order, which changes. */
static int read_all(fffs_request **some, size_t count, struct fffs_silence *silence, const int32_t *cancel)
{
    size_t there = divide(some, count, true), grows = growing(some + there, count - there);
    int status = 0;

    if (count == 1)
        read_ahead(some[0], there == 0);

    for (size_t i = 0; i < there; i++) {
        fffs_object_cache_count(cache_of(some[i]), 1, 0);
        fffs_total_add(FFFS_TOTAL_HITS, (uint64_t)some[i]->length);
    }
    for (size_t i = 0; i < count; i++)
        fffs_total_add(FFFS_TOTAL_ASKED, (uint64_t)some[i]->length);
    if (grows) {
        qsort(some + there, grows, sizeof *some, by_place);
        status = fill_or_wait(some + there, grows, silence, cancel);
        there += divide(some + there, grows, false);
        count = there + without_failed(some + there, count - there);
    }
    if (!status && there)
        status = read_some(some, there, NULL, NULL);
    if (!status && there < count)
        status = read_some(some + there, count - there, silence, cancel);
    return status ? status : repair(some, count, silence, cancel);
}

static int read_batch(fffs_request *requests, size_t count, const int32_t *cancel, bool staged)
{
    fffs_request **some = fffs_allocate((count ? count : 1) * sizeof *some);
    struct fffs_silence silence = {0};
    size_t used = 0;
    int result = 0;

    if (!some)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        fffs_request *request = &requests[i];
        int32_t number = fffs_object_of(request->fd);
        int64_t size = fffs_object_size(number);

        request->actual = 0;
        request->status = 0;
        if (request->length == 0)
            request->status = fffs_is_bad(request, 0) ? -EBADMSG : 0;
        else if (size >= 0 && !is_inside(request, size))
            request->status = -ENODATA;
        else
            some[used++] = request; /* of an unknown size: the first request of all */
    }
    if (staged)
        used = fffs_ahead_take(some, used, cancel);
    int status = read_all(some, used, &silence, cancel);
    fffs_silence_end(&silence);
    free(some);
    for (size_t i = 0; i < count; i++)
        if (requests[i].status)
            result = -EIO;
    return status ? status : result;
}

int fffs_remote_read_batch(fffs_request *requests, size_t count, const int32_t *cancel)
{
    return read_batch(requests, count, cancel, true);
}

int fffs_remote_read_now(fffs_request *requests, size_t count, const int32_t *cancel)
{
    return read_batch(requests, count, cancel, false);
}

void fffs_remote_drop(int fd, int64_t offset, int64_t length)
{
    struct fffs_object_cache *cache = fffs_object_cache_at(fffs_object_of(fd));

    if (!cache)
        return;
    fffs_object_cache_drop(cache, offset, length);
    fffs_object_cache_count(cache, 0, 1);
}

void fffs_remote_suspect(int fd)
{
    struct fffs_object_cache *cache = fffs_object_cache_at(fffs_object_of(fd));

    if (cache)
        fffs_object_cache_suspect(cache);
}

/* Whether the cache has a range. */
static bool is_hot(const fffs_request *request, bool verified, bool wait)
{
    struct fffs_object_cache *cache = cache_of(request);

    return cache && fffs_object_cache_has(cache, request->offset, request->length, verified, wait);
}

bool fffs_remote_is_cached(int fd, int64_t offset, int64_t length)
{
    const fffs_request request = {.offset = offset, .length = length, .fd = fd};

    return is_hot(&request, false, false);
}

int fffs_remote_is_hot(const fffs_request *requests, size_t count, int32_t wait)
{
    for (size_t i = 0; i < count; i++)
        if (!is_hot(&requests[i], requests[i].check == FFFS_CHECK_NONE, wait))
            return 0;
    return 1;
}

int fffs_remote_hot_fd(int fd, int64_t offset, int64_t length, bool verified, bool wait)
{
    const fffs_request request = {.offset = offset, .length = length, .fd = fd};

    if (!is_hot(&request, verified, wait))
        return -EAGAIN;
    read_ahead(&request, false);
    return fffs_object_cache_fd(cache_of(&request));
}
