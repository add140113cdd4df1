/* I/O contexts: a pool for each asynchronous backend, the selected backend, and the handling of fork. */
#include "contexts.h"
#include "aio.h"
#include "fork.h"
#include "threads.h"
#include "uring.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Idle contexts kept: as many as batches can usefully run at a time. */
enum { IDLE_CONTEXTS = 16 };

/* ---------------------------------------------------------------- pools */

struct context_pool {
    const struct fffs_backend *backend;
    struct fffs_context *all, *idle;
    int idle_count;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context_pool pools[] = {{.backend = &fffs_uring}, {.backend = &fffs_aio}}; /* under pools_lock */
enum { POOLS = sizeof pools / sizeof *pools };

/* The pool of the selected backend; NULL: pread. */
static struct context_pool *_Atomic selected = NULL;

/* Under pools_lock. */
static void unlink_context(struct context_pool *pool, struct fffs_context *context)
{
    *(context->previous ? &context->previous->next : &pool->all) = context->next;
    if (context->next)
        context->next->previous = context->previous;
}

/* Takes a context, which the caller owns until it returns it. Returns 0 or -errno. */
static int take_context(struct context_pool *pool, struct fffs_context **context)
{
    int failed = 0;

    pthread_mutex_lock(&pools_lock);
    *context = pool->idle;
    if (*context) {
        pool->idle = (*context)->next_idle;
        pool->idle_count--;
    } else {
        /* Under the lock, so that at a fork there is either no context or a listed one. */
        failed = pool->backend->open(context);
        if (!failed) {
            (*context)->previous = NULL;
            (*context)->next = pool->all;
            if (pool->all)
                pool->all->previous = *context;
            pool->all = *context;
        }
    }
    pthread_mutex_unlock(&pools_lock);
    return failed;
}

static void return_context(struct context_pool *pool, struct fffs_context *context, bool usable)
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

static void close_idle_contexts(struct context_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    while (pool->idle) {
        struct fffs_context *context = pool->idle;

        pool->idle = context->next_idle;
        unlink_context(pool, context);
        pool->backend->close(context);
    }
    pool->idle_count = 0;
    pthread_mutex_unlock(&pools_lock);
}

/* ---------------------------------------------------------------- fork */

/* Frees all contexts, also those of running batches, which continue only in the parent. Under pools_lock. */
static void forget_contexts(struct context_pool *pool)
{
    while (pool->all) {
        struct fffs_context *context = pool->all;

        pool->all = context->next;
        pool->backend->forget(context);
    }
    pool->idle = NULL;
    pool->idle_count = 0;
}

void fffs_contexts_before_fork(void)
{
    pthread_mutex_lock(&pools_lock);
}

void fffs_contexts_after_fork(bool child)
{
    for (struct context_pool *pool = pools; child && pool < pools + POOLS; pool++)
        forget_contexts(pool);
    pthread_mutex_unlock(&pools_lock);
}

/* ---------------------------------------------------------------- choosing a backend */

int fffs_engine_select(const char *name)
{
    struct context_pool *chosen = NULL;

    if (strcmp(name, "pread")) {
        for (struct context_pool *pool = pools; pool < pools + POOLS; pool++)
            if (strcmp(name, pool->backend->name) == 0)
                chosen = pool;
        if (!chosen)
            return -EINVAL;
        struct fffs_context *context;
        int failed = take_context(chosen, &context);
        if (failed)
            return failed;
        return_context(chosen, context, true);
    }
    atomic_store(&selected, chosen);
    for (struct context_pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool != chosen)
            close_idle_contexts(pool);
    return 0;
}

const char *fffs_engine_name(void)
{
    struct context_pool *pool = atomic_load(&selected);

    return pool ? pool->backend->name : "pread";
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
    return atomic_load(&selected);
}

int fffs_backend_run(struct fffs_piece **pieces, size_t count)
{
    struct context_pool *pool = atomic_load(&selected);
    struct fffs_context *context;

    if (!pool)
        return -ENOSYS;
    int failed = take_context(pool, &context);
    if (failed)
        return failed;
    return_context(pool, context, pool->backend->run(context, pieces, count));
    return 0;
}
