/* Fetches ranges of an object with libcurl and nothing else: ranges URL CONNECTIONS BATCH [CERTIFICATES].
 *
 * Standard input has pairs of offset and length, int64 each. The ranges are fetched in batches, the first one twice: once before
 * the clock begins, for the connections. Prints the seconds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* libcurl's interface, as far as it is used, so that its headers need not be installed. */
extern int curl_global_init(long);
extern void *curl_easy_init(void), *curl_multi_init(void);
extern int curl_easy_setopt(void *, int, ...), curl_easy_getinfo(void *, int, ...), curl_multi_setopt(void *, int, ...);
extern int curl_multi_add_handle(void *, void *), curl_multi_remove_handle(void *, void *);
extern int curl_multi_perform(void *, int *), curl_multi_poll(void *, void *, unsigned, int, int *);
struct message {
    int kind;
    void *transfer;
    union {
        void *data;
        int result;
    } data;
};
extern struct message *curl_multi_info_read(void *, int *);
enum {
    WRITE_DATA = 10001,
    URL = 10002,
    RANGE = 10007,
    WRITE_FUNCTION = 20011,
    CA_FILE = 10065,
    BUFFER_SIZE = 98,
    NO_SIGNAL = 99,
    PRIVATE = 10103,
    GET_STATUS = 0x200002,
    GET_PRIVATE = 0x100015,
    KEPT = 6
};

struct transfer {
    void *handle;
    char *next;
    int64_t left;
};

struct range {
    int64_t offset, length;
};

static char *memory;
static void *group;

static size_t take(char *data, size_t unit, size_t count, void *user)
{
    struct transfer *transfer = user;
    size_t length = unit * count;

    if ((int64_t)length > transfer->left)
        return 0;
    memcpy(transfer->next, data, length);
    transfer->next += length;
    transfer->left -= (int64_t)length;
    return length;
}

static void begin(struct transfer *transfer, const struct range *range, char *dest)
{
    char text[64];

    snprintf(text, sizeof text, "%lld-%lld", (long long)range->offset, (long long)(range->offset + range->length - 1));
    curl_easy_setopt(transfer->handle, RANGE, text);
    transfer->next = dest;
    transfer->left = range->length;
    curl_multi_add_handle(group, transfer->handle);
}

static int fetch(struct transfer *transfers, int connections, const struct range *ranges, int count)
{
    char *dest = memory;
    int begun = 0, done = 0, running, left;
    struct message *message;

    for (; begun < count && begun < connections; begun++) {
        begin(&transfers[begun], &ranges[begun], dest);
        dest += ranges[begun].length;
    }
    while (done < count) {
        curl_multi_perform(group, &running);
        while ((message = curl_multi_info_read(group, &left))) {
            struct transfer *transfer = NULL;
            long status = 0;

            curl_easy_getinfo(message->transfer, GET_PRIVATE, &transfer);
            curl_easy_getinfo(message->transfer, GET_STATUS, &status);
            if (message->data.result || status != 206 || transfer->left)
                return -1;
            curl_multi_remove_handle(group, transfer->handle);
            done++;
            if (begun < count) {
                begin(transfer, &ranges[begun], dest);
                dest += ranges[begun++].length;
            }
        }
        if (done < count)
            curl_multi_poll(group, NULL, 0, 1000, &running);
    }
    return 0;
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    static struct range ranges[1 << 20];
    int64_t most = 0;

    if (argc < 4)
        return 2;
    int connections = atoi(argv[2]), batch = atoi(argv[3]);
    int count = (int)fread(ranges, sizeof *ranges, 1 << 20, stdin);
    for (int i = 0; i < count; i++)
        most = ranges[i].length > most ? ranges[i].length : most;
    memory = malloc((size_t)(most * batch));
    memset(memory, 1, (size_t)(most * batch));
    curl_global_init(3);
    group = curl_multi_init();
    curl_multi_setopt(group, KEPT, (long)connections);
    struct transfer *transfers = calloc((size_t)connections, sizeof *transfers);
    for (int i = 0; i < connections; i++) {
        void *handle = transfers[i].handle = curl_easy_init();

        curl_easy_setopt(handle, URL, argv[1]);
        curl_easy_setopt(handle, WRITE_FUNCTION, take);
        curl_easy_setopt(handle, WRITE_DATA, &transfers[i]);
        curl_easy_setopt(handle, PRIVATE, &transfers[i]);
        curl_easy_setopt(handle, BUFFER_SIZE, 256L * 1024);
        curl_easy_setopt(handle, NO_SIGNAL, 1L);
        if (argc > 4)
            curl_easy_setopt(handle, CA_FILE, argv[4]);
    }
    if (fetch(transfers, connections, ranges, batch))
        return 1;
    double start = now();
    for (int i = 0; i + batch <= count; i += batch)
        if (fetch(transfers, connections, ranges + i, batch))
            return 1;
    printf("%.6f\n", now() - start);
    return 0;
}
