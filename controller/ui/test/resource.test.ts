// When a page reads: while it is shown, not twice for the same rows, and never after its end.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

// As a browser has them; the runes of Svelte are plain values here.
const page = Object.assign(new EventTarget(), { hidden: false, querySelector: () => null });
const runes = Object.assign((value: unknown) => value, { raw: (value: unknown) => value });
Object.assign(globalThis, { document: page, location: { href: 'http://h/' }, addEventListener: () => {}, $state: runes });
mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
const { Resource } = await import('../src/api/resource.svelte.ts');
const { Refused } = await import('../src/api/client.ts');
const rest = async () => { for (let i = 0; i < 20; i++) await Promise.resolve(); };
const pass = async (ms: number) => { mock.timers.tick(ms); await rest(); };

test('failing page reads again until it ends', async () => {
  let reads = 0;
  const it = new Resource(async () => { reads++; throw new Refused(503, 'Unavailable', ''); });
  const end = it.start();
  await rest();
  await pass(5000);
  assert.equal(reads, 2);
  end();
  await it.refresh();
  await pass(60_000);
  assert.equal(reads, 2, 'nothing polls for a page that is gone');
  it.start();
  await rest();
  assert.equal(reads, 3, 'it may begin again');
});

test('answer that arrives after the end is dropped, and the next start waits for none', async () => {
  const answers: ((value: string) => void)[] = [];
  const it = new Resource(() => new Promise<string>((resolve) => answers.push(resolve)));
  it.start()();
  it.start();
  assert.equal(answers.length, 2);
  answers[0]!('old');
  await rest();
  assert.equal(it.data, undefined);
  answers[1]!('new');
  await rest();
  assert.equal(it.data, 'new');
});

test('page with other topics goes on from what it has read', async () => {
  let reads = 0;
  const it = new Resource(async () => ({ sequence: `1-${++reads}` }));
  it.follow(['layer/a/b'])();
  assert.equal(reads, 1);
  const end = it.follow(['layer/a/b']);
  await rest();
  assert.equal(reads, 2, 'its first reading was cut off');
  end();
  it.follow(['layer/a/b', 'run/a/r'])();
  await rest();
  assert.equal(reads, 2);
});
