/* Pooled memory: large buffers that keep their pages, so that taking them again costs no page faults. */
#include "fault.h"
#include "fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Idle memory above this is unmapped, the longest unused first. Two batches of 128 MiB stay pooled. */
#define IDLE_LIMIT ((uint64_t)256 << 20)
/* Buffers that are idle for longer are unmapped too, one per fffs_buffer_give: many readers at once should not cost a
 * daemon memory for the rest of its life. */
#define IDLE_SECONDS 10
#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define SMALLEST_SHIFT 16 /* 64 KiB: malloc is good enough for less */
#define LARGEST ((size_t)1 << 46)
#define NEAR 2
#define CLASSES (4 * (46 - SMALLEST_SHIFT) + 1)

/* Header of a buffer, in the page before its data. These values of magic detect a buffer that is given twice. */
#define TAKEN UINT64_C(0x66666673206d656d)
#define IDLE UINT64_C(0x66666673206f7574)

struct header {
    uint64_t magic;
    size_t size;  /* of the data: the size of its class */
    size_t index; /* of the class */
    void *mapping;
    size_t mapped;
    uint64_t given;               /* count of gives when it was given */
    time_t since;                 /* time when it was given, in seconds */
    struct header *below;         /* in the class's stack */
    struct header *newer, *older; /* among all idle buffers */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Under lock: */
static struct header *stacks[CLASSES]; /* last in, first out: the warmest pages first */
static struct header *newest, *oldest;
static uint64_t taken_bytes, idle_bytes, gives;

/* Sizes of classes: the powers of two from 64 KiB, and three steps between each two. */
static size_t class_of(size_t size, size_t *class_size)
{
    if (size <= (size_t)1 << SMALLEST_SHIFT) {
        *class_size = (size_t)1 << SMALLEST_SHIFT;
        return 0;
    }
    size_t shift = 63 - (size_t)__builtin_clzll(size - 1); /* 2^shift < size <= 2^(shift + 1) */
    size_t step = (size_t)1 << (shift - 2);
    size_t steps = (size - 1 - ((size_t)1 << shift)) / step + 1;
    *class_size = ((size_t)1 << shift) + steps * step;
    return 4 * (shift - SMALLEST_SHIFT) + steps;
}

/* Maps a buffer, aligned for huge pages if it is large enough for them. Returns NULL if there is no memory. */
static struct header *map_buffer(size_t size, size_t index)
{
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    size_t mapped = size + align + (align > PAGE ? PAGE : 0);
    int32_t fault;

    if (fffs_fault(FFFS_FAULT_MEMORY, &fault))
        return NULL;
    uint8_t *mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    uint8_t *data = (uint8_t *)(((uintptr_t)mapping + PAGE + align - 1) & ~(uintptr_t)(align - 1));
    if (size >= HUGE_PAGE)
        (void)madvise(data, size, MADV_HUGEPAGE); /* advice: kernels without huge pages refuse it */
    struct header *new = (struct header *)(data - PAGE);
    new->size = size;
    new->index = index;
    new->mapping = mapping;
    new->mapped = mapped;
    return new;
}

/* Removes an idle buffer from the list of all. Under lock. */
static void unlink_idle(struct header *idle)
{
    *(idle->newer ? &idle->newer->older : &newest) = idle->older;
    *(idle->older ? &idle->older->newer : &oldest) = idle->newer;
    idle_bytes -= idle->size;
}

/* Takes the last buffer given to the class or to any of the NEAR next larger ones, or returns NULL. Batches of about
 * the same size then share one buffer, which stays in the processor's cache, even if their sizes lie in different
 * classes. */
static struct header *take_idle(size_t index)
{
    struct header *found = NULL;

    pthread_mutex_lock(&lock);
    for (size_t i = index; i <= index + NEAR && i < CLASSES; i++)
        if (stacks[i] && (!found || stacks[i]->given > found->given))
            found = stacks[i];
    if (found) {
        stacks[found->index] = found->below;
        unlink_idle(found);
        taken_bytes += found->size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *fffs_buffer_take(size_t size)
{
    size_t class_size;

    if (size > LARGEST)
        return NULL;
    size_t index = class_of(size, &class_size);
    struct header *found = take_idle(index);
    if (!found) {
        found = map_buffer(class_size, index);
        if (!found)
            return NULL;
        pthread_mutex_lock(&lock);
        taken_bytes += class_size;
        pthread_mutex_unlock(&lock);
    }
    found->magic = TAKEN;
    return (uint8_t *)found + PAGE;
}

/* Removes the longest unused buffer. Under lock; the pool must not be empty. */
static struct header *evict(void)
{
    struct header *victim = oldest, **place = &stacks[victim->index];

    while (*place != victim) /* a class has few buffers, and the victim is its last */
        place = &(*place)->below;
    *place = victim->below;
    unlink_idle(victim);
    return victim;
}

static time_t seconds(void)
{
    struct timespec now;
    int32_t ahead = 0;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    fffs_fault(FFFS_FAULT_CLOCK, &ahead);
    return now.tv_sec + ahead;
}

void fffs_buffer_give(void *buffer)
{
    if (!buffer)
        return;
    struct header *given = (struct header *)((uint8_t *)buffer - PAGE);
    if (given->magic != TAKEN)
        abort(); /* given twice, or overwritten: continuing would damage other data */
    struct header *victims = NULL;
    time_t now = seconds();
    pthread_mutex_lock(&lock);
    given->magic = IDLE;
    given->given = ++gives;
    given->since = now;
    taken_bytes -= given->size;
    idle_bytes += given->size;
    given->below = stacks[given->index];
    stacks[given->index] = given;
    given->newer = NULL;
    given->older = newest;
    *(newest ? &newest->newer : &oldest) = given;
    newest = given;
    while (idle_bytes > IDLE_LIMIT || (!victims && now - oldest->since > IDLE_SECONDS)) {
        struct header *victim = evict();

        victim->below = victims;
        victims = victim;
    }
    pthread_mutex_unlock(&lock);
    while (victims) {
        struct header *victim = victims;

        victims = victim->below;
        munmap(victim->mapping, victim->mapped);
    }
}

void fffs_buffer_usage(uint64_t *taken, uint64_t *idle)
{
    pthread_mutex_lock(&lock);
    *taken = taken_bytes;
    *idle = idle_bytes;
    pthread_mutex_unlock(&lock);
}

/* A child owns copies of all buffers, idle and taken ones, and may use and give them. */
void fffs_buffer_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void fffs_buffer_after_fork(bool child)
{
    (void)child; /* the thread that forked holds the lock in parent and child */
    pthread_mutex_unlock(&lock);
}
