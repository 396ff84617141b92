/* ggml_iq.h - decoding one block of 256 elements of the grid types; for ggml.c. */
#ifndef ZSE_QUANT_GGML_IQ_H
#define ZSE_QUANT_GGML_IQ_H

#include <stdint.h>

void ggml_iq1_s(const uint8_t *b, float *y);
void ggml_iq1_m(const uint8_t *b, float *y);
void ggml_iq2_xxs(const uint8_t *b, float *y);
void ggml_iq2_xs(const uint8_t *b, float *y);
void ggml_iq2_s(const uint8_t *b, float *y);
void ggml_iq3_xxs(const uint8_t *b, float *y);
void ggml_iq3_s(const uint8_t *b, float *y);

#endif
