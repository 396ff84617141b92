/* net.c - load libcurl and libcrypto. */
#include "libcommon/hub/net.h"

#include <dlfcn.h>
#include <string.h>

#include <openssl/opensslv.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

struct symbol { const char *name; void *to; };

static int open_library(const char *file, const char *package, const struct symbol *symbols, size_t n, struct err *e)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return err_set(e, ERR_IO, "the network needs %s (Debian package %s): %s", file, package, dlerror());
    for (size_t i = 0; i < n; i++) {
        void *p = dlsym(library, symbols[i].name);
        if (!p)
            return err_set(e, ERR_UNSUPPORTED, "%s has no %s: it is too old", file, symbols[i].name);
        /* ISO C has no cast from an object pointer to a function pointer */
        memcpy(symbols[i].to, &p, sizeof p);
    }
    return 0;
}

int net_open(struct net *n, struct err *e)
{
    const struct symbol symbols[] = {
        { "curl_global_init", &n->global_init }, { "curl_easy_init", &n->easy_init },
            { "curl_easy_setopt", &n->easy_setopt },
        { "curl_easy_perform", &n->easy_perform }, { "curl_easy_getinfo", &n->easy_getinfo },
        { "curl_easy_cleanup", &n->easy_cleanup },
        { "curl_easy_reset", &n->easy_reset }, { "curl_easy_strerror", &n->easy_strerror },
        { "curl_slist_append", &n->slist_append },
        { "curl_slist_free_all", &n->slist_free_all }, { "curl_multi_init", &n->multi_init },
        { "curl_multi_add_handle", &n->multi_add_handle },
        { "curl_multi_remove_handle", &n->multi_remove_handle }, { "curl_multi_perform", &n->multi_perform },
        { "curl_multi_poll", &n->multi_poll },
        { "curl_multi_info_read", &n->multi_info_read }, { "curl_multi_cleanup", &n->multi_cleanup },
    };
    if (open_library("libcurl.so.4", "libcurl4", symbols, sizeof symbols / sizeof *symbols, e) != 0)
        return -1;
    return n->global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : err_set(e, ERR_IO, "libcurl does not start");
}

int net_digest_open(struct net_digest *d, struct err *e)
{
    const struct symbol symbols[] = {
        { "EVP_MD_CTX_new", &d->ctx_new }, { "EVP_MD_CTX_free", &d->ctx_free }, { "EVP_sha256", &d->sha256 },
            { "EVP_sha1", &d->sha1 },
        { "EVP_DigestInit_ex", &d->init }, { "EVP_DigestUpdate", &d->update }, { "EVP_DigestFinal_ex", &d->final },
    };
    return open_library("libcrypto.so." TEXT(OPENSSL_SHLIB_VERSION), "libssl" TEXT(OPENSSL_SHLIB_VERSION), symbols,
                        sizeof symbols / sizeof *symbols, e);
}
