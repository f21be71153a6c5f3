// Times of the web console in a browser, and of kubectl on the same objects, in turns: one line of JSON, in milliseconds.
// Environment: PAWL_URL, PAWL_TOKEN; KUBECTL, with KUBECONFIG and KUBECACHEDIR, as the same person.
import { spawn } from 'node:child_process';
import { chromium } from 'playwright-core';

const { PAWL_URL, PAWL_TOKEN, KUBECTL } = process.env;
const found = { script: [], click: [], kubectl: [] };
const rows = '[role=table] .window [role=row]';

const kubectl = () => new Promise((done, failed) => {
  const begun = performance.now();
  const child = spawn(KUBECTL, ['get', 'layers', '-A'], { stdio: ['ignore', 'pipe', 'inherit'] });
  let [lines, took] = [0, undefined];
  child.stdout.on('data', (data) => {
    lines += data.toString().split('\n').length - 1;
    if (lines >= 100) took ??= performance.now() - begun;
  });
  child.on('close', (code) => (code === 0 && took ? done(took) : failed(new Error(`kubectl: ${code}, ${lines} lines`))));
});

// As root a browser has no sandbox.
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
const context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
const headers = { 'content-type': 'application/json', 'pawl-request': '1', origin: PAWL_URL };
const entered = await context.request.post(`${PAWL_URL}/api/v1/login/token`, { data: { token: PAWL_TOKEN }, headers });
if (!entered.ok()) throw new Error(await entered.text());

// The first view: a page that the browser has never seen, until its rows are there.
for (let turn = 0; turn < 5; turn++) {
  const page = await context.newPage();
  const devtools = await context.newCDPSession(page);
  await devtools.send('Network.setCacheDisabled', { cacheDisabled: true });
  await devtools.send('Performance.enable');
  await page.goto(PAWL_URL);
  await page.locator('main a[href*="/runs/"]').first().waitFor();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
  const { metrics } = await devtools.send('Performance.getMetrics');
  found.script.push(metrics.find((it) => it.name === 'ScriptDuration').value * 1000);
  await page.close();
}

const page = await context.newPage();
await page.goto(PAWL_URL);
await page.locator('main a[href*="/runs/"]').first().waitFor();
await kubectl();
for (let turn = 0; turn < 5; turn++) {
  found.kubectl.push(await kubectl());
  for (let click = 0; click < 5; click++) {
    await page.evaluate((selector) => {
      // Painted: a task after the frame that has the rows.
      globalThis.painted = new Promise((done) => {
        addEventListener('click', ({ timeStamp }) => {
          const look = () => requestAnimationFrame(() => {
            if (document.querySelectorAll(selector).length < 25 || !location.pathname.endsWith('/layers')) return look();
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => done(performance.now() - timeStamp);
            port2.postMessage(0);
          });
          look();
        }, { capture: true, once: true });
      });
    }, rows);
    await page.getByRole('link', { name: 'Layers', exact: true }).click();
    found.click.push(await page.evaluate(() => globalThis.painted));
    await page.getByRole('link', { name: 'Inbox', exact: true }).click();
    await page.locator('main a[href*="/runs/"]').first().waitFor();
  }
}
await browser.close();
console.log(JSON.stringify(found));
