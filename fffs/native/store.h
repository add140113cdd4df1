/* Functions of a store (store.c) for the fast path, beside those of contract.h. */
#ifndef FFFS_STORE_H
#define FFFS_STORE_H

#include "fffs.h"

/* Returns the number of files of a store. Thread-safe. */
size_t fffs_store_files(const fffs_store *store);

/* Returns the position of the file that has a record, or -ERANGE. Thread-safe. */
int64_t fffs_store_file_of(const fffs_store *store, uint64_t record);

/* Whether the file at a position is an object. Thread-safe. */
bool fffs_store_is_remote(const fffs_store *store, size_t file);

#endif
