/* Blocks of an object on the local disk.
 *
 * Two bitmaps say what this process knows: which blocks are present, as the map in the file said or as it wrote them itself, and
 * which were compared with the checksum in the map. A record with a checksum of its own needs only the first: it is compared as a
 * whole when it is read. Bits are only ever cleared by drop. There are no locks: writing a block twice writes the same bytes. */
#include "object_cache.h"
#include "fault.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = FFFS_CACHE_BLOCK, HEAD = FFFS_CACHE_HEAD };

/* Blocks whose entries of the map are read at a time. */
enum { ENTRIES = 512 };

/* Bytes that are read ahead, from the first to the largest step. */
enum { AHEAD_FIRST = 256 * 1024, AHEAD_MOST = 8 * 1024 * 1024 };

struct fffs_object_cache {
    int data_fd, map_fd;
    int64_t size;
    _Atomic uint64_t *present, *verified; /* [blocks] bits */
    _Atomic int64_t room;                 /* bytes that may be added */
    _Atomic bool broken;                  /* a write failed */
    _Atomic int64_t expected, window; /* where a reader of one part after the other reads next, and its last step */
    _Atomic uint64_t hits, refetched;
};

/* ---------------------------------------------------------------- life */

int fffs_object_cache_new(int data_fd, int map_fd, int64_t size, int64_t limit, struct fffs_object_cache **cache)
{
    struct fffs_object_cache *new = fffs_allocate_zeroed(1, sizeof *new);
    size_t words = (size_t)(size / BLOCK / 64 + 1);

    if (!new)
        return -ENOMEM;
    new->data_fd = data_fd;
    new->map_fd = map_fd;
    new->size = size;
    atomic_init(&new->room, limit);
    atomic_init(&new->expected, -1);
    /* calloc of a large array costs nothing until a page of it is touched. */
    new->present = fffs_allocate_zeroed(words, sizeof *new->present);
    new->verified = fffs_allocate_zeroed(words, sizeof *new->verified);
    if (!new->present || !new->verified) {
        fffs_object_cache_free(new);
        return -ENOMEM;
    }
    *cache = new;
    return 0;
}

void fffs_object_cache_free(struct fffs_object_cache *cache)
{
    if (!cache)
        return;
    free((void *)cache->present);
    free((void *)cache->verified);
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

/* The checksum of a block as in the map. 0 means absent, so it stands for no checksum. */
static uint32_t entry_of(const uint8_t *data, size_t size)
{
    uint32_t crc = fffs_crc32c(0, data, size);

    return crc ? crc : UINT32_MAX;
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

static bool all_present(const struct fffs_object_cache *cache, int64_t first, int64_t last)
{
    for (int64_t block = first; block <= last; block++)
        if (!has_bit(cache->present, block))
            return false;
    return true;
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
        entry_of(data, size) != entry) {
        fffs_object_cache_drop(cache, block * BLOCK, 1);
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
    if (!all_present(cache, first, last)) {
        if (wait)
            learn_present(cache, first, last);
        if (!wait || !all_present(cache, first, last))
            return false;
    }
    for (int64_t block = first; verified && block <= last; block++)
        good &= wait ? verify(cache, block) : has_bit(cache->verified, block);
    return good;
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

/* A reader of one file of a pack after the other misses where its last step ended. Its steps double; another place begins anew.
 * The two numbers are only a guess, so that threads may mix them up. */
int64_t fffs_object_cache_ahead(struct fffs_object_cache *cache, int64_t start, int64_t end)
{
    int64_t expected = atomic_load(&cache->expected), window = atomic_load(&cache->window), left = cache->size - end,
            rest = left;
    bool goes_on = expected >= 0 && start >= expected - BLOCK && start <= expected + AHEAD_FIRST;

    window = !goes_on ? 0 : window == 0 ? AHEAD_FIRST : window < AHEAD_MOST ? window * 2 : window;
    rest = rest < atomic_load(&cache->room) / 8 ? rest : atomic_load(&cache->room) / 8;
    window = window > rest ? rest < 0 ? 0 : rest : window;
    /* Whole blocks, so that the next step begins with a block that is missing. */
    window = window == left ? left : window / BLOCK * BLOCK;
    atomic_store(&cache->window, window);
    atomic_store(&cache->expected, end + window);
    return window;
}

/* ---------------------------------------------------------------- changing */

void fffs_object_cache_put(struct fffs_object_cache *cache, int64_t start, const uint8_t *data, int64_t length)
{
    uint32_t entries[ENTRIES];

    if (atomic_fetch_sub(&cache->room, length) < length) {
        atomic_fetch_add(&cache->room, length);
        atomic_store(&cache->broken, true); /* what is there stays: an epoch reads everything once */
        return;
    }
    while (length > 0 && !atomic_load(&cache->broken)) {
        int64_t first = start / BLOCK, some = length < ENTRIES * BLOCK ? length : ENTRIES * BLOCK;
        int64_t count = (some - 1) / BLOCK + 1;

        for (int64_t i = 0; i < count; i++)
            entries[i] = entry_of(data + i * BLOCK, size_of(cache, first + i));
        int failed = fffs_write_fully(cache->data_fd, start, data, (size_t)some);
        if (!failed)
            failed = fffs_write_fully(cache->map_fd, HEAD + first * (int64_t)sizeof *entries,
                                      (const uint8_t *)entries, (size_t)count * sizeof *entries);
        if (failed)
            atomic_store(&cache->broken, true);
        for (int64_t i = 0; !failed && i < count; i++) {
            set_bit(cache->verified, first + i);
            set_bit(cache->present, first + i);
        }
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
