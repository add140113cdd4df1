/* Events of the fast path's threads (fastpath_events.c): a descriptor becomes readable. */
#ifndef FFFS_FASTPATH_EVENTS_H
#define FFFS_FASTPATH_EVENTS_H

#include "fffs.h"

#include <pthread.h>
#include <stdatomic.h>

/* The most bad records that wait to be logged: further ones are not named. */
enum { FFFS_BAD_ROOM = 256 };

struct fffs_bad_record {
    uint64_t record;
    int32_t status;
};

struct fffs_events {
    int fd;                        /* owned; readable after any of the events */
    _Atomic bool connected, ended; /* set once */
    pthread_mutex_t mutex;         /* guards the members below */
    struct fffs_bad_record bad[FFFS_BAD_ROOM];
    int bad_count;
    uint64_t untold;   /* reports without room in bad; a later one of the same record may find some */
    uint8_t *reported; /* owned; a bit per record that was reported */
};

/* For a store of this many records. Returns 0 or -errno; fffs_events_close must be called in any case. */
int fffs_events_open(struct fffs_events *events, uint64_t records);
void fffs_events_close(struct fffs_events *events);

/* Report events, a record only once. Thread-safe. */
void fffs_events_bad(struct fffs_events *events, uint64_t record, int32_t status);
void fffs_events_connected(struct fffs_events *events);
void fffs_events_ended(struct fffs_events *events);

/* Returns how often a bad record was not reported, because too many waited. Thread-safe. */
uint64_t fffs_events_untold(struct fffs_events *events);

/* Makes the descriptor unreadable. Returns true with the next bad record, or false. Thread-safe. */
bool fffs_events_next_bad(struct fffs_events *events, uint64_t *record, int32_t *status);

#endif
