/* kernels.c - choose among the sets of CPU kernels that are compiled in. */
#include "libcommon/kernels/kernels.h"

#include <string.h>

const struct kernels *const kernels_all[] = {
#ifdef ZSE_X86
    &kernels_amx, &kernels_avx512, &kernels_avxvnni, &kernels_avx2,
#endif
#ifdef ZSE_ARM64
    &kernels_i8mm, &kernels_dotprod, &kernels_neon,
#endif
    &kernels_ref, NULL
};

const struct kernels *kernels_pick(const char *want, struct err *e)
{
    char names[64] = "";
    for (int i = 0; kernels_all[i]; i++) {
        if (!want || strcmp(want, kernels_all[i]->name) == 0) {
            if (kernels_all[i]->supported())
                return kernels_all[i];
            if (want) {
                err_set(e, ERR_UNSUPPORTED, "kernels '%s': this processor lacks the instructions they need", want);
                return NULL;
            }
        }
        strcat(strcat(names, i ? ", " : ""), kernels_all[i]->name);
    }
    err_set(e, ERR_UNSUPPORTED, "kernels '%s': no such set; there are %s", want ? want : "", names);
    return NULL;
}

const struct kernels *kernels_ordered(const struct kernels *k)
{
#ifdef ZSE_X86
    return k == &kernels_amx ? &kernels_avx512 : k;
#else
    return k;
#endif
}
