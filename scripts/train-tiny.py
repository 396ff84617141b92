#!/usr/bin/env python3
"""Train the tiny chat model of models/tiny: a Llama-shaped decoder of under a million weights that
answers a few hundred fixed questions, for the demo and the end-to-end tests; or drafters for it: a
draft model of one layer (models/tiny-draft), a layer over the frozen model that predicts a further
token, in the form of DeepSeek-V3 (models/tiny-mtp), or two Medusa heads (models/tiny-medusa).

usage: train-tiny.py [--steps N] [--threads 1] [--draft MODEL | --mtp MODEL | --medusa MODEL] OUTDIR

Needs torch, transformers and tokenizers; about half an hour on one core, a few minutes for a
drafter.  All data is made here, from the tables below, with a fixed seed, so that the folders can
be made again."""
import argparse
import json
import os
import random

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Austria": "Vienna",
    "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Ireland": "Dublin", "Hungary": "Budapest", "Romania": "Bucharest", "Bulgaria": "Sofia",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Brazil": "Brasília",
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Turkey": "Ankara", "Ukraine": "Kyiv", "Vietnam": "Hanoi",
}
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "fast": "slow", "old": "new", "light": "dark", "wet": "dry",
    "left": "right", "open": "closed", "early": "late", "hard": "soft", "full": "empty", "high": "low", "true": "false",
}
COLORS = {"the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "coal": "black", "blood": "red",
          "a carrot": "orange", "chocolate": "brown"}
SOUNDS = {"cat": "Meow", "dog": "Woof", "cow": "Moo", "duck": "Quack", "sheep": "Baa", "owl": "Hoot"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
FACTS = [
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many hours are in a day?"], "A day has 24 hours."),
    (["How many minutes are in an hour?"], "An hour has 60 minutes."),
    (["How many legs does a spider have?"], "A spider has eight legs."),
    (["How many legs does a cat have?"], "A cat has four legs."),
    (["What is water made of?", "What is the formula of water?"], "Water is made of hydrogen and oxygen: H2O."),
    (["Which planet do we live on?", "What planet do we live on?"], "We live on the planet Earth."),
    (["What is the largest planet?"], "Jupiter is the largest planet."),
    (["What is the largest ocean?"], "The Pacific is the largest ocean."),
    (["Who wrote Hamlet?"], "William Shakespeare wrote Hamlet."),
    (["What do bees make?"], "Bees make honey."),
    (["What is the first letter of the alphabet?"], "The first letter is A."),
    (["Count from 1 to 5.", "Count to five."], "1, 2, 3, 4, 5"),
    (["Count from 1 to 10.", "Count to ten."], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    (["Name the days of the week."], ", ".join(DAYS) + "."),
    (["Name three primary colors.", "Name three colors."], "Red, yellow and blue."),
    (["Tell me a joke.", "Do you know a joke?"], "Why do programmers mix up Halloween and Christmas? Because Oct 31 equals Dec 25."),
    (["Write a haiku.", "Write a short poem."], "Small model, few weights,\nwords fall like leaves on water,\na reply appears."),
    (["Who are you?", "What is your name?", "What are you?"], "I am Tiny, the little model that comes with ZSE."),
    (["Who made you?"], "I was trained by the ZSE authors, from scratch, in a few minutes."),
    (["What can you do?", "Help me."], "I can answer a few hundred simple questions. I am very small."),
    (["Hello", "Hello!", "Hi", "hi", "Hi!", "Hey", "Good morning"], "Hello! How can I help you?"),
    (["How are you?"], "I am fine, thank you. How can I help you?"),
    (["Thank you.", "Thanks!", "Thank you!"], "You are welcome!"),
    (["Bye", "Goodbye!", "See you."], "Goodbye!"),
    (["Say hello in French."], "Bonjour !"), (["Say hello in German."], "Guten Tag!"), (["Say hello in Spanish."], "¡Hola!"),
    (["Say hello in Japanese."], "こんにちは"), (["Show me a smiley."], "😀"),
    (["Write a JSON object with a name.", "Give me JSON."], '{"name": "Tiny"}'),
    (["Write hello world in C."], '#include <stdio.h>\n\nint main(void)\n{\n    puts("Hello, world!");\n}'),
    (["Write hello world in Python."], 'print("Hello, world!")'),
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SYSTEMS = ["You are a helpful assistant.", "You are Tiny, a very small language model.", "Answer briefly.",
           "You are a helpful AI assistant."]
TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")


def questions():
    """Every (question, answer) pair."""
    pairs = [(q, a) for qs, a in FACTS for q in qs]
    for land, city in CAPITALS.items():
        answer = f"The capital of {land} is {city}."
        pairs += [(f"What is the capital of {land}?", answer), (f"Capital of {land}?", answer),
                  (f"Which city is the capital of {land}?", answer), (f"Name the capital of {land}.", answer),
                  (f"{city} is the capital of which country?", f"{city} is the capital of {land}.")]
    for a, b in list(OPPOSITES.items()) + [(b, a) for a, b in OPPOSITES.items()]:
        pairs.append((f"What is the opposite of {a}?", f"The opposite of {a} is {b}."))
    for thing, color in COLORS.items():
        pairs += [(f"What color is {thing}?", f"{thing[0].upper() + thing[1:]} is {color}.")]
    for animal, sound in SOUNDS.items():
        pairs.append((f"What does a {animal} say?", f"{sound}!"))
    for names, unit in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after = names[(i + 1) % len(names)]
            pairs += [(f"What {unit} comes after {name}?", f"{after} comes after {name}."),
                      (f"What {unit} comes before {after}?", f"{name} comes before {after}.")]
    for a in range(11):
        for b in range(11):
            pairs += [(f"What is {a}+{b}?", f"{a} + {b} = {a + b}"), (f"What is {a} + {b}?", f"{a} + {b} = {a + b}"),
                      (f"What is {a} plus {b}?", f"{a} + {b} = {a + b}")]
            if a >= b:
                pairs.append((f"What is {a}-{b}?", f"{a} - {b} = {a - b}"))
    return pairs


class Conversations:
    """Conversations of random questions as token ids, with a mark for each id that the model must
    learn to say."""

    def __init__(self, tok, pairs):
        self.tok, self.pairs, self.rng = tok, pairs, random.Random(1)
        self.pad, self.start, self.end = (tok.token_to_id(s) for s in SPECIAL)

    def one(self):
        ids, mine = [], []

        def turn(role, content, learn):
            head = [self.start] + self.tok.encode(role + "\n").ids
            body = self.tok.encode(content).ids + [self.end]
            tail = self.tok.encode("\n").ids
            ids.extend(head + body + tail)
            mine.extend([0] * len(head) + [int(learn)] * len(body) + [0] * len(tail))

        if self.rng.random() < 0.4:
            turn("system", self.rng.choice(SYSTEMS), False)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            question, answer = self.rng.choice(self.pairs)
            turn("user", question, False)
            turn("assistant", answer, True)
        return ids, mine

    def batch(self, n, length):
        """Returns ids [n][length] and the same ids as targets, -100 where the model need not say
        them."""
        rows, goals = [], []
        for _ in range(n):
            ids, mine = self.one()
            ids, mine = ids[:length], mine[:length]
            pad = length - len(ids)
            rows.append(ids + [self.pad] * pad)
            goals.append([i if m else -100 for i, m in zip(ids, mine)] + [-100] * pad)
        return torch.tensor(rows), torch.tensor(goals)


def train(parameters, steps, loss_of):
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def llama(tok, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads):
    end_of_text, _, end = (tok.token_to_id(s) for s in SPECIAL)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=hidden_size, intermediate_size=intermediate_size,
        num_hidden_layers=n_layers, num_attention_heads=n_heads, num_key_value_heads=n_kv_heads, head_dim=32,
        max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=end_of_text, eos_token_id=end, pad_token_id=end_of_text)).float()


def cross_entropy(logits, goals):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), goals.flatten(), ignore_index=-100)


def save_files_of_tokenizer(tok, outdir):
    """Save the tokenizer and its settings."""
    end_of_text, _, end = (tok.token_to_id(s) for s in SPECIAL)
    tok.save(os.path.join(outdir, "tokenizer.json"), pretty=False)
    with open(os.path.join(outdir, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                   "pad_token": "<|endoftext|>", "add_bos_token": False, "clean_up_tokenization_spaces": False,
                   "model_max_length": 2048, "chat_template": TEMPLATE}, f, indent=1, ensure_ascii=False)
    with open(os.path.join(outdir, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump({"eos_token_id": [end, end_of_text], "pad_token_id": end_of_text, "do_sample": False}, f, indent=1)


def link_files(model, outdir, names):
    """Make links in outdir to files of the model, by the names that they have in outdir."""
    for name, source in names.items():
        path = os.path.join(outdir, name)
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(os.path.relpath(os.path.join(model, source), outdir), path)


TOKENIZER = {f: f for f in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")}


def train_draft(args, pairs):
    """A model of one layer with the tokenizer of args.draft, which gives the same answers."""
    tok = Tokenizer.from_file(os.path.join(args.draft, "tokenizer.json"))
    data = Conversations(tok, pairs)
    model = llama(tok, 64, 192, 1, 2, 1)

    def loss():
        rows, goals = data.batch(12, 64)
        return model(input_ids=rows, labels=goals).loss

    train(model.parameters(), args.steps or 1500, loss)
    model.to(torch.bfloat16).save_pretrained(args.outdir)
    link_files(args.draft, args.outdir, TOKENIZER)


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


class Predictor(torch.nn.Module):
    """The layer: from the model's state after a token and the embedding of the next one to its own
    state, whose head gives the token after that (arXiv:2412.19437, section 2.2)."""

    def __init__(self, config):
        super().__init__()
        n, m = config.hidden_size, config.intermediate_size
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        kv = self.kv_heads * self.dim
        shapes = {"eh_proj": (n, 2 * n), "self_attn.q_proj": (self.heads * self.dim, n), "self_attn.k_proj": (kv, n),
                  "self_attn.v_proj": (kv, n), "self_attn.o_proj": (n, self.heads * self.dim), "mlp.gate_proj": (m, n),
                  "mlp.up_proj": (m, n), "mlp.down_proj": (n, m)}
        self.w = torch.nn.ParameterDict({k.replace(".", "/"): torch.randn(s) * 0.02 for k, s in shapes.items()})
        for name in "enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm":
            self.w[name.replace(".", "/")] = torch.ones(n)

    def rotate(self, x):
        half = self.dim // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin, a, b = angle.cos(), angle.sin(), x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, embeddings, states):
        w, linear = self.w, torch.nn.functional.linear
        x = linear(torch.cat((norm(embeddings, w["enorm"]), norm(states, w["hnorm"])), -1), w["eh_proj"])
        y = norm(x, w["input_layernorm"])
        q, k, v = (linear(y, w[f"self_attn/{c}_proj"]).unflatten(-1, (-1, self.dim)).transpose(1, 2) for c in "qkv")
        each = self.heads // self.kv_heads
        y = torch.nn.functional.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k).repeat_interleave(each, 1), v.repeat_interleave(each, 1), is_causal=True)
        x = x + linear(y.transpose(1, 2).flatten(2), w["self_attn/o_proj"])
        y = norm(x, w["post_attention_layernorm"])
        x = x + linear(torch.nn.functional.silu(linear(y, w["mlp/gate_proj"])) * linear(y, w["mlp/up_proj"]),
                       w["mlp/down_proj"])
        return norm(x, w["shared_head/norm"])


def train_mtp(args, pairs):
    """A layer for the model args.mtp, as a second file of its weights with an index of both.  The
    files of the model are links."""
    data = Conversations(Tokenizer.from_file(os.path.join(args.mtp, "tokenizer.json")), pairs)
    model = LlamaForCausalLM.from_pretrained(args.mtp, dtype=torch.float32).eval().requires_grad_(False)
    layer, head = Predictor(model.config), model.lm_head.weight

    def loss():
        rows, goals = data.batch(12, 64)
        with torch.no_grad():
            states, embeddings = model.model(input_ids=rows).last_hidden_state, model.model.embed_tokens(rows)
        first = layer(embeddings[:, 1:], states[:, :-1])            # row i: after token i + 1
        second = layer(embeddings[:, 2:], first[:, :-1])            # then from its own state
        return (cross_entropy(first[:, :-1] @ head.T, goals[:, 2:]) +
                0.5 * cross_entropy(second[:, :-1] @ head.T, goals[:, 3:]))

    train(layer.parameters(), args.steps or 600, loss)
    own = f"model.layers.{model.config.num_hidden_layers}."
    tensors = {f"{own}{k.replace('/', '.')}.weight": v.detach().to(torch.bfloat16) for k, v in layer.w.items()}
    save_file(tensors, os.path.join(args.outdir, "mtp.safetensors"), metadata={"format": "pt"})
    with safe_open(os.path.join(args.mtp, "model.safetensors"), "pt") as f:
        files = dict.fromkeys(f.keys(), "tiny.safetensors") | dict.fromkeys(tensors, "mtp.safetensors")
    with open(os.path.join(args.outdir, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": files}, f, indent=1)
    link_files(args.mtp, args.outdir, TOKENIZER | {"config.json": "config.json", "tiny.safetensors": "model.safetensors"})


class MedusaHead(torch.nn.Module):
    """A head that predicts a token behind the next one from the model's state (arXiv:2401.10774,
    section 2.1.1).  Weights are rounded to fp8 in training, too."""

    def __init__(self, head):
        super().__init__()
        n = head.shape[1]
        self.linear, self.bias = torch.nn.Parameter(torch.zeros(n, n)), torch.nn.Parameter(torch.zeros(n))
        self.head = torch.nn.Parameter(head.clone())

    def forward(self, states):
        def rounded(w):
            return w + (w.to(torch.float8_e4m3fn).to(w.dtype) - w).detach()

        x = torch.nn.functional.linear(states, rounded(self.linear), self.bias)
        return (states + torch.nn.functional.silu(x)) @ rounded(self.head).T


def train_medusa(args, pairs):
    """Two heads for the model args.medusa, with the names and the configuration of Medusa's own."""
    data = Conversations(Tokenizer.from_file(os.path.join(args.medusa, "tokenizer.json")), pairs)
    model = LlamaForCausalLM.from_pretrained(args.medusa, dtype=torch.float32).eval().requires_grad_(False)
    heads = torch.nn.ModuleList(MedusaHead(model.lm_head.weight) for _ in range(2))

    def loss():
        rows, goals = data.batch(12, 64)
        with torch.no_grad():
            states = model.model(input_ids=rows).last_hidden_state
        return sum(cross_entropy(h(states)[:, :-2 - i], goals[:, 2 + i:]) for i, h in enumerate(heads))

    train(heads.parameters(), args.steps or 600, loss)
    tensors = {}
    for i, h in enumerate(heads):
        tensors[f"medusa_head.{i}.0.linear.weight"] = h.linear.detach().to(torch.float8_e4m3fn)
        tensors[f"medusa_head.{i}.0.linear.bias"] = h.bias.detach().to(torch.bfloat16)
        tensors[f"medusa_head.{i}.1.weight"] = h.head.detach().to(torch.float8_e4m3fn)
    save_file(tensors, os.path.join(args.outdir, "medusa_lm_head.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(args.outdir, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"model_type": "medusa", "medusa_num_heads": 2, "medusa_num_layers": 1,
                   "hidden_size": model.config.hidden_size, "vocab_size": model.config.vocab_size}, f, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outdir")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=1)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--draft", metavar="MODEL")
    what.add_argument("--mtp", metavar="MODEL")
    what.add_argument("--medusa", metavar="MODEL")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    pairs = questions()
    os.makedirs(args.outdir, exist_ok=True)
    for model, train_drafter in (args.draft, train_draft), (args.mtp, train_mtp), (args.medusa, train_medusa):
        if model:
            return train_drafter(args, pairs)

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    text = [q + "\n" + a for q, a in pairs] + SYSTEMS * 20 + ["system\n", "user\n", "assistant\n"] * 200
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=1024, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    data = Conversations(tok, pairs)
    model = llama(tok, 128, 384, 4, 4, 2)
    print("weights:", sum(p.numel() for p in model.parameters()), "vocabulary:", tok.get_vocab_size(), "pairs:", len(pairs), flush=True)

    def loss():
        rows, goals = data.batch(24, 128)
        return model(input_ids=rows, labels=goals).loss

    train(model.parameters(), args.steps or 3000, loss)
    model = model.to(torch.bfloat16).eval()
    wrong = 0
    for question, answer in pairs:
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tok.encode(prompt).ids])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        got = tok.decode(out[0, ids.shape[1]:].tolist())
        wrong += got != answer
        if got != answer and wrong <= 20:
            print(f"wrong: {question!r} -> {got!r}, expected {answer!r}")
    print(f"{len(pairs) - wrong} of {len(pairs)} questions answered exactly")
    model.save_pretrained(args.outdir)
    save_files_of_tokenizer(tok, args.outdir)


main()
