import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MAX_FRAME, MAX_TEXT, measure } from '../static/js/limits.js';
import { chatFrame } from '../static/js/api.js';

test('the text is counted in bytes', () => {
  assert.equal(measure('x'.repeat(MAX_TEXT)).fits, true);
  assert.equal(measure('x'.repeat(MAX_TEXT + 1)).fits, false);
  assert.equal(measure('字'.repeat(MAX_TEXT / 3)).fits, true);
  assert.deepEqual(measure('字'.repeat(MAX_TEXT / 3 + 1)), { bytes: 262_146, limit: MAX_TEXT, fits: false });
});

test('what fits as text but not as a frame does not fit', () => {
  const quotes = '"'.repeat(MAX_TEXT);
  assert.equal(measure(quotes).fits, false);
  for (const text of ['"'.repeat(261_000), '\n'.repeat(261_000), '\u0001'.repeat(87_000), '😀'.repeat(65_000)]) {
    const frame = new TextEncoder().encode(chatFrame(999_999_999, '0'.repeat(64), text)).length;
    if (measure(text).fits) assert.ok(frame <= MAX_FRAME, `${frame}`);
  }
});
