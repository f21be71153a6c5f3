// The plan as a tree of rows: folds modules and equal changes.
import type { Change } from '../api/types.ts';
import { diff, pathText, show, type Line } from './diff.ts';

export const OPS = ['delete', 'replace', 'update', 'create', 'import', 'move', 'forget', 'action', 'output', 'drift', 'read', 'none'] as const;
export type Op = (typeof OPS)[number];
export const GLYPHS: Record<Op, string> = {
  delete: '-', replace: '±', update: '~', create: '+', import: '⇐', move: '→', forget: '⊘', action: '▷', output: '=', drift: '≠', read: '‹', none: ' ',
};
export const WORDS: Record<Op, string> = {
  delete: 'destroy', replace: 'replace', update: 'update', create: 'create', import: 'import', move: 'move', forget: 'forget', action: 'invoke', output: 'output', drift: 'drift', read: 'read', none: 'none',
};

export function opOf(change: Change): Op {
  if (change.of === 'Action') return 'action';
  if (change.of === 'Output') return 'output';
  if (change.of === 'Drift') return 'drift';
  const actions = change.actions ?? [];
  if (actions.includes('delete')) return actions.length > 1 ? 'replace' : 'delete';
  for (const op of ['create', 'update', 'forget', 'read'] as const) if (actions.includes(op)) return op;
  if (change.importing != null) return 'import';
  return change.previousAddress ? 'move' : 'none';
}

const REASONS: Record<string, string> = {
  replace_because_tainted: 'the object is tainted',
  replace_because_cannot_update: 'an attribute cannot be changed in place',
  replace_by_request: 'the replacement was asked for',
  replace_by_triggers: 'replace_triggered_by',
  delete_because_no_resource_config: 'not in the configuration any more',
  delete_because_no_module: 'its module is not in the configuration any more',
  delete_because_wrong_repetition: 'count or for_each was added or removed',
  delete_because_count_index: 'its index is beyond count',
  delete_because_each_key: 'its key is not in for_each any more',
  delete_because_no_move_target: 'a moved block has no target',
  read_because_config_unknown: 'its configuration is known after apply',
  read_because_dependency_pending: 'a dependency changes',
};

/** Why the tool destroys or replaces the object. */
export function reasonOf(change: Change): string {
  const forced = (change.replacePaths ?? []).map((path) => {
    const parts = Array.isArray(path) ? path : [path];
    const name = pathText(parts);
    const found = (change.attributes ?? []).find((it) => pathText(it.path) === name || pathText(it.path.slice(0, parts.length)) === name);
    if (!found) return name;
    if (found.sensitive) return `${name} (sensitive value)`;
    return `${name} ${short(show(found.before))} → ${found.unknown ? '(known after apply)' : short(show(found.after))}`;
  });
  if (forced.length > 0) return `forced by: ${forced.join(', ')}`;
  return REASONS[change.reason ?? ''] ?? (change.reason ?? '').replaceAll('_', ' ');
}

export const short = (text: string, most = 60): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export interface Filter {
  text: string;
  op: string;
  type: string;
}

interface RowBase {
  key: string;
  depth: number;
}
export type Row = RowBase &
  (
    | { kind: 'module'; name: string; count: number; open: boolean; op: Op }
    | { kind: 'group'; title: string; count: number; open: boolean; op: Op }
    | { kind: 'change'; change: Change; op: Op; open: boolean; summary: string }
    | { kind: 'line'; line: Line }
  );

interface Item {
  change: Change;
  op: Op;
  id: string;
  same: string;
}

/** The changes with what the tree needs of each, made once. */
export function index(changes: Change[]): Item[] {
  return changes.map((change, i) => {
    const op = opOf(change);
    const attributes = change.attributes ?? [];
    // A created object differs from the others in nearly each attribute.
    const same = op === 'update' || op === 'drift' ? JSON.stringify([op, attributes]) : '';
    return { change, op, id: `${i}`, same: same.length > 4096 ? '' : same };
  });
}

const EQUAL_FROM = 3;

/** The rows to show. `open` holds keys whose state differs from the default. */
export function rows(items: Item[], filter: Filter, open: ReadonlySet<string>): Row[] {
  const text = filter.text.toLowerCase();
  const kept = items.filter(
    ({ change, op }) =>
      (!filter.op || op === filter.op) && (!filter.type || change.type === filter.type) && (!text || change.address.toLowerCase().includes(text)),
  );
  const equal = group(kept, (item) => item.same);
  equal.delete('');
  for (const [key, list] of equal) if (list.length < EQUAL_FROM) equal.delete(key);
  const out: Row[] = [];
  for (const [key, list] of equal) {
    const isOpen = open.has(`=${key}`);
    const first = list[0]!;
    out.push({ kind: 'group', key: `=${key}`, depth: 0, title: summary(first.change), count: list.length, open: isOpen, op: first.op });
    if (isOpen) for (const item of list) push(out, item, 1, open, true);
  }
  const rest = kept.filter((item) => !equal.has(item.same));
  const modules = group(rest, (item) => item.change.module ?? '');
  const worst = (list: Item[]) => Math.min(...list.slice(0, 1000).map((item) => OPS.indexOf(item.op)));
  for (const list of modules.values()) list.sort((a, b) => OPS.indexOf(a.op) - OPS.indexOf(b.op));
  const sorted = [...modules].sort(([a, x], [b, y]) => Number(a !== '') - Number(b !== '') || worst(x) - worst(y) || (a < b ? -1 : 1));
  for (const [name, list] of sorted) {
    if (name === '') {
      for (const item of list) push(out, item, 0, open, false);
      continue;
    }
    const isOpen = open.has(`m${name}`) !== kept.length <= 200;
    out.push({ kind: 'module', key: `m${name}`, depth: 0, name, count: list.length, open: isOpen, op: list[0]!.op });
    if (isOpen) for (const item of list) push(out, item, 1, open, false);
  }
  return out;
}

function push(out: Row[], { change, op, id }: Item, depth: number, open: ReadonlySet<string>, isEqual: boolean): void {
  const isOpen = open.has(id);
  out.push({ kind: 'change', key: id, depth, change, op, open: isOpen, summary: isEqual ? '' : summary(change) });
  if (!isOpen) return;
  lineRows(change).forEach((line, i) => out.push({ kind: 'line', key: `${id}/${i}`, depth: depth + 1, line }));
}

function lineRows(change: Change): Line[] {
  const out: Line[] = [];
  if (change.previousAddress) out.push({ op: ' ', path: `moved from ${change.previousAddress}` });
  if (change.importing != null) out.push({ op: ' ', path: `imports ${change.importing}` });
  if (change.trigger) out.push({ op: ' ', path: `invoked by ${change.trigger}` });
  for (const it of change.attributes ?? []) {
    if (it.sensitive) out.push({ op: '~', path: pathText(it.path), before: '(sensitive value)', after: '(sensitive value)' });
    else if (it.unknown) out.push({ op: it.before == null ? '+' : '~', path: pathText(it.path), before: it.before == null ? undefined : show(it.before), after: '(known after apply)' });
    else out.push(...diff(it.before, it.after, it.path));
  }
  if (change.cut) out.push({ op: ' ', path: 'The attributes are too large to show; the tool’s own text has them.' });
  if (out.length === 0) out.push({ op: ' ', path: 'No attribute changes.' });
  return out;
}

/** A change in one line. */
export function summary(change: Change): string {
  const op = opOf(change);
  if (op === 'delete' || op === 'replace') return reasonOf(change);
  if (op === 'move') return `from ${change.previousAddress}`;
  if (op === 'import') return `imports ${change.importing}`;
  if (op === 'action') return change.trigger ? `invoked by ${change.trigger}` : '';
  const attributes = change.attributes ?? [];
  if (op === 'create' || op === 'read') return '';
  const [first] = attributes;
  if (!first) return '';
  const one = first.sensitive
    ? `${pathText(first.path)} (sensitive value)`
    : `${pathText(first.path)} ${short(show(first.before), 24)} → ${first.unknown ? '(known after apply)' : short(show(first.after), 24)}`.trim();
  return attributes.length > 1 ? `${one}, ${attributes.length - 1} more` : one;
}

export function group<T>(list: T[], by: (item: T) => string): Map<string, T[]> {
  const out = new Map<string, T[]>();
  for (const item of list) {
    const key = by(item);
    const found = out.get(key);
    if (found) found.push(item);
    else out.set(key, [item]);
  }
  return out;
}
