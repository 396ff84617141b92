// core.js - elements, icons, requests with the key, dialogs, and the frame around all pages.

// ---- elements: made by node, never from text ----

const SVG = 'http://www.w3.org/2000/svg';

// h('button.primary', {type: 'button', onclick: f}, 'text', node, [nodes]): attributes, but on* are
// listeners, and false or null leaves one out.
export function h(what, attributes, ...children) {
  const [tag, ...classes] = what.split('.');
  const e = document.createElement(tag || 'div');
  if (classes.length) e.className = classes.join(' ');
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'hidden') e[name] = value;
    else if (value === true) e.setAttribute(name, '');
    else if (value !== false && value != null) e.setAttribute(name, value);
  }
  add(e, children);
  return e;
}

export function add(e, children) {
  for (const c of [children].flat(9)) if (c != null && c !== false) e.append(c);
  return e;
}

export function svg(tag, attributes, ...children) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value != null) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

// Paths on a grid of 24, drawn with a line.
const ICONS = {
  chat: 'M21 12a8 8 0 0 1-8 8H4l1.8-3.2A8 8 0 1 1 21 12Z',
  dashboard: 'M4 19V11M10 19V5M16 19v-6M21 19H3',
  models: 'M12 3l8 4.5v9L12 21l-8-4.5v-9L12 3ZM4 7.5l8 4.5 8-4.5M12 12v9',
  keys: 'M8 19.5a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM11 12.7 20 4M16.2 7.6l3 3',
  audit: 'M6 3h9l4 4v14H6ZM14 3v5h5M9.5 12.5h6M9.5 16.5h6',
  docs: 'M5 4h6a2 2 0 0 1 2 2v14a2 2 0 0 0-2-1.5H5ZM21 4h-6a2 2 0 0 0-2 2v14a2 2 0 0 1 2-1.5h6Z',
  plus: 'M12 5v14M5 12h14', search: 'M20 20l-4.2-4.2M17.5 11a6.5 6.5 0 1 1-13 0 6.5 6.5 0 0 1 13 0Z',
  sidebar: 'M4 5h16v14H4ZM9.5 5v14', menu: 'M4 7h16M4 12h16M4 17h16', close: 'M6 6l12 12M18 6 6 18',
  send: 'M12 19V6M6.5 11.5 12 6l5.5 5.5', stop: 'M7.5 7.5h9v9h-9Z', copy: 'M9 9h11v11H9ZM15 9V4H4v11h5',
  check: 'M5 12.5l4.5 4.5L19 7.5', edit: 'M4 20h4L19.5 8.5l-4-4L4 16ZM13.5 6.5l4 4',
    retry: 'M20 6v5h-5M19.5 11A8 8 0 1 0 20 14',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5',
    more: 'M5.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M11.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M17.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0',
  clip: 'M20 11.5l-7.8 7.8a5 5 0 0 1-7-7l8-8a3.3 3.3 0 0 1 4.7 4.7l-8 8a1.7 1.7 0 0 1-2.4-2.4l7.3-7.3',
  sliders: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5',
    tool: 'M14.5 6.5a4 4 0 0 1 5-1.2l-2.7 2.7 1.4 2 2.6-2a4 4 0 0 1-5.6 4.6L8.5 19.4a2 2 0 0 1-2.9-2.9l6.8-6.7a4 4 0 0 1 2.1-3.3Z',
  pin: 'M9 4h6l-1 6 3 3H7l3-3ZM12 13v7', tag: 'M4 4h8l8 8-8 8-8-8ZM8.5 8.5h.01', left: 'M14.5 6.5 9 12l5.5 5.5',
    right: 'M9.5 6.5 15 12l-5.5 5.5',
  down: 'M6.5 9.5 12 15l5.5-5.5',
    sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1 1M17.4 17.4l1 1M18.4 5.6l-1 1M6.6 17.4l-1 1',
  moon: 'M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5Z',
    user: 'M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.5 20.5a7.5 7.5 0 0 1 15 0',
  download: 'M12 4v11M7 10.5l5 5 5-5M5 20h14', upload: 'M12 16V5M7 9.5l5-5 5 5M5 20h14',
    file: 'M7 3h7l4 4v14H7ZM13.5 3v4.5H18',
  book: 'M6 4h12v16H8a2 2 0 0 1-2-2ZM6 18a2 2 0 0 1 2-2h10', warn: 'M12 4 2.5 20h19ZM12 10v4.5M12 17.3v.1',
    spark: 'M12 4l1.8 6.2L20 12l-6.2 1.8L12 20l-1.8-6.2L4 12l6.2-1.8Z',
  play: 'M8 5.5v13l10.5-6.5Z', lock: 'M6 11h12v9H6ZM8.5 11V8a3.5 3.5 0 0 1 7 0v3',
    keyboard: 'M3 7h18v11H3ZM7 14.5h10M7 10.5h.01M11 10.5h.01M15 10.5h.01',
};

export function icon(name) {
  return svg('svg', { viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' },
    svg('path', { d: ICONS[name] || '' }));
}

// A button that has only an icon; its label is also the tooltip.
export function iconButton(name, label, onclick, attributes) {
  return h('button.icon-button', { type: 'button', 'aria-label': label, title: label, onclick, ...attributes },
    icon(name));
}

// ---- what the browser remembers ----

export const kept = {
  get(name, otherwise) {
    try {
      const text = localStorage.getItem('zse.' + name);
      return text === null ? otherwise : JSON.parse(text);
    } catch { return otherwise; }
  },
  set(name, value) {
    try {
      if (value === undefined) localStorage.removeItem('zse.' + name);
      else localStorage.setItem('zse.' + name, JSON.stringify(value));
      return true;
    } catch { return false; }
  },
};

// ---- requests ----

export class Problem extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let key = '';
try { key = sessionStorage.getItem('zse.key') || localStorage.getItem('zse.key') || ''; } catch { /* no storage */ }
export const hasKey = () => key !== '';
export let who = { scopes: [], features: {}, version: '', keys_required: false };
export const may = scope => who.scopes.includes(scope);
export const mayRead = () => may('models') || may('admin');

function keepKey(text, remember) {
  key = text;
  try {
    sessionStorage.removeItem('zse.key');
    localStorage.removeItem('zse.key');
    if (text) (remember ? localStorage : sessionStorage).setItem('zse.key', text);
  } catch { /* without storage the key lasts as long as the page */ }
}

async function problemOf(r) {
  let body = null;
  try { body = await r.json(); } catch { /* not JSON */ }
  return new Problem(r.status, body?.detail || body?.error?.message || r.statusText || `status ${r.status}`,
    body?.error?.code);
}

// The response of a request with the key; a refusal is a Problem.  The page asks for a new key if
// this one is no longer valid.
export async function request(path, { method, body, form, signal, keepalive } = {}) {
  const headers = {};
  if (key) headers.Authorization = 'Bearer ' + key;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let r;
  try {
    r = await fetch(path, { method: method || (body !== undefined || form ? 'POST' : 'GET'), headers, signal,
      keepalive,
      body: form || (body === undefined ? undefined : JSON.stringify(body)), credentials: 'omit',
        cache: 'no-store' });
  } catch (e) {
    throw e.name === 'AbortError' ? e : new Problem(0, 'The server does not answer.');
  }
  if (r.ok) return r;
  const p = await problemOf(r);
  if (r.status === 401 && p.code !== 'invalid_admin_token') askForKey(key ? p.message : '');
  throw p;
}

export const api = async (path, options) => (await request(path, options)).json();

let described = null;
// The description in /openapi.json, read once.
export function spec() {
  described ||= api('/openapi.json').catch(e => { described = null; throw e; });
  return described;
}

// The objects of a stream of server-sent events, as they arrive.
export async function* events(path, body, signal) {
  const reader = (await request(path, { body, signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
        const data = rest.slice(0, end).split('\n').filter(l => l.startsWith('data:'))
          .map(l => l.slice(5).trimStart()).join('\n');
        if (data && data !== '[DONE]') yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// A WebSocket cannot have header fields: the key is a subprotocol.
export function socket(path) {
  const url = (location.protocol === 'https:' ? 'wss://' : 'ws://') + location.host + path;
  return new WebSocket(url, key ? ['zse', 'zse-key.' + key] : ['zse']);
}

// Resolves to the socket when it is open, to null if it cannot be opened in 3 s or `signal` aborts.
const opened = (ws, signal) => new Promise(resolve => {
  const give = result => { clearTimeout(timer); resolve(result); };
  const leave = () => { ws.close(); give(null); };
  const timer = setTimeout(leave, 3000);
  ws.onopen = () => give(ws);
  ws.onerror = ws.onclose = () => give(null);
  signal.addEventListener('abort', leave, { once: true });
});

const SOCKET_CHARACTERS = 1_000_000;            // longer bodies may exceed the limit of a message

// The events of an answer, as messages of a WebSocket: a browser has six connections for streams of
// HTTP/1.1, in all tabs together.  Where no socket opens (a proxy, a refused key), the events come
// as a stream.
export async function* answerEvents(body, signal) {
  const text = JSON.stringify(body), url = '/v1/chat/completions';
  const ws = text.length < SOCKET_CHARACTERS ? await opened(socket('/ws/completions'), signal) : null;
  if (!ws) {
    yield* events(url, body, signal);
    return;
  }
  const arrived = [];
  let wake, ended = false;
  const end = () => { ended = true; wake?.(); };
  ws.onmessage = e => { arrived.push(e.data); wake?.(); };
  ws.onerror = ws.onclose = end;
  signal.addEventListener('abort', end);
  try {
    if (!signal.aborted) ws.send(text);
    for (;;) {
      if (signal.aborted) throw new DOMException('', 'AbortError');
      if (!arrived.length) {
        if (ended) throw new Problem(0, 'The server does not answer.');
        await new Promise(resolve => { wake = resolve; });
        continue;
      }
      const data = arrived.shift();
      if (data === '[DONE]') return;
      const e = JSON.parse(data);
      if (e.error?.code === 'invalid_api_key') askForKey(e.error.message);
      if (e.error) throw new Problem(0, e.error.message, e.error.code);
      yield e;
    }
  } finally {
    signal.removeEventListener('abort', end);
    ws.close();
  }
}

// ---- small helpers ----

export const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
export const number = (n, digits = 0) => Number(n)
  .toLocaleString('en', { maximumFractionDigits: digits, minimumFractionDigits: digits });

export function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; n >= 999.5 && i < 4; i++) n /= 1000;
  return `${n < 10 && i ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export const short = n => n < 1000 ? String(Math.round(n)) : n < 1e4 ? (n / 1e3).toFixed(1) + 'k' : n < 1e6
  ? Math.round(n / 1e3) + 'k' : (n / 1e6).toFixed(1) + 'M';

export function span(seconds) {
  const s = Math.floor(seconds), m = Math.floor(s / 60), hours = Math.floor(m / 60), d = Math.floor(hours / 24);
  return d ? `${d} d ${hours % 24} h` : hours ? `${hours} h ${m % 60} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

// "5 min ago" of a time in milliseconds.
export function ago(ms) {
  const s = (Date.now() - ms) / 1000;
  if (s < 45) return 'just now';
  if (s < 3600) return `${Math.round(s / 60)} min ago`;
  if (s < 86400) return `${Math.round(s / 3600)} h ago`;
  return new Date(ms).toLocaleDateString('en',
    { day: 'numeric', month: 'short', year: s > 2e7 ? 'numeric' : undefined });
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h('textarea.offscreen', { value: text });
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  if (!button) return;
  const old = [...button.childNodes];
  button.replaceChildren(icon('check'));
  button.classList.add('done');
  setTimeout(() => { button.replaceChildren(...old); button.classList.remove('done'); }, 1400);
}

export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function pickFiles(accept, multiple) {
  return new Promise(resolve => {
    const input = h('input', { type: 'file', accept, multiple, onchange: () => resolve([...input.files]) });
    input.addEventListener('cancel', () => resolve([]));
    input.click();
  });
}

export function toast(text, kind, action) {
  const e = h('.toast' + (kind ? '.' + kind : ''), { role: kind === 'bad' ? 'alert' : null }, h('span', {}, text),
    action && h('button.link', { type: 'button', onclick: () => { e.remove(); action.run(); } }, action.label));
  const box = document.getElementById('toasts');
  while (box.children.length > 3) box.firstChild.remove();
  box.append(e);
  setTimeout(() => { e.classList.add('leaving'); setTimeout(() => e.remove(), 250); }, action ? 7000 : 4500);
}

// Show what went wrong, unless the user cancelled it.
export function fail(e) {
  if (e && e.name !== 'AbortError' && e.status !== 401) toast(e.message || String(e), 'bad');
}

export function spinner(label) {
  return h('.loading', { role: 'status' }, h('span.dots', { 'aria-hidden': 'true' }, h('i'), h('i'), h('i')),
    h('span', {}, label));
}
export function emptyState(name, title, text, ...more) {
  return h('.empty', {}, h('.empty-icon', {}, icon(name)), h('h2', {}, title), h('p', {}, text), more);
}

// ---- dialogs and menus ----

export function dialog(title, content, buttons, attributes) {
  const id = 'd' + Math.random().toString(36).slice(2);
  const d = h('dialog', { 'aria-labelledby': id, ...attributes }, h('form', { method: 'dialog' },
    h('header', {}, h('h2', { id }, title)), h('.dialog-body', {}, content), buttons && h('footer', {}, buttons)));
  d.addEventListener('close', () => d.remove());
  d.addEventListener('click', ev => { if (ev.target === d && !attributes?.modal) d.close(); });
  document.body.append(d);
  d.showModal();
  return d;
}

export function confirmBox(title, text, label, dangerous) {
  return new Promise(resolve => {
    const d = dialog(title, h('p', {}, text),
      [h('button', { value: '' }, 'Cancel'),
        h('button.primary' + (dangerous ? '.danger' : ''), { value: 'yes', autofocus: true }, label)]);
    d.addEventListener('close', () => resolve(d.returnValue === 'yes'));
  });
}

export function prompt(title, label, value, button = 'Save') {
  return new Promise(resolve => {
    const input = h('input', { type: 'text', value, maxlength: 200, 'aria-label': label, placeholder: label });
    const d = dialog(title, input, [h('button', { value: '', type: 'button', onclick: () => d.close() }, 'Cancel'),
      h('button.primary', { value: 'yes' }, button)]);
    d.addEventListener('close', () => resolve(d.returnValue === 'yes' ? input.value.trim() : null));
    input.focus();
    input.select();
  });
}

// items: {icon, label, run, danger, checked} or null for a line.
export function menu(anchor, items) {
  closeMenus();
  const list = items.filter(i => i !== false && i !== undefined);
  const m = h('.menu', { role: 'menu' },
    list.map(i => i === null ? h('hr') : h('button' + (i.danger ? '.danger' : ''), {
      type: 'button', role: i.checked === undefined ? 'menuitem' : 'menuitemradio',
      'aria-checked': i.checked === undefined ? null : String(i.checked),
      onclick: () => {
        closeMenus();
        i.run();
      } }, i.icon ? icon(i.icon) : i.checked ? icon('check') : h('span.icon'), h('span', {}, i.label),
      i.note && h('small', {}, i.note))));
  document.body.append(m);
  const a = anchor.getBoundingClientRect(), b = m.getBoundingClientRect();
  m.style.left = Math.max(8, Math.min(a.left, innerWidth - b.width - 8)) + 'px';
  m.style.top = (a.bottom + b.height + 8 > innerHeight ? Math.max(8, a.top - b.height - 4) : a.bottom + 4) + 'px';
  const buttons = [...m.querySelectorAll('button')];
  m.addEventListener('keydown', ev => {
    const at = buttons.indexOf(document.activeElement), step = { ArrowDown: 1, ArrowUp: -1 }[ev.key];
    if (step) { ev.preventDefault(); buttons[(at + step + buttons.length) % buttons.length]?.focus(); }
    if (ev.key === 'Escape' || ev.key === 'Tab') {
      ev.preventDefault();
      ev.stopPropagation();
      closeMenus();
      anchor.focus();
    }
  });
  (buttons.find(x => x.getAttribute('aria-checked') === 'true') || buttons[0])?.focus();
  return m;
}

export function closeMenus() { for (const m of document.querySelectorAll('.menu')) m.remove(); }
addEventListener('pointerdown', ev => { if (!ev.target.closest('.menu')) closeMenus(); });
addEventListener('resize', closeMenus);

export function field(label, input, help) {
  input.id ||= 'f' + Math.random().toString(36).slice(2);
  return h('.field', {}, h('label', { for: input.id }, label), input, help && h('small', {}, help));
}

// ---- the key ----

let asking = null;

export function askForKey(problem) {
  if (asking) return;
  const input = h('input', { type: 'password', autocomplete: 'off', spellcheck: 'false', placeholder: 'zse-…',
    required: true });
  const remember = h('input', { type: 'checkbox' });
  const note = h('p.form-problem', { role: 'alert', hidden: !problem }, problem || '');
  const enter = h('button.primary', { value: 'yes', type: 'submit' }, 'Continue');
  const d = asking = dialog('Enter your API key', [
    h('p', {}, who.keys_required ? 'This server needs a key.'
      : 'Managing this server needs a key of scope admin, or the administrator’s token.'),
    note, field('API key', input,
      'An administrator makes one with zse-apikey create NAME. The administrator’s token is in admin.token in the folder of ZSE.'),
    h('label.check', {}, remember, h('span', {}, 'Remember it on this device'))],
    [!who.keys_required && h('button', { type: 'button', onclick: () => d.close() }, 'Cancel'), enter].filter(Boolean),
    { modal: who.keys_required });
  if (who.keys_required) d.addEventListener('cancel', ev => ev.preventDefault());
  d.querySelector('form').addEventListener('submit', async ev => {
    ev.preventDefault();
    const before = key;
    enter.disabled = true;
    key = input.value.trim();
    try {
      const r = await fetch('/api/whoami', { headers: { Authorization: 'Bearer ' + key }, cache: 'no-store' });
      if (!r.ok) throw await problemOf(r);
      who = await r.json();
      if (!who.by) throw new Problem(401, 'Invalid API key');
      keepKey(key, remember.checked);
      d.close();
      drawRail();
      show();
    } catch (e) {
      key = before;
      note.textContent = e.message;
      note.hidden = false;
      input.setAttribute('aria-invalid', 'true');
      input.select();
    }
    enter.disabled = false;
  });
  d.addEventListener('close', () => { asking = null; });
  input.focus();
}

async function forgetKey() {
  keepKey('');
  location.reload();
}

// ---- the frame: pages and the rail ----

const PAGES = [
  { id: 'chat', path: '/chat', label: 'Chat', icon: 'chat', file: './chat.js', seen: () => may('chat') },
  { id: 'dashboard', path: '/dashboard', label: 'Dashboard', icon: 'dashboard', file: './dashboard.js',
    seen: mayRead },
  { id: 'models', path: '/models', label: 'Models', icon: 'models', file: './models.js', seen: mayRead },
  { id: 'keys', path: '/keys', label: 'API keys', icon: 'keys', file: './manage.js', seen: () => who.features.keys &&
    (may('admin') || !who.by) },
  { id: 'audit', path: '/audit', label: 'Audit log', icon: 'audit', file: './manage.js',
    seen: () => who.features.audit && (may('admin') || !who.by) },
  { id: 'docs', path: '/docs', label: 'Documentation', icon: 'docs', file: './docs.js', seen: () => true },
];
const main = document.getElementById('main');
let leave = null, showing = 0;

const pageOf = path => PAGES.find(p => p.path === path) || PAGES[0];

export function navigate(path) {
  history.pushState(null, '', path);
  show();
}

export function setTitle(text) { document.title = text ? `${text} · ZSE` : 'ZSE'; }

async function show() {
  const turn = ++showing;
  let page = pageOf(location.pathname);
  if (page.id === 'chat' && !may('chat') && !who.keys_required) page = PAGES.find(p => p.seen());
  closeMenus();
  leave?.();
  leave = null;
  for (const a of document.querySelectorAll('#rail [data-page]')) {
    if (a.dataset.page === page.id) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  document.body.dataset.page = page.id;
  setTitle(page.id === 'chat' ? '' : page.label);
  if (who.keys_required && !who.by && page.id !== 'docs') {
    main.replaceChildren(emptyState('lock', 'This server needs a key', 'Enter the API key that you were given.',
      h('button.primary', { type: 'button', onclick: () => askForKey() }, 'Enter a key')));
    askForKey();
    return;
  }
  if (!page.seen()) {
    main.replaceChildren(emptyState('lock', `${page.label}: not with this key`,
      `The key “${who.name}” has the scopes ${who.scopes.join(', ')}.`));
    return;
  }
  try {
    const module = await import(page.file);
    if (turn !== showing) return;
    const before = [...main.childNodes];
    leave = module.mount(main, page.id) || null;
    for (const e of before) e.remove();
  } catch (e) {
    if (turn === showing) main.replaceChildren(emptyState('warn', 'This page could not be shown', e.message));
  }
}

function applyTheme() {
  const theme = kept.get('theme', 'dark');
  document.documentElement.dataset.theme = theme;
  const dark = theme === 'dark' || (theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.querySelector('meta[name="theme-color"]').content = dark ? '#0a0a0a' : '#ffffff';
}

function themeMenu(ev) {
  const now = kept.get('theme', 'dark');
  menu(ev.currentTarget, [['dark', 'Dark'], ['light', 'Light'], ['system', 'As the system']].map(([id, label]) => ({
    label, checked: now === id, run: () => { kept.set('theme', id); applyTheme(); } })));
}

function accountMenu(ev) {
  menu(ev.currentTarget, [
    { label: who.by === 'token' ? 'Administrator' : who.by ? `Key: ${who.name}` : 'Without a key',
      note: who.scopes.join(', '), icon: 'user', run() {} }, null,
    { label: hasKey() ? 'Use another key' : 'Enter a key', icon: 'keys', run: () => askForKey() },
    hasKey() && { label: 'Forget the key', icon: 'trash', danger: true, run: forgetKey }]);
}

function drawRail() {
  document.getElementById('pages').replaceChildren(...PAGES.filter(p => p.seen()).map(p =>
    h('a.rail-item', { href: p.path, 'data-page': p.id, 'aria-label': p.label, 'data-tip': p.label,
      'aria-current': document.body.dataset.page === p.id ? 'page' : null }, icon(p.icon), h('span', {}, p.label))));
  document.getElementById('rail-end').replaceChildren(
    h('button.rail-item', { type: 'button', 'aria-label': 'Theme', 'data-tip': 'Theme', onclick: themeMenu },
      icon('moon'), h('span', {}, 'Theme')),
    h('button.rail-item',
      { type: 'button', 'aria-label': 'Account', 'data-tip': who.by === 'token' ? 'Administrator' : who.name ||
        'API key', onclick: accountMenu }, icon('user'), h('span', {}, 'Account')));
}

// On a phone the rail and a page's sidebar are drawers.
export function toggleDrawer(open) {
  const is = document.body.classList.toggle('drawer-open', open);
  if (is) document.querySelector('#pages a')?.focus();
}

export function menuButton() {
  return iconButton('menu', 'Menu', () => toggleDrawer(), { class: 'icon-button phone-only' });
}

export function pageHead(title, ...more) {
  return h('header.page-head', {}, menuButton(), h('h1', {}, title), h('.spacer'), more);
}

addEventListener('click', ev => {
  const a = ev.target.closest?.('a[href^="/"]');
  if (document.body.classList.contains('drawer-open') &&
    !ev.target.closest('#rail, .convs, .phone-only, .menu, dialog')) toggleDrawer(false);
  if (!a || ev.defaultPrevented || ev.button || ev.ctrlKey || ev.metaKey || ev.shiftKey || a.target ||
    a.hasAttribute('download')) return;
  const path = new URL(a.href).pathname;
  if (!PAGES.some(p => p.path === path)) return;
  ev.preventDefault();
  toggleDrawer(false);
  navigate(a.getAttribute('href'));
  main.focus({ preventScroll: true });
});
addEventListener('popstate', () => {
  if (pageOf(location.pathname).id !== document.body.dataset.page) show();
  else dispatchEvent(new Event('zse-moved'));
});
addEventListener('keydown', ev => {
  if (ev.key === 'Escape' && document.body.classList.contains('drawer-open')) toggleDrawer(false);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', applyTheme);

async function start() {
  applyTheme();
  try {
    const r = await fetch('/api/whoami',
      { headers: key ? { Authorization: 'Bearer ' + key } : {}, cache: 'no-store' });
    if (r.status === 401) {                     // the stored key is no longer valid
      keepKey('');
      who = await (await fetch('/api/whoami', { cache: 'no-store' })).json();
    } else if (!r.ok) {
      throw await problemOf(r);
    } else {
      who = await r.json();
    }
    drawRail();
    await show();
  } catch (e) {
    main.replaceChildren(emptyState('warn', 'The server does not answer', e.message,
      h('button.primary', { type: 'button', onclick: start }, 'Try again')));
  }
}
start();
