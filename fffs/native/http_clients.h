/* Clients: groups of transfers with their connections, which stay open between batches (http_clients.c). */
#ifndef FFFS_HTTP_CLIENTS_H
#define FFFS_HTTP_CLIENTS_H

#include "curl.h"

/* Used by one thread at a time. */
struct fffs_http_client {
    const struct fffs_curl *curl;
    void *group; /* curl's multi handle */
    void **idle; /* [FFFS_HTTP_CONNECTIONS] transfers that are not in the group */
    int idle_count, transfers;
    int64_t latency; /* nanoseconds that the fastest of the last answers took to begin; 0: unknown */
    int64_t slowest; /* likewise, of the slowest ones */
    unsigned generation;
    int *sockets; /* [socket_room] open ones, closed ones are -1: a forked child closes its copies */
    int socket_room;
    /* The most connections that it had at a time, which it keeps. */
    int claimed;
    struct fffs_http_client *next, *previous; /* all, idle or not */
    struct fffs_http_client *next_idle;
};

/* Takes an idle client or makes one; the caller owns it until it gives it back. Returns 0; -ELIBACC: there is no libcurl; or
 * -ENOMEM. Thread-safe. */
int fffs_http_take(struct fffs_http_client **client);

/* Returns whether a request may begin beside so many active ones of a client. Clients have at most three quarters of the descriptors of
 * the process as connections, and 4 each. Thread-safe. */
bool fffs_http_may_begin(struct fffs_http_client *client, int active);

/* Notes that a connection is silent. Those that are idle at this moment may be dead as well, as when a gateway forgot them, and are not
 * used again. Thread-safe. */
void fffs_http_note_silence(void);

/* Returns for how many seconds a kept connection may have been idle. Thread-safe. */
long fffs_http_idle_most(void);

/* Has clients made from now on, with fresh transfers and connections: settings changed. Thread-safe. */
void fffs_http_renew(void);

/* Gives a client back. Not called between fffs_http_enter and fffs_http_leave. No transfer may be in its group. Thread-safe. */
void fffs_http_give(struct fffs_http_client *client);

/* Called before and after libcurl is used with a taken client: no process forks in between. Not nested. Polling needs neither. */
void fffs_http_enter(void);
void fffs_http_leave(void);

/* Takes a transfer of the client with all options that do not depend on a request, or NULL: there is no memory. */
void *fffs_http_take_transfer(struct fffs_http_client *client);

/* Opens a socket of the client, as CURLOPT_OPENSOCKETFUNCTION. Returns it, or -1. */
int fffs_http_open_socket(struct fffs_http_client *client, const struct fffs_curl_address *address);

/* Gives it back, when it is not in the group any more. */
void fffs_http_give_transfer(struct fffs_http_client *client, void *transfer);

#endif
