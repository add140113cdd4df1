/* Everything of the engine that has threads, at once and in C alone: batches, a store whose file changes, and the fast path.
 *
 * For sanitizers that look for races, which cannot watch an interpreter. Usage: threads [ROUNDS [REQUESTS]]. With -DBUG=... it
 * does one thing wrong that the sanitizer must find: scripts/sanitize makes sure of that first. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fastpath_answers.h"

#define NONE 0
#define RACE 1
#define OVERFLOW 2
#define LEAK 3
#define UNDEFINED 4
#ifndef BUG
#define BUG NONE
#endif

#define CHECK(condition) ((condition) ? (void)0 : failed(#condition, __LINE__))

enum { SMALL = 20000, RECORDS = 24, LARGE = 3 * FFFS_BLOCK + 777, CLIENTS = 3, READERS = 2, MOST = 1 << 16 };

_Noreturn static void failed(const char *condition, int line)
{
    fprintf(stderr, "threads.c:%d: does not hold: %s (%s)\n", line, condition, strerror(errno));
    abort();
}

/* ---------------------------------------------------------------- records and names: file k is record k */

static uint8_t content[(RECORDS - 1) * SMALL + LARGE];
static int64_t starts[RECORDS], ends[RECORDS], mtime[RECORDS + 1];
static uint32_t checksums[RECORDS], ref[RECORDS + 1], counts[RECORDS + 1], parent[RECORDS + 1], nlink[RECORDS + 1];
static uint32_t name_offsets[RECORDS + 1], entry_nodes[RECORDS];
static uint16_t mode[RECORDS + 1];
static uint8_t names[RECORDS + 1];
static const fffs_tree tree = {mtime, nlink, ref, counts, parent, mode, name_offsets, entry_nodes, names, names,
                               RECORDS + 1, RECORDS, RECORDS, 0};
static int fd, requests;

static void make_records(void)
{
    const char *why;
    uint64_t where;

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 11);
    fd = memfd_create("records", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, content, sizeof content) == sizeof content);
    mode[0] = S_IFDIR | 0755;
    nlink[0] = 2;
    counts[0] = RECORDS;
    for (int i = 0; i < RECORDS; i++) {
        starts[i] = (int64_t)i * SMALL;
        ends[i] = starts[i] + (i == RECORDS - 1 ? LARGE : SMALL);
        checksums[i] = fffs_crc32(0, content + starts[i], (size_t)(ends[i] - starts[i]));
        mode[i + 1] = S_IFREG | 0644;
        nlink[i + 1] = 1;
        ref[i + 1] = (uint32_t)i;
        entry_nodes[i] = (uint32_t)i + 1;
        name_offsets[i + 1] = (uint32_t)i + 1;
        names[i] = (uint8_t)('A' + i);
    }
    CHECK(fffs_tree_validate(&tree, RECORDS, &why, &where) == 0);
}

static fffs_store *make_store(void)
{
    static fffs_file file;
    fffs_store *store;
    size_t unread;

    file = (fffs_file){.starts = starts, .ends = ends, .checksums = checksums, .records = RECORDS, .fd = fd,
                       .check = FFFS_CHECK_CRC32};
    CHECK(fffs_store_new(&file, 1, &store, &unread) == 0);
    return store;
}

/* ---------------------------------------------------------------- one round */

struct round {
    fffs_store *store;
    fffs_fastpath *path;
    int kernel, library; /* our ends */
    atomic_int answered, done;
    int raced;
};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static void send_message(int end, uint32_t opcode, uint64_t node, const void *body, size_t size)
{
    uint8_t message[256] = {0};
    struct fuse_in_header header = {.len = (uint32_t)(sizeof header + size), .opcode = opcode, .unique = 1, .nodeid = node};

    memcpy(message, &header, sizeof header);
    memcpy(message + sizeof header, body, size);
    while (send(end, message, header.len, MSG_NOSIGNAL) < 0)
        CHECK(errno == EINTR);
}

/* Programs: each request gets exactly one answer. */
static void *run_client(void *argument)
{
    struct round *round = argument;
    uint32_t state = (uint32_t)(uintptr_t)&state;

    for (int i = 0; i < requests; i++) {
        uint32_t random = next_random(&state), record = random % RECORDS;
        struct fuse_read_in in = {.offset = random % LARGE, .size = 1 + random % 5000};
        char name[2] = {(char)('A' + record), 0};

        switch (random >> 8 & 7) {
        case 0: send_message(round->kernel, FUSE_LOOKUP, 1, name, 2); break;
        case 1: send_message(round->kernel, FUSE_STATFS, 1, "", 0); break;
        case 2: send_message(round->kernel, FUSE_READDIRPLUS, 1, &in, sizeof in); break;
        default: send_message(round->kernel, FUSE_READ, record + 2, &in, sizeof in);
        }
        if (BUG == RACE)
            round->raced++;
    }
    return NULL;
}

static void *run_kernel(void *argument)
{
    struct round *round = argument;
    uint8_t *reply = malloc(MOST);
    struct fuse_out_header header;

    CHECK(reply);
    while (atomic_load(&round->answered) < CLIENTS * requests) {
        ssize_t got = recv(round->kernel, reply, MOST, 0);

        CHECK(got >= (ssize_t)sizeof header);
        memcpy(&header, reply, sizeof header);
        CHECK(header.len == got && header.unique == 1 && (header.error == 0 || header.error == -EIO));
        atomic_fetch_add(&round->answered, 1);
    }
    free(reply);
    return NULL;
}

static void *run_library(void *argument)
{
    struct round *round = argument;
    uint8_t message[512];
    struct fuse_out_header reply = {.len = sizeof reply, .unique = 1};

    while (recv(round->library, message, sizeof message, 0) > 0)
        CHECK(send(round->library, &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply || errno == EPIPE); /* the end */
    return NULL;
}

/* Who reads without the mount, while the file's time changes: only the time, so every byte stays good. */
static void *run_reader(void *argument)
{
    struct round *round = argument;
    uint8_t *room = malloc((RECORDS - 1) * SMALL + LARGE);
    static const char *const backends[] = {"pread", "uring", "aio"};

    CHECK(room);
    for (int turn = 0; !atomic_load(&round->done); turn++) {
        fffs_request batch[RECORDS];

        (void)fffs_engine_select(backends[turn % 3]); /* where the kernel has it */
        for (int i = 0; i < RECORDS; i++)
            batch[i] = (fffs_request){.offset = starts[i], .length = ends[i] - starts[i], .dest = room + starts[i],
                                      .fd = fd, .check = FFFS_CHECK_CRC32, .expected = checksums[i],
                                      .align = turn / 3 % 2 ? 512 : 0, .direct_fd = fd}; /* any descriptor will do */
        CHECK(fffs_read_batch(batch, RECORDS) == 0);
        int64_t got = fffs_store_read(round->store, RECORDS - 1, 5, 1000, room, 0);
        CHECK(got == -ESTALE || (got == 1000 && memcmp(room, content + starts[RECORDS - 1] + 5, 1000) == 0));
    }
    free(room);
    return NULL;
}

static void *run_watcher(void *argument)
{
    struct round *round = argument;
    fffs_fastpath_stats_t stats;
    uint64_t record;
    int32_t status;

    while (!atomic_load(&round->done)) {
        struct timespec times[2] = {{0, UTIME_OMIT}, {atomic_load(&round->answered), 0}};

        fffs_fastpath_stats(round->path, &stats);
        CHECK(fffs_store_count_verified(round->store) <= RECORDS);
        while (fffs_fastpath_next_bad(round->path, &record, &status)) /* it may change too often for a slow reader */
            CHECK(status == -ESTALE);
        CHECK(!fffs_fastpath_ended(round->path));
        CHECK(futimens(fd, times) == 0);
        usleep(10000);
    }
    return NULL;
}

static int make_pair(int *ours)
{
    int pair[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    *ours = pair[0];
    return pair[1];
}

static void run_round(void)
{
    struct round round = {.store = make_store()};
    fffs_fastpath_config config = {
        .threads = 3, .cold_threads = 4, .timeout = 1000, .max_read = 4096, .verify = 1};
    void *(*const runs[])(void *) = {run_kernel, run_client, run_client, run_client, run_library,
                                     run_reader, run_reader, run_watcher};
    enum { WAITED = 1 + CLIENTS, ALL = sizeof runs / sizeof *runs };
    pthread_t threads[ALL];

    config.fuse_fd = make_pair(&round.kernel);
    config.library_fd = make_pair(&round.library);
    CHECK(fffs_fastpath_start(&config, &tree, round.store, &round.path) == 0);
    for (int i = 0; i < ALL; i++)
        CHECK(pthread_create(&threads[i], NULL, runs[i], &round) == 0);
    for (int i = 0; i < WAITED; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&round.done, 1);
    for (int i = WAITED + 1; i < ALL; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 20; i++) /* and an end in the middle of it */
        send_message(round.kernel, i % 2 ? FUSE_STATFS : FUSE_READLINK, 1, "", 0);
    CHECK(fffs_fastpath_stop(round.path, 60) == 0);
    close(config.library_fd);
    pthread_join(threads[WAITED], NULL);
    close(config.fuse_fd);
    close(round.kernel);
    close(round.library);
    fffs_store_free(round.store);
}

/* What a sanitizer must see. */
static void misbehave(volatile int *number)
{
    volatile char *volatile memory = malloc(16);

    CHECK(memory);
    if (BUG == OVERFLOW)
        memory[*number + 15] = 1;
    if (BUG == UNDEFINED)
        *number = *number << (*number + 40);
    if (BUG != LEAK)
        free((void *)memory);
    memory = NULL;
}

int main(int argc, char **argv)
{
    volatile int one = 1;
    int rounds = argc > 1 ? atoi(argv[1]) : 3;

    requests = argc > 2 ? atoi(argv[2]) : 1000;
    make_records();
    for (int i = 0; i < rounds; i++)
        run_round();
    misbehave(&one);
    printf("%d rounds\n", rounds);
    return 0;
}
