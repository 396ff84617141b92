/* memory_note.h - print the memory of this process at each step of a program (--verbose). */
#ifndef ZSE_CMD_MEMORY_NOTE_H
#define ZSE_CMD_MEMORY_NOTE_H

/* Print "prog: memory: WHAT: 12.3 MB resident (2.1 MB private), 800 MB mapped; 12.1 GB available,
 * 3.2 GB page cache" on stderr; nothing if the system does not report it. */
void memory_note(const char *prog, const char *what);

#endif
