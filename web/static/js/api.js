// The gateway's HTTP API. The browser sends the session cookie; the page never sees the token.

import { language, t } from './i18n.js';

const TIMEOUT = 20_000; // ms
const BUTLER = 2; // Butler's id on every installation
const KIND = 'butler_direct';

/** An answer that is not a success, or none (status 0). message is for people. */
export class ApiError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.retryAfter = retryAfter; // seconds, 0 when unknown
  }
}

let onUnauthorized = () => {};
/** Sets what happens when the server says that nobody is signed in. */
export const whenUnauthorized = (f) => {
  onUnauthorized = f;
};

// wordsOf finds the sentence in an error's body: {error: "…"}, {error: {message}}, {message}.
function wordsOf(body) {
  const words = typeof body?.error === 'string' ? body.error : body?.error?.message ?? body?.message;
  return typeof words === 'string' ? words.slice(0, 500) : '';
}

async function call(method, path, body, { quiet401 = false } = {}) {
  let response;
  let data = null;
  try {
    response = await fetch(path, {
      method,
      credentials: 'same-origin',
      cache: 'no-store',
      headers: { 'Accept-Language': language(), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT),
    });
    const text = await response.text();
    if (text) {
      try {
        data = JSON.parse(text);
      } catch {
        data = null; // a proxy's page, or no JSON at all: the status says enough
      }
    }
  } catch (e) {
    throw new ApiError(0, e?.name === 'TimeoutError' ? t('tooSlow') : t('unreachable'), 0);
  }
  if (response.ok) return data;
  if (response.status === 401 && !quiet401) onUnauthorized();
  const retryAfter = Number.parseInt(response.headers.get('Retry-After') ?? '', 10) || 0;
  throw new ApiError(response.status, wordsOf(data) || t('failedAnyhow', { status: response.status }), retryAfter);
}

const list = (v) => (Array.isArray(v) ? v : []);

export const api = {
  login: async (username, password) => (await call('POST', '/api/auth/login', { username, password }, { quiet401: true }))?.user,
  logout: () => call('POST', '/api/auth/logout', {}, { quiet401: true }),

  me: () => call('GET', '/api/auth/me', undefined, { quiet401: true }),

  threads: async () => list(await call('GET', `/api/chat/threads?peer_id=${BUTLER}&channel_kind=${KIND}&archived=all`)),
  createThread: (title) => call('POST', '/api/chat/threads', { peer_id: BUTLER, channel_kind: KIND, title }),
  changeThread: (id, change) => call('PATCH', `/api/chat/threads/${id}`, change),
  deleteThread: (id) => call('DELETE', `/api/chat/threads/${id}`),
  messages: async (id, { limit, before }) => {
    const query = new URLSearchParams({ limit, ...(before ? { before } : {}) });
    return list(await call('GET', `/api/chat/threads/${id}/messages?${query}`));
  },
  stop: (conversationId, localId) => call('POST', '/api/chat/stop', { conversation_id: conversationId, local_id: localId }),

  approvals: async () => list(await call('GET', '/api/approvals?limit=100')),
  approval: (id) => call('GET', `/api/approvals/${id}`),
  decide: (id, { approved, reason, command, digest }) => call('POST', `/api/approvals/${id}/decision`, {
    approved, digest, language: language(), ...(reason ? { reason } : {}), ...(command ? { edited_command: command } : {}),
  }),

  tokens: async () => list(await call('GET', '/api/tokens')),
  createToken: (name, days) => call('POST', '/api/tokens', { name, ...(days ? { expires_in_days: days } : {}) }),
  revokeToken: (id) => call('DELETE', `/api/tokens/${id}`),

  users: async () => list(await call('GET', '/api/users')),
  createUser: (username, password, role) => call('POST', '/api/users', { username, password, role }),
};

/** Makes the frame of a message; its text and the frame as JSON have limits in bytes (see limits.js). */
export const chatFrame = (conversationId, localId, text) => JSON.stringify({
  type: 'CHAT', target_id: BUTLER, conversation_id: conversationId, local_id: localId, payload: text, language: language(),
});
