/* Starts and ends a fast path, and reports its state. fastpath_workers.c has its threads. */
#include "fastpath.h"
#include "fault.h"
#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Frees a fast path that has no threads, or whose threads have ended. */
static void free_path(struct fffs_fastpath *path)
{
    for (int i = 0, count = path->workers ? fffs_workers_count(path) : 0; i < count; i++) {
        fffs_buffer_give(path->workers[i].message);
        fffs_buffer_give(path->workers[i].reply);
    }
    fffs_cold_close(&path->cold);
    fffs_events_close(&path->events);
    pthread_mutex_destroy(&path->starting);
    free(path->workers);
    free(path);
}

/* Allocates the workers of all threads that there may be. Returns false if there is no memory. */
static bool make_workers(struct fffs_fastpath *path)
{
    size_t count = (size_t)(1 + path->view.config.threads + path->view.config.cold_threads);

    path->workers = aligned_alloc(_Alignof(struct fffs_worker), count * sizeof *path->workers);
    if (!path->workers)
        return false;
    memset(path->workers, 0, count * sizeof *path->workers);
    for (size_t i = 0; i < count; i++)
        path->workers[i].path = path;
    return true;
}

static int make_path(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                     struct fffs_fastpath **made)
{
    struct fffs_fastpath *path = fffs_allocate(sizeof *path);

    if (!path)
        return -ENOMEM;
    memset(path, 0, sizeof *path);
    path->view = (struct fffs_fast_view){*config, tree, store};
    path->kernel = (struct fffs_kernel){config->fuse_fd};
    pthread_mutex_init(&path->starting, NULL);
    int unwatched = fffs_events_open(&path->events, fffs_store_records(store));
    int status =
        fffs_cold_open(&path->cold, fffs_store_files(store) + 1, config->cold_threads, fffs_workers_start_cold, path);
    status = unwatched ? unwatched : status;
    if (!status && !make_workers(path))
        status = -ENOMEM;
    if (status)
        free_path(path);
    else
        *made = path;
    return status;
}

int fffs_fastpath_start(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                        fffs_fastpath **fastpath)
{
    struct fffs_fastpath *path = NULL;

    if (config->threads < 1 || config->cold_threads < 1 || fffs_store_files(store) < 1)
        return -EINVAL;
    int status = make_path(config, tree, store, &path);
    if (status)
        return status;
    status = fffs_workers_start(path);
    if (status)
        fffs_fastpath_stop(path, 60.0);
    else
        *fastpath = path;
    return status;
}

int fffs_fastpath_stop(fffs_fastpath *path, double seconds)
{
    if (!fffs_workers_end(path, seconds))
        return -EBUSY;
    free_path(path);
    return 0;
}

int fffs_fastpath_event_fd(const fffs_fastpath *path)
{
    return path->events.fd;
}

int fffs_fastpath_next_bad(fffs_fastpath *path, uint64_t *record, int32_t *status)
{
    return fffs_events_next_bad(&path->events, record, status);
}

int fffs_fastpath_connected(const fffs_fastpath *path)
{
    return atomic_load(&path->events.connected);
}

int fffs_fastpath_ended(const fffs_fastpath *path)
{
    return atomic_load(&path->events.ended);
}

void fffs_fastpath_stats(fffs_fastpath *path, fffs_fastpath_stats_t *stats)
{
    int waiting;

    memset(stats, 0, sizeof *stats);
    fffs_cold_usage(&path->cold, &stats->cold_threads, &waiting);
    stats->threads = path->hot;
    stats->waiting = (uint64_t)waiting;
    stats->untold = fffs_events_untold(&path->events);
    for (int i = 0; i < 1 + path->hot + stats->cold_threads; i++)
        fffs_counters_add(&path->workers[i].counters, stats);
}
