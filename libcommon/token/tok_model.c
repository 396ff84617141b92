/* tok_model.c - split a word into tokens: BPE by merges or by scores, Unigram, WordPiece,
 * WordLevel.
 *
 * BPE keeps the candidate pairs in a heap and the symbols in a linked list, O(n log n) for a word
 * of n characters (Zouhar et al. 2023, arXiv:2306.16837, section 4); Unigram is Viterbi over a
 * lattice whose edges are at most as long as the longest token. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/token/internal.h"

struct model_symbol {
    int32_t id;                     /* by scores: -1 if the text is no token */
    uint32_t prev, next;            /* NONE at the ends */
    /* The rank of joining this symbol with the next; NONE: they do not join, or this symbol is no
     * longer in the list. */
    uint32_t rank;
    int32_t joined;                 /* the id of both together */
};
struct model_span { uint32_t at, size; };       /* a symbol's bytes (by scores only) */
struct model_node { double score; uint32_t from; int32_t id; };
#define NONE 0xFFFFFFFFu

void tok_ids_add(struct tok_ids *v, int32_t id)
{
    if (v->n == v->room) {
        size_t room = v->room ? 2 * v->room : 64;
        int32_t *p = v->failed ? NULL : realloc(v->p, room * sizeof *p);
        if (!p) {
            v->failed = 1;
            return;
        }
        v->p = p;
        v->room = room;
    }
    v->p[v->n++] = id;
}

int32_t tok_lookup(const struct tokenizer *t, uint32_t hash, const char *p, size_t n)
{
    uint32_t mask = t->h.n_vocab_slots - 1;
    for (uint32_t at = hash & mask, steps = t->h.vocab_probes; steps > 0; at = (at + 1) & mask, steps--) {
        uint32_t id = t->vocab[at].id;
        if (id == TOKB_EMPTY)
            break;
        if (t->vocab[at].hash != hash || id >= t->h.n_tokens)
            continue;
        uint32_t b = t->offsets[id], end = t->offsets[id + 1];
        if (end >= b && end <= t->n_token_bytes && end - b == n && !memcmp(t->tokens + b, p, n))
            return (int32_t)id;
    }
    return -1;
}

static uint64_t hash_more(uint64_t h, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = tok_hash_step(h, (unsigned char)p[i]);
    return h;
}

int32_t tok_lookup_text(const struct tokenizer *t, const char *p, size_t n)
{
    return n > t->h.max_token_size ? -1 : tok_lookup(t, tok_hash_end(hash_more(TOK_HASH_START, p, n)), p, n);
}

static const struct tokb_merge *find_merge(const struct tokenizer *t, uint32_t left, uint32_t right)
{
    uint32_t n = t->h.n_merge_slots, at = tok_merge_slot(left, right, n);
    for (uint32_t steps = t->h.merge_probes; steps > 0; steps--) {
        const struct tokb_merge *m = &t->merges[at];
        if (m->left == left && m->right == right)
            return m->id < t->h.n_tokens ? m : NULL;
        if (m->left == TOKB_EMPTY)
            return NULL;
        at = at + 1 == n ? 0 : at + 1;
    }
    return NULL;
}

/* ---- heap of places where symbols join: rank, then position; four children a node, so that
 * they share a cache line ---- */

static void heap_push(struct model_work *w, uint64_t key)
{
    if (w->n_heap == w->heap_room) {
        size_t room = w->heap_room ? 2 * w->heap_room : 256;
        uint64_t *p = realloc(w->heap, room * sizeof *p);
        if (!p) {
            w->failed = 1;
            return;
        }
        w->heap = p;
        w->heap_room = room;
    }
    size_t i = w->n_heap++;
    for (; i && w->heap[(i - 1) / 4] > key; i = (i - 1) / 4)
        w->heap[i] = w->heap[(i - 1) / 4];
    w->heap[i] = key;
}

static uint64_t heap_pop(struct model_work *w)
{
    uint64_t *h = w->heap, top = h[0], x = h[--w->n_heap];
    size_t i = 0, n = w->n_heap, k;
    while ((k = 4 * i + 1) < n) {
        size_t least = k, stop = k + 4 < n ? k + 4 : n;
        for (k++; k < stop; k++)
            least = h[k] < h[least] ? k : least;
        if (h[least] >= x)
            break;
        h[i] = h[least];
        i = least;
    }
    h[i] = x;
    return top;
}

/* ---- BPE ---- */

static int room_for(struct model_work *w, size_t n, struct err *e)
{
    if (n >= INT32_MAX)
        return err_set(e, ERR_LIMIT, "a word of %zu bytes without a break is too long", n);
    if (n > w->sym_room) {
        size_t room = w->sym_room ? w->sym_room : 64;
        while (room < n)
            room *= 2;
        struct model_symbol *s = realloc(w->sym, room * sizeof *s);
        if (!s)
            return err_nomem(e, "symbols of a word");
        w->sym = s;
        w->sym_room = room;
    }
    return 0;
}

/* Set ids to the <0x..> tokens of the bytes.  1; 0: the vocabulary lacks one of them. */
static int byte_ids(const struct tokenizer *t, const char *s, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = t->bytes[(unsigned char)s[i]];
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->h.n_tokens)
            return 0;
    }
    return 1;
}

/* The id of one character of a word, with the affix that the model adds to characters after the
 * first and to the last one. */
static int32_t char_id(const struct tokenizer *t, struct model_work *w, const char *s, size_t len, uint32_t c,
                       int first, int last)
{
    int32_t id;
    const uint32_t n_pre = first ? 0 : t->h.next_prefix_size, n_end = last ? t->h.end_suffix_size : 0;
    if (!n_pre && !n_end) {
        id = c < TOKB_CHARS ? t->chars[c] : tok_lookup_text(t, s, len);
    } else {
        struct tbuf b = { 0 };
        tbuf_add(&b, t->text + t->h.next_prefix, n_pre);
        tbuf_add(&b, s, len);
        tbuf_add(&b, t->text + t->h.end_suffix, n_end);
        w->failed |= b.failed != 0;
        id = b.failed ? -1 : tok_lookup_text(t, b.p, b.n);
        tbuf_release(&b);
    }
    return id >= 0 && (uint32_t)id < t->h.n_tokens ? id : -1;
}

/* Write the first symbols of a word to w->sym.  A character without a token becomes its bytes, or
 * the unknown token (one for a run of them with MODEL_FUSE_UNK), or nothing.  Returns the number of
 * symbols. */
static uint32_t first_symbols(const struct tokenizer *t, struct model_work *w, const char *s, size_t n)
{
    uint32_t k = 0;
    int unknown = 0;                /* 1: an unknown token is still to be written */
    int can_unk = t->h.unk >= 0;
    for (size_t i = 0; i < n;) {
        int len;
        int32_t bytes[4];
        uint32_t c = text_next(s + i, &len);
        int32_t id = char_id(t, w, s + i, (size_t)len, c, i == 0, i + (size_t)len == n);
        if (id >= 0) {
            if (unknown)
                w->sym[k++].id = t->h.unk;
            unknown = 0;
            w->sym[k++].id = id;
        } else if (t->h.flags & MODEL_BYTE_FALLBACK && byte_ids(t, s + i, (size_t)len, bytes)) {
            if (unknown)
                w->sym[k++].id = t->h.unk;
            unknown = 0;
            for (int j = 0; j < len; j++)
                w->sym[k++].id = bytes[j];
        } else if (can_unk) {
            if (unknown && !(t->h.flags & MODEL_FUSE_UNK))
                w->sym[k++].id = t->h.unk;
            unknown = 1;
        }
        i += (size_t)len;
    }
    if (unknown)
        w->sym[k++].id = t->h.unk;
    return k;
}

/* Set rank and joined of the symbol at `left`: how it joins with the next one, by merges or, if s
 * is not NULL, by the score of their common text. */
static void rate(const struct tokenizer *t, struct model_work *w, const char *s, uint32_t left)
{
    struct model_symbol *l = &w->sym[left];
    l->rank = NONE;
    if (l->next == NONE)
        return;
    if (s) {
        l->joined = tok_lookup_text(t, s + w->span[left].at, (size_t)w->span[left].size + w->span[l->next].size);
        if (l->joined < 0)
            return;
        float score = (float)t->scores[l->joined];
        uint32_t bits;
        /* make the bits ascend with the score as an unsigned number, then negate them: the best
         * score is the lowest rank */
        memcpy(&bits, &score, 4);
        l->rank = ~(bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u));
    } else {
        const struct tokb_merge *m = find_merge(t, (uint32_t)l->id, (uint32_t)w->sym[l->next].id);
        if (!m)
            return;
        l->rank = m->rank;
        l->joined = (int32_t)m->id;
    }
    if (l->rank != NONE)
        heap_push(w, (uint64_t)l->rank << 32 | left);
}

/* Join neighbouring symbols, those of the lowest rank first and of equal ranks the leftmost first,
 * until none can be joined.  sym[0..k) have their ids.  s: NULL, or the text of the word, to join
 * by scores instead of merges. */
static void join_all(const struct tokenizer *t, struct model_work *w, const char *s, uint32_t k)
{
    w->n_heap = 0;
    for (uint32_t i = 0; i < k; i++) {
        w->sym[i].prev = i ? i - 1 : NONE;
        w->sym[i].next = i + 1 < k ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < k; i++)
        rate(t, w, s, i);
    while (w->n_heap && !w->failed) {
        uint64_t top = heap_pop(w);
        uint32_t at = (uint32_t)top;
        struct model_symbol *l = &w->sym[at];
        if (l->rank != top >> 32 || l->rank == NONE)
            continue;                   /* the symbol changed after this entry was added */
        struct model_symbol *r = &w->sym[l->next];
        if (s)
            w->span[at].size += w->span[l->next].size;
        l->id = l->joined;
        l->next = r->next;
        r->rank = NONE;
        if (l->next != NONE)
            w->sym[l->next].prev = at;
        rate(t, w, s, at);
        if (l->prev != NONE)
            rate(t, w, s, l->prev);
    }
}

static int bpe(const struct tokenizer *t, struct model_work *w, const char *s, size_t n, int whole, struct tok_ids *out,
               struct err *e)
{
    if (whole && t->h.flags & MODEL_IGNORE_MERGES) {
        int32_t id = tok_lookup_text(t, s, n);
        if (id >= 0) {
            tok_ids_add(out, id);
            return 0;
        }
    }
    if (room_for(w, n + 1, e))
        return -1;
    uint32_t k = first_symbols(t, w, s, n);
    join_all(t, w, NULL, k);
    for (uint32_t i = k ? 0 : NONE; i != NONE; i = w->sym[i].next)
        tok_ids_add(out, w->sym[i].id);
    return 0;
}

/* SentencePiece: neighbours join if their text is a token, best score first; at the end a symbol
 * that is still no token becomes bytes. */
static int bpe_score(const struct tokenizer *t, struct model_work *w, const char *s, size_t n, struct tok_ids *out,
                     struct err *e)
{
    if (room_for(w, n + 1, e))
        return -1;
    if (n + 1 > w->span_room) {
        struct model_span *p = realloc(w->span, w->sym_room * sizeof *p);
        if (!p)
            return err_nomem(e, "symbols of a word");
        w->span = p;
        w->span_room = w->sym_room;
    }
    uint32_t k = 0;
    for (size_t i = 0; i < n; k++) {
        int len;
        uint32_t c = text_next(s + i, &len);
        w->sym[k].id = char_id(t, w, s + i, (size_t)len, c, 1, 0);
        w->span[k] = (struct model_span){ (uint32_t)i, (uint32_t)len };
        i += (size_t)len;
    }
    join_all(t, w, s, k);
    int unknown = 0;
    for (uint32_t i = 0; i != NONE; i = w->sym[i].next) {
        const char *p = s + w->span[i].at;
        uint32_t size = w->span[i].size;
        int32_t bytes[4], id = w->sym[i].id;
        if (id < 0 && t->h.flags & MODEL_BYTE_FALLBACK && byte_ids(t, p, size, bytes)) {
            for (uint32_t j = 0; j < size; j++)
                tok_ids_add(out, bytes[j]);
            unknown = 0;
            continue;
        }
        if (id >= 0)
            tok_ids_add(out, id);
        else if (t->h.unk >= 0 && !(unknown && t->h.flags & MODEL_FUSE_UNK))
            tok_ids_add(out, t->h.unk);
        unknown = id < 0;
    }
    return 0;
}

/* ---- Unigram ---- */

static double sum_of(const struct tokenizer *t, double a, double b)
{
    /* the rounding decides between segmentations whose scores are nearly equal */
    return t->h.flags & MODEL_FLOAT_SCORES ? (double)((float)a + (float)b) : a + b;
}

static int unigram(const struct tokenizer *t, struct model_work *w, const char *s, size_t n, struct tok_ids *out,
                   struct err *e)
{
    if (n >= INT32_MAX)
        return err_set(e, ERR_LIMIT, "a word of %zu bytes without a break is too long", n);
    if (n + 1 > w->node_room) {
        struct model_node *p = realloc(w->node, (n + 1) * sizeof *p);
        if (!p)
            return err_nomem(e, "the lattice of a word");
        w->node = p;
        w->node_room = n + 1;
    }
    struct model_node *node = w->node;
    for (size_t i = 0; i <= n; i++)
        node[i] = (struct model_node){ 0, NONE, -1 };
    node[0].from = 0;
    for (size_t at = 0; at < n;) {
        int len, k, single = 0;
        text_next(s + at, &len);
        uint64_t h = TOK_HASH_START;
        for (size_t end = at; end < n && end - at < t->h.max_token_size;) {
            text_next(s + end, &k);
            h = hash_more(h, s + end, (size_t)k);
            end += (size_t)k;
            int32_t id = tok_lookup(t, tok_hash_end(h), s + at, end - at);
            if (id < 0)
                continue;
            double score = sum_of(t, t->scores[id], node[at].score);
            if (node[end].from == NONE || score > node[end].score)
                node[end] = (struct model_node){ score, (uint32_t)at, id };
            single |= end - at == (size_t)len;
        }
        if (!single) {
            struct model_node *to = &node[at + (size_t)len];
            double score = sum_of(t, t->h.unk_score, node[at].score);
            if (to->from == NONE || score > to->score)
                *to = (struct model_node){ score, (uint32_t)at, -1 };
        }
        at += (size_t)len;
    }
    /* Reverse the path: node[i].score is no longer needed, and from becomes the next node. */
    size_t begin = n, end = n;
    while (begin > 0) {
        size_t from = node[begin].from;
        node[begin].from = (uint32_t)end;
        end = begin;
        begin = from;
    }
    int fuse = (t->h.flags & MODEL_FUSE_UNK) != 0;
#define UNKNOWN_AT(k) (node[k].id < 0 || (fuse && node[k].id == t->h.unk))
    for (size_t i = 0, next = end; i < n; i = next, next = node[next].from) {
        if (!UNKNOWN_AT(next)) {
            tok_ids_add(out, node[next].id);
            continue;
        }
        /* Join a run of unknown characters to one token. */
        while (fuse && next < n && UNKNOWN_AT(node[next].from))
            next = node[next].from;
        int32_t id = tok_lookup_text(t, s + i, next - i);
        int32_t *bytes = id < 0 && t->h.flags & MODEL_BYTE_FALLBACK ? malloc((next - i) * sizeof *bytes) : NULL;
        if (bytes && byte_ids(t, s + i, next - i, bytes))
            for (size_t j = 0; j < next - i; j++)
                tok_ids_add(out, bytes[j]);
        else if (id >= 0 || (id = t->h.unk) >= 0)
            tok_ids_add(out, id);
        free(bytes);
    }
#undef UNKNOWN_AT
    return 0;
}

/* ---- WordPiece ---- */

static int wordpiece(const struct tokenizer *t, const char *s, size_t n, struct tok_ids *out)
{
    size_t before = out->n, chars = 0;
    for (size_t i = 0; t->h.max_word_chars && i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    int known = !t->h.max_word_chars || chars <= t->h.max_word_chars;
    struct tbuf text = { 0 };           /* the prefix and the rest of the word */
    for (size_t at = 0; known && at < n;) {
        uint32_t n_pre = at ? t->h.next_prefix_size : t->h.word_prefix_size;
        text.n = 0;
        tbuf_add(&text, t->text + (at ? t->h.next_prefix : t->h.word_prefix), n_pre);
        size_t most = n - at;
        if (most > t->h.max_token_size)
            most = t->h.max_token_size;
        tbuf_add(&text, s + at, most);
        if (text.failed)
            break;
        uint64_t h = hash_more(TOK_HASH_START, text.p, n_pre);
        size_t best = 0;
        int32_t id = -1;
        for (size_t end = 0; end < most;) {
            int len;
            text_next(s + at + end, &len);
            if (end + (size_t)len > most)
                break;
            h = hash_more(h, s + at + end, (size_t)len);
            end += (size_t)len;
            int32_t found = tok_lookup(t, tok_hash_end(h), text.p, n_pre + end);
            if (found >= 0)
                id = found, best = end;
        }
        known = id >= 0;
        tok_ids_add(out, id);
        at += best;
    }
    if (!known || text.failed) {
        out->n = before;
        if (t->h.unk >= 0)
            tok_ids_add(out, t->h.unk);
    }
    int failed = text.failed;
    tbuf_release(&text);
    return failed;
}

int model_word(const struct tokenizer *t, struct model_work *w, const char *s, size_t n, int whole, struct tok_ids *out,
               struct err *e)
{
    int rc = 0;
    int32_t id;
    switch (t->h.model) {
    case MODEL_BPE: rc = bpe(t, w, s, n, whole, out, e); break;
    case MODEL_BPE_SCORE: rc = bpe_score(t, w, s, n, out, e); break;
    case MODEL_UNIGRAM: rc = unigram(t, w, s, n, out, e); break;
    case MODEL_WORDPIECE: w->failed |= wordpiece(t, s, n, out); break;
    default:                            /* MODEL_WORDLEVEL */
        id = tok_lookup_text(t, s, n);
        if (id >= 0 || (id = t->h.unk) >= 0)
            tok_ids_add(out, id);
    }
    return rc ? rc : w->failed || out->failed ? err_nomem(e, "ids of a word") : 0;
}

void model_work_release(struct model_work *w)
{
    free(w->sym);
    free(w->span);
    free(w->heap);
    free(w->node);
    memset(w, 0, sizeof *w);
}
