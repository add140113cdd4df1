/* The fast path's threads, between the kernel and the FUSE library. They answer what they can and forward the rest.
 *
 *     kernel ──► hot threads ──┬─► answered from memory and page cache ──► kernel
 *                              ├─► queue ──► cold threads, which may wait for the disk ──► kernel
 *                              └─► library_fd ──► the library ──► library_fd ──► relay thread ──► kernel */
#include "fastpath.h"
#include "clock.h"
#include "fault.h"
#include "store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

/* A hot thread has its replies in a huge page, which the kernel need not look up page by page. */
enum { HOT_REPLY_BUFFER = 2 * 1024 * 1024 };
_Static_assert((int)HOT_REPLY_BUFFER >= (int)FFFS_REPLY_BUFFER, "a huge page holds the largest reply");

/* The largest reply of the library: the bytes of a file that it decodes. */
enum { LIBRARY_ROOM = 1100 * 1024 };

/* A signal without another use interrupts a thread's read of the kernel's messages. */
#define WAKE_SIGNAL (SIGRTMIN + 3)

/* ---------------------------------------------------------------- answering */

static void send_reply(struct fffs_worker *worker, const uint8_t *reply, const struct fffs_fast_answer *answer,
                       int64_t began)
{
    struct fffs_fastpath *path = worker->path;

    fffs_count_answer(&worker->counters, answer, began);
    if (answer->length > 0)
        (void)fffs_kernel_write(&path->kernel, reply, (size_t)answer->length);
    if (answer->status)
        fffs_events_bad(&path->events, answer->record, answer->status);
}

/* Forwards a message to the library. It must not be lost, because its sender waits for a reply. A READ has no file
 * handle, because nothing was opened; it gets the inode, which is the library's handle of an open file. */
static void forward(struct fffs_worker *worker, uint8_t *message, size_t length)
{
    struct fffs_fastpath *path = worker->path;
    struct fuse_in_header header;

    fffs_count(&worker->counters.requests[FFFS_FAST_FORWARDED], 1);
    if (length < sizeof header)
        return;
    memcpy(&header, message, sizeof header);
    fffs_init_note(&path->init, message, length);
    if (header.opcode == FUSE_READ && length >= sizeof header + sizeof(struct fuse_read_in))
        memcpy(message + sizeof header + offsetof(struct fuse_read_in, fh), &header.nodeid, sizeof header.nodeid);
    while (send(path->view.config.library_fd, message, length, MSG_NOSIGNAL) < 0) {
        if (errno == EINTR && !atomic_load(&path->stopping))
            continue;
        /* The library is gone: the sender gets an error. */
        struct fuse_out_header reply = {.len = sizeof reply, .error = -EIO, .unique = header.unique};

        (void)fffs_kernel_write(&path->kernel, &reply, sizeof reply);
        return;
    }
}

/* Returns the number of the lane in which reads of objects wait for the disk of the caches: the last one. */
static size_t cache_lane(const struct fffs_fastpath *path)
{
    return fffs_store_files(path->view.store);
}

/* Queues a read that must wait. Reads of objects begin in the lane of the caches, so that those that the caches have wait for no
 * store. Returns as fffs_cold_put. */
static int put_cold(struct fffs_fastpath *path, const uint8_t *message, size_t length, uint64_t record, bool cached,
                    int64_t began)
{
    size_t file = (size_t)fffs_store_file_of(path->view.store, record); /* the record exists */
    size_t lane = path->view.config.lanes ? path->view.config.lanes[file] : 0;

    if (cached && fffs_store_is_remote(path->view.store, file))
        lane = cache_lane(path);
    return fffs_cold_put(&path->cold, lane, message, length, began);
}

static void answer_cold(struct fffs_worker *worker, struct fffs_cold_read *read, uint8_t *reply)
{
    struct fffs_fastpath *path = worker->path;
    int how = read->lane == &path->cold.lanes[cache_lane(path)] ? FFFS_READ_LOCAL : 0;
    struct fffs_fast_answer answer = fffs_fast_answer_request(&path->view, read->message, read->length, reply, how);

    if (answer.length == -EAGAIN &&
        put_cold(path, read->message, read->length, answer.record, false, read->began) == -ENOMEM)
        answer = fffs_fast_answer_request(&path->view, read->message, read->length, reply, 0);
    if (answer.length != -EAGAIN) {
        fffs_count(&worker->counters.cold_reads, 1);
        send_reply(worker, reply, &answer, read->began);
    }
    fffs_cold_done(&path->cold, read);
}

/* Answers, queues or forwards a message. */
static void handle(struct fffs_worker *worker, uint8_t *message, size_t length, uint8_t *reply)
{
    struct fffs_fastpath *path = worker->path;
    int64_t began = fffs_now();
    struct fffs_fast_answer answer = fffs_fast_answer_request(&path->view, message, length, reply, FFFS_READ_NOWAIT);

    if (answer.length == -EREMOTE) {
        forward(worker, message, length);
        return;
    }
    if (answer.length != -EAGAIN) {
        send_reply(worker, reply, &answer, began);
        return;
    }
    int status = put_cold(path, message, length, answer.record, true, began);
    struct fffs_cold_read *read;
    if (status == -ENOMEM) {
        answer = fffs_fast_answer_request(&path->view, message, length, reply, 0);
        send_reply(worker, reply, &answer, began);
    }
    /* Without cold threads: all that are ready, because each answer may move one of the backlog there. */
    while (status == -EAGAIN && (read = fffs_cold_next(&path->cold, false)))
        answer_cold(worker, read, reply);
}

/* ---------------------------------------------------------------- the threads */

/* Waits until all threads are started: a message that was read could not be given back if starting failed. */
static void await_others(struct fffs_fastpath *path)
{
    pthread_mutex_lock(&path->starting);
    pthread_mutex_unlock(&path->starting);
}

static void *run_hot(void *argument)
{
    struct fffs_worker *worker = argument;
    struct fffs_fastpath *path = worker->path;

    await_others(path);
    while (!atomic_load(&path->stopping)) {
        int64_t got = fffs_kernel_read(&path->kernel, worker->message);

        if (got < 0)
            break;
        if (got > 0)
            handle(worker, worker->message, (size_t)got, worker->reply + FFFS_REPLY_START);
    }
    if (!atomic_load(&path->stopping)) /* unmounted: the owner tells the library, whose socket does not end */
        fffs_events_ended(&path->events);
    atomic_store(&worker->running, false);
    return NULL;
}

static void *run_cold(void *argument)
{
    struct fffs_worker *worker = argument;
    struct fffs_cold *cold = &worker->path->cold;

    for (;;) {
        struct fffs_cold_read *read = fffs_cold_next(cold, false);

        if (!read) {
            /* Most of these threads are idle most of the time, and should not keep a megabyte for that. */
            (void)madvise(worker->reply, FFFS_REPLY_BUFFER, MADV_DONTNEED);
            read = fffs_cold_next(cold, true);
        }
        if (!read)
            break;
        answer_cold(worker, read, worker->reply + FFFS_REPLY_START);
    }
    atomic_store(&worker->running, false);
    return NULL;
}

/* Passes the library's replies on to the kernel. */
static void *run_relay(void *argument)
{
    struct fffs_worker *worker = argument;
    struct fffs_fastpath *path = worker->path;

    await_others(path);
    while (!atomic_load(&path->stopping)) {
        ssize_t got = recv(path->view.config.library_fd, worker->reply, LIBRARY_ROOM, 0);

        if (got < 0 && (errno == ENOMEM || errno == ENOBUFS))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the kernel is short of memory for now */
        else if (got == 0 || (got < 0 && errno != EINTR))
            break;
        if (got < (ssize_t)sizeof(struct fuse_out_header))
            continue;
        bool first = fffs_init_answer(&path->init, &path->view.config, worker->reply, (size_t)got);
        if (fffs_kernel_write(&path->kernel, worker->reply, (size_t)got) && first)
            fffs_events_connected(&path->events);
    }
    atomic_store(&worker->running, false);
    return NULL;
}

/* ---------------------------------------------------------------- beginning and end */

/* Starts a thread for a worker, with all signals blocked but WAKE_SIGNAL: signals of the process are for its own
 * threads. Returns 0 or -errno. */
static int start(struct fffs_worker *worker, void *(*run)(void *), size_t message_room, size_t reply_room)
{
    int status = -ENOMEM;

    worker->message = message_room ? fffs_buffer_take(message_room) : NULL;
    worker->reply = fffs_buffer_take(reply_room);
    if (worker->reply && (worker->message || !message_room)) {
        sigset_t most, before;
        int32_t fault;

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

bool fffs_workers_start_cold(void *owner, int number)
{
    struct fffs_fastpath *path = owner;

    return start(&path->workers[1 + path->hot + number], run_cold, 0, FFFS_REPLY_BUFFER) == 0;
}

static void wake(int signal)
{
    (void)signal;
}

int fffs_workers_start(struct fffs_fastpath *path)
{
    struct sigaction action = {.sa_handler = wake}; /* without SA_RESTART: a read returns EINTR */

    sigaction(WAKE_SIGNAL, &action, NULL);
    pthread_mutex_lock(&path->starting);
    int status = start(&path->workers[0], run_relay, 0, LIBRARY_ROOM);
    path->relays = !status;
    while (!status && path->hot < path->view.config.threads) {
        status = start(&path->workers[1 + path->hot], run_hot, FFFS_MESSAGE_ROOM, HOT_REPLY_BUFFER);
        path->hot += !status;
    }
    atomic_store(&path->stopping, path->hot == 0);
    pthread_mutex_unlock(&path->starting);
    return path->hot ? 0 : status;
}

int fffs_workers_count(struct fffs_fastpath *path)
{
    int cold, waiting;

    fffs_cold_usage(&path->cold, &cold, &waiting);
    return path->relays + path->hot + cold;
}

/* Interrupts all running threads. Returns false if there are none. Must be repeated: a thread may be between its look
 * at stopping and its read. */
static bool wake_all(struct fffs_fastpath *path)
{
    bool any = false;

    for (int i = 0, count = fffs_workers_count(path); i < count; i++) {
        if (atomic_load(&path->workers[i].running)) {
            pthread_kill(path->workers[i].thread, WAKE_SIGNAL);
            any = true;
        }
    }
    return any;
}

bool fffs_workers_end(struct fffs_fastpath *path, double seconds)
{
    const struct timespec moment = {0, 2000000};
    int64_t deadline = fffs_now() + (int64_t)(seconds * 1e9);

    atomic_store(&path->stopping, true);
    shutdown(path->view.config.library_fd, SHUT_RDWR);
    fffs_cold_end(&path->cold);
    while (wake_all(path)) {
        if (fffs_now() > deadline)
            return false;
        nanosleep(&moment, NULL);
    }
    for (int i = 0, count = fffs_workers_count(path); i < count; i++)
        pthread_join(path->workers[i].thread, NULL);
    return true;
}
