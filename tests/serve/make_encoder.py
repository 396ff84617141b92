#!/usr/bin/env python3
"""make_encoder.py FOLDER KIND: write a tiny random BERT in the layout of sentence-transformers.

KIND embed: mean pooling, a dense layer, prompts; bare: the same without the dense layer and without
normalization; rerank: a classifier with one label; labels: with two; broken: an unknown module."""
import json, pathlib, random, struct, sys

HIDDEN, LAYERS, HEADS, MLP, POSITIONS = 64, 2, 4, 96, 64
WORDS = '[PAD] [UNK] [CLS] [SEP] the cat sat on a mat dog ran query : far away home ##s ##ed'.split() + list('abcdefghijklmnopqrstuvwxyz') + ['##' + c for c in 'abcdefghijklmnopqrstuvwxyz']


def safetensors(path, tensors):
    header, data = {}, b''
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f'<{len(values)}f', *values)
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)


def main():
    folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    r = random.Random(1)
    tensors = {}

    def matrix(name, rows, cols):
        tensors[name + '.weight'] = [rows, cols], [r.gauss(0, 0.3) for _ in range(rows * cols)]

    def linear(name, rows, cols):
        matrix(name, rows, cols)
        tensors[name + '.bias'] = [rows], [r.gauss(0, 0.1) for _ in range(rows)]

    def norm(name):
        tensors[name + '.weight'] = [HIDDEN], [1 + r.gauss(0, 0.1) for _ in range(HIDDEN)]
        tensors[name + '.bias'] = [HIDDEN], [r.gauss(0, 0.1) for _ in range(HIDDEN)]

    p = 'bert.' if kind in ('rerank', 'labels') else ''
    matrix(p + 'embeddings.word_embeddings', len(WORDS), HIDDEN)
    matrix(p + 'embeddings.position_embeddings', POSITIONS, HIDDEN)
    matrix(p + 'embeddings.token_type_embeddings', 2, HIDDEN)
    norm(p + 'embeddings.LayerNorm')
    for i in range(LAYERS):
        at = f'{p}encoder.layer.{i}.'
        for one in ('query', 'key', 'value'):
            linear(at + 'attention.self.' + one, HIDDEN, HIDDEN)
        linear(at + 'attention.output.dense', HIDDEN, HIDDEN)
        norm(at + 'attention.output.LayerNorm')
        linear(at + 'intermediate.dense', MLP, HIDDEN)
        linear(at + 'output.dense', HIDDEN, MLP)
        norm(at + 'output.LayerNorm')
    linear(p + 'pooler.dense', HIDDEN, HIDDEN)
    config = {'architectures': ['BertModel'], 'model_type': 'bert', 'hidden_size': HIDDEN, 'num_hidden_layers': LAYERS, 'num_attention_heads': HEADS,
              'intermediate_size': MLP, 'max_position_embeddings': POSITIONS, 'vocab_size': len(WORDS), 'type_vocab_size': 2, 'hidden_act': 'gelu',
              'layer_norm_eps': 1e-12}
    if p:
        linear('classifier', 2 if kind == 'labels' else 1, HIDDEN)
        config |= {'architectures': ['BertForSequenceClassification'], 'id2label': {str(i): str(i) for i in range(2 if kind == 'labels' else 1)}}
    else:
        modules = ['Transformer', 'Pooling'] + {'embed': ['Dense', 'Normalize'], 'bare': [], 'broken': ['WordWeights']}[kind]
        paths = ['' if m == 'Transformer' else f'{i}_{m}' for i, m in enumerate(modules)]
        (folder / 'modules.json').write_text(json.dumps([{'idx': i, 'name': str(i), 'path': q, 'type': 'sentence_transformers.models.' + m}
                                                         for i, (m, q) in enumerate(zip(modules, paths))]))
        (folder / '1_Pooling').mkdir(exist_ok=True)
        (folder / '1_Pooling/config.json').write_text(json.dumps({'word_embedding_dimension': HIDDEN, 'pooling_mode_mean_tokens': True}))
        (folder / 'sentence_bert_config.json').write_text('{"max_seq_length": 24}')
        (folder / 'config_sentence_transformers.json').write_text('{"prompts": {"query": "query: "}}')
        if kind == 'embed':
            (folder / '2_Dense').mkdir(exist_ok=True)
            (folder / '2_Dense/config.json').write_text(json.dumps({'in_features': HIDDEN, 'out_features': 32, 'bias': True,
                                                                    'activation_function': 'torch.nn.modules.activation.Tanh'}))
            rows = [[r.gauss(0, 0.2) for _ in range(HIDDEN)] for _ in range(32)]
            bias = [r.gauss(0, 0.1) for _ in range(32)]
            safetensors(folder / '2_Dense/model.safetensors', {'linear.weight': ([32, HIDDEN], sum(rows, [])), 'linear.bias': ([32], bias)})
    safetensors(folder / 'model.safetensors', tensors)
    (folder / 'config.json').write_text(json.dumps(config))
    special = [{'id': i, 'content': w, 'special': True, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False} for i, w in enumerate(WORDS[:4])]
    around = [{'SpecialToken': {'id': '[CLS]', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}, {'SpecialToken': {'id': '[SEP]', 'type_id': 0}}]
    (folder / 'tokenizer.json').write_text(json.dumps({
        'version': '1.0', 'added_tokens': special, 'normalizer': {'type': 'BertNormalizer', 'lowercase': True}, 'pre_tokenizer': {'type': 'BertPreTokenizer'},
        'post_processor': {'type': 'TemplateProcessing', 'single': around, 'pair': around,
                           'special_tokens': {w: {'id': w, 'ids': [i], 'tokens': [w]} for i, w in ((2, '[CLS]'), (3, '[SEP]'))}},
        'decoder': {'type': 'WordPiece', 'prefix': '##', 'cleanup': True},
        'model': {'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100, 'vocab': {w: i for i, w in enumerate(WORDS)}}}))


main()
