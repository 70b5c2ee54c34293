import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pauseBefore, Socket } from '../static/js/socket.js';

// A world without time: timers fire when told, sockets open and close when told.
function world({ signedIn = true } = {}) {
  const w = { states: [], frames: [], opened: 0, sockets: [], timers: new Map(), clock: 0, after: 0 };
  let ids = 0;
  w.socket = new Socket({
    address: () => `ws://x/?after=${w.after}`,
    open: (url) => {
      const ws = { url, readyState: 0, sent: [], close() { this.closed = true; this.readyState = 3; }, send(x) { this.sent.push(x); } };
      w.sockets.push(ws);
      return ws;
    },
    timers: {
      set: (f, ms) => {
        w.timers.set(++ids, { f, due: w.clock + ms });
        return ids;
      },
      clear: (id) => w.timers.delete(id), now: () => w.clock, random: () => 1,
    },
    onState: (s) => w.states.push(s),
    onFrame: (f) => w.frames.push(f),
    onOpen: () => w.opened++,
    check: async () => signedIn,
  });
  w.last = () => w.sockets.at(-1);
  w.accept = () => { w.last().readyState = 1; w.last().onopen(); };
  w.lose = async (ws = w.last()) => { ws.readyState = 3; ws.onclose(); await new Promise(setImmediate); };
  w.pass = (ms) => {
    w.clock += ms;
    for (const [id, timer] of [...w.timers]) if (timer.due <= w.clock && w.timers.delete(id)) timer.f();
  };
  return w;
}

test('pauses grow, are random, and have an end', () => {
  assert.equal(pauseBefore(0, 0), 250);
  assert.equal(pauseBefore(0, 1), 500);
  assert.equal(pauseBefore(3, 1), 4_000);
  assert.equal(pauseBefore(1_000, 1), 15_000);
  assert.equal(pauseBefore(1_000, 0), 7_500);
});

test('it connects, says so, and delivers frames; what is not JSON is left out', () => {
  const w = world();
  w.socket.start();
  w.socket.start();
  assert.equal(w.sockets.length, 1);
  assert.equal(w.socket.send('early'), false);
  w.accept();
  w.last().onmessage({ data: '{"type":"CHAT"}' });
  w.last().onmessage({ data: '{oops' });
  assert.deepEqual(w.states, ['connecting', 'online']);
  assert.deepEqual(w.frames, [{ type: 'CHAT' }]);
  assert.equal(w.socket.send('x'), true);
});

test('it connects again from where it was, later and later, soon again after a steady time', async () => {
  const w = world();
  w.socket.start();
  w.accept();
  w.after = 42;
  await w.lose();
  assert.equal(w.states.at(-1), 'offline');
  w.pass(499);
  assert.equal(w.sockets.length, 1);
  w.pass(1);
  assert.equal(w.last().url, 'ws://x/?after=42');
  await w.lose();
  w.pass(999);
  assert.equal(w.sockets.length, 2);
  w.pass(1);
  w.accept();
  assert.equal(w.opened, 2);
  w.pass(5_000);
  await w.lose();
  w.pass(500);
  assert.equal(w.sockets.length, 4);
});

test('what an old connection still says is not heard', async () => {
  const w = world();
  w.socket.start();
  w.accept();
  const old = w.last();
  w.socket.restart();
  assert.equal(old.closed, true);
  old.onmessage({ data: '{"type":"CHAT"}' });
  old.onclose();
  old.onopen();
  assert.deepEqual(w.frames, []);
  assert.equal(w.sockets.length, 2);
  assert.equal(w.states.at(-1), 'connecting');
});

test('a handshake that hangs is given up', () => {
  const w = world();
  w.socket.start();
  w.pass(15_000);
  assert.equal(w.states.at(-1), 'offline');
  w.pass(500);
  assert.equal(w.sockets.length, 2);
});

test('hurry ends the pause; it leaves a connection alone', async () => {
  const w = world();
  w.socket.start();
  w.socket.hurry();
  w.accept();
  w.socket.hurry();
  assert.equal(w.sockets.length, 1);
  await w.lose();
  w.socket.hurry();
  assert.equal(w.sockets.length, 2);
  w.pass(1_000);
  assert.equal(w.sockets.filter((s) => !s.closed && s.readyState !== 3).length, 1);
});

test('signed out: no more tries', async () => {
  const w = world({ signedIn: false });
  w.socket.start();
  await w.lose();
  w.pass(60_000);
  assert.equal(w.sockets.length, 1);
  w.socket.start();
  assert.equal(w.sockets.length, 2);
});

test('stop is quiet and final', () => {
  const w = world();
  w.socket.start();
  w.accept();
  w.socket.stop();
  w.pass(60_000);
  w.socket.hurry();
  w.socket.restart();
  w.socket.lost();
  assert.equal(w.sockets.length, 1);
  assert.equal(w.timers.size, 0);
});
