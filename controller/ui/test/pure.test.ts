import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Change, Run } from '../src/api/types.ts';
import { plain, spans } from '../src/lib/ansi.ts';
import { diff, lines, pathText } from '../src/lib/diff.ts';
import { age, duration, milliseconds } from '../src/lib/duration.ts';
import { Journal, elapsed } from '../src/lib/journal.ts';
import { Lines } from '../src/lib/lines.ts';
import { bytes as size, setting } from '../src/lib/settings.ts';
import { bar, expiry } from '../src/lib/phases.ts';
import { index, opOf, reasonOf, rows, summary } from '../src/lib/plan.ts';
import { parse, pathOf, safeTarget } from '../src/lib/route.ts';
import { turns } from '../src/lib/turns.ts';
import { filled, missingRule, quoted } from '../src/lib/yaml.ts';

test('paths are parsed to pages', () => {
  const cases: [string, string][] = [['/', 'inbox'], ['/layers', 'layers'], ['/layers/a/b', 'layer'], ['/runs/a/b/', 'run'], ['/repositories/a/b', 'repository'], ['/login', 'login'], ['/namespaces/a', 'namespace'], ['/x', 'none'], ['/runs/a', 'none'], ['/constructor/a/b', 'none'], ['/runs/%zz/b', 'none']];
  for (const [path, page] of cases) assert.equal(parse(path).page, page, path);
  const back = parse(pathOf('runs', { namespace: 'a', name: 'b.c' }));
  assert.deepEqual([back.namespace, back.name], ['a', 'b.c']);
});

test('only paths of this origin follow a login', () => {
  assert.equal(safeTarget('/runs/a/b?q=1#L3'), '/runs/a/b?q=1#L3');
  for (const to of [null, '', 'https://evil.example', '//evil.example', '/\\evil.example', '/\t/evil.example', '/..//evil.example', '/.//evil.example', 'javascript:alert(1)', '/login?to=/x']) assert.equal(safeTarget(to), '/', String(to));
});

test('durations read as people say them', () => {
  for (const [ms, text] of [[400, '0.4s'], [41_000, '41s'], [723_000, '12m 03s'], [18_120_000, '5h 02m'], [273_600_000, '3d 4h'], [-5, '0.0s']] as const) assert.equal(duration(ms), text);
  assert.equal(age(7_300_000), '2h');
  assert.equal(milliseconds('1h30m'), 5_400_000);
  assert.equal(milliseconds('soon'), undefined);
});

test('colours become spans and other sequences vanish', () => {
  assert.deepEqual(spans('\u001b[1;31mError\u001b[0m: x'), [{ text: 'Error', style: 'red bold' }, { text: ': x', style: '' }]);
  assert.deepEqual(spans('\u001b[38;5;196ma\u001b[48;2;1;2;3mb').map((it) => it.text).join(''), 'ab');
  assert.equal(plain('\u001b]8;;https://evil.example\u0007link\u001b]8;;\u0007\u001b[2J\u001b[?25l!'), 'link!');
  assert.equal(plain('<img onerror=x>'), '<img onerror=x>');
});

test('JSON inside strings is compared as structure', () => {
  const of = (action: string[]) => JSON.stringify({ Statement: [{ Action: action }] });
  const found = diff(of(['a']), of(['a', 'b']), ['policy']);
  assert.deepEqual(found, [{ op: ' ', path: 'policy (JSON)' }, { op: '+', path: 'policy.Statement[0].Action', after: '"b"' }]);
  assert.deepEqual(diff('14', '16', ['v']), [{ op: '~', path: 'v', before: '"14"', after: '"16"' }]);
  assert.deepEqual(diff({ a: 1, b: 2 }, { a: 1 }, []), [{ op: '-', path: 'b', before: '2' }]);
  assert.deepEqual(lines(['a', 'b', 'c'], ['a', 'c']).map((it) => it.op).join(''), ' - ');
  assert.equal(pathText(['a', 0, 'x y', 'b']), 'a[0]["x y"].b');
});

const change = (address: string, actions: string[], more: Partial<Change> = {}): Change => ({ of: 'Resource', address, actions, ...more });

test('equal changes and modules fold, destroys come first', () => {
  const tags = { attributes: [{ path: ['tags', 'Owner'], before: 'a', after: 'b' }] };
  const list = [
    change('c.new', ['create']),
    change('d.old', ['delete']),
    ...Array.from({ length: 300 }, (_, i) => change(`module.m.x[${i}]`, ['update'], { module: 'module.m', ...tags })),
    change('module.m.y', ['create'], { module: 'module.m' }),
  ];
  const none = { text: '', op: '', type: '' };
  const found = rows(index(list), none, new Set());
  assert.deepEqual(found.map((row) => (row.kind === 'group' ? `${row.count}×${row.title}` : row.kind === 'change' ? row.change.address : row.kind)), ['300×tags.Owner "a" → "b"', 'd.old', 'c.new', 'module']);
  assert.equal(rows(index(list), none, new Set([found[0]!.key])).length, 304);
  assert.equal(rows(index(list), { ...none, op: 'delete' }, new Set()).length, 1);
  assert.equal(rows(index(list), { ...none, text: 'M.Y' }, new Set()).length, 2);
});

test('each replacement has its reason', () => {
  const it = change('db', ['delete', 'create'], { reason: 'replace_because_cannot_update', replacePaths: [['engine']], attributes: [{ path: ['engine'], before: '14', after: '16' }] });
  assert.equal(opOf(it), 'replace');
  assert.equal(reasonOf(it), 'forced by: engine "14" → "16"');
  assert.equal(reasonOf(change('x', ['delete'], { reason: 'delete_because_each_key' })), 'its key is not in for_each any more');
  assert.equal(reasonOf(change('x', ['delete'], { reason: 'a_new_reason' })), 'a new reason');
  const action: Change = { of: 'Action', address: 'action.a.b', actions: [], trigger: 'x.y' };
  assert.deepEqual([opOf(action), summary(action)], ['action', 'invoked by x.y']);
  assert.equal(reasonOf({ ...it, attributes: [{ path: ['engine'], sensitive: true }] }), 'forced by: engine (sensitive value)');
});

test('plan of 50,000 changes folds in little time', () => {
  const list = Array.from({ length: 50_000 }, (_, i) => change(`module.m[${i % 90}].x[${i}]`, ['create'], { module: `module.m[${i % 90}]` }));
  const start = performance.now();
  assert.equal(rows(index(list), { text: '', op: '', type: '' }, new Set()).length, 90);
  assert.ok(performance.now() - start < 2000);
});

test('phase bar shows what each phase took', () => {
  const run = {
    metadata: {}, spec: { approval: { expiresAfter: '1h' } },
    status: { phase: 'AwaitingApproval', plan: { createdAt: '2026-01-01T00:00:50Z' }, steps: [{ name: 'source', attempt: 1, startedAt: '2026-01-01T00:00:00Z', finishedAt: '2026-01-01T00:00:02Z' }] },
  } as unknown as Run;
  const now = Date.parse('2026-01-01T00:01:00Z');
  assert.deepEqual(bar(run, now).map((part) => [part.name, part.state, part.ms]).filter(([, state]) => state !== 'before'), [['Setup', 'done', 2000], ['Hold', 'now', 10_000]]);
  assert.equal(expiry(run), Date.parse('2026-01-01T01:00:50Z'));
});

test('log keeps line numbers and bytes over cut pieces', () => {
  const log = new Lines(plain);
  const bytes = new TextEncoder().encode('a\nü\nError: x');
  for (const byte of bytes) log.add(Uint8Array.of(byte));
  assert.deepEqual(log.all, ['a', 'ü', 'Error: x']);
  assert.equal(log.bytes, bytes.length);
  assert.equal(log.error, -1);
  log.add(new TextEncoder().encode('\n\u001b[31m│ Error:\u001b[0m y\n'));
  assert.deepEqual([log.error, log.all.length], [2, 4]);
  const long = new Lines();
  long.add(new TextEncoder().encode('x'.repeat(20_000)));
  assert.ok(long.all.every((line) => line.length < 9000));
});

test('missing rule is made from the refusal', () => {
  const rule = missingRule('User "x" cannot get resource "terraformruns/plan" in API group "read.pawl.run" in the namespace "prod"');
  assert.match(rule!, /kind: Role\nmetadata: \{name: pawl-extra, namespace: prod\}/);
  assert.match(rule!, /apiGroups: \["read.pawl.run"\], resources: \["terraformruns\/plan"\], verbs: \["get"\]/);
  assert.equal(missingRule('denied by a policy'), undefined);
  assert.equal(quoted("it's"), `'it'\\''s'`);
  assert.equal(quoted('a-1'), 'a-1');
});

test('log of any size keeps its newest lines with their numbers', () => {
  const log = new Lines(plain);
  const piece = new TextEncoder().encode(`${'x'.repeat(99)}\n`.repeat(10_000));
  log.add(new TextEncoder().encode('Error: first\n'));
  for (let i = 0; i < 64; i++) log.add(piece);
  assert.deepEqual([log.error, log.dropped + log.lines.length], [0, 640_001]);
  assert.ok(log.lines.length * 100 < 26 << 20 && log.dropped > 0, `${log.lines.length}`);
});

test('elapsed time of an object is known or left out', () => {
  const journal = new Journal();
  const add = (event: string, address: string, at?: string) => journal.add(JSON.stringify({ event, action: 'create', address, at }));
  add('start', 'a', '2026-01-01T00:00:00Z');
  add('complete', 'a', '2026-01-01T00:00:05Z');
  add('start', 'b', '2026-01-01T00:00:06Z');
  add('complete', 'c', '2026-01-01T00:00:07Z');
  add('start', 'd', 'soon');
  add('later', 'e');
  journal.add('{"event":"start","addr');
  const now = Date.parse('2026-01-01T00:00:10Z');
  const found = Object.fromEntries(journal.operations.map((it) => [it.address, [it.state, elapsed(it, now)]]));
  assert.deepEqual(found, { a: ['done', 5000], b: ['now', 4000], c: ['done', undefined], d: ['now', undefined] });
  assert.deepEqual(journal.operations.map((it) => it.state), ['now', 'now', 'done', 'done']);
});

test('effective setting has its value and its origin', () => {
  assert.deepEqual(setting('tool.name=a=b (c) (layer)'), { path: 'tool.name', value: 'a=b (c)', origin: 'layer' });
  assert.deepEqual(setting('and 3 more'), { path: '', value: 'and 3 more', origin: '' });
  assert.deepEqual([size(7), size(48_211), size(1 << 30)], ['7 B', '47.1 KiB', '1.0 GiB']);
});

test('typed reason is a word of the line that is shown', () => {
  assert.equal(filled('kubectl annotate x pawl.run/deny=REASON y', "it's $& late"), `kubectl annotate x pawl.run/deny='it'\\''s $& late' y`);
  assert.equal(filled(`echo '{"reason":"REASON"}'`, `it's "gone"`), `echo '{"reason":"it'\\''s \\"gone\\""}'`);
  assert.equal(filled('x=REASON', ''), 'x=REASON');
});

test('calls during work lead to one more', async () => {
  const done: (() => void)[] = [];
  const work = turns(() => new Promise<void>((resolve) => done.push(resolve)));
  const [first, second, third] = [work(), work(), work()];
  assert.equal(done.length, 1);
  done[0]!();
  await first;
  await new Promise(setImmediate);
  assert.equal(done.length, 2);
  const fourth = work();
  done[1]!();
  await Promise.all([second, third]);
  await new Promise(setImmediate);
  assert.equal(done.length, 3, 'a call during the second one has a whole run too');
  done[2]!();
  await fourth;
});
