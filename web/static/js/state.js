// What the page knows, as a pure reducer: (state, action) → state. Frames of the server are one kind of action. Nothing
// here touches the browser, reads the clock or makes ids; actions carry them. A state is never changed in place, so a
// view can tell by identity what is new.
//
// A message: {key, id, localId, role 'person'|'butler', name, text, at, status, reason, error, streamId, dropped,
//   replyTo, live, partial, restarting}. id is null until the server gave one.
// Status of a person's message: sending (not yet confirmed), sent, error (refused; error says why).
// Status of an answer: streaming, answered, failed, stopped.

import { isAction, withCard, withNotice, withOutput, withWord } from './approvals.js';

const ANSWER = ':answer';
const MAX_CONVERSATIONS = 12; // kept in memory beside those that are busy
const MAX_NOTICES = 4;

export const initial = () => ({
  connection: { state: 'connecting', retryAt: 0 },
  user: null,
  threads: null, // null until loaded
  open: 0, // id of the open thread; 0 is a conversation that has none yet
  conversations: {}, // by thread id
  unread: {}, // thread id → true
  notices: [], // {key, code, text}, newest last
  approvals: {}, // by action_id; see approvals.js
  shells: {}, // thread id → {host, dir, mode, state, program, attached} at its last answer
  skew: 0, // ms by which the server's clock is ahead
  after: null, // seq of the last frame
  quiet: null, // {seq, at}: from here on, every answer that is under way can be seen from its beginning
  whole: false, // this page's frames began at such a place
  stale: 0, // grows when what was loaded can no longer be trusted: load it again
  unknown: 0, // grows when a frame names a thread that is not in the list
});

const emptyConversation = () => ({ messages: [], loaded: false, more: false, loading: false, failed: '', used: 0 });

/** Applies one action. Unknown actions and frames leave the state as it is. */
export function reduce(state, action) {
  switch (action.type) {
    case 'frame':
      return onFrame(state, action.frame, action.now);
    case 'connection':
      return { ...state, connection: { state: action.state, retryAt: action.retryAt ?? 0 } };
    case 'resumed':
      return { ...state, whole: true };
    case 'user':
      return { ...state, user: action.user };
    case 'threads':
      return { ...state, threads: action.threads };
    case 'thread':
      return { ...state, threads: withThread(state.threads ?? [], action.thread) };
    case 'thread-gone':
      return forget(state, action.id);
    case 'open': {
      const unread = { ...state.unread };
      delete unread[action.id];
      const opened = { ...state, open: action.id, unread };
      return action.id ? edit(evict(opened, action.id), action.id, (c) => ({ ...c, used: action.now })) : opened;
    }
    case 'history-loading':
      return edit(state, action.id, (c) => ({ ...c, loading: true, failed: '' }));
    case 'history-failed':
      return edit(state, action.id, (c) => ({ ...c, loading: false, failed: action.error }));
    case 'history':
      return edit(state, action.id, (c) => withHistory(c, action));
    case 'send':
      return edit(state, action.id, (c) => ({ ...c, messages: place(c.messages, outgoing(action)) }));
    case 'retry':
      return patch(state, action.id, action.localId, (m) => ({ ...m, status: 'sending', error: '' }));
    case 'discard':
      return edit(state, action.id, (c) => ({
        ...c, messages: c.messages.filter((m) => m.localId !== action.localId || m.id !== null),
      }));
    case 'notice':
      return notice(state, action.code, action.text, action.key);
    case 'notice-gone':
      return { ...state, notices: state.notices.filter((n) => n.key !== action.key) };
    case 'approvals':
      return { ...state, approvals: action.list.reduceRight(withCard, state.approvals) };
    case 'deciding':
      return { ...state, approvals: withWord(state.approvals, action.id, action.sent) };
    case 'not-decided':
      return { ...state, approvals: withWord(state.approvals, action.id, '', action.error) };
    case 'shells':
      return { ...state, shells: { ...action.shells, ...state.shells } };
    case 'stale':
      return distrust(state);
    case 'reset':
      return { ...initial(), stale: state.stale, unknown: state.unknown };
    default:
      return state;
  }
}

// ---- frames ----

function onFrame(state, frame, now) {
  if (!frame || typeof frame !== 'object') return state;
  const wasQuiet = !busy(state);
  let next = state;
  const thread = Number.isSafeInteger(frame.conversation_id) ? frame.conversation_id : 0;
  switch (frame.type) {
    case 'CHAT':
      if (thread > 0) next = frame.sender_role === 'BUTLER' ? onAnswer(next, thread, frame) : onQuestion(next, thread, frame);
      break;
    case 'CHAT_STREAM':
      if (thread > 0) next = onPiece(next, thread, frame);
      break;
    case 'CHAT_STREAM_END':
      if (thread > 0) next = onStreamEnd(next, thread, frame);
      break;
    case 'AUTH_REQUEST':
    case 'AUTH_STATUS_UPDATE':
      next = onApproval(next, frame, now);
      break;
    case 'GAP':
      next = distrust(next);
      break;
    case 'ERROR':
      next = onError(next, frame, now);
      break;
    default:
      break;
  }
  if (Number.isSafeInteger(frame.seq) && frame.seq >= 0) {
    next = { ...next, after: frame.seq };
    // At the question that ends the quiet, nothing of its answer was told yet.
    if (wasQuiet || !busy(next)) next.quiet = { seq: frame.seq, at: now };
  }
  return next;
}

function onQuestion(state, thread, frame) {
  const message = { ...fromServer(frame), live: true };
  const known = conversation(state, thread).messages.find((m) => m.key === message.key);
  const next = edit(state, thread, (c) => ({ ...c, messages: place(c.messages, { ...known, ...message }) }));
  return touch(next, thread, message.at);
}

function onAnswer(state, thread, frame) {
  const message = fromServer(frame);
  const fresh = !conversation(state, thread).messages.some((m) => m.key === message.key && m.id !== null);
  let next = edit(state, thread, (c) => ({ ...c, messages: place(c.messages, message) }));
  next = withShell(next, thread, frame);
  if (fresh && thread !== state.open) next = { ...next, unread: { ...next.unread, [thread]: true } };
  return touch(next, thread, message.at);
}

function onPiece(state, thread, frame) {
  const replyTo = string(frame.reply_to_local_id);
  const streamId = string(frame.stream_id);
  if (!replyTo || !streamId) return state;
  if (isAction(streamId)) {
    const take = frame.notice === true ? withNotice : withOutput;
    return { ...state, approvals: take(state.approvals, streamId, thread, replyTo, textOf(frame.payload)) };
  }
  const messages = conversation(state, thread).messages;
  const known = messages.find((m) => m.key === replyTo + ANSWER);
  if (known && (known.id !== null || known.dropped.includes(streamId))) return state;
  const piece = textOf(frame.payload);
  let message;
  if (known && known.streamId === streamId) {
    message = { ...known, text: known.text + piece, restarting: false };
  } else {
    const question = messages.find((m) => m.key === replyTo);
    message = {
      key: replyTo + ANSWER, id: null, localId: replyTo + ANSWER, role: 'butler', name: string(frame.sender_name),
      text: piece, at: string(frame.timestamp), status: 'streaming', reason: '', error: '', streamId, replyTo, live: true,
      dropped: known ? [...known.dropped, known.streamId].slice(-32) : [],
      // The beginning was seen if the question came over this connection, or a stream before this one did, or the frames
      // began at a quiet place.
      partial: !known && !question?.live && !state.whole, restarting: false,
    };
  }
  return edit(state, thread, (c) => ({ ...c, messages: place(c.messages, message) }));
}

function onStreamEnd(state, thread, frame) {
  const streamId = string(frame.stream_id);
  const ended = conversation(state, thread).messages.find((m) => m.status === 'streaming' && m.streamId === streamId);
  return ended ? patch(state, thread, ended.key, (m) => ({ ...m, restarting: true })) : state;
}

function onApproval(state, frame, now) {
  const card = frame.payload && typeof frame.payload === 'object' ? frame.payload : frame;
  const at = Date.parse(frame.timestamp ?? '');
  return { ...state, approvals: withCard(state.approvals, card), skew: Number.isNaN(at) ? state.skew : at - now };
}

// withShell notes where the conversation's shell stands.
function withShell(state, thread, { shell, attach }) {
  if (!attach && (!shell || typeof shell !== 'object')) return state;
  const before = state.shells[thread] ?? { attached: false };
  const known = shell && typeof shell === 'object' ? { host: string(shell.host), dir: string(shell.dir), mode: string(shell.mode),
    state: string(shell.state), program: string(shell.program) } : {};
  return { ...state, shells: { ...state.shells, [thread]: { ...before, ...known, attached: attach ? attach === 'on' : before.attached } } };
}

function onError(state, frame, now) {
  const localId = string(frame.local_id);
  const text = textOf(frame.payload);
  for (const id of Object.keys(state.conversations)) {
    const m = localId && state.conversations[id].messages.find((x) => x.key === localId && x.status === 'sending');
    if (m) return patch(state, id, localId, (x) => ({ ...x, status: 'error', error: text, reason: string(frame.code) }));
  }
  return notice(state, string(frame.code), text, `frame-${now}-${state.notices.length}`);
}

// distrust marks everything that was loaded as to be loaded again; streamed text may have lost a piece.
function distrust(state) {
  const conversations = {};
  for (const [id, c] of Object.entries(state.conversations)) {
    const messages = c.messages.map((m) => (m.status === 'streaming' ? { ...m, text: '', partial: true } : m));
    conversations[id] = { ...c, messages, loaded: false };
  }
  return { ...state, conversations, whole: false, stale: state.stale + 1 };
}

// ---- messages ----

const string = (v) => (typeof v === 'string' ? v : '');
const textOf = (v) => (typeof v === 'string' ? v : v === undefined || v === null ? '' : JSON.stringify(v));

// fromServer makes a message of a CHAT frame or of a row of the history: both have the same fields.
function fromServer(row) {
  const butler = row.sender_role === 'BUTLER';
  const localId = string(row.local_id);
  const replyTo = butler ? string(row.reply_to_local_id) : '';
  const id = Number.isSafeInteger(row.id) ? row.id : null;
  return {
    key: replyTo ? replyTo + ANSWER : localId || `#${id}`, id, localId, role: butler ? 'butler' : 'person',
    name: string(row.sender_name), text: textOf(row.payload ?? row.content), at: string(row.timestamp),
    status: butler ? string(row.status) || 'answered' : 'sent', reason: string(row.reason), error: '',
    streamId: string(row.stream_id), dropped: [], replyTo, live: false, partial: false, restarting: false,
  };
}

function outgoing({ localId, text, at }) {
  return {
    key: localId, id: null, localId, role: 'person', name: '', text, at, status: 'sending', reason: '', error: '',
    streamId: '', dropped: [], replyTo: '', live: true, partial: false, restarting: false,
  };
}

// place puts a message where it belongs, in the place of the one with its key: by id, those without one last.
function place(messages, message) {
  const i = messages.findLastIndex((m) => m.key === message.key);
  if (i >= 0 && messages[i].id === message.id) return messages.with(i, message);
  const rest = i >= 0 ? messages.toSpliced(i, 1) : messages;
  if (message.id === null) return [...rest, message];
  const at = rest.findLastIndex((m) => m.id !== null && m.id <= message.id);
  return rest.toSpliced(at + 1, 0, message);
}

function withHistory(c, { rows, older, limit }) {
  const byKey = new Map(c.messages.map((m) => [m.key, m]));
  for (const row of rows) {
    const m = fromServer(row);
    byKey.set(m.key, { ...m, live: byKey.get(m.key)?.live ?? false });
  }
  const all = [...byKey.values()];
  const numbered = all.filter((m) => m.id !== null).sort((a, b) => a.id - b.id);
  const oldest = Number.isSafeInteger(rows[0]?.id) ? rows[0].id : 0;
  // A fresh newest page replaces what lies before it: between the two there may be messages that were never seen.
  const kept = older || c.loaded || rows.length < limit ? numbered : numbered.filter((m) => m.id >= oldest);
  return {
    ...c, messages: [...kept, ...all.filter((m) => m.id === null)], loaded: true, loading: false, failed: '',
    more: older || !c.loaded ? rows.length >= limit : c.more,
  };
}

// ---- conversations and threads ----

export const conversation = (state, id) => state.conversations[id] ?? emptyConversation();

function edit(state, id, change) {
  return { ...state, conversations: { ...state.conversations, [id]: change(conversation(state, id)) } };
}

function patch(state, id, key, change) {
  return edit(state, id, (c) => ({ ...c, messages: c.messages.map((m) => (m.key === key ? change(m) : m)) }));
}

function notice(state, code, text, key) {
  return { ...state, notices: [...state.notices.filter((n) => n.key !== key), { key, code, text }].slice(-MAX_NOTICES) };
}

function withThread(threads, thread) {
  const i = threads.findIndex((t) => t.id === thread.id);
  return i < 0 ? [thread, ...threads] : threads.with(i, { ...threads[i], ...thread });
}

function forget(state, id) {
  const conversations = { ...state.conversations };
  const unread = { ...state.unread };
  delete conversations[id];
  delete unread[id];
  const open = state.open === id ? 0 : state.open;
  return { ...state, conversations, unread, open, threads: (state.threads ?? []).filter((t) => t.id !== id) };
}

// touch moves a thread to the time of its newest message.
function touch(state, id, at) {
  if (!state.threads) return state;
  const thread = state.threads.find((t) => t.id === id);
  if (!thread) return { ...state, unknown: state.unknown + 1 };
  if (Date.parse(thread.last_message_at ?? 0) >= Date.parse(at)) return state;
  return { ...state, threads: withThread(state.threads, { id, last_message_at: at }) };
}

// evict drops the conversations that were not looked at for longest; busy ones stay.
function evict(state, except) {
  const idle = Object.entries(state.conversations)
    .filter(([id, c]) => Number(id) !== except && !c.messages.some((m) => m.id === null) && pending(c).length === 0)
    .sort((a, b) => b[1].used - a[1].used);
  if (idle.length <= MAX_CONVERSATIONS) return state;
  const conversations = { ...state.conversations };
  for (const [id] of idle.slice(MAX_CONVERSATIONS)) delete conversations[id];
  return { ...state, conversations };
}

// ---- what views ask ----

const isFinal = (m) => m.role === 'butler' && m.id !== null;

/** Gives the person's messages that the server has and Butler has still to answer, oldest first. A question after which
 * a later one was answered already waits for something else; it is not what Butler is busy with. */
export function pending(c) {
  let open = pendingOf.get(c.messages);
  if (!open) pendingOf.set(c.messages, (open = findPending(c)));
  return open;
}

const pendingOf = new WeakMap(); // an array of messages is never changed in place, so its answer holds

function findPending(c) {
  const answered = new Set();
  for (const m of c.messages) if (isFinal(m) && m.replyTo) answered.add(m.replyTo);
  const questions = c.messages.filter((m) => m.role === 'person' && m.status === 'sent' && m.localId);
  const last = questions.findLastIndex((q) => answered.has(q.key));
  return questions.slice(last + 1);
}

const busy = (state) => Object.values(state.conversations).some((c) => pending(c).length > 0);

/** Gives every message that is not confirmed yet, [{id, message}], in the order in which they were written. */
export function unsent(state) {
  return Object.entries(state.conversations)
    .flatMap(([id, c]) => c.messages.filter((m) => m.status === 'sending').map((message) => ({ id: Number(id), message })))
    .sort((a, b) => (a.message.at < b.message.at ? -1 : a.message.at > b.message.at ? 1 : 0));
}

/** Orders a conversation for reading. An answer stands below its question, unless a later question was answered first:
 * then it stands where it came, and quotes its question. What Butler has not begun to answer gets an empty answer with
 * waiting 'thinking' (the first) or 'queued'. */
export function timeline(c) {
  const index = new Map();
  c.messages.forEach((m, i) => m.role === 'person' && index.set(m.key, i));
  const below = new Map();
  const alone = new Set();
  const quotes = new Map();
  let latest = -1;
  for (const m of c.messages) {
    if (m.role !== 'butler') continue;
    const question = index.get(m.replyTo);
    if (question === undefined) {
      alone.add(m);
    } else if (question < latest) {
      alone.add(m);
      quotes.set(m, c.messages[question].text.slice(0, 200));
    } else {
      latest = question;
      below.set(m.replyTo, m);
    }
  }
  const out = [];
  const waiting = new Set(pending(c).map((m) => m.key));
  let first = true;
  for (const m of c.messages) {
    if (m.role === 'butler') {
      if (alone.has(m)) out.push(quotes.has(m) ? { ...m, quote: quotes.get(m) } : m);
      continue;
    }
    out.push(m);
    const answer = below.get(m.key);
    if (answer) out.push(answer);
    else if (waiting.has(m.key)) out.push(placeholder(m, first ? 'thinking' : 'queued'));
    if (waiting.has(m.key)) first = false;
  }
  return out;
}

function placeholder(question, waiting) {
  return {
    key: question.key + ANSWER, id: null, localId: '', role: 'butler', name: '', text: '', at: '', status: 'streaming',
    reason: '', error: '', streamId: '', dropped: [], replyTo: question.key, live: true, partial: false, restarting: false,
    waiting,
  };
}

/** Orders threads: pinned first, then the newest. Gives {current, archived}. */
export function sortedThreads(threads) {
  const time = (t) => Date.parse(t.last_message_at || t.created_at || 0) || 0;
  const all = [...threads].sort((a, b) => Number(!!b.is_pinned) - Number(!!a.is_pinned) || time(b) - time(a) || b.id - a.id);
  return { current: all.filter((t) => !t.archived_at), archived: all.filter((t) => t.archived_at) };
}

/** Makes a title of a message: its first line, at most 60 characters. */
export function titleOf(text) {
  const line = text.trim().split('\n', 1)[0].replace(/^[#>*\s`-]+/, '').trim();
  const chars = [...line];
  return chars.length > 60 ? chars.slice(0, 59).join('').trimEnd() + '…' : line;
}
