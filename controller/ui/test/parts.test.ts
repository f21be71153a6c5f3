// A log in parts: no line is lost or read twice, whatever is cut, and no more than a part is read at a time.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Parts, type Part } from '../src/lib/parts.ts';

const MOST = 64;
const text = Array.from({ length: 200 }, (_, i) => `${i} ${'ü'.repeat(i % 9)}\n`).join('');
function of(text: string) {
  const bytes = new TextEncoder().encode(text);
  const reads: number[] = [];
  const read = async (offset: number, most: number) => {
    reads.push(most);
    return bytes.subarray(offset, offset + most);
  };
  return { parts: new Parts(read, bytes.length, MOST), reads, bytes };
}
const on = () => true;

test('parts have each line once, forwards and backwards', async () => {
  for (const all of [text, text.trimEnd(), `${'x'.repeat(200)}\n${text}`]) {
    const { parts, reads, bytes } = of(all);
    const forwards: Part[] = [];
    for (let at = 0; at < parts.size; at = forwards.at(-1)!.to) forwards.push(await parts.at(at));
    const backwards: Part[] = [];
    for (let part = await parts.end(); ; part = await parts.before(part.from)) {
      backwards.unshift(part);
      if (part.from === 0) break;
    }
    for (const found of [forwards, backwards]) {
      const lines = found.flatMap((part) => part.lines);
      assert.equal(lines.join('').replaceAll('x', ''), all.replaceAll('\n', '').replaceAll('x', ''));
      for (const part of found) for (const [i, at] of part.at.entries()) assert.ok(new TextDecoder().decode(bytes.subarray(at)).startsWith(part.lines[i]!));
    }
    assert.ok(reads.every((most) => most <= MOST));
  }
});

test('search steps through the parts in both directions and ends', async () => {
  const { parts } = of(text);
  const end = await parts.end();
  const up = await parts.find(end, end.lines.length, -1, (line) => line.startsWith('17 '), on);
  assert.equal(up!.part.lines[up!.line]!.slice(0, 3), '17 ');
  const down = await parts.find(up!.part, up!.line, 1, (line) => line.startsWith('18 '), on);
  assert.equal(down!.part.lines[down!.line]!.slice(0, 3), '18 ');
  assert.equal(await parts.find(down!.part, down!.line, 1, (line) => line.startsWith('17 '), on), undefined);
  assert.equal(await parts.find(end, 0, -1, () => false, on), undefined);
  let told = 0;
  assert.equal(await parts.find(await parts.at(0), -1, 1, () => false, () => ++told < 3), undefined);
  assert.equal(told, 3, 'a search that is not wanted any more ends');
  let left = 100;
  const hundredth = await parts.find(await parts.at(0), -1, 1, () => --left === 0, on);
  assert.equal(hundredth!.part.lines[hundredth!.line]!.slice(0, 3), '99 ');
});

test('empty log has no line', async () => {
  const { parts } = of('');
  assert.deepEqual((await parts.end()).lines, []);
});
