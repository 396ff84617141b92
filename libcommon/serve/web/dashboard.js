// dashboard.js - the state of the server: figures of the last hour, updated by WebSocket every 2 s.

import { h, svg, icon, add, api, socket, pageHead, spinner, emptyState, number, bytes, short, span, ago, plural,
  may } from './core.js';

const W = 560, H = 132, LEFT = 38, BOTTOM = 20;

// ---- charts ----

function niceMax(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 2.5, 5, 10].map(f => f * p).find(x => x >= v * 1.02) || 10 * p;
}

const tick = v => v >= 1000 ? short(v) : v % 1 === 0 ? String(v) : v.toFixed(v < 1 ? 2 : 1);

// A chart of one series: values at equal intervals, the newest last; times in seconds.
export function chart(title, values, { format = v => number(v), bars = false, times } = {}) {
  const most = niceMax(Math.max(0, ...values)), n = values.length, width = W - LEFT, height = H - BOTTOM;
  const x = i => LEFT + (bars ? (i + .5) / n : n > 1 ? i / (n - 1) : 1) * width,
    y = v => 6 + (1 - v / most) * (height - 6);
  const root = svg('svg',
    { viewBox: `0 0 ${W} ${H}`, class: 'chart', role: 'img',
      'aria-label': `${title}: now ${format(values.at(-1) || 0)}, most ${format(Math.max(0, ...values))}` });
  for (const part of [0, .5, 1])
    root.append(svg('line', { class: 'grid', x1: LEFT, x2: W, y1: y(most * part), y2: y(most * part) }),
      svg('text', { x: LEFT - 8, y: y(most * part) + 4, 'text-anchor': 'end' }, tick(most * part)));
  if (times) for (const part of [0, .5, 1]) {
    const i = Math.round(part * (n - 1));
    root.append(svg('text', { x: Math.min(Math.max(x(i), LEFT + 16), W - 16), y: H - 3, 'text-anchor': 'middle' },
      new Date(times[i] * 1000).toLocaleTimeString('en', { hour: '2-digit', minute: '2-digit', hour12: false })));
  }
  if (bars) {
    const w = Math.max(1, width / n - 2);
    values.forEach((v, i) => v &&
      root.append(svg('rect', { class: 'bar', x: x(i) - w / 2, y: y(v), width: w, height: Math.max(1, y(0) - y(v)),
        rx: Math.min(2, w / 2) })));
  } else if (n > 1) {
    const line = values.map((v, i) => `${i ? 'L' : 'M'}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join('');
    root.append(svg('path', { class: 'area', d: `${line}L${x(n - 1)} ${y(0)}L${x(0)} ${y(0)}Z` }),
      svg('path', { class: 'line', d: line }));
  }
  const now = h('output', {}, format(values.at(-1) || 0)),
    mark = svg('line', { class: 'mark', y1: 6, y2: height, visibility: 'hidden' });
  root.append(mark);
  root.addEventListener('pointermove', ev => {
    const box = root.getBoundingClientRect(), at = ((ev.clientX - box.left) / box.width * W - LEFT) / width;
    const i = Math.max(0, Math.min(n - 1, bars ? Math.floor(at * n) : Math.round(at * (n - 1))));
    mark.setAttribute('x1', x(i));
    mark.setAttribute('x2', x(i));
    mark.setAttribute('visibility', 'visible');
    now.textContent = format(values[i]) +
      (times ? ' at ' + new Date(times[i] * 1000)
        .toLocaleTimeString('en', { hour: '2-digit', minute: '2-digit', hour12: false }) : '');
  });
  root.addEventListener('pointerleave', () => {
    mark.setAttribute('visibility', 'hidden');
    now.textContent = format(values.at(-1) || 0);
  });
  return h('.card', {}, h('.chart-head', {}, h('h3', {}, title), now), root);
}

function spark(values) {
  const most = Math.max(...values, 1e-9), n = values.length;
  const d = values.map((v, i) =>
    `${i ? 'L' : 'M'}${(i / Math.max(1, n - 1) * 200).toFixed(1)} ${(32 - v / most * 28).toFixed(1)}`).join('');
  return svg('svg', { viewBox: '0 0 200 34', class: 'chart spark', preserveAspectRatio: 'none',
    'aria-hidden': 'true' }, svg('path', { class: 'area', d: d + 'L200 34L0 34Z' }),
    svg('path', { class: 'line', d }));
}

const card = (title, value, unit, sub, extra) =>
  h('.card', {}, h('h2', {}, title), h('.value', {}, value, unit && h('small', {}, unit)), h('.sub', {}, sub), extra);
const meter = (label, ...parts) => h('.meter', { role: 'img', 'aria-label': label }, parts.map(p => {
  const i = h('i');
  i.style.width = Math.max(0, Math.min(100, p * 100)) + '%';
  return i;
}));
const facts = rows =>
  h('dl.facts', {}, rows.filter(Boolean).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));

// Parts of the machine's memory: pages of files, the rest of this process, other processes.  Used
// memory has no pages of files, which the machine can drop.
export function memoryParts(s) {
  const own = s.process_memory_gb - s.process_file_memory_gb;
  return [s.process_file_memory_gb, own, Math.max(0, s.memory_used_gb - own)].map(x => x / s.memory_total_gb);
}

const time = ms => ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000, 1)} s`;

// ---- the page ----

class Dashboard {
  constructor(root) {
    this.rates = [];
    this.active = [];
    this.latencies = h('.sub');
    this.state = h('span.state', { role: 'status' }, 'connecting');
    this.cards = h('.cards', { 'aria-live': 'off' });
    this.models = h('section.section');
    this.hour = h('section.section', {}, spinner('Loading the last hour'));
    this.gpus = h('section.section', { hidden: true });
    this.keys = h('section.section', { hidden: true });
    this.recent = h('section.section');
    root.append(h('.page', {}, pageHead('Dashboard', this.state), this.cards, this.models, this.gpus, this.hour,
      this.keys, this.recent));
    this.drawCards(null);
    this.connect();
    this.poll();
    this.timer = setInterval(() => { if (!document.hidden) this.poll(); }, 15000);
  }

  leave() {
    this.left = true;
    clearInterval(this.timer);
    clearTimeout(this.again);
    this.ws?.close();
  }

  say(kind, text) {
    if (this.state.textContent === text) return;
    this.state.className = 'state ' + kind;
    this.state.textContent = text;
  }

  connect() {
    const ws = this.ws = socket('/ws/stats');
    ws.onmessage = ev => {
      const m = JSON.parse(ev.data);
      if (m.type === 'stats') this.live(m);
    };
    ws.onclose = () => {
      if (this.left) return;
      this.say('bad', 'no connection');
      this.again = setTimeout(() => this.connect(), 2000);
    };
  }

  live({ system: s, analytics: a, models }) {
    const loading = (models || []).some(m => m.state === 'loading');
    this.say(s.models_loaded.length ? 'good' : 'warn', s.models_loaded.length ? 'ready' : loading ? 'loading a model'
      : 'no model is loaded');
    this.rates = [...this.rates, s.tokens_per_sec].slice(-60);
    this.active = [...this.active, s.active_requests].slice(-60);
    this.drawCards(s, a, models);
    if (models) this.drawModels(models);
    this.drawGpus(s.gpus);
  }

  drawCards(s, a, models = []) {
    if (!s) {
      this.cards.replaceChildren(...['Speed', 'Requests', 'Latency', 'Memory', 'Prefix cache',
        'Uptime'].map(t => card(t, '–', '', '')));
      return;
    }
    const sum = f => models.reduce((n, m) => n + (m[f] || 0), 0), waiting = sum('waiting'),
      prompt = sum('prompt_tokens'), cached = sum('cached_tokens');
    this.cards.replaceChildren(
      card('Speed', number(s.tokens_per_sec, s.tokens_per_sec < 100 ? 1 : 0), 'tokens/s',
        `${short(a.total_tokens_generated)} generated, ${short(a.total_prompt_tokens)} read`, spark(this.rates)),
      card('Requests', number(s.active_requests), waiting ? `active, ${waiting} waiting` : 'active',
        `${number(a.total_requests)} in all${a.failed_requests ? `, ${number(a.failed_requests)} failed` : ''}`,
        spark(this.active)),
      card('Latency', a.avg_latency_ms < 1000 ? number(a.avg_latency_ms) : number(a.avg_latency_ms / 1000, 1),
        a.avg_latency_ms < 1000 ? 'ms' : 's', `${number(a.requests_per_minute, 1)} requests a minute`, this.latencies),
      card('Memory', s.process_memory_gb.toFixed(2), 'GB',
        `${s.process_file_memory_gb.toFixed(2)} GB of that are pages of files; without such pages the machine uses ` +
          `${number(s.memory_percent)} % of ${number(s.memory_total_gb, 1)} GB`,
        meter('memory: pages of files, the rest of this process, other processes', ...memoryParts(s))),
      card('Prefix cache', prompt ? number(100 * cached / prompt) : '–', prompt ? '% of prompts' : '',
        `${short(cached)} tokens were not computed again`),
      card('Uptime', span(s.uptime_seconds), '', `${s.hostname} · processors ${number(s.cpu_percent)} %`));
  }

  drawModels(models) {
    const one = m => {
      const used = m.kv_blocks ? (m.kv_blocks - m.kv_blocks_free - m.kv_blocks_prefix) / m.kv_blocks : 0,
        prefix = m.kv_blocks ? m.kv_blocks_prefix / m.kv_blocks : 0;
      const kind = { ready: 'good', loading: 'warn' }[m.state] || '';
      return h('.card', {},
        h('.row', {}, h('span.model-name', {}, m.model_id), m.quantization && h('span.chip', {}, m.quantization),
          h('.spacer'), h('span.state.' + (kind || 'x'), {}, m.state)),
        m.kv_blocks !== undefined &&
          [meter(`keys and values: ${number(used * 100)} % in use, ${number(prefix * 100)} % prefix cache`, used,
            prefix),
            facts([['Keys and values', `${number(used * 100)} % used, ${number(prefix * 100)} % prefix`],
              ['Running', m.running], ['Waiting', m.waiting], ['Requests', number(m.request_count)],
              ['Generated', short(m.tokens_generated)],
              ['Weights', bytes(m.weight_bytes)], ['Private memory', bytes(m.private_bytes)],
              ['Of that, KV', bytes(m.kv_bytes)],
              ['Context', `${short(m.context)} tokens`], m.vram_used_gb ? ['GPU memory', `${m.vram_used_gb} GB`]
              : null, ['Loaded in', `${m.load_time.toFixed(2)} s`]])]);
    };
    this.models.replaceChildren(h('header', {}, h('h2', {}, 'Models')),
      models.length ? h('.grid-2', {}, models.map(one))
      : h('.card', {}, emptyState('models', 'No model is loaded', 'Load one on the Models page.',
        h('a', { href: '/models' }, 'Models'))));
  }

  drawGpus(gpus) {
    this.gpus.hidden = !gpus?.length;
    if (this.gpus.hidden) return;
    this.gpus.replaceChildren(h('header', {}, h('h2', {}, 'GPUs')),
      h('.grid-2', {}, gpus.map(g =>
        h('.card', {}, h('.row', {}, h('span.model-name', {}, g.name), h('.spacer'), g.temperature_celsius != null &&
          h('span.muted', {}, `${g.temperature_celsius} °C`)),
          meter('GPU memory', g.used_memory_gb / g.total_memory_gb),
          facts([['Memory', `${g.used_memory_gb} of ${g.total_memory_gb} GB`],
            ['Use', g.utilization_percent == null ? '–' : `${g.utilization_percent} %`]])))));
  }

  async poll() {
    try {
      const [t, r, k] = await Promise.all([api('/api/analytics/timeseries'), api('/api/analytics/requests?limit=30'),
        may('admin') ? api('/api/keys').catch(() => null) : null]);
      if (this.left) return;
      const times = t.timestamps;
      this.hour.replaceChildren(h('header', {}, h('h2', {}, 'The last hour')), h('.grid-2', {},
        chart('Requests a minute', t.requests_per_minute, { bars: true, times }),
        chart('Tokens a second', t.tokens_per_second,
          { times, format: v => `${number(v, v < 10 ? 1 : 0)} tokens/s` }),
        chart('Latency', t.latency_ms,
          { bars: true, times, format: time }),
        chart('Memory', t.memory_usage_gb, { times, format: v => `${number(v, 2)} GB` })));
      this.drawKeys(k);
      this.drawRecent(r.requests);
    } catch (e) {
      if (!this.left)
        this.hour.replaceChildren(h('.note.bad', { role: 'alert' }, icon('warn'), h('span', {}, e.message)));
    }
  }

  drawKeys(k) {
    this.keys.hidden = !k?.keys.length;
    if (this.keys.hidden) return;
    const list = [...k.keys].sort((a, b) => b.token_count - a.token_count),
      most = Math.max(1, ...list.map(x => x.token_count));
    this.keys.replaceChildren(h('header', {}, h('h2', {}, 'Use by key')),
      table(['Key', 'Requests', 'Tokens', '', 'This minute', 'Last use'],
        list.map(x => [x.name, number(x.request_count), short(x.token_count),
          meter(`${x.token_count} tokens`, x.token_count / most),
          x.rate_limit ? `${x.current} of ${x.rate_limit}` : String(x.current), x.last_used ? ago(x.last_used * 1000)
          : 'never']), [1, 2, 4]));
  }

  drawRecent(list) {
    const first = list.filter(r => r.status < 400).map(r => r.first_token_ms).sort((x, y) => x - y);
    const quantile = q => time(first[Math.ceil(q * first.length) - 1]);
    this.latencies.textContent = first.length
      ? `first token after ${quantile(.5)}, 95 % within ${quantile(.95)} (last ${plural(first.length, 'request')})` : '';
    this.recent.replaceChildren(h('header', {}, h('h2', {}, 'Recent requests')),
      list.length ? table(['Time', 'Endpoint', 'Model', 'Prompt', 'Answer', 'First token', 'Total', 'Tokens/s',
        'Status'], list.map(r => [
          new Date(r.timestamp * 1000).toLocaleTimeString('en', { hour12: false }), h('span.mono', {}, r.endpoint),
          r.model, number(r.prompt_tokens), number(r.completion_tokens), time(r.first_token_ms), time(r.latency_ms),
          number(r.tokens_per_sec, 1), h('span.state.' + (r.status < 400 ? 'good' : 'bad'), {}, String(r.status))]),
        [3, 4, 5, 6, 7])
      : h('.card', {}, emptyState('dashboard', 'No requests yet', 'They appear here as they end.')));
  }
}

// A table of texts or elements; columns in `numbers` are aligned to the right.
export function table(heads, rows, numbers = []) {
  return h('.rows', { tabindex: '0', role: 'region', 'aria-label': 'Table' },
    h('table', {}, h('thead', {},
      h('tr', {}, heads.map((t, i) => h('th', { scope: 'col', class: numbers.includes(i) ? 'num' : null }, t)))),
      h('tbody', {}, rows.map(r =>
        h('tr', {}, r.map((c, i) => h('td', { class: numbers.includes(i) ? 'num' : c?.cellClass || null }, c)))))));
}

export function mount(root) {
  const d = new Dashboard(root);
  return () => d.leave();
}
