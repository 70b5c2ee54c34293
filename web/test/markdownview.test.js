import './dom_shim.js';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hostileSample, markdownSample } from '../e2e/fake_server.mjs';

const { MarkdownView } = await import('../static/js/markdownview.js');

const whole = (text) => {
  const root = document.createElement('div');
  new MarkdownView(root).update(text);
  return root;
};

const samples = {
  markdown: markdownSample,
  hostile: hostileSample,
  'table after text': 'text\n| a | b |\n|---|---|\n| 1 | 2 |\nafter\n\n| c |\n|---|\n| 3 |\n',
  lists: '1. a\n\n   b\n2. c\n   - d\n     - e\n\n- f\n\n- g\n\nend **x',
  fences: '```js\na\n\nb\n```\nmid\n~~~\nc\n``\n~~~\n> q\n> ```\n> x\n\n```\nopen\nlines',
  headings: '# a\nb\n## c\n---\n***\ntext\n\n\n\n\nend\n',
};

for (const [name, text] of Object.entries(samples)) {
  test(`piece by piece gives the same as at once: ${name}`, () => {
    for (const size of [1, 2, 3, 7, 40]) {
      const root = document.createElement('div');
      const view = new MarkdownView(root);
      for (let i = size; i < text.length; i += size) view.update(text.slice(0, i));
      view.update(text);
      assert.equal(String(root), String(whole(text)), `pieces of ${size}`);
    }
  });
}

test('a text that is replaced is shown anew', () => {
  const root = document.createElement('div');
  const view = new MarkdownView(root);
  view.update('one\n\ntwo\n\nthree');
  view.update('other');
  assert.equal(String(root), '<div><p>other</p></div>');
  view.update('');
  assert.equal(String(root), '<div></div>');
});

test('only known elements and attributes are made, and links go where links may go', () => {
  const tags = new Set(['div', 'p', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'span', 'blockquote', 'hr', 'pre', 'code', 'button', 'svg', 'path',
    'table', 'thead', 'tbody', 'tr', 'th', 'td', 'em', 'strong', 'del', 'a', 'br']);
  const attributes = new Set(['class', 'href', 'title', 'target', 'rel', 'start', 'role', 'aria-label', 'aria-hidden', 'tabindex', 'type', 'scope',
    'viewBox', 'd']);
  for (const text of [hostileSample, markdownSample]) {
    for (const el of whole(text).all()) {
      assert.ok(tags.has(el.tag), el.tag);
      for (const name of el.attributes.keys()) assert.ok(attributes.has(name), `${el.tag} ${name}`);
      if (el.tag !== 'a') continue;
      assert.match(el.getAttribute('href'), /^(https?:|mailto:)/);
      assert.equal(el.getAttribute('rel'), 'noopener noreferrer');
      assert.equal(el.getAttribute('target'), '_blank');
    }
  }
});

test('a long answer that grows costs about as much as its length', () => {
  const block = 'A paragraph with **bold**, `code` and a [link](https://a.example).\n\n';
  const cost = (text) => {
    const view = new MarkdownView(document.createElement('div'));
    const before = performance.now();
    for (let i = 200; i < text.length; i += 200) view.update(text.slice(0, i));
    return performance.now() - before;
  };
  cost(block.repeat(200)); // warm
  const small = cost(block.repeat(400));
  const large = cost(block.repeat(1_600));
  assert.ok(large < Math.max(small, 5) * 12, `${small.toFixed(1)} ms for a quarter, ${large.toFixed(1)} ms for the whole`);
  assert.ok(cost('```\n' + 'x := 1 // a line of code\n'.repeat(4_000)) < 3_000);
});
