// The phase bar: what each phase took, and what the run waits for.
import type { Run } from '../api/types.ts';
import { milliseconds } from './duration.ts';

export const BAR = ['Setup', 'Init', 'Plan', 'Hold', 'Apply'] as const;
export interface Part {
  name: (typeof BAR)[number];
  state: 'before' | 'now' | 'done' | 'failed' | 'skipped';
  ms: number | undefined;
}

/** The part of each step of the agent. */
export const STEPS: Record<string, string> = { source: 'Setup', init: 'Init', workspace: 'Init', plan: 'Plan', show: 'Plan', apply: 'Apply' };
const newest = (steps: { name: string; attempt?: number }[], name: string) => steps.findLast((step) => STEPS[step.name] === name)?.attempt;

const time = (text: string | null | undefined) => (text ? Date.parse(text) : undefined);

/** The parts of the bar at the server's time `now`. */
export function bar(run: Run, now: number): Part[] {
  const status = run.status;
  const steps = status?.steps ?? [];
  const hasEnded = Boolean(status?.completionTime);
  const phase = status?.phase ?? 'Pending';
  const present = phase === 'AwaitingApproval' ? 'Hold' : phase;
  const at = BAR.indexOf(present as Part['name']);
  const times = BAR.map((name) => {
    if (name === 'Hold') {
      const from = time(status?.plan?.createdAt);
      const to = time(status?.claim?.at) ?? time(status?.completionTime);
      const waited = present === 'Hold' || status?.approval || status?.result === 'Rejected' || status?.result === 'Expired';
      return waited && from ? (to ?? now) - from : undefined;
    }
    const own = steps.filter((step) => STEPS[step.name] === name && step.attempt === newest(steps, name));
    const from = time(own[0]?.startedAt);
    return from === undefined ? undefined : (time(own.at(-1)?.finishedAt) ?? (hasEnded ? time(status?.completionTime)! : now)) - from;
  });
  const last = times.findLastIndex((ms) => ms !== undefined);
  return BAR.map((name, i) => {
    const ms = times[i];
    if (i === at) return { name, state: 'now', ms };
    if (hasEnded && phase === 'Failed' && i === last) return { name, state: 'failed', ms };
    if (ms !== undefined) return { name, state: 'done', ms };
    return { name, state: hasEnded || (at > i && name === 'Hold') || (at === -1 && last > i) ? 'skipped' : 'before', ms };
  });
}

/** When the plan that waits expires, in milliseconds of the server's clock. */
export function expiry(run: Run): number | undefined {
  const from = time(run.status?.plan?.createdAt);
  const after = milliseconds(run.spec.approval?.expiresAfter ?? '24h');
  return from !== undefined && after !== undefined ? from + after : undefined;
}

/** Until when the pod holds the plan. */
export function heldUntil(run: Run): number | undefined {
  const from = time(run.status?.plan?.createdAt);
  const held = milliseconds(run.spec.approval?.holdFor);
  return from !== undefined && held && !run.status?.attempt?.endHold ? from + held : undefined;
}

/** What a run without an end waits for, from names and reasons alone. */
export function waitsFor(run: Run): string {
  const status = run.status;
  if (!status?.phase || status.phase === 'Pending') {
    const condition = (status?.conditions ?? []).find((it) => it.status === 'False' && it.reason);
    return condition ? `waits: ${condition.reason}` : 'waits for a pod';
  }
  if (status.phase === 'AwaitingApproval') return status.approval ? 'approved, waits for the apply' : 'waits for an approval';
  if (status.phase === 'Apply' && status.progress?.quietSince) return 'the tool is quiet';
  return '';
}
