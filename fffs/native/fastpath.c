/* The fast path's threads: they stand between the kernel and the FUSE library, answer what they can and forward the
 * rest.
 *
 *     kernel ──fuse_fd──► hot threads ──┬─► answered from memory and page cache, reply to fuse_fd
 *                                       ├─► queue ──► cold threads, which may wait for the disk, reply to fuse_fd
 *                                       └─► library_fd ──► the library ──► library_fd ──► relay thread ──► fuse_fd
 *
 * Facts about the kernel that this depends on (fs/fuse/dev.c):
 *   - one read returns one whole message, one write must hold one whole reply; both are safe from any thread;
 *   - a read blocks until there is a message, and gives ENODEV once the file system is unmounted or the connection
 *     aborted;
 *   - a reply to a request that nobody waits for any more gives ENOENT: not an error;
 *   - a read buffer must hold the largest WRITE; INIT's answer says how large that is, and ours says 4096. */
#include "fastpath.h"

#include "engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The largest message a read-only file system gets: FUSE_MIN_READ_BUFFER, and what the kernel demands before INIT's
 * answer. */
enum { MESSAGE_ROOM = 160 * 1024 };

/* A reply's header ends where a page does: the kernel copies what follows page by page, and fastest between whole
 * ones. A thread that answers all the time has its buffer in a huge page, which the kernel need not look up piece by
 * piece. */
enum {
    REPLY_START = 4096 - sizeof(struct fuse_out_header),
    REPLY_BUFFER = REPLY_START + FFFS_REPLY_ROOM,
    HOT_REPLY_BUFFER = 2 * 1024 * 1024
};
_Static_assert((int)HOT_REPLY_BUFFER >= (int)REPLY_BUFFER, "a huge page holds the largest reply");

/* The largest reply of the library: the bytes of a file that it decodes. */
enum { LIBRARY_ROOM = 1100 * 1024 };

/* Bad records that wait to be logged: more at once are counted, not named. */
enum { BAD_ROOM = 256 };

/* A signal that nobody handles otherwise wakes threads from a read of the kernel's descriptor. */
#define WAKE_SIGNAL (SIGRTMIN + 3)

struct counters {
    _Alignas(64) _Atomic uint64_t requests[FFFS_FAST_KINDS];
    _Atomic uint64_t read_bytes, read_errors, cold_reads;
    _Atomic uint64_t read_latency[FFFS_FAST_BUCKETS];
};

struct worker {
    struct fffs_fastpath *owner;
    pthread_t thread;
    struct counters counters;
    uint8_t *message, *reply; /* pooled buffers, or NULL */
    _Atomic bool running;
};

/* A read that must wait. */
struct cold_read {
    struct cold_read *next;
    struct lane *lane;
    int64_t began; /* on fffs_now's clock */
    size_t length;
    uint8_t message[sizeof(struct fuse_in_header) + sizeof(struct fuse_read_in)];
};

struct queue {
    struct cold_read *first, **last;
};

/* The cold reads of one source file. */
struct lane {
    int busy;             /* those that are ready or being done: FFFS_FAST_LANE at most */
    struct queue backlog; /* the others */
};

struct bad_record {
    uint64_t record;
    int32_t status;
};

struct fffs_fastpath {
    fffs_fast_view view;
    struct worker *workers; /* the relay, then hot ones, then cold ones */
    int hot, cold;          /* how many of each may run */
    int event_fd;
    _Atomic bool stopping, connected, ended;
    _Atomic uint64_t init_unique, init_flags;

    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t more_cold;
    struct lane *lanes; /* one per file */
    struct queue ready;
    int cold_ready, cold_waiting; /* reads in the queue, and in it and all backlogs */
    int cold_started, cold_idle;
    struct bad_record bad[BAD_ROOM];
    int bad_count;
    uint8_t *reported; /* a bit per record that was reported */
};

static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static void signal_event(struct fffs_fastpath *path)
{
    uint64_t one = 1;
    ssize_t put = write(path->event_fd, &one, sizeof one);

    (void)put; /* full means that it is readable already */
}

/* ---------------------------------------------------------------- bad records */

static void report_bad(struct fffs_fastpath *path, uint64_t record, int32_t status)
{
    pthread_mutex_lock(&path->mutex);
    uint8_t bit = (uint8_t)(1u << (record & 7));
    bool first = !(path->reported[record >> 3] & bit);
    if (first && path->bad_count < BAD_ROOM) {
        path->reported[record >> 3] |= bit;
        path->bad[path->bad_count++] = (struct bad_record){record, status};
    }
    pthread_mutex_unlock(&path->mutex);
    if (first)
        signal_event(path);
}

int fffs_fastpath_next_bad(fffs_fastpath *path, uint64_t *record, int32_t *status)
{
    uint64_t ignored;
    ssize_t got = read(path->event_fd, &ignored, sizeof ignored); /* non-blocking: clears it */
    int found = 0;

    (void)got;
    pthread_mutex_lock(&path->mutex);
    if (path->bad_count > 0) {
        *record = path->bad[0].record;
        *status = path->bad[0].status;
        memmove(path->bad, path->bad + 1, (size_t)--path->bad_count * sizeof *path->bad);
        found = 1;
    }
    pthread_mutex_unlock(&path->mutex);
    return found;
}

/* ---------------------------------------------------------------- answering */

static void count_answer(struct worker *worker, const fffs_fast_answer *answer, int64_t began)
{
    struct counters *counters = &worker->counters;

    count(&counters->requests[answer->kind], 1);
    if (answer->kind != FFFS_FAST_READ)
        return;
    uint64_t took = (uint64_t)(fffs_now() - began) | 1;
    int bucket = 63 - __builtin_clzll(took);
    count(&counters->read_latency[bucket < FFFS_FAST_BUCKETS ? bucket : FFFS_FAST_BUCKETS - 1], 1);
    if (answer->status)
        count(&counters->read_errors, 1);
    else
        count(&counters->read_bytes, (uint64_t)answer->length - sizeof(struct fuse_out_header));
}

static void send_reply(struct worker *worker, const uint8_t *reply, const fffs_fast_answer *answer, int64_t began)
{
    struct fffs_fastpath *path = worker->owner;

    count_answer(worker, answer, began);
    if (answer->length > 0) {
        ssize_t put = write(path->view.config.fuse_fd, reply, (size_t)answer->length);

        (void)put; /* ENOENT: nobody waits for it any more; ENODEV: unmounted, as the next read will say */
    }
    if (answer->status)
        report_bad(path, answer->record, answer->status);
}

/* Hands a message to the library. It must not be lost: whoever sent it waits for an answer. In a READ there is no
 * file handle, since nothing was opened: it becomes the inode, which is the library's handle of a file that it has
 * opened. */
static void forward(struct worker *worker, uint8_t *message, size_t length)
{
    struct fffs_fastpath *path = worker->owner;
    struct fuse_in_header header;

    count(&worker->counters.requests[FFFS_FAST_FORWARDED], 1);
    if (length < sizeof header)
        return;
    memcpy(&header, message, sizeof header);
    if (header.opcode == FUSE_INIT && length >= sizeof header + sizeof(struct fuse_init_in)) {
        struct fuse_init_in in;

        memcpy(&in, message + sizeof header, sizeof in);
        atomic_store(&path->init_flags, in.flags);
        atomic_store(&path->init_unique, header.unique);
    }
    if (header.opcode == FUSE_READ && length >= sizeof header + sizeof(struct fuse_read_in))
        memcpy(message + sizeof header + offsetof(struct fuse_read_in, fh), &header.nodeid, sizeof header.nodeid);
    while (send(path->view.config.library_fd, message, length, MSG_NOSIGNAL) < 0) {
        if (errno == EINTR && !atomic_load(&path->stopping))
            continue;
        /* The library is gone: say so to whoever waits. */
        struct fuse_out_header reply = {.len = sizeof reply, .error = -EIO, .unique = header.unique};
        ssize_t put = write(path->view.config.fuse_fd, &reply, sizeof reply);

        (void)put;
        return;
    }
}

/* ---------------------------------------------------------------- cold reads */

static void put(struct queue *queue, struct cold_read *read)
{
    read->next = NULL;
    *queue->last = read;
    queue->last = &read->next;
}

static struct cold_read *take(struct queue *queue)
{
    struct cold_read *read = queue->first;

    if (read) {
        queue->first = read->next;
        if (!queue->first)
            queue->last = &queue->first;
    }
    return read;
}

static void *run_cold(void *argument);

/* Starts a thread for a worker: 0 or -errno. Signals of the process are for the threads it knows of. */
static int start_worker(struct worker *worker, void *(*run)(void *), size_t message_room, size_t reply_room)
{
    sigset_t most, before;
    int32_t fault;
    int status;

    worker->message = message_room ? fffs_buffer_take(message_room) : NULL;
    worker->reply = fffs_buffer_take(reply_room);
    if (!worker->reply || (message_room && !worker->message)) {
        status = -ENOMEM;
    } else {
        sigfillset(&most);
        sigdelset(&most, WAKE_SIGNAL);
        pthread_sigmask(SIG_SETMASK, &most, &before);
        atomic_store(&worker->running, true);
        status =
            fffs_fault(FFFS_FAULT_THREAD, &fault) ? -EAGAIN : -pthread_create(&worker->thread, NULL, run, worker);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (status) {
        atomic_store(&worker->running, false);
        fffs_buffer_give(worker->message);
        fffs_buffer_give(worker->reply);
        worker->message = worker->reply = NULL;
    }
    return status;
}

/* Queues a read of a record that there is for the cold threads, starting another one when there are more reads than
 * idle threads. -ENOMEM: it is not queued; -EAGAIN: it is, but nobody will come. */
static int queue_cold(struct fffs_fastpath *path, const uint8_t *message, size_t length, uint64_t record,
                      int64_t began)
{
    struct lane *lane = &path->lanes[fffs_store_file_of(path->view.store, record)];
    struct cold_read *read = fffs_allocate(sizeof *read);

    if (!read || length > sizeof read->message) {
        free(read);
        return -ENOMEM;
    }
    *read = (struct cold_read){.began = began, .length = length, .lane = lane};
    memcpy(read->message, message, length);
    pthread_mutex_lock(&path->mutex);
    path->cold_waiting++;
    if (read->lane->busy < FFFS_FAST_LANE) {
        read->lane->busy++;
        path->cold_ready++;
        put(&path->ready, read);
    } else {
        put(&read->lane->backlog, read);
    }
    if (path->cold_ready > path->cold_idle && path->cold_started < path->cold &&
        start_worker(&path->workers[1 + path->hot + path->cold_started], run_cold, 0, REPLY_BUFFER) == 0)
        path->cold_started++;
    int started = path->cold_started;
    pthread_cond_signal(&path->more_cold);
    pthread_mutex_unlock(&path->mutex);
    return started ? 0 : -EAGAIN;
}

static struct cold_read *next_cold(struct fffs_fastpath *path, bool wait)
{
    pthread_mutex_lock(&path->mutex);
    while (wait && !path->ready.first && !atomic_load(&path->stopping)) {
        path->cold_idle++;
        pthread_cond_wait(&path->more_cold, &path->mutex);
        path->cold_idle--;
    }
    struct cold_read *read = take(&path->ready);
    if (read) {
        path->cold_ready--;
        path->cold_waiting--;
    }
    pthread_mutex_unlock(&path->mutex);
    return read;
}

/* Frees a read that was done; the next of its file takes its place. */
static void leave_lane(struct fffs_fastpath *path, struct cold_read *read)
{
    pthread_mutex_lock(&path->mutex);
    struct cold_read *next = take(&read->lane->backlog);
    if (next) {
        path->cold_ready++;
        put(&path->ready, next);
        pthread_cond_signal(&path->more_cold);
    } else {
        read->lane->busy--;
    }
    pthread_mutex_unlock(&path->mutex);
    free(read);
}

static void answer_cold(struct worker *worker, struct cold_read *read, uint8_t *reply)
{
    struct fffs_fastpath *path = worker->owner;
    fffs_fast_answer answer = fffs_fast_answer_request(&path->view, read->message, read->length, reply, true);

    count(&worker->counters.cold_reads, 1);
    send_reply(worker, reply, &answer, read->began);
    leave_lane(path, read);
}

static void *run_cold(void *argument)
{
    struct worker *worker = argument;
    struct cold_read *read;

    for (;;) {
        read = next_cold(worker->owner, false);
        if (!read) {
            /* Most of these threads are idle most of the time: none keeps a megabyte for that. */
            (void)madvise(worker->reply, REPLY_BUFFER, MADV_DONTNEED);
            read = next_cold(worker->owner, true);
        }
        if (!read)
            break;
        answer_cold(worker, read, worker->reply + REPLY_START);
    }
    atomic_store(&worker->running, false);
    return NULL;
}

/* ---------------------------------------------------------------- threads */

/* One message: answered, queued or forwarded. */
static void handle(struct worker *worker, uint8_t *message, size_t length, uint8_t *reply)
{
    struct fffs_fastpath *path = worker->owner;
    int64_t began = fffs_now();
    fffs_fast_answer answer = fffs_fast_answer_request(&path->view, message, length, reply, false);

    if (answer.length == -EREMOTE) {
        forward(worker, message, length);
        return;
    }
    if (answer.length != -EAGAIN) {
        send_reply(worker, reply, &answer, began);
        return;
    }
    int status = queue_cold(path, message, length, answer.record, began);
    struct cold_read *read;
    if (status == -ENOMEM) {
        answer = fffs_fast_answer_request(&path->view, message, length, reply, true);
        send_reply(worker, reply, &answer, began);
    } else if (status == -EAGAIN && (read = next_cold(path, false))) {
        answer_cold(worker, read, reply);
    }
}

/* Waits until all threads are there: what one has read could not be given back to the kernel. */
static void await_others(struct fffs_fastpath *path)
{
    pthread_mutex_lock(&path->mutex);
    pthread_mutex_unlock(&path->mutex);
}

static void *run_hot(void *argument)
{
    struct worker *worker = argument;
    struct fffs_fastpath *path = worker->owner;

    await_others(path);
    while (!atomic_load(&path->stopping)) {
        ssize_t got = read(path->view.config.fuse_fd, worker->message, MESSAGE_ROOM);

        if (got > 0)
            handle(worker, worker->message, (size_t)got, worker->reply + REPLY_START);
        else if (got == 0 ||
                 (errno != EINTR && errno != EAGAIN && errno != ENOENT)) /* ENOENT: taken back meanwhile */
            break;
    }
    if (!atomic_load(&path->stopping)) {
        /* Unmounted. Whoever watches tells the library: the end of a socket means nothing to it. */
        atomic_store(&path->ended, true);
        signal_event(path);
    }
    atomic_store(&worker->running, false);
    return NULL;
}

/* Carries the library's replies to the kernel. */
static void *run_relay(void *argument)
{
    struct worker *worker = argument;
    struct fffs_fastpath *path = worker->owner;
    uint8_t *reply = worker->reply;

    await_others(path);
    while (!atomic_load(&path->stopping)) {
        ssize_t got = recv(path->view.config.library_fd, reply, LIBRARY_ROOM, 0);
        struct fuse_out_header header;

        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        if (got < (ssize_t)sizeof header)
            continue;
        memcpy(&header, reply, sizeof header);
        uint64_t unique = header.unique;
        bool first = unique != 0 && atomic_compare_exchange_strong(&path->init_unique, &unique, 0);
        if (first)
            fffs_fast_edit_init(&path->view.config, atomic_load(&path->init_flags), reply, (size_t)got);
        ssize_t put = write(path->view.config.fuse_fd, reply, (size_t)got);
        if (first && put == got) {
            atomic_store(&path->connected, true);
            signal_event(path);
        }
    }
    atomic_store(&worker->running, false);
    return NULL;
}

static void wake(int signal)
{
    (void)signal;
}

/* ---------------------------------------------------------------- life */

static void free_path(struct fffs_fastpath *path)
{
    struct cold_read *read;

    for (size_t i = 0; path->lanes && i < fffs_store_files(path->view.store); i++)
        while ((read = take(&path->lanes[i].backlog)))
            free(read);
    while ((read = take(&path->ready)))
        free(read);
    for (int i = 0; path->workers && i < 1 + path->hot + path->cold_started; i++) {
        fffs_buffer_give(path->workers[i].message);
        fffs_buffer_give(path->workers[i].reply);
    }
    if (path->event_fd >= 0)
        close(path->event_fd);
    pthread_cond_destroy(&path->more_cold);
    pthread_mutex_destroy(&path->mutex);
    free(path->workers);
    free(path->lanes);
    free(path->reported);
    free(path);
}

/* Room for everything that is as long as something else. False: there is none. */
static bool make_arrays(struct fffs_fastpath *path)
{
    const fffs_fastpath_config *config = &path->view.config;
    size_t workers = (size_t)(1 + config->threads + config->cold_threads) * sizeof *path->workers;
    size_t files = fffs_store_files(path->view.store);

    path->workers = aligned_alloc(_Alignof(struct worker), workers);
    path->lanes = calloc(files, sizeof *path->lanes);
    path->reported = calloc((size_t)(fffs_store_records(path->view.store) / 8 + 1), 1);
    if (!path->workers || !path->lanes || !path->reported)
        return false;
    memset(path->workers, 0, workers);
    for (int i = 0; i < 1 + config->threads + config->cold_threads; i++)
        path->workers[i].owner = path;
    for (size_t i = 0; i < files; i++)
        path->lanes[i].backlog.last = &path->lanes[i].backlog.first;
    return true;
}

static int make_path(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                     struct fffs_fastpath **made)
{
    struct fffs_fastpath *path = fffs_allocate(sizeof *path);
    int status = -ENOMEM;

    if (!path)
        return status;
    memset(path, 0, sizeof *path);
    path->view = (fffs_fast_view){*config, tree, store};
    path->cold = config->cold_threads;
    path->ready.last = &path->ready.first;
    pthread_mutex_init(&path->mutex, NULL);
    pthread_cond_init(&path->more_cold, NULL);
    path->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (path->event_fd < 0)
        status = -errno;
    if (path->event_fd < 0 || !make_arrays(path)) {
        free_path(path);
        return status;
    }
    *made = path;
    return 0;
}

int fffs_fastpath_start(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                        fffs_fastpath **fastpath)
{
    struct sigaction action = {.sa_handler = wake}; /* without SA_RESTART: a read returns EINTR */
    struct fffs_fastpath *path = NULL;
    int status;

    if (config->threads < 1 || config->cold_threads < 1 || fffs_store_files(store) < 1)
        return -EINVAL;
    status = make_path(config, tree, store, &path);
    if (status)
        return status;
    sigaction(WAKE_SIGNAL, &action, NULL);
    pthread_mutex_lock(&path->mutex);
    status = start_worker(&path->workers[0], run_relay, 0, LIBRARY_ROOM);
    if (status) {
        pthread_mutex_unlock(&path->mutex);
        free_path(path);
        return status;
    }
    while (path->hot < config->threads &&
           !(status = start_worker(&path->workers[1 + path->hot], run_hot, MESSAGE_ROOM, HOT_REPLY_BUFFER)))
        path->hot++;
    atomic_store(&path->stopping, path->hot == 0);
    pthread_mutex_unlock(&path->mutex);
    if (path->hot == 0) {
        fffs_fastpath_stop(path, 60.0);
        return status;
    }
    *fastpath = path;
    return 0;
}

/* Wakes whoever still runs, once: a thread may be between its look at stopping and its read, so this is repeated. */
static bool wake_all(struct fffs_fastpath *path)
{
    bool any = false;

    pthread_mutex_lock(&path->mutex);
    pthread_cond_broadcast(&path->more_cold);
    int count = 1 + path->hot + path->cold_started;
    pthread_mutex_unlock(&path->mutex);
    for (int i = 0; i < count; i++) {
        if (atomic_load(&path->workers[i].running)) {
            pthread_kill(path->workers[i].thread, WAKE_SIGNAL);
            any = true;
        }
    }
    return any;
}

int fffs_fastpath_stop(fffs_fastpath *path, double seconds)
{
    const struct timespec moment = {0, 2000000};
    int64_t deadline = fffs_now() + (int64_t)(seconds * 1e9);

    atomic_store(&path->stopping, true);
    shutdown(path->view.config.library_fd, SHUT_RDWR);
    while (wake_all(path)) {
        if (fffs_now() > deadline)
            return -EBUSY;
        nanosleep(&moment, NULL);
    }
    for (int i = 0; i < 1 + path->hot + path->cold_started; i++)
        pthread_join(path->workers[i].thread, NULL);
    free_path(path);
    return 0;
}

int fffs_fastpath_event_fd(const fffs_fastpath *path)
{
    return path->event_fd;
}

int fffs_fastpath_connected(const fffs_fastpath *path)
{
    return atomic_load(&path->connected);
}

int fffs_fastpath_ended(const fffs_fastpath *path)
{
    return atomic_load(&path->ended);
}

void fffs_fastpath_stats(fffs_fastpath *path, fffs_fastpath_stats_t *stats)
{
    memset(stats, 0, sizeof *stats);
    pthread_mutex_lock(&path->mutex);
    stats->threads = path->hot;
    stats->cold_threads = path->cold_started;
    stats->waiting = (uint64_t)path->cold_waiting;
    pthread_mutex_unlock(&path->mutex);
    for (int i = 0; i < 1 + path->hot + stats->cold_threads; i++) {
        const struct counters *from = &path->workers[i].counters;

        for (int k = 0; k < FFFS_FAST_KINDS; k++)
            stats->requests[k] += atomic_load_explicit(&from->requests[k], memory_order_relaxed);
        for (int b = 0; b < FFFS_FAST_BUCKETS; b++)
            stats->read_latency[b] += atomic_load_explicit(&from->read_latency[b], memory_order_relaxed);
        stats->read_bytes += atomic_load_explicit(&from->read_bytes, memory_order_relaxed);
        stats->read_errors += atomic_load_explicit(&from->read_errors, memory_order_relaxed);
        stats->cold_reads += atomic_load_explicit(&from->cold_reads, memory_order_relaxed);
    }
}
