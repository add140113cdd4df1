/* The head of an HTTP answer to a ranged request, and whether it is what was asked for (http_answer.c). Pure functions: the
 * other side is not trusted. */
#ifndef FFFS_HTTP_ANSWER_H
#define FFFS_HTTP_ANSWER_H

#include "objects.h"

/* What the header lines said. All zero at first. */
struct fffs_answer {
    struct fffs_version version; /* size: that of the whole object, from Content-Range */
    int64_t start, end;          /* the bytes that follow, from Content-Range */
    int64_t length;              /* Content-Length; -1: unknown */
    int64_t retry_after;         /* seconds; 0: none */
    bool ranged;                 /* there is a valid Content-Range */
    bool unsatisfied;            /* Content-Range says that no byte of the range exists; version.size is the size */
    bool encoded;                /* the bytes are compressed, or otherwise not those of the object */
    bool decompresses;           /* the server decompresses the object, unless the request accepts gzip */
};

/* Adds a line to an answer. A status line begins a new one: those before it were of redirections or proxies. */
void fffs_answer_line(struct fffs_answer *answer, const char *line, size_t length);

/* Whether an answer with this status has the bytes from start to end, of the version that is expected, whose size may be
 * unknown: then the object may end earlier. stored: see fffs_object_set_stored. Returns 0; -ESTALE: another version; or -EPROTO with *why, a constant string. */
int fffs_answer_judge(const struct fffs_answer *answer, long status, const struct fffs_version *expected, bool stored,
                      int64_t start, int64_t end, const char **why);

#endif
