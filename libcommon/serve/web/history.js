// history.js - conversations: on the server (/api/chat), or in this browser if it keeps none.
//
// Both have the same methods and the objects of the API: a conversation is a tree of messages, each
// with the id of its parent; active_leaf is the end of the branch that is shown.

import { api, kept, who, may } from './core.js';

const path = id => '/api/chat/conversations' + (id === undefined ? '' : '/' + encodeURIComponent(id));

class ServerHistory {
  local = false;

  list(offset = 0, limit = 100) { return api(`${path()}?limit=${limit}&offset=${offset}`); }
  create(fields) { return api(path(), { body: fields }); }
  get(id) { return api(path(id)); }
  change(id, fields) { return api(path(id), { method: 'PATCH', body: fields }); }
  remove(id) { return api(path(id), { method: 'DELETE' }); }
  removeAll() { return api(path() + '?all=true', { method: 'DELETE' }); }

  async messages(id) {
    const all = [];
    let page, after = 0;
    do {
      page = await api(`${path(id)}/messages?limit=10000&after=${after}`);
      all.push(...page.messages);
      after = page.messages.at(-1)?.id;
    } while (page.more && after);
    return { messages: all, active_leaf: page.active_leaf };
  }

  add(id, message, keepalive) { return api(`${path(id)}/messages`, { body: message, keepalive }); }
  changeMessage(id, n, fields) { return api(`${path(id)}/messages/${n}`, { method: 'PATCH', body: fields }); }
  removeMessage(id, n) { return api(`${path(id)}/messages/${n}`, { method: 'DELETE' }); }
  async search(text, signal) {
    return (await api(`/api/chat/search?limit=40&q=${encodeURIComponent(text)}`, { signal })).results;
  }
  export(id, format) { return api(`${path(id)}/export?format=${format}`); }
  import(data, copy) { return api(`${path()}/import${copy ? '?copy=true' : ''}`, { body: data }); }
}

const now = () => new Date().toISOString();
const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map(b => b.toString(16).padStart(2, '0')).join('');
const FIELDS = ['title', 'model', 'system_prompt', 'settings', 'folder', 'tags', 'pinned', 'active_leaf'];

export function titleOf(text) {
  const line = text.trim().split('\n')[0].trim();
  return line.length > 60 ? line.slice(0, 59).trimEnd() + '…' : line || 'New Chat';
}

// The same methods on localStorage: one entry for all conversations, one for the messages of each.
class LocalHistory {
  local = true;

  index() { return kept.get('chats', []); }
  write(list) { if (!kept.set('chats', list)) throw new Error('This browser has no space left for conversations.'); }
  find(id) {
    const list = this.index(), c = list.find(x => x.id === id);
    if (!c) throw new Error('There is no such conversation.');
    return [list, c];
  }

  async list(offset = 0, limit = 100) {
    const all = this.index().sort((a, b) => (b.pinned - a.pinned) || (a.updated_at < b.updated_at ? 1 : -1));
    return { conversations: all.slice(offset, offset + limit), total: all.length };
  }

  async create(fields) {
    const c = { id: newId(), title: 'New Chat', model: null, system_prompt: null, settings: {}, folder: null, tags: [],
      pinned: false,
      created_at: now(), updated_at: now(), message_count: 0, total_tokens: 0, active_leaf: null, ...fields };
    this.write([c, ...this.index()]);
    return c;
  }

  async get(id) { return this.find(id)[1]; }

  async change(id, fields) {
    const [list, c] = this.find(id);
    for (const f of FIELDS) if (f in fields) c[f] = fields[f];
    if (fields.title) c.titled = true;
    c.updated_at = now();
    this.write(list);
    return c;
  }

  async remove(id) {
    const [list] = this.find(id);
    this.write(list.filter(x => x.id !== id));
    kept.set('chat.' + id, undefined);
  }

  async removeAll() {
    for (const c of this.index()) kept.set('chat.' + c.id, undefined);
    this.write([]);
  }

  async messages(id) { return { messages: kept.get('chat.' + id, []), active_leaf: this.find(id)[1].active_leaf }; }

  async add(id, message) {
    const [list, c] = this.find(id), all = kept.get('chat.' + id, []);
    const m = { id: (all.at(-1)?.id || 0) + 1, parent_id: c.active_leaf, tokens: null, latency_ms: null, metadata: {},
      created_at: now(), conversation_id: id, ...message };
    if (!kept.set('chat.' + id, [...all, m])) throw new Error('This browser has no space left for conversations.');
    if (m.role === 'user' && !c.titled && c.title === 'New Chat') c.title = titleOf(m.content);
    Object.assign(c, { active_leaf: m.id, updated_at: now(), message_count: all.length + 1,
      total_tokens: c.total_tokens + (m.tokens || 0) });
    this.write(list);
    return m;
  }

  async changeMessage(id, n, fields) {
    const all = kept.get('chat.' + id, []), m = all.find(x => x.id === n);
    Object.assign(m, fields);
    kept.set('chat.' + id, all);
    return m;
  }

  async search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean), results = [];
    const has = t => words.every(w => t.toLowerCase().includes(w));
    for (const conversation of this.index()) {
      const matches = kept.get('chat.' + conversation.id, []).filter(m => has(m.content)).slice(0, 3).map(m => {
        const at = Math.max(0, m.content.toLowerCase().indexOf(words[0]) - 30),
          snippet = (at ? '… ' : '') + m.content.slice(at, at + 110);
        const from = snippet.toLowerCase().indexOf(words[0]);
        return { message_id: m.id, role: m.role, snippet, ranges: from < 0 ? [] : [[from, from + words[0].length]] };
      });
      if (matches.length || has(conversation.title))
        results.push({ conversation, title_match: has(conversation.title), matches });
    }
    return results;
  }

  async export(id, format) {
    const c = this.find(id)[1], { messages } = await this.messages(id);
    const name = c.title.replace(/[^\p{L}\p{N} _-]+/gu, '').trim().slice(0, 60) || 'conversation';
    if (format === 'json') return { content: JSON.stringify({ ...c, messages }, null, 2), filename: name + '.json' };
    return { content: markdownOf(c, branch(messages, c.active_leaf)), filename: name + '.md' };
  }

  async import(data, copy) {
    const list = this.index(), { messages = [], ...c } = data.format === 'markdown' ? fromMarkdown(data.content)
      : data.content ? JSON.parse(data.content) : data;
    if (!Array.isArray(messages) || typeof c.title !== 'string' ||
      messages.some(m => typeof m.content !== 'string' || typeof m.id !== 'number'))
      throw new Error('This file is not an exported conversation.');
    const id = copy || !c.id || list.some(x => x.id === c.id) ? newId() : c.id;
    kept.set('chat.' + id, messages);
    const made = { ...c, id, settings: c.settings || {}, tags: c.tags || [], pinned: !!c.pinned, updated_at: now(),
      active_leaf: c.active_leaf ?? messages.at(-1)?.id ?? null };
    this.write([made, ...list]);
    return made;
  }
}

// The messages from the root to this leaf.
export function branch(messages, leaf) {
  const by = new Map(messages.map(m => [m.id, m])), path = [];
  for (let m = by.get(leaf); m && path.length <= messages.length; m = by.get(m.parent_id)) path.unshift(m);
  return path;
}

// ---- Markdown: the same form as that of the server ----

const HEADING = /^(\\*)(?:### (?:User|Assistant|System|Tool)|## (?:System Prompt|Conversation))[ \r]*$/gm;
const escaped = text => text.replace(HEADING, line => '\\' + line);
const unescaped = text => text.replace(HEADING, (line, marks) => marks ? line.slice(1) : line);
const titled = role => role[0].toUpperCase() + role.slice(1);

function markdownOf(c, messages) {
  const head = `# ${c.title}\n\n**Model:** ${c.model || '-'}  \n**Created:** ${c.created_at}  \n**Messages:** ${messages.length}\n`;
  const system = c.system_prompt ? `\n## System Prompt\n\n${escaped(c.system_prompt)}\n` : '';
  return head + system + '\n## Conversation\n' +
    messages.map(m => `\n### ${titled(m.role)}\n\n${escaped(m.content)}\n`).join('');
}

// The fields of a conversation and its messages, of an exported text.
function fromMarkdown(text) {
  const [head, ...rest] = text.split(/^## Conversation[ \r]*\n/m);
  if (!rest.length) throw new Error('This file is not an exported conversation: it has no line “## Conversation”.');
  const [labels, system] = head.split(/^## System Prompt[ \r]*\n/m), label = re => re.exec(labels)?.[1].trim();
  const body = (t, isLast) => unescaped(t.replace(/^\r?\n/, '').replace(isLast ? /\n$/ : /\n\n?$/, ''));
  const parts = rest.join('## Conversation\n').split(/^### (User|Assistant|System|Tool)[ \r]*$/m).slice(1), messages = [];
  for (let i = 0; i < parts.length; i += 2)
    messages.push({ id: i / 2 + 1, parent_id: i / 2 || null, role: parts[i].toLowerCase(),
      content: body(parts[i + 1].replace(/^\n/, ''), i + 2 >= parts.length), metadata: {} });
  const model = label(/^\*\*Model:\*\*(.*)/m);
  return { title: label(/^# (.*)/m) || 'New Chat', model: model && model !== '-' ? model : null,
    system_prompt: system ? body(system) : null, created_at: label(/^\*\*Created:\*\*(.*)/m) || now(),
    message_count: messages.length, total_tokens: 0, messages };
}

export const openHistory = () => who.features.history && may('chat') ? new ServerHistory() : new LocalHistory();
