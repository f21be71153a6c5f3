// A plan of 50,000 changes and a log of 1 GiB in a real browser, against the server of made-up answers: the page shows their first rows at
// once, stays responsive, and holds few rows and little memory. And tabs share one stream. `npm run build` first, then `npm run big`.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import { BIG, sent, server, streams } from '../dev/server.js';

let browser;
let context;
let origin;

before(async () => {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  origin = `http://127.0.0.1:${server.address().port}/pawl`;
  browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
});
after(async () => {
  await browser?.close();
  server.closeAllConnections();
  server.close();
});

/** A page that notes how long its longest task was. */
async function open(path) {
  const page = await context.newPage();
  await page.addInitScript(() => {
    globalThis.longest = 0;
    new PerformanceObserver((list) => { for (const it of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, it.duration); }).observe({ type: 'longtask', buffered: true });
  });
  await page.goto(origin + path);
  return page;
}
const rows = (page) => page.evaluate(() => document.querySelectorAll('[role=row], .box[role=log] .cells').length);
async function memory(page) {
  const debug = await context.newCDPSession(page);
  await debug.send('HeapProfiler.collectGarbage');
  const { usedSize, embedderHeapUsedSize = 0 } = await debug.send('Runtime.getHeapUsage');
  return Math.round((usedSize + embedderHeapUsedSize) / 2 ** 20);
}

test('plan of 50,000 changes opens and stays responsive', async () => {
  const start = Date.now();
  const page = await open('/runs/prod/big?log=setup&plan=');
  const tree = page.getByRole('treegrid');
  await tree.getByRole('row').first().waitFor();
  const first = Date.now() - start;
  await page.getByText('50000 ×').or(page.getByText('50,000 ×')).first().waitFor({ timeout: 60_000 });
  const whole = Date.now() - start;
  await page.evaluate(() => { globalThis.longest = 0; });
  await tree.getByRole('row').first().click();
  await tree.evaluate((box) => { box.scrollTop = box.scrollHeight / 2; });
  await page.getByRole('searchbox', { name: 'Filter by address' }).fill('web[4999');
  await page.getByText('web[49999]').or(page.getByText('10 ×')).first().waitFor();
  const [longest, seen, used] = [await page.evaluate(() => globalThis.longest), await rows(page), await memory(page)];
  console.log(`plan: first rows after ${first} ms, all after ${whole} ms, longest task of an act ${Math.round(longest)} ms, ${used} MiB, ${seen} rows`);
  assert.ok(seen <= 200, `${seen} rows`);
  assert.ok(used < 300, `${used} MiB`);
  assert.ok(longest < 1500, `${longest} ms`);
  await page.close();
});

test('log of 1 GiB opens, is followed to its end, and leaves the page responsive', async () => {
  const start = Date.now();
  const page = await open('/runs/prod/big?log=apply&attempt=1');
  const log = page.getByRole('log');
  await log.locator('.cells').first().waitFor({ timeout: 60_000 });
  const first = Date.now() - start;
  let slowest = 0;
  let most = 0;
  let kept = 0;
  // While it arrives, the page answers.
  while (!(await page.getByText('1.0 GiB.', { exact: false }).isVisible())) {
    const at = Date.now();
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => resolve(0))));
    slowest = Math.max(slowest, Date.now() - at);
    most = Math.max(most, await rows(page));
    kept = Math.max(kept, await memory(page));
    assert.ok(Date.now() - start < 300_000, `not at its end after ${Date.now() - start} ms`);
    await page.waitForTimeout(200);
  }
  const whole = Date.now() - start;
  console.log(`log: first lines after ${first} ms, ${BIG >> 20} MiB after ${whole} ms, slowest frame ${slowest} ms, at most ${kept} MiB, ${most} rows`);
  assert.ok(most <= 200, `${most} rows`);
  assert.ok(kept < 400, `${kept} MiB`);
  assert.ok(slowest < 2000, `${slowest} ms`);
  await page.close();
});

test('closed log of 1 GiB is read in parts, from its end, and searched through', async () => {
  sent.bytes = 0;
  const page = await open('/runs/prod/closed?log=apply&attempt=1');
  const log = page.getByRole('log');
  await log.locator('.cells').first().waitFor({ timeout: 60_000 });
  await page.getByText('to 1.0 GiB of 1.0 GiB').waitFor();
  // The part, and pieces of the rest that were under way.
  assert.ok(sent.bytes < 64 << 20, `${sent.bytes >> 20} MiB were sent`);
  const last = await log.locator('.number').last().textContent();
  assert.ok(Number(last) > BIG - (1 << 20), `the end is shown: ${last}`);
  await page.getByRole('button', { name: 'Earlier' }).click();
  await page.getByText(/^1016\.0 MiB|^1015\.9 MiB|to 1016\.0 MiB/).first().waitFor();
  // The one such line is in the first part.
  const search = page.getByLabel('Search in the log');
  await search.fill('the beginning');
  await search.press('Shift+Enter');
  let kept = 0;
  let slowest = 0;
  while (!(await log.locator('.current', { hasText: 'the beginning' }).isVisible())) {
    const at = Date.now();
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => resolve(0))));
    slowest = Math.max(slowest, Date.now() - at);
    kept = Math.max(kept, await memory(page));
    await page.waitForTimeout(200);
  }
  console.log(`closed log: searched through 1 GiB, at most ${kept} MiB, slowest frame ${slowest} ms`);
  assert.ok(kept < 300, `${kept} MiB`);
  await search.press('Shift+Enter');
  await page.getByText('no further line').waitFor();
  await page.getByRole('button', { name: 'First error' }).click();
  await log.locator('.current', { hasText: 'Error:' }).waitFor();
  // The address of a line opens it.
  await log.locator('.current .number').click();
  const byte = /#B(\d+)$/.exec(page.url())[1];
  await page.reload();
  await log.locator('.current', { hasText: 'Error:' }).waitFor();
  assert.equal(await log.locator('.current .number').textContent(), byte);
  await page.close();
});

test('tabs share one stream, and the last one that is closed ends it', async () => {
  const pages = [await open('/layers'), await open('/runs'), await open('/runs/prod/applying')];
  const until = async (count) => { for (let i = 0; i < 100 && streams.size !== count; i++) await new Promise((resolve) => setTimeout(resolve, 100)); return streams.size; };
  for (const page of pages) await page.getByRole('row').first().waitFor();
  await pages[0].waitForTimeout(500);
  assert.equal(await until(1), 1);
  // A tab hears of its own rows through it.
  const [stream] = streams;
  const row = { kind: 'layer', namespace: 'team-0', name: 'network-0', row: { namespace: 'team-0', name: 'network-0', uid: 'u', repository: 'r', path: 'p', ref: 'main', state: 'Destroying', changedAt: null } };
  stream.write(`event: row\nid: 1-2\ndata: ${JSON.stringify(row)}\n\n`);
  await pages[0].locator('.state', { hasText: 'Destroying' }).waitFor();
  // A stream that is cut goes on after its last event.
  stream.destroy();
  await pages[0].waitForTimeout(200);
  assert.equal(await until(1), 1);
  assert.equal([...streams][0].req.headers['last-event-id'], '1-2');
  await pages[1].close();
  // The other tab follows a logout.
  await pages[0].getByRole('button', { name: 'Log out' }).click();
  await pages[2].getByLabel('Log in with a token of the cluster').waitFor();
  for (const page of pages) await page.close();
  assert.equal(await until(0), 0);
  // A browser without shared workers has a stream for each tab.
  await fetch(`${origin}/api/v1/state?set={}`);
  await context.addInitScript(() => { delete globalThis.SharedWorker; });
  for (const page of [await open('/layers'), await open('/runs')]) await page.getByRole('row').first().waitFor();
  assert.equal(await until(2), 2);
});
