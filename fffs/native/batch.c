/* Batches: splits requests into pieces and combines their results. */
#include "batch.h"
#include "contexts.h"
#include "crc.h"
#include "fault.h"

#include <errno.h>
#include <stdlib.h>

static bool is_valid(const fffs_request *request)
{
    return request->offset >= 0 && request->length >= 0 && request->offset <= INT64_MAX - request->length &&
           (request->check & ~FFFS_CHECK_COMPUTE) <= FFFS_CHECK_CRC32C && fffs_is_alignment(request->align);
}

static uint64_t count_pieces(const fffs_request *request)
{
    if (!is_valid(request) || request->length <= FFFS_BLOCK)
        return 1;
    return ((uint64_t)request->length - 1) / FFFS_BLOCK + 1;
}

/* Writes the pieces of one request: at least one, which is finished already if there is nothing to read. */
static struct fffs_piece *cut_request(const fffs_request *request, uint32_t number, struct fffs_piece *piece)
{
    uint64_t count = count_pieces(request);
    int32_t status = !is_valid(request) ? -EINVAL : request->length == 0 ? 0 : FFFS_PENDING;

    for (uint64_t i = 0; i < count; i++, piece++) {
        int64_t start = (int64_t)i * FFFS_BLOCK, rest = request->length - start;

        piece->dest = request->dest ? request->dest + start : NULL;
        piece->offset = request->offset + start;
        piece->length = status != FFFS_PENDING ? 0 : rest < FFFS_BLOCK ? (uint32_t)rest : FFFS_BLOCK;
        piece->done = 0;
        piece->crc = 0;
        piece->fd = request->fd;
        piece->status = status;
        piece->request = number;
        piece->check = request->check & ~FFFS_CHECK_COMPUTE;
        piece->around = request->around;
        piece->align = request->align;
        piece->direct_fd = request->direct_fd;
    }
    return piece;
}

int fffs_batch_open(struct fffs_batch *self, fffs_request *requests, size_t count)
{
    uint64_t total = 0;

    if (count > UINT32_MAX)
        return -EINVAL;
    self->requests = requests;
    self->count = count;
    self->bytes = 0;
    for (size_t i = 0; i < count; i++) {
        total += count_pieces(&requests[i]); /* at most 2^32 + 2^43: no overflow */
        if (total > UINT32_MAX)
            return -ENOMEM;
        self->bytes += is_valid(&requests[i]) ? (uint64_t)requests[i].length : 0;
    }
    self->piece_count = (size_t)total;
    self->direct = total > 1 && fffs_backend_selected();
    self->pieces = self->few_pieces;
    self->left = self->few_left;
    if (total > FFFS_FEW_PIECES) {
        self->pieces = fffs_allocate((size_t)total * (sizeof *self->pieces + sizeof *self->left));
        if (!self->pieces)
            return -ENOMEM;
        self->left = (struct fffs_piece **)(self->pieces + total);
    }
    struct fffs_piece *piece = self->pieces;
    for (size_t i = 0; i < count; i++)
        piece = cut_request(&requests[i], (uint32_t)i, piece);
    atomic_init(&self->cursor, 0);
    atomic_init(&self->miss_count, 0);
    atomic_init(&self->blind_count, 0);
    atomic_init(&self->misses_in_row, 0);
    return 0;
}

int fffs_batch_close(struct fffs_batch *self)
{
    const struct fffs_piece *piece = self->pieces, *end = self->pieces + self->piece_count;
    int result = 0;

    for (size_t i = 0; i < self->count; i++) {
        fffs_request *request = &self->requests[i];

        request->status = piece->status;
        request->actual = piece->crc;
        for (piece++; piece < end && piece->request == i; piece++) {
            if (!request->status)
                request->status = piece->status;
            request->actual = fffs_checksum_combine(piece->check, request->actual, piece->crc, piece->length);
        }
        if (request->status)
            request->actual = 0;
        else if (fffs_is_bad(request, request->actual))
            request->status = -EBADMSG;
        if (request->status)
            result = -EIO;
    }
    if (self->pieces != self->few_pieces)
        free(self->pieces);
    return result;
}
