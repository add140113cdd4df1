/* Checksums for the C sources (crc.c, crc32c.c, crc_wide.c); contract.h has those of whole buffers. Thread-safe, once
 * fffs_self_test has run. */
#ifndef FFFS_CRC_H
#define FFFS_CRC_H

#include "fffs.h"

/* Remainders in GF(2)[x], reflected: bit 31 is the coefficient of x^0. */
#define FFFS_CRC_ONE 0x80000000u

/* Returns a times b modulo P, a polynomial of degree 32. */
static inline uint32_t fffs_crc_multiply(uint32_t polynomial, uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        if (a & FFFS_CRC_ONE)
            product ^= b;
        /* b times x: the coefficient of x^31 leaves at bit 0, and x^32 = P - x^32 (mod P). */
        b = (b >> 1) ^ (b & 1 ? polynomial : 0);
    }
    return product;
}

/* Returns x^n modulo the polynomial of CRC-32, reflected. */
uint32_t fffs_crc32_power(unsigned n);

/* CRC-32 in wide registers (crc_wide.c). The set-up, called once, returns whether this processor has them. Only then
 * may the other function be called, with at least 256 bytes. */
bool fffs_crc32_wide_setup(void);
uint32_t fffs_crc32_wide(uint32_t crc, const uint8_t *data, size_t size);

/* Continues a checksum of a kind (FFFS_CHECK_*) over data. Returns 0 for FFFS_CHECK_NONE. */
static inline uint32_t fffs_checksum(uint32_t kind, uint32_t crc, const void *data, size_t size)
{
    switch (kind) {
    case FFFS_CHECK_CRC32: return fffs_crc32(crc, data, size);
    case FFFS_CHECK_CRC32C: return fffs_crc32c(crc, data, size);
    default: return 0;
    }
}

/* Returns the checksum of A followed by B, from the checksums of both and the length of B. */
static inline uint32_t fffs_checksum_combine(uint32_t kind, uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    switch (kind) {
    case FFFS_CHECK_CRC32: return fffs_crc32_combine(crc_a, crc_b, length_b);
    case FFFS_CHECK_CRC32C: return fffs_crc32c_combine(crc_a, crc_b, length_b);
    default: return 0;
    }
}

#endif
