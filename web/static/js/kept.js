// What the browser keeps for the page. Drafts and unsent messages live as long as the tab (sessionStorage); choices and
// who is signed in (name and role, never a token) stay (localStorage). A browser may refuse either: the page then works
// without.

const get = (store, key) => {
  try {
    return globalThis[store].getItem(key);
  } catch {
    return null;
  }
};
const set = (store, key, value) => {
  try {
    if (value === null || value === '') globalThis[store].removeItem(key);
    else globalThis[store].setItem(key, value);
    return true;
  } catch {
    return false; // full or forbidden
  }
};
const parsed = (text) => {
  try {
    return JSON.parse(text ?? 'null');
  } catch {
    return null;
  }
};

const QUIET_FOR = 5 * 60_000; // ms that the server keeps streamed text

export const kept = {
  language: () => get('localStorage', 'butler.language'),
  setLanguage: (v) => set('localStorage', 'butler.language', v),
  theme: () => get('localStorage', 'butler.theme') ?? 'system',
  setTheme: (v) => set('localStorage', 'butler.theme', v === 'system' ? null : v),

  user: () => parsed(get('localStorage', 'butler.user')),
  setUser: (user) => set('localStorage', 'butler.user', user && JSON.stringify(user)),

  draft: (user, thread) => get('sessionStorage', `butler.draft.${user}.${thread}`) ?? '',
  setDraft: (user, thread, text) => set('sessionStorage', `butler.draft.${user}.${thread}`, text),

  unsent: (user) => parsed(get('sessionStorage', `butler.unsent.${user}`)) ?? [],
  setUnsent: (user, list) => set('sessionStorage', `butler.unsent.${user}`, list.length ? JSON.stringify(list) : null),

  // Where each conversation's shell stood at the last answer.
  shells: (user) => parsed(get('sessionStorage', `butler.shells.${user}`)) ?? {},
  setShells: (user, shells) => set('sessionStorage', `butler.shells.${user}`, JSON.stringify(shells)),

  // The place in the stream from which a new page sees an answer under way from its beginning.
  quiet: (user, now) => {
    const quiet = parsed(get('localStorage', `butler.quiet.${user}`));
    return quiet && now - quiet.at < QUIET_FOR ? quiet.seq : null;
  },
  setQuiet: (user, quiet) => set('localStorage', `butler.quiet.${user}`, quiet && JSON.stringify(quiet)),

  /** Forgets everything that belongs to a person. */
  forget: (user) => {
    set('localStorage', 'butler.user', null);
    set('localStorage', `butler.quiet.${user}`, null);
    try {
      for (const key of Object.keys(sessionStorage)) if (key.startsWith('butler.')) sessionStorage.removeItem(key);
    } catch {
      // nothing was kept
    }
  },
};
