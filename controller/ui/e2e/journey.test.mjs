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
const SOON = 120_000;

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

const at = (id) => page.getByTestId(id);
const see = (id, text) => page.locator(`[data-testid="${id}"]`, { hasText: text }).first().waitFor();

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
  await at('login-token').waitFor();
  await look('login');
  await at('login-token').fill('not a token');
  await at('login-submit').click();
  await page.getByRole('alert').waitFor();
  await at('login-token').fill(PAWL_TOKEN);
  await at('login-submit').click();
  await see('run-phase', 'Awaiting approval');
  await see('me-name', PAWL_NAMESPACE);
  assert.ok(page.url().endsWith(`/runs/${PAWL_NAMESPACE}/${RUN}`));
  await see('run-verdict', 'create');
  await see('plan-tree', 'terraform_data.');
  await look('run-waiting');
});

test('axe finds a fault that is put in', async () => {
  await page.evaluate(() => document.querySelector('main').append(document.createElement('img')));
  const found = await violations();
  assert.ok(found.some((one) => one.startsWith('image-alt')), found.join());
  await page.reload();
  await see('run-phase', 'Awaiting approval');
});

test("the tool's words and the log are there", async () => {
  await at('plan-words').click();
  await see('plan-text', 'will be created');
  await at('log-plan').click();
  await see('log-lines', 'Plan:');
});

test('keys alone approve, and the page follows to the end', async () => {
  await page.locator('body').press('a');
  await at('approve-comment').focus();
  await page.keyboard.type('read in the browser');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await see('run-phase', 'Applied');
  await at('log-apply').click();
  await see('log-lines', 'Apply complete');
  await look('run-applied');
});

test('a denial needs a reason', async () => {
  await page.goto(`${PAWL_URL}/runs/${PAWL_NAMESPACE}/${DENIED}`);
  await at('deny-open').click();
  assert.ok(await at('deny-submit').isDisabled());
  await at('deny-comment').fill('not now');
  await at('deny-submit').click();
  await see('run-phase', 'Rejected');
});

test('lists show what the person may list', async () => {
  for (const [name, text] of [['runs', RUN], ['layers', 'Layers'], ['repositories', 'Repositories'], ['queue', 'Queue'], ['inbox', 'Inbox']]) {
    await at(`nav-${name}`).click();
    await page.locator('main', { hasText: text }).waitFor();
    await look(name);
  }
  await at('nav-me').click();
  await page.locator('main', { hasText: 'system:serviceaccounts' }).waitFor();
  await look('me');
  // By keys: the list of runs, its search, its first row.
  await page.locator('body').press('g');
  await page.locator('body').press('r');
  await page.locator('h1', { hasText: 'Runs' }).waitFor();
  await page.locator('body').press('/');
  await page.keyboard.type(RUN);
  await page.locator('[data-testid="total"]', { hasText: /^1$/ }).waitFor();
  await page.keyboard.press('Escape');
  await page.locator('body').press('j');
  await page.keyboard.press('Enter');
  await see('run-phase', 'Applied');
});

test('a refusal has the rule that would permit it', async () => {
  await page.goto(`${PAWL_URL}/runs/kube-system/none`);
  await page.locator('[role="alert"]', { hasText: 'terraformruns' }).waitFor();
  await look('forbidden');
});

test('the page tells that its stream is lost, and comes back', async () => {
  await page.goto(`${PAWL_URL}/runs/${PAWL_NAMESPACE}/${RUN}`);
  await see('run-phase', 'Applied');
  await page.context().setOffline(true);
  await at('stale').waitFor();
  await page.context().setOffline(false);
  await at('stale').waitFor({ state: 'detached' });
});

test('after the logout nothing is shown, also not by the back button', async () => {
  await at('logout').click();
  await at('login-token').waitFor();
  await page.goBack();
  await at('login-token').waitFor();
});

test('no request left the origin, and no script failed', () => {
  assert.deepEqual([outside, errors], [[], []]);
});
