/* The C side's view of contract.h, with what the C sources share beside it. */
#ifndef FFFS_H
#define FFFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "contract.h"

/* x^n modulo the polynomial of CRC-32, reflected (crc.c). */
uint32_t fffs_crc32_power(unsigned n);

/* CRC-32 in wide registers (crc_wide.c). Set-up, once: whether this processor has them; only then may the other be
 * called, with at least 256 bytes. */
bool fffs_crc32_wide_setup(void);
uint32_t fffs_crc32_wide(uint32_t crc, const uint8_t *data, size_t size);

#endif
