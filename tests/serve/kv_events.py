#!/usr/bin/env python3
"""kv_events.py - read the events of a server's prefix cache, and compare them with its prompts.

usage: kv_events.py URL EVENTS REPLAY      (a server with --kv-events EVENTS --kv-replay REPLAY)
"""
import json
import sys
import urllib.request

import msgpack
import zmq

URL, EVENTS, REPLAY = sys.argv[1:]
BLOCK, PATIENCE_MS = 16, 20000


def ask(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    return json.load(urllib.request.urlopen(request))


def complete(prompt):
    return ask('/v1/completions', {'prompt': prompt, 'max_tokens': 1, 'temperature': 0})


context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.connect(EVENTS)
topic = b'kv@' + URL.removeprefix('http://').encode() + b'@tiny'
sub.setsockopt(zmq.SUBSCRIBE, topic)


def replay(first):
    """All batches from this number on, as {number: payload}."""
    dealer = context.socket(zmq.DEALER)
    dealer.connect(REPLAY)
    dealer.send_multipart([b'', first.to_bytes(8, 'big')])
    batches = {}
    while True:
        assert dealer.poll(PATIENCE_MS), 'no end of the replay'
        delimiter, number, payload = dealer.recv_multipart()
        assert delimiter == b''
        if int.from_bytes(number, 'big', signed=True) == -1:
            assert payload == b''
            dealer.close(linger=0)
            return batches
        batches[int.from_bytes(number, 'big')] = payload


def events(payload):
    time, found = msgpack.unpackb(payload)[:2]
    assert isinstance(time, float) and time > 1.7e9 and found
    return found


# the first batch was sent when the model was loaded, before anyone could subscribe
batches = replay(0)
assert list(batches) == [0] and events(batches[0]) == [['AllBlocksCleared']], batches
# a subscription takes effect some time after it was made: the first prompts may be missed
live, i = {}, 0
while not live:
    i += 1
    complete(f'{i} green bottles hanging on the wall, and if one of them should fall, there will be one less')
    if sub.poll(200):
        frames = sub.recv_multipart()
        assert frames[0] == topic and len(frames) == 3 and len(frames[1]) == 8, frames
        live[int.from_bytes(frames[1], 'big')] = frames[2]
missed = replay(1)
first = min(live)
assert missed[first] == live[first]

# a prompt is stored block by block, each after its parent
prompt = [7 + k % 90 for k in range(5 * BLOCK + 3)]
before = max(replay(0))
complete(prompt)
stored = [e for n, p in replay(before + 1).items() for e in events(p) if e[0] == 'BlockStored']
assert sum((e[3] for e in stored), []) == prompt[:5 * BLOCK], stored
parent = None
for e in stored:
    assert len(e) == 8 and len(e[1]) == 1 and e[2] == parent and e[4:] == [BLOCK, None, None, None], e
    parent = e[1][0]
# the same again stores nothing; one that branches off stores what is new after the common blocks
before = max(replay(0))
complete(prompt)
assert not [e for p in replay(before + 1).values() for e in events(p) if e[0] == 'BlockStored']
complete(prompt[:2 * BLOCK] + [99] * BLOCK)
new = [e for p in replay(before + 1).values() for e in events(p) if e[0] == 'BlockStored']
assert len(new) == 1 and new[0][2] == stored[1][1][0] and new[0][3] == [99] * BLOCK, new

# evictions: what is removed was stored, and a block is never stored twice
for i in range(12):
    complete([(i * 11 + k) % 200 + 7 for k in range(10 * BLOCK)])
held, n_removed = set(), 0
batches = replay(0)
assert list(batches) == list(range(len(batches)))
for payload in batches.values():
    for e in events(payload):
        if e[0] == 'BlockStored':
            assert e[1][0] not in held and (e[2] is None or e[2] in held), e
            held.add(e[1][0])
        elif e[0] == 'BlockRemoved':
            assert len(e) == 3
            held.remove(e[1][0])
            n_removed += 1
assert n_removed > 20 and held
# the live stream has the same batches, without a gap
while max(live) < max(batches):
    assert sub.poll(PATIENCE_MS)
    _, number, payload = sub.recv_multipart()
    live[int.from_bytes(number, 'big')] = payload
assert live == {n: p for n, p in batches.items() if n >= first}
# a request that is none gets no answer and does no harm; a DEALER needs no delimiter
dealer = context.socket(zmq.DEALER)
dealer.connect(REPLAY)
dealer.send(b'x')
dealer.send_multipart([b'a', b'b', b'c', b'd' * 1000])
dealer.send((len(batches) - 1).to_bytes(8, 'big'))
assert dealer.poll(PATIENCE_MS)
assert dealer.recv_multipart() == [(len(batches) - 1).to_bytes(8, 'big'), batches[len(batches) - 1]]
context.destroy(linger=0)
print('ok')
