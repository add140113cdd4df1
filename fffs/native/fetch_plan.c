/* Joins pieces to ranges, and takes the bytes of a range apart. */
#include "fetch.h"

#include <stdlib.h>
#include <string.h>

/* Bytes; the lines of another request and of its answer are more. */
enum { SMALL_GAP = 256 };

static int by_place(const void *a, const void *b)
{
    const struct fffs_piece *one = *(struct fffs_piece *const *)a, *other = *(struct fffs_piece *const *)b;

    if (one->fd != other->fd)
        return one->fd < other->fd ? 1 : -1; /* descending: the numbers of objects ascend */
    if (one->offset != other->offset)
        return one->offset < other->offset ? -1 : 1;
    return one->request < other->request ? -1 : one->request > other->request;
}

/* Whether a piece is near enough to the end of a range. Larger gaps may cost an eighth of what was asked for: of many small
 * records that lie far apart, nearly everything would be dropped. Frames around tiny records are more than they. */
static bool belongs(const struct fffs_range *range, int64_t start, int64_t asked, const struct fffs_piece *piece,
                    int64_t most)
{
    int64_t gap = piece->offset - range->end, end = piece->offset + piece->length;
    int64_t after = end > range->end ? end : range->end;

    most = piece->around > most ? piece->around : most;

    if (range->object != fffs_object_of(piece->fd) || gap > FFFS_GAP || after - start > most)
        return false;
    return gap <= SMALL_GAP || after - start - asked - piece->length <= (asked + piece->length) / 8;
}

size_t fffs_plan_ranges(struct fffs_piece **pieces, size_t count, int64_t most, struct fffs_range *ranges)
{
    struct fffs_range *range = NULL;
    size_t made = 0;
    int64_t asked = 0;

    qsort(pieces, count, sizeof *pieces, by_place);
    for (size_t i = 0; i < count; i++) {
        struct fffs_piece *piece = pieces[i];
        int64_t end = piece->offset + piece->length;

        if (range && belongs(range, range->place, asked, piece, most)) {
            int64_t covered = range->end > piece->offset ? range->end - piece->offset : 0;

            asked += end - piece->offset > covered ? end - piece->offset - covered : 0;
            range->end = end > range->end ? end : range->end;
            range->count++;
            continue;
        }
        range = &ranges[made++];
        *range = (struct fffs_range){.object = fffs_object_of(piece->fd),
                                     .place = piece->offset,
                                     .end = end,
                                     .pieces = &pieces[i],
                                     .count = 1};
        asked = piece->length;
    }
    return made;
}

/* Makes a range of some pieces of another one, as far as they are pending. Returns false if none is. */
static bool cut(struct fffs_range *part, const struct fffs_range *whole, uint32_t first, uint32_t count)
{
    *part = *whole;
    part->pieces = whole->pieces + first;
    part->count = count;
    part->finished = 0;
    part->end = 0;
    while (part->finished < count && part->pieces[part->finished]->status != FFFS_PENDING)
        part->finished++;
    if (part->finished == count)
        return false;
    const struct fffs_piece *next = part->pieces[part->finished];
    part->place = fffs_piece_offset(next);
    for (uint32_t i = part->finished; i < count; i++) {
        const struct fffs_piece *piece = part->pieces[i];
        int64_t end = piece->offset + piece->length;

        if (piece->status == FFFS_PENDING && end > part->end)
            part->end = end;
    }
    return true;
}

size_t fffs_divide_range(struct fffs_range *range, uint32_t most, struct fffs_range *last)
{
    const struct fffs_range whole = *range;
    uint32_t first = whole.finished, left = whole.count - first, size = left / most + (left % most != 0);
    size_t made = 0;

    if (!left || whole.without_range || whole.pieces[first]->request == whole.pieces[whole.count - 1]->request)
        return 0;
    for (uint32_t i = first; i < whole.count; i++)
        if (whole.pieces[i]->offset + whole.pieces[i]->length > whole.end)
            return 0;
    for (uint32_t i = first; i < whole.count; i += size) {
        struct fffs_range *part = made ? last - (made - 1) : range;

        if (!cut(part, &whole, i, whole.count - i < size ? whole.count - i : size))
            continue;
        part->part = made || whole.part;
        made++;
    }
    return made;
}

/* Gives a piece its part of the bytes. */
static void feed(struct fffs_piece *piece, int64_t place, const uint8_t *data, size_t length)
{
    int64_t skipped = fffs_piece_offset(piece) - place;
    size_t rest = piece->length - piece->done;

    if (piece->status != FFFS_PENDING || skipped < 0 || skipped >= (int64_t)length)
        return;
    if (rest > length - (size_t)skipped)
        rest = length - (size_t)skipped;
    if (piece->dest)
        memcpy(piece->dest + piece->done, data + skipped, rest);
    (void)fffs_piece_read(piece, (int64_t)rest, data + skipped);
}

void fffs_range_take(struct fffs_range *range, const uint8_t *data, size_t length)
{
    int64_t after = range->place + (int64_t)length;

    for (uint32_t i = range->finished; i < range->count && range->pieces[i]->offset < after; i++)
        feed(range->pieces[i], range->place, data, length);
    while (range->finished < range->count && range->pieces[range->finished]->status != FFFS_PENDING)
        range->finished++;
    range->place = after;
}
