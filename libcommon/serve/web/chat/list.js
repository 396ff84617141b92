// list.js - the sidebar of conversations: groups, tags, search, menus, import and export.

import { h, icon, iconButton, menu, confirmBox, prompt, toast, fail, saveFile, pickFiles, plural, toggleDrawer }
  from '../core.js';
import { running } from './answer.js';
import { showShortcuts } from './shortcuts.js';

// Recognize the files of other programs.  ChatGPT's conversations.json and Open WebUI's export are
// lists of trees, a file of LM Studio is a conversation whose messages have versions; else null.
function foreignOf(data) {
  const list = Array.isArray(data) ? data : [data];
  if (list.length && list.every(c => c?.mapping)) return { format: 'chatgpt', list };
  if (list.length && list.every(c => c?.messages?.[0]?.versions)) return { format: 'lm-studio', list };
  return list.length && list.every(c => (c?.chat || c)?.history?.messages) ? { format: 'open-webui', list } : null;
}

export class ConversationList {
  constructor(chat) {
    this.chat = chat;
    this.conversations = [];
    this.tag = null;
    this.searchInput = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search conversations',
      oninput: () => this.searchSoon() });
    this.tagBar = h('.tags', { hidden: true, role: 'group', 'aria-label': 'Tags' });
    this.box = h('.conv-list', { role: 'navigation', 'aria-label': 'Conversations' },
      [...'12345'].map(() => h('p', { style: null }, h('.skeleton'))));
    this.root = h('aside.convs', { 'aria-label': 'Conversations' },
      h('.convs-head', {}, h('h2', {}, 'Chats'),
        iconButton('upload', 'Import a conversation', () => this.importFile()),
        iconButton('plus', 'New chat (Ctrl+Shift+O)', () => chat.newChat(), { id: 'new-chat' })),
      h('.search', {}, icon('search'), this.searchInput), this.tagBar, this.box,
      h('.convs-foot', {}, h('span', {}, chat.history.local ? 'Kept in this browser' : ''), h('.spacer'),
        iconButton('keyboard', 'Keyboard shortcuts', () => showShortcuts(), { class: 'icon-button small' }),
        iconButton('more', 'More', ev => this.sideMenu(ev.currentTarget), { class: 'icon-button small' })));
  }

  // Highlight the row of the shown conversation.
  markCurrent(id) {
    for (const r of this.box.querySelectorAll('.conv-row'))
      r.classList.toggle('current', !!id && r.firstChild.hash === '#' + id);
  }

  async load() {
    try {
      const { conversations, total } = await this.chat.history.list(0, 200);
      this.conversations = conversations;
      this.total = total;
      this.draw();
    } catch (e) {
      this.box.replaceChildren(h('.empty', {}, h('p', {}, e.message),
        h('button', { type: 'button', onclick: () => this.load() }, 'Try again')));
    }
  }

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
    return h('.conv-row' + (c.id === this.chat.conv.id ? '.current' : ''), {},
      h('a.conv', { href: '/chat#' + c.id, 'aria-current': c.id === this.chat.conv.id ? 'page' : null, onclick: ev => {
      if (ev.ctrlKey || ev.metaKey || ev.shiftKey) return;
      ev.preventDefault();
      this.chat.open(c.id);
      toggleDrawer(false);
    } }, h('span', {}, c.title), extra, !extra && c.tags?.length
      ? h('span.snippet', {}, c.tags.map(t => '#' + t).join(' ')) : null), more);
  }

  draw() {
    const tags = [...new Set(this.conversations.flatMap(c => c.tags || []))].sort();
    if (!tags.includes(this.tag)) this.tag = null;
    this.tagBar.hidden = !tags.length;
    this.tagBar.replaceChildren(
      ...tags.map(t => h('button.chip', { type: 'button', 'aria-pressed': String(t === this.tag), onclick: () => {
      this.tag = this.tag === t ? null : t;
      this.draw();
    } }, t)));
    if (this.searchInput.value.trim()) return;
    const list = this.tag ? this.conversations.filter(c => c.tags?.includes(this.tag)) : this.conversations;
    if (!list.length) {
      this.box.replaceChildren(h('.empty', {}, h('p', {}, 'Your conversations appear here.')));
      return;
    }
    this.box.replaceChildren(...[...this.groups(list)].map(([name, group]) =>
      h('section', {}, h('h3', {}, name), group.map(c => this.row(c)))));
    if (this.total > this.conversations.length)
      this.box.append(h('button.link', { type: 'button', onclick: async ev => {
      ev.currentTarget.disabled = true;
      try {
        this.conversations.push(...(await this.chat.history.list(this.conversations.length, 200)).conversations);
        this.draw();
      } catch (e) { fail(e); }
    } }, 'Show more'));
  }

  searchSoon() {
    clearTimeout(this.searchTimer);
    this.searching?.abort();
    if (!this.searchInput.value.trim()) { this.draw(); return; }
    this.searchTimer = setTimeout(() => this.search(), 160);
  }

  async search() {
    const text = this.searchInput.value.trim();
    this.searching = new AbortController();
    try {
      const results = await this.chat.history.search(text, this.searching.signal);
      if (this.searchInput.value.trim() !== text) return;
      this.box.replaceChildren(
        ...(results.length ? results.map(r =>
          this.row(r.conversation, r.matches[0] ? h('span.snippet', {}, this.marked(r.matches[0])) : null))
        : [h('.empty', {}, h('p', {}, `Nothing found for “${text}”.`))]));
    } catch (e) {
      if (e.name !== 'AbortError') this.box.replaceChildren(h('.empty', {}, h('p', {}, e.message)));
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
      const changed = await this.chat.history.change(c.id, fields);
      if (this.chat.conv.id === c.id) { Object.assign(this.chat.conv, changed); this.chat.drawHead(); }
      await this.load();
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
      await this.chat.history.remove(c.id);
      if (this.chat.conv.id === c.id) this.chat.newChat();
      await this.load();
      if (this.searchInput.value.trim()) this.search();
    } catch (e) { fail(e); }
  }

  async removeAll() {
    if (!await confirmBox('Delete all conversations?',
      'Every conversation and its messages will be gone. This cannot be undone.', 'Delete all', true)) return;
    try {
      for (const a of running.values()) a.abort.abort();
      await this.chat.history.removeAll();
      this.chat.newChat();
      await this.load();
    } catch (e) { fail(e); }
  }

  async export(c, format) {
    try {
      const { content, filename } = await this.chat.history.export(c.id, format);
      saveFile(filename || `conversation.${format === 'json' ? 'json' : 'md'}`, format === 'json' ? 'application/json'
        : 'text/markdown', content);
    } catch (e) { fail(e); }
  }

  async importFile() {
    const [file] = await pickFiles('.json,.md,application/json,text/markdown');
    if (!file) return;
    try {
      const text = await file.text();
      let data = { format: 'markdown', content: text };
      if (!text.trimStart().startsWith('#')) {
        try {
          data = JSON.parse(text);
        } catch { throw new Error(`${file.name} is not JSON or Markdown: expected an exported conversation.`); }
      }
      const many = foreignOf(data);
      if (many) return this.importMany(many);
      let c;
      try { c = await this.chat.history.import(data); } catch (e) {
        if (e.status !== 409) throw e;
        c = await this.chat.history.import(data, true);
      }
      await this.load();
      this.chat.open(c.id);
    } catch (e) { fail(e); }
  }

  // Import the conversations of another program's file, one by one.
  async importMany({ format, list }) {
    let n = 0, last = null, why = null;
    for (const conversation of list) {
      try {
        last = await this.chat.history.import({ format, conversation });
        n++;
      } catch (e) {
        why = e;
        if (!e.status || e.status === 401 || e.status === 403 || e.status >= 500) break;
      }
    }
    await this.load();
    toast(`${n} of ${plural(list.length, 'conversation')} imported${why ? `: ${why.message}` : ''}.`, why ? 'bad' : '');
    if (last) this.chat.open(last.id);
  }
}
