import assert from 'node:assert/strict';
import { test } from 'node:test';
import { among, decidable, definitions, isAction, ofThread, pieces, secondsLeft, withCard, withNotice, withOutput, withWord } from '../static/js/approvals.js';
import { initial, reduce } from '../static/js/state.js';

const ID = '6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57';
const OTHER = '6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f58';
const card = (more = {}) => ({
  action_id: ID, command: 'rm -rf x', status: 'PENDING', code: 'K7QF', version: 1, digest: 'd1', may_decide: true, quorum: 1, agreed: 0,
  requester: { id: 1, name: 'ada' }, decide_by: '2026-01-01T12:05:00Z', requested_at: '2026-01-01T12:00:00Z', reasons: [], decisions: [], ...more,
});
const frame = (type, more) => ({ type: 'frame', now: 0, frame: { type, timestamp: '1970-01-01T00:00:01Z', ...card(more), payload: card(more) } });

test('a request is known from its frames, whose seq is none of the conversation', () => {
  let s = { ...initial(), after: 77 };
  s = reduce(s, frame('AUTH_REQUEST', {}));
  assert.deepEqual(decidable(s.approvals).map(([id]) => id), [ID]);
  assert.equal(s.after, 77);
  assert.equal(s.skew, 1_000);
  s = reduce(s, frame('AUTH_STATUS_UPDATE', { status: 'APPROVED', version: 2, may_decide: false }));
  assert.deepEqual(decidable(s.approvals), []);
  assert.equal(s.approvals[ID].card.status, 'APPROVED');
});

test('what is older changes nothing, wherever it comes from', () => {
  let all = withCard({}, card({ version: 2, status: 'EXECUTED' }));
  for (const old of [card(), card({ version: 2, status: 'APPROVED' }), card({ version: 2, status: 'EXECUTING' }), null, {}, { action_id: 'x' }]) {
    assert.equal(withCard(all, old), all);
  }
  all = withCard(all, card({ version: 2, status: 'EXECUTED', outcome: { output: 'x' } }));
  assert.equal(all[ID].card.outcome.output, 'x');
});

test('a request that is no longer this person\'s is gone', () => {
  const all = withCard(withCard({}, card()), card({ status: 'WITHDRAWN', command: '' }));
  assert.deepEqual(all, {});
});

test('the own word is on its way until the server tells how it stands', () => {
  let all = withWord(withCard({}, card()), ID, 'approve');
  assert.equal(all[ID].sent, 'approve');
  all = withCard(all, card()); // told again, unchanged: a reload of the list
  assert.equal(all[ID].sent, 'approve');
  all = withCard(all, card({ version: 2, status: 'APPROVED' }));
  assert.equal(all[ID].sent, '');
  assert.equal(withWord(all, ID, '', 'no')[ID].problem, 'no');
  assert.equal(withWord(all, OTHER, 'approve'), all);
});

test('output streams stand by their request, also one of which nothing else is known', () => {
  assert.ok(isAction(ID));
  assert.ok(!isAction('m1-k3v9x2qa-1') && !isAction(`${ID}-abcd-1`));
  let s = reduce(initial(), { type: 'frame', now: 0, frame: { type: 'CHAT_STREAM', conversation_id: 7, stream_id: ID, reply_to_local_id: 'm1', payload: 'a\n' } });
  s = reduce(s, { type: 'frame', now: 0, frame: { type: 'CHAT_STREAM', conversation_id: 7, stream_id: ID, reply_to_local_id: 'm1', payload: 'b' } });
  assert.equal(s.approvals[ID].output, 'a\nb');
  assert.deepEqual(s.conversations, {}, 'it is no answer');
  assert.equal(ofThread(s.approvals, 7).length, 1);
  const long = withOutput({}, ID, 7, 'm1', 'x'.repeat(250_000));
  assert.equal(long[ID].output.length, 100_000);
  assert.equal(long[ID].clipped, true);
});

test('a notice is no output, and is gone when what it says is over', () => {
  const said = (payload, more) => ({ type: 'frame', now: 0, frame: { type: 'CHAT_STREAM', conversation_id: 7, stream_id: ID, reply_to_local_id: 'm1', payload, ...more } });
  let s = reduce(initial(), said('The shell does not answer now.\n\n', { notice: true }));
  s = reduce(s, frame('AUTH_REQUEST', {}));
  assert.equal(s.approvals[ID].notice, 'The shell does not answer now.');
  s = reduce(s, said('Waiting for approval **K7QF**', { notice: true }));
  assert.deepEqual([s.approvals[ID].notice, s.approvals[ID].output], ['Waiting for approval **K7QF**', '']);
  s = reduce(s, frame('AUTH_STATUS_UPDATE', { status: 'EXECUTING', version: 2 }));
  assert.equal(s.approvals[ID].notice, '');
  s = reduce(reduce(s, said('out')), said('It still runs.', { notice: true }));
  assert.deepEqual([s.approvals[ID].notice, s.approvals[ID].output], ['It still runs.', 'out']);
  s = reduce(s, frame('AUTH_STATUS_UPDATE', { status: 'EXECUTED', version: 2 }));
  assert.equal(s.approvals[ID].notice, '');
  s = reduce(s, said('It still runs.', { notice: true })); // told again after a lost connection
  assert.equal(s.approvals[ID].notice, '');
  assert.equal(withNotice({}, ID, 7, 'm1', 'x'.repeat(250_000))[ID].notice.length, 8_000);
});

test('what names mean is shown, a digest of them is not', () => {
  const alias = { name: 'ls', kind: 'alias', text: 'rm' };
  assert.deepEqual(definitions(card({ definitions: [alias, { name: '', kind: 'digest', text: '50607d08ef75' }] })), [alias]);
  assert.deepEqual(definitions(card()), []);
});

test('cards stand below their question; those that wait and have none here stand last', () => {
  const items = [{ role: 'person', key: 'm1' }, { role: 'butler', key: 'm1:answer' }, { role: 'person', key: 'm2' }];
  const at = (id, replyTo, more) => [id, { card: card(more), thread: 7, replyTo }];
  const keys = among(items, [at(ID, 'm1'), at(OTHER, 'gone')]).map((i) => i.key);
  assert.deepEqual(keys, ['m1', `approval ${ID}`, 'm1:answer', 'm2', `approval ${OTHER}`]);
  assert.deepEqual(among(items, [at(OTHER, 'gone', { status: 'EXPIRED' })]).length, 3);
});

test('a command is cut by bytes, whatever its characters, and what is not seen is written out', () => {
  const command = 'echo é😀 \u202ex\u200b\t\nrm';
  const bytes = (s) => new TextEncoder().encode(s).length;
  const start = bytes('echo é');
  const parts = pieces(command, [{ start, end: start + 4 }, { start: 0, end: 0 }, { start: bytes(command) - 2, end: bytes(command) }]);
  assert.deepEqual(parts.filter((p) => p.reasons.length).map((p) => [p.text, p.reasons]), [['😀', [0]], ['rm', [2]]]);
  assert.equal(parts.map((p) => p.text).join(''), 'echo é😀 \\u202ex\\u200b\\t\nrm');
  assert.deepEqual(parts.filter((p) => p.unseen).map((p) => p.text), ['\\u202e', '\\u200b\\t']);
  assert.deepEqual(pieces('\u0007\u{e0041}').map((p) => p.text), ['\\x07\\U000e0041']);
  assert.deepEqual(pieces(''), []);
  assert.deepEqual(pieces('abcd', [{ start: 1, end: 3 }, { start: 2, end: 4 }]).map((p) => [p.text, p.reasons]),
    [['a', []], ['b', [0]], ['c', [0, 1]], ['d', [1]]]);
});

test('memory is bounded, and what waits is kept', () => {
  let all = withCard({}, card());
  for (let i = 0; i < 400; i++) {
    all = withCard(all, card({ action_id: `6f1c2c52-3ad1-4b53-8f0e-${String(i).padStart(12, '0')}`, status: 'EXECUTED' }));
  }
  assert.equal(Object.keys(all).length, 300);
  assert.ok(all[ID]);
});

test('the time that is left is whole seconds and never negative', () => {
  assert.equal(secondsLeft('2026-01-01T12:00:10Z', Date.parse('2026-01-01T12:00:00.500Z')), 10);
  assert.equal(secondsLeft('2026-01-01T12:00:10Z', Date.parse('2026-01-01T13:00:00Z')), 0);
  assert.equal(secondsLeft(undefined, 0), 0);
});

test('the final message says where the shell stands', () => {
  const answer = (more) => ({ type: 'frame', now: 0, frame: { type: 'CHAT', id: 6, conversation_id: 7, sender_role: 'BUTLER', reply_to_local_id: 'a', payload: 'x', timestamp: '2026-01-01T12:00:00Z', ...more } });
  let s = reduce(initial(), answer({ attach: 'on', shell: { host: 'h1', dir: '/srv', mode: 'nl', state: 'idle' } }));
  assert.deepEqual(s.shells[7], { host: 'h1', dir: '/srv', mode: 'nl', state: 'idle', program: '', attached: true });
  s = reduce(s, answer({ id: 8, shell: { host: 'h1', dir: '/tmp', mode: 'interactive', state: 'running', program: 'vim' } }));
  assert.equal(s.shells[7].attached, true);
  assert.equal(s.shells[7].program, 'vim');
  s = reduce(s, answer({ id: 9, attach: 'off' }));
  assert.equal(s.shells[7].attached, false);
  assert.equal(reduce(s, answer({ id: 10, shell: 'x' })).shells, s.shells);
});
