/* assets.c - the files of the web interface, compressed by make and included by the assembler, and
 * the handlers that send them.
 *
 * index.html names the other files below /web/VERSION/, where VERSION is a hash of all of them: a
 * browser may keep those forever, and asks for index.html again each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <zlib.h>

#include "libcommon/serve/internal.h"

/* ---- the files ---- */

#define INCLUDE(id, file) \
    __asm__(".section .rodata\n.global zse_web_" #id "\n.global zse_web_" #id "_end\n" \
            "zse_web_" #id ":\n.incbin \"" ZSE_WEB file "\"\nzse_web_" #id "_end:\n.byte 0\n.previous\n"); \
    extern const unsigned char zse_web_##id[], zse_web_##id##_end[];
#define ASSET(id, file, type) INCLUDE(id, file ".gz")
#include "libcommon/serve/web/assets.def"
#undef ASSET
INCLUDE(version, "version")
INCLUDE(style_hash, "style.css.hash")
INCLUDE(start_hash, "start.js.hash")

struct asset { const char *name, *type; const unsigned char *begin, *end; };
static const struct asset assets[] = {
#define ASSET(id, file, type) { file, type, zse_web_##id, zse_web_##id##_end },
#include "libcommon/serve/web/assets.def"
#undef ASSET
};

/* Read one of the two 32-bit numbers at the end of a gzip file (RFC 1952), CRC-32 and size.
 * from_end: its distance from the end of the file. */
static uint32_t trailer(const struct asset *a, int from_end)
{
    const unsigned char *p = a->end - from_end;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static const struct asset *find(const char *name)
{
    for (size_t i = 1; i < sizeof assets / sizeof *assets; i++)
        if (strcmp(assets[i].name, name) == 0)
            return &assets[i];
    return NULL;
}

/* ---- sending them ---- */

/* Whether gzip, or *, is in the list with a weight other than 0. */
static int accepts_gzip(const char *list)
{
    while (list && *list) {
        list += strspn(list, " \t,");
        const size_t size = strcspn(list, " \t,;"), whole = strcspn(list, ",");
        if ((size == 4 && strncasecmp(list, "gzip", 4) == 0) || (size == 1 && *list == '*')) {
            const char *q = memchr(list, '=', whole);
            return !q || strtod(q + 1, NULL) > 0;
        }
        list += whole;
    }
    return 0;
}

/* Decompress the file; malloc'd; NULL: out of memory. */
static unsigned char *inflated(const struct asset *a, size_t size)
{
    z_stream z = { .next_in = (unsigned char *)(uintptr_t)a->begin, .avail_in = (unsigned)(a->end - a->begin) };
    unsigned char *out = malloc(size + 1);
    if (!out || inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) {
        free(out);
        return NULL;
    }
    z.next_out = out;
    z.avail_out = (unsigned)size + 1;
    const int rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    if (rc == Z_STREAM_END)
        return out;
    free(out);
    return NULL;
}

static void send_body(struct server *s, struct conn *c, const struct asset *a)
{
    const size_t size = trailer(a, 4);
    unsigned char *plain = NULL;
    if (accepts_gzip(http_field(conn_request(c), "Accept-Encoding"))) {
        conn_add_header(c, "Content-Encoding", "gzip");
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_reply(c, 200, a->type, a->begin, (size_t)(a->end - a->begin));
    } else if ((plain = inflated(a, size))) {
        metrics_count(&s->metrics, conn_route(c), 200);
        conn_reply(c, 200, a->type, plain, size);
    } else {
        reply_refusal(s, c, 503, NULL, "out of memory");
    }
    free(plain);
}

/* Whether If-None-Match has this tag, or *. */
static int is_known(const char *list, const char *tag)
{
    return list && (strstr(list, tag) || strcmp(list, "*") == 0);
}

static void send_asset(struct server *s, struct conn *c, const struct asset *a, const char *caching)
{
    char tag[40];
    snprintf(tag, sizeof tag, "W/\"%08x-%x\"", trailer(a, 8), trailer(a, 4));
    conn_add_header(c, "ETag", tag);
    conn_add_header(c, "Cache-Control", caching);
    conn_add_header(c, "Vary", a == assets ? "Accept, Accept-Encoding, Sec-Fetch-Site" : "Accept-Encoding");
    conn_add_header(c, "Referrer-Policy", "no-referrer");
    conn_add_header(c, "Cross-Origin-Resource-Policy", "same-origin");
    if (is_known(http_field(conn_request(c), "If-None-Match"), tag + 2)) {
        metrics_count(&s->metrics, conn_route(c), 304);
        conn_reply(c, 304, NULL, "", 0);
    } else {
        send_body(s, c, a);
    }
}

/* Whether a page of another origin may have opened this one. site: the Sec-Fetch-Site field, which
 * is "none" if the user typed or chose the address. The opener policy makes the browser start a
 * second process for such a tab, which costs 80 ms. */
static int may_have_opener(const char *site)
{
    return !site || (strcmp(site, "none") != 0 && strcmp(site, "same-origin") != 0);
}

void page_reply(struct server *s, struct conn *c)
{
    /* Trusted Types block scripts that create elements from text */
    char policy[512];
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'self' 'sha256-%s'; style-src 'sha256-%s'; img-src 'self' data:; "
             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
             "require-trusted-types-for 'script'; trusted-types 'none'",
             (const char *)zse_web_start_hash, (const char *)zse_web_style_hash);
    conn_add_header(c, "Content-Security-Policy", policy);
    if (may_have_opener(http_field(conn_request(c), "Sec-Fetch-Site")))
        conn_add_header(c, "Cross-Origin-Opener-Policy", "same-origin");
    conn_add_header(c, "Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()");
    send_asset(s, c, assets, "no-cache");
}

void handle_page(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    page_reply(s, c);
}

/* rest: VERSION/NAME. If a page of another build is still open in a browser, it gets this build's
 * file, which must not be cached under the old name. */
void handle_asset(struct server *s, struct conn *c, const char *rest)
{
    const char *slash = strchr(rest, '/');
    const struct asset *a = slash ? find(slash + 1) : NULL;
    const size_t n = (size_t)(zse_web_version_end - zse_web_version);
    if (!a)
        reply_refusal(s, c, 404, "not_found", "/web/%.200s: no such file", rest);
    else
        send_asset(s, c, a, (size_t)(slash - rest) == n && memcmp(rest, zse_web_version, n) == 0
                   ? "public, max-age=31536000, immutable" : "no-cache");
}
