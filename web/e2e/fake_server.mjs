// A stand-in for the gateway, for the page's own tests: the same addresses and frames, answers by script, everything in
// memory. What the person writes chooses the script: see scripts below. Run it by hand with: node fake_server.mjs 8090

import { createHash, randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const STATIC = fileURLToPath(new URL('../static/', import.meta.url));
const TYPES = { html: 'text/html; charset=utf-8', css: 'text/css; charset=utf-8', js: 'text/javascript; charset=utf-8', svg: 'image/svg+xml' };
const CSP = "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; " +
  "frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
const PIECE = 25; // ms between pieces

export const markdownSample = `# Disk usage on **web-1**

The root file system is at *82 %*. The three largest folders:

| Folder | Size | Grows |
|:--|--:|:-:|
| \`/var/log\` | 31.2 GiB | yes |
| \`/var/lib/docker\` | 18.0 GiB | no |
| \`/home\` | 4.7 GiB | no |

1. Rotate the logs:
   \`\`\`sh
   sudo journalctl --vacuum-size=2G
   find /var/log -name '*.gz' -mtime +30 -delete
   \`\`\`
2. Then look again
   - with \`df -h\`
   - or [the manual](https://manpages.debian.org/df)

- [x] measured
- [ ] cleaned up

> Nothing was deleted. I only looked.
`;

export const hostileSample = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>

[click](javascript:window.pwned=3) [data](data:text/html,<script>window.pwned=4</script>) ![x](https://tracker.example/p.png)

<svg onload=window.pwned=5> <a href="javascript:window.pwned=6">a</a> <https://ok.example/"onmouseover="window.pwned=7">

\`\`\`html"><img src=x onerror=window.pwned=8>
</code></pre><img src=x onerror=window.pwned=9>
\`\`\`

| <b>x</b> | [t](vbscript:x) |
|---|---|
| <iframe srcdoc="<script>parent.pwned=10</script>"> | [ok](https://ok.example/) |
`;

/** The answer to "patient". */
export const patientSample = Array.from({ length: 60 }, (_, i) => `word${i}`).join(' ');

/** Starts the server on 127.0.0.1. Gives {url, close(), release(), dropSockets(), refuseSockets(yes), revoke(),
 * gap(), fill(owner, title, n), requests}. */
export async function startFake({ port = 0 } = {}) {
  const people = new Map([['ada', { id: 1, username: 'ada', role: 'ADMIN', password: 'correct horse' }],
    ['ben', { id: 3, username: 'ben', role: 'MEMBER', password: 'battery staple' }]]);
  const sessions = new Map(); // cookie → person
  const sockets = new Set(); // {socket, person}
  const threads = new Map();
  const messages = []; // rows of all threads
  const frames = []; // everything sent, {person, frame}
  const tokens = new Map();
  const turns = new Map(); // local_id → {stopped}
  const queues = new Map(); // thread id → promise of its last answer
  const requests = [];
  const approvals = new Map(); // action_id → card
  let refusing = false;
  let failing = 0; // decisions that get 503
  let slow = null; // a promise that decisions wait for
  let ids = 10;
  let seq = 0;

  const now = () => new Date().toISOString();
  const butler = { sender_id: 2, sender_name: 'Butler', sender_role: 'BUTLER' };

  function emit(person, frame, live = true) {
    const full = { ...frame, seq: ++seq, timestamp: frame.timestamp ?? now() };
    frames.push({ person, frame: full });
    if (live) for (const s of sockets) if (s.person.id === person) write(s.socket, full);
  }

  // ---- requests for approval ----

  const decider = (card, person) => (card.requester.id === person.id ? card.requesterMay : person.role === 'ADMIN');
  const cardFor = ({ requesterMay, thread, question, ...card }, person) => ({
    ...card, may_decide: card.status === 'PENDING' && decider(approvals.get(card.action_id), person),
    ...(card.requester.id === person.id ? { conversation_id: thread, reply_to_local_id: question } : {}),
  });
  const concerns = (card, person) => card.requester.id === person.id || decider(card, person);

  function tell(card, only) {
    for (const s of only ? [only] : sockets) {
      if (!concerns(card, s.person)) continue;
      const payload = cardFor(card, s.person);
      const type = payload.may_decide && (only || card.version === 1) ? 'AUTH_REQUEST' : 'AUTH_STATUS_UPDATE';
      write(s.socket, { type, ...butler, target_id: s.person.id, timestamp: now(), ...payload, payload });
    }
  }

  /** Asks for an approval; gives its card. more overrides its fields. */
  function ask(more = {}) {
    const requester = more.requester ?? { id: 1, name: 'ada', role: 'ADMIN' };
    const command = 'rm -rf /srv/cache && echo done\u202e';
    const card = { action_id: randomUUID(), target_agent_id: 0, target_agent_name: 'web-1', command, reason: 'The disk is **full**.', reasoning: '',
      status: 'PENDING', code: 'K7QF', version: 1, digest: 'd1', kind: 'command', host: 'web-1', dir: '/srv', user: 'ops', risk: 'high', visible: '',
      reasons: [{ code: 'delete-tree', text: 'Deletes a whole folder.', text_zh: '删除整个目录。', start: 0, end: 6 }],
      definitions: [{ name: 'rm', kind: 'alias', text: 'rm -i' }, { name: '', kind: 'digest', text: '50607d08ef75' }],
      untrusted: [{ name: 'web page', excerpt: '<b>please</b> run rm' }], requester, proposer: 'model', channel: 'websocket', quorum: 1, agreed: 0,
      requested_at: now(), decide_by: new Date(Date.now() + 300_000).toISOString(), decisions: [], edits: [], requesterMay: true, thread: 0, question: '', ...more };
    approvals.set(card.action_id, card);
    tell(card);
    return card;
  }

  function change(id, more) {
    const card = Object.assign(approvals.get(id), more);
    tell(card);
    return card;
  }

  function verdict(person, card, { approved, reason, edited_command: edited, digest }) {
    if (typeof approved !== 'boolean') return [400, { error: 'approved must be true or false' }];
    if (!decider(card, person)) return [403, { error: 'This is not yours to decide.' }];
    if (card.status !== 'PENDING') return [409, { error: `${card.decisions.at(-1)?.by.name ?? 'Somebody'} decided it already.` }];
    if (digest && digest !== card.digest) return [409, { error: 'The command was changed since you saw it.' }];
    if (edited === 'if') return [400, { error: 'The command is incomplete.' }];
    const by = { id: person.id, name: person.username, role: person.role };
    if (edited) card.edits.push({ by, at: now(), command: card.command, digest: card.digest });
    change(card.action_id, { version: card.version + 1, status: approved ? 'APPROVED' : 'REJECTED', ...(edited ? { command: edited, digest: 'd2', reasons: [] } : {}),
      decisions: [...card.decisions, { by, approved, reason, channel: 'http', at: now(), digest: 'd' }] });
    return [200, cardFor(card, person)];
  }

  function addThread(owner, title) {
    const thread = { id: ++ids, owner_user_id: owner, peer_user_id: 2, channel_kind: 'butler_direct', title, summary: '',
      is_pinned: false, is_default: false, archived_at: null, last_message_at: now(), created_at: now() };
    threads.set(thread.id, thread);
    return thread;
  }

  function store(row) {
    messages.push({ ...row, content: row.payload });
    threads.get(row.conversation_id).last_message_at = row.timestamp;
  }

  // ---- answers ----

  async function answer(person, question) {
    const turn = { stopped: false };
    turn.wake = new Promise((resolve) => (turn.goOn = resolve));
    turns.set(question.local_id, turn);
    const text = question.payload;
    const to = { conversation_id: question.conversation_id, target_id: person.id, reply_to_local_id: question.local_id };
    const stream = async (id, whole, { from = 0, size = 6 } = {}) => {
      for (let i = from; i < whole.length && !turn.stopped; i += size) {
        emit(person.id, { type: 'CHAT_STREAM', ...butler, ...to, payload: whole.slice(i, i + size), stream_id: id });
        await pause(PIECE);
        if (text === 'patient' && i >= size * 20) await turn.wake;
      }
    };
    let streamId = `${question.local_id}-1-1`;
    let whole = `You said: ${text}`;
    let status = 'answered';
    let reason = '';
    // One answer of a conversation at a time, in the order of the questions.
    const before = queues.get(to.conversation_id);
    let finished;
    queues.set(to.conversation_id, new Promise((resolve) => (finished = resolve)));
    await before;
    await pause(120);
    if (text === 'approve me') {
      // The turn waits for the decision; then the command's output streams.
      const card = ask({ requester: { id: person.id, name: person.username, role: person.role }, requesterMay: person.role === 'ADMIN', thread: to.conversation_id, question: question.local_id });
      emit(person.id, { type: 'CHAT_STREAM', ...butler, ...to, stream_id: card.action_id, notice: true,
        payload: 'Waiting for approval **K7QF** on web-1:\n\n```\nrm -rf /srv/cache\n```\n- Deletes a whole folder.\n\nYou may decide: `approve K7QF`, or `deny K7QF` and why.\n\n' });
      while (card.status === 'PENDING') await pause(20);
      whole = 'Then I leave it.';
      if (card.status === 'APPROVED') {
        change(card.action_id, { status: 'EXECUTING' });
        for (const line of ['removing *one*\n', 'removing <two>\n']) {
          emit(person.id, { type: 'CHAT_STREAM', ...butler, ...to, payload: line, stream_id: card.action_id });
          await pause(PIECE);
        }
        change(card.action_id, { status: 'EXECUTED', outcome: { exit_status: 0, status_known: true, output: 'removing *one*\nremoving <two>\nlast line', output_bytes: 40, truncated: false, duration_ms: 5 } });
        whole = 'It is done.';
      }
    }
    if (text === 'markdown') whole = markdownSample;
    else if (text === 'hostile') whole = hostileSample;
    else if (text === 'patient') whole = patientSample;
    else if (text.startsWith('count ')) whole = Array.from({ length: Number(text.slice(6)) }, (_, i) => `word${i}`).join(' ');
    else if (text === 'fail') {
      whole = 'The model does not answer at the moment. Try again in a minute.';
      status = 'failed';
      reason = 'model_unavailable';
    } else if (text === 'restart') {
      await stream(streamId, 'ABANDONED words that must go');
      emit(person.id, { type: 'CHAT_STREAM_END', ...butler, ...to, payload: '', stream_id: streamId });
      await pause(1_500);
      streamId = `${question.local_id}-2-1`;
      whole = 'The second try is the whole answer.';
    } else if (text === 'big') {
      whole = `${'A paragraph of **many** words, with `code` and a [link](https://ok.example/).\n\n'.repeat(700)}\`\`\`go\n${'x := make([]int, 10)\n'.repeat(2500)}\`\`\`\n\nend of big`;
    }
    if (status !== 'failed') await stream(streamId, whole, text === 'big' ? { size: 1500 } : {});
    if (turn.stopped) {
      status = 'stopped';
      whole = whole.slice(0, 40);
    }
    const row = { ...butler, ...to, id: ++ids, local_id: `${question.local_id}:answer`, type: 'CHAT', payload: whole, timestamp: now(),
      stream_id: streamId, reply_to: question.id, status, reason };
    if (!threads.has(question.conversation_id)) return void finished();
    store(row);
    emit(person.id, row);
    emit(person.id, { type: 'CHAT_STREAM_END', ...butler, ...to, payload: '', stream_id: streamId });
    turns.delete(question.local_id);
    finished();
  }

  function onFrame(person, socket, text) {
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      return write(socket, { type: 'ERROR', code: 'invalid', payload: 'This frame is not JSON.' });
    }
    const thread = threads.get(frame.conversation_id);
    if (frame.type !== 'CHAT' || !thread || thread.owner_user_id !== person.id) {
      return write(socket, { type: 'ERROR', code: 'not_found', payload: 'There is no such conversation.', local_id: frame.local_id });
    }
    if (frame.payload === 'refuse' && !refusedOnce.has(frame.local_id)) {
      refusedOnce.add(frame.local_id);
      return write(socket, { type: 'ERROR', code: 'rate_limited', payload: 'Too many messages. Try again in a moment.', local_id: frame.local_id });
    }
    if (messages.some((m) => m.local_id === frame.local_id)) return undefined;
    const row = { id: ++ids, local_id: frame.local_id, conversation_id: thread.id, sender_id: person.id, sender_name: person.username,
      sender_role: person.role, target_id: 2, type: 'CHAT', payload: frame.payload, timestamp: now(), stream_id: '', status: '', reason: '' };
    store(row);
    emit(person.id, row);
    return void answer(person, row);
  }
  const refusedOnce = new Set();

  // ---- HTTP ----

  async function body(req) {
    const parts = [];
    for await (const part of req) parts.push(part);
    return JSON.parse(Buffer.concat(parts).toString() || '{}');
  }

  async function api(req, res, url) {
    const send = (status, data, headers = {}) => {
      res.writeHead(status, { 'Content-Type': 'application/json', ...headers });
      res.end(data === undefined ? '' : JSON.stringify(data));
    };
    const route = `${req.method} ${url.pathname.replace(/\/\d+(?=\/|$)/, '/:id')}`;
    const id = Number(/\/(\d+)(?:\/|$)/.exec(url.pathname)?.[1]);
    if (route === 'POST /api/auth/login') {
      const { username, password } = await body(req);
      const person = people.get(username);
      if (!person || person.password !== password) return send(401, { error: 'Invalid credentials' });
      const cookie = randomUUID();
      sessions.set(cookie, person);
      return send(200, { token: cookie, user: { id: person.id, username: person.username, role: person.role } },
        { 'Set-Cookie': `butler_session=${cookie}; HttpOnly; SameSite=Lax; Path=/` });
    }
    const person = who(req);
    if (!person) return send(401, { error: 'Sign in first.' });
    const action = /^\/api\/approvals\/([^/]+)(\/decision)?$/.exec(url.pathname);
    if (action) {
      const card = approvals.get(action[1]);
      if (failing > 0 && action[2]) {
        failing--;
        return send(503, { error: 'Approval does not answer now; nothing was decided.' });
      }
      if (!card) return send(404, { error: 'There is no such request.' });
      if (!action[2]) return concerns(card, person) ? send(200, cardFor(card, person)) : send(404, { error: 'There is no such request.' });
      if (slow) await slow;
      return send(...verdict(person, card, await body(req)));
    }
    const thread = threads.get(id);
    if (url.pathname.startsWith('/api/chat/threads/') && thread?.owner_user_id !== person.id) return send(404, { error: 'There is no such conversation.' });
    switch (route) {
      case 'POST /api/auth/logout':
        sessions.delete(cookieOf(req));
        return send(200, {}, { 'Set-Cookie': 'butler_session=; HttpOnly; Path=/; Max-Age=0' });
      case 'GET /api/auth/me':
        return send(200, { id: person.id, username: person.username, role: person.role });
      case 'GET /api/chat/threads':
        return send(200, [...threads.values()].filter((x) => x.owner_user_id === person.id
          && (url.searchParams.get('archived') === 'all' || !x.archived_at)));
      case 'POST /api/chat/threads':
        return send(201, addThread(person.id, (await body(req)).title ?? ''));
      case 'PATCH /api/chat/threads/:id': {
        const { is_archived: archived, ...change } = await body(req);
        Object.assign(thread, change, archived === undefined ? {} : { archived_at: archived ? now() : null });
        return send(200, thread);
      }
      case 'DELETE /api/chat/threads/:id':
        threads.delete(id);
        return send(204);
      case 'GET /api/chat/threads/:id/messages': {
        const limit = Number(url.searchParams.get('limit') ?? 50);
        const before = Number(url.searchParams.get('before') ?? Infinity) || Infinity;
        return send(200, messages.filter((m) => m.conversation_id === id && m.id < before).slice(-limit));
      }
      case 'POST /api/chat/stop': {
        const turn = turns.get((await body(req)).local_id);
        if (turn) {
          turn.stopped = true;
          turn.goOn();
        }
        return send(202, {});
      }
      case 'GET /api/approvals':
        return send(200, [...approvals.values()].filter((c) => concerns(c, person)).reverse().map((c) => cardFor(c, person)));
      case 'GET /api/tokens':
        return send(200, [...tokens.values()].map(({ token, ...rest }) => rest));
      case 'POST /api/tokens': {
        const { name, expires_in_days: days } = await body(req);
        const token = { id: ++ids, name, kind: 'personal', created_at: now(), expires_at: days ? new Date(Date.now() + days * 864e5).toISOString() : null,
          last_used_at: null, token: `btl_${randomUUID().replaceAll('-', '')}` };
        tokens.set(token.id, token);
        return send(201, { id: token.id, name, token: token.token });
      }
      case 'DELETE /api/tokens/:id':
        tokens.delete(id);
        return send(204);
      case 'GET /api/users':
      case 'POST /api/users': {
        if (person.role !== 'ADMIN') return send(403, { error: 'Only administrators can see people.' });
        if (req.method === 'GET') return send(200, [...people.values()].map(({ password, ...p }) => p));
        const { username, password, role } = await body(req);
        if (people.has(username)) return send(409, { error: 'This name is taken.' });
        people.set(username, { id: ++ids, username, role, password });
        return send(201, { id: ids, username, role });
      }
      default:
        return send(404, { error: 'There is nothing at this address.' });
    }
  }

  const cookieOf = (req) => /butler_session=([^;]+)/.exec(req.headers.cookie ?? '')?.[1];
  const who = (req) => sessions.get(cookieOf(req));

  const server = createServer(async (req, res) => {
    const url = new URL(req.url, 'http://x');
    requests.push(`${req.method} ${req.url}`);
    res.setHeader('Content-Security-Policy', CSP);
    res.setHeader('X-Content-Type-Options', 'nosniff');
    if (url.pathname.startsWith('/api/')) return api(req, res, url);
    const name = url.pathname === '/' ? 'index.html' : url.pathname.slice(1);
    try {
      if (name.includes('..')) throw new Error('outside');
      const data = await readFile(STATIC + name);
      res.writeHead(200, { 'Content-Type': TYPES[name.split('.').at(-1)] ?? 'application/octet-stream' });
      return res.end(data);
    } catch {
      res.writeHead(404);
      return res.end('not found');
    }
  });

  server.on('upgrade', (req, socket) => {
    const url = new URL(req.url, 'http://x');
    requests.push(`WS ${req.url}`);
    socket.on('error', () => socket.destroy());
    const person = who(req);
    if (refusing) return socket.destroy();
    if (!person) return socket.end('HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n');
    const accept = createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
    const entry = { socket, person };
    sockets.add(entry);
    socket.on('close', () => sockets.delete(entry));
    read(socket, (text) => onFrame(person, socket, text));
    for (const card of approvals.values()) if (card.status === 'PENDING') tell(card, entry);
    if (url.searchParams.has('after')) {
      const after = Number(url.searchParams.get('after'));
      for (const f of frames) if (f.person === person.id && f.frame.seq > after) write(socket, f.frame);
    } else {
      write(socket, { type: 'READY', seq, timestamp: now() });
    }
    return undefined;
  });

  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    requests,
    ask,
    change,
    /** Lets the next n decisions fail as unavailable. */
    failDecisions: (n) => (failing = n),
    /** Makes decisions wait; gives what lets them go on. */
    holdDecisions: () => {
      let goOn;
      slow = new Promise((resolve) => (goOn = resolve));
      return () => {
        slow = null;
        goOn();
      };
    },
    /** Ends all that waits, so that the next test begins with nothing. */
    clearApprovals: () => approvals.clear(),
    /** Lets the answers to "patient", which wait after their beginning, go on. */
    release: () => turns.forEach((turn) => turn.goOn()),
    dropSockets: () => sockets.forEach((s) => s.socket.destroy()),
    refuseSockets: (yes) => (refusing = yes),
    revoke: () => {
      sessions.clear();
      sockets.forEach((s) => s.socket.destroy());
    },
    gap: () => sockets.forEach((s) => write(s.socket, { type: 'GAP', seq: ++seq })),
    /** Adds a thread with n questions and answers, to a person's history. */
    fill: (owner, title, n) => {
      const thread = addThread(owner, title);
      for (let i = 1; i <= n; i++) {
        const at = new Date(Date.now() - (n - i) * 60_000 - 60_000).toISOString();
        const localId = randomUUID();
        store({ id: ++ids, local_id: localId, conversation_id: thread.id, sender_id: owner, sender_name: 'ada', sender_role: 'ADMIN', target_id: 2,
          type: 'CHAT', payload: `Question ${i}`, timestamp: at, stream_id: '', status: '', reason: '' });
        store({ ...butler, id: ++ids, local_id: `${localId}:answer`, conversation_id: thread.id, target_id: owner, type: 'CHAT',
          payload: `Answer ${i}, with **weight**.`, timestamp: at, stream_id: 's', status: 'answered', reason: '', reply_to_local_id: localId });
      }
      return thread.id;
    },
    close: () => new Promise((resolve) => {
      sockets.forEach((s) => s.socket.destroy());
      server.close(resolve);
      server.closeAllConnections();
    }),
  };
}

// ---- WebSocket, as much as the page uses ----

function write(socket, frame) {
  if (socket.destroyed) return;
  const data = Buffer.from(JSON.stringify(frame));
  const head = data.length < 126 ? Buffer.from([0x81, data.length])
    : data.length < 65_536 ? Buffer.from([0x81, 126, data.length >> 8, data.length & 255])
      : Buffer.concat([Buffer.from([0x81, 127, 0, 0, 0, 0]), Buffer.from(Uint32Array.of(data.length).buffer).reverse()]);
  socket.write(Buffer.concat([head, data]));
}

function read(socket, onText) {
  let buffer = Buffer.alloc(0);
  let text = [];
  socket.on('data', (part) => {
    buffer = Buffer.concat([buffer, part]);
    for (;;) {
      if (buffer.length < 2) return;
      let length = buffer[1] & 127;
      let at = 2;
      if (length === 126) {
        if (buffer.length < 4) return;
        length = buffer.readUInt16BE(2);
        at = 4;
      } else if (length === 127) {
        if (buffer.length < 10) return;
        length = Number(buffer.readBigUInt64BE(2));
        at = 10;
      }
      if (buffer.length < at + 4 + length) return;
      const mask = buffer.subarray(at, at + 4);
      const data = Buffer.from(buffer.subarray(at + 4, at + 4 + length));
      for (let i = 0; i < data.length; i++) data[i] ^= mask[i & 3];
      const kind = buffer[0] & 15;
      const final = buffer[0] & 128;
      buffer = buffer.subarray(at + 4 + length);
      if (kind === 8) return socket.end(Buffer.from([0x88, 0]));
      if (kind > 2) continue;
      text.push(data);
      if (!final) continue;
      const whole = Buffer.concat(text).toString();
      text = [];
      onText(whole);
    }
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const fake = await startFake({ port: Number(process.argv[2] ?? 8090) });
  fake.fill(1, 'Long conversation', 300);
  process.stdout.write(`${fake.url} (ada / correct horse)\n`);
}
