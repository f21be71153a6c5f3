// Opens each page in both themes against the server of made-up answers: pictures, axe, and errors. `npm run look -- FOLDER [PAGE]`
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';
import { server } from './server.js';

const [folder = 'pictures', only] = process.argv.slice(2);
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const origin = `http://127.0.0.1:${server.address().port}`;
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const PAGES = [
  ['inbox', '/'], ['inbox-empty', '/', 'empty'], ['layers', '/layers'], ['layers-empty', '/layers', 'empty'], ['layer', '/layers/prod/network-prod'], ['runs', '/runs'],
  ['run', '/runs/prod/7f3c'], ['run-approve', '/runs/prod/7f3c', '', async (page) => { await page.keyboard.press('a'); await page.keyboard.type('looks good'); }],
  ['run-tree', '/runs/prod/7f3c', '', async (page) => { for (const key of 'jnEnterjjjj'.match(/Enter|./g)) await page.keyboard.press(key); await page.keyboard.press('Enter'); }],
  ['run-text', '/runs/prod/7f3c?plan=text'], ['run-failed', '/runs/prod/failed'], ['run-big', '/runs/prod/big'], ['run-forbidden', '/runs/prod/7f3c', 'forbidden'], ['run-down', '/runs/prod/7f3c', 'down'],
  ['run-applying', '/runs/prod/applying'], ['run-frozen', '/runs/prod/queued'], ['run-line', '/runs/prod/failed?log=apply&attempt=1#L120'], ['layer-viewer', '/layers/prod/network-prod', 'viewer'], ['layer-unlock', '/layers/prod/network-prod', '', async (page) => { await page.getByRole('button', { name: 'Remove lock…' }).click(); await page.getByLabel('Reason (required)').fill("its node's gone"); }], ['namespace', '/namespaces/prod'], ['namespace-viewer', '/namespaces/prod', 'viewer'],
  ['repositories', '/repositories'], ['repository', '/repositories/prod/infra'], ['queue', '/queue'], ['me', '/me'], ['login', '/login?to=%2Flayers', 'out'], ['help', '/me', '', (page) => page.keyboard.press('?')],
];
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
let faults = 0;
for (const colorScheme of ['light', 'dark']) {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1360, height: 900 }, bypassCSP: false, reducedMotion: 'reduce' });
  for (const [name, path, fail = '', act] of PAGES) {
    if (only && only !== name) continue;
    const page = await context.newPage();
    const report = (text) => (faults++, console.log(`${name} ${colorScheme}: ${text}`));
    page.on('console', (message) => message.type() === 'error' && !/status of (401|403|503)/.test(message.text()) && report(message.text()));
    page.on('pageerror', (error) => report(error.stack));
    page.on('request', (request) => new URL(request.url()).origin !== origin && !request.url().startsWith('data:') && report(`asks ${request.url()}`));
    await fetch(`${origin}/pawl/api/v1/state?set=${encodeURIComponent(JSON.stringify(fail === 'out' ? { isIn: false } : { fail }))}`);
    await page.goto(`${origin}/pawl${path}`);
    await page.waitForTimeout(name === 'run-big' ? 4000 : 500);
    await act?.(page);
    await page.waitForTimeout(150);
    await page.screenshot({ path: `${folder}/${name}-${colorScheme}.png`, fullPage: name.startsWith('layer-') });
    const rows = await page.evaluate(() => document.querySelectorAll('[role=row], .box[role=log] .cells').length);
    if (rows > 200) report(`${rows} rows`);
    // Through the debugger, which the page's policy does not bind.
    await page.evaluate((await import('node:fs')).readFileSync(axe, 'utf8'));
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    for (const it of violations) report(`${it.id} ×${it.nodes.length}: ${it.nodes[0].html.slice(0, 160)} ${it.nodes[0].any[0]?.message ?? it.nodes[0].all[0]?.message ?? ''}`);
    await page.close();
  }
  await context.close();
}
await browser.close();
server.closeAllConnections();
server.close();
console.log(faults === 0 ? 'no faults' : `${faults} faults`);
process.exitCode = faults === 0 ? 0 : 1;
