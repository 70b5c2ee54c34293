import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { choose, languages, setLanguage, sizeOf, strings, t } from '../static/js/i18n.js';

const source = new URL('../static/', import.meta.url);
const files = readdirSync(new URL('js/', source)).map((name) => [name, readFileSync(new URL(`js/${name}`, source), 'utf8')]);
const html = readFileSync(new URL('index.html', source), 'utf8');
const holes = (s) => [...s.matchAll(/\{(\w+)\}/g)].map((m) => m[1]).sort();

test('every language has every string, with the same holes, and none is empty', () => {
  for (const code of Object.keys(languages)) {
    assert.deepEqual(Object.keys(strings[code]).sort(), Object.keys(strings.en).sort(), code);
    for (const [key, words] of Object.entries(strings[code])) {
      assert.ok(words.trim(), `${code} ${key}`);
      assert.deepEqual(holes(words), holes(strings.en[key]), `${code} ${key}`);
    }
  }
});

test('Chinese strings are Chinese', () => {
  for (const [key, words] of Object.entries(strings.zh)) {
    if (/^(appName|butler|nearLimit|newAnswerTitle)$/.test(key)) continue;
    assert.match(words, /\p{Script=Han}/u, key);
  }
});

test('every string that the page asks for exists, and every string is asked for', () => {
  const asked = new Set();
  for (const [name, text] of files) {
    if (name === 'i18n.js') continue;
    for (const m of text.matchAll(/'([a-z]\w+)'/g)) asked.add(m[1]);
    for (const m of text.matchAll(/\bt\('(\w+)'/g)) assert.ok(Object.hasOwn(strings.en, m[1]), `${name}: ${m[1]}`);
  }
  for (const m of html.matchAll(/data-i18n="(\w+)"/g)) asked.add(m[1]);
  for (const m of html.matchAll(/data-i18n-attr="([^"]+)"/g)) for (const pair of m[1].split(';')) asked.add(pair.split(':')[1]);
  for (const name of ['system', 'light', 'dark']) asked.add(`theme_${name}`);
  for (const m of html.matchAll(/data-i18n(?:-attr)?="([^"]+)"/g)) {
    for (const pair of m[1].split(';')) assert.ok(Object.hasOwn(strings.en, pair.split(':').at(-1)), pair);
  }
  const i18n = files.find(([name]) => name === 'i18n.js')[1];
  for (const m of i18n.matchAll(/\bt\('(\w+)'/g)) asked.add(m[1]);
  assert.deepEqual(Object.keys(strings.en).filter((key) => !asked.has(key)), []);
});

test('the language follows the choice, then the browser', () => {
  assert.equal(choose('zh', ['en']), 'zh');
  assert.equal(choose(null, ['fr-FR', 'zh-Hant-TW', 'en']), 'zh');
  assert.equal(choose('xx', ['de']), 'en');
  assert.equal(choose('constructor', undefined), 'en');
});

test('holes are filled, and only with what was given', () => {
  setLanguage('en');
  assert.equal(t('deleteText', { title: '{title} $& x' }), '“{title} $& x” and all its messages will be deleted for good.');
  assert.equal(t('deleteText', {}), '“{title}” and all its messages will be deleted for good.');
  setLanguage('zh');
  assert.equal(t('cancel'), '取消');
  setLanguage('en');
});

test('sizes are words', () => {
  globalThis.navigator ??= { languages: ['en'] };
  assert.equal(sizeOf(256 * 1024), '256 KiB');
  assert.equal(sizeOf(1536), '1.5 KiB');
});
