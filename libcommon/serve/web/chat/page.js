// page.js - the chat page: the conversations at the side, the messages of one, and the composer.
//
// A conversation is a tree: an edited or regenerated message is a sibling of the one before.  An
// answer runs on when another page or conversation is shown, and is stored when it ends.

import { h, iconButton, toast, fail, spinner, emptyState, copyText, api, kept, setTitle, menuButton,
  toggleDrawer } from '../core.js';
import { openHistory, branch, titleOf } from '../history.js';
import { Answer, running } from './answer.js';
import { Composer, withFiles } from './composer.js';
import { ConversationList } from './list.js';
import { MessageView } from './message.js';
import { partsOf } from './prompt.js';
import { Settings } from './settings.js';
import { showShortcuts } from './shortcuts.js';

let page = null;                                // the shown chat page, or null

class Chat {
  constructor(root) {
    this.history = openHistory();
    this.models = [];
    this.views = [];
    this.list = new ConversationList(this);
    this.composer = new Composer(this);
    this.settings = new Settings(this);
    const first = root.querySelector('.first-chat textarea'), hasFocus = first && document.activeElement === first;
    this.draw(root);
    this.newChat(false, true);
    if (first) this.composer.restore(first.value, []);  // text typed before the modules came
    if (hasFocus) this.composer.input.focus();
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

  draw(root) {
    this.title = h('h1.thread-title');
    this.headButtons = h('.row');
    this.box = h('.messages', { role: 'log', 'aria-label': 'Messages', 'aria-live': 'polite' });
    this.scroll = h('.scroll', { onscroll: () => this.scrolled() }, this.box);
    this.thread = h('section.thread', { 'aria-label': 'Conversation' },
      h('header.thread-head', {}, menuButton(),
        iconButton('sidebar', 'Show or hide the conversations', () => this.toggleSide(),
          { class: 'icon-button desktop-only' }), this.title, h('.spacer'), this.headButtons),
      this.scroll, this.composer.root);
    this.root = h('.chat' + (kept.get('side', true) ? '' : '.no-side'), {}, this.list.root, this.thread);
    root.append(this.root);
  }

  answer() { return this.conv.id && running.get(this.conv.id); }

  async load() {
    await Promise.all([this.loadModels(), this.list.load()]);
    this.openAddress();
  }

  async loadModels() {
    try { this.models = (await api('/v1/models')).data; } catch (e) { fail(e); }
    if (!this.models.length) this.waiting = setTimeout(() => page === this && this.loadModels(), 3000);
    this.composer.drawModel();
    this.drawWelcome();
  }

  openAddress() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id && id !== this.conv.id) this.open(id);
    else if (!id && this.conv.id) this.newChat(false);
  }

  newChat(focus = true, keepAddress = false) {
    const draft = kept.get('draft', {});
    this.conv = { id: null, title: '', model: kept.get('model', null), system_prompt: draft.system_prompt || null,
      settings: draft.settings || {}, tags: [] };
    this.messages = [];
    this.leaf = null;
    this.composer.files = [];
    if (location.hash && !keepAddress) history.pushState(null, '', '/chat');
    this.drawAll();
    if (focus) { toggleDrawer(false); this.composer.input.focus(); }
  }

  async open(id) {
    const turn = this.turn = {};
    if (decodeURIComponent(location.hash.slice(1)) !== id) history.pushState(null, '', '/chat#' + id);
    this.list.markCurrent(id);
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
      this.composer.input.focus();
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
    this.composer.draw();
    this.settings.redraw();
    this.list.markCurrent(this.conv.id);
    const a = this.answer();
    if (a) this.follow(a);
  }

  drawHead() {
    this.title.textContent = this.conv.title;
    setTitle(this.conv.title);
    this.headButtons.replaceChildren(
      ...(this.conv.id ? [iconButton('more', 'More about this conversation',
        ev => this.list.conversationMenu(this.conv, ev.currentTarget))] : []),
      iconButton('plus', 'New chat', () => this.newChat(), { class: 'icon-button phone-only' }));
  }

  drawWelcome() {
    if (!this.thread.classList.contains('fresh')) return;
    const hour = new Date().getHours(), none = !this.models.length;
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
    this.composer.toEnd.hidden = this.atEnd || this.thread.classList.contains('fresh');
  }

  end(force) { if (force || this.atEnd) this.scroll.scrollTop = this.scroll.scrollHeight; }

  async send(text, files, parent, metadata) {
    const listed = files.map(f => ({ name: f.name, size: f.size, ...(f.document && { document: f.document }) }));
    const meta = metadata || (files.length ? { text, files: listed } : {});
    try {
      // the history would use the first line of a pasted file as title
      if (!this.conv.id) await this.create(files.length ? titleOf(text || files[0].name) : undefined);
      const uploaded = files.filter(f => f.document).map(f => f.document);
      if (uploaded.length && this.conv.settings.documents !== 'all')
        await this.settings.change(
        { documents: [...new Set([...(this.conv.settings.documents || []), ...uploaded])] });
    } catch (e) { fail(e); this.composer.restore(text, files); return; }
    const m = await this.store({ role: 'user', content: withFiles(text, files), parent_id: parent,
      metadata: meta });
    if (this.conv.title === 'New Chat' || !this.conv.title) this.conv.title = titleOf(text || files[0].name);
    this.drawHead();
    this.start(m);
    this.list.load();
  }

  async create(title) {
    const c = this.conv, conv = await this.history.create({ ...(title && { title }), model: c.model,
      system_prompt: c.system_prompt, settings: c.settings });
    this.conv = conv;
    history.replaceState(null, '', '/chat#' + conv.id);
  }

  // Store a message; one that cannot be stored stays on the page.
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

  // Redraw the answer as it grows, at most once a frame.
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
    this.composer.drawSend();
    this.composer.drawContext();
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
    if (!here || page !== here || here.conv.id !== a.conv.id) { page?.list.load(); return; }
    here.messages = here.messages.filter(x => x !== message);
    here.messages.push(m);
    if (here.leaf === 'live') here.leaf = m.id;
    const v = here.views.find(x => x.message === message);
    if (v) {
      v.message = m;
      m.metadata ||= {};
      // keep the views of the parts: nothing jumps, and unfolded parts stay unfolded
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
    here.composer.drawSend();
    here.composer.drawContext();
    here.list.load();
    if (matchMedia('(pointer: fine)').matches) here.composer.input.focus();
  }

  again(m) {
    const parent = this.messages.find(x => x.id === m.parent_id);
    if (parent && !this.answer()) { this.leaf = parent.id; this.start(parent); }
  }

  resend(m, text) {
    if (this.answer()) return;
    const files = m.metadata?.files, old = m.metadata?.text ?? m.content;
    // keep documents that were pasted before the text
    const content = m.content.endsWith(old) ? m.content.slice(0, m.content.length - old.length) + text : text;
    this.store({ role: 'user', content, parent_id: m.parent_id, metadata: files ? { ...m.metadata, text } : {} })
      .then(x => {
      this.start(x);
      this.list.load();
    });
  }

  toggleSide() { kept.set('side', !this.root.classList.toggle('no-side')); }

  keys(ev) {
    const mod = ev.ctrlKey || ev.metaKey, name = ev.key.toLowerCase();
    if (document.querySelector('dialog[open]')) return;
    const act = f => { ev.preventDefault(); f(); };
    if (mod && !ev.shiftKey && name === 'k') act(() => {
      if (this.root.classList.contains('no-side')) this.toggleSide();
      this.list.searchInput.focus();
      this.list.searchInput.select();
    });
    else if (mod && ev.shiftKey && name === 'o') act(() => this.newChat());
    else if (mod && ev.shiftKey && name === 's') act(() => this.toggleSide());
    else if (mod && ev.shiftKey && name === 'c') act(() => {
      const m = this.views.findLast(v => v.message.role === 'assistant');
      if (m) { copyText(m.message.content); toast('The last answer is copied.'); }
    });
    else if (mod && !ev.shiftKey && name === ',') act(() => this.settings.toggle());
    else if (mod && name === '/') act(() => showShortcuts());
    else if (name === 'escape' && this.answer() && !document.querySelector('.menu'))
      act(() => this.answer().abort.abort());
    else if (name === '/' && !mod && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName))
      act(() => this.composer.input.focus());
  }
}

export function mount(root) {
  page = new Chat(root);
  return () => page.leave();
}
