// The list of conversations, and the menu of each.

import { $, h, icon } from './dom.js';
import { t } from './i18n.js';
import { sortedThreads } from './state.js';

const SEARCH_FROM = 6; // conversations from which a search box helps

export const nameOf = (thread) => thread?.title?.trim() || t('noName');

/** Shows the list. actions: {open(id), rename(thread), pin(thread), archive(thread), remove(thread)}. */
export class ThreadList {
  #nav = $('threads');
  #search = $('search');
  #actions;
  #last = [];
  #archivedOpen = false;

  constructor(actions) {
    this.#actions = actions;
    this.#search.addEventListener('input', () => this.#render());
    this.#search.addEventListener('keydown', (e) => {
      if (e.key === 'Enter' && !e.isComposing) this.#nav.querySelector('.thread-link')?.click();
      if (e.key !== 'Escape') return;
      e.stopPropagation();
      this.#search.value = '';
      this.#render();
      $('composer-text').focus();
    });
  }

  update(threads, open, unread) {
    const next = [threads, open, unread, document.documentElement.lang];
    if (next.every((v, i) => v === this.#last[i])) return;
    this.#last = next;
    this.#render();
  }

  /** Gives the thread above (-1) or below (1) the open one, or undefined. */
  neighbour(step) {
    const [threads, open] = this.#last;
    const { current } = sortedThreads(threads ?? []);
    const i = current.findIndex((x) => x.id === open);
    return i < 0 ? current[0] : current[i + step];
  }

  #render() {
    const [threads, open, unread] = this.#last;
    const focused = this.#nav.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    $('search-box').hidden = (threads?.length ?? 0) < SEARCH_FROM && !this.#search.value;
    this.#archivedOpen = this.#nav.querySelector('details')?.open ?? this.#archivedOpen;
    if (!threads) {
      this.#nav.replaceChildren(h('p', { class: 'threads-note' }, t('loadingConversations')));
      return;
    }
    const words = this.#search.value.trim().toLocaleLowerCase();
    const { current, archived } = sortedThreads(threads.filter((x) => nameOf(x).toLocaleLowerCase().includes(words)));
    const items = (list) => h('ul', null, list.map((x) => this.#item(x, x.id === open, Boolean(unread[x.id]))));
    const parts = [];
    if (current.length) parts.push(items(current));
    else parts.push(h('p', { class: 'threads-note' }, t(words ? 'nothingFound' : 'noConversations')));
    if (archived.length) {
      const holdsOpen = archived.some((x) => x.id === open);
      parts.push(h('details', { open: this.#archivedOpen || holdsOpen || words !== '' },
        h('summary', null, `${t('archived')} (${archived.length})`), items(archived)));
    }
    this.#nav.replaceChildren(...parts);
    if (focused) this.#nav.querySelector(`[data-focus="${focused}"]`)?.focus();
  }

  #item(thread, isOpen, isUnread) {
    const title = nameOf(thread);
    const link = h('a', { class: 'thread-link', href: `#/t/${thread.id}`, 'aria-current': isOpen ? 'page' : null,
      'data-focus': `open-${thread.id}`, title },
    thread.is_pinned ? h('span', { class: 'pin', role: 'img', 'aria-label': t('pinned') }, icon('pin')) : null,
    h('span', { class: 'thread-title', dir: 'auto' }, title),
    isUnread ? h('span', { class: 'unread', role: 'img', 'aria-label': t('unread') }) : null);
    link.addEventListener('click', (e) => {
      if (e.metaKey || e.ctrlKey || e.shiftKey || e.button) return;
      e.preventDefault();
      this.#actions.open(thread.id);
    });
    const more = h('button', { type: 'button', class: 'icon-button thread-more', 'aria-expanded': 'false',
      'aria-label': t('conversationMenu', { title }), 'data-focus': `more-${thread.id}` }, icon('more'));
    const item = h('li', { class: `thread${isOpen ? ' open' : ''}` }, link, more);
    more.addEventListener('click', () => toggleMenu(more, () => this.#menu(thread)));
    return item;
  }

  #menu(thread) {
    const entry = (name, key, act, danger) => h('button', { type: 'button', class: `menu-item${danger ? ' danger' : ''}`, onclick: () => {
      closeMenu();
      act(thread);
    } }, icon(name), h('span', null, t(key)));
    return h('div', { class: 'menu' },
      entry('pen', 'rename', this.#actions.rename),
      entry('pin', thread.is_pinned ? 'unpin' : 'pin', this.#actions.pin),
      entry('box', thread.archived_at ? 'unarchive' : 'archive', this.#actions.archive),
      entry('trash', 'delete', this.#actions.remove, true));
  }
}

let openMenu = null; // {button, menu, made}

/** Opens the menu of a button, or closes it. make gives its element; or it is one that stands in the page. */
export function toggleMenu(button, make) {
  const wasOpen = openMenu?.button === button;
  closeMenu();
  if (wasOpen) return;
  const menu = make();
  const made = !menu.isConnected;
  if (made) {
    document.body.append(menu);
    const box = button.getBoundingClientRect();
    const width = menu.offsetWidth;
    const height = menu.offsetHeight;
    menu.classList.add('menu-free');
    menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
    menu.style.top = `${box.bottom + height + 8 > innerHeight ? Math.max(8, box.top - height - 4) : box.bottom + 4}px`;
  }
  menu.hidden = false;
  button.setAttribute('aria-expanded', 'true');
  openMenu = { button, menu, made };
  menu.querySelector('button:not([hidden])')?.focus();
}

/** Closes the open menu; true when there was one. refocus puts the focus back on its button. */
export function closeMenu(refocus = false) {
  if (!openMenu) return false;
  const { button, menu, made } = openMenu;
  openMenu = null;
  if (made) menu.remove();
  else menu.hidden = true;
  button.setAttribute('aria-expanded', 'false');
  if (refocus) button.focus();
  return true;
}

/** Lets menus be closed and walked with the keyboard, and closed by a click elsewhere. Call once. */
export function watchMenus() {
  document.addEventListener('pointerdown', (e) => {
    if (openMenu && !openMenu.menu.contains(e.target) && !openMenu.button.contains(e.target)) closeMenu();
  });
  document.addEventListener('keydown', (e) => {
    if (!openMenu) return;
    if (e.key === 'Escape') {
      e.stopImmediatePropagation();
      closeMenu(true);
    } else if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
      const all = [...openMenu.menu.querySelectorAll('button:not([hidden])')];
      const i = all.indexOf(document.activeElement);
      e.preventDefault();
      all[(i + (e.key === 'ArrowDown' ? 1 : -1) + all.length) % all.length].focus();
    } else if (e.key === 'Tab') {
      const { menu } = openMenu;
      setTimeout(() => openMenu && !menu.contains(document.activeElement) && closeMenu(), 0);
    }
  }, true);
  addEventListener('resize', () => openMenu?.made && closeMenu());
}
