/* Fuzzes verified range reads of a file that is damaged, truncated and repaired meanwhile, with any index, against a model.
 *
 * Input: what the index is, then what is done. The file is the same 3 MiB each time, in memory. Whenever it is changed its
 * time is too, as a file system does; but while the store knows that somebody is at work, bytes also change through a
 * mapping, which no time shows. Time passes only when the input says so. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "store.h"

enum {
    FILE_SIZE = 3 * FFFS_BLOCK + 4321,
    FILES = 3,
    RECORDS = 6, /* of each file at most */
    BLOCKS = 4,  /* of a record at most */
    STEPS = 24,
    RESTS = 59, /* seconds for which a file whose change was noticed is certainly not believed */
    FAR = -1 /* an offset that is not in the file */
};

/* ---------------------------------------------------------------- the file, and what it should hold */

static uint8_t original[FILE_SIZE], now[FILE_SIZE];
static int64_t now_size = FILE_SIZE;
static int64_t dirty_from = FILE_SIZE, dirty_to; /* outside of this, now is original */
static int fd = -1;
static int changed[FILES]; /* since the store last looked at it */
static int touched;        /* since it was opened */
static uint8_t *mapping;

/* How far the store's clock is ahead, and where it was when the store noticed the file's last change; NEVER, it did not. */
enum { NEVER = -1000 };
static int32_t ahead, noticed[FILES];
static time_t begun; /* a process that was stopped for long proves nothing */
static int hidden;   /* something changed that no time shows */

static void pass_time(int32_t seconds)
{
    ahead += seconds;
    fffs_fault_set(FFFS_FAULT_CLOCK, 1, INT64_MAX, ahead);
}

/* A change that cannot be missed: the file's time is another one. */
static void tick(void)
{
    static int64_t seconds = 1000000000;
    struct timespec times[2] = {{0, UTIME_OMIT}, {++seconds, 0}};

    CHECK(futimens(fd, times) == 0);
    for (int k = 0; k < FILES; k++)
        changed[k] = 1;
    touched = 1;
}

static void write_now(int64_t from, int64_t size)
{
    CHECK(pwrite(fd, now + from, (size_t)size, from) == size);
    tick();
}

static void spoil(int64_t from, int64_t to)
{
    dirty_from = from < dirty_from ? from : dirty_from;
    dirty_to = to > dirty_to ? to : dirty_to;
}

/* memcmp, which a sanitizer makes slow, for megabytes. */
__attribute__((no_sanitize("address", "undefined"))) static int differ(const uint8_t *a, const uint8_t *b, int64_t size)
{
    int64_t i = 0;

    for (; i + 8 <= size; i += 8) {
        uint64_t x, y;

        __builtin_memcpy(&x, a + i, 8);
        __builtin_memcpy(&y, b + i, 8);
        if (x != y)
            return 1;
    }
    for (; i < size; i++)
        if (a[i] != b[i])
            return 1;
    return 0;
}

static void make_file(void)
{
    uint64_t state = 88172645463325252u;

    for (size_t i = 0; i < FILE_SIZE; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        original[i] = (uint8_t)state;
    }
    memcpy(now, original, FILE_SIZE);
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, FILE_SIZE) == 0);
    mapping = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapping != MAP_FAILED);
    write_now(0, FILE_SIZE);
}

/* Whether the store checks all that it reads of any file: it knows that they change, and that was not long ago. */
static int watched(void)
{
    for (int k = 0; k < FILES; k++)
        if (ahead - noticed[k] > RESTS)
            return 0;
    return time(NULL) - begun < RESTS / 2;
}

static void damage(int64_t at, uint8_t mask, int quietly)
{
    if (at >= now_size)
        return;
    now[at] ^= mask;
    spoil(at, at + 1);
    if (quietly && watched()) {
        mapping[at] = now[at];
        hidden = 1;
    } else {
        write_now(at, 1);
    }
}

static void cut(int64_t size)
{
    /* What is cut off and grown again is zeros. */
    if (size > now_size)
        memset(now + now_size, 0, (size_t)(size - now_size));
    spoil(size < now_size ? size : now_size, FILE_SIZE);
    now_size = size;
    CHECK(ftruncate(fd, size) == 0);
    tick();
}

static void mend(void)
{
    if (now_size != FILE_SIZE)
        cut(FILE_SIZE);
    if (dirty_from >= dirty_to)
        return;
    memcpy(now + dirty_from, original + dirty_from, (size_t)(dirty_to - dirty_from));
    write_now(dirty_from, dirty_to - dirty_from);
    dirty_from = FILE_SIZE;
    dirty_to = 0;
}

/* ---------------------------------------------------------------- the index */

struct index {
    int64_t starts[RECORDS], ends[RECORDS];
    uint32_t checksums[RECORDS];
    uint32_t big_records[RECORDS];
    uint64_t big_first_blocks[RECORDS + 1];
    uint32_t block_checksums[RECORDS * BLOCKS];
    int lies[RECORDS];                /* the checksum is wrong */
    int learned[RECORDS];             /* the store has seen that all of it is good, and knows its blocks */
    int block_lies[RECORDS * BLOCKS]; /* that of the block is */
};

static struct index indexes[FILES];
static fffs_file files[FILES];

/* A length of the kinds that matter: none, few bytes, near a block, near several, absurd. */
static int64_t take_length(struct input *in)
{
    static const int64_t around[] = {0, 1, 4096, FFFS_BLOCK - 1, FFFS_BLOCK, FFFS_BLOCK + 1, 2 * FFFS_BLOCK, INT64_MAX};
    uint64_t kind = take(in, 1);

    if (kind < 128)
        return (int64_t)kind;
    if (kind < 192)
        return around[kind % 8];
    return (int64_t)(kind < 224 ? take(in, 2) : kind < 254 ? take(in, 3) : take(in, 8) & INT64_MAX);
}

static int64_t plus(int64_t a, int64_t b)
{
    return b > INT64_MAX - a ? INT64_MAX : a + b;
}

static uint32_t crc_of(const fffs_file *file, int64_t start, int64_t end)
{
    uint32_t (*crc)(uint32_t, const void *, size_t) = file->check == FFFS_CHECK_CRC32C ? fffs_crc32c : fffs_crc32;

    return end <= FILE_SIZE ? crc(0, original + start, (size_t)(end - start)) : 12345;
}

static void take_blocks(struct input *in, struct index *index, fffs_file *file, uint32_t row)
{
    int64_t length = index->ends[row] - index->starts[row];
    uint64_t first = index->big_first_blocks[file->bigs];
    uint64_t count = (uint64_t)length / FFFS_BLOCK + (length % FFFS_BLOCK != 0);

    if (length <= FFFS_BLOCK || count > BLOCKS)
        return;
    uint64_t lies = take(in, 1);
    for (uint64_t b = 0; b < count; b++) {
        int64_t start = plus(index->starts[row], (int64_t)b * FFFS_BLOCK);
        int64_t end = b + 1 == count ? index->ends[row] : plus(start, FFFS_BLOCK);

        index->block_lies[first + b] = lies >> b & 1;
        index->block_checksums[first + b] = crc_of(file, start, end) ^ (lies >> b & 1);
    }
    index->big_records[file->bigs++] = row;
    index->big_first_blocks[file->bigs] = first + count;
}

static void take_index(struct input *in, struct index *index, fffs_file *file)
{
    uint64_t flags = take(in, 1);
    int64_t at = 0;

    memset(index, 0, sizeof *index);
    *file = (fffs_file){.records = flags % (RECORDS + 1), .fd = fd};
    file->check = flags & 128 ? FFFS_CHECK_NONE : flags & 64 ? FFFS_CHECK_CRC32C : FFFS_CHECK_CRC32;
    for (uint32_t row = 0; row < file->records; row++) {
        uint64_t kind = take(in, 1);

        if (kind & 1)
            at = plus(at, take_length(in));
        index->starts[row] = at;
        at = index->ends[row] = plus(at, take_length(in));
        index->lies[row] = (kind & 6) == 6;
        index->checksums[row] = crc_of(file, index->starts[row], at) ^ (index->lies[row] ? 1 : 0);
        if (kind & 8 && file->check == FFFS_CHECK_CRC32)
            take_blocks(in, index, file, row);
    }
    file->starts = index->starts;
    file->ends = index->ends;
    file->checksums = file->check ? index->checksums : NULL;
    file->big_records = index->big_records;
    file->big_first_blocks = index->big_first_blocks;
    file->block_checksums = index->block_checksums;
}

/* ---------------------------------------------------------------- what a read must answer */

/* 0 when bytes that have a checksum of their own are good now. */
static int64_t expect_checked(int64_t start, int64_t end, int lies)
{
    if (end > now_size)
        return -ENODATA;
    int64_t from = start > dirty_from ? start : dirty_from, to = end < dirty_to ? end : dirty_to;
    return lies || (from < to && differ(now + from, original + from, to - from)) ? -EBADMSG : 0;
}

/* NULL for lies: there are none. */
static int64_t expect_blocks(const struct index *index, uint64_t row, const int *lies, int64_t start, int64_t end)
{
    for (int64_t b = start / FFFS_BLOCK; b <= (end - 1) / FFFS_BLOCK; b++) {
        int64_t begin = index->starts[row] + b * FFFS_BLOCK;
        int64_t stop = index->ends[row] - begin < FFFS_BLOCK ? index->ends[row] : begin + FFFS_BLOCK;
        int64_t status = expect_checked(begin, stop, lies ? lies[b] : 0);

        if (status)
            return status;
    }
    return 0;
}

static int64_t expect_good(const fffs_file *file, const struct index *index, uint64_t row, int64_t start, int64_t end)
{
    for (uint64_t k = 0; k < file->bigs; k++)
        if (index->big_records[k] == row)
            return expect_blocks(index, row, index->block_lies + index->big_first_blocks[k], start, end);
    if (index->learned[row])
        return expect_blocks(index, row, NULL, start, end);
    return expect_checked(index->starts[row], index->ends[row], index->lies[row]);
}

/* The file that holds a record, or FILES; *row becomes its number there. */
static int file_of(uint64_t *row)
{
    int k = 0;

    while (k < FILES && *row >= files[k].records)
        *row -= files[k++].records;
    return k;
}

/* The answer for [start, start + length) of a record; *where is the file's offset of the first byte given out. */
static int64_t expect(uint64_t record, uint64_t start, uint64_t length, int flags, int64_t *where)
{
    uint64_t row = record;
    int k = file_of(&row);

    *where = FAR;
    if (k == FILES)
        return -ERANGE;
    const struct index *index = &indexes[k];
    int64_t whole = index->ends[row] - index->starts[row];
    int unchecked = (flags & FFFS_READ_UNVERIFIED) || !files[k].check;
    if (index->ends[row] > FILE_SIZE)
        return -ENODATA;
    if (whole == 0)
        return unchecked || !index->lies[row] ? 0 : -EBADMSG;
    if (start >= (uint64_t)whole || length == 0)
        return 0;
    if (length > (uint64_t)whole - start)
        length = (uint64_t)whole - start;
    *where = index->starts[row] + (int64_t)start;
    if (unchecked && *where + (int64_t)length > now_size)
        return -ENODATA;
    if (unchecked)
        return touched && !(flags & FFFS_READ_UNVERIFIED) ? -ESTALE : (int64_t)length;
    int64_t status = expect_good(&files[k], index, row, (int64_t)start, (int64_t)(start + length));
    return status ? status : (int64_t)length;
}

/* ---------------------------------------------------------------- what is done */

static void check_read(fffs_store *store, struct input *in, uint64_t record)
{
    uint64_t start = (uint64_t)take_length(in), length = (uint64_t)take_length(in);
    int flags = (int)take(in, 1) & (FFFS_READ_NOWAIT | FFFS_READ_UNVERIFIED);
    int64_t where;

    /* As much room as is asked for; more than the record has is asked for only by a little. */
    int64_t whole = fffs_store_length(store, record);
    if (length > 64 && (whole < 0 || length > (uint64_t)whole + 64 || length > FILE_SIZE))
        length = whole < 0 || whole > FILE_SIZE ? 64 : (uint64_t)whole + 64;
    uint8_t *dest = exactly(length);
    int64_t expected = expect(record, start, length, flags, &where);
    int64_t got = fffs_store_read(store, record, start, length, dest, flags);
    if (!(got == -EAGAIN && flags & FFFS_READ_NOWAIT)) {
        CHECK(got == expected);
        if (got > 0)
            CHECK(!differ(dest, now + where, got));
    }
    int k = file_of(&record);
    if (got > 0 && files[k].check && !(flags & FFFS_READ_UNVERIFIED)) {
        noticed[k] = changed[k] ? ahead : noticed[k];
        changed[k] = 0;
        indexes[k].learned[record] = whole > FFFS_BLOCK;
    }
    free(dest);
}

/* Nothing counts as verified that is not good, once the store has looked at the file. */
static void check_verified(fffs_store *store, uint64_t record)
{
    int64_t where, length = fffs_store_length(store, record);
    int verified = fffs_store_verified(store, record);
    uint64_t row = record;
    int k = file_of(&row);

    CHECK(fffs_store_file_of(store, record) == (k == FILES ? -ERANGE : k));
    if (k == FILES)
        CHECK(length == -ERANGE && !verified);
    else
        CHECK(length == indexes[k].ends[row] - indexes[k].starts[row]);
    if (verified && !changed[k] && !hidden)
        CHECK(expect(record, 0, (uint64_t)length, 0, &where) == length);
}

static void step(fffs_store *store, struct input *in)
{
    uint64_t kind = take(in, 1);
    uint64_t record = kind >> 3 == 31 ? take(in, 8) : kind >> 3;

    switch (kind & 7) {
    case 0: {
        int64_t at = (int64_t)(take(in, 3) % FILE_SIZE);
        uint64_t how = take(in, 1);

        damage(at, (uint8_t)(1u << (how & 7)), how >= 128);
        break;
    }
    case 1: cut((int64_t)(take(in, 3) % (FILE_SIZE + 1))); break;
    case 2: mend(); break;
    case 3: check_verified(store, record); break;
    case 7: pass_time((int32_t)(kind >> 3) * 4); break;
    default: check_read(store, in, record);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint64_t records = 0;

    if (fd < 0)
        make_file();
    for (int k = 0; k < FILES; k++) {
        take_index(&in, &indexes[k], &files[k]);
        records += files[k].records;
    }
    tick(); /* always as young, when it is opened */
    memset(changed, 0, sizeof changed);
    touched = 0;
    struct stat opened;
    CHECK(fstat(fd, &opened) == 0);
    for (int k = 0; k < FILES; k++) {
        files[k].keeps_times = 1; /* as on a disk */
        files[k].stamp = (fffs_stamp){opened.st_size, opened.st_mtim.tv_sec, opened.st_mtim.tv_nsec, opened.st_dev, opened.st_ino};
    }
    for (int k = 0; k < FILES; k++)
        /* Who has nothing to check has nothing to notice. */
        noticed[k] = files[k].records && files[k].check ? NEVER : INT32_MAX / 2;
    hidden = ahead = 0;
    begun = time(NULL);
    pass_time(0);
    fffs_store *store;
    size_t unread;
    CHECK(fffs_store_new(files, FILES, &store, &unread) == 0 && fffs_store_records(store) == records);
    for (int k = 0; k < STEPS && in.left; k++)
        step(store, &in);
    fffs_store_free(store);
    mend();
    return 0;
}
