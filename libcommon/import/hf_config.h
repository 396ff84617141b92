/* hf_config.h - bring the config.json of a Hugging Face model into one spelling. */
#ifndef ZSE_IMPORT_HF_CONFIG_H
#define ZSE_IMPORT_HF_CONFIG_H

#include <jansson.h>

#include "libcommon/base/err.h"

/* Fields are renamed to what current versions of transformers write:
 *   text_config             its fields move to the top level; vision_config and others are dropped,
 *                           the outer model_type becomes zse_wrapper
 *   rope_parameters         {"rope_type", "rope_theta", ...}, or one such object for each type of
 *                           layer ("full_attention", "sliding_attention"); replaces rope_theta,
 *                           rope_scaling, rotary_emb_base and rope_local_base_freq.  Absent if the
 *                           file has none of them.
 *   partial_rotary_factor   at the top level; replaces rotary_pct and the one in rope_parameters
 *   dtype                   replaces torch_dtype
 * All other fields stay.  Returns a new reference, or NULL with *e. */
json_t *hf_config_normalize(const json_t *config, struct err *e);

#endif
