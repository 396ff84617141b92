/* call_events.c - take events of the engine, tokens and ends of answers, and pass them to the
 * call's form. */
#include "libcommon/serve/api/internal.h"

#include "libcommon/base/clock.h"

static void on_finish(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    const char *why = ev->error && b->bytes.data ? b->bytes.data + ev->why : "";
    ch->ended = 1;
    ch->finish = ev->finish;
    ch->stop = ev->stop;
    ch->stats = ev->stats;
    c->n_open--;
    if (c->problem.status)
        return;
    if (ev->finish == FINISH_ERROR && ev->error == ERR_IO) {
        problem_set(&c->problem, 503, NULL, "model_unavailable", "the file of the model %.80s was changed or cannot be read any more; the next request gets what is there now", c->lm->id);
    } else if (ev->finish == FINISH_REFUSED) {
        problem_set(&c->problem, 503, NULL, "overloaded", "the queue is full: %s", why);
    } else if (ev->refused && ev->finish == FINISH_ERROR) {
        if (ev->error == ERR_LIMIT || ev->error == ERR_MEMORY)
            problem_set(&c->problem, 503, NULL, "overloaded", "the queue is full: %s", why);
        else
            problem_set(&c->problem, ev->error == ERR_UNSUPPORTED ? 501 : 400, NULL, NULL, "%s", why);
    } else if (ev->finish == FINISH_ERROR && ev->error == ERR_LIMIT && c->grammar) {
        problem_set(&c->problem, 400, NULL, "grammar_too_costly", "%s", why);
    } else if (ev->finish == FINISH_ERROR) {
        problem_set(&c->problem, 500, NULL, NULL, "%s", why);
    } else if (ev->finish == FINISH_CANCELLED) {
        problem_set(&c->problem, 503, NULL, "cancelled", "the model %s is being unloaded, or the server stops",
                    c->lm->id);
    } else if (ev->finish == FINISH_DEADLINE) {
        problem_set(&c->problem, 504, NULL, "timeout", "no complete answer within %g s", c->s->o.timeout_s);
    }
    if (c->problem.status)
        call_cancel(c);                         /* cancel the other answers of this call */
}

static void on_token(struct call *c, struct choice *ch, uint64_t now)
{
    struct model_metrics *m = &c->lm->metrics;
    if (!c->first_ns) {
        c->first_ns = now;
        histogram_add(&m->first_token, (double)(now - c->start_ns) * 1e-9);
    }
    if (ch->last_ns)
        histogram_add(&m->between_tokens, (double)(now - ch->last_ns) * 1e-9);
    ch->last_ns = now;
    ch->stats.n_generated++;                    /* a running count; the last event brings the final counts */
    m->tokens++;
    metrics_tokens(&c->s->metrics, 1);
}

static void end_if_over(struct call *c)
{
    if (c->n_open == 0 && call_is_over(c))
        call_conclude(c);
}

static void on_event(struct events *b, const struct event *ev, uint64_t now)
{
    if (ev->job->on_event) {
        ev->job->on_event(ev->job, b, ev);
        return;
    }
    struct choice *ch = ev->job->user;
    struct call *c = ch->call;
    if (ev->id >= 0 && !ev->is_prompt)
        on_token(c, ch, now);
    if (ev->last)
        on_finish(c, ch, b, ev);
    if (c->conn && !c->problem.status) {
        /* begin the stream only now: before the first token a refusal could set another status */
        if (call_is_stream(c) && !c->begun) {
            c->begun = 1;
            c->form->begin(c);
        }
        c->form->event(c, ch, b, ev);
        if (call_hold_answer(c, ch) != 0)
            call_cancel(c);
        else if (ev->last && c->n_sent < c->n_choices)
            call_submit_more(c);
    }
    end_if_over(c);
}

/* Called when the answer's last event was lost because memory ran out. */
static void on_lost(struct choice *ch)
{
    struct call *c = ch->call;
    ch->ended = 1;
    c->n_open--;
    if (!c->problem.status)
        problem_nomem(&c->problem);
    call_cancel(c);
    end_if_over(c);
}

/* Called when the engine's thread has cancelled the job. */
static void on_cancel_done(struct choice *ch)
{
    ch->cancel_done = 1;
    end_if_over(ch->call);
}

void call_events(struct loaded_model *lm)
{
    struct events *list = lm->worker ? worker_take(lm->worker) : NULL;
    uint64_t now = clock_ns();
    for (struct events *b = list; b; b = b->next) {
        for (int i = 0; i < b->n_events; i++)
            on_event(b, &b->event[i], now);
        for (struct worker_job *j = b->lost, *next; j; j = next) {     /* freeing the call would free the list's node */
            next = j->next_lost;
            if (j->on_event)
                j->on_event(j, b, NULL);
            else
                on_lost(j->user);
        }
        for (struct worker_job *j = b->cancel_done, *next; j; j = next) {
            next = j->next_cancel_done;
            if (j->on_event)
                j->on_cancel_done(j);
            else
                on_cancel_done(j->user);
        }
    }
    if (list)
        worker_give_back(lm->worker, list);
}
