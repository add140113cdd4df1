/* Injected faults: makes the nth operation of a kind fail or stall, and wraps operations that several parts use. */
#include "fault.h"

#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Atomic uint32_t fffs_faults_armed;

/* The fault of one kind of operations. */
struct fault {
    _Atomic int64_t first, count, seen;
    _Atomic int32_t result;
};

static struct fault faults[32]; /* by kind */
static _Atomic int32_t held;
static _Atomic uint32_t endings; /* how often all faults were ended; held operations wait for the next time */

void fffs_fault_set(int kind, int64_t nth, int64_t count, int32_t result)
{
    struct fault *set = &faults[kind];

    /* The counts of seen operations stay readable. */
    if (kind == FFFS_FAULT_NONE) {
        atomic_store(&fffs_faults_armed, 0);
        atomic_fetch_add(&endings, 1);
        return;
    }
    /* Disarmed while it changes, so that no operation sees a mix of old and new. */
    atomic_fetch_and(&fffs_faults_armed, ~(1U << kind));
    atomic_store(&set->first, nth);
    atomic_store(&set->count, count);
    atomic_store(&set->result, result);
    atomic_store(&set->seen, 0);
    atomic_fetch_or(&fffs_faults_armed, 1U << kind);
}

int64_t fffs_fault_seen(int kind)
{
    return atomic_load(&faults[kind].seen);
}

int32_t fffs_fault_held(void)
{
    return atomic_load(&held);
}

/* Polls: a lock would be one more that could be held during a fork. */
static void hold(uint32_t since)
{
    const struct timespec moment = {0, 1000000};

    atomic_fetch_add(&held, 1);
    while (atomic_load(&endings) == since)
        nanosleep(&moment, NULL);
    atomic_fetch_sub(&held, 1);
}

bool fffs_fault_strikes(int kind, int32_t *result)
{
    struct fault *set = &faults[kind];
    uint32_t since = atomic_load(&endings);

    if ((atomic_load(&fffs_faults_armed) & 1U << kind) == 0)
        return false;
    int64_t number = atomic_fetch_add(&set->seen, 1) + 1 - atomic_load(&set->first);
    if (number < 0 || number >= atomic_load(&set->count))
        return false;
    *result = atomic_load(&set->result);
    if (*result != FFFS_FAULT_HOLD)
        return true;
    hold(since);
    return false;
}

/* Returns an error, or 0 after reducing *size: that many bytes are then really read or written. */
static int32_t strike_transfer(int kind, size_t *size)
{
    int32_t result;

    if (!fffs_fault(kind, &result))
        return 0;
    if (result < 0)
        return result;
    if (*size > (size_t)result)
        *size = (size_t)result;
    return 0;
}

int64_t fffs_pread(int fd, void *data, size_t size, int64_t offset)
{
    int32_t fault = strike_transfer(FFFS_FAULT_PREAD, &size);

    if (fault < 0)
        return fault;
    ssize_t result = pread(fd, data, size, offset);
    return result < 0 ? -errno : result;
}

int64_t fffs_pread_nowait(int fd, void *data, size_t size, int64_t offset)
{
    int32_t fault = strike_transfer(FFFS_FAULT_PREAD, &size);

    if (fault == 0)
        fault = strike_transfer(FFFS_FAULT_NOWAIT, &size);
    if (fault < 0)
        return fault;
    struct iovec target = {data, size};
    ssize_t result = preadv2(fd, &target, 1, offset, RWF_NOWAIT);
    return result < 0 ? -errno : result;
}

int64_t fffs_pwrite(int fd, const void *data, size_t size, int64_t offset)
{
    int32_t fault = strike_transfer(FFFS_FAULT_PWRITE, &size);

    if (fault < 0)
        return fault;
    ssize_t result = pwrite(fd, data, size, offset);
    return result < 0 ? -errno : result;
}

int fffs_write_fully(int fd, int64_t offset, const uint8_t *data, size_t length)
{
    while (length > 0) {
        int64_t put = fffs_pwrite(fd, data, length, offset);

        if (put == 0)
            return -EIO;
        if (put < 0 && put != -EINTR)
            return (int)put;
        if (put > 0) {
            data += put;
            offset += put;
            length -= (size_t)put;
        }
    }
    return 0;
}

void *fffs_allocate(size_t size)
{
    int32_t result;

    return fffs_fault(FFFS_FAULT_MEMORY, &result) ? NULL : malloc(size);
}

void *fffs_allocate_zeroed(size_t count, size_t size)
{
    int32_t result;

    return fffs_fault(FFFS_FAULT_MEMORY, &result) ? NULL : calloc(count, size);
}
