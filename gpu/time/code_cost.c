/* code_cost.c - look up what kernels cost in tests/gpu/code-budgets, which scripts/gpu-code
 * compares with the machine code. */
#include <stdio.h>
#include <string.h>

#include "gpu/time/launch_time.h"

/* Let the assembler include the bytes of the table in the program. */
__asm__(".section .rodata\n"
        ".global zse_budgets_begin\n.global zse_budgets_end\n"
        "zse_budgets_begin:\n.incbin \"tests/gpu/code-budgets\"\nzse_budgets_end:\n"
        ".byte 0\n.previous\n");
extern const char zse_budgets_begin[], zse_budgets_end[];

int code_cost_find(const char *kernel, const char *sm, struct code_cost *out)
{
    char name[64], of[8];
    struct code_cost c;
    for (const char *line = zse_budgets_begin; line && line < zse_budgets_end; ) {
        const char *end = memchr(line, '\n', (size_t)(zse_budgets_end - line));
        if (sscanf(line, "%63s %7s %d %*d %*d %lf", name, of, &c.registers, &c.instructions) == 4 &&
            strcmp(name, kernel) == 0 && strcmp(of, sm) == 0) {
            *out = c;
            return 1;
        }
        line = end ? end + 1 : NULL;
    }
    return 0;
}
