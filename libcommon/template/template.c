/* template.c - parse and render a template, and report its errors. */
#include "libcommon/template/template.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/template/tmpl_ast.h"

/* Call work; vm_fail() in it returns here.  During the call numbers are written and read with a
 * decimal point, whatever the locale of the process. */
static int guarded(struct vm *vm, void (*work)(struct vm *vm, void *arg), void *arg)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), was = c ? uselocale(c) : (locale_t)0;
    int r = -1;
    if (!c)
        err_nomem(vm->e, "a locale");
    else if (!setjmp(vm->fail)) {
        work(vm, arg);
        r = 0;
    } else {
        r = -1;
    }
    if (c) {
        uselocale(was);
        freelocale(c);
    }
    return r;
}

struct tmpl_source { const char *text; size_t size; struct tmpl *t; };

static void parse(struct vm *vm, void *arg)
{
    struct tmpl_source *s = arg;
    tmpl_parse_tokens(vm, tmpl_lex(vm, s->text, s->size), s->t);
}

struct tmpl *tmpl_parse(const char *text, size_t size, const char *name, struct err *e)
{
    struct tmpl *t = calloc(1, sizeof *t);
    struct tmpl_source source = { text, size, t };
    if (!t || !(t->name = strdup(name ? name : "template"))) {
        free(t);
        err_nomem(e, "a template");
        return NULL;
    }
    /* A token takes at least two bytes of the source, so the source bounds the tree; the limits
     * only catch mistakes of ours. */
    struct vm vm = { .e = e, .name = t->name, .line = 1,
                     .max_arena = ((size_t)64 << 20) + (size < SIZE_MAX / 1024 ? size * 512 : SIZE_MAX / 4),
        .max_steps = UINT64_MAX / 2 };
    int r = guarded(&vm, parse, &source);
    t->chunks = vm.chunks;
    if (r < 0) {
        tmpl_free(t);
        return NULL;
    }
    return t;
}

void tmpl_free(struct tmpl *t)
{
    if (!t)
        return;
    vm_free_arena(t->chunks);
    free(t->name);
    free(t);
}

static void render(struct vm *vm, void *arg)
{
    const json_t *vars = arg;
    vm->vars = json_is_object(vars) ? val_from_json(vm, vars) : val_dict(vm);
    tmpl_exec(vm);
    /* allocates space for the '\0' even if nothing was written */
    vm_write(vm, "", 0);
    vm->out.data[vm->out.size] = '\0';
}

int tmpl_render(const struct tmpl *t, const json_t *vars, int64_t now, const struct tmpl_limits *limits, char **out,
                size_t *size, struct err *e)
{
    static const struct tmpl_limits none;
    const struct tmpl_limits *l = limits ? limits : &none;
    struct vm vm = { .e = e, .name = t->name, .line = 1, .t = t, .now = now,
        .max_output = l->max_output ? l->max_output : (size_t)16 << 20,
        .max_steps = l->max_steps ? l->max_steps : 50000000,
        .max_depth = l->max_depth ? l->max_depth : 200 };
    vm.max_arena = l->max_memory ? l->max_memory : ((size_t)64 << 20) +
                   (vm.max_output < SIZE_MAX / 16 ? vm.max_output * 8 : SIZE_MAX / 4);
    union { const json_t *in; void *out; } v = { .in = vars };
    int r = guarded(&vm, render, v.out);
    vm_free_arena(vm.chunks);
    if (r < 0) {
        free(vm.out.data);
        return -1;
    }
    *out = vm.out.data;
    if (size)
        *size = vm.out.size;
    return 0;
}
