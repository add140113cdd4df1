/* The counters of each thread of the fast path (fastpath_counters.c). Written by that thread alone, read by any. */
#ifndef FFFS_FASTPATH_COUNTERS_H
#define FFFS_FASTPATH_COUNTERS_H

#include "fastpath_answers.h"

#include <stdatomic.h>

/* All zeros at first. */
struct fffs_counters {
    _Alignas(64) _Atomic uint64_t requests[FFFS_FAST_KINDS];
    _Atomic uint64_t read_bytes, read_errors, cold_reads;
    _Atomic uint64_t read_latency[FFFS_FAST_BUCKETS];
};

static inline void fffs_count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* Counts a request that was handled, and that arrived at began, on fffs_now's clock. */
void fffs_count_answer(struct fffs_counters *counters, const struct fffs_fast_answer *answer, int64_t began);

/* Adds the counters of one thread to sums. May be called in any thread. */
void fffs_counters_add(const struct fffs_counters *counters, fffs_fastpath_stats_t *sums);

#endif
