/* Fetches the pieces of a batch from objects, over many connections at a time.
 *
 * The bytes of an answer go straight to their destinations and are checksummed as they come. A request that ends early goes on
 * where it stopped: the version of the object is part of each request, so that the rest belongs to the same version. */
#include "fetch.h"
#include "clock.h"
#include "fault.h"
#include "http_answer.h"
#include "http_clients.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- settings */

#define SECOND INT64_C(1000000000)

/* Requests at a time: these, and more for each millisecond until an answer begins, up to the limit. Few keep a near server busy
 * and cost the least; a far one needs many. */
enum { REQUESTS_NEAR = 16, REQUESTS_PER_MILLISECOND = 12, REQUESTS_LEAST = 4 };

/* Pauses before another try: doubled from the first to the longest, and shortened by a random part. */
#define PAUSE_FIRST (SECOND / 10)
#define PAUSE_LONGEST (10 * SECOND)

/* Answers that are not what was asked for, before that is final; bytes of the text of an error that are read. */
enum { OFFENCES_MAX = 3, TEXT_MAX = 64 * 1024 };

static _Atomic int64_t deadline = 60 * SECOND;
static _Atomic int connections_max = 64;
static _Atomic bool plain_allowed;
static char *_Atomic ca_file;

int fffs_http_configure(double seconds, int32_t connections, int32_t allow_plain, const char *authorities)
{
    char *copy = authorities ? strdup(authorities) : NULL;

    if (authorities && !copy)
        return -ENOMEM;
    atomic_store(&deadline, (int64_t)(seconds * 1e9));
    atomic_store(&connections_max, connections < 1                       ? 1
                                   : connections > FFFS_HTTP_CONNECTIONS ? FFFS_HTTP_CONNECTIONS
                                                                         : connections);
    atomic_store(&plain_allowed, allow_plain != 0);
    /* The old value may be in use by another thread. It is a few bytes, and changes once in a process, if at all. */
    atomic_store(&ca_file, copy);
    return 0;
}

/* ---------------------------------------------------------------- a transfer */

struct transfer {
    struct fffs_fetch *fetch;
    struct fffs_range *range; /* NULL: idle */
    void *handle;
    void *headers;
    struct fffs_object_use use;
    struct fffs_answer answer;
    int64_t begun; /* range->place when it began */
    int64_t dropped;
    int judged; /* 1: the answer is good; 0: not known yet; or -errno */
    long status;
    const char *why;           /* a constant string, or NULL */
    char text[FFFS_HTTP_TEXT]; /* of the server's error */
    char error[CURL_ERROR_SIZE];
};

struct fffs_fetch {
    struct fffs_batch batch;
    struct fffs_range *ranges; /* [range_count] */
    size_t range_count, begun, open;
    struct fffs_range *waiting; /* for another try */
    struct fffs_http_client *client;
    struct transfer *transfers; /* [FFFS_HTTP_CONNECTIONS] */
    int active, limit;
    unsigned random;
};

/* Whether the answer has the bytes of the range. Called when its first byte comes. */
static int judge(struct transfer *self)
{
    struct fffs_range *range = self->range;
    const struct fffs_curl *curl = self->fetch->client->curl;

    self->status = 0;
    curl->easy_getinfo(self->handle, CURL_GET_STATUS, &self->status);
    if (self->status != 200 && self->status != 206)
        return -EIO;
    int status =
        fffs_answer_judge(&self->answer, self->status, &self->use.version, range->place, range->end, &self->why);
    if (status)
        return status;
    if (self->use.version.size < 0) {
        const char *url = NULL;

        curl->easy_getinfo(self->handle, CURL_GET_URL, &url);
        fffs_object_learn(range->object, &self->answer.version, url);
        if (range->end > self->answer.end)
            range->end = self->answer.end;
    }
    return 1;
}

static size_t on_body(char *data, size_t unit, size_t count, void *user)
{
    struct transfer *self = user;
    struct fffs_range *range = self->range;
    size_t length = unit * count;

    if (!self->judged)
        self->judged = judge(self);
    if (self->judged == 1) {
        if ((int64_t)length > range->end - range->place) {
            self->judged = -EPROTO;
            self->why = "the server sent more bytes than it announced";
            return 0;
        }
        fffs_range_take(range, (const uint8_t *)data, length);
        return length;
    }
    if (self->judged != -EIO)
        return 0; /* ends the transfer */
    /* The beginning of an error's text says why, in XML. */
    size_t room = sizeof self->text - 1;
    if ((uint64_t)self->dropped < room) {
        size_t used = (size_t)self->dropped, some = length < room - used ? length : room - used;

        memcpy(self->text + used, data, some);
        self->text[used + some] = 0;
    }
    self->dropped += (int64_t)length;
    return self->dropped > TEXT_MAX ? 0 : length;
}

static size_t on_header(char *line, size_t unit, size_t count, void *user)
{
    struct transfer *self = user;

    fffs_answer_line(&self->answer, line, unit * count);
    return unit * count;
}

/* Returns the header lines of a request, or NULL: no memory. The caller frees them. */
static void *make_headers(const struct fffs_curl *curl, const struct fffs_version *version)
{
    char line[FFFS_ETAG_MAX + 32] = "";
    void *headers = curl->list_append(NULL, "Accept-Encoding: identity"), *more = headers;

    /* A weak ETag, W/"…", matches nothing in If-Match; it is compared when the answer comes. */
    if (*version->etag == '"')
        snprintf(line, sizeof line, "If-Match: %s", version->etag);
    else if (!*version->etag && *version->modified)
        snprintf(line, sizeof line, "If-Unmodified-Since: %s", version->modified);
    if (headers && *line)
        more = curl->list_append(headers, line);
    if (!more)
        curl->list_free(headers);
    return more ? headers : NULL;
}

/* ---------------------------------------------------------------- beginning and ending one */

static void set_options(struct transfer *self)
{
    const struct fffs_curl *curl = self->fetch->client->curl;
    const char *authorities = atomic_load(&ca_file);
    long protocols =
        CURL_HTTPS | (!strncmp(self->use.url, "http://", 7) || atomic_load(&plain_allowed) ? CURL_HTTP : 0);
    long patience = (long)(atomic_load(&deadline) / SECOND / 2);
    bool learning = self->use.version.size < 0;
    char range[64];

    snprintf(range, sizeof range, "%lld-%lld", (long long)self->range->place, (long long)self->range->end - 1);
    curl->easy_setopt(self->handle, CURL_URL, self->use.url);
    curl->easy_setopt(self->handle, CURL_RANGE, range);
    curl->easy_setopt(self->handle, CURL_HEADERS, self->headers);
    curl->easy_setopt(self->handle, CURL_PROTOCOLS, protocols);
    /* From https, redirections lead to https only. They are followed once: the address that they lead to is kept. */
    curl->easy_setopt(self->handle, CURL_REDIRECT_PROTOCOLS, protocols);
    curl->easy_setopt(self->handle, CURL_FOLLOW, (long)learning);
    curl->easy_setopt(self->handle, CURL_LOW_SPEED_TIME, patience < 1 ? 1L : patience > 30 ? 30L : patience);
    curl->easy_setopt(self->handle, CURL_WRITE_FUNCTION, on_body);
    curl->easy_setopt(self->handle, CURL_WRITE_DATA, self);
    curl->easy_setopt(self->handle, CURL_HEADER_FUNCTION, on_header);
    curl->easy_setopt(self->handle, CURL_HEADER_DATA, self);
    curl->easy_setopt(self->handle, CURL_ERROR_BUFFER, self->error);
    curl->easy_setopt(self->handle, CURL_PRIVATE, self);
    if (authorities)
        curl->easy_setopt(self->handle, CURL_CA_FILE, authorities);
}

/* Frees what a transfer has for one request. */
static void release(struct transfer *self)
{
    struct fffs_http_client *client = self->fetch->client;

    client->curl->list_free(self->headers);
    fffs_object_leave(&self->use);
    if (self->handle)
        fffs_http_give_transfer(client, self->handle);
    self->headers = self->handle = NULL;
    self->range = NULL;
}

/* Begins a request for the rest of a range. Returns 0 or -errno. */
static int begin(struct fffs_fetch *fetch, struct fffs_range *range)
{
    struct fffs_http_client *client = fetch->client;
    struct transfer *self = fetch->transfers;

    while (self->range) /* fewer are active than there are */
        self++;
    *self = (struct transfer){.fetch = fetch, .range = range, .begun = range->place};
    int status = fffs_object_enter(range->object, &self->use);
    if (!status) {
        self->handle = fffs_http_take_transfer(client);
        self->headers = make_headers(client->curl, &self->use.version);
        status = self->handle && self->headers ? 0 : -ENOMEM;
    }
    if (!status) {
        if (!range->since)
            range->since = fffs_now();
        set_options(self);
        status = client->curl->multi_add(client->group, self->handle) ? -ENOMEM : 0;
    }
    if (status)
        release(self);
    else
        fetch->active++;
    return status;
}

/* ---------------------------------------------------------------- results */

/* What an HTTP status means: -errno, or 0 if another try may succeed. */
static int meaning(long status)
{
    switch (status) {
    case 400: /* of an expired token, among others */
    case 401:
    case 403: return -EACCES;
    case 404:
    case 410: return -ENOENT;
    case 412:
    case 416: return -ESTALE;
    case 408:
    case 425:
    case 429: return 0;
    default: return status >= 500 ? 0 : -EPROTO;
    }
}

/* Whether the server answered with an error, and not with bytes. */
static bool is_refusal(const struct transfer *self)
{
    return self->status && self->status != 200 && self->status != 206;
}

/* The -errno of a failed connection; *final: another try cannot succeed. */
static int connection_failure(int result, bool *final)
{
    *final = false;
    switch (result) {
    case CURL_NO_HOST: return -EHOSTUNREACH;
    case CURL_NO_CONNECTION: return -ECONNREFUSED;
    case CURL_TIMEOUT: return -ETIMEDOUT;
    case CURL_BAD_CERTIFICATE:
    case CURL_BAD_CA_FILE: *final = true; return -EKEYREJECTED;
    case CURL_BAD_PROTOCOL:
    case CURL_BAD_URL:
    case CURL_REDIRECTS: *final = true; return -EPROTO;
    case CURL_NO_MEMORY: *final = true; return -ENOMEM;
    default: return -EIO;
    }
}

/* The -errno of a failed transfer; *final: another try cannot succeed. */
static int failure(struct transfer *self, int result, bool *final)
{
    if (self->judged == -EPROTO || self->judged == -ESTALE) {
        *final = self->judged == -ESTALE || ++self->range->offences >= OFFENCES_MAX;
        return self->judged;
    }
    if (!is_refusal(self))
        return connection_failure(result, final);
    int status = meaning(self->status);
    *final = status != 0;
    return status ? status : -EIO;
}

/* Ends a range with an error. */
static void give_up(struct fffs_fetch *fetch, struct fffs_range *range, int status)
{
    for (uint32_t i = 0; i < range->count; i++)
        if (range->pieces[i]->status == FFFS_PENDING)
            range->pieces[i]->status = status;
    range->status = status;
    fetch->open--;
}

/* Has a range wait before another try, or ends it at its deadline. */
static void wait_again(struct fffs_fetch *fetch, struct fffs_range *range, int status, int64_t retry_after)
{
    int64_t now = fffs_now(), pause = PAUSE_FIRST << (range->tries < 7 ? range->tries : 7);

    pause = pause > PAUSE_LONGEST ? PAUSE_LONGEST : pause;
    fetch->random = fetch->random * 1103515245u + 12345u;
    pause -= pause / 2 * (fetch->random >> 16 & 0xff) / 256;
    if (retry_after > pause / SECOND)
        pause = retry_after > 3600 ? 3600 * SECOND : retry_after * SECOND;
    range->tries++;
    range->not_before = now + pause;
    if (range->not_before - range->since > atomic_load(&deadline)) {
        give_up(fetch, range, status);
        return;
    }
    range->next = fetch->waiting;
    fetch->waiting = range;
}

static void note_latency(struct transfer *self)
{
    struct fffs_http_client *client = self->fetch->client;
    double before = 0, first = 0;

    client->curl->easy_getinfo(self->handle, CURL_GET_BEFORE, &before);
    client->curl->easy_getinfo(self->handle, CURL_GET_FIRST_BYTE, &first);
    int64_t latency = (int64_t)((first - before) * 1e9);
    /* The fastest answer says how far the server is; slower ones waited for it, or for us. */
    int64_t older = client->latency + client->latency / 64;
    client->latency = latency <= 0 ? client->latency : !client->latency || latency < older ? latency : older;
}

/* The error of an object without content: no range of it exists. */
static bool is_empty_object(const struct transfer *self)
{
    return self->status == 416 && self->use.version.size < 0 && self->answer.unsatisfied &&
           self->answer.version.size == 0;
}

static void finish(struct transfer *self, int result)
{
    struct fffs_fetch *fetch = self->fetch;
    struct fffs_range *range = self->range;
    const struct fffs_curl *curl = fetch->client->curl;
    bool final = false;

    curl->multi_remove(fetch->client->group, self->handle);
    fetch->active--;
    curl->easy_getinfo(self->handle, CURL_GET_STATUS, &self->status);
    fffs_object_count(range->object, (uint64_t)(range->place - self->begun), range->tries > 0);
    if (range->place > self->begun) {
        range->tries = range->offences = 0;
        range->since = fffs_now();
    }
    if (self->judged == 1 && range->place == range->end) {
        note_latency(self);
        range->status = 0;
        give_up(fetch, range, -ENODATA); /* only pieces behind the end of the object are pending */
    } else if (is_empty_object(self)) {
        fffs_object_learn(range->object, &self->answer.version, NULL);
        give_up(fetch, range, -ENODATA);
    } else {
        int status = failure(self, result, &final);
        const char *text = self->why ? self->why : *self->text ? self->text : *self->error ? self->error : "";

        fffs_object_failed(range->object, is_refusal(self) ? self->status : 0,
                           *text ? text : curl->easy_strerror(result));
        if (self->status == 429 || self->status == 503)
            fetch->limit = fetch->limit / 2 > REQUESTS_LEAST ? fetch->limit / 2 : REQUESTS_LEAST;
        if (final)
            give_up(fetch, range, status);
        else
            wait_again(fetch, range, status, self->answer.retry_after);
    }
    release(self);
}

/* ---------------------------------------------------------------- running */

/* Returns a range that may begin now, or NULL; lowers *until to when the first that waits may. */
static struct fffs_range *next_range(struct fffs_fetch *fetch, int64_t now, int64_t *until)
{
    for (struct fffs_range **link = &fetch->waiting; *link; link = &(*link)->next) {
        struct fffs_range *range = *link;

        if (range->not_before <= now) {
            *link = range->next;
            return range;
        }
        if (range->not_before < *until)
            *until = range->not_before;
    }
    return fetch->begun < fetch->range_count ? &fetch->ranges[fetch->begun++] : NULL;
}

static void begin_some(struct fffs_fetch *fetch, int64_t *until)
{
    int64_t now = fffs_now();

    while (fetch->active < fetch->limit) {
        struct fffs_range *range = next_range(fetch, now, until);

        if (!range)
            return;
        int status = begin(fetch, range);
        if (status)
            give_up(fetch, range, status);
    }
}

static void finish_some(struct fffs_fetch *fetch)
{
    const struct fffs_curl *curl = fetch->client->curl;
    struct fffs_curl_message *message;
    int left;

    while ((message = curl->multi_read(fetch->client->group, &left))) {
        struct transfer *done = NULL;
        int result = message->data.result;

        if (message->kind != CURL_MESSAGE_DONE)
            continue;
        curl->easy_getinfo(message->transfer, CURL_GET_PRIVATE, &done);
        finish(done, result);
    }
}

/* Returns how many requests at a time are useful. */
static int useful_requests(const struct fffs_http_client *client)
{
    int64_t wanted = REQUESTS_NEAR + client->latency / (SECOND / 1000) * REQUESTS_PER_MILLISECOND;
    int limit = atomic_load(&connections_max);

    return wanted < limit ? (int)wanted : limit;
}

int fffs_fetch_run(fffs_fetch *fetch, int32_t milliseconds)
{
    int64_t end = fffs_now() + milliseconds * (SECOND / 1000);

    while (fetch->open) {
        int64_t until = end;
        int running, events;

        begin_some(fetch, &until);
        fetch->client->curl->multi_perform(fetch->client->group, &running);
        finish_some(fetch);
        int64_t now = fffs_now();
        if (!fetch->open)
            break;
        if (now >= end)
            return -EAGAIN;
        bool more = fetch->active < fetch->limit && fetch->begun < fetch->range_count;
        if (!more && until > now)
            fetch->client->curl->multi_poll(fetch->client->group, NULL, 0, (int)((until - now) / 1000000) + 1,
                                            &events);
    }
    return 0;
}

/* ---------------------------------------------------------------- life */

/* Plans the ranges of the batch's pieces. Returns 0 or -ENOMEM. */
static int plan(struct fffs_fetch *fetch)
{
    struct fffs_batch *batch = &fetch->batch;
    size_t count = 0;

    fetch->ranges = fffs_allocate((batch->piece_count ? batch->piece_count : 1) * sizeof *fetch->ranges);
    if (!fetch->ranges)
        return -ENOMEM;
    for (size_t i = 0; i < batch->piece_count; i++) {
        struct fffs_piece *piece = &batch->pieces[i];

        if (piece->status == FFFS_PENDING && fffs_object_of(piece->fd) < 0)
            piece->status = -EBADF;
        if (piece->status == FFFS_PENDING)
            batch->left[count++] = piece;
    }
    fetch->range_count = fetch->open = fffs_plan_ranges(batch->left, count, fetch->ranges);
    return 0;
}

int fffs_fetch_begin(fffs_request *requests, size_t count, fffs_fetch **fetch)
{
    struct fffs_fetch *new = fffs_allocate_zeroed(1, sizeof *new);

    if (!new)
        return -ENOMEM;
    int status = fffs_batch_open(&new->batch, requests, count);
    if (status) {
        free(new);
        return status;
    }
    status = plan(new);
    new->transfers = fffs_allocate_zeroed(FFFS_HTTP_CONNECTIONS, sizeof *new->transfers);
    if (!status)
        status = new->transfers ? fffs_http_take(&new->client) : -ENOMEM;
    if (status) {
        fffs_fetch_end(new);
        return status;
    }
    new->limit = useful_requests(new->client);
    new->random = (unsigned)fffs_now();
    *fetch = new;
    return 0;
}

int fffs_fetch_end(fffs_fetch *fetch)
{
    for (int i = 0; fetch->transfers && i < FFFS_HTTP_CONNECTIONS; i++) {
        if (fetch->transfers[i].range) {
            fetch->client->curl->multi_remove(fetch->client->group, fetch->transfers[i].handle);
            release(&fetch->transfers[i]);
        }
    }
    for (size_t i = 0; i < fetch->batch.piece_count; i++)
        if (fetch->batch.pieces[i].status == FFFS_PENDING)
            fetch->batch.pieces[i].status = -ECANCELED;
    if (fetch->client)
        fffs_http_give(fetch->client);
    int status = fffs_batch_close(&fetch->batch);
    free(fetch->transfers);
    free(fetch->ranges);
    free(fetch);
    return status;
}
