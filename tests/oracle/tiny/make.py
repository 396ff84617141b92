#!/usr/bin/env python3
"""make.py - write the folders beside this file: tiny random bf16 models and their activations.

Hooks record the activations in transformers 5.23 with torch 2 and f32 arithmetic.

usage: make.py [NAME]...      (needs torch and transformers; the tests do not)
Files in the folder NAME, as zse-bench layers reads them:
  ids.npy       [tokens]
  embed.npy     [tokens, hidden], the input of layer 0
  layer.N.npy   [tokens, hidden], the output of layer N
  logits.npy    [tokens, vocab]
The models: dense, mixture of experts, gated delta net with gated attention, and Mamba2 with two
groups, alone and in granite's hybrid."""
import math
import os
import shutil
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING

TOKENS, VOCAB = 30, 64
common = dict(vocab_size=VOCAB, hidden_size=32, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
              pad_token_id=None, tie_word_embeddings=False)
attention = dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5)
experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
               decoder_sparse_step=1, mlp_only_layers=[])
models = {
    'llama': ('llama', dict(num_hidden_layers=2, intermediate_size=48, **attention)),
    'qwen3_moe': ('qwen3_moe', dict(num_hidden_layers=2, intermediate_size=48, head_dim=8, **attention, **experts)),
    'qwen3_next': ('qwen3_next', dict(
        num_hidden_layers=2, intermediate_size=48, head_dim=16, partial_rotary_factor=0.25,
        shared_expert_intermediate_size=16, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=2, **attention, **experts)),
    'mamba2-groups': ('mamba2', dict(
        num_hidden_layers=2, num_heads=8, head_dim=8, expand=2, state_size=16, n_groups=2, conv_kernel=4, chunk_size=16,
        layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True, rescale_prenorm_residual=False)),
    'granite-groups': ('granitemoehybrid', dict(
        num_hidden_layers=2, layer_types=['mamba', 'attention'], mamba_n_heads=8, mamba_d_head=8, mamba_expand=2,
        mamba_d_state=16, mamba_n_groups=4, mamba_d_conv=4, mamba_chunk_size=16, intermediate_size=16,
        shared_intermediate_size=32, num_local_experts=0, num_experts_per_tok=0, position_embedding_type='nope',
        **attention)),
}


def fill(model, seed):
    """Fill a model with random bf16 weights, scaled so that every part of a layer changes the
    output."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        last = name.rsplit('.', 2)[-1]
        if last == 'A_log':
            r = torch.log(1 + 7 * torch.rand(p.shape, generator=g))
        elif last == 'dt_bias':
            r = r - 1
        elif 'norm' in name and p.dim() == 1:
            r = 0.3 * r + (0 if model.config.model_type == 'qwen3_next' and 'linear_attn' not in name else 1)
        elif p.dim() == 1:
            r = 0.3 * r + (1 if last == 'D' else 0)
        elif 'embed' not in name:
            r = r * (1.5 / math.sqrt(p.shape[-1]))
        with torch.no_grad():
            p.copy_(r.bfloat16().float())


def layers_of(model):
    lists = [m for m in model.modules()
             if isinstance(m, torch.nn.ModuleList) and len(m) == model.config.num_hidden_layers]
    return lists[0]


def watch(model, ids):
    seen, hooks = {}, []

    def before(_, args, kwargs):
        seen['embed'] = args[0] if args else kwargs['hidden_states']

    def after(i):
        return lambda _, args, out: seen.__setitem__(f'layer.{i}', out[0] if isinstance(out, tuple) else out)

    layers = layers_of(model)
    hooks.append(layers[0].register_forward_pre_hook(before, with_kwargs=True))
    hooks += [layer.register_forward_hook(after(i)) for i, layer in enumerate(layers)]
    with torch.no_grad():
        seen['logits'] = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    for h in hooks:
        h.remove()
    return {k: v.detach()[0].float().numpy() for k, v in seen.items()}


def make(name, out):
    kind, options = models[name]
    config = CONFIG_MAPPING[kind](**(common | options))
    config._attn_implementation = 'eager'
    model = AutoModelForCausalLM.from_config(config).eval().float()
    fill(model, sum(name.encode()))
    ids = torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(7)).tolist()
    seen = watch(model, ids)
    shutil.rmtree(out, ignore_errors=True)
    model.bfloat16().save_pretrained(out)
    if os.path.exists(f'{out}/generation_config.json'):
        os.unlink(f'{out}/generation_config.json')
    np.save(f'{out}/ids.npy', np.array(ids, dtype=np.int64))
    for k, v in seen.items():
        np.save(f'{out}/{k}.npy', np.ascontiguousarray(v, dtype=np.float32))
    print(name, sum(os.path.getsize(f'{out}/{f}') for f in os.listdir(out)), 'bytes; largest logit', float(np.abs(seen['logits']).max()),
          '; layers move by',
          [round(float(np.abs(seen[f'layer.{i}'] - seen['embed' if i == 0 else f'layer.{i - 1}']).mean()), 3)
           for i in range(config.num_hidden_layers)])


for chosen in sys.argv[1:] or models:
    make(chosen, os.path.join(os.path.dirname(os.path.abspath(__file__)), chosen))
