// Budgets on bytes, and rules that the sources follow. Run `npm run build` first.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { test } from 'node:test';

const root = new URL('../', import.meta.url);
const files = (folder: string) => readdirSync(new URL(folder, root), { recursive: true }).map(String);
const assets = existsSync(new URL('dist/assets', root)) ? files('dist/assets') : [];
const size = (name: string) => statSync(new URL(`dist/assets/${name}`, root)).size;
const sum = (list: string[]) => list.reduce((all, name) => all + size(name), 0);

test('script and styles are within their budgets', () => {
  const scripts = assets.filter((name) => name.endsWith('.js.br'));
  assert.ok(scripts.length > 5, 'run `npm run build` first');
  assert.ok(sum(scripts) <= 70_000, `script: ${sum(scripts)} bytes`);
  assert.ok(sum(assets.filter((name) => name.endsWith('.css.br'))) <= 15_000);
});

test('first view is within its budget', () => {
  const reached = new Set<string>();
  const visit = (name: string) => {
    if (reached.has(name)) return;
    reached.add(name);
    const text = readFileSync(new URL(`dist/assets/${name}`, root), 'utf8');
    for (const [, found] of text.matchAll(/from\s*["']\.\/([\w.-]+\.js)["']|import\s*["']\.\/([\w.-]+\.js)["']/g)) if (found) visit(found);
  };
  for (const start of ['index-', 'Inbox-']) visit(assets.find((name) => name.startsWith(start) && name.endsWith('.js'))!);
  const bytes = sum([...reached].map((name) => `${name}.br`));
  assert.ok(reached.size > 3 && bytes <= 40_000, `first view: ${bytes} bytes`);
});

test('page has no inline script or style', () => {
  const page = readFileSync(new URL('dist/index.html', root), 'utf8');
  assert.doesNotMatch(page, /<style|style=|<script(?![^>]*src=)|\son\w+=/);
});

test('nothing is parsed as HTML', () => {
  for (const name of files('src').filter((name) => /\.(svelte|ts)$/.test(name) && !name.endsWith('.d.ts'))) {
    const text = readFileSync(new URL(`src/${name}`, root), 'utf8');
    assert.doesNotMatch(text, /\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\sstyle="/, name);
  }
});
