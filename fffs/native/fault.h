/* Operations that injected faults can strike (fault.c). How faults are set is in contract.h. All of this any thread may
 * call. */
#ifndef FFFS_FAULT_H
#define FFFS_FAULT_H

#include "fffs.h"

#include <errno.h>
#include <stdatomic.h>

/* A bit for each kind that is armed: 1 << FFFS_FAULT_*. */
extern _Atomic uint32_t fffs_faults_armed;

/* Counts an operation of an armed kind, and holds it if it is to stall; true when it is one that must give *result.
 * Any thread. */
bool fffs_fault_strikes(int kind, int32_t *result);

/* Called before each operation that can be made to fail. */
static inline bool fffs_fault(int kind, int32_t *result)
{
    uint32_t armed = atomic_load_explicit(&fffs_faults_armed, memory_order_relaxed);

    if (__builtin_expect((armed & 1U << kind) == 0, 1))
        return false;
    return fffs_fault_strikes(kind, result);
}

/* The result of a read that was made, as an armed fault wants it: an error, or no more than so many bytes. */
static inline int64_t fffs_fault_completion(int kind, int64_t result)
{
    int32_t wanted;

    if (!fffs_fault(kind, &wanted))
        return result;
    return wanted < 0 || result > wanted ? wanted : result;
}

/* pread(2), and preadv2(2) with RWF_NOWAIT; -errno in the result. */
int64_t fffs_pread(int fd, void *data, size_t size, int64_t offset);
int64_t fffs_pread_nowait(int fd, void *data, size_t size, int64_t offset);

/* What a file's own error, from a read of it, is to our callers, to whom these two mean something else. A block
 * device says ENODATA for a bad sector. */
static inline int fffs_file_error(int64_t error)
{
    return error == -ENODATA || error == -EBADMSG ? -EIO : (int)error;
}

/* malloc, and calloc of one block. The caller frees it with free. */
void *fffs_allocate(size_t size);
void *fffs_allocate_zeroed(size_t count, size_t size);

#endif
