#!/usr/bin/env python3
"""ollama_client - the official ollama package against a zse-serve with tiny:1m and its alias small.

usage: ollama_client URL ADMIN_TOKEN
One line `ok NAME` or `not ok NAME: why` for each check; exit 1 if any failed."""
import asyncio, datetime, math, sys

import ollama
from pydantic import BaseModel

url, token = sys.argv[1:3]
client = ollama.Client(host=url)
admin = ollama.Client(host=url, headers={'Authorization': 'Bearer ' + token})
GREEDY = {'temperature': 0}
QUESTION = [{'role': 'user', 'content': 'What is 2+2?'}]
failed = 0


def weather(city: str) -> str:
    """Look up the weather.

    Args:
      city: name of the city
    """
    return 'sunny in ' + city


def check(test):
    global failed
    try:
        test()
        print('ok', test.__name__)
    except Exception as e:
        failed = 1
        print(f'not ok {test.__name__}: {type(e).__name__}: {e}')


def refused(status, words, call, *a, **k):
    try:
        r = call(*a, **k)
        list(r) if k.get('stream') else None
    except ollama.ResponseError as e:
        assert e.status_code == status and words in e.error, (e.status_code, e.error)
        return
    raise AssertionError(f'not refused: {a} {k}')


@check
def chat():
    r = client.chat('tiny', QUESTION, options=GREEDY)
    assert r.message.content == '2 + 2 = 4' and r.message.role == 'assistant' and r.model == 'tiny'
    assert r.done and r.done_reason == 'stop' and (r.prompt_eval_count, r.eval_count) == (15, 8)
    assert 0 < r.prompt_eval_duration < r.total_duration and 0 < r.eval_duration < r.total_duration
    assert r.load_duration >= 0
    assert datetime.datetime.fromisoformat(r.created_at.replace('Z', '+00:00')).year > 2000
    assert client.chat('small:latest', QUESTION, options=GREEDY).message.content == '2 + 2 = 4'


@check
def chat_stream():
    parts = list(client.chat('tiny:1m', QUESTION, stream=True, options=GREEDY))
    assert len(parts) > 3 and not any(p.done for p in parts[:-1]) and parts[-1].done
    assert ''.join(p.message.content for p in parts) == '2 + 2 = 4' and parts[-1].eval_count == 8


@check
def chat_async():
    async def go():
        c = ollama.AsyncClient(host=url)
        one = await c.chat('tiny', QUESTION, options=GREEDY)
        text = ''
        async for p in await c.chat('tiny', QUESTION, stream=True, options=GREEDY):
            text += p.message.content
        return one.message.content, text
    assert asyncio.run(go()) == ('2 + 2 = 4', '2 + 2 = 4')


@check
def options():
    r = client.chat('tiny', QUESTION, options={**GREEDY, 'num_predict': 3, 'num_ctx': 4096, 'mirostat': 2, 'nosuch': {}})
    assert r.eval_count == 3 and r.done_reason == 'length', r
    r = client.chat('tiny', QUESTION, options={**GREEDY, 'stop': ['=']})
    assert r.message.content == '2 + 2 ' and r.done_reason == 'stop', r
    texts = {client.chat('tiny', QUESTION, options={'temperature': 5, 'seed': 7, 'num_predict': 20}).message.content for _ in range(3)}
    assert len(texts) == 1, texts
    r = client.chat('tiny', QUESTION, options={**GREEDY, 'num_predict': -1, 'seed': -1, 'repeat_penalty': 1.0})
    assert r.message.content == '2 + 2 = 4'
    refused(400, 'temperature', client.chat, 'tiny', QUESTION, options={'temperature': -1})


@check
def formats():
    class Answer(BaseModel):
        sum: int
        words: list[bool]
    r = client.chat('tiny', QUESTION, format=Answer.model_json_schema(), options={**GREEDY, 'num_predict': 400})
    if r.done_reason == 'stop':
        Answer.model_validate_json(r.message.content)
    r = client.generate('tiny', 'What is 2+2?', format={'enum': ['four', 'five']}, options=GREEDY)
    assert r.response in ('"four"', '"five"'), r
    r = client.generate('tiny', 'What is 2+2?', format='json', options={**GREEDY, 'num_predict': 5})
    assert r.response.startswith('{'), r
    refused(400, 'format', client.generate, 'tiny', 'hi', format={'type': 'nosuch'})


@check
def tools():
    made = []
    for stream in False, True:
        ask = {'tools': [weather], 'options': {**GREEDY, 'num_predict': 300}, 'stream': stream}
        body = client._request_raw('POST', '/api/chat', json={'model': 'tiny', 'messages': QUESTION, 'stream': stream,
            'tool_choice': 'required', 'options': ask['options'],
            'tools': [{'type': 'function', 'function': {'name': 'weather', 'parameters': {'type': 'object', 'required': ['city'],
                'additionalProperties': False, 'properties': {'city': {'enum': ['Rome', 'Oslo']}}}}}]})
        lines = [ollama.ChatResponse.model_validate_json(x) for x in body.text.splitlines()]
        calls = [c for x in lines for c in x.message.tool_calls or []]
        assert lines[-1].done and calls and calls[0].function.name == 'weather', body.text
        assert calls[0].function.arguments['city'] in ('Rome', 'Oslo')
        made.append(calls)
        assert client.chat('tiny', QUESTION, **{**ask, 'stream': False}).done
    later = QUESTION + [{'role': 'assistant', 'content': '', 'tool_calls': [made[0][0].model_dump()]},
                        {'role': 'tool', 'content': weather('Rome'), 'tool_name': 'weather'}]
    assert client.chat('tiny', later, tools=[weather], options={**GREEDY, 'num_predict': 20}).done


@check
def generate():
    r = client.generate('tiny', 'What is 2+2?', options=GREEDY)
    assert r.response == '2 + 2 = 4' and r.done_reason == 'stop'
    assert ''.join(p.response for p in client.generate('tiny', 'What is 2+2?', stream=True, options=GREEDY)) == '2 + 2 = 4'
    raw = '<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n'
    assert client.generate('tiny', raw, raw=True, options=GREEDY).response == '2 + 2 = 4'
    assert client.generate('tiny', 'What is 2+2?', system='Be brief.', options={**GREEDY, 'num_predict': 9}).prompt_eval_count > 15
    refused(400, 'suffix', client.generate, 'tiny', 'a', suffix='b')
    refused(400, 'context', client.generate, 'tiny', 'a', context=[1, 2])
    refused(400, 'images', client.generate, 'tiny', 'a', images=[b'\x89PNG'])
    refused(400, 'thinking', client.chat, 'tiny', QUESTION, think=True)
    assert client.chat('tiny', QUESTION, think=False, options=GREEDY).message.content == '2 + 2 = 4'


@check
def vectors():
    r = client.embed('tiny', ['a', 'bc'])
    assert len(r.embeddings) == 2 and r.prompt_eval_count >= 2
    for v in r.embeddings:
        assert math.isclose(sum(x * x for x in v), 1, rel_tol=1e-4)
    assert list(client.embeddings('tiny', 'a').embedding) == list(r.embeddings[0])
    assert len(client.embed('tiny', 'a', dimensions=3).embeddings[0]) == 3 and list(client.embed('tiny', []).embeddings) == []
    long = 'word ' * 5000
    assert client.embed('tiny', long).prompt_eval_count == 2048
    refused(400, 'context', client.embed, 'tiny', long, truncate=False)


@check
def lists():
    names = {m.model: m for m in client.list().models}
    assert {'tiny:1m', 'small'} <= set(names), names
    m = names['small']
    assert m.details.family == 'llama' and m.size > 1000 and len(m.digest) == 64 and m.digest == names['tiny:1m'].digest
    s = client.show('small')
    assert s.capabilities == ['completion', 'tools'] and s.modelinfo['llama.context_length'] == 2048 and 'im_start' in s.template
    refused(404, 'not found', client.show, 'nosuch')


@check
def loading():
    assert client.generate('tiny', keep_alive='10m').done_reason == 'load'
    p, = [m for m in client.ps().models if m.model == 'tiny:1m']
    left = (p.expires_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 500 < left < 700 and p.context_length == 2048 and p.size > 1000, p
    client.generate('tiny', keep_alive=-1)
    assert [m.expires_at.year for m in client.ps().models] == [9999]
    refused(400, 'keep_alive', client.generate, 'tiny', 'hi', keep_alive='soon')
    assert client.generate('tiny', keep_alive=0).done_reason == 'unload'
    assert client.ps().models == []


@check
def copy_and_delete():
    refused(401, 'admin', client.copy, 'tiny', 'mine')
    assert admin.copy('tiny', 'mine:latest').status == 'success'
    assert client.chat('mine', QUESTION, options=GREEDY).message.content == '2 + 2 = 4'
    assert admin.delete('mine').status == 'success' and 'mine' not in {m.model for m in client.list().models}
    assert 'tiny:1m' in {m.model for m in client.list().models}
    refused(404, 'not found', admin.delete, 'mine')
    refused(404, 'not found', admin.delete, '../keys')
    refused(404, 'not found', admin.copy, 'nosuch', 'x')
    refused(400, '', admin.copy, 'tiny', 'a/b')


@check
def errors():
    refused(404, 'nosuch', client.chat, 'nosuch', QUESTION)
    refused(404, 'nosuch', client.chat, 'nosuch', QUESTION, stream=True)
    refused(400, 'role', client.chat, 'tiny', [{'role': 'nobody', 'content': 'x'}])
    refused(404, 'nosuch', admin.pull, 'nosuch')
    refused(404, '/etc/passwd', admin.pull, '/etc/passwd')


sys.exit(failed)
