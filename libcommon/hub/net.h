/* net.h - libcurl and libcrypto, loaded with dlopen() on first use of the network.
 *
 * Linked in, they and the two dozen libraries that they need would add 6 ms to every start of every
 * program (measured; the whole start takes 0.6 ms without them), even if it never uses the network.
 * They are never closed: some of those libraries do not survive dlclose(). */
#ifndef ZSE_HUB_NET_H
#define ZSE_HUB_NET_H

#include <curl/curl.h>
#include <openssl/evp.h>

#include "libcommon/base/err.h"

/* Functions of libcurl, named without "curl_". */
struct net {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *, CURLoption, ...);
    CURLcode (*easy_perform)(CURL *);
    CURLcode (*easy_getinfo)(CURL *, CURLINFO, ...);
    void (*easy_cleanup)(CURL *);
    void (*easy_reset)(CURL *);
    const char *(*easy_strerror)(CURLcode);
    struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
    void (*slist_free_all)(struct curl_slist *);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_add_handle)(CURLM *, CURL *);
    CURLMcode (*multi_remove_handle)(CURLM *, CURL *);
    CURLMcode (*multi_perform)(CURLM *, int *);
    CURLMcode (*multi_poll)(CURLM *, struct curl_waitfd *, unsigned, int, int *);
    CURLMsg *(*multi_info_read)(CURLM *, int *);
    CURLMcode (*multi_cleanup)(CURLM *);
};
int net_open(struct net *n, struct err *e);

/* SHA-256 or SHA-1 of a stream. */
struct net_digest {
    EVP_MD_CTX *(*ctx_new)(void);
    void (*ctx_free)(EVP_MD_CTX *);
    const EVP_MD *(*sha256)(void), *(*sha1)(void);
    int (*init)(EVP_MD_CTX *, const EVP_MD *, ENGINE *);
    int (*update)(EVP_MD_CTX *, const void *, size_t);
    int (*final)(EVP_MD_CTX *, unsigned char *, unsigned *);
};
int net_digest_open(struct net_digest *d, struct err *e);

#endif
