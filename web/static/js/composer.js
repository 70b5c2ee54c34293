// The message box: drafts, limits, Enter and input methods.

import { $ } from './dom.js';
import { sizeOf, t } from './i18n.js';
import { measure } from './limits.js';

const DRAFT_AFTER = 250; // ms without typing

/** Is this Enter meant to send? Not while an input method composes: its Enter chooses a candidate. Safari ends the
 * composition before the key arrives and marks that key with code 229. */
export const sends = (e) => e.key === 'Enter' && !e.shiftKey && !e.altKey && !e.isComposing && e.keyCode !== 229;

/**
 * The box. hooks: {send(text) → promise of true when the text was taken, stop(), draft() → text, setDraft(text)}.
 * Drafts belong to the open thread; the caller knows which.
 */
export class Composer {
  #form = $('composer');
  #text = $('composer-text');
  #send = $('send');
  #stop = $('stop');
  #hooks;
  #timer = null;
  #sending = false;
  #composing = false;

  constructor(hooks) {
    this.#hooks = hooks;
    this.#text.addEventListener('input', () => {
      this.#changed();
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.save(), DRAFT_AFTER);
    });
    this.#text.addEventListener('compositionstart', () => (this.#composing = true));
    this.#text.addEventListener('compositionend', () => (this.#composing = false));
    this.#text.addEventListener('keydown', (e) => {
      if (!sends(e) || this.#composing) return;
      e.preventDefault();
      this.#submit();
    });
    this.#form.addEventListener('submit', (e) => {
      e.preventDefault();
      this.#submit();
    });
    this.#stop.addEventListener('click', () => hooks.stop());
    addEventListener('pagehide', () => this.save());
    document.addEventListener('visibilitychange', () => document.hidden && this.save());
  }

  /** Keeps what is written as the draft of the open thread. */
  save() {
    clearTimeout(this.#timer);
    if (!this.#sending) this.#hooks.setDraft(this.#text.value);
  }

  /** Shows the draft of the open thread. */
  load() {
    clearTimeout(this.#timer);
    this.#text.value = this.#hooks.draft();
    this.#changed();
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  /** Shows the stop button while an answer is under way; stopping says that it was pressed. */
  busy(answering, stopping) {
    const hadFocus = document.activeElement === this.#stop;
    this.#stop.hidden = !answering;
    this.#stop.disabled = stopping;
    const label = t(stopping ? 'stopping' : 'stopAnswer');
    this.#stop.setAttribute('aria-label', label);
    this.#stop.title = label;
    if (hadFocus && (!answering || stopping)) this.focus();
  }

  /** Says why something was not sent; '' takes it away. */
  problem(words) {
    const el = $('composer-problem');
    if (el.textContent !== words) el.textContent = words;
    el.hidden = words === '';
    this.#text.toggleAttribute('aria-invalid', words !== '');
  }

  /** Measures and words everything again, after a change of language. */
  refresh() {
    this.#changed();
  }

  #changed() {
    const value = this.#text.value;
    const size = measure(value);
    this.problem(size.fits ? '' : t('tooLong', { size: sizeOf(size.bytes), limit: sizeOf(size.limit) }));
    $('composer-size').textContent = size.bytes > size.limit * 0.8 && size.fits
      ? t('nearLimit', { size: sizeOf(size.bytes), limit: sizeOf(size.limit) }) : '';
    this.#send.disabled = value.trim() === '' || !size.fits || this.#sending;
    // The box grows with its text up to the height that its style allows. A long text is not measured by layout.
    this.#text.style.height = 'auto';
    this.#text.style.height = `${Math.min(this.#text.scrollHeight, 400)}px`;
  }

  async #submit() {
    const text = this.#text.value.trimEnd();
    if (text.trim() === '' || this.#sending || !measure(text).fits) return;
    this.#sending = true;
    clearTimeout(this.#timer);
    this.#text.value = '';
    this.#changed();
    let taken = false;
    try {
      taken = await this.#hooks.send(text);
    } finally {
      this.#sending = false;
      // What was not taken comes back, in front of what was written meanwhile.
      const problem = $('composer-problem').textContent;
      if (!taken) this.#text.value = [text, this.#text.value].filter((s) => s.trim() !== '').join('\n\n');
      this.#changed();
      if (!taken && measure(this.#text.value).fits) this.problem(problem);
      this.save();
    }
  }
}
