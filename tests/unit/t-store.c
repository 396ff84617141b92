/* t-store.c - names of models: valid and invalid ones, how they are found, and that none leaves the
 * folder. */
#include "tests/unit/folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/store/store.h"

static void write_model(const char *file)
{
    FILE *f = fopen(in_folder(file), "w");
    assert_non_null(f);
    fputs("model", f);
    assert_int_equal(fclose(f), 0);
}

static void names_are_checked(void **state)
{
    static const char *const good[] = { "a", "smollm2:135m", "Qwen2.5-7B_x+y", "0" },
        *const bad[] = { "", ".", "..", ".a", "-a", ":a", "a/b", "../a", "a b", "a\n", "a\\", "\xc3\xa4", "a%2fb", "a*" };
    char longest[STORE_NAME_BYTES + 1];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!store_is_name(good[i]))
            fail_msg("'%s' is a name", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (store_is_name(bad[i]))
            fail_msg("'%s' is no name", bad[i]);
        assert_null(store_path("/x", bad[i], &e));
    }
    memset(longest, 'a', sizeof longest);
    longest[STORE_NAME_BYTES] = '\0';
    assert_false(store_is_name(longest));
    longest[STORE_NAME_BYTES - 1] = '\0';
    assert_true(store_is_name(longest));
}

static void texts_become_names(void **state)
{
    static const struct { const char *text, *name; } cases[] = {
        { "Qwen2.5-7B", "qwen2.5-7b" }, { "../My Model", "my-model" }, { "..", "" }, { "a/b", "a-b" } };
    char out[STORE_NAME_BYTES], longest[300];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        store_make_name(out, cases[i].text);
        assert_string_equal(out, cases[i].name);
    }
    memset(longest, 'A', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    store_make_name(out, longest);
    assert_true(store_is_name(out));
}

static void words_find_models(void **state)
{
    char name[STORE_NAME_BYTES];
    (void)state;
    assert_int_equal(store_find(in_folder("none"), "m", name, &e), 1);
    assert_int_equal(store_find_default(in_folder("none"), name, &e), 1);
    write_model("m:1b.zse");
    assert_int_equal(store_find(folder, "m", name, &e), 0);
    assert_string_equal(name, "m:1b");
    assert_int_equal(store_find_default(folder, name, &e), 0);
    assert_string_equal(name, "m:1b");
    write_model("m:2b.zse");
    assert_int_equal(store_find(folder, "m", name, &e), -1);
    assert_non_null(strstr(e.msg, "m:1b"));
    assert_non_null(strstr(e.msg, "m:2b"));
    assert_int_equal(store_find_default(folder, name, &e), 1);
    write_model("m.zse");
    assert_int_equal(store_find(folder, "m", name, &e), 0);
    assert_string_equal(name, "m");
    assert_int_equal(store_find(folder, "../m", name, &e), 1);
    assert_int_equal(store_find(folder, "m:3b", name, &e), 1);
}

static void aliases_are_links(void **state)
{
    struct store_model *all;
    char name[STORE_NAME_BYTES] = "a";
    (void)state;
    write_model("m.zse");
    store_follow(folder, name);
    assert_string_equal(name, "a");
    assert_int_equal(store_alias(folder, "a", "m", &e), 0);
    store_follow(folder, name);
    assert_string_equal(name, "m");
    store_follow(folder, name);
    assert_string_equal(name, "m");
    assert_int_equal(store_alias(folder, "b", "a", &e), 0);
    assert_int_equal(store_alias(folder, "b", "b", &e), 0);
    assert_int_equal(store_alias(folder, "m", "a", &e), -1);
    assert_int_equal(store_alias(folder, "../c", "m", &e), -1);
    assert_int_equal(store_alias(folder, "c", "none", &e), -1);
    assert_int_equal(store_list(folder, &all, &e), 3);
    assert_string_equal(all[1].of, "m");
    assert_int_equal(all[1].bytes, 5);
    assert_true(all[0].ino == all[2].ino);
    free(all);
    assert_int_equal(store_remove(folder, "m", &e), 0);
    assert_int_equal(store_list(folder, &all, &e), 0);
    free(all);
    assert_int_equal(store_remove(folder, "m", &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
}

static void uses_are_noted(void **state)
{
    struct store_model *all;
    struct stat st;
    (void)state;
    write_model("m.zse");
    assert_int_equal(store_list(folder, &all, &e), 1);
    assert_int_equal(all[0].used_s, 0);
    free(all);
    assert_int_equal(store_alias(folder, "a", "m", &e), 0);
    store_touch(folder, in_folder("a.zse"));
    assert_int_equal(store_list(folder, &all, &e), 2);
    assert_true(all[0].used_s > 0 && all[1].used_s == all[0].used_s);
    free(all);
    store_touch(folder, "/etc/passwd");
    assert_int_equal(stat(in_folder(".passwd.used"), &st), -1);
    assert_int_equal(store_remove(folder, "m", &e), 0);
    assert_int_equal(stat(in_folder(".m.used"), &st), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(names_are_checked), cmocka_unit_test(texts_become_names),
        IN_FOLDER(words_find_models), IN_FOLDER(aliases_are_links), IN_FOLDER(uses_are_noted) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
