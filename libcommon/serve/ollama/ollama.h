/* ollama.h - Ollama's API: its bodies and answers in terms of the calls of serve/api.
 *
 *   ollama_read.c     bodies of chat and generate as a conversation; options, keep_alive
 *   ollama_text.c     their answers, as lines of JSON or as one object
 *   ollama_embed.c    vectors
 *   ollama_models.c   lists of models, aliases, deletion
 *   ollama_pull.c     downloads
 *
 * The models are those of /v1/models, and the same keys are needed; "NAME:latest" means NAME.
 * Unknown fields and options are ignored, as Ollama does. */
#ifndef ZSE_SERVE_OLLAMA_OLLAMA_H
#define ZSE_SERVE_OLLAMA_OLLAMA_H

#include "libcommon/serve/api/calls.h"

/* The version that /api/version reports: clients require a minimum. */
#define OLLAMA_VERSION "0.12.6"

/* ---- ollama_read.c ---- */
/* Read options and keep_alive: the call_form.params of these forms.  0, or -1 with *pr. */
int ollama_params(struct call *c, struct problem *pr);
/* Make c->prompts from c->json: the call_form.prepare of these forms. */
int ollama_prepare_chat(struct call *c, struct problem *pr);
int ollama_prepare_generate(struct call *c, struct problem *pr);
/* Read a keep_alive: seconds, or a duration such as "1h30m"; negative: forever.  0, or -1 with
 * *pr. */
int ollama_keep_alive(const json_t *v, double *seconds, struct problem *pr);

/* ---- ollama_text.c ---- */
void ollama_time(struct buf *out, int64_t s, long ns);          /* append "2026-11-23T17:52:11.123456Z" */
/* Append ,"total_duration":...,"load_duration":... (in nanoseconds). */
void ollama_durations(const struct call *c, struct buf *out);
/* The model's name as the client wrote it. */
const char *ollama_model(const struct call *c);

/* ---- ollama_models.c ---- */
/* Find a ready model of this name that the client's key may use; NULL: none. */
struct loaded_model *ollama_find(struct server *s, struct conn *c, const char *name);
/* Returns 1 if the folder of named models has this model (loaded or not) and the client's key may
 * use it.  found: receives the model's name, with aliases resolved. */
int ollama_named(struct server *s, struct conn *c, const char *name, char found[STORE_NAME_BYTES]);
/* Whether this named model is being loaded. */
int ollama_is_loading(const struct server *s, const char *name);

#endif
