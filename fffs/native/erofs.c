/* Writes an EROFS image that holds the metadata of a tree: folders, links and inodes. The contents of its files are
 * ranges of other devices of that file system, which are the packed files. The kernel parses the image, so nothing may
 * come into it that fffs_tree_validate has not accepted.
 *
 * The image: the superblock and the table of devices; the inodes, in the order of the nodes; the blocks of folders and
 * of long link targets, in the order of the nodes. The format is described in Documentation/filesystems/erofs.rst and
 * fs/erofs/erofs_fs.h of Linux. */
#include "fault.h"
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    SUPERBLOCK_AT = 1024,
    DEVICES_AT = SUPERBLOCK_AT + 128,
    SLOT = 32, /* the number of an inode is its offset in these units */
    NO_BLOCK = -1,
    CHUNK_BITS = 31, /* the largest chunk: 1 TiB with blocks of 512 bytes */
    LONGEST_BLOCK = 4096
};

enum { MAGIC = 0xE0F5E1E2, COMPATIBLE_MTIME = 2, INCOMPATIBLE_CHUNKS = 4, INCOMPATIBLE_DEVICES = 8 };

/* i_format: bit 0 means 64 bytes; from bit 1 on, the layout of the data. */
enum { IN_BLOCKS = 0 << 1 | 1, INLINE = 2 << 1 | 1, IN_CHUNKS = 4 << 1 | 1 };

struct superblock {
    uint32_t magic, checksum, feature_compat;
    uint8_t block_bits, slots;
    uint16_t root;
    uint64_t inodes, build_time;
    uint32_t build_time_ns, blocks, meta_block, xattr_block;
    uint8_t uuid[16], volume[16];
    uint32_t feature_incompat;
    uint16_t compression, devices, device_slot;
    uint8_t folder_bits, prefixes;
    uint32_t prefix_start;
    uint64_t packed_inode;
    uint8_t reserved[24];
} __attribute__((packed));

struct device {
    uint8_t tag[64];
    uint32_t blocks, mapped_block;
    uint8_t reserved[56];
};

struct inode {
    uint16_t format, xattr_count, mode, reserved;
    uint64_t size;
    uint32_t data; /* the first block, or the format of the chunks */
    uint32_t number, uid, gid;
    int64_t mtime;
    uint32_t mtime_ns, nlink;
    uint8_t reserved2[16];
} __attribute__((packed));

struct chunk {
    uint16_t advise, device;
    uint32_t block;
};

struct dirent {
    uint64_t inode;
    uint16_t name_at;
    uint8_t type, reserved;
} __attribute__((packed));

_Static_assert(sizeof(struct superblock) == 128 && sizeof(struct device) == 128 && sizeof(struct inode) == 64 &&
                   sizeof(struct chunk) == 8 && sizeof(struct dirent) == 12,
               "the sizes in the format");

struct image {
    const fffs_erofs *in;
    const fffs_tree *tree;
    uint32_t *slots; /* of each node: where its inode is */
    uint64_t block;  /* the size of a block in bytes */
    uint64_t inodes_at, data_at;
    uint64_t next; /* the offset of the data of the next node that has blocks in the image */
    /* Output, in pieces. After an error, nothing more is written. */
    uint8_t *buffer;
    uint64_t written;
    size_t used;
    int status;
};

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---------------------------------------------------------------- output */

static void flush(struct image *m)
{
    if (!m->status)
        m->status = fffs_write_fully(m->in->fd, (int64_t)m->written, m->buffer, m->used);
    m->written += m->used;
    m->used = 0;
}

/* Appends bytes; zeros if data is NULL. */
static void put(struct image *m, const void *data, uint64_t size)
{
    while (size > 0) {
        size_t part = size < FFFS_BLOCK - m->used ? (size_t)size : FFFS_BLOCK - m->used;

        if (data) {
            memcpy(m->buffer + m->used, data, part);
            data = (const uint8_t *)data + part;
        } else {
            memset(m->buffer + m->used, 0, part);
        }
        m->used += part;
        size -= part;
        if (m->used == FFFS_BLOCK)
            flush(m);
    }
}

static uint64_t position(const struct image *m)
{
    return m->written + m->used;
}

static void fill_to(struct image *m, uint64_t offset)
{
    if (offset < position(m))
        m->status = -EIO; /* sizes and places contradict each other */
    else
        put(m, NULL, offset - position(m));
}

/* ---------------------------------------------------------------- folders */

/* The entries of a folder in the order of their names, with "." and "..". */
struct listing {
    const fffs_tree *tree;
    uint32_t node, first;
    uint64_t dot, dots, count; /* the positions of "." and "..", and how many entries there are with them */
};

struct name {
    const uint8_t *bytes;
    size_t length;
    uint32_t node;
};

static const uint8_t DOTS[2] = "..";

static struct name entry_of(const fffs_tree *t, uint64_t entry)
{
    uint32_t at = t->name_offsets[entry];

    return (struct name){t->names + at, t->name_offsets[entry + 1] - at, t->entry_nodes[entry]};
}

/* Returns how many entries come before a name. Few do, or the search is for ".": so it begins at the front. */
static uint64_t count_before(const fffs_tree *t, uint32_t first, uint32_t count, size_t dots)
{
    uint64_t i = 0;

    for (; i < count; i++) {
        struct name name = entry_of(t, first + i);

        if (fffs_compare_names(name.bytes, name.length, DOTS, dots) > 0)
            break;
    }
    return i;
}

static struct listing list_folder(const fffs_tree *t, uint32_t node)
{
    uint32_t first = t->ref[node], count = t->count[node];
    uint64_t dot = count_before(t, first, count, 1);

    return (struct listing){t, node, first, dot, count_before(t, first, count, 2) + 1, (uint64_t)count + 2};
}

static struct name name_at(const struct listing *folder, uint64_t k)
{
    if (k == folder->dot)
        return (struct name){DOTS, 1, folder->node};
    if (k == folder->dots)
        return (struct name){DOTS, 2, folder->tree->parent[folder->node]};
    return entry_of(folder->tree, folder->first + k - (k > folder->dot) - (k > folder->dots));
}

/* Returns the entry after those that fit into a block with entry k, and the bytes that they take. */
static uint64_t fill_block(const struct image *m, const struct listing *folder, uint64_t k, uint64_t *used)
{
    for (*used = 0; k < folder->count; k++) {
        uint64_t size = sizeof(struct dirent) + name_at(folder, k).length;

        if (*used + size > m->block)
            break;
        *used += size;
    }
    return k;
}

static uint64_t folder_size(const struct image *m, uint32_t node)
{
    struct listing folder = list_folder(m->tree, node);
    uint64_t size = 0, used = 0;

    for (uint64_t k = 0; k < folder.count; size += k < folder.count ? m->block : used)
        k = fill_block(m, &folder, k, &used);
    return size;
}

static uint8_t type_of(uint16_t mode)
{
    return S_ISDIR(mode) ? 2 : S_ISLNK(mode) ? 7 : 1;
}

static void put_folder(struct image *m, uint32_t node)
{
    struct listing folder = list_folder(m->tree, node);
    uint64_t used, begin = position(m);

    for (uint64_t k = 0; k < folder.count; begin += m->block) {
        uint64_t end = fill_block(m, &folder, k, &used);
        size_t at = (size_t)(end - k) * sizeof(struct dirent);

        fill_to(m, begin);
        for (uint64_t i = k; i < end; i++) {
            struct name name = name_at(&folder, i);
            struct dirent entry = {m->slots[name.node], (uint16_t)at, type_of(m->tree->mode[name.node]), 0};

            put(m, &entry, sizeof entry);
            at += name.length;
        }
        for (; k < end; k++) {
            struct name name = name_at(&folder, k);

            put(m, name.bytes, name.length);
        }
    }
}

/* ---------------------------------------------------------------- inodes */

static uint64_t file_size(const struct image *m, uint32_t node)
{
    uint32_t record = m->tree->ref[node];

    return (uint64_t)(m->in->ends[record] - m->in->starts[record]);
}

static uint64_t chunks_of(const struct image *m, uint64_t size)
{
    return round_up(size, m->block << CHUNK_BITS) / (m->block << CHUNK_BITS);
}

/* Whether the target of a link is stored behind its inode. There it must be in the same block. */
static bool is_inline(const struct image *m, uint32_t node)
{
    return sizeof(struct inode) + m->tree->count[node] <= m->block;
}

/* Returns where the inode of a node begins, if the one before ends at an offset. */
static uint64_t place_inode(const struct image *m, uint32_t node, uint64_t at)
{
    at = round_up(at, SLOT);
    if (!S_ISLNK(m->tree->mode[node]) || !is_inline(m, node))
        return at;
    bool crosses = at % m->block + sizeof(struct inode) + m->tree->count[node] > m->block;
    return crosses ? round_up(at, m->block) : at;
}

static uint64_t inode_size(const struct image *m, uint32_t node)
{
    uint16_t mode = m->tree->mode[node];
    uint64_t more = 0;

    if (S_ISREG(mode))
        more = chunks_of(m, file_size(m, node)) * sizeof(struct chunk);
    else if (S_ISLNK(mode) && is_inline(m, node))
        more = m->tree->count[node];
    return sizeof(struct inode) + more;
}

/* Writes where the chunks of a file are. Returns 0, or -EINVAL if the kernel could not read it there. */
static int put_chunks(struct image *m, uint32_t node)
{
    uint32_t record = m->tree->ref[node], device = 0;
    uint64_t begin = (uint64_t)m->in->starts[record], end = (uint64_t)m->in->ends[record];

    for (uint32_t above = m->in->devices; above - device > 1;) { /* firsts[device] <= record < firsts[above] */
        uint32_t middle = device + (above - device) / 2;

        *(m->in->firsts[middle] <= record ? &device : &above) = middle;
    }
    if (begin % m->block || end / m->block >= UINT32_MAX)
        return -EINVAL;
    for (; begin < end; begin += m->block << CHUNK_BITS) {
        struct chunk chunk = {0, (uint16_t)(device + 1), (uint32_t)(begin / m->block)};

        put(m, &chunk, sizeof chunk);
    }
    return 0;
}

static int put_inode(struct image *m, uint32_t node)
{
    const fffs_tree *t = m->tree;
    uint16_t mode = t->mode[node];
    const int64_t second = 1000000000;
    int64_t ns = t->mtime[node] % second; /* division rounds towards 0 */
    struct inode inode = {IN_BLOCKS, .mode = mode, .number = node + 1, .uid = m->in->uid, .gid = m->in->gid};

    inode.mtime = t->mtime[node] / second - (ns < 0);
    inode.mtime_ns = (uint32_t)(ns < 0 ? ns + second : ns);
    inode.nlink = t->nlink[node];
    if (!S_ISLNK(mode))
        inode.mode &= (uint16_t)~(m->in->umask | (node == 0 ? m->in->root_umask : 0));
    if (S_ISREG(mode)) {
        inode.size = file_size(m, node);
        inode.format = inode.size ? IN_CHUNKS : IN_BLOCKS;
        inode.data = inode.size ? 0x20 | CHUNK_BITS : (uint32_t)NO_BLOCK;
    } else {
        inode.size = S_ISDIR(mode) ? folder_size(m, node) : t->count[node];
        inode.data = (uint32_t)(m->next / m->block);
        if (S_ISLNK(mode) && is_inline(m, node))
            inode.format = INLINE;
        else
            m->next += round_up(inode.size, m->block);
    }
    if (m->next / m->block >= UINT32_MAX)
        return -EFBIG;
    fill_to(m, (uint64_t)m->slots[node] * SLOT);
    put(m, &inode, sizeof inode);
    if (inode.format == INLINE)
        put(m, t->targets + t->ref[node], t->count[node]);
    return inode.format == IN_CHUNKS ? put_chunks(m, node) : 0;
}

/* ---------------------------------------------------------------- the image */

static int place_inodes(struct image *m)
{
    uint64_t at = m->inodes_at = round_up(DEVICES_AT + m->in->devices * sizeof(struct device), m->block);

    if (m->inodes_at / SLOT > UINT16_MAX || m->in->devices >= UINT16_MAX) /* the root's number has 16 bits */
        return -E2BIG;
    for (uint32_t node = 0; node < m->tree->nodes; node++) {
        at = place_inode(m, node, at);
        if (at / SLOT > UINT32_MAX)
            return -EFBIG;
        m->slots[node] = (uint32_t)(at / SLOT);
        at += inode_size(m, node);
    }
    m->next = m->data_at = round_up(at, m->block);
    return 0;
}

static void put_superblock(struct image *m)
{
    struct superblock block = {
        .magic = MAGIC,
        .feature_compat = COMPATIBLE_MTIME,
        .block_bits = (uint8_t)m->in->block_bits,
        .root = (uint16_t)m->slots[0],
        .inodes = m->tree->nodes,
        .feature_incompat = INCOMPATIBLE_CHUNKS | INCOMPATIBLE_DEVICES,
        .devices = (uint16_t)m->in->devices,
        .device_slot = DEVICES_AT / sizeof(struct device),
    };

    fill_to(m, SUPERBLOCK_AT);
    put(m, &block, sizeof block);
    for (uint32_t k = 0; k < m->in->devices; k++) {
        uint64_t blocks = (uint64_t)m->in->sizes[k] / m->block; /* only for statfs(2) */
        struct device device = {.blocks = blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX};

        put(m, &device, sizeof device);
    }
}

static int write_image(struct image *m)
{
    int status = place_inodes(m);

    if (status)
        return status;
    put_superblock(m);
    for (uint32_t node = 0; !status && !m->status && node < m->tree->nodes; node++)
        status = put_inode(m, node);
    for (uint32_t node = 0; !status && !m->status && node < m->tree->nodes; node++) {
        bool is_folder = S_ISDIR(m->tree->mode[node]);

        if (!is_folder && !(S_ISLNK(m->tree->mode[node]) && !is_inline(m, node)))
            continue;
        fill_to(m, round_up(position(m), m->block));
        if (is_folder)
            put_folder(m, node);
        else
            put(m, m->tree->targets + m->tree->ref[node], m->tree->count[node]);
    }
    fill_to(m, round_up(position(m), LONGEST_BLOCK));
    flush(m);
    return status ? status : m->status;
}

int fffs_erofs_write(const fffs_erofs *in)
{
    struct image m = {.in = in, .tree = in->tree, .block = 1U << in->block_bits};

    m.slots = fffs_allocate(in->tree->nodes * sizeof *m.slots);
    m.buffer = fffs_buffer_take(FFFS_BLOCK);
    int status = m.slots && m.buffer ? write_image(&m) : -ENOMEM;
    if (m.buffer)
        fffs_buffer_give(m.buffer);
    free(m.slots);
    return status;
}
