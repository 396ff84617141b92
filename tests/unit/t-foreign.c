/* t-foreign.c - conversations of other programs: branches, cycles, times, texts of every kind, and
 * documents with any one value replaced or removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <string.h>

#include "libcommon/history/foreign.h"
#include "libcommon/history/internal.h"

static const char *const formats[] = { "chatgpt", "open-webui", "lm-studio" };
static const char *const documents[] = {
    "{\"title\":\"T\",\"create_time\":1700000000.5,\"current_node\":\"c\",\"mapping\":{"
    "\"r\":{\"id\":\"r\",\"parent\":null,\"children\":[\"a\"],\"message\":null},"
    "\"a\":{\"parent\":\"r\",\"children\":[\"b\",\"c\",\"a\"],\"message\":{\"author\":{\"role\":\"user\"},\"content\":{\"parts\":[\"x\",{\"asset\":1}]}}},"
    "\"b\":{\"parent\":\"a\",\"children\":[],\"message\":{\"author\":{\"role\":\"assistant\"},\"content\":{\"parts\":[\"one\"]}}},"
    "\"c\":{\"parent\":\"a\",\"children\":[],\"message\":{\"author\":{\"role\":\"assistant\"},\"content\":{\"text\":\"two\"},\"metadata\":{\"model_slug\":\"m\"}}}}}",
    "{\"title\":\"T\",\"created_at\":1700000000,\"chat\":{\"history\":{\"currentId\":\"2\",\"messages\":{"
    "\"1\":{\"parentId\":null,\"childrenIds\":[\"2\"],\"role\":\"user\",\"content\":\"x\\n[image]\"},"
    "\"2\":{\"parentId\":\"1\",\"childrenIds\":[],\"role\":\"assistant\",\"content\":\"two\",\"model\":\"m\"}}}}}",
    "{\"name\":\"T\",\"createdAt\":1700000000500,\"messages\":["
    "{\"versions\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"file\"}]}],\"currentlySelected\":0},"
    "{\"versions\":[{\"role\":\"assistant\",\"steps\":[{\"type\":\"contentBlock\",\"content\":[{\"text\":\"one\"}]}]},"
    "{\"role\":\"assistant\",\"senderInfo\":{\"senderName\":\"m\"},\"steps\":[{\"type\":\"contentBlock\",\"style\":{\"type\":\"thinking\"},\"content\":[{\"text\":\"hm\"}]},"
    "{\"type\":\"contentBlock\",\"content\":[{\"text\":\"two\"}]}]}],\"currentlySelected\":1}]}",
};
enum { N = sizeof formats / sizeof *formats };

static json_t *parsed(int i)
{
    json_error_t je;
    json_t *j = json_loads(documents[i], 0, &je);
    if (!j)
        fail_msg("%s: %s at %d", formats[i], je.text, je.position);
    return j;
}

static const json_t *leaf_of(const json_t *doc)
{
    const json_int_t leaf = json_integer_value(json_object_get(json_object_get(doc, "conversation"), "active_leaf"));
    return json_array_get(json_object_get(doc, "messages"), (size_t)leaf - 1);
}

static void texts_branches_and_times(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        struct history_problem p = { 0 };
        json_t *in = parsed(i), *out = foreign_document(formats[i], in, &p);
        const json_t *messages = json_object_get(out, "messages"), *leaf = leaf_of(out), *one = json_array_get(messages, 0);
        assert_non_null(out);
        assert_string_equal(json_string_value(json_object_get(one, "content")), "x\n[image]");
        assert_true(json_is_null(json_object_get(one, "parent_id")));
        assert_string_equal(json_string_value(json_object_get(leaf, "content")), "two");
        assert_int_equal(json_integer_value(json_object_get(leaf, "parent_id")), 1);
        assert_string_equal(json_string_value(json_object_get(json_object_get(leaf, "metadata"), "model")), "m");
        assert_int_equal(json_array_size(messages), i == 1 ? 2 : 3);
        const char *when = json_string_value(json_object_get(json_object_get(out, "conversation"), "created_at"));
        assert_true(when && strncmp(when, "2023-11-14T22:13:20", 19) == 0);
        json_decref(in);
        json_decref(out);
    }
    assert_int_equal(foreign_is("lm-studio") + foreign_is("chatgpt") + foreign_is("open-webui"), 3);
    assert_int_equal(foreign_is("") + foreign_is("LM-Studio"), 0);
}

static int converted;

/* Convert the document repeatedly, with each value at any depth replaced by each of some other
 * values. */
static void replace_each(const char *format, json_t *whole, json_t *at)
{
    const char *const others[] = { "null", "0", "-1", "1e300", "\"\"", "\"a\"", "[]", "[[]]", "{}", "[{}]", "true" };
    const char *key;
    void *next;
    json_t *v;
    json_object_foreach_safe(at, next, key, v) {
        json_t *keep = json_incref(v);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            struct history_problem p = { 0 };
            json_object_set_new(at, key, json_loads(others[i], JSON_DECODE_ANY, NULL));
            json_t *out = foreign_document(format, whole, &p);
            assert_true(out || p.fault == HISTORY_BAD_VALUE);
            converted += out != NULL;
            json_decref(out);
        }
        json_object_set_new(at, key, keep);
        replace_each(format, whole, keep);
    }
    for (size_t i = 0; i < json_array_size(at); i++)
        replace_each(format, whole, json_array_get(at, i));
}

static void any_value_may_be_wrong(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        json_t *in = parsed(i);
        replace_each(formats[i], in, in);
        json_decref(in);
    }
    assert_true(converted > 100);
}

static void too_many_messages_are_refused(void **state)
{
    (void)state;
    struct history_problem p = { 0 };
    json_t *version = json_pack("{s:s, s:[{s:s}]}", "role", "user", "content", "text", "x"),
           *versions = json_array(), *doc = json_pack("{s:[{s:o}]}", "messages", "versions", versions);
    for (int i = 0; i <= HISTORY_MESSAGES; i++)
        json_array_append(versions, version);
    assert_null(foreign_document("lm-studio", doc, &p));
    assert_int_equal(p.fault, HISTORY_QUOTA);
    json_decref(version);
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_branches_and_times), cmocka_unit_test(any_value_may_be_wrong),
        cmocka_unit_test(too_many_messages_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
