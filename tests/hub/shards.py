#!/usr/bin/env python3
"""shards.py - a model in one safetensors file becomes a folder with N of them and an index.

usage: shards.py FOLDER NEW N [layers [unused]]
Tensors are dealt out in turn by name.
With "layers" they are dealt out in the order of layers: a conversion needs one shard after another.
With "unused" one more shard holds only a tensor that no model runs, behind a header of 33 MB."""
import json, os, re, shutil, struct, sys

src, dst, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.mkdir(dst)
for f in ('config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json'):
    shutil.copy(f'{src}/{f}', dst)
data = open(f'{src}/model.safetensors', 'rb').read()
size = struct.unpack('<Q', data[:8])[0]
header = json.loads(data[8:8 + size])
header.pop('__metadata__', None)


def place(name):
    layer = re.search(r'layers\.(\d+)\.', name)
    return (1, int(layer[1]), name) if layer else (0 if 'embed' in name else 2, 0, name)


names, where, parts = sorted(header), {}, [[] for _ in range(n)]
if sys.argv[4:5] == ['layers']:
    names.sort(key=place)
    total, seen = sum(b - a for a, b in (header[x]['data_offsets'] for x in names)), 0
    for name in names:
        parts[min(n - 1, seen * n // total)].append(name)
        seen += header[name]['data_offsets'][1] - header[name]['data_offsets'][0]
else:
    parts = [names[i::n] for i in range(n)]
for i, part in enumerate(parts):
    index, body = {}, b''
    for name in part:
        a, b = header[name]['data_offsets']
        index[name] = header[name] | {'data_offsets': [len(body), len(body) + b - a]}
        body += data[8 + size + a:8 + size + b]
        where[name] = f'model-{i + 1:05}-of-{n:05}.safetensors'
    text = json.dumps(index).encode()
    text += b' ' * (-len(text) % 8)
    with open(f'{dst}/{where[part[0]]}', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + body)
if sys.argv[5:] == ['unused']:
    where['mtp.norm.weight'] = 'model-mtp.safetensors'
    text = json.dumps({'mtp.norm.weight': {'dtype': 'F32', 'shape': [30000], 'data_offsets': [0, 120000]}}).encode() + b' ' * (33 << 20)
    with open(f'{dst}/model-mtp.safetensors', 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + bytes(range(250)) * 480)
with open(f'{dst}/model.safetensors.index.json', 'w') as f:
    json.dump({'metadata': {}, 'weight_map': dict(sorted(where.items()))}, f)
