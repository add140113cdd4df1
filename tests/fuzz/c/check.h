/* What the fuzz targets share: numbers from the input, exact allocations, and a check that ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fffs.h"

#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

_Noreturn static inline void check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

/* What is left of the fuzzer's bytes. After their end all numbers are 0. */
struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t take(struct input *in, size_t width)
{
    uint64_t number = 0;

    for (size_t i = 0; i < width && in->left; i++, in->left--)
        number |= (uint64_t)*in->at++ << (8 * i);
    return number;
}

/* Memory of exactly size bytes, so that a sanitizer sees the first byte after it; filled with zeros. */
static inline void *exactly(size_t size)
{
    void *memory = calloc(1, size);

    CHECK(memory);
    return memory;
}

/* The next bytes of the input as an array of that many bytes; the caller frees it. */
static inline void *take_array(struct input *in, size_t size)
{
    uint8_t *array = exactly(size);
    size_t got = size < in->left ? size : in->left;

    memcpy(array, in->at, got);
    in->at += got;
    in->left -= got;
    return array;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
