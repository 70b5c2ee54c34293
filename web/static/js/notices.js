// Short messages above the page, which go away by themselves.

import { $, h, icon } from './dom.js';
import { t } from './i18n.js';

const STAYS = 8_000; // ms

/** Shows exactly these notices [{key, text}]. actions: Map key → {label, act}; gone(key) is called to take one away. */
export function drawNotices(notices, actions, gone) {
  const place = $('notices');
  const shown = new Map([...place.children].map((el) => [el.dataset.key, el]));
  for (const [key, el] of shown) if (!notices.some((n) => n.key === key)) el.remove();
  for (const n of notices) {
    if (shown.has(n.key)) continue;
    const action = actions.get(n.key);
    actions.delete(n.key);
    const act = () => {
      gone(n.key);
      action.act();
    };
    place.append(h('div', { class: 'notice', 'data-key': n.key }, h('span', null, n.text),
      action ? h('button', { type: 'button', class: 'link-button', onclick: act }, action.label) : null,
      h('button', { type: 'button', class: 'icon-button small', 'aria-label': t('close'), onclick: () => gone(n.key) }, icon('close'))));
    setTimeout(() => gone(n.key), STAYS);
  }
}
