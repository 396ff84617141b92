/* calculator.h - the value of an arithmetic expression, by a parser of our own.
 *
 *   sum      product (('+' | '-') product)*
 *   product  unary (('*' | '/' | '//' | '%') unary)*
 *   unary    ('-' | '+') unary | power
 *   power    factor (('**' | '^') unary)?               right to left; -2**2 is -4
 *   factor   (number | constant | name '(' sum (',' sum)* ')' | '(' sum ')') '!'*
 *
 * Numbers are doubles.  '//' and '%' round down, as in Python; angles are radians; log is to base
 * 10 and ln to base e. */
#ifndef ZSE_TOOLS_CALCULATOR_H
#define ZSE_TOOLS_CALCULATOR_H

#include <stddef.h>

#include "libcommon/base/err.h"

enum { CALCULATOR_MAX_BYTES = 4096, CALCULATOR_MAX_DEPTH = 100 };

/* 0, or -1 with *e: a malformed expression (with the position), a value outside of a function's
 * domain, a division by zero, or a value too large.  *value is finite. */
int calculate(const char *text, size_t size, double *value, struct err *e);

#endif
