// Making elements. Text always goes in as text: nothing here parses HTML.

import { t } from './i18n.js';

export const $ = (id) => document.getElementById(id);

/** Makes an element: h('p', {class: 'x', onclick: f, hidden: true, 'aria-label': 's'}, child, 'text', …). */
export function h(tag, props, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'class') el.className = value;
    else el.setAttribute(name, value === true ? '' : String(value));
  }
  el.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

// Drawn on 24 × 24, by stroke, unless they begin with "fill:".
const PATHS = {
  mark: 'fill:M3 7.6C3 6.2 4.5 5.4 5.7 6.1L9.8 8.6h4.4l4.1-2.5C19.5 5.4 21 6.2 21 7.6v8.8c0 1.4-1.5 2.2-2.7 1.5l-4.1-2.5H9.8l-4.1 2.5C4.5 18.6 3 17.8 3 16.4z',
  menu: 'M4 7h16M4 12h16M4 17h16',
  close: 'M6 6l12 12M18 6L6 18',
  pen: 'M12 20h8M16.5 4.5a2.1 2.1 0 0 1 3 3L8 19l-4 1 1-4z',
  search: 'M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14zM16.2 16.2L20 20',
  key: 'M14.5 3.5a6 6 0 1 1-4.2 10.2L9 15H7v2H5v2.5H3V16l6.3-6.3A6 6 0 0 1 14.5 3.5zM16 7.5h.01',
  people: 'M9 4.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7zM2.5 20c0-3.6 2.9-6 6.5-6s6.5 2.4 6.5 6M16 5a3.2 3.2 0 0 1 0 6.3M18 14.4c2.2.8 3.5 2.9 3.5 5.6',
  keyboard: 'M3 6.5h18v11H3zM7 10.5h.01M11 10.5h.01M15 10.5h.01M17.5 14h.01M6.5 14h.01M9.5 14h5',
  out: 'M14 4.5H6v15h8M11 12h9.5M17 8.5l3.5 3.5-3.5 3.5',
  more: 'fill:M5.5 10.4a1.6 1.6 0 1 1 0 3.2 1.6 1.6 0 0 1 0-3.2zM12 10.4a1.6 1.6 0 1 1 0 3.2 1.6 1.6 0 0 1 0-3.2zM18.5 10.4a1.6 1.6 0 1 1 0 3.2 1.6 1.6 0 0 1 0-3.2z',
  down: 'M12 5v14M6 13l6 6 6-6',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'fill:M8 7h8a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  pin: 'M9 4h6l-1 6 3 3v1H7v-1l3-3zM12 14v6',
  eye: 'M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 9.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5z',
  warn: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  shield: 'M12 3.5l7.5 2.8v5.2c0 4.6-3.1 7.8-7.5 9-4.4-1.2-7.5-4.4-7.5-9V6.3zM8.5 12l2.5 2.5 4.5-5',
  terminal: 'M3.5 5h17v14h-17zM7 9.5l2.5 2.5L7 14.5M12.5 15H17',
  trash: 'M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5',
  box: 'M4 5h16v4H4zM5.5 9v10h13V9M10 13h4',
};

/** Draws an icon; it says nothing to a screen reader. */
export function icon(name) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  const filled = PATHS[name].startsWith('fill:');
  svg.setAttribute('class', filled ? 'icon filled' : 'icon');
  const path = document.createElementNS(ns, 'path');
  path.setAttribute('d', filled ? PATHS[name].slice(5) : PATHS[name]);
  svg.append(path);
  return svg;
}

/** Fills in the words and icons that the page's HTML names by data-i18n, data-i18n-attr and data-icon. */
export function fillIn(root = document) {
  for (const el of root.querySelectorAll('[data-i18n]')) el.textContent = t(el.dataset.i18n);
  for (const el of root.querySelectorAll('[data-i18n-attr]')) {
    for (const pair of el.dataset.i18nAttr.split(';')) {
      const [name, key] = pair.split(':');
      el.setAttribute(name, t(key));
    }
  }
  for (const el of root.querySelectorAll('[data-icon]:empty')) el.append(icon(el.dataset.icon));
}

/** Copies text; says on the button whether it worked. Pages that are not served over HTTPS have no clipboard API. */
export async function copyFrom(button, text, onFailure) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    const area = h('textarea', { class: 'hidden-visually', 'aria-hidden': 'true' });
    area.value = text;
    (button.closest('dialog') ?? document.body).append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  if (!done) return onFailure();
  const before = [...button.childNodes];
  if (button.dataset.copied) return undefined;
  button.dataset.copied = 'yes';
  const label = button.getAttribute('aria-label');
  if (label) button.setAttribute('aria-label', t('copied'));
  button.replaceChildren(icon('check'), ...(button.classList.contains('icon-button') ? [] : [h('span', null, t('copied'))]));
  setTimeout(() => {
    delete button.dataset.copied;
    if (label) button.setAttribute('aria-label', label);
    button.replaceChildren(...before);
  }, 1600);
  return undefined;
}
