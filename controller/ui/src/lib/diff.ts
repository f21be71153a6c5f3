// Differences of values, also of JSON inside strings, as lines.

export interface Line {
  op: '+' | '-' | '~' | ' ';
  path: string;
  before?: string;
  after?: string;
}

const MOST_LINES = 400;

/** `a.b[0]["x y"]`. */
export function pathText(path: readonly unknown[]): string {
  let text = '';
  for (const part of path) {
    if (typeof part === 'number') text += `[${part}]`;
    else if (/^[A-Za-z_][\w-]*$/.test(String(part))) text += text ? `.${part}` : part;
    else text += `[${JSON.stringify(part)}]`;
  }
  return text;
}

export function show(value: unknown): string {
  if (value === undefined || value === null) return 'null';
  if (value === '(sensitive value)' || value === '(known after apply)') return value;
  return JSON.stringify(value);
}

const isTree = (value: unknown): value is object => typeof value === 'object' && value !== null;

function parsed(value: unknown): object | undefined {
  if (typeof value !== 'string' || !/^\s*[[{]/.test(value) || value.length > 262144) return undefined;
  try {
    const it: unknown = JSON.parse(value);
    return isTree(it) ? it : undefined;
  } catch {
    return undefined;
  }
}

/** The lines in which two values differ. */
export function diff(before: unknown, after: unknown, path: readonly unknown[] = []): Line[] {
  const out: Line[] = [];
  walk(before, after, [...path], out, false);
  if (out.length <= MOST_LINES) return out;
  return [...out.slice(0, MOST_LINES), { op: ' ', path: `… ${out.length - MOST_LINES} more lines; the tool's own text has them` }];
}

function walk(before: unknown, after: unknown, path: unknown[], out: Line[], isJson: boolean): void {
  if (same(before, after)) return;
  const [left, right] = [parsed(before), parsed(after)];
  if (!isJson && (left ?? right) && (left || before == null) && (right || after == null)) {
    out.push({ op: ' ', path: `${pathText(path)} (JSON)` });
    return walk(left, right, path, out, true);
  }
  if (isTree(before) && isTree(after) && Array.isArray(before) === Array.isArray(after)) {
    if (Array.isArray(before) && Array.isArray(after)) return list(before, after, path, out);
    const [a, b] = [before as Record<string, unknown>, after as Record<string, unknown>];
    for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) walk(a[key], b[key], [...path, key], out, false);
    return;
  }
  if (typeof before === 'string' && typeof after === 'string' && (before.includes('\n') || after.includes('\n'))) {
    out.push({ op: '~', path: pathText(path) });
    return void out.push(...lines(before.split('\n'), after.split('\n')));
  }
  for (const [value, op] of [[before, '-'], [after, '+']] as const) {
    const other = op === '-' ? after : before;
    if (isTree(value) && other == null && Object.keys(value).length > 0) {
      for (const [key, item] of Object.entries(value)) {
        const at = [...path, Array.isArray(value) ? Number(key) : key];
        if (op === '-') walk(item, undefined, at, out, false);
        else walk(undefined, item, at, out, false);
      }
      return;
    }
  }
  if (before === undefined || before === null) out.push({ op: '+', path: pathText(path), after: show(after) });
  else if (after === undefined || after === null) out.push({ op: '-', path: pathText(path), before: show(before) });
  else out.push({ op: '~', path: pathText(path), before: show(before), after: show(after) });
}

/** Lists of plain values are compared as sets in order, others by index. */
function list(before: unknown[], after: unknown[], path: unknown[], out: Line[]): void {
  if (before.some(isTree) || after.some(isTree)) {
    for (let i = 0; i < Math.max(before.length, after.length); i++) walk(before[i], after[i], [...path, i], out, false);
    return;
  }
  const at = pathText(path);
  for (const line of lines(before.map(show), after.map(show))) {
    if (line.op === '-') out.push({ op: '-', path: at, before: line.before });
    if (line.op === '+') out.push({ op: '+', path: at, after: line.after });
  }
}

/** The difference of two lists of lines; equal lines but for two around a change are left out. */
export function lines(before: string[], after: string[]): Line[] {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < Math.min(before.length, after.length) - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  const a = before.slice(head, before.length - tail);
  const b = after.slice(head, after.length - tail);
  const middle = a.length * b.length > 250_000 ? whole(a, b) : longest(a, b);
  const all = [...before.slice(0, head).map(equal), ...middle, ...before.slice(before.length - tail).map(equal)];
  const near = all.map((_, i) => all.slice(Math.max(0, i - 2), i + 3).some((line) => line.op !== ' '));
  return all.filter((_, i) => near[i]);
}

const equal = (text: string): Line => ({ op: ' ', path: '', before: text });
const whole = (a: string[], b: string[]): Line[] => [
  ...a.map((before): Line => ({ op: '-', path: '', before })),
  ...b.map((after): Line => ({ op: '+', path: '', after })),
];

/** By the longest common subsequence. */
function longest(a: string[], b: string[]): Line[] {
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => table[i * width + j]!;
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) table[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  const out: Line[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) [out.push(equal(a[i]!)), i++, j++];
    else if (i < a.length && (j >= b.length || at(i + 1, j) >= at(i, j + 1))) out.push({ op: '-', path: '', before: a[i++] });
    else out.push({ op: '+', path: '', after: b[j++] });
  }
  return out;
}

/** Whether two values are equal. */
export function same(a: unknown, b: unknown): boolean {
  if (a === b || (a ?? null) === (b ?? null)) return true;
  if (!isTree(a) || !isTree(b)) return false;
  return JSON.stringify(a) === JSON.stringify(b);
}
