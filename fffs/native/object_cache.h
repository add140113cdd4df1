/* The cache of an object on the local disk (object_cache.c): a sparse file with its bytes, and a map.
 *
 * The map has a 32-bit checksum for each block of the sparse file, 0 if the block is absent. Both files may be shared by many
 * processes, which all write the same bytes: those of one version of the object. Nothing is believed before it was compared with
 * a checksum once in this process, so that a write that a power cut lost costs only another request. */
#ifndef FFFS_OBJECT_CACHE_H
#define FFFS_OBJECT_CACHE_H

#include "fffs.h"

struct fffs_object_cache;
struct fffs_object_claim;

/* Requests of which others may fetch some bytes, in the caller's memory from fffs_object_cache_expect to fffs_object_cache_forget. */
struct fffs_object_waiter {
    fffs_request *const *sorted; /* [count] by fd and offset */
    size_t count;
    int *statuses;  /* [count] of bytes that could not be fetched */
    int64_t *reach; /* [count] the furthest end of the requests of the same object up to this one */
    struct fffs_object_waiter *next, **link;
};

/* Returns the checksum of a block as in the map. 0 means absent, so it stands for no checksum. Pure. */
static inline uint32_t fffs_object_cache_entry(const uint8_t *data, size_t size)
{
    uint32_t crc = fffs_crc32c(0, data, size);

    return crc ? crc : UINT32_MAX;
}

/* Makes the cache of an object of so many bytes. The descriptors are the caller's, and must stay open. limit and
 * keep_free: see fffs_object_use_cache. Returns 0 or -ENOMEM. */
int fffs_object_cache_new(int data_fd, int map_fd, int64_t size, int64_t limit, int64_t keep_free,
                          struct fffs_object_cache **cache);
void fffs_object_cache_free(struct fffs_object_cache *cache);

/* Returns the descriptor of the sparse file. */
int fffs_object_cache_fd(const struct fffs_object_cache *cache);

/* Whether all blocks of a range are there. verified: also compares those with their checksums that were not yet, and removes
 * those that differ. wait: false: only by what this process knows. Thread-safe. */
bool fffs_object_cache_has(struct fffs_object_cache *cache, int64_t offset, int64_t length, bool verified, bool wait);

/* Finds the first run of missing blocks in a range. Returns false if there is none. Thread-safe. */
bool fffs_object_cache_missing(struct fffs_object_cache *cache, int64_t offset, int64_t length, int64_t *start,
                               int64_t *end);

/* Notes a read, which missed something or did not. If it is one of a reader of one part after the other, returns how many bytes
 * from *from on should be fetched now, else 0. Thread-safe. */
int64_t fffs_object_cache_step(struct fffs_object_cache *cache, int64_t offset, int64_t length, bool missed,
                               int64_t *from);

/* Has the next steps leave out a range, of which some could not be fetched. Thread-safe. */
void fffs_object_cache_leave_out(struct fffs_object_cache *cache, int64_t start, int64_t end);

/* Claims the begin of a run of missing blocks of fd for the calling thread, which will fetch it; *end may become smaller. Returns false
 * if another thread fetches the first block already, which it does up to *end, or without memory. *claim is freed by fffs_object_cache_release. Thread-safe. */
bool fffs_object_cache_claim(int fd, int64_t start, int64_t *end, struct fffs_object_claim **claim);

/* Ends a claim. status: 0, or with what bytes from on to until could not be fetched. Who expects some of these gets it. */
void fffs_object_cache_release(struct fffs_object_claim *claim, int status, int64_t from, int64_t until);

/* Begins to note whether bytes could not be fetched: before the caller finds out what others fetch, whose failures it would else miss.
 * The requests must stay where they are until fffs_object_cache_forget. Returns 0 or -ENOMEM. Thread-safe. */
int fffs_object_cache_expect(struct fffs_object_waiter *self, fffs_request *const *sorted, size_t count);
void fffs_object_cache_forget(struct fffs_object_waiter *self);

/* Waits until no other thread fetches a block of sorted[i], some of its bytes could not be fetched, or *cancel is set. The caller must
 * have no claim: two that wait for each other would wait for ever. Returns 0 or the status of these bytes. Thread-safe. */
int fffs_object_cache_wait(struct fffs_object_waiter *self, size_t i, const int32_t *cancel);

/* Writes bytes of whole blocks (the last may be the end of the object). Failures only have the effect that they are missing
 * later. Thread-safe. */
void fffs_object_cache_put(struct fffs_object_cache *cache, int64_t start, const uint8_t *data, int64_t length);

/* Forgets the blocks of a range, whose bytes are wrong. Thread-safe. */
void fffs_object_cache_drop(struct fffs_object_cache *cache, int64_t offset, int64_t length);

/* Whether more can be added. Thread-safe. */
bool fffs_object_cache_grows(const struct fffs_object_cache *cache);

/* Adds to the counters of fffs_object_state. Thread-safe. */
void fffs_object_cache_count(struct fffs_object_cache *cache, uint64_t hits, uint64_t refetched);
void fffs_object_cache_counters(const struct fffs_object_cache *cache, fffs_object_state *state);

/* Notes in the map that there was damage, so that what any process verified may be damaged. Failures are ignored. */
void fffs_object_cache_note_drop(int map_fd, int64_t size);
void fffs_object_cache_suspect(struct fffs_object_cache *cache);

/* Returns a number that changes when any process finds damage; 0: none has since the cache was opened. Does not wait for a
 * disk: then it is the number of before. */
uint64_t fffs_object_cache_drops(struct fffs_object_cache *cache);

#endif
