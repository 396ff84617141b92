/* memory_watch.h - end a program before the machine runs out of memory. */
#ifndef ZSE_CMD_MEMORY_WATCH_H
#define ZSE_CMD_MEMORY_WATCH_H

/* Start a thread that reads the available memory twice a second.  After two readings in a row of
 * too little (memory_runs_out()) it prints a sentence and ends the process with CLI_NO_MEMORY,
 * before the kernel ends this or some other process.  To be called before anything is loaded.  If
 * the thread cannot be started, a note says so. */
void memory_watch_start(const char *prog);

#endif
