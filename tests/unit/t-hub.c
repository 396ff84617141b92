/* t-hub.c - names of models, ranges, the choice of files from a repository, and models in a
 * cache. */
#include "tests/unit/folder.h"

#include <sys/stat.h>

#include "libcommon/base/rng.h"
#include "libcommon/hub/choose.h"
#include "libcommon/hub/download.h"
#include "libcommon/hub/hub_cache.h"
#include "libcommon/hub/web.h"

static void names_are_split_into_repository_revision_and_file(void **state)
{
    (void)state;
    static const struct { const char *text, *repo, *revision, *pick; } good[] = {
        { "org/name", "org/name", "main", "" },
        { "Qwen/Qwen2.5-0.5B_x@v1.0", "Qwen/Qwen2.5-0.5B_x", "v1.0", "" },
        { "a/b:Q4_K_M", "a/b", "main", "Q4_K_M" },
        { "gpt2", "gpt2", "main", "" },
        { "gpt2@v1:m.gguf", "gpt2", "v1", "m.gguf" },
        { "a/b@refs/pr/3:sub/m-Q8_0.gguf", "a/b", "refs/pr/3", "sub/m-Q8_0.gguf" },
    };
    static const char *const bad[] = { "", ".", "..", "@v1", "na me", "a/b/c", "/a/b", "a/", "/b", "./b", "../b",
                                       "a/b@", "a/b:", "a/b@../x", "a/b@x?y", "a/b:../x", "a/b:/etc/x", "a b/c",
                                       "a/b--c", "a/b..c", "a/b.", "-a/b", "a/b@x//y", "a/b:x\\y", "https://x/y" };
    struct hub_name n;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(hub_parse_name(&n, good[i].text, &e), 0);
        assert_string_equal(n.repo, good[i].repo);
        assert_string_equal(n.revision, good[i].revision);
        assert_string_equal(n.pick, good[i].pick);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_parse_name(&n, bad[i], &e) == 0)
            fail_msg("'%s' was taken as %s @ %s : %s", bad[i], n.repo, n.revision, n.pick);
    char long_name[1000];
    memset(long_name, 'a', sizeof long_name);
    memcpy(long_name, "a/b@", 4);
    long_name[999] = '\0';
    assert_int_equal(hub_parse_name(&n, long_name, &e), -1);
}

static void test_files_stay_inside(void **state)
{
    (void)state;
    assert_true(hub_cache_name_ok("a/b.json") && hub_cache_name_ok(".gitattributes") && hub_cache_name_ok("a..b"));
    assert_false(hub_cache_name_ok("") || hub_cache_name_ok("/a") || hub_cache_name_ok("a//b") ||
                 hub_cache_name_ok("a/../b") || hub_cache_name_ok("..") || hub_cache_name_ok("a/.") ||
                 hub_cache_name_ok("a\nb"));
    assert_true(hub_cache_etag_ok("0123abcd") && hub_cache_etag_ok("a-1.b_2"));
    assert_false(hub_cache_etag_ok("") || hub_cache_etag_ok("../x") || hub_cache_etag_ok(".x") ||
                 hub_cache_etag_ok("a/b") || hub_cache_etag_ok("a b"));
    assert_true(hub_cache_commit_ok("0123456789abcdef0123456789abcdef01234567"));
    assert_false(hub_cache_commit_ok("short") || hub_cache_commit_ok("0123456/89") ||
                 hub_cache_commit_ok("..........."));
}

static void origins_are_compared_by_scheme_host_and_port(void **state)
{
    (void)state;
    assert_true(web_same_origin("https://hub.example/a", "https://hub.example"));
    assert_true(web_same_origin("https://HUB.example:443/a?x", "https://hub.example"));
    assert_true(web_same_origin("http://h:80/", "http://h"));
    assert_false(web_same_origin("http://hub.example/a", "https://hub.example"));
    assert_false(web_same_origin("https://hub.example:8443/a", "https://hub.example"));
    assert_false(web_same_origin("https://hub.example.evil/a", "https://hub.example"));
    assert_false(web_same_origin("https://hub.example@evil/a", "https://hub.example"));
    assert_false(web_same_origin("ftp://h", "ftp://h"));
    char *s = url_encode("a b/c+d%é", "/");
    assert_string_equal(s, "a%20b/c%2Bd%25%C3%A9");
    free(s);
}

/* Ranges in any order, overlapping: compare with a map of bytes; the result is sorted and
 * disjoint. */
static void spans_are_merged_sorted_and_disjoint(void **state)
{
    (void)state;
    enum { N = 200 };
    struct rng rng = { 7 };
    for (int round = 0; round < 200; round++) {
        struct spans s = { 0 };
        char map[N] = { 0 };
        for (int k = 0; k < 30; k++) {
            uint64_t from = rng_u64(&rng) % N, to = from + rng_u64(&rng) % 12;
            to = to > N ? N : to;
            assert_int_equal(spans_add(&s, from, to), 0);
            if (to > from)
                memset(map + from, 1, (size_t)(to - from));
            uint64_t bytes = 0;
            for (int i = 0; i < N; i++)
                bytes += (uint64_t)map[i];
            assert_int_equal(spans_bytes(&s), bytes);
            for (int i = 0; i < s.n; i++) {
                assert_true(s.v[i].from < s.v[i].to && (i == 0 || s.v[i - 1].to < s.v[i].from));
                for (uint64_t b = s.v[i].from; b < s.v[i].to; b++)
                    assert_true(map[b]);
            }
        }
        free(s.v);
    }
}

/* Check the choice of files.  names: of the repository, separated by blanks; want: "small files |
 * weights", or the beginning of the error. */
static void check_choice(const char *names, const char *pick, const char *want)
{
    char copy[2000], got[2000] = "";
    const char *list[100];
    struct file_choice c;
    int n = 0;
    snprintf(copy, sizeof copy, "%s", names);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " "))
        list[n++] = p;
    if (choose(&c, "a/b", pick, list, n, &e) != 0) {
        snprintf(got, sizeof got, "%.*s", (int)strlen(want), e.msg);
    } else {
        for (int i = 0; i < c.n_small; i++)
            strcat(strcat(got, c.small[i]), " ");
        strcat(got, "|");
        for (int i = 0; i < c.n_weights; i++)
            strcat(strcat(got, " "), c.weights[i]);
        if (c.indexed)
            strcat(got, " (index)");
    }
    choose_release(&c);
    assert_string_equal(got, want);
}

static void the_files_of_a_model_are_chosen(void **state)
{
    (void)state;
    check_choice("config.json model.safetensors tokenizer.json flax_model.msgpack pytorch_model.bin onnx/model.onnx",
                 "", "config.json tokenizer.json | model.safetensors");
    check_choice("config.json model.safetensors model.safetensors.index.json model-00001-of-00002.safetensors", "",
                 "config.json | model.safetensors");
    check_choice("config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json consolidated.safetensors", "",
                 "config.json model.safetensors.index.json | (index)");
    check_choice("config.json consolidated.safetensors model-00001-of-00001.safetensors adapter_model.safetensors sub/x.safetensors", "", "config.json | model-00001-of-00001.safetensors");
    check_choice("config.json weights.safetensors additional_chat_templates/tool_use.jinja chat_template.jinja", "",
                 "config.json additional_chat_templates/tool_use.jinja chat_template.jinja | weights.safetensors");
    check_choice("model.safetensors", "", "a/b: has safetensors but no config.json");
    check_choice("README.md pytorch_model.bin", "", "a/b: has no safetensors and no GGUF file");
    check_choice("m-Q2_K.gguf m-Q8_0.gguf m-Q4_K_M.gguf m-IQ4_XS.gguf", "", "| m-Q4_K_M.gguf");
    check_choice("m-Q2_K.gguf m-Q8_0.gguf", "", "| m-Q8_0.gguf");
    check_choice("m-Q2_K.gguf", "", "| m-Q2_K.gguf");
    check_choice("m-Q2_K.gguf m-Q3_K_S.gguf", "", "a/b: which of m-Q2_K.gguf, m-Q3_K_S.gguf? Say a/b:FILE");
    check_choice("m-Q4_K_M.gguf m-Q4_0.gguf", "q4_0", "| m-Q4_0.gguf");
    check_choice("m-Q4_0.gguf m-Q4_0_4_4.gguf", "Q4_0", "| m-Q4_0.gguf");
    check_choice("m.Q4_0.gguf config.json model.safetensors", "m.Q4_0.gguf", "| m.Q4_0.gguf");
    check_choice("m-Q4_0.gguf n-Q4_0.gguf", "Q4_0", "a/b: 'Q4_0' names more than one of its files");
    /* a GGUF in several parts is one model, and all parts are chosen in order */
    check_choice("m-Q4_K_M-00002-of-00003.gguf m-Q4_K_M-00001-of-00003.gguf m-Q4_K_M-00003-of-00003.gguf m-Q8_0.gguf",
                 "", "| m-Q4_K_M-00001-of-00003.gguf m-Q4_K_M-00002-of-00003.gguf m-Q4_K_M-00003-of-00003.gguf");
    check_choice("Q8_0/m-Q8_0-00001-of-00002.gguf Q8_0/m-Q8_0-00002-of-00002.gguf m-Q4_0.gguf", "Q8_0",
                 "| Q8_0/m-Q8_0-00001-of-00002.gguf Q8_0/m-Q8_0-00002-of-00002.gguf");
    check_choice("m-00001-of-00003.gguf m-00003-of-00003.gguf", "",
                 "a/b: m-00002-of-00003.gguf is missing (part 2 of 3)");
    check_choice("m-00001-of-00001.gguf", "", "| m-00001-of-00001.gguf");
    check_choice("m-00000-of-00002.gguf", "", "| m-00000-of-00002.gguf");
    check_choice("-00001-of-00002.gguf", "", "| -00001-of-00002.gguf");        /* a part has a name of its own, too */
    check_choice("m-Q4_0.gguf", "Q4", "a/b: 'Q4' names no GGUF or .zse file");
}

static void every_tensor_of_an_index_is_in_a_listed_file(void **state)
{
    (void)state;
    static const char *const names[] = { "config.json", CHOOSE_INDEX, "x-00001.safetensors", "x-00002.safetensors",
                                         "y.safetensors" };
    static const struct { const char *text, *want; int n; } cases[] = {
        { "{\"weight_map\":{\"a\":\"x-00001.safetensors\",\"b\":\"x-00002.safetensors\",\"c\":\"x-00001.safetensors\"}}", NULL, 2 },
        { "{\"weight_map\":{\"a\":\"z.safetensors\"}}",
          "a/b: model.safetensors.index.json: tensor a is in z.safetensors", 0 },
        { "{\"weight_map\":{\"a\":1}}", "a/b: model.safetensors.index.json: tensor a is in no file", 0 },
        { "{\"weight_map\":[]}", "a/b: model.safetensors.index.json: weight_map: found an array", 0 },
        { "[]", "a/b: model.safetensors.index.json: weight_map: found", 0 },
        { "{", "model.safetensors.index.json: line 1", 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file_choice c;
        assert_int_equal(choose(&c, "a/b", "", names, 5, &e), 0);
        int rc = choose_indexed(&c, "a/b", cases[i].text, strlen(cases[i].text), &e);
        assert_int_equal(rc, cases[i].want ? -1 : 0);
        if (cases[i].want)
            assert_int_equal(strncmp(e.msg, cases[i].want, strlen(cases[i].want)), 0);
        else
            assert_int_equal(c.n_weights, cases[i].n);
        choose_release(&c);
    }
}

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define MODEL "models--a--b"
#define SNAPSHOT MODEL "/snapshots/" COMMIT "/"

static void write_file(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hub_cache_make_folders(path, &e), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Make a cache with these files of a/b, separated by blanks.  index: the content of an index that
 * lists the shards; NULL: none. */
static void fill_cache(const char *files, const char *index)
{
    char copy[1000], name[400];
    assert_int_equal(remove_folder(NULL), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    write_file(MODEL "/refs/main", COMMIT);
    snprintf(copy, sizeof copy, "%s", files);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " ")) {
        snprintf(name, sizeof name, SNAPSHOT "%s", p);
        write_file(name, "x");
    }
    if (index)
        write_file(SNAPSHOT CHOOSE_INDEX, index);
}

/* A complete model in the cache is used without a network, an incomplete one is refused. */
static void test_cache(void **state)
{
    (void)state;
    static const char two[] = "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}";
    /* in: the path of the opened model within the snapshot; NULL: the model is not complete */
    static const struct { const char *name, *files, *index, *in; } cases[] = {
        { "a/b", "config.json model.safetensors", NULL, "" },
        { "a/b@" COMMIT, "config.json model.safetensors", NULL, "" },
        { "a/b", "model.safetensors", NULL, NULL },
        { "a/b", "config.json .model.safetensors", NULL, NULL },
        { "a/b", "config.json x-and-some-of-these.safetensors", NULL, "" },
        { "a/b", "config.json one-of-us.safetensors", NULL, "" },
        { "a/b", "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors", NULL, "" },
        { "a/b", "config.json model-00001-of-00002.safetensors", NULL, NULL },
        { "a/b", "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors", two, "" },
        { "a/b", "config.json model-00001-of-00002.safetensors", two, NULL },
        { "a/b", "config.json model-00002-of-00002.safetensors", two, NULL },
        { "a/b", "config.json model-00001-of-00002.safetensors", "{}", NULL },
        { "a/b", "config.json model-00001-of-00002.safetensors", "{\"weight_map\":{\"a\":1}}", NULL },
        { "a/b", "m-Q4_K_M.gguf", NULL, "m-Q4_K_M.gguf" },
        { "a/b:Q8_0", "m-Q4_K_M.gguf m-Q8_0.gguf", NULL, "m-Q8_0.gguf" },
        { "a/b:Q8_0", "m-Q4_K_M.gguf", NULL, NULL },
        { "a/b:Q8_0", "sub/m-Q8_0.gguf", NULL, "sub/m-Q8_0.gguf" },
        { "a/b:Q8_0", "sub/sub/m-Q8_0.gguf", NULL, NULL },
        { "a/b@other", "config.json model.safetensors", NULL, NULL },
        { "a/c", "config.json model.safetensors", NULL, NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct hub_options o = { .endpoint = "http://127.0.0.1:1", .cache = folder, .offline = 1 };
        struct hub_name name;
        char *path = NULL, want[600];
        fill_cache(cases[i].files, cases[i].index);
        assert_int_equal(hub_parse_name(&name, cases[i].name, &e), 0);
        const int rc = hub_fetch(&o, &name, &path, &e);
        if (rc != (cases[i].in ? 0 : -1))
            fail_msg("%s of %s: %s", cases[i].name, cases[i].files, rc ? e.msg : path);
        if (rc) {
            assert_non_null(strstr(e.msg, "HF_HUB_OFFLINE"));
            continue;
        }
        snprintf(want, sizeof want, "%s/" SNAPSHOT "%s", folder, cases[i].in);
        if (!*cases[i].in)
            want[strlen(want) - 1] = '\0';
        assert_string_equal(path, want);
        free(path);
    }
}

/* The files of a snapshot are links to blobs; an error names the path. */
static void test_links(void **state)
{
    (void)state;
    char *path = hub_cache_path(folder, "%s", MODEL);
    assert_non_null(path);
    assert_int_equal(hub_cache_has(path, COMMIT, "config.json"), 0);
    hub_cache_set_absent(path, COMMIT, "config.json");
    assert_int_equal(hub_cache_has(path, COMMIT, "config.json"), -1);
    write_file(MODEL "/blobs/abc", "text");
    for (int i = 0; i < 2; i++)         /* an older link is replaced */
        assert_int_equal(hub_cache_link(path, COMMIT, "sub/config.json", "abc", &e), 0);
    assert_int_equal(hub_cache_has(path, COMMIT, "sub/config.json"), 1);
    write_file("file", "not a folder");
    free(path);
    path = hub_cache_path(folder, "file/%s", MODEL);
    assert_int_equal(hub_cache_link(path, COMMIT, "config.json", "abc", &e), -1);
    assert_non_null(strstr(e.msg, "file"));
    free(path);
}

static void test_header_fields(void **state)
{
    (void)state;
    static const struct { const char *line, *name, *want; } cases[] = {
        { "ETag: \"abc\"\r\n", "etag", "\"abc\"" }, { "ETag:abc", "ETag", "abc" }, { "X: \r\nY: 1", "X", "" },
        { "X:\r\n", "X", "" }, { "X: a b \r\n", "X", "a b" }, { "XY: 1", "X", NULL }, { "X", "X", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[20] = "";
        const char *line = cases[i].line, *next = strstr(line, "Y: ");
        const size_t n = next && cases[i].want ? (size_t)(next - line) : strlen(line);
        assert_int_equal(web_header(line, n, cases[i].name, out, sizeof out), cases[i].want != NULL);
        if (cases[i].want)
            assert_string_equal(out, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_split_into_repository_revision_and_file), cmocka_unit_test(test_files_stay_inside),
        cmocka_unit_test(origins_are_compared_by_scheme_host_and_port),
        cmocka_unit_test(spans_are_merged_sorted_and_disjoint), cmocka_unit_test(the_files_of_a_model_are_chosen),
        cmocka_unit_test(every_tensor_of_an_index_is_in_a_listed_file), IN_FOLDER(test_cache), IN_FOLDER(test_links),
        cmocka_unit_test(test_header_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
