/* What reading objects cost this process (object_totals.c). contract.h has the sums, and says what each of them counts. */
#ifndef FFFS_OBJECT_TOTALS_H
#define FFFS_OBJECT_TOTALS_H

#include <stdint.h>

enum fffs_total {
    FFFS_TOTAL_REQUESTS,
    FFFS_TOTAL_RETRIES,
    FFFS_TOTAL_ERRORS,
    FFFS_TOTAL_FETCHED,
    FFFS_TOTAL_ASKED,
    FFFS_TOTAL_HITS,
    FFFS_TOTAL_DAMAGED_RECORDS,
    FFFS_TOTAL_DAMAGED_BLOCKS,
    FFFS_TOTALS
};

/* Adds to a sum. Thread-safe, never waits. */
void fffs_total_add(enum fffs_total which, uint64_t count);

#endif
