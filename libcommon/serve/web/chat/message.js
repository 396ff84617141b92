// message.js - a message on the page: its parts, its sources, the buttons below it.

import { h, add, icon, iconButton, dialog, copyText, bytes, plural, number } from '../core.js';
import { MarkdownView } from '../markdown.js';
import { partsOf } from './prompt.js';

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

export class MessageView {
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
    else if (meta.error || !m.live) this.after = this.below(meta, !parts.length);
    if (this.after) this.content.append(this.after);
    if (!m.live || !this.footDrawn) this.drawFoot();
  }

  // The error or note below the text, and the sources.
  below(meta, empty) {
    const note = meta.note || meta.found ||
      (meta.finish === 'length' && 'The answer was cut off at the longest length.') ||
      (meta.stopped && empty && 'Stopped before the first word.');
    return h('.below', {},
      meta.error ? h('.note.bad', { role: 'alert' }, icon('warn'), h('span', {}, meta.error))
      : note ? h('.note', {}, h('span', {}, note)) : null,
      meta.citations?.length ? h('.sources', { 'aria-label': 'Sources' },
        meta.citations.map(c => h('button.chip', { type: 'button', onclick: () => showSource(c) }, `${c.index}`,
          h('span', {}, c.document_name + (c.page ? `, p. ${c.page}` : ''))))) : null);
  }

  figures() {
    const { used, tokens_s, first_s, model } = this.message.metadata || {};
    return [used?.completion && plural(used.completion, 'token'),
      tokens_s && `${number(tokens_s, tokens_s < 100 ? 1 : 0)} tokens/s`, first_s !== undefined && first_s < 100 &&
      `${first_s < 1 ? Math.round(first_s * 1000) + ' ms' : first_s.toFixed(1) + ' s'} to the first`,
      this.chat.models.length > 1 && model].filter(Boolean).join(' · ');
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
