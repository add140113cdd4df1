/* The fork handlers of the parts with locks. Only fork.c calls these; no other part registers handlers.
 *
 * before_fork takes the part's locks. after_fork runs in the thread that forked, which holds them, and releases them.
 * In the child it also resets what belongs to the parent's threads. */
#ifndef FFFS_FORK_H
#define FFFS_FORK_H

#include <stdbool.h>

void fffs_http_before_fork(void);
void fffs_http_after_fork(bool child);
void fffs_objects_before_fork(void);
void fffs_objects_after_fork(bool child);
void fffs_object_cache_before_fork(void);
void fffs_object_cache_after_fork(bool child);
void fffs_store_before_fork(void);
void fffs_store_after_fork(bool child);
void fffs_watch_before_fork(void);
void fffs_watch_after_fork(bool child);
void fffs_ahead_before_fork(void);
void fffs_ahead_after_fork(bool child);
void fffs_threads_before_fork(void);
void fffs_threads_after_fork(bool child);
void fffs_contexts_before_fork(void);
void fffs_contexts_after_fork(bool child);
void fffs_buffer_before_fork(void);
void fffs_buffer_after_fork(bool child);

#endif
