/* CRC-32 with 512-bit carry-less multiplication: about four times as fast as 128-bit folding. Needs AVX-512.
 *
 * Folding. A message's remainder does not change when the 128 bits at its front are taken away and added, multiplied
 * by x^D, to those D bits further on. In the reflected order of zlib's CRC the low half of such a lane is its high
 * part, so lane * x^D is low * x^(D + 64) + high * x^D, a sum of two 64-bit products once the powers are reduced to
 * 32 bits. (A product of reflected operands comes out shifted by one bit, and a constant of 32 bits stands for one at
 * the top of 64: hence the exponents D + 32 and D - 32, and the shift by one to the left.)
 *
 * Sixteen lanes in four registers are folded by 256 bytes at a time; then the registers into one, and its four lanes
 * into one. As a message these 16 bytes have the same remainder as all that was folded. libdeflate continues
 * from there with the bytes left over. */
#include "crc.h"
#include "processor.h"

#include <libdeflate.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define STRIDE 256

struct factors {
    uint64_t low, high; /* x^(D + 32) and x^(D - 32) mod P, reflected, times x */
};

/* D in bytes: from a register to the same register of the next stride, to the next register, and to the next lane. */
static struct factors by_stride, by_register, by_lane;

static struct factors factors_of(unsigned bytes)
{
    return (struct factors){(uint64_t)fffs_crc32_power(8 * bytes + 32) << 1,
                            (uint64_t)fffs_crc32_power(8 * bytes - 32) << 1};
}

bool fffs_crc32_wide_setup(void)
{
    by_stride = factors_of(STRIDE);
    by_register = factors_of(64);
    by_lane = factors_of(16);
    return fffs_has_wide_multiplication();
}

#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul")))

WIDE static inline __m512i fold(__m512i lanes, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(lanes, by, 0x00), high = _mm512_clmulepi64_epi128(lanes, by, 0x11);

    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* exclusive or of the three */
}

WIDE static inline __m128i fold_lane(__m128i lane, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(lane, by, 0x00), high = _mm_clmulepi64_si128(lane, by, 0x11);

    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

WIDE static inline __m128i pair(struct factors f)
{
    return _mm_set_epi64x((long long)f.high, (long long)f.low);
}

WIDE uint32_t fffs_crc32_wide(uint32_t crc, const uint8_t *data, size_t size)
{
    const __m512i stride = _mm512_broadcast_i32x4(pair(by_stride)), one = _mm512_broadcast_i32x4(pair(by_register));
    const __m128i lane = pair(by_lane);
    __m512i a, b, c, d;
    __m128i folded;
    uint8_t rest[16];

    /* The initial state is added to the first four bytes, as in any table-driven CRC. */
    a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    b = _mm512_loadu_si512(data + 64);
    c = _mm512_loadu_si512(data + 128);
    d = _mm512_loadu_si512(data + 192);
    for (data += STRIDE, size -= STRIDE; size >= STRIDE; data += STRIDE, size -= STRIDE) {
        a = fold(a, stride, _mm512_loadu_si512(data));
        b = fold(b, stride, _mm512_loadu_si512(data + 64));
        c = fold(c, stride, _mm512_loadu_si512(data + 128));
        d = fold(d, stride, _mm512_loadu_si512(data + 192));
    }
    a = fold(fold(fold(a, one, b), one, c), one, d);
    for (; size >= 64; data += 64, size -= 64)
        a = fold(a, one, _mm512_loadu_si512(data));
    folded = fold_lane(_mm512_castsi512_si128(a), lane, _mm512_extracti32x4_epi32(a, 1));
    folded = fold_lane(folded, lane, _mm512_extracti32x4_epi32(a, 2));
    folded = fold_lane(folded, lane, _mm512_extracti32x4_epi32(a, 3));
    _mm_storeu_si128((__m128i *)rest, folded);
    /* libdeflate inverts its initial value and its result: with all ones it begins with zero. */
    return libdeflate_crc32(libdeflate_crc32(0xFFFFFFFFu, rest, sizeof rest), data, size);
}

#else

bool fffs_crc32_wide_setup(void)
{
    return false;
}

uint32_t fffs_crc32_wide(uint32_t crc, const uint8_t *data, size_t size)
{
    return libdeflate_crc32(crc, data, size);
}

#endif
