// Requests for approval, as a pure reducer: action_id → entry. An entry: {card, output, clipped, notice, sent, problem,
// thread, replyTo}. card is what the server says (see docs/reference/websocket.md), or null for a command whose output came
// and of which nothing else is known. notice is what Butler said last of how it stands, Markdown, until it stands otherwise.
// sent is 'approve' or 'deny' while this page's own word is on its way.

const MAX_OUTPUT = 100_000; // characters of streamed output that are kept
const MAX_NOTICE = 8_000; // characters of a notice that are kept
const MAX_ENTRIES = 300;
const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const ENDS = ['EXECUTED', 'FAILED', 'UNKNOWN'];
const DECIDED = ['APPROVED', 'REJECTED', 'EXPIRED', 'WITHDRAWN', 'REFUSED'];

/** Says whether a stream is the output of a command: its id is that of the approval. */
export const isAction = (streamId) => ID.test(streamId);

const rank = (status) => (ENDS.includes(status) ? 3 : status === 'EXECUTING' ? 2 : DECIDED.includes(status) ? 1 : 0);

// over says that nothing will become of a request any more.
const over = (card) => Boolean(card) && rank(card.status) > 0 && card.status !== 'APPROVED' && card.status !== 'EXECUTING';

const fresh = (thread, replyTo) => ({ card: null, output: '', clipped: false, notice: '', sent: '', problem: '', thread, replyTo });

/** Takes a card of the server. An older one than what is known changes nothing. */
export function withCard(all, card) {
  if (!card || typeof card !== 'object' || !ID.test(card.action_id ?? '')) return all;
  const known = all[card.action_id];
  if (card.status === 'WITHDRAWN' && !card.command) return without(all, card.action_id); // no longer this person's business
  const before = known?.card;
  if (before && (before.version > card.version || (before.version === card.version && rank(before.status) > rank(card.status)))) return all;
  const entry = {
    ...(known ?? fresh(0, '')), card,
    thread: card.conversation_id || known?.thread || 0, replyTo: card.reply_to_local_id || known?.replyTo || '',
  };
  if (!before || before.version !== card.version || before.status !== card.status) Object.assign(entry, { sent: '', problem: '' });
  if (over(card) || before && before.status !== card.status) entry.notice = '';
  return bounded({ ...all, [card.action_id]: entry });
}

/** Takes a piece of a command's output. */
export function withOutput(all, id, thread, replyTo, piece) {
  const entry = all[id] ?? fresh(thread, replyTo);
  const whole = entry.output + piece;
  const clipped = whole.length > MAX_OUTPUT;
  return bounded({ ...all, [id]: { ...entry, thread, replyTo, output: clipped ? whole.slice(-MAX_OUTPUT) : whole, clipped: entry.clipped || clipped } });
}

/** Takes what Butler says of how a command stands: it is no output. The last word counts. */
export function withNotice(all, id, thread, replyTo, words) {
  const entry = all[id] ?? fresh(thread, replyTo);
  if (over(entry.card)) return all; // it came late
  return bounded({ ...all, [id]: { ...entry, thread, replyTo, notice: words.trim().slice(0, MAX_NOTICE) } });
}

/** Notes that this page's word is on its way (sent), or that it was not taken (problem). */
export const withWord = (all, id, sent, problem = '') => (all[id] ? { ...all, [id]: { ...all[id], sent, problem } } : all);

function without(all, id) {
  if (!all[id]) return all;
  const rest = { ...all };
  delete rest[id];
  return rest;
}

// bounded forgets the oldest that are over.
function bounded(all) {
  const ids = Object.keys(all);
  if (ids.length <= MAX_ENTRIES) return all;
  const closed = ids.filter((id) => all[id].card?.status !== 'PENDING');
  return without(all, closed[0] ?? ids[0]);
}

// ---- what views ask ----

const asked = (entry) => Date.parse(entry.card?.requested_at ?? '') || 0;

/** Gives [id, entry] of what this person may decide now, the most urgent first. */
export const decidable = (all) => Object.entries(all)
  .filter(([, e]) => e.card?.status === 'PENDING' && e.card.may_decide)
  .sort((a, b) => (Date.parse(a[1].card.decide_by) || 0) - (Date.parse(b[1].card.decide_by) || 0));

/** Gives [id, entry] of a thread, in the order in which they were asked for. */
export const ofThread = (all, thread) => Object.entries(all).filter(([, e]) => thread && e.thread === thread)
  .sort((a, b) => asked(a[1]) - asked(b[1]));

/** Puts a thread's requests into its timeline: below their question, before its answer; those that wait for somebody and
 * whose question is not loaded, at the end. */
export function among(items, entries) {
  if (!entries.length) return items;
  const below = new Map();
  const last = [];
  const questions = new Set(items.filter((m) => m.role === 'person').map((m) => m.key));
  for (const [id, approval] of entries) {
    const item = { key: `approval ${id}`, id: null, role: 'approval', status: 'sent', approval, actionId: id, at: '' };
    if (questions.has(approval.replyTo)) below.set(approval.replyTo, [...(below.get(approval.replyTo) ?? []), item]);
    else if (!approval.card || rank(approval.card.status) === 0) last.push(item);
  }
  const waits = (m) => m.waiting === 'thinking' && below.get(m.replyTo)?.some((i) => i.approval.card?.status === 'PENDING');
  return [...items.map((m) => (waits(m) ? { ...m, waiting: 'decision' } : m)).flatMap((m) => [m, ...(m.role === 'person' ? below.get(m.key) ?? [] : [])]), ...last];
}

/** Gives what names mean where a command runs, as far as people can read it: a digest of all of them says nothing. */
export const definitions = (card) => (card.definitions ?? []).filter((d) => d.kind !== 'digest');

// ---- a command as text ----

// Characters that are not seen, or that make others be seen elsewhere. Line breaks are seen.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u00a0\u034f\u115f\u1160\u17b4\u17b5\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\ufe00-\ufe0f\uffa0]/u;
const size = (point) => (point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4);

/** Splits a command into pieces {text, unseen, reasons}: unseen pieces are an escape such as \u202e; reasons are indices
 * of the reasons (with start and end in bytes of UTF-8) that a piece lies in. */
export function pieces(command, reasons = []) {
  const out = [];
  let at = 0;
  for (const char of command) {
    const point = char.codePointAt(0);
    const end = at + size(point);
    const marks = reasons.flatMap((r, i) => (r.end > r.start && r.start < end && r.end > at ? [i] : []));
    const unseen = char !== '\n' && UNSEEN.test(char);
    const text = unseen ? escape(point) : char;
    const before = out.at(-1);
    if (before && before.unseen === unseen && before.reasons.join() === marks.join()) before.text += text;
    else out.push({ text, unseen, reasons: marks });
    at = end;
  }
  return out;
}

// escape writes a character as the guard does, so that its own reading of the command can be compared.
function escape(point) {
  if (point === 9) return '\\t';
  const [letter, digits] = point < 0x100 ? ['x', 2] : point > 0xffff ? ['U', 8] : ['u', 4];
  return `\\${letter}${point.toString(16).padStart(digits, '0')}`;
}

/** Gives whole seconds until a time, never below 0. */
export const secondsLeft = (until, now) => Math.max(0, Math.ceil((Date.parse(until) - now) / 1000) || 0);
