"""predictor.py FORM SPREAD FOLDER - make a small model with random weights and a layer that
predicts a further token.

FORM is deepseek (latent attention, experts, model.layers.N.eh_proj), glm (the same with grouped
heads; with a GGUF of the same tensors beside it, model.gguf, without a tokenizer) or qwen
(recurrent layers, gated attention, mtp.fc).  With SPREAD 0 nothing but the last token determines
the next one, and the layer predicts like the model itself; the larger it is, the more the layers of
both add, and the more often predictions are wrong.  SPREAD "state" is like 0, with a layer that
reads only the state: the embedding of token t + 1 is that of token t rotated by one channel, and
the layer rotates the state by one channel.  The tokenizer is that of models/tiny."""
import array, json, os, random, shutil, struct, sys

form, spread, folder = sys.argv[1], sys.argv[2], sys.argv[3]
by_state = spread == "state"
spread = 0 if by_state else float(spread)
TINY = os.path.join(os.path.dirname(__file__), "../../models/tiny")
H, V, MID = 64, 1024, 96
common = dict(hidden_size=H, intermediate_size=MID, vocab_size=V, max_position_embeddings=2048, rms_norm_eps=1e-6,
              bos_token_id=0, eos_token_id=2, tie_word_embeddings=False, hidden_act="silu", attention_bias=False)
rng, tensors = random.Random(form), {}


def matrix(name, rows, cols, scale=None):
    scale = cols ** -0.5 if scale is None else scale * cols ** -0.5
    tensors[name] = [rows, cols], array.array("f", (rng.gauss(0, 1) * scale if scale else 0 for _ in range(rows * cols)))


def vector(name, n, value):
    tensors[name] = [n], array.array("f", [value] * n)


def mlp(at, mid):
    matrix(at + "gate_proj.weight", mid, H)
    matrix(at + "up_proj.weight", mid, H)
    matrix(at + "down_proj.weight", H, mid, spread)


def dense_or_experts(at, dense):
    if dense:
        return mlp(at, MID)
    matrix(at + "gate.weight", 4, H)
    vector(at + "gate.e_score_correction_bias", 4, 0)
    mlp(at + "shared_experts.", 32)
    for i in range(4):
        mlp(at + "experts.%d." % i, 32)


def deepseek(at, dense):
    vector(at + "input_layernorm.weight", H, 1)
    vector(at + "post_attention_layernorm.weight", H, 1)
    attn = at + "self_attn."
    matrix(attn + "q_a_proj.weight", 32, H)
    vector(attn + "q_a_layernorm.weight", 32, 1)
    matrix(attn + "q_b_proj.weight", 4 * 32, 32)
    matrix(attn + "kv_a_proj_with_mqa.weight", 32 + 16, H)
    vector(attn + "kv_a_layernorm.weight", 32, 1)
    matrix(attn + "kv_b_proj.weight", 4 * 32, 32)
    matrix(attn + "o_proj.weight", H, 4 * 16, spread)
    dense_or_experts(at + "mlp.", dense)


def glm(at, dense):
    vector(at + "input_layernorm.weight", H, 1)
    vector(at + "post_attention_layernorm.weight", H, 1)
    attn = at + "self_attn."
    for part, rows in (("q", 64), ("k", 32), ("v", 32)):
        matrix(attn + part + "_proj.weight", rows, H)
        vector(attn + part + "_proj.bias", rows, 0.1)
    matrix(attn + "o_proj.weight", H, 64, spread)
    dense_or_experts(at + "mlp.", dense)


def qwen(at, recurrent):
    vector(at + "input_layernorm.weight", H, 0)
    vector(at + "post_attention_layernorm.weight", H, 0)
    mlp(at + "mlp.", MID)
    if recurrent:
        state = at + "linear_attn."
        matrix(state + "in_proj_qkv.weight", 128, H)
        matrix(state + "in_proj_z.weight", 64, H)
        matrix(state + "in_proj_a.weight", 4, H)
        matrix(state + "in_proj_b.weight", 4, H)
        vector(state + "A_log", 4, 0)
        vector(state + "dt_bias", 4, 1)
        vector(state + "norm.weight", 16, 1)
        matrix(state + "conv1d.weight", 128, 4)
        tensors[state + "conv1d.weight"] = [128, 1, 4], tensors[state + "conv1d.weight"][1]
        return matrix(state + "out_proj.weight", H, 64, spread)
    attn = at + "self_attn."
    matrix(attn + "q_proj.weight", 256, H)
    matrix(attn + "k_proj.weight", 64, H)
    matrix(attn + "v_proj.weight", 64, H)
    vector(attn + "q_norm.weight", 32, 0)
    vector(attn + "k_norm.weight", 32, 0)
    matrix(attn + "o_proj.weight", H, 128, spread)


matrix("model.embed_tokens.weight", V, H, 8)
matrix("lm_head.weight", V, H, 3)
if by_state:                                    # row t is row t - 1 rotated by one; the head predicts t after t - 1
    rows = tensors["model.embed_tokens.weight"][1]
    for t in range(V):
        base, by = rows[t // H * H * H:t // H * H * H + H], t % H
        if by:
            rows[t * H:t * H + H] = base[-by:] + base[:-by]
    head = tensors["lm_head.weight"][1]
    for t in range(V):
        row = rows[t * H:t * H + H]
        head[t * H:t * H + H] = row[1:] + row[:1]
if form in ("deepseek", "glm"):
    common.update(num_hidden_layers=2, num_nextn_predict_layers=1, num_attention_heads=4, n_routed_experts=4,
                  num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, n_group=1, topk_group=1,
                  first_k_dense_replace=1, rope_theta=10000.0, routed_scaling_factor=1.0, norm_topk_prob=True)
    config = dict(common, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_key_value_heads=4,
                  q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
                  scoring_func="sigmoid", topk_method="noaux_tc") if form == "deepseek" else dict(
                      common, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_key_value_heads=2,
                      head_dim=16, partial_rotary_factor=0.5, attention_bias=True, use_qk_norm=False)
    one, names = 1, ["enorm", "hnorm", "eh_proj", "shared_head.norm"]
    for i in range(3):
        (deepseek if form == "deepseek" else glm)("model.layers.%d." % i, i == 0)
    own = "model.layers.2."
    tensors[own + "shared_head.head.weight"] = tensors["lm_head.weight"]
    tensors[own + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
else:
    config = dict(common, architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", num_hidden_layers=2,
                  attn_output_gate=True, head_dim=32, layer_types=["linear_attention", "full_attention"],
                  linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                  linear_value_head_dim=16, num_attention_heads=4, num_key_value_heads=2, partial_rotary_factor=0.25,
                  rope_theta=10000000.0)
    one, names = 0, ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"]
    for i in range(2):
        qwen("model.layers.%d." % i, i == 0)
    own = "mtp."
    qwen("mtp.layers.0.", False)
vector("model.norm.weight", H, one)
for name in names:
    if name in ("eh_proj", "fc"):               # select the embedding, or with by_state the rotated state
        takes = (lambda i: H + (i - 1) % H) if by_state else (lambda i: i)
        tensors[own + name + ".weight"] = [H, 2 * H], array.array("f", (float(takes(i) == k) for i in range(H)
                                                                        for k in range(2 * H)))
    else:
        vector(own + name + ".weight", H, one)

os.makedirs(folder, exist_ok=True)
for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
    shutil.copy(os.path.join(TINY, name), folder)
json.dump(config, open(os.path.join(folder, "config.json"), "w"))
header, at = {}, 0
for name, (shape, data) in tensors.items():
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(data)]}
    at += 4 * len(data)
text = json.dumps(header).encode()
with open(os.path.join(folder, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for _, data in tensors.values():
        data.tofile(f)

# ---- the same as a GGUF ----

if form != "glm":
    sys.exit()
NAMES = (("model.layers.", "blk."), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"),
         ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"), ("self_attn.o_proj", "attn_output"),
         ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
         ("mlp.gate.weight", "ffn_gate_inp.weight"), ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
         ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"), ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
         ("mlp.shared_experts.down_proj", "ffn_down_shexp"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
         ("mlp.down_proj", "ffn_down"), ("enorm", "nextn.enorm"), ("hnorm", "nextn.hnorm"), ("eh_proj", "nextn.eh_proj"),
         ("shared_head.norm", "nextn.shared_head_norm"), ("shared_head.head", "nextn.shared_head_head"),
         ("2.embed_tokens", "2.nextn.embed_tokens"))
listed = {}
for name, (shape, data) in tensors.items():
    ours = name
    for old, new in NAMES:
        ours = ours.replace(old, new) if old in name else ours
    if ".mlp.experts." in ours:                 # all experts are one tensor
        layer, rest = ours.split(".mlp.experts.")
        ours = "%s.ffn_%s_exps.weight" % (layer, rest.split(".")[1][:-5])
    of = listed.setdefault(ours, [[0, *shape], array.array("f")])
    of[0][0] += 1
    of[1].extend(data)


def text_of(s):
    return struct.pack("<Q", len(s)) + s.encode()


keys = {"block_count": 3, "context_length": 2048, "embedding_length": H, "feed_forward_length": MID, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 8,
        "rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": 4, "expert_used_count": 2,
        "expert_feed_forward_length": 32, "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2,
        "expert_weights_scale": 1.0, "expert_weights_norm": True, "nextn_predict_layers": 1}
out, at = text_of("general.architecture") + struct.pack("<I", 8) + text_of("glm4moe"), 0
for key, value in keys.items():                 # 4 u32, 6 f32, 7 bool
    kind, form = (7, "?") if value is True else (6, "f") if isinstance(value, float) else (4, "I")
    out += text_of("glm4moe." + key) + struct.pack("<I" + form, kind, value)
for name, (shape, data) in listed.items():
    shape = shape if shape[0] > 1 else shape[1:]
    out += text_of(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *reversed(shape), 0, at)
    at += (4 * len(data) + 31) // 32 * 32
out = b"GGUF" + struct.pack("<IQQ", 3, len(listed), 1 + len(keys)) + out
with open(os.path.join(folder, "model.gguf"), "wb") as f:
    f.write(out + bytes(-len(out) % 32))
    for _, data in listed.values():
        f.write(data.tobytes() + bytes(-4 * len(data) % 32))
