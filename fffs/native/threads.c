/* Helper threads: one pool per process, started when first needed, for all batches. */
#include "threads.h"
#include "clock.h"
#include "fault.h"
#include "fork.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

/* An idle thread spins this long before it sleeps. Waking it costs the next batch 30 to 60 microseconds on a virtual
 * machine, as long as checking half a megabyte; Python needs less between two batches. */
#define SPIN_NANOSECONDS 50000

/* An announced batch arrives within this time, unless its thread has lost the processor. */
#define EXPECT_NANOSECONDS 300000

/* Many times the need of the deepest call chain. The C library adds what thread-local storage needs. */
#define STACK_SIZE ((size_t)1 << 20)

#define MOST_THREADS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t offered = PTHREAD_COND_INITIALIZER;  /* a job was added to open_jobs */
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER; /* a job's last helper has left it */
/* Under lock: */
static struct fffs_job *open_jobs; /* jobs that want more helpers, oldest first */
static int reserved[2];            /* helpers reserved for jobs, by kind */
static int alive, parked, spinning, retiring;
/* The number of open jobs, which spinning threads read without the lock. */
static _Atomic int open_count;

/* Until this time threads wait for an announced batch without sleeping. */
static _Atomic int64_t expected_until;

static _Atomic int thread_limit;

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Spins until *value is zero (or, with want_zero false, is not), or for SPIN_NANOSECONDS, or until expected_until if
 * that is later. Returns whether *value became so. */
static bool spin_until(_Atomic int *value, bool want_zero)
{
    int64_t now = fffs_now(), deadline = now + SPIN_NANOSECONDS;

    do {
        for (int i = 0; i < 32; i++) {
            if ((atomic_load_explicit(value, memory_order_acquire) == 0) == want_zero)
                return true;
            relax();
        }
        now = fffs_now();
    } while (now < deadline || now < atomic_load_explicit(&expected_until, memory_order_relaxed));
    return false;
}

/* Under lock. */
static void close_job(struct fffs_job *job)
{
    struct fffs_job **place = &open_jobs;

    while (*place != job)
        place = &(*place)->next;
    *place = job->next;
    job->wanted = 0;
    atomic_fetch_sub(&open_count, 1);
}

/* Under lock, which is released while waiting. */
static void wait_for_job(void)
{
    spinning++;
    pthread_mutex_unlock(&lock);
    bool found = spin_until(&open_count, false);
    pthread_mutex_lock(&lock);
    spinning--;
    if (found)
        return; /* another thread may take the job first; then the caller calls again */
    parked++;
    while (!open_jobs && fffs_now() >= atomic_load(&expected_until))
        pthread_cond_wait(&offered, &lock);
    parked--;
}

static void *help(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        struct fffs_job *job = open_jobs;

        if (!job) {
            wait_for_job();
            continue;
        }
        atomic_fetch_add(&job->active, 1);
        if (--job->wanted == 0)
            close_job(job);
        pthread_mutex_unlock(&lock);
        job->run(job->work);
        pthread_mutex_lock(&lock);
        /* After this the job may be gone: fffs_job_retire reads active without the lock. */
        if (atomic_fetch_sub(&job->active, 1) == 1 && retiring > 0)
            pthread_cond_broadcast(&finished);
    }
    return unused;
}

bool fffs_thread_start(void *(*run)(void *unused))
{
    pthread_attr_t attributes;
    int32_t fault;

    if (fffs_fault(FFFS_FAULT_THREAD, &fault) || pthread_attr_init(&attributes))
        return false;
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    /* Signals of the process are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int failed = pthread_create(&thread, &attributes, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

/* Under lock. Returns false if the system refuses a thread; the others then do the work. */
static bool start_helper(void)
{
    bool started = fffs_thread_start(help);

    alive += started ? 1 : 0;
    return started;
}

void fffs_job_offer(struct fffs_job *job, int kind, void (*run)(void *work), void *work, int helpers)
{
    int limit = kind == FFFS_HOT ? fffs_engine_threads() - 1 : FFFS_COLD_HELPERS;

    *job = (struct fffs_job){.run = run, .work = work, .kind = kind};
    atomic_store(&expected_until, 0);
    if (helpers <= 0 || limit <= 0)
        return;
    pthread_mutex_lock(&lock);
    if (helpers > limit - reserved[kind])
        helpers = limit - reserved[kind];
    if (helpers > 0) {
        reserved[kind] += helpers;
        job->reserved = job->wanted = helpers;
        struct fffs_job **place = &open_jobs;
        while (*place)
            place = &(*place)->next;
        *place = job;
        atomic_fetch_add(&open_count, 1);
        while (alive < reserved[FFFS_HOT] + reserved[FFFS_COLD] && start_helper())
            continue;
        /* Spinning threads see open_count, or look for jobs under the lock before they sleep. */
        for (int i = spinning; i < helpers && i - spinning < parked; i++)
            pthread_cond_signal(&offered);
    }
    pthread_mutex_unlock(&lock);
}

void fffs_threads_expect(int helpers)
{
    atomic_store(&expected_until, fffs_now() + EXPECT_NANOSECONDS);
    pthread_mutex_lock(&lock);
    for (int i = spinning; i < helpers && i - spinning < parked; i++)
        pthread_cond_signal(&offered);
    pthread_mutex_unlock(&lock);
}

void fffs_job_retire(struct fffs_job *job)
{
    if (job->reserved == 0)
        return;
    pthread_mutex_lock(&lock);
    if (job->wanted > 0)
        close_job(job);
    reserved[job->kind] -= job->reserved; /* its helpers are at their last piece, and free soon */
    pthread_mutex_unlock(&lock);
    if (spin_until(&job->active, true))
        return;
    pthread_mutex_lock(&lock);
    retiring++;
    while (atomic_load(&job->active))
        pthread_cond_wait(&finished, &lock);
    retiring--;
    pthread_mutex_unlock(&lock);
}

int fffs_engine_set_threads(int threads)
{
    if (threads < 1)
        return -EINVAL;
    atomic_store(&thread_limit, threads < MOST_THREADS ? threads : MOST_THREADS);
    return 0;
}

int fffs_engine_threads(void)
{
    int threads = atomic_load_explicit(&thread_limit, memory_order_relaxed);

    if (threads == 0) {
        cpu_set_t cores;

        /* Four saturate memory on most machines, and data loaders run several processes. The call fails on machines
         * with more than 1024 processors. */
        threads = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 4;
        threads = threads > 4 ? 4 : threads < 1 ? 1 : threads;
        atomic_store(&thread_limit, threads);
    }
    return threads;
}

int fffs_threads_alive(void)
{
    pthread_mutex_lock(&lock);
    int count = alive;
    pthread_mutex_unlock(&lock);
    return count;
}

void fffs_threads_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void fffs_threads_after_fork(bool child)
{
    if (child) {
        /* The child has no helpers, no other callers and no jobs. The conditions may still count waiters. */
        open_jobs = NULL;
        reserved[FFFS_HOT] = reserved[FFFS_COLD] = 0;
        alive = parked = spinning = retiring = 0;
        atomic_store(&open_count, 0);
        pthread_cond_init(&offered, NULL);
        pthread_cond_init(&finished, NULL);
    }
    pthread_mutex_unlock(&lock);
}
