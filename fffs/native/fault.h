/* Operations that can be made to fail (fault.c); contract.h has the functions that set faults. Thread-safe. */
#ifndef FFFS_FAULT_H
#define FFFS_FAULT_H

#include "fffs.h"

#include <errno.h>
#include <stdatomic.h>

/* A bit for each armed kind: 1 << FFFS_FAULT_*. */
extern _Atomic uint32_t fffs_faults_armed;

/* Counts an operation of an armed kind, and stalls it if the fault says so. Returns true if it must return *result. */
bool fffs_fault_strikes(int kind, int32_t *result);

/* Called before each operation that can be made to fail. */
static inline bool fffs_fault(int kind, int32_t *result)
{
    uint32_t armed = atomic_load_explicit(&fffs_faults_armed, memory_order_relaxed);

    if (__builtin_expect((armed & 1U << kind) == 0, 1))
        return false;
    return fffs_fault_strikes(kind, result);
}

/* Applies an armed fault to the result of a completed read: an error, or a limit of bytes. */
static inline int64_t fffs_fault_completion(int kind, int64_t result)
{
    int32_t wanted;

    if (!fffs_fault(kind, &wanted))
        return result;
    return wanted < 0 || result > wanted ? wanted : result;
}

/* pread(2), and preadv2(2) with RWF_NOWAIT. They return -errno. */
int64_t fffs_pread(int fd, void *data, size_t size, int64_t offset);
int64_t fffs_pread_nowait(int fd, void *data, size_t size, int64_t offset);

/* pwrite(2). Returns -errno. */
int64_t fffs_pwrite(int fd, const void *data, size_t size, int64_t offset);

/* Writes all bytes. Returns 0; -EIO if the file takes no more; or -errno. */
int fffs_write_fully(int fd, int64_t offset, const uint8_t *data, size_t length);

/* Translates a file's own error, from a read of it, for callers to whom these two mean something else. A block device
 * returns ENODATA for a bad sector. */
static inline int fffs_file_error(int64_t error)
{
    return error == -ENODATA || error == -EBADMSG ? -EIO : (int)error;
}

/* malloc and calloc. The caller frees the memory with free. */
void *fffs_allocate(size_t size);
void *fffs_allocate_zeroed(size_t count, size_t size);

#endif
