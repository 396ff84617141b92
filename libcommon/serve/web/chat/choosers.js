// choosers.js - the dialogs that choose the tools and the documents of a conversation.

import { h, icon, iconButton, dialog, toast, fail, spinner, pickFiles, api, bytes, plural, number } from '../core.js';

export async function chooseTools(settings) {
  const box = h('.stack', {}, spinner('Loading the tools'));
  const d = dialog('Tools',
    [h('p', {}, 'The model may call the tools that you choose. You are asked before one that changes something runs.'), box],
    [h('button.primary', { value: '' }, 'Done')], { class: 'wide' });
  try {
    const { tools, servers } = await api('/api/tools'), before = settings.chat.conv.settings.tools || [],
      chosen = new Set(before.filter(n => tools.some(t => t.name === n)));
    if (chosen.size < before.length)
      await settings.change({ tools: chosen.size ? [...chosen] : null }); // drop tools of servers that no longer exist
    const set = () => settings.change({ tools: chosen.size ? [...chosen] : null }).catch(fail);
    const line = t => {
      const check = h('input', { type: 'checkbox', checked: chosen.has(t.name), onchange: () => {
        if (check.checked) chosen.add(t.name);
        else chosen.delete(t.name);
        set();
      } });
      return h('label.check', {}, check,
        h('span', {}, h('strong', {}, t.name), ' ', h('span.muted', {}, t.description),
          t.confirm ? h('span.chip', {}, 'asks first') : null));
    };
    box.replaceChildren(...(servers || []).filter(x => x.state !== 'ready')
      .map(x => h('.note' + (x.state === 'failed' ? '.bad' : ''), {}, `${x.name}: ${x.error || 'starting'}`)),
      ...(tools.length ? tools.map(line) : [h('p.muted', {}, 'This server has no tools.')]));
  } catch (e) { box.replaceChildren(h('p.form-problem', {}, e.message)); }
  return d;
}

export async function chooseDocuments(settings) {
  const box = h('.stack', {}, spinner('Loading the documents'));
  const upload = h('button', { type: 'button', onclick: async () => {
    for (const file of await pickFiles('', true)) {
      const form = new FormData();
      form.append('file', file);
      try {
        await api('/api/rag/documents/upload', { form });
        toast(`${file.name} is ready.`);
      } catch (e) { fail(e); }
    }
    draw();
  } }, icon('upload'), 'Upload');
  dialog('Documents', [h('p', {},
    'The model answers with passages of the documents that you choose, and names its sources.'), box],
    [upload, h('.spacer'), h('button.primary', { value: '' }, 'Done')], { class: 'wide' });
  const set = documents => settings.change({ documents }).then(draw, fail);
  const draw = async () => {
    try {
      const { documents, total } = await api('/api/rag/documents?limit=1000'),
        now = settings.chat.conv.settings.documents, before = Array.isArray(now) ? now : [],
        chosen = new Set(before.filter(id => total > documents.length || documents.some(d => d.id === id)));
      if (chosen.size < before.length)
        await settings.change({ documents: chosen.size ? [...chosen] : null });         // deleted by another page
      const all = h('input',
        { type: 'checkbox', checked: now === 'all', onchange: () => set(all.checked ? 'all' : null) });
      const line = d => {
        const check = h('input',
          { type: 'checkbox', checked: now === 'all' || chosen.has(d.id), disabled: now === 'all', onchange: () => {
          if (check.checked) chosen.add(d.id);
          else chosen.delete(d.id);
          set(chosen.size ? [...chosen] : null);
        } });
        return h('.row', {}, h('label.check', {}, check,
          h('span', {}, h('strong', {}, d.name), ' ',
            h('span.muted', {}, `${plural(d.chunk_count, 'passage')} · ${bytes(d.file_size)} · ${d.collection}`))),
          h('.spacer'),
          iconButton('trash', `Delete ${d.name}`, async () => { try {
            await api('/api/rag/documents/' + encodeURIComponent(d.id), { method: 'DELETE' });
            chosen.delete(d.id);
            if (now !== 'all') await set(chosen.size ? [...chosen] : null);
            else draw();
          } catch (e) { fail(e); } }, { class: 'icon-button small' }));
      };
      box.replaceChildren(documents.length ? h('label.check', {}, all, h('strong', {}, 'All documents'))
        : h('p.muted', {}, 'There are no documents yet. Upload text, Markdown, HTML or PDF.'),
        ...documents.map(line), total > documents.length && h('p.muted', {},
          `The newest ${number(documents.length)} of ${number(total)} documents are listed.`) || '');
    } catch (e) { box.replaceChildren(h('p.form-problem', {}, e.message)); }
  };
  draw();
}
