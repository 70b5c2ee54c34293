// The card of a request for approval: what is to be done, where, why and for whom, and the buttons that decide.

import { definitions, pieces, secondsLeft } from './approvals.js';
import { h, icon } from './dom.js';
import { language, t, timeOf } from './i18n.js';
import { parse } from './markdown.js';
import { blockNode } from './markdownview.js';

const STATUS = {
  PENDING: 'apPending', APPROVED: 'apApproved', REJECTED: 'apRejected', EXPIRED: 'apExpired', WITHDRAWN: 'apWithdrawn', REFUSED: 'apRefused',
  EXECUTING: 'apExecuting', EXECUTED: 'apExecuted', FAILED: 'apFailed', UNKNOWN: 'apUnknown',
};
const RISK = { low: 'riskLow', medium: 'riskMedium', high: 'riskHigh', critical: 'riskCritical' };
const PROPOSER = { person: 'apByPerson', model: 'apByModel', agent: 'apByAgent' };

/** Says in words how a card stands. */
export const statusWords = (card) => {
  if (card.status === 'PENDING' && card.quorum > 1) return t('apPendingOf', { agreed: card.agreed, quorum: card.quorum });
  if (card.status === 'EXECUTED' && card.outcome?.status_known && card.outcome.exit_status !== 0) {
    return t('apExecutedStatus', { status: card.outcome.exit_status });
  }
  return t(STATUS[card.status] ?? 'apUnknown');
};

/** A command as nodes: what the guard found underlined, invisible characters as escapes. */
function commandNodes(command, reasons) {
  return pieces(command, reasons).map((p) => {
    const words = p.reasons.map((i) => reasonText(reasons[i])).join(' ');
    const text = p.unseen ? h('span', { class: 'unseen', title: t('apUnseen') }, p.text) : document.createTextNode(p.text);
    return words ? h('mark', { class: 'risky', title: words }, text) : text;
  });
}

const reasonText = (r) => (language() === 'zh' && r.text_zh ? r.text_zh : r.text);
const pre = (cls, label, ...content) => h('pre', { class: cls, tabindex: '0', dir: 'ltr', role: 'group', 'aria-label': label }, h('code', null, ...content));

// noticeNodes shows what Butler says of how a command stands. The command and the reasons, which such words repeat for
// those who see no card, stand in the card already.
const noticeNodes = ({ card, notice }) => parse(notice).filter((n) => !card || n.t === 'p').map((n) => blockNode(n));

/**
 * One card. actions: {decide(id, {approved, reason, command})}; now() gives the time by the server's clock, in ms.
 */
export class ApprovalCard {
  el;
  #id;
  #actions;
  #entry = null;
  #mode = ''; // '', buttons, edit, deny, busy, over: what the lower part shows
  #written = null; // {mode, text} of what was sent, in case it is not taken
  #head = h('header', { class: 'approval-head' });
  #body = h('div', { class: 'approval-body' });
  #notice = h('div', { class: 'approval-notice', dir: 'auto' });
  #place = h('div', { class: 'approval-actions' });
  #result = h('div', { class: 'approval-result' });
  #left = h('span', { class: 'approval-left' });
  #output = null; // {code, text}

  constructor(id, actions) {
    this.#id = id;
    this.#actions = actions;
    this.el = h('article', { class: 'approval' }, this.#head, this.#body, this.#notice, this.#place, this.#result);
  }

  /** Shows an entry; see approvals.js. */
  update(entry) {
    const before = this.#entry;
    this.#entry = entry;
    const { card } = entry;
    if (!before || before.card !== card) {
      this.el.dataset.status = card?.status ?? '';
      this.el.dataset.risk = card?.risk ?? '';
      this.el.dataset.code = card?.code ?? '';
      this.el.setAttribute('aria-label', card ? `${t('approval')} ${card.code}: ${statusWords(card)}` : t('apOutput'));
      this.#head.replaceChildren(...(card ? this.#headParts(card) : []));
      this.#body.replaceChildren(...(card ? this.#bodyParts(card) : []));
    }
    if (!before || before.notice !== entry.notice || !before.card !== !card) this.#notice.replaceChildren(...noticeNodes(entry));
    this.#decision(before, entry);
    this.#outcome(entry);
    this.tick();
  }

  /** Counts the time down. */
  tick() {
    const card = this.#entry?.card;
    if (card?.status !== 'PENDING' || !card.decide_by) return;
    const seconds = secondsLeft(card.decide_by, this.#actions.now());
    const words = seconds > 0 ? t('apTimeLeft', { time: `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}` }) : t('apTimeOver');
    if (this.#left.textContent !== words) this.#left.textContent = words;
    this.#left.classList.toggle('urgent', seconds < 60);
    if (seconds === 0 && this.#mode !== 'over') this.#decision(null, this.#entry);
  }

  #headParts(card) {
    return [
      h('span', { class: 'approval-icon' }, icon(card.status === 'PENDING' ? 'warn' : 'shield')),
      h('h3', { class: 'approval-title' }, card.status === 'PENDING' ? t('apTitle') : statusWords(card)),
      h('span', { class: 'badge code-badge', title: t('apCode') }, card.code),
      RISK[card.risk] ? h('span', { class: `badge risk-${card.risk}` }, t(RISK[card.risk])) : null,
      card.status === 'PENDING' ? this.#left : null,
    ].filter(Boolean);
  }

  #bodyParts(card) {
    const reasons = card.reasons ?? [];
    const row = (label, value) => (value ? [h('dt', null, label), h('dd', { dir: 'auto' }, value)] : []);
    const shown = pieces(card.command ?? '').map((p) => p.text).join('');
    const out = [
      h('p', { class: 'approval-who' }, t(PROPOSER[card.proposer] ?? 'apByModel', { name: card.requester?.name ?? '' })),
      pre('approval-command', t('apCommand'), ...commandNodes(card.command ?? '', reasons)),
    ];
    if (card.visible && card.visible !== shown && card.visible !== card.command) {
      out.push(h('p', { class: 'approval-label' }, t('apVisible')), pre('approval-visible', t('apVisible'), card.visible));
    }
    out.push(h('dl', { class: 'approval-facts' },
      row(t('apAgent'), card.kind === 'agent' ? card.target_agent_name : ''), row(t('apProgram'), card.program), row(t('apHost'), card.host),
      row(t('apDir'), card.dir), row(t('apUser'), card.user),
      row(t('apScripts'), (card.scripts ?? []).map((s) => s.path).join(', ')),
      row(t('apDefinitions'), definitions(card).map((d) => `${d.name} = ${d.text}`).join('; '))));
    if (card.reason) out.push(h('p', { class: 'approval-label' }, t('apWhy')), h('blockquote', { class: 'approval-why', dir: 'auto' }, card.reason));
    if (reasons.length) {
      out.push(h('p', { class: 'approval-label' }, t('apReasons')), h('ul', { class: 'approval-reasons' }, reasons.map((r) => h('li', null, reasonText(r)))));
    }
    if (card.untrusted?.length) {
      out.push(h('div', { class: 'approval-untrusted' }, h('p', { class: 'approval-label' }, icon('warn'), h('span', null, t('apUntrusted'))),
        card.untrusted.map((u) => h('details', null, h('summary', null, u.name), h('pre', { dir: 'auto' }, pieces(u.excerpt ?? '').map((p) => p.text).join(''))))));
    }
    for (const e of card.edits ?? []) {
      out.push(h('p', { class: 'approval-label' }, t('apEdited', { name: e.by?.name ?? '' })), pre('approval-before', t('apEdited', { name: e.by?.name ?? '' }), ...commandNodes(e.command, [])));
    }
    for (const d of card.decisions ?? []) {
      const who = d.by?.name || t('apPolicy');
      out.push(h('p', { class: 'approval-decision', dir: 'auto' }, h('span', null, t(d.approved ? 'apSaidYes' : 'apSaidNo', { name: who, time: timeOf(d.at) })),
        d.reason ? h('q', null, d.reason) : null));
    }
    return out;
  }

  // decision shows what the person can do now. What they are writing stays while the request is the same.
  #decision(before, { card, sent, problem }) {
    const open = card?.status === 'PENDING' && card.may_decide;
    const over = open && card.decide_by && secondsLeft(card.decide_by, this.#actions.now()) === 0;
    const changed = before?.card && card && before.card.digest !== card.digest;
    let mode = '';
    if (over) mode = 'over';
    else if (open && sent) mode = 'busy';
    else if (open && problem && this.#mode === 'busy' && this.#written && !changed) mode = this.#written.mode;
    else if (open) mode = (this.#mode === 'edit' || this.#mode === 'deny') && !changed ? this.#mode : 'buttons';
    const words = problem || (changed && open && !sent ? t('apChanged') : '');
    if (mode === this.#mode && before?.problem === problem && !changed) return;
    const hadFocus = this.#place.contains(document.activeElement);
    this.#show(mode, words);
    if (hadFocus && mode !== '') (this.#place.querySelector('button:not(:disabled), textarea, input') ?? this.#focusable()).focus({ preventScroll: true });
    else if (hadFocus) this.#focusable().focus({ preventScroll: true });
  }

  #focusable() {
    this.el.tabIndex = -1;
    return this.el;
  }

  #show(mode, problem = '') {
    const typed = mode === this.#mode ? this.#place.querySelector('textarea, input')?.value
      : this.#written?.mode === mode ? this.#written.text : undefined;
    this.#mode = mode;
    this.#written = mode === 'busy' ? this.#written : null;
    const parts = [];
    if (problem) parts.push(h('p', { class: 'alert', role: 'alert' }, problem));
    const go = (what) => {
      if (mode === 'edit' || mode === 'deny') this.#written = { mode, text: what.command ?? what.reason };
      this.#actions.decide(this.#id, what);
    };
    const button = (label, cls, act, disabled) => h('button', { type: 'button', class: `button small ${cls}`, onclick: act, disabled }, label);
    const busy = mode === 'busy';
    if (mode === 'buttons' || busy) {
      parts.push(h('div', { class: 'approval-buttons' },
        button(busy && this.#entry.sent === 'approve' ? t('apSending') : t('apApprove'), 'primary', () => go({ approved: true }), busy),
        button(t('apEdit'), '', () => this.#begin('edit'), busy),
        button(busy && this.#entry.sent === 'deny' ? t('apSending') : t('apDeny'), 'danger', () => this.#begin('deny'), busy)));
    } else if (mode === 'edit') {
      const area = h('textarea', { class: 'approval-edit', rows: '3', spellcheck: 'false', autocapitalize: 'none', autocorrect: 'off', maxlength: '16384', 'aria-label': t('apEditLabel') });
      area.value = typed ?? this.#entry.card.command;
      const approve = button(t('apApproveEdited'), 'primary', () => go({ approved: true, command: area.value }));
      const look = () => (approve.disabled = area.value.trim() === '' || area.value === this.#entry.card.command);
      area.addEventListener('input', look);
      look();
      parts.push(h('p', { class: 'approval-label' }, t('apEditHint')), area, h('div', { class: 'approval-buttons' }, approve, button(t('cancel'), '', () => this.#begin('buttons'))));
    } else if (mode === 'deny') {
      const input = h('input', { type: 'text', maxlength: '1000', dir: 'auto', 'aria-label': t('apDenyLabel'), placeholder: t('apDenyLabel') });
      input.value = typed ?? '';
      const deny = () => go({ approved: false, reason: input.value.trim() });
      input.addEventListener('keydown', (e) => e.key === 'Enter' && !e.isComposing && deny());
      parts.push(h('p', { class: 'approval-label' }, t('apDenyHint')), input, h('div', { class: 'approval-buttons' }, button(t('apDeny'), 'danger', deny), button(t('cancel'), '', () => this.#begin('buttons'))));
    }
    this.#place.replaceChildren(...parts);
  }

  #begin(mode) {
    this.#show(mode);
    (this.#place.querySelector('textarea, input') ?? this.#place.querySelector('button'))?.focus();
  }

  #outcome({ card, output, clipped }) {
    const o = card?.outcome;
    const text = o?.output && (o.output.length >= output.length || !output) ? o.output : output;
    const words = [];
    if (card?.failure) words.push(card.failure);
    if (o && card.status === 'EXECUTED') {
      if (!o.status_known) words.push(t('apNoStatus'));
      if (o.truncated || clipped) words.push(t('apCut', { bytes: o.output_bytes }));
      if (o.redacted) words.push(t('apRedacted', { count: o.redacted }));
    }
    const note = words.join(' ');
    if (!text && !note) {
      this.#result.replaceChildren();
      this.#output = null;
      return;
    }
    if (this.#output && text && this.#output.note === note && text.startsWith(this.#output.text)) {
      // Output that grows is not drawn again from its start.
      this.#output.code.append(text.slice(this.#output.text.length));
      this.#output.text = text;
      return;
    }
    const code = h('code', null, text);
    this.#output = { code, text, note };
    this.#result.replaceChildren(...[
      note ? h('p', { class: 'approval-label', dir: 'auto' }, note) : null,
      text ? h('p', { class: 'approval-label' }, t('apOutput')) : null,
      text ? h('pre', { class: 'approval-output', tabindex: '0', dir: 'ltr', role: 'group', 'aria-label': t('apOutput') }, code) : null,
    ].filter(Boolean));
  }
}

/** The list of what this person may decide, and the button in the bar that opens it. */
export class ApprovalPanel {
  #button;
  #count;
  #panel;
  #list;
  #actions;
  #cards = new Map(); // id → ApprovalCard
  #shown = []; // ids in the order in which they came

  constructor({ button, count, panel, list, close }, actions) {
    this.#button = button;
    this.#count = count;
    this.#panel = panel;
    this.#list = list;
    this.#actions = actions;
    button.addEventListener('click', () => this.toggle());
    close.addEventListener('click', () => this.toggle(false));
    panel.addEventListener('keydown', (e) => {
      if (e.key !== 'Escape') return;
      e.stopPropagation();
      this.toggle(false);
    });
  }

  /** Opens or closes the list. */
  toggle(open = this.#panel.hidden) {
    if (open === !this.#panel.hidden) return;
    this.#panel.hidden = !open;
    this.#button.setAttribute('aria-expanded', String(open));
    if (open) this.#panel.querySelector('button:not([hidden])')?.focus();
    else if (!this.#button.hidden) this.#button.focus();
    if (!open) {
      this.#shown = [];
      this.#cards.clear();
      this.#list.replaceChildren();
    }
    this.#actions.redraw();
  }

  /** Shows what waits; what was decided while the list is open stays in it, as it stands. */
  update(all, waiting) {
    this.#button.hidden = waiting.length === 0 && this.#panel.hidden;
    const count = String(waiting.length);
    if (this.#count.textContent !== count) this.#count.textContent = count;
    this.#button.setAttribute('aria-label', t('apButton', { count }));
    this.#button.classList.toggle('some', waiting.length > 0);
    if (this.#panel.hidden) return;
    for (const [id] of waiting) if (!this.#shown.includes(id)) this.#shown.push(id);
    this.#shown = this.#shown.filter((id) => all[id]?.card);
    for (const [id, card] of this.#cards) {
      if (this.#shown.includes(id)) continue;
      card.el.remove();
      this.#cards.delete(id);
    }
    for (const id of this.#shown) {
      let card = this.#cards.get(id);
      if (!card) {
        card = new ApprovalCard(id, this.#actions);
        this.#cards.set(id, card);
        this.#list.append(card.el);
      }
      card.update(all[id]);
    }
    const none = this.#list.querySelector('.approvals-none');
    if (this.#shown.length) none?.remove();
    else if (!none) this.#list.replaceChildren(h('p', { class: 'approvals-none muted' }, t('apNone')));
  }

  /** Draws everything anew, after a change of language. */
  refresh() {
    this.#cards.clear();
    this.#list.replaceChildren();
  }

  tick() {
    for (const card of this.#cards.values()) card.tick();
  }
}
