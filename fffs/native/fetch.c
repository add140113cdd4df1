/* Fetches the pieces of a batch from objects, over many connections at a time: which requests are sent when, and how often. */
#include "fetch.h"
#include "clock.h"
#include "fault.h"
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>

/* Requests at a time: these, and more for each millisecond until an answer begins, up to the limit. Few keep a near server busy
 * and cost the least; a far one needs many. */
enum { REQUESTS_NEAR = 16, REQUESTS_PER_MILLISECOND = 12, REQUESTS_LEAST = 4 };

/* Bytes of a request are at most the connections' equal shares of a batch, within these limits: one connection is slower than
 * many, but requests cost money. */
enum { RANGE_LEAST = 1024 * 1024, RANGE_MOST = 8 * 1024 * 1024 };

/* Pauses before another try: doubled from the first to the longest, and shortened by a random part. */
#define PAUSE_FIRST (FFFS_SECOND / 10)
#define PAUSE_LONGEST (10 * FFFS_SECOND)

/* Ranges in a row that bring nothing until their deadline before their server is given up, or as many as are asked for at a time:
 * a single one may be of bytes that the server cannot read. */
enum { SILENT_RANGES = 4 };

/* Parts that a range which fails is divided into at most: few if its server refuses all, which it may do because it is busy. */
enum { PARTS_MOST = 256, PARTS_FEW = 16 };

/* For how long parts may wait for their turn, also behind the deadline. */
#define PARTS_WAIT (2 * FFFS_SECOND)

struct fffs_fetch {
    struct fffs_batch batch;
    struct fffs_silence *silence; /* the caller's */
    struct fffs_range *ranges;    /* [batch.piece_count] */
    size_t range_count, begun, open;
    size_t part_count;          /* the last of the ranges are parts of others */
    struct fffs_range *waiting; /* for another try */
    struct fffs_http_client *client;
    struct fffs_transfer *transfers; /* [FFFS_HTTP_CONNECTIONS] */
    int active, limit;
    int limit_most;  /* the limit is lowered while a server says that it is busy */
    int older;       /* requests that began before the limit was lowered last and are not answered: about so many */
    int answers;     /* good ones since the limit was changed */
    int64_t fastest; /* of the answers, in nanoseconds; 0: not known */
    unsigned random;
};

/* For how long a transfer may stall. What nobody asked for is given up sooner: a reader that waits for it then asks itself. */
static int64_t patience(const struct fffs_fetch *fetch)
{
    return fetch->silence->ahead ? fffs_http_patience() / 2 : fffs_http_patience();
}

/* For how long the transfer of a range may stall. More often than a server cannot read a place, a connection is dead, so that a range of
 * several pieces is repeated before it is divided: after a quarter of the deadline; then it may stall for half of it, and its parts for
 * the rest. A request that waits behind others would have to wait anew, so it gets twice as long as its server's last answers took:
 * while a queue moves, they took almost as long as those that are still in it wait. */
static int64_t patience_with(const struct fffs_fetch *fetch, const struct fffs_range *range)
{
    int64_t whole = patience(fetch), stall = fffs_http_deadline() / 4;
    int64_t latency = fetch->silence->servers[range->server].latency;

    latency = latency ? latency : fetch->client->slowest;
    if (fetch->silence->ahead || !latency || (!range->part && (range->count == 1 || range->tries)))
        return whole;
    stall = stall < FFFS_SECOND ? FFFS_SECOND : stall;
    stall = stall < 2 * latency ? 2 * latency : stall;
    return stall < whole ? stall : whole;
}

/* For how long a range may bring nothing. */
static int64_t deadline(const struct fffs_fetch *fetch)
{
    return fetch->silence->ahead ? patience(fetch) : fffs_http_deadline();
}

/* Ends a range with an error. */
static void give_up(struct fffs_fetch *fetch, struct fffs_range *range, int status)
{
    for (uint32_t i = 0; i < range->count; i++)
        if (range->pieces[i]->status == FFFS_PENDING)
            range->pieces[i]->status = status;
    fetch->open--;
}

/* Whether nothing came from the server of a range since that began to fail, also of others. */
static bool is_silent(struct fffs_fetch *fetch, const struct fffs_range *range)
{
    for (int i = 0; i < FFFS_HTTP_CONNECTIONS; i++)
        if (fetch->transfers[i].range)
            fffs_silence_break(fetch->silence, fetch->transfers[i].range->server, fetch->transfers[i].speed.fast);
    return fetch->silence->servers[range->server].progress < range->since;
}

/* Notes that a range brought nothing until its deadline. If nothing else came from its server meanwhile, that may be given up. */
static void note_silence(struct fffs_fetch *fetch, const struct fffs_range *range, int status)
{
    uint32_t enough = fetch->limit < SILENT_RANGES ? (uint32_t)fetch->limit : SILENT_RANGES;

    if (!range->part && is_silent(fetch, range))
        fffs_silence_note(fetch->silence, range->server, enough, status);
}

/* Returns the status of a range that waits for a server that was given up, or 0. */
static int hopeless(const struct fffs_fetch *fetch, const struct fffs_range *range)
{
    return fetch->silence->servers[range->server].status;
}

/* Whether the deadline of a range passed while it could not be tried, because others had its place, and failed as well. Parts would
 * else make the batch last longer the more of them stall. */
static bool is_overdue(struct fffs_fetch *fetch, const struct fffs_range *range, int64_t now)
{
    int64_t until = range->not_before + (range->part ? PARTS_WAIT : FFFS_SECOND);

    return range->since && now >= range->since + deadline(fetch) && now > until &&
           (range->part || is_silent(fetch, range));
}

/* Has the parts of a range tried instead of it: one place in it may be all that the server cannot read. While nothing comes from the
 * server, only one range of it is divided, to find out. Returns whether there are parts. */
static bool divide(struct fffs_fetch *fetch, struct fffs_range *range, int status, int64_t now)
{
    struct fffs_range *last = &fetch->ranges[fetch->batch.piece_count - 1 - fetch->part_count];
    bool silent = is_silent(fetch, range), *probed = &fetch->silence->servers[range->server].probed;

    if (silent && *probed)
        return false;
    size_t count = fffs_divide_range(range, silent && status != -ETIMEDOUT ? PARTS_FEW : PARTS_MOST, last);
    if (!count)
        return false;
    *probed = *probed || silent;
    fetch->part_count += count - 1;
    fetch->open += count - 1;
    for (size_t i = count; i > 0; i--) { /* the first one first */
        struct fffs_range *part = i > 1 ? last - (i - 2) : range;

        part->tries++;
        part->status = status;
        part->not_before = now;
        part->next = fetch->waiting;
        fetch->waiting = part;
    }
    return true;
}

/* Has a range wait before another try, or ends it at its deadline. In the second half of the time until then, its parts are tried.
 * The last try is at the deadline, also if the pause or what the server wants is longer. */
static void wait_again(struct fffs_fetch *fetch, struct fffs_range *range, int status, int64_t retry_after)
{
    int64_t now = fffs_now(), pause = PAUSE_FIRST << (range->tries < 7 ? range->tries : 7);
    int64_t half = deadline(fetch) / 2, left = range->since + 2 * half - now;

    if (left < PAUSE_FIRST) {
        note_silence(fetch, range, status);
        give_up(fetch, range, status);
        return;
    }
    if (left <= half && !retry_after && divide(fetch, range, status, now))
        return;
    pause = pause > PAUSE_LONGEST ? PAUSE_LONGEST : pause;
    fetch->random = fetch->random * 1103515245u + 12345u;
    pause -= pause / 2 * (fetch->random >> 16 & 0xff) / 256;
    if (left - pause < half && half < left) /* one try is when that begins */
        pause = left - half > PAUSE_FIRST ? left - half : PAUSE_FIRST;
    if (retry_after > pause / FFFS_SECOND)
        pause = retry_after > left / FFFS_SECOND ? left : retry_after * FFFS_SECOND;
    range->tries++;
    range->status = status;
    range->not_before = now + (pause < left ? pause : left);
    range->next = fetch->waiting;
    fetch->waiting = range;
}

/* The fastest answer of a batch says how far the server is. The others waited behind the batch's own requests: more requests at
 * a time for them would only make them wait longer. After a server that is near, one that is far is learned in some batches. */
static void note_latency(const struct fffs_fetch *fetch)
{
    struct fffs_http_client *client = fetch->client;
    int64_t older = client->latency + client->latency / 2, slowest = 0;

    for (size_t i = 0; i < fetch->silence->count; i++)
        if (fetch->silence->servers[i].latency > slowest)
            slowest = fetch->silence->servers[i].latency;
    if (fetch->fastest) {
        client->latency = !client->latency || fetch->fastest < older ? fetch->fastest : older;
        client->slowest = slowest;
    }
}

/* Halves the number of requests at a time. The requests in flight were all too many at once, and are answered alike: only the first
 * such answer counts. */
static void lower_limit(struct fffs_fetch *fetch)
{
    if (fetch->older || fetch->limit <= REQUESTS_LEAST)
        return;
    fetch->limit = fetch->limit / 2 > REQUESTS_LEAST ? fetch->limit / 2 : REQUESTS_LEAST;
    fetch->older = fetch->active;
    fetch->answers = 0;
}

/* Adds a request at a time for as many good answers as there are requests at a time, up to the limit of before. */
static void raise_limit(struct fffs_fetch *fetch)
{
    if (fetch->limit == fetch->limit_most || ++fetch->answers < fetch->limit)
        return;
    fetch->limit++;
    fetch->answers = 0;
}

/* Ends the range of a transfer that failed, or has it wait. */
static void fail(struct fffs_fetch *fetch, struct fffs_transfer *transfer, int result)
{
    struct fffs_range *range = transfer->range;
    bool final = false;
    int status = fffs_transfer_failure(transfer, result, &final);

    fffs_transfer_report(transfer, result);
    if (transfer->status == 429 || transfer->status == 503)
        lower_limit(fetch);
    if (final) {
        fffs_silence_break(fetch->silence, range->server, fffs_now());
        give_up(fetch, range, status);
    } else {
        wait_again(fetch, range, status, transfer->answer.retry_after);
    }
}

/* Has the time of a range that fails begin when bytes came last. Those of a transfer that stalled lengthen it by as long as they
 * take at the lowest speed: a server that brings a few with each request could go on like this for years. */
static void note_bytes(struct fffs_fetch *fetch, const struct fffs_transfer *transfer, int result)
{
    struct fffs_range *range = transfer->range;
    int64_t bytes = range->place - transfer->begun, when = fffs_now();

    if (!bytes)
        return;
    if (result == CURL_TIMEOUT) {
        int64_t longer = range->since + bytes * (FFFS_SECOND / FFFS_SLOWEST);

        when = transfer->speed.fast < longer ? transfer->speed.fast : longer;
    }
    if (when <= range->since)
        return;
    range->tries = range->offences = 0;
    range->since = when;
    fffs_silence_break(fetch->silence, range->server, when);
}

static void finish(struct fffs_fetch *fetch, struct fffs_transfer *transfer, int result)
{
    struct fffs_range *range = transfer->range;
    bool succeeded = fffs_transfer_succeeded(transfer);

    fetch->active--;
    if (fetch->older)
        fetch->older--;
    fffs_object_count(range->object, (uint64_t)(range->place - transfer->begun), range->tries > 0);
    note_bytes(fetch, transfer, result);
    if (succeeded) {
        raise_limit(fetch);
        int64_t latency = fffs_transfer_latency(transfer);
        fetch->fastest = !fetch->fastest || (latency && latency < fetch->fastest) ? latency : fetch->fastest;
        fffs_silence_answer(fetch->silence, range->server, latency);
        give_up(fetch, range, -ENODATA); /* only pieces behind the end of the object are pending */
    } else if (fffs_transfer_found_nothing(transfer)) {
        fffs_object_learn(range->object, &transfer->answer.version, &transfer->use, NULL);
        give_up(fetch, range, -ENODATA);
    } else {
        fail(fetch, transfer, result);
    }
    fffs_transfer_end(transfer);
}

/* ---------------------------------------------------------------- running */

/* Begins a request for the rest of a range. Returns 0 or -errno. */
static int begin(struct fffs_fetch *fetch, struct fffs_range *range)
{
    struct fffs_transfer *transfer = fetch->transfers;

    while (transfer->range) /* fewer are active than there are */
        transfer++;
    if (!range->since)
        range->since = fffs_now();
    int status = fffs_transfer_begin(transfer, fetch->client, range);
    if (!status)
        fetch->active++;
    return status;
}

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

static bool may_begin(const struct fffs_fetch *fetch)
{
    return fetch->active < fetch->limit && fffs_http_may_begin(fetch->client, fetch->active);
}

static void begin_some(struct fffs_fetch *fetch, int64_t *until)
{
    int64_t now = fffs_now();

    while ((fetch->waiting || fetch->begun < fetch->range_count) && may_begin(fetch)) {
        struct fffs_range *range = next_range(fetch, now, until);

        if (!range)
            return;
        if (is_overdue(fetch, range, now)) {
            note_silence(fetch, range, range->status);
            give_up(fetch, range, range->status);
            continue;
        }
        int status = hopeless(fetch, range);
        if (!status)
            status = begin(fetch, range);
        if (status)
            give_up(fetch, range, status);
    }
}

/* Ends the requests to servers that were given up, and the pauses before others, which begin_some then ends. */
static void end_hopeless(struct fffs_fetch *fetch)
{
    if (!fetch->silence->given_up)
        return;
    for (int i = 0; i < FFFS_HTTP_CONNECTIONS; i++) {
        struct fffs_transfer *transfer = &fetch->transfers[i];

        int status = transfer->range ? hopeless(fetch, transfer->range) : 0;

        if (!status)
            continue;
        give_up(fetch, transfer->range, status);
        fffs_transfer_end(transfer);
        fetch->active--;
    }
    for (struct fffs_range *range = fetch->waiting; range; range = range->next)
        if (hopeless(fetch, range))
            range->not_before = 0;
}

static void finish_some(struct fffs_fetch *fetch)
{
    const struct fffs_curl *curl = fetch->client->curl;
    struct fffs_curl_message *message;
    int left;

    while ((message = curl->multi_read(fetch->client->group, &left))) {
        void *done = NULL;
        int result = message->data.result;

        if (message->kind != CURL_MESSAGE_DONE)
            continue;
        curl->easy_getinfo(message->transfer, CURL_GET_PRIVATE, &done);
        finish(fetch, done, result);
    }
}

/* Ends the transfers that stalled for too long. Lowers *until to when the next one may have. */
static void end_stalled(struct fffs_fetch *fetch, int64_t *until)
{
    int64_t now = fffs_now();

    for (int i = 0; i < FFFS_HTTP_CONNECTIONS; i++) {
        struct fffs_transfer *transfer = &fetch->transfers[i];
        int64_t end = transfer->range ? fffs_transfer_stalls_since(transfer) + patience_with(fetch, transfer->range)
                                      : INT64_MAX;

        if (end <= now) {
            fffs_transfer_note_stall(transfer);
            finish(fetch, transfer, CURL_TIMEOUT);
        } else if (end < *until) {
            *until = end;
        }
    }
}

/* Returns how many requests at a time are useful. */
static int useful_requests(const struct fffs_http_client *client)
{
    int64_t wanted = REQUESTS_NEAR + client->latency / (FFFS_SECOND / 1000) * REQUESTS_PER_MILLISECOND;
    int limit = fffs_http_connections();

    return wanted < limit ? (int)wanted : limit;
}

int fffs_fetch_run(fffs_fetch *fetch, int32_t milliseconds)
{
    int64_t end = fffs_now() + milliseconds * (FFFS_SECOND / 1000);

    while (fetch->open) {
        int64_t until = end;
        int running, events;

        fffs_http_enter();
        begin_some(fetch, &until);
        fetch->client->curl->multi_perform(fetch->client->group, &running);
        finish_some(fetch);
        end_stalled(fetch, &until);
        end_hopeless(fetch);
        fffs_http_leave();
        int64_t now = fffs_now();
        if (!fetch->open)
            break;
        if (now >= end)
            return -EAGAIN;
        bool more = fetch->begun < fetch->range_count && may_begin(fetch);
        if (!more && until > now)
            fetch->client->curl->multi_poll(fetch->client->group, NULL, 0, (int)((until - now) / 1000000) + 1,
                                            &events);
    }
    return 0;
}

/* ---------------------------------------------------------------- life */

static int by_turn(const void *a, const void *b)
{
    const struct fffs_range *one = a, *other = b;

    if (one->turn != other->turn)
        return one->turn < other->turn ? -1 : 1;
    return (one->server > other->server) - (one->server < other->server);
}

/* Has the servers asked in turn, so that all have something to do, and those that do not answer are found out together. Returns 0 or
 * -ENOMEM. */
static int take_turns(struct fffs_fetch *fetch)
{
    struct fffs_silence *silence = fetch->silence;

    for (size_t i = 0; i < silence->count; i++) {
        silence->servers[i].probed = false;
        silence->servers[i].ranges = 0;
    }
    for (size_t i = 0; i < fetch->range_count; i++) { /* in the order of their objects */
        struct fffs_range *range = &fetch->ranges[i];
        int32_t server = i && range[-1].object == range->object ? (int32_t)range[-1].server
                                                                : fffs_silence_server(silence, range->object);

        if (server < 0)
            return server;
        range->server = (uint32_t)server;
        range->turn = silence->servers[server].ranges++;
    }
    if (silence->count > 1)
        qsort(fetch->ranges, fetch->range_count, sizeof *fetch->ranges, by_turn);
    return 0;
}

/* Plans the ranges of the batch's pieces. Returns 0 or -ENOMEM. */
static int plan(struct fffs_fetch *fetch)
{
    struct fffs_batch *batch = &fetch->batch;
    size_t count = 0;
    int64_t bytes = 0;

    fetch->ranges = fffs_allocate((batch->piece_count ? batch->piece_count : 1) * sizeof *fetch->ranges);
    if (!fetch->ranges)
        return -ENOMEM;
    for (size_t i = 0; i < batch->piece_count; i++) {
        struct fffs_piece *piece = &batch->pieces[i];

        if (piece->status == FFFS_PENDING && fffs_object_of(piece->fd) < 0)
            piece->status = -EBADF;
        if (piece->status == FFFS_PENDING) {
            batch->left[count++] = piece;
            bytes += piece->length;
        }
    }
    int64_t most = bytes / fetch->limit;
    most = most < RANGE_LEAST ? RANGE_LEAST : most > RANGE_MOST ? RANGE_MOST : most;
    fetch->range_count = fetch->open = fffs_plan_ranges(batch->left, count, most, fetch->ranges);
    return take_turns(fetch);
}

int fffs_fetch_begin(fffs_request *requests, size_t count, struct fffs_silence *silence, fffs_fetch **fetch)
{
    struct fffs_fetch *new = fffs_allocate_zeroed(1, sizeof *new);

    if (!new)
        return -ENOMEM;
    int status = fffs_batch_open(&new->batch, requests, count);
    if (status) {
        free(new);
        return status;
    }
    new->silence = silence;
    new->transfers = fffs_allocate_zeroed(FFFS_HTTP_CONNECTIONS, sizeof *new->transfers);
    status = new->transfers ? fffs_http_take(&new->client) : -ENOMEM;
    if (!status) {
        new->limit = new->limit_most = useful_requests(new->client);
        status = plan(new);
    }
    if (status) {
        fffs_fetch_end(new);
        return status;
    }
    new->random = (unsigned)fffs_now();
    *fetch = new;
    return 0;
}

int fffs_fetch_end(fffs_fetch *fetch)
{
    fffs_http_enter();
    for (int i = 0; fetch->transfers && i < FFFS_HTTP_CONNECTIONS; i++)
        if (fetch->transfers[i].range)
            fffs_transfer_end(&fetch->transfers[i]);
    fffs_http_leave();
    for (size_t i = 0; i < fetch->batch.piece_count; i++)
        if (fetch->batch.pieces[i].status == FFFS_PENDING)
            fetch->batch.pieces[i].status = -ECANCELED;
    if (fetch->client) {
        note_latency(fetch);
        fffs_http_give(fetch->client);
    }
    int status = fffs_batch_close(&fetch->batch);
    free(fetch->transfers);
    free(fetch->ranges);
    free(fetch);
    return status;
}
