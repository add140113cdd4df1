/* Replies to the kernel's hot requests, from the tree's arrays and the store: pure functions of a message.
 *
 * Replies must mean the same as those of the FUSE library's operations. Unknown and rare messages are forwarded to the
 * library. Malformed ones are not, because it trusts lengths. The format is that of the kernel's
 * include/uapi/linux/fuse.h. */
#include "fastpath_answers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* Inode 1 is the root, node 0. */
#define INODE(node) ((uint64_t)(node) + 1)

struct request {
    struct fuse_in_header header;
    const uint8_t *body; /* after the header */
    size_t length;       /* of the body */
};

/* ---------------------------------------------------------------- replies */

static struct fffs_fast_answer reply_with(uint8_t *reply, const struct request *request, int kind, size_t length)
{
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + length), .error = 0, .unique = request->header.unique};

    memcpy(reply, &header, sizeof header);
    return (struct fffs_fast_answer){.length = header.len, .kind = kind};
}

static struct fffs_fast_answer reply_error(uint8_t *reply, const struct request *request, int kind, int error)
{
    struct fuse_out_header header = {.len = sizeof header, .error = error, .unique = request->header.unique};

    memcpy(reply, &header, sizeof header);
    return (struct fffs_fast_answer){.length = sizeof header, .kind = kind};
}

static struct fffs_fast_answer forward(void)
{
    return (struct fffs_fast_answer){.length = -EREMOTE, .kind = FFFS_FAST_FORWARDED};
}

/* For a message that is too short for its kind, or not as long as its header says. */
static struct fffs_fast_answer malformed(uint8_t *reply, const struct request *request)
{
    return reply_error(reply, request, FFFS_FAST_OTHER, -EIO);
}

static struct fffs_fast_answer no_reply(int kind)
{
    return (struct fffs_fast_answer){.length = 0, .kind = kind};
}

/* ---------------------------------------------------------------- attributes */

static uint64_t node_size(const struct fffs_fast_view *view, uint32_t node)
{
    const fffs_tree *tree = view->tree;

    if (S_ISREG(tree->mode[node]))
        return (uint64_t)fffs_store_length(view->store, tree->ref[node]);
    return S_ISLNK(tree->mode[node]) ? tree->count[node] : 4096;
}

static void fill_attributes(const struct fffs_fast_view *view, uint32_t node, struct fuse_attr *attr)
{
    const fffs_tree *tree = view->tree;
    int64_t mtime = tree->mtime[node], seconds = mtime / 1000000000;

    memset(attr, 0, sizeof *attr);
    if (mtime % 1000000000 < 0) /* before 1970: round towards minus infinity */
        seconds--;
    attr->ino = INODE(node);
    attr->size = node_size(view, node);
    attr->blocks = (attr->size + 511) / 512;
    attr->atime = attr->mtime = attr->ctime = (uint64_t)seconds;
    attr->atimensec = attr->mtimensec = attr->ctimensec = (uint32_t)(mtime - seconds * 1000000000);
    attr->mode = S_ISLNK(tree->mode[node]) ? tree->mode[node] : tree->mode[node] & ~view->config.mode_mask;
    attr->nlink = tree->nlink[node];
    attr->uid = view->config.uid;
    attr->gid = view->config.gid;
    attr->blksize = 4096;
}

static void fill_entry(const struct fffs_fast_view *view, uint32_t node, struct fuse_entry_out *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->nodeid = INODE(node);
    entry->entry_valid = entry->attr_valid = view->config.timeout;
    fill_attributes(view, node, &entry->attr);
}

/* Returns the node of a request, or -1 if it never existed. */
static int64_t request_node(const struct fffs_fast_view *view, const struct request *request)
{
    uint64_t inode = request->header.nodeid;

    return inode >= 1 && inode <= view->tree->nodes ? (int64_t)(inode - 1) : -1;
}

/* Whether the size and the bytes of a node are not those of its record. */
static bool is_forwarded(const struct fffs_fast_view *view, uint32_t node)
{
    return view->config.forwarded && view->config.forwarded[node];
}

/* ---------------------------------------------------------------- names */

static struct fffs_fast_answer answer_lookup(const struct fffs_fast_view *view, const struct request *request,
                                             uint32_t node, uint8_t *reply)
{
    struct fuse_entry_out entry;
    const uint8_t *end = memchr(request->body, 0, request->length);
    uint32_t found;

    if (!end || end == request->body)
        return malformed(reply, request);
    size_t length = (size_t)(end - request->body);
    /* "." and ".." are looked up only for NFS. */
    if (request->body[0] == '.' && (length == 1 || (length == 2 && request->body[1] == '.')))
        return forward();
    if (length > FFFS_NAME_MAX) /* a question of fffs; see mount/system/questions.py */
        return forward();
    int status = fffs_tree_lookup(view->tree, node, request->body, length, &found);
    if (status == -ENOTDIR)
        return reply_error(reply, request, FFFS_FAST_LOOKUP, status);
    if (!status && is_forwarded(view, found))
        return forward();
    if (!status) {
        fill_entry(view, found, &entry);
    } else { /* inode 0 with a timeout: the kernel may cache that the name does not exist */
        memset(&entry, 0, sizeof entry);
        entry.entry_valid = view->config.timeout;
    }
    memcpy(reply + sizeof(struct fuse_out_header), &entry, sizeof entry);
    return reply_with(reply, request, FFFS_FAST_LOOKUP, sizeof entry);
}

static struct fffs_fast_answer answer_getattr(const struct fffs_fast_view *view, const struct request *request,
                                              uint32_t node, uint8_t *reply)
{
    struct fuse_attr_out out = {.attr_valid = view->config.timeout};

    if (is_forwarded(view, node))
        return forward();
    fill_attributes(view, node, &out.attr);
    memcpy(reply + sizeof(struct fuse_out_header), &out, sizeof out);
    return reply_with(reply, request, FFFS_FAST_GETATTR, sizeof out);
}

static struct fffs_fast_answer answer_readlink(const struct fffs_fast_view *view, const struct request *request,
                                               uint32_t node, uint8_t *reply)
{
    const fffs_tree *tree = view->tree;

    if (!S_ISLNK(tree->mode[node]))
        return reply_error(reply, request, FFFS_FAST_READLINK, -EINVAL);
    memcpy(reply + sizeof(struct fuse_out_header), tree->targets + tree->ref[node], tree->count[node]);
    return reply_with(reply, request, FFFS_FAST_READLINK, tree->count[node]);
}

/* ---------------------------------------------------------------- directories */

/* Writes one entry of a listing, with plus also its attributes. Returns its size, or 0 if there is no room. */
static size_t put_entry(const struct fffs_fast_view *view, uint8_t *at, size_t room, uint32_t node,
                        const uint8_t *name, uint32_t length, uint64_t next, bool plus, bool known)
{
    struct fuse_direntplus entry;
    size_t head = plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    size_t size = FUSE_DIRENT_ALIGN(head + length);

    if (size > room)
        return 0;
    memset(&entry, 0, sizeof entry);
    /* Inode 0 for "." and "..", for which no reference is counted, and for nodes that the kernel has to look up. */
    if (plus && known && !is_forwarded(view, node))
        fill_entry(view, node, &entry.entry_out);
    entry.dirent.ino = INODE(node);
    entry.dirent.off = next;
    entry.dirent.namelen = length;
    entry.dirent.type = (uint32_t)(view->tree->mode[node] & S_IFMT) >> 12;
    memset(at, 0, size);
    if (plus)
        memcpy(at, &entry, head);
    else
        memcpy(at, &entry.dirent, head);
    memcpy(at + head, name, length);
    return size;
}

/* Returns a part of a listing. Offsets: 1 is after ".", 2 after "..", k + 3 after the directory's entry k. */
static struct fffs_fast_answer answer_readdir(const struct fffs_fast_view *view, const struct request *request,
                                              uint32_t node, uint8_t *reply, bool plus)
{
    const fffs_tree *tree = view->tree;
    struct fuse_read_in in;
    size_t used = 0, put;

    if (request->length < sizeof in)
        return malformed(reply, request);
    memcpy(&in, request->body, sizeof in);
    if (!S_ISDIR(tree->mode[node]))
        return reply_error(reply, request, FFFS_FAST_READDIR, -ENOTDIR);
    uint8_t *body = reply + sizeof(struct fuse_out_header);
    size_t room = in.size < FFFS_READ_MAX ? in.size : FFFS_READ_MAX;
    uint64_t offset = in.offset, count = tree->count[node];

    for (; offset < count + 2; offset++, used += put) {
        const uint8_t *name = (const uint8_t *)"..";
        uint32_t length = (uint32_t)offset + 1, child = offset == 0 ? node : tree->parent[node];

        if (offset >= 2) {
            uint32_t entry = tree->ref[node] + (uint32_t)(offset - 2);

            name = tree->names + tree->name_offsets[entry];
            length = tree->name_offsets[entry + 1] - tree->name_offsets[entry];
            child = tree->entry_nodes[entry];
        }
        put = put_entry(view, body + used, room - used, child, name, length, offset + 1, plus, offset >= 2);
        if (put == 0)
            break;
    }
    return reply_with(reply, request, FFFS_FAST_READDIR, used);
}

/* ---------------------------------------------------------------- contents */

static struct fffs_fast_answer answer_read(const struct fffs_fast_view *view, const struct request *request,
                                           uint32_t node, uint8_t *reply, int how)
{
    const fffs_tree *tree = view->tree;
    struct fuse_read_in in;
    int flags = how | (view->config.verify ? 0 : FFFS_READ_UNVERIFIED);

    if (request->length < sizeof in)
        return malformed(reply, request);
    if (is_forwarded(view, node))
        return forward();
    memcpy(&in, request->body, sizeof in);
    if (!S_ISREG(tree->mode[node]))
        return reply_error(reply, request, FFFS_FAST_READ, S_ISDIR(tree->mode[node]) ? -EISDIR : -EINVAL);
    uint64_t size = in.size < FFFS_READ_MAX ? in.size : FFFS_READ_MAX;
    int64_t got =
        fffs_store_read(view->store, tree->ref[node], in.offset, size, reply + sizeof(struct fuse_out_header), flags);
    struct fffs_fast_answer answer;
    if (got == -EAGAIN && how)
        answer = (struct fffs_fast_answer){.length = -EAGAIN, .kind = FFFS_FAST_READ};
    else if (got < 0) {
        answer = reply_error(reply, request, FFFS_FAST_READ, -EIO);
        answer.status = (int32_t)got;
    } else
        answer = reply_with(reply, request, FFFS_FAST_READ, (size_t)got);
    answer.record = tree->ref[node];
    return answer;
}

/* ---------------------------------------------------------------- dispatch */

/* ENOSYS tells the kernel to send no further OPEN and to keep its page cache, which makes re-reads as fast as in a
 * kernel file system. OPEN for writing is sent only if an administrator remounted the mount as writable. */
static struct fffs_fast_answer answer_open(const struct request *request, uint8_t *reply)
{
    struct fuse_open_in in;

    if (request->length < sizeof in)
        return malformed(reply, request);
    memcpy(&in, request->body, sizeof in);
    bool writes = (in.flags & O_ACCMODE) != O_RDONLY || (in.flags & O_TRUNC);
    return reply_error(reply, request, FFFS_FAST_OTHER, writes ? -EROFS : -ENOSYS);
}

/* Handles requests for an inode that is no node: an answer to a question of fffs (mount/fs/answers.py), or one that never
 * existed, as an NFS client may have from another mount. */
static struct fffs_fast_answer answer_about_other(const struct request *request, uint8_t *reply)
{
    if (request->header.nodeid < FFFS_ANSWER_INODES)
        return reply_error(reply, request, FFFS_FAST_OTHER, -ESTALE);
    return request->header.opcode == FUSE_OPEN ? answer_open(request, reply) : forward();
}

/* Handles requests for a node. */
static struct fffs_fast_answer answer_about_node(const struct fffs_fast_view *view, const struct request *request,
                                                 uint8_t *reply, int how)
{
    int64_t node = request_node(view, request);

    if (node < 0)
        return answer_about_other(request, reply);
    switch (request->header.opcode) {
    case FUSE_LOOKUP: return answer_lookup(view, request, (uint32_t)node, reply);
    case FUSE_GETATTR: return answer_getattr(view, request, (uint32_t)node, reply);
    case FUSE_READLINK: return answer_readlink(view, request, (uint32_t)node, reply);
    case FUSE_READ: return answer_read(view, request, (uint32_t)node, reply, how);
    case FUSE_READDIR: return answer_readdir(view, request, (uint32_t)node, reply, false);
    case FUSE_READDIRPLUS: return answer_readdir(view, request, (uint32_t)node, reply, true);
    default: return answer_open(request, reply);
    }
}

struct fffs_fast_answer fffs_fast_answer_request(const struct fffs_fast_view *view, const uint8_t *message,
                                                 size_t length, uint8_t *reply, int how)
{
    struct request request;

    if (length < sizeof request.header)
        return no_reply(FFFS_FAST_OTHER); /* no request to reply to */
    memcpy(&request.header, message, sizeof request.header);
    if (request.header.len != length)
        return malformed(reply, &request);
    request.body = message + sizeof request.header;
    request.length = length - sizeof request.header;
    switch (request.header.opcode) {
    /* Inodes are nodes, so there is nothing to forget. An interrupted request has its reply soon. */
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return no_reply(FFFS_FAST_FORGET);
    case FUSE_OPENDIR: /* as for FUSE_OPEN */
    case FUSE_FLUSH: return reply_error(reply, &request, FFFS_FAST_OTHER, -ENOSYS);
    case FUSE_LOOKUP:
    case FUSE_GETATTR:
    case FUSE_READLINK:
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
    case FUSE_OPEN: return answer_about_node(view, &request, reply, how);
    default: return forward();
    }
}
