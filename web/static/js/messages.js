// The conversation on the screen: a window of messages in the DOM that follows the end or the reader.

import { among } from './approvals.js';
import { ApprovalCard } from './approvalview.js';
import { $, copyFrom, h, icon } from './dom.js';
import { dayOf, t, timeOf } from './i18n.js';
import { MarkdownView } from './markdownview.js';
import { timeline } from './state.js';

const WINDOW = 160; // messages in the DOM at most
const STEP = 60; // by how much the window moves
const NEAR = 400; // px from an edge at which the window moves or older messages are loaded
const STICKY = 64; // px from the end at which a reader who scrolls down has reached it
const LONG = 2400; // characters of a person's message that are shown at first

/**
 * Shows a conversation. actions: {older(), retry(localId), discard(localId), ask(text), copyFailed(), reload()}
 * and, of the cards of requests for approval, {decide(id, what), now()}.
 */
export class MessageList {
  #log = $('log');
  #top = $('log-top');
  #items = $('log-items');
  #actions;
  #shown = new Map(); // key → {el, item, view}
  #list = [];
  #from = 0;
  #to = 0;
  #following = true;
  #place = 0; // scrollTop when last looked at or set here: what differs from it is the reader's doing
  #thread = null;
  #conversation = null;
  #approvals = []; // as drawn: [id, entry]
  #signature = ''; // language and day: what every message's words depend on
  #online = false;

  constructor(actions) {
    this.#actions = actions;
    this.#log.addEventListener('scroll', () => this.#onScroll(), { passive: true });
    $('to-latest').addEventListener('click', () => {
      this.follow();
      $('composer-text').focus({ preventScroll: true });
    });
    // A growing message box or a phone's keyboard must not hide the end.
    new ResizeObserver(() => this.#following && this.#toEnd()).observe(this.#log);
  }

  /** Goes to the end and stays there while messages come. */
  follow() {
    this.#following = true;
    this.#window();
    this.#render();
    this.#toEnd();
  }

  /** Shows a conversation of a thread, and its requests for approval; online decides the words for what is not sent yet. */
  update(thread, conversation, online, approvals) {
    this.#look();
    const signature = `${document.documentElement.lang} ${new Date().toDateString()}`;
    if (thread !== this.#thread || signature !== this.#signature) {
      this.#items.replaceChildren();
      this.#shown.clear();
      this.#following = thread !== this.#thread || this.#following;
      this.#list = [];
      this.#from = this.#to = 0;
    } else if (conversation === this.#conversation && online === this.#online && sameEntries(approvals, this.#approvals)) {
      return;
    }
    const anchorKey = this.#list[this.#from]?.key;
    const endKey = this.#list[this.#to - 1]?.key;
    this.#thread = thread;
    this.#conversation = conversation;
    this.#approvals = approvals;
    this.#signature = signature;
    this.#online = online;
    this.#list = among(timeline(conversation), approvals).map((m) => ({ ...m, offline: m.status === 'sending' && !online }));
    if (this.#following) {
      this.#window();
    } else {
      // The reader's place stays: the window keeps its first and last message, whatever was put before or after.
      this.#from = Math.max(0, this.#list.findIndex((m) => m.key === anchorKey));
      const end = this.#list.findLastIndex((m) => m.key === endKey);
      this.#to = Math.min(this.#list.length, Math.max(end + 1, this.#from + Math.min(WINDOW, this.#list.length)));
      if (this.#to - this.#from > WINDOW) this.#to = this.#from + WINDOW;
    }
    this.#keepingPlace(() => this.#render());
    if (this.#following) this.#toEnd();
    this.#updateLatest();
    queueMicrotask(() => this.#fill());
  }

  #window() {
    this.#to = this.#list.length;
    this.#from = Math.max(0, this.#to - WINDOW);
  }

  #toEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#place = this.#log.scrollTop;
    this.#updateLatest();
  }

  // look finds out whether the reader follows the end. The list moves to the end with every piece of an answer, so a
  // scroll event alone does not tell whose it is: it is the reader who goes up, however little, and who comes back down.
  // At the very end one follows, also when the content shrank to it.
  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    const below = scrollHeight - scrollTop - clientHeight;
    if (this.#to < this.#list.length) this.#following = false;
    else if (below <= 1 || (scrollTop > this.#place && below < STICKY)) this.#following = true;
    else if (scrollTop < this.#place - 1) this.#following = false;
    this.#place = scrollTop;
    return below;
  }

  #updateLatest() {
    $('to-latest').hidden = this.#following;
  }

  #onScroll() {
    const below = this.#look();
    this.#updateLatest();
    if (below < NEAR && this.#to < this.#list.length) {
      this.#to = Math.min(this.#list.length, this.#to + STEP);
      this.#from = Math.max(this.#from, this.#to - WINDOW);
      this.#keepingPlace(() => this.#render());
    }
    this.#fill();
  }

  // fill shows or loads older messages when the reader is near the top of what is there.
  #fill() {
    if (this.#log.scrollTop > NEAR || this.#list.length === 0) return;
    if (this.#from > 0) {
      this.#from = Math.max(0, this.#from - STEP);
      this.#to = this.#following ? this.#to : Math.min(this.#to, this.#from + WINDOW);
      this.#keepingPlace(() => this.#render());
      if (this.#following) this.#toEnd();
    } else if (this.#conversation.more && !this.#conversation.loading && !this.#conversation.failed) {
      this.#actions.older();
    }
  }

  // keepingPlace runs a change of the DOM and puts the message that was at the top of the view back where it was.
  #keepingPlace(change) {
    const top = this.#log.getBoundingClientRect().top;
    let anchor = null;
    let before = 0;
    if (!this.#following) {
      for (const el of this.#items.children) {
        const box = el.getBoundingClientRect();
        if (box.bottom > top && el.dataset.key) {
          anchor = el;
          before = box.top;
          break;
        }
      }
    }
    change();
    if (!anchor?.isConnected) return;
    this.#log.scrollTop += anchor.getBoundingClientRect().top - before;
    this.#place = this.#log.scrollTop;
  }

  #render() {
    this.#renderTop();
    const now = Date.now();
    const wanted = [];
    let day = '';
    for (const item of this.#list.slice(this.#from, this.#to)) {
      const itsDay = item.at ? dayOf(item.at, now) : day;
      if (itsDay !== day) {
        day = itsDay;
        wanted.push({ key: `day ${day}`, day });
      }
      wanted.push(item);
    }
    const keep = new Set(wanted.map((w) => w.key));
    for (const [key, record] of this.#shown) {
      if (!keep.has(key)) {
        record.el.remove();
        this.#shown.delete(key);
      }
    }
    let at = this.#items.firstChild;
    for (const item of wanted) {
      let record = this.#shown.get(item.key);
      if (!record) {
        record = item.day ? { el: h('h2', { class: 'day' }, item.day) } : this.#make(item);
        this.#shown.set(item.key, record);
      } else if (!item.day && !same(record.item, item)) {
        this.#change(record, item);
      }
      if (record.el === at) at = at.nextSibling;
      else this.#items.insertBefore(record.el, at);
    }
  }

  #renderTop() {
    const c = this.#conversation;
    const empty = this.#list.length === 0;
    const state = [c.loading, c.failed, c.more, empty, c.loaded, this.#from > 0, this.#thread === 0].join();
    if (this.#top.dataset.state === state + document.documentElement.lang) return;
    this.#top.dataset.state = state + document.documentElement.lang;
    this.#log.classList.toggle('empty', empty && (c.loaded || this.#thread === 0));
    let content;
    if (c.failed) {
      content = h('p', null, `${t('historyFailed')} `, h('button', { type: 'button', class: 'link-button', onclick: () => this.#actions.reload() }, t('tryAgain')));
    } else if (c.loading && (empty || c.more)) {
      content = h('p', { class: 'loading' }, t('loadingMessages'));
    } else if (empty && (c.loaded || this.#thread === 0)) {
      content = h('div', { class: 'welcome' }, h('span', { class: 'mark mark-large' }, icon('mark')),
        h('p', { class: 'welcome-title' }, t('welcomeTitle')), h('p', null, t('welcomeText')));
    } else if (c.more || this.#from > 0) {
      content = h('button', { type: 'button', class: 'link-button', onclick: () => (this.#from > 0 ? this.#fill() : this.#actions.older()) }, t('loadOlder'));
    } else if (!empty) {
      content = h('p', null, t('beginning'));
    }
    this.#top.replaceChildren(content ?? '');
  }

  /** Counts the time of open requests down. */
  tick() {
    for (const { card } of this.#shown.values()) card?.tick();
  }

  #make(item) {
    if (item.approval) {
      const card = new ApprovalCard(item.actionId, this.#actions);
      card.el.dataset.key = item.key;
      card.update(item.approval);
      return { el: card.el, card, item };
    }
    const body = h('div', { class: 'text', dir: 'auto' });
    const foot = h('div', { class: 'foot' });
    const person = item.role === 'person';
    const name = person ? t('you') : t('butler');
    const el = h('article', { class: `message ${item.role}`, 'data-key': item.key, 'aria-label': name },
      h('div', { class: 'head', 'aria-hidden': 'true' }, person ? null : h('span', { class: 'mark' }, icon('mark')), h('span', null, name)),
      body, foot);
    const record = { el, body, foot, item: null, view: person ? null : new MarkdownView(body, this.#actions.copyFailed) };
    this.#change(record, item);
    return record;
  }

  #change(record, item) {
    if (record.card) {
      record.item = item;
      record.card.update(item.approval);
      return;
    }
    const before = record.item;
    record.item = item;
    const { el } = record;
    el.dataset.status = item.status;
    el.toggleAttribute('data-waiting', Boolean(item.waiting));
    el.setAttribute('aria-busy', String(item.status === 'streaming'));
    if (item.role === 'person') {
      if (before?.text !== item.text) this.#personText(record, item.text);
    } else {
      if (item.quote && !record.quote) {
        record.quote = h('p', { class: 'quoted' }, `${t('answerTo')}: `, h('q', null, item.quote));
        record.body.before(record.quote);
      }
      record.view.update(item.text);
    }
    if (before && same({ ...before, text: '' }, { ...item, text: '' }) && item.status === 'streaming') return;
    record.foot.replaceChildren(...this.#foot(record, item));
  }

  #personText(record, text) {
    if (text.length <= LONG) return record.body.replaceChildren(text);
    const shown = h('span', null);
    const more = h('button', { type: 'button', class: 'link-button', 'aria-expanded': 'false' });
    const set = (all) => {
      shown.textContent = all ? text : `${text.slice(0, LONG).trimEnd()}…`;
      more.textContent = all ? t('showLess') : t('showAll');
      more.setAttribute('aria-expanded', String(all));
    };
    more.addEventListener('click', () => this.#keepingPlace(() => set(more.getAttribute('aria-expanded') !== 'true')));
    set(false);
    return record.body.replaceChildren(shown, h('br'), more);
  }

  #foot(record, item) {
    const out = [];
    const say = (text, kind) => out.push(h('span', { class: `note ${kind ?? ''}` }, text));
    const button = (text, act) => out.push(h('button', { type: 'button', class: 'link-button', onclick: act }, text));
    if (item.status === 'error') {
      out.push(h('span', { class: 'note bad' }, icon('warn'), h('strong', null, t('notSent')), ` ${item.error}`));
      button(t('tryAgain'), () => this.#actions.retry(item.localId));
      button(t('discard'), () => this.#actions.discard(item.localId));
      return out;
    }
    if (item.status === 'sending') {
      say(item.offline ? t('waitsForConnection') : t('sending'), item.offline ? 'waits' : 'faint');
      return out;
    }
    if (item.status === 'streaming') {
      if (item.partial) say(t('partialAnswer'));
      if (item.restarting) say(t('restarting'));
      if (item.waiting === 'queued') say(t('queued'));
      if (item.waiting === 'decision') say(t('waitsForDecision'), 'thinking');
      if (item.waiting === 'thinking') say(t('thinking'), 'thinking');
      return out;
    }
    if (item.status === 'failed') out.push(h('span', { class: 'badge bad', title: item.reason || null }, icon('warn'), t('statusFailed')));
    if (item.status === 'stopped') out.push(h('span', { class: 'badge' }, t('statusStopped')));
    if (item.at) out.push(h('time', { datetime: item.at, class: 'faint' }, timeOf(item.at)));
    const copy = h('button', { type: 'button', class: 'icon-button small', 'aria-label': t('copyMessage'), title: t('copyMessage') }, icon('copy'));
    copy.addEventListener('click', () => copyFrom(copy, record.item.text, this.#actions.copyFailed));
    const question = item.status === 'failed' && this.#conversation.messages.find((m) => m.key === item.replyTo);
    if (question) button(t('askAgain'), () => this.#actions.ask(question.text));
    if (item.role === 'person') out.unshift(copy);
    else out.push(copy);
    return out;
  }
}

const sameEntries = (a, b) => a.length === b.length && a.every(([id, entry], i) => b[i][0] === id && b[i][1] === entry);

// same compares two items of the list by their fields.
function same(a, b) {
  const keys = Object.keys(b);
  return keys.length === Object.keys(a).length && keys.every((k) => a[k] === b[k] || (k === 'dropped' && a[k]?.length === b[k].length));
}
