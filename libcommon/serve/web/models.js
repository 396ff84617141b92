// models.js - the page of models: loaded ones, downloads, conversions, files, the hub.

import { h, icon, iconButton, api, events, who, may, spec, pageHead, spinner, emptyState, field, dialog, confirmBox,
  toast, fail, number, bytes, short, span, ago, plural } from './core.js';
import { table } from './dashboard.js';
import { inputOf, needsAdmin, problem } from './manage.js';

class Models {
  constructor(root) {
    this.list = h('section.section', {}, spinner('Loading the models'));
    this.work = h('section.section', { hidden: true });
    this.disk = h('section.section', { hidden: true });
    this.load = h('section.section');
    this.hub = h('section.section', { hidden: true });
    root.append(h('.page', {}, pageHead('Models', iconButton('retry', 'Refresh', () => this.draw())), this.list,
      this.work, this.disk, this.load, this.hub));
    this.draw();
    this.drawLoad();
    this.drawHub();
    if (may('admin') && who.features.jobs) {
      this.drawDisk();
      this.watch();
    }
  }

  leave() { clearTimeout(this.timer); this.left = true; this.watching?.abort(); }

  async draw() {
    clearTimeout(this.timer);
    try {
      const { models } = await api('/api/stats/models');
      if (this.left) return;
      this.list.replaceChildren(models.length ? h('.grid-2', {}, models.map(m => this.one(m)))
        : h('.card', {}, emptyState('models', 'No model is loaded',
          who.features.jobs && may('admin') ? 'Load one from the server, or get one from the hub below.'
            : 'Load one from the disk of the server.')));
      if (models.some(m => m.state !== 'ready')) this.timer = setTimeout(() => this.draw(), 1000);
    } catch (e) { if (!this.left) this.list.replaceChildren(problem(e, () => this.draw())); }
  }

  one(m) {
    const kind = { ready: 'good', loading: 'warn' }[m.state] || 'x';
    const unload = h('button', { type: 'button', disabled: m.state !== 'ready', onclick: () => this.unload(m) },
      'Unload');
    const rows = m.context === undefined ? []
      : [['Context', `${number(m.context)} tokens`], ['Weights', bytes(m.weight_bytes)],
        ['Private memory', bytes(m.private_bytes)],
        ['Requests', number(m.request_count)], ['Generated', `${short(m.tokens_generated)} tokens`],
        ['Running', m.running], ['Loaded in', `${m.load_time.toFixed(2)} s`]];
    return h('.card', {},
      h('.row', {}, h('span.model-name', {}, m.model_id), m.quantization && h('span.chip', {}, m.quantization),
        h('.spacer'), h('span.state.' + kind, {}, m.state)),
      h('p.model-path', {}, m.model_name),
        h('dl.facts', {}, rows.map(([n, v]) => h('div', {}, h('dt', {}, n), h('dd', {}, String(v))))),
        may('admin') && h('.row.card-end', {}, h('.spacer'), unload));
  }

  async unload(m) {
    if (!await confirmBox(`Unload ${m.model_id}?`,
      m.open_requests ? `${plural(m.open_requests, 'request')} will end first.`
      : 'Its memory becomes free. It can be loaded again at any time.', 'Unload')) return;
    try {
      toast((await api('/api/models/unload', { body: { model_id: m.model_id } })).message);
      this.draw();
    } catch (e) { fail(e); }
  }

  async drawLoad() {
    const head = h('header', {}, h('h2', {}, 'Load a model'));
    if (!may('admin')) { this.load.replaceChildren(head, needsAdmin('Loading and unloading models')); return; }
    let properties = { model_path: { type: 'string' }, model_name: { type: 'string' } };
    try {
      properties = (await spec())
        .paths['/api/models/load'].post.requestBody.content['application/json'].schema.properties;
    } catch { /* the two fields that are always there */ }
    const labels = { model_path: 'Path', model_name: 'Name', quantization: 'Type of the weights',
      target_vram_gb: 'Memory of the weights in GB', device: 'Device' };
    const order = Object.entries(properties).filter(([, f]) => !/^(Ignored|Refused)/.test(f.description || ''))
      .sort(([a], [b]) => (b === 'model_path') - (a === 'model_path'));
    const inputs = order.map(([name, f]) => [name, ...inputOf(name, f), f]),
      button = h('button.primary', { type: 'submit' }, 'Load');
    const out = h('div', { role: 'status' });
    const form = h('form.card.form', { onsubmit: async ev => {
      ev.preventDefault();
      const body = {};
      for (const [name, , read] of inputs) if (read() !== undefined) body[name] = read();
      if (!body.model_path && !body.model_name) { inputs[0][1].focus(); return; }
      button.disabled = true;
      out.replaceChildren(h('span.state.warn', {}, 'Loading…'));
      this.draw();
      try {
        const r = await api('/api/models/load', { body });
        out.replaceChildren(h('span.state.good', {}, `${r.model_id}: ready after ${r.load_time_sec.toFixed(2)} s`));
      } catch (e) { out.replaceChildren(problem(e)); }
      button.disabled = false;
      this.draw();
    } }, inputs.map(([name, input, , f]) => {
      const e = field(labels[name] || name, input, f.description);
      if (name === 'model_path') e.classList.add('wide');
      return e;
    }), h('.row.wide', {}, out, h('.spacer'), button));
    this.load.replaceChildren(head, form);
  }

  // Draw the registry, and the search on the hub.
  async drawHub() {
    const paths = (await spec().catch(() => ({ paths: {} }))).paths;
    if (this.left || !paths['/api/models/registry']) return;
    this.hub.hidden = false;
    const category = h('select', { 'aria-label': 'Category', onchange: () => this.registry() },
      ['', 'chat', 'instruct', 'code', 'reasoning'].map(c => h('option', { value: c }, c || 'all')));
    const memory = h('input', { type: 'number', min: 0, step: 'any', placeholder: 'any', 'aria-label': 'Memory in GB',
      onchange: () => this.registry() });
    const words = h('input',
      { type: 'search', placeholder: 'Name on huggingface.co', 'aria-label': 'Search huggingface.co',
        required: true });
    this.filters = { category, memory };
    this.known = h('div');
    this.found = h('div', { role: 'status' });
    const search = may('admin') && h('form.row.search-row', { onsubmit: ev => {
      ev.preventDefault();
      this.search(words.value);
    } }, words, h('button', {}, icon('search'), 'Search the hub'));
    this.hub.replaceChildren(search ? h('section.section', {}, h('header', {}, h('h2', {}, 'Models on the hub')),
      h('.card', {}, search, this.found)) : '',
      h('section.section', {}, h('header', {}, h('h2', {}, 'Known models')),
        h('.form.filters', {}, field('Category', category), field('Memory in GB', memory)), this.known));
    this.registry();
  }

  async registry() {
    const { category, memory } = this.filters,
      query = new URLSearchParams(Object.entries({ category: category.value, max_vram: memory.value })
        .filter(([, v]) => v));
    try {
      const { models } = await api('/api/models/registry?' + query);
      const cell = (e, name) => Object.assign(e, { cellClass: name });
      this.known.replaceChildren(models.length
        ? table(['Model', 'Parameters', '16 bits', '8 bits', '4 bits', 'Context', 'Runs here', ''],
          models.map(m => [cell(h('span', {}, h('strong', {}, m.name),
            m.recommended ? h('span.chip.after', {}, 'recommended') : null, h('br'), h('span.muted', {}, m.description)),
            'wrap'),
            `${number(m.parameters / 1e9, 1)} billion`,
            ...['fp16_gb', 'int8_gb', 'int4_gb'].map(k => `${number(m.vram[k], 1)} GB`), short(m.context_length),
            h('span.state.' + (m.supported ? 'good' : 'x'), { title: m.unsupported_reason },
              m.supported ? 'yes' : 'no'),
            cell(h('span', {}, who.features.jobs && may('admin') && m.supported && h('button', { type: 'button',
              'aria-label': `Get ${m.name}`, onclick: () => this.get(m.model_id) }, icon('download'), 'Get')),
            'actions')]), [1, 2, 3, 4, 5])
        : h('.card', {}, emptyState('models', 'No model fits', 'Allow more memory, or another category.')));
    } catch (e) { this.known.replaceChildren(problem(e, () => this.registry())); }
  }

  async search(words) {
    this.found.replaceChildren(spinner('Asking the hub'));
    try {
      const { models } = await api('/api/models/search?q=' + encodeURIComponent(words));
      this.found.replaceChildren(models.length ? table(['Model', 'Downloads', 'Licence', 'Converts', ''],
        models.map(m => [m.id, number(m.downloads), m.license || '',
          h('span.state.' + (m.compatible ? 'good' : 'x'), { title: m.reason }, m.compatible ? 'yes' : 'no'),
          Object.assign(h('span', {}, h('button', { type: 'button', onclick: ev => this.check(m.id, ev.currentTarget) },
            'Check'), who.features.jobs && m.compatible && h('button', { type: 'button', onclick: () => this.get(m.id) },
            icon('download'), 'Get')), { cellClass: 'actions' })]), [1]) : h('p.muted', {}, `No model has “${words}” in its name.`));
    } catch (e) { this.found.replaceChildren(problem(e)); }
  }

  async check(id, button) {
    button.disabled = true;
    try {
      const r = await api('/api/models/check/' + id.split('/').map(encodeURIComponent).join('/')), size = r.size_info,
        memory = size.memory_bytes || {};
      dialog(id, [h('p', {},
        h('span.state.' + (r.compatible ? 'good' : 'bad'), {}, r.compatible ? 'It can be converted and runs here.'
          : 'It cannot be used here.')), r.issues.map(t => h('.note', {}, t)),
        h('dl.facts', {}, [['Architecture', r.architecture],
          ['Context', size.context && `${number(size.context)} tokens`],
          ['Weights', size.weight_bytes && bytes(size.weight_bytes)],
          ...Object.entries(memory).map(([k, v]) => [`Memory as ${k}`, bytes(v)])].filter(([, v]) => v)
          .map(([n, v]) => h('div', {}, h('dt', {}, n), h('dd', {}, v)))),
        r.recommendations.map(t => h('.secret', {}, h('code', {}, t)))],
          [h('button.primary', { value: '' }, 'Close')]);
    } catch (e) { fail(e); }
    button.disabled = false;
  }

  // ---- downloads and conversions ----

  // Follow the jobs; a stream ends after some minutes, and is opened again.
  async watch() {
    this.watching = new AbortController();
    while (!this.left) {
      try {
        for await (const { jobs } of events('/api/models/jobs/events', undefined, this.watching.signal)) {
          if (this.left) return;
          this.drawJobs(jobs);
        }
      } catch (e) {
        if (this.left || e.name === 'AbortError') return;
      }
      await new Promise(go => setTimeout(go, 2000));
    }
  }

  drawJobs(jobs) {
    const open = jobs.filter(j => j.state === 'done').length;
    if (open !== this.made) {                   // a job has ended: the lists above and below change
      if (this.made !== undefined) { this.draw(); this.drawDisk(); }
      this.made = open;
    }
    this.work.hidden = !jobs.length;
    this.cards ||= new Map();
    const keep = new Map();
    for (const j of [...jobs].reverse()) {
      const text = JSON.stringify(j), old = this.cards.get(j.id);
      keep.set(j.id, old?.text === text ? old : { text, card: this.job(j) });
    }
    const focus = document.activeElement?.dataset?.job;
    this.cards = keep;
    this.work.replaceChildren(h('header', {}, h('h2', {}, 'Downloads and conversions')),
      ...[...keep.values()].map(x => x.card));
    if (focus) this.work.querySelector(`[data-job="${focus}"]`)?.focus();
  }

  job(j) {
    const kinds = { done: 'good', running: 'warn', failed: 'bad' }, p = j.progress, running = j.state === 'running';
    const show = (n, unit) => unit === 'bytes' ? bytes(n) : `${number(n)} ${unit}`;
    const share = p?.total ? Math.min(100, 100 * p.done / p.total) : 0;
    const said = !p ? '' : [p.step, p.total ? `${show(p.done, p.unit)} of ${show(p.total, p.unit)}` : '',
      running && p.rate ? `${show(p.rate, p.unit)}/s` : '',
      running && p.eta_s !== null ? `${span(Math.ceil(p.eta_s))} left` : ''].filter(Boolean).join(' · ');
    const button = (label, name, run) => h('button', { type: 'button', 'data-job': j.id + name,
      'aria-label': `${label}: ${j.source}`, onclick: ev => this.act(ev.currentTarget, run) }, label);
    const path = '/api/models/jobs/' + j.id, over = j.state !== 'running' && j.state !== 'queued';
    const what = j.kind === 'download' ? 'download' : [j.quantization, j.quality].filter(Boolean).join(', ') || 'convert';
    const fill = h('i');
    fill.style.width = share + '%';
    return h('.card.job', { 'data-id': j.id },
      h('.row', {}, h('span.model-name', {}, j.name || j.source), h('span.chip', {}, what), h('.spacer'),
        h('span.state.' + (kinds[j.state] || 'x'), {}, j.state === 'running' && p ? `${Math.floor(share)} %` : j.state)),
      h('p.model-path', {}, j.source),
      running && h('.meter', { role: 'progressbar', 'aria-label': `Progress of ${j.name || j.source}`,
        'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': String(Math.floor(share)) }, fill),
      running && h('p.muted', {}, said || 'Starting'),
      over && j.message && h('p' + (j.state === 'failed' ? '.job-problem' : '.muted'),
        { role: j.state === 'failed' ? 'alert' : null }, j.message),
      j.state === 'done' && j.bytes ? h('p.muted', {}, `${bytes(j.bytes)} in ${span(j.ended_at - j.started_at)}`) : null,
      h('.row.card-end', {}, h('.spacer'), over && j.state !== 'done'
        && button('Resume', 'resume', () => api(path + '/resume', { method: 'POST' })),
        button(over ? 'Remove from the list' : 'Cancel', 'stop', () => api(path, { method: 'DELETE' }))));
  }

  async act(button, run) {
    button.disabled = true;
    try { await run(); } catch (e) { fail(e); button.disabled = false; }
  }

  // Show a dialog that starts a conversion: of a model on the hub, or of a file of the server.
  async get(source) {
    const option = ([value, text]) => h('option', { value }, text);
    const type = h('select', {}, [['', 'nl4: 4.5 bits, the best for its size'], ['int8', 'int8: half of 16 bits'],
      ['int4', 'int4'], ['bf16', 'bf16: unchanged'], ['keep', 'keep: as in the source']].map(option));
    const quality = h('select', {}, [['', 'good'], ['fast', 'fast: no model run'], ['best', 'best: takes the longest']]
      .map(option));
    const name = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', maxlength: 160,
      placeholder: 'from the model and the type' });
    const load = h('input', { type: 'checkbox', checked: true });
    const out = h('div', { role: 'status' }), go = h('button.primary', { type: 'submit' }, 'Get the model');
    const d = dialog(source, [h('.form', {}, field('Type of the weights', type), field('Quality', quality),
      field('Name', name)), h('label.check', {}, load, h('span', {}, 'Load it when it is ready')), out],
    [h('button', { type: 'button', onclick: () => d.close() }, 'Cancel'), go]);
    d.querySelector('form').addEventListener('submit', async ev => {
      ev.preventDefault();
      go.disabled = true;
      const body = { source, load: load.checked };
      if (type.value) body.quantization = type.value;
      if (quality.value) body.quality = quality.value;
      if (name.value.trim()) body.name = name.value.trim();
      try {
        await api('/api/models/jobs', { body });
        d.close();
        this.work.scrollIntoView({ block: 'nearest' });
      } catch (e) { out.replaceChildren(problem(e)); }
      go.disabled = false;
    });
  }

  // ---- models on the disk of the server ----

  async drawDisk() {
    try {
      const { files, folder, free_bytes } = await api('/api/models/files');
      if (this.left) return;
      this.disk.hidden = !files.length;
      const row = f => [h('strong', {}, f.name), f.kind, bytes(f.bytes), ago(f.modified * 1000),
        Object.assign(h('span', {}, h('button', { type: 'button', 'aria-label': `Load ${f.name}`,
          onclick: ev => this.loadFile(ev.currentTarget, f) }, 'Load'),
        f.kind !== 'zse' && h('button', { type: 'button', 'aria-label': `Convert ${f.name}`,
          onclick: () => this.get(f.path) }, 'Convert'),
        f.kind !== 'folder' && iconButton('trash', `Delete ${f.name}`, () => this.removeFile(f),
          { class: 'icon-button small' })), { cellClass: 'actions' })];
      this.disk.replaceChildren(h('header', {}, h('h2', {}, 'On this server'), h('.spacer'),
        h('span.muted', {}, `${folder}${free_bytes === null ? '' : `, ${bytes(free_bytes)} free`}`)),
      table(['Model', 'Kind', 'Size', 'Changed', ''], files.map(row), [2]));
    } catch (e) {
      if (this.left) return;
      this.disk.hidden = false;
      this.disk.replaceChildren(problem(e, () => this.drawDisk()));
    }
  }

  async loadFile(button, f) {
    button.disabled = true;
    const ready = api('/api/models/load', { body: { model_path: f.path } });
    this.draw();
    try {
      const r = await ready;
      toast(`${r.model_id} is ready.`);
    } catch (e) { fail(e); }
    button.disabled = false;
    this.draw();
  }

  async removeFile(f) {
    if (!await confirmBox(`Delete ${f.name}?`, `${bytes(f.bytes)} become free. It cannot be undone.`, 'Delete', true)) return;
    try {
      await api('/api/models/files/' + f.name.split('/').map(encodeURIComponent).join('/'), { method: 'DELETE' });
      toast(`${f.name} was deleted.`);
    } catch (e) { fail(e); }
    this.drawDisk();
  }
}

export function mount(root) {
  const m = new Models(root);
  return () => m.leave();
}
