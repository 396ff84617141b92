/* model_tasks.h - opening and closing models in a thread: tasks go in, and come back when they
 * are done. */
#ifndef ZSE_SERVE_MODEL_TASKS_H
#define ZSE_SERVE_MODEL_TASKS_H

#include "libcommon/serve/models.h"

enum { ENGINE_PATIENCE_S = 3 };         /* most seconds that closing a model waits for its engine's step */
enum task_kind { TASK_OPEN, TASK_CLOSE, TASK_ADAPTER };

/* The parts of a model that are to be closed.  stuck: the engine's step does not end, so that they
 * cannot be closed. */
struct closing { struct worker *worker; struct tmpl *tmpl; struct served_model m; int opened, stuck; };

struct task {
    struct task *next;
    enum task_kind kind;
    struct loaded_model *lm;            /* OPEN: filled in by the thread, with lm->error if opening failed */
    struct closing closing;
    struct adapter_load *load;          /* ADAPTER: filled in by the thread; borrowed from lm */
};

int tasks_open(struct server *s, struct err *e);        /* start the thread, and set s->opening */
/* Queue a task.  TASK_CLOSE takes the engine and the template out of the model at once.  0, or -1
 * without memory. */
int task_give(struct server *s, enum task_kind kind, struct loaded_model *lm);
int task_read_adapter(struct server *s, struct loaded_model *lm, struct adapter_load *l);       /* queue TASK_ADAPTER */
/* Take the list of tasks that are done, oldest first; the caller frees them. */
struct task *tasks_done(struct server *s);
/* Join the thread and close the models of tasks that have not started.  -1: an engine is stuck. */
int tasks_stop(struct server *s);
void task_close_now(struct loaded_model *lm);           /* TASK_CLOSE in the calling thread; call it after tasks_stop */
void tasks_close(struct server *s);

#endif
