// prompt.js - make the messages of a conversation that the model gets.
//
// An answer is a list of parts: text, reasoning, and calls of tools with their results.

export const partsOf = m => m.metadata?.parts || (m.content ? [{ type: 'text', text: m.content }] : []);
export const textOf = parts => parts.filter(p => p.type === 'text').map(p => p.text).join('');

function* assistantMessages(parts) {
  let text = '', calls = [];
  const flush = function* () {
    if (!text && !calls.length) return;
    yield { role: 'assistant', content: text || (calls.length ? null : ''),
      ...(calls.length && { tool_calls: calls.map(c =>
        ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments || '{}' } })) }) };
    for (const c of calls) yield { role: 'tool', tool_call_id: c.id, content: c.result ?? 'This call was not run.' };
    text = '';
    calls = [];
  };
  for (const p of parts) {
    if (p.type === 'call') { calls.push(p); continue; }
    if (p.type !== 'text') continue;
    if (calls.length) yield* flush();
    text += p.text;
  }
  yield* flush();
}

export function promptOf(conv, path, parts) {
  const out = conv.system_prompt ? [{ role: 'system', content: conv.system_prompt }] : [];
  for (const m of path) {
    if (m.role === 'assistant') out.push(...assistantMessages(partsOf(m)));
    else if (m.role === 'user' || m.role === 'system') out.push({ role: m.role, content: m.content });
  }
  if (parts.length) out.push(...assistantMessages(parts));
  return out;
}
