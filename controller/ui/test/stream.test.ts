// The one stream of all tabs: who is told what, and that nothing is lost between what a tab read and what it is told.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Hub, concerns, older, type Told } from '../src/api/stream/hub.ts';
import type { RowEvent } from '../src/api/types.ts';

class Source extends EventTarget {
  static all: Source[] = [];
  readyState = 0;
  onopen: ((event: Event) => void) | null = null;
  onerror: (() => void) | null = null;
  url: string;
  constructor(url: string) {
    super();
    this.url = url;
    Source.all.push(this);
  }
  open(): void {
    this.readyState = 1;
    this.onopen?.(new Event('open'));
  }
  tell(name: string, id: string, data: unknown = {}): void {
    this.dispatchEvent(Object.assign(new Event(name), { lastEventId: id, data: JSON.stringify(data) }));
  }
  fail(): void {
    this.readyState = 2;
    this.onerror?.();
  }
  close(): void {
    this.readyState = 2;
  }
}
const soon = (ms = 60) => new Promise((resolve) => setTimeout(resolve, ms));
const row = (kind: string, name: string) => ({ kind, namespace: 'a', name, row: null }) as unknown as RowEvent;
function tab() {
  const told: string[] = [];
  return { told, postMessage: (it: Told) => void told.push('row' in it ? it.row.name : 'resync' in it ? 'resync' : 'away' in it ? (it.away ? 'away' : 'here') : it.lost ? 'lost' : 'back') };
}
const begin = () => {
  Source.all = [];
  return new Hub((url) => new Source(url) as unknown as EventSource);
};
const after = (source: Source) => new URL(source.url).searchParams.get('after');
const url = 'http://h/s';

test('tabs share one stream and hear their own topics', async () => {
  const hub = begin();
  const [one, two] = [tab(), tab()];
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  hub.want(two, { url, topics: ['layer/a/net'], after: '1-4' });
  await soon();
  assert.equal(Source.all.length, 1);
  const [source] = Source.all as [Source];
  assert.deepEqual(new URL(source.url).searchParams.getAll('topic'), ['layer/a/net', 'runs']);
  assert.equal(after(source), '1-4');
  source.open();
  source.tell('open', '1-6');
  source.tell('row', '', row('run', 'r1'));
  source.tell('row', '1-7', row('layer', 'net'));
  source.tell('row', '1-8', row('layer', 'other'));
  assert.deepEqual([one.told, two.told], [['r1'], ['net']]);
  // A tab that is closed tells no address.
  hub.want(two, { url: '', topics: [] });
  await soon();
  assert.equal(Source.all[1]!.url, 'http://h/s?topic=runs&after=1-8');
});

test('tab that read earlier is told what the others have heard already', async () => {
  const hub = begin();
  const [one, two] = [tab(), tab()];
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  await soon();
  Source.all[0]!.open();
  Source.all[0]!.tell('row', '1-9', row('run', 'r1'));
  hub.want(two, { url, topics: ['runs'], after: '1-7' });
  await soon();
  assert.equal(Source.all.length, 2, 'the same topics, from an earlier change');
  assert.equal(after(Source.all[1]!), '1-7');
  hub.want(two, { url, topics: ['runs'], after: undefined });
  await soon();
  assert.equal(Source.all.length, 2, 'a tab that only shows that it is there');
});

test('tab that could not read is told to read once the stream is open', async () => {
  const hub = begin();
  const [one, two] = [tab(), tab()];
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  hub.want(two, { url, topics: ['inbox'] });
  await soon();
  Source.all[0]!.open();
  assert.deepEqual([one.told, two.told], [[], ['resync']]);
});

test('refused stream goes on after the last change', async () => {
  const hub = begin();
  const one = tab();
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  await soon();
  Source.all[0]!.open();
  Source.all[0]!.tell('row', '1-6', row('run', 'r1'));
  Source.all[0]!.fail();
  await soon(1400);
  assert.equal(after(Source.all[1]!), '1-6');
  Source.all[1]!.open();
  assert.deepEqual(one.told, ['r1', 'lost', 'back']);
});

test('last tab that leaves closes the stream, and a later one begins at its own change', async () => {
  const hub = begin();
  const one = tab();
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  await soon();
  hub.want(one, { url, topics: [] });
  assert.equal(Source.all[0]!.readyState, 2);
  hub.want(one, { url, topics: ['runs'], after: '1-90' });
  await soon();
  assert.equal(after(Source.all[1]!), '1-90');
});

test('tab that leaves while the stream is lost is not warned for ever, nor is the next one', async () => {
  const hub = begin();
  const [one, two] = [tab(), tab()];
  hub.want(one, { url, topics: ['runs'], after: '1-5' });
  await soon();
  Source.all[0]!.open();
  Source.all[0]!.tell('away', '', true);
  Source.all[0]!.fail();
  hub.want(one, { url, topics: [] });
  assert.deepEqual(one.told, ['away', 'lost', 'back', 'here']);
  hub.want(two, { url, topics: ['runs'], after: '1-5' });
  assert.deepEqual(two.told, []);
  hub.want(two, { url, topics: [] });
});

test('older change is chosen within one process', () => {
  assert.equal(older('1-9', '1-10'), '1-9');
  assert.equal(older('1-10', '1-9'), '1-9');
  assert.equal(older('2-1', '1-9'), '1-9');
  assert.equal(older(undefined, '1-9'), '1-9');
  assert.ok(concerns(['run/a/r'], row('run', 'r')) && !concerns(['run/a/r', 'layers'], row('run', 's')));
});
