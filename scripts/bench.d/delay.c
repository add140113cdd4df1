/* A TCP proxy on the loopback address whose answers come late: delay PORT_OF_SERVER MILLISECONDS BYTES_PER_SECOND. Prints its
 * own port.
 *
 * Bytes to the server are passed on at once, those from it after the delay. All connections share the rate, 0 for none. Ends with
 * its standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 256 * 1024, EVENTS = 256 };

/* Bytes on their way to a socket. */
struct packet {
    int64_t due;
    size_t length, sent;
    struct packet *next;
    char data[];
};

struct end {
    int fd;
    struct end *other;
    struct packet *first, **last; /* to be written to this end */
    int late, closed, waits;      /* waits: until it can be written to */
    struct end *next;             /* of all those whose packets are late */
};

static int epoll;
static int64_t delay, rate, free_at; /* free_at: when the bytes that were received before have passed */
static struct end *all;

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void watch(struct end *end, int operation)
{
    struct epoll_event event = {.events = EPOLLIN | (end->waits ? EPOLLOUT : 0), .data.ptr = end};

    epoll_ctl(epoll, operation, end->fd, &event);
}

static struct end *make_end(int fd, int late)
{
    struct end *end = calloc(1, sizeof *end);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *end = (struct end){.fd = fd, .late = late, .next = all};
    end->last = &end->first;
    all = end;
    return end;
}

static void close_both(struct end *end)
{
    for (int i = 0; i < 2; i++, end = end->other) {
        if (!end->closed)
            close(end->fd);
        end->closed = 1;
    }
}

/* Writes what is due. */
static void flush(struct end *end)
{
    while (end->first && !end->closed && end->first->due <= now()) {
        struct packet *packet = end->first;
        ssize_t count =
            send(end->fd, packet->data + packet->sent, packet->length - packet->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        int waits = count < 0;

        if (count > 0)
            packet->sent += (size_t)count;
        if (packet->sent == packet->length) {
            end->first = packet->next;
            if (!end->first)
                end->last = &end->first;
            free(packet);
        }
        if (waits != end->waits) {
            end->waits = waits;
            watch(end, EPOLL_CTL_MOD);
        }
        if (waits)
            return;
    }
}

/* Returns when bytes that come from the server now have passed. */
static int64_t pass(size_t length)
{
    int64_t moment = now();

    if (rate) {
        free_at = (free_at > moment ? free_at : moment) + (int64_t)length * 1000000000 / rate;
        moment = free_at;
    }
    return moment + delay;
}

static void receive(struct end *end)
{
    struct packet *packet = malloc(sizeof *packet + PIECE);
    ssize_t count = recv(end->fd, packet->data, PIECE, MSG_DONTWAIT);

    if (count <= 0) {
        free(packet);
        if (count == 0)
            close_both(end);
        return;
    }
    packet = realloc(packet, sizeof *packet + (size_t)count);
    packet->length = (size_t)count;
    packet->sent = 0;
    packet->next = NULL;
    packet->due = end->other->late ? pass(packet->length) : now();
    *end->other->last = packet;
    end->other->last = &packet->next;
    flush(end->other);
}

static void accept_one(int listener, uint16_t port)
{
    struct sockaddr_in server = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = accept(listener, NULL, NULL), other = socket(AF_INET, SOCK_STREAM, 0);

    if (client < 0 || connect(other, (struct sockaddr *)&server, sizeof server)) {
        close(client);
        close(other);
        return;
    }
    struct end *one = make_end(client, 1), *two = make_end(other, 0);
    one->other = two;
    two->other = one;
    watch(one, EPOLL_CTL_ADD);
    watch(two, EPOLL_CTL_ADD);
}

/* Writes all that is due, and returns the milliseconds until the next is. */
static int flush_all(void)
{
    int64_t next = INT64_MAX;

    for (struct end *end = all; end; end = end->next) {
        if (end->closed)
            continue;
        if (!end->waits)
            flush(end);
        if (end->first && !end->waits && end->first->due < next)
            next = end->first->due;
    }
    int64_t left = next - now();
    return next == INT64_MAX ? -1 : left <= 0 ? 0 : (int)(left / 1000000) + 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN};
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    if (argc != 4)
        return 2;
    delay = atoll(argv[2]) * 1000000;
    rate = atoll(argv[3]);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024))
        return 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    struct end input = {.fd = 0};
    event.data.ptr = &input;
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, flush_all());

        for (int i = 0; i < count; i++) {
            struct end *end = events[i].data.ptr;

            if (!end)
                accept_one(listener, (uint16_t)atoi(argv[1]));
            else if (end == &input)
                return 0;
            else if (!end->closed && events[i].events & EPOLLOUT)
                flush(end);
            if (end && end != &input && !end->closed && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(end);
        }
    }
}
