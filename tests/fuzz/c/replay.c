/* Runs a fuzz target once on each file named: what libFuzzer's own main does, for compilers that have no libFuzzer. */
#include "check.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");

        CHECK(file && fseek(file, 0, SEEK_END) == 0);
        long size = ftell(file);
        CHECK(size >= 0);
        rewind(file);
        uint8_t *data = exactly((size_t)size);
        CHECK(fread(data, 1, (size_t)size, file) == (size_t)size);
        fclose(file);
        fprintf(stderr, "%s\n", argv[i]);
        LLVMFuzzerTestOneInput(data, (size_t)size);
        free(data);
    }
    return 0;
}
