/* Verified range reads: which bytes of a record may be returned, and what must be checked first.
 *
 * A record's checksum covers all of it, but callers read ranges. So the first read of a record reads and checks all of
 * it (or, if the file has block checksums, the blocks in the range), and remembers that; later ranges are plain reads.
 * For a large record the checksums of its blocks are then kept: reading all of it, which takes seconds for 10 GiB,
 * happens once, however often the file changes.
 *
 * A verification is valid only while the file is the same, and only if the file was resting: see watch.c. So it is
 * stored with the mark of that moment, and each plain read is followed by an fstat. */
#include "store.h"
#include "clock.h"
#include "crc.h"
#include "fault.h"
#include "fork.h"
#include "object_totals.h"
#include "part_sums.h"
#include "remote.h"
#include "watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The most attempts of a read whose file changes meanwhile. */
#define CHANGES_MAX 8

/* The blocks of a large record: from the file's table, or learned when the whole record was verified. */
struct blocks {
    const uint32_t *checksums;
    _Atomic fffs_mark *verified; /* the mark under which each block was verified; 0: never */
    uint64_t count;
    struct blocks *next; /* in the list of all learned ones */
};

struct store_file {
    fffs_file source;
    fffs_store *store;
    uint64_t first;                    /* number in the store of its first record */
    _Atomic fffs_mark *verified;       /* [records] the same for records of at most a block */
    _Atomic fffs_mark *block_verified; /* the same for the blocks of the table */
    struct blocks *_Atomic *learned;   /* [records] of large ones that the table lacks; NULL: not learned yet */
    struct blocks *_Atomic all_learned;
    struct fffs_watch watch;
    int64_t size; /* when it was opened */
};

/* A check of a whole large record. Other threads that need the record wait instead of reading it too. */
struct check {
    struct check *next;
    uint64_t record;
    unsigned epoch; /* of the process that checks: a forked child inherits the entry, but not the thread */
};

/* A record that its object's store did not give. */
struct failure {
    uint64_t record;
    int64_t when;  /* on fffs_now's clock; 0: none, or it was told */
    int64_t noted; /* the same, also if it was told */
    int status;
};

/* How many failures are known, and nanoseconds for which each holds: the kernel asks again at once for what it did not get, and the
 * store would keep the same reader waiting for as long as before. */
enum { FAILURES = 64 };
#define FAILURE_HOLDS (INT64_C(1000000000) / 4)

struct fffs_store {
    struct store_file *files;
    size_t count;
    struct check *checks;        /* guarded by the mutex, and so are the failures and sums */
    struct fffs_part_sums *sums; /* of what was verified, and no cache keeps; or NULL */
    struct failure failures[FAILURES];
    unsigned next_failure;
    _Atomic int64_t failed; /* when the last one was noted */
};

/* One for all stores, so that the fork handlers can take it: else a child could start with a mutex that is locked for
 * ever. It guards the lists of checks, never a read. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t checked = PTHREAD_COND_INITIALIZER;
static unsigned epoch;

void fffs_store_before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

void fffs_store_after_fork(bool child)
{
    if (child) { /* no thread of the child waits for a check */
        pthread_cond_init(&checked, NULL);
        epoch++;
    }
    pthread_mutex_unlock(&mutex);
}

/* ---------------------------------------------------------------- life */

static int init_file(struct store_file *file, const fffs_file *from, uint64_t first)
{
    uint64_t blocks = from->bigs ? from->big_first_blocks[from->bigs] : 0;

    file->source = *from;
    file->first = first;
    /* calloc of a large array costs nothing until a page of it is touched. */
    file->verified = fffs_allocate_zeroed(from->records ? from->records : 1, sizeof *file->verified);
    file->block_verified = fffs_allocate_zeroed(blocks ? blocks : 1, sizeof *file->block_verified);
    file->learned = fffs_allocate_zeroed(from->records ? from->records : 1, sizeof *file->learned);
    if (!file->verified || !file->block_verified || !file->learned)
        return -ENOMEM;
    return fffs_watch_init(&file->watch, from->fd, from->keeps_times, &file->size);
}

int fffs_store_new(const fffs_file *files, size_t count, fffs_store **store, size_t *failed)
{
    fffs_store *new = fffs_allocate_zeroed(1, sizeof *new);
    uint64_t first = 0;
    int status = 0;

    if (!new)
        return -ENOMEM;
    new->files = fffs_allocate_zeroed(count ? count : 1, sizeof *new->files);
    if (!new->files)
        status = -ENOMEM;
    for (size_t i = 0; !status && i < count; i++) {
        *failed = i;
        new->count = i + 1;
        new->files[i].store = new;
        status = init_file(&new->files[i], &files[i], first);
        first += files[i].records;
    }
    if (status) {
        fffs_store_free(new);
        return status;
    }
    *store = new;
    return 0;
}

static void free_file(struct store_file *file)
{
    struct blocks *next;

    for (struct blocks *blocks = atomic_load(&file->all_learned); blocks; blocks = next) {
        next = blocks->next;
        free(blocks);
    }
    free(file->learned);
    free(file->verified);
    free(file->block_verified);
}

void fffs_store_free(fffs_store *store)
{
    if (!store)
        return;
    for (size_t i = 0; i < store->count; i++)
        free_file(&store->files[i]);
    free(store->files);
    free(store->sums);
    while (store->checks) { /* only a forked child has any */
        struct check *left = store->checks;

        store->checks = left->next;
        free(left);
    }
    free(store);
}

/* ---------------------------------------------------------------- finding */

static struct store_file *find_file(const fffs_store *store, uint64_t record)
{
    size_t low = 0, high = store->count;

    while (low < high) { /* the last file whose first record is not above record */
        size_t middle = low + (high - low) / 2;

        if (store->files[middle].first <= record)
            low = middle + 1;
        else
            high = middle;
    }
    /* Files without records have their successor's first number: step back over them. */
    while (low > 0 && record - store->files[low - 1].first >= store->files[low - 1].source.records) {
        if (store->files[low - 1].source.records)
            return NULL;
        low--;
    }
    return low > 0 ? &store->files[low - 1] : NULL;
}

/* Returns the position of row among the file's big records, or -1. */
static int64_t find_big(const fffs_file *file, uint64_t row)
{
    uint64_t low = 0, high = file->bigs;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (file->big_records[middle] == row)
            return (int64_t)middle;
        if (file->big_records[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* ---------------------------------------------------------------- reading */

/* Reads bytes of an object that no cache has. Returns -ENOKEY if nothing shows whether they are right, and something must. */
static int fetch(const struct store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    if (file->source.check != FFFS_CHECK_NONE && !(flags & FFFS_READ_UNVERIFIED))
        return -ENOKEY;
    return fffs_read_one(file->source.fd, offset, (int64_t)length, dest, FFFS_CHECK_NONE, 0);
}

/* Reads bytes of an object and sets *fd to -1; or sets it to the descriptor of its cache, which has them. */
static int read_object(const struct store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags,
                       int *fd)
{
    /* Blocks of the cache are compared with its own checksums if nothing else will be. */
    bool verified = file->source.check == FFFS_CHECK_NONE;
    int hot = fffs_remote_hot_fd(file->source.fd, offset, (int64_t)length, verified, flags & FFFS_READ_LOCAL);

    if (hot >= 0) {
        *fd = hot;
        return 0;
    }
    if (flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL))
        return -EAGAIN;
    *fd = -1;
    return fetch(file, offset, length, dest, flags);
}

/* Reads exactly length bytes of a file of the system. With FFFS_READ_NOWAIT, returns -EAGAIN unless all are in the page cache. */
static int read_file(int fd, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    int64_t (*read)(int, void *, size_t, int64_t) = flags & FFFS_READ_NOWAIT ? fffs_pread_nowait : fffs_pread;
    uint64_t done = 0;

    while (done < length) {
        int64_t got = read(fd, dest + done, length - done, offset + (int64_t)done);

        if (got > 0) {
            done += (uint64_t)got;
            continue;
        }
        if (got == 0)
            return -ENODATA;
        if (got == -EINTR)
            continue;
        /* Without RWF_NOWAIT the file system returns EOPNOTSUPP: treated as cold. */
        if ((flags & FFFS_READ_NOWAIT) && (got == -EAGAIN || got == -EOPNOTSUPP))
            return -EAGAIN;
        return fffs_file_error(got);
    }
    return 0;
}

/* Reads exactly length bytes, as read_file, or returns as fetch. */
static int read_fully(const struct store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    if (!fffs_is_remote(file->source.fd))
        return read_file(file->source.fd, offset, length, dest, flags);
    int fd, status = read_object(file, offset, length, dest, flags, &fd);

    if (status || fd < 0)
        return status;
    status = read_file(fd, offset, length, dest, flags);
    if (status && status != -EAGAIN) { /* the store has what the disk of the cache lost */
        fffs_remote_drop(file->source.fd, offset, (int64_t)length);
        status = flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL) ? -EAGAIN : fetch(file, offset, length, dest, flags);
    } else if (!status) {
        fffs_total_add(FFFS_TOTAL_ASKED, length);
        fffs_total_add(FFFS_TOTAL_HITS, length);
    }
    return status;
}

/* Reads and checks a range that has its own checksum. With dest NULL, only checks it. */
static int read_checked(const struct store_file *file, int64_t offset, uint64_t length, uint32_t expected,
                        uint8_t *dest, int flags)
{
    bool small = dest && length <= FFFS_BLOCK && !fffs_is_remote(file->source.fd);

    if ((flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL)) || small) {
        int status = read_fully(file, offset, length, dest, flags);

        if (status || fffs_checksum(file->source.check, 0, dest, length) == expected)
            return status;
        /* The store has the bytes that the cache lost. */
        return fffs_is_remote(file->source.fd) ? -EAGAIN : -EBADMSG;
    }
    return fffs_read_one(file->source.fd, offset, (int64_t)length, dest, file->source.check, expected);
}

/* ---------------------------------------------------------------- parts of blocks */

/* Remembers a block of an object that was verified, and that no cache keeps: its ranges will be fetched again. A record of at most a
 * block is one. */
static void note_parts(const struct store_file *file, int64_t offset, uint64_t size, const uint8_t *block)
{
    uint32_t sums[FFFS_PARTS];

    if (!fffs_is_remote(file->source.fd) || fffs_remote_is_cached(file->source.fd, offset, (int64_t)size))
        return;
    fffs_part_sums_compute(block, size, sums);
    pthread_mutex_lock(&mutex);
    if (!file->store->sums)
        file->store->sums = fffs_part_sums_new();
    if (file->store->sums)
        fffs_part_sums_note(file->store->sums, file->source.fd, offset, sums);
    pthread_mutex_unlock(&mutex);
}

/* Fetches bytes [from, from + length) of such a block. Returns -ENOKEY if it is not remembered, or they are not those of then. */
static int fetch_parts(const struct store_file *file, int64_t offset, uint64_t size, uint64_t from, uint64_t length,
                       uint8_t *dest)
{
    uint64_t begin = from / FFFS_PART * FFFS_PART, end = ((from + length - 1) / FFFS_PART + 1) * FFFS_PART;
    uint32_t then[FFFS_PARTS], now[FFFS_PARTS];

    end = end < size ? end : size;
    pthread_mutex_lock(&mutex);
    bool known = file->store->sums && fffs_part_sums_find(file->store->sums, file->source.fd, offset, then);
    pthread_mutex_unlock(&mutex);
    if (!known)
        return -ENOKEY;
    uint8_t *parts = fffs_buffer_take(end - begin);
    if (!parts)
        return -ENOMEM;
    int status =
        fffs_read_one(file->source.fd, offset + (int64_t)begin, (int64_t)(end - begin), parts, FFFS_CHECK_NONE, 0);
    if (!status) {
        fffs_part_sums_compute(parts, end - begin, now);
        if (memcmp(now, then + begin / FFFS_PART, ((end - begin - 1) / FFFS_PART + 1) * sizeof *now))
            status = -ENOKEY;
    }
    if (!status)
        memcpy(dest, parts + (from - begin), length);
    fffs_buffer_give(parts);
    return status;
}

/* Reads bytes [from, from + length) of a block that was verified. Returns -ENOKEY if it must be verified again. */
static int read_again(const struct store_file *file, int64_t offset, uint64_t size, uint64_t from, uint64_t length,
                      uint8_t *dest, int flags)
{
    int status = read_fully(file, offset + (int64_t)from, length, dest, flags);

    return status == -ENOKEY ? fetch_parts(file, offset, size, from, length, dest) : status;
}

/* ---------------------------------------------------------------- failures of stores */

/* Returns the status with which a record failed a moment ago, or 0. Only once: the kernel asks twice, and who asks then may find the
 * store back. */
static int failed_before(fffs_store *store, uint64_t record)
{
    int64_t since = fffs_now() - FAILURE_HOLDS;
    int status = 0;

    if (atomic_load(&store->failed) < since)
        return 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < FAILURES; i++) {
        struct failure *failure = &store->failures[i];

        if (failure->when <= since || failure->record != record)
            continue;
        status = failure->status;
        failure->when = 0;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static void note_failure(fffs_store *store, uint64_t record, int status)
{
    if (status == -EAGAIN || status == -EBADMSG || status == -ENOMEM || status == -ECANCELED)
        return;
    pthread_mutex_lock(&mutex);
    int64_t now = fffs_now();
    store->failures[store->next_failure++ % FAILURES] = (struct failure){record, now, now, status};
    pthread_mutex_unlock(&mutex);
    atomic_store(&store->failed, now);
}

/* Returns the status with which a record failed since a moment, or 0. */
static int failure_since(fffs_store *store, uint64_t record, int64_t since)
{
    int status = 0;

    pthread_mutex_lock(&mutex);
    for (int i = 0; i < FAILURES && !status; i++)
        if (store->failures[i].noted >= since && store->failures[i].record == record)
            status = store->failures[i].status;
    pthread_mutex_unlock(&mutex);
    return status;
}

/* ---------------------------------------------------------------- whole records */

static struct check *begin_check(fffs_store *store, uint64_t record)
{
    struct check *mine = fffs_allocate(sizeof *mine);

    if (!mine)
        return NULL;
    pthread_mutex_lock(&mutex);
    for (struct check *other = store->checks; other;) {
        if (other->record == record && other->epoch == epoch) {
            pthread_cond_wait(&checked, &mutex);
            other = store->checks;
        } else {
            other = other->next;
        }
    }
    *mine = (struct check){store->checks, record, epoch};
    store->checks = mine;
    pthread_mutex_unlock(&mutex);
    return mine;
}

static void end_check(fffs_store *store, struct check *mine)
{
    pthread_mutex_lock(&mutex);
    for (struct check **link = &store->checks; *link; link = &(*link)->next) {
        if (*link == mine) {
            *link = mine->next;
            break;
        }
    }
    pthread_cond_broadcast(&checked);
    pthread_mutex_unlock(&mutex);
    free(mine);
}

/* Whether verified data may be read without a check: the file was resting then, and is the same now. */
static bool believed(_Atomic fffs_mark *verified, fffs_mark now)
{
    fffs_mark then = atomic_load(verified);

    return fffs_mark_rests(then) && fffs_mark_agrees(then, now);
}

static void keep(_Atomic fffs_mark *verified, fffs_mark mark)
{
    if (!believed(verified, mark))
        atomic_store(verified, mark);
}

/* Blocks that are read at a time: enough to keep a disk busy, in bounded memory. */
enum { GROUP = 256 };

/* Computes the checksums of all blocks of a record, and *whole, their combination, to compare with the record's. */
static int checksum_blocks(const struct store_file *file, uint64_t row, uint64_t count, uint32_t *checksums,
                           uint32_t *whole)
{
    fffs_request *requests = fffs_allocate(GROUP * sizeof *requests);
    int status = requests ? 0 : -ENOMEM;

    *whole = 0;
    for (uint64_t begin = 0; !status && begin < count; begin += GROUP) {
        uint64_t some = count - begin < GROUP ? count - begin : GROUP;

        for (uint64_t i = 0; i < some; i++) {
            int64_t offset = file->source.starts[row] + (int64_t)((begin + i) * FFFS_BLOCK);
            int64_t rest = file->source.ends[row] - offset;

            requests[i] = (fffs_request){.offset = offset,
                                         .length = rest < FFFS_BLOCK ? rest : FFFS_BLOCK,
                                         .fd = file->source.fd,
                                         .check = file->source.check | FFFS_CHECK_COMPUTE};
        }
        status = fffs_read_batch(requests, some);
        status = status == -EIO ? 0 : status;
        for (uint64_t i = 0; !status && i < some; i++) {
            status = requests[i].status;
            checksums[begin + i] = requests[i].actual;
            *whole =
                fffs_checksum_combine(file->source.check, *whole, requests[i].actual, (uint64_t)requests[i].length);
        }
    }
    free(requests);
    return status;
}

/* Checks all of a record. *learned, which the caller frees, has its blocks with the checksums of the bytes that were
 * read: these are right whatever the file does meanwhile. If it did not change, the blocks are verified. */
static int learn(struct store_file *file, uint64_t row, fffs_mark mark, struct blocks **learned)
{
    uint64_t count = ((uint64_t)(file->source.ends[row] - file->source.starts[row]) - 1) / FFFS_BLOCK + 1;
    struct blocks *blocks = fffs_allocate_zeroed(1, sizeof *blocks + count * (sizeof(uint32_t) + sizeof(fffs_mark)));
    uint32_t *checksums = (uint32_t *)(blocks + 1), whole;
    int status;

    if (!blocks)
        return -ENOMEM;
    *blocks = (struct blocks){checksums, (_Atomic fffs_mark *)(checksums + count), count, NULL};
    status = checksum_blocks(file, row, count, checksums, &whole);
    if (!status && whole != file->source.checksums[row] && fffs_is_remote(file->source.fd)) {
        /* A byte may have changed on its way, or in the cache. */
        fffs_remote_drop(file->source.fd, file->source.starts[row],
                         file->source.ends[row] - file->source.starts[row]);
        status = checksum_blocks(file, row, count, checksums, &whole);
    }
    if (!status && whole != file->source.checksums[row])
        status = -EBADMSG;
    if (!status && fffs_watch_look(&file->watch, mark) == 0)
        for (uint64_t i = 0; i < count; i++)
            atomic_store(&blocks->verified[i], mark);
    if (status)
        free(blocks);
    else
        *learned = blocks;
    return status;
}

/* The same, once for all threads that need the record. The file owns the blocks. What a store does not give is an error for all that
 * waited for it: to ask again would take each of them as long. */
static int learn_once(fffs_store *store, struct store_file *file, uint64_t row, fffs_mark mark)
{
    int64_t begin = fffs_now();
    struct check *mine = begin_check(store, file->first + row);
    struct blocks *learned = NULL;

    if (!mine)
        return -ENOMEM;
    int status = fffs_is_remote(file->source.fd) ? failure_since(store, mine->record, begin) : 0;
    if (!status && !atomic_load(&file->learned[row])) {
        status = learn(file, row, mark, &learned);
        if (status && fffs_is_remote(file->source.fd))
            note_failure(store, mine->record, status);
    }
    if (learned) {
        learned->next = atomic_load(&file->all_learned);
        while (!atomic_compare_exchange_weak(&file->all_learned, &learned->next, learned))
            ;
        atomic_store(&file->learned[row], learned);
    }
    end_check(store, mine);
    return status;
}

/* Checks a record of at most a block and reads a range of it. */
static int read_small(struct store_file *file, uint64_t row, uint64_t start, uint64_t length, uint8_t *dest,
                      int flags)
{
    int64_t offset = file->source.starts[row];
    uint64_t whole = (uint64_t)(file->source.ends[row] - offset);

    if (start == 0 && length == whole) /* nothing else of it will be read */
        return read_checked(file, offset, whole, file->source.checksums[row], dest, flags);
    uint8_t *scratch = fffs_buffer_take(whole);
    if (!scratch)
        return -ENOMEM;
    int status = read_checked(file, offset, whole, file->source.checksums[row], scratch, flags);
    if (!status) {
        note_parts(file, offset, whole, scratch);
        memcpy(dest, scratch + start, length);
    }
    fffs_buffer_give(scratch);
    return status;
}

/* ---------------------------------------------------------------- blocks of big records */

/* Sets *blocks to the blocks of a large record. Returns false if they are not known. */
static bool known_blocks(const struct store_file *file, uint64_t row, struct blocks *blocks)
{
    const struct blocks *learned = atomic_load(&file->learned[row]);
    int64_t big = learned ? -1 : find_big(&file->source, row);

    if (learned) {
        *blocks = *learned;
    } else if (big >= 0) {
        uint64_t first = file->source.big_first_blocks[big];

        *blocks = (struct blocks){file->source.block_checksums + first, file->block_verified + first,
                                  file->source.big_first_blocks[big + 1] - first, NULL};
    }
    return learned || big >= 0;
}

/* Reads one block of a large record: its part inside [start, start + length) goes to its place in dest. Sets *plain if
 * it is not checked. */
static int read_block(struct store_file *file, uint64_t row, const struct blocks *blocks, uint64_t block,
                      uint64_t start, uint64_t length, uint8_t *dest, int flags, fffs_mark mark, bool *plain)
{
    uint64_t record_length = (uint64_t)(file->source.ends[row] - file->source.starts[row]);
    uint64_t begin = block * FFFS_BLOCK;
    uint64_t size = record_length - begin < FFFS_BLOCK ? record_length - begin : FFFS_BLOCK;
    uint64_t from = start > begin ? start : begin;
    uint64_t to = start + length < begin + size ? start + length : begin + size;
    int64_t offset = file->source.starts[row] + (int64_t)begin;
    uint32_t expected = blocks->checksums[block];

    if (believed(&blocks->verified[block], mark)) {
        int status = read_again(file, offset, size, from - begin, to - from, dest + (from - start), flags);

        *plain |= status != -ENOKEY;
        if (status != -ENOKEY)
            return status;
    }
    if (from == begin && to == begin + size)
        return read_checked(file, offset, size, expected, dest + (from - start), flags);
    uint8_t *scratch = fffs_buffer_take(size);
    if (!scratch)
        return -ENOMEM;
    int status = read_checked(file, offset, size, expected, scratch, flags);
    if (!status) {
        note_parts(file, offset, size, scratch);
        memcpy(dest + (from - start), scratch + (from - begin), to - from);
    }
    fffs_buffer_give(scratch);
    return status;
}

/* Bytes that were just checked are good even if the file changed meanwhile; plain reads are good if it did not. A mark
 * of a file that changed may be stored: believed() rejects it. */
static int look_again(struct store_file *file, fffs_mark mark, bool plain)
{
    int status = fffs_watch_look(&file->watch, mark);

    return status == -ESTALE && !plain ? 0 : status;
}

static int read_blocks(struct store_file *file, uint64_t row, const struct blocks *blocks, uint64_t start,
                       uint64_t length, uint8_t *dest, int flags, fffs_mark mark)
{
    uint64_t first = start / FFFS_BLOCK, last = (start + length - 1) / FFFS_BLOCK;
    bool plain = false;
    int status = 0;

    for (uint64_t block = first; !status && block <= last; block++)
        status = read_block(file, row, blocks, block, start, length, dest, flags, mark, &plain);
    if (!status)
        status = look_again(file, mark, plain);
    for (uint64_t block = first; !status && block <= last; block++)
        keep(&blocks->verified[block], mark);
    return status;
}

/* ---------------------------------------------------------------- entry points */

/* Reads a range of a record of more than a block. */
static int read_large(fffs_store *store, struct store_file *file, uint64_t row, uint64_t start, uint64_t length,
                      uint8_t *dest, int flags, fffs_mark mark)
{
    struct blocks blocks;

    if (!known_blocks(file, row, &blocks)) {
        bool waits = !(flags & (FFFS_READ_NOWAIT | FFFS_READ_LOCAL));
        int status = waits ? learn_once(store, file, row, mark) : -EAGAIN;

        if (status)
            return status;
        known_blocks(file, row, &blocks);
    }
    return read_blocks(file, row, &blocks, start, length, dest, flags, mark);
}

/* One attempt, under one mark of the file: -ESTALE if it changed meanwhile. The range is inside and not empty. */
static int read_range(fffs_store *store, struct store_file *file, uint64_t row, uint64_t start, uint64_t length,
                      uint8_t *dest, int flags)
{
    fffs_mark mark = fffs_watch_mark(&file->watch);
    int status;

    if (file->source.ends[row] - file->source.starts[row] > FFFS_BLOCK)
        return read_large(store, file, row, start, length, dest, flags, mark);
    bool plain = believed(&file->verified[row], mark);
    if (plain) {
        status =
            read_again(file, file->source.starts[row], (uint64_t)(file->source.ends[row] - file->source.starts[row]),
                       start, length, dest, flags);
        plain = status != -ENOKEY;
    }
    if (!plain)
        status = read_small(file, row, start, length, dest, flags);
    if (!status)
        status = look_again(file, mark, plain);
    if (!status)
        keep(&file->verified[row], mark);
    return status;
}

/* Reads a range of a file without checksums. */
static int read_unchecked(const struct store_file *file, int64_t offset, uint64_t length, uint8_t *dest, int flags)
{
    int status = read_fully(file, offset, length, dest, flags);

    return status ? status : fffs_unchanged(file->source.fd, &file->source.stamp);
}

/* An empty record has a checksum, too, which no read compares: the table's entry may be wrong. */
static int check_empty(const struct store_file *file, uint64_t row)
{
    return file->source.check == FFFS_CHECK_NONE || file->source.checksums[row] == 0 ? 0 : -EBADMSG;
}

/* Reads a range of a record of a file. Returns as fffs_store_read. */
static int64_t read_record(fffs_store *store, struct store_file *file, uint64_t record, uint64_t start,
                           uint64_t length, uint8_t *dest, int flags)
{
    int status = -ESTALE;
    uint64_t row = record - file->first;
    uint64_t whole = (uint64_t)(file->source.ends[row] - file->source.starts[row]);
    /* Lengths come from the file's own tables, and must not be trusted beyond the size of the file. */
    if (file->source.starts[row] > file->size || file->source.ends[row] > file->size)
        return -ENODATA;
    if (whole == 0 && !(flags & FFFS_READ_UNVERIFIED))
        return check_empty(file, row);
    if (start >= whole || length == 0)
        return 0;
    if (length > whole - start)
        length = whole - start;
    if (flags & FFFS_READ_UNVERIFIED)
        status = read_fully(file, file->source.starts[row] + (int64_t)start, length, dest, flags);
    else if (file->source.check == FFFS_CHECK_NONE)
        status = read_unchecked(file, file->source.starts[row] + (int64_t)start, length, dest, flags);
    else
        for (int tries = 0; status == -ESTALE && tries < CHANGES_MAX; tries++) {
            fffs_mark before = fffs_watch_mark(&file->watch);

            status = read_range(store, file, row, start, length, dest, flags);
            if (fffs_is_remote(file->source.fd) && fffs_mark_agrees(before, fffs_watch_mark(&file->watch)))
                break; /* it is the store that has another version */
        }
    return status ? status : (int64_t)length;
}

int64_t fffs_store_read(fffs_store *store, uint64_t record, uint64_t start, uint64_t length, uint8_t *dest, int flags)
{
    struct store_file *file = find_file(store, record);

    if (!file)
        return -ERANGE;
    if (!fffs_is_remote(file->source.fd))
        return read_record(store, file, record, start, length, dest, flags);
    int64_t got = failed_before(store, record);
    if (!got) {
        got = read_record(store, file, record, start, length, dest, flags);
        if (got < 0)
            note_failure(store, record, (int)got);
    }
    return got;
}

int fffs_store_verified(fffs_store *store, uint64_t record)
{
    struct store_file *file = find_file(store, record);

    if (!file || file->source.check == FFFS_CHECK_NONE)
        return 0;
    uint64_t row = record - file->first;
    fffs_mark mark = fffs_watch_mark(&file->watch);
    int64_t length = file->source.ends[row] - file->source.starts[row];
    struct blocks blocks;
    if (length == 0)
        return file->source.checksums[row] == 0;
    if (length <= FFFS_BLOCK)
        return fffs_mark_agrees(atomic_load(&file->verified[row]), mark);
    if (!known_blocks(file, row, &blocks))
        return 0;
    for (uint64_t block = 0; block < blocks.count; block++)
        if (!fffs_mark_agrees(atomic_load(&blocks.verified[block]), mark))
            return 0;
    return 1;
}

uint64_t fffs_store_count_verified(fffs_store *store)
{
    uint64_t count = 0, records = fffs_store_records(store);

    for (uint64_t record = 0; record < records; record++) /* nothing is read of an empty record */
        count += fffs_store_length(store, record) > 0 && fffs_store_verified(store, record) == 1;
    return count;
}

size_t fffs_store_files(const fffs_store *store)
{
    return store->count;
}

int64_t fffs_store_file_of(const fffs_store *store, uint64_t record)
{
    const struct store_file *file = find_file(store, record);

    return file ? file - store->files : -ERANGE;
}

bool fffs_store_is_remote(const fffs_store *store, size_t file)
{
    return fffs_is_remote(store->files[file].source.fd);
}

uint64_t fffs_store_records(const fffs_store *store)
{
    return store->count ? store->files[store->count - 1].first + store->files[store->count - 1].source.records : 0;
}

int64_t fffs_store_length(const fffs_store *store, uint64_t record)
{
    const struct store_file *file = find_file(store, record);

    return file ? file->source.ends[record - file->first] - file->source.starts[record - file->first] : -ERANGE;
}
