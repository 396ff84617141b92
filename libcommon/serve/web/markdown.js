// markdown.js - Markdown to elements: headings, lists, quotes, tables, highlighted code, links, and
// math as MathML.
//
// The text comes from a model, a document or a tool: it never becomes markup.  Elements are made
// one by one, HTML in the text stays text (but <br>, <sub>, <sup> and <kbd>), links are http, https
// or mailto, and images are links.

import { h, icon, copyText } from './core.js';

const DEPTH = 12;                               // most levels of lists and quotes in each other, and of emphasis

// ---- blocks ----

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(.*)|\s*)$/;
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const blank = line => !line.trim();
const isTable = (lines, i) => lines[i].includes('|') && i + 1 < lines.length && lines[i + 1].includes('-') &&
  DELIMITERS.test(lines[i + 1]) &&
  cells(lines[i]).length === cells(lines[i + 1]).length;
const interrupts = (lines, i) => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) ||
  QUOTE.test(lines[i]) || MATH.test(lines[i]) ||
  /^ {0,3}(?:[-*+]|1[.)]) +\S/.test(lines[i]) || isTable(lines, i);

function endOfFence(lines, i) {
  const [, fence] = FENCE.exec(lines[i]);
  let end = i + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(fence) && !lines[end].trim().replaceAll(fence[0], '')))
    end++;
  return Math.min(end + 1, lines.length);
}

function endOfMath(lines, i) {
  const open = MATH.exec(lines[i])[1], close = open === '$$' ? '$$' : '\\]';
  if (lines[i].trim().slice(2).includes(close)) return i + 1;
  let end = i + 1;
  while (end < lines.length && !lines[end].includes(close)) end++;
  return Math.min(end + 1, lines.length);
}

function endOfList(lines, i) {
  const [, , marker] = ITEM.exec(lines[i]), kind = /\d/.test(marker) ? marker.at(-1) : marker;
  let end = i + 1;
  for (; end < lines.length; end++) {
    if (blank(lines[end])) {
      let next = end + 1;
      while (next < lines.length && blank(lines[next])) next++;
      if (next >= lines.length) break;
      const m = ITEM.exec(lines[next]);
      if (!/^ {2,}|^\t/.test(lines[next]) && !(m && (/\d/.test(m[2]) ? m[2].at(-1) : m[2]) === kind)) break;
    } else if (!/^\s/.test(lines[end])) {
      const m = ITEM.exec(lines[end]);
      if (m ? (/\d/.test(m[2]) ? m[2].at(-1) : m[2]) !== kind : interrupts(lines, end) || blank(lines[end - 1]))
        break;
    }
  }
  return end;
}

// Yield [kind, first line, line after the last] of each block.
function* blocks(lines) {
  for (let i = 0, end; i < lines.length; i = end) {
    end = i + 1;
    if (blank(lines[i])) continue;
    let kind = 'paragraph';
    if (FENCE.test(lines[i])) { kind = 'code'; end = endOfFence(lines, i); }
    else if (MATH.test(lines[i])) { kind = 'math'; end = endOfMath(lines, i); }
    else if (HEADING.test(lines[i])) kind = 'heading';
    else if (RULE.test(lines[i])) kind = 'rule';
    else if (QUOTE.test(lines[i])) { kind = 'quote'; while (end < lines.length && QUOTE.test(lines[end])) end++; }
    else if (ITEM.test(lines[i])) { kind = 'list'; end = endOfList(lines, i); }
    else if (isTable(lines, i)) {
      kind = 'table';
      end++;
      while (end < lines.length && lines[end].includes('|') && !blank(lines[end])) end++;
    }
    else while (end < lines.length && !blank(lines[end]) && !interrupts(lines, end)) end++;
    yield [kind, i, end];
  }
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, '').replace(/(^|[^\\])\|$/, '$1').split(/(?<!\\)\|/);
  return parts.map(c => c.trim().replaceAll('\\|', '|'));
}

function table(lines, depth, o) {
  const align = cells(lines[1]).map(c => c.startsWith(':') ? (c.endsWith(':') ? 'center' : 'left') : c.endsWith(':')
    ? 'right' : null);
  const row = (line, tag) =>
    h('tr', {}, align.map((a, i) => h(tag, { class: a && 'align-' + a, scope: tag === 'th' ? 'col' : null },
      inline(cells(line)[i] || '', depth, o))));
  return h('.table-scroll', { tabindex: '0', role: 'region', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, row(lines[0], 'th')), h('tbody', {}, lines.slice(2).map(l => row(l, 'td')))));
}

function list(lines, depth, o) {
  const first = ITEM.exec(lines[0])[2], ordered = /\d/.test(first), items = [];
  let width = 0, loose = false;
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (m && (!items.length || m[1].length < Math.max(width, 1) || !/^ /.test(line))) {
      width = m[1].length + m[2].length + Math.min(m[3]?.length || 1, 4);
      items.push([m[4] || '']);
    } else {
      const space = /^ */.exec(line.replace(/^\t/, '    '))[0].length;
      items.at(-1).push(line.replace(/^\t/, '    ').slice(Math.min(space, width)));
    }
  }
  for (const item of items) {
    while (item.length && blank(item.at(-1))) item.pop();
    loose ||= item.some(blank);
  }
  return h(ordered ? 'ol' : 'ul', { start: ordered && parseInt(first) !== 1 ? parseInt(first) : null },
    items.map(item => {
      const task = /^\[([ xX])\] /.exec(item[0] || '');
      if (task) item[0] = item[0].slice(4);
      const content = render(item, depth + 1, o);
      // a tight list has no paragraph in its items
      if (!loose && content[0]?.tagName === 'P') content.splice(0, 1, ...content[0].childNodes);
      return h('li' + (task ? '.task' : ''), {},
        task && h('input', { type: 'checkbox', checked: task[1] !== ' ', disabled: true, 'aria-label': 'Task' }),
        content);
    }));
}

export function codeBlock(text, language) {
  const button = h('button.icon-button',
    { type: 'button', 'aria-label': 'Copy the code', title: 'Copy', onclick: () => copyText(text, button) },
    icon('copy'));
  return h('figure.code', {}, h('figcaption', {}, h('span', {}, language || 'text'), button),
    h('pre', { tabindex: '0' }, h('code', {}, highlight(text, language))));
}

function block(kind, lines, depth, o) {
  switch (kind) {
    case 'code': {
      const [, fence, language] = FENCE.exec(lines[0]), indent = /^ */.exec(lines[0])[0].length,
      last = lines.at(-1).trim();
      const closed = lines.length > 1 && last.startsWith(fence) && !last.replaceAll(fence[0], '');
      return codeBlock(lines.slice(1, closed ? -1 : undefined)
        .map(l => l.slice(Math.min(indent, /^ */.exec(l)[0].length))).join('\n'), language);
    }
    case 'math': {
      const open = MATH.exec(lines[0])[1], close = open === '$$' ? '$$' : '\\]', text = lines.join('\n').trim().slice(2),
      end = text.lastIndexOf(close);
      return end < 0 ? h('p', {}, lines.join('\n')) : h('.math-block', {}, math(text.slice(0, end).trim(), true),
        inline(text.slice(end + 2), depth, o));
    }
    case 'heading': {
      const [, marks, text] = HEADING.exec(lines[0]);
      return h('h' + Math.min(6, marks.length + 1), {}, inline(text || '', depth, o));
    }
    case 'rule': return h('hr');
    case 'quote': return h('blockquote', {}, render(lines.map(l => l.replace(QUOTE, '')), depth + 1, o));
    case 'list': return list(lines, depth, o);
    case 'table': return table(lines, depth, o);
    default: return h('p', {}, inline(lines.map(l => l.replace(/^ +/, '')).join('\n'), depth, o));
  }
}

function render(lines, depth, o) {
  if (depth > DEPTH) return [h('p', {}, lines.join('\n'))];
  return [...blocks(lines)].map(([kind, from, to]) => block(kind, lines.slice(from, to), depth, o));
}

export const markdown = (text, o = {}) => render(text.replace(/\r\n?/g, '\n').split('\n'), 0, o);

// A view of a growing text: only blocks whose text has changed are made again.
export class MarkdownView {
  constructor(root, o = {}) {
    this.root = root;
    this.o = o;
    this.sources = [];
  }

  update(text) {
    const lines = text.replace(/\r\n?/g, '\n').split('\n');
    let n = 0;
    for (const [kind, from, to] of blocks(lines)) {
      const part = lines.slice(from, to), source = part.join('\n');
      if (this.sources[n] !== source) {
        const e = block(kind, part, 0, this.o);
        if (this.root.children[n]) this.root.children[n].replaceWith(e);
        else this.root.append(e);
        this.sources[n] = source;
      }
      n++;
    }
    while (this.root.children.length > n) this.root.lastChild.remove();
    this.sources.length = n;
  }
}

// ---- inside a line ----

const at = (re, text, i) => { re.lastIndex = i; return re.exec(text); };
const ESCAPE = /\\([!-/:-@[-`{-~])/y;
const CODE = /(`+)(?!`)([\s\S]{0,4000}?[^`])\1(?!`)/y;
const STRONG = /(\*\*|__)(?=\S)([\s\S]{0,4000}?\S)\1(?!\1[0])/y;
const EMPHASIS = /([*_])(?=[^\s*_])((?:[^*_\\]|\\[\s\S]|\*\*[\s\S]{1,400}?\*\*|__[\s\S]{1,400}?__|_(?=\w)){1,2000}?)\1(?![*\w])/y;
const BOTH = /\*\*\*(?=[^\s*])([\s\S]{0,1000}?[^\s*])\*\*\*(?!\*)/y;
const STRIKE = /~~(?=\S)([\s\S]{0,2000}?\S)~~/y;
const LINK = /!?\[((?:[^[\]\\]|\\[\s\S]|\[[^[\]]{0,200}\]){0,1000})\]\(\s*<?((?:[^\s<>()\\]|\\.|\([^\s<>()]{0,500}\)){0,2000})>?(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000}|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8})>/y;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const MATH_INLINE = /\$\$([^$]{1,2000})\$\$|\$(?![\s$\d.,]*\$|\s)([^$\n]{0,999}[^\s$\\])\$(?![\d\w])|\\\(([\s\S]{1,1000}?)\\\)/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]{2,6}));/y;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', deg: '°',
  middot: '·', times: '×', divide: '÷', plusmn: '±', ndash: '–', mdash: '—', hellip: '…', bull: '•', larr: '←',
  rarr: '→', uarr: '↑', darr: '↓', le: '≤', ge: '≥', ne: '≠', laquo: '«', raquo: '»', euro: '€' };
// The only HTML that becomes elements: models use it where Markdown has nothing.
const BREAK = /<br *\/?>/iy;
const RAISED = /<(sub|sup|kbd)>([^<>\n]{1,200})<\/\1>/y;
const CITATION = /\[(\d{1,2})\](?!\()/y;

// The address if links may lead there, else null.
export function safeAddress(text) {
  const plain = text.replace(/\\([!-/:-@[-`{-~])/g, '$1');
  if (!/^(?:https?:\/\/|mailto:)/i.test(plain)) return null;
  try {
    const url = new URL(plain);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch { return null; }
}

const link = (address, content) => h('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' },
  content);

// Parse one element at text[i]: [element, index after it], or null.
function element(text, i, depth, o) {
  const c = text[i];
  let m;
  if (c === '\\' && text[i + 1] === '\n') return [h('br'), i + 2];
  if ((c === '$' || c === '\\') && (m = at(MATH_INLINE, text, i)))
    return [math((m[1] ?? m[2] ?? m[3]).trim(), m[1] !== undefined), i + m[0].length];
  if (c === '\\' && (m = at(ESCAPE, text, i))) return [m[1], i + 2];
  if (c === '`') {
    m = at(CODE, text, i);
    if (m) return [h('code', {}, m[2].replace(/\n/g, ' ').replace(/^ (.*\S.*) $/, '$1')), i + m[0].length];
    const run = /`+/y;
    return [at(run, text, i)[0], run.lastIndex];
  }
  if (c === '*' || c === '_') {
    if (c === '_' && /\w/.test(text[i - 1] || '')) return null;
    if ((m = at(BOTH, text, i))) return [h('em', {}, h('strong', {}, inline(m[1], depth + 1, o))), i + m[0].length];
    if ((m = at(STRONG, text, i)) && !(c === '_' && /\w/.test(text[i + m[0].length] || '')))
      return [h('strong', {}, inline(m[2], depth + 1, o)), i + m[0].length];
    if ((m = at(EMPHASIS, text, i))) return [h('em', {}, inline(m[2], depth + 1, o)), i + m[0].length];
    return null;
  }
  if (c === '~' && (m = at(STRIKE, text, i))) return [h('del', {}, inline(m[1], depth + 1, o)), i + m[0].length];
  if ((c === '[' || c === '!') && (m = at(LINK, text, i))) {
    const address = safeAddress(m[2]);
    if (address)
      return [link(address, c === '!' ? m[1] || address : inline(m[1], depth + 1, { ...o, inLink: true })),
        i + m[0].length];
  }
  if (c === '[' && o.cite && (m = at(CITATION, text, i))) {
    const e = o.cite(Number(m[1]));
    if (e) return [e, i + m[0].length];
  }
  if (c === '&' && (m = at(ENTITY, text, i))) {
    const code = parseInt(m[1] || m[2], m[1] ? 10 : 16), known = m[3] ? ENTITIES[m[3]]
      : code > 0 && code < 0x110000 && (code & ~0x7ff) !== 0xd800 ? String.fromCodePoint(code) : '\ufffd';
    return known ? [known, i + m[0].length] : null;
  }
  if (c === '<' && (m = at(BREAK, text, i))) return [h('br'), i + m[0].length];
  if (c === '<' && (m = at(RAISED, text, i))) return [h(m[1], {}, inline(m[2], depth + 1, o)), i + m[0].length];
  if (c === '<' && (m = at(ANGLE, text, i))) {
    const address = safeAddress(m[1].includes('@') && !m[1].includes(':') ? 'mailto:' + m[1] : m[1]);
    if (address) return [link(address, m[1]), i + m[0].length];
  }
  if (c === 'h' && !o.inLink && !/\w/.test(text[i - 1] || '') && (m = at(BARE, text, i))) {
    let url = m[0].replace(/[.,:;!?*_~\]]+$/, '');
    while (url.endsWith(')') && url.split('(').length < url.split(')').length) url = url.slice(0, -1);
    const address = safeAddress(url);
    if (address) return [link(address, url), i + url.length];
  }
  return null;
}

function inline(text, depth, o) {
  const out = [], special = /[\\`*_~[!<$&]|\bh(?=ttps?:\/\/)| *\n/g;
  let from = 0, m;
  if (depth > DEPTH) return [text];
  while ((m = special.exec(text))) {
    const newline = m[0].endsWith('\n');
    const found = newline ? [h('br'), m.index + m[0].length] : element(text, m.index, depth, o);
    if (!found) continue;
    if (m.index > from) out.push(text.slice(from, m.index));
    out.push(found[0]);
    special.lastIndex = from = found[1];
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}

// ---- code ----

const words = text => new Set(text.trim().split(/\s+/));
const C_WORDS = `
  auto bool break case catch char class const constexpr continue default delete do double else enum explicit
  extern false float for friend goto if inline int long namespace new nullptr operator private protected public
  register return short signed sizeof static struct switch template this throw true try typedef typename union
  unsigned using virtual void volatile while NULL`;
const KEYWORDS = {
  c: words(C_WORDS + ' restrict _Static_assert uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t size_t'),
  js: words(`
    abstract any as async await boolean break case catch class const continue debugger declare default delete do
    else enum export extends false finally for from function get if implements import in instanceof interface let
    new null number of private protected public readonly return set static string super switch this throw true try
    type typeof undefined var void while yield`),
  py: words(`
    and as assert async await break class continue def del elif else except False finally for from global if
    import in is lambda match case None nonlocal not or pass raise return self True try while with yield`),
  rust: words(`
    as async await bool box break char const continue crate dyn else enum extern f32 f64 false fn for i8 i16 i32
    i64 if impl in isize let loop match mod move mut pub ref return self Self static str String struct super trait
    true type u8 u16 u32 u64 unsafe use usize Vec where while`),
  go: words(`
    any bool break byte case chan const continue default defer else error fallthrough false float64 for func go
    goto if import int int64 interface iota map nil package range return rune select string struct switch true
    type uint var`),
  java: words(`
    abstract as boolean break byte case catch char class companion const continue data default do double else enum
    extends false final finally float for fun if implements import in instanceof int interface internal is let
    long namespace new null object open override package private protected public record return sealed short
    static string struct super switch this throw throws true try using val var virtual void when while async await
    func guard nil protocol extension mutating echo function`),
  sh: words(`
    alias break case cd continue do done echo elif else esac eval exec exit export fi for function if in local
    printf read readonly return set shift source then trap true false unset until while sudo apt pip git make curl`),
  ruby: words(`
    alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo
    rescue retry return self super then true undef unless until when while yield require puts`),
  sql: words(`
    add all alter and any as asc between by case cast check column commit constraint count create cross database
    default delete desc distinct drop else end exists foreign from full group having if in index inner insert
    integer into is join key left like limit not null offset on or order outer primary references returning right
    rollback select set sum table text then union unique update using values varchar view when where with`),
  lua: words(`
    and break do else elseif end false for function goto if in local nil not or repeat return then true until
    while`),
  none: new Set(),
};
// [keywords, comments, whether ' quotes single characters, whether case is ignored]
const LANGUAGES = {};
for (const [names, spec] of [
  ['c cpp c++ h hpp cc cuda cu objc glsl', ['c', 'c', true]], ['js javascript jsx mjs ts typescript tsx', ['js', 'c']],
    ['py python python3', ['py', 'hash']],
  ['rust rs', ['rust', 'c', true]], ['go golang', ['go', 'c', true]],
    ['java kotlin kt cs csharp c# scala swift dart php groovy zig', ['java', 'c']],
  ['sh bash shell zsh console fish powershell ps1', ['sh', 'hash']],
    ['rb ruby perl pl r elixir ex julia', ['ruby', 'hash']],
    ['sql sqlite postgresql mysql', ['sql', 'dash', false, true]],
  ['lua haskell hs', ['lua', 'dash']], ['yaml yml toml ini conf dockerfile docker makefile make cmake nix properties',
    ['none', 'hash']],
  ['json jsonc json5', ['none', 'c']], ['css scss less', ['none', 'c']], ['html xml svg vue xhtml', ['markup']],
    ['diff patch', ['diff']],
]) for (const name of names.split(' ')) LANGUAGES[name] = spec;

const COMMENTS = { c: '\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)', hash: '(?<![\\w$&])#[^\\n]*',
  dash: '--[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)' };
const TOKENS = {};
function tokens(comments, single) {
  return TOKENS[comments +
    single] ||= new RegExp(
      `(?<c>${COMMENTS[comments]})|(?<s>"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|"(?:\\\\[\\s\\S]|[^"\\\\\\n])*"?|` +
      (single ? `'(?:\\\\[^\\n']+|[^'\\\\\\n])'` : `'(?:\\\\[\\s\\S]|[^'\\\\\\n])*'?`) +
      '|`(?:\\\\[\\s\\S]|[^`\\\\])*`?)' +
      '|(?<n>\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)\\w*)|(?<p>' +
      (comments === 'c' ? '^[ \\t]*#[ \\t]*[a-z]+|' : '') + '@[A-Za-z_]\\w*)|(?<w>[A-Za-z_$][\\w$]*)', 'gm');
}
const MARKUP = /(?<c><!--[\s\S]*?(?:-->|$))|(?<k><\/?[A-Za-z][\w:-]*|\/?>)|(?<p>[\w:-]+(?==["']))|(?<s>"[^"]*"|'[^']*')/g;

function classOf(m, code, keywords, fold) {
  const [kind] = Object.entries(m.groups).find(([, v]) => v !== undefined);
  if (kind !== 'w') return kind;
  if (keywords.has(fold ? m[0].toLowerCase() : m[0])) return 'k';
  const next = code.slice(m.index + m[0].length, m.index + m[0].length + 2).trimStart();
  return next[0] === '(' ? 'f' : /^[A-Z][a-z]/.test(m[0]) ? 't' : '';
}

function highlight(code, language) {
  const spec = LANGUAGES[(language || '').toLowerCase()], out = [];
  if (!spec || code.length > 60000) return [code];
  if (spec[0] === 'diff')
    return code.split('\n')
    .map((l, i) => [i ? '\n' : '',
      h('span' + (l[0] === '+' ? '.hl-s' : l[0] === '-' ? '.hl-d' : l[0] === '@' ? '.hl-f' : ''), {}, l)]);
  const re = spec[0] === 'markup' ? MARKUP : tokens(spec[1], spec[2]), keywords = KEYWORDS[spec[0]] || KEYWORDS.none;
  let from = 0;
  for (const m of code.matchAll(re)) {
    const kind = classOf(m, code, keywords, spec[3]);
    if (!kind) continue;
    if (m.index > from) out.push(code.slice(from, m.index));
    out.push(h('span.hl-' + kind, {}, m[0]));
    from = m.index + m[0].length;
  }
  out.push(code.slice(from));
  return out;
}

// ---- math: LaTeX to MathML ----

const M = 'http://www.w3.org/1998/Math/MathML';
function mm(tag, attributes, ...children) {
  const e = document.createElementNS(M, tag);
  for (const [k, v] of Object.entries(attributes || {})) if (v != null) e.setAttribute(k, v);
  e.append(...children.flat(3));
  return e;
}
const pairs = text => Object.fromEntries(text.trim().split(/\s+/).map(p => [p.slice(0, -1), p.at(-1)]));
const LETTERS = pairs(
  `
    alphaα betaβ gammaγ deltaδ epsilonϵ varepsilonε zetaζ etaη thetaθ varthetaϑ iotaι kappaκ lambdaλ muμ nuν xiξ
    piπ rhoρ sigmaσ tauτ upsilonυ phiϕ varphiφ chiχ psiψ omegaω GammaΓ DeltaΔ ThetaΘ LambdaΛ XiΞ PiΠ SigmaΣ
    UpsilonΥ PhiΦ PsiΨ OmegaΩ infty∞ partial∂ nabla∇ hbarℏ ellℓ Reℜ Imℑ emptyset∅ varnothing∅ forall∀ exists∃
    alephℵ dots… ldots… cdots⋯ vdots⋮ ddots⋱ prime′ degree° angle∠ triangle△`);
const OPERATORS = pairs(
  `
    times× cdot⋅ div÷ pm± mp∓ leq≤ le≤ geq≥ ge≥ neq≠ ne≠ approx≈ equiv≡ sim∼ simeq≃ cong≅ propto∝ to→ rightarrow→
    leftarrow← Rightarrow⇒ Leftarrow⇐ leftrightarrow↔ Leftrightarrow⇔ iff⇔ implies⟹ mapsto↦ in∈ notin∉ ni∋ subset⊂
    subseteq⊆ supset⊃ supseteq⊇ cup∪ cap∩ setminus∖ land∧ wedge∧ lor∨ vee∨ lnot¬ neg¬ oplus⊕ otimes⊗ circ∘ bullet•
    star⋆ ast∗ ll≪ gg≫ mid∣ parallel∥ perp⊥ langle⟨ rangle⟩ lfloor⌊ rfloor⌋ lceil⌈ rceil⌉ lbrace{ rbrace} vert|
    Vert‖ therefore∴ because∵ uparrow↑ downarrow↓ dagger†`);
const LARGE = pairs('sum∑ prod∏ coprod∐ int∫ iint∬ iiint∭ oint∮ bigcup⋃ bigcap⋂ bigoplus⨁ bigotimes⨂');
const NAMES = words(`
  sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim limsup liminf max min sup inf arg
  det dim ker deg gcd hom Pr argmax argmin`);
const LIMITS = words(
  'sum prod coprod bigcup bigcap bigoplus bigotimes lim limsup liminf max min sup inf argmax argmin');
const ACCENTS = { hat: '^', widehat: '^', bar: '‾', overline: '‾', vec: '→', tilde: '~', widetilde: '~', dot: '˙',
  ddot: '¨', overbrace: '⏞' };
const VARIANTS = { mathbb: 'double-struck', mathcal: 'script', mathfrak: 'fraktur', mathbf: 'bold', boldsymbol: 'bold',
  bm: 'bold', mathsf: 'sans-serif', mathtt: 'monospace' };
const BASES = { 'double-struck': [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e],
  bold: [0x1d400, 0x1d41a, 0x1d7ce], 'sans-serif': [0x1d5a0, 0x1d5ba, 0x1d7e2],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6] };
const HOLES = { 'double-struckC': 'ℂ', 'double-struckH': 'ℍ', 'double-struckN': 'ℕ', 'double-struckP': 'ℙ',
  'double-struckQ': 'ℚ', 'double-struckR': 'ℝ', 'double-struckZ': 'ℤ', scriptB: 'ℬ', scriptE: 'ℰ', scriptF: 'ℱ',
  scriptH: 'ℋ', scriptI: 'ℐ', scriptL: 'ℒ', scriptM: 'ℳ', scriptR: 'ℛ', frakturC: 'ℭ', frakturH: 'ℌ', frakturI: 'ℑ',
  frakturR: 'ℜ', frakturZ: 'ℨ' };

function variant(text, kind) {
  return [...text].map(c => {
    const [upper, lower, digit] = BASES[kind];
    if (HOLES[kind + c]) return HOLES[kind + c];
    if (/[A-Z]/.test(c)) return String.fromCodePoint(upper + c.charCodeAt(0) - 65);
    if (/[a-z]/.test(c)) return String.fromCodePoint(lower + c.charCodeAt(0) - 97);
    return /\d/.test(c) && digit ? String.fromCodePoint(digit + Number(c)) : c;
  }).join('');
}

class Latex {
  constructor(text, display) {
    this.tokens = text.match(/\\[A-Za-z]+\*?|\\[\s\S]|[0-9]+(?:\.[0-9]+)?|\s+|[\s\S]/gu) || [];
    this.i = 0;
    this.depth = 0;
    this.display = display;
  }

  peek() { while (/^\s+$/.test(this.tokens[this.i] || '')) this.i++; return this.tokens[this.i]; }
  next() { this.peek(); return this.tokens[this.i++]; }

  // Read {...} as plain text.
  raw() {
    if (this.peek() !== '{') return this.next() || '';
    let text = '', level = 0;
    do {
      const t = this.tokens[this.i++];
      if (t === undefined) break;
      level += t === '{' ? 1 : t === '}' ? -1 : 0;
      text += t;
    } while (level);
    return text.slice(1, -1);
  }

  group() {
    if (this.peek() !== '{') return this.atom() || mm('mrow');
    this.next();
    const row = this.row(t => t === '}');
    this.next();
    return row;
  }

  // The argument of a command: {...} or one token, of a number its first digit.
  argument() {
    const t = this.peek();
    if (!/^\d./.test(t || '')) return this.group();
    this.tokens[this.i] = t.slice(1);
    return mm('mn', {}, t[0]);
  }

  row(stops) {
    const out = [];
    if (++this.depth > 60) throw new Error('too deep');
    for (let t; (t = this.peek()) !== undefined && !stops(t);) {
      const a = this.scripts(this.atom());
      if (a) out.push(a);
    }
    this.depth--;
    return out.length === 1 ? out[0] : mm('mrow', {}, out);
  }

  scripts(base) {
    let sub, sup, primes = '';
    for (let t; (t = this.peek()) === '_' || t === '^' || t === "'";) {
      this.next();
      if (t === "'") primes += '′';
      else if (t === '_') sub = this.group();
      else sup = this.group();
    }
    if (primes) sup = sup ? mm('mrow', {}, mm('mo', {}, primes), sup) : mm('mo', {}, primes);
    if (!sub && !sup) return base;
    const b = base || mm('mrow'), under = b.limits && this.display;
    if (sub && sup) return mm(under ? 'munderover' : 'msubsup', {}, b, sub, sup);
    return sub ? mm(under ? 'munder' : 'msub', {}, b, sub) : mm(under ? 'mover' : 'msup', {}, b, sup);
  }

  fence(t) {
    return t === '.' ? '' : OPERATORS[t.slice(1)] || (t === '\\{' ? '{' : t === '\\}' ? '}' : t === '\\|' ? '‖' : t);
  }

  matrix(name) {
    const rows = [[]];
    const ends = t => t === '&' || t === '\\\\' || t === '\\end';
    if (name === 'array') this.raw();
    for (;;) {
      rows.at(-1).push(mm('mtd', {}, this.row(ends)));
      const t = this.next();
      if (t === '\\\\') rows.push([]);
      else if (t !== '&') break;
    }
    this.raw();
    if (rows.at(-1).length === 1 && !rows.at(-1)[0].textContent) rows.pop();
    const aligned = /^(?:align|split|eq|gather)/.test(name);
    const body = mm('mtable',
      { class: aligned ? 'aligned' : name === 'cases' ? 'cases' : null, displaystyle: aligned ? 'true' : null },
      rows.map(r => mm('mtr', {}, r)));
    const [open, close] = { pmatrix: '()', bmatrix: '[]', vmatrix: '||', Vmatrix: '‖‖', Bmatrix: '{}',
      cases: '{ ' }[name.replace('*', '')] || '  ';
    return mm('mrow', {}, open !== ' ' ? mm('mo', { stretchy: 'true' }, open) : '', body,
      close !== ' ' ? mm('mo', { stretchy: 'true' }, close) : '');
  }

  command(name) {
    if (LETTERS[name]) return mm('mi', {}, LETTERS[name]);
    if (OPERATORS[name]) return mm('mo', {}, OPERATORS[name]);
    if (LARGE[name])
      return Object.assign(mm('mo', { largeop: 'true', movablelimits: 'false' }, LARGE[name]),
        { limits: LIMITS.has(name) });
    if (NAMES.has(name))
      return Object.assign(mm('mrow', {}, mm('mi', { mathvariant: 'normal' }, name)), { limits: LIMITS.has(name) });
    if (ACCENTS[name])
      return mm('mover', { accent: 'true' }, this.group(),
        mm('mo', { stretchy: /over|wide/.test(name) ? 'true' : 'false' }, ACCENTS[name]));
    if (VARIANTS[name]) return mm('mi', {}, variant(this.raw(), VARIANTS[name]));
    switch (name) {
      case 'frac': case 'dfrac': case 'tfrac': case 'cfrac': {
        const a = this.argument();
        return mm('mfrac', {}, a, this.argument());
      }
      case 'binom': {
        const a = this.argument();
        return mm('mrow', {}, mm('mo', {}, '('), mm('mfrac', { linethickness: '0' }, a, this.argument()),
          mm('mo', {}, ')'));
      }
      case 'sqrt': {
        if (this.peek() !== '[') return mm('msqrt', {}, this.argument());
        this.next();
        const n = this.row(t => t === ']');
        this.next();
        return mm('mroot', {}, this.group(), n);
      }
      case 'text': case 'textbf': case 'textit': case 'textrm': case 'mbox': return mm('mtext', {},
        this.raw().replace(/^ | $/g, '\u00a0'));
      case 'mathrm': case 'operatorname': case 'operatorname*': return mm('mi', { mathvariant: 'normal' }, this.raw());
      case 'left': case 'bigl': case 'Bigl': case 'big': case 'Big': case 'bigg': case 'Bigg': case 'bigr': case 'Bigr': case 'middle': case 'right': {
        const open = this.fence(this.next() || '');
        if (name !== 'left') return open && mm('mo', { stretchy: 'true' }, open);
        const body = this.row(t => t === '\\right');
        this.next();
        return mm('mrow', {}, mm('mo', { stretchy: 'true' }, open), body,
          mm('mo', { stretchy: 'true' }, this.fence(this.next() || '')));
      }
      case 'begin': return this.matrix(this.raw());
      case 'end': this.raw(); return null;
      case 'underbrace': {
        const a = this.group();
        return Object.assign(mm('munder', {}, a, mm('mo', { stretchy: 'true' }, '⏟')), { limits: true });
      }
      case 'underline': case 'boxed': case 'displaystyle': case 'textstyle': case 'limits': case 'nolimits': case 'nonumber': case 'mathstrut':
      return /line$|ed$/.test(name) ? this.group() : null;
      case 'tag': return mm('mtext', {}, `\u2003(${this.raw()})`);
      case 'quad': case 'qquad': return mm('mspace', { width: name === 'quad' ? '1em' : '2em' });
      case 'bmod': case 'mod': return mm('mo', {}, 'mod');
      case 'pmod': return mm('mrow', {}, mm('mo', {}, '(mod '), this.group(), mm('mo', {}, ')'));
      case 'not': { const a = this.atom(); a?.append('\u0338'); return a; }
      default: return mm('mtext', {}, '\\' + name);
    }
  }

  atom() {
    const t = this.next();
    if (t === undefined) return null;
    if (t === '{') {
      this.i--;
      return this.group();
    }
    if (/^\\[A-Za-z]/.test(t)) return this.command(t.slice(1));
    if (t[0] === '\\')
      return ',;: !'.includes(t[1]) ? mm('mspace', { width: t[1] === '!' ? '-0.17em' : '0.2em' }) : t === '\\\\'
      ? mm('mspace', { linebreak: 'newline' }) : mm('mo', {}, t === '\\|' ? '‖' : t[1]);
    if (/^\d/.test(t)) return mm('mn', {}, t);
    if (/^\p{L}$/u.test(t)) return mm('mi', {}, t);
    if (t === '~') return mm('mtext', {}, '\u00a0');
    if (t === '}' || t === '&') return null;
    return mm('mo', { stretchy: '()[]|'.includes(t) ? 'false' : null }, t === '-' ? '−' : t === '*' ? '∗' : t);
  }
}

// LaTeX that cannot be parsed is shown as text; parsed math has its source as label.
export function math(text, display) {
  try {
    const p = new Latex(text, display), row = p.row(() => false);
    return mm('math', { display: display ? 'block' : 'inline', 'aria-label': text }, row);
  } catch {
    return h('code', {}, text);
  }
}
