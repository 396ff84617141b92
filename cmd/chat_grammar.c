/* chat_grammar.c - compile --json-schema, --grammar or --regex once; each answer gets its own
 * matcher. */
#include "cmd/zse-chat.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/file.h"

int chat_grammar_open(struct chat_options *o, const struct opened_model *m, struct err *e)
{
    const char *path = o->schema_file ? o->schema_file : o->grammar_file;
    size_t size = o->regex ? strlen(o->regex) : 0;
    char *text = NULL;
    if (!path && !o->regex)
        return 0;
    if (!m->tokenizer)
        return err_set(e, ERR_UNSUPPORTED, "%s: no tokenizer, which --json-schema, --grammar and --regex need",
                       m->name);
    if (path && !(text = file_read(path, 16 << 20, &size, e)))
        return -1;
    o->vocab = grammar_vocab_open(m->tokenizer, 0, e);
    if (o->vocab)
        o->grammar = (o->schema_file ? grammar_compile_schema : o->grammar_file
                      ? grammar_compile_gbnf : grammar_compile_regex)(o->vocab, text ? text : o->regex, size, NULL, e);
    free(text);
    if (o->grammar)
        return 0;
    return err_prefix(e, "%s", path ? path : "--regex");
}

void chat_grammar_close(struct chat_options *o)
{
    grammar_close(o->grammar);
    grammar_vocab_close(o->vocab);
}

int answer_complete(const struct answer *a, const struct chat_options *o)
{
    struct matcher *m = matcher_open(o->grammar, NULL);
    int ok = m != NULL;
    for (int i = 0; ok && i < a->n_ids; i++)
        ok = matcher_accept(m, a->ids[i]) == 0;
    ok = ok && matcher_ended(m);
    matcher_close(m);
    return ok;
}
