/* The instructions that this processor has. Thread-safe. Sources do not use __builtin_cpu_supports, because the libraries
 * of some compilers lack what it needs. */
#ifndef FFFS_PROCESSOR_H
#define FFFS_PROCESSOR_H

#include <stdbool.h>

/* Whether there are instructions for CRC-32C: SSE 4.2, or the CRC extension of ARM. */
bool fffs_has_crc32c(void);

/* Whether there is carry-less multiplication in 512-bit registers (AVX-512 with VPCLMULQDQ), and the kernel saves them. */
bool fffs_has_wide_multiplication(void);

#endif
