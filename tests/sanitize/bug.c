/* Linked into the engine, this writes past the end of an allocation as soon as it is loaded: the sanitizer must say so. */
#include <stdlib.h>

__attribute__((constructor)) static void misbehave(void)
{
    volatile size_t size = 16;
    volatile char *memory = malloc(size);

    memory[size] = 1;
    free((void *)memory);
}
