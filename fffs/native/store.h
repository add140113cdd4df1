/* What the fast path asks of a store (store.c) beside the functions of contract.h. */
#ifndef FFFS_STORE_H
#define FFFS_STORE_H

#include "fffs.h"

/* How many files a store is over (store.c). Thread-safe. */
size_t fffs_store_files(const fffs_store *store);

/* The position among them of the file that has a record, or -ERANGE. Thread-safe. */
int64_t fffs_store_file_of(const fffs_store *store, uint64_t record);

#endif
