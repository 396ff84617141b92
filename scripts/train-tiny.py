#!/usr/bin/env python3
"""Train the tiny chat model of models/tiny: a Llama-shaped decoder of under a million weights that
answers a few hundred fixed questions, for the demo and the end-to-end tests.

usage: train-tiny.py [--steps 3000] [--threads 1] OUTDIR

Needs torch, transformers and tokenizers; about half an hour on one core.  All data is made here,
from the tables below, with a fixed seed, so that the folder can be made again."""
import argparse
import json
import os
import random

import torch
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outdir")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    rng = random.Random(1)
    pairs = questions()

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    text = [q + "\n" + a for q, a in pairs] + SYSTEMS * 20 + ["system\n", "user\n", "assistant\n"] * 200
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=1024, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    end_of_text, start, end = (tok.token_to_id(s) for s in special)

    def conversation():
        """Ids of one conversation and which of them are the model's to say."""
        ids, mine = [], []

        def turn(role, content, learn):
            head = [start] + tok.encode(role + "\n").ids
            body = tok.encode(content).ids + [end]
            tail = tok.encode("\n").ids
            ids.extend(head + body + tail)
            mine.extend([0] * len(head) + [int(learn)] * len(body) + [0] * len(tail))

        if rng.random() < 0.4:
            turn("system", rng.choice(SYSTEMS), False)
        for _ in range(rng.choice((1, 1, 2, 3))):
            question, answer = rng.choice(pairs)
            turn("user", question, False)
            turn("assistant", answer, True)
        return ids, mine

    config = LlamaConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=2048,
        rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=end_of_text, eos_token_id=end, pad_token_id=end_of_text)
    model = LlamaForCausalLM(config).float()
    print("weights:", sum(p.numel() for p in model.parameters()), "vocabulary:", tok.get_vocab_size(), "pairs:", len(pairs), flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps, pct_start=0.05)
    length = 128
    for step in range(args.steps):
        rows, goals = [], []
        for _ in range(24):
            ids, mine = conversation()
            ids, mine = ids[:length], mine[:length]
            pad = length - len(ids)
            rows.append(ids + [end_of_text] * pad)
            goals.append([i if m else -100 for i, m in zip(ids, mine)] + [-100] * pad)
        loss = model(input_ids=torch.tensor(rows), labels=torch.tensor(goals)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

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

    os.makedirs(args.outdir, exist_ok=True)
    model.save_pretrained(args.outdir)
    tok.save(os.path.join(args.outdir, "tokenizer.json"), pretty=False)
    with open(os.path.join(args.outdir, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                   "pad_token": "<|endoftext|>", "add_bos_token": False, "clean_up_tokenization_spaces": False,
                   "model_max_length": 2048, "chat_template": TEMPLATE}, f, indent=1, ensure_ascii=False)
    with open(os.path.join(args.outdir, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump({"eos_token_id": [end, end_of_text], "pad_token_id": end_of_text, "do_sample": False}, f, indent=1)


main()
