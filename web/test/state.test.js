import assert from 'node:assert/strict';
import { test } from 'node:test';
import { conversation, initial, pending, reduce, sortedThreads, timeline, titleOf, unsent } from '../static/js/state.js';

const T = 7; // the thread of these tests
const at = (n) => new Date(Date.UTC(2026, 0, 1, 12, 0, n)).toISOString();
const question = (id, localId, text = localId, more = {}) => ({
  type: 'CHAT', id, local_id: localId, conversation_id: T, sender_id: 1, sender_name: 'ada', sender_role: 'ADMIN', target_id: 2,
  payload: text, timestamp: at(id), seq: id * 10, ...more,
});
const piece = (to, streamId, text, more = {}) => ({
  type: 'CHAT_STREAM', conversation_id: T, sender_id: 2, sender_name: 'Butler', sender_role: 'BUTLER', target_id: 1, payload: text,
  stream_id: streamId, reply_to_local_id: to, timestamp: at(0), ...more,
});
const final = (id, to, text, more = {}) => ({
  type: 'CHAT', id, local_id: `${to}:answer`, conversation_id: T, sender_id: 2, sender_name: 'Butler', sender_role: 'BUTLER', target_id: 1,
  payload: text, stream_id: 's1', reply_to_local_id: to, status: 'answered', reason: '', timestamp: at(id), seq: id * 10, ...more,
});
const end = (streamId, more = {}) => ({ type: 'CHAT_STREAM_END', conversation_id: T, payload: '', stream_id: streamId, ...more });

const send = (localId, text = localId, n = 0) => ({ type: 'send', id: T, localId, text, at: at(n) });
const run = (...steps) => steps.reduce((s, step) => reduce(s, typeof step.type === 'string' && step.type === step.type.toUpperCase()
  ? { type: 'frame', frame: step, now: 1_000 } : { now: 1_000, ...step }), initial());
const texts = (s) => timeline(conversation(s, T)).map((m) => `${m.role[0]}:${m.text}${m.waiting ? `(${m.waiting})` : ''}`);
const message = (s, key) => conversation(s, T).messages.find((m) => m.key === key);

test('an optimistic message is matched by its local_id', () => {
  let s = run(send('a', 'hello'));
  assert.equal(message(s, 'a').status, 'sending');
  assert.deepEqual(unsent(s).map((u) => u.message.localId), ['a']);
  s = reduce(s, { type: 'frame', frame: question(5, 'a', 'hello'), now: 1 });
  assert.equal(conversation(s, T).messages.length, 1);
  assert.equal(message(s, 'a').status, 'sent');
  assert.equal(message(s, 'a').id, 5);
  assert.deepEqual(unsent(s), []);
});

test('pieces are appended, the final text replaces them, and nothing comes after it', () => {
  const s = run(send('a'), question(5, 'a'), piece('a', 's1', 'Hel'), piece('a', 's1', 'lo'));
  assert.deepEqual(texts(s), ['p:a', 'b:Hello']);
  assert.equal(message(s, 'a:answer').status, 'streaming');
  const done = [final(6, 'a', 'Hello!'), end('s1'), piece('a', 's1', 'late')].reduce((x, frame) => reduce(x, { type: 'frame', frame, now: 1 }), s);
  assert.deepEqual(texts(done), ['p:a', 'b:Hello!']);
  assert.equal(message(done, 'a:answer').status, 'answered');
});

test('a new stream replaces the abandoned one, whose late pieces are dropped', () => {
  const s = run(question(5, 'a'), piece('a', 's1', 'old'), end('s1'));
  assert.equal(message(s, 'a:answer').restarting, true);
  assert.deepEqual(texts(run(question(5, 'a'), piece('a', 's1', 'old'), end('s1'), piece('a', 's2', 'new'), piece('a', 's1', 'stale'),
    piece('a', 's2', '!'))), ['p:a', 'b:new!']);
});

test('the same frames twice change nothing', () => {
  const frames = [question(5, 'a'), piece('a', 's1', 'x'), final(6, 'a', 'whole'), end('s1')];
  assert.deepEqual(texts(run(...frames, ...frames)), ['p:a', 'b:whole']);
});

test('failed and stopped answers keep their status and reason', () => {
  const s = run(question(5, 'a'), final(6, 'a', 'No model.', { status: 'failed', reason: 'model_unavailable' }), question(7, 'b'),
    final(8, 'b', 'hal', { status: 'stopped' }));
  assert.equal(message(s, 'a:answer').status, 'failed');
  assert.equal(message(s, 'a:answer').reason, 'model_unavailable');
  assert.equal(message(s, 'b:answer').status, 'stopped');
  assert.deepEqual(pending(conversation(s, T)), []);
});

test('an error names its message; it can be sent again or discarded; without a name it is a notice', () => {
  const error = { type: 'ERROR', code: 'rate_limited', payload: 'Too fast.', local_id: 'a' };
  const s = run(send('a'), error);
  assert.equal(message(s, 'a').status, 'error');
  assert.equal(message(s, 'a').error, 'Too fast.');
  assert.deepEqual(unsent(s), []);
  const again = reduce(s, { type: 'retry', id: T, localId: 'a' });
  assert.equal(unsent(again)[0].message.localId, 'a');
  assert.deepEqual(texts(reduce(s, { type: 'discard', id: T, localId: 'a' })), []);
  const confirmed = run(send('a'), question(5, 'a'), error);
  assert.equal(message(confirmed, 'a').status, 'sent');
  assert.deepEqual(confirmed.notices.map((n) => n.text), ['Too fast.']);
  assert.deepEqual(texts(reduce(confirmed, { type: 'discard', id: T, localId: 'a' })), ['p:a', 'b:(thinking)']);
});

test('answers stand below their questions, also when several wait', () => {
  const s = run(question(1, 'a'), question(2, 'b'), piece('a', 's1', 'A'));
  assert.deepEqual(texts(s), ['p:a', 'b:A', 'p:b', 'b:(queued)']);
  assert.deepEqual(pending(conversation(s, T)).map((m) => m.key), ['a', 'b']);
  const done = run(question(1, 'a'), question(2, 'b'), final(3, 'a', 'A'), final(4, 'b', 'B'));
  assert.deepEqual(texts(done), ['p:a', 'b:A', 'p:b', 'b:B']);
});

test('a late answer to an old question comes last and quotes it', () => {
  const s = run(question(1, 'a', 'first'), question(2, 'b'), final(3, 'b', 'B'), final(4, 'a', 'A'));
  assert.deepEqual(texts(s), ['p:first', 'p:b', 'b:B', 'b:A']);
  assert.equal(timeline(conversation(s, T)).at(-1).quote, 'first');
  assert.deepEqual(pending(conversation(run(question(1, 'a'), question(2, 'b'), final(3, 'b', 'B')), T)), []);
});

test('history merges with what is there, in any order', () => {
  const rows = [question(1, 'a'), final(2, 'a', 'A'), question(3, 'b')].map(({ payload, ...r }) => ({ ...r, payload, content: payload }));
  const live = run(send('c', 'c', 9), question(3, 'b'), piece('b', 's1', 'part'));
  const s = reduce(live, { type: 'history', id: T, rows, older: false, limit: 50 });
  assert.deepEqual(texts(s), ['p:a', 'b:A', 'p:b', 'b:part', 'p:c']);
  assert.equal(conversation(s, T).more, false);
  const older = reduce({ ...s }, { type: 'history', id: T, rows: [{ ...question(0, 'z'), id: -1 }], older: true, limit: 1 });
  assert.deepEqual(texts(older)[0], 'p:z');
  assert.equal(conversation(older, T).more, true);
});

test('a newest page after a gap drops what lies before it', () => {
  const first = reduce(initial(), { type: 'history', id: T, rows: [question(1, 'a'), final(2, 'a', 'A')], older: false, limit: 2 });
  const gap = reduce(first, { type: 'frame', frame: { type: 'GAP', seq: 99 }, now: 1 });
  assert.equal(conversation(gap, T).loaded, false);
  assert.equal(gap.stale, first.stale + 1);
  const s = reduce(gap, { type: 'history', id: T, rows: [question(9, 'x'), final(10, 'x', 'X')], older: false, limit: 2 });
  assert.deepEqual(texts(s), ['p:x', 'b:X']);
  assert.equal(conversation(s, T).more, true);
});

test('after a gap, streamed text is not shown as if it were whole', () => {
  const s = run(question(5, 'a'), piece('a', 's1', 'begin'), { type: 'GAP', seq: 60 }, piece('a', 's1', 'end'));
  assert.equal(message(s, 'a:answer').partial, true);
  assert.equal(message(s, 'a:answer').text, 'end');
  assert.equal(run(question(5, 'a'), piece('a', 's1', 'x')).conversations[T].messages[1].partial, false);
  assert.equal(run(piece('a', 's1', 'x')).conversations[T].messages[0].partial, true);
});

test('the place in the stream: the last frame, and the last quiet moment', () => {
  const s = run(question(1, 'a'), final(2, 'a', 'A'));
  assert.equal(s.after, 20);
  assert.deepEqual(s.quiet, { seq: 20, at: 1_000 });
  const busy = reduce(s, { type: 'frame', frame: question(3, 'b'), now: 5_000 });
  const busier = reduce(busy, { type: 'frame', frame: piece('b', 's', 'x', { seq: 31 }), now: 9_000 });
  assert.equal(busier.after, 31);
  assert.deepEqual(busier.quiet, { seq: 30, at: 5_000 });
  const joined = run({ type: 'resumed' }, piece('a', 's1', 'x'));
  assert.equal(message(joined, 'a:answer').partial, false);
});

test('answers elsewhere are unread until the thread is opened', () => {
  const s = run({ type: 'open', id: 9 }, question(5, 'a'), final(6, 'a', 'A'));
  assert.deepEqual(s.unread, { [T]: true });
  assert.deepEqual(reduce(s, { type: 'open', id: T, now: 1 }).unread, {});
  assert.deepEqual(run({ type: 'open', id: T }, question(5, 'a'), final(6, 'a', 'A')).unread, {});
});

test('threads: order, time of the newest message, unknown ones, deletion', () => {
  const threads = [{ id: 1, last_message_at: at(1) }, { id: 2, is_pinned: true, last_message_at: at(0) }, { id: T, last_message_at: at(2) },
    { id: 4, archived_at: at(0) }];
  const s = run({ type: 'threads', threads }, question(9, 'a'));
  assert.deepEqual(sortedThreads(s.threads).current.map((x) => x.id), [2, T, 1]);
  assert.deepEqual(sortedThreads(s.threads).archived.map((x) => x.id), [4]);
  assert.equal(s.threads.find((x) => x.id === T).last_message_at, at(9));
  assert.equal(run({ type: 'threads', threads: [] }, question(9, 'a')).unknown, 1);
  const gone = reduce(reduce(s, { type: 'open', id: T, now: 1 }), { type: 'thread-gone', id: T });
  assert.equal(gone.open, 0);
  assert.equal(gone.conversations[T], undefined);
});

test('conversations that are not looked at are dropped, busy ones are not', () => {
  let s = run(send('unsent'), { type: 'frame', frame: question(5, 'a'), now: 1 });
  for (let id = 100; id < 140; id++) s = reduce(s, { type: 'open', id, now: id });
  assert.ok(Object.keys(s.conversations).length < 20);
  assert.ok(s.conversations[T]);
  assert.ok(s.conversations[139]);
});

test('strange frames are ignored', () => {
  const s = run(question(5, 'a'));
  for (const frame of [null, 1, 'x', [], {}, { type: 'NEW_KIND', seq: 1e30 }, { type: 'CHAT' }, { type: 'CHAT_STREAM', conversation_id: T },
    { type: 'CHAT_STREAM', conversation_id: '7', reply_to_local_id: 'a', stream_id: 's' }, { type: 'CHAT_STREAM_END', conversation_id: T },
    { type: 'CHAT', conversation_id: -1, payload: 'x' }]) {
    const next = reduce(s, { type: 'frame', frame, now: 1 });
    assert.deepEqual(texts(next), texts(s), JSON.stringify(frame));
  }
  assert.equal(message(run({ ...question(5, 'a'), payload: { nested: 1 } }), 'a').text, '{"nested":1}');
});

test('states are not changed in place', () => {
  const freeze = (o) => {
    if (o && typeof o === 'object' && !Object.isFrozen(o)) Object.values(Object.freeze(o)).forEach(freeze);
    return o;
  };
  let s = freeze(initial());
  for (const frame of [question(1, 'a'), piece('a', 's1', 'x'), end('s1'), piece('a', 's2', 'y'), final(2, 'a', 'A'), { type: 'GAP', seq: 9 },
    { type: 'ERROR', payload: 'x' }]) s = freeze(reduce(s, { type: 'frame', frame, now: 1 }));
  assert.equal(texts(s).length, 2);
});

test('a title is the first line, without marks, and short', () => {
  assert.equal(titleOf('  # Plan **now**\nmore'), 'Plan **now**');
  assert.equal([...titleOf('字'.repeat(100))].length, 60);
});

test('twenty thousand pieces are quick', () => {
  let s = run(question(1, 'a'));
  const before = performance.now();
  for (let i = 0; i < 20_000; i++) s = reduce(s, { type: 'frame', frame: piece('a', 's1', 'x', { seq: i }), now: i });
  assert.equal(message(s, 'a:answer').text.length, 20_000);
  assert.ok(performance.now() - before < 4_000);
});
