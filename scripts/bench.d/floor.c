/* The floor: the fastest possible reader. Each thread reads one record after another into one buffer of its own and
 * computes the CRC-32. Compiled and called by floor.py. */
#define _GNU_SOURCE
#include <libdeflate.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

typedef struct {
    const int64_t *offsets, *lengths;
    const uint32_t *checksums; /* NULL: do not compute checksums */
    size_t count, largest;
    int fd;
    _Atomic size_t next, bad;
} work;

static void *run(void *argument)
{
    work *w = argument;
    uint8_t *buffer = malloc(w->largest + 1);
    size_t i;

    if (!buffer)
        return (void *)-1;
    while ((i = atomic_fetch_add(&w->next, 1)) < w->count) {
        ssize_t got = pread(w->fd, buffer, (size_t)w->lengths[i], w->offsets[i]);

        if (got != w->lengths[i] || (w->checksums && libdeflate_crc32(0, buffer, (size_t)got) != w->checksums[i]))
            atomic_fetch_add(&w->bad, 1);
    }
    free(buffer);
    return NULL;
}

/* Returns the number of bad records, or -1 if memory or threads were lacking. */
int64_t floor_read(int fd, const int64_t *offsets, const int64_t *lengths, const uint32_t *checksums, size_t count,
                   int threads)
{
    work w = {.offsets = offsets, .lengths = lengths, .checksums = checksums, .count = count, .fd = fd};
    pthread_t others[THREADS_MAX];
    int started = 0, failed;
    void *result;

    for (size_t i = 0; i < count; i++)
        w.largest = (size_t)lengths[i] > w.largest ? (size_t)lengths[i] : w.largest;
    while (started < threads - 1 && started < THREADS_MAX && pthread_create(&others[started], NULL, run, &w) == 0)
        started++;
    failed = run(&w) != NULL || started < threads - 1;
    while (started > 0) {
        pthread_join(others[--started], &result);
        failed |= result != NULL;
    }
    return failed ? -1 : (int64_t)w.bad;
}
