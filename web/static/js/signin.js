// The sign-in form.

import { api, ApiError } from './api.js';
import { $ } from './dom.js';
import { t } from './i18n.js';

/** Works the form. signedIn({id, username, role}) is called when the server accepted someone; by then it has set its
 * cookie, and the token of the answer was left alone. */
export function prepareSignIn(signedIn) {
  $('signin-form').addEventListener('submit', async (e) => {
    e.preventDefault();
    const username = $('username').value.trim();
    const password = $('password').value;
    if (!username || !password) {
      problem(t('signInEmpty'));
      $(username ? 'password' : 'username').focus();
      return;
    }
    const button = $('signin-submit');
    button.disabled = true;
    button.textContent = t('signingIn');
    problem('');
    try {
      const user = await api.login(username, password);
      $('password').value = '';
      await signedIn({ id: user?.id ?? 0, username: user?.username ?? username, role: user?.role ?? 'MEMBER' });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      problem(wordsFor(error));
      $('password').select();
    } finally {
      button.disabled = false;
      button.textContent = t('signIn');
    }
  });
  $('password-show').addEventListener('click', () => {
    const show = $('password').type === 'password';
    $('password').type = show ? 'text' : 'password';
    $('password-show').setAttribute('aria-pressed', String(show));
  });
}

/** Shows the form instead of the page, with words that say why ('' for none) and a name that is probably right. */
export function showSignIn(words, name) {
  $('app').hidden = true;
  $('signin').hidden = false;
  document.title = 'Butler';
  problem(words);
  if (name && !$('username').value) $('username').value = name;
  $($('username').value ? 'password' : 'username').focus();
}

/** Shows the page instead of the form. */
export function hideSignIn() {
  $('signin').hidden = true;
  $('app').hidden = false;
}

function problem(words) {
  $('signin-error').textContent = words;
  $('signin-error').hidden = words === '';
}

function wordsFor(error) {
  if (error.status === 401) return t('signInWrong');
  if (error.status === 429 && error.retryAfter) return t('signInLimited', { seconds: error.retryAfter });
  if (error.status === 503) return t('signInUnavailable');
  return error.message;
}
