/* Events of the fast path's threads: bad records, the beginning and the end of the connection. */
#include "fastpath_events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int fffs_events_open(struct fffs_events *events, uint64_t records)
{
    memset(events, 0, sizeof *events);
    pthread_mutex_init(&events->mutex, NULL);
    events->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (events->fd < 0)
        return -errno;
    events->reported = calloc((size_t)(records / 8 + 1), 1);
    return events->reported ? 0 : -ENOMEM;
}

void fffs_events_close(struct fffs_events *events)
{
    if (events->fd >= 0)
        close(events->fd);
    pthread_mutex_destroy(&events->mutex);
    free(events->reported);
}

static void tell(struct fffs_events *events)
{
    uint64_t one = 1;
    ssize_t put = write(events->fd, &one, sizeof one);

    (void)put; /* if the counter is full, it is readable already */
}

void fffs_events_connected(struct fffs_events *events)
{
    atomic_store(&events->connected, true);
    tell(events);
}

void fffs_events_ended(struct fffs_events *events)
{
    atomic_store(&events->ended, true);
    tell(events);
}

void fffs_events_bad(struct fffs_events *events, uint64_t record, int32_t status)
{
    uint8_t bit = (uint8_t)(1u << (record & 7));

    pthread_mutex_lock(&events->mutex);
    bool first = !(events->reported[record >> 3] & bit);
    if (first && events->bad_count < FFFS_BAD_ROOM) {
        events->reported[record >> 3] |= bit;
        events->bad[events->bad_count++] = (struct fffs_bad_record){record, status};
    } else if (first) {
        events->untold++;
    }
    pthread_mutex_unlock(&events->mutex);
    if (first)
        tell(events);
}

bool fffs_events_next_bad(struct fffs_events *events, uint64_t *record, int32_t *status)
{
    uint64_t ignored;
    ssize_t got = read(events->fd, &ignored, sizeof ignored); /* non-blocking: clears it */

    (void)got;
    pthread_mutex_lock(&events->mutex);
    bool found = events->bad_count > 0;
    if (found) {
        *record = events->bad[0].record;
        *status = events->bad[0].status;
        memmove(events->bad, events->bad + 1, (size_t)--events->bad_count * sizeof *events->bad);
    }
    pthread_mutex_unlock(&events->mutex);
    return found;
}

uint64_t fffs_events_untold(struct fffs_events *events)
{
    pthread_mutex_lock(&events->mutex);
    uint64_t untold = events->untold;
    pthread_mutex_unlock(&events->mutex);
    return untold;
}
