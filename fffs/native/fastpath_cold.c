/* Reads that must wait for a disk: a queue of those that are ready, and a backlog of each lane at its limit. */
#include "fastpath_cold.h"
#include "fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void put(struct fffs_cold_queue *queue, struct fffs_cold_read *read)
{
    read->next = NULL;
    *queue->last = read;
    queue->last = &read->next;
}

static struct fffs_cold_read *take(struct fffs_cold_queue *queue)
{
    struct fffs_cold_read *read = queue->first;

    if (read) {
        queue->first = read->next;
        if (!queue->first)
            queue->last = &queue->first;
    }
    return read;
}

static void free_all(struct fffs_cold_queue *queue)
{
    struct fffs_cold_read *read;

    while ((read = take(queue)))
        free(read);
}

int fffs_cold_open(struct fffs_cold *cold, size_t count, int limit, bool (*start)(void *owner, int number),
                   void *owner)
{
    *cold = (struct fffs_cold){.count = count, .limit = limit, .start = start, .owner = owner};
    cold->ready.last = &cold->ready.first;
    pthread_mutex_init(&cold->mutex, NULL);
    pthread_cond_init(&cold->more, NULL);
    cold->lanes = calloc(count, sizeof *cold->lanes);
    if (!cold->lanes)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        cold->lanes[i].backlog.last = &cold->lanes[i].backlog.first;
    return 0;
}

void fffs_cold_close(struct fffs_cold *cold)
{
    for (size_t i = 0; cold->lanes && i < cold->count; i++)
        free_all(&cold->lanes[i].backlog);
    free_all(&cold->ready);
    pthread_cond_destroy(&cold->more);
    pthread_mutex_destroy(&cold->mutex);
    free(cold->lanes);
}

int fffs_cold_put(struct fffs_cold *cold, size_t number, const uint8_t *message, size_t length, int64_t began)
{
    struct fffs_cold_lane *lane = &cold->lanes[number];
    struct fffs_cold_read *read = fffs_allocate(sizeof *read);

    if (!read || length > sizeof read->message) {
        free(read);
        return -ENOMEM;
    }
    *read = (struct fffs_cold_read){.began = began, .length = length, .lane = lane};
    memcpy(read->message, message, length);
    pthread_mutex_lock(&cold->mutex);
    cold->waiting++;
    if (lane->busy < FFFS_FAST_LANE) {
        lane->busy++;
        cold->ready_count++;
        put(&cold->ready, read);
    } else {
        put(&lane->backlog, read);
    }
    if (cold->ready_count > cold->idle && cold->started < cold->limit && cold->start(cold->owner, cold->started))
        cold->started++;
    int started = cold->started;
    pthread_cond_signal(&cold->more);
    pthread_mutex_unlock(&cold->mutex);
    return started ? 0 : -EAGAIN;
}

struct fffs_cold_read *fffs_cold_next(struct fffs_cold *cold, bool wait)
{
    pthread_mutex_lock(&cold->mutex);
    while (wait && !cold->ready.first && !cold->ending) {
        cold->idle++;
        pthread_cond_wait(&cold->more, &cold->mutex);
        cold->idle--;
    }
    struct fffs_cold_read *read = take(&cold->ready);
    if (read) {
        cold->ready_count--;
        cold->waiting--;
    }
    pthread_mutex_unlock(&cold->mutex);
    return read;
}

void fffs_cold_done(struct fffs_cold *cold, struct fffs_cold_read *read)
{
    pthread_mutex_lock(&cold->mutex);
    struct fffs_cold_read *next = take(&read->lane->backlog);
    if (next) {
        cold->ready_count++;
        put(&cold->ready, next);
        pthread_cond_signal(&cold->more);
    } else {
        read->lane->busy--;
    }
    pthread_mutex_unlock(&cold->mutex);
    free(read);
}

void fffs_cold_end(struct fffs_cold *cold)
{
    pthread_mutex_lock(&cold->mutex);
    cold->ending = true;
    pthread_cond_broadcast(&cold->more);
    pthread_mutex_unlock(&cold->mutex);
}

void fffs_cold_usage(struct fffs_cold *cold, int *started, int *waiting)
{
    pthread_mutex_lock(&cold->mutex);
    *started = cold->started;
    *waiting = cold->waiting;
    pthread_mutex_unlock(&cold->mutex);
}
