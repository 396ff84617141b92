/* model_tasks.c - the thread that opens and closes models, one at a time, so that the loop never
 * waits for a disk. */
#include "libcommon/serve/model_tasks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/model/lora.h"
#include "libcommon/base/json.h"
#include "libcommon/serve/internal.h"

struct opening {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct task *todo, *done;           /* oldest first */
    int stop;
    struct server *s;
};

/* ---- in the thread ---- */

/* The text of a token, malloc'd; "" if there is no such token. */
static char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t size = 0;
    const char *text = id >= 0 ? tokenizer_token(t, id, &size) : NULL;
    return strndup(text ? text : "", text ? size : 0);
}

/* Read the chat template, and derive from it whether the model reasons and how it writes calls. */
static int read_template(struct loaded_model *lm, struct err *e)
{
    const json_t *own = js_get(lm->m.json, "chat_template"), *named = js_get(lm->m.json, "chat_templates");
    int n_eos = 0;
    const int32_t *eos = tokenizer_eos(lm->m.tokenizer, &n_eos);
    lm->bos = token_text(lm->m.tokenizer, tokenizer_bos(lm->m.tokenizer));
    lm->eos = token_text(lm->m.tokenizer, n_eos ? eos[0] : -1);
    if (!lm->bos || !lm->eos)
        return err_nomem(e, "model");
    lm->calls_form = tool_format_detect(NULL, 0);
    if (!(lm->grammars = grammars_open(lm->m.tokenizer, e)))
        return -1;
    if (!own && json_is_object(named))
        own = js_get(named, "default");
    if (!json_is_string(own))
        return 0;
    const char *text = json_string_value(own);
    lm->thinks = strstr(text, "</think>") != NULL;
    lm->knows_tools = strstr(text, "tools") != NULL;
    lm->calls_form = tool_format_detect(text, json_string_length(own));
    lm->tmpl = tmpl_parse(json_string_value(own), json_string_length(own), "chat template", e);
    return lm->tmpl ? 0 : -1;
}

/* Set the defaults of requests: sampling_defaults, changed by the model's generation_config. */
static int read_sampling(struct loaded_model *lm, struct err *e)
{
    lm->sampling = sampling_defaults();
    return sampling_config(&lm->sampling, js_get(lm->m.json, "generation_config"), e) == 0 &&
           sampling_check(&lm->sampling, lm->m.model->config.vocab_size, e) == 0 ? 0
                                                                                 : err_prefix(e, "generation_config");
}

static void open_model(struct loaded_model *lm)
{
    struct server *s = lm->s;
    struct engine_stats es;
    if (s->o.opener.open(s->o.opener.user, lm->path, &lm->how, &lm->m, &lm->error) != 0)
        return;
    lm->opened = 1;
    if ((lm->m.tokenizer && read_template(lm, &lm->error) != 0) || read_sampling(lm, &lm->error) != 0)
        return;
    engine_stats(lm->m.engine, &es);
    engine_limits(lm->m.engine, &lm->limits);
    lm->most_running = lm->limits.max_running;
    lm->engine_bytes = es.private_bytes;
    lm->memory_bytes = lm->m.file_bytes + es.private_bytes;       /* private bytes include keys and values */
    for (int i = 0; i < lm->m.model->n_loras; i++)
        lm->memory_bytes += lm->m.model->loras[i].bytes;
    lm->vram_bytes = es.device.weights + es.device.cached + es.device.kv + es.device.work;
    device_names(lm->device, &es);
    device_line(lm->about, &es, lm->m.model->config.n_layers);
    lm->load_s = (double)(clock_ns() - lm->started_ns) * 1e-9;
    lm->error.code = ERR_NONE;
}

static void close_model(struct server *s, struct closing *c)
{
    if (worker_close(c->worker, ENGINE_PATIENCE_S) != 0) {
        c->stuck = 1;
        s->n_stuck++;
        return;
    }
    if (c->tmpl)
        tmpl_free(c->tmpl);
    if (c->opened)
        s->o.opener.close(s->o.opener.user, &c->m);
}

static void *run_tasks(void *arg)
{
    struct opening *o = arg;
    for (;;) {
        pthread_mutex_lock(&o->lock);
        while (!o->todo && !o->stop)
            pthread_cond_wait(&o->work, &o->lock);
        struct task *t = o->todo;
        if (t)
            o->todo = t->next;
        pthread_mutex_unlock(&o->lock);
        if (!t)
            return NULL;
        if (t->kind == TASK_OPEN)
            open_model(t->lm);
        else if (t->kind == TASK_ADAPTER)
            adapter_read(o->s, t->load);
        else
            close_model(o->s, &t->closing);
        pthread_mutex_lock(&o->lock);
        struct task **end = &o->done;
        while (*end)
            end = &(*end)->next;
        t->next = NULL;
        *end = t;
        pthread_mutex_unlock(&o->lock);
        loop_wake(o->s->loop);
    }
}

/* ---- in the loop ---- */

/* Move the parts to close out of the model, because the loop still uses the rest of it. */
static struct closing take_out(struct loaded_model *lm)
{
    const struct closing c = { lm->worker, lm->tmpl, lm->m, lm->opened, 0 };
    lm->worker = NULL;
    lm->tmpl = NULL;
    lm->opened = 0;
    memset(&lm->m, 0, sizeof lm->m);
    lm->state = MODEL_CLOSING;
    return c;
}

static int give(struct server *s, const struct task *task)
{
    struct opening *o = s->opening;
    struct task *t = calloc(1, sizeof *t), **end = &o->todo;
    if (!t)
        return -1;
    *t = *task;
    if (t->kind == TASK_CLOSE)
        t->closing = take_out(t->lm);
    pthread_mutex_lock(&o->lock);
    while (*end)
        end = &(*end)->next;
    *end = t;
    pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->lock);
    return 0;
}

int task_give(struct server *s, enum task_kind kind, struct loaded_model *lm)
{
    return give(s, &(struct task){ .kind = kind, .lm = lm });
}

int task_read_adapter(struct server *s, struct loaded_model *lm, struct adapter_load *l)
{
    return give(s, &(struct task){ .kind = TASK_ADAPTER, .lm = lm, .load = l });
}

struct task *tasks_done(struct server *s)
{
    struct opening *o = s->opening;
    pthread_mutex_lock(&o->lock);
    struct task *t = o->done;
    o->done = NULL;
    pthread_mutex_unlock(&o->lock);
    return t;
}

int tasks_open(struct server *s, struct err *e)
{
    struct opening *o = calloc(1, sizeof *o);
    if (!o)
        return err_nomem(e, "server");
    o->s = s;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->work, NULL);
    int rc = pthread_create(&o->thread, NULL, run_tasks, o);
    if (rc != 0) {
        free(o);
        return err_set(e, ERR_IO, "thread: %s", strerror(rc));
    }
    s->opening = o;
    return 0;
}

void task_close_now(struct loaded_model *lm)
{
    struct closing c = take_out(lm);
    close_model(lm->s, &c);
}

int tasks_stop(struct server *s)
{
    struct opening *o = s->opening;
    pthread_mutex_lock(&o->lock);
    struct task *t = o->todo;
    o->todo = NULL;
    o->stop = 1;
    pthread_cond_signal(&o->work);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    if (s->n_stuck)
        return -1;
    for (int k = 0; k < 2; k++, t = o->done)            /* todo, then done */
        while (t) {
            struct task *next = t->next;
            if (t->kind == TASK_CLOSE && k == 0)
                close_model(s, &t->closing);
            free(t);
            t = next;
        }
    return 0;
}

void tasks_close(struct server *s)
{
    struct opening *o = s->opening;
    pthread_cond_destroy(&o->work);
    pthread_mutex_destroy(&o->lock);
    free(o);
    s->opening = NULL;
}
