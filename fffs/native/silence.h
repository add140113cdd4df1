/* What a batch, which may be fetched in several steps, knows of the servers that its objects are on (silence.c): one that brings
 * nothing any more costs a batch its deadline once, however many records are on it, and the records on others nothing. */
#ifndef FFFS_SILENCE_H
#define FFFS_SILENCE_H

#include "fffs.h"

struct fffs_server {
    int32_t object;    /* one that the server has */
    int status;        /* -errno of its requests; 0: it was not given up */
    uint32_t failures; /* ranges in a row that brought nothing until their deadline */
    int64_t progress;  /* when something came last; 0: nothing did */
    int64_t latency;   /* nanoseconds that the slowest of its last answers took to begin; 0: unknown */
    bool probed;       /* in this step: a range was divided while nothing came */
    uint32_t ranges;   /* of this step */
};

/* All zero at first, but for ahead. Ended by fffs_silence_end. One thread at a time. */
struct fffs_silence {
    struct fffs_server *servers; /* [room] */
    size_t count, room;
    size_t given_up; /* servers */
    bool ahead;      /* nobody asked for it yet: it is given up sooner */
};

void fffs_silence_end(struct fffs_silence *self);

/* Finds the server of an object, new or known. Returns its number, which stays, or -ENOMEM. */
int32_t fffs_silence_server(struct fffs_silence *self, int32_t object);

/* Notes that bytes came from a server, which may be known late. */
void fffs_silence_break(struct fffs_silence *self, uint32_t server, int64_t when);

/* Notes for how long an answer was waited for. */
void fffs_silence_answer(struct fffs_silence *self, uint32_t server, int64_t latency);

/* Notes that a range brought nothing until its deadline, nor did others of its server. Gives the server up after so many in a row:
 * to wait as long for each of the others could take hours. */
void fffs_silence_note(struct fffs_silence *self, uint32_t server, uint32_t enough, int status);

/* Returns whether anything came from the server of an object. */
bool fffs_silence_answered(struct fffs_silence *self, int32_t object);

#endif
