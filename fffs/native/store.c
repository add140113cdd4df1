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
#include "fault.h"
#include "remote.h"
#include "store_file.h"

#include <stdlib.h>
#include <string.h>

/* The most attempts of a read whose file changes meanwhile. */
#define CHANGES_MAX 8

/* ---------------------------------------------------------------- life */

static int init_file(struct fffs_store_file *file, const fffs_file *from, uint64_t first)
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

static void free_file(struct fffs_store_file *file)
{
    struct fffs_blocks *next;

    for (struct fffs_blocks *blocks = atomic_load(&file->all_learned); blocks; blocks = next) {
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
        struct fffs_store_check *left = store->checks;

        store->checks = left->next;
        free(left);
    }
    free(store);
}

/* ---------------------------------------------------------------- records */

static struct fffs_store_file *find_file(const fffs_store *store, uint64_t record)
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

/* Checks a record of at most a block and reads a range of it. */
static int read_small(struct fffs_store_file *file, uint64_t row, uint64_t start, uint64_t length, uint8_t *dest,
                      int flags)
{
    int64_t offset = file->source.starts[row];
    uint64_t whole = (uint64_t)(file->source.ends[row] - offset);

    if (start == 0 && length == whole) /* nothing else of it will be read */
        return fffs_store_read_checked(file, offset, whole, file->source.checksums[row], dest, flags);
    uint8_t *scratch = fffs_buffer_take(whole);
    if (!scratch)
        return -ENOMEM;
    int status = fffs_store_read_checked(file, offset, whole, file->source.checksums[row], scratch, flags);
    if (!status) {
        fffs_store_note_parts(file, offset, whole, scratch);
        memcpy(dest, scratch + start, length);
    }
    fffs_buffer_give(scratch);
    return status;
}

/* One attempt, under one mark of the file: -ESTALE if it changed meanwhile. The range is inside and not empty. */
static int read_range(struct fffs_store_file *file, uint64_t row, uint64_t start, uint64_t length, uint8_t *dest,
                      int flags)
{
    fffs_mark mark = fffs_watch_mark(&file->watch);
    int status;

    if (file->source.ends[row] - file->source.starts[row] > FFFS_BLOCK)
        return fffs_store_read_large(file, row, start, length, dest, flags, mark);
    bool plain = fffs_store_believes(&file->verified[row], mark);
    if (plain) {
        status = fffs_store_read_again(file, file->source.starts[row],
                                       (uint64_t)(file->source.ends[row] - file->source.starts[row]), start, length,
                                       dest, flags);
        plain = status != -ENOKEY;
    }
    if (!plain)
        status = read_small(file, row, start, length, dest, flags);
    if (!status)
        status = fffs_store_look_again(file, mark, plain);
    if (!status)
        fffs_store_keep(&file->verified[row], mark);
    return status;
}

/* Reads a range of a file without checksums. */
static int read_unchecked(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint8_t *dest,
                          int flags)
{
    int status = fffs_store_read_plain(file, offset, length, dest, flags);

    return status ? status : fffs_unchanged(file->source.fd, &file->source.stamp);
}

/* An empty record has a checksum, too, which no read compares: the table's entry may be wrong. */
static int check_empty(const struct fffs_store_file *file, uint64_t row)
{
    return file->source.check == FFFS_CHECK_NONE || file->source.checksums[row] == 0 ? 0 : -EBADMSG;
}

/* Reads a range of a record of a file. Returns as fffs_store_read. */
static int64_t read_record(struct fffs_store_file *file, uint64_t record, uint64_t start, uint64_t length,
                           uint8_t *dest, int flags)
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
        status = fffs_store_read_plain(file, file->source.starts[row] + (int64_t)start, length, dest, flags);
    else if (file->source.check == FFFS_CHECK_NONE)
        status = read_unchecked(file, file->source.starts[row] + (int64_t)start, length, dest, flags);
    else
        for (int tries = 0; status == -ESTALE && tries < CHANGES_MAX; tries++) {
            fffs_mark before = fffs_watch_mark(&file->watch);

            status = read_range(file, row, start, length, dest, flags);
            if (fffs_is_remote(file->source.fd) && fffs_mark_agrees(before, fffs_watch_mark(&file->watch)))
                break; /* it is the store that has another version */
        }
    return status ? status : (int64_t)length;
}

int64_t fffs_store_read(fffs_store *store, uint64_t record, uint64_t start, uint64_t length, uint8_t *dest, int flags)
{
    struct fffs_store_file *file = find_file(store, record);

    if (!file)
        return -ERANGE;
    if (!fffs_is_remote(file->source.fd))
        return read_record(file, record, start, length, dest, flags);
    int64_t got = fffs_store_failed_before(store, record);
    if (!got) {
        got = read_record(file, record, start, length, dest, flags);
        if (got < 0)
            fffs_store_note_failure(store, record, (int)got);
    }
    return got;
}

int fffs_store_verified(fffs_store *store, uint64_t record)
{
    struct fffs_store_file *file = find_file(store, record);

    if (!file || file->source.check == FFFS_CHECK_NONE)
        return 0;
    uint64_t row = record - file->first;
    fffs_mark mark = fffs_watch_mark(&file->watch);
    int64_t length = file->source.ends[row] - file->source.starts[row];
    struct fffs_blocks blocks;
    if (length == 0)
        return file->source.checksums[row] == 0;
    if (length <= FFFS_BLOCK)
        return fffs_mark_agrees(atomic_load(&file->verified[row]), mark);
    if (!fffs_store_known_blocks(file, row, &blocks))
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
    const struct fffs_store_file *file = find_file(store, record);

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
    const struct fffs_store_file *file = find_file(store, record);

    return file ? file->source.ends[record - file->first] - file->source.starts[record - file->first] : -ERANGE;
}
