/* emulated_internal.h - the interface between the two parts of the emulation: emulated.cc
 * (fibers, memory, launches) and emulated_hopper.cc (compute capability 9.0). */
#ifndef ZSE_GPU_RT_EMULATED_INTERNAL_H
#define ZSE_GPU_RT_EMULATED_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

/* 99 KB: what a block of an sm_86 or sm_89 may have */
enum { EMULATED_THREADS = 1024, EMULATED_SHARED = 99 << 10 };

/* ---- emulated.cc ---- */
int emulated_me();                      /* number of the thread that runs */
int emulated_n_threads();
size_t emulated_shared_size();          /* of this launch */
bool emulated_checks();
void emulated_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Until *generation changes. */
void emulated_wait_for(const unsigned *generation, const char *what);
/* This thread reads or writes n bytes. */
void emulated_access(const void *p, size_t n, bool write);

/* ---- emulated_hopper.cc ---- */
void hopper_begin();                    /* a block begins */
/* no thread can continue: one of the copies under way ends.  false: there is none */
bool hopper_go_on();
void hopper_end();                      /* all threads of a block have ended */
/* This thread touches its registers: what the stack is to the emulation.  Only to be asked where
 * the block has begun products. */
extern bool hopper_has_products;
void hopper_registers(const void *p, size_t n, bool write);

#endif
