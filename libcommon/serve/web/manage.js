// manage.js - the pages of API keys and of the audit log, and helpers of models.js.

import { h, icon, iconButton, api, may, spec, pageHead, spinner, emptyState, field, dialog, confirmBox, menu, toast,
  fail, copyText, saveFile, number, short, ago, askForKey } from './core.js';
import { table } from './dashboard.js';

export const needsAdmin = what =>
  h('.note', {}, icon('lock'), h('span', {}, `${what} needs a key of scope admin or the administrator’s token. `,
    h('button.link', { type: 'button', onclick: () => askForKey() }, 'Enter it')));
export const problem = (e, again) => h('.note.bad', { role: 'alert' }, icon('warn'),
  h('span', {}, e.message, ' ', again && h('button.link', { type: 'button', onclick: again }, 'Try again')));

// An input for a property of a JSON Schema, and a function that reads it: undefined if untouched.
export function inputOf(name, schema) {
  const kind = schema.enum ? 'enum' : schema.type;
  if (kind === 'boolean' || kind === 'enum') {
    const e = h('select', {}, h('option', { value: '' }, 'default'),
      (schema.enum || [true, false]).map(v => h('option', { value: JSON.stringify(v) }, String(v))));
    return [e, () => e.value === '' ? undefined : JSON.parse(e.value)];
  }
  if (kind === 'number' || kind === 'integer') {
    const e = h('input', { type: 'number', min: schema.minimum, max: schema.maximum, step: kind === 'integer' ? 1
      : 'any' });
    return [e, () => e.value === '' ? undefined : Number(e.value)];
  }
  const e = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off' });
  return [e, () => e.value === '' ? undefined : e.value];
}

// ---- keys ----

const DAY = 86400;
const dateOf = s => new Date(s * 1000).toLocaleDateString('en', { day: 'numeric', month: 'short', year: 'numeric' });

class Keys {
  constructor(root) {
    this.body = h('section');
    this.head = h('.row');
    root.append(h('.page', {}, pageHead('API keys', this.head), this.body));
    if (may('admin')) this.draw();
    else this.body.replaceChildren(needsAdmin('Managing keys'));
  }

  leave() { this.left = true; }

  async draw() {
    if (!this.body.firstChild) this.body.replaceChildren(spinner('Loading the keys'));
    try {
      const [{ enabled, keys }, s] = await Promise.all([api('/api/keys'), spec()]);
      if (this.left) return;
      const one = s.paths['/api/keys/{id}'] || {};
      this.can = { change: !!one.patch, rotate: Object.keys(s.paths).some(p => p.includes('/rotate')) || !!one.post };
      const required = h('input',
        { type: 'checkbox', role: 'switch', checked: enabled, onchange: () => this.require(required) });
      this.head.replaceChildren(h('label.switch', {}, required, 'Requests need a key'),
        h('button.primary', { type: 'button', onclick: () => this.create() }, icon('plus'), 'Create a key'));
      this.body.replaceChildren(keys.length
        ? table(['Name', 'Scopes', 'Models', 'Limits', 'Use', 'Last use', 'Expires', ''], keys.map(k => this.row(k)),
          [])
        : h('.card', {}, emptyState('keys', 'There are no keys',
          'Requests from this machine need none. With the first key every request needs one.')));
    } catch (e) { if (!this.left) this.body.replaceChildren(problem(e, () => this.draw())); }
  }

  row(k) {
    const limits = [k.rate_limit && `${number(k.rate_limit)} requests/min`, k.token_limit_minute &&
      `${short(k.token_limit_minute)} tokens/min`, k.token_limit_day &&
      `${short(k.token_limit_day)} tokens/day`].filter(Boolean);
    const expired = k.expires_at && k.expires_at * 1000 < Date.now();
    const state = h('span.state.' + (!k.enabled || expired ? 'bad' : 'good'), {}, h('strong', {}, k.name));
    state.title = expired ? 'expired' : k.enabled ? 'enabled' : 'disabled';
    const actions = h('span', {}, iconButton('more', `More about ${k.name}`, ev => menu(ev.currentTarget, [
      this.can.change && { icon: k.enabled ? 'lock' : 'check', label: k.enabled ? 'Disable' : 'Enable',
        run: () => this.change(k, { enabled: !k.enabled }) },
      this.can.rotate && { icon: 'retry', label: 'New secret', run: () => this.rotate(k) },
      { icon: 'trash', label: 'Delete', danger: true, run: () => this.remove(k) }]),
        { class: 'icon-button small', 'aria-haspopup': 'menu' }));
    actions.cellClass = 'actions';
    return [state, k.scopes.split(',').join(', '), k.models || 'all', limits.join(', ') || 'none',
      `${number(k.request_count)} requests, ${short(k.token_count)} tokens`, k.last_used ? ago(k.last_used * 1000)
      : 'never', k.expires_at ? (expired ? 'expired' : dateOf(k.expires_at)) : 'never', actions];
  }

  async require(input) {
    const on = input.checked;
    if (!on && !await confirmBox('Let requests through without a key?',
      'Every program that reaches this server could use its models.', 'Turn keys off', true)) {
        input.checked = true;
        return;
      }
    try {
      await api('/api/keys/auth', { body: { enabled: on } });
      toast(on ? 'Requests need a key now.' : 'Requests need no key now.');
    } catch (e) { input.checked = !on; fail(e); }
  }

  create() {
    const name = h('input', { type: 'text', required: true, maxlength: 64, pattern: '[A-Za-z0-9._@\\-]+',
      autocomplete: 'off', spellcheck: 'false' });
    const scopes = [['chat', 'Chat and completions', true], ['embeddings', 'Embeddings', true],
      ['models', 'Statistics and metrics', false], ['admin', 'Administration', false]].map(([id, label, on]) =>
        [id, h('input', { type: 'checkbox', checked: on }), label]);
    const models = h('input', { type: 'text', placeholder: 'all', spellcheck: 'false' }),
      rate = h('input', { type: 'number', min: 0, placeholder: 'none' }),
      minute = h('input', { type: 'number', min: 0, placeholder: 'none' }),
      day = h('input', { type: 'number', min: 0, placeholder: 'none' });
    const expires = h('select', {},
      [['', 'never'], [7, 'in 7 days'], [30, 'in 30 days'], [90, 'in 90 days'], [365, 'in a year']].map(([v, t]) =>
        h('option', { value: v }, t)));
    const note = h('p.form-problem', { role: 'alert', hidden: true });
    const d = dialog('Create a key',
      [field('Name', name, 'Letters, digits, and . _ - @'),
        h('.field', { role: 'group', 'aria-label': 'Scopes' }, h('span.label', {}, 'Scopes'),
          scopes.map(([, box, label]) => h('label.check', {}, box, label))),
        field('Models', models, 'Names with commas between; * stands for anything.'),
        h('.form', {}, field('Requests a minute', rate), field('Tokens a minute', minute), field('Tokens a day', day),
          field('Expires', expires)), note],
      [h('button', { type: 'button', onclick: () => d.close() }, 'Cancel'),
        h('button.primary', { type: 'submit' }, 'Create')]);
    d.querySelector('form').addEventListener('submit', async ev => {
      ev.preventDefault();
      const body = { name: name.value, scopes: scopes.filter(([, box]) => box.checked).map(([id]) => id).join(','),
        models: models.value, rate_limit: Number(rate.value), token_limit_minute: Number(minute.value),
        token_limit_day: Number(day.value),
        ...(expires.value && { expires_at: Math.floor(Date.now() / 1000) + Number(expires.value) * DAY }) };
      try {
        const r = await api('/api/keys', { body });
        d.close();
        this.secret(`The key “${r.name}”`, r.key);
        this.draw();
      } catch (e) { note.textContent = e.message; note.hidden = false; }
    });
    name.focus();
  }

  secret(title, text) {
    const copy = iconButton('copy', 'Copy the key', () => copyText(text, copy));
    dialog(title, [h('p', {}, 'Copy it now: it is shown only this once.'),
      h('.secret', {}, h('code', {}, text), h('.spacer'), copy)], [h('button.primary', { value: '' }, 'Done')],
      { modal: true });
  }

  async change(k, fields) {
    try {
      await api('/api/keys/' + encodeURIComponent(k.name), { method: 'PATCH', body: fields });
      this.draw();
    } catch (e) { fail(e); }
  }

  async rotate(k) {
    if (!await confirmBox(`A new secret for ${k.name}?`, 'The old one stops working at once.', 'New secret', true))
      return;
    try {
      this.secret(`The key “${k.name}”`,
        (await api(`/api/keys/${encodeURIComponent(k.name)}/rotate`, { method: 'POST' })).key);
      this.draw();
    } catch (e) { fail(e); }
  }

  async remove(k) {
    if (!await confirmBox(`Delete the key ${k.name}?`, 'Programs that use it are refused at once.', 'Delete', true))
      return;
    try {
      await api('/api/keys/' + encodeURIComponent(k.name), { method: 'DELETE' });
      this.draw();
    } catch (e) { fail(e); }
  }
}

// ---- the audit log ----

const csvCell = v => {
  let t = v == null ? '' : String(v);
  if (/^[=+\-@\t\r]/.test(t) && typeof v !== 'number') t = "'" + t;             // keep a spreadsheet from evaluating it
  return /[",\n\r]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t;
};

class Audit {
  constructor(root) {
    this.summary = h('.cards.four');
    this.results = h('div', {}, spinner('Reading the log'));
    this.entries = [];
    const body = may('admin') ? [this.summary, this.form(), this.results] : [needsAdmin('The audit log')];
    this.exports = h('.row', {}, may('admin') && h('button', { type: 'button', onclick: ev => menu(ev.currentTarget, [
      { icon: 'download', label: 'These lines as CSV', run: () => this.export('csv') },
        { icon: 'download', label: 'These lines as JSON Lines', run: () => this.export('jsonl') }, null,
      { icon: 'trash', label: 'Empty the log', danger: true, run: () => this.clear() }]) }, icon('download'),
        'Export'));
    root.append(h('.page', {}, pageHead('Audit log', this.exports), body));
    if (may('admin')) this.ask();
  }

  leave() { this.left = true; }

  form() {
    this.fields = { hours: h('select', {},
      [[1, 'Last hour'], [24, 'Last 24 hours'], [168, 'Last 7 days'], [720, 'Last 30 days']].map(([v, t]) =>
        h('option', { value: v }, t))), key: h('input', { type: 'text', spellcheck: 'false' }),
      path: h('input', { type: 'text', spellcheck: 'false', placeholder: '/v1/' }),
      method: h('select', {},
        ['', 'GET', 'POST', 'PATCH', 'DELETE', 'WS'].map(m => h('option', { value: m }, m || 'any'))),
        status: h('input', { type: 'number', min: 100, max: 599 }),
        min_latency: h('input', { type: 'number', min: 0 }),
        limit: h('select', {}, [100, 300, 1000].map(n => h('option', { value: n }, `${n} lines`))) };
    this.fields.hours.value = 24;
    const labels = { hours: 'Time', key: 'Key', path: 'Path', method: 'Method', status: 'Status',
      min_latency: 'At least ms', limit: 'Most' };
    return h('section.section', {}, h('form.form.filters', { onsubmit: ev => {
      ev.preventDefault();
      this.ask();
    } }, Object.entries(this.fields).map(([n, e]) => field(labels[n], e)),
      h('button.primary', {}, icon('search'), 'Search')));
  }

  async ask() {
    const query = new URLSearchParams(Object.entries(this.fields).map(([n, e]) => [n, e.value])
      .filter(([, v]) => v !== ''));
    try {
      // the server answers one query at a time
      const s = await api('/api/audit/summary?hours=' + this.fields.hours.value);
      this.entries = (await api('/api/audit/query?' + query)).entries;
      if (this.left) return;
      this.drawSummary(s);
      this.results.replaceChildren(this.entries.length
        ? table(['Time', 'Key', 'Client', 'Request', 'Status', 'Latency', 'Tokens', 'Model', 'Error'],
          this.entries.map(x =>
            [new Date(x.timestamp).toLocaleString('en', { dateStyle: 'short', timeStyle: 'medium', hour12: false }),
              x.api_key_name || '–', x.client_ip,
              h('span.mono', {}, `${x.method} ${x.path}`),
              h('span.state.' + (x.status_code < 400 ? 'good' : x.status_code < 500 ? 'warn' : 'bad'), {},
                String(x.status_code)),
              x.latency_ms < 1000 ? `${x.latency_ms < 10 ? x.latency_ms.toFixed(1) : number(x.latency_ms)} ms`
              : `${number(x.latency_ms / 1000, 1)} s`, x.total_tokens == null ? '' : number(x.total_tokens),
              x.model_id || '', x.error_message || '']), [5, 6])
        : h('.card', {}, emptyState('audit', 'No lines match', 'Try a longer time or fewer conditions.')));
    } catch (e) { if (!this.left) this.results.replaceChildren(problem(e, () => this.ask())); }
  }

  drawSummary(s) {
    const card = (t, v, sub) => h('.card', {}, h('h2', {}, t), h('.value', {}, v), h('.sub', {}, sub));
    const most = Object.entries(s.endpoints).sort((a, b) => b[1] - a[1])[0];
    this.summary.replaceChildren(card('Requests', number(s.total_requests), most ? `most of them ${most[0]}` : ''),
      card('Keys', number(s.unique_keys), 'used them'),
      card('Errors', number(s.errors),
        s.total_requests ? `${number(100 * s.errors / s.total_requests, 1)} % of requests` : ''),
      card('Tokens', short(s.total_tokens), `${number(s.avg_latency_ms)} ms on average`));
  }

  export(kind) {
    const day = new Date().toISOString().slice(0, 10);
    if (kind === 'jsonl') {
      saveFile(`audit-${day}.jsonl`, 'application/jsonl', this.entries.map(x => JSON.stringify(x) + '\n').join(''));
      return;
    }
    const columns = [...new Set(this.entries.flatMap(x => Object.keys(x)))];
    saveFile(`audit-${day}.csv`, 'text/csv',
      [columns, ...this.entries.map(x => columns.map(c => x[c]))].map(r => r.map(csvCell).join(',') + '\r\n')
      .join(''));
  }

  async clear() {
    if (!await confirmBox('Empty the audit log?',
      'The lines of the current file will be gone. The log says who emptied it.', 'Empty it', true)) return;
    try {
      await api('/api/audit/clear', { method: 'DELETE' });
      toast('The log is empty.');
      this.ask();
    } catch (e) { fail(e); }
  }
}

const PAGES = { keys: Keys, audit: Audit };

export function mount(root, id) {
  const p = new PAGES[id](root);
  return () => p.leave();
}
