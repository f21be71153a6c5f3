// The objects of an apply, from the events that the tool printed: what is known of each, and nothing else.
import type { ApplyEvent } from '../api/types.ts';

export interface Operation {
  address: string;
  action: string;
  id: string;
  from: number | undefined;
  to: number | undefined;
  state: 'now' | 'failed' | 'done';
}
export const MARKS = { now: '◐ work', failed: '✕ bad', done: '✓ ok' } as const;
const ORDER = ['now', 'failed', 'done'];

export class Journal {
  private all = new Map<string, Operation>();

  /** Takes a line; one that is cut or of a later version is left out. */
  add(line: string): void {
    let event: Partial<ApplyEvent>;
    try {
      event = JSON.parse(line) as Partial<ApplyEvent>;
    } catch {
      return;
    }
    if (!event.address || !['start', 'complete', 'errored'].includes(event.event ?? '')) return;
    const action = event.action ?? '';
    const key = `${action} ${event.address}`;
    const before = this.all.get(key);
    const at = event.at ? Date.parse(event.at) : NaN;
    const time = Number.isNaN(at) ? undefined : at;
    const isStart = event.event === 'start';
    // One object may be begun again, after its deposed one for example.
    const base = isStart || !before ? { address: event.address, action, id: '', from: undefined } : before;
    const state = isStart ? 'now' : event.event === 'complete' ? 'done' : 'failed';
    this.all.set(key, { ...base, id: event.id ?? base.id, from: isStart ? time : base.from, to: isStart ? undefined : time, state });
  }

  /** Operations in progress, then failed ones, then completed ones; the newest of each first. */
  get operations(): Operation[] {
    return [...this.all.values()].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.to ?? b.from ?? 0) - (a.to ?? a.from ?? 0));
  }
}

/** How long an operation took, or takes until `now`; unknown without both times. */
export const elapsed = (it: Operation, now: number): number | undefined =>
  it.from === undefined ? undefined : it.state === 'now' ? now - it.from : it.to === undefined ? undefined : it.to - it.from;
