/* wrapper.c - list the checkpoints that hold a language model beside encoders of images, video and
 * sound: which keys of config.json and which tensors are about these.  Sources: config.json and
 * tensor names of the models on the hub. */
#include <string.h>

#include "libcommon/model/arch.h"

#define MARKS "image_token_id|video_token_id|vision_token_id|vision_start_token_id|vision_end_token_id"

#define SOFT "audio_soft_tokens_per_image|vision_soft_tokens_per_image"

#define SOUND "audio_token_id|boa_token_id|boi_token_id|eoa_token_index|eoa_token_id|eoi_token_id|image_token_id|video_token_id"

static const struct wrapper wrappers[] = {
    { "gemma3", NULL, "vision_tower.|multi_modal_projector.|model.vision_tower.|model.multi_modal_projector." },
    { "gemma3n", SOUND "|" SOFT,
      "model.vision_tower.|model.audio_tower.|model.embed_vision.|model.embed_audio." },
    { "gemma4", SOUND "|" SOFT,
      "model.vision_tower.|model.audio_tower.|model.embed_vision.|model.embed_audio." },
    { "gemma4_unified", SOUND "|" SOFT, "model.vision_embedder.|model.embed_vision.|model.embed_audio." },
    { "qwen2_vl", MARKS, "visual.|model.visual." },
    { "qwen2_5_vl", MARKS, "visual.|model.visual." },
    { "qwen3_vl", MARKS, "visual.|model.visual." },
    { "qwen3_vl_moe", MARKS, "visual.|model.visual." },
    { "qwen3_5", MARKS, "visual.|model.visual." },
    { "qwen3_5_moe", MARKS, "visual.|model.visual." },
    { "qwen4_exp", MARKS, "visual.|model.visual." },
    { "mistral3", "spatial_merge_size|multimodal_projector_bias",
      "vision_tower.|multi_modal_projector.|model.vision_tower.|model.multi_modal_projector." },
    { "llama4", NULL, "vision_model.|multi_modal_projector.|model.vision_model.|model.multi_modal_projector." },
    { "kimi_vl", "ignore_index|media_placeholder_token_id", "vision_tower.|multi_modal_projector." },
    { "kimi_k25", MARKS "|ignore_index|media_placeholder_token_id|projection_hidden_size|projection_layer_norm_eps|"
                        "use_unified_vision_chunk|video_placeholder",
      "vision_tower.|mm_projector." },
};

const struct wrapper *wrapper_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof wrappers / sizeof *wrappers; i++)
        if (strcmp(wrappers[i].name, name) == 0)
            return &wrappers[i];
    return NULL;
}

int wrapper_skips(const struct wrapper *w, const char *tensor)
{
    for (const char *s = w ? w->tensors : "", *end; *s; s = *end ? end + 1 : end) {
        end = strchrnul(s, '|');
        if (strncmp(tensor, s, (size_t)(end - s)) == 0)
            return 1;
    }
    return 0;
}
