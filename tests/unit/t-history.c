/* t-history.c - the chat history: branches, quotas, search, export and import, and files that are
 * damaged, locked, full, or written to by a process that is killed. */
#include "tests/unit/folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>
#include <sqlite3.h>

#include "libcommon/base/clock.h"
#include "libcommon/history/internal.h"

static struct history_problem p;

static struct history *open_here(void)
{
    struct history *h = history_open(folder, NULL, &p);
    e = p.e;
    if (!h)
        fail_msg("%s", e.msg);
    return h;
}

static json_t *js(const char *text)
{
    json_error_t je;
    json_t *j = json_loads(text, 0, &je);
    if (!j)
        fail_msg("%s: %s", text, je.text);
    return j;
}

/* Call a function with fields as text; the reference is released. */
#define WITH(text, call) \
    __extension__ ({ json_t *fields = js(text); __auto_type out_ = (call); json_decref(fields); out_; })

static char *new_conversation(struct history *h, const char *owner, const char *fields_text)
{
    static char id[4][HISTORY_ID + 1];
    static int at;
    json_t *c = WITH(fields_text, history_create(h, owner, fields, &p));
    if (!c)
        fail_msg("%s", p.e.msg);
    at = (at + 1) % 4;
    strcpy(id[at], json_string_value(json_object_get(c, "id")));
    json_decref(c);
    return id[at];
}

/* The id of the new message. */
static int64_t say(struct history *h, const char *owner, const char *id, const char *fields_text)
{
    json_t *m = WITH(fields_text, history_add(h, owner, id, fields, &p));
    if (!m)
        return -1;
    const int64_t n = json_integer_value(json_object_get(m, "id"));
    json_decref(m);
    return n;
}

/* A member of an object as text, which is valid until the next call. */
static const char *member(const json_t *o, const char *name)
{
    static char *text;
    free(text);
    const json_t *v = json_object_get(o, name);
    text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : strdup("absent");
    return text;
}

/* Ids of the messages that a page has: "1,3". */
static const char *page_ids(struct history *h, const char *id, int active)
{
    static char out[200];
    const struct history_page page = { .limit = 1000, .active = active };
    json_t *j = history_messages(h, "", id, &page, &p), *m;
    size_t i, n = 0;
    assert_non_null(j);
    out[0] = '\0';
    json_array_foreach(json_object_get(j, "messages"), i, m)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%d", i ? "," : "",
                              (int)json_integer_value(json_object_get(m, "id")));
    json_decref(j);
    return out;
}

static int64_t number_in(struct history *h, const char *id, const char *name)
{
    json_t *c = history_get(h, "", id, &p);
    assert_non_null(c);
    const json_t *v = json_object_get(c, name);
    const int64_t n = json_is_null(v) ? -1 : json_integer_value(v);
    json_decref(c);
    return n;
}

static int64_t stat_of(struct history *h, const char *owner, const char *name)
{
    json_t *s = history_stats(h, owner, &p);
    const int64_t n = json_integer_value(json_object_get(s, name));
    json_decref(s);
    return n;
}

/* ---- conversations and fields ---- */

static void a_conversation_keeps_its_fields(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{\"title\":\"T\",\"settings\":{\"temperature\":0.7,\"n\":1e300},\"tags\":[\"a\",\"b\"],\"model\":\"m\",\"folder\":\"f\"}");
    json_t *c = history_get(h, "", id, &p);
    assert_string_equal(member(c, "settings"), "{\"temperature\":0.7,\"n\":1e300}");
    assert_string_equal(member(c, "tags"), "[\"a\",\"b\"]");
    json_decref(c);
    /* absent stays, null resets */
    c = WITH("{\"title\":null,\"folder\":null,\"settings\":null,\"system_prompt\":\"S\"}",
             history_update(h, "", id, fields, &p));
    assert_string_equal(member(c, "title"), "\"New Chat\"");
    assert_string_equal(member(c, "folder"), "null");
    assert_string_equal(member(c, "settings"), "{}");
    assert_string_equal(member(c, "model"), "\"m\"");
    assert_string_equal(member(c, "system_prompt"), "\"S\"");
    assert_string_equal(member(c, "tags"), "[\"a\",\"b\"]");
    json_decref(c);
    assert_int_equal(history_delete(h, "", id, &p), 0);
    assert_null(history_get(h, "", id, &p));
    assert_int_equal(p.fault, HISTORY_NOT_FOUND);
    assert_int_equal(stat_of(h, "", "bytes"), 0);
    history_close(h);
}

static void bad_values_are_named(void **state)
{
    (void)state;
    static const struct { const char *fields, *field; enum history_fault fault; } bad[] = {
        { "{\"title\":5}", "title", HISTORY_BAD_VALUE }, { "{\"title\":\"\"}", "title", HISTORY_BAD_VALUE },
        { "{\"settings\":[]}", "settings", HISTORY_BAD_VALUE }, { "{\"tags\":{}}", "tags", HISTORY_BAD_VALUE },
        { "{\"tags\":[\"a\",\"a\"]}", "tags", HISTORY_BAD_VALUE }, { "{\"tags\":[\"\"]}", "tags", HISTORY_BAD_VALUE },
        { "{\"tags\":[1]}", "tags", HISTORY_BAD_VALUE }, { "{\"pinned\":1}", "pinned", HISTORY_BAD_VALUE },
        { "{\"folder\":\"\"}", "folder", HISTORY_BAD_VALUE },
        { "{\"system_prompt\":{}}", "system_prompt", HISTORY_BAD_VALUE },
    };
    static const struct { const char *fields, *field; } bad_message[] = {
        { "{\"content\":\"x\"}", "role" }, { "{\"role\":\"user\"}", "content" },
        { "{\"role\":\"bot\",\"content\":\"x\"}", "role" }, { "{\"role\":\"user\",\"content\":null}", "content" },
        { "{\"role\":\"user\",\"content\":\"x\",\"tokens\":-1}", "tokens" },
        { "{\"role\":\"user\",\"content\":\"x\",\"tokens\":1.5}", "tokens" },
        { "{\"role\":\"user\",\"content\":\"x\",\"latency_ms\":\"1\"}", "latency_ms" },
        { "{\"role\":\"user\",\"content\":\"x\",\"metadata\":[]}", "metadata" },
        { "{\"role\":\"user\",\"content\":\"x\",\"parent_id\":9}", "parent_id" },
        { "{\"role\":\"user\",\"content\":\"x\",\"parent_id\":0}", "parent_id" },
    };
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(WITH(bad[i].fields, history_create(h, "", fields, &p)));
        assert_int_equal(p.fault, bad[i].fault);
        assert_string_equal(p.field, bad[i].field);
    }
    for (size_t i = 0; i < sizeof bad_message / sizeof *bad_message; i++) {
        assert_int_equal(say(h, "", id, bad_message[i].fields), -1);
        assert_int_equal(p.fault, HISTORY_BAD_VALUE);
        assert_string_equal(p.field, bad_message[i].field);
    }
    assert_null(WITH("{\"active_leaf\":null}", history_update(h, "", id, fields, &p)));
    assert_null(WITH("{\"active_leaf\":1}", history_update(h, "", id, fields, &p)));
    assert_string_equal(p.field, "active_leaf");
    assert_int_equal(stat_of(h, "", "messages"), 0);
    /* a size over its limit */
    char *long_title = malloc(HISTORY_TITLE + 2);
    memset(long_title, 'x', HISTORY_TITLE + 1);
    long_title[HISTORY_TITLE + 1] = '\0';
    json_t *fields = json_pack("{s:s}", "title", long_title);
    assert_null(history_create(h, "", fields, &p));
    assert_int_equal(p.fault, HISTORY_TOO_LARGE);
    json_decref(fields);
    free(long_title);
    history_close(h);
}

static void lists_have_pages_and_filters(void **state)
{
    (void)state;
    struct history *h = open_here();
    char text[100];
    for (int i = 0; i < 30; i++) {
        snprintf(text, sizeof text, "{\"title\":\"t%d\",\"folder\":%s,\"tags\":[\"x%d\"],\"pinned\":%s}", i,
                 i % 2 ? "\"odd\"" : "null", i % 3, i == 4 ? "true" : "false");
        new_conversation(h, "", text);
    }
    struct history_filter f = { .limit = 10, .offset = 0 };
    json_t *l = history_list(h, "", &f, &p);
    assert_string_equal(member(l, "total"), "30");
    assert_int_equal(json_array_size(json_object_get(l, "conversations")), 10);
    assert_string_equal(member(json_array_get(json_object_get(l, "conversations"), 0), "title"), "\"t4\"");
    assert_string_equal(member(json_array_get(json_object_get(l, "conversations"), 1), "title"), "\"t29\"");
    json_decref(l);
    f = (struct history_filter){ .limit = 10, .offset = 25 };
    l = history_list(h, "", &f, &p);
    assert_int_equal(json_array_size(json_object_get(l, "conversations")), 5);
    json_decref(l);
    f = (struct history_filter){ .limit = 100, .folder = "odd", .tag = "x1" };
    l = history_list(h, "", &f, &p);
    assert_string_equal(member(l, "total"), "5");
    assert_int_equal(json_array_size(json_object_get(l, "conversations")), 5);
    json_decref(l);
    history_close(h);
}

/* ---- branches ---- */

static void messages_form_branches(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"  \\n What is a tree?\\nReally\",\"tokens\":3}"),
                     1);
    assert_int_equal(say(h, "", id, "{\"role\":\"assistant\",\"content\":\"A plant.\",\"tokens\":4}"), 2);
    assert_int_equal(say(h, "", id, "{\"role\":\"assistant\",\"content\":\"A graph.\",\"parent_id\":1}"), 3);
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"Which one?\"}"), 4);
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"Another question\",\"parent_id\":null}"), 5);
    json_t *c = history_get(h, "", id, &p);
    assert_string_equal(member(c, "title"), "\"What is a tree?\"");
    assert_string_equal(member(c, "message_count"), "5");
    assert_string_equal(member(c, "total_tokens"), "7");
    json_decref(c);
    assert_string_equal(page_ids(h, id, 0), "1,2,3,4,5");
    assert_string_equal(page_ids(h, id, 1), "5");
    json_decref(WITH("{\"active_leaf\":4}", history_update(h, "", id, fields, &p)));
    assert_string_equal(page_ids(h, id, 1), "1,3,4");
    json_decref(WITH("{\"active_leaf\":2}", history_update(h, "", id, fields, &p)));
    assert_string_equal(page_ids(h, id, 1), "1,2");
    /* after an edit a search finds the new text instead of the old one */
    json_decref(WITH("{\"content\":\"A shrub\",\"tokens\":null}", history_edit(h, "", id, 2, fields, &p)));
    assert_int_equal(number_in(h, id, "total_tokens"), 3);
    /* removing a message removes all messages below it; the active branch stays, unless it is
     * removed */
    assert_int_equal(history_remove(h, "", id, 3, &p), 2);
    assert_string_equal(page_ids(h, id, 0), "1,2,5");
    assert_int_equal(number_in(h, id, "active_leaf"), 2);
    assert_int_equal(history_remove(h, "", id, 2, &p), 1);
    assert_int_equal(number_in(h, id, "active_leaf"), 1);
    assert_int_equal(history_remove(h, "", id, 1, &p), 1);
    assert_int_equal(number_in(h, id, "active_leaf"), 5);
    assert_int_equal(history_remove(h, "", id, 77, &p), -1);
    assert_int_equal(p.fault, HISTORY_NOT_FOUND);
    assert_int_equal(say(h, "", id, "{\"role\":\"tool\",\"content\":\"\"}"), 6);       /* ids are not used again */
    assert_int_equal(history_remove(h, "", id, 0, &p), 2);
    assert_int_equal(number_in(h, id, "active_leaf"), -1);
    assert_string_equal(page_ids(h, id, 1), "");
    assert_int_equal(stat_of(h, "", "messages"), 0);
    assert_int_equal(stat_of(h, "", "total_tokens"), 0);
    history_close(h);
}

/* ---- owners and limits ---- */

static void owners_never_meet(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *mine = new_conversation(h, "key 1", "{\"title\":\"secret plan\"}"),
               *text = "{\"role\":\"user\",\"content\":\"secret words\"}";
    const struct history_page page = { .limit = 10 };
    const struct history_filter f = { .limit = 10 };
    assert_int_equal(say(h, "key 1", mine, text), 1);
    static const char *const others[] = { "key 2", "key 11", "" };
    char *name;
    for (int i = 0; i < 3; i++) {
        const char *o = others[i];
        new_conversation(h, o, "{\"title\":\"mine\"}");
        assert_null(history_get(h, o, mine, &p));
        assert_int_equal(p.fault, HISTORY_NOT_FOUND);
        assert_null(history_messages(h, o, mine, &page, &p));
        assert_null(history_message(h, o, mine, 1, &p));
        assert_null(WITH("{\"title\":\"x\"}", history_update(h, o, mine, fields, &p)));
        assert_null(WITH("{\"content\":\"x\"}", history_edit(h, o, mine, 1, fields, &p)));
        assert_int_equal(say(h, o, mine, text), -1);
        assert_int_equal(history_delete(h, o, mine, &p), -1);
        assert_int_equal(history_remove(h, o, mine, 0, &p), -1);
        assert_null(history_export_json(h, o, mine, &name, &p));
        assert_null(history_export_markdown(h, o, mine, &name, &p));
        json_t *l = history_list(h, o, &f, &p);
        assert_string_equal(member(l, "total"), "1");
        json_decref(l);
        l = history_search(h, o, "secret", 10, &p);
        assert_string_equal(member(l, "results"), "[]");
        json_decref(l);
        assert_int_equal(history_delete_many(h, o, 0, 64, &p), 1);
    }
    assert_int_equal(stat_of(h, "key 1", "messages"), 1);
    json_t *l = history_search(h, "key 1", "secret", 10, &p);
    assert_int_equal(json_array_size(json_object_get(l, "results")), 1);
    json_decref(l);
    history_close(h);
}

static void quotas_hold(void **state)
{
    (void)state;
    const struct history_limits limits = { .conversations = 2, .bytes = 2000 };
    struct history *h = history_open(folder, &limits, &p);
    const char *id = new_conversation(h, "", "{}");
    new_conversation(h, "", "{}");
    assert_null(WITH("{}", history_create(h, "", fields, &p)));
    assert_int_equal(p.fault, HISTORY_QUOTA);
    new_conversation(h, "key 1", "{}");         /* limits are of each owner */
    int n = 0;
    while (say(h, "", id, "{\"role\":\"user\",\"content\":\"0123456789012345678901234567890123456789\"}") > 0)
        n++;
    assert_int_equal(p.fault, HISTORY_QUOTA);
    assert_in_range(n, 8, 14);
    assert_true(stat_of(h, "", "bytes") <= 2000);
    json_t *big = json_pack("{s:s%}", "system_prompt",
                            "0123456789012345678901234567890123456789012345678901234567890123456789", 1900 % 70 + 60);
    assert_null(history_update(h, "", id, big, &p));
    assert_int_equal(p.fault, HISTORY_QUOTA);
    json_decref(big);
    assert_int_equal(history_remove(h, "", id, 1, &p), n);
    assert_true(say(h, "", id, "{\"role\":\"user\",\"content\":\"x\"}") > 0);
    history_close(h);
}

static void old_conversations_go(void **state)
{
    (void)state;
    struct history *h = open_here();
    new_conversation(h, "key 1", "{}");
    new_conversation(h, "key 2", "{}");
    const int64_t between = history_now_ms() + 1;
    while (history_now_ms() <= between)
        ;
    new_conversation(h, "key 1", "{}");
    assert_int_equal(history_delete_many(h, NULL, between, 1, &p), 1);
    assert_int_equal(history_delete_many(h, NULL, between, 10, &p), 1);
    assert_int_equal(history_delete_many(h, NULL, between, 10, &p), 0);
    assert_int_equal(stat_of(h, "key 1", "conversations"), 1);
    assert_int_equal(stat_of(h, "key 2", "conversations"), 0);
    history_close(h);
}

/* ---- search ---- */

/* The titles that a search finds, with blanks between. */
static const char *found(struct history *h, const char *query)
{
    static char out[400];
    json_t *j = history_search(h, "", query, 20, &p), *r;
    size_t i, n = 0;
    out[0] = '\0';
    if (!j)
        return "refused";
    json_array_foreach(json_object_get(j, "results"), i, r)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%s", i ? " " : "",
                              json_string_value(json_object_get(json_object_get(r, "conversation"), "title")));
    json_decref(j);
    return out;
}

static void a_search_finds_words(void **state)
{
    (void)state;
    static const struct { const char *title, *text; } all[] = {
        { "A", "{\"role\":\"user\",\"content\":\"Die Wälder sind größer geworden, naïve élan\"}" },
        { "B", "{\"role\":\"user\",\"content\":\"東京タワーに行きたいです。 한국어 검색\"}" },
        { "C", "{\"role\":\"user\",\"content\":\"int snake_case_name = it's \\\"quoted\\\" AND OR NOT NEAR(x)\"}" },
        { "D", "{\"role\":\"user\",\"content\":\"the quick brown fox jumps over the lazy dog\"}" },
        { "E", "{\"role\":\"user\",\"content\":\"a brown dog is quick; 3.14159 \\uff21\\uff22\\uff23 \\u03a3\\u03af\\u03c3\\u03c5\\u03c6\\u03bf\\u03c2\"}" },
        { "Fox", "{\"role\":\"user\",\"content\":\"nothing\"}" },
    };
    static const struct { const char *query, *want; } searches[] = {
        { "walder", "A" }, { "WÄLDER", "A" }, { "wal", "A" }, { "wal ", "" }, { "grosser", "A" }, { "größer", "A" },
        { "naive elan", "A" }, { "京タ", "B" }, { "東京", "B" }, { "京東", "" }, { "국어", "B" }, { "snake_case", "C" },
        { "it's", "C" }, { "AND", "C" }, { "NEAR(", "C" }, { "\"brown fox\"", "D" }, { "\"fox brown\"", "" },
        { "brown quick", "E D" }, { "quick \"brown dog\"", "E" }, { "fox", "Fox D" }, { "3.14", "E" }, { "abc", "E" },
        { "σισυφοσ", "E" }, { "\"unclosed", "" }, { "nothing", "Fox" }, { "missing", "" }, { "fox\xff", "refused" }, { "* \" - ( )", "refused" },
        { "", "refused" },
    };
    struct history *h = open_here();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[60];
        snprintf(text, sizeof text, "{\"title\":\"%s\"}", all[i].title);
        assert_int_equal(say(h, "", new_conversation(h, "", text), all[i].text), 1);
    }
    for (size_t i = 0; i < sizeof searches / sizeof *searches; i++)
        if (strcmp(found(h, searches[i].query), searches[i].want) != 0)
            fail_msg("'%s': found '%s', expected '%s'", searches[i].query, found(h, searches[i].query),
                     searches[i].want);
    history_close(h);
}

static void changes_reach_the_index(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{\"title\":\"old\"}");
    say(h, "", id, "{\"role\":\"user\",\"content\":\"first\"}");
    json_decref(WITH("{\"title\":\"new\"}", history_update(h, "", id, fields, &p)));
    json_decref(WITH("{\"content\":\"second\"}", history_edit(h, "", id, 1, fields, &p)));
    assert_string_equal(found(h, "old"), "");
    assert_string_equal(found(h, "first"), "");
    assert_string_equal(found(h, "new"), "new");
    assert_string_equal(found(h, "second"), "new");
    history_remove(h, "", id, 1, &p);
    assert_string_equal(found(h, "second"), "");
    assert_int_equal(history_delete(h, "", id, &p), 0);
    assert_string_equal(found(h, "new"), "");
    history_close(h);
}

static void snippets_show_the_place(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{\"title\":\"t\"}");
    /* characters outside the basic plane count twice */
    say(h, "", id, "{\"role\":\"user\",\"content\":\"\\ud83d\\ude00\\ud83d\\ude00 x needle y\"}");
    json_t *j = history_search(h, "", "needle", 5, &p);
    const json_t *m = json_array_get(json_object_get(json_array_get(json_object_get(j, "results"), 0), "matches"), 0);
    assert_string_equal(member(m, "ranges"), "[[7,13]]");
    json_decref(j);
    char *far = malloc(20000);
    memset(far, ' ', 20000);
    for (int i = 0; i < 9990; i += 5)
        memcpy(far + i, "\xc3\xa4\xc3\xb6", 4);
    strcpy(far + 15000, "needle");
    json_t *fields = json_pack("{s:s, s:s}", "role", "user", "content", far);
    json_decref(history_add(h, "", id, fields, &p));
    json_decref(fields);
    free(far);
    j = history_search(h, "", "needle", 5, &p);
    m = json_array_get(json_object_get(json_array_get(json_object_get(j, "results"), 0), "matches"), 0);
    assert_non_null(strstr(member(m, "snippet"), "needle"));
    assert_true(strlen(member(m, "snippet")) < 300);
    json_decref(j);
    history_close(h);
}

/* ---- export and import ---- */

static void an_export_comes_back_exactly(void **state)
{
    (void)state;
    struct history *h = open_here();
    char *name = NULL;
    const char *id = new_conversation(h, "", "{\"title\":\"R\\u00e9sum\\u00e9 / 1\",\"settings\":{\"a\":0.1},\"system_prompt\":\"S\",\"tags\":[\"t\"],\"pinned\":true}");
    say(h, "", id, "{\"role\":\"user\",\"content\":\"q \\u0001 \\u2028\",\"tokens\":1,\"latency_ms\":0.25,\"metadata\":{\"b\":[1,2.5,null]}}");
    say(h, "", id, "{\"role\":\"assistant\",\"content\":\"a1\"}");
    say(h, "", id, "{\"role\":\"assistant\",\"content\":\"a2\",\"parent_id\":1}");
    json_decref(WITH("{\"active_leaf\":2}", history_update(h, "", id, fields, &p)));
    char *text = history_export_json(h, "", id, &name, &p), *again;
    assert_string_equal(name, "R-sum-1.json");
    free(name);
    json_t *doc = js(text);
    assert_null(history_import(h, "", doc, 0, &p));
    assert_int_equal(p.fault, HISTORY_EXISTS);
    json_decref(history_import(h, "key 1", doc, 0, &p));        /* another owner may have the same id */
    json_decref(history_import(h, "", doc, 1, &p));
    assert_int_equal(stat_of(h, "", "conversations"), 2);
    assert_int_equal(history_delete(h, "", id, &p), 0);
    json_decref(history_import(h, "", doc, 0, &p));
    again = history_export_json(h, "", id, &name, &p);
    assert_string_equal(again, text);
    free(again);
    free(name);
    again = history_export_json(h, "key 1", id, &name, &p);
    assert_string_equal(again, text);
    free(again);
    free(name);
    assert_string_equal(found(h, "a2"), "R\xc3\xa9sum\xc3\xa9 / 1 R\xc3\xa9sum\xc3\xa9 / 1");
    again = history_export_markdown(h, "", id, &name, &p);
    assert_string_equal(name, "R-sum-1.md");
    assert_non_null(strstr(again, "\n## System Prompt\n\nS\n\n## Conversation\n\n### User\n\nq "));
    assert_non_null(strstr(again, "**Messages:** 2\n"));
    assert_null(strstr(again, "a2"));
    free(again);
    free(name);
    /* a file that is cut anywhere is no JSON; a file with a field missing or of another kind is
     * refused, or imported completely */
    for (size_t n = 0; n + 1 < strlen(text); n++)
        assert_null(json_loadb(text, n, 0, NULL));
    free(text);
    json_decref(doc);
    history_close(h);
}

static void broken_imports_leave_nothing(void **state)
{
    (void)state;
#define DOC(conversation, messages) "{\"format\":\"zse-chat\",\"version\":1,\"conversation\":" conversation ",\"messages\":" messages "}"
#define C "{\"id\":\"0123456789abcdef\",\"title\":\"t\"}"
    static const struct { const char *doc, *field; } bad[] = {
        { "{}", "format" }, { "{\"format\":\"zse-chat\",\"version\":2}", "version" },
            { "{\"format\":\"zse-chat\",\"version\":1}", "conversation" },
        { DOC("{\"title\":\"t\"}", "[]"), "id" }, { DOC("{\"id\":\"0123456789ABCDEF\"}", "[]"), "id" },
        { DOC("{\"id\":\"../../etc/passwd\"}", "[]"), "id" }, { DOC(C, "{}"), "messages" },
        { DOC(C, "[1]"), "messages" },
        { DOC(C, "[{\"role\":\"user\",\"content\":\"x\"}]"), "id" },
        { DOC(C, "[{\"id\":1,\"content\":\"x\"}]"), "role" },
        { DOC(C, "[{\"id\":1,\"role\":\"user\"}]"), "content" },
        { DOC(C, "[{\"id\":2,\"role\":\"user\",\"content\":\"x\"},{\"id\":1,\"role\":\"user\",\"content\":\"x\"}]"),
          "id" },
        { DOC(C, "[{\"id\":1,\"parent_id\":1,\"role\":\"user\",\"content\":\"x\"}]"), "parent_id" },
        { DOC(C, "[{\"id\":1,\"parent_id\":7,\"role\":\"user\",\"content\":\"x\"}]"), "parent_id" },
        { DOC(C, "[{\"id\":1,\"role\":\"user\",\"content\":\"x\",\"created_at\":\"yesterday\"}]"), "created_at" },
        { DOC("{\"id\":\"0123456789abcdef\",\"created_at\":\"2026-13-01T00:00:00Z\"}", "[]"), "created_at" },
        { DOC("{\"id\":\"0123456789abcdef\",\"active_leaf\":3}", "[{\"id\":1,\"role\":\"user\",\"content\":\"x\"}]"),
          "active_leaf" },
    };
    struct history *h = open_here();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *doc = js(bad[i].doc);
        if (history_import(h, "", doc, 0, &p) || p.fault == HISTORY_NOT_FOUND || !p.field ||
            strcmp(p.field, bad[i].field) != 0)
            fail_msg("%s: %s, field %s", bad[i].doc, p.e.msg, p.field ? p.field : "none");
        json_decref(doc);
    }
    assert_int_equal(stat_of(h, "", "conversations"), 0);
    assert_int_equal(stat_of(h, "", "bytes"), 0);
    assert_string_equal(found(h, "x"), "");
    history_close(h);
}

/* ---- the file ---- */

static int integrity(const char *path)
{
    sqlite3 *db;
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &s, NULL), SQLITE_OK);
    const int good = sqlite3_step(s) == SQLITE_ROW && strcmp((const char *)sqlite3_column_text(s, 0), "ok") == 0;
    sqlite3_finalize(s);
    sqlite3_exec(db, "INSERT INTO message_index (message_index) VALUES ('integrity-check')", NULL, NULL, NULL);
    const int index = sqlite3_errcode(db) == SQLITE_OK;
    sqlite3_close(db);
    return good && index;
}

static void the_file_is_private(void **state)
{
    (void)state;
    struct stat st;
    history_close(open_here());
    assert_int_equal(stat(in_folder("chats.db"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(in_folder("chats.db"), 0644), 0);
    assert_null(history_open(folder, NULL, &p));
    assert_int_equal(p.fault, HISTORY_UNAVAILABLE);
}

static void reading_makes_no_file(void **state)
{
    (void)state;
    assert_null(history_open_read(folder, &p));
    assert_int_equal(p.fault, HISTORY_NOT_FOUND);
    assert_int_equal(access(in_folder("chats.db"), F_OK), -1);
    struct history *h = open_here(), *r = history_open_read(folder, &p);
    assert_non_null(r);
    const char *id = new_conversation(h, "", "{}");
    json_t *c = history_get(r, "", id, &p);
    assert_non_null(c);
    json_decref(c);
    assert_null(WITH("{}", history_create(r, "", fields, &p)));
    assert_int_equal(p.fault, HISTORY_READ_ONLY);
    history_close(h);
    history_close(r);
}

/* Each page of the database is overwritten in turn: requests are answered or refused, and a file
 * that is recognized as damaged keeps its bytes. */
static void damage_is_recognized_and_kept(void **state)
{
    (void)state;
    enum { PAGE = 4096 };
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    for (int i = 0; i < 40; i++)
        say(h, "", id, "{\"role\":\"user\",\"content\":\"some words of a message that fill the pages of the file\"}");
    history_close(h);
    struct stat st;
    assert_int_equal(stat(in_folder("chats.db"), &st), 0);
    char *whole = malloc((size_t)st.st_size), rubbish[PAGE];
    int fd = open(in_folder("chats.db"), O_RDWR), damaged = 0;
    assert_int_equal(pread(fd, whole, (size_t)st.st_size, 0), st.st_size);
    for (int i = 0; i < PAGE; i++)
        rubbish[i] = (char)(i * 7 + 1);
    for (off_t at = 0; at < st.st_size; at += PAGE) {
        assert_int_equal(pwrite(fd, whole, (size_t)st.st_size, 0), st.st_size);
        assert_int_equal(pwrite(fd, rubbish, PAGE, at), PAGE);
        p.fault = HISTORY_FINE;
        h = history_open(folder, NULL, &p);
        const struct history_page page = { .limit = 100 };
        if (h) {
            json_decref(history_messages(h, "", id, &page, &p));
            json_decref(history_search(h, "", "words", 5, &p));
            say(h, "", id, "{\"role\":\"user\",\"content\":\"words\"}");
        }
        damaged += p.fault == HISTORY_DAMAGED;
        history_close(h);
        struct stat now;
        assert_int_equal(stat(in_folder("chats.db"), &now), 0);
        assert_true(now.st_ino == st.st_ino && now.st_size >= st.st_size);
        unlink(in_folder("chats.db-wal"));
        unlink(in_folder("chats.db-shm"));
    }
    assert_true(damaged >= 4);
    close(fd);
    free(whole);
}

static void a_full_file_keeps_what_it_has(void **state)
{
    (void)state;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"kept\"}"), 1);
    assert_int_equal(sqlite3_exec(h->db, "PRAGMA max_page_count = 1", NULL, NULL, NULL), SQLITE_OK);    /* as a full disk */
    char *long_text = malloc(100001);
    memset(long_text, 'x', 100000);
    long_text[100000] = '\0';
    json_t *fields = json_pack("{s:s, s:s}", "role", "user", "content", long_text);
    assert_null(history_add(h, "", id, fields, &p));
    assert_int_equal(p.fault, HISTORY_FULL);
    json_decref(fields);
    free(long_text);
    assert_string_equal(page_ids(h, id, 0), "1");
    assert_int_equal(sqlite3_exec(h->db, "PRAGMA max_page_count = 1000000", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"again\"}"), 2);
    history_close(h);
}

static void another_program_may_hold_the_lock(void **state)
{
    (void)state;
    sqlite3 *other;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    assert_int_equal(sqlite3_open(in_folder("chats.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    history_set_deadline(h, 0.05);
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"x\"}"), -1);
    assert_int_equal(p.fault, HISTORY_BUSY);
    history_set_deadline(h, 5);
    assert_string_equal(page_ids(h, id, 0), "");        /* reading goes on */
    sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(other);
    assert_int_equal(say(h, "", id, "{\"role\":\"user\",\"content\":\"x\"}"), 1);
    history_close(h);
}

static void a_newer_file_is_left_alone(void **state)
{
    (void)state;
    sqlite3 *db;
    history_close(open_here());
    assert_int_equal(sqlite3_open(in_folder("chats.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_null(history_open(folder, NULL, &p));
    assert_non_null(strstr(p.e.msg, "newer version"));
}

/* A process writes messages, and reports the number of each one that was acknowledged, until it is
 * killed: all acknowledged messages are in the file. */
static void a_killed_writer_loses_nothing_acknowledged(void **state)
{
    (void)state;
    struct history *h = open_here();
    char id[HISTORY_ID + 1], text[100];
    strcpy(id, new_conversation(h, "", "{}"));
    history_close(h);
    for (int round = 0; round < 6; round++) {
        int ends[2], acknowledged = 0, n;
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            h = history_open(folder, NULL, &p);
            for (n = 0; h; n++) {
                snprintf(text, sizeof text, "{\"role\":\"user\",\"content\":\"round%d number%d\"}", round, n);
                const int64_t number = say(h, "", id, text);
                if (number < 0 || write(ends[1], &number, sizeof number) != sizeof number)
                    break;
            }
            _exit(1);
        }
        close(ends[1]);
        int64_t number = 0;
        while (acknowledged < 5 + round * 7 && read(ends[0], &number, sizeof number) == sizeof number)
            acknowledged++;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(ends[0], &number, sizeof number) == sizeof number)
            acknowledged++;
        close(ends[0]);
        assert_true(integrity(in_folder("chats.db")));
        h = open_here();
        const int64_t there = number_in(h, id, "message_count");
        assert_in_range(there - number, 0, 1);          /* the last message may have been written
                                                         * without being acknowledged */
        snprintf(text, sizeof text, "\"round%d number%d\"", round, acknowledged - 1);
        assert_string_not_equal(found(h, text), "");
        history_close(h);
        if (there > number) {                           /* remove it, because the next round
                                                         * continues from the acknowledged
                                                         * messages */
            h = open_here();
            assert_int_equal(history_remove(h, "", id, there, &p), 1);
            history_close(h);
        }
        h = open_here();
        assert_int_equal(history_remove(h, "", id, 1, &p), number);
        history_close(h);
        unlink(in_folder("chats.db"));
        unlink(in_folder("chats.db-wal"));
        unlink(in_folder("chats.db-shm"));
        h = open_here();
        strcpy(id, new_conversation(h, "", "{}"));
        history_close(h);
    }
}

static void two_processes_share_the_file(void **state)
{
    (void)state;
    enum { EACH = 60 };
    struct history *h = open_here();
    char id[HISTORY_ID + 1];
    strcpy(id, new_conversation(h, "", "{}"));
    history_close(h);
    pid_t child[2];
    for (int i = 0; i < 2; i++)
        if ((child[i] = fork()) == 0) {
            h = history_open(folder, NULL, &p);
            int n = 0;
            while (h && n < EACH && say(h, "", id, i ? "{\"role\":\"user\",\"content\":\"one\"}"
                                                     : "{\"role\":\"user\",\"content\":\"two\"}") > 0)
                n++;
            _exit(n != EACH);
        }
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(child[i], &status, 0);
        assert_int_equal(status, 0);
    }
    h = open_here();
    assert_int_equal(number_in(h, id, "message_count"), 2 * EACH);
    assert_int_equal(number_in(h, id, "active_leaf"), 2 * EACH);
    history_close(h);
    assert_true(integrity(in_folder("chats.db")));
}

static int refuse_all(void *user, size_t bytes)
{
    *(size_t *)user = bytes;
    return bytes > 100000 ? -1 : 0;
}

static void answers_ask_for_memory(void **state)
{
    (void)state;
    size_t asked = 0;
    struct history *h = open_here();
    const char *id = new_conversation(h, "", "{}");
    const struct history_page page = { .limit = 1000 };
    char *name, *text = malloc(60001);
    memset(text, '\1', 60000);
    text[60000] = '\0';
    json_t *fields = json_pack("{s:s, s:s}", "role", "user", "content", text);
    history_set_budget(h, refuse_all, &asked);
    json_decref(history_add(h, "", id, fields, &p));
    assert_null(history_messages(h, "", id, &page, &p));
    assert_int_equal(p.fault, HISTORY_TOO_LARGE);
    assert_true(asked > 6 * 60000);
    assert_null(history_export_json(h, "", id, &name, &p));
    history_set_budget(h, NULL, NULL);
    json_t *all = history_messages(h, "", id, &page, &p);
    assert_non_null(all);
    json_decref(all);
    json_decref(fields);
    free(text);
    history_close(h);
}

static void ids_are_found_by_their_beginning(void **state)
{
    (void)state;
    struct history *h = open_here();
    char id[HISTORY_ID + 1], begin[5];
    assert_int_equal(history_find(h, "", "", id, &p), -1);
    assert_int_equal(p.fault, HISTORY_NOT_FOUND);
    const char *first = new_conversation(h, "", "{}");
    assert_int_equal(history_find(h, "", "", id, &p), 0);
    assert_string_equal(id, first);
    snprintf(begin, sizeof begin, "%.4s", first);
    assert_int_equal(history_find(h, "", begin, id, &p), 0);
    assert_int_equal(history_find(h, "key 1", begin, id, &p), -1);
    assert_int_equal(history_find(h, "", "zz", id, &p), -1);
    for (int i = 0; i < 20; i++)
        new_conversation(h, "", "{}");
    int several = 0;
    for (const char *d = "0123456789abcdef"; *d; d++)
        several += history_find(h, "", (char[]){ *d, '\0' }, id, &p) != 0 && strstr(p.e.msg, "several");
    assert_true(several > 0);           /* several of the 21 ids must share one of the 16 first digits */
    history_close(h);
}

static size_t n_found(struct history *h, const char *query)
{
    json_t *j = history_search(h, "", query, 20, &p);
    const size_t n = json_array_size(json_object_get(j, "results"));
    json_decref(j);
    return n;
}

/* A search reads rows in pieces: no row is left out or found twice, and between two pieces the
 * search ends if it was cancelled or its deadline has passed. */
static void a_long_search_can_be_stopped(void **state)
{
    (void)state;
    atomic_int stop = 0;
    struct history *h = open_here();
    for (int i = 0; i < 6; i++) {
        sqlite3 *db;
        assert_int_equal(say(h, "", new_conversation(h, "", "{}"), "{\"role\":\"user\",\"content\":\"needle in hay\"}"), 1);
        assert_int_equal(sqlite3_open(in_folder("chats.db"), &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "UPDATE owners SET next = next + 131070", NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
    }
    assert_int_equal(n_found(h, "needle "), 6);
    assert_int_equal(n_found(h, "\"needle in\""), 6);
    assert_int_equal(n_found(h, "needl"), 6);
    assert_int_equal(n_found(h, "needle i"), 6);
    /* no message has the word x: a single letter at the end may be the beginning of a word, so it
     * is ignored */
    assert_int_equal(n_found(h, "needle x"), 6);
    assert_int_equal(n_found(h, "needle xy"), 0);
    assert_int_equal(n_found(h, "needle x "), 0);
    assert_int_equal(n_found(h, "x"), 0);
    assert_int_equal(n_found(h, "absent "), 0);
    history_set_cancel(h, &stop);
    assert_int_equal(n_found(h, "needle "), 6);
    atomic_store(&stop, 1);
    assert_null(history_search(h, "", "absent ", 20, &p));
    assert_int_equal(p.fault, HISTORY_UNAVAILABLE);
    history_set_cancel(h, NULL);
    history_set_deadline(h, 0);
    assert_null(history_search(h, "", "absent ", 20, &p));
    assert_int_equal(p.fault, HISTORY_UNAVAILABLE);
    history_set_deadline(h, 60);
    assert_int_equal(n_found(h, "needle "), 6);
    assert_int_equal(say(h, "", new_conversation(h, "", "{}"), "{\"role\":\"user\",\"content\":\"needle 7\"}"), 1);
    assert_int_equal(n_found(h, "needle 7"), 1);
    assert_int_equal(n_found(h, "needle 8"), 7);
    history_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_conversation_keeps_its_fields), IN_FOLDER(bad_values_are_named),
            IN_FOLDER(lists_have_pages_and_filters),
        IN_FOLDER(messages_form_branches), IN_FOLDER(owners_never_meet), IN_FOLDER(quotas_hold),
        IN_FOLDER(old_conversations_go), IN_FOLDER(a_search_finds_words), IN_FOLDER(changes_reach_the_index),
        IN_FOLDER(snippets_show_the_place), IN_FOLDER(an_export_comes_back_exactly),
        IN_FOLDER(broken_imports_leave_nothing), IN_FOLDER(the_file_is_private), IN_FOLDER(reading_makes_no_file),
        IN_FOLDER(damage_is_recognized_and_kept), IN_FOLDER(a_full_file_keeps_what_it_has),
        IN_FOLDER(another_program_may_hold_the_lock), IN_FOLDER(a_newer_file_is_left_alone),
        IN_FOLDER(a_killed_writer_loses_nothing_acknowledged), IN_FOLDER(two_processes_share_the_file),
        IN_FOLDER(answers_ask_for_memory), IN_FOLDER(ids_are_found_by_their_beginning),
        IN_FOLDER(a_long_search_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
