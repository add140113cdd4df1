/* The instructions that this processor has: by CPUID, or from the kernel. */
#include "processor.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Bits of XCR0, one for each kind of register: SSE, AVX, masks, upper halves of 0 to 15, all of 16 to 31. */
enum { WIDE_REGISTERS = 0x02 | 0x04 | 0x20 | 0x40 | 0x80 };

/* The result of CPUID for a leaf; zeros if the processor does not know it. */
struct answer {
    unsigned eax, ebx, ecx, edx;
};

static struct answer ask(unsigned leaf)
{
    struct answer got;

    if (!__get_cpuid_count(leaf, 0, &got.eax, &got.ebx, &got.ecx, &got.edx))
        return (struct answer){0, 0, 0, 0};
    return got;
}

/* The kinds of registers that the kernel saves for each thread. Only to be called if CPUID shows OSXSAVE. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool fffs_has_crc32c(void)
{
    return ask(1).ecx & bit_SSE4_2;
}

bool fffs_has_wide_multiplication(void)
{
    struct answer basic = ask(1), extended = ask(7);

    if (!(basic.ecx & bit_PCLMUL) || !(extended.ebx & bit_AVX512F) || !(extended.ecx & bit_VPCLMULQDQ))
        return false;
    return (basic.ecx & bit_OSXSAVE) && (saved_registers() & WIDE_REGISTERS) == WIDE_REGISTERS;
}

#else

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

bool fffs_has_crc32c(void)
{
#if defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
    return false;
#endif
}

bool fffs_has_wide_multiplication(void)
{
    return false;
}

#endif
