/* Sums over all objects of this process. They have no lock, so that reads that the caches answer need none. */
#include "object_totals.h"
#include "fffs.h"

#include <stdatomic.h>

static _Atomic uint64_t totals[FFFS_TOTALS];

void fffs_total_add(enum fffs_total which, uint64_t count)
{
    if (count)
        atomic_fetch_add_explicit(&totals[which], count, memory_order_relaxed);
}

static uint64_t sum(enum fffs_total which)
{
    return atomic_load_explicit(&totals[which], memory_order_relaxed);
}

void fffs_object_totals_look(fffs_object_totals *found)
{
    *found = (fffs_object_totals){
        .requests = sum(FFFS_TOTAL_REQUESTS),
        .retries = sum(FFFS_TOTAL_RETRIES),
        .errors = sum(FFFS_TOTAL_ERRORS),
        .fetched = sum(FFFS_TOTAL_FETCHED),
        .asked = sum(FFFS_TOTAL_ASKED),
        .hits = sum(FFFS_TOTAL_HITS),
        .damaged_records = sum(FFFS_TOTAL_DAMAGED_RECORDS),
        .damaged_blocks = sum(FFFS_TOTAL_DAMAGED_BLOCKS),
    };
}
