// Markdown to a plain tree. The text comes from a model and is hostile: the tree holds only the kinds listed here, links
// are checked, and there is no raw HTML and no image. Work is linear in the text; nesting is bounded.
//
// Blocks:  {t:'p'|'h'|'quote'|'hr'|'pre'|'ul'|'ol'|'table', start, …}; start is the offset in the text.
// Inline:  a string, {t:'em'|'strong'|'del'|'a', c, href?}, {t:'code', text}, {t:'br'}.

import { inline } from './inline.js';

const MAX_DEPTH = 8; // nested quotes and lists
const MAX_COLUMNS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|)$/;
const TASK = /^\[([ xX])\][ \t]+/;
const TABLE_RULE = /^\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;

/** Parses text to an array of blocks. An unfinished end (open fence, half a table) is read as far as it goes. */
export function parse(text) {
  const lines = [];
  let at = 0;
  for (const line of text.split('\n')) {
    lines.push({ s: line.endsWith('\r') ? line.slice(0, -1) : line, at });
    at += line.length + 1;
  }
  return blocks(lines, 0);
}

const isTableRule = (s) => s.length < 2000 && TABLE_RULE.test(s.trim());
const blank = (line) => line.s.trim() === '';
const indentOf = (s) => s.length - s.trimStart().length;

function blocks(lines, depth) {
  const out = [];
  let i = 0;
  while (i < lines.length) {
    if (blank(lines[i])) {
      i++;
      continue;
    }
    const before = i;
    const [node, next] = block(lines, i, depth);
    node.start = lines[before].at;
    out.push(node);
    i = next;
  }
  return out;
}

// block reads one block that begins at line i; gives the node and the line after it.
function block(lines, i, depth) {
  const s = lines[i].s;
  let m;
  if ((m = FENCE.exec(s))) return fence(lines, i, m);
  if ((m = HEADING.exec(s))) {
    const title = (m[2] ?? '').replace(/(?:^|[ \t])#+[ \t]*$/, '');
    return [{ t: 'h', level: m[1].length, c: inline(title.trim()) }, i + 1];
  }
  if (RULE.test(s)) return [{ t: 'hr' }, i + 1];
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(s)) return quote(lines, i, depth);
    if (ITEM.test(s)) return list(lines, i, depth);
  }
  if (i + 1 < lines.length && s.includes('|') && isTableRule(lines[i + 1].s)) {
    const table = tableAt(lines, i);
    if (table) return table;
  }
  return paragraph(lines, i, depth);
}

const isRun = (t) => t === t[0].repeat(t.length);

function fence(lines, i, m) {
  const [, indent, mark, info] = m;
  const body = [];
  let j = i + 1;
  let open = true;
  for (; j < lines.length; j++) {
    const t = lines[j].s.trim();
    if (t.length >= mark.length && t[0] === mark[0] && indentOf(lines[j].s) < 4 && isRun(t)) {
      open = false;
      j++;
      break;
    }
    const cut = Math.min(indent.length, indentOf(lines[j].s));
    body.push(lines[j].s.slice(cut));
  }
  const lang = info.trim().split(/\s+/)[0].slice(0, 40);
  return [{ t: 'pre', lang, text: body.join('\n'), open }, j];
}

function quote(lines, i, depth) {
  const inner = [];
  let j = i;
  for (; j < lines.length && QUOTE.test(lines[j].s); j++) {
    inner.push({ s: lines[j].s.replace(/^ {0,3}> ?/, ''), at: lines[j].at });
  }
  return [{ t: 'quote', c: blocks(inner, depth + 1) }, j];
}

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i].s);
  const ordered = /\d/.test(first[2]);
  const kind = first[2].slice(-1);
  const base = first[1].length;
  const node = { t: ordered ? 'ol' : 'ul', tight: true, items: [] };
  if (ordered) node.first = Number.parseInt(first[2], 10);
  let j = i;
  while (j < lines.length) {
    const m = ITEM.exec(lines[j].s);
    if (!m || m[1].length > base + 1 || m[1].length < base || m[2].slice(-1) !== kind || RULE.test(lines[j].s)) break;
    const need = Math.min(m[1].length + 2, base + 2); // less than the marker's width is common in model output
    let content = m[3] ?? '';
    let task = null;
    const box = TASK.exec(content);
    if (box) {
      task = box[1] !== ' ';
      content = content.slice(box[0].length);
    }
    const width = m[1].length + m[2].length + 1;
    const inner = [{ s: content, at: lines[j].at }];
    j++;
    let gap = 0;
    while (j < lines.length) {
      const s = lines[j].s;
      if (s.trim() === '') {
        gap++;
        j++;
        continue;
      }
      const indent = indentOf(s);
      if (indent < need) {
        // A plain line directly below belongs to the item's paragraph; anything else ends it.
        if (gap > 0 || startsBlock(s) || inner.length === 0) break;
        inner.push({ s: s.trimStart(), at: lines[j].at });
        j++;
        continue;
      }
      if (gap > 0) node.tight = false;
      while (gap > 0) {
        inner.push({ s: '', at: lines[j].at });
        gap--;
      }
      inner.push({ s: s.slice(Math.min(indent, width)), at: lines[j].at });
      j++;
    }
    node.items.push({ task, c: blocks(inner, depth + 1) });
    if (gap > 0) {
      const next = j < lines.length ? ITEM.exec(lines[j].s) : null;
      if (!next || next[1].length > base + 1 || next[1].length < base || next[2].slice(-1) !== kind) break;
      node.tight = false;
    }
  }
  return [node, j];
}

const startsBlock = (s) => FENCE.test(s) || HEADING.test(s) || RULE.test(s) || QUOTE.test(s) || ITEM.test(s);

function cells(s) {
  const out = [];
  let cell = '';
  let code = false;
  let t = s.trim();
  if (t.startsWith('|')) t = t.slice(1);
  for (let k = 0; k < t.length; k++) {
    if (t[k] === '\\' && t[k + 1] === '|') {
      cell += '|';
      k++;
    } else if (t[k] === '`') {
      code = !code && t.indexOf('`', k + 1) > 0;
      cell += '`';
    } else if (t[k] === '|' && !code && out.length < MAX_COLUMNS) {
      out.push(cell.trim());
      cell = '';
    } else {
      cell += t[k];
    }
  }
  if (cell.trim() !== '') out.push(cell.trim());
  return out;
}

function tableAt(lines, i) {
  const head = cells(lines[i].s);
  const align = cells(lines[i + 1].s).map((c) => {
    if (c.startsWith(':') && c.endsWith(':')) return 'center';
    return c.endsWith(':') ? 'right' : '';
  });
  if (head.length === 0 || align.length !== head.length) return null;
  const rows = [];
  let j = i + 2;
  for (; j < lines.length && lines[j].s.includes('|') && !startsBlock(lines[j].s); j++) {
    const row = cells(lines[j].s).slice(0, head.length);
    while (row.length < head.length) row.push('');
    rows.push(row.map(inline));
  }
  return [{ t: 'table', align, head: head.map(inline), rows }, j];
}

function paragraph(lines, i, depth) {
  const text = [lines[i].s.trimStart()];
  let j = i + 1;
  for (; j < lines.length; j++) {
    const s = lines[j].s;
    if (s.trim() === '' || FENCE.test(s) || HEADING.test(s) || RULE.test(s)) break;
    if (depth < MAX_DEPTH && (QUOTE.test(s) || /^ {0,3}(?:[-*+]|1[.)])[ \t]+\S/.test(s))) break;
    if (s.includes('|') && j + 1 < lines.length && isTableRule(lines[j + 1].s) && tableAt(lines, j)) break;
    text.push(s.trimStart());
  }
  return [{ t: 'p', c: inline(text.join('\n')) }, j];
}
