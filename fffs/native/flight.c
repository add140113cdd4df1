/* Flights: what an asynchronous backend has of a batch, and the memory it reads into.
 *
 * A read past the page cache needs offsets and addresses that are multiples of the file system's alignment, but
 * records begin anywhere. So it reads the aligned range around a piece into memory of the flight, and the piece is
 * copied from there. The kernel copies from the page cache, too, whose pages it must also find, fill and release. */
#include "flight.h"
#include "descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most scratch buffers in flight at a time on one ring, of up to FFFS_BLOCK each. */
enum { SCRATCH_LIMIT = 16 };

enum { HUGE_PAGE = 2 * 1024 * 1024 };

/* ---------------------------------------------------------------- opening */

/* Refuses files for which statx reports no alignment, even if O_DIRECT might work. That excludes kernels before 5.12,
 * on which a fork during such a read may lose its bytes. */
int fffs_open_direct(int fd, uint32_t *align)
{
#ifdef STATX_DIOALIGN
    struct statx found;
    char path[40];

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found))
        return -errno;
    if (!(found.stx_mask & STATX_DIOALIGN) || found.stx_dio_offset_align == 0)
        return -EOPNOTSUPP;
    *align = found.stx_dio_offset_align;
    if (*align < found.stx_dio_mem_align)
        *align = found.stx_dio_mem_align;
    if (!fffs_is_alignment(*align))
        return -EOPNOTSUPP;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fffs_above_standard(open(path, O_RDONLY | O_DIRECT | O_CLOEXEC));
#else
    (void)fd;
    (void)align;
    return -EOPNOTSUPP; /* the headers are too old */
#endif
}

/* ---------------------------------------------------------------- slots */

/* Uses huge pages: a device writes 112 KiB into one of them at once, and into small pages in 28 parts, which took
 * twice as long. */
static void open_direct_memory(struct fffs_flight *flight)
{
    uint32_t longest = 0, align = 0, slots = FFFS_DEPTH;

    for (size_t i = 0; i < flight->count; i++) {
        const struct fffs_piece *piece = flight->pieces[i];

        if (piece->align > align)
            align = piece->align;
        if (piece->align && piece->length > longest)
            longest = piece->length;
    }
    flight->direct = NULL;
    if (align == 0)
        return;
    flight->room = (longest + 2 * align - 1) / align * align;
    if (flight->room > FFFS_DIRECT_MAX)
        flight->room = FFFS_DIRECT_MAX;
    if (slots > flight->count)
        slots = (uint32_t)flight->count;
    size_t size = (size_t)slots * flight->room;
    flight->direct = fffs_buffer_take(size < HUGE_PAGE ? HUGE_PAGE : size);
}

void fffs_flight_open(struct fffs_flight *flight, struct fffs_piece **pieces, size_t count)
{
    flight->pieces = pieces;
    flight->count = count;
    flight->next = 0;
    flight->free_count = FFFS_DEPTH;
    flight->again_count = flight->scratch_count = 0;
    for (uint32_t i = 0; i < FFFS_DEPTH; i++) {
        flight->free[i] = (uint8_t)(FFFS_DEPTH - 1 - i); /* taken from the back: slot 0 first */
        flight->slots[i].piece = NULL;
        flight->slots[i].scratch = flight->slots[i].direct = NULL;
    }
    open_direct_memory(flight);
}

int fffs_flight_next(struct fffs_flight *flight)
{
    if (flight->again_count > 0)
        return flight->again[--flight->again_count];
    while (flight->free_count > 0 && flight->next < flight->count) {
        struct fffs_piece *piece = flight->pieces[flight->next];
        int slot = flight->free[flight->free_count - 1];

        if (piece->align) {
            if (!flight->direct) {
                flight->next++; /* no memory: a plain read needs none, or less */
                continue;
            }
            flight->slots[slot].direct = flight->direct + (size_t)slot * flight->room;
        } else if (!piece->dest) {
            if (flight->scratch_count == SCRATCH_LIMIT)
                return -1;
            flight->slots[slot].scratch = fffs_buffer_take(piece->length);
            if (!flight->slots[slot].scratch) {
                flight->next++; /* a plain read may get the memory */
                continue;
            }
            flight->scratch_count++;
        }
        flight->slots[slot].piece = piece;
        flight->free_count--;
        flight->next++;
        return slot;
    }
    return -1;
}

void fffs_flight_again(struct fffs_flight *flight, int slot)
{
    flight->again[flight->again_count++] = (uint8_t)slot;
}

void fffs_flight_leave(struct fffs_flight *flight, int slot)
{
    if (flight->slots[slot].scratch) {
        fffs_buffer_give(flight->slots[slot].scratch);
        flight->slots[slot].scratch = NULL;
        flight->scratch_count--;
    }
    flight->slots[slot].direct = NULL;
    flight->slots[slot].piece = NULL;
    flight->free[flight->free_count++] = (uint8_t)slot;
}

/* If a read past the page cache returns no wanted byte, the bypass may be the cause: a plain read decides. */
static void landed_direct(struct fffs_flight *flight, int slot, int64_t result)
{
    const struct fffs_slot *landed = &flight->slots[slot];
    uint32_t skip = fffs_slot_skip(landed), rest = landed->piece->length - landed->piece->done;

    if (result <= skip) {
        fffs_flight_leave(flight, slot);
        return;
    }
    result = result - skip < rest ? result - skip : rest;
    if (landed->piece->dest)
        memcpy(landed->piece->dest + landed->piece->done, landed->direct + skip, (size_t)result);
    if (fffs_piece_read(landed->piece, result, landed->direct + skip))
        fffs_flight_leave(flight, slot);
    else
        fffs_flight_again(flight, slot);
}

void fffs_flight_landed(struct fffs_flight *flight, int slot, int64_t result)
{
    struct fffs_slot *landed = &flight->slots[slot];

    if (landed->direct) {
        landed_direct(flight, slot, result);
        return;
    }
    if (fffs_piece_read(landed->piece, result, fffs_slot_data(landed)) || result <= 0)
        fffs_flight_leave(flight, slot);
    else
        fffs_flight_again(flight, slot);
}

void fffs_flight_close(struct fffs_flight *flight)
{
    for (uint32_t i = 0; i < FFFS_DEPTH; i++)
        fffs_buffer_give(flight->slots[i].scratch);
    fffs_buffer_give(flight->direct);
}
