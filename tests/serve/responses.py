#!/usr/bin/env python3
"""responses - /v1/responses of a zse-serve with models/tiny, by the specification of Open Responses
(openresponses.org, 2026-04-24): members of objects, order of events, WebSocket.

usage: responses PORT
One line `ok NAME` or `not ok NAME: why` for each check; exit 1 if any failed."""
import json, sys, urllib.error, urllib.request

import wire

port = int(sys.argv[1])
failed = 0
TOOL = {'type': 'function', 'name': 'get_weather', 'parameters': {'type': 'object', 'properties': {'city': {'enum': ['Paris']}}, 'required': ['city']}}
MEMBERS = """id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools tool_choice truncation
parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background
service_tier metadata safety_identifier prompt_cache_key""".split()


def check(f):
    global failed
    try:
        f()
        print('ok', f.__name__)
    except Exception as e:
        failed = 1
        print(f'not ok {f.__name__}: {type(e).__name__}: {e}')


def post(body):
    r = urllib.request.Request(f'http://127.0.0.1:{port}/v1/responses', json.dumps({'temperature': 0, **body}).encode())
    return urllib.request.urlopen(r, timeout=120)


def create(**body):
    return json.load(post(body))


def is_response(r, status='completed'):
    missing = [m for m in MEMBERS if m not in r]
    assert not missing, missing
    assert r['object'] == 'response' and r['status'] == status and (r['completed_at'] is None) == (status != 'completed')
    assert set(r['reasoning']) == {'effort', 'summary'} and r['text']['format']['type'] and r['top_logprobs'] == 0
    for t in r['tools']:
        assert {'type', 'name', 'description', 'parameters', 'strict'} <= set(t), t
    for item in r['output']:
        assert item['id'] and item['type'] in ('message', 'function_call', 'reasoning') and item['status'] in ('completed', 'incomplete')


def follows(events, status='completed'):
    """Check the order of a stream's events."""
    assert [e['sequence_number'] for e in events] == list(range(len(events)))
    kinds = [e['type'] for e in events]
    assert kinds[:2] == ['response.created', 'response.in_progress'] and kinds[-1] == f'response.{status}', kinds
    is_response(events[0]['response'], 'in_progress')
    is_response(events[-1]['response'], status)
    open_item = open_part = None
    for e in events[2:-1]:
        kind = e['type'].removeprefix('response.')
        if kind == 'output_item.added':
            assert open_item is None and e['item']['status'] == 'in_progress'
            open_item, text = e['item'], ''
        elif kind == 'output_item.done':
            assert open_item['id'] == e['item']['id'] and open_part is None
            assert e['item'] == events[-1]['response']['output'][e['output_index']]
            open_item = None
        elif kind == 'content_part.added':
            assert e['item_id'] == open_item['id'] and open_part is None
            open_part = e['part']
        elif kind == 'content_part.done':
            assert e['part']['text'] == text
            open_part = None
        elif kind.endswith('.delta'):
            assert e['item_id'] == open_item['id']
            text += e['delta']
        elif kind.endswith('.done'):
            assert e.get('text', e.get('arguments')) == text
        else:
            raise AssertionError(kind)
    assert open_item is None
    return events[-1]['response']


@check
def the_object_has_every_member():
    is_response(create(input=[{'type': 'message', 'role': 'user', 'content': 'What is 2+2?'}]))
    r = create(input='a', max_output_tokens=1)
    is_response(r, 'incomplete')
    assert r['incomplete_details'] == {'reason': 'max_output_tokens'}
    r = create(input='a', safety_identifier='s', prompt_cache_key='k', max_tool_calls=3, metadata={'a': 'b'},
               truncation='auto', reasoning={'effort': 'low'}, text={'verbosity': 'low'}, presence_penalty=0.5)
    assert (r['safety_identifier'], r['prompt_cache_key'], r['max_tool_calls'], r['truncation'], r['presence_penalty']) == ('s', 'k', 3, 'auto', 0.5)
    assert r['reasoning']['effort'] == 'low' and r['text'] == {'format': {'type': 'text'}, 'verbosity': 'low'} and r['metadata'] == {'a': 'b'}
    r = create(input='a', text={'format': {'type': 'json_schema', 'name': 'n', 'schema': {'const': 5}}})
    assert {'name', 'description', 'schema', 'strict'} <= set(r['text']['format']) and r['output'][-1]['content'][0]['text'] == '5'


@check
def tools_are_called():
    r = create(input='Weather?', tools=[TOOL], tool_choice='required')
    is_response(r)
    assert json.loads(r['output'][-1]['arguments']) == {'city': 'Paris'} and r['output'][-1]['call_id']
    only = create(input='a', tools=[TOOL], tool_choice={'type': 'allowed_tools', 'tools': [{'type': 'function', 'name': 'get_weather'}]})
    is_response(only)
    after = create(input=[{'type': 'function_call_output', 'call_id': r['output'][-1]['call_id'], 'output': 'sunny'}], tools=[TOOL], previous_response_id=r['id'])
    is_response(after)


def events_of(**body):
    r = post({'stream': True, **body})
    assert r.headers['Content-Type'].startswith('text/event-stream')
    blocks = r.read().decode().strip().split('\n\n')
    assert blocks.pop() == 'data: [DONE]'
    out = []
    for b in blocks:
        event, data = b.split('\n')
        out.append(json.loads(data.removeprefix('data: ')))
        assert event == 'event: ' + out[-1]['type']
    return out


@check
def streams_are_in_order():
    r = follows(events_of(input='What is 2+2?'))
    assert r['output'][0]['content'][0]['text'] == '2 + 2 = 4'
    assert json.load(urllib.request.urlopen(f'http://127.0.0.1:{port}/v1/responses/{r["id"]}')) == r
    follows(events_of(input='Weather?', tools=[TOOL], tool_choice='required'))
    follows(events_of(input='a', max_output_tokens=1), 'incomplete')


@check
def a_response_is_continued():
    first = create(input='What is 2+2?', instructions='Be brief.')
    second = create(input='What is 3+3?', previous_response_id=first['id'])
    assert second['previous_response_id'] == first['id'] and second['instructions'] is None
    said = [{'role': 'user', 'content': 'What is 2+2?'}, *first['output'], {'role': 'user', 'content': 'What is 3+3?'}]
    assert create(input=said)['usage']['input_tokens'] == second['usage']['input_tokens']
    third = create(input='And?', previous_response_id=second['id'], store=False)
    assert third['store'] is False and third['usage']['input_tokens'] > second['usage']['input_tokens'] + 8
    for gone, code in ((third['id'], 400), ('resp_none', 400)):
        try:
            create(input='a', previous_response_id=gone)
            raise AssertionError('continued ' + gone)
        except urllib.error.HTTPError as e:
            assert e.code == code and json.load(e)['error']['code'] == 'previous_response_not_found'


class Turns(wire.WebSocket):
    def __init__(self):
        super().__init__(port, b'/v1/responses')
        assert self.code == 101

    def turn(self, **body):
        self.send(json.dumps({'type': 'response.create', 'temperature': 0, **body}).encode())
        out = []
        while not out or out[-1]['type'] not in ('response.completed', 'response.incomplete', 'error'):
            out.append(json.loads(self.receive()[1]))
        return out


@check
def a_websocket_has_the_same_events():
    w = Turns()
    r = follows(w.turn(input='What is 2+2?', store=False))
    assert r['output'][0]['content'][0]['text'] == '2 + 2 = 4' and r['store'] is False
    more = follows(w.turn(input='What is 3+3?', previous_response_id=r['id'], store=False))
    assert more['output'][0]['content'][0]['text'] == '3 + 3 = 6' and more['usage']['input_tokens'] > 30
    # only the last response is kept for the connection, and only for it
    for socket, old in ((w, r['id']), (Turns(), more['id'])):
        e, = socket.turn(input='a', previous_response_id=old)
        assert e['type'] == 'error' and e['status'] == 400 and e['error']['code'] == 'previous_response_not_found', e
    kept = follows(w.turn(input='What is 2+2?'))
    assert follows(Turns().turn(input='a', previous_response_id=kept['id'], max_output_tokens=1), 'incomplete')['previous_response_id'] == kept['id']
    assert follows(w.turn(input='a', max_output_tokens=1, foo=1, text={'bar': 1}), 'incomplete')['ignored_fields'] == 'foo, text.bar'
    w.send(b'{"input":"a"}')
    e = json.loads(w.receive()[1])
    assert e['type'] == 'error' and e['error']['param'] == 'type' and e['status'] == 400
    w.send(b'{')
    assert json.loads(w.receive()[1])['status'] == 400


sys.exit(failed)
