/* json.c - parse JSON and read its fields. */
#include "libcommon/base/json.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/file.h"
#include "libcommon/base/utf8.h"

/* A copy of the text with "e0" after every whole number of 19 digits or more, so that jansson reads
 * it as a real.  Caller frees. */
static char *reals_for_huge(const char *text, size_t size, size_t *new_size)
{
    char *out = malloc(size + size / 8 + 4);            /* a number of 19 digits grows by two bytes */
    size_t n = 0;
    int in_string = 0;
    for (size_t i = 0; out && i < size;) {
        size_t digits = 0, length = 0;                  /* digits and characters of the number that begins here */
        if (!in_string && (text[i] == '-' || isdigit((unsigned char)text[i])))
            for (; i + length < size && strchr("+-.eE0123456789", text[i + length]) && text[i + length]; length++)
                digits += isdigit((unsigned char)text[i + length]) != 0;
        if (length == 0) {
            in_string ^= text[i] == '"';
            if (in_string && text[i] == '\\' && i + 1 < size)
                out[n++] = text[i++];
            out[n++] = text[i++];
            continue;
        }
        memcpy(out + n, text + i, length);
        n += length;
        i += length;
        if (digits >= 19 && digits + (text[i - length] == '-') == length) {
            memcpy(out + n, "e0", 2);
            n += 2;
        }
    }
    *new_size = n;
    return out;
}

int js_no_memory(const json_error_t *j) { return !*j->text || json_error_code(j) == json_error_out_of_memory; }

/* flags: of json_loadb(), besides JSON_REJECT_DUPLICATES */
static json_t *parse(const char *name, const void *text, size_t size, size_t flags, struct err *e)
{
    json_error_t j;
    json_t *v = json_loadb(text, size, JSON_REJECT_DUPLICATES | flags, &j);
    /* such as "model_max_length": 1000000000000000019884624838656 */
    if (!v && !js_no_memory(&j) && json_error_code(&j) == json_error_numeric_overflow) {
        json_error_t again;
        char *reals = reals_for_huge(text, size, &size);
        v = reals ? json_loadb(reals, size, JSON_REJECT_DUPLICATES | flags, &again) : NULL;
        free(reals);
    }
    if (!v && js_no_memory(&j))
        err_nomem(e, name);
    else if (!v)
        err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", name, j.line, j.column, j.text);
    return v;
}

json_t *js_parse(const char *name, const void *text, size_t size, struct err *e)
{
    return parse(name, text, size, 0, e);
}

json_t *js_parse_nul(const char *name, const void *text, size_t size, struct err *e)
{
    return parse(name, text, size, JSON_ALLOW_NUL, e);
}

/* A copy of the text with quotes around Infinity and NaN outside of strings.  Caller frees. */
static char *quote_constants(const char *text, size_t *size)
{
    static const char *const names[] = { "Infinity", "NaN" };
    char *out = malloc(*size + *size + 1);              /* at least three bytes grow by two */
    size_t n = 0;
    int in_string = 0;
    for (size_t i = 0; out && i < *size;) {
        size_t length = 0;
        for (size_t k = 0; !in_string && k < 2; k++)
            if (strlen(names[k]) <= *size - i && memcmp(text + i, names[k], strlen(names[k])) == 0)
                length = strlen(names[k]);
        if (length) {
            out[n++] = '"';
            memcpy(out + n, text + i, length);
            n += length;
            out[n++] = '"';
            i += length;
            continue;
        }
        in_string ^= text[i] == '"';
        if (in_string && text[i] == '\\' && i + 1 < *size)
            out[n++] = text[i++];
        out[n++] = text[i++];
    }
    *size = n;
    return out;
}

json_t *js_parse_python(const char *name, const void *text, size_t size, struct err *e)
{
    char *quoted = quote_constants(text, &size);
    json_t *v = quoted ? js_parse(name, quoted, size, e) : NULL;
    if (!quoted)
        err_nomem(e, name);
    free(quoted);
    return v;
}

json_t *js_load(const char *path, size_t max, struct err *e)
{
    size_t size;
    char *text = file_read(path, max, &size, e);
    if (!text)
        return NULL;
    json_t *v = js_parse_python(path, text, size, e);
    free(text);
    return v;
}

json_t *js_text(const char *text)
{
    size_t size = strlen(text), n = 0;
    char *out = malloc(3 * size + 1);                   /* U+FFFD takes three bytes */
    int used;
    if (!out)
        return NULL;
    for (size_t i = 0; i < size; i += (size_t)used)
        n += (size_t)utf8_encode(utf8_next(text + i, size - i, &used), out + n);
    json_t *v = json_stringn(out, n);
    free(out);
    return v;
}

json_t *js_get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

const char *js_kind(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

static int absent(const char *key, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: the field is missing", key);
}

int js_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    const json_t *v = js_get(o, key);
    if (!v)
        return absent(key, e);
    if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d != floor(d) || fabs(d) > 0x1p53)
            return err_set(e, ERR_FORMAT, "%s: %g is not a whole number", key, d);
        *out = (int64_t)d;
    } else if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else {
        return err_set(e, ERR_FORMAT, "%s: found %s, expected a whole number", key, js_kind(v));
    }
    if (*out < min || *out > max)
        return err_set(e, ERR_FORMAT, "%s: %" PRId64 " is not in the range %" PRId64 " to %" PRId64, key, *out, min,
                       max);
    return 0;
}

int js_int_or(const json_t *o, const char *key, int64_t min, int64_t max, int64_t otherwise, int64_t *out,
              struct err *e)
{
    *out = otherwise;
    return js_get(o, key) ? js_int(o, key, min, max, out, e) : 0;
}

int js_real_or(const json_t *o, const char *key, double otherwise, double *out, struct err *e)
{
    const json_t *v = js_get(o, key);
    *out = otherwise;
    if (!v)
        return 0;
    if (!json_is_number(v))
        return err_set(e, ERR_FORMAT, "%s: found %s, expected a number", key, js_kind(v));
    *out = json_number_value(v);
    return 0;
}

int js_bool_or(const json_t *o, const char *key, int otherwise, int *out, struct err *e)
{
    const json_t *v = js_get(o, key);
    if (v && !json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: found %s, expected true or false", key, js_kind(v));
    *out = v ? json_is_true(v) : otherwise;
    return 0;
}

int js_string(const json_t *o, const char *key, const char **out, struct err *e)
{
    const json_t *v = js_get(o, key);
    if (!v)
        return absent(key, e);
    if (!json_is_string(v))
        return err_set(e, ERR_FORMAT, "%s: found %s, expected a string", key, js_kind(v));
    *out = json_string_value(v);
    return 0;
}

int js_string_or(const json_t *o, const char *key, const char *otherwise, const char **out, struct err *e)
{
    *out = otherwise;
    return js_get(o, key) ? js_string(o, key, out, e) : 0;
}

json_t *js_time(int64_t ms)
{
    const time_t s = (time_t)(ms / 1000);
    struct tm t;
    char text[40];
    gmtime_r(&s, &t);
    const size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(text + n, sizeof text - n, ".%03dZ", (int)(ms % 1000));
    return json_string(text);
}
