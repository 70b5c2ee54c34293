// Inline Markdown: the text of one paragraph, cell or heading to nodes. See markdown.js for their kinds.

const MAX_OPEN = 24; // emphasis and brackets that wait for their end
const MAX_TICKS = 16; // backticks that begin a code span
const MAX_HREF = 2048;

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const URL_START = /https?:\/\/[^\s<>"'`|\\^{}[\]\u3000-\u9fff\uff00-\uffef]{1,2000}/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const TARGET = /\([ \t]{0,8}(?:<([^<>\n]{0,2048})>|([^\s()<>]{0,2048}(?:\([^\s()<>]{0,512}\)[^\s()<>]{0,512})?))(?:[ \t]{1,8}(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?[ \t]{0,8}\)/y;
const SPECIAL = /[\\`*_~[\]!<\nh]/g;

/** Gives the address when a link may go there (http, https, mailto), else ''. */
export function safeHref(raw) {
  const href = raw.trim();
  if (href.length > MAX_HREF || !/^(?:https?:\/\/[^\s/]|mailto:[^\s@]+@)/i.test(href)) return '';
  return /[\u0000-\u0020\u007f\u202a-\u202e\u2066-\u2069]/.test(href) ? '' : href;
}

const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

/** Parses the text of one paragraph to inline nodes. */
export function inline(text) {
  const out = []; // nodes; an opener that may still match is {o:char, n:length, at}
  const open = []; // indexes into out of emphasis openers
  const brackets = []; // indexes into out of '[' and '!['
  const codeEnd = new Map(); // backtick run length → last known position of such a run, or -1
  let i = 0;
  const say = (s) => {
    if (typeof out[out.length - 1] === 'string') out[out.length - 1] += s;
    else if (s) out.push(s);
  };
  while (i < text.length) {
    SPECIAL.lastIndex = i;
    const hit = SPECIAL.exec(text);
    if (!hit) {
      say(text.slice(i));
      break;
    }
    say(text.slice(i, hit.index));
    i = hit.index;
    const c = text[i];
    if (c === '\\') {
      if (text[i + 1] === '\n') out.push({ t: 'br' });
      else if (ESCAPABLE.test(text[i + 1] ?? '')) say(text[i + 1]);
      else {
        say('\\');
        i -= 1;
      }
      i += 2;
    } else if (c === '\n') {
      const last = out[out.length - 1];
      if (typeof last === 'string') out[out.length - 1] = last.trimEnd();
      // A single newline is kept: models write lines, not wrapped paragraphs.
      out.push({ t: 'br' });
      i++;
    } else if (c === '`') {
      i = codeSpan(text, i, codeEnd, out, say);
    } else if (c === '*' || c === '_' || c === '~') {
      i = emphasis(text, i, out, open, brackets, say);
    } else if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      const n = c === '[' ? 1 : 2;
      out.push({ o: '[', n, raw: text.slice(i, i + n) });
      brackets.push(out.length - 1);
      if (brackets.length > MAX_OPEN) brackets.shift();
      i += n;
    } else if (c === ']') {
      i = closeLink(text, i, out, open, brackets, say);
    } else if (c === '<') {
      ANGLE.lastIndex = i;
      const m = ANGLE.exec(text);
      const href = m ? safeHref(m[1]) : '';
      if (href) out.push({ t: 'a', href, c: [m[1].replace(/^mailto:/i, '')] });
      else say('<');
      i += href ? m[0].length : 1;
    } else {
      i = bareUrl(text, i, out, say);
    }
  }
  return settle(out);
}

function codeSpan(text, i, codeEnd, out, say) {
  let n = 1;
  while (text[i + n] === '`') n++;
  let end = n > MAX_TICKS ? -1 : codeEnd.get(n);
  if (end === undefined || (end !== -1 && end < i + n)) {
    end = -1;
    const re = /`+/g;
    re.lastIndex = i + n;
    for (let m = re.exec(text); m; m = re.exec(text)) {
      if (m[0].length === n) {
        end = m.index;
        break;
      }
    }
    codeEnd.set(n, end);
  }
  if (end === -1) {
    say('`'.repeat(n));
    return i + n;
  }
  let body = text.slice(i + n, end).replace(/\n/g, ' ');
  if (body.startsWith(' ') && body.endsWith(' ') && body.trim() !== '') body = body.slice(1, -1);
  out.push({ t: 'code', text: body });
  return end + n;
}

function emphasis(text, i, out, open, brackets, say) {
  const c = text[i];
  let n = 1;
  while (text[i + n] === c) n++;
  const before = text[i - 1];
  const after = text[i + n];
  let canOpen = !isSpace(after);
  let canClose = !isSpace(before);
  if (c === '_') {
    if (isWord(before)) canOpen = false;
    if (isWord(after)) canClose = false;
  }
  if (n > 3 || (c === '~' && n !== 2)) canOpen = canClose = false;
  let left = n;
  while (canClose && left > 0) {
    let k = open.length - 1;
    while (k >= 0 && (out[open[k]].o !== c || (c !== '~' && left < 2 && out[open[k]].n === 2))) k--;
    if (k < 0) break;
    const at = open[k];
    const opener = out[at];
    const used = c === '~' ? 2 : Math.min(opener.n, left, 2);
    const inner = settle(out.splice(at + 1));
    open.length = k + 1;
    while (brackets.length && brackets[brackets.length - 1] > at) brackets.pop();
    if (inner.length === 0) {
      open.length = k;
      break;
    }
    opener.n -= used;
    opener.raw = c.repeat(opener.n);
    if (opener.n === 0) {
      out.pop();
      open.length = k;
    }
    out.push({ t: c === '~' ? 'del' : used === 2 ? 'strong' : 'em', c: inner });
    left -= used;
  }
  if (left > 0) {
    if (canOpen && open.length < MAX_OPEN) {
      out.push({ o: c, n: left, raw: c.repeat(left) });
      open.push(out.length - 1);
    } else {
      say(c.repeat(left));
    }
  }
  return i + n;
}

function closeLink(text, i, out, open, brackets, say) {
  const at = brackets.pop();
  TARGET.lastIndex = i + 1;
  const m = at === undefined ? null : TARGET.exec(text);
  if (!m) {
    say(']');
    return i + 1;
  }
  const href = safeHref(m[1] ?? m[2] ?? '');
  if (!href) {
    // Not a place to go: the source is shown as it is, so that nothing hides behind a label.
    say(']' + m[0]);
    return i + 1 + m[0].length;
  }
  const image = out[at].n === 2;
  const label = unlinked(settle(out.splice(at + 1)));
  out.pop(); // the bracket itself
  while (open.length && open[open.length - 1] >= at) open.pop();
  out.push({ t: 'a', href, c: label.length ? label : [image ? href : m[1] ?? m[2]] });
  return i + 1 + m[0].length;
}

function bareUrl(text, i, out, say) {
  URL_START.lastIndex = i;
  const m = /\w/.test(text[i - 1] ?? '') ? null : URL_START.exec(text);
  if (!m) {
    say(text[i]);
    return i + 1;
  }
  let url = m[0].replace(/[.,;:!?*_~\]]+$/, '');
  while (url.endsWith(')') && url.split(')').length > url.split('(').length) url = url.slice(0, -1);
  const href = safeHref(url);
  if (href) out.push({ t: 'a', href, c: [url] });
  else say(m[0]);
  return i + (href ? url.length : m[0].length);
}

// settle turns openers that found no end back into text, and joins neighbouring strings.
function settle(nodes) {
  const out = [];
  for (const n of nodes) {
    const v = n.o ? n.raw : n;
    if (typeof v === 'string' && typeof out[out.length - 1] === 'string' && !n.o) out[out.length - 1] += v;
    else if (typeof v !== 'string' || v) out.push(v);
  }
  return out;
}

// unlinked takes links out of a link's label: links do not nest.
function unlinked(nodes) {
  return nodes.flatMap((n) => {
    if (n.t === 'a') return unlinked(n.c);
    return n.c ? [{ ...n, c: unlinked(n.c) }] : [n];
  });
}
