/* fields.h - the fields of every request body: one table for the parser and for /openapi.json.
 *
 * A field is used, or ignored because it cannot change the answer, or refused.  A name that is not
 * in the table is refused.  null is the same as a missing field. */
#ifndef ZSE_SERVE_FIELDS_H
#define ZSE_SERVE_FIELDS_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/engine/sampler.h"
#include "libcommon/http/problem.h"

enum body_kind {
    BODY_CHAT = 1, BODY_COMPLETION = 2, BODY_EMBEDDING = 4, BODY_TOKENIZE = 8, BODY_DETOKENIZE = 16, BODY_TEMPLATE = 32,
        BODY_WS_CHAT = 64,
    BODY_LOAD = 128, BODY_UNLOAD = 256, BODY_BATCHING = 512, BODY_KEY = 1024, BODY_JOB = 2048,
    BODY_RESPONSES = 4096, BODY_MESSAGES = 8192, BODY_COUNT = 16384,
    BODY_TOOL = 32768, BODY_TOOL_PARSE = 65536, BODY_TOOL_PROCESS = 131072,
    BODY_RAG_DOCUMENT = 1 << 18, BODY_RAG_SEARCH = 1 << 19, BODY_RAG_CONTEXT = 1 << 20,
    BODY_CONVERSATION = 1 << 21, BODY_CONVERSATION_EDIT = 1 << 22, BODY_CHAT_MESSAGE = 1 << 23,
    BODY_CHAT_MESSAGE_EDIT = 1 << 24, BODY_CHAT_IMPORT = 1 << 25, BODY_MCP = 1 << 26, BODY_RAG_UPLOAD = 1 << 27,
    BODY_ENABLE = 1 << 28, BODY_RERANK = 1 << 29, BODY_SCORE = 1 << 30, BODY_LAST = BODY_SCORE,
};

enum field_use { FIELD_USED, FIELD_IGNORED, FIELD_REFUSED };
/* in params: int, int, float, double (a whole number), text */
enum field_type { FIELD_OTHER, FIELD_BOOL, FIELD_INT, FIELD_REAL, FIELD_DOUBLE, FIELD_STRING };

struct field {
    const char *name;
    unsigned bodies;                    /* enum body_kind: the bodies it may be in */
    enum field_use use;
    enum field_type type;               /* FIELD_OTHER: the code that uses it checks its form */
    double min, max;                    /* range of numbers */
    size_t at;                          /* offset in struct params, of a number, truth value or string (borrowed) */
    unsigned given;                     /* bit to set in params.given; 0: none */
    const char *schema;                 /* JSON Schema of FIELD_OTHER */
    const char *about;                  /* its effect; of a refused field, the reason */
    /* FIELD_REFUSED: is this a value that changes nothing?  NULL: there is none */
    int (*harmless)(const json_t *v);
};
extern const struct field fields[];
extern const int n_fields;

/* bodies that ask for vectors or scores, not for text */
enum { EMBEDS = BODY_EMBEDDING | BODY_RERANK | BODY_SCORE };
enum { GIVEN_SEED = 1, GIVEN_MAX_TOKENS = 2, GIVEN_MAX_COMPLETION_TOKENS = 4, GIVEN_N = 8, GIVEN_TOP_LOGPROBS = 16,
       GIVEN_LOGPROBS = 32 };


struct params {
    struct sampling sampling;
    double seed;                        /* -2^53 to 2^53: the range that JSON numbers hold exactly */
    int max_tokens, max_completion_tokens, n, best_of, top_logprobs, logprobs_count, logprobs, stream, echo, ignore_eos,
        priority;
    int parallel_calls;
    int add_special, parse_special, with_pieces, add_generation_prompt, dimensions;
    int top_n, return_documents;
    int truncate;                       /* tokens of a text; -1: the context; 0: longer ones are refused */
    const char *input_type, *prompt_name;       /* borrowed from the body */
    int max_running, max_waiting, chunk;
    int rate_limit, enabled, token_limit_minute, token_limit_day;
    double expires_at;
    const char *name, *scopes, *models;     /* borrowed from the body */
    const char *instructions, *tool_call_id;
    int confirm, auto_execute, max_tool_rounds, max_tool_calls;
    /* borrowed from the body */
    const char *model, *user, *encoding_format, *system_prompt, *model_name, *model_path, *model_id;
    /* borrowed from the body */
    const char *content, *file_type, *collection, *query, *mode;
    const char *quantization, *device, *quality, *kind, *source;        /* borrowed from the body */
    float target_gb;
    int load;
    int rag_top_k, rag_max_tokens;
    float min_score;
    unsigned given;
};

/* The field of this name (n bytes) in bodies of this kind; NULL: none. */
const struct field *fields_find(const char *name, size_t n, enum body_kind kind);
/* Read all fields of the object into p, which holds the defaults.  0, or -1 with *pr. */
int fields_parse(const json_t *body, enum body_kind kind, struct params *p, struct problem *pr);

#endif
