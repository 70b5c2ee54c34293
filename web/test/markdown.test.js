import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inline, safeHref } from '../static/js/inline.js';
import { parse } from '../static/js/markdown.js';

// brief writes a tree in one line, so that cases stay readable.
function brief(n) {
  if (Array.isArray(n)) return n.map(brief).join('');
  if (typeof n === 'string') return n;
  switch (n.t) {
    case 'br': return '⏎';
    case 'code': return `<code>${n.text}</code>`;
    case 'a': return `<a ${n.href}>${brief(n.c)}</a>`;
    case 'h': return `<h${n.level}>${brief(n.c)}</h${n.level}>`;
    case 'hr': return '<hr>';
    case 'pre': return `<pre ${n.lang}${n.open ? ' open' : ''}>${n.text}</pre>`;
    case 'table':
      return `<table ${n.align.map((a) => a || '-').join()}>${n.head.map(brief).join('|')}` +
        n.rows.map((r) => ` / ${r.map(brief).join('|')}`).join('') + '</table>';
    case 'ul': case 'ol': {
      const items = n.items.map((i) => `<li${i.task === null ? '' : i.task ? ' x' : ' _'}>${brief(i.c)}</li>`).join('');
      return `<${n.t}${n.first > 1 ? ` ${n.first}` : ''}${n.tight ? '' : ' loose'}>${items}</${n.t}>`;
    }
    default: return `<${n.t}>${brief(n.c)}</${n.t}>`;
  }
}

const inlineCases = [
  ['plain text', 'plain text'],
  ['*a* **b** ***c*** ~~d~~', '<em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del>'],
  ['**bold *it* more**', '<strong>bold <em>it</em> more</strong>'],
  ['**“强调”**是中文，**重点**。', '<strong>“强调”</strong>是中文，<strong>重点</strong>。'],
  ['2 * 3 * 4 and snake_case_name', '2 * 3 * 4 and snake_case_name'],
  ['_a_ and __b__', '<em>a</em> and <strong>b</strong>'],
  ['**open and *half', '**open and *half'],
  ['****', '****'],
  ['`a` ``b ` c`` `open', '<code>a</code> <code>b ` c</code> `open'],
  ['`**not bold**`', '<code>**not bold**</code>'],
  [String.raw`\*not\* \q`, String.raw`*not* \q`],
  ['one  \ntwo\nthree', 'one⏎two⏎three'],
  ['[x](https://a.example/b_(c)) end', '<a https://a.example/b_(c)>x</a> end'],
  ['[**x** `y`](<https://a.example/> "title")', '<a https://a.example/><strong>x</strong> <code>y</code></a>'],
  ['[](https://a.example)', '<a https://a.example>https://a.example</a>'],
  ['[mail](mailto:a@b.example)', '<a mailto:a@b.example>mail</a>'],
  ['[a [b](https://b.example) c](https://c.example)', '<a https://c.example>a b c</a>'],
  ['[half](https://a.exam', '[half](<a https://a.exam>https://a.exam</a>'],
  ['[no target] [ ]', '[no target] [ ]'],
  ['![pic](https://a.example/p.png)', '<a https://a.example/p.png>pic</a>'],
  ['![](https://a.example/p.png)', '<a https://a.example/p.png>https://a.example/p.png</a>'],
  ['see https://a.example/x?y=1. Then', 'see <a https://a.example/x?y=1>https://a.example/x?y=1</a>. Then'],
  ['(https://a.example/w_(x))', '(<a https://a.example/w_(x)>https://a.example/w_(x)</a>)'],
  ['看https://a.example/文档，好', '看<a https://a.example/>https://a.example/</a>文档，好'],
  ['**https://a.example**', '<strong><a https://a.example>https://a.example</a></strong>'],
  ['<https://a.example> <b>', '<a https://a.example>https://a.example</a> <b>'],
  ['xhttps://a.example', 'xhttps://a.example'],
];
for (const [source, want] of inlineCases) {
  test(`inline: ${JSON.stringify(source)}`, () => assert.equal(brief(inline(source)), want));
}

const hostile = [
  'javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\tscript:alert(1)', '\u0001javascript:alert(1)',
  'data:text/html,<script>alert(1)</script>', 'vbscript:x', 'file:///etc/passwd', '//evil.example', '/api/auth/logout',
  'https:/evil', 'https://', 'https:// x', 'blob:https://a.example/x', 'https://a.example/\u202egnp.exe', 'mailto:x',
];
for (const href of hostile) {
  test(`no link: ${JSON.stringify(href)}`, () => {
    assert.equal(safeHref(href), '');
    const seen = JSON.stringify(parse(`[click](${href}) ![i](${href}) <${href}>`));
    assert.doesNotMatch(seen, /"href":"(?!https?:|mailto:)/i);
  });
}

const blockCases = [
  ['# A\n## B ##\n####### no', '<h1>A</h1><h2>B</h2><p>####### no</p>'],
  ['a\n\nb', '<p>a</p><p>b</p>'],
  ['---\n***\n_ _ _', '<hr><hr><hr>'],
  ['```js\nlet a;\n\n<b>\n```\nafter', '<pre js>let a;\n\n<b></pre><p>after</p>'],
  ['````\n```\nx\n```\n````', '<pre >```\nx\n```</pre>'],
  ['~~~ py extra\nx', '<pre py open>x</pre>'],
  ['text\n```\nopen', '<p>text</p><pre  open>open</pre>'],
  ['- a\n- b\n  - c\n    - d\n- e', '<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><ul><li><p>d</p></li></ul></li></ul></li>' +
    '<li><p>e</p></li></ul>'],
  ['1. a\n   ```sh\n   ls\n   ```\n2. b', '<ol><li><p>a</p><pre sh>ls</pre></li><li><p>b</p></li></ol>'],
  ['3) a\n4) b', '<ol 3><li><p>a</p></li><li><p>b</p></li></ol>'],
  ['- a\n\n- b', '<ul loose><li><p>a</p></li><li><p>b</p></li></ul>'],
  ['- [ ] a\n- [x] b', '<ul><li _><p>a</p></li><li x><p>b</p></li></ul>'],
  ['- a\nlazy\n\nnext', '<ul><li><p>a⏎lazy</p></li></ul><p>next</p>'],
  ['text\n- a', '<p>text</p><ul><li><p>a</p></li></ul>'],
  ['in the year\n1984. no list', '<p>in the year⏎1984. no list</p>'],
  ['> a\n> > b\n> - c\nafter', '<quote><p>a</p><quote><p>b</p></quote><ul><li><p>c</p></li></ul></quote><p>after</p>'],
  ['| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 \\| 3 |\n\nend',
    '<table -,center>a|b / 1|<code>x|y</code> / 2 | 3|</table><p>end</p>'],
  ['a | b\n--|--:\n1 | 2', '<table -,right>a|b / 1|2</table>'],
  ['intro\n| a |\n|---|\n| 1 |', '<p>intro</p><table ->a / 1</table>'],
  ['| a | b |\n|---', '<p>| a | b |⏎|---</p>'],
  ['a | b\n---|---|---', '<p>a | b⏎---|---|---</p>'],
  ['<script>alert(1)</script>\n<img src=x onerror=alert(1)>', '<p><script>alert(1)</script>⏎<img src=x onerror=alert(1)></p>'],
  ['a\r\nb\r\n\r\n- c\r\n', '<p>a⏎b</p><ul><li><p>c</p></li></ul>'],
  ['', ''],
];
for (const [source, want] of blockCases) {
  test(`blocks: ${JSON.stringify(source)}`, () => assert.equal(brief(parse(source)), want));
}

// deepest measures nesting, which a page walks by recursion.
function deepest(n) {
  if (Array.isArray(n)) return n.reduce((d, c) => Math.max(d, deepest(c)), 0);
  if (typeof n === 'string' || !n) return 0;
  return 1 + Math.max(deepest(n.c ?? []), deepest((n.items ?? []).map((i) => i.c)));
}

const floods = {
  stars: '*'.repeat(100_000),
  'open emphasis': '*a '.repeat(40_000),
  'nested emphasis': '*a '.repeat(20_000) + 'a* '.repeat(20_000),
  brackets: '['.repeat(100_000),
  'closed brackets': '['.repeat(50_000) + '](https://a.example)'.repeat(3_000),
  backticks: Array.from({ length: 440 }, (_, i) => '`'.repeat(i + 1)).join(' '),
  quotes: '>'.repeat(100_000),
  'quoted lines': '> > > > > > > > > > x\n'.repeat(5_000),
  lists: Array.from({ length: 500 }, (_, i) => ' '.repeat(i) + '- x').join('\n'),
  'spaces before a newline': `a${' '.repeat(100_000)}b\n`.repeat(2),
  'spaces in a fence line': '```' + ' '.repeat(100_000) + '`',
  'spaces in a table line': `|a\n---${' '.repeat(100_000)}x`,
  'spaces in a target': `[a](${' '.repeat(100_000)}x`.repeat(2),
  'hashes in a heading': '# ' + '#'.repeat(100_000) + ' #'.repeat(20_000) + ' x',
  'dots after an address': 'https://a' + '.'.repeat(100_000) + 'b',
  'parentheses in an address': 'https://a' + ')'.repeat(100_000),
  pipes: '|'.repeat(50_000) + '\n' + '|-'.repeat(50_000),
  'table heads': 'a|b\n-|-\n'.repeat(10_000),
  'one line': 'word '.repeat(50_000),
  angles: '<https://'.repeat(10_000),
  'long fence': '`'.repeat(60_000) + '\nx\n' + '`'.repeat(59_999),
};
for (const [name, source] of Object.entries(floods)) {
  test(`flood: ${name}`, () => {
    const before = performance.now();
    const tree = parse(source);
    const spent = performance.now() - before;
    assert.ok(spent < 1_500, `took ${spent.toFixed(0)} ms`);
    assert.ok(deepest(tree) < 200, `nesting ${deepest(tree)}`);
  });
}

test('no input throws, and every kind is a known one', () => {
  const known = new Set(['p', 'h', 'quote', 'hr', 'pre', 'ul', 'ol', 'table', 'em', 'strong', 'del', 'a', 'code', 'br']);
  const alphabet = ['*', '_', '`', '```', '[', ']', '(', ')', '!', '<', '>', '|', '-', '\n', '\n\n', ' ', '    ', '#', '~~', '\\', 'a', '1.', 'https://a.example', ':'];
  let seed = 7;
  const next = () => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648);
  const walk = (n) => {
    if (Array.isArray(n)) return n.forEach(walk);
    if (typeof n === 'string') return undefined;
    assert.ok(known.has(n.t), JSON.stringify(n));
    for (const part of [n.c, n.head, n.rows, n.items?.map((i) => i.c)]) if (part) walk(part);
    return undefined;
  };
  for (let round = 0; round < 3_000; round++) {
    let source = '';
    for (let k = next() % 40; k >= 0; k--) source += alphabet[next() % alphabet.length];
    walk(parse(source));
  }
});
