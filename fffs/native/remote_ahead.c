/* Reads batches of objects before they are asked for, and fills caches ahead of readers of one part after the other.
 *
 * A batch of a distant store waits at least once for the way there and back. A training loop that knows its next batches has them
 * read meanwhile: each becomes a stage, with memory for its records, which one of a few threads reads as any other batch, with
 * caches, checksums and repairs. The read that asks for the records then copies them, which costs less than a tenth of receiving
 * them. What failed is read again when it is asked for; who was waiting for it gets its error. */
#include "remote_ahead.h"
#include "clock.h"
#include "fault.h"
#include "fetch.h"
#include "fork.h"
#include "object_cache.h"
#include "objects.h"
#include "remote.h"
#include "threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Two threads: while one waits for the last answers of its stage, the connections of the other are busy. */
enum { THREADS = 2 };

/* Bytes that may be staged in a process, and batches that are useful to know in advance at most. */
#define ROOM (INT64_C(256) << 20)
enum { DEPTH_MOST = 4 };

/* Nanoseconds after which what was staged and not asked for makes room. */
#define LEFT_AFTER (10 * FFFS_SECOND)

/* Milliseconds between two looks at *cancel. */
enum { SLICE = 50 };

enum state { WAITING, READING, DONE };

struct stage {
    fffs_request *requests; /* [count] by place; dest is in the memory */
    bool *taken;            /* [count]; NULL: the one request only fills the cache */
    size_t count, left;     /* left: neither taken nor dropped */
    int users;              /* threads that copy from it */
    uint8_t *memory;
    int64_t bytes;
    int32_t cancel;
    enum state state;
    uint64_t number;    /* in the order in which stages were added, from 1 */
    int64_t finished;   /* when it was done, on fffs_now's clock */
    struct stage *next; /* the next younger */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* a stage is done, or a thread has ended */
/* All under the lock. */
static struct stage *oldest;
static int64_t staged_bytes;
static uint64_t added, taken; /* numbers of the last stage that was added, and of the last one that was taken from */
static int threads;

static _Atomic int depth = 1;
static _Atomic size_t stages; /* their number, read without the lock */

__attribute__((constructor)) static void make_condition(void)
{
    fffs_condition_init(&changed);
}

int32_t fffs_remote_depth(void)
{
    return atomic_load(&depth);
}

/* ---------------------------------------------------------------- stages */

static int by_place(const void *a, const void *b)
{
    const fffs_request *one = a, *other = b;

    if (one->fd != other->fd)
        return one->fd < other->fd ? -1 : 1;
    return (one->offset > other->offset) - (one->offset < other->offset);
}

/* Finds a record that nobody has taken. Returns its stage, or NULL. Under the lock. */
static struct stage *find(const fffs_request *wanted, size_t *place)
{
    for (struct stage *stage = oldest; stage; stage = stage->next) {
        fffs_request *found = bsearch(wanted, stage->requests, stage->count, sizeof *found, by_place);

        if (!found || !stage->taken || found->length != wanted->length || found->check != wanted->check ||
            found->expected != wanted->expected)
            continue;
        *place = (size_t)(found - stage->requests);
        if (!stage->taken[*place])
            return stage;
    }
    return NULL;
}

static void free_stage(struct stage *stage)
{
    if (stage->memory)
        fffs_buffer_give(stage->memory);
    free(stage->requests);
    free(stage->taken);
    free(stage);
}

/* Frees a stage that no thread uses, or will use. Under the lock. */
static void drop(struct stage *stage)
{
    struct stage **link = &oldest;

    while (*link != stage)
        link = &(*link)->next;
    *link = stage->next;
    staged_bytes -= stage->bytes;
    atomic_fetch_sub(&stages, 1);
    free_stage(stage);
}

/* Whether nobody seems to want the rest of a stage any more: records of a younger one were taken, or none were for long. Under the
 * lock. */
static bool is_left(const struct stage *stage)
{
    return stage->state == DONE && !stage->users &&
           (stage->number < taken || fffs_now() - stage->finished > LEFT_AFTER);
}

/* Drops stages that are left, oldest first, until there is room. Those that will be asked for soon stay, and what is asked for after
 * them is not staged. Returns whether there is room. Under the lock. */
static bool make_room(int64_t bytes)
{
    struct stage *stage = oldest;

    while (stage && staged_bytes + bytes > ROOM) {
        struct stage *next = stage->next;

        if (is_left(stage))
            drop(stage);
        stage = next;
    }
    return staged_bytes + bytes <= ROOM;
}

/* Whether a record must be fetched: it is somewhere in an object, and not in a cache. */
static bool is_missing(const fffs_request *request)
{
    if (!fffs_is_remote(request->fd) || request->length <= 0 || request->offset < 0 || request->length > ROOM ||
        request->offset > fffs_object_size(fffs_object_of(request->fd)) - request->length)
        return false;
    struct fffs_object_cache *cache = fffs_object_cache_at(fffs_object_of(request->fd));
    /* wait: another process may have fetched it. */
    return !cache || !fffs_object_cache_has(cache, request->offset, request->length, false, true);
}

/* Moves the first of each group of requests with one place to the front. Returns their number. */
static size_t without_repetitions(fffs_request *sorted, size_t count)
{
    size_t front = 0;

    for (size_t i = 0; i < count; i++)
        if (!front || by_place(&sorted[front - 1], &sorted[i]))
            sorted[front++] = sorted[i];
    return front;
}

/* Makes a stage of the requests that must be fetched, by place, without memory. Returns NULL if there are none, or no memory. */
static struct stage *make_stage(const fffs_request *requests, size_t count)
{
    struct stage *stage = fffs_allocate_zeroed(1, sizeof *stage);

    if (!stage)
        return NULL;
    stage->requests = fffs_allocate_zeroed(count, sizeof *stage->requests);
    stage->taken = fffs_allocate_zeroed(count, sizeof *stage->taken);
    for (size_t i = 0; stage->requests && stage->taken && i < count; i++)
        if (is_missing(&requests[i]))
            stage->requests[stage->count++] = requests[i];
    if (!stage->count) {
        free_stage(stage);
        return NULL;
    }
    qsort(stage->requests, stage->count, sizeof *stage->requests, by_place);
    stage->count = without_repetitions(stage->requests, stage->count);
    return stage;
}

/* Removes the records that other stages have. Returns whether any are left, and there is room for them. Under the lock. */
static bool keep_new(struct stage *stage)
{
    size_t place;

    for (size_t i = 0; i < stage->count; i++) {
        if (find(&stage->requests[i], &place))
            continue;
        stage->bytes += stage->requests[i].length;
        stage->requests[stage->left++] = stage->requests[i];
        if (stage->bytes > ROOM)
            return false;
    }
    stage->count = stage->left;
    return stage->count && make_room(stage->bytes);
}

/* Gives the records of a stage their places in memory. */
static int give_memory(struct stage *stage)
{
    uint8_t *next = stage->memory = fffs_buffer_take((size_t)stage->bytes);

    if (!next)
        return -ENOMEM;
    for (size_t i = 0; i < stage->count; i++) {
        fffs_request *request = &stage->requests[i];

        request->dest = next;
        request->status = -ECANCELED; /* until it is read */
        next += request->length;
    }
    return 0;
}

/* ---------------------------------------------------------------- threads */

static struct stage *first_waiting(void)
{
    struct stage *stage = oldest;

    while (stage && stage->state != WAITING)
        stage = stage->next;
    return stage;
}

/* Leaves out the records that were taken before their stage began. Under the lock. */
static void leave_out_taken(struct stage *stage)
{
    size_t kept = 0;

    for (size_t i = 0; stage->taken && i < stage->count; i++)
        if (!stage->taken[i])
            stage->requests[kept++] = stage->requests[i];
    if (!stage->taken)
        return;
    stage->count = kept;
    memset(stage->taken, 0, kept * sizeof *stage->taken);
}

static void read_stage(struct stage *stage)
{
    fffs_request *requests = stage->requests;

    if (!stage->taken) {
        fffs_remote_fill(requests->fd, requests->offset, requests->length, &stage->cancel);
        return;
    }
    int status = fffs_remote_read_now(requests, stage->count, &stage->cancel);
    for (size_t i = 0; status && status != -EIO && i < stage->count; i++)
        requests[i].status = status;
}

static void *run(void *unused)
{
    struct stage *stage;

    (void)unused;
    pthread_mutex_lock(&lock);
    while ((stage = first_waiting())) {
        leave_out_taken(stage);
        stage->state = READING;
        pthread_mutex_unlock(&lock);
        read_stage(stage);
        pthread_mutex_lock(&lock);
        stage->state = DONE;
        stage->finished = fffs_now();
        if (!stage->taken)
            drop(stage);
        pthread_cond_broadcast(&changed);
    }
    threads--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Ends the threads before the libraries that they use are shut down. */
static void stop_at_exit(void)
{
    pthread_mutex_lock(&lock);
    for (struct stage *stage = oldest; stage; stage = stage->next) {
        __atomic_store_n(&stage->cancel, 1, __ATOMIC_RELAXED);
        if (stage->state == WAITING)
            stage->state = DONE;
    }
    while (threads)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* Starts a thread if another one is useful. Returns whether any thread runs. Under the lock. */
static bool start_thread(void)
{
    static bool registered;

    if (threads == THREADS)
        return true;
    /* The handlers of libraries that are loaded later run earlier, so libcurl must be loaded before this one is registered. */
    if (!registered)
        registered = fffs_http_version() && !atexit(stop_at_exit);
    if (registered && fffs_thread_start(run))
        threads++;
    return threads > 0;
}

/* Adds a stage, which gets its thread. Returns false if there is no thread. Under the lock. */
static bool add(struct stage *stage)
{
    struct stage **link = &oldest;

    if (!start_thread())
        return false;
    while (*link)
        link = &(*link)->next;
    *link = stage;
    stage->number = ++added;
    staged_bytes += stage->bytes;
    atomic_fetch_add(&stages, 1);
    return true;
}

void fffs_remote_prefetch(const fffs_request *requests, size_t count)
{
    struct stage *stage = count ? make_stage(requests, count) : NULL;

    if (!stage)
        return;
    pthread_mutex_lock(&lock);
    bool used = keep_new(stage) && !give_memory(stage) && add(stage);
    pthread_mutex_unlock(&lock);
    if (!used)
        free_stage(stage);
}

void fffs_ahead_fill(int fd, int64_t offset, int64_t length)
{
    struct stage *stage = fffs_allocate_zeroed(1, sizeof *stage);

    if (!stage)
        return;
    *stage =
        (struct stage){.requests = fffs_allocate_zeroed(1, sizeof *stage->requests), .count = 1, .bytes = length};
    if (stage->requests)
        *stage->requests = (fffs_request){.offset = offset, .length = length, .fd = fd};
    pthread_mutex_lock(&lock);
    bool used = stage->requests && make_room(length) && add(stage);
    pthread_mutex_unlock(&lock);
    if (!used)
        free_stage(stage);
}

/* ---------------------------------------------------------------- taking */

/* A record that a request takes. */
struct take {
    struct stage *stage; /* NULL: there is none */
    size_t place;
    bool late; /* it was being read when it was asked for */
};

/* late: what was asked for should have begun earlier. */
static void deepen(bool late)
{
    if (late && atomic_load(&depth) < DEPTH_MOST)
        atomic_fetch_add(&depth, 1);
}

/* Waits until a stage is done. Returns false if *cancel was set before. */
static bool wait_for(struct stage *stage, const int32_t *cancel)
{
    bool late = false;

    pthread_mutex_lock(&lock);
    while (stage->state != DONE && !(cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED))) {
        late = true;
        fffs_condition_wait(&changed, &lock, SLICE);
    }
    bool done = stage->state == DONE;
    pthread_mutex_unlock(&lock);
    deepen(late);
    return done;
}

/* Whether a record that could not be read will not be by another try at once. */
static bool is_final(int status)
{
    return status && status != -EBADMSG && status != -ECANCELED && status != -ENOMEM;
}

/* Copies a record if it could be read. A failure that was waited for counts as well: another try would take as long again. */
static bool copy(const struct take *take, fffs_request *request)
{
    const fffs_request *found = &take->stage->requests[take->place];

    if (found->status && !(take->late && is_final(found->status)))
        return false;
    if (!found->status)
        memcpy(request->dest, found->dest, (size_t)found->length);
    request->status = found->status;
    request->actual = found->actual;
    return true;
}

/* Finds and takes the records of some requests. takes: [count]. Returns how many. Those of a stage that waits are left to the caller:
 * the threads may wait for a server that does not answer. */
static size_t take_all(fffs_request **some, size_t count, struct take *takes)
{
    size_t found = 0;
    bool late = false;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        struct take *take = &takes[i];
        struct stage *stage = some[i]->dest ? find(some[i], &take->place) : NULL;

        take->stage = stage && stage->state != WAITING ? stage : NULL;
        if (!stage)
            continue;
        stage->taken[take->place] = true;
        taken = stage->number > taken ? stage->number : taken;
        stage->left--;
        if (take->stage) {
            take->late = stage->state == READING;
            stage->users++;
            found++;
            continue;
        }
        late = true;
        if (!stage->left) /* a stage that waits has no users */
            drop(stage);
    }
    pthread_mutex_unlock(&lock);
    deepen(late);
    return found;
}

size_t fffs_ahead_take(fffs_request **some, size_t count, const int32_t *cancel)
{
    struct take *takes = atomic_load(&stages) && count ? fffs_allocate(count * sizeof *takes) : NULL;
    size_t front = 0;

    if (!takes)
        return count;
    bool any = take_all(some, count, takes) > 0;
    for (size_t i = 0; i < count; i++)
        if (!takes[i].stage || !wait_for(takes[i].stage, cancel) || !copy(&takes[i], some[i]))
            some[front++] = some[i];
    pthread_mutex_lock(&lock);
    for (size_t i = 0; any && i < count; i++)
        if (takes[i].stage && --takes[i].stage->users == 0 && !takes[i].stage->left && takes[i].stage->state == DONE)
            drop(takes[i].stage);
    pthread_cond_broadcast(&changed); /* fffs_ahead_forget may wait for the last user */
    pthread_mutex_unlock(&lock);
    free(takes);
    return front;
}

/* ---------------------------------------------------------------- the end of an object, fork */

static bool has_object(const struct stage *stage, int32_t number)
{
    for (size_t i = 0; i < stage->count; i++)
        if (fffs_object_of(stage->requests[i].fd) == number)
            return true;
    return false;
}

void fffs_ahead_forget(int32_t number)
{
    struct stage *stage;

    if (!atomic_load(&stages))
        return;
    pthread_mutex_lock(&lock);
    for (stage = oldest; stage;) {
        if (!has_object(stage, number)) {
            stage = stage->next;
            continue;
        }
        __atomic_store_n(&stage->cancel, 1, __ATOMIC_RELAXED);
        if (stage->state == READING || stage->users) {
            pthread_cond_wait(&changed, &lock);
            stage = oldest; /* it may be gone */
            continue;
        }
        drop(stage);
        stage = oldest;
    }
    pthread_mutex_unlock(&lock);
}

void fffs_ahead_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

/* The child has no threads, so it gives up what they read. */
void fffs_ahead_after_fork(bool child)
{
    while (child && oldest)
        drop(oldest);
    if (child) {
        threads = 0;
        fffs_condition_init(&changed);
    }
    pthread_mutex_unlock(&lock);
}
