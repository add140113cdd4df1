/* A transfer: one request for the rest of a range, and what its answer means (transfer.c). */
#ifndef FFFS_TRANSFER_H
#define FFFS_TRANSFER_H

#include "fetch.h"
#include "http_answer.h"
#include "http_clients.h"
#include "stall.h"

/* All zero when idle. Belongs to the thread that has the client. */
struct fffs_transfer {
    struct fffs_http_client *client;
    struct fffs_range *range; /* NULL: idle */
    void *handle;             /* curl's */
    void *headers;
    bool in_group;
    struct fffs_object_use use;
    struct fffs_answer answer;
    int64_t begun; /* range->place when it began */
    struct fffs_speed speed;
    int64_t dropped, header_bytes;
    int judged; /* 1: the answer is good; 0: not known yet; or -errno */
    long status;
    const char *why;           /* a constant string, or NULL */
    char text[FFFS_HTTP_TEXT]; /* of the server's error */
    char error[CURL_ERROR_SIZE];
};

/* Returns for how many nanoseconds a range may fail, and the most connections of a batch. Thread-safe. */
int64_t fffs_http_deadline(void);
int fffs_http_connections(void);

/* Returns for how many nanoseconds a transfer may stall. Thread-safe. */
int64_t fffs_http_patience(void);

/* Adds a request for the rest of a range to the client's group. self must be idle, and must stay where it is. Returns 0 or
 * -errno. */
int fffs_transfer_begin(struct fffs_transfer *self, struct fffs_http_client *client, struct fffs_range *range);

/* Ends a transfer, also one that is not done. The bytes that came stay in the range. */
void fffs_transfer_end(struct fffs_transfer *self);

/* Reads what curl knows of a transfer that is done. Returns whether it brought all that was asked for. */
bool fffs_transfer_succeeded(struct fffs_transfer *self);

/* Returns whether the object has no content: no range of it exists. The answer then has its size. */
bool fffs_transfer_found_nothing(struct fffs_transfer *self);

/* Returns since when a transfer stalls, on fffs_now's clock. */
int64_t fffs_transfer_stalls_since(const struct fffs_transfer *self);

/* Notes that it was given up, for fffs_transfer_report, and that its connection is silent. */
void fffs_transfer_note_stall(struct fffs_transfer *self);

/* Returns the -errno of a transfer that failed with this result of curl; *final: another try cannot succeed. */
int fffs_transfer_failure(struct fffs_transfer *self, int result, bool *final);

/* Tells the object why a transfer failed. */
void fffs_transfer_report(const struct fffs_transfer *self, int result);

/* Returns how many nanoseconds the server took to begin its answer; 0: unknown. */
int64_t fffs_transfer_latency(const struct fffs_transfer *self);

#endif
