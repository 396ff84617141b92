#!/usr/bin/env python3
"""page - use the web interface of zse-serve in Chromium.

usage: page [--shots DIR] MODEL [CHECK...]     (default: every check)
It starts servers of its own.  One line for each check: `ok NAME: ...` or `not ok NAME: ...`.
--shots also writes the two pictures of the README to DIR.  Each check runs in a fresh profile.
LOADS=N measures the first paint N times (default 5).
At its end no request may have gone to another host, the policy may not have been violated, and
the console may have no error.
exit status: 0 all passed, 1 one failed, 77 there is no Chromium or no playwright."""
import contextlib, http.server, json, math, os, pathlib, re, shutil, signal, socket, statistics
import subprocess, sys, tempfile, threading, traceback, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get('B', 'build')
T = pathlib.Path(tempfile.mkdtemp(prefix='zse-page-'))
CHROMIUM = next((p for p in map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome')) if p), None)
checks = []
LOADS = int(os.environ.get('LOADS', 5))           # of each page, for the median first paint
LIMIT = 1.4                                       # first paint over that without scripts
# Scripts that must not run, wherever the page shows text from elsewhere.
HOSTILE = '''<img src=x onerror="window.bad=1"><script>window.bad=1</script> <svg onload="window.bad=1"></svg> <iframe src="javascript:window.bad=1"></iframe>
[a](javascript:window.bad=1) [b](data:text/html,<script>window.bad=1</script>) ![c](https://evil.example/pixel.png) <https://evil.example/"onmouseover="window.bad=1>
[d]( JaVaScRiPt:window.bad=1) [e](vbscript:x) [f](https://ok.example/?a=1&b=2) <a href="javascript:window.bad=1">g</a> $\\href{javascript:window.bad=1}{x}$'''


class Server:
    """A zse-serve that keeps its port when it is restarted."""

    def __init__(self, *args, home=None):
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            self.port = s.getsockname()[1]
        self.home = pathlib.Path(home or tempfile.mkdtemp(prefix='home-', dir=T))
        self.args = args
        self.url = f'http://127.0.0.1:{self.port}'
        self.start()

    def start(self):
        self.log = open(self.home / 'log', 'a')
        command = [BUILD / 'zse-serve', *map(str, self.args), '--port', str(self.port)]
        self.process = subprocess.Popen(command, env=self.env(), stdout=subprocess.PIPE, stderr=self.log)
        if not self.process.stdout.readline():
            raise RuntimeError((self.home / 'log').read_text())
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.url + '/health')
                return
            if self.process.poll() is not None:
                raise RuntimeError((self.home / 'log').read_text())

    def env(self):
        return {**os.environ, 'ZSE_HOME': str(self.home)}

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if self.process.wait() != 0:
            raise RuntimeError(f'zse-serve ended with {self.process.returncode}: {(self.home / "log").read_text()}')

    def token(self):
        return (self.home / 'admin.token').read_text().strip()

    def key(self, name, *args):
        command = [BUILD / 'zse-apikey', 'create', name, *args]
        return subprocess.run(command, env=self.env(), capture_output=True, text=True, check=True).stdout.split()[-1]


class Tab:
    """A page in a profile of its own; records requests to other hosts, violations of the policy,
    and errors."""

    def __init__(self, browser, server, width=1280, height=800, key=None, theme=None, **options):
        self.server = server
        self.foreign, self.errors, self.sent, self.bodies = [], [], [], []
        self.context = browser.new_context(viewport={'width': width, 'height': height}, accept_downloads=True, **options)
        self.context.set_default_timeout(60000)
        self.context.add_init_script("window.violations = []; addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));")
        stored = {**({'zse.key': key} if key else {}), **({'zse.theme': json.dumps(theme)} if theme else {})}
        for name, value in stored.items():
            self.context.add_init_script(f'if (!localStorage.getItem({json.dumps(name)})) localStorage.setItem({json.dumps(name)}, {json.dumps(value)})')
        self.page = self.context.new_page()
        self.page.on('console', lambda m: m.type == 'error' and self.errors.append(m.text))
        self.page.on('pageerror', lambda e: self.errors.append(str(e)))
        self.page.on('dialog', lambda d: (self.errors.append('dialog: ' + d.message), d.dismiss()))
        self.context.on('request', self.request)
        self.page.on('websocket', lambda w: w.url.endswith('/ws/completions') and w.on('framesent', lambda text: self.bodies.append(json.loads(text))))

    def request(self, r):
        if r.url.startswith(('data:', 'blob:')):
            return
        if not r.url.startswith(self.server.url + '/'):
            self.foreign.append(r.url)
        self.sent.append(r)

    def open(self, path='/chat'):
        self.page.goto(self.server.url + path)
        self.page.locator('.first-chat').wait_for(state='detached')
        return self.page

    def ask(self, text, answers=None):
        """Send a text and wait for the whole answer; returns the text of its message."""
        p = self.page
        n = answers or p.locator('.message.assistant').count() + 1
        p.fill('.composer textarea', text)
        p.keyboard.press('Enter')
        p.locator('.message.assistant').nth(n - 1).locator('.figures').wait_for()
        return p.locator('.message.assistant .content').nth(n - 1).inner_text()

    def choose(self, button, *files):
        """Click a button that asks for files, and give it these."""
        with self.page.expect_file_chooser() as chooser:
            self.page.get_by_role('button', name=button).first.click()
        chooser.value.set_files(list(files))

    def end(self, allowed=()):
        bad = self.page.evaluate('[window.bad, window.violations]')
        errors = [e for e in self.errors if not any(a in e for a in allowed)]
        self.context.close()
        expect(not self.foreign, f'requests to other hosts: {self.foreign}')
        expect(bad[0] is None, 'a script of a text ran')
        expect(not bad[1], f'violations of the policy: {bad[1]}')
        expect(not errors, f'errors on the console: {errors}')


def expect(ok, what='expected something else'):
    if not ok:
        raise AssertionError(what)


def check(f):
    checks.append(f)
    return f


def clean(page):
    """Check that no text has become an element, and that links have only permitted schemes."""
    found = page.evaluate('''[...document.querySelectorAll('main img, main script, main iframe, main object, main embed, main form[action], main svg[onload], main [onerror], main [style*="url"]')].map(e => e.outerHTML)''')
    expect(not found, f'elements from texts: {found}')
    links = page.evaluate("[...document.querySelectorAll('main a')].map(a => a.getAttribute('href'))")
    expect(all(re.match(r'(https?://|mailto:|/|#)', x) for x in links), f'links: {links}')


def grammar(text):
    return 'root ::= ' + json.dumps(text)


def events(*list_):
    """The messages of a streamed answer; a plain string stands for a piece of its text."""
    out = []
    for e in list_:
        e = {'choices': [{'index': 0, 'delta': {'content': e}, 'finish_reason': None}]} if isinstance(e, str) else e
        out.append(json.dumps({'id': 'x', 'object': 'chat.completion.chunk', 'model': 'tiny', **e}))
    return [*out, '[DONE]']


def answering(page, make):
    """Answer each request of the page with the messages that make(body) returns, or let the server
    answer if it returns None."""
    def on_message(ws, text):
        messages = make(json.loads(text))
        if messages is None:
            ws.connect_to_server().send(text)
        for m in messages or []:
            ws.send(m)
    page.route_web_socket('**/ws/completions', lambda ws: ws.on_message(lambda text: on_message(ws, text)))


FINISH = {'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]}


# ---- checks ----

@check
def conversation(browser, main):
    "ask, answer, reload, another server on the same data: it is still there; search, rename, tags, delete"
    s = Server(*main.args)
    t = Tab(browser, s)
    p = t.open()
    expect('Paris' in t.ask('What is the capital of France?'), 'no answer')
    expect('Rome' in t.ask('What is the capital of Italy?'), 'no second answer')
    address = p.url
    p.reload()
    p.locator('.message.assistant').nth(1).wait_for()
    s.stop()
    s.start()
    p.reload()
    p.locator('.message.assistant').nth(1).wait_for()
    expect('Paris' in p.locator('.message.assistant').nth(0).inner_text() and p.url == address, 'not there after a restart')
    expect('Berlin' in t.ask('What is the capital of Germany?'), 'it does not go on')
    p.click('#new-chat')
    t.ask('Hello', 1)
    p.locator('.conv-row').nth(1).wait_for()
    p.fill('.search input', 'Italy')
    p.locator('.conv-row mark').first.wait_for()
    expect(p.locator('.conv-row').count() == 1, 'the search found more')
    p.fill('.search input', '')
    p.locator('.conv-row').nth(1).hover()
    p.locator('.conv-row').nth(1).locator('.icon-button').click()
    p.get_by_role('menuitem', name='Rename').click()
    p.fill('dialog input', 'Capitals')
    p.keyboard.press('Enter')
    p.locator('.conv', has_text='Capitals').wait_for()
    p.locator('.conv-row', has_text='Capitals').locator('.icon-button').click()
    p.get_by_role('menuitem', name='Tags').click()
    p.fill('dialog input', 'work, maps')
    p.keyboard.press('Enter')
    p.locator('.tags .chip', has_text='maps').click()
    p.locator('.conv-row').nth(1).wait_for(state='detached')
    p.locator('.conv-row', has_text='Capitals').locator('.icon-button').click()
    p.get_by_role('menuitem', name='Delete').click()
    p.get_by_role('button', name='Delete', exact=True).click()
    p.locator('.conv', has_text='Capitals').wait_for(state='detached')
    t.end()
    s.stop()
    return 'reload and restart keep it'


@check
def without_history(browser, main):
    "a server that keeps no history: the browser does, in the same places; answers without a WebSocket"
    s = Server(*main.args, '--no-history')
    t = Tab(browser, s)
    t.page.add_init_script('WebSocket = class { constructor() { setTimeout(() => this.onerror()); } };')
    p = t.open()
    p.locator('.convs-foot', has_text='Kept in this browser').wait_for()
    t.ask('What is the capital of France?')
    p.get_by_role('button', name='Answer again').click()
    p.locator('.message.assistant .branches', has_text='2 / 2').wait_for()
    p.reload()
    p.locator('.message.assistant .branches', has_text='2 / 2').wait_for()
    p.fill('.search input', 'pari')
    p.locator('.conv-row mark').first.wait_for()
    expect(p.evaluate('JSON.parse(localStorage.getItem("zse.chats"))[0].message_count') == 3, 'not kept')
    text = '# T\n\n**Model:** tiny  \n**Created:** 2026-11-28T01:13:47.821Z  \n**Messages:** 2\n\n## System Prompt\n\nBe brief.\n\n## Conversation\n\n### User\n\n\\### User\n\na\n\n\n### Assistant\n\nb\n\n'
    t.choose('Import a conversation', {'name': 'x.md', 'mimeType': 'text/markdown', 'buffer': text.encode()})
    p.locator('.conv', has_text='T').first.wait_for()
    p.locator('.message.user .bubble', has_text='### User').wait_for()
    made, messages = p.evaluate('(c => [c, JSON.parse(localStorage.getItem("zse.chat." + c.id))])(JSON.parse(localStorage.getItem("zse.chats")).find(c => c.title === "T"))')
    expect([made['model'], made['system_prompt'], made['created_at']] == ['tiny', 'Be brief.', '2026-11-28T01:13:47.821Z'], made)
    expect([[m['parent_id'], m['role'], m['content']] for m in messages] == [[None, 'user', '### User\n\na\n'], [1, 'assistant', 'b\n']], messages)
    p.get_by_role('button', name='More about this conversation').click()
    with p.expect_download() as download:
        p.get_by_role('menuitem', name='Export as Markdown').click()
    expect(pathlib.Path(download.value.path()).read_text() == text, 'another Markdown')
    expect(not any('/api/chat/' in r.url for r in t.sent), 'it asked the server')
    expect([r.url for r in t.sent if r.url.endswith('/v1/chat/completions')], 'no stream over HTTP')
    t.end()
    s.stop()


@check
def branches(browser, s):
    "answer again, edit, go between the versions; the versions survive a reload; copy"
    t = Tab(browser, s, permissions=['clipboard-read', 'clipboard-write'])
    p = t.open()
    t.ask('What is the capital of France?')
    p.get_by_role('button', name='Answer again').click()
    p.locator('.message.assistant .branches', has_text='2 / 2').wait_for()
    p.locator('.message.user').hover()
    p.get_by_role('button', name='Edit').click()
    p.fill('.edit textarea', 'What is the capital of Spain?')
    p.keyboard.press('Enter')
    p.locator('.message.assistant', has_text='Madrid').locator('.figures').wait_for()
    p.locator('.message.user .branches', has_text='2 / 2').wait_for()
    p.locator('.message.user').hover()
    p.get_by_role('button', name='Earlier version').click()
    p.locator('.message.assistant', has_text='Paris').wait_for()
    p.locator('.message.assistant .branches', has_text='2 / 2').wait_for()
    p.reload()
    p.locator('.message.assistant', has_text='Paris').wait_for()
    p.locator('.message.user .branches', has_text='1 / 2').wait_for()
    p.locator('.message.assistant').hover()
    p.locator('.message.assistant').get_by_role('button', name='Copy').click()
    p.locator('.icon-button.done').wait_for()
    expect(p.evaluate('navigator.clipboard.readText()') == 'The capital of France is Paris.', 'not copied')
    t.end()


@check
def first_frame(browser, s):
    "an empty chat is there before any file has come, at its address only, and keeps what is typed"
    t = Tab(browser, s)
    p, held = t.page, []
    p.route('**/web/**', lambda r: r.fulfill(body='', content_type='text/javascript'))
    for path, seen in (('/chat', True), ('/chat#00000000000000aa', False), ('/dashboard', False)):
        p.goto('about:blank')
        p.goto(s.url + path)
        expect(p.locator('.first-chat').is_visible() == seen, path)
    p.unroute('**/web/**')
    p.route('**/web/**', lambda r: held.append(r))
    p.goto(s.url + '/chat')
    box = p.locator('.first-chat .composer').bounding_box()
    p.fill('.first-chat textarea', 'What is the capital of France?')
    p.wait_for_function('document.querySelectorAll("link[rel=modulepreload]").length')
    while len(held) < 4:
        p.evaluate('0')
    for r in held:
        r.continue_()
    p.unroute('**/web/**')
    p.locator('.first-chat').wait_for(state='detached')
    expect(p.locator('.composer textarea').input_value() == 'What is the capital of France?', 'the text is lost')
    expect(p.evaluate('document.activeElement.placeholder') == 'Ask anything', 'the focus is lost')
    expect(p.locator('.composer').bounding_box() == box, f"it moved from {box} to {p.locator('.composer').bounding_box()}")
    p.keyboard.press('Enter')
    p.locator('.message.assistant', has_text='Paris').wait_for()
    t.end()


@check
def stop(browser, s):
    "stop an answer by Esc: what came stays; the parameters are sent; a failed request is shown"
    t = Tab(browser, s)
    p = t.open()
    p.click('#settings-button')
    p.locator('.slider').nth(2).locator('input').fill('4096')
    p.locator('.slider').nth(0).locator('input').fill('1.5')
    p.fill('textarea.system', 'Be brief.')
    p.locator('.more summary').first.click()
    p.get_by_label('grammar').fill('root ::= [a-z ]+')
    p.get_by_label('More fields of a request').fill('{"logit_bias": ')
    p.keyboard.press('Tab')
    p.locator('textarea.mono[aria-invalid=true]').wait_for()
    p.get_by_label('More fields of a request').fill('{"logit_bias": {"9": -1}, "stream": false}')
    p.keyboard.press('Tab')
    p.click('#settings-button')
    p.fill('.composer textarea', 'Go on for ever.')
    p.keyboard.press('Enter')
    p.locator('.message.assistant .prose').wait_for()
    p.keyboard.press('Escape')
    p.locator('.message.assistant .figures').wait_for(state='attached')
    body = t.bodies[-1]
    expect(body['logit_bias'] == {'9': -1} and body['stream'] is True and body['temperature'] == 1.5 and body['max_tokens'] == 4096 and body['messages'][0] == {'role': 'system', 'content': 'Be brief.'}, body)
    p.reload()
    p.locator('.message.assistant .prose').wait_for()
    p.click('#settings-button')
    p.locator('.more summary').first.click()
    p.get_by_label('grammar').fill('root ::= (((')
    p.keyboard.press('Tab')
    p.click('#settings-button')
    p.fill('.composer textarea', 'Again')
    p.keyboard.press('Enter')
    p.locator('.note.bad').wait_for()
    t.end(allowed=['status of 400'])


@check
def elsewhere(browser, s):
    "an answer goes on while another conversation or page is shown; one of 400 messages opens at once"
    t = Tab(browser, s)
    p = t.open()
    t.ask('Hello')
    held = []
    p.route_web_socket('**/ws/completions', lambda ws: ws.on_message(lambda _: held.append(ws)))
    p.fill('.composer textarea', 'Wait for it.')
    p.keyboard.press('Enter')
    p.locator('.cursor').wait_for()
    p.click('#new-chat')
    p.locator('.welcome').wait_for()
    p.locator('#pages a[aria-label="Dashboard"]').click()
    p.locator('.state.good').first.wait_for()
    with p.expect_response(lambda r: r.url.endswith('/messages') and r.request.method == 'POST'):
        for m in events('Here ', 'it is.', FINISH):
            held[0].send(m)
    p.locator('#pages a[aria-label="Chat"]').click()
    p.locator('.conv', has_text='Hello').first.click()
    p.locator('.message.assistant', has_text='Here it is.').locator('.figures').wait_for(state='attached')

    def post(path, body):
        request = urllib.request.Request(s.url + '/api/chat/conversations' + path, json.dumps(body).encode())
        return json.loads(urllib.request.urlopen(request).read())
    id_ = post('', {'title': 'Long'})['id']
    for i in range(200):
        post(f'/{id_}/messages', {'role': 'user', 'content': f'question {i}'})
        post(f'/{id_}/messages', {'role': 'assistant', 'content': ANSWER})
    ms = p.evaluate('''async id => {
        const from = performance.now();
        location.hash = id;
        while (document.querySelectorAll('.message').length < 400) await new Promise(requestAnimationFrame);
        return performance.now() - from;
    }''', id_)
    expect(ms < 20000, f'{ms:.0f} ms')
    t.end()
    return f'400 messages after {ms:.0f} ms'


@check
def hostile_texts(browser, s):
    "texts of a model, a person, a file, a title, thoughts and tools never become elements"
    t = Tab(browser, s)
    p = t.open()
    p.click('#settings-button')
    p.locator('.more summary').first.click()
    p.get_by_label('grammar').fill(grammar(HOSTILE))
    p.keyboard.press('Tab')
    p.click('#settings-button')
    text = t.ask(HOSTILE)
    expect('<img src=x onerror=' in text and '<script>' in text, text)
    expect(p.locator('.prose a').count() == 3, p.locator('.prose').inner_html())
    clean(p)
    with p.expect_file_chooser() as chooser:
        p.get_by_role('button', name='Attach files').click()
    name = '<img src=x onerror=window.bad=1>.md'
    chooser.value.set_files([{'name': name, 'mimeType': 'text/markdown', 'buffer': ('</document>' + HOSTILE).encode()}])
    p.locator('.composer .file', has_text='img src').wait_for()
    t.ask('Read it.')
    clean(p)
    fake = {'title': HOSTILE[:190], 'model': HOSTILE[:60], 'system_prompt': None, 'settings': {}, 'tags': [HOSTILE[:40]], 'folder': None, 'pinned': False, 'id': '00000000000000aa',
            'created_at': '2026-01-01T00:00:00.000Z', 'updated_at': '2026-01-01T00:00:00.000Z', 'message_count': 2, 'total_tokens': 0, 'active_leaf': 2}
    call = {'type': 'call', 'id': 'c', 'name': HOSTILE[:50], 'arguments': json.dumps({'a': HOSTILE}), 'result': HOSTILE,
            'state': 'failed', 'ms': 1}
    parts = [{'type': 'reasoning', 'text': HOSTILE, 'seconds': 2}, call, {'type': 'text', 'text': HOSTILE + ' [1]'}]
    messages = [{'id': 1, 'parent_id': None, 'role': 'user', 'content': HOSTILE, 'metadata': {'files': [{'name': HOSTILE, 'size': 1}]}}, {'id': 2, 'parent_id': 1, 'role': 'assistant', 'content': HOSTILE, 'metadata': {
        'parts': parts, 'error': HOSTILE, 'model': HOSTILE, 'citations': [{'index': 1, 'document_name': HOSTILE, 'text': HOSTILE, 'page': 1, 'heading': HOSTILE, 'score': 1}]}}]
    p.route('**/api/chat/conversations?*', lambda r: r.fulfill(json={'conversations': [fake], 'total': 1}))
    p.route('**/api/chat/conversations/00000000000000aa', lambda r: r.fulfill(json=fake))
    p.route('**/api/chat/conversations/00000000000000aa/messages*', lambda r: r.fulfill(json={'messages': messages, 'active_leaf': 2, 'more': False}))
    p.evaluate('([c, m]) => { localStorage.setItem("zse.chats", JSON.stringify([c])); localStorage.setItem("zse.chat." + c.id, JSON.stringify(m)); }', [fake, messages])
    p.goto(s.url + '/chat#00000000000000aa')
    p.reload()
    p.locator('.message.assistant .think').wait_for()
    expect(p.locator('.note.bad').count() == 1 and p.locator('.sources .chip').count() == 1, 'an error hides the sources')
    for summary in p.locator('.message.assistant summary').all():
        summary.click()
    p.locator('sup.cite button').first.click()
    p.locator('dialog pre').wait_for()
    clean(p)
    p.locator('dialog').get_by_role('button', name='Close').click()
    t.end()
    return f'{len(HOSTILE)} characters of markup in 14 places'


@check
def tools(browser, s):
    "thinking is folded; calls show arguments and results; a call that needs permission waits for it"
    t = Tab(browser, s)
    p = t.page
    bodies, runs = [], []

    def whoami(route):
        r = route.fetch()
        body = r.json()
        body['features'].update(tools=True)
        route.fulfill(json=body)

    def complete(body):
        bodies.append(body)
        if len(bodies) == 1:
            return events({'choices': [{'index': 0, 'delta': {'reasoning_content': 'Let me compute.'}, 'finish_reason': None}]},
                {'choices': [{'index': 0, 'delta': {}}], 'tool_event': {'type': 'call', 'round': 1, 'id': 'call_1', 'name': 'calculator', 'arguments': '{"expression":"2+2"}'}},
                {'choices': [{'index': 0, 'delta': {}}], 'tool_event': {'type': 'result', 'round': 1, 'id': 'call_1', 'name': 'calculator', 'content': HOSTILE, 'is_error': False, 'ms': 0.2}},
                'Four. Now ', {'choices': [{'index': 0, 'delta': {'tool_calls': [{'index': 0, 'id': 'call_2', 'type': 'function', 'function': {'name': 'files__delete', 'arguments': '{"path":"/tmp/x"}'}}]}, 'finish_reason': None}]},
                {'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'tool_calls'}], 'tool_stop': {'reason': 'confirm', 'ids': ['call_2']}})
        return events('it is done.', FINISH, {'choices': [], 'usage': {'prompt_tokens': 50, 'completion_tokens': 4}})

    def execute(route):
        runs.append(json.loads(route.request.post_data))
        route.fulfill(json={'tool_call_id': 'call_2', 'name': 'files__delete', 'result': 'deleted', 'error': None})

    list_ = {'tools': [{'name': n, 'description': 'does something <b>bold</b>', 'parameters': {}, 'confirm': n != 'calculator', 'server': None} for n in ('calculator', 'files__delete')], 'servers': [{'name': 'files', 'state': 'failed', 'error': HOSTILE}]}
    t.open()
    p.get_by_role('button', name='Tools').click()
    p.get_by_role('checkbox', name='calculator').wait_for()                     # those of the server
    p.get_by_role('button', name='Done').click()
    p.route('**/api/whoami', whoami)
    p.route('**/api/tools', lambda r: r.fulfill(json=list_))
    p.route('**/api/tools/execute', execute)
    answering(p, complete)
    t.open()
    p.get_by_role('button', name='Tools').click()
    p.get_by_role('checkbox', name='calculator').check()
    p.get_by_role('checkbox', name='files__delete').check()
    clean(p)
    p.get_by_role('button', name='Done').click()
    p.fill('.composer textarea', 'Compute, then delete.')
    p.keyboard.press('Enter')
    p.get_by_role('button', name='Run it').wait_for()
    expect(not runs, 'a tool ran before it was allowed to')
    expect(not p.locator('.think').evaluate('e => e.open'), 'the thoughts are not folded')
    p.locator('.call summary').first.click()
    clean(p)
    p.get_by_role('button', name='Run it').click()
    p.locator('.message.assistant .figures').wait_for()
    expect(runs[0]['name'] == 'files__delete' and runs[0]['confirm'] is True, runs)
    expect(bodies[0]['server_tools'] == ['calculator', 'files__delete'], bodies[0])
    roles = [m['role'] for m in bodies[1]['messages']]
    expect(roles == ['user', 'assistant', 'tool', 'assistant', 'tool'] and bodies[1]['messages'][-1]['content'] == 'deleted', bodies[1]['messages'])
    p.reload()
    p.locator('.call', has_text='files__delete').wait_for()
    t.end()


@check
def markdown(browser, s):
    "headings, lists, tables, code with colours, math; a broken or deep text takes no time"
    text = '***both*** a &lt;b&gt; &#228; H<sub>2</sub>O<br>x <b>no</b> $\\frac12$\n\n# One\n\n- a\n  - b\n\n1. c\n\n| x | y |\n|--|:-:|\n| 1 | `2` |\n\n```js\nconst a = "b"; // c\n```\n\n> q\n\n$$\\frac{1}{2}$$ and $x^2$ **b** *i* ~~s~~ https://example.org/a_b_c.\n'
    t = Tab(browser, s)
    p = t.page
    answering(p, lambda _: events(*re.findall('(?s).{1,7}', text), FINISH))
    t.open()
    p.fill('.composer textarea', 'Show it')
    p.keyboard.press('Enter')
    p.locator('.message.assistant .figures').wait_for(state='attached')
    for selector, n in {'h2': 1, 'ul > li > ul > li': 1, 'ol > li': 1, 'table td': 2, 'em > strong': 1, 'sub': 1, 'p br': 1, 'b': 0,
                        'td code': 1, '.hl-k': 1, '.hl-s': 1, '.hl-c': 1, 'blockquote': 1,
                        'mfrac': 2, 'mfrac > mn:nth-child(2)': 2, 'msup': 1, 'strong': 2, 'em': 2, 'del': 1, 'a[href="https://example.org/a_b_c"]': 1}.items():
        expect(p.locator('.prose ' + selector).count() == n, f'{selector}: {p.locator(".prose").inner_html()}')
    url = p.locator('link[href*="markdown.js"]').get_attribute('href')
    worst = {'stars': '*' * 20000, 'stars and words': '*a ' * 8000, 'brackets': '[' * 20000, 'quotes': '>' * 20000,
             'pipes': '|' * 5000 + '\n' + '|-' * 5000, 'backticks': '`' * 9999 + ' ' + '`a' * 5000,
             'lists': '\n'.join(' ' * i + '- a' for i in range(300)), 'links': '[a](' * 5000,
             'math': '$' + '{' * 5000 + '$ ' + '\\frac' * 3000, 'underscores': '_a' * 10000, 'dollars': '$a' * 10000,
             'tildes': '~~a' * 7000, 'fences': '```\n~~~\n' * 3000, 'angle': '<http://' * 4000,
             'zero': '\0\ufffe\u202e' * 1000}
    for name, body in worst.items():
        ms = p.evaluate('''async ([url, text]) => { const m = await import(url), from = performance.now(), e = document.createElement('div'); e.append(...m.markdown(text)); window.lost = e.textContent.length; return performance.now() - from; }''', [url, body])
        expect(ms < 10000, f'{name}: {ms:.0f} ms')
    t.end()


@check
def few_scopes(browser, main):
    "a key is asked for, kept for the tab only, or in the browser if wanted; the page shows what its scopes allow"
    s = Server(*main.args)
    chat, full = s.key('chat', '--scope', 'chat'), s.key('all', '--scope', 'chat,embeddings,models,admin')
    t = Tab(browser, s)
    p = t.open()
    p.get_by_role('textbox', name='API key', exact=True).fill('zse-wrong')
    p.keyboard.press('Enter')
    p.locator('dialog .form-problem', has_text='Invalid API key').wait_for()
    p.get_by_role('textbox', name='API key', exact=True).fill(chat)
    p.keyboard.press('Enter')
    p.locator('.composer').wait_for()
    expect('Paris' in t.ask('What is the capital of France?'), 'no answer with the key')
    labels = p.locator('#pages a').evaluate_all('list => list.map(a => a.getAttribute("aria-label"))')
    expect(labels == ['Chat', 'Documentation'], labels)
    expect(p.evaluate('[sessionStorage.getItem("zse.key"), localStorage.getItem("zse.key")]') == [chat, None], 'kept elsewhere')
    for path in ('dashboard', 'models', 'keys', 'audit'):
        t.open('/' + path)
        p.locator('main .empty', has_text='not with this key').wait_for()
    expect(all('key=' not in r.url and chat not in r.url for r in t.sent), 'the key is in an address')
    p.evaluate('sessionStorage.clear()')
    t.open('/dashboard')
    p.get_by_role('textbox', name='API key', exact=True).fill(full)
    p.get_by_label('Remember it').check()
    p.keyboard.press('Enter')
    p.locator('.state.good', has_text='ready').first.wait_for()                 # over the WebSocket
    expect(p.evaluate('[sessionStorage.getItem("zse.key"), localStorage.getItem("zse.key")]') == [None, full], 'not remembered')
    subprocess.run([BUILD / 'zse-apikey', 'delete', 'all'], env=s.env(), check=True, capture_output=True)
    t.open('/dashboard')
    p.get_by_role('textbox', name='API key', exact=True).wait_for()
    t.end(allowed=['401', 'WebSocket'])
    s.stop()


@check
def administration(browser, main):
    "keys: made, shown once, deleted; models: loaded and unloaded; audit: searched and exported; docs: tried"
    s = Server(*main.args)
    copy = s.home / 'second.zse'
    shutil.copy(main.args[0], copy)
    t = Tab(browser, s, key=s.token())
    p = t.open('/models')
    p.get_by_label('Path').fill(str(copy))
    p.get_by_role('button', name='Load', exact=True).click()
    p.locator('.state.good', has_text='second: ready').wait_for()
    p.locator('.card', has_text='second.zse').get_by_role('button', name='Unload').click()
    p.locator('dialog').get_by_role('button', name='Unload').click()
    p.locator('.model-name', has_text='second').wait_for(state='detached')
    p.get_by_label('Path').fill('/no/such.zse')
    p.get_by_role('button', name='Load', exact=True).click()
    p.locator('form .note.bad').wait_for()
    p.locator('#pages a[aria-label="API keys"]').click()
    p.get_by_role('button', name='Create a key').click()
    p.get_by_label('Name').fill('app')
    p.get_by_label('Requests a minute').fill('60')
    p.locator('dialog').get_by_role('button', name='Create', exact=True).click()
    key = p.locator('.secret code').inner_text()
    expect(re.fullmatch(r'zse-[\w-]{43}', key), key)
    p.get_by_role('button', name='Done').click()
    p.locator('.secret').wait_for(state='detached')
    p.locator('tr', has_text='app').wait_for()
    expect(key not in p.content(), 'the key is still shown')
    expect('60 requests/min' in p.locator('tr', has_text='app').inner_text(), 'the limit')
    p.locator('tr', has_text='app').get_by_role('button').click()
    p.get_by_role('menuitem', name='Disable').click()
    p.locator('tr', has_text='app').locator('.state.bad').wait_for()
    p.locator('tr', has_text='app').get_by_role('button').click()
    p.get_by_role('menuitem', name='Enable').click()
    p.locator('tr', has_text='app').locator('.state.good').wait_for()
    p.locator('tr', has_text='app').get_by_role('button').click()
    p.get_by_role('menuitem', name='New secret').click()
    p.locator('dialog').get_by_role('button', name='New secret').click()
    expect(p.locator('.secret code').inner_text() not in ('', key), 'the secret is the old one')
    p.get_by_role('button', name='Done').click()
    p.locator('tr', has_text='app').get_by_role('button').click()
    p.get_by_role('menuitem', name='Delete').click()
    p.locator('dialog').get_by_role('button', name='Delete').click()
    p.locator('main .empty', has_text='There are no keys').wait_for()
    p.locator('#pages a[aria-label="Audit log"]').click()
    p.get_by_label('Path').fill('/api/models/load')
    p.get_by_label('Method').select_option('POST')
    p.get_by_role('button', name='Search').click()
    p.locator('tbody tr', has_text='/api/models/load').nth(1).wait_for()
    p.get_by_role('button', name='Export').click()
    with p.expect_download() as download:
        p.get_by_role('menuitem', name='CSV').click()
    expect('/api/models/load' in pathlib.Path(download.value.path()).read_text(), 'the export')
    p.locator('#pages a[aria-label="Documentation"]').click()
    for name in ('convert', 'info', 'chat', 'serve', 'apikey', 'audit', 'hardware', 'bench'):
        expect('zse-' + name in p.locator('#programs').inner_text(), name)
    p.locator('.endpoint', has_text='/tokenize').first.locator('summary').first.click()
    p.locator('.endpoint[open] textarea').fill('{"content": "Hello"}')
    p.locator('.endpoint[open]').get_by_role('button', name='Send').click()
    p.locator('.endpoint[open] figure', has_text='"count"').wait_for()
    upload = p.locator('.endpoint', has_text='/api/rag/documents/upload')
    upload.locator('summary').first.click()
    upload.get_by_label('file', exact=True).set_input_files(
        {'name': 'terns.txt', 'mimeType': 'text/plain', 'buffer': b'Arctic terns fly from pole to pole.'})
    upload.get_by_label('collection').fill('birds')
    upload.get_by_role('button', name='Send').click()
    upload.locator('figure', has_text='terns.txt').wait_for()
    t.end(allowed=['status of 400', 'status of 404', 'status of 422', 'status of 500'])
    s.stop()


@check
def other_programs(browser, s):
    "a file of ChatGPT's conversations is imported, and found by a search"
    def node(i, parent, children, role, text):
        return {'id': i, 'parent': parent, 'children': children,
                'message': {'author': {'role': role}, 'content': {'content_type': 'text', 'parts': [text]}}}
    export = [{'title': f'Voyage {n}', 'create_time': 1700000000 + n, 'current_node': 'b', 'mapping': {
        'a': node('a', None, ['b'], 'user', f'Where is island {n}?'),
        'b': node('b', 'a', [], 'assistant', f'<img src=x onerror=window.bad=1> island {n}')}} for n in range(3)]
    t = Tab(browser, s)
    p = t.open()
    p.locator('.composer').wait_for()
    with p.expect_file_chooser() as chooser:
        p.get_by_role('button', name='Import a conversation').first.click()
    chooser.value.set_files({'name': 'conversations.json', 'mimeType': 'application/json',
                             'buffer': json.dumps(export).encode()})
    p.locator('.toast', has_text='3 of 3 conversations imported').wait_for()
    p.locator('.conv-row', has_text='Voyage 1').wait_for()
    p.get_by_text('island 2', exact=False).first.wait_for()
    expect(p.evaluate('window.bad') is None, 'a script of the import ran')
    t.end()


@check
def model_jobs(browser, main):
    "a model from the hub: searched, converted with progress, cancelled, resumed after a reload, loaded, deleted"
    tiny = pathlib.Path('models/tiny').resolve()
    hub = subprocess.Popen([sys.executable, '-B', 'tests/hub/server.py', f'test/tiny={tiny}', f'gated/model={tiny}'],
                           stdout=subprocess.PIPE, text=True)
    url = hub.stdout.readline().split()[0]

    def tell(path, body):
        urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode())).read()
    os.environ.update(HF_ENDPOINT=url, HF_HOME=str(T / 'hf'))
    try:
        s = Server(*main.args)
        t = Tab(browser, s, key=s.token())
        p = t.open('/models')
        p.get_by_label('Search huggingface.co').fill('tiny')
        p.get_by_role('button', name='Search the hub').click()
        tell('/_fault', {'file': 'model.safetensors', 'kind': 'hold', 'at': 'cdn'})
        p.locator('tr', has_text='test/tiny').get_by_role('button', name='Get').click()
        p.get_by_label('Quality').select_option('fast')
        p.get_by_label('Name', exact=True).last.fill('small')
        p.get_by_role('button', name='Get the model').click()
        p.locator('.job [role=progressbar]:not([aria-valuenow="0"])').wait_for()
        p.reload()
        p.locator('.job [role=progressbar]').wait_for()
        p.get_by_role('button', name='Cancel: test/tiny').click()
        p.locator('.job .state', has_text='cancelled').wait_for()
        tell('/_release', {})
        p.get_by_role('button', name='Resume: test/tiny').click()
        p.locator('.job .state', has_text='done').wait_for()
        p.locator('.card .model-name', has_text='small').first.wait_for()
        p.locator('.card', has_text='small.zse').get_by_role('button', name='Unload').click()
        p.locator('dialog').get_by_role('button', name='Unload').click()
        p.locator('.card', has_text='small.zse').first.wait_for(state='detached')
        p.get_by_role('button', name='Load small.zse').click()
        p.locator('.toast', has_text='small is ready').wait_for()
        p.locator('.card', has_text='small.zse').get_by_role('button', name='Unload').click()
        p.locator('dialog').get_by_role('button', name='Unload').click()
        p.locator('.card', has_text='small.zse').first.wait_for(state='detached')
        p.get_by_role('button', name='Delete small.zse').click()
        p.locator('dialog').get_by_role('button', name='Delete').click()
        p.locator('.toast', has_text='small.zse was deleted').wait_for()
        p.get_by_role('button', name='Remove from the list: test/tiny').click()
        p.locator('.job').wait_for(state='detached')
        t.end()
        s.stop()
    finally:
        hub.kill()
        del os.environ['HF_ENDPOINT'], os.environ['HF_HOME']


@check
def dashboard(browser, s):
    "figures over the WebSocket, charts as SVG, requests as they end"
    t = Tab(browser, s)
    p = t.open('/dashboard')
    p.locator('.state.good', has_text='ready').first.wait_for()
    p.locator('.chart-head', has_text='Requests a minute').wait_for()
    body = json.dumps({'messages': [{'role': 'user', 'content': 'Hello'}]}).encode()
    before = p.locator('.card', has_text='Requests').first.inner_text()
    urllib.request.urlopen(urllib.request.Request(s.url + '/v1/chat/completions', body)).read()
    p.locator('.card', has_text='Requests').first.filter(has_not_text=before).wait_for()
    expect(p.locator('svg.chart').count() >= 4 and p.locator('.model-name').inner_text() == 'tiny', 'charts')
    weights = p.locator('.facts div', has_text='Weights').inner_text()
    expect(re.search(r'[1-9][\d.]* [kM]B', weights), weights)
    module = next(r.url for r in t.sent if re.search(r'/dashboard[^/]*\.js', r.url))
    parts = p.evaluate("""async url => (await import(url)).memoryParts({ memory_total_gb: 10, memory_used_gb: 2,
        process_memory_gb: 4, process_file_memory_gb: 3 })""", module)
    expect(parts == [0.3, 0.1, 0.1], f'pages of files are no part of the used memory: {parts}')
    t.end()


@check
def files(browser, s):
    "a conversation leaves as JSON and Markdown, and comes back; a text file goes into the prompt"
    t = Tab(browser, s)
    p = t.open()
    t.choose('Attach files', {'name': 'a.txt', 'mimeType': 'text/plain', 'buffer': b'The word is xyzzy.'})
    p.locator('.composer .file', has_text='a.txt').wait_for()
    t.ask('What is the word?')
    body = t.bodies[-1]
    expect('The word is xyzzy.' in body['messages'][0]['content'] and body['messages'][0]['content'].endswith('What is the word?'), body)
    expect(p.locator('.message.user .bubble').inner_text() == 'What is the word?', 'the file is in the bubble')
    p.locator('.conv', has_text='What is the word?').wait_for()
    saved = {}
    for kind in ('Markdown', 'JSON'):
        p.get_by_role('button', name='More about this conversation').click()
        with p.expect_download() as download:
            p.get_by_role('menuitem', name=f'Export as {kind}').click()
        saved[kind] = pathlib.Path(download.value.path()).read_text()
    expect('What is the word?' in saved['Markdown'] and saved['Markdown'].startswith('# '), saved['Markdown'])
    p.get_by_role('button', name='More about this conversation').click()
    p.get_by_role('menuitem', name='Delete').click()
    p.get_by_role('button', name='Delete', exact=True).click()
    p.locator('.welcome').wait_for()
    t.choose('Import a conversation', {'name': 'x.json', 'mimeType': 'application/json', 'buffer': saved['JSON'].encode()})
    p.locator('.message.user .bubble', has_text='What is the word?').wait_for()
    address = p.url
    t.choose('Import a conversation', {'name': 'x.md', 'mimeType': 'text/markdown', 'buffer': saved['Markdown'].encode()})
    p.wait_for_function('a => location.href !== a', arg=address)
    p.locator('.message.user .bubble', has_text='What is the word?').wait_for()
    t.choose('Import a conversation', {'name': 'x.json', 'mimeType': 'application/json', 'buffer': b'{"a": '})
    p.locator('.toast.bad').wait_for()
    t.end(allowed=['status of 409'])


@check
def documents(browser, main):
    "a file that is no text becomes a document of the server; answers name their sources; list and delete"
    s = Server(*main.args)
    t = Tab(browser, s)
    p = t.open()
    html = '<title>x</title><h1>Xyzzy</h1><p>The word plugh opens the grate. ' + HOSTILE + '<p>Water runs.' + ' ' * 250000
    t.choose('Attach files', {'name': 'cave.html', 'mimeType': 'text/html', 'buffer': html.encode()})
    p.locator('.composer .file', has_text='cave.html').wait_for()
    p.locator('.composer .file', has_text='reading').wait_for(state='detached')
    p.fill('.composer textarea', 'Which word opens the grate?')
    p.keyboard.press('Enter')
    p.locator('.message.assistant .sources .chip', has_text='cave.html').first.click()
    p.locator('dialog pre', has_text='plugh').wait_for()
    clean(p)
    p.locator('dialog').get_by_role('button', name='Close').click()
    body = t.bodies[-1]
    expect(len(body['rag']['document_ids']) == 1 and 'plugh' not in json.dumps(body['messages']), body)
    # the same document under another name
    t.choose('Attach files', {'name': 'grotto.html', 'mimeType': 'text/html', 'buffer': html.encode()})
    p.locator('.composer .file', has_text='grotto.html').wait_for()
    p.locator('.composer .file', has_text='reading').wait_for(state='detached')
    p.get_by_role('button', name='Remove grotto.html').click()
    p.get_by_role('button', name='Documents').click()
    p.locator('dialog strong', has_text='cave.html').wait_for()
    p.route('**/api/rag/documents?*', lambda r: r.fulfill(json={'documents': [], 'total': 1200}))    # those chosen stay
    p.get_by_role('button', name='Done').click()
    p.get_by_role('button', name='Documents').click()
    p.locator('dialog', has_text='The newest 0 of 1,200 documents are listed').wait_for()
    p.get_by_role('button', name='Done').click()
    p.unroute('**/api/rag/documents?*')
    p.get_by_role('button', name='Documents').click()
    expect(p.get_by_role('checkbox', name='cave.html').is_checked(), 'a document that is not listed was dropped')
    p.get_by_role('button', name='Delete cave.html').click()
    p.locator('dialog', has_text='There are no documents yet').wait_for()
    p.get_by_role('button', name='Done').click()
    p.reload()
    p.locator('.sources .chip', has_text='cave.html').first.wait_for()
    expect('Paris' in t.ask('What is the capital of France?'), 'a deleted document is in the way')
    t.end(allowed=['status of 409'])
    s.stop()


@check
def phone(browser, s):
    "390 pixels: nothing is wider than the screen, the drawer opens, the composer is there; light and dark"
    for theme in ('dark', 'light'):
        t = Tab(browser, s, 390, 844, key=s.token(), theme=theme, has_touch=True, is_mobile=True)
        p = t.open()
        p.fill('.composer textarea', 'What is the capital of France?')
        p.get_by_role('button', name='Send').click()
        p.locator('.message.assistant .figures').wait_for()
        answering(p, lambda _: events(ANSWER, FINISH))
        p.fill('.composer textarea', 'Show me a table and a program.')
        p.get_by_role('button', name='Send').click()
        p.locator('.message.assistant .figures').nth(1).wait_for()
        for part in ('.message.assistant .table-scroll', '.message.assistant pre', '.thread-head .row > :last-child'):
            box = p.locator(part).last.bounding_box()
            expect(box['x'] >= 8 and box['x'] + box['width'] <= 384 and box['y'] + box['height'] > 0, f'{part}: {box}')
        heights = p.evaluate("[...document.querySelectorAll('.thread-head .row > *')].map(e => e.getBoundingClientRect().top)")
        expect(len(heights) > 1 and len(set(heights)) == 1, f'the buttons of the head: {heights}')
        box = p.locator('.composer').bounding_box()
        expect(box['y'] + box['height'] <= 844 and box['x'] >= 0 and box['x'] + box['width'] <= 390, box)
        p.get_by_role('button', name='Menu').click()
        p.locator('#rail a[aria-label="Dashboard"]').wait_for()
        for path in ('dashboard', 'models', 'keys', 'audit', 'docs', 'chat'):
            t.open('/' + path)
            p.locator('main h1').first.wait_for()
            width = p.evaluate('Math.max(document.documentElement.scrollWidth, document.body.scrollWidth, ...[...document.querySelectorAll("main > *, main > * > *")].map(e => e.getBoundingClientRect().right))')
            expect(width <= 391, f'{path}: {width} pixels')
            if path == 'keys':
                p.get_by_role('button', name='Create a key').wait_for()
            out = p.evaluate('[...document.querySelectorAll(".page-head, .page-head *")].filter(e => e.getBoundingClientRect().top < 0 || e.getBoundingClientRect().right > 391).map(e => e.outerHTML)')
            expect(not out, f'{path}: beyond the screen: {out}')
        t.end()


@check
def everybody(browser, s):
    "names of all buttons and fields, contrast of the texts, the keyboard"
    def luminance(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= .03928 else ((c + .055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((.2126, .7152, .0722), linear))

    def full(c):
        return '#' + ''.join(x * 2 for x in c[1:]) if len(c) == 4 else c

    for theme in ('dark', 'light'):
        t = Tab(browser, s, key=s.token(), theme=theme)
        p = t.open()
        p.locator('.composer').wait_for()
        v = p.evaluate('Object.fromEntries(["bg", "panel", "raised", "text", "muted", "faint", "good", "warn", "bad", "accent", "on-accent", "code", "hl-c", "hl-s", "hl-n", "hl-k", "hl-f", "hl-t", "hl-p"].map(n => [n, getComputedStyle(document.documentElement).getPropertyValue("--" + n).trim()]))')
        if theme == 'dark':
            expect(p.evaluate('getComputedStyle(document.body).backgroundColor') == 'rgb(10, 10, 10)' and 'Montserrat' in p.evaluate('getComputedStyle(document.body).fontFamily'), 'the look')
        for front, back in [(f, b) for f in ('text', 'muted', 'faint', 'bad') for b in ('bg', 'panel')] + [('on-accent', 'accent')] + [(f, 'code') for f in v if f.startswith('hl-')]:
            a, b = luminance(full(v[front])), luminance(full(v[back]))
            ratio = (max(a, b) + .05) / (min(a, b) + .05)
            expect(ratio >= 4.5, f'{theme}: {front} on {back} has a contrast of {ratio:.2f}')
        for path in ('chat', 'dashboard', 'models', 'keys', 'audit', 'docs'):
            t.open('/' + path)
            p.locator('main h1').first.wait_for(state='attached')
            nameless = p.evaluate('''[...document.querySelectorAll('button, a, input, select, textarea')].filter(e => !e.hidden && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length || e.title)).map(e => e.outerHTML)''')
            expect(not nameless, f'{path}: {nameless}')
        t.end()
    t = Tab(browser, s)
    p = t.open()
    p.locator('.composer').wait_for()
    p.evaluate('document.activeElement.blur()')
    p.keyboard.press('Tab')
    expect(p.evaluate('document.activeElement.className') == 'skip', 'the first stop is not the way to the content')
    p.keyboard.press('Control+k')
    expect(p.evaluate('document.activeElement.type') == 'search', 'Ctrl+K')
    p.keyboard.press('Control+Shift+O')
    expect(p.evaluate('document.activeElement.tagName') == 'TEXTAREA', 'Ctrl+Shift+O')
    p.keyboard.press('Control+/')
    p.locator('dialog', has_text='Keyboard shortcuts').wait_for()
    p.keyboard.press('Escape')
    t.end()


class Still:
    """A server of the page as it looks in its first frame, without scripts: what that frame costs
    the browser alone."""

    def __init__(self, url):
        page = urllib.request.urlopen(urllib.request.Request(url, headers={'Accept': 'text/html'})).read().decode()
        page = re.sub('<(script|template).*?</\\1>', '', page, flags=re.S)
        self.page = page.replace('<html', '<html data-theme="dark" data-first="chat"', 1).encode()

    def __enter__(self):
        page = self.page

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header('Content-Type', 'text/html')
                self.send_header('Content-Length', str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *args):
                pass
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(target=self.server.serve_forever).start()
        return f'http://127.0.0.1:{self.server.server_port}/'

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()


def first_paint(browser, url):
    """Milliseconds from the end of the connection to the first paint, in a new tab of a running
    browser, with nothing cached."""
    with contextlib.closing(browser.new_context(viewport={'width': 1280, 'height': 800})) as context:
        page = context.new_page()
        page.goto(url)
        return page.evaluate("""new Promise(done => new PerformanceObserver((list, observer) => {
            observer.disconnect();
            done(list.getEntries()[0].startTime - performance.getEntriesByType('navigation')[0].connectEnd);
        }).observe({ type: 'paint', buffered: true }))""")


@check
def cost(browser, s):
    "bytes, requests and first paint of the page, beside that of the same picture without scripts"
    t = Tab(browser, s)
    t.page.add_init_script("requestAnimationFrame(() => {"
                           "  early = document.querySelectorAll('[rel=modulepreload]').length; });")
    p = t.open()
    p.locator('.welcome').wait_for()
    expect(p.evaluate('early') == 0, 'modules are loaded before the first frame')
    total, n = p.evaluate('''(() => { const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].filter(e => /\\/chat$|\\/web\\//.test(e.name)); return [all.reduce((s, e) => s + e.transferSize, 0), all.length]; })()''')
    expect(total <= 120000 and n <= 6, f'{total} bytes in {n} requests')
    t.end()
    with Still(s.url + '/chat') as still:
        # Medians: other work of the machine slows both pages, and a minimum is one load.
        ours, least, ratio = [], [], math.inf
        while len(ours) < LOADS or (ratio > LIMIT and len(ours) < 4 * LOADS):
            ours.append(first_paint(browser, s.url + '/chat'))
            least.append(first_paint(browser, still))
            ratio = statistics.median(ours) / statistics.median(least)
    loads, ours, least = len(ours), statistics.median(ours), statistics.median(least)
    expect(ratio <= LIMIT, f'first paint {ours:.0f} ms, without scripts {least:.0f} ms (medians of {loads} in turn)')
    return (f'{total} bytes in {n} requests; first paint in a new tab {ours:.0f} ms after the connection, without '
            f'scripts {least:.0f} ms, ratio {ratio:.2f} (medians of {loads} in turn)')


# ---- pictures ----

# The answer in the picture for the README: written by hand, because the tiny model cannot.
ANSWER = '''It keeps the **keys and values** of prompts that were read before. A follow-up repeats the conversation so far, so only its new tokens are computed:

| turn | prompt | computed |
|:--|:--|:--|
| first | question | all of it |
| next | question, answer, question | the last question |

Programs need nothing for that. They send the whole conversation, as always:

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
answer = client.chat.completions.create(model="default", messages=conversation)
print(answer.usage.prompt_tokens_details.cached_tokens)
```

A prompt of $n$ tokens, $c$ of them cached, costs about $2\\,(n - c)\\,P$ operations in a model of $P$ weights.'''


def shots(browser, s, folder):
    t = Tab(browser, s, 1280, 860, key=s.token())
    p = t.page
    titles = ['What is the capital of France?', 'Name the days of the week.', 'Write a haiku.']
    answering(p, lambda body: events(*re.findall('(?s).{1,40}', ANSWER), FINISH, {'choices': [], 'usage': {'prompt_tokens': 312, 'completion_tokens': 214}})
              if 'prefix cache' in json.dumps(body) else None)
    for title in titles:
        t.open()
        p.locator('.composer').wait_for()
        t.ask(title, 1)
    t.open()
    p.locator('.composer').wait_for()
    t.ask('What does the prefix cache do for a conversation?', 1)
    p.locator('.conv-row').nth(3).wait_for()
    p.mouse.move(900, 840)
    p.evaluate('document.querySelector(".scroll").scrollTop = 1e6; document.activeElement.blur(); for (const e of document.querySelectorAll(".figures")) e.textContent = "";')
    p.screenshot(path=folder / 'chat.png')
    body = {'messages': [{'role': 'user', 'content': 'Count to ten.'}], 'max_tokens': 900, 'ignore_eos': True}
    ask = urllib.request.Request(s.url + '/v1/chat/completions', json.dumps(body).encode())
    threads = [threading.Thread(target=lambda: urllib.request.urlopen(ask).read()) for _ in range(8)]
    t.open('/dashboard')
    p.locator('.state.good').first.wait_for()
    for x in threads:
        x.start()
        p.wait_for_timeout(900)
    p.screenshot(path=folder / 'dashboard.png')
    for x in threads:
        x.join()
    t.end()


def main(argv):
    folder = None
    if argv[:1] == ['--shots']:
        folder, argv = pathlib.Path(argv[1]), argv[2:]
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print('no playwright package in build/venv (scripts/deps makes it)')
        return 77
    if not CHROMIUM:
        print('no chromium (scripts/deps installs it)')
        return 77
    failed = 0
    model, names = pathlib.Path(argv[0]).resolve(), argv[1:]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'])
        s = Server(model)
        for f in checks if not folder else []:
            if names and f.__name__ not in names:
                continue
            try:
                print(f'ok {f.__name__}: {f(browser, s) or f.__doc__}', flush=True)
            except Exception as e:
                failed += 1
                line = [x.lineno for x in traceback.extract_tb(e.__traceback__) if x.filename == __file__][-1]
                print(f'not ok {f.__name__}: line {line}: {str(e)[:1500]}', flush=True)
        if folder:
            shots(browser, s, folder)
        browser.close()
        s.stop()
    shutil.rmtree(T)
    return failed > 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
