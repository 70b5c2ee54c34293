// Dialogs: tokens, people, shortcuts, a question, a name. One <dialog>, which keeps the focus inside and gives it back.

import { api } from './api.js';
import { $, copyFrom, h, icon } from './dom.js';
import { dateOf, t } from './i18n.js';

const MIN_PASSWORD = 8;
const COPY_FAILED = () => {
  $('dialog-note').textContent = t('copyFailed');
  $('dialog-note').hidden = false;
};

let onClose = null;

/** Prepares the dialog. Call once. */
export function prepareDialog() {
  const dialog = $('dialog');
  $('dialog-close').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (e) => {
    if (e.target === dialog && !dialog.querySelector('.secret')) dialog.close();
  });
  dialog.addEventListener('close', () => {
    $('dialog-body').replaceChildren(); // a token that was shown once is gone with this
    const f = onClose;
    onClose = null;
    f?.();
  });
}

function show(title, content, closed) {
  const dialog = $('dialog');
  if (dialog.open) {
    onClose?.();
    onClose = null;
  }
  onClose = closed ?? null;
  $('dialog-title').textContent = title;
  $('dialog-body').replaceChildren(...content, h('p', { id: 'dialog-note', class: 'alert', role: 'alert', hidden: true }));
  if (!dialog.open) dialog.showModal();
  const first = dialog.querySelector('[data-first]') ?? $('dialog-close');
  first.focus();
}

export const dialogOpen = () => $('dialog').open;
export const closeDialog = () => $('dialog').open && $('dialog').close();

function fail(error) {
  const note = $('dialog-note');
  if (!note) return;
  note.textContent = error.message;
  note.hidden = false;
}

/** Asks a question; resolves to true when the person agrees. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => {
    let agreed = false;
    const yes = h('button', { type: 'button', class: 'button danger' }, action);
    const no = h('button', { type: 'button', class: 'button', 'data-first': true }, t('cancel'));
    yes.addEventListener('click', () => {
      agreed = true;
      $('dialog').close();
    });
    no.addEventListener('click', () => $('dialog').close());
    show(title, [h('p', { dir: 'auto' }, text), h('div', { class: 'dialog-buttons' }, no, yes)], () => resolve(agreed));
  });
}

/** Asks for a name; resolves to it, or to null. */
export function askName(title, value) {
  return new Promise((resolve) => {
    let name = null;
    const input = h('input', { maxlength: '120', 'data-first': true, required: true, dir: 'auto' });
    input.value = value;
    const form = h('form', { method: 'dialog' },
      h('label', { class: 'field' }, h('span', null, t('newName')), input),
      h('div', { class: 'dialog-buttons' },
        h('button', { type: 'button', class: 'button', onclick: () => $('dialog').close() }, t('cancel')),
        h('button', { class: 'button primary' }, t('save'))));
    form.addEventListener('submit', (e) => {
      e.preventDefault();
      name = input.value.trim() || null;
      $('dialog').close();
    });
    show(title, [form], () => resolve(name));
    input.select();
  });
}

/** Lists the shortcuts. */
export function showKeys(mac) {
  const ctrl = mac ? '⌘' : 'Ctrl';
  const rows = [
    [['Enter'], 'keySend'], [['Shift', 'Enter'], 'keyNewline'], [['Esc'], 'keyStop'], [[ctrl, 'K'], 'keyFind'],
    [[ctrl, 'Shift', 'O'], 'keyNew'], [['Alt', '↑'], 'keyPrevious'], [['Alt', '↓'], 'keyNext'], [['/'], 'keyWrite'],
    [[ctrl, '/'], 'keyHelp'],
  ];
  show(t('shortcuts'), [h('dl', { class: 'keys' }, rows.map(([keys, what]) => h('div', null,
    h('dt', null, t(what)), h('dd', null, keys.map((k) => h('kbd', null, k))))))]);
}

// ---- tokens ----

function select(options, attributes) {
  return h('select', attributes, options.map(([value, words]) => h('option', { value }, words)));
}

/** Shows the person's API tokens. */
export function showTokens() {
  const name = h('input', { maxlength: '64', required: true, placeholder: t('tokenNameExample'), autocomplete: 'off', 'data-first': true });
  const days = select([['30', t('days30')], ['90', t('days90')], ['365', t('days365')], ['', t('daysNever')]]);
  days.value = '90';
  const create = h('button', { class: 'button primary' }, t('createToken'));
  const fresh = h('div', { class: 'secret-place', role: 'status' });
  const listing = h('div', { class: 'rows' }, h('p', { class: 'muted' }, t('loading')));
  const form = h('form', { class: 'inline-form' },
    h('label', { class: 'field grow' }, h('span', null, t('tokenName')), name),
    h('label', { class: 'field' }, h('span', null, t('tokenExpiry')), days), create);
  form.addEventListener('submit', async (e) => {
    e.preventDefault();
    if (!name.value.trim()) return;
    create.disabled = true;
    try {
      const made = await api.createToken(name.value.trim(), Number(days.value) || 0);
      name.value = '';
      $('dialog-note').hidden = true;
      const copy = h('button', { type: 'button', class: 'button' }, icon('copy'), h('span', null, t('copy')));
      copy.addEventListener('click', () => copyFrom(copy, made.token, COPY_FAILED));
      fresh.replaceChildren(h('div', { class: 'secret' }, h('p', null, t('tokenOnce')),
        h('div', { class: 'secret-line' }, h('code', { tabindex: '0', id: 'new-token', 'aria-label': t('newToken') }, made.token), copy)));
      copy.focus();
      await fillTokens(listing);
    } catch (error) {
      fail(error);
    } finally {
      create.disabled = false;
    }
  });
  show(t('tokens'), [h('p', { class: 'muted' }, t('tokensLead')), form, fresh, listing]);
  fillTokens(listing).catch(fail);
}

async function fillTokens(listing) {
  const tokens = await api.tokens();
  const now = Date.now();
  const expiry = (x) => {
    if (!x.expires_at) return t('tokenNever');
    return t(new Date(x.expires_at) < now ? 'tokenExpired' : 'tokenExpires', { date: dateOf(x.expires_at) });
  };
  const rows = tokens.map((x) => {
    const label = x.name || `#${x.id}`;
    const revoke = h('button', { type: 'button', class: 'button small', 'aria-label': t('revokeNamed', { name: label }) }, t('revoke'));
    revoke.addEventListener('click', async () => {
      if (!(await confirm({ title: t('revokeTitle'), text: t('revokeText', { name: label }), action: t('revoke') }))) return showTokens();
      try {
        await api.revokeToken(x.id);
        return showTokens();
      } catch (error) {
        showTokens();
        return fail(error);
      }
    });
    return h('li', null, h('div', { class: 'row-text' },
      h('strong', { dir: 'auto' }, label,
        x.kind === 'session' ? h('span', { class: 'badge' }, t(x.current ? 'tokenCurrent' : 'tokenSession')) : null),
      h('span', { class: 'muted' }, [t('tokenCreated', { date: dateOf(x.created_at) }), expiry(x),
        x.last_used_at ? t('tokenUsed', { date: dateOf(x.last_used_at) }) : t('tokenUnused')].join(' · '))), x.current ? null : revoke);
  });
  listing.replaceChildren(rows.length ? h('ul', null, rows) : h('p', { class: 'muted' }, t('noTokens')));
}

// ---- people ----

const roleName = (role) => t(role === 'ADMIN' ? 'roleAdmin' : 'roleMember');

/** Shows who can sign in, to administrators. */
export function showPeople() {
  const name = h('input', { maxlength: '64', required: true, autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false', 'data-first': true });
  const password = h('input', { type: 'password', minlength: MIN_PASSWORD, maxlength: '1024', required: true, autocomplete: 'new-password', 'aria-describedby': 'password-hint' });
  const role = select([['MEMBER', t('roleMember')], ['ADMIN', t('roleAdmin')]]);
  const add = h('button', { class: 'button primary' }, t('addPerson'));
  const done = h('p', { class: 'good', role: 'status' });
  const listing = h('div', { class: 'rows' }, h('p', { class: 'muted' }, t('loading')));
  const form = h('form', { class: 'grid-form' },
    h('label', { class: 'field' }, h('span', null, t('username')), name),
    h('label', { class: 'field' }, h('span', null, t('password')), password),
    h('label', { class: 'field' }, h('span', null, t('role')), role), add);
  form.addEventListener('submit', async (e) => {
    e.preventDefault();
    add.disabled = true;
    done.textContent = '';
    try {
      await api.createUser(name.value.trim(), password.value, role.value);
      done.textContent = t('personAdded', { name: name.value.trim() });
      form.reset();
      $('dialog-note').hidden = true;
      await fillPeople(listing);
    } catch (error) {
      fail(error);
    } finally {
      add.disabled = false;
    }
  });
  show(t('people'), [h('p', { class: 'muted' }, t('peopleLead')), listing, h('h3', null, t('addPerson')),
    h('p', { class: 'muted', id: 'password-hint' }, t('passwordHint')), form, done]);
  fillPeople(listing).catch(fail);
}

async function fillPeople(listing) {
  const people = (await api.users()).filter((u) => u.role === 'ADMIN' || u.role === 'MEMBER');
  listing.replaceChildren(h('ul', null, people.map((u) => h('li', null,
    h('span', { class: 'avatar', 'aria-hidden': 'true' }, [...(u.username || '?')][0].toUpperCase()),
    h('div', { class: 'row-text' }, h('strong', { dir: 'auto' }, u.username), h('span', { class: 'muted' }, roleName(u.role)))))));
}
