/* Injected faults: makes the nth operation of a kind fail, and wraps the operations that several parts use. */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

_Atomic int fffs_fault_kind = FFFS_FAULT_NONE;

static _Atomic int64_t first, length, seen;
static _Atomic int32_t outcome;

void fffs_fault_set(int kind, int64_t nth, int64_t count, int32_t result)
{
    /* Disarmed while it changes, so that no operation sees half of the old and half of the new. What was seen stays
     * readable after FFFS_FAULT_NONE. */
    atomic_store(&fffs_fault_kind, FFFS_FAULT_NONE);
    if (kind == FFFS_FAULT_NONE)
        return;
    atomic_store(&first, nth);
    atomic_store(&length, count);
    atomic_store(&outcome, result);
    atomic_store(&seen, 0);
    atomic_store(&fffs_fault_kind, kind);
}

int64_t fffs_fault_seen(void)
{
    return atomic_load(&seen);
}

bool fffs_fault_strikes(int kind, int32_t *result)
{
    int64_t number;

    if (atomic_load(&fffs_fault_kind) != kind)
        return false;
    number = atomic_fetch_add(&seen, 1) + 1;
    *result = atomic_load(&outcome);
    return number >= atomic_load(&first) && number - atomic_load(&first) < atomic_load(&length);
}

/* An error, or less room: what is then read is really read. */
static int32_t strike_read(size_t *size)
{
    int32_t result;

    if (!fffs_fault(FFFS_FAULT_PREAD, &result))
        return 0;
    if (result < 0)
        return result;
    if (*size > (size_t)result)
        *size = (size_t)result;
    return 0;
}

int64_t fffs_pread(int fd, void *data, size_t size, int64_t offset)
{
    int32_t fault = strike_read(&size);
    ssize_t result;

    if (fault < 0)
        return fault;
    result = pread(fd, data, size, offset);
    return result < 0 ? -errno : result;
}

int64_t fffs_pread_nowait(int fd, void *data, size_t size, int64_t offset)
{
    int32_t fault = strike_read(&size);
    struct iovec target = {data, size};
    ssize_t result;

    if (fault < 0)
        return fault;
    target.iov_len = size;
    result = preadv2(fd, &target, 1, offset, RWF_NOWAIT);
    return result < 0 ? -errno : result;
}

void *fffs_allocate(size_t size)
{
    int32_t result;

    return fffs_fault(FFFS_FAULT_MEMORY, &result) ? NULL : malloc(size);
}
