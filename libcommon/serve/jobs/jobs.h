/* jobs.h - downloads and conversions that an administrator requests over HTTP.
 *
 * One thread runs them one after the other, each in a child process of low priority (the program's
 * zse-convert or zse-info), which prints its progress as lines.  A job that is cancelled, or that
 * runs when the server stops, is ended by SIGTERM and, some seconds later, SIGKILL; its downloads
 * and converted parts stay on the disk, and the same request resumes from them.  The list of jobs
 * lives as long as the server. */
#ifndef ZSE_SERVE_JOBS_JOBS_H
#define ZSE_SERVE_JOBS_JOBS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/serve/access_record.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/server.h"

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELLED };
enum { MAX_OPEN_JOBS = 16, MAX_JOBS = 64, MAX_WATCHERS = 32, JOB_NAME_MAX = 160 };

struct job_progress {
    char step[80], unit[16];            /* name of the step; unit of done and total */
    uint64_t done, total;
    double rate;                        /* units a second; 0: not known yet */
    /* at_ns: time of the last report; first, first_ns: amount and time at the start of the
     * period over which the rate is measured */
    uint64_t at_ns, first, first_ns;
};

struct job {
    struct job *next;
    char id[16];
    char *source, *path;                /* owned; path: the .zse, NULL: download only */
    char name[JOB_NAME_MAX + 1];        /* name of the model; "" without path */
    char quantization[32], quality[16];
    double target_gb;
    int is_path, load;                  /* load: load the model when the job has made it */
    char **command;                     /* owned */
    /* the client's data for the audit log */
    char request[REQUEST_ID + 1], client[64], key[KEY_NAME_MAX + 1];
    int has_key;
    atomic_int cancel;
    /* the members below are protected by the lock of struct jobs */
    enum job_state state;
    struct job_progress progress;
    int64_t created_s, started_s, ended_s;
    char message[512];                  /* the last message; after a failure, the reason */
    uint64_t bytes;                     /* size of the .zse when it is done */
    int told;                           /* the loop has handled the end of the job */
};

/* A function that writes the state of a job, as returned by job_object(), to a client that watches
 * it.  last: the job has ended, so the function ends the response, too. */
typedef void job_report(struct server *s, struct conn *c, const json_t *job, int last);

/* A client that reads /api/models/jobs/events, or waits for one job. */
struct jobs;
struct job_watcher {
    struct exchange exchange;           /* must be the first member: see exchange.h */
    struct job_watcher *next;
    struct jobs *in;
    struct conn *conn;
    char id[16];                        /* id of the watched job; "": all jobs */
    job_report *report;                 /* writes the reports of the watched job */
    /* time when the stream ends, after which the client connects again */
    uint64_t until_ns;
};

struct jobs {
    struct server *s;
    pthread_t thread;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct job *list;                   /* list of jobs, oldest first */
    int n_made;
    atomic_int stop, moved;             /* moved: there are changes to report */
    struct job_watcher *watchers;       /* used by the loop only */
    uint64_t told_ns;                   /* time of the last report to the watchers */
};

/* ---- in the thread of the jobs: job_child.c ---- */
/* Run the job's command until it ends.  Returns 0; -1 if it failed or was cancelled, with the
 * reason in j->message. */
int job_run(struct jobs *js, struct job *j);
/* Parse a line that the child printed.  Returns 1 if the line is progress, which is stored in p;
 * otherwise the line is stored in message [room]. */
int job_read_line(const char *line, struct job_progress *p, char *message, size_t room, uint64_t now_ns);

/* ---- in the loop ---- */
/* The job as JSON. New reference.  The caller holds the lock. */
json_t *job_object(const struct job *j);
struct job *job_find(struct jobs *js, const char *id);
/* Append a job to the list, which takes ownership of it, and start the thread if none runs.  -1
 * with *e. */
int jobs_add(struct jobs *js, struct job *j, struct err *e);
/* Queue a failed or cancelled job again. */
void jobs_again(struct jobs *js, struct job *j);
void jobs_remove(struct jobs *js, struct job *j);
void job_free(struct job *j);
int jobs_n_open(struct jobs *js);       /* number of queued and running jobs */
/* Start a job that converts a source on the hub to a .zse at path, for a model called name.
 * type "": the default.  The job is borrowed; NULL with *pr. */
struct job *jobs_convert(struct server *s, struct conn *c, const char *source, const char *path, const char *name,
                         const char *type, struct problem *pr);
/* Let a client watch a job until it ends.  -1 with *pr: there are too many watchers. */
int jobs_watch(struct server *s, struct conn *c, const struct job *j, job_report *report, struct problem *pr);
/* Send the list of jobs to this client, if it watches the list; c NULL: to all watchers, and
 * reports of single jobs to the clients that watch these. */
void jobs_tell(struct jobs *js, struct conn *c);

#endif
