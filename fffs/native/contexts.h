/* I/O contexts: rings and AIO contexts, and the choice of a backend (contexts.c). What Python calls is in contract.h. */
#ifndef FFFS_CONTEXTS_H
#define FFFS_CONTEXTS_H

#include "piece.h"

/* A ring or an AIO context: the head of a backend's own structure. Checked out by one batch at a time. */
struct fffs_context {
    struct fffs_context *next, *previous; /* among all of the pool, idle or not: a forked child must find them */
    struct fffs_context *next_idle;
};

/* The asynchronous backends' interface: constants, and one pool per backend. */
struct fffs_backend {
    const char *name;
    int (*open)(struct fffs_context **context);  /* 0 or -errno; the caller owns the new context */
    void (*close)(struct fffs_context *context); /* frees it; nothing is in flight */
    /* After fork, in the child: frees what the child inherited of it and leaves the parent's alone. */
    void (*forget)(struct fffs_context *context);
    /* Reads the pieces, each until it is finished or left. When it returns nothing is in flight.
     * False: the context is in an unknown state, and must be closed. */
    bool (*run)(struct fffs_context *context, struct fffs_piece **pieces, size_t count);
};

/* Whether one of them is selected, and not "pread". Any thread. */
bool fffs_backend_selected(void);

/* Reads pieces, the caller's, through a context of the selected backend, each until it is finished or left. 0; or
 * -errno when there is no context, and then nothing was read. Any thread. */
int fffs_backend_run(struct fffs_piece **pieces, size_t count);

#endif
