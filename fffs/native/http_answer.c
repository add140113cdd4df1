/* Reads header lines and compares an answer with what was asked. */
#include "http_answer.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

/* ---------------------------------------------------------------- values */

/* Reads decimal digits, at least one. Returns false if there are none or too many for an int64. */
static bool read_number(const char **text, const char *end, int64_t *number)
{
    const char *begin = *text;

    for (*number = 0; *text < end && **text >= '0' && **text <= '9'; (*text)++)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, **text - '0', number))
            return false;
    return *text > begin;
}

static bool is_number(const char *text, const char *end, int64_t *number)
{
    return read_number(&text, end, number) && text == end;
}

/* Content-Range: "bytes 0-99/1000", "bytes 0-99/" with a star for the size, or "bytes" with a star for the bytes. */
static void read_range(struct fffs_answer *answer, const char *text, const char *end)
{
    int64_t first, last, size;

    answer->ranged = answer->unsatisfied = false;
    if (end - text < 6 || strncasecmp(text, "bytes ", 6))
        return;
    text += 6;
    if (text < end && *text == '*') {
        answer->unsatisfied = text + 1 < end && text[1] == '/' && is_number(text + 2, end, &size);
        if (answer->unsatisfied)
            answer->version.size = size;
        return;
    }
    if (!read_number(&text, end, &first) || text == end || *text++ != '-' || !read_number(&text, end, &last) ||
        text == end || *text++ != '/' || last < first || last == INT64_MAX)
        return;
    size = -1;
    if (!(end - text == 1 && *text == '*') && (!is_number(text, end, &size) || last >= size))
        return;
    answer->ranged = true;
    answer->start = first;
    answer->end = last + 1;
    answer->version.size = size;
}

/* Keeps a value that identifies a version. A longer one is dropped: then the version is not known. */
static void keep_text(char *to, size_t size, const char *text, const char *end)
{
    size_t length = (size_t)(end - text);

    if (length >= size || memchr(text, 0, length))
        length = 0;
    memcpy(to, text, length);
    to[length] = 0;
}

/* ---------------------------------------------------------------- lines */

/* Returns the value of a line that begins with this name, or NULL. */
static const char *value_of(const char *line, const char *end, const char *name)
{
    size_t length = strlen(name);

    if ((size_t)(end - line) <= length || strncasecmp(line, name, length) || line[length] != ':')
        return NULL;
    for (line += length + 1; line < end && (*line == ' ' || *line == '\t');)
        line++;
    return line;
}

static bool is_text(const char *value, const char *end, const char *text)
{
    size_t length = strlen(text);

    return (size_t)(end - value) == length && !strncasecmp(value, text, length);
}

/* Whether a Content-Encoding leaves the bytes as they are. aws-chunked is how they were sent to a store; some stores keep the
 * word, but not the chunks. */
static bool is_plain(const char *value, const char *end)
{
    return value == end || is_text(value, end, "identity") || is_text(value, end, "aws-chunked");
}

void fffs_answer_line(struct fffs_answer *answer, const char *line, size_t length)
{
    const char *end = line + length, *value;
    int64_t number;

    while (end > line && (end[-1] == '\n' || end[-1] == '\r' || end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (end - line >= 5 && !strncasecmp(line, "HTTP/", 5)) {
        memset(answer, 0, sizeof *answer);
        answer->version.size = answer->length = -1;
    } else if ((value = value_of(line, end, "Content-Range"))) {
        read_range(answer, value, end);
    } else if ((value = value_of(line, end, "Content-Length"))) {
        answer->length = is_number(value, end, &number) ? number : -1;
    } else if ((value = value_of(line, end, "ETag"))) {
        keep_text(answer->version.etag, sizeof answer->version.etag, value, end);
    } else if ((value = value_of(line, end, "Last-Modified"))) {
        keep_text(answer->version.modified, sizeof answer->version.modified, value, end);
    } else if ((value = value_of(line, end, "Retry-After"))) {
        answer->retry_after = is_number(value, end, &number) ? number : 0;
    } else if ((value = value_of(line, end, "Content-Encoding"))) {
        answer->encoded |= !is_plain(value, end);
    } else if ((value = value_of(line, end, "X-Goog-Stored-Content-Encoding"))) {
        /* Google then decompresses it, and ignores the range. https://cloud.google.com/storage/docs/transcoding */
        answer->decompresses = is_text(value, end, "gzip");
    }
}

/* ---------------------------------------------------------------- judging */

static bool is_other(const char *now, const char *then)
{
    return *then && strcmp(now, then);
}

/* Whether the encoding of a store's answer is a word that was stored with the bytes, which are as they were stored: a part of
 * them whose length and version are known. What is compressed on its way is whole, or shorter, or has a weak ETag. */
static bool is_stored_encoding(const struct fffs_answer *answer, long status)
{
    return status == 206 && answer->ranged && answer->length == answer->end - answer->start &&
           *answer->version.etag == '"';
}

int fffs_answer_judge(const struct fffs_answer *answer, long status, const struct fffs_version *expected, bool stored,
                      int64_t start, int64_t end, const char **why)
{
    const struct fffs_version *now = &answer->version;
    bool whole = status == 200 && start == 0 && expected->size == end && answer->length == end;

    *why = NULL;
    if (answer->encoded && !(stored && is_stored_encoding(answer, status)))
        *why = "the server changed the encoding of the bytes";
    else if (status != 206 && !whole)
        *why = "the server does not support reading ranges";
    else if (whole)
        ;
    else if (!answer->ranged || now->size < 0)
        *why = "the server did not say which bytes it sent";
    else if (expected->size >= 0 && now->size != expected->size)
        return -ESTALE;
    else if (answer->start != start || answer->end != (end < now->size ? end : now->size))
        *why = "the server sent other bytes than those that were asked for";
    else if (answer->length >= 0 && answer->length != answer->end - answer->start)
        *why = "the server contradicts itself about the number of bytes";
    if (*why)
        return -EPROTO;
    /* The time alone is compared only where there is no ETag: servers behind one address may differ in it. */
    if (is_other(now->etag, expected->etag) || (!*expected->etag && is_other(now->modified, expected->modified)))
        return -ESTALE;
    return 0;
}

int fffs_answer_test(const char *lines, int32_t status, const char *etag, const char *modified, int64_t size,
                     int32_t stored, int64_t start, int64_t end, int64_t *size_told)
{
    struct fffs_version expected = {.size = size};
    struct fffs_answer answer = {0};
    const char *why;

    keep_text(expected.etag, sizeof expected.etag, etag, etag + strlen(etag));
    keep_text(expected.modified, sizeof expected.modified, modified, modified + strlen(modified));
    for (const char *next; *lines; lines = next) {
        next = strchr(lines, '\n');
        next = next ? next + 1 : lines + strlen(lines);
        fffs_answer_line(&answer, lines, (size_t)(next - lines));
    }
    *size_told = answer.version.size;
    return fffs_answer_judge(&answer, status, &expected, stored, start, end, &why);
}
