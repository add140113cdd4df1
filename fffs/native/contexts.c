/* I/O contexts: a pool for each asynchronous backend, which of these is selected, and what fork does to them. */
#include "contexts.h"
#include "aio.h"
#include "fork.h"
#include "threads.h"
#include "uring.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Idle contexts kept: as many batches as may usefully run at a time. */
enum { IDLE_CONTEXTS = 16 };

/* ---------------------------------------------------------------- pools */

typedef struct {
    const fffs_backend *backend;
    fffs_context *all, *idle;
    int idle_count;
} context_pool;

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static context_pool pools[] = {{&fffs_uring, NULL, NULL, 0}, {&fffs_aio, NULL, NULL, 0}}; /* under pools_lock */
enum { POOLS = sizeof pools / sizeof *pools };

/* The pool of the selected backend; NULL: pread. */
static context_pool *_Atomic selected = NULL;

/* Under pools_lock. */
static void unlink_context(context_pool *pool, fffs_context *context)
{
    *(context->previous != NULL ? &context->previous->next : &pool->all) = context->next;
    if (context->next != NULL)
        context->next->previous = context->previous;
}

/* The caller owns the context until it is returned. 0 or -errno. */
static int take_context(context_pool *pool, fffs_context **context)
{
    int failed = 0;

    pthread_mutex_lock(&pools_lock);
    *context = pool->idle;
    if (*context != NULL) {
        pool->idle = (*context)->next_idle;
        pool->idle_count--;
    } else {
        /* Under the lock, so that a fork meets either no context or a listed one. */
        failed = pool->backend->open(context);
        if (failed == 0) {
            (*context)->previous = NULL;
            (*context)->next = pool->all;
            if (pool->all != NULL)
                pool->all->previous = *context;
            pool->all = *context;
        }
    }
    pthread_mutex_unlock(&pools_lock);
    return failed;
}

static void return_context(context_pool *pool, fffs_context *context, bool usable)
{
    pthread_mutex_lock(&pools_lock);
    if (usable && pool->idle_count < IDLE_CONTEXTS) {
        context->next_idle = pool->idle;
        pool->idle = context;
        pool->idle_count++;
        context = NULL;
    } else {
        unlink_context(pool, context);
        pool->backend->close(context);
    }
    pthread_mutex_unlock(&pools_lock);
}

static void close_idle_contexts(context_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    while (pool->idle != NULL) {
        fffs_context *context = pool->idle;

        pool->idle = context->next_idle;
        unlink_context(pool, context);
        pool->backend->close(context);
    }
    pool->idle_count = 0;
    pthread_mutex_unlock(&pools_lock);
}

/* ---------------------------------------------------------------- fork */

void fffs_contexts_before_fork(void)
{
    pthread_mutex_lock(&pools_lock);
}

void fffs_contexts_after_fork(bool child)
{
    for (context_pool *pool = pools; child && pool < pools + POOLS; pool++) {
        /* Also those that are in the middle of a batch: that batch goes on in the parent only. */
        while (pool->all != NULL) {
            fffs_context *context = pool->all;

            pool->all = context->next;
            pool->backend->forget(context);
        }
        pool->idle = NULL;
        pool->idle_count = 0;
    }
    pthread_mutex_unlock(&pools_lock);
}

/* ---------------------------------------------------------------- choosing a backend */

int fffs_engine_select(const char *name)
{
    context_pool *chosen = NULL;
    fffs_context *context;

    if (strcmp(name, "pread") != 0) {
        for (context_pool *pool = pools; pool < pools + POOLS; pool++)
            if (strcmp(name, pool->backend->name) == 0)
                chosen = pool;
        if (chosen == NULL)
            return -EINVAL;
        int failed = take_context(chosen, &context);
        if (failed != 0)
            return failed;
        return_context(chosen, context, true);
    }
    atomic_store(&selected, chosen);
    for (context_pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool != chosen)
            close_idle_contexts(pool);
    return 0;
}

const char *fffs_engine_name(void)
{
    context_pool *pool = atomic_load(&selected);

    return pool != NULL ? pool->backend->name : "pread";
}

void fffs_engine_usage(int32_t *contexts, int32_t *threads)
{
    pthread_mutex_lock(&pools_lock);
    *contexts = pools[0].idle_count + pools[1].idle_count;
    pthread_mutex_unlock(&pools_lock);
    *threads = fffs_threads_alive();
}

/* ---------------------------------------------------------------- a batch */

bool fffs_backend_selected(void)
{
    return atomic_load(&selected) != NULL;
}

int fffs_backend_run(fffs_piece **pieces, size_t count)
{
    context_pool *pool = atomic_load(&selected);
    fffs_context *context;
    int failed;

    if (pool == NULL)
        return -ENOSYS;
    failed = take_context(pool, &context);
    if (failed != 0)
        return failed;
    return_context(pool, context, pool->backend->run(context, pieces, count));
    return 0;
}
