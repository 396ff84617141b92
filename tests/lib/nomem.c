/* nomem.c - LD_PRELOAD: between one SIGUSR2 and the next, one of ZSE_NOMEM allocations fails.
 *
 * Allocations made by jansson do not fail, because jansson 2.14 silently omits characters if the
 * text of a token cannot grow. */
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static atomic_int on;
static atomic_uint n_asked;
static unsigned one_of = 100;
static uintptr_t jansson, jansson_end;

static void turn(int number)
{
    (void)number;
    atomic_fetch_xor(&on, 1);
}

static int find_jansson(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    (void)user;
    if (!strstr(info->dlpi_name, "libjansson"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            jansson = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            jansson_end = jansson + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

__attribute__((constructor)) static void prepare(void)
{
    const char *text = getenv("ZSE_NOMEM");
    if (text && atoi(text) > 0)
        one_of = (unsigned)atoi(text);
    dl_iterate_phdr(find_jansson, NULL);
    signal(SIGUSR2, turn);
}

/* Whether this allocation fails.  The same numbers fail in every run, at unequal distances. */
static int fails(const void *caller)
{
    if (!atomic_load_explicit(&on, memory_order_relaxed) ||
        ((uintptr_t)caller >= jansson && (uintptr_t)caller < jansson_end))
        return 0;
    uint32_t x = atomic_fetch_add(&n_asked, 1) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    if ((x ^ x >> 13) % one_of)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return n && fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
