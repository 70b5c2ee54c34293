// What the browser tests share: a browser, a server, and the steps that every test begins with.
//
// With BUTLER_E2E_URL, BUTLER_E2E_USER and BUTLER_E2E_PASS the tests speak to that server, which should run the built-in
// demo model; else to fake_server.mjs.
// CHROMIUM names the browser (default /usr/bin/chromium); BUTLER_E2E_SHOTS a folder for screenshots.

import { existsSync, mkdirSync } from 'node:fs';
import { chromium } from 'playwright-core';
import { hostileSample, markdownSample, startFake } from './fake_server.mjs';

export const real = process.env.BUTLER_E2E_URL ?? '';
export const user = process.env.BUTLER_E2E_USER ?? 'ada';
export const pass = process.env.BUTLER_E2E_PASS ?? 'correct horse';
/** A prompt whose answer takes a few seconds; for a real server it depends on the model. The scripted server begins the
 * answer and waits for fake.release(). */
export const slowPrompt = process.env.BUTLER_E2E_SLOW ?? (real ? 'count to 600' : 'patient');

/** What makes the server answer with a text of Markdown: a word of the script, or, for the built-in demo model, the text. */
export const prompts = real ? { markdown: `echo ${markdownSample}`, hostile: `echo ${hostileSample}` } : { markdown: 'markdown', hostile: 'hostile' };

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

/** Starts what a test file needs. Gives {fake (null with a real server), url, context(options), close()}. */
export async function start() {
  if (!existsSync(executablePath)) throw new Error(`There is no browser at ${executablePath}. Install chromium, or name one with CHROMIUM.`);
  const fake = real ? null : await startFake();
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  const url = (real || fake.url).replace(/\/$/, '');
  return {
    fake,
    url,
    /** Opens a browser profile of its own; page errors and refused content of its pages are collected in problems. */
    context: async (options = {}) => {
      const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, locale: 'en-GB', ...options });
      context.setDefaultTimeout(30_000);
      const problems = [];
      await context.addInitScript(keepSockets);
      context.on('page', (page) => {
        page.on('pageerror', (e) => problems.push(String(e)));
        page.on('console', (m) => {
          if (m.type() === 'error' && /Content Security Policy|Uncaught/.test(m.text())) problems.push(m.text());
        });
        page.on('dialog', (d) => {
          problems.push(`dialog: ${d.message()}`);
          d.dismiss();
        });
      });
      return Object.assign(context, { problems });
    },
    close: async () => {
      await browser.close();
      await fake?.close();
    },
  };
}

// keepSockets runs in the page: it lets a test close the page's connection, as a broken network would.
function keepSockets() {
  const Original = window.WebSocket;
  window.testSockets = [];
  window.WebSocket = class extends Original {
    constructor(...args) {
      super(...args);
      window.testSockets.push(this);
    }
  };
}

export const cutConnection = (page) => page.evaluate(() => window.testSockets.forEach((s) => s.close()));

export async function openPage(context, url) {
  const page = await context.newPage();
  await page.goto(url);
  return page;
}

export async function signIn(page, name = user, password = pass) {
  await page.locator('#username').fill(name);
  await page.locator('#password').fill(password);
  await page.locator('#signin-submit').click();
  await page.locator('#connection[data-state="online"]').waitFor();
}

/** Begins a new conversation. */
export async function newThread(page) {
  await page.keyboard.press('Control+Shift+O');
  await page.locator('.welcome').waitFor();
}

export const say = async (page, text) => {
  await page.locator('#composer-text').fill(text);
  await page.keyboard.press('Enter');
};

export const answers = (page) => page.locator('.message.butler:not([data-status="streaming"])');
export const streaming = (page) => page.locator('.message.butler[data-status="streaming"]:not([data-waiting])');

/** Waits for answer number n (from 1) of the open conversation to be final; gives its element. */
export async function answer(page, n = 1) {
  const one = answers(page).nth(n - 1);
  await one.waitFor({ timeout: 60_000 });
  return one;
}

export async function shot(page, name) {
  const folder = process.env.BUTLER_E2E_SHOTS;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: `${folder}/${name}.png` });
}
