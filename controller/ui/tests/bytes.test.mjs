// Budgets on bytes as sent, and rules on the sources.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

const top = new URL('..', import.meta.url).pathname;
const files = (folder) => readdirSync(join(top, folder), { recursive: true }).map((name) => join(folder, name)).filter((name) => statSync(join(top, name)).isFile());
const size = (names) => names.reduce((sum, name) => sum + statSync(join(top, name)).size, 0);

test('script and styles are within their budgets', () => {
  const dist = files('dist');
  const script = size(dist.filter((name) => name.endsWith('.js.br')));
  const styles = size(dist.filter((name) => name.endsWith('.css.br')));
  // The first view: the entry and everything that it loads at once, and the Inbox.
  const entry = /assets\/index-[^"]+\.js/.exec(readFileSync(join(top, 'dist/index.html'), 'utf8'))[0];
  const seen = new Set();
  const load = (name) => {
    if (seen.has(name)) return;
    seen.add(name);
    for (const [, other] of readFileSync(join(top, 'dist/assets', name), 'utf8').matchAll(/from\s*"\.\/([^"]+\.js)"/g)) load(other);
  };
  load(entry.replace('assets/', ''));
  load(dist.find((name) => /Inbox-.*\.js$/.test(name)).replace('dist/assets/', ''));
  const first = size([...seen].map((name) => `dist/assets/${name}.br`));
  console.log(`# script ${script}, first view ${first}, styles ${styles} bytes`);
  assert.ok(script <= 70_000 && first <= 40_000 && styles <= 15_000, `${script} ${first} ${styles}`);
});

test('the document has no inline script or style, and names no other origin', () => {
  const html = readFileSync(join(top, 'dist/index.html'), 'utf8');
  assert.doesNotMatch(html, /<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?:/);
});

test('no text is parsed as HTML', () => {
  for (const name of files('src')) assert.doesNotMatch(readFileSync(join(top, name), 'utf8'), /\{@html|innerHTML|insertAdjacentHTML|document\.write/, name);
});
