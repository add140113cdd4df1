/* FUSE_INIT: remembers the kernel's request, and edits the library's reply. */
#include "fastpath_init.h"

#include <linux/fuse.h>
#include <string.h>
#include <unistd.h>

void fffs_init_note(struct fffs_init *init, const uint8_t *message, size_t length)
{
    struct fuse_in_header header;
    struct fuse_init_in in;

    memcpy(&header, message, sizeof header);
    if (header.opcode != FUSE_INIT || length < sizeof header + sizeof in)
        return;
    memcpy(&in, message + sizeof header, sizeof in);
    atomic_store(&init->flags, in.flags);
    atomic_store(&init->unique, header.unique);
}

/* Whether the reply is a success with at least this many bytes behind its header. */
static bool agreed(const uint8_t *answer, size_t length, size_t least)
{
    struct fuse_out_header header;

    if (length < sizeof header + least)
        return false;
    memcpy(&header, answer, sizeof header);
    return header.error == 0;
}

/* Sets the kernel's limits on requests that wait for a reply. */
static void set_limits(struct fuse_init_out *out)
{
    out->max_background = FFFS_MAX_BACKGROUND;
    out->congestion_threshold = FFFS_CONGESTION;
}

void fffs_init_set_limits(uint8_t *answer, size_t length)
{
    const size_t head = sizeof(struct fuse_out_header), size = offsetof(struct fuse_init_out, max_write);
    struct fuse_init_out out;

    if (!agreed(answer, length, size))
        return;
    memcpy(&out, answer + head, size);
    set_limits(&out);
    memcpy(answer + head, &out, size);
}

static void edit(const fffs_fastpath_config *config, uint64_t offered, uint8_t *reply, size_t length)
{
    const uint32_t wanted = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_CACHE_SYMLINKS | FUSE_NO_OPEN_SUPPORT |
                            FUSE_NO_OPENDIR_SUPPORT | FUSE_MAX_PAGES | FUSE_DO_READDIRPLUS |
                            FUSE_EXPLICIT_INVAL_DATA | (config->readdirplus_auto ? FUSE_READDIRPLUS_AUTO : 0);
    struct fuse_init_out out;

    if (!agreed(reply, length, sizeof out))
        return;
    memcpy(&out, reply + sizeof(struct fuse_out_header), sizeof out);
    out.flags |= wanted & (uint32_t)offered;
    /* Without OPEN, the kernel would assume that O_TRUNC succeeded: make it send SETATTR, which can be refused. */
    out.flags &= ~(uint32_t)FUSE_ATOMIC_O_TRUNC;
    out.max_readahead = config->max_readahead;
    out.max_pages = (uint16_t)(config->max_read / (uint32_t)sysconf(_SC_PAGESIZE)); /* 64 KiB on some machines */
    set_limits(&out);
    /* The smallest value that the kernel accepts: a buffer for its messages must have room for a WRITE of this
     * size. */
    out.max_write = 4096;
    memcpy(reply + sizeof(struct fuse_out_header), &out, sizeof out);
}

bool fffs_init_answer(struct fffs_init *init, const fffs_fastpath_config *config, uint8_t *reply, size_t length)
{
    struct fuse_out_header header;

    memcpy(&header, reply, sizeof header);
    uint64_t unique = header.unique;
    if (unique == 0 || !atomic_compare_exchange_strong(&init->unique, &unique, 0))
        return false;
    edit(config, atomic_load(&init->flags), reply, length);
    return true;
}
