#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    size_t lines = 0, bytes = 0;
    static char buffer[1 << 16];
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) { perror(argv[i]); return 1; }
        size_t n;
        while ((n = fread(buffer, 1, sizeof buffer, f)) > 0) {
            bytes += n;
            for (size_t k = 0; k < n; k++) lines += buffer[k] == '\n';
        }
        fclose(f);
    }
    printf("%zu %zu\n", lines, bytes);
    return 0;
}
