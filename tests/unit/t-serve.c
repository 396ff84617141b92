/* t-serve.c - the server's parsers, without sockets: HTTP cut at every byte, WebSocket frames, the
 * table of request fields, JSON text, the separation of reasoning and answer; the states of the
 * memory watch; the share of an owner in the store of responses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <malloc.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "libcommon/base/json.h"
#include "libcommon/http/account.h"
#include "libcommon/serve/api/prescan.h"
#include "libcommon/serve/response_store.h"
#include "libcommon/serve/watch.h"
#include "libcommon/serve/fields.h"
#include "libcommon/http/http.h"
#include "libcommon/serve/api/splitter.h"
#include "libcommon/http/websocket.h"

static const struct http_limits limits = { .head_bytes = 4096, .body_bytes = 1000 };

static void test_http_cut_at_every_byte(void **state)
{
    static const char text[] = "POST /a%20b?x=1&y=%41+b HTTP/1.1\r\nHost: h\r\nX-Y:  z \r\nTransfer-Encoding: chunked\r\nConnection: keep-alive, close\r\n\r\n"
                               "5\r\nhello\r\n006;a=b\r\n world\r\n0\r\nT: t\r\n\r\nGET / HTTP/1.0\r\n\r\n";
    const size_t first = strstr(text, "GET /") - text;
    (void)state;
    for (size_t cut = 0; cut <= first; cut++) {
        struct http_parser p = { 0 };
        struct buf in = { 0 };
        char value[16];
        buf_add(&in, text, cut);
        assert_int_equal(http_parse(&p, &in, &limits), cut == first ? HTTP_DONE : HTTP_MORE);
        buf_add(&in, text + cut, sizeof text - 1 - cut);
        assert_int_equal(http_parse(&p, &in, &limits), HTTP_DONE);
        assert_string_equal(p.req->method, "POST");
        assert_string_equal(p.req->path, "/a b");
        assert_string_equal(http_query(p.req, "y", value, sizeof value), "A b");
        assert_null(http_query(p.req, "y", value, 3));
        assert_null(http_query(p.req, "z", value, sizeof value));
        assert_string_equal(http_field(p.req, "x-y"), "z");
        assert_int_equal(p.req->body.size, 11);
        assert_string_equal(p.req->body.data, "hello world");
        assert_false(p.req->keep_alive);
        http_reset(&p);
        assert_int_equal(http_parse(&p, &in, &limits), HTTP_DONE);
        assert_string_equal(p.req->method, "GET");
        assert_int_equal(p.req->minor, 0);
        assert_false(p.req->keep_alive);
        assert_int_equal(in.size, 0);
        http_reset(&p);
        buf_release(&in);
    }
}

static void requests_beyond_the_limits_are_refused(void **state)
{
#define CHUNKED "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    static const struct { const char *text; int status; } bad[] = {
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413 }, { CHUNKED "3e9\r\n", 413 },
        { "GET / HTTP/1.1\r\n\r\n", 400 }, { "GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505 },
        { "GET /%2 HTTP/1.1\r\nHost: h\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: h\r\nA\r\n\r\n", 400 }, { "GET http: HTTP/1.1\r\nHost: h\r\n\r\n", 400 },
        { "GET http://evil/x HTTP/1.1\r\nHost: h\r\n\r\n", 400 },
        { "GET http://h:443/ HTTP/1.1\r\nHost: h\r\n\r\n", 400 },
        { "GET https://h:8/ HTTP/1.1\r\nHost: h\r\n\r\n", 400 }, { "GET http:// HTTP/1.1\r\nHost: h\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
        { CHUNKED "1\r\nab\r\n", 400 }, { CHUNKED "1 1\r\na\r\n0\r\n\r\n", 400 },
        { CHUNKED "1;a\nb\r\na\r\n0\r\n\r\n", 400 },
        { CHUNKED "1 ;a\rb\r\na\r\n0\r\n\r\n", 400 }, { CHUNKED "0\r\nx\r\n\r\n", 400 },
        { CHUNKED "0\r\nx: a\n\r\n\r\n", 400 }, { CHUNKED "0\r\n x: a\r\n\r\n", 400 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct http_parser p = { 0 };
        struct buf in = { 0 };
        buf_add(&in, bad[i].text, strlen(bad[i].text));
        assert_int_equal(http_parse(&p, &in, &limits), HTTP_REFUSED);
        assert_int_equal(p.status, bad[i].status);
        assert_true(*p.why);
        http_reset(&p);
        buf_release(&in);
    }
}

/* Heads of requests that are just valid or just invalid.  Status 0: the head is complete; 1: more
 * bytes are needed; else the HTTP status of the error. */
static void only_valid_heads_are_accepted(void **state)
{
#define HEAD(line, fields) line " HTTP/1.1\r\nHost: h\r\n" fields "\r\n"
    static const struct { const char *text; int status; } cases[] = {
        { HEAD("azAZ09!#$%&'*+-.^_`|~ /~", ""), 0 }, { HEAD("GE/T /", ""), 400 }, { HEAD("GE:T /", ""), 400 },
        { HEAD("GE@T /", ""), 400 }, { HEAD("GE[T /", ""), 400 }, { HEAD("GE{T /", ""), 400 }, { HEAD(" /", ""), 400 },
        { HEAD("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF /", ""), 0 }, { HEAD("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG /", ""), 400 },
        { "GET /\r\nHost: h\r\n\r\n", 400 }, { "GET\r\nHost: h\r\n\r\n", 400 }, { HEAD("GET /\x01", ""), 400 },
        { HEAD("GET /\x7f", ""), 400 }, { HEAD("GET /\t", ""), 400 }, { HEAD("GET /!", ""), 0 },
        { HEAD("GET /", "Host: h\r\n"), 400 }, { "GET / HTTP/1.0\r\n\r\n", 0 },
        { "GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505 },
        { "GET / HTTP/1.\r\nHost: h\r\n\r\n", 505 }, { "GET / HTTQ/1.1\r\nHost: h\r\n\r\n", 400 },
        { "GET / HTTP/1.1\nHost: h\n\n", 400 }, { "\r\n\r\n" HEAD("GET /", ""), 0 }, { "\nGET", 400 },
        { HEAD("GET /", "Expect: 100-Continue\r\n"), 0 }, { HEAD("GET /", "Expect: more\r\n"), 417 },
        { HEAD("GET /", "Content-Encoding: Identity\r\n"), 0 }, { HEAD("GET /", "Content-Encoding: gzip\r\n"), 415 },
        { HEAD("POST /", "Content-Length: 0\r\n"), 0 }, { HEAD("POST /", "Content-Length: 1000\r\n"), 1 },
        { HEAD("POST /", "Content-Length: 000000000000000001\r\n") "a", 0 },
        { HEAD("POST /", "Content-Length: 0000000000000000001\r\n"), 413 },
        { HEAD("POST /", "Content-Length: 1a\r\n"), 400 }, { HEAD("POST /", "Content-Length: -1\r\n"), 400 },
        { HEAD("POST /", "Content-Length: \r\n"), 400 },
        { HEAD("POST /", "Content-Length: 1\r\nContent-Length: 1\r\n"), 400 },
        { HEAD("POST /", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400 },
        { HEAD("POST /", "Transfer-Encoding: gzip\r\n"), 501 },
        { "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501 },
        { CHUNKED "1 \t ;a=b\r\nx\r\n0\r\n\r\n", 0 }, { CHUNKED "1\t\r\nx\r\n0\r\n\r\n", 0 },
        { CHUNKED "3E8\r\n", 1 }, { CHUNKED "3e8g\r\n", 400 }, { CHUNKED "0\r\nx-9: a\r\n\r\n", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_parser p = { 0 };
        struct buf in = { 0 };
        buf_add(&in, cases[i].text, strlen(cases[i].text));
        const enum http_answer a = http_parse(&p, &in, &limits);
        const int got = a == HTTP_DONE ? 0 : a == HTTP_MORE ? 1 : p.status;
        if (got != cases[i].status)
            fail_msg("%zu: %s: %d", i, cases[i].text, got);
        http_reset(&p);
        buf_release(&in);
    }
    for (size_t size = 4095; size <= 4098; size++)      /* size of the head; whole 0: its end has
                                                         * not arrived yet */
        for (int whole = 0; whole < 2; whole++) {
            struct http_parser p = { 0 };
            struct buf in = { 0 };
            buf_str(&in, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
            while (in.size < size - 4)
                buf_str(&in, "x");
            buf_str(&in, whole ? "\r\n\r\n" : "xxxx");
            assert_int_equal(http_parse(&p, &in, &limits), size > 4096 ? HTTP_REFUSED : whole ? HTTP_DONE : HTTP_MORE);
            assert_int_equal(p.status, size > 4096 ? 431 : 0);
            http_reset(&p);
            buf_release(&in);
        }
}

/* A caller that sets `ask` is asked once per body whether to keep it.  A body that it drops is
 * still counted and checked, but not stored, wherever the input is cut. */
static void dropped_bodies_are_checked_but_not_stored(void **state)
{
    static const struct http_limits ask = { .head_bytes = 4096, .body_bytes = 1000, .ask = 1 };
    static const char *const texts[] = { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello world",
                                         CHUNKED "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n" };
    (void)state;
    for (int i = 0; i < 4; i++)
        for (size_t cut = 0, size = strlen(texts[i / 2]); cut <= size; cut++) {
            const char *text = texts[i / 2];
            struct http_parser p = { 0 };
            struct buf in = { 0 };
            int asked = 0;
            enum http_answer a = HTTP_MORE;
            for (int half = 0; half < 2; half++) {
                buf_add(&in, half ? text + cut : text, half ? size - cut : cut);
                while (a != HTTP_DONE && (a = http_parse(&p, &in, &ask)) == HTTP_BODY_FOLLOWS) {
                    assert_int_equal(p.body_bytes, 0);
                    p.drop_body = i % 2;
                    asked++;
                }
            }
            assert_int_equal(a, HTTP_DONE);
            assert_int_equal(asked, 1);
            assert_int_equal(p.body_bytes, 11);
            assert_int_equal(p.req->body.size, i % 2 ? 0 : 11);
            assert_int_equal(p.req->body.data == NULL, i % 2);
            http_reset(&p);
            buf_release(&in);
        }
    struct http_parser p = { 0 };
    struct buf in = { 0 };
    buf_str(&in, CHUNKED "3e8\r\n");           /* dropped bytes count against the limit, too */
    for (int i = 0; i < 1000; i++)
        buf_str(&in, "x");
    buf_str(&in, "\r\n1\r\n");
    assert_int_equal(http_parse(&p, &in, &ask), HTTP_BODY_FOLLOWS);
    p.drop_body = 1;
    assert_int_equal(http_parse(&p, &in, &ask), HTTP_REFUSED);
    assert_int_equal(p.status, 413);
    http_reset(&p);
    buf_release(&in);
    buf_str(&in, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_int_equal(http_parse(&p, &in, &ask), HTTP_DONE);
    http_reset(&p);
    buf_release(&in);
}

static void absolute_targets_are_split_into_their_parts(void **state)
{
    static const struct { const char *target, *host, *path, *query; } good[] = {
        { "http://H:8/a/b?c=1", "h:8", "/a/b", "c=1" }, { "https://h:8", "h:8", "/", "" },
            { "http://h:8?c=1", "h:8", "/", "c=1" },
        { "http://h:80/a", "h", "/a", "" }, { "http://h/a", "h:80", "/a", "" }, { "https://h:443/a", "H", "/a", "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct http_parser p = { 0 };
        struct buf in = { 0 };
        char text[100];
        buf_add(&in, text, (size_t)snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", good[i].target,
                                            good[i].host));
        assert_int_equal(http_parse(&p, &in, &limits), HTTP_DONE);
        assert_string_equal(p.req->path, good[i].path);
        assert_string_equal(p.req->query, good[i].query);
        http_reset(&p);
        buf_release(&in);
    }
}

/* Processor time to parse `total` bytes of one-byte chunks (or frames), received in pieces of
 * `piece` bytes. */
static double seconds_for(size_t piece, size_t total, int frames)
{
    static const char head[] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
                      chunk[] = "1\r\nx\r\n", frame[] = "\x8a\x81\0\0\0\0x";
    const char *const one = frames ? frame : chunk;
    const size_t n = frames ? sizeof frame - 1 : sizeof chunk - 1;
    struct http_parser p = { 0 };
    struct ws_parser w = { 0 };
    struct buf in = { 0 };
    char data[125];
    size_t size;
    int status;
    buf_add(&in, head, sizeof head - 1);
    assert_int_equal(http_parse(&p, &in, &(struct http_limits){ .head_bytes = 4096, .body_bytes = total }), HTTP_MORE);
    const clock_t begin = clock();
    for (size_t done = 0; done < total; done += piece) {
        size_t at = 0;
        for (size_t i = 0; i < piece; i += n)
            buf_add(&in, one, n);
        if (frames)
            while (ws_parse(&w, &in, &at, 100, data, &size, &status) == WS_GOT_PONG)
                ;
        else
            assert_int_equal(http_parse(&p, &in, &(struct http_limits){ .head_bytes = 4096, .body_bytes = total }),
                             HTTP_MORE);
        buf_drop(&in, at);
        assert_int_equal(in.size, 0);
    }
    http_reset(&p);
    buf_release(&in);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

/* Many small chunks or frames cost no more in one large read than in many small reads, so no client
 * can occupy the server's loop with them. */
static void many_small_pieces_cost_no_more_at_once(void **state)
{
    (void)state;
    for (int frames = 0; frames < 2; frames++) {
        double small = 1e9, large = 1e9;
        for (int i = 0; i < 3; i++) {
            small = fmin(small, seconds_for(4200, 1 << 20, frames));
            large = fmin(large, seconds_for(420000, 1 << 20, frames));
        }
        if (large > 30 * small + 0.05)                  /* moving the rest of the buffer for each
                                                         * chunk would take 1000 times as long */
            fail_msg("%s of one byte: %.3f s in large pieces, %.3f in small ones", frames ? "frames" : "chunks", large,
                     small);
    }
}

static void split_frames_become_whole_messages(void **state)
{
    static const unsigned char frames[] = { 0x01, 0x82, 1, 2, 3, 4, 'h' ^ 1, 'e' ^ 2, 0x89, 0x81, 0, 0, 0, 0, 'p', 0x80,
                                            0x83, 1, 1, 1, 1, 'l' ^ 1, 'l' ^ 1, 'o' ^ 1, 0x88, 0x82, 0, 0, 0, 0, 0x03,
                                            0xE9 };
    static const enum ws_event expected[] = { WS_FRAGMENT, WS_GOT_PING, WS_MESSAGE, WS_GOT_CLOSE };
    struct ws_parser p = { 0 };
    struct buf in = { 0 }, out = { 0 };
    char data[125], accept[29];
    size_t size, at = 0;
    int status = 0, k = 0;
    (void)state;
    for (size_t i = 0; i < sizeof frames; i++) {
        buf_add(&in, frames + i, 1);
        enum ws_event e = ws_parse(&p, &in, &at, 100, data, &size, &status);
        if (e == WS_MORE)
            continue;
        assert_true(k < 4);
        assert_int_equal(e, expected[k++]);
        if (e == WS_GOT_PING)
            assert_true(size == 1 && data[0] == 'p');
        if (e == WS_MESSAGE) {
            assert_int_equal(p.message.size, 5);
            assert_memory_equal(p.message.data, "hello", 5);
            ws_next(&p);
        }
    }
    assert_int_equal(k, 4);
    assert_int_equal(status, 1001);
    buf_release(&in);
    char large[70000] = { 0 };
    ws_frame(&out, WS_TEXT, large, 125);
    ws_frame(&out, WS_TEXT, large, 126);
    ws_frame(&out, WS_TEXT, large, 70000);
    assert_int_equal(out.size, 2 + 125 + 4 + 126 + 10 + 70000);
    assert_memory_equal(out.data + 127, "\x81\x7e\x00\x7e", 4);
    assert_memory_equal(out.data + 257, "\x81\x7f\0\0\0\0\0\1\x11\x70", 10);
    buf_release(&out);
    assert_int_equal(ws_accept("dGhlIHNhbXBsZSBub25jZQ==", accept), 0);
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_int_equal(ws_accept("x", accept), -1);
}

static void numeric_fields_enforce_their_bounds(void **state)
{
    struct problem pr;
    struct err e;
    (void)state;
    for (int i = 0; i < n_fields; i++) {
        assert_true(*fields[i].about);
        for (int k = 0; k < i; k++)
            assert_false(strcmp(fields[i].name, fields[k].name) == 0 && fields[i].bodies & fields[k].bodies);
        if (fields[i].schema) {
            json_t *j = js_parse(fields[i].name, fields[i].schema, strlen(fields[i].schema), &e);
            assert_non_null(j);
            json_decref(j);
        }
    }
    /* every numeric field: its bounds are accepted; a value beyond them is refused with the field's
     * name */
    for (int i = 0; i < n_fields; i++) {
        const struct field *f = &fields[i];
        if (f->type != FIELD_INT && f->type != FIELD_REAL && f->type != FIELD_DOUBLE)
            continue;
        const double values[] = { f->min, f->max, f->min - 1 - 2 * (f->min < 0 ? -f->min : f->min), f->max * 2 + 1 };
        for (int k = 0; k < 4; k++) {
            struct params p = { 0 };
            json_t *body = json_pack("{s:f}", f->name, values[k]);
            const body_set kind = f->bodies & -f->bodies;
            assert_int_equal(fields_parse(body, kind, &p, &pr), k < 2 ? 0 : -1);
            const char *at = (const char *)&p + f->at;
            if (k >= 2)
                assert_string_equal(pr.param, f->name);
            else if (f->type == FIELD_INT)
                assert_int_equal(*(const int *)at, (int)values[k]);
            else if (f->type == FIELD_REAL)
                assert_true(*(const float *)at == (float)values[k]);
            else
                assert_true(*(const double *)at == values[k]);
            json_decref(body);
        }
    }
    struct params p = { 0 };
    json_t *body = json_pack("{s:n, s:[], s:s}", "temperature", "tools", "tool_choice", "none");
    assert_int_equal(fields_parse(body, BODY_CHAT, &p, &pr), 0);
    assert_int_equal(fields_parse(body, BODY_COMPLETION, &p, &pr), -1);
    assert_string_equal(pr.code, "unknown_parameter");
    p.ignored.tolerant = 1;
    assert_int_equal(fields_parse(body, BODY_COMPLETION, &p, &pr), 0);
    assert_int_equal(p.ignored.n, 2);
    assert_string_equal(p.ignored.list, "tools, tool_choice");
    json_decref(body);
    for (int i = 0; i < 98; i++) {
        char name[200];
        snprintf(name, sizeof name, "%d\n%0*d", i, 2 * i, 0);
        assert_int_equal(fields_unknown(&p.ignored, "a\xff", name, &pr), 0);
        assert_true(strlen(p.ignored.list) < sizeof p.ignored.list);
        assert_null(strpbrk(p.ignored.list, "\r\n\xff"));
    }
    assert_int_equal(fields_unknown(&p.ignored, NULL, "x", &pr), -1);
    assert_int_equal(fields_unknown(NULL, "a", "x", &pr), -1);
    assert_string_equal(pr.message, "a: x: no such field");
    static const struct { double value; const char *says; } fractions[] = {
        { 1700000000.5, "expires_at: 1700000000.5 is not a whole number" },
            { 0.1, "expires_at: 0.1 is not a whole number" },
        { 0x1p53, "expires_at: 9007199254740992 is not in the range 0 to 4503599627370496" },
    };
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++) {
        body = json_pack("{s:f}", "expires_at", fractions[i].value);
        assert_int_equal(fields_parse(body, BODY_KEY, &p, &pr), -1);
        assert_string_equal(pr.message, fractions[i].says);
        json_decref(body);
    }
}

static void json_text_escapes_what_it_must(void **state)
{
    static const char text[] = "a\"\\\n\x01\x7f\xc3\xa9\xff\xe2\x82";
    struct buf b = { 0 };
    (void)state;
    buf_json(&b, text, sizeof text);            /* with its zero byte */
    buf_add(&b, "", 1);
    assert_string_equal(b.data, "\"a\\\"\\\\\\n\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\\u0000\"");
    buf_release(&b);
}

/* Check the result for the whole text, and for pieces of every size. */
static void split_as(const char *text, int begin, const char *reasoning, const char *answer)
{
    const size_t n = strlen(text);
    for (size_t step = 1; step <= n + 1; step++) {
        struct reasoning_splitter s = { .state = begin };
        struct buf r = { 0 }, a = { 0 };
        for (size_t at = 0; at < n; at += step)
            splitter_push(&s, text + at, n - at < step ? n - at : step, 0, &r, &a);
        splitter_push(&s, "", 0, 1, &r, &a);
        buf_add(&r, "", 1);
        buf_add(&a, "", 1);
        assert_string_equal(r.data, reasoning);
        assert_string_equal(a.data, answer);
        buf_release(&r);
        buf_release(&a);
    }
}

static void reasoning_is_split_from_the_answer(void **state)
{
    (void)state;
    split_as("<think>\nhm, 2 < 3\n</think>\n\n4", SPLIT_UNDECIDED, "hm, 2 < 3\n", "4");
    split_as("hm</think>4 </think> 5", SPLIT_REASONING, "hm", "4 </think> 5");
    split_as("no tags, 2 < 3", SPLIT_UNDECIDED, "", "no tags, 2 < 3");
    split_as("  <thin", SPLIT_UNDECIDED, "", "  <thin");
    split_as("\n\n<think></think>x", SPLIT_UNDECIDED, "", "x");
    split_as("cut off </thi", SPLIT_REASONING, "cut off </thi", "");
    split_as("<think>a</think>b", SPLIT_ANSWER, "", "<think>a</think>b");
}

/* Next state of the memory watch: memory becomes short (TRIM), is sufficient again (FINE), is used
 * up (END).  In a control group the group's own figures decide. */
static void the_memory_watch_follows_each_reading(void **state)
{
    static const struct { enum watch_state before; int most_mib,
                          left_mib; double stalled; enum watch_state after; } all[] = {
        { WATCH_FINE, 10000, 5000, 0, WATCH_FINE }, { WATCH_FINE, 10000, 300, -1, WATCH_FINE },
            { WATCH_FINE, 10000, 299, -1, WATCH_TRIM }, { WATCH_FINE, 10000, 100, 0, WATCH_END },
        { WATCH_TRIM, 10000, 399, 0, WATCH_TRIM },  { WATCH_TRIM, 10000, 400, 0, WATCH_FINE },
        { WATCH_TRIM, 10000, 199, 0, WATCH_END },   { WATCH_END, 10000, 5000, 0, WATCH_END },
        /* enough memory, although it is a small fraction of the total */
        { WATCH_FINE, 1000000, 1024, 0, WATCH_FINE }, { WATCH_FINE, 1000000, 1023, 0, WATCH_TRIM },
            { WATCH_TRIM, 1000000, 1280, 0, WATCH_FINE },
        { WATCH_TRIM, 1000000, 256, 0, WATCH_TRIM },  { WATCH_TRIM, 1000000, 255, 0, WATCH_END },
        /* a model that was admitted with 95 % of the memory */
        { WATCH_FINE, 1000, 50, 0, WATCH_FINE },      { WATCH_TRIM, 1000, 50, 0, WATCH_FINE },
        /* stalls of tasks count only while little memory is left; otherwise they have another
         * cause */
        { WATCH_FINE, 10000, 5000, 90, WATCH_FINE },  { WATCH_FINE, 10000, 1499, 25, WATCH_TRIM },
            { WATCH_FINE, 10000, 1499, 24, WATCH_FINE },
        { WATCH_TRIM, 10000, 1499, 15, WATCH_TRIM },  { WATCH_TRIM, 10000, 1499, 9, WATCH_FINE },
        { WATCH_TRIM, 10000, 1500, 15, WATCH_FINE },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const uint64_t most = (uint64_t)all[i].most_mib << 20, left = (uint64_t)all[i].left_mib << 20;
        struct memory m = { .total = most, .available = left, .stalled10 = all[i].stalled, .stalled_own = 1 };
        assert_int_equal(watch_next(all[i].before, &m), all[i].after);
        m = (struct memory){ .total = 10 * most, .available = 9 * most, .limit = most, .left = left, .hard = most,
                             .hard_left = left, .stalled10 = all[i].stalled, .stalled_own = 1 };
        assert_int_equal(watch_next(all[i].before, &m), all[i].after);
    }
    /* neither stalls of other processes nor memory.high, at which the kernel ends nothing, count as
     * a lack of memory */
    struct memory m = { .total = 100ull << 30, .available = 10ull << 30, .stalled10 = 90 };
    assert_int_equal(watch_next(WATCH_FINE, &m), WATCH_FINE);
    m = (struct memory){ .total = 100ull << 30, .available = 50ull << 30, .limit = 10ull << 30, .left = 0,
                         .hard = 20ull << 30, .hard_left = 10ull << 30 };
    assert_int_equal(watch_next(WATCH_TRIM, &m), WATCH_TRIM);
    m.hard = m.hard_left = 0;
    assert_int_equal(watch_next(WATCH_TRIM, &m), WATCH_TRIM);
}

/* A single reading never makes the state worse, and TRIM comes before END. */
static void one_reading_never_worsens_the_state(void **state)
{
    static const struct { int left_mib; enum watch_state after; } steps[] = {
        { 100, WATCH_FINE }, { 5000, WATCH_FINE }, { 250, WATCH_FINE }, { 250, WATCH_TRIM }, { 100, WATCH_TRIM },
            { 250, WATCH_TRIM }, { 5000, WATCH_FINE },
        { 100, WATCH_FINE }, { 100, WATCH_TRIM },  { 100, WATCH_END },  { 5000, WATCH_END },
    };
    struct memory_watch w = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct memory m = { .total = 10000ull << 20, .available = (uint64_t)steps[i].left_mib << 20, .stalled10 = -1 };
        watch_step(&w, &m);
        assert_int_equal(w.state, steps[i].after);
    }
}

/* ---- memory of requests ---- */

static size_t allocated, most_allocated;

static void *counting_malloc(size_t n)
{
    void *p = malloc(n);
    allocated += p ? malloc_usable_size(p) + sizeof(size_t) : 0;
    most_allocated = allocated > most_allocated ? allocated : most_allocated;
    return p;
}

static void counting_free(void *p)
{
    allocated -= p ? malloc_usable_size(p) + sizeof(size_t) : 0;
    free(p);
}

/* BEFORE, PIECE n times, AFTER. */
static char *repeated(const char *before, const char *piece, int n, const char *after)
{
    struct buf b = { 0 };
    buf_str(&b, before);
    for (int i = 0; i < n; i++)
        if (strchr(piece, '%'))
            buf_printf(&b, piece, i);       /* NOLINT: a literal below */
        else
            buf_str(&b, piece);
    buf_str(&b, after);
    buf_add(&b, "", 1);
    assert_false(b.failed);
    return b.data;
}

/* A JSON tree never takes more memory than prescan_body() announced, and not less than a fifth of
 * it. */
static void trees_take_what_is_announced(void **state)
{
    static const struct { const char *before, *piece, *after; } shapes[] = {
        { "{\"messages\":[", "{},", "{}]}" }, { "{\"messages\":[", "[],", "1]}" }, { "{\"messages\":[", "1,", "2]}" },
            { "{\"messages\":[", "1.5,", "2]}" }, { "{\"messages\":[", "\"\",", "2]}" },
        { "{\"messages\":[", "true,", "2]}" }, { "{\"messages\":[", "{\"a\":{}},", "2]}" },
        { "{\"messages\":{", "\"k%d\":0,", "\"x\":0}}" }, { "{\"messages\":\"", "abcdefgh", "\"}" },
        { "{\"messages\":[", "[[[[[[[[[[]]]]]]]]]],", "2]}" }, { "{\"messages\":\"", "\\u00e9", "\"}" },
        { "{\"messages\":[", "{},", "" }, { "{\"messages\":[", "\"x\",", "nul]}" },
        { "{\"seed\":[", "12345678901234567890,", "1]}" },
    };
    (void)state;
    json_set_alloc_funcs(counting_malloc, counting_free);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int n = 1; n < 100000; n = n * 3 + 1) {
            char *text = repeated(shapes[i].before, shapes[i].piece, n, shapes[i].after);
            struct prescan p;
            struct problem pr;
            struct err e;
            assert_int_equal(prescan_body(text, strlen(text), BODY_CHAT, &p, &pr), 0);
            allocated = most_allocated = 0;
            json_decref(js_parse("body", text, strlen(text), &e));
            if (most_allocated > p.tree_bytes || (n > 100 && p.tree_bytes > 5 * most_allocated))
                fail_msg("%s%s * %d: announced %zu, took %zu", shapes[i].before, shapes[i].piece, n, p.tree_bytes,
                         most_allocated);
            assert_int_equal(allocated, 0);
            free(text);
        }
    json_set_alloc_funcs(malloc, free);
}

static void what_is_ignored_never_becomes_a_tree(void **state)
{
    static const struct { const char *in, *out; } cases[] = {
        { "{\"metadata\":[{},{}],\"n\":1}", "{ \"n\":1}" },
            { "{\"n\":1,\"metadata\":{\"a\":\"\\\"}]\"}}", "{\"n\":1 }" }, { "{\"metadata\":null}", "{ }" },
            { "{\"metadata\":1,\"store\":true}", "{ }" },
        { "{\"store\":1,\"n\":1,\"metadata\":1.5e-3 , \"store_\":1}", "{ \"n\":1, \"store_\":1}" },
        { "{ \"n\" : 1 , \"metadata\" : [ ] }", "{ \"n\" : 1 }" },
        { "{\"n\":{\"metadata\":1}}", "{\"n\":{\"metadata\":1}}" },
        /* not valid: jansson sees it */
        { "{\"metadata\":[{},{]}", NULL }, { "{\"metadata\":\"\xff\"}", NULL }, { "{\"metadata\":01}", NULL },
            { "{\"metadata\":1.}", NULL }, { "{\"metadata\":\"\\x\"}", NULL }, { "{\"metadata\":{\"a\"}}", NULL },
            { "{\"metadata\":[1,]}", NULL },
        { "{\"metadata\":tru}", NULL }, { "{\"metadata\":\"\\u12g4\"}", NULL }, { "{\"metadata\":[1}", NULL },
        { "{\"metadata\":1", NULL }, { "[{\"metadata\":1}]", NULL }, { "{\"metadata\":\"\x01\"}", NULL },
        { "{\"metadata\":}", NULL }, { "", NULL }, { "{", NULL },
    };
    struct prescan p;
    struct problem pr;
    char text[600];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf squeezed = { 0 };
        strcpy(text, cases[i].in);
        assert_int_equal(prescan_body(text, strlen(text), BODY_CHAT, &p, &pr), 0);
        assert_int_equal(strlen(text), strlen(cases[i].in));
        for (const char *c = text; *c; c++)
            if (*c != ' ' || c == text || c[-1] != ' ')
                buf_add(&squeezed, c, 1);
        buf_add(&squeezed, "", 1);
        assert_string_equal(squeezed.data, cases[i].out ? cases[i].out : cases[i].in);
        buf_release(&squeezed);
        /* every beginning of the body, each in an allocation of exactly its size */
        for (size_t cut = 0; cut < strlen(cases[i].in); cut++) {
            char *part = malloc(cut + 1);
            memcpy(part, cases[i].in, cut);
            prescan_body(part, cut, BODY_CHAT, &p, &pr);
            free(part);
        }
    }
    strcpy(text, "{\"metadata\":1,\"metadata\":2}");
    assert_int_equal(prescan_body(text, strlen(text), BODY_CHAT, &p, &pr), -1);
    assert_non_null(strstr(pr.message, "duplicate"));
    memset(text, '[', sizeof text);
    assert_int_equal(prescan_body(text, JSON_DEPTH, BODY_CHAT, &p, &pr), 0);
    assert_int_equal(prescan_body(text, JSON_DEPTH + 1, BODY_CHAT, &p, &pr), -1);
    assert_non_null(strstr(pr.message, "levels"));
}

static void memory_is_admitted_before_it_is_taken(void **state)
{
    struct err e;
    struct problem pr;
    struct account_stats s;
    struct account *a = account_open(100, 400, &e);
    struct account *whole = account_open(400, 400, &e);
    struct hold h[8], small[4], alone = hold_for(whole, 1);
    (void)state;
    for (int i = 0; i < 8; i++)
        h[i] = hold_for(a, i < 4 ? 1 : (uint64_t)i);
    for (int i = 0; i < 4; i++)
        small[i] = hold_for(a, (uint64_t)i + 100);
    assert_int_equal(hold_set(&h[0], 101), HOLD_REQUEST);
    hold_problem(&h[0], HOLD_REQUEST, 101, &pr);
    assert_int_equal(pr.status, 413);
    assert_non_null(strstr(pr.message, "--max-request-memory"));
    assert_int_equal(hold_set(&h[0], 100), HOLD_OK);
    assert_int_equal(hold_set(&h[1], 60), HOLD_OK);
    /* a tenant gets at most half of the limit */
    assert_int_equal(hold_set(&h[2], 41), HOLD_TENANT);
    hold_problem(&h[2], HOLD_TENANT, 41, &pr);
    assert_int_equal(pr.status, 429);
    assert_int_equal(hold_set(&h[2], 40), HOLD_OK);
    assert_int_equal(hold_set(&h[3], 1), HOLD_TENANT);
    assert_int_equal(hold_set(&h[0], 50), HOLD_OK);
    assert_int_equal(hold_set(&h[3], 50), HOLD_OK);
    assert_int_equal(hold_set(&h[4], 100), HOLD_OK);
    assert_int_equal(hold_set(&h[5], 50), HOLD_OK);
    /* an eighth is reserved for small requests */
    assert_int_equal(hold_set(&h[6], 13), HOLD_TOTAL);
    assert_int_equal(hold_set(&h[6], 12), HOLD_OK);
    assert_int_equal(hold_set(&h[6], 13), HOLD_TOTAL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hold_set(&small[i], 12), HOLD_OK);
    assert_int_equal(hold_set(&small[3], 3), HOLD_TOTAL);           /* 398 of 400 are held */
    hold_problem(&small[3], HOLD_TOTAL, 3, &pr);
    assert_int_equal(pr.status, 503);
    assert_non_null(strstr(pr.message, "--work-memory"));
    account_stats(a, &s);
    assert_true(s.used == 398 && s.peak == 398 && s.n_holds == 10 && s.refused == 6);
    for (int i = 0; i < 8; i++)
        hold_release(&h[i]);
    hold_release(&h[0]);
    for (int i = 0; i < 4; i++)
        hold_release(&small[i]);
    account_stats(a, &s);
    assert_true(s.used == 0 && s.peak == 398 && s.n_holds == 0);
    assert_int_equal(hold_set(&alone, 351), HOLD_REQUEST);
    assert_int_equal(hold_set(&alone, 350), HOLD_OK);
    hold_release(&alone);
    account_close(whole);
    account_close(a);
}

static int is_kept(struct response_store *s, int number, uint64_t owner)
{
    char id[16];
    snprintf(id, sizeof id, "r%d", number);
    return response_store_find(s, id, owner, NULL) != NULL;
}

static void no_owner_pushes_out_what_others_keep(void **state)
{
    struct response_store *s = response_store_open(4 << 20);
    const struct kept_response small = { .json = (char[]){ "{}" }, .json_size = 2, .items = (char[]){ "" } };
    struct kept_response large = { .json = calloc(1, 700000), .json_size = 699999, .items = (char[]){ "" } };
    char id[16];
    (void)state;
    assert_true(s && large.json);
    response_store_put(s, "r0", 1, NULL, &small);
    for (int i = 0; i < 5000; i++) {
        snprintf(id, sizeof id, "r%d", i);
        response_store_put(s, id, 2, NULL, &small);
    }
    assert_true(is_kept(s, 0, 1));
    assert_true(!is_kept(s, 0, 2) && !is_kept(s, 3975, 2) && is_kept(s, 3976, 2) && is_kept(s, 4999, 2));
    response_store_put(s, "r5000", 2, NULL, &large);
    response_store_put(s, "r5001", 2, NULL, &large);            /* two are more than a quarter of 4 MiB */
    assert_true(is_kept(s, 0, 1) && !is_kept(s, 5000, 2) && !is_kept(s, 4999, 2) && is_kept(s, 5001, 2));
    free(large.json);
    response_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_watch_follows_each_reading), cmocka_unit_test(one_reading_never_worsens_the_state),
        cmocka_unit_test(test_http_cut_at_every_byte), cmocka_unit_test(requests_beyond_the_limits_are_refused),
        cmocka_unit_test(only_valid_heads_are_accepted), cmocka_unit_test(dropped_bodies_are_checked_but_not_stored),
        cmocka_unit_test(absolute_targets_are_split_into_their_parts),
        cmocka_unit_test(split_frames_become_whole_messages),
        cmocka_unit_test(many_small_pieces_cost_no_more_at_once), cmocka_unit_test(numeric_fields_enforce_their_bounds),
        cmocka_unit_test(json_text_escapes_what_it_must), cmocka_unit_test(reasoning_is_split_from_the_answer),
        cmocka_unit_test(trees_take_what_is_announced), cmocka_unit_test(what_is_ignored_never_becomes_a_tree),
        cmocka_unit_test(memory_is_admitted_before_it_is_taken),
        cmocka_unit_test(no_owner_pushes_out_what_others_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
