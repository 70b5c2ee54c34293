// The page in a real browser. See harness.mjs for the server that it speaks to.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import {
  answer, answers, cutConnection, newThread, openPage, pass, prompts, real, say, shot, signIn, slowPrompt, start, streaming, user,
} from './harness.mjs';
import { patientSample } from './fake_server.mjs';

let world;
before(async () => {
  world = await start();
});
after(() => world.close());

// scripted marks tests that need answers or faults which only the scripted server gives.
const scripted = real ? { skip: 'needs the scripted server: run without BUTLER_E2E_URL' } : {};

// withPage runs a test in a profile of its own, signed in, in a new conversation; and fails it for page errors.
async function withPage(run, options = {}) {
  const context = await world.context(options);
  try {
    const page = await openPage(context, world.url);
    await signIn(page);
    await newThread(page);
    await run(page, context);
    assert.deepEqual(context.problems, []);
  } finally {
    await context.close();
  }
}

const textOf = async (locator) => (await locator.innerText()).replace(/\s+/g, ' ').trim();
const wideness = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

describe('signing in', () => {
  test('a wrong password is refused in words, the right one opens the page, and no token is kept', async () => {
    const context = await world.context();
    const page = await openPage(context, world.url);
    await page.locator('#signin-submit').click();
    assert.match(await page.locator('#signin-error').innerText(), /Enter your user name/);
    await page.locator('#username').fill(user);
    await page.locator('#password').fill('not this one');
    await page.keyboard.press('Enter');
    await page.locator('#signin-error').waitFor();
    assert.match(await page.locator('#signin-error').innerText(), /not right/);
    await signIn(page);
    assert.equal(await page.locator('#connection-text').innerText(), 'Online');
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
    const cookie = (await context.cookies()).find((c) => c.name === 'butler_session');
    assert.equal(cookie.httpOnly, true);
    assert.ok(!kept.includes(cookie.value));
    assert.doesNotMatch(page.url(), /token/);
    await page.reload();
    await page.locator('#connection[data-state="online"]').waitFor();
    await page.locator('#account').click();
    await page.locator('#sign-out').click();
    await page.locator('#signin-form').waitFor();
    await page.reload();
    await page.locator('#signin-form').waitFor();
    assert.deepEqual(context.problems, []);
    await context.close();
  });

  test('a lost sign-in keeps the draft', scripted, () => withPage(async (page) => {
    await page.locator('#composer-text').fill('half a thought');
    world.fake.revoke();
    await page.locator('#signin-error').waitFor();
    assert.match(await page.locator('#signin-error').innerText(), /kept/);
    assert.equal(await page.locator('#username').inputValue(), user);
    await signIn(page);
    assert.equal(await page.locator('#composer-text').inputValue(), 'half a thought');
  }));
});

describe('talking', () => {
  test('a message is shown at once, the answer streams and stays after a reload', () => withPage(async (page) => {
    await say(page, slowPrompt);
    assert.equal(await page.locator('.message.person .text').innerText(), slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    const first = await textOf(streaming(page).locator('.text'));
    world.fake?.release();
    await page.waitForFunction((n) => document.querySelector('.message.butler .text').innerText.length > n, first.length);
    const done = await answer(page);
    const whole = await textOf(done.locator('.text'));
    assert.ok(whole.length > first.length);
    assert.ok(await page.locator('#title').innerText() !== 'New conversation');
    assert.match(await page.locator('#announcer').innerText(), /^Butler answered: /);
    assert.equal(await page.locator('#stop').isHidden(), true);
    await page.reload();
    assert.equal(await textOf((await answer(page)).locator('.text')), whole);
  }));

  test('Markdown is shown as it is meant', () => withPage(async (page) => {
    await say(page, prompts.markdown);
    const text = (await answer(page)).locator('.text');
    assert.equal(await text.locator('h3').innerText(), 'Disk usage on web-1');
    assert.equal(await text.locator('table tbody tr').count(), 3);
    assert.equal(await text.locator('ol > li').count(), 2);
    assert.equal(await text.locator('ol ul > li').count(), 2);
    assert.equal(await text.locator('.box.checked').count(), 1);
    assert.equal(await text.locator('a').getAttribute('rel'), 'noopener noreferrer');
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await text.locator('.code-copy').click();
    await text.locator('.code-copy', { hasText: 'Copied' }).waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^sudo journalctl[^]*-delete$/);
    await shot(page, 'markdown');
  }));

  test('hostile Markdown stays text', () => withPage(async (page) => {
    const outside = [];
    page.on('request', (r) => !r.url().startsWith(world.url) && outside.push(r.url()));
    await say(page, prompts.hostile);
    const text = (await answer(page)).locator('.text');
    assert.equal(await text.locator('script, img, iframe, svg:not(.icon), [onerror], [onload], [onmouseover], [srcdoc]').count(), 0);
    const hrefs = await text.locator('a').evaluateAll((all) => all.map((a) => a.protocol));
    assert.ok(hrefs.every((p) => p === 'https:'), String(hrefs));
    assert.match(await text.innerText(), /<img src=x onerror="window\.pwned=1">/);
    assert.equal(await page.evaluate(() => window.pwned), undefined);
    assert.deepEqual(outside, []);
    await say(page, '<img src=x onerror="window.pwned=20">**no**');
    await answer(page, 2);
    assert.equal(await page.locator('.message.person .text').last().innerText(), '<img src=x onerror="window.pwned=20">**no**');
    assert.equal(await page.evaluate(() => window.pwned), undefined);
    assert.equal(await page.locator('#log img').count(), 0);
  }));

  test('stop ends the answer: by the button, and by Escape', () => withPage(async (page) => {
    await say(page, slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    await page.locator('#stop').click();
    const first = await answer(page);
    assert.equal(await first.getAttribute('data-status'), 'stopped');
    assert.match(await first.innerText(), /Stopped/);
    await say(page, slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    await page.keyboard.press('Escape');
    assert.equal(await (await answer(page, 2)).getAttribute('data-status'), 'stopped');
    await page.locator('#stop').waitFor({ state: 'hidden' });
  }));

  test('a failed answer says so and can be asked again', scripted, () => withPage(async (page) => {
    await say(page, 'fail');
    const failed = await answer(page);
    assert.equal(await failed.getAttribute('data-status'), 'failed');
    assert.match(await failed.innerText(), /The model does not answer[^]*No answer/);
    await failed.getByRole('button', { name: 'Ask again' }).click();
    await answer(page, 2);
  }));

  test('a refused message says why, and goes out again when told', scripted, () => withPage(async (page) => {
    await say(page, 'refuse');
    const refused = page.locator('.message.person[data-status="error"]');
    await refused.waitFor();
    assert.match(await refused.innerText(), /Not sent\.\s+Too many messages/);
    await refused.getByRole('button', { name: 'Try again' }).click();
    assert.match(await (await answer(page)).innerText(), /You said: refuse/);
    assert.equal(await page.locator('.message.person').count(), 1);
  }));

  test('an abandoned stream is replaced by the one that follows', scripted, () => withPage(async (page) => {
    await say(page, 'restart');
    await page.locator('.message.butler', { hasText: 'starts again' }).waitFor();
    const text = await (await answer(page)).innerText();
    assert.match(text, /The second try is the whole answer\./);
    assert.doesNotMatch(text, /ABANDONED/);
  }));

  test('two questions at once are answered in order, each below its own', scripted, () => withPage(async (page) => {
    await say(page, 'patient');
    await streaming(page).waitFor();
    await say(page, 'second');
    await page.getByText('Waits for the answer before it.').waitFor();
    world.fake.release();
    await page.locator('.message.butler', { hasText: 'You said: second' }).waitFor();
    await answer(page, 2);
    const all = await page.locator('.message .text').allInnerTexts();
    assert.deepEqual(all.map((x) => x.slice(0, 8)), ['patient', 'word0 wo', 'second', 'You said']);
  }));

  test('too long a message is refused before it is sent, and nothing is lost', () => withPage(async (page) => {
    const box = page.locator('#composer-text');
    await box.fill('字'.repeat(90_000));
    await page.locator('#composer-problem').waitFor();
    assert.match(await page.locator('#composer-problem').innerText(), /has 264 KiB\. At most 256 KiB/);
    assert.equal(await page.locator('#send').isDisabled(), true);
    await box.press('Enter');
    assert.equal(await page.locator('.message').count(), 0);
    assert.equal((await box.inputValue()).length, 90_000);
    await box.fill('short');
    assert.equal(await page.locator('#composer-problem').isHidden(), true);
    assert.equal(await page.locator('#send').isDisabled(), false);
  }));

  test('Enter that ends a composition does not send', () => withPage(async (page, context) => {
    await page.locator('#composer-text').focus();
    const keys = await context.newCDPSession(page);
    await keys.send('Input.imeSetComposition', { text: 'ni hao', selectionStart: 6, selectionEnd: 6 });
    const composing = { type: 'rawKeyDown', key: 'Enter', code: 'Enter', windowsVirtualKeyCode: 13 };
    await keys.send('Input.dispatchKeyEvent', composing);
    await keys.send('Input.dispatchKeyEvent', { ...composing, type: 'keyUp' });
    assert.equal(await page.locator('.message').count(), 0);
    await keys.send('Input.insertText', { text: '你好' });
    assert.match(await page.locator('#composer-text').inputValue(), /^你好/);
    await page.locator('#composer-text').evaluate((el) => {
      // Safari: the composition has ended when its Enter arrives, marked only by the code.
      el.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true, cancelable: true }));
    });
    assert.equal(await page.locator('.message').count(), 0);
    await page.locator('#composer-text').fill('你好');
    await page.keyboard.press('Shift+Enter');
    assert.equal(await page.locator('#composer-text').inputValue(), '你好\n');
    await page.keyboard.press('Enter');
    assert.equal(await page.locator('.message.person .text').innerText(), '你好');
  }));
});

describe('when the connection breaks', () => {
  test('the answer goes on after a break in its middle, whole', () => withPage(async (page) => {
    await say(page, slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    await cutConnection(page);
    await page.locator('#connection:not([data-state="online"])').waitFor();
    await page.locator('#connection[data-state="online"]').waitFor();
    world.fake?.release();
    const text = await textOf((await answer(page)).locator('.text'));
    if (!real) assert.equal(text, patientSample);
    await page.reload();
    assert.equal(await textOf((await answer(page)).locator('.text')), text);
    assert.equal(await answers(page).count(), 1);
  }));

  test('a page that is loaded again in mid-answer shows it from its beginning', () => withPage(async (page) => {
    await say(page, slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    const begun = (n) => page.waitForFunction((least) => {
      const text = document.querySelector('.message.butler .text')?.innerText ?? '';
      return text.length >= least && text;
    }, n);
    const before = await (await begun(24)).jsonValue();
    await page.reload();
    await streaming(page).waitFor({ timeout: 60_000 });
    assert.equal((await (await begun(24)).jsonValue()).slice(0, 24), before.slice(0, 24));
    world.fake?.release();
    await answer(page);
  }));

  test('what is written meanwhile is sent afterwards, once, and survives a reload', scripted, () => withPage(async (page) => {
    await say(page, 'hello');
    await answer(page);
    world.fake.refuseSockets(true);
    try {
      world.fake.dropSockets();
      await page.locator('#connection[data-state="offline"]').waitFor();
      await say(page, 'written offline');
      await page.getByText('Will be sent when the connection is back.').waitFor();
      await page.reload();
      await page.getByText('written offline').first().waitFor();
      await shot(page, 'offline');
    } finally {
      world.fake.refuseSockets(false);
    }
    await page.locator('#connection-retry').click();
    await page.locator('.message.butler', { hasText: 'You said: written offline' }).waitFor();
    assert.equal(await page.locator('.message.person', { hasText: 'written offline' }).count(), 1);
    assert.equal(await page.evaluate(() => Object.keys(sessionStorage).some((k) => k.includes('unsent'))), false);
  }));

  test('after a gap the history is loaded again', scripted, () => withPage(async (page) => {
    await say(page, 'before');
    await answer(page);
    const again = page.waitForResponse((r) => /\/messages\?/.test(r.url()));
    world.fake.gap();
    await (await again).finished();
    assert.equal(await answers(page).count(), 1);
  }));
});

describe('several tabs', () => {
  test('a second tab follows, and closing one leaves the other alone', () => withPage(async (page, context) => {
    await say(page, slowPrompt);
    await streaming(page).waitFor({ timeout: 60_000 });
    const second = await openPage(context, page.url());
    await streaming(second).waitFor({ timeout: 60_000 });
    await page.close();
    world.fake?.release();
    const text = await textOf((await answer(second)).locator('.text'));
    assert.ok(text.length > 0);
    await say(second, 'and again');
    await answer(second, 2);
    assert.equal(await second.locator('.message.person').count(), 2);
  }));

  test('what is sent in one tab appears in the other, and signing out holds for both', () => withPage(async (page, context) => {
    await say(page, 'first');
    await answer(page);
    const second = await openPage(context, page.url());
    await answer(second);
    await say(second, 'from the second tab');
    await page.locator('.message.person', { hasText: 'from the second tab' }).waitFor();
    await answer(page, 2);
    await second.locator('#account').click();
    await second.locator('#sign-out').click();
    await page.locator('#signin-form').waitFor();
  }));
});

describe('conversations', () => {
  test('rename, pin, archive with undo, delete with a question; drafts stay with their conversation', () => withPage(async (page) => {
    const title = `Plan ${Date.now()}`;
    await say(page, title);
    await answer(page);
    const item = page.locator('.thread', { hasText: title });
    await page.locator('#composer-text').fill('draft of the plan');
    await newThread(page);
    assert.equal(await page.locator('#composer-text').inputValue(), '');
    await item.locator('.thread-link').click();
    assert.equal(await page.locator('#composer-text').inputValue(), 'draft of the plan');
    const menu = async (name, on = item) => {
      await on.hover();
      await on.locator('.thread-more').click();
      await page.locator('body > .menu').getByRole('button', { name, exact: true }).click();
    };
    await menu('Rename');
    await page.locator('dialog input').fill(`${title} renamed`);
    await page.keyboard.press('Enter');
    await page.locator('#title', { hasText: 'renamed' }).waitFor();
    await menu('Pin');
    await item.locator('.pin').waitFor();
    assert.match(await page.locator('.thread').first().innerText(), /renamed/);
    await menu('Archive');
    await page.locator('.notice').getByRole('button', { name: 'Undo' }).click();
    await page.locator('.threads > ul .thread', { hasText: title }).waitFor();
    await menu('Delete');
    await page.locator('dialog').getByRole('button', { name: 'Cancel' }).click();
    assert.equal(await item.count(), 1);
    await menu('Delete');
    await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
    await item.waitFor({ state: 'detached' });
    await page.reload();
    await page.locator('#connection[data-state="online"]').waitFor();
    assert.equal(await item.count(), 0);
  }));

  test('a long history is paged from its end, and the page stays small', scripted, () => withPage(async (page) => {
    const id = world.fake.fill(1, 'A long one', 400);
    await page.goto(`${world.url}/#/t/${id}`);
    await page.reload();
    await page.getByText('Question 400', { exact: true }).waitFor();
    const log = page.locator('#log');
    const until = Date.now() + 30_000;
    while (Date.now() < until && !(await page.getByText('The beginning of the conversation').count())) {
      await log.evaluate((el) => (el.scrollTop = 0));
      await page.waitForTimeout(60);
      assert.ok(await page.locator('.message').count() <= 160);
    }
    await page.getByText('Question 1', { exact: true }).waitFor();
    await page.getByText('The beginning of the conversation').waitFor();
    assert.equal(await page.getByText('Question 400', { exact: true }).count(), 0);
    await page.locator('#to-latest').click();
    await page.getByText('Question 400', { exact: true }).waitFor();
    assert.ok(await page.locator('.message').count() <= 160);
  }));

  test('reading above is not disturbed by what comes below', scripted, () => withPage(async (page) => {
    const id = world.fake.fill(1, 'Reading', 40);
    await page.goto(`${world.url}/#/t/${id}`);
    await page.reload();
    await page.getByText('Question 40', { exact: true }).waitFor();
    await say(page, 'patient');
    await streaming(page).waitFor();
    // The reader scrolls in the very moment after the page moved to the end by itself: it must not be taken for the page's.
    const place = await page.locator('#log').evaluate((el) => {
      document.querySelector('#to-latest').click();
      el.scrollTop -= 600;
      return el.scrollTop;
    });
    await page.locator('#to-latest').waitFor();
    world.fake.release();
    await page.locator('#stop').waitFor({ state: 'hidden' });
    assert.ok(Math.abs((await page.locator('#log').evaluate((el) => el.scrollTop)) - place) < 4);
  }));

  test('an answer of 150 KB streams without stalling the page', scripted, () => withPage(async (page) => {
    await page.evaluate(() => {
      window.longest = 0;
      let last = performance.now();
      const tick = () => {
        const now = performance.now();
        window.longest = Math.max(window.longest, now - last);
        last = now;
        requestAnimationFrame(tick);
      };
      tick();
    });
    await say(page, 'big');
    const done = await answer(page);
    assert.match(await done.locator('.text').innerText(), /end of big$/);
    const longest = await page.evaluate(() => window.longest);
    assert.ok(longest < 1_500, `a frame took ${longest.toFixed(0)} ms`);
  }));
});

describe('for everybody', () => {
  test('Chinese by choice and by the browser, and it stays', async () => {
    const context = await world.context({ locale: 'zh-CN' });
    const page = await openPage(context, world.url);
    await page.getByRole('button', { name: '登录', exact: true }).waitFor();
    assert.equal(await page.locator('html').getAttribute('lang'), 'zh-CN');
    await signIn(page);
    await newThread(page);
    assert.equal(await page.locator('#connection-text').innerText(), '在线');
    await say(page, '你好');
    await answer(page);
    await page.locator('#account').click();
    await page.locator('#languages').getByRole('button', { name: 'English' }).click();
    await page.locator('#connection-text', { hasText: 'Online' }).waitFor();
    assert.equal(await page.locator('html').getAttribute('lang'), 'en');
    await page.locator('.day', { hasText: 'Today' }).waitFor();
    await page.reload();
    await page.locator('#new-thread', { hasText: 'New conversation' }).waitFor();
    assert.deepEqual(context.problems, []);
    await context.close();
  });

  test('light and dark follow the system and the switch', () => withPage(async (page) => {
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await back();
    await page.emulateMedia({ colorScheme: 'light' });
    const light = await back();
    assert.notEqual(dark, light);
    await page.locator('#account').click();
    await page.locator('#themes').getByRole('button', { name: 'Dark' }).click();
    assert.equal(await back(), dark);
    await page.reload();
    await page.locator('#connection[data-state="online"]').waitFor();
    assert.equal(await back(), dark);
  }, { colorScheme: 'dark' }));

  test('on a phone nothing scrolls sideways, targets are large, and the list is a drawer', async () => {
    const context = await world.context({ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
    const page = await openPage(context, world.url);
    await page.locator('#signin-form').waitFor();
    assert.equal(await wideness(page), 0);
    await signIn(page);
    await page.locator('#side-open').tap();
    await page.locator('#side.shown').waitFor();
    await shot(page, 'phone-drawer');
    await page.locator('#new-thread').tap();
    await page.locator('#side.shown').waitFor({ state: 'detached' });
    await say(page, prompts.markdown);
    await answer(page);
    assert.equal(await wideness(page), 0);
    assert.equal(await page.locator('#log').evaluate((el) => el.scrollWidth - el.clientWidth), 0);
    await shot(page, 'phone-answer');
    const small = await page.locator('button:visible, input:visible, textarea:visible, select:visible').evaluateAll((all) => all
      .filter((el) => !el.closest('[inert]'))
      .map((el) => ({ id: el.id || el.className, box: el.getBoundingClientRect(), font: getComputedStyle(el).fontSize, tag: el.tagName }))
      .filter(({ box, font, tag }) => box.height < 43.5 || box.width < 43.5 || (tag !== 'BUTTON' && parseFloat(font) < 16))
      .map(({ id, box }) => `${id} ${box.width}×${box.height}`));
    assert.deepEqual(small, []);
    await page.locator('#side-open').tap();
    await page.locator('#account').tap();
    await page.locator('#open-tokens').tap();
    await page.locator('dialog[open]').waitFor();
    assert.equal(await wideness(page), 0);
    assert.equal(await page.locator('dialog').evaluate((el) => el.scrollWidth - el.clientWidth), 0);
    await shot(page, 'phone-tokens');
    assert.deepEqual(context.problems, []);
    await context.close();
  });

  test('everything can be done with the keyboard', async () => {
    const context = await world.context();
    const page = await openPage(context, world.url);
    await page.locator('#username').waitFor();
    const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.className);
    assert.equal(await focused(), 'username');
    await page.keyboard.type(user);
    await page.keyboard.press('Tab');
    await page.keyboard.type(pass);
    await page.keyboard.press('Enter');
    await page.locator('#connection[data-state="online"]').waitFor();
    assert.equal(await focused(), 'composer-text');
    await page.keyboard.press('Control+Shift+O');
    await page.keyboard.type('by keyboard');
    await page.keyboard.press('Enter');
    await answer(page);
    assert.equal(await focused(), 'composer-text');
    await page.keyboard.press('Control+k');
    assert.equal(await focused(), 'search');
    await page.keyboard.type('by keyboard');
    await page.keyboard.press('Enter');
    assert.equal(await focused(), 'composer-text');
    await page.keyboard.press('Control+/');
    await page.locator('dialog[open] kbd').first().waitFor();
    await page.keyboard.press('Escape');
    await page.locator('dialog[open]').waitFor({ state: 'detached' });
    assert.equal(await focused(), 'composer-text');
    // Backwards from the message box: the conversation, which scrolls by arrow keys; then every control shows its focus.
    await page.keyboard.press('Shift+Tab');
    let seen = '';
    for (let n = 0; n < 40 && !seen.includes('account '); n++) {
      const ring = await page.evaluate(() => {
        const el = document.activeElement;
        const style = getComputedStyle(el);
        const around = getComputedStyle(el.closest('.search') ?? el);
        return el === document.body || style.outlineStyle !== 'none' || around.outlineStyle !== 'none';
      });
      assert.ok(ring, `no visible focus on ${await focused()}`);
      seen += `${await focused()} `;
      await page.keyboard.press('Shift+Tab');
    }
    assert.match(seen, /log /);
    assert.match(seen, /account /);
    await page.locator('#account').focus();
    await page.keyboard.press('Enter');
    await page.keyboard.press('ArrowDown');
    assert.equal(await page.evaluate(() => document.querySelector('#account-menu').contains(document.activeElement)), true);
    await page.keyboard.press('Escape');
    assert.equal(await focused(), 'account');
    assert.deepEqual(context.problems, []);
    await context.close();
  });

  test('a screen reader finds landmarks, names and a quiet log', () => withPage(async (page) => {
    await say(page, 'hello');
    await answer(page);
    assert.equal(await page.locator('#log').getAttribute('role'), 'log');
    assert.equal(await page.locator('#log').getAttribute('aria-live'), 'off');
    assert.equal(await page.locator('#announcer').getAttribute('aria-live'), 'polite');
    assert.equal(await page.getByRole('main').count(), 1);
    assert.equal(await page.getByRole('navigation', { name: 'Conversations' }).count(), 1);
    assert.equal(await page.getByRole('textbox', { name: 'Message' }).count(), 1);
    assert.ok(await page.getByRole('article', { name: 'Butler' }).count() >= 1);
    const nameless = await page.locator('button, input, textarea, select, a').evaluateAll((all) => all
      .filter((el) => !el.getAttribute('aria-label') && !el.textContent.trim() && !el.closest('label') && !el.labels?.length)
      .map((el) => el.outerHTML.slice(0, 80)));
    assert.deepEqual(nameless, []);
    const ids = await page.locator('[id]').evaluateAll((all) => all.map((el) => el.id));
    assert.equal(new Set(ids).size, ids.length);
  }));
});

describe('tokens and people', () => {
  test('a token is shown once, and can be revoked', () => withPage(async (page) => {
    const name = `script ${Date.now()}`;
    await page.locator('#account').click();
    await page.locator('#open-tokens').click();
    await page.locator('dialog input').fill(name);
    await page.keyboard.press('Enter');
    const token = await page.locator('#new-token').innerText();
    assert.ok(token.length >= 16);
    await page.keyboard.press('Escape');
    await page.locator('#new-token').waitFor({ state: 'detached' });
    assert.ok(!(await page.content()).includes(token));
    await page.locator('#account').click();
    await page.locator('#open-tokens').click();
    const row = page.locator('.rows li', { hasText: name });
    await row.waitFor();
    assert.equal(await page.locator('#new-token').count(), 0);
    assert.ok(!(await page.content()).includes(token));
    assert.ok(!(await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))).includes(token));
    await row.getByRole('button').click();
    await page.locator('dialog').getByRole('button', { name: 'Revoke', exact: true }).click();
    await page.locator('dialog .inline-form').waitFor();
    await row.waitFor({ state: 'detached' });
  }));

  test('an administrator adds a person, who can sign in and sees no people', () => withPage(async (page) => {
    const name = `eve${Date.now() % 1e9}`;
    await page.locator('#account').click();
    await page.locator('#open-people').click();
    const fields = page.locator('dialog input');
    await fields.nth(0).fill(name);
    await fields.nth(1).fill('a long password');
    await page.locator('dialog').getByRole('button', { name: 'Add a person' }).click();
    await page.locator('dialog .rows li', { hasText: name }).waitFor();
    const context = await world.context();
    const other = await openPage(context, world.url);
    await signIn(other, name, 'a long password');
    await other.locator('#account').click();
    assert.equal(await other.locator('#open-people').isHidden(), true);
    await context.close();
  }));
});
