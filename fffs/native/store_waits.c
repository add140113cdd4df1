/* Who waits for a store: one thread checks a large record for all that need it, and what a store did not give is known to those that ask
 * again. */
#include "clock.h"
#include "fault.h"
#include "fork.h"
#include "store_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Nanoseconds for which a failure holds: the kernel asks again at once for what it did not get, and the store would keep the same
 * reader waiting for as long as before. */
#define FAILURE_HOLDS (FFFS_SECOND / 4)

/* One for all stores, so that the fork handlers can take it: else a child could start with a mutex that is locked for
 * ever. It guards what fffs_store says, never a read. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t checked = PTHREAD_COND_INITIALIZER;
static unsigned epoch;

void fffs_store_before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

void fffs_store_after_fork(bool child)
{
    if (child) { /* no thread of the child waits for a check */
        pthread_cond_init(&checked, NULL);
        epoch++;
    }
    pthread_mutex_unlock(&mutex);
}

void fffs_store_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void fffs_store_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* ---------------------------------------------------------------- failures */

int fffs_store_failed_before(fffs_store *store, uint64_t record)
{
    int64_t since = fffs_now() - FAILURE_HOLDS;
    int status = 0;

    if (atomic_load(&store->failed) < since)
        return 0;
    fffs_store_lock();
    for (int i = 0; i < FFFS_STORE_FAILURES; i++) {
        struct fffs_store_failure *failure = &store->failures[i];

        if (failure->when <= since || failure->record != record)
            continue;
        status = failure->status;
        failure->when = 0;
    }
    fffs_store_unlock();
    return status;
}

void fffs_store_note_failure(fffs_store *store, uint64_t record, int status)
{
    if (status == -EAGAIN || status == -EBADMSG || status == -ENOMEM || status == -ECANCELED)
        return;
    fffs_store_lock();
    int64_t now = fffs_now();
    store->failures[store->next_failure++ % FFFS_STORE_FAILURES] =
        (struct fffs_store_failure){record, now, now, status};
    fffs_store_unlock();
    atomic_store(&store->failed, now);
}

int fffs_store_failure_since(fffs_store *store, uint64_t record, int64_t since)
{
    int status = 0;

    fffs_store_lock();
    for (int i = 0; i < FFFS_STORE_FAILURES && !status; i++)
        if (store->failures[i].noted >= since && store->failures[i].record == record)
            status = store->failures[i].status;
    fffs_store_unlock();
    return status;
}

/* ---------------------------------------------------------------- checks */

struct fffs_store_check *fffs_store_begin_check(fffs_store *store, uint64_t record)
{
    struct fffs_store_check *mine = fffs_allocate(sizeof *mine);

    if (!mine)
        return NULL;
    fffs_store_lock();
    for (struct fffs_store_check *other = store->checks; other;) {
        if (other->record == record && other->epoch == epoch) {
            pthread_cond_wait(&checked, &mutex);
            other = store->checks;
        } else {
            other = other->next;
        }
    }
    *mine = (struct fffs_store_check){store->checks, record, epoch};
    store->checks = mine;
    fffs_store_unlock();
    return mine;
}

void fffs_store_end_check(fffs_store *store, struct fffs_store_check *mine)
{
    fffs_store_lock();
    for (struct fffs_store_check **link = &store->checks; *link; link = &(*link)->next) {
        if (*link == mine) {
            *link = mine->next;
            break;
        }
    }
    pthread_cond_broadcast(&checked);
    fffs_store_unlock();
    free(mine);
}
