/* I/O contexts: rings and AIO contexts, and the selected backend (contexts.c). contract.h has what Python calls. */
#ifndef FFFS_CONTEXTS_H
#define FFFS_CONTEXTS_H

#include "piece.h"

/* A ring or an AIO context: the head of a backend's own structure. Used by one thread at a time. */
struct fffs_context {
    struct fffs_context *next, *previous; /* all of the pool, idle or not: a forked child must find them */
    struct fffs_context *next_idle;
};

/* The interface of asynchronous backends: constants, with one pool each. */
struct fffs_backend {
    const char *name;
    int (*open)(struct fffs_context **context);  /* returns 0 or -errno; the caller owns the new context */
    void (*close)(struct fffs_context *context); /* frees it; no read may be in flight */
    /* In a forked child: frees the inherited copy without affecting the parent's. */
    void (*forget)(struct fffs_context *context);
    /* Reads pieces, each until it is finished or left pending. No read is in flight when it returns. Returns false if
     * the context is in an unknown state and must be closed. */
    bool (*run)(struct fffs_context *context, struct fffs_piece **pieces, size_t count);
};

/* Whether one of these, and not "pread", is selected. Thread-safe. */
bool fffs_backend_selected(void);

/* Reads pieces, which the caller owns, through a context of the selected backend, each until it is finished or left
 * pending. Returns 0; or -errno if there is no context: then nothing was read. Thread-safe. */
int fffs_backend_run(struct fffs_piece **pieces, size_t count);

#endif
