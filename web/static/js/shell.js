// The frame around the conversation: the side that is a drawer on phones, and the shortcuts.

import { dialogOpen } from './dialogs.js';
import { $ } from './dom.js';

export const phone = matchMedia('(max-width: 760px)');
export const mac = /Mac|iPhone|iPad/.test(navigator.platform);

/** Shows or hides the list of conversations on a phone; elsewhere it is always there. */
export function showSide(show) {
  const narrow = phone.matches;
  const side = $('side');
  const hadFocus = side.contains(document.activeElement);
  side.classList.toggle('shown', show && narrow);
  side.inert = narrow && !show;
  $('main').inert = narrow && show;
  $('scrim').hidden = !(narrow && show);
  $('side-open').setAttribute('aria-expanded', String(show && narrow));
  if (narrow && show) $('side-close').focus();
  else if (narrow && hadFocus) $('side-open').focus();
}

const sideShown = () => $('side').classList.contains('shown');

/** Goes to the search box, which short lists do without. */
function find() {
  showSide(true);
  $('search-box').hidden = false;
  $('search').focus();
  $('search').select();
}

/** Listens for shortcuts while active() holds. actions: {stop, create, keys, step(-1|1), write}. dialogs.js lists them. */
export function prepareShell(active, actions) {
  $('side-open').addEventListener('click', () => showSide(true));
  $('side-close').addEventListener('click', () => showSide(false));
  $('scrim').addEventListener('click', () => showSide(false));
  phone.addEventListener('change', () => showSide(false));
  $('skip').addEventListener('click', (e) => {
    e.preventDefault();
    actions.write();
  });
  document.addEventListener('keydown', (e) => {
    if (!active() || e.isComposing || e.defaultPrevented || dialogOpen()) return;
    const act = shortcut(e, actions);
    if (!act) return;
    e.preventDefault();
    act();
  });
}

function shortcut(e, actions) {
  const ctrl = mac ? e.metaKey : e.ctrlKey;
  const key = e.key.toLowerCase();
  if (key === 'escape') return sideShown() ? () => showSide(false) : actions.stop;
  if (ctrl && !e.shiftKey && key === 'k') return find;
  if (ctrl && e.shiftKey && key === 'o') return actions.create;
  if (ctrl && key === '/') return actions.keys;
  if (e.altKey && key === 'arrowup') return () => actions.step(-1);
  if (e.altKey && key === 'arrowdown') return () => actions.step(1);
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? '');
  return key === '/' && !typing && !ctrl && !e.altKey ? actions.write : null;
}
