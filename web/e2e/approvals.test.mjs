// Requests for approval in a real browser, against the scripted server: the cards, the list, deciding.

import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';
import { answer, cutConnection, newThread, openPage, real, say, shot, signIn, start } from './harness.mjs';

let world;
before(async () => {
  world = await start();
});
after(() => world.close());
beforeEach(() => world.fake?.clearApprovals());

const scripted = real ? { skip: 'needs the scripted server: run without BUTLER_E2E_URL' } : {};

async function withPage(run, { user, options = {} } = {}) {
  const context = await world.context(options);
  try {
    const page = await openPage(context, world.url);
    await (user ? signIn(page, ...user) : signIn(page));
    await newThread(page);
    await run(page, context);
    assert.deepEqual(context.problems, []);
  } finally {
    await context.close();
  }
}

const BEN = ['ben', 'battery staple'];
const benAsks = { requester: { id: 3, name: 'ben', role: 'MEMBER' }, requesterMay: false };
const openList = async (page) => {
  await page.locator('#approvals-open').click();
  return page.locator('#approvals-list .approval').first();
};
const wideness = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

describe('requests for approval', scripted, () => {
  test('a request is shown in its conversation, approved once, and its output streams as plain text', () => withPage(async (page) => {
    await say(page, 'approve me');
    const card = page.locator('#log .approval');
    await card.waitFor();
    assert.match(await page.locator('#announcer').innerText(), /Approval needed, code K7QF/);
    assert.match(await page.title(), /^\(1\) Approval needed/);
    assert.equal(await card.locator('.approval-command').innerText(), 'rm -rf /srv/cache && echo done\\u202e');
    assert.equal(await card.locator('.unseen').innerText(), '\\u202e');
    assert.equal(await card.locator('mark.risky').innerText(), 'rm -rf');
    assert.equal(await card.locator('mark.risky').getAttribute('title'), 'Deletes a whole folder.');
    assert.deepEqual(await card.locator('.approval-facts dd').allInnerTexts(), ['web-1', '/srv', 'ops', 'rm = rm -i']);
    // What Butler says of it is a line of the card, not output: nothing ran yet.
    await card.locator('.approval-notice p').first().waitFor();
    assert.deepEqual(await card.locator('.approval-notice > *').allInnerTexts(), ['Waiting for approval K7QF on web-1:', 'You may decide: approve K7QF, or deny K7QF and why.']);
    assert.deepEqual(await card.locator('.approval-notice strong, .approval-notice code').allInnerTexts(), ['K7QF', 'approve K7QF', 'deny K7QF']);
    assert.equal(await card.locator('.approval-output').count(), 0);
    assert.match(await card.innerText(), /Butler proposes this for ada/);
    assert.equal(await card.locator('.approval-why').innerText(), 'The disk is **full**.');
    await card.locator('.approval-untrusted summary').click();
    assert.equal(await card.locator('.approval-untrusted pre').innerText(), '<b>please</b> run rm');
    assert.match(await card.locator('.approval-left').innerText(), /^[45]:\d\d left$/);
    await page.locator('.message.butler[data-waiting]', { hasText: 'waits for the decision' }).waitFor();
    await shot(page, 'approval');
    const goOn = world.fake.holdDecisions();
    await card.getByRole('button', { name: 'Approve' }).click();
    await card.getByRole('button', { name: 'Sending…' }).waitFor();
    assert.equal(await card.locator('.approval-buttons button:disabled').count(), 3);
    await page.keyboard.press('Enter'); // nothing is decided twice
    goOn();
    await page.locator('#log .approval[data-status="EXECUTED"]').waitFor();
    assert.equal(await card.locator('.approval-output').innerText(), 'removing *one*\nremoving <two>\nlast line');
    assert.equal(await card.locator('.approval-notice').innerText(), '');
    assert.equal(await card.locator('.approval-buttons').count(), 0);
    assert.match(await card.innerText(), /ada approved/);
    const done = await answer(page);
    assert.equal(await done.locator('.text').innerText(), 'It is done.');
    assert.equal(world.fake.requests.filter((r) => /decision$/.test(r)).length, 1);
    assert.equal(await page.locator('#approvals-open').isHidden(), true);
    await shot(page, 'approval-done');
    // It is still there after a reload, between the question and its answer.
    await page.reload();
    await page.locator('#log .approval[data-status="EXECUTED"]').waitFor();
    const order = await page.locator('#log-items > article').evaluateAll((all) => all.map((a) => a.className.split(' ').at(-1)));
    assert.deepEqual(order, ['person', 'approval', 'butler']);
  }));

  test('denying with a reason', () => withPage(async (page) => {
    await say(page, 'approve me');
    const card = page.locator('#log .approval');
    await card.getByRole('button', { name: 'Deny' }).click();
    await page.keyboard.type('not on a Friday');
    await page.keyboard.press('Enter');
    await page.locator('#log .approval[data-status="REJECTED"]').waitFor();
    assert.match(await card.innerText(), /ada denied.*not on a Friday/s);
    assert.equal(await (await answer(page)).locator('.text').innerText(), 'Then I leave it.');
  }));

  test('approving a changed command shows that it is a new text; one that cannot run keeps what was written', () => withPage(async (page) => {
    world.fake.ask(benAsks);
    const card = await openList(page);
    await card.getByRole('button', { name: 'Edit…' }).click();
    const area = card.locator('textarea');
    const approve = card.getByRole('button', { name: 'Approve the changed command' });
    assert.equal(await approve.isDisabled(), true, 'nothing is changed yet');
    assert.match(await card.innerText(), /It is a new text/);
    await area.fill('if');
    await approve.click();
    await card.locator('[role="alert"]').waitFor();
    assert.match(await card.locator('[role="alert"]').innerText(), /incomplete/);
    assert.equal(await area.inputValue(), 'if');
    await area.fill('ls /srv/cache');
    await approve.click();
    await card.locator('.approval-before').waitFor();
    assert.equal(await card.locator('.approval-command').innerText(), 'ls /srv/cache');
    assert.match(await card.innerText(), /ada changed it\. Before:/);
    assert.equal(await card.getAttribute('data-status'), 'APPROVED');
  }));

  test('the list: a badge that is always there, more than one request, Escape', () => withPage(async (page) => {
    assert.equal(await page.locator('#approvals-open').isHidden(), true);
    world.fake.ask({ ...benAsks, code: 'AAAA' });
    const second = world.fake.ask({ ...benAsks, code: 'BBBB', command: 'reboot', decide_by: new Date(Date.now() + 60_000).toISOString() });
    await page.locator('#approvals-count', { hasText: '2' }).waitFor();
    await openList(page);
    assert.deepEqual(await page.locator('#approvals-list .code-badge').allInnerTexts(), ['BBBB', 'AAAA'], 'the most urgent first');
    // Decided elsewhere: the card says so and has no buttons any more.
    world.fake.change(second.action_id, { status: 'REJECTED', version: 2, decisions: [{ by: { id: 9, name: 'eve' }, approved: false, reason: 'no', channel: 'cli', at: new Date().toISOString() }] });
    const card = page.locator('#approvals-list .approval[data-code="BBBB"]');
    await card.filter({ hasText: 'eve denied' }).waitFor();
    assert.equal(await card.locator('button').count(), 0);
    await page.locator('#approvals-count', { hasText: '1' }).waitFor();
    await page.locator('#approvals-list .approval[data-code="AAAA"] button').first().focus();
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('#approvals').isHidden(), true);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'approvals-open');
  }));

  test('two tabs: the first click counts, the other one is told', () => withPage(async (page, context) => {
    const asked = world.fake.ask(benAsks);
    const other = await openPage(context, world.url);
    const one = await openList(page);
    const two = await openList(other);
    await one.getByRole('button', { name: 'Approve' }).click();
    await two.filter({ hasText: 'ada approved' }).waitFor();
    assert.equal(await two.locator('.approval-buttons').count(), 0);
    // A tab that did not hear of it is refused, and shows what was decided.
    await page.locator('#approvals-close').click();
    const third = world.fake.ask({ ...benAsks, code: 'CCCC' });
    const late = await openList(page);
    await page.locator('#approvals-list .approval[data-code="CCCC"]').waitFor();
    Object.assign(third, { status: 'REJECTED', version: 2, decisions: [{ by: { id: 9, name: 'eve' }, approved: false, channel: 'cli', at: new Date().toISOString() }] });
    await page.locator('#approvals-list .approval[data-code="CCCC"]').getByRole('button', { name: 'Approve' }).click();
    await page.locator('#approvals-list .approval[data-code="CCCC"]').filter({ hasText: 'eve denied' }).waitFor();
    assert.ok(asked && late);
  }));

  test('approval is away: nothing was decided, and the second try counts', () => withPage(async (page) => {
    world.fake.ask(benAsks);
    const card = await openList(page);
    world.fake.failDecisions(1);
    await card.getByRole('button', { name: 'Approve' }).click();
    await card.locator('[role="alert"]').waitFor();
    assert.match(await card.locator('[role="alert"]').innerText(), /nothing was decided/);
    await card.getByRole('button', { name: 'Approve' }).click();
    await card.filter({ hasText: 'ada approved' }).waitFor();
    assert.equal(await card.locator('[role="alert"]').count(), 0);
  }));

  test('pending requests are there after a reload and a lost connection', () => withPage(async (page) => {
    world.fake.ask(benAsks);
    await page.locator('#approvals-count', { hasText: '1' }).waitFor();
    await page.reload();
    await page.locator('#approvals-count', { hasText: '1' }).waitFor();
    await cutConnection(page);
    world.fake.ask({ ...benAsks, code: 'LATE' });
    await page.locator('#approvals-count', { hasText: '2' }).waitFor();
  }));

  test('a command that is changed while somebody edits it must be looked at again', () => withPage(async (page) => {
    const asked = world.fake.ask(benAsks);
    const card = await openList(page);
    await card.getByRole('button', { name: 'Edit…' }).click();
    await card.locator('textarea').fill('mine');
    world.fake.change(asked.action_id, { version: 2, digest: 'd2', command: 'rm -rf /' });
    await card.locator('[role="alert"]').waitFor();
    assert.match(await card.locator('[role="alert"]').innerText(), /changed meanwhile/);
    assert.equal(await card.locator('textarea').count(), 0);
    assert.equal(await card.locator('.approval-command').innerText(), 'rm -rf /');
  }));

  test('whoever asks sees it go on, without buttons; whom it does not concern sees nothing', () => withPage(async (page) => {
    await say(page, 'approve me');
    const card = page.locator('#log .approval');
    await card.waitFor();
    assert.equal(await card.locator('button').count(), 0);
    assert.equal(await page.locator('#approvals-open').isHidden(), true);
    const context = await world.context();
    const admin = await openPage(context, world.url);
    await signIn(admin);
    const theirs = await openList(admin);
    await theirs.getByRole('button', { name: 'Approve' }).click();
    await page.locator('#log .approval[data-status="EXECUTED"]').waitFor();
    assert.match(await card.innerText(), /ada approved/);
    world.fake.ask(); // of ada, for ada
    await theirs.page().locator('#approvals-count', { hasText: '1' }).waitFor();
    assert.equal(await page.locator('#approvals-open').isHidden(), true);
    assert.equal(await page.locator('.approval').count(), 1);
    await context.close();
  }, { user: BEN }));

  test('when the time is over the buttons go', () => withPage(async (page) => {
    world.fake.ask({ ...benAsks, decide_by: new Date(Date.now() + 2_500).toISOString() });
    const card = await openList(page);
    await card.getByRole('button', { name: 'Approve' }).waitFor();
    await card.locator('.approval-left', { hasText: 'Time is over' }).waitFor();
    assert.equal(await card.locator('.approval-buttons').count(), 0);
  }));

  test('Chinese, and a phone', () => withPage(async (page) => {
    await say(page, 'approve me');
    const card = page.locator('#log .approval');
    await card.waitFor();
    assert.match(await card.innerText(), /需要审批[^]*删除整个目录/);
    assert.ok((await wideness(page)) <= 0);
    for (const button of await card.locator('.approval-buttons button').all()) assert.ok((await button.boundingBox()).height >= 44);
    await page.locator('#approvals-open').click();
    await page.locator('#approvals-list .approval').waitFor();
    assert.ok((await wideness(page)) <= 0);
    await shot(page, 'approval-phone-zh');
    await page.locator('#approvals-list').getByRole('button', { name: '批准' }).click();
    await page.locator('#approvals-list .approval[data-status="EXECUTED"]').waitFor();
    assert.match(await page.locator('#approvals-list .approval').innerText(), /ada 已批准/);
  }, { options: { viewport: { width: 360, height: 720 }, locale: 'zh-CN', hasTouch: true, isMobile: true } }));
});
