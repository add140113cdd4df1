/* The counters of the fast path's threads. */
#include "fastpath_counters.h"
#include "clock.h"

void fffs_count_answer(struct fffs_counters *counters, const struct fffs_fast_answer *answer, int64_t began)
{
    fffs_count(&counters->requests[answer->kind], 1);
    if (answer->kind != FFFS_FAST_READ)
        return;
    uint64_t took = (uint64_t)(fffs_now() - began) | 1;
    int bucket = 63 - __builtin_clzll(took);
    fffs_count(&counters->read_latency[bucket < FFFS_FAST_BUCKETS ? bucket : FFFS_FAST_BUCKETS - 1], 1);
    if (answer->status)
        fffs_count(&counters->read_errors, 1);
    else
        fffs_count(&counters->read_bytes, (uint64_t)answer->length - sizeof(struct fuse_out_header));
}

static uint64_t value(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void fffs_counters_add(const struct fffs_counters *counters, fffs_fastpath_stats_t *sums)
{
    for (int k = 0; k < FFFS_FAST_KINDS; k++)
        sums->requests[k] += value(&counters->requests[k]);
    for (int b = 0; b < FFFS_FAST_BUCKETS; b++)
        sums->read_latency[b] += value(&counters->read_latency[b]);
    sums->read_bytes += value(&counters->read_bytes);
    sums->read_errors += value(&counters->read_errors);
    sums->cold_reads += value(&counters->cold_reads);
}
