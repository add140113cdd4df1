/* The files of a store, and what the parts of a store do for each other: store.c, store_blocks.c, store_bytes.c and store_waits.c.
 *
 * All functions are thread-safe, and return 0 or -errno unless they say otherwise. Offsets and lengths are bytes; a row is the number
 * of a record in its file. flags: FFFS_READ_…, as for fffs_store_read. */
#ifndef FFFS_STORE_FILE_H
#define FFFS_STORE_FILE_H

#include "fffs.h"
#include "watch.h"

/* The blocks of a large record: from the file's table, or learned when the whole record was verified. */
struct fffs_blocks {
    const uint32_t *checksums;
    _Atomic fffs_mark *verified; /* the mark under which each block was verified; 0: never */
    uint64_t count;
    struct fffs_blocks *next; /* in the list of all learned ones */
};

struct fffs_store_file {
    fffs_file source;
    fffs_store *store;
    uint64_t first;                       /* number in the store of its first record */
    _Atomic fffs_mark *verified;          /* [records] the same for records of at most a block */
    _Atomic fffs_mark *block_verified;    /* the same for the blocks of the table */
    struct fffs_blocks *_Atomic *learned; /* [records] of large ones that the table lacks; NULL: not learned yet */
    struct fffs_blocks *_Atomic all_learned;
    struct fffs_watch watch;
    int64_t size; /* when it was opened */
};

/* A check of a whole large record. Other threads that need the record wait instead of reading it too. */
struct fffs_store_check {
    struct fffs_store_check *next;
    uint64_t record;
    unsigned epoch; /* of the process that checks: a forked child inherits the entry, but not the thread */
};

/* A record that its object's store did not give. */
struct fffs_store_failure {
    uint64_t record;
    int64_t when;  /* on fffs_now's clock; 0: none, or it was told */
    int64_t noted; /* the same, also if it was told */
    int status;
};

/* How many failures are known. */
enum { FFFS_STORE_FAILURES = 64 };

struct fffs_store {
    struct fffs_store_file *files;
    size_t count;
    struct fffs_store_check *checks; /* guarded by fffs_store_lock, and so are the failures and sums */
    struct fffs_part_sums *sums;     /* of what was verified, and no cache keeps; or NULL */
    struct fffs_store_failure failures[FFFS_STORE_FAILURES];
    unsigned next_failure;
    _Atomic int64_t failed; /* when the last one was noted */
};

/* ---------------------------------------------------------------- store_waits.c */

/* The lock of all stores. Never held during a read. */
void fffs_store_lock(void);
void fffs_store_unlock(void);

/* Waits until no other thread checks a record. Returns the check, which fffs_store_end_check ends and frees; or NULL: no memory. */
struct fffs_store_check *fffs_store_begin_check(fffs_store *store, uint64_t record);
void fffs_store_end_check(fffs_store *store, struct fffs_store_check *mine);

/* Returns the status with which a record failed a moment ago, or 0. Only once: the kernel asks twice, and who asks then may find the
 * store back. */
int fffs_store_failed_before(fffs_store *store, uint64_t record);

/* Returns the status with which a record failed since a moment, or 0. */
int fffs_store_failure_since(fffs_store *store, uint64_t record, int64_t since);

/* Notes that a record failed, unless that says nothing about the store. */
void fffs_store_note_failure(fffs_store *store, uint64_t record, int status);

/* ---------------------------------------------------------------- store_bytes.c */

/* Reads exactly length bytes. Returns -ENODATA if the file is too short; -EAGAIN if flags forbid to wait; -ENOKEY if no cache of an
 * object has them, so that nothing shows whether they are right. */
int fffs_store_read_plain(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint8_t *dest,
                          int flags);

/* Reads and checks a range that has its own checksum. With dest NULL, only checks it. Returns also -EBADMSG. */
int fffs_store_read_checked(const struct fffs_store_file *file, int64_t offset, uint64_t length, uint32_t expected,
                            uint8_t *dest, int flags);

/* Remembers a block of an object that was verified, and that no cache keeps: its ranges will be fetched again. A record of at most a
 * block is one. */
void fffs_store_note_parts(const struct fffs_store_file *file, int64_t offset, uint64_t size, const uint8_t *block);

/* Reads bytes [from, from + length) of a block that was verified. Returns -ENOKEY if it must be verified again. */
int fffs_store_read_again(const struct fffs_store_file *file, int64_t offset, uint64_t size, uint64_t from,
                          uint64_t length, uint8_t *dest, int flags);

/* ---------------------------------------------------------------- store_blocks.c */

/* Whether verified data may be read without a check: the file was resting then, and is the same now. */
bool fffs_store_believes(_Atomic fffs_mark *verified, fffs_mark now);
void fffs_store_keep(_Atomic fffs_mark *verified, fffs_mark mark);

/* Looks at the file after a read. Bytes that were just checked are good even if the file changed meanwhile; plain reads are good if it
 * did not: else -ESTALE. A mark of a file that changed may be stored: fffs_store_believes rejects it. */
int fffs_store_look_again(struct fffs_store_file *file, fffs_mark mark, bool plain);

/* Sets *blocks to the blocks of a large record. Returns false if they are not known. */
bool fffs_store_known_blocks(const struct fffs_store_file *file, uint64_t row, struct fffs_blocks *blocks);

/* Reads a range, inside and not empty, of a record of more than a block. */
int fffs_store_read_large(struct fffs_store_file *file, uint64_t row, uint64_t start, uint64_t length, uint8_t *dest,
                          int flags, fffs_mark mark);

#endif
