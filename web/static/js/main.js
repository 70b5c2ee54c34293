// The page: joins state, server and screen. Frames and clicks become actions; each change is drawn once per animation frame.

import { decidable, isAction, ofThread } from './approvals.js';
import { ApprovalPanel, statusWords } from './approvalview.js';
import { api, ApiError, chatFrame, whenUnauthorized } from './api.js';
import { Composer } from './composer.js';
import { askName, closeDialog, confirm, dialogOpen, prepareDialog, showKeys, showPeople, showTokens } from './dialogs.js';
import { $ } from './dom.js';
import { language, t } from './i18n.js';
import { kept } from './kept.js';
import { MessageList } from './messages.js';
import { drawNotices } from './notices.js';
import { prepareSettings } from './settings.js';
import { mac, phone, prepareShell, showSide } from './shell.js';
import { hideSignIn, prepareSignIn, showSignIn } from './signin.js';
import { Socket } from './socket.js';
import { conversation, initial, pending, reduce, sortedThreads, titleOf, unsent } from './state.js';
import { closeMenu, nameOf, ThreadList, toggleMenu, watchMenus } from './threads.js';

const PAGE = 50; // messages a request for history gives
const ECHO = 15_000; // ms until a sent message must have come back
const SILENCE = 20_000; // ms without a frame, while an answer is awaited, until the history is asked

const channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel('butler') : null;

let state = initial();
let signedIn = false;
let drawing = false;
let lastFrame = 0;
let stopping = null; // {id, localId} of the answer that was told to stop
let unseen = 0; // answers that came while the page was hidden
let drawn = {}; // what the last draw was made of

// ---- state ----

function dispatch(action) {
  const before = state;
  state = reduce(state, { now: Date.now(), ...action });
  if (state === before) return;
  if (signedIn && state.user) {
    if (state.conversations !== before.conversations) keepUnsent(before);
    if (state.shells !== before.shells) kept.setShells(state.user.id, state.shells);
    if (state.quiet !== before.quiet) kept.setQuiet(state.user.id, state.quiet);
  }
  if (state.stale !== before.stale) reload();
  if (state.unknown !== before.unknown) later('threads', 300, refreshThreads);
  redraw();
}

function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function keepUnsent(before) {
  const list = unsent(state);
  if (list.length === 0 && unsent(before).length === 0) return;
  kept.setUnsent(state.user.id, list.map(({ id, message: m }) => ({ id, localId: m.localId, text: m.text, at: m.at })));
}

const timers = new Map();
function later(name, ms, f) {
  clearTimeout(timers.get(name));
  timers.set(name, setTimeout(f, ms));
}

const newId = () => {
  if (crypto.randomUUID) return crypto.randomUUID(); // only where the page came over HTTPS or from this machine
  const hex = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0'));
  return `${hex.slice(0, 4).join('')}-${hex.slice(4, 6).join('')}-${hex.slice(6, 8).join('')}-${hex.slice(8, 10).join('')}-${hex.slice(10).join('')}`;
};

function note(text, action) {
  const key = newId();
  dispatch({ type: 'notice', code: '', text, key });
  if (action) noticeActions.set(key, action);
}
const noticeActions = new Map();

// tell shows an error as a notice; a lost sign-in has its own page.
const tell = (error) => {
  if (!(error instanceof ApiError)) throw error;
  if (error.status !== 401) note(error.message);
};

// ---- the server ----

const socket = new Socket({
  address: () => {
    const query = new URLSearchParams({ lang: language() });
    let { after } = state;
    if (after === null && state.user) {
      after = kept.quiet(state.user.id, Date.now());
      if (after !== null) dispatch({ type: 'resumed' });
    }
    if (after !== null) query.set('after', after);
    return `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/api/ws?${query}`;
  },
  open: (url) => new WebSocket(url),
  timers: { set: (f, ms) => setTimeout(f, ms), clear: (id) => clearTimeout(id), now: () => Date.now(), random: () => Math.random() },
  onState: (s, retryAt) => {
    if (s === 'connecting' && state.connection.state === 'offline') dispatch({ type: 'connection', state: 'connecting', retryAt: 0 });
    else dispatch({ type: 'connection', state: s, retryAt });
  },
  onFrame: (frame) => {
    lastFrame = Date.now();
    announce(frame);
    dispatch({ type: 'frame', frame });
  },
  onOpen: () => {
    lastFrame = Date.now();
    refreshThreads();
    refreshApprovals();
    if (opened && state.after === null) dispatch({ type: 'stale' });
    opened = true;
    loadIfNeeded(state.open);
    for (const { id, message } of unsent(state)) transmit(id, message.localId, message.text);
  },
  check: async () => {
    await refreshThreads();
    return signedIn;
  },
});
let opened = false; // a connection stood before

function transmit(id, localId, text) {
  if (!socket.send(chatFrame(id, localId, text))) return;
  setTimeout(() => {
    if (socket.online && unsent(state).some((u) => u.message.localId === localId)) socket.restart();
  }, ECHO);
}

async function refreshThreads() {
  try {
    const threads = await api.threads();
    dispatch({ type: 'threads', threads });
    return threads;
  } catch (error) {
    if (error.status && error.status !== 401) tell(error); // no answer at all shows as the connection's state
    return null;
  }
}

// Requests for approval come as frames; this is for those that are over, and for what was missed.
async function refreshApprovals() {
  try {
    dispatch({ type: 'approvals', list: await api.approvals() });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error; // no answer: what the frames say is all there is
  }
}

// decide says this person's word about a request, as they see it now.
async function decide(id, what) {
  const entry = state.approvals[id];
  if (!entry?.card || entry.sent) return;
  dispatch({ type: 'deciding', id, sent: what.approved ? 'approve' : 'deny' });
  try {
    dispatch({ type: 'approvals', list: [await api.decide(id, { ...what, digest: entry.card.digest })] });
    dispatch({ type: 'deciding', id, sent: '' });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    dispatch({ type: 'not-decided', id, error: error.message });
    if (error.status === 409 || error.status === 404) {
      // Somebody else was first, or it was changed: show how it stands.
      try {
        dispatch({ type: 'approvals', list: [await api.approval(id)] });
      } catch (e) {
        if (!(e instanceof ApiError)) throw e;
      }
    }
  }
}

const serverNow = () => Date.now() + state.skew;

function loadIfNeeded(id) {
  const c = conversation(state, id);
  if (id && !c.loaded && !c.loading) loadHistory(id);
}

async function loadHistory(id, older = false) {
  const c = conversation(state, id);
  if (c.loading) return;
  const before = older ? c.messages.find((m) => m.id !== null)?.id : undefined;
  dispatch({ type: 'history-loading', id });
  try {
    const rows = await api.messages(id, { limit: PAGE, before });
    dispatch({ type: 'history', id, rows, older, limit: PAGE });
  } catch (error) {
    dispatch({ type: 'history-failed', id, error: error.message });
    if (error.status === 404) {
      dispatch({ type: 'thread-gone', id });
      open(0);
    }
  }
}

function reload() {
  later('reload', 0, () => {
    if (state.open) loadHistory(state.open);
    refreshThreads();
    refreshApprovals();
  });
}

// Nothing came for a while although an answer is awaited: perhaps a frame was lost, or the connection is dead.
setInterval(() => {
  if (!signedIn || !socket.online || Date.now() - lastFrame < SILENCE) return;
  if (state.open && pending(conversation(state, state.open)).length) loadHistory(state.open);
}, SILENCE / 2);

// ---- what people do ----

async function send(text) {
  let id = state.open;
  if (!id) {
    try {
      const thread = await api.createThread(titleOf(text));
      dispatch({ type: 'thread', thread });
      id = thread.id;
      dispatch({ type: 'history', id, rows: [], older: false, limit: PAGE });
      composer.save();
      kept.setDraft(state.user?.id, 0, '');
      go(id);
      channel?.postMessage('threads');
    } catch (error) {
      composer.problem(error.status === 401 ? '' : error.message);
      return false;
    }
  } else {
    const thread = state.threads?.find((x) => x.id === id);
    if (thread && !thread.title?.trim()) change(thread, { title: titleOf(text) });
  }
  post(id, text);
  return true;
}

function post(id, text) {
  const localId = newId();
  dispatch({ type: 'send', id, localId, text, at: new Date().toISOString() });
  transmit(id, localId, text);
  list.follow();
}

function retry(localId) {
  const message = conversation(state, state.open).messages.find((m) => m.localId === localId);
  if (!message) return;
  dispatch({ type: 'retry', id: state.open, localId });
  transmit(state.open, localId, message.text);
}

async function stop() {
  const id = state.open;
  const asked = pending(conversation(state, id))[0];
  if (!asked || stopping?.localId === asked.localId) return;
  stopping = { id, localId: asked.localId };
  redraw();
  try {
    await api.stop(id, asked.localId);
  } catch (error) {
    stopping = null;
    tell(error);
    redraw();
  }
}

function go(id) {
  const hash = id ? `#/t/${id}` : '#/new';
  if (location.hash !== hash) history.pushState(null, '', hash);
  dispatch({ type: 'open', id });
}

function open(id) {
  composer.save();
  go(id);
  composer.load();
  loadIfNeeded(id);
  showSide(false);
  if (!phone.matches) composer.focus();
}

const idInHash = () => {
  const m = /^#\/t\/(\d{1,15})$/.exec(location.hash);
  return m ? Number(m[1]) : 0;
};

async function change(thread, what) {
  try {
    const changed = await api.changeThread(thread.id, what);
    dispatch({ type: 'thread', thread: { ...thread, ...what, ...changed } });
    channel?.postMessage('threads');
    return true;
  } catch (error) {
    tell(error);
    return false;
  }
}

const threadList = new ThreadList({
  open,
  rename: async (thread) => {
    const title = await askName(t('renameTitle'), thread.title ?? '');
    if (title && title !== thread.title) change(thread, { title });
  },
  pin: (thread) => change(thread, { is_pinned: !thread.is_pinned }),
  archive: async (thread) => {
    const archive = !thread.archived_at;
    const at = archive ? new Date().toISOString() : null;
    if (!(await change({ ...thread, archived_at: at }, { is_archived: archive }))) return;
    dispatch({ type: 'thread', thread: { id: thread.id, archived_at: at } });
    if (!archive) return;
    if (state.open === thread.id) open(0);
    note(t('archivedNotice', { title: nameOf(thread) }), {
      label: t('undo'),
      act: async () => {
        await change({ ...thread, archived_at: null }, { is_archived: false });
        dispatch({ type: 'thread', thread: { id: thread.id, archived_at: null } });
      },
    });
  },
  remove: async (thread) => {
    const yes = await confirm({ title: t('deleteTitle'), text: t('deleteText', { title: nameOf(thread) }), action: t('delete') });
    if (!yes) return;
    try {
      await api.deleteThread(thread.id);
      kept.setDraft(state.user?.id, thread.id, '');
      const wasOpen = state.open === thread.id;
      dispatch({ type: 'thread-gone', id: thread.id });
      channel?.postMessage('threads');
      if (wasOpen) {
        history.replaceState(null, '', '#/new');
        composer.load();
      }
    } catch (error) {
      tell(error);
    }
  },
});

const list = new MessageList({
  older: () => loadHistory(state.open, true),
  reload: () => loadHistory(state.open, conversation(state, state.open).loaded),
  retry,
  discard: (localId) => dispatch({ type: 'discard', id: state.open, localId }),
  ask: (text) => post(state.open, text),
  copyFailed: () => note(t('copyFailed')),
  decide,
  now: serverNow,
});

const panel = new ApprovalPanel(
  { button: $('approvals-open'), count: $('approvals-count'), panel: $('approvals'), list: $('approvals-list'), close: $('approvals-close') },
  { decide, now: serverNow, redraw },
);
setInterval(() => {
  if (!signedIn || document.hidden) return;
  list.tick();
  panel.tick();
}, 1_000);

const composer = new Composer({
  send,
  stop,
  draft: () => kept.draft(state.user?.id, state.open),
  setDraft: (text) => kept.setDraft(state.user?.id, state.open, text),
});

// ---- signing in and out ----

async function begin() {
  dispatch({ type: 'user', user: kept.user() });
  try {
    const { id, username, role } = await api.me();
    signedInAs({ id, username, role });
    enter(await api.threads());
  } catch (error) {
    if (error.status === 401) leave('');
    else enter(null); // no answer: show the page as offline and try on
  }
}

// signedInAs takes note of who is signed in; what belongs to somebody else is forgotten.
function signedInAs(user) {
  if (state.user && state.user.id !== user.id) {
    kept.forget(state.user.id);
    dispatch({ type: 'reset' });
    opened = false;
    history.replaceState(null, '', location.pathname);
  }
  kept.setUser(user);
  dispatch({ type: 'user', user });
  dispatch({ type: 'shells', shells: kept.shells(user.id) });
}

function enter(threads) {
  signedIn = true;
  hideSignIn();
  if (threads) dispatch({ type: 'threads', threads });
  for (const u of state.user ? kept.unsent(state.user.id) : []) {
    if (!conversation(state, u.id).messages.some((m) => m.key === u.localId)) dispatch({ type: 'send', ...u });
  }
  const { current } = sortedThreads(threads ?? []);
  const newest = current.toSorted((a, b) => Date.parse(b.last_message_at || 0) - Date.parse(a.last_message_at || 0))[0];
  const wanted = location.hash === '#/new' ? 0 : idInHash() || newest?.id || 0;
  const id = state.open || (threads && wanted && !threads.some((x) => x.id === wanted) ? newest?.id ?? 0 : wanted);
  if (id !== wanted || !location.hash) history.replaceState(null, '', id ? `#/t/${id}` : '#/new');
  dispatch({ type: 'open', id });
  composer.load();
  showSide(false);
  socket.start();
  loadIfNeeded(id);
  if (!phone.matches) composer.focus();
}

function leave(words) {
  if (signedIn) composer.save();
  signedIn = false;
  socket.stop();
  closeMenu();
  closeDialog();
  panel.toggle(false);
  showSignIn(words, kept.user()?.username);
}

whenUnauthorized(() => {
  if (signedIn) leave(t('signedOutByServer'));
});

async function welcome(user) {
  signedInAs(user);
  channel?.postMessage({ signedIn: user.id });
  enter(await refreshThreads());
}

async function signOut() {
  try {
    await api.logout();
  } catch (error) {
    if (error.status !== 401) {
      tell(error);
      return;
    }
  }
  channel?.postMessage('signed-out');
  signedOut();
}

function signedOut() {
  const id = state.user?.id;
  $('composer-text').value = '';
  signedIn = false;
  socket.stop();
  dispatch({ type: 'reset' });
  opened = false;
  kept.forget(id);
  $('username').value = '';
  history.replaceState(null, '', location.pathname);
  leave('');
}

channel?.addEventListener('message', ({ data }) => {
  if (data === 'threads' && signedIn) refreshThreads();
  else if (data === 'signed-out' && signedIn) signedOut();
  else if (data?.signedIn !== undefined && (!signedIn || state.user?.id !== data.signedIn)) location.reload();
});

// ---- drawing ----

function draw() {
  drawing = false;
  if (!signedIn) return;
  const began = performance.now();
  const c = conversation(state, state.open);
  const online = state.connection.state === 'online';
  threadList.update(state.threads, state.open, state.unread);
  list.update(state.open, c, online, ofThread(state.approvals, state.open));
  const forMe = decidable(state.approvals);
  panel.update(state.approvals, forMe);
  drawShell(state.shells[state.open]);
  const waiting = pending(c);
  if (stopping && !waiting.some((m) => m.localId === stopping.localId) && stopping.id === state.open) stopping = null;
  composer.busy(waiting.length > 0, stopping !== null && stopping.localId === waiting[0]?.localId);
  drawBar(forMe.length);
  drawAccount();
  drawNotices(state.notices, noticeActions, (key) => dispatch({ type: 'notice-gone', key }));
  // A very long answer may take long to draw: leave the browser most of the time for everything else.
  const spent = performance.now() - began;
  if (spent > 12) {
    drawing = true;
    setTimeout(() => requestAnimationFrame(draw), Math.min(1_000, spent * 3));
  }
}

// drawShell says above the message box which shell the conversation is attached to, and how it takes what is written.
function drawShell(shell) {
  const line = $('shell-line');
  line.hidden = !shell || !(shell.attached || shell.mode === 'interactive');
  if (line.hidden) return;
  const mode = t(shell.mode === 'interactive' ? 'shellInteractive' : 'shellNatural', { program: shell.program || t('shellProgram') });
  const words = t('shellLine', { host: shell.host || '?', dir: shell.dir || '~', mode });
  if ($('shell-text').textContent !== words) $('shell-text').textContent = words;
  line.dataset.mode = shell.mode;
}

function drawBar(waiting = decidable(state.approvals).length) {
  const thread = state.threads?.find((x) => x.id === state.open);
  const title = state.open ? (thread ? nameOf(thread) : '') : t('newConversation');
  if ($('title').textContent !== title) $('title').textContent = title;
  document.title = waiting ? t('approvalsTitle', { count: waiting }) : unseen ? t('newAnswerTitle', { count: unseen }) : title ? `${title} · Butler` : 'Butler';
  const { state: s, retryAt } = state.connection;
  $('connection').dataset.state = s;
  const words = t(s);
  if ($('connection-text').textContent !== words) $('connection-text').textContent = words;
  $('connection-retry').hidden = s !== 'offline';
  $('connection').title = s === 'offline' && retryAt ? t('offlineRetry', { seconds: Math.max(1, Math.ceil((retryAt - Date.now()) / 1000)) }) : words;
}

function drawAccount() {
  if (drawn.user === state.user && drawn.language === language()) return;
  drawn = { user: state.user, language: language() };
  const name = state.user?.username || t('account');
  $('account-name').textContent = name;
  $('account-initial').textContent = [...name][0].toUpperCase();
  $('account').setAttribute('aria-label', `${t('accountMenu')}: ${name}`);
  $('open-people').hidden = state.user?.role !== 'ADMIN';
}

// announce tells a screen reader about the beginning and the end of an answer in the open conversation.
function announce(frame) {
  if (frame?.type === 'AUTH_REQUEST' || frame?.type === 'AUTH_STATUS_UPDATE') {
    const card = frame.payload ?? {};
    const known = state.approvals[card.action_id]?.card;
    if (frame.type === 'AUTH_REQUEST' && !known) $('announcer').textContent = t('apAnnounce', { code: card.code, command: String(card.command ?? '').slice(0, 200) });
    else if (known && known.status !== card.status && card.command) $('announcer').textContent = `${t('approval')} ${card.code}: ${statusWords(card)}`;
    return;
  }
  const mine = frame?.conversation_id === state.open && frame.sender_role === 'BUTLER';
  const known = mine && conversation(state, state.open).messages.find((m) => m.key === `${frame.reply_to_local_id}:answer`);
  if (frame?.type === 'CHAT' && frame.sender_role === 'BUTLER' && document.hidden) {
    unseen++;
    drawBar();
  }
  if (!mine || isAction(frame.stream_id ?? '')) return; // of a command: no answer
  if (frame.type === 'CHAT_STREAM' && !known) $('announcer').textContent = t('answering');
  if (frame.type !== 'CHAT' || (known && known.id !== null)) return;
  const text = String(frame.payload ?? '').slice(0, 1_500);
  $('announcer').textContent = frame.status === 'stopped' ? t('answerStopped')
    : t(frame.status === 'failed' ? 'answerFailed' : 'answerFinished', { text });
}

// ---- around the conversation ----

const fromMenu = (f) => () => {
  closeMenu(true);
  f();
};
$('new-thread').addEventListener('click', () => open(0));
$('account').addEventListener('click', () => toggleMenu($('account'), () => $('account-menu')));
$('open-tokens').addEventListener('click', fromMenu(showTokens));
$('open-people').addEventListener('click', fromMenu(showPeople));
$('open-keys').addEventListener('click', fromMenu(() => showKeys(mac)));
$('sign-out').addEventListener('click', fromMenu(signOut));
$('connection-retry').addEventListener('click', () => socket.hurry());
addEventListener('popstate', () => {
  if (!signedIn || idInHash() === state.open) return;
  composer.save();
  dispatch({ type: 'open', id: idInHash() });
  composer.load();
  loadIfNeeded(state.open);
});
addEventListener('online', () => socket.hurry());
addEventListener('offline', () => socket.lost());
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  unseen = 0;
  if (!signedIn) return;
  socket.hurry();
  redraw();
});

prepareDialog();
watchMenus();
prepareSignIn(welcome);
prepareSettings(() => {
  composer.refresh();
  panel.refresh();
  redraw();
});
prepareShell(() => signedIn, {
  stop,
  create: () => open(0),
  keys: () => showKeys(mac),
  step: (by) => {
    const next = threadList.neighbour(by);
    if (next) open(next.id);
  },
  write: () => composer.focus(),
});
begin();
