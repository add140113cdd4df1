/* The fork handlers of all parts, registered once, when the library is loaded. */
#include "fork.h"

#include <pthread.h>
#include <stddef.h>

struct part {
    void (*before)(void);
    void (*after)(bool child);
};

/* Locks are taken in this order and released in reverse. Calls nest in the same order: a store reads through the
 * engine, which takes buffers. */
static const struct part parts[] = {
    {fffs_store_before_fork, fffs_store_after_fork},
    {fffs_watch_before_fork, fffs_watch_after_fork},
    {fffs_ahead_before_fork, fffs_ahead_after_fork},
    {fffs_threads_before_fork, fffs_threads_after_fork},
    {fffs_contexts_before_fork, fffs_contexts_after_fork},
    {fffs_buffer_before_fork, fffs_buffer_after_fork},
    {fffs_http_before_fork, fffs_http_after_fork},
    {fffs_objects_before_fork, fffs_objects_after_fork},
    {fffs_object_cache_before_fork, fffs_object_cache_after_fork},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void before_fork(void)
{
    for (size_t i = 0; i < PARTS; i++)
        parts[i].before();
}

static void after_fork(bool child)
{
    for (size_t i = PARTS; i-- > 0;)
        parts[i].after(child);
}

static void after_fork_in_parent(void)
{
    after_fork(false);
}

static void after_fork_in_child(void)
{
    after_fork(true);
}

/* Fails only if there is no memory for three pointers: then loading the library would have failed. */
__attribute__((constructor)) static void register_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
