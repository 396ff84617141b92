// answer.js - an answer being generated: its requests, its parts, the calls that it waits for.

import { api, answerEvents, who } from '../core.js';
import { textOf, promptOf } from './prompt.js';

const STORED_RESULT = 20_000, STORED_THOUGHTS = 100_000;

export const running = new Map();               // the answers being generated, by the id of their conversation

export class Answer {
  constructor(history, conv, path) {
    this.history = history;
    this.conv = conv;
    this.path = path;                           // the branch up to the message that it answers
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
    return { ...s.more, model: this.conv.model || 'default', messages: promptOf(this.conv, this.path, this.parts), stream: true,
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

  // Send one request.  Returns why calls wait, or null.
  async round() {
    const open = [], from = performance.now();
    let first = 0, last = 0, stop = null, used = null;
    for await (const e of answerEvents(this.body(), this.abort.signal)) {
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

  // Ask about calls, and run those that are allowed.  false: there is nothing to continue with.
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

  // The message for the history, without parts that would take too much space there.
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
