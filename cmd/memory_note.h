/* memory_note.h - --verbose: what memory this process has, step by step. */
#ifndef ZSE_CMD_MEMORY_NOTE_H
#define ZSE_CMD_MEMORY_NOTE_H

/* "prog: memory: WHAT: 12.3 MB resident (2.1 MB private), 800 MB mapped; 12.1 GB available, 3.2
 * GB page cache" on stderr; nothing where the system does not say. */
void memory_note(const char *prog, const char *what);

#endif
