/* Functions of a store (store.c) for the fast path, beside those of contract.h. */
#ifndef FFFS_STORE_H
#define FFFS_STORE_H

#include "fffs.h"

/* Returns the number of files of a store. Thread-safe. */
size_t fffs_store_files(const fffs_store *store);

/* Returns the position of the file that has a record, or -ERANGE. Thread-safe. */
int64_t fffs_store_file_of(const fffs_store *store, uint64_t record);

#endif
