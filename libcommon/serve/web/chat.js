// chat.js - the chat page: conversations at the side, the messages of one, and the composer.
//
// A conversation is a tree: an edited or regenerated message is a sibling of the one before.  An
// answer runs on when another page or conversation is shown, and is stored when it ends.

import { h, add, svg, icon, iconButton, menu, dialog, confirmBox, prompt, field, toast, fail, spinner, emptyState,
  copyText, saveFile, pickFiles,
  api, events, spec, kept, who, may, bytes, short, plural, number, setTitle, menuButton, toggleDrawer, hasKey,
    askForKey } from './core.js';
import { openHistory, branch, titleOf } from './history.js';
import { MarkdownView } from './markdown.js';

const running = new Map();                      // the answers being generated, by the id of their conversation
let page = null;                                // the chat page that is shown, or null
let models = [];

const LARGE_FILE = 200_000, STORED_RESULT = 20_000, STORED_THOUGHTS = 100_000;
const PARAMETERS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.1, start: 0.7,
    help: 'Low: precise. High: varied.' },
  { name: 'top_p', label: 'Top P', min: 0, max: 1, step: 0.05, start: 0.9,
    help: 'Only the most likely tokens that together have this probability.' },
  { name: 'max_tokens', label: 'Longest answer', min: 64, max: 4096, step: 64, start: 1024, help: 'In tokens.' },
];

// ---- messages as the model gets them ----

const partsOf = m => m.metadata?.parts || (m.content ? [{ type: 'text', text: m.content }] : []);
const textOf = parts => parts.filter(p => p.type === 'text').map(p => p.text).join('');

function* assistantMessages(parts) {
  let text = '', calls = [];
  const flush = function* () {
    if (!text && !calls.length) return;
    yield { role: 'assistant', content: text || (calls.length ? null : ''),
      ...(calls.length && { tool_calls: calls.map(c =>
        ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments || '{}' } })) }) };
    for (const c of calls) yield { role: 'tool', tool_call_id: c.id, content: c.result ?? 'This call was not run.' };
    text = '';
    calls = [];
  };
  for (const p of parts) {
    if (p.type === 'call') { calls.push(p); continue; }
    if (p.type !== 'text') continue;
    if (calls.length) yield* flush();
    text += p.text;
  }
  yield* flush();
}

function promptOf(conv, path, parts) {
  const out = conv.system_prompt ? [{ role: 'system', content: conv.system_prompt }] : [];
  for (const m of path) {
    if (m.role === 'assistant') out.push(...assistantMessages(partsOf(m)));
    else if (m.role === 'user' || m.role === 'system') out.push({ role: m.role, content: m.content });
  }
  if (parts.length) out.push(...assistantMessages(parts));
  return out;
}

// ---- an answer ----

class Answer {
  constructor(history, conv, path) {
    this.history = history;
    this.conv = conv;
    this.path = path;                           // up to the message that it answers
    this.abort = new AbortController();
    this.confirmed = new Set();
    this.message = { id: 'live', parent_id: path.at(-1)?.id ?? null, role: 'assistant', content: '', live: true,
      metadata: { parts: [], model: conv.model } };
    this.parts = this.message.metadata.parts;
    this.used = { prompt: 0, completion: 0, cached: 0 };
    this.decode_s = 0;
    this.onchange = () => {};
    this.started = performance.now();
  }

  body() {
    const s = this.conv.settings || {}, { thinking, tools, documents } = s;
    return { model: this.conv.model || 'default', messages: promptOf(this.conv, this.path, this.parts), stream: true,
      stream_options: { include_usage: true }, ...s.params,
      ...(thinking && thinking !== 'auto' && { chat_template_kwargs: { enable_thinking: thinking === 'on' } }),
      ...(who.features.tools && tools?.length &&
        { server_tools: tools, ...(this.confirmed.size && { confirmed_tools: [...this.confirmed] }) }),
      ...(who.features.documents && documents && { rag: documents === 'all' ? true : { document_ids: documents } }) };
  }

  grow(type, text) {
    let p = this.parts.at(-1);
    if (p?.type !== type) {
      if (p?.type === 'reasoning') p.seconds = (performance.now() - p.at) / 1000;
      this.parts.push(p = { type, text: '', at: performance.now() });
    }
    p.text += text;
  }

  call(id, name, text) {
    this.parts.push({ type: 'call', id, name, arguments: text, result: null, state: 'running' });
  }

  toolEvent(e) {
    if (e.type === 'call') { this.call(e.id, e.name, e.arguments); return; }
    const p = this.parts.findLast(x => x.type === 'call' && x.id === e.id);
    if (p) Object.assign(p, { result: e.content, state: e.is_error ? 'failed' : 'done', ms: e.ms });
  }

  // The calls of the last round that the server did not run, by their index in the stream.
  delta(d, open) {
    if (d.reasoning_content) this.grow('reasoning', d.reasoning_content);
    if (d.content) this.grow('text', d.content);
    for (const c of d.tool_calls || []) {
      if (!open[c.index]) {
        this.call(c.id, c.function?.name || '', '');
        open[c.index] = this.parts.at(-1);
        open[c.index].state = 'waiting';
      }
      open[c.index].arguments += c.function?.arguments || '';
    }
  }

  // One request.  Returns why calls wait, or null.
  async round() {
    const open = [], from = performance.now();
    let first = 0, last = 0, stop = null, used = null;
    for await (const e of events('/v1/chat/completions', this.body(), this.abort.signal)) {
      if (e.error) throw new Error(e.error.message || 'The answer failed.');
      if (e.usage) used = e.usage;
      if (e.citations) this.message.metadata.citations = e.citations;
      if (e.rag?.reason) this.message.metadata.found = e.rag.reason;
      if (e.tool_event) this.toolEvent(e.tool_event);
      if (e.tool_stop) stop = e.tool_stop;
      if (e.model) this.message.metadata.model = e.model;
      const c = e.choices?.[0];
      if (c?.delta && (c.delta.content || c.delta.reasoning_content || c.delta.tool_calls)) {
        last = performance.now();
        first ||= last;
        this.delta(c.delta, open);
      }
      if (c?.finish_reason) this.message.metadata.finish = c.finish_reason;
      this.onchange();
    }
    this.first_s ??= first ? (first - from) / 1000 : undefined;
    // a short answer may arrive at once: then the time of the whole request counts
    this.decode_s += (last - first > 100 ? last - first : performance.now() - from) / 1000;
    if (used) {
      this.used = { prompt: used.prompt_tokens, completion: this.used.completion + used.completion_tokens,
        cached: used.prompt_tokens_details?.cached_tokens || 0 };
      this.decoded = (this.decoded || 0) + Math.max(0, used.completion_tokens - 1);
    }
    return open.length ? stop || { reason: 'client_function', ids: open.map(c => c.id) } : null;
  }

  // Ask about calls, and run those that are allowed.  false: there is nothing to go on with.
  async settle(stop) {
    const calls = this.parts.filter(p => p.type === 'call' && p.state === 'waiting');
    if (stop.reason === 'max_rounds' || stop.reason === 'client_function') {
      for (const c of calls) c.state = 'not run';
      if (stop.reason === 'max_rounds')
        this.message.metadata.note = 'The model called tools again and again; the limit of rounds is reached.';
      return false;
    }
    for (const c of calls) {
      let allowed = true;
      if (stop.ids.includes(c.id) && !this.confirmed.has(c.name)) {
        allowed = await new Promise((resolve, reject) => {
          Object.assign(c, { state: 'ask' });
          Object.defineProperty(c, 'decide', { value: resolve, configurable: true });
          this.abort.signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError')));
          this.onchange();
        });
        if (allowed === 'always') this.confirmed.add(c.name);
      }
      c.state = allowed ? 'running' : 'refused';
      this.onchange();
      if (allowed) await this.run(c);
      else c.result = 'The user refused this call.';
    }
    return true;
  }

  async run(c) {
    const from = performance.now();
    try {
      const r = await api('/api/tools/execute',
        { body: { name: c.name, arguments: JSON.parse(c.arguments || '{}'), confirm: true, tool_call_id: c.id },
          signal: this.abort.signal });
      Object.assign(c, { result: r.error ?? r.result ?? '', state: r.error ? 'failed' : 'done',
        ms: performance.now() - from });
    } catch (e) {
      if (e.name === 'AbortError') throw e;
      Object.assign(c, { result: e.message, state: 'failed' });
    }
    this.onchange();
  }

  async go() {
    const m = this.message.metadata;
    try {
      for (let stop; (stop = await this.round()) && await this.settle(stop);) this.onchange();
    } catch (e) {
      if (e.name === 'AbortError') m.stopped = true;
      else m.error = e.message + (e.code === 'no_such_document' ? ': choose documents again, below.'
        : e.message?.startsWith('server_tools:') ? ': choose tools again, below.' : '');
    }
    for (const p of this.parts) {
      if (p.type === 'reasoning' && p.seconds === undefined) p.seconds = (performance.now() - p.at) / 1000;
      if (p.type === 'call' && ['running', 'waiting', 'ask'].includes(p.state)) p.state = 'not run';
    }
    Object.assign(m, { used: this.used, first_s: this.first_s, tokens_s: this.decode_s > 0 && this.decoded
      ? this.decoded / this.decode_s : undefined });
  }

  // The message for the history, without what grows too large there.
  stored() {
    const m = this.message, parts = this.parts.map(({ at, ...p }) => ({ ...p,
      ...(p.type === 'reasoning' && { text: p.text.slice(0, STORED_THOUGHTS) }),
        ...(p.type === 'call' && p.result != null && { result: p.result.slice(0, STORED_RESULT) }) }));
    const plain = parts.every(p => p.type === 'text');
    const { parts: all, ...metadata } = m.metadata;
    return { role: 'assistant', content: textOf(parts), parent_id: m.parent_id, tokens: this.used.completion ||
      undefined,
      latency_ms: Math.round(performance.now() - this.started), metadata: plain ? metadata : { ...metadata, parts } };
  }
}

// ---- a message on the page ----

const STATES = { running: 'runs…', waiting: 'waits', ask: 'needs your permission', refused: 'refused',
  failed: 'failed', 'not run': 'not run' };
const pretty = text => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

function citeButton(c) {
  return h('sup.cite', {},
    h('button', { type: 'button', 'aria-label': `Source ${c.index}: ${c.document_name}`,
      onclick: () => showSource(c) }, String(c.index)));
}

function showSource(c) {
  dialog(c.document_name,
    [h('p', {}, [c.page && `Page ${c.page}`, c.heading, c.score != null &&
      `relevance ${number(c.score, 2)}`].filter(Boolean).join(' · ')),
    h('.call-body', {}, h('pre', {}, c.text))], [h('button.primary', { value: '' }, 'Close')], { class: 'wide' });
}

class PartView {
  constructor(part, message) {
    this.part = part;
    this.message = message;
    if (part.type === 'text') {
      this.root = h('.prose');
      this.view = new MarkdownView(this.root, { cite: n => {
        const c = message.metadata?.citations?.find(x => x.index === n);
        return c && citeButton(c);
      } });
    } else if (part.type === 'reasoning') {
      this.label = h('span');
      this.text = h('.text');
      this.root = h('details.think', {}, h('summary', {}, icon('down'), this.label), this.text);
    } else {
      this.state = h('small');
      this.body = h('.call-body');
      this.root = h('details.call', {}, h('summary', {}, icon('tool'), h('span', {}, part.name), this.state),
        this.body);
    }
  }

  update(last) {
    const p = this.part;
    if (p.type === 'text') {
      this.view.update(p.text);
    } else if (p.type === 'reasoning') {
      const now = this.message.live && last;
      this.root.classList.toggle('running', !!now);
      this.label.textContent = now ? 'Thinking…' : p.seconds >= 1
        ? `Thought for ${plural(Math.round(p.seconds), 'second')}` : 'Thought for a moment';
      if (this.text.textContent !== p.text) this.text.textContent = p.text;
    } else this.updateCall(p);
  }

  updateCall(p) {
    this.root.classList.toggle('bad', p.state === 'failed' || p.state === 'refused');
    this.state.textContent = STATES[p.state] ||
      (p.ms !== undefined ? p.ms < 1000 ? `${Math.max(1, Math.round(p.ms))} ms` : `${(p.ms / 1000).toFixed(1)} s`
      : 'done');
    const shown = `${p.state}\n${p.arguments}\n${p.result}`;
    if (shown === this.shown) return;
    this.shown = shown;
    this.body.replaceChildren(h('div', {}, h('h4', {}, 'Arguments'), h('pre', {}, pretty(p.arguments || '{}'))));
    if (p.result != null)
      this.body.append(h('div', {}, h('h4', {}, p.state === 'failed' ? 'Error' : 'Result'),
      h('pre', {}, pretty(p.result))));
    this.question?.remove();
    if (p.state === 'ask') {
      this.root.open = true;
      this.question = h('.ask', { role: 'group', 'aria-label': `Permission for ${p.name}` },
        h('span', {}, 'May this tool run?'), h('.spacer'),
        h('button', { type: 'button', onclick: () => p.decide(false) }, 'Refuse'),
          h('button', { type: 'button', onclick: () => p.decide('always') }, 'Always in this answer'),
        h('button.primary', { type: 'button', onclick: () => p.decide(true) }, 'Run it'));
      this.root.append(this.question);
    }
  }
}

class MessageView {
  constructor(chat, message) {
    this.chat = chat;
    this.message = message;
    this.parts = [];
    this.content = h('.content');
    this.foot = h('.message-foot');
    this.root = h('article.message.' + message.role,
      { 'aria-label': message.role === 'user' ? 'You' : 'Assistant', 'data-id': message.id });
    add(this.root, [this.content, this.foot]);
    if (message.role === 'user') this.drawUser();
    else this.update();
  }

  drawUser() {
    this.root.classList.remove('editing');
    const m = this.message, files = m.metadata?.files || [];
    this.content.replaceChildren(
      ...(files.length ? [h('.files', {},
        files.map(f => h('.file', { title: f.name }, icon('file'), h('span', {}, f.name),
          h('small', {}, bytes(f.size)))))] : []),
      h('.bubble', {}, m.metadata?.text ?? m.content));
    this.drawFoot();
  }

  update() {
    const m = this.message, parts = partsOf(m);
    parts.forEach((p, i) => {
      if (this.parts[i]?.part !== p) {
        const v = new PartView(p, m);
        if (this.parts[i]) this.parts[i].root.replaceWith(v.root);
        else this.content.insertBefore(v.root, this.after || null);
        this.parts[i] = v;
      }
      this.parts[i].update(i === parts.length - 1);
    });
    this.after?.remove();
    this.after = null;
    const last = parts.at(-1), meta = m.metadata || {};
    if (m.live && (!last || (last.type === 'call' && last.state !== 'ask')))
      this.after = h('span.cursor', { role: 'status', 'aria-label': 'The model works' });
    else if (meta.error) this.after = h('.note.bad', { role: 'alert' }, icon('warn'), h('span', {}, meta.error));
    else if (!m.live && (meta.note || meta.found || meta.finish === 'length'))
      this.after = h('.note', {},
      h('span', {}, meta.note || meta.found || 'The answer was cut off at the longest length.'));
    else if (!m.live && meta.stopped && !parts.length)
      this.after = h('.note', {}, h('span', {}, 'Stopped before the first word.'));
    else if (!m.live && meta.citations?.length)
      this.after = h('.sources', { 'aria-label': 'Sources' },
      meta.citations.map(c => h('button.chip', { type: 'button', onclick: () => showSource(c) }, `${c.index}`,
        h('span', {}, c.document_name + (c.page ? `, p. ${c.page}` : '')))));
    if (this.after) this.content.append(this.after);
    if (!m.live || !this.footDrawn) this.drawFoot();
  }

  figures() {
    const { used, tokens_s, first_s, model } = this.message.metadata || {};
    return [used?.completion && plural(used.completion, 'token'),
      tokens_s && `${number(tokens_s, tokens_s < 100 ? 1 : 0)} tokens/s`, first_s !== undefined && first_s < 100 &&
      `${first_s < 1 ? Math.round(first_s * 1000) + ' ms' : first_s.toFixed(1) + ' s'} to the first`,
      models.length > 1 && model].filter(Boolean).join(' · ');
  }

  drawFoot() {
    const { chat, message: m } = this, siblings = chat.siblings(m), at = siblings.indexOf(m);
    this.footDrawn = true;
    if (m.live) { this.foot.replaceChildren(); return; }
    const copy = iconButton('copy', 'Copy', () => copyText(m.metadata?.text ?? m.content, copy),
      { class: 'icon-button small' });
    const step = (by, name, label) => iconButton(name, label, () => chat.showBranch(siblings[at + by]),
      { class: 'icon-button small', disabled: !siblings[at + by] });
    this.foot.replaceChildren(...[
      siblings.length > 1 && h('span.branches', {}, step(-1, 'left', 'Earlier version'),
        h('span', { 'aria-label': `Version ${at + 1} of ${siblings.length}` }, `${at + 1} / ${siblings.length}`),
        step(1, 'right', 'Later version')),
      copy,
      m.role === 'user' ? iconButton('edit', 'Edit', () => this.edit(), { class: 'icon-button small' })
        : iconButton('retry', 'Answer again', () => chat.again(m), { class: 'icon-button small' }),
      m.role === 'assistant' && h('span.figures', {}, this.figures()),
    ].filter(Boolean));
  }

  edit() {
    const m = this.message, old = m.metadata?.text ?? m.content;
    const area = h('textarea', { 'aria-label': 'Edit the message', rows: 1, value: old });
    const grow = () => { area.style.height = 'auto'; area.style.height = area.scrollHeight + 'px'; };
    const save = () => {
      const text = area.value.trim();
      if (text) this.chat.resend(m, text);
    };
    this.content.replaceChildren(h('.edit', {}, area,
      h('div', {}, h('button', { type: 'button', onclick: () => this.drawUser() }, 'Cancel'),
        h('button.primary', { type: 'button', onclick: save }, 'Send'))));
    this.root.classList.add('editing');
    this.foot.replaceChildren();
    area.addEventListener('input', grow);
    area.addEventListener('keydown', ev => {
      if (ev.key === 'Enter' && !ev.shiftKey && !ev.isComposing) { ev.preventDefault(); save(); }
      if (ev.key === 'Escape') { ev.stopPropagation(); this.drawUser(); }
    });
    grow();
    area.focus();
    area.setSelectionRange(old.length, old.length);
  }
}

// ---- the page ----

// ChatGPT's conversations.json and Open WebUI's export are lists of trees, a file of LM Studio is
// one conversation of messages in versions; null: it is none of them.
function foreignOf(data) {
  const list = Array.isArray(data) ? data : [data];
  if (list.length && list.every(c => c?.mapping)) return { format: 'chatgpt', list };
  if (list.length && list.every(c => c?.messages?.[0]?.versions)) return { format: 'lm-studio', list };
  return list.length && list.every(c => (c?.chat || c)?.history?.messages) ? { format: 'open-webui', list } : null;
}

class Chat {
  constructor(root) {
    this.history = openHistory();
    this.conversations = [];
    this.files = [];
    this.tag = null;
    this.views = [];
    this.draw(root);
    this.newChat(false, true);
    this.listeners = new AbortController();
    const on = (type, f) => addEventListener(type, f, { signal: this.listeners.signal });
    on('keydown', ev => this.keys(ev));
    on('zse-moved', () => this.openAddress());
    on('pagehide', () => {
      for (const a of running.values())
        if (a.parts.length)
          a.history.add(a.conv.id, { ...a.stored(), metadata: { ...a.stored().metadata, stopped: true } },
            true)?.catch(() => {});
    });
    this.load();
  }

  leave() {
    this.listeners.abort();
    for (const a of running.values()) a.onchange = () => {};
    page = null;
  }

  // ---- making it ----

  draw(root) {
    this.searchInput = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search conversations',
      oninput: () => this.searchSoon() });
    this.tagBar = h('.tags', { hidden: true, role: 'group', 'aria-label': 'Tags' });
    this.listBox = h('.conv-list', { role: 'navigation', 'aria-label': 'Conversations' },
      [...'12345'].map(() => h('p', { style: null }, h('.skeleton'))));
    const side = h('aside.convs', { 'aria-label': 'Conversations' },
      h('.convs-head', {}, h('h2', {}, 'Chats'),
        iconButton('upload', 'Import a conversation', () => this.importFile()),
        iconButton('plus', 'New chat (Ctrl+Shift+O)', () => this.newChat(), { id: 'new-chat' })),
      h('.search', {}, icon('search'), this.searchInput), this.tagBar, this.listBox,
      h('.convs-foot', {}, h('span', {}, this.history.local ? 'Kept in this browser' : ''), h('.spacer'),
        iconButton('keyboard', 'Keyboard shortcuts', () => this.help(), { class: 'icon-button small' }),
        iconButton('more', 'More', ev => this.sideMenu(ev.currentTarget), { class: 'icon-button small' })));
    this.title = h('h1.thread-title');
    this.headButtons = h('.row');
    this.box = h('.messages', { role: 'log', 'aria-label': 'Messages', 'aria-live': 'polite' });
    this.scroll = h('.scroll', { onscroll: () => this.scrolled() }, this.box);
    this.thread = h('section.thread', { 'aria-label': 'Conversation' },
      h('header.thread-head', {}, menuButton(),
        iconButton('sidebar', 'Show or hide the conversations', () => this.toggleSide(),
          { class: 'icon-button desktop-only' }), this.title, h('.spacer'), this.headButtons),
      this.scroll, this.drawComposer());
    this.root = h('.chat' + (kept.get('side', true) ? '' : '.no-side'), {}, side, this.thread);
    root.append(this.root);
  }

  drawComposer() {
    this.input = h('textarea',
      { rows: 1, placeholder: 'Ask anything', 'aria-label': 'Message', oninput: () => this.grow(),
        onpaste: ev => this.pasted(ev) });
    this.input.addEventListener('keydown', ev => {
      if (ev.key === 'Enter' && !ev.shiftKey && !ev.isComposing && !matchMedia('(pointer: coarse)').matches) {
        ev.preventDefault();
        this.submit();
      }
      if (ev.key === 'ArrowUp' && !this.input.value) this.views.findLast(v => v.message.role === 'user')?.edit();
    });
    this.sendButton = h('button.send', { type: 'button', onclick: () => this.submit() });
    this.fileBox = h('.files', { hidden: true });
    this.modelButton = h('button.model.x',
      { type: 'button', 'aria-label': 'Model', 'aria-haspopup': 'menu',
        onclick: ev => this.modelMenu(ev.currentTarget) });
    this.toolButton = iconButton('tool', 'Tools', () => this.chooseTools(),
      { class: 'icon-button badge', hidden: !who.features.tools });
    this.bookButton = iconButton('book', 'Documents', () => this.chooseDocuments(),
      { class: 'icon-button badge', hidden: !who.features.documents });
    this.context = h('span.context', { hidden: true });
    this.toEnd = iconButton('down', 'To the end', () => this.end(true),
      { class: 'icon-button to-end', hidden: true });
    this.composer = h('.composer', {}, this.fileBox, this.input,
      h('.composer-bar', {}, iconButton('clip', 'Attach files', () => this.attach()), this.toolButton,
        this.bookButton,
      iconButton('sliders', 'Settings of this chat', () => this.togglePanel(),
        { class: 'icon-button', id: 'settings-button', 'aria-expanded': 'false' }), h('.spacer'), this.context,
        this.modelButton, this.sendButton));
    for (const [type, over] of [['dragenter', true], ['dragover', true], ['dragleave', false], ['drop', false]])
      this.composer.addEventListener(type, ev => {
        if (!ev.dataTransfer?.types.includes('Files')) return;
        ev.preventDefault();
        this.composer.classList.toggle('drag', over);
        if (type === 'drop') this.addFiles([...ev.dataTransfer.files]);
      });
    return h('.composer-area', {}, this.toEnd, this.composer,
      h('p.hint', {}, 'Answers can be wrong. Check what matters.'));
  }

  grow() {
    this.input.style.height = 'auto';
    this.input.style.height = this.input.scrollHeight + 'px';
    this.drawSend();
  }

  drawSend() {
    const busy = this.answer();
    this.sendButton.setAttribute('aria-label', busy ? 'Stop' : 'Send');
    this.sendButton.title = busy ? 'Stop (Esc)' : 'Send (Enter)';
    this.sendButton.disabled = !busy && !this.input.value.trim() && !this.files.length;
    if (this.sendButton.dataset.state !== String(!!busy))
      this.sendButton.replaceChildren(icon(busy ? 'stop' : 'send'));
    this.sendButton.dataset.state = String(!!busy);
  }

  answer() { return this.conv.id && running.get(this.conv.id); }

  // ---- loading ----

  async load() {
    await Promise.all([this.loadModels(), this.loadList()]);
    this.openAddress();
  }

  async loadModels() {
    try { models = (await api('/v1/models')).data; } catch (e) { fail(e); }
    if (!models.length) this.waiting = setTimeout(() => page === this && this.loadModels(), 3000);
    this.drawModel();
    this.drawWelcome();
  }

  async loadList() {
    try {
      const { conversations, total } = await this.history.list(0, 200);
      this.conversations = conversations;
      this.total = total;
      this.drawList();
    } catch (e) {
      this.listBox.replaceChildren(h('.empty', {}, h('p', {}, e.message),
        h('button', { type: 'button', onclick: () => this.loadList() }, 'Try again')));
    }
  }

  openAddress() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id && id !== this.conv.id) this.open(id);
    else if (!id && this.conv.id) this.newChat(false);
  }

  // ---- the list ----

  groups(list) {
    const day = 86400000, midnight = new Date().setHours(0, 0, 0, 0), out = new Map();
    for (const c of list) {
      const t = Date.parse(c.updated_at);
      const name = c.pinned ? 'Pinned' : t >= midnight ? 'Today' : t >= midnight - day ? 'Yesterday'
        : t >= midnight - 7 * day ? 'Last 7 days' : t >= midnight - 30 * day ? 'Last 30 days' : new Date(t)
        .toLocaleDateString('en', { month: 'long', year: 'numeric' });
      if (!out.has(name)) out.set(name, []);
      out.get(name).push(c);
    }
    return out;
  }

  row(c, extra) {
    const more = iconButton('more', `More about “${c.title}”`, ev => this.conversationMenu(c, ev.currentTarget),
      { class: 'icon-button small', 'aria-haspopup': 'menu' });
    return h('.conv-row' + (c.id === this.conv.id ? '.current' : ''), {},
      h('a.conv', { href: '/chat#' + c.id, 'aria-current': c.id === this.conv.id ? 'page' : null, onclick: ev => {
      if (ev.ctrlKey || ev.metaKey || ev.shiftKey) return;
      ev.preventDefault();
      this.open(c.id);
      toggleDrawer(false);
    } }, h('span', {}, c.title), extra, !extra && c.tags?.length
      ? h('span.snippet', {}, c.tags.map(t => '#' + t).join(' ')) : null), more);
  }

  drawList() {
    const tags = [...new Set(this.conversations.flatMap(c => c.tags || []))].sort();
    if (!tags.includes(this.tag)) this.tag = null;
    this.tagBar.hidden = !tags.length;
    this.tagBar.replaceChildren(
      ...tags.map(t => h('button.chip', { type: 'button', 'aria-pressed': String(t === this.tag), onclick: () => {
      this.tag = this.tag === t ? null : t;
      this.drawList();
    } }, t)));
    if (this.searchInput.value.trim()) return;
    const list = this.tag ? this.conversations.filter(c => c.tags?.includes(this.tag)) : this.conversations;
    if (!list.length) {
      this.listBox.replaceChildren(h('.empty', {}, h('p', {}, 'Your conversations appear here.')));
      return;
    }
    this.listBox.replaceChildren(...[...this.groups(list)].map(([name, group]) =>
      h('section', {}, h('h3', {}, name), group.map(c => this.row(c)))));
    if (this.total > this.conversations.length)
      this.listBox.append(h('button.link', { type: 'button', onclick: async ev => {
      ev.currentTarget.disabled = true;
      try {
        this.conversations.push(...(await this.history.list(this.conversations.length, 200)).conversations);
        this.drawList();
      } catch (e) { fail(e); }
    } }, 'Show more'));
  }

  searchSoon() {
    clearTimeout(this.searchTimer);
    this.searching?.abort();
    if (!this.searchInput.value.trim()) { this.drawList(); return; }
    this.searchTimer = setTimeout(() => this.search(), 160);
  }

  async search() {
    const text = this.searchInput.value.trim();
    this.searching = new AbortController();
    try {
      const results = await this.history.search(text, this.searching.signal);
      if (this.searchInput.value.trim() !== text) return;
      this.listBox.replaceChildren(
        ...(results.length ? results.map(r =>
          this.row(r.conversation, r.matches[0] ? h('span.snippet', {}, this.marked(r.matches[0])) : null))
        : [h('.empty', {}, h('p', {}, `Nothing found for “${text}”.`))]));
    } catch (e) {
      if (e.name !== 'AbortError') this.listBox.replaceChildren(h('.empty', {}, h('p', {}, e.message)));
    }
  }

  marked({ snippet, ranges = [] }) {
    const out = [];
    let from = 0;
    for (const [a, b] of ranges) {
      out.push(snippet.slice(from, a), h('mark', {}, snippet.slice(a, b)));
      from = b;
    }
    return [...out, snippet.slice(from)];
  }

  conversationMenu(c, anchor) {
    menu(anchor, [
      { icon: 'edit', label: 'Rename', run: () => this.rename(c) },
      { icon: 'pin', label: c.pinned ? 'Unpin' : 'Pin', run: () => this.change(c, { pinned: !c.pinned }) },
      { icon: 'tag', label: 'Tags…', run: () => this.editTags(c) }, null,
      { icon: 'download', label: 'Export as Markdown', run: () => this.export(c, 'markdown') },
      { icon: 'download', label: 'Export as JSON', run: () => this.export(c, 'json') }, null,
      { icon: 'trash', label: 'Delete', danger: true, run: () => this.remove(c) }]);
  }

  sideMenu(anchor) {
    menu(anchor, [{ icon: 'upload', label: 'Import a conversation', run: () => this.importFile() }, null,
      { icon: 'trash', label: 'Delete all conversations', danger: true, run: () => this.removeAll() }]);
  }

  async change(c, fields) {
    try {
      const changed = await this.history.change(c.id, fields);
      if (this.conv.id === c.id) { Object.assign(this.conv, changed); this.drawHead(); }
      await this.loadList();
      if (this.searchInput.value.trim()) this.search();
      return true;
    } catch (e) { fail(e); return false; }
  }

  async rename(c) {
    const title = await prompt('Rename the conversation', 'Title', c.title);
    if (title) await this.change(c, { title });
  }

  async editTags(c) {
    const text = await prompt('Tags', 'work, ideas', (c.tags || []).join(', '));
    if (text !== null)
      await this.change(c, { tags: [...new Set(text.split(',').map(t => t.trim()).filter(Boolean))] });
  }

  async remove(c) {
    if (!await confirmBox('Delete this conversation?',
      `“${c.title}” and its ${plural(c.message_count, 'message')} will be gone.`, 'Delete', true)) return;
    try {
      running.get(c.id)?.abort.abort();
      await this.history.remove(c.id);
      if (this.conv.id === c.id) this.newChat();
      await this.loadList();
      if (this.searchInput.value.trim()) this.search();
    } catch (e) { fail(e); }
  }

  async removeAll() {
    if (!await confirmBox('Delete all conversations?',
      'Every conversation and its messages will be gone. This cannot be undone.', 'Delete all', true)) return;
    try {
      for (const a of running.values()) a.abort.abort();
      await this.history.removeAll();
      this.newChat();
      await this.loadList();
    } catch (e) { fail(e); }
  }

  async export(c, format) {
    try {
      const { content, filename } = await this.history.export(c.id, format);
      saveFile(filename || `conversation.${format === 'json' ? 'json' : 'md'}`, format === 'json' ? 'application/json'
        : 'text/markdown', content);
    } catch (e) { fail(e); }
  }

  async importFile() {
    const [file] = await pickFiles('.json,application/json');
    if (!file) return;
    try {
      let data;
      try {
        data = JSON.parse(await file.text());
      } catch { throw new Error(`${file.name} is not JSON: expected an exported conversation.`); }
      const many = foreignOf(data);
      if (many) return this.importMany(many);
      let c;
      try { c = await this.history.import(data); } catch (e) {
        if (e.status !== 409) throw e;
        c = await this.history.import(data, true);
      }
      await this.loadList();
      this.open(c.id);
    } catch (e) { fail(e); }
  }

  // The conversations of another program's file, one by one.
  async importMany({ format, list }) {
    let n = 0, last = null, why = null;
    for (const conversation of list) {
      try {
        last = await this.history.import({ format, conversation });
        n++;
      } catch (e) {
        why = e;
        if (!e.status || e.status === 401 || e.status === 403 || e.status >= 500) break;
      }
    }
    await this.loadList();
    toast(`${n} of ${plural(list.length, 'conversation')} imported${why ? `: ${why.message}` : ''}.`, why ? 'bad' : '');
    if (last) this.open(last.id);
  }

  // ---- one conversation ----

  newChat(focus = true, keepAddress = false) {
    const draft = kept.get('draft', {});
    this.conv = { id: null, title: '', model: kept.get('model', null), system_prompt: draft.system_prompt || null,
      settings: draft.settings || {}, tags: [] };
    this.messages = [];
    this.leaf = null;
    this.files = [];
    if (location.hash && !keepAddress) history.pushState(null, '', '/chat');
    this.drawAll();
    if (focus) { toggleDrawer(false); this.input.focus(); }
  }

  async open(id) {
    const turn = this.turn = {};
    if (decodeURIComponent(location.hash.slice(1)) !== id) history.pushState(null, '', '/chat#' + id);
    for (const r of this.listBox.querySelectorAll('.conv-row'))
      r.classList.toggle('current', r.firstChild.hash === '#' + id);
    const slow = setTimeout(() => { if (this.turn === turn) {
      this.thread.classList.remove('fresh');
      this.box.replaceChildren(spinner('Loading the conversation'));
    } }, 150);
    try {
      const [conv, { messages, active_leaf }] = await Promise.all([this.history.get(id), this.history.messages(id)]);
      if (this.turn !== turn) return;
      Object.assign(this, { conv, messages, leaf: active_leaf, files: [] });
      const a = running.get(id);
      if (a) { this.messages.push(a.message); this.leaf = 'live'; }
      this.drawAll();
      this.end(true);
      this.input.focus();
    } catch (e) {
      if (this.turn !== turn) return;
      if (e.status === 404 || !e.status) {
        this.newChat();
        toast('This conversation does not exist any more.');
      } else {
        this.box.replaceChildren(emptyState('warn', 'This conversation could not be loaded', e.message,
          h('button', { type: 'button', onclick: () => this.open(id) }, 'Try again')));
      }
    } finally { clearTimeout(slow); }
  }

  siblings(m) { return this.messages.filter(x => x.parent_id === m.parent_id && x.role === m.role); }

  async showBranch(m) {
    let leaf = m;
    for (let next; (next = this.messages.findLast(x => x.parent_id === leaf.id)); leaf = next);
    this.leaf = leaf.id;
    this.drawMessages();
    this.views.find(v => v.message === m)?.root.scrollIntoView({ block: 'nearest' });
    if (typeof leaf.id === 'number') this.history.change(this.conv.id, { active_leaf: leaf.id }).catch(fail);
  }

  drawAll() {
    this.drawHead();
    this.drawMessages();
    this.drawFiles();
    this.drawModel();
    this.drawBadges();
    this.drawContext();
    this.grow();
    if (this.panel) { this.panel.remove(); this.panel = this.drawPanel(); this.root.append(this.panel); }
    for (const r of this.listBox.querySelectorAll('.conv-row'))
      r.classList.toggle('current', !!this.conv.id && r.firstChild.hash === '#' + this.conv.id);
    const a = this.answer();
    if (a) this.follow(a);
  }

  drawHead() {
    this.title.textContent = this.conv.title;
    setTitle(this.conv.title);
    this.headButtons.replaceChildren(
      ...(this.conv.id ? [iconButton('more', 'More about this conversation',
        ev => this.conversationMenu(this.conv, ev.currentTarget))] : []),
      iconButton('plus', 'New chat', () => this.newChat(), { class: 'icon-button phone-only' }));
  }

  drawWelcome() {
    if (!this.thread.classList.contains('fresh')) return;
    const hour = new Date().getHours(), none = !models.length;
    this.box.replaceChildren(h('.welcome', {},
      h('h2', {}, none ? 'No model is ready yet' : hour < 5 ? 'Good night' : hour < 12 ? 'Good morning' : hour < 18
        ? 'Good afternoon' : 'Good evening'),
      h('p', {}, none ? 'It may still be loading. The Models page loads one.' : 'What would you like to know?')));
  }

  drawMessages() {
    const path = branch(this.messages, this.leaf);
    this.thread.classList.toggle('fresh', !path.length);
    this.views = path.filter(m => m.role !== 'tool').map(m => new MessageView(this, m));
    this.box.replaceChildren(...this.views.map(v => v.root));
    this.drawWelcome();
    this.scrolled();
  }

  scrolled() {
    const s = this.scroll;
    this.atEnd = s.scrollHeight - s.scrollTop - s.clientHeight < 60;
    this.toEnd.hidden = this.atEnd || this.thread.classList.contains('fresh');
  }

  end(force) { if (force || this.atEnd) this.scroll.scrollTop = this.scroll.scrollHeight; }

  // ---- sending ----

  submit() {
    const busy = this.answer();
    if (busy) { busy.abort.abort(); return; }
    const text = this.input.value.trim();
    if (!text && !this.files.length) return;
    if (this.files.some(f => f.state === 'loading')) { toast('A file is still being read.'); return; }
    const files = this.files;
    this.input.value = '';
    this.files = [];
    this.drawFiles();
    this.grow();
    this.send(text, files, this.leaf);
  }

  // The message with the texts of its files before it.
  compose(text, files) {
    const pasted = files.filter(f => f.text !== undefined);
    return pasted.map(f => `<document name="${f.name.replace(/["<>\n]/g, ' ')}">\n${f.text}\n</document>\n\n`).join('') + text;
  }

  async send(text, files, parent, metadata) {
    const listed = files.map(f => ({ name: f.name, size: f.size, ...(f.document && { document: f.document }) }));
    const meta = metadata || (files.length ? { text, files: listed } : {});
    try {
      // the history would take the first line of a pasted file
      if (!this.conv.id) await this.create(files.length ? titleOf(text || files[0].name) : undefined);
      const uploaded = files.filter(f => f.document).map(f => f.document);
      if (uploaded.length && this.conv.settings.documents !== 'all')
        await this.changeSettings(
        { documents: [...new Set([...(this.conv.settings.documents || []), ...uploaded])] });
    } catch (e) { fail(e); this.input.value = text; this.files = files; this.drawFiles(); this.grow(); return; }
    const m = await this.store({ role: 'user', content: this.compose(text, files), parent_id: parent,
      metadata: meta });
    if (this.conv.title === 'New Chat' || !this.conv.title) this.conv.title = titleOf(text || files[0].name);
    this.drawHead();
    this.start(m);
    this.loadList();
  }

  async create(title) {
    const c = this.conv, conv = await this.history.create({ ...(title && { title }), model: c.model,
      system_prompt: c.system_prompt, settings: c.settings });
    this.conv = conv;
    history.replaceState(null, '', '/chat#' + conv.id);
  }

  // Keep a message; one that cannot be stored stays on the page.
  async store(message, conv = this.conv, store = this.history) {
    let m;
    try { m = await store.add(conv.id, message); } catch (e) {
      fail(new Error('Not saved: ' + e.message));
      m = { ...message, id: 'unsaved-' + Math.random() };
    }
    if (this.conv.id === conv.id) { this.messages.push(m); this.leaf = m.id; }
    return m;
  }

  start(after) {
    const conv = this.conv, a = new Answer(this.history, conv, branch(this.messages, after.id));
    running.set(conv.id, a);
    this.messages.push(a.message);
    this.leaf = 'live';
    this.drawMessages();
    this.end(true);
    this.follow(a);
    a.go().then(() => this.finish(a));
  }

  // Show the answer as it grows: once a frame.
  follow(a) {
    let drawn = false;
    this.box.setAttribute('aria-busy', 'true');
    a.onchange = () => {
      if (drawn) return;
      drawn = true;
      requestAnimationFrame(() => {
        drawn = false;
        const v = this.views.find(x => x.message === a.message);
        if (!v || page !== this) return;
        v.update();
        this.end();
      });
    };
    this.drawSend();
    this.drawContext();
  }

  async finish(a) {
    const here = page?.conv.id === a.conv.id ? page : null, { message } = a;
    a.onchange = () => {};
    const stored = a.stored();
    let m;
    try { m = await a.history.add(a.conv.id, stored); } catch (e) {
      fail(new Error('Not saved: ' + e.message));
      m = { ...stored, id: 'unsaved-' + Math.random() };
    }
    running.delete(a.conv.id);
    if (!here || page !== here || here.conv.id !== a.conv.id) { page?.loadList(); return; }
    here.messages = here.messages.filter(x => x !== message);
    here.messages.push(m);
    if (here.leaf === 'live') here.leaf = m.id;
    const v = here.views.find(x => x.message === message);
    if (v) {
      v.message = m;
      m.metadata ||= {};
      // the parts keep their views: nothing jumps, and what was unfolded stays so
      if (m.metadata.parts || v.parts.length === 1) {
        m.metadata.parts ||= partsOf({ ...m });
        v.parts.forEach((p, i) => { p.message = m; p.part = m.metadata.parts[i] ?? p.part; });
      }
      v.root.dataset.id = m.id;
      v.update();
      for (const other of here.views) if (other !== v) other.drawFoot();
    }
    here.box.removeAttribute('aria-busy');
    here.end();
    here.drawSend();
    here.drawContext();
    here.loadList();
    if (matchMedia('(pointer: fine)').matches) here.input.focus();
  }

  again(m) {
    const parent = this.messages.find(x => x.id === m.parent_id);
    if (parent && !this.answer()) { this.leaf = parent.id; this.start(parent); }
  }

  resend(m, text) {
    if (this.answer()) return;
    const files = m.metadata?.files, old = m.metadata?.text ?? m.content;
    // documents that were pasted before the text stay there
    const content = m.content.endsWith(old) ? m.content.slice(0, m.content.length - old.length) + text : text;
    this.store({ role: 'user', content, parent_id: m.parent_id, metadata: files ? { ...m.metadata, text } : {} })
      .then(x => {
      this.start(x);
      this.loadList();
    });
  }

  // ---- files ----

  async attach() {
    this.addFiles(await pickFiles(who.features.documents ? ''
      : 'text/*,.md,.json,.csv,.xml,.yaml,.toml,.py,.js,.c,.h,.rs,.go,.java,.sh', true));
  }

  pasted(ev) {
    const files = [...(ev.clipboardData?.files || [])];
    if (!files.length) return;
    ev.preventDefault();
    this.addFiles(files);
  }

  async addFiles(files) {
    for (const file of files) {
      const f = { name: file.name, size: file.size, state: 'loading' };
      this.files.push(f);
      this.drawFiles();
      try { await this.readFile(f, file); } catch (e) {
        this.files = this.files.filter(x => x !== f);
        fail(e);
      }
      this.drawFiles();
      this.grow();
    }
    this.input.focus();
  }

  // A short text goes into the message; other files become documents of the server, if it has them.
  async readFile(f, file) {
    const head = new Uint8Array(await file.slice(0, 4096).arrayBuffer()), binary = head.includes(0) ||
      /\.(pdf|docx|odt|epub)$/i.test(file.name);
    if (!binary && file.size <= LARGE_FILE) {
      f.text = await file.text();
    } else if (who.features.documents) {
      const form = new FormData();
      form.append('file', file);
      form.append('collection', 'chats');
      try { f.document = (await api('/api/rag/documents/upload', { form })).id; } catch (e) {
        if (e.status !== 409) throw e;
        const same = (await api('/api/rag/documents?limit=1000')).documents.find(d => d.name === file.name);
        if (!same) throw e;
        f.document = same.id;
      }
    } else {
      throw new Error(binary ? `${file.name}: this server reads text files only.`
        : `${file.name}: ${bytes(file.size)}, expected at most ${bytes(LARGE_FILE)}.`);
    }
    f.state = 'ready';
  }

  drawFiles() {
    this.fileBox.hidden = !this.files.length;
    this.fileBox.replaceChildren(
      ...this.files.map(f => h('.file', { title: f.name }, icon('file'), h('span', {}, f.name),
        h('small', {}, f.state === 'loading' ? 'reading…' : bytes(f.size)),
      iconButton('close', `Remove ${f.name}`, () => {
        this.files = this.files.filter(x => x !== f);
        this.drawFiles();
        this.drawSend();
      }, { class: 'icon-button small' }))));
  }

  // ---- model, tools, documents, settings ----

  model() { return models.find(m => m.id === this.conv.model) || models[0]; }

  drawModel() { this.modelButton.replaceChildren(h('span', {}, this.model()?.id || 'no model'), icon('down')); }

  modelMenu(anchor) {
    if (!models.length) { this.loadModels(); return; }
    menu(anchor, models.map(m => ({ label: m.id, checked: m === this.model(), note: m.quantization || '', run: () => {
      this.conv.model = m.id;
      kept.set('model', m.id);
      if (this.conv.id) this.change(this.conv, { model: m.id });
      this.drawModel();
      this.drawContext();
    } })));
  }

  drawBadges() {
    const s = this.conv.settings, mark = (b, n, on) => { if (on) b.dataset.count = n; else delete b.dataset.count; };
    mark(this.toolButton, s.tools?.length, s.tools?.length);
    mark(this.bookButton, s.documents === 'all' ? '∗' : s.documents?.length, s.documents?.length);
  }

  drawContext() {
    const last = branch(this.messages, this.leaf).findLast(m => m.metadata?.used?.prompt),
      most = this.model()?.max_model_len || this.model()?.context_length || this.model()?.context;
    this.context.hidden = !last || !most;
    if (this.context.hidden) return;
    const { prompt: p, completion } = last.metadata.used, part = Math.min(1, (p + completion) / most),
      around = 2 * Math.PI * 6;
    this.context.replaceChildren(svg('svg',
      { viewBox: '0 0 16 16', class: 'ring' + (part > .9 ? ' full' : ''), 'aria-hidden': 'true' },
      svg('circle', { cx: 8, cy: 8, r: 6 }),
      svg('circle', { cx: 8, cy: 8, r: 6, 'stroke-dasharray': `${part * around} ${around}` })),
      h('span.desktop-only', {}, `${short(p + completion)} / ${short(most)}`));
    this.context.title = `${number(p + completion)} of ${number(most)} tokens of the context are used`;
    this.context.setAttribute('aria-label', this.context.title);
  }

  async changeSettings(fields) {
    this.conv.settings = { ...this.conv.settings, ...fields };
    for (const [k, v] of Object.entries(this.conv.settings))
      if (v === undefined || v === null) delete this.conv.settings[k];
    this.drawBadges();
    if (this.conv.id) await this.history.change(this.conv.id, { settings: this.conv.settings });
  }

  settingsSoon(fields) {
    this.conv.settings = { ...this.conv.settings, ...fields };
    clearTimeout(this.settingsTimer);
    const conv = this.conv;
    this.settingsTimer = setTimeout(() => {
      if (conv.id)
        this.history.change(conv.id, { settings: conv.settings, system_prompt: conv.system_prompt }).catch(fail);
    }, 500);
  }

  toggleSide() { kept.set('side', !this.root.classList.toggle('no-side')); }

  togglePanel() {
    const button = document.getElementById('settings-button');
    if (this.panel) {
      this.panel.remove();
      this.panel = null;
    } else {
      this.panel = this.drawPanel();
      this.root.append(this.panel);
      this.panel.querySelector('textarea').focus();
    }
    button.setAttribute('aria-expanded', String(!!this.panel));
  }

  slider(p) {
    const params = () => this.conv.settings.params || {}, out = h('output');
    const input = h('input', { type: 'range', min: p.min, max: p.max, step: p.step, 'aria-label': p.label,
      oninput: () => {
      this.settingsSoon({ params: { ...params(), [p.name]: Number(input.value) } });
      draw();
    } });
    const reset = h('button.link', { type: 'button', onclick: () => {
      const { [p.name]: gone, ...rest } = params();
      this.settingsSoon({ params: rest });
      draw();
    } }, 'reset');
    const root = h('.slider', {}, h('div', {}, h('span.label', {}, p.label), h('span', {}, out, ' ', reset)), input,
      h('span.help', {}, p.help));
    const draw = () => {
      const v = params()[p.name], set = v !== undefined;
      root.classList.toggle('unset', !set);
      input.value = set ? v : p.start;
      out.textContent = set ? v : 'model’s own';
      reset.hidden = !set;
    };
    draw();
    return root;
  }

  drawPanel() {
    const s = this.conv.settings;
    const system = h('textarea.system',
      { value: this.conv.system_prompt || '', placeholder: 'You are a helpful assistant.', oninput: () => {
      this.conv.system_prompt = system.value || null;
      this.settingsSoon({});
    } });
    const thinking = h('select', { onchange: () => this.settingsSoon({ thinking: thinking.value }) },
      [['auto', 'As the model does'], ['on', 'On'], ['off', 'Off']].map(([v, t]) => h('option', { value: v }, t)));
    thinking.value = s.thinking || 'auto';
    const more = h('details.more', {}, h('summary', {}, 'All parameters'), h('div', {}, spinner('Loading')));
    more.addEventListener('toggle', () => { if (more.open && !more.loaded) {
      more.loaded = true;
      this.drawMore(more.lastChild);
    } });
    return h('aside.panel', { 'aria-label': 'Settings of this chat' },
      h('.panel-head', {}, h('h2', {}, 'Settings of this chat'),
        iconButton('close', 'Close', () => this.togglePanel())),
      field('System prompt', system), PARAMETERS.map(p => this.slider(p)), field('Thinking', thinking), more,
      h('button', { type: 'button', onclick: () => {
        kept.set('draft', { system_prompt: this.conv.system_prompt,
          settings: { ...this.conv.settings, documents: undefined } });
        toast('New chats begin with these settings.');
      } }, 'Use for new chats'));
  }

  // Every number and text that the API takes, from its description.
  async drawMore(box) {
    try {
      const schema = (await spec())
        .paths['/v1/chat/completions'].post.requestBody.content['application/json'].schema.properties;
      const params = () => this.conv.settings.params || {}, shown = PARAMETERS.map(p => p.name);
      const skip = [...shown, 'n', 'top_logprobs', 'max_completion_tokens', 'priority', 'max_tool_rounds'];
      const input = (name, f) => {
        const text = name === 'grammar' || name === 'regex',
          e = h('input', { type: text ? 'text' : 'number', step: f.type === 'integer' ? 1 : 'any', min: f.minimum,
          max: f.maximum, value: params()[name] ?? '', placeholder: text ? '' : 'model’s own', onchange: () => {
          const { [name]: gone, ...rest } = params();
          const ok = e.checkValidity();
          e.setAttribute('aria-invalid', String(!ok));
          if (ok)
            this.settingsSoon({ params: e.value === '' ? rest
            : { ...rest, [name]: text ? e.value : Number(e.value) } });
        } });
        return field(name, e, f.description);
      };
      const stop = h('input', { type: 'text', value: [params().stop || []].flat().join(', '), onchange: () => {
        const { stop: gone, ...rest } = params(), list = stop.value.split(',').map(t => t.trim()).filter(Boolean);
        this.settingsSoon({ params: list.length ? { ...rest, stop: list } : rest });
      } });
      box.replaceChildren(...Object.entries(schema)
        .filter(([name, f]) => (['number', 'integer'].includes(f.type) || name === 'grammar' || name === 'regex') &&
          !skip.includes(name) && !/^(Ignored|Refused)/.test(f.description || '')).map(([n, f]) => input(n, f)),
        field('stop', stop, 'Texts at which the answer ends, with commas between.'));
    } catch (e) { box.replaceChildren(h('p.muted', {}, e.message)); }
  }

  async chooseTools() {
    const box = h('.stack', {}, spinner('Loading the tools'));
    const d = dialog('Tools',
      [h('p', {}, 'The model may call the tools that you choose. You are asked before one that changes something runs.'), box],
      [h('button.primary', { value: '' }, 'Done')], { class: 'wide' });
    try {
      const { tools, servers } = await api('/api/tools'), before = this.conv.settings.tools || [],
        chosen = new Set(before.filter(n => tools.some(t => t.name === n)));
      if (chosen.size < before.length)
        await this.changeSettings({ tools: chosen.size ? [...chosen] : null });         // of a server that is gone
      const set = () => this.changeSettings({ tools: chosen.size ? [...chosen] : null }).catch(fail);
      const line = t => {
        const check = h('input', { type: 'checkbox', checked: chosen.has(t.name), onchange: () => {
          if (check.checked) chosen.add(t.name);
          else chosen.delete(t.name);
          set();
        } });
        return h('label.check', {}, check,
          h('span', {}, h('strong', {}, t.name), ' ', h('span.muted', {}, t.description),
            t.confirm ? h('span.chip', {}, 'asks first') : null));
      };
      box.replaceChildren(...(servers || []).filter(x => x.state !== 'ready')
        .map(x => h('.note' + (x.state === 'failed' ? '.bad' : ''), {}, `${x.name}: ${x.error || 'starting'}`)),
        ...(tools.length ? tools.map(line) : [h('p.muted', {}, 'This server has no tools.')]));
    } catch (e) { box.replaceChildren(h('p.form-problem', {}, e.message)); }
    return d;
  }

  async chooseDocuments() {
    const box = h('.stack', {}, spinner('Loading the documents'));
    const upload = h('button', { type: 'button', onclick: async () => {
      for (const file of await pickFiles('', true)) {
        const form = new FormData();
        form.append('file', file);
        try {
          await api('/api/rag/documents/upload', { form });
          toast(`${file.name} is ready.`);
        } catch (e) { fail(e); }
      }
      draw();
    } }, icon('upload'), 'Upload');
    dialog('Documents', [h('p', {},
      'The model answers with passages of the documents that you choose, and names its sources.'), box],
      [upload, h('.spacer'), h('button.primary', { value: '' }, 'Done')], { class: 'wide' });
    const set = documents => this.changeSettings({ documents }).then(draw, fail);
    const draw = async () => {
      try {
        const { documents } = await api('/api/rag/documents?limit=1000'), now = this.conv.settings.documents,
          before = Array.isArray(now) ? now : [],
          chosen = new Set(before.filter(id => documents.some(d => d.id === id)));
        if (chosen.size < before.length)
          await this.changeSettings({ documents: chosen.size ? [...chosen] : null });         // deleted meanwhile
        const all = h('input',
          { type: 'checkbox', checked: now === 'all', onchange: () => set(all.checked ? 'all' : null) });
        const line = d => {
          const check = h('input',
            { type: 'checkbox', checked: now === 'all' || chosen.has(d.id), disabled: now === 'all', onchange: () => {
            if (check.checked) chosen.add(d.id);
            else chosen.delete(d.id);
            set(chosen.size ? [...chosen] : null);
          } });
          return h('.row', {}, h('label.check', {}, check,
            h('span', {}, h('strong', {}, d.name), ' ',
              h('span.muted', {}, `${plural(d.chunk_count, 'passage')} · ${bytes(d.file_size)} · ${d.collection}`))),
            h('.spacer'),
            iconButton('trash', `Delete ${d.name}`, async () => { try {
              await api('/api/rag/documents/' + encodeURIComponent(d.id), { method: 'DELETE' });
              chosen.delete(d.id);
              if (now !== 'all') await set(chosen.size ? [...chosen] : null);
              else draw();
            } catch (e) { fail(e); } }, { class: 'icon-button small' }));
        };
        box.replaceChildren(documents.length ? h('label.check', {}, all, h('strong', {}, 'All documents'))
          : h('p.muted', {}, 'There are no documents yet. Upload text, Markdown, HTML or PDF.'),
          ...documents.map(line));
      } catch (e) { box.replaceChildren(h('p.form-problem', {}, e.message)); }
    };
    draw();
  }

  // ---- the keyboard ----

  keys(ev) {
    const mod = ev.ctrlKey || ev.metaKey, name = ev.key.toLowerCase();
    if (document.querySelector('dialog[open]')) return;
    const act = f => { ev.preventDefault(); f(); };
    if (mod && !ev.shiftKey && name === 'k') act(() => {
      if (this.root.classList.contains('no-side')) this.toggleSide();
      this.searchInput.focus();
      this.searchInput.select();
    });
    else if (mod && ev.shiftKey && name === 'o') act(() => this.newChat());
    else if (mod && ev.shiftKey && name === 's') act(() => this.toggleSide());
    else if (mod && ev.shiftKey && name === 'c') act(() => {
      const m = this.views.findLast(v => v.message.role === 'assistant');
      if (m) { copyText(m.message.content); toast('The last answer is copied.'); }
    });
    else if (mod && !ev.shiftKey && name === ',') act(() => this.togglePanel());
    else if (mod && name === '/') act(() => this.help());
    else if (name === 'escape' && this.answer() && !document.querySelector('.menu'))
      act(() => this.answer().abort.abort());
    else if (name === '/' && !mod && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName))
      act(() => this.input.focus());
  }

  help() {
    const mod = /Mac/.test(navigator.platform) ? '⌘' : 'Ctrl';
    const rows = [['Send', 'Enter'], ['New line', 'Shift Enter'], ['Stop the answer', 'Esc'],
      ['Edit the last message', '↑'], ['Search conversations', `${mod} K`], ['New chat', `${mod} Shift O`],
      ['Show or hide the conversations', `${mod} Shift S`], ['Settings of this chat', `${mod} ,`],
        ['Copy the last answer', `${mod} Shift C`], ['Write', '/']];
    dialog('Keyboard shortcuts',
      h('.keys-list', {}, rows.map(([what, keys]) =>
        [h('span', {}, what), h('span', {}, keys.split(' ').map(k => [h('kbd', {}, k), ' ']))])),
      [h('button.primary', { value: '' }, 'Close')]);
  }
}

export function mount(root) {
  page = new Chat(root);
  return () => page.leave();
}
