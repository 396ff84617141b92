/* fields.h - the fields of every request body: one table for the parser and for /openapi.json.
 *
 * A field is used, or ignored because it cannot change the answer, or refused.  A name that is not
 * in the table is refused, with two exceptions: bodies of Ollama's API may have up to MAX_UNKNOWN
 * unknown names, which are ignored, as Ollama does; and so may the bodies of SHARED_API, unless the
 * server is strict, but there the names are collected for a response header.  null is the same as a
 * missing field. */
#ifndef ZSE_SERVE_FIELDS_H
#define ZSE_SERVE_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/engine/sampler.h"
#include "libcommon/http/problem.h"

/* Kinds of bodies: a set of up to 64, in which each has a bit. */
typedef uint64_t body_set;
#define BODY_BIT(n) (UINT64_C(1) << (n))
#define BODY_CHAT               BODY_BIT(0)
#define BODY_COMPLETION         BODY_BIT(1)
#define BODY_EMBEDDING          BODY_BIT(2)
#define BODY_TOKENIZE           BODY_BIT(3)
#define BODY_DETOKENIZE         BODY_BIT(4)
#define BODY_TEMPLATE           BODY_BIT(5)
#define BODY_WS_CHAT            BODY_BIT(6)
#define BODY_LOAD               BODY_BIT(7)
#define BODY_UNLOAD             BODY_BIT(8)
#define BODY_BATCHING           BODY_BIT(9)
#define BODY_KEY                BODY_BIT(10)
#define BODY_JOB                BODY_BIT(11)
#define BODY_RESPONSES          BODY_BIT(12)
#define BODY_MESSAGES           BODY_BIT(13)
#define BODY_COUNT              BODY_BIT(14)
#define BODY_TOOL               BODY_BIT(15)
#define BODY_TOOL_PARSE         BODY_BIT(16)
#define BODY_TOOL_PROCESS       BODY_BIT(17)
#define BODY_RAG_DOCUMENT       BODY_BIT(18)
#define BODY_RAG_SEARCH         BODY_BIT(19)
#define BODY_RAG_CONTEXT        BODY_BIT(20)
#define BODY_CONVERSATION       BODY_BIT(21)
#define BODY_CONVERSATION_EDIT  BODY_BIT(22)
#define BODY_CHAT_MESSAGE       BODY_BIT(23)
#define BODY_CHAT_MESSAGE_EDIT  BODY_BIT(24)
#define BODY_CHAT_IMPORT        BODY_BIT(25)
#define BODY_MCP                BODY_BIT(26)
#define BODY_RAG_UPLOAD         BODY_BIT(27)
#define BODY_ENABLE             BODY_BIT(28)
#define BODY_RERANK             BODY_BIT(29)
#define BODY_SCORE              BODY_BIT(30)
#define BODY_OLLAMA_CHAT        BODY_BIT(31)
#define BODY_OLLAMA_GENERATE    BODY_BIT(32)
#define BODY_OLLAMA_EMBED       BODY_BIT(33)
#define BODY_OLLAMA_EMBEDDINGS  BODY_BIT(34)
#define BODY_OLLAMA_OPTIONS     BODY_BIT(35)    /* the member "options" of the four bodies above */
#define BODY_OLLAMA_MODEL       BODY_BIT(36)
#define BODY_OLLAMA_COPY        BODY_BIT(37)
#define BODY_OLLAMA_PULL        BODY_BIT(38)
#define BODY_LORA_LOAD          BODY_BIT(39)
#define BODY_LORA_UNLOAD        BODY_BIT(40)
#define BODY_LAST               BODY_LORA_UNLOAD

/* OLLAMA_TEXT: bodies of Ollama's API that generate text.  OLLAMA: all bodies of this API, in which
 * unknown fields are ignored. */
#define OLLAMA_TEXT (BODY_OLLAMA_CHAT | BODY_OLLAMA_GENERATE)
#define OLLAMA_CALLS (OLLAMA_TEXT | BODY_OLLAMA_EMBED | BODY_OLLAMA_EMBEDDINGS)
#define OLLAMA (OLLAMA_CALLS | BODY_OLLAMA_OPTIONS | BODY_OLLAMA_MODEL | BODY_OLLAMA_COPY | BODY_OLLAMA_PULL)

/* Bodies of APIs that other servers have, too, so that clients send fields of those servers. */
#define SHARED_API (BODY_CHAT | BODY_COMPLETION | BODY_RESPONSES | BODY_MESSAGES | BODY_COUNT | BODY_EMBEDDING | \
                    BODY_RERANK | BODY_SCORE | BODY_TOKENIZE | BODY_DETOKENIZE)

enum field_use { FIELD_USED, FIELD_IGNORED, FIELD_REFUSED };
/* The parser stores values of the types from FIELD_BOOL on in members of struct params.  The types
 * of these members are int, int, float, double (for whole numbers) and const char *. */
enum field_type { FIELD_OTHER, FIELD_BOOL, FIELD_INT, FIELD_REAL, FIELD_DOUBLE, FIELD_STRING };

struct field {
    const char *name;
    body_set bodies;                    /* bodies that may have it */
    enum field_use use;
    enum field_type type;               /* FIELD_OTHER: checked by the code that uses it */
    double min, max;                    /* range of numbers */
    size_t at;                          /* offset in struct params, of a number, truth value or string (borrowed) */
    unsigned given;                     /* bit to set in params.given; 0: none */
    const char *schema;                 /* JSON Schema of FIELD_OTHER */
    const char *about;                  /* its effect, or why the field is refused */
    /* FIELD_REFUSED: returns 1 if v is a value without effect, which is accepted; NULL: no value is
     * accepted */
    int (*harmless)(const json_t *v);
};
enum { MAX_UNKNOWN = 100 };             /* limits the work: each unknown name is compared with the whole table */
extern const struct field fields[];
extern const int n_fields;

/* Names of members that no field has and that were ignored. */
struct ignored_names {
    int tolerant;                       /* set by the caller; 0: such members are refused */
    int n;
    char list[512];                     /* "a, b.c": the names that fit, printable ASCII, for a header */
};
/* Handle a member that no field has.  parent: the field that it is in; NULL: it is in the body.
 * Returns 0 if it is ignored and in the list now; -1 with *pr.  ig NULL: it is refused. */
int fields_unknown(struct ignored_names *ig, const char *parent, const char *name, struct problem *pr);

/* bodies whose responses are vectors or scores, not text */
#define EMBEDS (BODY_EMBEDDING | BODY_RERANK | BODY_SCORE | BODY_OLLAMA_EMBED | BODY_OLLAMA_EMBEDDINGS)
enum { GIVEN_SEED = 1, GIVEN_MAX_TOKENS = 2, GIVEN_MAX_COMPLETION_TOKENS = 4, GIVEN_N = 8, GIVEN_TOP_LOGPROBS = 16,
       GIVEN_LOGPROBS = 32 };


struct params {
    struct sampling sampling;
    double seed;                        /* -2^53 to 2^53: the range that JSON numbers hold exactly */
    int max_tokens, max_completion_tokens, min_tokens, n, best_of, top_logprobs, logprobs_count, logprobs, stream,
        echo, ignore_eos, priority;
    int parallel_calls;
    int add_special, parse_special, with_pieces, token_strs, add_generation_prompt, continues, dimensions;
    int add_special_tokens, skip_special_tokens;
    int top_n, return_documents;
    int truncate; /* tokens to keep of a text; -1: the context's size; 0: longer texts are refused */
    const char *input_type, *prompt_name;       /* borrowed from the body */
    int max_running, max_waiting, chunk, step_tokens;
    int rate_limit, enabled, token_limit_minute, token_limit_day;
    double expires_at;
    const char *name, *scopes, *models;     /* borrowed from the body */
    const char *instructions, *tool_call_id;
    int store;
    const char *previous_response_id, *safety_identifier, *prompt_cache_key, *event;    /* borrowed from the body */
    const char *destination;            /* borrowed from the body */
    const char *lora_name, *lora_path;  /* borrowed from the body */
    int load_inplace;
    int raw, verbose, truncates;
    int confirm, auto_execute, max_tool_rounds, max_tool_calls;
    /* borrowed from the body */
    const char *model, *user, *encoding_format, *system_prompt, *model_name, *model_path, *model_id;
    /* borrowed from the body */
    const char *content, *file_type, *collection, *query, *mode;
    const char *quantization, *device, *quality, *kind, *source;        /* borrowed from the body */
    float target_gb;
    int load;
    int rag_top_k, rag_max_tokens, rerank;
    float min_score;
    unsigned given;
    struct ignored_names ignored;
};

/* Find the field of this name (n bytes) in bodies of this kind; NULL: none. */
const struct field *fields_find(const char *name, size_t n, body_set kind);
/* Read all fields of the object into p, which has the defaults.  0, or -1 with *pr. */
int fields_parse(const json_t *body, body_set kind, struct params *p, struct problem *pr);

#endif
