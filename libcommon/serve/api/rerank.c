/* rerank.c - POST /v1/rerank and /v1/score: score how well documents answer a query, or how similar
 * texts are.
 *
 * A cross-encoder reads both texts as one sequence, and the sigmoid is applied to its score unless
 * its files say otherwise.  With an embedding model the score is the cosine of two vectors.  With a
 * language model that has ChatML tokens, prompted like Qwen3-Reranker, the score is the probability
 * of "yes" against "no" as the first token of its answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

enum way { WAY_PAIR, WAY_COSINE, WAY_YES_NO };

/* The texts of a request.  Score i, of n, compares first[n_first == 1 ? 0 : i] with second[i]. */
struct texts { const json_t *first, *second; size_t n_first, n; };

static const json_t *at(const json_t *list, size_t i)
{
    const json_t *v = json_is_array(list) ? json_array_get(list, i) : list;
    return json_is_object(v) ? json_object_get(v, "text") : v;
}

static size_t length(const json_t *list) { return json_is_array(list) ? json_array_size(list) : 1; }

static enum way way_of(const struct call *c)
{
    const struct embedding *m = &c->lm->m.model->config.embedding;
    return m->scores ? WAY_PAIR : m->pooling ? WAY_COSINE : WAY_YES_NO;
}

static int is_rerank(const struct call *c) { return c->form->body == BODY_RERANK; }

static int check_list(const json_t *list, const char *name, struct problem *pr)
{
    if (!list)
        return problem_set(pr, 400, name, "missing", "%s: missing", name);
    for (size_t i = 0; i < length(list); i++)
        if (!json_is_string(at(list, i)))
            return problem_set(pr, 400, name, "invalid_type", "%s: element %zu: expected text", name, i);
    /* half of MAX_TEXTS for each list, because an embedding model embeds both */
    if (length(list) < 1 || length(list) > MAX_TEXTS / 2)
        return problem_set(pr, 400, name, "out_of_range", "%s: %zu texts, expected 1 to %d", name, length(list),
                           MAX_TEXTS / 2);
    return 0;
}

static int read_texts(const struct call *c, struct texts *t, struct problem *pr)
{
    const char *first = is_rerank(c) ? "query" : "text_1", *second = is_rerank(c) ? "documents" : "text_2";
    t->first = js_get(c->json, first);
    t->second = js_get(c->json, second);
    if (check_list(t->first, first, pr) != 0 || check_list(t->second, second, pr) != 0)
        return -1;
    t->n_first = length(t->first);
    t->n = length(t->second);
    if (is_rerank(c) && json_is_array(t->first))
        return problem_set(pr, 400, first, "invalid_type", "query: found an array, expected text");
    if (t->n_first != 1 && t->n_first != t->n)
        return problem_set(pr, 400, second, "out_of_range", "text_2: %zu texts for %zu of text_1, expected one or as many",
                           t->n, t->n_first);
    return 0;
}

/* ---- prompts ---- */

static int add_ids(struct call *c, struct prompt *p, const char *text, size_t size, unsigned flags, const char *field,
                   struct problem *pr)
{
    struct err e;
    int32_t *ids, *all;
    size_t n;
    if (call_hold(c, (TOKENIZE_BYTES + 1) * size, pr) != 0)
        return -1;
    if (tokenizer_encode(c->lm->m.tokenizer, text, size, flags, &ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    if (n > INT32_MAX / 8 || call_keep(c, n * sizeof *ids, pr) != 0 ||
        !(all = realloc(p->ids, ((size_t)p->n_ids + n + 1) * sizeof *all))) {
        free(ids);
        return pr->status ? -1 : problem_nomem(pr);
    }
    if (n)
        memcpy(all + p->n_ids, ids, n * sizeof *ids);
    p->ids = all;
    p->n_ids += (int)n;
    free(ids);
    return 0;
}

/* Check the length of a prompt.  If it is too long, cut it as the field `truncate` requests,
 * keeping its last n_end tokens; without that field it is refused. */
static int fit(const struct call *c, struct prompt *p, int n_end, struct problem *pr)
{
    const int asked = c->params.truncate, max_len = c->lm->m.max_len,
              most = asked > 0 && asked < max_len ? asked : max_len;
    if (p->n_ids <= (asked ? most : max_len))
        return 0;
    if (!asked || p->second + n_end >= most)
        return problem_set(pr, 400, is_rerank(c) ? "documents" : "text_2", "context_length_exceeded",
                           "both texts have %d tokens, %s takes %d", p->n_ids, c->lm->id, most);
    memmove(p->ids + most - n_end, p->ids + p->n_ids - n_end, (size_t)n_end * sizeof *p->ids);
    p->n_ids = most;
    return 0;
}

static int add_text(struct call *c, struct prompt *p, const json_t *text, struct problem *pr)
{
    return add_ids(c, p, json_string_value(text), json_string_length(text), 0, "documents", pr);
}

/* Make [CLS] a [SEP] b [SEP] with the ids that the tokenizer puts around one text; RoBERTa has two
 * separators. */
static int pair(struct call *c, struct prompt *p, const json_t *a, const json_t *b, struct problem *pr)
{
    const struct embedding *m = &c->lm->m.model->config.embedding;
    int n_end;
    const int32_t *end = tokenizer_suffix(c->lm->m.tokenizer, &n_end);
    if (add_ids(c, p, json_string_value(a), json_string_length(a), TOKENIZE_ADD_SPECIAL, "query", pr) != 0)
        return -1;
    if (json_string_length(b) == 0)             /* transformers treats an empty second text as none */
        return fit(c, p, n_end, pr);
    const int twice = m->pair_twice ? 2 : 1;
    int32_t *all = realloc(p->ids, ((size_t)p->n_ids + (size_t)(twice * n_end) + 1) * sizeof *all);
    if (!all)
        return problem_nomem(pr);
    p->ids = all;
    if (twice == 2) {
        memcpy(p->ids + p->n_ids, end, (size_t)n_end * sizeof *end);
        p->n_ids += n_end;
    }
    p->second = p->n_ids;
    if (add_text(c, p, b, pr) != 0 || !(all = realloc(p->ids, ((size_t)p->n_ids + (size_t)n_end + 1) * sizeof *all)))
        return pr->status ? -1 : problem_nomem(pr);
    p->ids = all;
    memcpy(p->ids + p->n_ids, end, (size_t)n_end * sizeof *end);
    p->n_ids += n_end;
    return fit(c, p, n_end, pr);
}

/* Make the prompt on which Qwen3-Reranker was trained; special tokens in the texts stay text. */
static int question(struct call *c, struct prompt *p, const json_t *a, const json_t *b, struct problem *pr)
{
    static const char begin[] = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
                      usual[] = "Given a web search query, retrieve relevant passages that answer the query",
                      end[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    struct buf body = { 0 };
    buf_str(&body, "<Instruct>: ");
    buf_str(&body, c->params.instructions ? c->params.instructions : usual);
    buf_str(&body, "\n<Query>: ");
    buf_add(&body, json_string_value(a), json_string_length(a));
    buf_str(&body, "\n<Document>: ");
    buf_add(&body, json_string_value(b), json_string_length(b));
    int rc = body.failed ? problem_nomem(pr) : add_ids(c, p, begin, sizeof begin - 1, TOKENIZE_PARSE_SPECIAL, "query", pr);
    p->second = p->n_ids;
    if (rc == 0)
        rc = add_ids(c, p, body.data, body.size, 0, "documents", pr);
    buf_release(&body);
    const int n = p->n_ids;
    if (rc != 0 || add_ids(c, p, end, sizeof end - 1, TOKENIZE_PARSE_SPECIAL, "query", pr) != 0 ||
        fit(c, p, p->n_ids - n, pr) != 0)
        return -1;
    p->second = 0;
    return 0;
}

static int32_t token(const struct call *c, const char *text)
{
    return tokenizer_find(c->lm->m.tokenizer, text, strlen(text));
}

static int prepare(struct call *c, struct problem *pr)
{
    struct texts t;
    const enum way way = way_of(c);
    if (read_texts(c, &t, pr) != 0)
        return -1;
    if (way == WAY_YES_NO && (token(c, "<|im_start|>") < 0 || token(c, "yes") < 0 || token(c, "no") < 0))
        return problem_set(pr, 400, "model", "unsupported_model",
                           "model: %s is neither a reranker nor an embedding model nor a language model with ChatML",
                           c->lm->id);
    const size_t n = way == WAY_COSINE ? t.n_first + t.n : t.n;
    if (call_prompts(c, (int)n, pr) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *a = at(t.first, t.n_first == 1 ? 0 : i), *b = at(t.second, i);
        struct prompt *p = &c->prompts[i];
        if (way == WAY_PAIR ? pair(c, p, a, b, pr) != 0 : way == WAY_YES_NO && question(c, p, a, b, pr) != 0)
            return -1;
        const json_t *one = i < t.n_first ? at(t.first, i) : at(t.second, i - t.n_first);
        if (way == WAY_COSINE && call_tokenize(c, (int)i, json_string_value(one), json_string_length(one), 0, 1, pr,
                                               i < t.n_first ? "query" : "documents") != 0)
            return -1;
    }
    return 0;
}

/* ---- scores ---- */

static double cosine(const struct choice *a, const struct choice *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < a->n_embedding; i++) {
        ab += (double)a->embedding[i] * b->embedding[i];
        aa += (double)a->embedding[i] * a->embedding[i];
        bb += (double)b->embedding[i] * b->embedding[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

/* The probability of "yes", from the state before the first token of the answer. */
static double yes_no(const struct call *c, const struct choice *ch, float *row)
{
    const struct model *m = c->lm->m.model;
    const int32_t ids[2] = { token(c, "yes"), token(c, "no") };
    double logit[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        mat_decode_row(&m->head.w, ids[k], row);
        for (int i = 0; i < m->head.w.cols; i++)
            logit[k] += (double)row[i] * ch->embedding[i];
        logit[k] = (logit[k] + (m->head.bias ? m->head.bias[ids[k]] : 0)) * (double)m->config.logit_scale;
    }
    return 1 / (1 + exp(logit[1] - logit[0]));
}

/* Compute the scores of all texts; NULL: no memory. */
static double *scores(const struct call *c, size_t *n)
{
    const struct config *config = &c->lm->m.model->config;
    const enum way way = way_of(c);
    const size_t n_first = way != WAY_COSINE ? 0 : is_rerank(c) ? 1 : length(js_get(c->json, "text_1"));
    *n = (size_t)c->n_choices - n_first;
    double *all = calloc(*n + 1, sizeof *all);
    float *row = malloc((size_t)config->hidden_size * sizeof *row);
    for (size_t i = 0; all && row && i < *n; i++) {
        const struct choice *ch = &c->choices[n_first + i];
        if (way == WAY_COSINE)
            all[i] = cosine(&c->choices[n_first == 1 ? 0 : i], ch);
        else if (way == WAY_YES_NO)
            all[i] = yes_no(c, ch, row);
        else
            all[i] = config->embedding.raw_scores ? ch->embedding[0] : 1 / (1 + exp(-(double)ch->embedding[0]));
    }
    free(row);
    if (row)
        return all;
    free(all);
    return NULL;
}

struct ranked_text { double score; int index; };

static int by_score(const void *a, const void *b)
{
    const struct ranked_text *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score ? 1 : x->index - y->index;
}

static void usage(const struct call *c, struct buf *out)
{
    buf_str(out, "],\"usage\":");
    call_usage(c, out);
    buf_str(out, "}");
    reply_json(c->s, c->conn, 200, out);
    buf_release(out);
}

static void end_rerank(struct call *c)
{
    size_t n;
    struct buf out = { 0 };
    double *all = scores(c, &n);
    struct ranked_text *rank = all ? calloc(n, sizeof *rank) : NULL;
    const json_t *documents = js_get(c->json, "documents");
    const size_t top = c->params.top_n > 0 && (size_t)c->params.top_n < n ? (size_t)c->params.top_n : n;
    buf_printf(&out, "{\"id\":\"%s\",\"model\":", c->id);
    buf_json(&out, call_model(c), strlen(call_model(c)));
    buf_str(&out, ",\"results\":[");
    for (size_t i = 0; rank && i < n; i++)
        rank[i] = (struct ranked_text){ all[i], (int)i };
    if (rank)
        qsort(rank, n, sizeof *rank, by_score);
    for (size_t i = 0; rank && i < top; i++) {
        const json_t *text = at(documents, (size_t)rank[i].index);
        buf_printf(&out, "%s{\"index\":%d,\"relevance_score\":%.9g", i ? "," : "", rank[i].index, rank[i].score);
        if (c->params.return_documents) {
            buf_str(&out, ",\"document\":{\"text\":");
            buf_json(&out, json_string_value(text), json_string_length(text));
            buf_str(&out, "}");
        }
        buf_str(&out, "}");
    }
    out.failed |= !rank;
    free(rank);
    free(all);
    usage(c, &out);
}

static void end_score(struct call *c)
{
    size_t n;
    struct buf out = { 0 };
    double *all = scores(c, &n);
    buf_printf(&out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", c->id, (long long)c->created);
    buf_json(&out, call_model(c), strlen(call_model(c)));
    buf_str(&out, ",\"data\":[");
    for (size_t i = 0; all && i < n; i++)
        buf_printf(&out, "%s{\"index\":%zu,\"object\":\"score\",\"score\":%.9g}", i ? "," : "", i, all[i]);
    out.failed |= !all;
    free(all);
    usage(c, &out);
}

static void begin(struct call *c) { (void)c; }

static const struct call_form rerank = { .body = BODY_RERANK, .prefix = "rerank-", .prepare = prepare, .begin = begin,
                                         .event = call_take_vector, .end = end_rerank, .fail = call_fail_answer },
                              score = { .body = BODY_SCORE, .prefix = "score-", .prepare = prepare, .begin = begin,
                                        .event = call_take_vector, .end = end_score, .fail = call_fail_answer };

static void start(struct server *s, struct conn *c, const struct call_form *form)
{
    const struct http_request *r = conn_request(c);
    call_start(s, c, NULL, form, r->body.data, r->body.size);
}

void handle_rerank(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, &rerank);
}

void handle_score(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, &score);
}
