/* chat_template.c - prompt templates (-t NAME): files of $ZSE_HOME/templates.
 *
 * A file is the text of a prompt, in which $input is the user's text and $NAME a parameter.  Before
 * it there may be settings between two lines of three dashes: "system: TEXT" and
 * "default: NAME=VALUE". */
#include "cmd/zse-chat.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/file.h"
#include "libcommon/base/utf8.h"

static const char prog[] = "zse-chat";

enum { TEMPLATE_BYTES = 1 << 20 };

struct prompt_template {
    char *path, *text;                  /* text: the file; owned */
    char *system_text, *system;         /* as written, lines joined, NULL: none; expanded; owned */
    const char *body;                   /* of text: the prompt */
    /* owned list of NAME=VALUE: n_params of --param, the last one first, then the defaults */
    const char **setting; int n_settings, n_params;
    int uses_input;
};

/* ---- names and values ---- */

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (s[n] == '_' || isalpha((unsigned char)s[n]) || (n && isdigit((unsigned char)s[n])))
        n++;
    return n;
}

/* The variable at a dollar sign, $NAME or ${NAME}: its name of n bytes, and *used bytes in all.
 * NULL: it is none, but a dollar sign of the text. */
static const char *variable_at(const char *s, size_t *n, size_t *used)
{
    const int is_braced = s[1] == '{';
    const char *name = s + 1 + is_braced;
    *n = name_length(name);
    *used = *n + 1 + 2 * (size_t)is_braced;
    return *n && (!is_braced || name[*n] == '}') ? name : NULL;
}

static int is_name(const char *setting, const char *name, size_t n)
{
    return strncmp(setting, name, n) == 0 && setting[n] == '=';
}

/* Whether a text has the variable that is the first n bytes of name. */
static int uses(const char *text, const char *name, size_t n)
{
    size_t length = 0, used = 0;
    for (const char *s = text; s && (s = strchr(s, '$')); s += used) {
        const char *found = s[1] == '$' ? NULL : variable_at(s, &length, &used);
        if (found && length == n && strncmp(found, name, n) == 0)
            return 1;
        if (!found)
            used = 1 + (s[1] == '$');
    }
    return 0;
}

static const char *value_of(const struct prompt_template *p, const char *name, size_t n)
{
    for (int i = 0; i < p->n_settings; i++)
        if (is_name(p->setting[i], name, n))
            return p->setting[i] + n + 1;
    return NULL;
}

/* Write text with the values of its variables to f.  input NULL: there is no $input here. */
static int expand_to(const struct prompt_template *p, FILE *f, const char *text, const char *input, size_t input_size,
                     struct err *e)
{
    size_t n = 0, used;
    for (const char *s = text, *next; *s; s = next + used) {
        next = s + strcspn(s, "$");
        used = 0;
        fwrite(s, 1, (size_t)(next - s), f);
        if (!*next)
            break;
        const char *name = next[1] == '$' ? NULL : variable_at(next, &n, &used);
        const int is_input = name && n == strlen("input") && strncmp(name, "input", n) == 0;
        const char *value = name && !is_input ? value_of(p, name, n) : NULL;
        if (is_input && !input)
            return err_set(e, ERR_FORMAT, "%s: $input stands in the system message, where there is none", p->path);
        if (name && !is_input && !value)
            return err_set(e, ERR_FORMAT, "%s: $%.*s has no value: give --param %.*s=VALUE", p->path, (int)n, name,
                           (int)n, name);
        if (is_input)
            fwrite(input, 1, input_size, f);
        else
            fputs(value ? value : "$", f);
        if (!name)
            used = 1 + (next[1] == '$');
    }
    return 0;
}

/* The prompt for an input, or with input NULL the system message; malloc'd. */
static char *expand(const struct prompt_template *p, const char *input, size_t input_size, size_t *size, struct err *e)
{
    char *out = NULL;
    FILE *f = open_memstream(&out, size);
    if (!f) {
        err_nomem(e, "template");
        return NULL;
    }
    int rc = expand_to(p, f, input ? p->body : p->system_text, input, input_size, e);
    if (rc == 0 && input && !p->uses_input && input_size) {
        fputs(*p->body ? "\n\n" : "", f);
        fwrite(input, 1, input_size, f);
    }
    if (fclose(f) != 0 && rc == 0)
        rc = err_nomem(e, "template");
    if (rc == 0)
        return out;
    free(out);
    return NULL;
}

/* ---- the file ---- */

static int add_system(struct prompt_template *p, const char *line, struct err *e)
{
    char *both;
    if (asprintf(&both, "%s%s%s", p->system_text ? p->system_text : "", p->system_text ? "\n" : "", line) < 0)
        return err_nomem(e, "template");
    free(p->system_text);
    p->system_text = both;
    return 0;
}

static int is_setting(const char *text)
{
    const size_t n = name_length(text);
    return n && text[n] == '=' && !is_name(text, "input", strlen("input"));
}

/* Take one line of the settings, which may be blank. */
static int take_setting(struct prompt_template *p, const char *line, int number, struct err *e)
{
    const size_t n = strcspn(line, ":");
    const char *value = line + n + (line[n] == ':');
    value += strspn(value, " \t");
    if (!line[strspn(line, " \t")])
        return 0;
    if (line[n] && n == strlen("system") && strncmp(line, "system", n) == 0)
        return add_system(p, value, e);
    if (!line[n] || n != strlen("default") || strncmp(line, "default", n) != 0)
        return err_set(e, ERR_FORMAT, "%s: line %d: '%.60s', expected system: TEXT, default: NAME=VALUE, or --- at the end of the settings",
                       p->path, number, line);
    if (!is_setting(value))
        return err_set(e, ERR_FORMAT, "%s: line %d: default: '%.60s', expected NAME=VALUE with a name other than input",
                       p->path, number, value);
    p->setting[p->n_settings++] = value;
    return 0;
}

/* Divide the text of the file into settings, each of which then ends with '\0', and prompt. */
static int parse(struct prompt_template *p, struct err *e)
{
    p->body = p->text;
    if (strncmp(p->text, "---\n", 4) != 0)
        return 0;
    char *line = p->text + 4, *end;
    for (int number = 2; line; number++, line = end ? end + 1 : NULL) {
        if ((end = strchr(line, '\n')))
            *end = '\0';
        if (strcmp(line, "---") == 0) {
            p->body = end ? end + 1 : "";
            return 0;
        }
        if (take_setting(p, line, number, e) != 0)
            return -1;
    }
    return err_set(e, ERR_FORMAT, "%s: line 1: --- begins settings, and no other line --- ends them", p->path);
}

/* ---- the folder ---- */

static char *templates_folder(struct err *e)
{
    char *home = home_folder(NULL, e), *out = NULL;
    if (home && asprintf(&out, "%s/templates", home) < 0) {
        err_nomem(e, "the name of a folder");
        out = NULL;
    }
    free(home);
    return out;
}

static int may_be_name(const char *name) { return *name && *name != '.' && !strchr(name, '/') && !strstr(name, ".."); }

static int is_listed(const struct dirent *d) { return may_be_name(d->d_name) && d->d_type != DT_DIR; }

int chat_template_list(void)
{
    struct err e;
    struct dirent **list;
    char *folder = templates_folder(&e);
    const int n = folder ? scandir(folder, &list, is_listed, alphasort) : -1;
    if (!folder)
        return cli_fail(prog, &e);
    for (int i = 0; i < n; i++) {
        puts(list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    free(folder);
    return cli_finish(prog);
}

/* There is no template of this name: say which there are. */
static int none_named(const char *folder, const char *name, struct err *e)
{
    struct dirent **list;
    const int n = scandir(folder, &list, is_listed, alphasort);
    char names[256] = "";
    for (int i = 0, used = 0; i < n; i++) {
        const int room = (int)sizeof names - used;
        if (used >= 0 && (int)strlen(list[i]->d_name) + 3 < room)
            used += snprintf(names + used, (size_t)room, "%s%s", i ? ", " : "", list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return n > 0 ? err_set(e, ERR_IO, "there is no template '%.60s' in %.160s, which has %s", name, folder, names)
                 : err_set(e, ERR_IO, "there is no template '%.60s': %.160s has none", name, folder);
}

static int read_template(struct prompt_template *p, const char *name, struct err *e)
{
    size_t size;
    char *folder = templates_folder(e);
    int rc = folder ? 0 : -1;
    if (rc == 0 && asprintf(&p->path, "%s/%s", folder, name) < 0) {
        p->path = NULL;
        rc = err_nomem(e, "template");
    }
    if (rc == 0 && access(p->path, F_OK) != 0)
        rc = none_named(folder, name, e);
    if (rc == 0 && !(p->text = file_read(p->path, TEMPLATE_BYTES, &size, e)))
        rc = -1;
    free(folder);
    if (rc != 0)
        return -1;
    if (strlen(p->text) != size || utf8_valid(p->text, size) != size)
        return err_set(e, ERR_FORMAT, "%s: it is not text in UTF-8", p->path);
    while (size && p->text[size - 1] == '\n')
        p->text[--size] = '\0';
    return 0;
}

/* ---- -t ---- */

/* Refuse parameters that the template does not use, and variables without a value. */
static int check(struct prompt_template *p, struct err *e)
{
    size_t size;
    for (int i = 0; i < p->n_settings; i++) {
        const size_t n = strcspn(p->setting[i], "=\n");
        if (!uses(p->body, p->setting[i], n) && !uses(p->system_text, p->setting[i], n))
            return err_set(e, ERR_FORMAT, "%s: there is no $%.*s in it, which %s sets", p->path, (int)n, p->setting[i],
                           i < p->n_params ? "--param" : "default:");
    }
    char *prompt = expand(p, "", 0, &size, e);
    if (prompt && p->system_text && !(p->system = expand(p, NULL, 0, &size, e))) {
        free(prompt);
        return -1;
    }
    free(prompt);
    return prompt ? 0 : -1;
}

/* Memory for the settings of --param and one for each line of the file. */
static int take_params(struct prompt_template *p, const struct chat_options *o, struct err *e)
{
    size_t n = (size_t)o->n_params + 1;
    for (const char *s = p->text; (s = strchr(s, '\n')); s++)
        n++;
    if (!(p->setting = calloc(n, sizeof *p->setting)))
        return err_nomem(e, "template");
    for (int i = 0; i < o->n_params; i++)
        p->setting[i] = o->param[o->n_params - 1 - i];
    p->n_settings = p->n_params = o->n_params;
    return 0;
}

int chat_template_open(struct chat_options *o)
{
    struct err e;
    for (int i = 0; i < o->n_params; i++)
        if (!is_setting(o->param[i]))
            return cli_wrong(prog, "--param: '%s', expected NAME=VALUE with a name other than input", o->param[i]);
    if (!o->template_name)
        return o->n_params ? cli_wrong(prog, "--param sets a variable of a prompt template: it needs -t") : 0;
    if (!may_be_name(o->template_name))
        return cli_wrong(prog, "-t: '%s', expected the name of a file of $ZSE_HOME/templates, without / and ..",
                         o->template_name);
    struct prompt_template *p = o->asked = calloc(1, sizeof *p);
    if (!p ? err_nomem(&e, "template") : read_template(p, o->template_name, &e) != 0 || take_params(p, o, &e) != 0 ||
                                         parse(p, &e) != 0)
        return cli_fail(prog, &e);
    p->uses_input = uses(p->body, "input", strlen("input"));
    if (check(p, &e) != 0)
        return cli_fail(prog, &e);
    if (!o->system)
        o->system = p->system;
    if (!o->prompt && *p->body && (!p->uses_input || o->n_files))
        o->prompt = "";                 /* the template, with the files, is the whole prompt */
    return 0;
}

void chat_template_close(struct chat_options *o)
{
    struct prompt_template *p = o->asked;
    if (!p)
        return;
    free(p->path);
    free(p->text);
    free(p->system_text);
    free(p->system);
    free(p->setting);
    free(p);
    o->asked = NULL;
}

int chat_template_needs_input(const struct chat_options *o) { return o->asked && o->asked->uses_input; }

int chat_template_apply(const struct chat_options *o, char **text, size_t *size, struct err *e)
{
    size_t new_size;
    char *prompt = o->asked ? expand(o->asked, *text, *size, &new_size, e) : NULL;
    if (!o->asked)
        return 0;
    if (!prompt)
        return -1;
    free(*text);
    *text = prompt;
    *size = new_size;
    return 0;
}
