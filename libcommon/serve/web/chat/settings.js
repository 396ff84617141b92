// settings.js - the settings of a conversation, and the panel that shows them.

import { h, iconButton, field, toast, fail, spinner, spec, kept } from '../core.js';

const PARAMETERS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.1, start: 0.7,
    help: 'Low: precise. High: varied.' },
  { name: 'top_p', label: 'Top P', min: 0, max: 1, step: 0.05, start: 0.9,
    help: 'Only the most likely tokens that together have this probability.' },
  { name: 'max_tokens', label: 'Longest answer', min: 64, max: 4096, step: 64, start: 1024, help: 'In tokens.' },
];

export class Settings {
  constructor(chat) {
    this.chat = chat;
    this.panel = null;
  }

  async change(fields) {
    this.chat.conv.settings = { ...this.chat.conv.settings, ...fields };
    for (const [k, v] of Object.entries(this.chat.conv.settings))
      if (v === undefined || v === null) delete this.chat.conv.settings[k];
    this.chat.composer.drawBadges();
    if (this.chat.conv.id) await this.chat.history.change(this.chat.conv.id, { settings: this.chat.conv.settings });
  }

  changeSoon(fields) {
    this.chat.conv.settings = { ...this.chat.conv.settings, ...fields };
    clearTimeout(this.timer);
    const conv = this.chat.conv;
    this.timer = setTimeout(() => {
      if (conv.id)
        this.chat.history.change(conv.id, { settings: conv.settings, system_prompt: conv.system_prompt }).catch(fail);
    }, 500);
  }

  // Redraw an open panel for another conversation.
  redraw() {
    if (!this.panel) return;
    this.panel.remove();
    this.panel = this.draw();
    this.chat.root.append(this.panel);
  }

  toggle() {
    const button = document.getElementById('settings-button');
    if (this.panel) {
      this.panel.remove();
      this.panel = null;
    } else {
      this.panel = this.draw();
      this.chat.root.append(this.panel);
      this.panel.querySelector('textarea').focus();
    }
    button.setAttribute('aria-expanded', String(!!this.panel));
  }

  slider(p) {
    const params = () => this.chat.conv.settings.params || {}, out = h('output');
    const input = h('input', { type: 'range', min: p.min, max: p.max, step: p.step, 'aria-label': p.label,
      oninput: () => {
      this.changeSoon({ params: { ...params(), [p.name]: Number(input.value) } });
      draw();
    } });
    const reset = h('button.link', { type: 'button', onclick: () => {
      const { [p.name]: gone, ...rest } = params();
      this.changeSoon({ params: rest });
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

  draw() {
    const s = this.chat.conv.settings;
    const system = h('textarea.system',
      { value: this.chat.conv.system_prompt || '', placeholder: 'You are a helpful assistant.', oninput: () => {
      this.chat.conv.system_prompt = system.value || null;
      this.changeSoon({});
    } });
    const thinking = h('select', { onchange: () => this.changeSoon({ thinking: thinking.value }) },
      [['auto', 'As the model does'], ['on', 'On'], ['off', 'Off']].map(([v, t]) => h('option', { value: v }, t)));
    thinking.value = s.thinking || 'auto';
    const more = h('details.more', {}, h('summary', {}, 'All parameters'), h('div', {}, spinner('Loading')));
    more.addEventListener('toggle', () => { if (more.open && !more.loaded) {
      more.loaded = true;
      this.drawMore(more.lastChild);
    } });
    return h('aside.panel', { 'aria-label': 'Settings of this chat' },
      h('.panel-head', {}, h('h2', {}, 'Settings of this chat'),
        iconButton('close', 'Close', () => this.toggle())),
      field('System prompt', system), PARAMETERS.map(p => this.slider(p)), field('Thinking', thinking), more,
      h('button', { type: 'button', onclick: () => {
        kept.set('draft', { system_prompt: this.chat.conv.system_prompt,
          settings: { ...this.chat.conv.settings, documents: undefined } });
        toast('New chats begin with these settings.');
      } }, 'Use for new chats'));
  }

  // Draw the fields of a request that no other control has, as JSON.
  drawFields() {
    const now = this.chat.conv.settings.more;
    const e = h('textarea.mono', { rows: 3, spellcheck: 'false', value: now ? JSON.stringify(now, null, 1) : '',
      onchange: () => {
        let more = null;
        try { more = e.value.trim() ? JSON.parse(e.value) : undefined; } catch { /* more stays null */ }
        const ok = more === undefined || (typeof more === 'object' && more !== null && !Array.isArray(more));
        e.setAttribute('aria-invalid', String(!ok));
        if (ok) this.changeSoon({ more });
      } });
    return e;
  }

  // Draw every number and text that the API takes, from its description.
  async drawMore(box) {
    try {
      const schema = (await spec())
        .paths['/v1/chat/completions'].post.requestBody.content['application/json'].schema.properties;
      const params = () => this.chat.conv.settings.params || {}, shown = PARAMETERS.map(p => p.name);
      const skip = [...shown, 'n', 'top_logprobs', 'max_completion_tokens', 'priority', 'max_tool_rounds'];
      const input = (name, f) => {
        const text = name === 'grammar' || name === 'regex',
          e = h('input', { type: text ? 'text' : 'number', step: f.type === 'integer' ? 1 : 'any', min: f.minimum,
          max: f.maximum, value: params()[name] ?? '', placeholder: text ? '' : 'model’s own', onchange: () => {
          const { [name]: gone, ...rest } = params();
          const ok = e.checkValidity();
          e.setAttribute('aria-invalid', String(!ok));
          if (ok)
            this.changeSoon({ params: e.value === '' ? rest
            : { ...rest, [name]: text ? e.value : Number(e.value) } });
        } });
        return field(name, e, f.description);
      };
      const stop = h('input', { type: 'text', value: [params().stop || []].flat().join(', '), onchange: () => {
        const { stop: gone, ...rest } = params(), list = stop.value.split(',').map(t => t.trim()).filter(Boolean);
        this.changeSoon({ params: list.length ? { ...rest, stop: list } : rest });
      } });
      box.replaceChildren(...Object.entries(schema)
        .filter(([name, f]) => (['number', 'integer'].includes(f.type) || name === 'grammar' || name === 'regex') &&
          !skip.includes(name) && !/^(Ignored|Refused)/.test(f.description || '')).map(([n, f]) => input(n, f)),
        field('stop', stop, 'Texts at which the answer ends, with commas between.'),
        field('More fields of a request', this.drawFields(),
          'A JSON object such as {"ignore_eos": true, "logit_bias": {"42": -100}}.'));
    } catch (e) { box.replaceChildren(h('p.muted', {}, e.message)); }
  }
}
