/* CRC-32, by libdeflate or in wide registers; combining the CRCs of adjacent data; a known-answer test of both. */
#include "crc.h"

#include <errno.h>
#include <libdeflate.h>
#include <pthread.h>

/* zlib's polynomial with its bits reversed: bit 31 is the coefficient of x^0, bit 0 that of x^31, x^32 is implied. */
#define POLYNOMIAL 0xEDB88320u
#define X_TO_0 FFFS_CRC_ONE
#define X_TO_1 0x40000000u
#define X_TO_8 0x00800000u

/* Shorter data is not worth filling wide registers. */
enum { WIDE_SIZE = 512 };

static bool wide; /* set by fffs_self_test, before there are threads */

/* libdeflate 1.23 uses wide registers itself, and is faster for short data. Older versions take up to four times as long. */
#if LIBDEFLATE_VERSION_MAJOR == 1 && LIBDEFLATE_VERSION_MINOR < 23
enum { OLD_LIBDEFLATE = true };
#else
enum { OLD_LIBDEFLATE = false };
#endif

uint32_t fffs_crc32(uint32_t crc, const void *data, size_t size)
{
    if (wide && size >= WIDE_SIZE)
        return fffs_crc32_wide(crc, data, size);
    /* libdeflate returns the initial value for a null pointer, whatever crc is. */
    return data ? libdeflate_crc32(crc, data, size) : crc;
}

/* Combining. A CRC is a remainder in GF(2)[x] modulo P. Appending n zero bytes to a message multiplies its remainder by
 * x^(8n). zlib's CRC also starts from all ones and ends with an inversion, so crc(m) is linear in m up to a constant
 * that depends on the length only; for A followed by B these constants cancel, and what is left is
 *
 *     crc(AB) = crc(A) * x^(8 * |B|)  +  crc(B)        (mod P; + is exclusive or)
 *
 * x^(8n) is the product of x^(8 * 2^k) over the bits k set in n. Those 64 factors are computed once; a whole
 * FFFS_BLOCK is a single bit, so combining the blocks of a large record costs one multiplication each. */

static uint32_t multiply(uint32_t a, uint32_t b)
{
    return fffs_crc_multiply(POLYNOMIAL, a, b);
}

uint32_t fffs_crc32_power(unsigned n)
{
    uint32_t power = X_TO_0;

    while (n-- > 0)
        power = multiply(X_TO_1, power);
    return power;
}

static uint32_t zero_bytes[64]; /* [k] = x^(8 * 2^k) mod P */
static pthread_once_t zero_bytes_once = PTHREAD_ONCE_INIT;

static void compute_zero_bytes(void)
{
    uint32_t power = X_TO_8;

    for (int k = 0; k < 64; k++) {
        zero_bytes[k] = power;
        power = multiply(power, power);
    }
}

uint32_t fffs_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    pthread_once(&zero_bytes_once, compute_zero_bytes);
    for (int k = 0; length_b; k++, length_b >>= 1)
        if (length_b & 1)
            crc_a = multiply(zero_bytes[k], crc_a);
    return crc_a ^ crc_b;
}

/* The definition, bit by bit: shares no code with what it checks. */
static uint32_t crc32_by_definition(uint32_t crc, const uint8_t *data, size_t size)
{
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
    }
    return ~crc;
}

/* libdeflate chooses an implementation by processor, and a path in it by length and alignment. So this tests every
 * length up to beyond its widest vector loop, at alternating alignments, against a running reference. */
static int test_short(const uint8_t *data)
{
    for (size_t align = 0; align < 16; align++) {
        uint32_t running = 0;

        for (size_t length = 0; length < 300; length++) {
            if (length % 16 == align || length % 7 == 0 || length < 32) {
                if (fffs_crc32(0, data + align, length) != running)
                    return -EILSEQ;
            }
            running = crc32_by_definition(running, data + align + length, 1);
        }
    }
    return 0;
}

/* Compares with libdeflate every number of bytes beyond whole strides and registers, at every alignment. */
static bool is_wide_right(const uint8_t *data, size_t size)
{
    for (size_t length = WIDE_SIZE, align = 0; length + 64 <= size; length += length < 1024 ? 1 : 251, align++) {
        const uint8_t *start = data + align % 64;
        uint32_t before = (uint32_t)align * 0x9E3779B9u;

        if (fffs_crc32_wide(before, start, length) != libdeflate_crc32(before, start, length))
            return false;
    }
    return true;
}

int fffs_self_test(void)
{
    static const uint8_t digits[] = "123456789";
    /* From crc32_by_definition over the sequence below, and confirmed with zlib. */
    static const struct {
        size_t start, length;
        uint32_t crc;
    } long_runs[] = {
        {0, 4096, 0x5B24A61Au},
        {3, 8190, 0xCFAAF56Cu},
        {1, 16000, 0xD4722EA4u},
    };
    uint8_t data[16384];
    uint32_t state = 1;

    for (size_t i = 0; i < sizeof data; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint8_t)(state >> 24);
    }
    wide = OLD_LIBDEFLATE && fffs_crc32_wide_setup() && is_wide_right(data, sizeof data);
    if (fffs_crc32(0, digits, 9) != 0xCBF43926u || crc32_by_definition(0, digits, 9) != 0xCBF43926u)
        return -EILSEQ;
    if (test_short(data))
        return -EILSEQ;
    for (size_t i = 0; i < sizeof long_runs / sizeof *long_runs; i++) {
        const uint8_t *start = data + long_runs[i].start;
        size_t length = long_runs[i].length, half = length / 2 + 5;
        uint32_t head = fffs_crc32(0, start, half), tail = fffs_crc32(0, start + half, length - half);

        if (fffs_crc32(0, start, length) != long_runs[i].crc)
            return -EILSEQ;
        if (fffs_crc32(head, start + half, length - half) != long_runs[i].crc)
            return -EILSEQ;
        if (fffs_crc32_combine(head, tail, length - half) != long_runs[i].crc)
            return -EILSEQ;
    }
    return 0;
}
