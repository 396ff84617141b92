/* diag.h - print figures of every layer on stderr, to find the one that goes wrong (ZSE_DIAG). */
#ifndef ZSE_CMD_DIAG_H
#define ZSE_CMD_DIAG_H

#include "libcommon/engine/backend.h"

/* Prints a line for the embeddings and for each layer of a step: "diag layer=3 tokens=5 rms=0.8
 * largest=12.1 nan=0 inf=0"; for each layer with experts the choices of its last token: "diag
 * layer=3 experts=5,12 weights=0.71,0.29 nan=0"; and one for the logits. */
extern const struct step_watch diag_watch;

#endif
