/* The table of objects that are read over HTTP. A number instead of a pointer is what a request names an object by, and
 * the number of a closed object is an error, not a crash. */
#include "objects.h"
#include "clock.h"
#include "fault.h"
#include "fork.h"
#include "object_cache.h"
#include "object_totals.h"
#include "remote_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct object {
    char *url;
    char *redirection; /* where the URL led to, or NULL */
    bool redirects;    /* the URL led elsewhere at least once */
    bool stored;       /* see fffs_object_set_stored */
    bool compressed;   /* see fffs_object_ask_compressed */
    struct fffs_version version;
    fffs_object_state state;
    struct fffs_object_cache *cache; /* or NULL */
    bool renewable;                  /* refused requests wait for another URL */
    int64_t renewed;                 /* when the URL was set */
    uint32_t address;                /* how often it was replaced by another */
};

/* Nanoseconds during which a new URL is not expected to be refused because it is old. */
#define FRESH (10 * FFFS_SECOND)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object **objects; /* [room], under the lock; so is each object */
static int32_t room;

void fffs_objects_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void fffs_objects_after_fork(bool child)
{
    (void)child;
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- the table */

/* Under the lock. */
static struct object *find(int32_t number)
{
    return number >= 0 && number < room && objects[number] ? objects[number] : NULL;
}

/* Under the lock. Returns a free number, or -ENOMEM. */
static int32_t free_number(void)
{
    int32_t number = 0;

    while (number < room && objects[number])
        number++;
    if (number < room)
        return number;
    if (room > INT32_MAX / 4)
        return -ENOMEM;
    struct object **more = realloc(objects, (size_t)(room + 64) * sizeof *more);
    if (!more)
        return -ENOMEM;
    memset(more + room, 0, 64 * sizeof *more);
    objects = more;
    room += 64;
    return number;
}

static void copy_text(char *to, const char *from, size_t size)
{
    strncpy(to, from ? from : "", size - 1);
    to[size - 1] = 0;
}

int32_t fffs_object_open(const char *url)
{
    struct object *new = fffs_allocate_zeroed(1, sizeof *new);
    int32_t number = -ENOMEM;

    if (!new)
        return -ENOMEM;
    new->version.size = -1;
    new->renewed = fffs_now();
    new->url = strdup(url);
    if (new->url) {
        pthread_mutex_lock(&lock);
        number = free_number();
        if (number >= 0)
            objects[number] = new;
        pthread_mutex_unlock(&lock);
    }
    if (number < 0) {
        free(new->url);
        free(new);
    }
    return number;
}

void fffs_object_close(int32_t number)
{
    fffs_ahead_forget(number);
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object)
        objects[number] = NULL;
    pthread_mutex_unlock(&lock);
    if (object) {
        fffs_object_cache_free(object->cache);
        free(object->url);
        free(object->redirection);
    }
    free(object);
}

int fffs_object_use_cache(int32_t number, int data_fd, int map_fd, int64_t limit, int64_t keep_free)
{
    struct fffs_object_cache *cache = NULL;
    int64_t size = fffs_object_size(number);

    if (size < 0)
        return -EBADF;
    int status = fffs_object_cache_new(data_fd, map_fd, size, limit, keep_free, &cache);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    bool used = object && !object->cache;
    if (used)
        object->cache = cache;
    pthread_mutex_unlock(&lock);
    if (!used)
        fffs_object_cache_free(cache);
    return used ? 0 : -EINVAL;
}

/* ---------------------------------------------------------------- what is known */

int fffs_object_expect(int32_t number, const char *etag, const char *modified, int64_t size)
{
    if (strlen(etag) > FFFS_ETAG_MAX || strlen(modified) > FFFS_DATE_MAX)
        return -EINVAL;
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object) {
        copy_text(object->version.etag, etag, sizeof object->version.etag);
        copy_text(object->version.modified, modified, sizeof object->version.modified);
        object->version.size = size;
    }
    pthread_mutex_unlock(&lock);
    return object ? 0 : -EBADF;
}

int fffs_object_set_url(int32_t number, const char *url)
{
    char *copy = strdup(url);

    if (!copy)
        return -ENOMEM;
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    char *unused = copy, *redirection = NULL;
    if (object) {
        unused = object->url;
        object->address += strcmp(object->url, url) != 0;
        object->url = copy;
        object->renewed = fffs_now();
        object->state.refused = 0;
        redirection = object->redirection;
        object->redirection = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(unused);
    free(redirection);
    return object ? 0 : -EBADF;
}

int fffs_object_set_stored(int32_t number)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object)
        object->stored = true;
    pthread_mutex_unlock(&lock);
    return object ? 0 : -EBADF;
}

void fffs_object_ask_compressed(int32_t number)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object)
        object->compressed = true;
    pthread_mutex_unlock(&lock);
}

int fffs_object_set_renewable(int32_t number)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object)
        object->renewable = true;
    pthread_mutex_unlock(&lock);
    return object ? 0 : -EBADF;
}

bool fffs_object_awaits_url(int32_t number, const struct fffs_object_use *use)
{
    int32_t ahead = 0;

    fffs_fault(FFFS_FAULT_CLOCK, &ahead);
    int64_t now = fffs_now() + ahead * FFFS_SECOND;
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    bool renewable = object && object->renewable, replaced = renewable && object->address != use->address;
    bool waits = renewable && !replaced && (object->state.refused || now - object->renewed > FRESH);
    if (waits)
        object->state.refused = 1;
    pthread_mutex_unlock(&lock);
    return replaced || waits;
}

int fffs_object_look(int32_t number, fffs_object_state *state)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object) {
        *state = object->state;
        state->size = object->version.size;
        memcpy(state->etag, object->version.etag, sizeof state->etag);
        memcpy(state->modified, object->version.modified, sizeof state->modified);
        if (object->cache)
            fffs_object_cache_counters(object->cache, state);
    }
    pthread_mutex_unlock(&lock);
    return object ? 0 : -EBADF;
}

int fffs_object_enter(int32_t number, struct fffs_object_use *use)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    use->url = object ? strdup(object->redirection ? object->redirection : object->url) : NULL;
    if (object) {
        use->version = object->version;
        use->redirected = object->redirection;
        use->stored = object->stored;
        use->compressed = object->compressed;
        use->address = object->address;
        use->follow = !object->redirection && (object->redirects || object->version.size < 0);
    }
    pthread_mutex_unlock(&lock);
    return !object ? -EBADF : use->url ? 0 : -ENOMEM;
}

void fffs_object_leave(struct fffs_object_use *use)
{
    free(use->url);
    use->url = NULL;
}

void fffs_object_learn(int32_t number, const struct fffs_version *version, const struct fffs_object_use *use,
                       const char *url)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object && object->version.size < 0)
        object->version = *version;
    /* The URL may have been replaced since the use began. */
    if (object && url && !object->redirection && !strcmp(use->url, object->url) && strcmp(url, object->url)) {
        object->redirection = strdup(url);
        object->redirects = true;
    }
    pthread_mutex_unlock(&lock);
}

void fffs_object_forget_redirection(int32_t number, const struct fffs_object_use *use)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object && object->redirection && !strcmp(use->url, object->redirection)) {
        free(object->redirection);
        object->redirection = NULL;
    }
    pthread_mutex_unlock(&lock);
}

void fffs_object_failed(int32_t number, long status, const char *text)
{
    fffs_total_add(FFFS_TOTAL_ERRORS, status != 404); /* as of a sidecar that a file does not have */
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object) {
        object->state.http_status = (int32_t)status;
        copy_text(object->state.text, text, sizeof object->state.text);
    }
    pthread_mutex_unlock(&lock);
}

int64_t fffs_object_size(int32_t number)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    int64_t size = object ? object->version.size : -1;
    pthread_mutex_unlock(&lock);
    return size;
}

/* Under the lock. Returns an address, and in *length that of its beginning that names the server. */
static const char *server_of(const struct object *object, size_t *length)
{
    const char *url = object->redirection ? object->redirection : object->url, *host = strstr(url, "://");

    *length = host ? (size_t)(host - url) + 3 + strcspn(host + 3, "/?") : 0;
    return url;
}

bool fffs_objects_share_server(int32_t one, int32_t other)
{
    size_t length, other_length;
    bool same = one == other;

    pthread_mutex_lock(&lock);
    const struct object *first = find(one), *second = find(other);
    if (!same && first && second) {
        const char *url = server_of(first, &length), *other_url = server_of(second, &other_length);
        same = length == other_length && !strncmp(url, other_url, length);
    }
    pthread_mutex_unlock(&lock);
    return same;
}

struct fffs_object_cache *fffs_object_cache_at(int32_t number)
{
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    struct fffs_object_cache *cache = object ? object->cache : NULL;
    pthread_mutex_unlock(&lock);
    return cache;
}

void fffs_object_count(int32_t number, uint64_t bytes, bool again)
{
    fffs_total_add(FFFS_TOTAL_REQUESTS, 1);
    fffs_total_add(FFFS_TOTAL_RETRIES, again);
    fffs_total_add(FFFS_TOTAL_FETCHED, bytes);
    pthread_mutex_lock(&lock);
    struct object *object = find(number);
    if (object) {
        object->state.requests++;
        object->state.retries += again;
        object->state.bytes += bytes;
    }
    pthread_mutex_unlock(&lock);
}
