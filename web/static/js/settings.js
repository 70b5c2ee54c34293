// Language and appearance: chosen here, kept by the browser.

import { $, fillIn, h } from './dom.js';
import { choose, language, languages, setLanguage, t } from './i18n.js';
import { kept } from './kept.js';

/** Applies the kept choices, and calls changed() after each change of language. */
export function prepareSettings(changed) {
  apply(choose(kept.language(), navigator.languages ?? [navigator.language]));

  function apply(code) {
    setLanguage(code);
    document.documentElement.lang = code === 'zh' ? 'zh-CN' : code;
    fillIn();
    draw();
    changed();
  }

  function draw() {
    const codes = Object.keys(languages);
    for (const place of ['languages', 'signin-languages']) {
      $(place).replaceChildren(...codes.map((code, i) => segment(languages[code], code === language(), () => {
        kept.setLanguage(code);
        apply(code);
        $(place).children[i].focus();
      }, code === 'zh' ? 'zh-CN' : code)));
    }
    $('themes').replaceChildren(...['system', 'light', 'dark'].map((theme, i) => segment(t(`theme_${theme}`), kept.theme() === theme, () => {
      kept.setTheme(theme);
      if (theme === 'system') delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      draw();
      $('themes').children[i].focus();
    })));
  }
}

const segment = (text, chosen, act, lang) => (
  h('button', { type: 'button', 'aria-pressed': String(chosen), lang, onclick: act }, text)
);
