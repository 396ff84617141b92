#!/usr/bin/env python3
"""structured_clients - the official openai and anthropic packages against a zse-serve with
models/tiny: schemas, tools, responses, messages.

usage: structured_clients URL
The model is a toy, so these check what the server guarantees: forms, not sense.
One line `ok NAME` or `not ok NAME: why` for each check; exit 1 if any failed."""
import concurrent.futures, enum, json, re, sys, time

import anthropic, jsonschema, openai, pydantic

url = sys.argv[1]
client = openai.OpenAI(base_url=url + '/v1', api_key='none', max_retries=0, timeout=600)
claude = anthropic.Anthropic(base_url=url, api_key='none', max_retries=0, timeout=600)
failed = 0
HI = [{'role': 'user', 'content': 'What is the weather in Paris?'}]
ARGUMENTS = {'type': 'object', 'properties': {'city': {'enum': ['Paris', 'Rome']}, 'days': {'type': 'integer', 'minimum': 1, 'maximum': 9}},
             'required': ['city', 'days'], 'additionalProperties': False}
WEATHER = {'type': 'function', 'function': {'name': 'get_weather', 'description': 'The weather.', 'parameters': ARGUMENTS}}
TIME = {'type': 'function', 'function': {'name': 'get_time', 'parameters': {'type': 'object', 'properties': {}, 'additionalProperties': False}}}
FLAT = [{'type': 'function', **t['function']} for t in (WEATHER, TIME)]
TOOLS = [{'name': 'get_weather', 'description': 'The weather.', 'input_schema': ARGUMENTS}]


class Mood(str, enum.Enum):
    good = 'good'
    bad = 'bad'


class Person(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=150)
    mood: Mood
    tags: list[Mood] = pydantic.Field(max_length=2)


def chat(**more):
    return client.chat.completions.create(**{'model': 'default', 'messages': HI, 'temperature': 1, 'seed': 1, 'max_tokens': 120, **more})


def message(temperature=1, **more):
    # some versions of the package have no parameter temperature, so it goes into extra_body
    return claude.messages.create(**{'model': 'default', 'max_tokens': 120, 'messages': [{'role': 'user', 'content': 'What is 2+2?'}], 'extra_body': {'temperature': temperature, 'seed': 1}, **more})


def schema(s, **more):
    return {'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': s, **more}}


def refused(status, param, call, **request):
    try:
        call(**request)
    except (openai.APIStatusError, anthropic.APIStatusError) as e:
        error = e.response.json()['error']
        assert e.status_code == status and error['param'] == param, (e.status_code, error)
        return error['message']
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
def schemas_in_chat():
    for strict in (True, False, None):
        r = chat(response_format=schema(ARGUMENTS, strict=strict), temperature=2)
        jsonschema.validate(json.loads(r.choices[0].message.content), ARGUMENTS)
        assert r.choices[0].finish_reason == 'stop'
    one = {'type': 'object', 'properties': {'a': {'type': 'null'}}, 'minProperties': 2}
    refused(400, 'response_format', chat, response_format=schema(one))
    assert chat(response_format=schema(one, strict=False), max_tokens=1).choices[0].finish_reason == 'length'
    jsonschema.validate(json.loads(chat(response_format={'type': 'json_object', 'schema': ARGUMENTS},
            temperature=2).choices[0].message.content), ARGUMENTS)
    r = chat(response_format={'type': 'json_object'}, max_tokens=3)
    assert r.choices[0].message.content.startswith('{') and r.choices[0].finish_reason == 'length'
    many = chat(response_format=schema(ARGUMENTS), n=4, temperature=2, logprobs=True, top_logprobs=1)
    for c in many.choices:
        jsonschema.validate(json.loads(c.message.content), ARGUMENTS)
        assert ''.join(t.token for t in c.logprobs.content[:-1]) == c.message.content
    text = ''.join(c.choices[0].delta.content or '' for c in chat(response_format=schema(ARGUMENTS), stream=True))
    assert text == chat(response_format=schema(ARGUMENTS)).choices[0].message.content, text
    assert chat(response_format={'type': 'text'}, temperature=0).choices[0].message.tool_calls is None


@check
def other_forms():
    assert re.fullmatch('[ab]{3}c', chat(extra_body={'regex': '[ab]{3}c'}, temperature=2).choices[0].message.content)
    assert chat(extra_body={'grammar': 'root ::= "yes" | "no"'}, temperature=2).choices[0].message.content in ('yes', 'no')
    r = client.completions.create(model='default', prompt=['a', 'b'], n=2, max_tokens=100, temperature=2,
            extra_body={'response_format': schema(ARGUMENTS)})
    for c in r.choices:
        jsonschema.validate(json.loads(c.text), ARGUMENTS)


@check
def what_cannot_be_enforced():
    bad = {'type': 'object', 'properties': {'q': {'type': 'string', 'pattern': '(a)\\1'}}}
    why = refused(400, 'response_format', chat, response_format=schema(bad))
    assert '/properties/q/pattern' in why, why
    for more in ({}, {'strict': False}):           # a tool that is not strict may then be called with any string
        call, = chat(tools=[{'type': 'function', 'function': {'name': 'f', 'parameters': bad, **more}}], tool_choice='required',
                max_tokens=200).choices[0].message.tool_calls
        assert call.function.name == 'f' and call.function.arguments.startswith('{')
    why = refused(400, 'tools', chat, tools=[{'type': 'function', 'function': {'name': 'f', 'parameters': bad, 'strict': True}}])
    assert "'f'" in why and 'pattern' in why, why
    refused(400, 'tools', message, tools=[{'name': 'f', 'input_schema': bad, 'strict': True}])
    refused(400, 'tools', chat, tools=[{'type': 'function', 'function': {'name': f'f{i}'}} for i in range(513)])
    for param, value in (('regex', '(a'), ('grammar', 'root ::= missing')):
        assert refused(400, param, chat, extra_body={param: value})
    refused(400, 'regex', chat, extra_body={'grammar': 'root ::= "a"', 'regex': 'a'})
    refused(400, 'ignore_eos', chat, extra_body={'regex': 'a', 'ignore_eos': True})
    refused(400, 'response_format', chat, response_format={'type': 'json_schema', 'json_schema': {'name': 'x'}})
    blow_up = {'allOf': [{'anyOf': [{'properties': {f'p{i}': {'minimum': k}}} for k in range(20)]} for i in range(12)]}
    start = time.monotonic()
    assert refused(400, 'response_format', chat, response_format=schema(blow_up))
    assert time.monotonic() - start < 120


@check
def parse_helpers():
    r = client.chat.completions.parse(model='default', messages=HI, max_tokens=120, temperature=2, response_format=Person)
    assert isinstance(r.choices[0].message.parsed, Person)
    r = client.responses.parse(model='default', input='A person?', max_output_tokens=120, temperature=2, text_format=Person)
    assert isinstance(r.output_parsed, Person)
    r = client.chat.completions.parse(model='default', messages=HI, max_tokens=120, temperature=2,
            tools=[openai.pydantic_function_tool(Person)], tool_choice='required')
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Person)


@check
def calls_in_chat():
    r = chat(tools=[WEATHER, TIME], tool_choice={'type': 'function', 'function': {'name': 'get_weather'}})
    call, = r.choices[0].message.tool_calls
    assert r.choices[0].finish_reason == 'tool_calls' and r.choices[0].message.content is None
    assert call.type == 'function' and call.id.startswith('call_')
    assert call.function.name == 'get_weather'
    jsonschema.validate(json.loads(call.function.arguments), ARGUMENTS)
    names = {c.message.tool_calls[0].function.name
            for c in chat(tools=[WEATHER, TIME], tool_choice='required', temperature=2, n=8).choices}
    assert names <= {'get_weather', 'get_time'}
    later = HI + [r.choices[0].message.model_dump(), {'role': 'tool', 'tool_call_id': call.id, 'content': 'It rains.'}]
    assert chat(messages=later, tools=[WEATHER], tool_choice='none').choices[0].message.tool_calls is None
    assert chat(messages=later, tools=[WEATHER]).usage.prompt_tokens > r.usage.prompt_tokens
    assert chat(tools=[WEATHER], tool_choice='required', max_tokens=5).choices[0].finish_reason == 'length'
    for stream in (False, True):                    # a stop string in the middle of a call
        r = chat(tools=[WEATHER], tool_choice='required', stop=['"days'], stream=stream)
        if stream:
            assert [c.choices[0].finish_reason for c in r if c.choices][-1] == 'stop'
            continue
        call, = r.choices[0].message.tool_calls
        assert r.choices[0].finish_reason == 'stop' and call.function.name == 'get_weather'
        assert 'city' in call.function.arguments and 'days' not in call.function.arguments, r
    refused(400, 'tool_choice', chat, tools=[WEATHER], tool_choice={'type': 'function', 'function': {'name': 'other'}})
    refused(400, 'tool_choice', chat, tool_choice='required')
    refused(400, 'tools[1]', chat, tools=[WEATHER, WEATHER])


@check
def allowed_tools():
    def choice(name, mode='required'):
        return {'type': 'allowed_tools', 'allowed_tools': {'mode': mode, 'tools': [{'type': 'function', 'function': {'name': name}}]}}
    for name in 'get_time', 'get_weather':
        for mode in 'required', 'auto':
            r = chat(tools=[WEATHER, TIME], n=4, tool_choice=choice(name, mode))
            calls = [t.function.name for c in r.choices for t in c.message.tool_calls or []]
            assert set(calls) <= {name} and (calls or mode == 'auto'), r
        flat = {'type': 'allowed_tools', 'mode': 'required', 'tools': [{'type': 'function', 'name': name}]}
        r = client.responses.create(model='default', input='What time is it?', tools=FLAT, tool_choice=flat, max_output_tokens=100)
        assert {o.name for o in r.output if o.type == 'function_call'} == {name} and r.tool_choice.type == 'allowed_tools', r
    wrong = choice('other'), choice('get_time', 'none'), {'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': []}}, {'type': 'allowed_tools'}
    for c in wrong:
        refused(400, 'tool_choice', chat, tools=[WEATHER, TIME], tool_choice=c)


@check
def streamed_calls():
    events = list(chat(tools=[WEATHER], tool_choice='required', stream=True, stream_options={'include_usage': True}))
    deltas = [e.choices[0].delta for e in events if e.choices]
    first = deltas[0].tool_calls[0]
    assert deltas[0].role == 'assistant' and deltas[0].content is None and first.index == 0
    assert first.id and first.type == 'function' and first.function.arguments == ''
    pieces = [d.tool_calls[0] for d in deltas[1:] if d.tool_calls]
    assert all(p.id is None and p.function.name is None for p in pieces)
    whole = chat(tools=[WEATHER], tool_choice='required').choices[0].message.tool_calls[0].function
    assert first.function.name == whole.name and ''.join(p.function.arguments
            for p in pieces) == whole.arguments and len(pieces) > 3
    assert [e.choices[0].finish_reason for e in events
            if e.choices][-1] == 'tool_calls' and events[-1].usage.completion_tokens > 5
    with client.chat.completions.stream(model='default', messages=HI, max_tokens=120,
            tools=[openai.pydantic_function_tool(Person)], tool_choice='required') as stream:
        kinds = {e.type for e in stream}
        assert 'tool_calls.function.arguments.delta' in kinds and 'tool_calls.function.arguments.done' in kinds, kinds
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert isinstance(call.function.parsed_arguments, Person)


@check
def responses():
    r = client.responses.create(model='default', input='What is 2+2?', temperature=0, instructions='Be brief.', metadata={'a': 'b'})
    assert r.status == 'completed' and r.output_text and r.output[0].content[0].text == r.output_text
    assert r.metadata == {'a': 'b'} and r.usage.output_tokens > 2
    r = client.responses.create(model='default', input='What is 2+2?', temperature=0)
    assert r.output_text == '2 + 2 = 4', r.output_text
    r = client.responses.create(model='default', input='What is 2+2?', temperature=0, max_output_tokens=3)
    assert r.status == 'incomplete' and r.incomplete_details.reason == 'max_output_tokens' and r.output[0].status == 'incomplete'
    r = client.responses.create(model='default', input='x', tools=FLAT, tool_choice='required', max_output_tokens=120, temperature=2)
    call, = r.output
    assert call.type == 'function_call' and call.name in ('get_weather', 'get_time') and json.loads(call.arguments) is not None
    cut = client.responses.create(model='default', input='x', tools=FLAT[:1], tool_choice='required', max_output_tokens=120,
            extra_body={'stop': ['"days']})
    assert cut.status == 'incomplete' and cut.output[-1].status == 'incomplete' and cut.incomplete_details.reason == 'stop', cut
    history = [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'x'}]}, call.model_dump(exclude_none=True),
               {'type': 'function_call_output', 'call_id': call.call_id, 'output': 'It rains.'}, {'role': 'user', 'content': 'What is 2+2?'}]
    r2 = client.responses.create(model='default', input=history, temperature=0, max_output_tokens=20)
    assert r2.usage.input_tokens > r.usage.input_tokens - 300 and r2.status in ('completed', 'incomplete')
    message = client.responses.create(model='default', input=[{'role': 'user', 'content': 'Hi'}, *[o.model_dump() for o in r2.output],
            {'role': 'user', 'content': 'Hi'}], max_output_tokens=5)
    assert message.object == 'response'
    r = client.responses.create(model='default', input='x', text={'format': {'type': 'json_schema', 'name': 'x', 'schema': ARGUMENTS}}, max_output_tokens=100)
    jsonschema.validate(json.loads(r.output_text), ARGUMENTS)
    create = lambda **more: client.responses.create(model='default', **{'input': 'x', **more})
    refused(400, 'previous_response_id', create, previous_response_id='resp_1')
    refused(400, 'conversation', create, conversation='conv_1')
    refused(400, 'input[0]', create, input=[{'type': 'item_reference', 'id': 'x'}])
    refused(400, 'tools[0]', create, tools=[{'type': 'web_search'}])
    refused(400, 'text.format', create, text={'format': {'type': 'json_schema', 'name': 'x', 'schema': {'type': 'what'}}})


@check
def streamed_responses():
    events = list(client.responses.create(model='default', input='What is 2+2?', temperature=0, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    once = [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]
    assert once == ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added', 'response.output_text.delta', 'response.output_text.done',
                    'response.content_part.done', 'response.output_item.done', 'response.completed'], once
    assert ''.join(e.delta for e in events if e.type == 'response.output_text.delta') == '2 + 2 = 4' == events[-1].response.output_text
    with client.responses.stream(model='default', input='x', tools=FLAT, tool_choice='required', max_output_tokens=120) as stream:
        events = list(stream)
        call, = stream.get_final_response().output
    assert ''.join(e.delta for e in events if e.type == 'response.function_call_arguments.delta') == call.arguments
    with client.responses.stream(model='default', input='x', text_format=Person, max_output_tokens=120) as stream:
        list(stream)
        assert isinstance(stream.get_final_response().output_parsed, Person)


@check
def messages():
    r = message(temperature=0)
    assert r.content[0].type == 'text' and r.content[0].text == '2 + 2 = 4'
    assert r.stop_reason == 'end_turn' and r.role == 'assistant' and r.usage.output_tokens == 8
    assert r.usage.input_tokens + r.usage.cache_read_input_tokens == 15
    assert message(temperature=0, max_tokens=3).stop_reason == 'max_tokens'
    r = message(temperature=0, stop_sequences=['9', '= '])
    assert r.stop_reason == 'stop_sequence' and r.stop_sequence == '= ' and r.content[0].text == '2 + 2 '
    n = claude.messages.count_tokens(model='default', messages=[{'role': 'user', 'content': 'What is 2+2?'}])
    assert n.input_tokens == 15
    assert claude.messages.count_tokens(model='default', system='Be brief.', tools=TOOLS, messages=[{'role': 'user', 'content': 'What is 2+2?'}]).input_tokens > 50
    # not limited by the context
    assert claude.messages.count_tokens(model='default', messages=[{'role': 'user', 'content': 'one two ' * 20000}]).input_tokens > 20000
    r = message(output_config={'format': {'type': 'json_schema', 'schema': ARGUMENTS}}, temperature=1)
    jsonschema.validate(json.loads(r.content[0].text), ARGUMENTS)
    begun = [{'role': 'user', 'content': 'What is 2+2?'}, {'role': 'assistant', 'content': '2 + 2'}]
    assert message(messages=begun).content[0].text == ' = 4'
    called = {'type': 'tool_use', 'id': 'a', 'name': 'f', 'input': {}}
    assert 'calls of tools' in refused(400, 'messages', message, messages=[begun[0], {'role': 'assistant', 'content': [called]}])
    refused(400, 'messages[0]', message, messages=[{'role': 'user', 'content': [{'type': 'image', 'source': {'type': 'url', 'url': 'http://x'}}]}])
    refused(404, 'model', message, model='claude')


@check
def calls_in_messages():
    r = message(tools=TOOLS, tool_choice={'type': 'any'})
    use, = r.content
    assert r.stop_reason == 'tool_use' and use.type == 'tool_use' and use.id.startswith('toolu_') and use.name == 'get_weather'
    jsonschema.validate(use.input, ARGUMENTS)
    later = [{'role': 'user', 'content': 'x'}, {'role': 'assistant', 'content': [c.model_dump() for c in r.content]},
             {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': use.id, 'content': [{'type': 'text', 'text': 'It rains.'}]}, {'type': 'text', 'text': 'And?'}]}]
    assert message(messages=later, tools=TOOLS, system=[{'type': 'text', 'text': 'Be brief.'}],
            tool_choice={'type': 'tool', 'name': 'get_weather'}).content[0].input['city']
    assert message(messages=later, tools=TOOLS, tool_choice={'type': 'none'}, max_tokens=10).content[0].type == 'text'
    for n in range(10, 50, 8):                      # a call that is cut off is the same with and without streaming
        whole, events = [message(tools=TOOLS, tool_choice={'type': 'any'}, max_tokens=n, stream=s) for s in (False, True)]
        assert whole.stop_reason in ('tool_use', 'max_tokens')
        assert [b.type for b in whole.content] == [e.content_block.type for e in events if e.type == 'content_block_start'], (n, whole)


@check
def streamed_messages():
    with claude.messages.stream(model='default', max_tokens=50, extra_body={'temperature': 0}, messages=[{'role': 'user', 'content': 'What is 2+2?'}]) as stream:
        assert ''.join(stream.text_stream) == '2 + 2 = 4'
        assert stream.get_final_message().stop_reason == 'end_turn'
        assert stream.get_final_message().usage.output_tokens == 8
    events = list(message(tools=TOOLS, tool_choice={'type': 'any'}, stream=True))
    kinds = [e.type for e in events]
    once = [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]
    assert once == ['message_start', 'content_block_start', 'content_block_delta', 'content_block_stop', 'message_delta', 'message_stop'], once
    given = json.loads(''.join(e.delta.partial_json for e in events if e.type == 'content_block_delta'))
    jsonschema.validate(given, ARGUMENTS)
    assert events[-2].delta.stop_reason == 'tool_use'


@check
def hot_answers_are_valid():
    text, number = {'type': 'string', 'maxLength': 6}, {'type': 'integer', 'minimum': -5, 'exclusiveMaximum': 50, 'multipleOf': 5}
    forms = [number, {'type': 'number', 'minimum': 0.5, 'maximum': 2}, {'enum': ['a', 1, None, {'b': []}]}, {'type': ['boolean', 'null']}, {'const': [1, 'x']},
             {'type': 'string', 'pattern': '^[a-f]{2}-\\d+$', 'maxLength': 8}, {'type': 'string', 'format': 'date'}, {'anyOf': [number, text]},
             {'type': 'array', 'items': number, 'minItems': 1, 'maxItems': 3}, {'type': 'array', 'prefixItems': [number, text], 'items': False, 'minItems': 2},
             {'type': 'object', 'properties': {'a': text, 'b': number}, 'required': ['b'], 'additionalProperties': False},
             {'type': 'object', 'additionalProperties': {'type': 'boolean'}, 'minProperties': 1, 'maxProperties': 2, 'propertyNames': {'maxLength': 3}},
             {'$defs': {'n': {'type': 'object', 'properties': {'v': number, 'next': {'anyOf': [{'$ref': '#/$defs/n'}, {'type': 'null'}]}}, 'required': ['v'], 'additionalProperties': False}}, '$ref': '#/$defs/n'},
             {'allOf': [{'type': 'object', 'properties': {'x': number}}, {'required': ['x'], 'additionalProperties': False, 'properties': {'x': {'minimum': 10}}}]}]
    wanted = [(f, seed) for f in forms for seed in range(3)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda w: chat(response_format=schema(w[0]), temperature=2, top_p=1, seed=w[1],
                extra_body={'top_k': 0, 'min_p': 0}).choices[0], wanted))
    whole = [(w[0], a.message.content) for w, a in zip(wanted, answers) if a.finish_reason == 'stop']
    assert len(whole) > len(wanted) / 2, len(whole)
    for form, content in whole:
        jsonschema.Draft202012Validator(form,
                format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(json.loads(content))


@check
def a_compile_stalls_nobody():
    big = {'type': 'object', 'properties': {f'p{i}': {'type': 'string', 'maxLength': 20 + i} for i in range(400)}, 'required': ['p7']}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(chat, response_format=schema({**big, 'title': str(i)}), max_tokens=5) for i in range(3)]
        assert ''.join(c.choices[0].delta.content or ''
                for c in chat(messages=[{'role': 'user', 'content': 'What is 2+2?'}], temperature=0, stream=True)) == '2 + 2 = 4'
        assert all(s.result().choices[0].finish_reason == 'length' for s in slow)


# ---- tools that the server runs ----
CLOCK = [{'role': 'user', 'content': 'What time is it?'}]


def ask_claude(**more):
    return claude.messages.create(model='default', max_tokens=200, messages=CLOCK,
                                  tool_choice={'type': 'any', 'disable_parallel_tool_use': True},
                                  extra_body={'temperature': 0, 'server_tools': ['datetime'], **more})


def respond(**more):
    return client.responses.create(model='default', max_output_tokens=200, temperature=0, input=CLOCK, tool_choice='required',
                                parallel_tool_calls=False, **{'extra_body': {'server_tools': ['datetime'], **more}})


@check
def server_tools_in_messages():
    m = ask_claude()
    use, result, text = m.content
    assert (use.type, result.type, text.type) == ('mcp_tool_use', 'mcp_tool_result', 'text'), m
    assert use.id == result.tool_use_id and use.id.startswith('mcptoolu_') and use.name == 'datetime' and use.server_name == 'zse'
    assert result.content[0]['text'].startswith('20') and not result.is_error and m.stop_reason == 'end_turn'
    # the client sends the blocks back unchanged, so the prefix cache has the tokens of the last
    # prompt
    again = claude.messages.create(model='default', max_tokens=1, extra_body={'temperature': 0, 'server_tools': ['datetime']},
                                   messages=[*CLOCK, {'role': 'assistant', 'content': [b.model_dump() for b in m.content]},
                                             {'role': 'user', 'content': 'Thanks'}])
    assert again.usage.input_tokens < 40 < again.usage.cache_read_input_tokens, again.usage


@check
def server_tools_in_streamed_messages():
    with claude.messages.stream(model='default', max_tokens=200, messages=CLOCK,
                                tool_choice={'type': 'any', 'disable_parallel_tool_use': True},
                                extra_body={'temperature': 0, 'server_tools': ['datetime']}) as s:
        open_block, begun, kinds = None, [], []
        for e in s:
            if e.type == 'content_block_start':
                assert open_block is None and e.index == len(begun), e
                open_block = e.index
                begun.append(e.content_block.type)
            if e.type == 'content_block_stop':
                assert open_block == e.index, e
                open_block = None
            kinds.append(e.type)
        whole = s.get_final_message()
    assert begun == ['mcp_tool_use', 'mcp_tool_result', 'text'] and open_block is None, begun
    assert whole.content[2].text == ask_claude().content[2].text and whole.stop_reason == 'end_turn'
    assert kinds[-1] == 'message_stop' and kinds.count('message_start') == 1


@check
def server_tools_stop_messages():
    m = ask_claude(max_tool_rounds=1)
    assert m.stop_reason == 'tool_use' and m.content[-1].type == 'tool_use', m
    assert m.tool_stop == {'reason': 'max_rounds', 'ids': [m.content[-1].id]}, m.tool_stop
    events = list(claude.messages.create(model='default', max_tokens=200, messages=CLOCK, stream=True,
                                         tool_choice={'type': 'any', 'disable_parallel_tool_use': True},
                                         extra_body={'temperature': 0, 'server_tools': ['datetime'], 'max_tool_rounds': 1}))
    starts = [e.content_block.type for e in events if e.type == 'content_block_start']
    text = ''.join(e.delta.partial_json for e in events if e.type == 'content_block_delta' and e.delta.type == 'input_json_delta')
    assert starts == ['tool_use'] and json.loads(text) == m.content[-1].input, events
    assert next(e for e in events if e.type == 'message_delta').tool_stop['reason'] == 'max_rounds'
    n = claude.messages.count_tokens(model='default', messages=CLOCK, extra_body={'server_tools': ['datetime']}).input_tokens
    assert n > 200 > claude.messages.count_tokens(model='default', messages=CLOCK).input_tokens, n


@check
def server_tools_in_responses():
    r = respond()
    call, message = r.output
    assert call.type == 'mcp_call' and call.status == 'completed' and call.output.startswith('20') and call.error is None, call
    assert json.loads(call.arguments) and call.server_label == 'zse' and message.type == 'message' and r.output_text
    again = client.responses.create(model='default', max_output_tokens=1, temperature=0, extra_body={'server_tools': ['datetime']},
                                 input=[*CLOCK, *(o.model_dump(exclude_none=True) for o in r.output),
                                        {'role': 'user', 'content': 'Thanks'}])
    assert again.usage.input_tokens - again.usage.input_tokens_details.cached_tokens < 40, again.usage


@check
def server_tools_in_streamed_responses():
    with client.responses.stream(model='default', max_output_tokens=200, temperature=0, input=CLOCK, tool_choice='required',
                              parallel_tool_calls=False, extra_body={'server_tools': ['datetime']}) as s:
        events = list(s)
        final = s.get_final_response()
    kinds = [e.type for e in events]
    at = [kinds.index(k) for k in ('response.mcp_call.in_progress', 'response.mcp_call_arguments.done', 'response.mcp_call.completed',
                                   'response.output_text.delta', 'response.completed')]
    assert at == sorted(at), kinds
    done = [e for e in events if e.type == 'response.output_item.done']
    assert [e.output_index for e in done] == [0, 1] and [e.item.type for e in done] == ['mcp_call', 'message']
    assert [o.id for o in final.output] == [e.item.id for e in done] and final.output_text == respond().output_text
    assert [e.sequence_number for e in events if hasattr(e, 'sequence_number')] == sorted(e.sequence_number for e in events)


@check
def server_tools_stop_responses():
    for more, reason in (({'max_tool_rounds': 1}, 'max_rounds'), ({'tools': 'server', 'server_tools': None, 'max_tool_calls': 1}, None)):
        r = respond(**more)
        if reason is None:              # one call may run, the second may not
            assert sum(o.type == 'mcp_call' for o in r.output) <= 1, r
            continue
        assert r.output[-1].type == 'function_call' and r.tool_stop == {'reason': reason, 'ids': [r.output[-1].call_id]}, r
    events = list(
        client.responses.create(model='default', max_output_tokens=200, temperature=0, input=CLOCK, tool_choice='required', stream=True,
                             parallel_tool_calls=False, extra_body={'server_tools': ['datetime'], 'max_tool_rounds': 1}))
    end = events[-1].response
    assert end.output[-1].type == 'function_call' and end.tool_stop['reason'] == 'max_rounds', end
    arguments = [e for e in events if e.type == 'response.function_call_arguments.done']
    assert len(arguments) == 1 and arguments[0].arguments == end.output[-1].arguments


@check
def wrong_server_tools():
    for more in ({'server_tools': ['eval']}, {'server_tools': 'datetime'}, {'tools': 'all'}, {'max_tool_rounds': 33},
                 {'tools': 'server', 'server_tools': ['datetime']}):
        for api in (ask_claude, respond):
            try:
                api(**{'server_tools': None, **more})
            except (anthropic.BadRequestError, openai.BadRequestError) as e:
                assert next(iter(more)) in str(e) or 'server_tools' in str(e), e
            else:
                raise AssertionError(more)


sys.exit(failed)
