// composer.js - the box in which a message is written: text, files, the model, the context in use.

import { h, svg, icon, iconButton, menu, toast, fail, pickFiles, api, kept, who, bytes, short, number } from
  '../core.js';
import { branch } from '../history.js';
import { chooseTools, chooseDocuments } from './choosers.js';

const LARGE_FILE = 200_000;

// The message, preceded by the texts of its files.
export function withFiles(text, files) {
  const pasted = files.filter(f => f.text !== undefined);
  return pasted.map(f => `<document name="${f.name.replace(/["<>\n]/g, ' ')}">\n${f.text}\n</document>\n\n`)
    .join('') + text;
}

export class Composer {
  constructor(chat) {
    this.chat = chat;
    this.files = [];
    this.root = this.drawBox();
  }

  // Draw everything that depends on the shown conversation.
  draw() {
    this.drawFiles();
    this.drawModel();
    this.drawBadges();
    this.drawContext();
    this.grow();
  }

  // Restore a message that could not be sent.
  restore(text, files) {
    this.input.value = text;
    this.files = files;
    this.drawFiles();
    this.grow();
  }

  drawBox() {
    this.input = h('textarea',
      { rows: 1, placeholder: 'Ask anything', 'aria-label': 'Message', oninput: () => this.grow(),
        onpaste: ev => this.pasted(ev) });
    this.input.addEventListener('keydown', ev => {
      if (ev.key === 'Enter' && !ev.shiftKey && !ev.isComposing && !matchMedia('(pointer: coarse)').matches) {
        ev.preventDefault();
        this.submit();
      }
      if (ev.key === 'ArrowUp' && !this.input.value) this.chat.views.findLast(v => v.message.role === 'user')?.edit();
    });
    this.sendButton = h('button.send', { type: 'button', onclick: () => this.submit() });
    this.fileBox = h('.files', { hidden: true });
    this.modelButton = h('button.model.x',
      { type: 'button', 'aria-label': 'Model', 'aria-haspopup': 'menu',
        onclick: ev => this.modelMenu(ev.currentTarget) });
    this.toolButton = iconButton('tool', 'Tools', () => chooseTools(this.chat.settings),
      { class: 'icon-button badge', hidden: !who.features.tools });
    this.bookButton = iconButton('book', 'Documents', () => chooseDocuments(this.chat.settings),
      { class: 'icon-button badge', hidden: !who.features.documents });
    this.context = h('span.context', { hidden: true });
    this.toEnd = iconButton('down', 'To the end', () => this.chat.end(true),
      { class: 'icon-button to-end', hidden: true });
    this.box = h('.composer', {}, this.fileBox, this.input,
      h('.composer-bar', {}, iconButton('clip', 'Attach files', () => this.attach()), this.toolButton,
        this.bookButton,
      iconButton('sliders', 'Settings of this chat', () => this.chat.settings.toggle(),
        { class: 'icon-button', id: 'settings-button', 'aria-expanded': 'false' }), h('.spacer'), this.context,
        this.modelButton, this.sendButton));
    for (const [type, over] of [['dragenter', true], ['dragover', true], ['dragleave', false], ['drop', false]])
      this.box.addEventListener(type, ev => {
        if (!ev.dataTransfer?.types.includes('Files')) return;
        ev.preventDefault();
        this.box.classList.toggle('drag', over);
        if (type === 'drop') this.addFiles([...ev.dataTransfer.files]);
      });
    return h('.composer-area', {}, this.toEnd, this.box,
      h('p.hint', {}, 'Answers can be wrong. Check what matters.'));
  }

  grow() {
    this.input.style.height = 'auto';
    this.input.style.height = this.input.scrollHeight + 'px';
    this.drawSend();
  }

  drawSend() {
    const busy = this.chat.answer();
    this.sendButton.setAttribute('aria-label', busy ? 'Stop' : 'Send');
    this.sendButton.title = busy ? 'Stop (Esc)' : 'Send (Enter)';
    this.sendButton.disabled = !busy && !this.input.value.trim() && !this.files.length;
    if (this.sendButton.dataset.state !== String(!!busy))
      this.sendButton.replaceChildren(icon(busy ? 'stop' : 'send'));
    this.sendButton.dataset.state = String(!!busy);
  }

  submit() {
    const busy = this.chat.answer();
    if (busy) { busy.abort.abort(); return; }
    const text = this.input.value.trim();
    if (!text && !this.files.length) return;
    if (this.files.some(f => f.state === 'loading')) { toast('A file is still being read.'); return; }
    const files = this.files;
    this.input.value = '';
    this.files = [];
    this.drawFiles();
    this.grow();
    this.chat.send(text, files, this.chat.leaf);
  }

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

  // A short text file is inserted into the message.  Any other file is uploaded as a document, if
  // the server has documents.
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
        f.document = /already: ([\w-]+),/.exec(e.message)?.[1];         // under this or another name
        if (!f.document) throw e;
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

  model() { return this.chat.models.find(m => m.id === this.chat.conv.model) || this.chat.models[0]; }

  drawModel() { this.modelButton.replaceChildren(h('span', {}, this.model()?.id || 'no model'), icon('down')); }

  modelMenu(anchor) {
    if (!this.chat.models.length) { this.chat.loadModels(); return; }
    const choose = m => {
      const { conv, list } = this.chat;
      conv.model = m.id;
      kept.set('model', m.id);
      if (conv.id) list.change(conv, { model: m.id });
      this.drawModel();
      this.drawContext();
    };
    menu(anchor, this.chat.models.map(m =>
      ({ label: m.id, checked: m === this.model(), note: m.quantization || '', run: () => choose(m) })));
  }

  drawBadges() {
    const s = this.chat.conv.settings;
    const mark = (b, n) => { if (n) b.dataset.count = n; else delete b.dataset.count; };
    mark(this.toolButton, s.tools?.length);
    mark(this.bookButton, s.documents === 'all' ? '∗' : s.documents?.length);
  }

  drawContext() {
    const last = branch(this.chat.messages, this.chat.leaf).findLast(m => m.metadata?.used?.prompt),
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
}
