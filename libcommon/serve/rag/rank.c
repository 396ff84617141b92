/* rank.c - order passages by a reranker: a cross-encoder reads the query and a passage as one
 * sequence, as in POST /v1/rerank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/serve/rag/internal.h"

/* PAIR_TOKENS: most tokens of a pair; QUERY_TOKENS: most of them that the query takes */
enum { PAIR_TOKENS = 512, QUERY_TOKENS = 128, TOKEN_BYTES = 16 };

const char *rag_ranked_by(const struct rag_job *j) { return j->ranking == RAG_COMPUTED ? j->reranker->id : NULL; }

static void append(struct rag_text_ids *p, const int32_t *ids, size_t n)
{
    if (n)
        memcpy(p->ids + p->n, ids, n * sizeof *ids);
    p->n += (int)n;
}

/* Append the first tokens of a text, at most `most` of them; with from_end, the last. */
static int add_tokens(struct rag_job *j, struct rag_text_ids *p, const char *text, size_t size, int from_end, int most)
{
    const size_t limit = (size_t)most * TOKEN_BYTES;
    int32_t *ids;
    size_t n;
    struct err e;
    if (size > limit && from_end) {
        const char *end = text + size;
        text = end - limit;
        while (text < end && ((unsigned char)*text & 0xc0) == 0x80)     /* the rest of a cut character */
            text++;
        size = (size_t)(end - text);
    } else if (size > limit) {
        size = limit - utf8_incomplete(text, limit);
    }
    if (tokenizer_encode(j->reranker->m.tokenizer, text, size, 0, &ids, &n, &e))
        return problem_err(&j->problem, NULL, NULL, &e);
    const size_t kept = n < (size_t)most ? n : (size_t)most;
    append(p, from_end ? ids + n - kept : ids, kept);
    free(ids);
    return 0;
}

/* Make [CLS] query [SEP] passage [SEP]; RoBERTa has two separators in the middle.  A long query
 * loses its beginning, as in the search of a chat request, because a question usually follows the
 * text that it is about. */
static int add_pair(struct rag_job *j, const struct rag_query *q, const char *passage)
{
    const int max_len = j->reranker->m.max_len, most = max_len < PAIR_TOKENS ? max_len : PAIR_TOKENS;
    const int n_query = most / 2 < QUERY_TOKENS ? most / 2 : QUERY_TOKENS;
    struct rag_text_ids *p = &j->texts[j->n_texts];
    int n_begin, n_end;
    const int32_t *begin = tokenizer_prefix(j->reranker->m.tokenizer, &n_begin),
                  *end = tokenizer_suffix(j->reranker->m.tokenizer, &n_end);
    if (n_query < 2 * (n_begin + n_end + 1))
        return problem_set(&j->problem, 503, NULL, "reranker_unusable", "%s takes %d tokens, too few for a pair",
                           j->reranker->id, most);
    if (!(p->ids = malloc((size_t)most * sizeof *p->ids)))
        return problem_nomem(&j->problem);
    j->n_texts++;
    p->n = 0;
    append(p, begin, (size_t)n_begin);
    if (add_tokens(j, p, q->text, q->size, 1, n_query - n_begin - n_end))
        return -1;
    append(p, end, (size_t)n_end);
    if (j->reranker->m.model->config.embedding.pair_twice)
        append(p, end, (size_t)n_end);
    p->second = p->n;
    if (add_tokens(j, p, passage, strlen(passage), 0, most - n_end - p->n))
        return -1;
    append(p, end, (size_t)n_end);
    return 0;
}

/* Ask for the scores of all passages. */
static int ask(struct rag_job *j, const struct rag_query *q, struct rag_hits *hits)
{
    size_t bytes = (size_t)hits->n * PAIR_TOKENS * sizeof(int32_t);
    for (int i = 0; i < hits->n; i++)
        bytes += strlen(hits->hit[i].chunk.text);
    if (rag_hold(j, bytes))
        return -1;
    j->kept += bytes;
    rag_drop_texts(j);
    for (int i = 0; i < hits->n; i++)
        if (add_pair(j, q, hits->hit[i].chunk.text))
            return -1;
    j->hits = *hits;
    *hits = (struct rag_hits){ 0 };
    j->ranking = RAG_WANTED;
    return 1;
}

static int compare(const void *a, const void *b)
{
    const struct rag_hit *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->chunk.id > y->chunk.id) - (x->chunk.id < y->chunk.id);
}

/* If the scores were not computed, for example because the model is being unloaded, the passages
 * keep their order. */
int rag_rank(struct rag_job *j, const struct rag_query *q, int top_k, double min_score, struct rag_hits *hits)
{
    if (j->ranking == RAG_IDLE && hits->n > 0) {
        const int rc = ask(j, q, hits);
        if (rc)
            return rc;
    }
    for (int i = 0; i < hits->n && j->ranking == RAG_COMPUTED; i++) {
        struct rag_hit *h = &hits->hit[i];
        h->score = h->own = 1 / (1 + exp(-(double)j->vectors[i]));
    }
    if (j->ranking == RAG_COMPUTED)
        qsort(hits->hit, (size_t)hits->n, sizeof *hits->hit, compare);
    rag_drop_texts(j);
    rag_hits_keep(hits, top_k, min_score);
    return 0;
}
