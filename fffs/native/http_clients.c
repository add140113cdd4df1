/* A pool of clients. A new connection costs some round trips and, with TLS, half a millisecond of processor time, so clients keep
 * theirs. In a forked child both processes would talk over one connection: the child closes its copies of the sockets, without a
 * word to the server, and begins with no client. */
#include "http_clients.h"
#include "clock.h"
#include "fault.h"
#include "fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Idle clients that are kept. Each has the connections of the largest batch that it read. */
enum { IDLE_CLIENTS = 4 };

/* Connections that each client may have, although all of them have too many. */
enum { CLAIMED_LEAST = 4 };

/* Seconds that a kept connection may be idle: as libcurl has it. */
enum { IDLE_MOST = 118 };

/* Bytes that libcurl receives at a time. */
enum { RECEIVE_SIZE = 256 * 1024 };

/* Redirections that are followed. */
enum { REDIRECTS = 5 };

/* Held for reading by threads that are inside libcurl, and by a thread that forks for writing: libcurl and OpenSSL have locks of
 * their own, which would stay locked in the child. A thread that forks goes first, or many readers would keep it waiting. */
static pthread_rwlock_t inside = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fffs_http_client *all, *idle; /* under the lock */
static int idle_count;
static int claimed;            /* by all; less than 0 in a child of fork that gives back what its parent took */
static unsigned generation;    /* of the settings that clients are made with */
static _Atomic int64_t silent; /* when a connection was silent last, on fffs_now's clock; 0: never */

/* ---------------------------------------------------------------- sockets */

int fffs_http_open_socket(struct fffs_http_client *client, const struct fffs_curl_address *address)
{
    int fd = socket(address->family, address->type | SOCK_CLOEXEC, address->protocol), place = 0;

    if (fd < 0)
        return -1;
    while (place < client->socket_room && client->sockets[place] >= 0)
        place++;
    if (place == client->socket_room) {
        int *more = realloc(client->sockets, (size_t)(place + 64) * sizeof *more);

        if (!more) {
            close(fd);
            return -1;
        }
        for (int i = 0; i < 64; i++)
            more[place + i] = -1;
        client->sockets = more;
        client->socket_room = place + 64;
    }
    client->sockets[place] = fd;
    return fd;
}

static int close_socket(void *data, int fd)
{
    struct fffs_http_client *client = data;

    for (int i = 0; i < client->socket_room; i++)
        if (client->sockets[i] == fd)
            client->sockets[i] = -1;
    return close(fd);
}

/* ---------------------------------------------------------------- transfers */

void *fffs_http_take_transfer(struct fffs_http_client *client)
{
    const struct fffs_curl *curl = client->curl;

    if (client->idle_count)
        return client->idle[--client->idle_count];
    void *transfer = client->transfers < FFFS_HTTP_CONNECTIONS ? curl->easy_init() : NULL;
    if (!transfer)
        return NULL;
    client->transfers++;
    curl->easy_setopt(transfer, CURL_NO_SIGNAL, 1L);
    curl->easy_setopt(transfer, CURL_PATH_AS_IS, 1L);
    curl->easy_setopt(transfer, CURL_HTTP_VERSION, (long)CURL_HTTP_1_1);
    curl->easy_setopt(transfer, CURL_BUFFER_SIZE, (long)RECEIVE_SIZE);
    curl->easy_setopt(transfer, CURL_KEEP_ALIVE, 1L);
    /* The end of a transfer does not wait for its thread that looks up a name (unknown before 7.87). */
    curl->easy_setopt(transfer, CURL_QUICK_EXIT, 1L);
    curl->easy_setopt(transfer, CURL_MAX_REDIRECTS, (long)REDIRECTS);
    curl->easy_setopt(transfer, CURL_USER_AGENT, "fffs");
    curl->easy_setopt(transfer, CURL_CLOSE_SOCKET_FUNCTION, close_socket);
    curl->easy_setopt(transfer, CURL_CLOSE_SOCKET_DATA, client);
    return transfer;
}

void fffs_http_give_transfer(struct fffs_http_client *client, void *transfer)
{
    client->idle[client->idle_count++] = transfer;
}

/* ---------------------------------------------------------------- clients */

/* Under the lock. */
static void free_client(struct fffs_http_client *client)
{
    claimed -= client->claimed;
    while (client->idle_count)
        client->curl->easy_cleanup(client->idle[--client->idle_count]);
    /* Closes the kept connections, through close_socket. */
    if (client->group)
        client->curl->multi_cleanup(client->group);
    free(client->sockets);
    free(client->idle);
    free(client);
}

static int make_client(struct fffs_http_client **made)
{
    const struct fffs_curl *curl = fffs_curl_load();
    struct fffs_http_client *client = curl ? fffs_allocate_zeroed(1, sizeof *client) : NULL;

    if (!client)
        return curl ? -ENOMEM : -ELIBACC;
    client->curl = curl;
    client->group = curl->multi_init();
    client->idle = fffs_allocate_zeroed(FFFS_HTTP_CONNECTIONS, sizeof *client->idle);
    if (!client->group || !client->idle) {
        free_client(client);
        return -ENOMEM;
    }
    curl->multi_setopt(client->group, CURL_GROUP_PIPELINING, 0L);
    curl->multi_setopt(client->group, CURL_GROUP_KEPT, (long)FFFS_HTTP_CONNECTIONS);
    *made = client;
    return 0;
}

void fffs_http_note_silence(void)
{
    atomic_store(&silent, fffs_now());
}

long fffs_http_idle_most(void)
{
    int64_t when = atomic_load(&silent), age = (fffs_now() - when) / FFFS_SECOND;

    if (!when || age > IDLE_MOST)
        return IDLE_MOST;
    return age ? (long)age : 1; /* 0 could mean that there is no limit */
}

void fffs_http_renew(void)
{
    pthread_mutex_lock(&lock);
    generation++;
    pthread_mutex_unlock(&lock);
}

/* Removes a client from the list of all. Under the lock. */
static void unlist(struct fffs_http_client *client)
{
    *(client->previous ? &client->previous->next : &all) = client->next;
    if (client->next)
        client->next->previous = client->previous;
}

/* Takes the first idle client, or NULL. Under the lock. */
static struct fffs_http_client *take_idle(void)
{
    struct fffs_http_client *client = idle;

    if (client) {
        idle = client->next_idle;
        idle_count--;
    }
    return client;
}

int fffs_http_take(struct fffs_http_client **client)
{
    int status = 0;

    pthread_mutex_lock(&lock);
    while ((*client = take_idle()) && (*client)->generation != generation) {
        unlist(*client);
        free_client(*client);
    }
    if (!*client) {
        /* Under the lock, so that at a fork there is either no client or a listed one. */
        status = make_client(client);
        if (!status) {
            (*client)->generation = generation;
            (*client)->previous = NULL;
            (*client)->next = all;
            if (all)
                all->previous = *client;
            all = *client;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

bool fffs_http_may_begin(struct fffs_http_client *client, int active)
{
    struct rlimit descriptors;

    if (active < client->claimed)
        return true;
    if (getrlimit(RLIMIT_NOFILE, &descriptors))
        return true;
    pthread_mutex_lock(&lock);
    bool may = client->claimed < CLAIMED_LEAST || claimed < 0 || (rlim_t)claimed < descriptors.rlim_cur / 4 * 3;
    client->claimed += may;
    claimed += may;
    pthread_mutex_unlock(&lock);
    return may;
}

void fffs_http_give(struct fffs_http_client *client)
{
    pthread_mutex_lock(&lock);
    bool kept = idle_count < IDLE_CLIENTS && client->generation == generation;
    if (kept) {
        client->next_idle = idle;
        idle = client;
        idle_count++;
    } else {
        unlist(client);
    }
    /* Under the lock, so that at a fork its sockets are closed, or it is listed. */
    if (!kept)
        free_client(client);
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- fork */

/* OpenSSL frees what it has for a thread when that ends, under a lock of its own, so that a child which is forked at that moment
 * hangs in it. So it is freed before that, inside. Earlier would not do: a thread that uses OpenSSL also without libcurl would take
 * the same lock to get it again. */
static void end_thread(void *unused)
{
    (void)unused;
    if (syscall(SYS_gettid) == getpid())
        return; /* the process ends; in a child of fork, too, which may have one of those locks */
    fffs_http_enter();
    fffs_curl_end_thread();
    fffs_http_leave();
}

/* Of the C library, which calls these functions of a thread before the destructors of pthread_key_create, as OpenSSL's. musl has not
 * got it. */
extern int __cxa_thread_atexit_impl(void (*function)(void *), void *argument, void *library) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

void fffs_http_enter(void)
{
    static _Thread_local bool was_here;

    if (!was_here && __cxa_thread_atexit_impl) /* not inside: it takes a lock of the loader */
        (void)__cxa_thread_atexit_impl(end_thread, NULL, &__dso_handle);
    was_here = true;
    pthread_rwlock_rdlock(&inside);
}

void fffs_http_leave(void)
{
    pthread_rwlock_unlock(&inside);
}

void fffs_http_before_fork(void)
{
    pthread_rwlock_wrlock(&inside);
    pthread_mutex_lock(&lock);
}

/* In the child, libcurl's own memory is given up: to free it would send farewells over the parent's connections. */
void fffs_http_after_fork(bool child)
{
    while (child && all) {
        struct fffs_http_client *client = all;

        for (int i = 0; i < client->socket_room; i++)
            if (client->sockets[i] >= 0)
                close(client->sockets[i]);
        all = client->next;
    }
    if (child) {
        idle = NULL;
        idle_count = claimed = 0;
    }
    pthread_mutex_unlock(&lock);
    if (child) /* it counts threads of the parent that wait for it */
        inside = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    else
        pthread_rwlock_unlock(&inside);
}
