/* api_grammar.c - compiled grammars, which requests share. */
#include "lib/internal.h"

#include <stdlib.h>

/* The model's vocabulary as bytes, made when first needed. */
static struct grammar_vocab *vocab_of(struct zse_model *m, struct err *e)
{
    pthread_mutex_lock(&m->lock);
    if (!m->vocab)
        m->vocab = grammar_vocab_open(m->tokenizer, 0, e);
    struct grammar_vocab *v = m->vocab;
    pthread_mutex_unlock(&m->lock);
    return v;
}

struct zse_grammar *zse_grammar_open(struct zse_model *m, enum zse_grammar_kind kind, const char *text, size_t size,
                                     struct zse_error *e)
{
    struct err why;
    if (!m || (!text && size) || (int)kind < ZSE_JSON_SCHEMA || kind > ZSE_GBNF) {
        api_wrong(e, m && (text || !size) ? "zse_grammar_open: there is no kind %d" : "zse_grammar_open: an argument is NULL",
                  (int)kind);
        return NULL;
    }
    struct zse_grammar *r = calloc(1, sizeof *r);
    struct grammar_vocab *v = NULL;
    if (!r)
        err_nomem(&why, "grammar");
    else if (!m->tokenizer)
        err_set(&why, ERR_UNSUPPORTED, "the model has no tokenizer, which grammars need");
    else if ((v = vocab_of(m, &why)))
        r->grammar = (kind == ZSE_JSON_SCHEMA ? grammar_compile_schema : kind == ZSE_REGEX ? grammar_compile_regex
                      : grammar_compile_gbnf)(v, text ? text : "", size, NULL, &why);
    if (!r || !r->grammar) {
        free(r);
        api_fail(e, &why);
        return NULL;
    }
    r->model = m;
    atomic_init(&r->refs, 1);
    return r;
}

void api_grammar_unref(struct zse_grammar *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    grammar_close(r->grammar);
    free(r);
}

void zse_grammar_close(struct zse_grammar *r) { api_grammar_unref(r); }
