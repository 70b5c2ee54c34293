// Shows a Markdown tree as elements, and follows a text that grows without doing the finished part again.

import { copyFrom, h, icon } from './dom.js';
import { t } from './i18n.js';
import { parse } from './markdown.js';

/** Makes nodes of inline nodes. */
export const inlineNodes = (list) => list.map((n) => {
  if (typeof n === 'string') return document.createTextNode(n);
  switch (n.t) {
    case 'br':
      return h('br');
    case 'code':
      return h('code', null, n.text);
    case 'a':
      return h('a', { href: n.href, title: n.href, target: '_blank', rel: 'noopener noreferrer' }, inlineNodes(n.c));
    case 'em':
    case 'strong':
    case 'del':
      return h(n.t, null, inlineNodes(n.c));
    default:
      return document.createTextNode('');
  }
});

// Headings of an answer stand below those of the page.
const headingTag = (level) => `h${Math.min(6, level + 2)}`;
const alignClass = (a) => (a ? { class: `align-${a}` } : null);

/** Makes the element of one block. */
export function blockNode(n, onCopyFailure) {
  const children = (list) => list.map((c) => blockNode(c, onCopyFailure));
  switch (n.t) {
    case 'h':
      return h(headingTag(n.level), { class: `h-${n.level}` }, inlineNodes(n.c));
    case 'hr':
      return h('hr');
    case 'quote':
      return h('blockquote', null, children(n.c));
    case 'pre':
      return codeNode(n, onCopyFailure);
    case 'ul':
    case 'ol':
      return h(n.t, { start: n.first > 1 ? n.first : null, class: n.tight ? 'tight' : null }, n.items.map((item) => (
        h('li', { class: item.task === null ? null : 'task' },
          item.task === null ? null : h('span', { class: `box${item.task ? ' checked' : ''}`, role: 'img',
            'aria-label': t(item.task ? 'taskDone' : 'taskOpen') }, item.task ? icon('check') : null),
          item.task === null ? children(item.c) : h('div', null, children(item.c)))
      )));
    case 'table':
      return h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': t('table') }, h('table', null,
        h('thead', null, h('tr', null, n.head.map((c, i) => h('th', { scope: 'col', ...alignClass(n.align[i]) }, inlineNodes(c))))),
        h('tbody', null, n.rows.map((row) => h('tr', null, row.map((c, i) => h('td', alignClass(n.align[i]), inlineNodes(c))))))));
    default:
      return h('p', null, inlineNodes(n.c));
  }
}

function codeNode(n, onCopyFailure) {
  const code = h('code', null, n.text);
  const button = h('button', { type: 'button', class: 'code-copy', 'aria-label': t('copyCode') }, icon('copy'), h('span', null, t('copy')));
  button.addEventListener('click', () => copyFrom(button, code.textContent, onCopyFailure));
  return h('div', { class: 'code' },
    h('div', { class: 'code-head' }, h('span', null, n.lang || t('code')), button),
    h('pre', { tabindex: '0' }, code));
}

/** Shows text in an element. */
export class MarkdownView {
  #root;
  #onCopyFailure;
  #text = '';
  #done = 0; // what lies before is shown and final
  #tail = []; // elements of what comes after
  #open = null; // the last block, when it is a code block that can grow: {node, lang, text}

  constructor(root, onCopyFailure) {
    this.#root = root;
    this.#onCopyFailure = onCopyFailure;
  }

  /** Shows the whole text. When it only grew, what is finished stays untouched. */
  update(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) {
      this.#root.replaceChildren();
      this.#done = 0;
      this.#tail = [];
      this.#open = null;
    }
    this.#text = text;
    const rest = text.slice(this.#done);
    const list = parse(rest);
    const last = list.at(-1);
    if (list.length === 1 && last.t === 'pre' && this.#open && last.start === 0 && last.lang === this.#open.lang
        && last.text.startsWith(this.#open.text)) {
      this.#open.node.appendData(last.text.slice(this.#open.text.length));
      this.#open = last.open ? { ...this.#open, text: last.text } : null;
      return;
    }
    for (const el of this.#tail) el.remove();
    const elements = list.map((n) => blockNode(n, this.#onCopyFailure));
    this.#root.append(...elements);
    this.#tail = elements;
    this.#open = null;
    if (!last) return;
    // A block is finished once the first line of the next one is whole (of a table: two lines, which make it one): then
    // nothing that follows can change it.
    const line = rest.indexOf('\n', last.start);
    if (line >= 0 && (last.t !== 'table' || rest.indexOf('\n', line + 1) >= 0)) {
      this.#done += last.start;
      this.#tail = elements.slice(-1);
      const node = last.t === 'pre' && last.open ? elements.at(-1).querySelector('code').firstChild : null;
      if (node) this.#open = { node, lang: last.lang, text: last.text };
    }
  }
}
