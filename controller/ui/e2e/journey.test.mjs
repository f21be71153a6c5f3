// One journey through the web console in a real browser, against a real cluster, twice: by mouse, logged in by the OIDC provider behind an
// ingress, and by keys alone, logged in by a token. A run is seen live from its start to its end; people read its plan, approve, withdraw,
// deny, cancel, recover, and follow its log. Each page and theme is photographed and checked by axe with all of its rules.
//
// Environment: PASSES, a JSON list of the passes (`Pass` below); PAWL_NAMESPACE; PROVIDER, the provider's URL; KUBECTL, a program with the
// rights of an administrator; PICTURES, a directory.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, describe, test } from 'node:test';
import { chromium } from 'playwright-core';

/**
 * @typedef {object} Pass
 * @property {'mouse' | 'keys'} by
 * @property {string} url of the console
 * @property {string} [token] to log in with; without it, by the provider
 * @property {string} [user] at the provider
 * @property {string} [password]
 * @property {string} me the person's name at the API server
 * @property {string} live a file with the manifest of the run `live-BY`, whose apply prints `slow-1`, is quiet, and prints `slow-2`
 */
const { PAWL_NAMESPACE: NAMESPACE, PICTURES, PROVIDER = 'none:', KUBECTL = 'kubectl' } = process.env;
/** @type {Pass[]} The runs `waits-BY` and `denied-BY` wait for an approval, the apply of `lost-BY` was interrupted. */
const PASSES = JSON.parse(process.env.PASSES);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
// Generous: a busy machine is no fault.
const SOON = Number(process.env.SOON ?? 120_000);

let browser;
let page;
/** @type {Pass} */
let pass;
const outside = [];
const errors = [];

before(async () => {
  mkdirSync(PICTURES, { recursive: true });
  // As root a browser has no sandbox.
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
});
after(() => browser?.close());

const link = (path) => `${pass.url}${path}`;
const run = (name) => `/runs/${NAMESPACE}/${name}-${pass.by}`;
const button = (name) => page.getByRole('button', { name, exact: true });
const region = (name) => page.getByLabel(name, { exact: true });
const shows = (locator, text) => locator.filter({ hasText: text }).first().waitFor();
/** The state in the head of a run's page. */
const state = (word) => page.locator('.top .state', { hasText: word }).waitFor();
const kubectl = (...args) => execFileSync(KUBECTL, args, { encoding: 'utf8' });
const freeze = (value) => kubectl('annotate', '--overwrite', 'namespace', NAMESPACE, `pawl.run/freeze${value}`);

/** Uses a control: by mouse, or by Tab and Enter. */
async function press(control) {
  await control.waitFor();
  if (pass.by === 'mouse') return control.click();
  await focus(control);
  await page.keyboard.press('Enter');
}
async function fill(field, text) {
  await field.waitFor();
  if (pass.by === 'mouse') return field.fill(text);
  await focus(field);
  await page.keyboard.type(text);
}
/** Tab until the control has the focus; a page where it never gets it is not usable by keys. */
async function focus(control) {
  for (let presses = 0; presses < 200; presses++) {
    if (await control.evaluate((it) => it === document.activeElement)) return;
    await page.keyboard.press('Tab');
  }
  assert.fail(`Tab does not reach ${control}`);
}
/** Presses letters, not in a field. */
async function keys(...letters) {
  await page.keyboard.press('Escape');
  for (const letter of letters) await page.keyboard.press(letter);
}

/** What axe finds. The test evaluates it as a debugger does, so the page's own policy stays in force. */
async function violations() {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join('; ')}`);
}

/** A picture in both themes, and axe finds nothing. Once: the pages of both passes are the same. */
async function look(name) {
  if (pass !== PASSES[0]) return;
  for (const theme of ['light', 'dark']) {
    await page.evaluate((chosen) => (document.documentElement.dataset.theme = chosen), theme);
    await page.screenshot({ path: `${PICTURES}/${name}-${theme}.png` });
    assert.deepEqual(await violations(), [], `${name}, ${theme}`);
  }
}

/** Notes each state that the head of the page shows, and whether it told that a log was cut off. */
async function note() {
  await page.evaluate(() => {
    globalThis.noted = [];
    const look = () => {
      const word = document.querySelector('.top .state')?.lastChild?.textContent.trim();
      if (word && globalThis.noted.at(-1) !== word) globalThis.noted.push(word);
      const alerts = [...document.querySelectorAll('[role=alert]')];
      globalThis.wasCut ||= alerts.some((it) => it.textContent.includes('cut off'));
    };
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
}

async function logIn() {
  const token = page.getByLabel('Log in with a token of the cluster');
  await token.waitFor();
  if (pass.token) {
    await fill(token, 'not a token');
    await press(button('Log in'));
    await page.getByRole('alert').waitFor();
    await token.fill('');
    await fill(token, pass.token);
    return press(button('Log in'));
  }
  await look('login');
  await press(page.getByRole('link', { name: 'Log in with the OIDC provider' }));
  // The provider's pages are not ours.
  await page.locator('#user_name').fill(pass.user);
  await page.locator('#password').fill(pass.password);
  await page.keyboard.press('Enter');
  const grant = page.locator('#authorize-app');
  await grant.or(page.locator('.top .state')).first().waitFor();
  if (await grant.isVisible()) await grant.click();
}

for (const each of PASSES) {
  describe(`by ${each.by}`, () => {
    before(async () => {
      pass = each;
      const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ignoreHTTPSErrors: true });
      page = await context.newPage();
      page.setDefaultTimeout(SOON);
      page.on('request', (request) => {
        const isOurs = [pass.url, PROVIDER, 'data:'].some((own) => request.url().startsWith(own));
        if (!isOurs) outside.push(request.url());
      });
      page.on('pageerror', (error) => errors.push(String(error)));
    });
    after(() => page.context().close());

    test('a link survives the login, and the page shows the run that waits', async () => {
      await page.goto(link(`${run('waits')}?log=plan#L2`));
      await logIn();
      await state('Awaiting approval');
      await shows(page.locator('header'), pass.me);
      assert.equal(page.url(), link(`${run('waits')}?log=plan#L2`));
      await shows(region('Changes'), 'terraform_data.subnet[1]');
      await look('run-waiting');
    });

    test("the plan is there in the tool's own text, and the log by phase", async () => {
      await press(button('Tool’s own text'));
      await shows(region("The tool's own text"), 'will be created');
      await press(button('Tool’s own text'));
      await press(button('plan'));
      await shows(region('Log of plan, as the tool printed it'), 'Plan:');
    });

    test('an approval is withdrawn before it counts, and the run canceled', async () => {
      freeze('=true');
      try {
        await approve('for now');
        await press(button('Withdraw approval…'));
        await press(button('Withdraw approval'));
        await button('Approve…').waitFor();
      } finally {
        freeze('-');
      }
      await state('Awaiting approval');
      await press(button('Cancel…'));
      assert.ok(await button('Cancel').isDisabled(), 'without a reason');
      await fill(page.getByLabel('Reason (required)'), 'not today');
      await press(button('Cancel'));
      await state('Canceled');
    });

    test('a denial needs a reason', async () => {
      await page.goto(link(run('denied')));
      await press(button('Deny…'));
      assert.ok(await button('Deny').isDisabled());
      await fill(page.getByLabel('Reason (required)'), 'not now');
      await press(button('Deny'));
      await state('Rejected');
    });

    test('a run is seen live from its start to its end', async () => {
      // The page is there before the run.
      await page.goto(link(run('live')));
      await page.getByRole('alert').waitFor();
      await note();
      kubectl('create', '-n', NAMESPACE, '-f', pass.live);
      await state('Awaiting approval');
      await look('run-live');
      await approve('read in the browser');
      const log = region('Log of apply, as the tool printed it');
      await shows(log, 'slow-1');
      assert.equal(await log.filter({ hasText: 'slow-2' }).count(), 0, 'the log is followed while the tool works');
      await shows(log, 'slow-2');
      await state('Applied');
      await shows(log, 'Apply complete');
      const order = ['Pending', 'Setup', 'Init', 'Plan', 'Awaiting approval', 'Apply', 'Applied'];
      const noted = await page.evaluate(() => globalThis.noted.filter((word) => word !== 'Succeeded'));
      assert.ok(!(await page.evaluate(() => globalThis.wasCut)), 'a quiet log is no fault');
      assert.deepEqual(noted, order.filter((word) => noted.includes(word)), 'each state in its order, without a reload');
      // A phase that is shorter than a reading is passed over.
      for (const word of ['Awaiting approval', 'Apply', 'Applied']) assert.ok(noted.includes(word), `${word}: ${noted}`);
      assert.ok(order.slice(0, 4).includes(noted[0]), `${noted}`);
      await look('run-applied');
    });

    test('an interrupted apply is recovered by another run', async () => {
      await page.goto(link(run('lost')));
      await state(/Failed|Indeterminate/);
      await look('run-lost');
      await press(button('Recover…'));
      await press(button('Recover'));
      await button('Recover…').waitFor({ state: 'detached' });
      const other = page.locator('main', { hasText: 'terraform_data.slow' });
      await other.waitFor();
    });

    test('lists show what the person may list', async () => {
      const tabs = [['Runs', 'live', 'r'], ['Layers', 'Layers', 'l'], ['Repositories', 'Repositories'], ['Queue', 'Queue', 'q'], ['Inbox', 'live', 'i']];
      for (const [name, text, letter] of tabs) {
        if (pass.by === 'keys' && letter) await keys('g', letter);
        else await press(page.locator('header').getByRole('link', { name, exact: true }));
        await page.locator('h1', { hasText: name }).or(page.locator('nav [aria-current=page]', { hasText: name })).first().waitFor();
        await page.locator('main', { hasText: text }).waitFor();
        await look(name.toLowerCase());
      }
      if (pass.by === 'keys') await keys('g', 'm');
      else await page.locator('header .who').click();
      await page.locator('main', { hasText: pass.me }).waitFor();
      await look('me');
    });

    test('a run is found and opened', async () => {
      const name = `live-${pass.by}`;
      if (pass.by === 'mouse') {
        await page.locator('header').getByRole('link', { name: 'Runs', exact: true }).click();
        await page.getByRole('searchbox').fill(name);
        await page.getByRole('link', { name, exact: true }).first().click();
      } else {
        await keys('g', 'r');
        await page.locator('main', { hasText: `denied-${pass.by}` }).waitFor();
        await keys('/');
        await page.keyboard.type(name);
        // The head, and one row.
        await page.waitForFunction(() => document.querySelectorAll('main [role=row]').length === 2);
        await keys('j', 'Enter');
      }
      await page.waitForURL(`**/runs/${NAMESPACE}/${name}**`);
      await state('Applied');
    });

    test('a refusal has the rule that would permit it', async () => {
      await page.goto(link('/runs/kube-system/none'));
      await page.locator('main', { hasText: 'resources: ["terraformruns"]' }).waitFor();
      await look('forbidden');
    });

    test('the page tells that its stream is lost, and comes back', async () => {
      await page.goto(link(run('live')));
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

    test('axe finds a fault that is put in', async () => {
      await page.evaluate(() => document.querySelector('main').append(document.createElement('img')));
      const found = await violations();
      assert.ok(found.some((one) => one.startsWith('image-alt')), found.join());
    });

    test('after the logout nothing is shown, also not by the back button', async () => {
      await press(button('Log out'));
      const token = page.getByLabel('Log in with a token of the cluster');
      await token.waitFor();
      await page.goBack();
      await token.waitFor();
    });

    test('no request left the origin, and no script failed', () => {
      assert.deepEqual([outside, errors], [[], []]);
    });
  });
}

/** Approves with a comment. The panel opens by a key, and never confirms by one. */
async function approve(comment) {
  if (pass.by === 'keys') {
    await button('Approve…').waitFor();
    await keys('a');
    await page.locator('input[maxlength="512"]:focus').waitFor();
    await page.keyboard.type(comment);
  } else {
    await press(button('Approve…'));
    await page.locator('input[maxlength="512"]').fill(comment);
  }
  await press(button('Approve'));
  await button('Approve').waitFor({ state: 'detached' });
}
