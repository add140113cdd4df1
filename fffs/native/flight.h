/* Reads in flight on one I/O context (flight.c); fffs_open_direct is in contract.h. */
#ifndef FFFS_FLIGHT_H
#define FFFS_FLIGHT_H

#include "piece.h"

/* Reads in flight at most on one ring or AIO context: as many as keep a disk busy, and few enough for it to be set up
 * in tens of microseconds. */
enum { FFFS_DEPTH = 64 };

/* The most that one of them brings; longer pieces take several, one after another. */
enum { FFFS_DIRECT_MAX = 256 * 1024 };

/* One read being prepared or in flight. */
struct fffs_slot {
    struct fffs_piece *piece;
    uint8_t *scratch; /* a pooled buffer of the slot's, where the piece has no dest */
    uint8_t *direct;  /* room in the flight's memory, where the piece is read past the page cache */
};

/* The cold pieces of one batch on their way through one I/O context. Owned and used by one thread. */
struct fffs_flight {
    struct fffs_piece **pieces; /* sorted by file and offset; not owned */
    size_t count, next;
    uint32_t free_count, again_count, scratch_count;
    uint8_t *direct;           /* pooled, when some piece is read past the page cache; or NULL */
    uint32_t room;             /* so much of it for each slot: for the longest piece, or FFFS_DIRECT_MAX */
    uint8_t free[FFFS_DEPTH];  /* slots nothing is in */
    uint8_t again[FFFS_DEPTH]; /* slots whose piece needs another read */
    struct fffs_slot slots[FFFS_DEPTH];
};

void fffs_flight_open(struct fffs_flight *flight, struct fffs_piece **pieces, size_t count);

/* A slot whose piece is to be read next (from fffs_slot_data, fffs_slot_size bytes), or -1 when there is none just
 * now: then either something is in flight, or all is done. The slot is the caller's until one of the next three. */
int fffs_flight_next(struct fffs_flight *flight);

/* Nothing could be started for the slot: the next call of fffs_flight_next returns it again. */
void fffs_flight_again(struct fffs_flight *flight, int slot);

/* The read of a slot came back, with a count or -errno. */
void fffs_flight_landed(struct fffs_flight *flight, int slot, int64_t result);

/* The slot is free again; its piece, if not finished, stays pending for a plain read. Nothing of it is in flight. */
void fffs_flight_leave(struct fffs_flight *flight, int slot);

/* Gives back what the slots hold. Nothing may be in flight. */
void fffs_flight_close(struct fffs_flight *flight);

/* What a read past the page cache brings along in front of the bytes that are wanted. */
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
