/* Objects over HTTP in C alone: threads that read, prefetch and fill caches, objects that are closed meanwhile, and fork.
 *
 * The server is part of the program: one thread for each connection, which answers ranges of one object. For sanitizers that look
 * for races. Usage: objects [ROUNDS]. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fffs.h"

#ifndef FORKS /* ThreadSanitizer does not follow a process with threads into its child */
#define FORKS 1
#endif

#define CHECK(condition) ((condition) ? (void)0 : failed(#condition, __LINE__))

enum { RECORDS = 400, SIZE = 9000, READERS = 4, BATCH = 16, CACHE_HEAD = FFFS_CACHE_HEAD };

static uint8_t content[RECORDS * SIZE];
static uint32_t checksums[RECORDS];
static char url[64];
static _Atomic bool over;

_Noreturn static void failed(const char *condition, int line)
{
    fprintf(stderr, "objects.c:%d: does not hold: %s (%s)\n", line, condition, strerror(errno));
    abort();
}

/* ---------------------------------------------------------------- the server */

static void send_all(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t count = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);

        if (count <= 0)
            return;
        done += (size_t)count;
    }
}

static void *serve(void *argument)
{
    int fd = (int)(intptr_t)argument;
    char request[4096], head[256];
    size_t length = 0;

    for (;;) {
        ssize_t count = recv(fd, request + length, sizeof request - 1 - length, 0);

        if (count <= 0)
            break;
        length += (size_t)count;
        request[length] = 0;
        if (!strstr(request, "\r\n\r\n"))
            continue;
        const char *range = strstr(request, "bytes=");
        long long first = 0, last = 0;
        CHECK(range && sscanf(range, "bytes=%lld-%lld", &first, &last) == 2);
        last = last < (long long)sizeof content ? last : (long long)sizeof content - 1;
        int size = snprintf(head, sizeof head,
                            "HTTP/1.1 206 x\r\nETag: \"x\"\r\nContent-Range: bytes %lld-%lld/%zu\r\n"
                            "Content-Length: %lld\r\n\r\n",
                            first, last, sizeof content, last - first + 1);
        send_all(fd, head, (size_t)size);
        send_all(fd, content + first, (size_t)(last - first + 1));
        length = 0;
    }
    close(fd);
    return NULL;
}

static void *listen_on(void *argument)
{
    int listener = (int)(intptr_t)argument;
    pthread_attr_t attributes;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;

        if (fd < 0)
            break;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        CHECK(!pthread_create(&thread, &attributes, serve, (void *)(intptr_t)fd));
    }
    pthread_attr_destroy(&attributes);
    return NULL;
}

static int start_server(pthread_t *thread)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(listener >= 0 && !bind(listener, (struct sockaddr *)&address, size) && !listen(listener, 512));
    CHECK(!getsockname(listener, (struct sockaddr *)&address, &size));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/object", ntohs(address.sin_port));
    CHECK(!pthread_create(thread, NULL, listen_on, (void *)(intptr_t)listener));
    return listener;
}

/* ---------------------------------------------------------------- the clients */

struct object {
    int32_t number;
    int data, map;
};

static struct object open_object(bool cached)
{
    struct object object = {.number = fffs_object_open(url), .data = -1, .map = -1};

    CHECK(object.number >= 0 && !fffs_object_expect(object.number, "\"x\"", "", sizeof content));
    if (cached) {
        object.data = memfd_create("data", MFD_CLOEXEC);
        object.map = memfd_create("map", MFD_CLOEXEC);
        CHECK(!ftruncate(object.data, sizeof content) && !ftruncate(object.map, CACHE_HEAD + sizeof content / 1024));
        CHECK(!fffs_object_use_cache(object.number, object.data, object.map, 1 << 30, 0));
    }
    return object;
}

static void close_object(struct object *object)
{
    fffs_object_close(object->number);
    if (object->data >= 0) {
        close(object->data);
        close(object->map);
    }
}

static void choose(const struct object *object, fffs_request *requests, unsigned *seed)
{
    for (int i = 0; i < BATCH; i++) {
        int record = rand_r(seed) % RECORDS;

        requests[i] = (fffs_request){.offset = (int64_t)record * SIZE,
                                     .length = SIZE,
                                     .fd = FFFS_OBJECT_FD - object->number,
                                     .check = FFFS_CHECK_CRC32,
                                     .expected = checksums[record]};
    }
}

/* Reads batches, each of which was prefetched with others, and then records in order. */
static void read_some(const struct object *object, unsigned seed, int batches)
{
    fffs_request next[BATCH], requests[BATCH];
    uint8_t *memory = malloc(BATCH * SIZE);

    CHECK(memory);
    choose(object, requests, &seed);
    for (int k = 0; k < batches; k++) {
        choose(object, next, &seed);
        fffs_remote_prefetch(next, BATCH);
        for (int i = 0; i < BATCH; i++)
            requests[i].dest = memory + i * SIZE;
        CHECK(!fffs_remote_read_batch(requests, BATCH, NULL));
        for (int i = 0; i < BATCH; i++)
            CHECK(!memcmp(requests[i].dest, content + requests[i].offset, SIZE));
        memcpy(requests, next, sizeof requests);
    }
    for (int record = 0; record < 60; record++) {
        fffs_request request = {.offset = (int64_t)record * SIZE,
                                .length = SIZE,
                                .dest = memory,
                                .fd = FFFS_OBJECT_FD - object->number,
                                .check = FFFS_CHECK_CRC32,
                                .expected = checksums[record]};

        CHECK(!fffs_remote_read_batch(&request, 1, NULL) && !memcmp(memory, content + request.offset, SIZE));
    }
    free(memory);
}

static void *read_shared(void *argument)
{
    read_some(argument, (unsigned)(uintptr_t)pthread_self(), 6);
    return NULL;
}

/* Opens, prefetches and closes objects, whose numbers are used again, and verifies the cache that others fill. */
static void *open_and_close(void *argument)
{
    const struct object *shared = argument;
    unsigned seed = 7;

    while (!atomic_load(&over)) {
        fffs_cache_checked sums = {0};
        fffs_object_totals totals;

        if (shared->map >= 0)
            CHECK(!fffs_cache_check(shared->data, shared->map, sizeof content, 0, sizeof content, &sums));
        CHECK(!sums.damaged);
        fffs_object_totals_look(&totals);
        struct object object = open_object(rand_r(&seed) % 2);
        fffs_request requests[BATCH];

        choose(&object, requests, &seed);
        fffs_remote_prefetch(requests, BATCH);
        close_object(&object);
    }
    return argument;
}

static void read_in_child(const struct object *object)
{
    pid_t child = fork();
    int status = 0;

    CHECK(child >= 0);
    if (child == 0) {
        read_some(object, 5, 2);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void one_round(bool cached, bool forks)
{
    struct object object = open_object(cached);
    pthread_t readers[READERS], other;

    atomic_store(&over, false);
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_create(&readers[i], NULL, read_shared, &object));
    CHECK(!pthread_create(&other, NULL, open_and_close, &object));
    if (forks)
        read_in_child(&object);
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_join(readers[i], NULL));
    atomic_store(&over, true);
    CHECK(!pthread_join(other, NULL));
    close_object(&object);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    pthread_t server;

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 11);
    for (int i = 0; i < RECORDS; i++)
        checksums[i] = fffs_crc32(0, content + (size_t)i * SIZE, SIZE);
    int listener = start_server(&server);
    for (int k = 0; k < rounds; k++) {
        one_round(false, FORKS && k % 2);
        one_round(true, FORKS && k % 2);
    }
    shutdown(listener, SHUT_RDWR);
    CHECK(!pthread_join(server, NULL));
    close(listener);
    return 0;
}
