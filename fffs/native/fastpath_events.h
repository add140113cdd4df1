/* What the fast path's threads tell whoever started them (fastpath_events.c): a descriptor becomes readable. */
#ifndef FFFS_FASTPATH_EVENTS_H
#define FFFS_FASTPATH_EVENTS_H

#include "fffs.h"

#include <pthread.h>
#include <stdatomic.h>

/* Bad records that wait to be logged: more at once are not named. */
enum { FFFS_BAD_ROOM = 256 };

struct fffs_bad_record {
    uint64_t record;
    int32_t status;
};

struct fffs_events {
    int fd;                        /* ours; readable after any of the events */
    _Atomic bool connected, ended; /* set once */
    pthread_mutex_t mutex;         /* guards the rest */
    struct fffs_bad_record bad[FFFS_BAD_ROOM];
    int bad_count;
    uint64_t untold;   /* reports for which there was no room; a later one of the same record may find some */
    uint8_t *reported; /* ours; a bit per record that was reported */
};

/* For a store of so many records. 0 or -errno; to be closed in either case. */
int fffs_events_open(struct fffs_events *events, uint64_t records);
void fffs_events_close(struct fffs_events *events);

/* Each of these any thread may call. A record is told of once. */
void fffs_events_bad(struct fffs_events *events, uint64_t record, int32_t status);
void fffs_events_connected(struct fffs_events *events);
void fffs_events_ended(struct fffs_events *events);

/* How many times a bad record could not be told of, because too many waited. Any thread. */
uint64_t fffs_events_untold(struct fffs_events *events);

/* Makes the descriptor unreadable. The next bad record: true; or false. Any thread. */
bool fffs_events_next_bad(struct fffs_events *events, uint64_t *record, int32_t *status);

#endif
