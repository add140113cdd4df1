/* Fuzzes the fast path: any messages get valid replies, the same directly and over a socket pair, and none is lost.
 *
 * Input: messages one after the other, each a header that is mostly true and any body; then what the library answers. The tree
 * and the records are always the same. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "fastpath_answers.h"

enum {
    SMALL = 5000,
    LARGE = FFFS_BLOCK + 70000, /* no block checksums: checked as a whole, by a cold thread */
    RECORDS = 3,
    ANSWER_MAX = 1 << 16, /* what fits into a socket's buffer */
    STEPS = 12
};

/* ---------------------------------------------------------------- what is mounted */

/* / with a (file), b (damaged), d/ with e (the same file as a) and f -> a, g (large), h (the library's) */
static const int64_t mtime[] = {0, -1, 1600000000123456789, 5, 7, -1500000000, 0};
static const uint32_t nlink[] = {3, 2, 1, 2, 1, 1, 1};
static const uint32_t ref[] = {0, 0, 1, 5, 0, 2, 0};
static const uint32_t counts[] = {5, 0, 0, 2, 1, 0, 0};
static const uint32_t parent[] = {0, 0, 0, 0, 0, 0, 0};
static const uint16_t mode[] = {
    S_IFDIR | 0755, S_IFREG | 0644, S_IFREG | 0600, S_IFDIR | 0700, S_IFLNK | 0777, S_IFREG, S_IFREG};
static const uint32_t name_offsets[] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint32_t entry_nodes[] = {1, 2, 3, 5, 6, 1, 4};
static const uint8_t forwarded[] = {0, 0, 0, 0, 0, 0, 1};
static const fffs_tree tree = {mtime, nlink, ref, counts, parent, mode, name_offsets, entry_nodes,
                               (const uint8_t *)"abdghef", (const uint8_t *)"a", 7, 7, 7, 1};
static int64_t starts[RECORDS] = {0, SMALL, 2 * SMALL}, ends[RECORDS] = {SMALL, 2 * SMALL, 2 * SMALL + LARGE};
static uint32_t checksums[RECORDS];

static fffs_fastpath *path;
static struct fffs_fast_view view;
static int kernel = -1, library = -1; /* our ends */
static uint8_t *direct, *received;

static fffs_store *make_store(void)
{
    static fffs_file file;
    uint8_t *content = exactly(2 * SMALL + LARGE);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fffs_store *store;
    size_t unread;

    for (size_t i = 0; i < 2 * SMALL + LARGE; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    CHECK(fd >= 0 && write(fd, content, 2 * SMALL + LARGE) == 2 * SMALL + LARGE);
    for (int i = 0; i < RECORDS; i++)
        checksums[i] = fffs_crc32(0, content + starts[i], (size_t)(ends[i] - starts[i])) ^ (i == 1);
    free(content);
    file = (fffs_file){.starts = starts, .ends = ends, .checksums = checksums, .records = RECORDS, .fd = fd,
                       .check = FFFS_CHECK_CRC32};
    CHECK(fffs_store_new(&file, 1, &store, &unread) == 0);
    return store;
}

static int make_pair(int *ours)
{
    const struct timeval patience = {20, 0};
    int pair[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    *ours = pair[0];
    return pair[1];
}

static void begin(void)
{
    const char *why;
    uint64_t where;
    fffs_store *store = make_store();

    CHECK(fffs_tree_validate(&tree, RECORDS, &why, &where) == 0);
    fffs_fastpath_config config = {.threads = 1, .cold_threads = 2, .forwarded = forwarded, .uid = 1, .gid = 2,
                                   .mode_mask = 022, .timeout = 1000, .max_readahead = 1 << 20, .max_read = 1 << 20,
                                   .verify = 1};
    config.fuse_fd = make_pair(&kernel);
    config.library_fd = make_pair(&library);
    view = (struct fffs_fast_view){config, &tree, store};
    direct = exactly(FFFS_REPLY_ROOM);
    received = exactly(FFFS_REPLY_ROOM);
    CHECK(fffs_fastpath_start(&config, &tree, store, &path) == 0);
}

/* What comes next. libFuzzer's clock interrupts whoever waits. */
static ssize_t receive(int end, int flags)
{
    ssize_t got;

    do
        got = recv(end, received, FFFS_REPLY_ROOM, flags);
    while (got < 0 && errno == EINTR);
    return got;
}

/* ---------------------------------------------------------------- messages */

static const uint32_t opcodes[] = {FUSE_LOOKUP, FUSE_GETATTR, FUSE_READ, FUSE_READDIR, FUSE_READDIRPLUS, FUSE_READLINK,
                                   FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_INTERRUPT, FUSE_OPEN, FUSE_OPENDIR, FUSE_FLUSH,
                                   FUSE_GETXATTR, FUSE_INIT, FUSE_STATFS, FUSE_SETATTR};

/* The next message in memory of exactly its length, which is 1 at least: an end of file is none. */
static uint8_t *take_message(struct input *in, size_t *length)
{
    struct fuse_in_header header = {.unique = take(in, 1), .uid = 1};
    uint64_t kind = take(in, 1), node = take(in, 1), lie = take(in, 1);
    size_t body = take(in, 2) % 600;

    header.opcode = kind < 240 ? opcodes[kind % 16] : (uint32_t)take(in, 4);
    header.nodeid = node < 240 ? node % 9 : take(in, 8);
    header.len = lie < 224 ? (uint32_t)(sizeof header + body) : (uint32_t)take(in, 4);
    *length = sizeof header + body;
    uint8_t *message = exactly(*length), *content = take_array(in, body);
    memcpy(message, &header, sizeof header);
    memcpy(message + sizeof header, content, body);
    free(content);
    if (lie >= 192 && lie < 208) { /* cut off, also inside the header */
        *length = 1 + take(in, 2) % *length;
        message = realloc(message, *length);
        CHECK(message);
    }
    return message;
}

/* Longer answers than a socket holds are only given directly. */
static int is_too_long(const uint8_t *message, size_t length)
{
    struct fuse_in_header header;
    struct fuse_read_in in;

    if (length < sizeof header + sizeof in)
        return 0;
    memcpy(&header, message, sizeof header);
    memcpy(&in, message + sizeof header, sizeof in);
    return header.opcode == FUSE_READ && in.size > ANSWER_MAX;
}

/* ---------------------------------------------------------------- what must come of them */

static void check_answer(const struct fffs_fast_answer *answer, const uint8_t *message, size_t length)
{
    struct fuse_in_header asked;
    struct fuse_out_header header;

    CHECK(answer->kind >= 0 && answer->kind < FFFS_FAST_KINDS);
    CHECK((answer->length == -EREMOTE) == (answer->kind == FFFS_FAST_FORWARDED));
    if (answer->length <= 0) {
        CHECK(answer->length == 0 || (answer->length == -EREMOTE && length >= sizeof asked));
        return;
    }
    CHECK(answer->length >= (int64_t)sizeof header && answer->length <= FFFS_REPLY_ROOM && length >= sizeof asked);
    memcpy(&asked, message, sizeof asked);
    memcpy(&header, direct, sizeof header);
    CHECK(header.len == answer->length && header.unique == asked.unique && header.error <= 0 && header.error > -512);
    CHECK(header.error == 0 || header.len == sizeof header);
    CHECK(!answer->status || header.error == -EIO);
}

/* The library answers with whatever is next in the input, and that must reach the kernel, if it has a header. */
static void answer_forwarded(struct input *in, const uint8_t *message)
{
    struct fuse_in_header asked;
    struct fuse_out_header header;
    size_t body = take(in, 1);
    uint8_t *reply = take_array(in, sizeof header + body);

    memcpy(&asked, message, sizeof asked);
    header = (struct fuse_out_header){.len = (uint32_t)(sizeof header + body), .unique = asked.unique};
    memcpy(&header.error, reply + 4, 1);
    memcpy(reply, &header, sizeof header);
    CHECK(send(library, "short", 5, MSG_NOSIGNAL) == 5); /* dropped */
    CHECK(send(library, reply, header.len, MSG_NOSIGNAL) == (ssize_t)header.len);
    CHECK(receive(kernel, 0) == (ssize_t)header.len);
    CHECK(memcmp(received, reply, asked.opcode == FUSE_INIT ? sizeof header : header.len) == 0);
    free(reply);
}

/* What the library gets: a READ has the inode for its handle. */
static void check_forwarded(uint8_t *message, size_t length)
{
    struct fuse_in_header asked;

    memcpy(&asked, message, sizeof asked);
    if (asked.opcode == FUSE_READ) {
        CHECK(asked.nodeid == 7);
        memcpy(message + sizeof asked + offsetof(struct fuse_read_in, fh), &asked.nodeid, sizeof asked.nodeid);
    }
    CHECK(receive(library, 0) == (ssize_t)length);
    CHECK(memcmp(received, message, length) == 0);
}

static void step(struct input *in)
{
    size_t length;
    uint8_t *message = take_message(in, &length);
    struct fffs_fast_answer answer = fffs_fast_answer_request(&view, message, length, direct, 0);

    check_answer(&answer, message, length);
    if (!is_too_long(message, length)) {
        CHECK(send(kernel, message, length, MSG_NOSIGNAL) == (ssize_t)length);
        if (answer.length == -EREMOTE) {
            check_forwarded(message, length);
            answer_forwarded(in, message);
        } else if (answer.length > 0) {
            CHECK(receive(kernel, 0) == answer.length);
            CHECK(memcmp(received, direct, (size_t)answer.length) == 0);
        }
    }
    free(message);
}

/* Everything sent has been handled once this is answered: there is one thread. */
static void settle(void)
{
    struct fuse_in_header last = {.len = sizeof last, .opcode = FUSE_GETATTR, .unique = 1u << 30, .nodeid = 1};
    struct fuse_out_header header;

    CHECK(send(kernel, &last, sizeof last, MSG_NOSIGNAL) == sizeof last);
    CHECK(receive(kernel, 0) > (ssize_t)sizeof header);
    memcpy(&header, received, sizeof header);
    CHECK(header.unique == last.unique && header.error == 0);
    CHECK(receive(kernel, MSG_DONTWAIT) < 0);
    CHECK(receive(library, MSG_DONTWAIT) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    fffs_fastpath_stats_t before, after;
    uint64_t record;
    int32_t status;

    if (!path)
        begin();
    fffs_fastpath_stats(path, &before);
    for (int k = 0; k < STEPS && in.left; k++)
        step(&in);
    settle();
    fffs_fastpath_stats(path, &after);
    CHECK(after.requests[FFFS_FAST_GETATTR] > before.requests[FFFS_FAST_GETATTR] && after.waiting == 0);
    while (fffs_fastpath_next_bad(path, &record, &status))
        CHECK(record == 1 && status == -EBADMSG);
    CHECK(!fffs_fastpath_ended(path));
    return 0;
}
