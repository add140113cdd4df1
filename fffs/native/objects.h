/* Objects that are read over HTTP: what is known of each, under its number (objects.c). contract.h has what Python calls. */
#ifndef FFFS_OBJECTS_H
#define FFFS_OBJECTS_H

#include "fffs.h"

/* What identifies a version of an object. Empty strings and -1: unknown. */
struct fffs_version {
    char etag[FFFS_ETAG_MAX + 1];
    char modified[FFFS_DATE_MAX + 1]; /* Last-Modified */
    int64_t size;
};

/* One use of an object's address, for one transfer. The user frees it with fffs_object_leave. */
struct fffs_object_use {
    char *url;
    bool redirected;  /* url is where redirections led to, not the object's own address */
    bool follow;      /* redirections are expected */
    bool stored;      /* see fffs_object_set_stored */
    bool compressed;  /* see fffs_object_ask_compressed */
    uint32_t address; /* how often the object's address was replaced before */
    struct fffs_version version;
};

/* Copies what is known of an object. Returns 0; -EBADF if it is closed; or -ENOMEM. Thread-safe. */
int fffs_object_enter(int32_t number, struct fffs_object_use *use);
void fffs_object_leave(struct fffs_object_use *use);

/* Notes the version that the first answer told; a version that is known stays. url: where redirections of the use's address led
 * to, or NULL; later uses begin there. Thread-safe. */
void fffs_object_learn(int32_t number, const struct fffs_version *version, const struct fffs_object_use *use,
                       const char *url);

/* Has later uses begin at the object's own address again: an address that redirections lead to is often valid for an hour only.
 * Thread-safe. */
void fffs_object_forget_redirection(int32_t number, const struct fffs_object_use *use);

/* Has later uses accept gzip, without which the store decompresses the object, and sends no ranges. Thread-safe. */
void fffs_object_ask_compressed(int32_t number);

/* Notes that the address of a use was refused. Returns whether another one is there or expected, and the request should be sent again
 * with that. A new address that is refused as well is final. Thread-safe. */
bool fffs_object_awaits_url(int32_t number, const struct fffs_object_use *use);

/* Notes why a transfer failed: the HTTP status or 0, and a text without addresses. Thread-safe. */
void fffs_object_failed(int32_t number, long status, const char *text);

/* Returns the size of an object, or -1: unknown, or closed. Thread-safe. */
int64_t fffs_object_size(int32_t number);

/* Whether two objects are asked for at the same server. Thread-safe. */
bool fffs_objects_share_server(int32_t one, int32_t other);

/* Returns the cache of an object, which exists until the object is closed; or NULL. Thread-safe. */
struct fffs_object_cache *fffs_object_cache_at(int32_t number);

/* Counts a finished transfer. Thread-safe. */
void fffs_object_count(int32_t number, uint64_t bytes, bool again);

#endif
