// The plan as rows: parses the server's JSON lines, words each change, folds equal changes, filters.

import type { Attribute, ChangeLine, Counts } from './types.ts';

export type Operation = 'destroy' | 'replace' | 'update' | 'create' | 'import' | 'move' | 'forget' | 'read' | 'invoke' | 'output' | 'drift' | 'none';

export const ORDER: Operation[] = ['destroy', 'replace', 'forget', 'update', 'create', 'import', 'move', 'invoke', 'read', 'output', 'drift', 'none'];

export const SIGN: Record<Operation, string> = {
  destroy: '-', replace: '±', forget: '∅', update: '~', create: '+', import: '↧', move: '→', invoke: '!', read: '⌕', output: '=', drift: '≠', none: ' ',
};

export function operation(change: ChangeLine): Operation {
  if (change.of === 'Drift') return 'drift';
  if (change.of === 'Output') return 'output';
  if (change.of === 'Action') return 'invoke';
  const actions = change.actions ?? [];
  if (actions.includes('delete') && actions.includes('create')) return 'replace';
  if (actions.includes('delete')) return 'destroy';
  if (actions.includes('forget')) return 'forget';
  if (actions.includes('create')) return 'create';
  if (actions.includes('update')) return 'update';
  if (actions.includes('read')) return 'read';
  if (change.importing !== undefined) return 'import';
  if (change.previousAddress) return 'move';
  return 'none';
}

const REASONS: Record<string, string> = {
  delete_because_no_resource_config: 'not in the configuration any more',
  delete_because_no_module: 'its module is not in the configuration any more',
  delete_because_wrong_repetition: 'count or for_each does not make it any more',
  delete_because_count_index: 'its index is not within count any more',
  delete_because_each_key: 'its key is not in for_each any more',
  delete_because_no_move_target: 'the target of its move is not in the configuration',
  replace_because_tainted: 'it is tainted',
  replace_because_cannot_update: 'an attribute cannot be changed in place',
  replace_by_request: 'its replacement was requested',
  replace_by_triggers: 'replace_triggered_by',
};

/** Why an object is destroyed or replaced. */
export function because(change: ChangeLine): string {
  const forced = (change.replacePaths ?? []).map((path) => pathText(Array.isArray(path) ? path : [path]));
  const reason = REASONS[change.reason ?? ''] ?? (change.reason ?? '').replaceAll('_', ' ');
  return forced.length > 0 ? `forced by ${forced.join(', ')}` : reason;
}

export function pathText(path: readonly unknown[]): string {
  return path
    .map((step, at) => (typeof step === 'number' ? `[${step}]` : at === 0 ? String(step) : `.${String(step)}`))
    .join('');
}

/** JSON inside a string is shown as structure; every other value as JSON. */
export function valueText(value: unknown): string {
  if (typeof value === 'string') {
    if (/^\s*[[{]/.test(value)) {
      try {
        return JSON.stringify(JSON.parse(value), null, 2);
      } catch {
        return JSON.stringify(value);
      }
    }
    return value === '(sensitive value)' || value === '(known after apply)' ? value : JSON.stringify(value);
  }
  return value === undefined ? '' : JSON.stringify(value, null, typeof value === 'object' ? 2 : 0);
}

export interface Difference {
  sign: ' ' | '-' | '+';
  text: string;
}

/** The lines of two texts, the equal ones at both ends shown once. Linear, so that a value of any size is shown. */
export function difference(before: string, after: string): Difference[] {
  const [a, b] = [before === '' ? [] : before.split('\n'), after === '' ? [] : after.split('\n')];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const as = (sign: Difference['sign']) => (text: string): Difference => ({ sign, text });
  return [
    ...a.slice(Math.max(0, head - 2), head).map(as(' ')),
    ...a.slice(head, a.length - tail).map(as('-')),
    ...b.slice(head, b.length - tail).map(as('+')),
    ...a.slice(a.length - tail, a.length - tail + 2).map(as(' ')),
  ];
}

export interface Entry {
  change: ChangeLine;
  operation: Operation;
  /** Further changes of other objects with the same attributes. */
  same: ChangeLine[];
}

function fingerprint(change: ChangeLine, what: Operation): string | undefined {
  if (what !== 'update' && what !== 'drift') return undefined;
  if (!change.attributes?.length || change.cut) return undefined;
  return `${what} ${change.type} ${JSON.stringify(change.attributes)}`;
}

/** Entries in the order of danger, with equal changes folded into the first. */
export function entries(changes: ChangeLine[]): Entry[] {
  const found = new Map<string, Entry>();
  const all: Entry[] = [];
  for (const change of changes) {
    const what = operation(change);
    const key = fingerprint(change, what);
    const equal = key === undefined ? undefined : found.get(key);
    if (equal) {
      equal.same.push(change);
      continue;
    }
    const entry = { change, operation: what, same: [] };
    if (key !== undefined) found.set(key, entry);
    all.push(entry);
  }
  return all.sort((a, b) => ORDER.indexOf(a.operation) - ORDER.indexOf(b.operation));
}

export interface Filter {
  text: string;
  operations: Set<Operation>;
  type: string;
}

export function matches(entry: Entry, filter: Filter): boolean {
  const { change } = entry;
  if (filter.operations.size > 0 && !filter.operations.has(entry.operation)) return false;
  if (filter.type && change.type !== filter.type) return false;
  const text = filter.text.toLowerCase();
  return !text || [change, ...entry.same].some((one) => one.address.toLowerCase().includes(text));
}

/** A line of `status.plan.changes`: the sign, then the address. */
export function ofLine(line: string): ChangeLine | undefined {
  const found = /^(-\/\+|\+\/-|[-+~±])\s+(\S.*)$/.exec(line.trim());
  if (!found) return undefined;
  const actions: Record<string, string[]> = {
    '-': ['delete'], '+': ['create'], '~': ['update'], '±': ['delete', 'create'], '-/+': ['delete', 'create'], '+/-': ['create', 'delete'],
  };
  const [, sign = '', rest = ''] = found;
  const [address = rest, ...reason] = rest.split('  ');
  const of = address.startsWith('output.') ? 'Output' : 'Resource';
  return { of, address, actions: actions[sign], reason: reason.join(' ') };
}

/** Reads JSON lines as they arrive. `each` gets the changes so far. */
export async function read(response: Response, each: (changes: ChangeLine[], done: boolean) => void): Promise<void> {
  const changes: ChangeLine[] = [];
  let rest = '';
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  let told = 0;
  while (reader) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split('\n');
    rest = done ? '' : (lines.pop() ?? '');
    for (const line of lines) {
      if (line.trim() === '') continue;
      const parsed = JSON.parse(line) as ChangeLine;
      if (parsed.address !== undefined) changes.push(parsed);
    }
    if (done) break;
    if (told === 0 || changes.length > 2 * told) {
      told = changes.length;
      each([...changes], false);
    }
  }
  each(changes, true);
}

/** `+2 ~1 -1`, in the words of the status. */
export function verdict(counts: Counts): { sign: string; count: number; word: string }[] {
  const parts: [string, number | undefined, string][] = [
    ['+', counts.add, 'create'], ['~', counts.change, 'update'], ['-', counts.destroy, 'destroy'], ['±', counts.replace, 'of them replaced'],
    ['↧', counts.import, 'import'], ['→', counts.moved, 'moved'], ['=', counts.outputs, 'outputs'], ['≠', counts.drifted, 'drifted'], ['!', counts.invoke, 'actions'],
  ];
  return parts.flatMap(([sign, count, word]) => (count ? [{ sign, count, word }] : []));
}

export function attributeText(attribute: Attribute): { before: string; after: string } {
  if (attribute.sensitive) return { before: '(sensitive value)', after: '(sensitive value)' };
  return { before: valueText(attribute.before), after: attribute.unknown ? '(known after apply)' : valueText(attribute.after) };
}
