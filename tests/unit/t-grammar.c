/* t-grammar.c - texts that regular expressions, rules and schemas accept or reject, as listed by
 * hand; refusals and their places; masks compared with their definition; limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/grammar/matcher.h"
#include "tests/lib/cpu.h"
#include "tests/unit/tiny_vocab.h"

enum kind { REGEX, GBNF, SCHEMA, FLEXIBLE };

static struct grammar *compile(enum kind k, const struct grammar_vocab *v, const char *text, struct err *e)
{
    struct grammar_options o = { .whitespace = k == FLEXIBLE ? GRAMMAR_WS_FLEXIBLE : GRAMMAR_WS_SINGLE };
    return (k == REGEX ? grammar_compile_regex : k == GBNF ? grammar_compile_gbnf
                                                           : grammar_compile_schema)(v, text, strlen(text), &o, e);
}

struct row {
    enum kind kind;
    const char *text, *yes, *no;        /* yes, no: texts that must be accepted and rejected,
                                         * separated by | (by ~ if any is used) */
};

static int takes(struct grammar *g, const char *text, size_t n)
{
    struct matcher *m = matcher_open(g, NULL);
    int ok = matcher_accept_bytes(m, text, n) == 0 && matcher_complete(m);
    /* accepting the text byte by byte must give the same */
    struct matcher *k = matcher_open(g, NULL);
    size_t i = 0;
    while (i < n && matcher_accept_bytes(k, text + i, 1) == 0)
        i++;
    assert_int_equal(ok, i == n && matcher_complete(k));
    matcher_close(m);
    matcher_close(k);
    return ok;
}

static void check_list(struct grammar *g, const struct row *r, const char *list, int want)
{
    for (const char *p = list; p;) {
        char divider = strchr(list, '~') ? '~' : '|';
        const char *end = strchr(p, divider);
        size_t n = end ? (size_t)(end - p) : strlen(p);
        if (takes(g, p, n) != want)
            fail_msg("%s: '%.*s' is %s", r->text, (int)n, p, want ? "refused" : "taken");
        p = end ? end + 1 : NULL;
    }
}

static const struct row rows[] = {
    { REGEX, "abc", "abc", "ab|abcd|" },
    { GBNF, "root ::= \"\"", "", "a|ab" },
    { SCHEMA, "{\"enum\":[[],{}]}", "[]~{}", "[1]~1" },
    { REGEX, "a*b+c?", "b|aab|abbc", "a|c|abcc" },
    { REGEX, "^(?:a|b){2,3}$", "ab|bba", "a|abab|" },
    { REGEX, "[^a-c]", "d|\xC3\xA9|\xF0\x9F\x98\x80|\n", "a||dd|\xC3" },
    { REGEX, ".", "x|\xE2\x82\xAC", "\n||xx" },
    { REGEX, "\\d{3}-\\D", "123-x", "123-4|12-x" },
    { REGEX, "\\w+\\s\\w+", "a b|x1 _", "a|a  b" },
    { REGEX, "[\\w.-]+@[a-z]+", "a.b-c@d", "@d|a@" },
    { REGEX, "(a+)+", "a|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "b|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab" },
    { REGEX, "(?=.*\\d)(?!x).{2,3}", "a1|11", "x1|aa|a" },
    { REGEX, "\\u00e9|\\x41|\\u{1F600}|\\uD83D\\uDE00|\\t", "\xC3\xA9|A|\xF0\x9F\x98\x80|\t", "e" },
    { REGEX, "\\p{Lu}\\p{Ll}*", "\xC3\x89t\xC3\xA9|A", "a|1" },
    { REGEX, "x{0}y{2}z{1,}", "yyz|yyzz", "xyyz|yz" },
    { REGEX, "[ab]{2,5}|[ab]{3,9}", "ab|ababa|ababababa", "a|ababababab" },
    { REGEX, "(?:ab){2,5}c|(?:ab){3,}c", "ababc|ababababababc", "abc" },
    { REGEX, "(?:ab){3,9}c|(?:ab){2,5}c", "ababc|ababababababababc", "abc" },
    { REGEX, "a{,3}", "a{,3}", "a|aaa" },
    { REGEX, "(?<year>[0-9]{4})", "2024", "24" },
    { REGEX, "a|", "a|", "b" },
    { REGEX, "[]a]", "", "a" }, /* in ECMAScript, an empty class followed by "a]": see below */
    { GBNF, "root ::= \"a\" (\"b\" | \"c\")* d?\nd ::= [0-9]", "a~abcb~ab7", "b~a77~" },
    { GBNF, "root ::= x{2,3}\n# a comment\nx ::= \"ab\" |\n  \"c\"", "abab|cc|cabc", "ab|cccc" },
    { GBNF, "root ::= \"(\" root \")\" | \"x\"", "x|(x)|(((x)))", "(x|x)|()" },
    { GBNF, "root ::= [^\"\\\\\\n]+ \"\\n\" | \"\\u00e9\\x41\"", "abc\n~\xC3\xA9""A", "abc~\n" },
    { GBNF, "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"", "- a\n|- a\n- b\n", "- a|-a\n" },
    { GBNF, "root ::= s\ns ::= \"a\" s \"b\" |", "|ab|aabb", "a|aab|ba" },
    { GBNF, "root ::= e\ne ::= t (\"+\" t)*\nt ::= f (\"*\" f)*\nf ::= [0-9]+ | \"(\" e \")\"", "1+2*3|(1+2)*(3)",
      "1+|()|(1" },
    { GBNF, "a ::= \"x\"\nroot ::= a | (a a) | (\n a\n a a )", "x|xx|xxx", "xxxx|" },
    /* `not` around a contains with counts; a pattern and a maxLength; a JSON pointer into a schema
     * that has a base URI of its own */
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"maxItems\":3,\"not\":{\"contains\":{\"const\":1},\"minContains\":0,\"maxContains\":1}}",
      "[1,1]~[1,2,1]~[1,1,1]", "[]~[1]~[2,2]~[1,2]" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"^((ab){2}){1,3}$\",\"maxLength\":8}", "\"abab\"~\"abababab\"",
      "\"ab\"~\"abababababab\"" },
    { SCHEMA, "{\"$id\":\"http://a/root\",\"$ref\":\"http://a/sub/#/$defs/y\",\"$defs\":{\"x\":{\"$id\":\"sub/\",\"$defs\":{\"y\":{\"$ref\":\"z\"},\"z\":{\"$id\":\"z\",\"type\":\"null\"}}},\"z\":{\"$id\":\"z\",\"type\":\"boolean\"}}}",
      "null", "true~1" },
    { SCHEMA, "true", "1~\"a|b\"~null~[1, {\"a\": 2}]~{}", "~01~{\"a\":}" },
    { SCHEMA, "{\"type\":\"null\"}", "null", "true|nul" },
    { SCHEMA, "{\"type\":\"boolean\"}", "true|false", "null|True" },
    { SCHEMA, "{\"type\":\"integer\"}", "0|-1|123456789012345678", "1.5|-0|01|1e3|+1" },
    { SCHEMA, "{\"type\":\"number\"}", "0|-1.5|1e10|2.5E-3|-0", ".5|1.|01|--1|NaN" },
    { SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}", "-12|0|99|100|105|-9", "-13|106|999|-100" },
    { SCHEMA, "{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":11}", "10", "9|11" },
    { SCHEMA, "{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", "2|3", "1|4" },
    { SCHEMA, "{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "6|70", "5|4" },
    { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":15,\"minimum\":0}", "0|15|30|450", "1|10|16" },
    { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":2.5}", "5|-10|0", "1|2|3" },
    { SCHEMA, "{\"type\":\"integer\",\"not\":{\"multipleOf\":3}}", "1|-2|100|40000000000000000", "0|3|-6|300" },
    { SCHEMA, "{\"type\":\"number\",\"not\":{\"multipleOf\":5}}", "1|5.5|-0.25|12", "0|5|5.0|-10|10.00" },
    { SCHEMA, "{\"type\":\"number\",\"not\":{\"multipleOf\":0.5},\"minimum\":-1}", "0.25|-0.1|7.001", "0|0.5|-1|3.50|-2.1" },
    { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":2,\"not\":{\"multipleOf\":2.5}}", "2|4|-8", "0|5|10|3" },
    { SCHEMA, "{\"type\":\"integer\",\"not\":{\"not\":{\"multipleOf\":7}}}", "0|7|-14", "1|8" },
    { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":2.5,\"minimum\":900,\"maximum\":960,\"not\":{\"anyOf\":[{\"multipleOf\":101},{\"multipleOf\":103},{\"multipleOf\":107}]}}", "900|905|955", "901|963|927|909|965" },
    { SCHEMA, "{\"oneOf\":[{\"multipleOf\":5},{\"multipleOf\":3}],\"type\":\"integer\"}", "3|5|-10|9", "0|15|30|1" },
    { SCHEMA, "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0|1|0.5|0.000001|1.0", "-0.1|1.1|1.000001|2" },
    { SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0.1,\"maximum\":0.3}", "0.2|0.3|0.100001|0.30",
      "0.1|0.10|0.31|0.300001" },
    { SCHEMA, "{\"type\":\"number\",\"minimum\":-2.5,\"exclusiveMaximum\":-1}", "-2.5|-1.1|-2", "-1|-2.6|0|1" },
    { SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.01}", "1|0.05|-3.25|0.1", "0.001|0.125" },
    { SCHEMA, "{\"type\":\"string\"}", "\"\"|\"a\\\"\\\\\\n\\u00e9\\ud83d\\ude00\"|\"\xC3\xA9\"",
      "\"|\"\n\"|\"\\x\"|\"\\ud83d\"|\"\\u0000\"|\"\xC3\"" },
    { SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
      "\"ab\"|\"\\\"\\\"\"|\"\xC3\xA9\xC3\xA9\xC3\xA9\"|\"\\ud83d\\ude00x\"", "\"a\"|\"abcd\"" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"b\"}", "\"b\"|\"abc\"|\"\\\"b\"", "\"\"|\"ac\"" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z\\\"]+$\",\"maxLength\":3}", "\"a\"|\"a\\\"b\"",
      "\"\"|\"abcd\"|\"A\"" },
    { REGEX, "(^a|b$)", "a|b", "ab|c" },
    { REGEX, "(^)a(?:b|(?!c).$)", "ab|ad", "ac|a" },
    { REGEX, "[\\uD800\\uDBFF-\\uDC00\\uDFFFa]", "a", "b" },
    { SCHEMA, "{\"pattern\":\"(^$|^(?!x)[a-z]+:.*$)\",\"type\":\"string\"}", "\"\"~\"a:\"~\"ab:cd\"",
      "\"x:\"~\"a\"~\" a:\"" },
    { SCHEMA, "{\"pattern\":\"(^a|b)\",\"type\":\"string\"}", "\"ac\"~\"cb\"", "\"ca\"~\"\"" },
    { SCHEMA, "{\"pattern\":\"^(^ab$)$\",\"type\":\"string\"}", "\"ab\"", "\"abc\"~\"xab\"" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"arn:.*:.*:.+\",\"maxLength\":12}",
      "\"arn:::x\"~\"xarn:a:b:c\"~\"arn:a:b:cdef\"~\"arn:a:b:\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\"",
      "\"arn:a:b:cdefg\"~\"xxxxxxarn:~\"arn:a\"" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[\\\\p{L}\\\\p{N}_.]*$\",\"minLength\":2,\"maxLength\":256}",
      "\"ab\"~\"\xC3\xA9.\"", "\"a\"~\"\"~\"a b\"" },
    { SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,\"maxLength\":5}", "\"abab\"",
      "\"ab\"~\"ababa~\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"|\"1999-12-31\"|\"2000-02-29\"",
      "\"2023-02-29\"|\"1900-02-29\"|\"2024-13-01\"|\"0000-01-01\"|\"2024-4-1\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"ipv4\"}", "\"1.2.3.4\"|\"255.255.255.255\"",
      "\"256.1.1.1\"|\"1.2.3\"|\"01.2.3.4\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"ipv6\"}", "\"::\"|\"::1\"|\"fe80::1:2\"|\"1:2:3:4:5:6:7:8\"",
      "\"1::2::3\"|\":1\"|\"12345::\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"",
      "\"123e4567e89b12d3a456426614174000\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"hostname\"}", "\"a\"~\"a-b.c1\"~\"a--b\"~\"abc--d\"~\"ab-c\"",
      "\"xn--X\"~\"ab--c\"~\"-a\"~\"a-\"~\"a..b\"~\"\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"uri-reference\"}",
      "\"a\"~\"a/b:c\"~\"#f\"~\"?q\"~\"\"~\"a:b\"~\"//h/x\"~\"./1:b\"", "\":\"~\"1:b\"~\"a b\"~\"\\\\\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"uri\"}", "\"http://u:p@h:80/a?b#c\"~\"http://[::1]/\"~\"urn:a:b\"",
      "\"/a\"~\"http://[:1\"~\"http:// h\"~\"1:b\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"relative-json-pointer\"}", "\"0\"~\"1#\"~\"12/ab\"",
      "\"01\"~\"-1\"~\"/a\"" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"no-such-format\"}", "\"anything\"", "1" },
    { SCHEMA, "{\"enum\":[1,\"two\",null,[1,{\"a\":true}]]}", "1~\"two\"~null~[1,{\"a\":true}]~[1, {\"a\": true}]",
      "2~\"1\"~[1]~[ 1,{\"a\":true}]" },
    { SCHEMA, "{\"oneOf\":[{\"type\":\"string\"},{\"enum\":[\"a\",\"0\",false]}]}", "\"b\"|false", "\"a\"|\"0\"|true" },
    { SCHEMA, "{\"oneOf\":[{\"enum\":[\"a\",true]},{\"type\":\"boolean\"}]}", "\"a\"|false", "true" },
    { SCHEMA, "{\"const\":\"a\\\"b\"}", "\"a\\\"b\"", "\"ab\"" },
    /* negations that several properties must satisfy together: properties with any names, with few
     * possible names, with exceptions */
    { SCHEMA, "{\"type\":\"object\",\"allOf\":[{\"not\":{\"patternProperties\":{\"a\":{\"not\":{\"const\":1}}}}},{\"not\":{\"patternProperties\":{\"b\":{\"not\":{\"const\":2}}}}}],\"maxProperties\":2}",
      "{\"xa\":1,\"b\":2}~{\"a\":1,\"ab\":2}", "{}~{\"a\":1}~{\"ab\":1}~{\"ab\":1,\"ab\":2}~{\"a\":1,\"c\":0,\"b\":2}" },
    { SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"^[a-c]$\":{\"type\":\"null\"}},\"additionalProperties\":false,\"minProperties\":3}",
      "{\"a\":null,\"b\":null,\"c\":null}", "{\"a\":null,\"b\":null}~{\"a\":null,\"a\":null,\"a\":null}" },
    { SCHEMA, "{\"type\":\"object\",\"not\":{\"anyOf\":[{\"propertyNames\":{\"not\":{\"enum\":[\"1\",\"3\"]}}},{\"propertyNames\":{\"not\":{\"enum\":[\"2\",\"3\"]}}}]},\"maxProperties\":2}",
      "{\"3\":0}~{\"1\":0,\"2\":0}", "{}~{\"1\":0}~{\"1\":0,\"4\":0}" },
    /* a copy of a schema resolves references by the base of the original */
    { SCHEMA, "{\"$id\":\"http://a/\",\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"$id\":\"sub/\",\"enum\":[\"aa\",\"b\"],\"$ref\":\"z\"},\"$defs\":{\"z\":{\"$id\":\"http://a/sub/z\",\"minLength\":2},\"w\":{\"$id\":\"http://a/z\",\"maxLength\":1}}}",
      "[\"aa\"]", "[\"b\"]" },
    { SCHEMA, "{\"enum\":[1,2,3,\"x\"],\"type\":\"integer\",\"minimum\":2}", "2|3", "1|\"x\"" },
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"not\":{\"const\":[1,2]}}", "[]~[1]~[2,1]~[1,1]~[1,2,2]", "[1,2]" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,{\"b\":[]}]},\"c\":{\"const\":0}},\"not\":{\"enum\":[{},{\"a\":{\"b\":[]}},{\"a\":1,\"c\":0}]}}",
      "{\"a\":1}~{\"a\":{\"b\":[]},\"c\":0}~{\"c\":0}", "{}~{\"a\":{\"b\":[]}}~{\"a\":1,\"c\":0}" },
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[]~[1]~[1,2]~[1, 2, 3]",
      "[1,]~[ 1]~[\"a\"]~[1,  2]" },
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1,2]~[1,2,3]",
      "[]~[1]~[1,2,3,4]" },
    { SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false}",
      "[]~[\"a\"]~[\"a\",1]", "[1]~[\"a\",1,2]" },
    { SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"boolean\"},\"minItems\":2}", "[\"a\",true]~[\"a\",true,false]", "[\"a\"]~[true,true]" },
    { SCHEMA, "{\"type\":\"array\",\"contains\":{\"const\":5},\"items\":{\"type\":\"integer\"},\"minItems\":2}",
      "[5,1]~[1,5]~[1,2,5]", "[5]~[1,2]~[]" },
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"contains\":{\"const\":1},\"minContains\":0,\"maxContains\":1,\"minItems\":3,\"maxItems\":4}",
      "[2,2,2]~[1,2,2,2]~[2,2,1]", "[2,2,1,1]~[1,1,2]~[2,2]" },
    { SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"contains\":{\"const\":1},\"minContains\":2,\"maxContains\":3,\"maxItems\":5}", "[1,1]~[1,2,1,3]~[1,1,1,2,2]",
      "[1]~[1,1,1,1]~[2,2]~[1,1,2,2,2,2]" },
    { SCHEMA, "{\"type\":\"array\",\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"type\":\"string\"},\"maxContains\":1}]}", "[1,\"a\"]~[\"a\",null,1]", "[1]~[\"a\"]~[1,\"a\",\"b\"]" },
    { SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{}],\"contains\":{\"const\":1},\"maxContains\":1}",
      "[1]~[1,2,3]", "[1,1]~[2]~[]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3]}}", "[]~[1]~[3,1,2]",
      "[1,1]~[1,2,1]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}",
      "[]~[\"a\"]~[\"a\", \"b\",\"ab\"]~[\"\",\"[\",\"]\",\",\"]",
      "[\"a\",\"a\"]~[\"a\",\"b\", \"a\"]~[\"\\\"\",\"\\\"\"]~[\"\",\"\"]~[\"\\u0061\"]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"number\"}}", "[1,12,1.5,-1,0]~[12,1]",
      "[1,1]~[1, 2, 1]~[1.0]~[0,-0]~[1e0]~[1.5,1.50]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":10}}",
      "[1,10,0]~[10,1,2,3,4,5,6,7,8,9,0]", "[10,10]~[10,1,10]~[10,1,2,3,4,5,6,7,8,9,0,1" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"},\"v\":{\"type\":\"array\",\"uniqueItems\":true}},\"required\":[\"k\"]}}",
      "[{\"k\":\"a\"},{\"k\": \"b\"}]~[{\"k\":\"a\"},{\"k\":\"a\",\"v\":[]},{\"k\":\"a\",\"v\":[1,2]}]~[{\"k\":\"a\",\"v\":[[1],[2]]},{\"k\":\"b\",\"v\":[[1],[2]]}]",
      "[{\"k\":\"a\"},{\"k\": \"a\"}]~[{\"k\":\"a\",\"v\":[1,1]}]~[{\"k\":\"a\",\"v\":[[1],[1]]}]~[{\"k\":\"a\",\"v\":[1]},{\"k\":\"b\"},{\"k\":\"a\",\"v\":[1]}]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"additionalProperties\":true}}",
      "[{\"a\":1,\"b\":2},{\"b\":1,\"a\":2}]~[{\"a\":{}},{\"a\":[]},{}]",
      "[{\"a\":1,\"a\":2},{\"a\":2}]~[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]~[[{\"a\":1,\"b\":2}],[{\"b\":2,\"a\":1}]]" },
    { SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"prefixItems\":[{\"const\":1}],\"items\":{\"type\":\"integer\"},\"contains\":{\"const\":5}}", "[1,5]~[1,2,5]", "[1,5,5]~[1,2]~[1,1,5]" },
    { SCHEMA, "{\"prefixItems\":[{\"uniqueItems\":true}],\"type\":\"array\"}", "[[1,2],[1,1]]~[{},{}]~[[[1,1]],1,1]",
      "[[1,1]]~[[1,1],{}]" },
    { SCHEMA, "{\"anyOf\":[{\"type\":\"array\",\"uniqueItems\":true},{\"type\":\"object\",\"properties\":{\"l\":{\"type\":\"array\"}}}]}", "[1,[2,2]]~{\"l\":[1,1]}", "[1,1]" },
    { FLEXIBLE, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"maxLength\":1}}",
      "[ \"a\" ,\n \"b\" ]~[\"a\",\"\"]", "[ \"a\" ,\n  \"a\" ]~[\"\", \"\"]" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}", "{\"b\":null}~{\"a\": 1, \"b\": null}",
      "{}~{\"a\":1}~{\"b\":null,\"a\":1}~{\"b\":null,\"c\":1}~{\"b\":null,\"b\":null}~{ \"b\":null}" },
    { SCHEMA, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{}~{\"x\":1}~{\"x\":1,\"y\":2}",
      "{\"x\":\"1\"}~{x:1}" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}", "{\"ab\":null}~{\"a\":1}~{\"abc\":1}~{\"ab\":null,\"b\":2}",
      "{\"ab\":1}~{\"x\":1,\"ab\":null}~{\"\\u0061b\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":{\"minimum\":5}},\"additionalProperties\":false}", "{\"x\":1}~{\"xy\":5}~{\"y\":\"any\"}", "{\"xy\":4}~{\"z\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]$\"},\"additionalProperties\":true}",
      "{\"a\":1}", "{\"A\":1}~{\"aa\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"minProperties\":2}", "{\"a\":1,\"c\":3}~{\"a\":1,\"b\":2,\"c\":3}", "{}~{\"b\":2}" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"dependentRequired\":{\"a\":[\"b\"]}}", "{}~{\"b\":2}~{\"a\":1,\"b\":2}", "{\"a\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"patternProperties\":{\"\\\\d\":{\"const\":1}},\"additionalProperties\":false,\"propertyNames\":{\"maxLength\":3}}", "{}~{\"ab1\":1}", "{\"abc~{\"abc\":1}~{\"abc1\":1}" },
    { SCHEMA, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\",\"minimum\":3}]}", "\"a\"~3", "2~null" },
    { SCHEMA, "{\"oneOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"integer\",\"maximum\":5}]}", "2|6",
      "3|4|5" },
    { SCHEMA, "{\"minItems\":1,\"allOf\":[{\"oneOf\":[true,{\"enum\":[null]}]}]}", "1", "null" },
    { SCHEMA, "{\"dependentRequired\":{\"a\":[\"b\"]},\"if\":{\"required\":[\"a\"]},\"type\":\"object\"}",
      "{}~{\"c\":1}~{\"a\":1,\"b\":2}", "{\"a\":1}~{\"a\":1,\"c\":1}" },
    { SCHEMA, "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":5},\"b\":{}},"
              "\"additionalProperties\":false}]}", "{\"a\":4}~{\"b\":null}~{\"a\":5.5}~{\"a\":7,\"b\":1}",
              "{\"a\":5}~{}~{\"a\":4,\"b\":1}~{\"c\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"null\"}},\"additionalProperties\":true}", "{\"a\":1}~{\"a\":null,\"b\":\"\"}", "{}~{\"a\":null}~{\"a\":1,\"a\":null}" },
    /* as many conditions on one property as the compiler can distinguish */
    { SCHEMA, "{\"type\":\"object\",\"allOf\":[{\"not\":{\"additionalProperties\":{\"type\":\"null\"}}},{\"not\":{\"additionalProperties\":{\"type\":\"string\"}}},{\"not\":{\"additionalProperties\":{\"type\":\"boolean\"}}},{\"not\":{\"additionalProperties\":{\"type\":\"array\"}}}]}", "{\"a\":1}~{\"a\":null,\"b\":2}", "{}~{\"a\":null}~{\"a\":\"\",\"b\":\"\"}" },
    { SCHEMA, "{\"type\":\"object\",\"not\":{\"propertyNames\":{\"maxLength\":2}}}", "{\"abc\":1}~{\"a\":1,\"abc\":2}",
      "{}~{\"ab\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"not\":{\"patternProperties\":{\"^x\":{\"type\":\"null\"}}},\"maxProperties\":2}",
      "{\"xa\":1}~{\"b\":null,\"x\":1}", "{}~{\"x\":null}~{\"a\":1}~{\"a\":1,\"b\":1,\"x\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[{\"const\":\"a\"},{\"minLength\":3,\"not\":{\"pattern\":\"^x\"}}]}}", "{\"a\":1}~{\"abc\":1,\"a\":2}", "{\"b\":1}~{\"xbc\":1}" },
    { SCHEMA, "{\"type\":\"string\",\"not\":{\"format\":\"date\"}}", "\"x\"~\"2023-02-29\"", "\"2024-02-29\"" },
    { SCHEMA, "{\"not\":{\"type\":\"object\",\"maxProperties\":2}}", "1~[]",
      "{}~{\"a\":1,\"b\":1}~{\"a\":1,\"a\":1,\"a\":1}" },
    { SCHEMA, "{\"not\":{\"enum\":[{},[],null]}}", "{\"a\":1}~[1]~1", "{}~[]~null" },
    { SCHEMA, "{\"not\":{\"if\":{\"type\":\"string\"},\"then\":{\"minLength\":2},\"else\":{\"type\":\"null\"}}}",
      "\"a\"~1~{}", "\"ab\"~null" },
    { SCHEMA, "{\"not\":{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":3}]},\"type\":\"number\"}", "3~2.5~7",
      "2~3.5" },
    { SCHEMA, "{\"type\":\"array\",\"not\":{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}}",
      "[2]~[1,3]~[1,2,3]", "[]~[1]~[1,2]" },
    { SCHEMA, "{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}}}],\"anyOf\":[{\"required\":[\"b\"],\"properties\":{\"b\":{}}},{\"required\":[\"c\"],\"properties\":{\"c\":{}}}],\"unevaluatedProperties\":false}",
      "{\"a\":1,\"b\":2}~{\"c\":3}", "{\"b\":1,\"d\":2}~{}" },
    { SCHEMA, "{\"type\":\"object\",\"allOf\":[{\"unevaluatedProperties\":false}],\"properties\":{\"a\":{}}}", "{}",
      "{\"a\":1}~{\"b\":1}" },
    { SCHEMA, "{\"type\":\"object\",\"$ref\":\"#/$defs/b\",\"unevaluatedProperties\":{\"type\":\"null\"},\"$defs\":{\"b\":{\"properties\":{\"a\":{\"const\":1}},\"patternProperties\":{\"^x\":{\"const\":2}}}}}",
      "{\"a\":1,\"x\":2,\"y\":null}", "{\"a\":null}~{\"y\":2}" },
    { SCHEMA, "{\"type\":\"array\",\"allOf\":[{\"prefixItems\":[{\"const\":1}]}],\"contains\":{\"const\":5},\"unevaluatedItems\":false}", "[1,5]~[1,5,5]", "[1]~[1,5,2]~[5]" },
    { SCHEMA, "{\"allOf\":[{\"minimum\":3},{\"maximum\":5}],\"type\":\"integer\"}", "3|5", "2|6" },
    { SCHEMA, "{\"type\":\"string\",\"not\":{\"const\":\"a\"}}", "\"b\"|\"\"|\"aa\"", "\"a\"" },
    { SCHEMA, "{\"type\":[\"integer\",\"string\"],\"not\":{\"type\":\"string\"}}", "1", "\"a\"" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"v\":{}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},\"then\":{\"required\":[\"v\"]},"
              "\"else\":{\"properties\":{\"v\":{\"type\":\"integer\"}}}}",
      "{\"k\":\"a\",\"v\":null}~{\"k\":\"b\"}~{\"k\":\"b\",\"v\":1}", "{\"k\":\"a\"}~{\"k\":\"b\",\"v\":null}" },
    { SCHEMA, "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}}}}}", "{}~{\"c\":[]}~{\"c\":[{},{\"c\":[{}]}]}",
      "{\"c\":[1]}~{\"c\":[{]}" },
    { SCHEMA, "{\"$ref\":\"#here\",\"$defs\":{\"a/b~\":{\"$anchor\":\"here\",\"type\":\"null\"}}}", "null", "1" },
    { SCHEMA, "{\"$ref\":\"#/$defs/a~1b~0\",\"$defs\":{\"a/b~\":{\"$anchor\":\"here\",\"type\":\"null\"}}}", "null",
      "1" },
    { SCHEMA, "{\"$id\":\"http://x/root\",\"$ref\":\"b#n\",\"$defs\":{\"p\":{\"$id\":\"a\",\"$anchor\":\"n\",\"type\":\"string\"},\"q\":{\"$id\":\"b\",\"$anchor\":\"n\",\"type\":\"null\"}}}", "null", "\"a\"" },
    { SCHEMA, "{\"$ref\":\"http://x/y\",\"other\":{\"$id\":\"http://x/y\",\"type\":\"string\"},\"$defs\":{\"a\":{\"$id\":\"http://x/y\",\"type\":\"null\"}}}", "null", "\"a\"" },
    { SCHEMA, "{\"$id\":\"http://x/a/b\",\"$ref\":\"../c/./d\",\"$defs\":{\"a\":{\"$id\":\"/c/d\",\"type\":\"null\"}}}",
      "null", "\"a\"" },
    { SCHEMA, "{\"$dynamicRef\":\"#n\",\"$defs\":{\"a\":{\"$dynamicAnchor\":\"n\",\"type\":\"null\"}}}", "null",
      "\"a\"" },
    { SCHEMA, "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"$ref\":\"#/definitions/a\",\"minimum\":5,\"definitions\":{\"a\":{\"type\":\"integer\"}}}", "1", "null" },
    { SCHEMA, "{\"enum\":[{\"a\":1},{}],\"dependencies\":{\"a\":[\"b\"]}}", "{}", "{\"a\":1}" },
    { SCHEMA, "{\"$id\":\"http://x/root\",\"$ref\":\"d/a#/kept/t\",\"$defs\":{\"a\":{\"$id\":\"d/a\",\"kept\":{\"t\":{\"$ref\":\"b\"}}},\"b\":{\"$id\":\"d/b\",\"type\":\"null\"},\"c\":{\"$id\":\"b\",\"type\":\"string\"}}}",
      "null", "\"a\"" },
    { SCHEMA, "{\"$id\":\"http://x/root\",\"$ref\":\"d/a\",\"$defs\":{\"a\":{\"$id\":\"d/a\",\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"},\"v\":{\"$ref\":\"b\"}},\"oneOf\":[{\"required\":[\"k\"]},{\"required\":[\"v\"]}]},\"b\":{\"$id\":\"d/b\",\"type\":\"null\"},\"c\":{\"$id\":\"b\",\"type\":\"string\"}}}",
      "{\"k\":1}~{\"v\":null}", "{\"v\":\"a\"}~{\"k\":1,\"v\":null}" },
    { SCHEMA, "{\"$id\":\"http://x/root\",\"$ref\":\"d/a\",\"$defs\":{\"a\":{\"$id\":\"d/a\",\"not\":{\"not\":{\"items\":{\"$ref\":\"b\"},\"type\":\"array\"}}},\"b\":{\"$id\":\"d/b\",\"type\":\"null\"},\"c\":{\"$id\":\"b\",\"type\":\"string\"}}}",
      "[null]~[]", "[\"a\"]" },
    { SCHEMA, "{\"allOf\":[{\"enum\":[0,1]},{\"enum\":[\"a\",1,false]}]}", "1", "0|\"a\"|false" },
    { SCHEMA, "{\"$id\":\"http://x/root\",\"$ref\":\"d/a\",\"$defs\":{\"a\":{\"$id\":\"d/a\",\"enum\":[null,\"a\"],\"$ref\":\"b\"},\"b\":{\"$id\":\"d/b\",\"type\":\"null\"},\"c\":{\"$id\":\"b\",\"type\":\"string\"}}}",
      "null", "\"a\"" },
    { SCHEMA, "{\"type\":\"number\",\"maximum\":1.5}", "1.5|-999999999.999999", "1.6|-1000000000.0" },
    { SCHEMA, "{\"type\":\"string\",\"format\":\"regex\"}", "\"\"~\"^a(?:b|c+)*$\"~\"[a-z]{2}\\\\d+?\"~\"a|(b(c|d)?)\"~\"x{1,}\"",
      "\"*\"~\"\\\\\"~\"(\"~\"a)\"~\"[z\"~\"a{2\"~\"^*\"~\"a**\"~\"[z-a]\"~\"(|*)\"" },
    { SCHEMA, "{\"type\":\"integer\",\"maximum\":5}", "5|-999999999999999999", "6|-1000000000000000000" },
    { SCHEMA, "{\"type\":\"integer\",\"minimum\":5}", "5|999999999999999999", "4|1000000000000000000" },
    { SCHEMA, "{\"type\":\"string\",\"nullable\":true}", "\"a\"|null", "1" },
    { SCHEMA, "{\"type\":\"object\",\"properties\":{\"q\\\"\\n\":{\"type\":\"null\"}},\"required\":[\"q\\\"\\n\"]}",
      "{\"q\\\"\\n\":null}", "{}" },
    { FLEXIBLE, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}",
      "{\"a\":[1]}~{\n  \"a\" : [\n    1,\n    2\n  ]\n}~{ \"a\": [ 1 , 2 ] }", "{  \"a\":[]}~{\"a\":[1\n\n]}" },
};

static void texts_are_taken_or_not(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = { .msg = "" };
        struct grammar *g = compile(rows[i].kind, NULL, rows[i].text, &e);
        if (!strcmp(rows[i].text, "[]a]")) {            /* its empty class matches nothing, so
                                                         * compiling it fails */
            assert_null(g);
            continue;
        }
        if (!g)
            fail_msg("%s: %s", rows[i].text, e.msg);
        check_list(g, &rows[i], rows[i].yes, 1);
        check_list(g, &rows[i], rows[i].no, 0);
        grammar_close(g);
    }
}

static int has_comma(const char *locale)
{
    return setlocale(LC_NUMERIC, locale) && strcmp(localeconv()->decimal_point, ",") == 0;
}

/* Programs that link the library may have set a locale. */
static void numbers_do_not_depend_on_the_locale(void **state)
{
    static const char *const table[][3] = {
        { "{\"const\":0.25}", "0.25", "0,25" }, { "{\"enum\":[[1.5e300]]}", "[1.5e+300]", "[1,5e+300]" },
        { "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.5}", "0.3", "0.2" },
        { "{\"type\":\"number\",\"multipleOf\":0.25}", "0.75", "0.8" },
    };
    char folder[] = "/tmp/t-grammar-XXXXXX", command[128];
    (void)state;
    assert_non_null(mkdtemp(folder));
    int found = has_comma("de_DE.UTF-8");
    if (!found) {
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", folder);
        found = system(command) == 0 && setenv("LOCPATH", folder, 1) == 0 && has_comma("de_DE.UTF-8");
    }
    for (size_t i = 0; found && i < sizeof table / sizeof *table; i++) {
        struct err e = { .msg = "" };
        assert_true(has_comma("de_DE.UTF-8"));
        struct grammar *g = compile(SCHEMA, NULL, table[i][0], &e);
        const int good = g && takes(g, table[i][1], strlen(table[i][1])),
                  bad = g && takes(g, table[i][2], strlen(table[i][2]));
        grammar_close(g);
        setlocale(LC_NUMERIC, "C");
        if (!good || bad)
            fail_msg("%s: %s", table[i][0], e.msg);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    if (!found) {
        print_message("# SKIP no locale with a decimal comma\n");
        skip();
    }
}

static void refusals_name_the_place(void **state)
{
    static const struct { enum kind kind; const char *text, *words; } table[] = {
        { REGEX, "a(b", "character 2: a group without )" },
        { REGEX, "\\p{Q}", "character 1: " },
        { REGEX, "\\p{QQQQQQ}", "character 1: " },
        { REGEX, "\\p{QQQQQQQQQQQQQQQ}", "character 1: " },
        { REGEX, "a)b", "character 2: a ) without (" },
        { REGEX, "(a)\\1", "back references" },
        { REGEX, "a\\b", "\\b is not enforced" },
        { REGEX, "(?<=a)b", "lookbehind" },
        { REGEX, "a**", "nothing to repeat" },
        { REGEX, "[z-a]", "a range whose end" },
        { REGEX, "a{3,2}", "a repetition whose end" },
        { REGEX, "[a", "a class without ]" },
        { REGEX, "x{99999999}", "more than 1000000" },
        { REGEX, "a^b", "anchors are enforced at the beginning" },
        { GBNF, "root ::= x", "grammar: line 1, column 10: there is no rule called x" },
        { GBNF, "x ::= \"a\"", "no rule called root" },
        { GBNF, "root ::= \"a\nroot ::= \"b\"", "line 2, column 13: the grammar ends inside of quotes" },
        { GBNF, "root ::= root \"a\" | \"b\"", "grammar: line 1, column 1: a rule begins with itself (left recursion; write the repetition with * or at the end of the rule): rule root" },
        { GBNF, "root ::= a\na ::= b? root", "line 2, column 7: there is no rule called b" },
        { GBNF, "root ::= \"z\" a\na ::= b | \"y\"\nb ::= \"x\"? a", "line 3, column 1: a rule begins with itself" },
        { GBNF, "root ::= \"a\" root", "no text of finite length" },
        { GBNF, "root ::= (\"a\"", "line 1, column 10: a group without )" },
        { GBNF, "root ::= <tool>", "only where there is a vocabulary" },
        { SCHEMA, "{\"type\":\"strin\"}", "schema: /type: expected" },
        { SCHEMA, "false", "schema: nothing can satisfy it" },
        { SCHEMA, "{\"properties\":{\"a/b\":{\"pattern\":\"(\"}}}",
          "schema: /properties/a~1b/pattern: regular expression, character 1" },
        { SCHEMA, "{\"items\":{\"$ref\":\"http://x/y\"}}", "schema: /items/$ref: it leads out of the schema" },
        { SCHEMA, "{\"$ref\":\"#/nowhere\"}", "schema: /$ref: there is nothing of that name" },
        { SCHEMA, "{\"type\":\"string\",\"not\":{\"format\":\"email\"}}", "schema: /not/format: its negation" },
        { SCHEMA, "{\"oneOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"string\",\"format\":\"uuid\",\"minLength\":3}, {\"type\":\"string\",\"format\":\"email\"},{\"type\":\"string\"}]}", "schema: /oneOf/2/format: its negation" },
        { SCHEMA, "{\"type\":\"object\",\"minProperties\":3}", "schema: /minProperties: " },
        { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":16385}", "schema: /multipleOf: divisors above 16384" },
        { SCHEMA, "{\"not\":{\"enum\":[[1],[2],[3],[4],[5],[6],[7],[8],[9]]}}", "schema: /not: more than 8 arrays" },
        { SCHEMA, "{\"type\":\"object\",\"not\":{\"maxProperties\":2}}", "schema: /not: its negation" },
        { SCHEMA, "{\"$dynamicRef\":\"#x\"}", "schema: /$dynamicRef: " },
        { SCHEMA, "{\"$dynamicRef\":\"#x\",\"$defs\":{\"a\":{\"$id\":\"b\",\"$dynamicAnchor\":\"x\"},\"c\":{\"$dynamicAnchor\":\"x\"}}}", "schema: /$dynamicRef: it can be enforced where" },
        { SCHEMA, "{\"oneOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false,\"required\":[\"a\"]},{\"required\":[\"a\"],\"maxProperties\":3}],\"type\":\"object\"}",
          "schema: /oneOf/0/unevaluatedProperties: its negation" },
        { SCHEMA, "{\"const\":{\"a\":1},\"unevaluatedProperties\":false}",
          "schema: /unevaluatedProperties: it can be checked" },
        { SCHEMA, "{\"const\":[1],\"unevaluatedItems\":false}", "schema: /unevaluatedItems: it can be checked" },
        { SCHEMA, "{\"contains\":{\"format\":\"email\"},\"maxContains\":1}", "schema: /contains/format: its negation" },
        { SCHEMA, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "nothing can satisfy it" },
        { SCHEMA, "{\"type\":\"integer\",\"minimum\":18446744073709551610}", "more digits than are supported" },
        { SCHEMA, "{\"type\":\"number\",\"maximum\":-1e300}", "more digits than are supported" },
        { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
          "no text of finite length" },
        { SCHEMA, "{\"minLength\":-1}", "schema: /minLength: expected a whole number" },
        { SCHEMA, "{\"type\":\"integer\",\"multipleOf\":0}", "schema: /multipleOf: expected a number above 0" },
        { SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],\"unevaluatedProperties\":false}", "nothing can satisfy it" },
        { SCHEMA, "{\"anyOf\":3}", "schema: /anyOf: a value of the wrong kind" },
        { SCHEMA, "[1]", "schema: an array, not an object" },
        { SCHEMA, "{\"a\":1", "schema: line 1" },
        { SCHEMA, "false", "nothing can satisfy it" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct err e = { .msg = "" };
        struct grammar *g = compile(table[i].kind, NULL, table[i].text, &e);
        if (g || !strstr(e.msg, table[i].words))
            fail_msg("%s: %s, not '%s'", table[i].text, g ? "accepted" : e.msg, table[i].words);
    }
}

/* Undeclared properties: only if asked for, never those that additionalProperties excludes. */
static void open_objects_have_undeclared_properties(void **state)
{
    static const struct { const char *schema, *text; int open, closed; } table[] = {
        { "{\"properties\":{\"a\":{\"type\":\"null\"}}}", "{\"a\":null,\"b\":1}", 1, 0 },
        { "{\"properties\":{\"a\":{\"type\":\"null\"}}}", "{\"a\":1}", 0, 0 },
        { "{\"properties\":{\"a\":{}},\"additionalProperties\":false}", "{\"b\":1}", 0, 0 },
        { "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},\"required\":[\"b\"]}],\"type\":\"object\"}",
          "{\"a\":1,\"b\":1}", 0, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int open = 0; open < 2; open++) {
            struct err e;
            const struct grammar_options o = { .open_objects = open };
            struct grammar *g = grammar_compile_schema(NULL, table[i].schema, strlen(table[i].schema), &o, &e);
            if (!g)
                fail_msg("%s: %s", table[i].schema, e.msg);
            struct matcher *m = matcher_open(g, &e);
            const int accepts = matcher_accept_bytes(m, table[i].text, strlen(table[i].text)) == 0 &&
                                matcher_complete(m);
            if (accepts != (open ? table[i].open : table[i].closed))
                fail_msg("%s, open %d: %s: %d", table[i].schema, open, table[i].text, accepts);
            matcher_close(m);
            grammar_close(g);
        }
}

/* Costly expressions are compiled, or refused by a limit; neither takes long or much memory. */
static void costly_expressions_stay_within_limits(void **state)
{
    static const char *const regex[] = { "(a|aa)+$", "(x{1,1000}){1,1000}", "(a?){5000}a{5000}",
                                         "((a{1,100}){1,100}){1,100}", "(.*a){40}", "([a-z]+)*\\.([a-z]*)*x",
                                         "(a|b)*a(a|b){200}", "(?=.*a.{50}b)(?=.*c.{60}d).*", "\\p{L}{1,500}\\p{N}*" };
    (void)state;
    for (size_t i = 0; i < sizeof regex / sizeof *regex; i++) {
        struct err e = { .msg = "" };
        const double t = cpu_s();
        struct grammar *g = compile(REGEX, NULL, regex[i], &e);
        if (g) {
            struct matcher *m = matcher_open(g, &e);
            struct grammar_stats s;
            for (int k = 0; k < 2000 && matcher_accept_bytes(m, k % 3 ? "a" : "x", 1) == 0; k++)
                ;
            grammar_stats(g, &s);
            assert_true(s.bytes < (size_t)400 << 20);
            matcher_close(m);
            grammar_close(g);
        } else {
            assert_int_equal(e.code, ERR_LIMIT);
        }
        if (cpu_s() - t > 60)
            fail_msg("%s: %.1f s", regex[i], cpu_s() - t);
    }
}

/* Rules that refer twice to the next rule, so that sizes double: 2^18 parts are accepted; 2^60 are
 * too many, and so are 2^13 parts each of which may be left out. */
static void doubling_rules_are_refused_by_size(void **state)
{
    static const struct { int n; const char *last, *why; } doubled[] = { { 18, "\"x\"", NULL },
        { 60, "\"x\"", "too large" }, { 13, "\"x\"?", "too ambiguous" } };
    (void)state;
    for (size_t i = 0; i < sizeof doubled / sizeof *doubled; i++) {
        char rules[2048];
        int n = sprintf(rules, "root ::= a0\n");
        for (int k = 0; k < doubled[i].n; k++)
            n += sprintf(rules + n, "a%d ::= a%d a%d\n", k, k + 1, k + 1);
        sprintf(rules + n, "a%d ::= %s\n", doubled[i].n, doubled[i].last);
        struct err why = { .msg = "" };
        struct grammar *x = compile(GBNF, NULL, rules, &why);
        if (doubled[i].why ? x || !strstr(why.msg, doubled[i].why) : !x)
            fail_msg("2^%d times %s: %s", doubled[i].n, doubled[i].last, x ? "accepted" : why.msg);
        grammar_close(x);
    }
}

static void refused_by_limit(enum kind kind, const char *text)
{
    struct err e = { .msg = "" };
    assert_null(compile(kind, NULL, text, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

/* Nested anyOf in 3^40 ways, schemas nested 1000 deep, 100,000 open groups. */
static void nesting_and_combinations_are_refused_by_limits(void **state)
{
    char *text = malloc(1 << 20), *p = text;
    (void)state;
    p += sprintf(p, "{\"allOf\":[");
    for (int i = 0; i < 40; i++)
        p += sprintf(p, "%s{\"anyOf\":[{\"type\":\"object\",\"required\":[\"a%d\"]},{\"required\":[\"b%d\"]},{\"maxProperties\":%d}]}", i ? "," : "", i, i, 100 + i);
    sprintf(p, "]}");
    refused_by_limit(SCHEMA, text);
    p = text;
    for (int i = 0; i < 1000; i++)
        p += sprintf(p, "{\"items\":");
    p += sprintf(p, "{}");
    for (int i = 0; i < 1000; i++)
        *p++ = '}';
    *p = '\0';
    refused_by_limit(SCHEMA, text);
    p = text + sprintf(text, "{\"not\":");
    for (int i = 0; i < 300; i++)
        p += sprintf(p, "{\"allOf\":[{\"minLength\":1},");
    p += sprintf(p, "{}");
    for (int i = 0; i < 300; i++)
        p += sprintf(p, "]}");
    strcpy(p, "}");
    refused_by_limit(SCHEMA, text);
    for (p = text; p < text + 100000; p++)
        *p = '(';
    *p = '\0';
    struct err e;
    assert_null(compile(REGEX, NULL, text, &e));
    free(text);
}

/* Properties in any order need a list of alternatives for each property, as long as the number of
 * properties: 4000 properties are compiled, 12,000 are refused. */
static void many_properties_are_compiled_or_refused_soon(void **state)
{
    char *text = malloc(1 << 20);
    (void)state;
    for (int n = 4000; n <= 12000; n += 8000) {
        const double t = cpu_s();
        char *p = text + sprintf(text, "{\"type\":\"object\",\"properties\":{");
        struct err e;
        for (int i = 0; i < n; i++)
            p += sprintf(p, "%s\"k%d\":{\"type\":\"integer\"}", i ? "," : "", i);
        sprintf(p, "}}");
        struct grammar *g = compile(SCHEMA, NULL, text, &e);
        assert_int_equal(g != NULL, n == 4000);
        grammar_close(g);
        assert_true(cpu_s() - t < 20);
    }
    free(text);
}

/* Compiling ends soon once it is cancelled. */
static void a_cancelled_compilation_ends_soon(void **state)
{
    (void)state;
    static const char *const text[] = { "root ::= [a-z]{1,100} root? | \"x\"", "(?=.*a.{50}b)(?=.*c.{60}d).*",
                                        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}" };
    static const enum kind kind[] = { GBNF, REGEX, SCHEMA };
    const atomic_int stop = 1;
    for (int i = 0; i < 3; i++) {
        struct err e = { .msg = "" };
        const struct grammar_options o = { .cancel = &stop };
        assert_null((kind[i] == GBNF ? grammar_compile_gbnf : kind[i] == REGEX
                     ? grammar_compile_regex : grammar_compile_schema)(NULL, text[i], strlen(text[i]), &o, &e));
        assert_non_null(strstr(e.msg, "cancelled"));
    }
}

/* ---- with a vocabulary: that of the tiny model ---- */

/* Walk by random allowed tokens; at every step each bit of the mask is as defined: the token can
 * be accepted, or it is an EOS and the text may end. */
static void walk(enum kind kind, const char *text, uint64_t seed, int steps)
{
    struct err e = { .msg = "" };
    struct grammar *g = compile(kind, vocab, text, &e);
    if (!g)
        fail_msg("%s: %s", text, e.msg);
    struct rng r = { seed };
    struct matcher *m = matcher_open(g, &e);
    int n_eos, n = vocab->size;
    const int32_t *eos = tokenizer_eos(tokenizer, &n_eos);
    for (int k = 0; k < steps; k++) {
        int32_t allowed[1 << 16];
        int count = 0;
        const uint32_t *mask = matcher_mask(m);
        for (int32_t id = 0; id < n; id++) {
            int is_eos = 0;
            struct matcher *f = matcher_fork(m);
            for (int i = 0; i < n_eos; i++)
                is_eos |= eos[i] == id;
            int want = is_eos ? matcher_complete(m) : matcher_accept(f, id) == 0;
            matcher_close(f);
            if (want != bit(mask, id))
                fail_msg("%s: token %d (%s) is %s after %d tokens", text, id,
                         grammar_vocab_bytes(vocab, id, &(size_t){ 0 }), want ? "left out" : "let in", k);
            if (want && !is_eos)
                allowed[count++] = id;
        }
        int32_t forced[16];
        int n_forced = matcher_forced(m, forced, 16);
        for (int i = 0; i < n_forced; i++) {
            struct matcher *f = matcher_fork(m);
            for (int j = 0; j <= i; j++)
                assert_int_equal(matcher_accept(f, forced[j]), 0);
            matcher_close(f);
        }
        assert_true(count > 0 || matcher_complete(m));      /* never a dead end */
        if (!count || (matcher_complete(m) && rng_u64(&r) % 4 == 0)) {
            assert_int_equal(matcher_accept(m, eos[0]), 0);
            assert_true(matcher_ended(m));
            assert_true(bit(matcher_mask(m), eos[0]));
            assert_int_equal(matcher_accept(m, allowed[0]), -1);
            break;
        }
        assert_int_equal(matcher_accept(m, allowed[rng_u64(&r) % (uint64_t)count]), 0);
    }
    matcher_close(m);
    grammar_close(g);
}

static void masks_are_as_defined(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += getenv("ZSE_SANITIZED") ? 3 : 1)
        if (strcmp(rows[i].text, "[]a]") != 0)
            walk(rows[i].kind, rows[i].text, i + 1, 12);
    walk(GBNF, "root ::= ([^x] | \"x\" [0-9]{2})*", 7, 40);
    walk(SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":6},\"minItems\":3}", 8, 40);
    for (uint64_t seed = 1; seed < 4; seed++) {
        walk(SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]{1,2}$\"},\"minItems\":6}", seed, 30);
        walk(SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":5,\"maximum\":15},\"minItems\":11}", seed, 40);
        walk(SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x1\",\"x2\"]},\"b\":{\"enum\":[1,2]}},\"required\":[\"a\",\"b\"]},\"minItems\":4}", seed, 60);
    }
}

/* The bytes of an answer's tokens, joined, are its text. */
static void bytes_of_tokens_are_the_text(void **state)
{
    static const char text[] = "{\"name\": \"Z\xC3\xBCrich \xE2\x82\xAC \xF0\x9F\x98\x80\", \"list\": [1, 2.5, null, true]}\n\tx";
    (void)state;
    int32_t *ids;
    size_t n, at = 0, size;
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, 0, &ids, &n, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        const char *p = grammar_vocab_bytes(vocab, ids[i], &size);
        assert_non_null(p);
        assert_true(size <= sizeof text - 1 - at);
        assert_memory_equal(p, text + at, size);
        at += size;
    }
    assert_int_equal(at, sizeof text - 1);
    free(ids);
}

/* Text that must come next is split into tokens as the tokenizer would split it. */
static void forced_tokens_are_those_of_the_tokenizer(void **state)
{
    (void)state;
    struct err e;
    struct grammar *g = compile(SCHEMA, vocab, "{\"type\":\"object\",\"properties\":{\"temperature_in_celsius\":{\"type\":\"integer\"}},\"required\":[\"temperature_in_celsius\"]}", &e);
    struct matcher *m = matcher_open(g, &e);
    int32_t ids[64], *own;
    size_t n_own;
    int n = matcher_forced(m, ids, 64);
    static const char text[] = "{\"temperature_in_celsius\":";
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, 0, &own, &n_own, NULL), 0);
    assert_true(n > 2 && (size_t)n <= n_own);
    assert_memory_equal(ids, own, (size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++)
        assert_int_equal(matcher_accept(m, ids[i]), 0);
    free(own);
    matcher_close(m);
    grammar_close(g);
}

/* Forced tokens before a place with several continuations must be those that the tokenizer gives
 * for each of the whole texts. */
static void forced_tokens_never_join_the_open_text(void **state)
{
    static const char *const certain[] = { "Once upon a ti", "The ca", "hello wor", "{\"a\": tr", "12 3" },
                      *const rest[] = { "me", "pital of", "ld", "ue, and", "x", "a", "45" };
    int n_forced = 0;
    (void)state;
    for (size_t i = 0; i < sizeof certain / sizeof *certain; i++) {
        char text[100] = "root ::= \"", *p = text + strlen(text);
        struct err e = { .msg = "" };
        for (const char *c = certain[i]; *c; c++)
            p += sprintf(p, *c == '"' ? "\\%c" : "%c", *c);
        strcpy(p, "\" .*\n");
        struct grammar *g = compile(GBNF, vocab, text, &e);
        if (!g)
            fail_msg("%s: %s", text, e.msg);
        struct matcher *m = matcher_open(g, &e);
        int32_t ids[64], *own;
        const int n = matcher_forced(m, ids, 64);
        n_forced += n;
        for (size_t k = 0; k < sizeof rest / sizeof *rest; k++) {
            size_t n_own;
            snprintf(text, sizeof text, "%s%s", certain[i], rest[k]);
            assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), 0, &own, &n_own, NULL), 0);
            assert_true((size_t)n <= n_own);
            if (memcmp(ids, own, (size_t)n * sizeof *ids) != 0)
                fail_msg("'%s' of '%s': another token is forced", certain[i], text);
            free(own);
        }
        matcher_close(m);
        grammar_close(g);
    }
    assert_true(n_forced > 0);
}

/* Special tokens are never part of a text, and are allowed only where a rule names them. */
static void named_tokens_are_allowed_where_rules_name_them(void **state)
{
    (void)state;
    struct err e;
    int n_eos;
    const int32_t *eos = tokenizer_eos(tokenizer, &n_eos);
    int32_t special = -1;
    size_t size;
    for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer) && special < 0; id++)
        if (tokenizer_is_special(tokenizer, id) && id != eos[0] && id != eos[n_eos - 1])
            special = id;
    assert_true(special >= 0);
    struct grammar *g = compile(REGEX, vocab, "(.|\\n)*", &e);
    struct matcher *m = matcher_open(g, &e);
    assert_false(bit(matcher_mask(m), special));
    assert_int_equal(matcher_accept(m, special), -1);
    matcher_close(m);
    grammar_close(g);
    char text[300];
    const char *p = tokenizer_token(tokenizer, special, &size);
    snprintf(text, sizeof text, "root ::= \"a\" <[%d]> \"b\"", special);
    for (int by_text = 0; by_text < 2; by_text++) {
        if (by_text && !(p[0] == '<' && p[size - 1] == '>'))
            break;
        if (by_text)
            snprintf(text, sizeof text, "root ::= \"a\" %.*s \"b\"", (int)size, p);
        g = compile(GBNF, vocab, text, &e);
        assert_non_null(g);
        m = matcher_open(g, &e);
        assert_int_equal(matcher_accept_bytes(m, "a", 1), 0);
        assert_true(bit(matcher_mask(m), special));
        /* The token's text does not count as the token. */
        assert_int_equal(matcher_accept_bytes(m, p, size), -1);
        int32_t ids[4];
        assert_int_equal(matcher_forced(m, ids, 4), 1);
        assert_int_equal(ids[0], special);
        assert_int_equal(matcher_accept(m, special), 0);
        assert_false(bit(matcher_mask(m), special));
        assert_int_equal(matcher_accept_bytes(m, "b", 1), 0);
        assert_true(matcher_ended(m));
        matcher_close(m);
        grammar_close(g);
    }
}

struct job { struct grammar *g; uint64_t seed; uint64_t sum; };

static void *run_job(void *p)
{
    struct job *j = p;
    struct rng r = { j->seed };
    for (int k = 0; k < 5; k++) {
        struct matcher *m = matcher_open(j->g, NULL);
        for (int i = 0; i < 60; i++) {
            const uint32_t *mask = matcher_mask(m);
            int32_t id;
            int n = vocab->size;
            do
                id = (int32_t)(rng_u64(&r) % (uint64_t)n);
            while (!bit(mask, id));
            j->sum = j->sum * 31 + (uint64_t)id;
            if (matcher_accept(m, id) != 0)
                j->sum = 0;
            if (matcher_ended(m))
                break;
        }
        matcher_close(m);
    }
    return NULL;
}

/* A grammar that threads share gives each of them the results that it would get alone. */
static void threads_share_a_grammar(void **state)
{
    (void)state;
    struct err e;
    struct job j[4], alone[4];
    pthread_t t[4];
    struct grammar *g = compile(SCHEMA, vocab, "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"},{\"$ref\":\"#\"}]}}", &e);
    for (int i = 0; i < 4; i++) {
        j[i] = alone[i] = (struct job){ g, (uint64_t)i + 1, 0 };
        pthread_create(&t[i], NULL, run_job, &j[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    grammar_close(g);
    for (int i = 0; i < 4; i++) {
        g = compile(SCHEMA, vocab, "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"},{\"$ref\":\"#\"}]}}", &e);
        alone[i].g = g;
        run_job(&alone[i]);
        grammar_close(g);
        assert_true(alone[i].sum == j[i].sum && j[i].sum != 0);
    }
}

/* ---- limits of work ---- */

/* A grammar of N rules that may each continue in two ways: the number of positions that a text may
 * be at grows with N, and so does the work for a mask. */
static char *ambiguous(int n)
{
    char *text = malloc((size_t)n * 80 + 100), *p = text;
    p += sprintf(p, "root ::= r0\n");
    for (int i = 0; i < n; i++)
        p += sprintf(p, "r%d ::= [a-z]* r%d | [a-f]+ r%d | \"\"\n", i, i + 1, i * 7 % n);
    sprintf(p, "r%d ::= \"z\"\n", n);
    return text;
}

static struct grammar *limited(const char *text, uint64_t max_steps)
{
    struct err e;
    struct grammar *g = grammar_compile_gbnf(vocab, text, strlen(text),
                                             &(struct grammar_options){ .max_steps = max_steps }, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* A hash of a matcher's results and counts on a walk of `steps` tokens; with pauses if `pause` is
 * not 0. */
static uint64_t story(struct grammar *g, uint64_t seed, int steps, uint64_t pause)
{
    struct err e = { .msg = "" };
    struct matcher *m = matcher_open(g, &e);
    struct rng r = { seed };
    uint64_t hash = 1;
    const int n = vocab->size, words = (n + 31) / 32;
    for (int k = 0; k < steps && matcher_error(m, &e) == 0; k++) {
        const uint32_t *mask;
        int32_t id;
        uint64_t p = pause;
        do {
            matcher_hurry(m, p);
            mask = matcher_mask(m);
            p *= 2;
        } while (matcher_busy(m));
        for (int i = 0; i < words; i++)
            hash = (hash ^ mask[i]) * 0x9E3779B97F4A7C15u;
        hash = (hash ^ m->spent) * 0x9E3779B97F4A7C15u;
        int tries = 0;
        do
            id = (int32_t)(rng_u64(&r) % (uint64_t)n);
        while (!bit(mask, id) && ++tries < 100000);
        if (tries == 100000)
            break;
        for (p = pause; matcher_hurry(m, p), matcher_accept(m, id) != 0 && matcher_busy(m); p *= 2)
            ;
        hash = (hash ^ m->spent) * 0x9E3779B97F4A7C15u;
    }
    for (const char *c = e.msg; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    matcher_close(m);
    return hash;
}

/* The work for an answer is counted equally, and fails at the same place with the same message, in
 * a new grammar, in one with many cached results, and with pauses. */
static void counted_work_does_not_depend_on_caches(void **state)
{
    (void)state;
    static const char *const text[] = { "root ::= [a-z] [a-z ]* root? | \"(\" root \")\"",
                                        "root ::= (\"- \" [^\\n]+ \"\\n\")+", NULL };
    static const uint64_t most[] = { 0, 100000, 2000 };
    for (int i = 0; i < 3; i++) {
        char *own = text[i] ? NULL : ambiguous(12);
        for (int k = 0; k < 3; k++) {
            struct grammar *warm = limited(text[i] ? text[i] : own, most[k]);
            for (uint64_t seed = 1; seed < 6; seed++) {
                struct grammar *fresh = limited(text[i] ? text[i] : own, most[k]),
                               *paused = limited(text[i] ? text[i] : own, most[k]);
                const uint64_t want = story(fresh, seed, 12, 0);
                assert_int_equal(story(warm, seed, 12, 0), want);
                assert_int_equal(story(fresh, seed, 12, 0), want);
                assert_int_equal(story(paused, seed, 12, 50), want);
                assert_int_equal(story(warm, seed, 12, 300), want);
                grammar_close(fresh);
                grammar_close(paused);
            }
            grammar_close(warm);
        }
        free(own);
    }
}

/* A mask that takes too long is an error of its matcher alone, and comes soon. */
static void a_costly_answer_fails_alone(void **state)
{
    (void)state;
    char *text = ambiguous(500);
    struct grammar *g = limited(text, 200000);
    struct err e = { .msg = "" };
    struct matcher *m = matcher_open(g, &e), *other = matcher_open(g, &e);
    const double t = cpu_s();
    const uint32_t *mask = matcher_mask(m);
    for (int i = 0; i < (vocab->size + 31) / 32; i++)
        assert_int_equal(mask[i], 0);
    assert_int_equal(matcher_error(m, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.msg, "the grammar is too costly: more than 200000 steps"));
    assert_int_equal(matcher_accept_bytes(m, "a", 1), -1);
    /* Other matchers of the same grammar are not affected. */
    assert_int_equal(matcher_accept_bytes(other, "z", 1), 0);
    assert_int_equal(matcher_error(other, NULL), 0);
    assert_true(cpu_s() - t < 10);
    matcher_close(m);
    matcher_close(other);
    grammar_close(g);
    /* each token takes few steps, but there are too many tokens: a token may take a 16th of
     * max_steps on average */
    g = limited(text, 40000);
    m = matcher_open(g, &e);
    int k = 0;
    while (k < 10000 && matcher_accept(m, tokenizer_find(tokenizer, "a", 1)) == 0)
        k++;
    assert_int_equal(matcher_error(m, &e), -1);
    assert_non_null(strstr(e.msg, " tokens"));
    assert_in_range(k, 10, 1000);
    matcher_close(m);
    grammar_close(g);
    free(text);
}

static void *cancel_it(void *matcher)
{
    matcher_cancel(matcher);
    return NULL;
}

/* If a matcher is cancelled by another thread, the running call and all later ones fail soon. */
static void a_cancelled_mask_ends_soon(void **state)
{
    (void)state;
    char *text = ambiguous(500);
    struct grammar *g = limited(text, UINT64_MAX / 16);
    struct err e = { .msg = "" };
    struct matcher *m = matcher_open(g, &e), *other = matcher_open(g, &e);
    pthread_t thread;
    assert_int_equal(matcher_accept_bytes(m, "a", 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel_it, m), 0);
    while (matcher_error(m, &e) == 0)
        matcher_mask(m);
    pthread_join(thread, NULL);
    assert_non_null(strstr(e.msg, "cancelled"));
    assert_int_equal(matcher_accept_bytes(other, "a", 1), 0);
    matcher_close(m);
    matcher_close(other);
    grammar_close(g);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_taken_or_not),
        cmocka_unit_test(numbers_do_not_depend_on_the_locale),
        cmocka_unit_test(refusals_name_the_place),
        cmocka_unit_test(open_objects_have_undeclared_properties),
        cmocka_unit_test(costly_expressions_stay_within_limits),
        cmocka_unit_test(doubling_rules_are_refused_by_size),
        cmocka_unit_test(nesting_and_combinations_are_refused_by_limits),
        cmocka_unit_test(many_properties_are_compiled_or_refused_soon),
        cmocka_unit_test(masks_are_as_defined),
        cmocka_unit_test(bytes_of_tokens_are_the_text),
        cmocka_unit_test(forced_tokens_are_those_of_the_tokenizer),
        cmocka_unit_test(forced_tokens_never_join_the_open_text),
        cmocka_unit_test(named_tokens_are_allowed_where_rules_name_them),
        cmocka_unit_test(threads_share_a_grammar),
        cmocka_unit_test(a_cancelled_compilation_ends_soon),
        cmocka_unit_test(counted_work_does_not_depend_on_caches),
        cmocka_unit_test(a_costly_answer_fails_alone),
        cmocka_unit_test(a_cancelled_mask_ends_soon),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
