// One journey through the web console in a real browser, against a real cluster: log in by token, see a run live, read its plan, approve by
// keys; deny another; follow a log; lose the stream. Each page and theme is photographed and checked by axe with all of its rules.
//
// Environment: PAWL_URL, PAWL_TOKEN, PAWL_NAMESPACE; RUN and DENIED name runs that wait for an approval; PICTURES is a directory.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';

const { PAWL_URL, PAWL_TOKEN, PAWL_NAMESPACE, RUN, DENIED, PICTURES } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
// Generous: a busy machine is no fault.
const SOON = Number(process.env.SOON ?? 120_000);

let browser;
let page;
const outside = [];
const errors = [];

before(async () => {
  mkdirSync(PICTURES, { recursive: true });
  // As root a browser has no sandbox.
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
  page = await context.newPage();
  page.setDefaultTimeout(SOON);
  page.on('request', (request) => {
    if (!request.url().startsWith(PAWL_URL) && !request.url().startsWith('data:')) outside.push(request.url());
  });
  page.on('pageerror', (error) => errors.push(String(error)));
});
after(() => browser?.close());

const button = (name) => page.getByRole('button', { name, exact: true });
const state = (word) => page.locator('.state', { hasText: word }).first().waitFor();
const region = (name) => page.getByLabel(name, { exact: true });
const shows = (locator, text) => locator.filter({ hasText: text }).first().waitFor();

/** What axe finds. The test evaluates it as a debugger does, so the page's own policy stays in force. */
async function violations() {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join('; ')}`);
}

/** A picture in both themes, and axe finds nothing. */
async function look(name) {
  for (const theme of ['light', 'dark']) {
    await page.evaluate((chosen) => (document.documentElement.dataset.theme = chosen), theme);
    await page.screenshot({ path: `${PICTURES}/${name}-${theme}.png` });
    assert.deepEqual(await violations(), [], `${name}, ${theme}`);
  }
}

test('a link survives the login, and the page shows the run that waits', async () => {
  await page.goto(`${PAWL_URL}/runs/${PAWL_NAMESPACE}/${RUN}`);
  const token = page.getByLabel('Log in with a token of the cluster');
  await token.waitFor();
  await look('login');
  await token.fill('not a token');
  await button('Log in').click();
  await page.getByRole('alert').waitFor();
  await token.fill(PAWL_TOKEN);
  await button('Log in').click();
  await state('Awaiting approval');
  await shows(page.locator('header'), `system:serviceaccount:${PAWL_NAMESPACE}:`);
  assert.equal(page.url(), `${PAWL_URL}/runs/${PAWL_NAMESPACE}/${RUN}`);
  await shows(region('Changes'), 'terraform_data.subnet[1]');
  await look('run-waiting');
});

test('axe finds a fault that is put in', async () => {
  await page.evaluate(() => document.querySelector('main').append(document.createElement('img')));
  const found = await violations();
  assert.ok(found.some((one) => one.startsWith('image-alt')), found.join());
  await page.reload();
  await state('Awaiting approval');
});

test("the plan is there in the tool's own text, and the log by phase", async () => {
  await button('Tool’s own text').click();
  await shows(region("The tool's own text"), 'will be created');
  await button('Tool’s own text').click();
  await button('plan').click();
  await shows(region('Log of plan, as the tool printed it'), 'Plan:');
});

test('keys alone approve, and the page follows to the end', async () => {
  await page.locator('body').press('a');
  await page.locator('input[maxlength="512"]:focus').waitFor();
  await page.keyboard.type('read in the browser');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Approve');
  await page.keyboard.press('Enter');
  await state('Applied');
  await button('apply').click();
  await shows(region('Log of apply, as the tool printed it'), 'Apply complete');
  await look('run-applied');
});

test('a denial needs a reason', async () => {
  await page.goto(`${PAWL_URL}/runs/${PAWL_NAMESPACE}/${DENIED}`);
  await button('Deny…').click();
  assert.ok(await button('Deny').isDisabled());
  await page.getByLabel('Reason (required)').fill('not now');
  await button('Deny').click();
  await state('Rejected');
});

test('lists show what the person may list', async () => {
  const tab = (name) => page.locator('header').getByRole('link', { name, exact: true }).click();
  for (const [name, text] of [['Runs', RUN], ['Layers', 'Layers'], ['Repositories', 'Repositories'], ['Queue', 'Queue'], ['Inbox', RUN]]) {
    await tab(name);
    await page.locator('main', { hasText: text }).waitFor();
    await look(name.toLowerCase());
  }
  await page.locator('body').press('g');
  await page.locator('body').press('m');
  await page.locator('main', { hasText: 'system:serviceaccounts' }).waitFor();
  await look('me');
});

test('keys alone find a run and open it', async () => {
  await page.locator('body').press('g');
  await page.locator('body').press('r');
  await page.locator('h1', { hasText: 'Runs' }).waitFor();
  await page.locator('body').press('/');
  await page.keyboard.type(RUN);
  await page.locator('main', { hasText: DENIED }).waitFor({ state: 'detached' });
  await page.keyboard.press('Escape');
  await page.locator('body').press('j');
  await page.keyboard.press('Enter');
  await page.waitForURL(`**/runs/${PAWL_NAMESPACE}/${RUN}**`);
  await state('Applied');
});

test('a refusal has the rule that would permit it', async () => {
  await page.goto(`${PAWL_URL}/runs/kube-system/none`);
  await page.locator('main', { hasText: 'resources: ["terraformruns"]' }).waitFor();
  await look('forbidden');
});

test('the page tells that its stream is lost, and comes back', async () => {
  await page.goto(`${PAWL_URL}/runs/${PAWL_NAMESPACE}/${RUN}`);
  await state('Applied');
  // A stream that is open already would outlive this, and the one of a shared worker is not cut: without one the page has its own.
  await page.addInitScript(() => { delete globalThis.SharedWorker; });
  await page.context().route('**/api/v1/stream?*', (route) => route.abort());
  await page.reload();
  const lost = page.locator('header [role="status"]', { hasText: 'connection lost' });
  await lost.waitFor();
  await page.context().unroute('**/api/v1/stream?*');
  await lost.waitFor({ state: 'detached' });
});

test('after the logout nothing is shown, also not by the back button', async () => {
  await button('Log out').click();
  const token = page.getByLabel('Log in with a token of the cluster');
  await token.waitFor();
  await page.goBack();
  await token.waitFor();
});

test('no request left the origin, and no script failed', () => {
  assert.deepEqual([outside, errors], [[], []]);
});
