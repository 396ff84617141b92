// docs.js - the documentation: a quick start, the programs, each endpoint with a form to try it.

import { h, spec, request, who, pageHead, spinner, hasKey } from './core.js';
import { codeBlock } from './markdown.js';

const PROGRAMS = [
  ['zse-convert', 'makes a .zse file of a Hugging Face folder, a GGUF file or a model on the hub',
    'zse-convert Qwen/Qwen3-0.6B -o qwen.zse'],
  ['zse-info', 'looks inside a model: shapes, types, sizes, the tokenizer, the template', 'zse-info qwen.zse'],
  ['zse-chat', 'answers in a terminal, or as a filter in a pipe',
    'zse-chat qwen.zse "What is the capital of France?"'],
  ['zse-serve', 'serves models on the APIs of OpenAI and Anthropic, and this page', 'zse-serve qwen.zse --port 8000'],
  ['zse-apikey', 'makes, limits, watches and revokes API keys', 'zse-apikey create app --rate-limit 60'],
  ['zse-audit', 'reads the audit log: sums, selections, exports', 'zse-audit summary --hours 24'],
  ['zse-hardware', 'shows the machine and the models that fit it', 'zse-hardware'],
  ['zse-bench', 'measures speed, memory and quality', 'zse-bench qwen.zse'],
];

function quickStart() {
  const url = location.origin, key = who.keys_required || hasKey() ? '$ZSE_KEY' : null;
  const curl = `curl ${url}/v1/chat/completions${key ? ` \\\n  -H "Authorization: Bearer ${key}"` : ''} \\\n  -H 'Content-Type: application/json' \\\n  -d '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'`;
  const python = `${key ? 'import os\n\n' : ''}from openai import OpenAI\n\nclient = OpenAI(base_url="${url}/v1", api_key=${key ? 'os.environ["ZSE_KEY"]' : '"none"'})\nanswer = client.chat.completions.create(\n    model="default",\n    messages=[{"role": "user", "content": "Hello!"}],\n)\nprint(answer.choices[0].message.content)`;
  const js = `const response = await fetch("${url}/v1/chat/completions", {\n  method: "POST",\n  headers: {"Content-Type": "application/json"${key ? ', Authorization: `Bearer ${key}`' : ''}},\n  body: JSON.stringify({messages: [{role: "user", content: "Hello!"}]}),\n});\nconsole.log((await response.json()).choices[0].message.content);`;
  return section('quick', 'Quick start',
    h('p', {}, 'Programs that speak with OpenAI’s or Anthropic’s API work with this server: give them this address',
      key ? ' and a key.' : '. It needs no key.'), codeBlock(curl, 'sh'), codeBlock(python, 'python'),
    codeBlock(js, 'js'));
}

function keysAndSockets() {
  return [section('keys', 'Keys',
    h('p', {}, 'A key goes in the header Authorization: Bearer KEY, or X-API-Key: KEY; never in the address. Its scopes are chat, embeddings, models (statistics) and admin. Answers under a limit carry X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset; 429 has Retry-After.')),
    section('sockets', 'WebSockets',
      h('p', {}, '/ws/chat takes the bodies of /v1/chat/completions and sends tokens; /ws/completions sends the events of its stream; /ws/stats sends the state every two seconds. In a browser the key is a subprotocol:'),
      codeBlock(`const ws = new WebSocket("${location.origin.replace('http', 'ws')}/ws/chat", ["zse", "zse-key." + key]);\nws.onopen = () => ws.send(JSON.stringify({messages: [{role: "user", content: "Hello!"}]}));\nws.onmessage = e => console.log(JSON.parse(e.data));   // {type: "token", content} ... {type: "done", ...}`, 'js'))];
}

const section = (id, title, ...content) => h('section', { id, 'aria-labelledby': id + '-title' },
  h('h2', { id: id + '-title' }, title), content);

function groupOf(path) {
  if (path.startsWith('/v1/')) return 'Generate';
  const part = path.split('/')[2];
  if (path.startsWith('/api/'))
    return { chat: 'Conversations', rag: 'Documents', tools: 'Tools', models: 'Models', keys: 'Keys and audit',
      audit: 'Keys and audit', whoami: 'Keys and audit' }[part] || 'Statistics';
  if (/^\/(tokenize|detokenize|apply-template)$/.test(path)) return 'Text and tokens';
  return path.startsWith('/ws/') ? 'WebSockets ' : /^\/(health|metrics|openapi.json|mcp)?$/.test(path) ? 'Server'
    : null;
}

// An example body: the required fields, or a question.
function sample(path, schema) {
  if (schema.properties?.messages)
    return { messages: [{ role: 'user', content: 'What is the capital of France?' }],
      ...(schema.properties.max_tokens && { max_tokens: 64 }) };
  return Object.fromEntries((schema.required || [])
    .map(n => [n, { string: '', array: [], object: {}, integer: 0, number: 0,
      boolean: false }[schema.properties[n]?.type] ?? '']));
}

// The inputs of a body that is sent as a form: a file, and text.
const formInputs = schema => Object.entries(schema.properties).map(([n, f]) =>
  h('label', {}, n, h('input', { name: n, type: f.format === 'binary' ? 'file' : 'text',
    required: schema.required?.includes(n) })));

// The fields of a form that were filled in.
function formBody(inputs) {
  const form = new FormData();
  for (const label of inputs) {
    const input = label.querySelector('input'), value = input.files ? input.files[0] : input.value;
    if (value) form.append(input.name, value);
  }
  return form;
}

function tryForm(method, path, op) {
  const content = op.requestBody?.content, upload = content?.['multipart/form-data']?.schema,
    schema = content?.['application/json']?.schema, described = schema || upload,
    inputs = upload && formInputs(upload), params = [...path.matchAll(/\{(\w+)\}/g)].map(m =>
      [m[1], h('input', { type: 'text', placeholder: m[1], 'aria-label': m[1] })]);
  const query = h('input',
    { type: 'text', placeholder: 'query: limit=10', 'aria-label': 'Query', spellcheck: 'false' });
  const text = schema && JSON.stringify(sample(path, schema), null, 2);
  const body = schema && h('textarea', { 'aria-label': 'Body', spellcheck: 'false', value: text,
    rows: Math.min(16, text.split('\n').length + 1) });
  const out = h('div', { 'aria-live': 'polite' }), button = h('button.primary', { type: 'submit' }, 'Send');
  const fields = described?.properties &&
    h('details.more', {}, h('summary', {}, `${Object.keys(described.properties).length} fields`),
      h('dl.fields', {}, Object.entries(described.properties)
        .map(([n, f]) => h('div', {}, h('dt', {}, h('code', {}, n), ' ', h('span.muted', {}, f.type || '')),
          h('dd.muted', {}, f.description || '')))));
  return h('form.endpoint-body', { onsubmit: async ev => {
    ev.preventDefault();
    let at = path;
    for (const [name, input] of params)
      at = at.replace(`{${name}}`, encodeURIComponent(input.value).replaceAll('%2F', '/'));
    if (query.value && method === 'get') at += '?' + query.value.replace(/^\?/, '');
    button.disabled = true;
    const from = performance.now();
    try {
      const r = await request(at, { method: method.toUpperCase(), form: inputs && formBody(inputs),
        body: body ? JSON.parse(body.value) : undefined });
      const text = await r.text();
      out.replaceChildren(h('p.muted', {}, `${r.status} after ${Math.round(performance.now() - from)} ms`),
        show(text, r.headers.get('Content-Type') || ''));
    } catch (e) { out.replaceChildren(h('.note.bad', {}, `${e.status ? e.status + ': ' : ''}${e.message}`)); }
    button.disabled = false;
  } }, fields, params.length || method === 'get' ? h('.row', {}, params.map(([, i]) => i), method === 'get' && query)
    : null, inputs && h('.row', {}, inputs), body, h('.row', {}, button), out);
}

function show(text, type) {
  const most = 20000;
  let t = text;
  if (type.includes('json')) try { t = JSON.stringify(JSON.parse(text), null, 2); } catch { /* leave it unchanged */ }
  return codeBlock(t.length > most ? t.slice(0, most) + '\n…' : t, type.includes('json') ? 'json' : 'text');
}

function endpoints(paths) {
  const groups = new Map();
  for (const [path, item] of Object.entries(paths)) {
    const name = groupOf(path);
    if (!name) continue;
    for (const [method, op] of Object.entries(item)) {
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push([method, path, op]);
    }
  }
  const order = ['Generate', 'Text and tokens', 'Conversations', 'Documents', 'Tools', 'Models', 'Statistics',
    'Keys and audit', 'Server'];
  return order.filter(n => groups.has(n))
    .map(name => section('api-' + name.toLowerCase().replaceAll(' ', '-'), name,
      groups.get(name).map(([method, path, op]) => {
        const d = h('details.endpoint', {},
          h('summary', {}, h('span.method.' + method.toUpperCase(), {}, method.toUpperCase()), h('code', {}, path),
            h('span', {}, op.summary)));
        d.addEventListener('toggle', () => {
          if (d.open && d.children.length === 1) d.append(tryForm(method, path, op));
        });
        return d;
      })));
}

export function mount(root) {
  const nav = h('nav', { 'aria-label': 'Sections' }),
    content = h('div', {}, quickStart(), section('programs', 'Programs', h('p', {}, 'Each has --help and a man page.'),
      h('.rows', {}, h('table', {},
        h('tbody', {}, PROGRAMS.map(([name, what, example]) => h('tr', {}, h('td', {}, h('strong', {}, name)),
          h('td.wrap', {}, what), h('td', {}, h('code', {}, example)))))))), keysAndSockets());
  const wait = spinner('Loading the endpoints');
  content.append(wait);
  root.append(h('.page', {},
    pageHead('Documentation', h('a.muted', { href: '/openapi.json', target: '_blank' }, 'openapi.json')),
    h('.docs', {}, nav, content)));
  const draw = () => nav.replaceChildren(...[...content.querySelectorAll('section')].map(s =>
    h('a', { href: '#' + s.id, onclick: ev => {
      ev.preventDefault();
      s.scrollIntoView({ behavior: 'smooth' });
    } }, s.querySelector('h2').textContent)));
  draw();
  spec().then(s => {
    wait.replaceWith(...endpoints(s.paths));
    draw();
  }, e => wait.replaceWith(h('.note.bad', {}, e.message)));
}
