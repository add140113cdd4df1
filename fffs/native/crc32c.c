/* CRC-32C (Castagnoli), by the processor's instruction if it has one, else by tables; combining the checksums of
 * adjacent data; a known-answer test of each.
 *
 * The instruction takes 8 bytes a cycle, but its result comes three cycles later. So three adjacent strides are
 * computed in parallel and then combined: a table per length of stride gives what a checksum becomes when that many
 * bytes follow. Tables need no other instruction, and serve every processor. */
#include "crc.h"
#include "processor.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Bits reversed as in crc.c: bit 31 is the coefficient of x^0, bit 0 that of x^31, x^32 is implied. */
#define POLYNOMIAL 0x82F63B78u
#define X_TO_0 0x80000000u
#define X_TO_8 0x00800000u

/* Bytes of a stride: long ones are rarely combined, short ones leave few bytes over. */
enum { LONG = 4096, SHORT = 256 };

typedef uint32_t (*implementation)(uint32_t state, const uint8_t *data, size_t size);

static uint32_t zero_bytes[64];    /* [k] = x^(8 * 2^k) mod P */
static uint32_t by_byte[8][256];   /* [k][b]: the state b after k + 1 zero bytes */
static uint32_t over_long[4][256]; /* [k][b]: the state b << 8 k after LONG zero bytes */
static uint32_t over_short[4][256];

/* ---------------------------------------------------------------- combining: see crc.c */

static uint32_t multiply(uint32_t a, uint32_t b)
{
    return fffs_crc_multiply(POLYNOMIAL, a, b);
}

/* Returns the state after size zero bytes. zero_bytes must be computed. */
static uint32_t over_zeros(uint32_t state, uint64_t size)
{
    for (int k = 0; size; k++, size >>= 1)
        if (size & 1)
            state = multiply(zero_bytes[k], state);
    return state;
}

static void fill(uint32_t table[4][256], uint64_t stride)
{
    for (int k = 0; k < 4; k++)
        for (uint32_t b = 0; b < 256; b++)
            table[k][b] = over_zeros(b << 8 * k, stride);
}

static inline uint32_t shift(uint32_t table[4][256], uint32_t state)
{
    return table[0][state & 255] ^ table[1][state >> 8 & 255] ^ table[2][state >> 16 & 255] ^ table[3][state >> 24];
}

static inline uint64_t load(const uint8_t *data)
{
    uint64_t word;

    memcpy(&word, data, sizeof word);
    return word;
}

/* ---------------------------------------------------------------- implementations: from state to state */

/* The definition, bit by bit: shares no code with what it checks. */
static uint32_t by_definition(uint32_t state, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        state ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (state & 1 ? POLYNOMIAL : 0);
    }
    return state;
}

/* Eight bytes at a time: each contributes its state after the bytes behind it. */
static uint32_t by_tables(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = load(data) ^ state;

        state = by_byte[7][word & 255] ^ by_byte[6][word >> 8 & 255] ^ by_byte[5][word >> 16 & 255] ^
                by_byte[4][word >> 24 & 255] ^ by_byte[3][word >> 32 & 255] ^ by_byte[2][word >> 40 & 255] ^
                by_byte[1][word >> 48 & 255] ^ by_byte[0][word >> 56];
    }
    for (; size > 0; data++, size--)
        state = (state >> 8) ^ by_byte[0][(state ^ *data) & 255];
    return state;
}

#if defined(__x86_64__)
#define BY_PROCESSOR __attribute__((target("sse4.2")))
#define STEP_8(state, word) ((uint32_t)__builtin_ia32_crc32di((state), (word)))
#define STEP_1(state, byte) __builtin_ia32_crc32qi((state), (byte))
#elif defined(__aarch64__) && defined(__clang__)
#define BY_PROCESSOR __attribute__((target("crc")))
#define STEP_8(state, word) __builtin_arm_crc32cd((state), (word))
#define STEP_1(state, byte) __builtin_arm_crc32cb((state), (byte))
#elif defined(__aarch64__)
#define BY_PROCESSOR __attribute__((target("+crc")))
#define STEP_8(state, word) __builtin_aarch64_crc32cx((state), (word))
#define STEP_1(state, byte) __builtin_aarch64_crc32cb((state), (byte))
#endif

#if defined(BY_PROCESSOR)

/* Combines the three strides at data. Inlined, so that stride is a constant. */
BY_PROCESSOR static inline __attribute__((always_inline)) uint32_t three(uint32_t a, const uint8_t *data,
                                                                         size_t stride, uint32_t table[4][256])
{
    uint32_t b = 0, c = 0;

    for (size_t i = 0; i < stride; i += 8) {
        a = STEP_8(a, load(data + i));
        b = STEP_8(b, load(data + stride + i));
        c = STEP_8(c, load(data + 2 * stride + i));
    }
    return shift(table, shift(table, a) ^ b) ^ c;
}

BY_PROCESSOR static uint32_t by_processor(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 3 * LONG; data += 3 * LONG, size -= 3 * LONG)
        state = three(state, data, LONG, over_long);
    for (; size >= 3 * SHORT; data += 3 * SHORT, size -= 3 * SHORT)
        state = three(state, data, SHORT, over_short);
    for (; size >= 8; data += 8, size -= 8)
        state = STEP_8(state, load(data));
    for (; size > 0; data++, size--)
        state = STEP_1(state, *data);
    return state;
}

#else

#define by_processor by_tables

#endif

/* ---------------------------------------------------------------- known answers */

enum { SAMPLE = 3 * LONG + 3 * SHORT + 100 };

/* Tests every length up to beyond two short rounds, at any alignment, and some around a long one. */
static bool agrees(implementation compute, const uint8_t *data)
{
    static const size_t lengths[] = {3 * LONG - 1, 3 * LONG, 3 * LONG + 1, SAMPLE - 16};

    for (size_t align = 0; align < 8; align++) {
        uint32_t running = ~0u;

        for (size_t length = 0; length < 7 * SHORT; length++) {
            if ((length < 64 || length % 8 == align) && compute(~0u, data + align, length) != running)
                return false;
            running = by_definition(running, data + align + length, 1);
        }
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (compute(7, data + i, lengths[i]) != by_definition(7, data + i, lengths[i]))
            return false;
    return true;
}

/* Tests the definition itself: the examples of RFC 3720, B.4, and the check value that tables of CRCs give. */
static bool definition_is_right(void)
{
    static const uint8_t digits[] = "123456789";
    uint8_t data[32];

    if (~by_definition(~0u, digits, 9) != 0xE3069283u)
        return false;
    memset(data, 0, sizeof data);
    if (~by_definition(~0u, data, sizeof data) != 0x8A9136AAu)
        return false;
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)i;
    return ~by_definition(~0u, data, sizeof data) == 0x46DD794Eu;
}

/* ---------------------------------------------------------------- the choice */

static implementation chosen = by_definition; /* until there is a better one */
static bool right;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    uint8_t data[SAMPLE];
    uint32_t random = 1, power = X_TO_8;

    for (int k = 0; k < 64; k++) {
        zero_bytes[k] = power;
        power = multiply(power, power);
    }
    for (uint32_t b = 0; b < 256; b++) {
        by_byte[0][b] = over_zeros(b, 1);
        for (int k = 1; k < 8; k++)
            by_byte[k][b] = over_zeros(by_byte[k - 1][b], 1);
    }
    fill(over_long, LONG);
    fill(over_short, SHORT);
    for (size_t i = 0; i < sizeof data; i++) {
        random = random * 1664525u + 1013904223u;
        data[i] = (uint8_t)(random >> 24);
    }
    if (agrees(by_tables, data))
        chosen = by_tables;
    if (fffs_has_crc32c() && agrees(by_processor, data))
        chosen = by_processor;
    right = definition_is_right() && chosen != by_definition;
}

uint32_t fffs_crc32c(uint32_t crc, const void *data, size_t size)
{
    pthread_once(&once, choose);
    return ~chosen(~crc, data, size);
}

uint32_t fffs_crc32c_by_tables(uint32_t crc, const void *data, size_t size)
{
    pthread_once(&once, choose);
    return ~by_tables(~crc, data, size);
}

uint32_t fffs_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    pthread_once(&once, choose);
    return over_zeros(crc_a, length_b) ^ crc_b;
}

int fffs_crc32c_self_test(void)
{
    static const uint8_t digits[] = "123456789";

    pthread_once(&once, choose);
    if (!right || fffs_crc32c_combine(fffs_crc32c(0, digits, 4), fffs_crc32c(0, digits + 4, 5), 5) != 0xE3069283u)
        return -EILSEQ;
    return 0;
}

const char *fffs_crc32c_name(void)
{
    pthread_once(&once, choose);
    return chosen == by_tables ? "tables" : chosen == by_definition ? "bits" : "processor";
}
