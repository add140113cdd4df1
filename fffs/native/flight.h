/* Reads in flight on one I/O context (flight.c); fffs_open_direct is in contract.h. */
#ifndef FFFS_FLIGHT_H
#define FFFS_FLIGHT_H

#include "piece.h"

/* The most reads in flight on one ring or AIO context: enough to keep a disk busy, and few enough for a fast setup
 * (tens of microseconds). */
enum { FFFS_DEPTH = 64 };

/* The most bytes of one read past the page cache; a longer piece takes several, one after another. */
enum { FFFS_DIRECT_MAX = 256 * 1024 };

/* One read being prepared or in flight. */
struct fffs_slot {
    struct fffs_piece *piece;
    uint8_t *scratch; /* pooled, owned by the slot, if the piece has no dest */
    uint8_t *direct;  /* room in the flight's memory, if the piece is read past the page cache */
};

/* The cold pieces of one batch that go through one I/O context. Owned and used by one thread. */
struct fffs_flight {
    struct fffs_piece **pieces; /* sorted by file and offset; not owned */
    size_t count, next;
    uint32_t free_count, again_count, scratch_count;
    uint8_t *direct;           /* pooled, if a piece is read past the page cache; or NULL */
    uint32_t room;             /* bytes of it for each slot: enough for the longest piece, or FFFS_DIRECT_MAX */
    uint8_t free[FFFS_DEPTH];  /* free slots */
    uint8_t again[FFFS_DEPTH]; /* slots whose piece needs another read */
    struct fffs_slot slots[FFFS_DEPTH];
};

void fffs_flight_open(struct fffs_flight *flight, struct fffs_piece **pieces, size_t count);

/* Returns a slot whose piece to read next (fffs_slot_size bytes, to fffs_slot_data), or -1 if there is none now: then
 * reads are in flight, or all is done. The caller has the slot until it calls one of the next three functions. */
int fffs_flight_next(struct fffs_flight *flight);

/* The slot's read could not be started: the next fffs_flight_next returns it again. */
void fffs_flight_again(struct fffs_flight *flight, int slot);

/* The slot's read returned a count or -errno. */
void fffs_flight_landed(struct fffs_flight *flight, int slot, int64_t result);

/* Frees a slot with nothing in flight. Its piece, if not finished, stays pending for a plain read. */
void fffs_flight_leave(struct fffs_flight *flight, int slot);

/* Frees the flight's memory. No read may be in flight. */
void fffs_flight_close(struct fffs_flight *flight);

/* Bytes that a read past the page cache returns before the wanted ones. */
static inline uint32_t fffs_slot_skip(const struct fffs_slot *slot)
{
    return slot->direct ? (uint32_t)(fffs_piece_offset(slot->piece) % slot->piece->align) : 0;
}
static inline int fffs_slot_fd(const struct fffs_slot *slot)
{
    return slot->direct ? slot->piece->direct_fd : slot->piece->fd;
}
static inline uint8_t *fffs_slot_data(const struct fffs_slot *slot)
{
    if (slot->direct)
        return slot->direct;
    return slot->scratch ? slot->scratch : slot->piece->dest + slot->piece->done;
}
static inline uint32_t fffs_slot_size(const struct fffs_slot *slot)
{
    uint32_t rest = slot->piece->length - slot->piece->done;

    if (!slot->direct)
        return rest;
    uint32_t whole = (rest + fffs_slot_skip(slot) + slot->piece->align - 1) / slot->piece->align * slot->piece->align;
    return whole < FFFS_DIRECT_MAX ? whole : FFFS_DIRECT_MAX;
}
static inline int64_t fffs_slot_offset(const struct fffs_slot *slot)
{
    return fffs_piece_offset(slot->piece) - fffs_slot_skip(slot);
}

#endif
