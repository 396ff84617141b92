#!/usr/bin/env python3
"""openai_client - the official openai package against a zse-serve that has models/tiny.

usage: openai_client URL ZSE_CHAT MODEL.zse
One line `ok NAME` or `not ok NAME: why` for each check; exit 1 if any failed."""
import asyncio, base64, json, math, struct, subprocess, sys

import openai

url, zse_chat, model_file = sys.argv[1:4]
client = openai.OpenAI(base_url=url + '/v1', api_key='none', max_retries=0, timeout=600)
failed = 0
QUESTIONS = ['What is 2+2?', 'What is the capital of France?', 'What is the opposite of hot?', 'What is the capital of Italy?']


def ask(text, **more):
    return client.chat.completions.create(model='default', messages=[{'role': 'user', 'content': text}], **{'temperature': 0, **more})


def alone(text):
    return subprocess.run([zse_chat, model_file, '-p', text, '--temp', '0'], capture_output=True, text=True,
            check=True).stdout.rstrip('\n')


def refused(status, param, **request):
    try:
        client.chat.completions.create(**{'model': 'default', 'messages': [{'role': 'user', 'content': 'hi'}], **request})
    except openai.APIStatusError as e:
        assert e.status_code == status, (e.status_code, e.body)
        assert e.body['param'] == param, e.body
        assert e.response.json()['detail'] == e.body['message']
        return e.body['message']
    raise AssertionError(f'not refused: {request}')


def check(test):
    global failed
    try:
        test()
        print('ok', test.__name__)
    except Exception as e:
        failed = 1
        print(f'not ok {test.__name__}: {type(e).__name__}: {e}')


@check
def chat():
    r = ask(QUESTIONS[0])
    assert r.choices[0].message.content == '2 + 2 = 4' and r.choices[0].finish_reason == 'stop' and r.choices[0].message.role == 'assistant'
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (15, 8, 23)
    assert r.id.startswith('chatcmpl-') and r.object == 'chat.completion'


@check
def chat_of_text_parts_and_roles():
    parts = [{'type': 'text', 'text': 'What is '}, {'type': 'text', 'text': '2+2?'}]
    r = client.chat.completions.create(model='default', messages=[{'role': 'user', 'content': parts}], temperature=0)
    assert r.choices[0].message.content == '2 + 2 = 4'
    r = client.chat.completions.create(model='default', temperature=0, messages=[
        {'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'},
        {'role': 'user', 'content': 'What is 2+2?'}])
    assert r.choices[0].message.content


@check
def stream_is_the_same_text():
    whole = ask(QUESTIONS[1])
    chunks = list(ask(QUESTIONS[1], stream=True, stream_options={'include_usage': True}))
    assert chunks[0].choices[0].delta.role == 'assistant'
    assert ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ['stop']
    assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1 and all(c.usage is None for c in chunks[:-1])


@check
def n_answers_with_seeds():
    r = ask('Tell me a story', n=3, seed=7, temperature=1.5, max_tokens=12)
    texts = [c.message.content for c in r.choices]
    assert [c.index for c in r.choices] == [0, 1, 2] and len(set(texts)) > 1, texts
    again = ask('Tell me a story', n=3, seed=7, temperature=1.5, max_tokens=12)
    assert [c.message.content for c in again.choices] == texts
    second = ask('Tell me a story', seed=8, temperature=1.5, max_tokens=12)
    assert second.choices[0].message.content == texts[1]        # choice i takes seed + i
    streamed = ['', '', '']
    for c in ask('Tell me a story', n=3, seed=7, temperature=1.5, max_tokens=12, stream=True):
        streamed[c.choices[0].index] += c.choices[0].delta.content or ''
    assert streamed == texts


@check
def stop_and_max_tokens():
    r = ask(QUESTIONS[0], stop=['= '])
    assert r.choices[0].message.content == '2 + 2 ' and r.choices[0].finish_reason == 'stop', r.choices[0]
    r = ask(QUESTIONS[0], max_completion_tokens=3)
    assert r.choices[0].finish_reason == 'length' and r.usage.completion_tokens == 3
    streamed = ''.join(c.choices[0].delta.content or '' for c in ask(QUESTIONS[0], stop='= ', stream=True))
    assert streamed == '2 + 2 '


@check
def logprobs_of_chat():
    r = ask(QUESTIONS[0], logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    assert ''.join(t.token for t in content[:-1]) == '2 + 2 = 4'
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob
        assert t.top_logprobs[0].token == t.token and math.isclose(t.top_logprobs[0].logprob, t.logprob, rel_tol=1e-5)
        assert bytes(t.bytes).decode() == t.token
    streamed = [t for c in ask(QUESTIONS[0], logprobs=True, top_logprobs=3, stream=True) if c.choices
            and c.choices[0].logprobs
                for t in c.choices[0].logprobs.content]
    assert [t.logprob for t in streamed] == [t.logprob for t in content]


@check
def logit_bias_bans_a_token():
    first = ask(QUESTIONS[0], logprobs=True, max_tokens=1)
    ids = client.post('/../tokenize', body={'content': first.choices[0].message.content}, cast_to=object)['tokens']
    r = ask(QUESTIONS[0], logit_bias={str(ids[0]): -100}, max_tokens=1)
    assert r.choices[0].message.content != first.choices[0].message.content


@check
def completions():
    r = client.completions.create(model='default', prompt=['Hello', 'The capital'], max_tokens=5, temperature=0)
    assert [c.index for c in r.choices] == [0, 1] and r.usage.completion_tokens == 10
    one = client.completions.create(model='default', prompt='The capital', max_tokens=5, temperature=0)
    assert one.choices[0].text == r.choices[1].text
    ids = client.post('/../tokenize', body={'content': 'The capital'}, cast_to=object)['tokens']
    assert client.completions.create(model='default', prompt=ids, max_tokens=5,
            temperature=0).choices[0].text == one.choices[0].text
    two = client.completions.create(model='default', prompt=[ids, ids], max_tokens=5, temperature=0, n=2)
    assert [c.text for c in two.choices] == [one.choices[0].text] * 4
    streamed = ''.join(c.choices[0].text for c in client.completions.create(model='default', prompt='The capital', max_tokens=5,
            temperature=0, stream=True))
    assert streamed == one.choices[0].text


@check
def completions_echo_and_logprobs():
    r = client.completions.create(model='default', prompt='The capital of France', max_tokens=4, temperature=0, echo=True, logprobs=2)
    text, l = r.choices[0].text, r.choices[0].logprobs
    # the token that ends the answer has no text
    shown = l.tokens[:-1] if r.choices[0].finish_reason == 'stop' else l.tokens
    assert text.startswith('The capital of France') and ''.join(shown) == text, (text, l.tokens)
    assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset)
    assert l.token_logprobs[0] is None and all(x <= 0 for x in l.token_logprobs[1:]) and l.text_offset[0] == 0
    only = client.completions.create(model='default', prompt='The capital of France', max_tokens=0, echo=True, logprobs=1, temperature=0)
    assert only.choices[0].text == 'The capital of France' and only.usage.completion_tokens == 0
    n = len(only.choices[0].logprobs.tokens)
    assert only.choices[0].logprobs.token_logprobs[1:] == l.token_logprobs[1:n]


@check
def embeddings():
    r = client.embeddings.create(model='default', input=['one text', 'another text', 'one text'])     # the package asks for base64
    a, b, c = (e.embedding for e in r.data)
    assert abs(sum(x * x for x in a) - 1) < 1e-4 and a == c and a != b and r.usage.prompt_tokens > 3
    plain = client.post('/embeddings', body={'model': 'default', 'input': 'one text'}, cast_to=object)['data'][0]['embedding']
    assert all(abs(x - y) < 1e-6 for x, y in zip(plain, a)) and len(plain) == len(a)
    raw = client.post('/embeddings', body={'model': 'default', 'input': 'one text', 'encoding_format': 'base64'}, cast_to=object)['data'][0]['embedding']
    assert list(struct.unpack(f'<{len(a)}f', base64.b64decode(raw))) == a
    short = client.embeddings.create(model='default', input='one text', dimensions=16).data[0].embedding
    assert len(short) == 16 and abs(sum(x * x
            for x in short) - 1) < 1e-4 and abs(short[0] / short[1] - a[0] / a[1]) < 1e-3


@check
def models():
    listed = client.models.list().data
    assert [m.owned_by for m in listed] == ['zse'] and client.models.retrieve(listed[0].id).id == listed[0].id
    try:
        client.models.retrieve('no/such')
        raise AssertionError('found no/such')
    except openai.NotFoundError as e:
        assert 'no/such' in e.body['message']


@check
def errors():
    assert refused(400, 'temperature', temperature=101) == 'temperature: 101 is not in the range 0 to 100'
    assert refused(400, 'top_p', top_p=-0.5) == 'top_p: -0.5 is not in the range 0 to 1'
    refused(400, 'n', n=0)
    refused(400, 'top_logprobs', top_logprobs=2)
    refused(400, 'max_tokens', max_tokens=0)
    raw = client.chat.completions.with_raw_response.create(model='tiny', max_tokens=1, extra_body={'unheard_of': 1},
                                                           messages=[{'role': 'user', 'content': 'a'}])
    assert raw.headers['x-ignored-fields'] == 'unheard_of'
    refused(400, 'tools[0]', tools=[{'type': 'function', 'function': {'name': 'no name', 'parameters': {}}}])
    refused(400, 'response_format', response_format={'type': 'xml'})
    refused(400, 'messages', messages=[])
    refused(400, 'messages[0]', messages=[{'role': 'wizard', 'content': 'hi'}])
    assert 'load it first' in refused(404, 'model', model='gpt-5')
    message = refused(400, 'messages', messages=[{'role': 'user', 'content': 'word ' * 3000}])
    assert '2048' in message and any(int(w) > 2048 for w in message.split() if w.isdigit()), message
    try:
        client.completions.create(model='default', prompt='a', suffix='b')
        raise AssertionError('suffix was taken')
    except openai.BadRequestError as e:
        assert e.body['param'] == 'suffix'


@check
def prefixes_are_found_again():
    text = 'Once upon a time there was a king who had three sons. ' * 12
    first = ask(text + 'What is 2+2?', max_tokens=8)
    second = ask(text + 'What is the capital of France?', max_tokens=8)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert first.usage.prompt_tokens - 48 <= cached <= second.usage.prompt_tokens, (cached, second.usage.prompt_tokens)


@check
def streams_together_are_the_answers_alone():
    expected = {q: alone(q) for q in QUESTIONS}
    async_client = openai.AsyncOpenAI(base_url=url + '/v1', api_key='none', max_retries=0, timeout=600)

    async def one(q):
        text = ''
        stream = await async_client.chat.completions.create(model='default', messages=[{'role': 'user', 'content': q}], temperature=0,
                stream=True)
        async for c in stream:
            text += c.choices[0].delta.content or ''
        return q, text

    async def all_of_them():
        return await asyncio.gather(*(one(QUESTIONS[i % len(QUESTIONS)]) for i in range(64)))

    for q, text in asyncio.run(all_of_them()):
        assert text == expected[q], (q, text, expected[q])


sys.exit(failed)
