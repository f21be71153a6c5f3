// Pure modules, run from their TypeScript through Vite.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createServer } from 'vite';

const server = await createServer({ root: new URL('..', import.meta.url).pathname, server: { middlewareMode: true, hmr: false, watch: null }, logLevel: 'error', optimizeDeps: { noDiscovery: true } });
after(() => server.close());
const [plan, ansi, route, time] = await Promise.all(['plan', 'ansi', 'route', 'time'].map((name) => server.ssrLoadModule(`/src/lib/${name}.ts`)));

const update = (address, after) => ({ of: 'Resource', address, type: 'x', actions: ['update'], attributes: [{ path: ['tags', 'Owner'], before: 'a', after }] });

test('each kind of change has its operation', () => {
  const of = (actions, more = {}) => plan.operation({ of: 'Resource', address: 'x.a', actions, ...more });
  assert.deepEqual(
    [of(['delete']), of(['delete', 'create']), of(['create', 'delete']), of(['update']), of(['forget']), of(['no-op'], { importing: 'i' }), of(['no-op'], { previousAddress: 'x.b' }), of([])],
    ['destroy', 'replace', 'replace', 'update', 'forget', 'import', 'move', 'none'],
  );
  assert.equal(plan.operation({ of: 'Drift', address: 'x.a', actions: ['delete'] }), 'drift');
});

test('destroys come first, and equal updates fold', () => {
  const found = plan.entries([update('x.a', 'b'), update('x.b', 'b'), update('x.c', 'other'), { of: 'Resource', address: 'x.d', actions: ['delete'] }]);
  assert.deepEqual(found.map((entry) => [entry.change.address, entry.same.length]), [['x.d', 0], ['x.a', 1], ['x.c', 0]]);
  const filter = { text: 'X.B', operations: new Set(), type: '' };
  assert.deepEqual(found.filter((entry) => plan.matches(entry, filter)).map((entry) => entry.change.address), ['x.a']);
});

test('destroys never fold', () => {
  const gone = (address) => ({ ...update(address, 'b'), actions: ['delete'] });
  assert.equal(plan.entries([gone('x.a'), gone('x.b')]).length, 2);
});

test('JSON within a string is compared as structure', () => {
  const [before, after] = ['{"a":[1,2],"b":1}', '{"a":[1,3],"b":1}'].map(plan.valueText);
  assert.deepEqual(plan.difference(before, after).filter((line) => line.sign !== ' ').map((line) => line.sign + line.text.trim()), ['-2', '+3']);
});

test('a sensitive value is never shown', () => {
  assert.deepEqual(plan.attributeText({ path: ['p'], before: 'x', after: 'y', sensitive: true }), { before: '(sensitive value)', after: '(sensitive value)' });
});

test('lines of the status become changes', () => {
  assert.deepEqual(plan.ofLine('- x.a'), { of: 'Resource', address: 'x.a', actions: ['delete'], reason: '' });
  assert.equal(plan.ofLine('and 3 more'), undefined);
});

test('JSON lines are read across chunks', async () => {
  const lines = ['{"version":1}', ...Array.from({ length: 300 }, (_, at) => JSON.stringify(update(`x.a[${at}]`, 'ä'))), ''].join('\n');
  const bytes = new TextEncoder().encode(lines);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += 7) controller.enqueue(bytes.slice(at, at + 7));
      controller.close();
    },
  });
  let last = [];
  await plan.read(new Response(body), (found, done) => { if (done) last = found; });
  assert.equal(last.length, 300);
  assert.equal(last[299].attributes[0].after, 'ä');
});

test('colours become spans, other escapes vanish', () => {
  const found = ansi.spans('\u001b[1m\u001b[31mError\u001b[0m: \u001b]8;;x\u0007no\u001b[2K\u202e');
  assert.deepEqual(found, [{ text: 'Error', style: 'ansi-red ansi-bold' }, { text: ': ', style: '' }, { text: 'no', style: '' }]);
});

test('a login leads to a page of this server only', () => {
  assert.deepEqual(
    ['/runs/a/b?x=1', '//evil.example/x', 'https://evil.example', 'javascript:alert(1)', '/\\evil.example', null].map(route.target),
    ['runs/a/b?x=1', 'evil.example/x', '', '', '', ''],
  );
});

test('paths below a base path are pages', () => {
  assert.equal(route.below('/infra/', '/infra/runs/a/b'), 'runs/a/b');
  assert.deepEqual(route.parse('runs/a/b%2Fc', '?q=1').rest, ['a', 'b/c']);
  assert.equal(route.parse('', '').page, 'inbox');
});

test('durations are short', () => {
  assert.deepEqual([5, 65, 3700, 200000].map(time.duration), ['5s', '1m05s', '1h01m', '2d7h']);
  assert.equal(time.seconds('1h30m'), 5400);
});
