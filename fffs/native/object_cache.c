/* Blocks of an object on the local disk.
 *
 * Two bitmaps say what this process and its children of fork know: which blocks are present, as the map in the file said or as
 * they wrote them themselves, and which were compared with the checksum in the map. Their memory is shared, so that the workers of
 * the next epoch, new children, need not ask the map again. A record with a checksum of its own needs only the first: it is
 * compared as a whole when it is read. Bits are only ever cleared by drop. Blocks have no locks: writing one twice writes the same
 * bytes. Claims only save a second request for them. */
#include "object_cache.h"
#include "clock.h"
#include "fault.h"
#include "fork.h"
#include "object_totals.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = FFFS_CACHE_BLOCK, HEAD = FFFS_CACHE_HEAD };

/* Blocks whose entries of the map are read at a time. */
enum { ENTRIES = 512 };

/* Milliseconds for which a thread waits for another one before it looks whether it should. */
enum { SLICE = 50 };

/* Bytes of the first and the largest step that is read ahead. While one step is used, the next is fetched. */
enum { STEP_FIRST = 256 * 1024, STEP_MOST = 16 * 1024 * 1024 };

/* Nanoseconds for which a range that could not be fetched is in no step. */
#define LEFT_OUT_FOR (10 * FFFS_SECOND)

struct fffs_object_cache {
    int data_fd, map_fd;
    int64_t size, keep_free;
    size_t bitmaps_size;                  /* bytes of the next two together */
    _Atomic uint64_t *present, *verified; /* [blocks] bits, shared with children of fork */
    _Atomic int64_t room;                 /* bytes that may be added */
    _Atomic bool broken;                  /* a write failed */
    /* Of a reader of one part after the other: where its last step begins and ends, and how long that is. */
    _Atomic int64_t step_start, step_end, step;
    /* What is in no step, and when it may be again. */
    _Atomic int64_t left_out_start, left_out_end, left_out_until;
    _Atomic uint64_t hits, refetched;
    uint64_t drops_before;  /* the number in the map when it was opened */
    _Atomic uint64_t drops; /* the last one that was seen */
};

/* ---------------------------------------------------------------- life */

/* Returns zeroed memory that children of fork share, or NULL. It costs nothing until a page of it is touched. */
static void *share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static int64_t place_of_drops(int64_t size)
{
    return HEAD + (size / BLOCK + 1) * (int64_t)sizeof(uint32_t);
}

/* Returns the number in the map that changes when entries are removed, or what it was if it cannot be read. */
static uint64_t read_drops(int map_fd, int64_t size, int flags, uint64_t before)
{
    uint64_t drops = 0;
    struct iovec memory = {&drops, sizeof drops};
    ssize_t got = preadv2(map_fd, &memory, 1, place_of_drops(size), flags);

    if (got < 0 && errno != EAGAIN) /* tmpfs and overlay file systems have no RWF_NOWAIT */
        got = pread(map_fd, &drops, sizeof drops, place_of_drops(size));
    return got < 0 ? before : drops;
}

void fffs_object_cache_note_drop(int map_fd, int64_t size)
{
    uint64_t drops = (uint64_t)fffs_now();

    (void)fffs_write_fully(map_fd, place_of_drops(size), (const uint8_t *)&drops, sizeof drops);
}

uint64_t fffs_object_cache_drops(struct fffs_object_cache *cache)
{
    uint64_t drops = read_drops(cache->map_fd, cache->size, RWF_NOWAIT, atomic_load(&cache->drops));

    atomic_store(&cache->drops, drops);
    return drops ^ cache->drops_before;
}

int fffs_object_cache_new(int data_fd, int map_fd, int64_t size, int64_t limit, int64_t keep_free,
                          struct fffs_object_cache **cache)
{
    struct fffs_object_cache *new = fffs_allocate_zeroed(1, sizeof *new);
    size_t words = (size_t)(size / BLOCK / 64 + 1);

    if (!new)
        return -ENOMEM;
    new->data_fd = data_fd;
    new->map_fd = map_fd;
    new->size = size;
    new->keep_free = keep_free;
    atomic_init(&new->room, limit);
    atomic_init(&new->step_start, -1);
    atomic_init(&new->step_end, -1);
    /* One mapping for both, because their number is limited. */
    new->bitmaps_size = 2 * words * sizeof *new->present;
    new->present = share(new->bitmaps_size);
    if (!new->present) {
        free(new);
        return -ENOMEM;
    }
    new->verified = new->present + words;
    new->drops_before = read_drops(map_fd, size, 0, 0);
    atomic_init(&new->drops, new->drops_before);
    *cache = new;
    return 0;
}

void fffs_object_cache_free(struct fffs_object_cache *cache)
{
    if (!cache)
        return;
    munmap((void *)cache->present, cache->bitmaps_size);
    free(cache);
}

int fffs_object_cache_fd(const struct fffs_object_cache *cache)
{
    return cache->data_fd;
}

bool fffs_object_cache_grows(const struct fffs_object_cache *cache)
{
    return !atomic_load(&cache->broken) && atomic_load(&cache->room) > 0;
}

void fffs_object_cache_count(struct fffs_object_cache *cache, uint64_t hits, uint64_t refetched)
{
    atomic_fetch_add_explicit(&cache->hits, hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&cache->refetched, refetched, memory_order_relaxed);
}

void fffs_object_cache_counters(const struct fffs_object_cache *cache, fffs_object_state *state)
{
    state->hits = atomic_load(&cache->hits);
    state->refetched = atomic_load(&cache->refetched);
}

/* ---------------------------------------------------------------- bits */

static bool has_bit(const _Atomic uint64_t *bits, int64_t block)
{
    return atomic_load_explicit(&bits[block / 64], memory_order_acquire) >> (block % 64) & 1;
}

static void set_bit(_Atomic uint64_t *bits, int64_t block)
{
    atomic_fetch_or_explicit(&bits[block / 64], UINT64_C(1) << (block % 64), memory_order_release);
}

static void clear_bit(_Atomic uint64_t *bits, int64_t block)
{
    atomic_fetch_and(&bits[block / 64], ~(UINT64_C(1) << (block % 64)));
}

/* Whether all bits from the first to the last one are set. */
static bool has_all(const _Atomic uint64_t *bits, int64_t first, int64_t last)
{
    for (int64_t word = first / 64; word <= last / 64; word++) {
        uint64_t wanted = word == first / 64 ? UINT64_MAX << (first % 64) : UINT64_MAX;

        if (word == last / 64)
            wanted &= UINT64_MAX >> (63 - last % 64);
        if (wanted & ~atomic_load_explicit(&bits[word], memory_order_acquire))
            return false;
    }
    return true;
}

static int64_t last_block(int64_t offset, int64_t length)
{
    return (offset + length - 1) / BLOCK;
}

static size_t size_of(const struct fffs_object_cache *cache, int64_t block)
{
    int64_t rest = cache->size - block * BLOCK;

    return rest < BLOCK ? (size_t)rest : BLOCK;
}

/* Reads entries of the map, at most ENTRIES; what cannot be read is absent. */
static void read_entries(const struct fffs_object_cache *cache, int64_t first, int64_t count, uint32_t *entries)
{
    size_t size = (size_t)count * sizeof *entries;
    int64_t got = fffs_pread(cache->map_fd, entries, size, HEAD + first * (int64_t)sizeof *entries);

    got = got < 0 ? 0 : got;
    memset((uint8_t *)entries + got, 0, size - (size_t)got);
}

/* Notes which blocks other processes added. */
static void learn_present(struct fffs_object_cache *cache, int64_t first, int64_t last)
{
    uint32_t entries[ENTRIES];

    while (first <= last) {
        int64_t count = last - first + 1 < ENTRIES ? last - first + 1 : ENTRIES;

        read_entries(cache, first, count, entries);
        for (int64_t i = 0; i < count; i++)
            if (entries[i])
                set_bit(cache->present, first + i);
        first += count;
    }
}

/* ---------------------------------------------------------------- verifying */

/* Compares a block with the map. */
static bool verify(struct fffs_object_cache *cache, int64_t block)
{
    uint8_t data[BLOCK];
    uint32_t entry;
    size_t size = size_of(cache, block);

    if (has_bit(cache->verified, block))
        return true;
    read_entries(cache, block, 1, &entry);
    if (!entry || fffs_pread(cache->data_fd, data, size, block * BLOCK) != (int64_t)size ||
        fffs_object_cache_entry(data, size) != entry) {
        fffs_total_add(FFFS_TOTAL_DAMAGED_BLOCKS, entry != 0);
        fffs_object_cache_drop(cache, block * BLOCK, 1);
        if (entry)
            fffs_object_cache_suspect(cache);
        return false;
    }
    set_bit(cache->verified, block);
    return true;
}

bool fffs_object_cache_has(struct fffs_object_cache *cache, int64_t offset, int64_t length, bool verified, bool wait)
{
    int64_t first = offset / BLOCK, last = last_block(offset, length);
    bool good = true;

    if (length <= 0)
        return true;
    if (!has_all(cache->present, first, last)) {
        if (wait)
            learn_present(cache, first, last);
        if (!wait || !has_all(cache->present, first, last))
            return false;
    }
    if (!verified || has_all(cache->verified, first, last))
        return true;
    for (int64_t block = first; wait && block <= last; block++)
        good &= verify(cache, block);
    return wait && good;
}

bool fffs_object_cache_missing(struct fffs_object_cache *cache, int64_t offset, int64_t length, int64_t *start,
                               int64_t *end)
{
    int64_t block = offset / BLOCK, last = last_block(offset, length);

    while (block <= last && has_bit(cache->present, block))
        block++;
    if (length <= 0 || block > last)
        return false;
    *start = block * BLOCK;
    while (block <= last && !has_bit(cache->present, block))
        block++;
    *end = block * BLOCK < cache->size ? block * BLOCK : cache->size;
    return true;
}

void fffs_object_cache_leave_out(struct fffs_object_cache *cache, int64_t start, int64_t end)
{
    atomic_store(&cache->left_out_start, start);
    atomic_store(&cache->left_out_end, end);
    atomic_store(&cache->left_out_until, fffs_now() + LEFT_OUT_FOR);
}

/* Returns how much of a step is before what is left out. Another thread may change that meanwhile: it is only a guess, too. */
static int64_t shorten(const struct fffs_object_cache *cache, int64_t from, int64_t step)
{
    int64_t until = atomic_load(&cache->left_out_until), start = atomic_load(&cache->left_out_start);

    if (from + step <= start || from >= atomic_load(&cache->left_out_end) || fffs_now() >= until)
        return step;
    return start > from ? start - from : 0;
}

/* A reader of one file of a pack after the other misses where its last step ended. Its steps double; another place begins anew.
 * The two numbers are only a guess, so that threads may mix them up. */
int64_t fffs_object_cache_step(struct fffs_object_cache *cache, int64_t offset, int64_t length, bool missed,
                               int64_t *from)
{
    int64_t start = atomic_load(&cache->step_start), stop = atomic_load(&cache->step_end), end = offset + length,
            step = atomic_load(&cache->step), room = atomic_load(&cache->room) / 8;

    if (stop < 0 || end <= start - BLOCK || offset > stop + STEP_FIRST) {
        if (missed) { /* elsewhere: a reader that goes on from here reads in order */
            atomic_store(&cache->step, 0);
            atomic_store(&cache->step_start, end);
            atomic_store(&cache->step_end, end);
        }
        return 0;
    }
    step = step == 0 ? STEP_FIRST : step < STEP_MOST ? step * 2 : step;
    *from = stop > end ? stop : end;
    int64_t left = cache->size - *from;
    step = step < room ? step : room / BLOCK * BLOCK;
    step = shorten(cache, *from, step < left ? step : left);
    /* Of several threads that read at once, one takes the step. */
    if (step <= 0 || !atomic_compare_exchange_strong(&cache->step_start, &start, *from))
        return 0;
    atomic_store(&cache->step, step);
    atomic_store(&cache->step_end, *from + step);
    return step;
}

/* ---------------------------------------------------------------- claims */

/* Bytes that a thread fetches. */
struct fffs_object_claim {
    int fd; /* of the object */
    int64_t start, end;
};

/* One for all caches, so that the fork handlers can take it. It guards the claims and the waiters, never a request. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released;
static void *claims; /* of tsearch(3): each of many threads may have thousands */
static struct fffs_object_waiter *waiters;

__attribute__((constructor)) static void make_condition(void)
{
    fffs_condition_init(&released);
}

void fffs_object_cache_before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

void fffs_object_cache_after_fork(bool child)
{
    if (child) { /* the threads with claims, and those that wait, exist only in the parent, and so does who would free the former */
        fffs_condition_init(&released);
        claims = NULL;
        waiters = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

/* Claims that overlap are equal. This is an order, because those in the tree do not. */
static int by_bytes(const void *a, const void *b)
{
    const struct fffs_object_claim *one = a, *other = b;

    if (one->fd != other->fd)
        return one->fd < other->fd ? -1 : 1;
    return one->end <= other->start ? -1 : one->start >= other->end;
}

/* Returns a claim that overlaps with these bytes, or NULL. Under the mutex. */
static const struct fffs_object_claim *find_claim(int fd, int64_t start, int64_t end)
{
    struct fffs_object_claim bytes = {fd, start, end};
    void *node = tfind(&bytes, &claims, by_bytes);

    return node ? *(struct fffs_object_claim **)node : NULL;
}

bool fffs_object_cache_claim(int fd, int64_t start, int64_t *end, struct fffs_object_claim **claim)
{
    struct fffs_object_claim *mine = fffs_allocate(sizeof *mine);
    const struct fffs_object_claim *other;
    bool good = mine;

    *claim = mine;
    if (!mine)
        return false;
    pthread_mutex_lock(&mutex);
    while (good && (other = find_claim(fd, start, *end))) {
        good = other->start > start;
        int64_t until = good ? other->start : other->end;
        *end = until < *end ? until : *end;
    }
    if (good) {
        *mine = (struct fffs_object_claim){fd, start, *end};
        good = tsearch(mine, &claims, by_bytes);
    }
    pthread_mutex_unlock(&mutex);
    if (!good)
        free(mine);
    return good;
}

/* Returns the number of the first request after a place. */
static size_t first_after(const struct fffs_object_waiter *waiter, int fd, int64_t offset)
{
    size_t low = 0, high = waiter->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const fffs_request *request = waiter->sorted[middle];

        if (request->fd < fd || (request->fd == fd && request->offset < offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Notes that bytes could not be fetched. A batch may have as many requests as there are claims, so that it is searched. */
static void note_failure(struct fffs_object_waiter *waiter, int fd, int64_t from, int64_t until, int status)
{
    for (size_t i = first_after(waiter, fd, until); i-- > 0;) {
        const fffs_request *request = waiter->sorted[i];

        if (request->fd != fd || waiter->reach[i] <= from)
            return;
        if (request->offset + request->length > from)
            waiter->statuses[i] = status;
    }
}

void fffs_object_cache_release(struct fffs_object_claim *claim, int status, int64_t from, int64_t until)
{
    pthread_mutex_lock(&mutex);
    for (struct fffs_object_waiter *waiter = waiters; status && waiter; waiter = waiter->next)
        note_failure(waiter, claim->fd, from, until, status);
    tdelete(claim, &claims, by_bytes);
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&mutex);
    free(claim);
}

int fffs_object_cache_expect(struct fffs_object_waiter *self, fffs_request *const *sorted, size_t count)
{
    *self = (struct fffs_object_waiter){.sorted = sorted, .count = count, .link = &waiters};
    self->statuses = fffs_allocate_zeroed(count, sizeof *self->statuses);
    self->reach = fffs_allocate(count * sizeof *self->reach);
    if (!self->statuses || !self->reach) {
        free(self->statuses);
        free(self->reach);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t before = i && sorted[i - 1]->fd == sorted[i]->fd ? self->reach[i - 1] : 0;
        int64_t end = sorted[i]->offset + sorted[i]->length;

        self->reach[i] = end > before ? end : before;
    }
    pthread_mutex_lock(&mutex);
    self->next = waiters;
    if (waiters)
        waiters->link = &self->next;
    waiters = self;
    pthread_mutex_unlock(&mutex);
    return 0;
}

int fffs_object_cache_wait(struct fffs_object_waiter *self, size_t i, const int32_t *cancel)
{
    const fffs_request *request = self->sorted[i];
    int64_t start = request->offset / BLOCK * BLOCK, end = (last_block(request->offset, request->length) + 1) * BLOCK;

    pthread_mutex_lock(&mutex);
    while (!self->statuses[i] && find_claim(request->fd, start, end) &&
           !(cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED)))
        fffs_condition_wait(&released, &mutex, SLICE);
    int status = self->statuses[i];
    pthread_mutex_unlock(&mutex);
    return status;
}

void fffs_object_cache_forget(struct fffs_object_waiter *self)
{
    pthread_mutex_lock(&mutex);
    *self->link = self->next;
    if (self->next)
        self->next->link = self->link;
    pthread_mutex_unlock(&mutex);
    free(self->statuses);
    free(self->reach);
}

/* ---------------------------------------------------------------- changing */

/* Bytes that may be added in this process and its children of fork, whose memory this is. NULL: no limit. Under the mutex. */
static _Atomic int64_t *budget;

int fffs_object_cache_budget(int64_t bytes)
{
    pthread_mutex_lock(&mutex);
    if (!budget)
        budget = share(sizeof *budget);
    if (budget)
        atomic_store(budget, bytes);
    int status = budget ? 0 : -ENOMEM;
    pthread_mutex_unlock(&mutex);
    return status;
}

/* Takes bytes from a counter if it has as many. */
static bool take_from(_Atomic int64_t *counter, int64_t length)
{
    if (atomic_fetch_sub(counter, length) >= length)
        return true;
    atomic_fetch_add(counter, length);
    return false;
}

/* Whether so many bytes may be added: to this cache, to all together, and to the file system, which others fill as well. */
static bool take_room(struct fffs_object_cache *cache, int64_t length)
{
    struct statvfs system;

    if (fstatvfs(cache->data_fd, &system) || (int64_t)(system.f_bavail * system.f_frsize) - length < cache->keep_free)
        return false;
    pthread_mutex_lock(&mutex);
    _Atomic int64_t *shared = budget;
    pthread_mutex_unlock(&mutex);
    return take_from(&cache->room, length) && (!shared || take_from(shared, length));
}

/* Writes at most ENTRIES blocks. */
static void put_some(struct fffs_object_cache *cache, int64_t first, const uint8_t *data, size_t size)
{
    int64_t count = (int64_t)((size - 1) / BLOCK) + 1;
    uint32_t entries[ENTRIES];

    for (int64_t i = 0; i < count; i++)
        entries[i] = fffs_object_cache_entry(data + i * BLOCK, size_of(cache, first + i));
    int failed = fffs_write_fully(cache->data_fd, first * BLOCK, data, size);
    if (!failed)
        failed = fffs_write_fully(cache->map_fd, HEAD + first * (int64_t)sizeof *entries, (const uint8_t *)entries,
                                  (size_t)count * sizeof *entries);
    if (failed)
        atomic_store(&cache->broken, true);
    for (int64_t i = 0; !failed && i < count; i++) {
        set_bit(cache->verified, first + i);
        set_bit(cache->present, first + i);
    }
}

/* Whether the file lost its end. It must not grow again: what this and other processes believe to be there would be zeros. Until
 * then, reading it fails. */
static bool is_cut(const struct fffs_object_cache *cache)
{
    struct stat found;

    return fstat(cache->data_fd, &found) || found.st_size < cache->size;
}

void fffs_object_cache_put(struct fffs_object_cache *cache, int64_t start, const uint8_t *data, int64_t length)
{
    if (is_cut(cache) || !take_room(cache, length)) {
        atomic_store(&cache->broken, true); /* what is there stays: an epoch reads everything once */
        return;
    }
    while (length > 0 && !atomic_load(&cache->broken)) {
        int64_t aligned = ENTRIES * BLOCK - start % (ENTRIES * BLOCK), some = length < aligned ? length : aligned;

        put_some(cache, start / BLOCK, data, (size_t)some);
        start += some;
        data += some;
        length -= some;
    }
}

void fffs_object_cache_drop(struct fffs_object_cache *cache, int64_t offset, int64_t length)
{
    const uint32_t absent = 0;

    for (int64_t block = offset / BLOCK; length > 0 && block <= last_block(offset, length); block++) {
        clear_bit(cache->verified, block);
        clear_bit(cache->present, block);
        (void)fffs_write_fully(cache->map_fd, HEAD + block * (int64_t)sizeof absent, (const uint8_t *)&absent,
                               sizeof absent);
    }
}

void fffs_object_cache_suspect(struct fffs_object_cache *cache)
{
    fffs_object_cache_note_drop(cache->map_fd, cache->size);
}
