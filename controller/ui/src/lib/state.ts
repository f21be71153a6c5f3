// One glyph and one colour class for each word of state.

const GOOD = '● ok', BAD = '✕ bad', WAIT = '◆ wait', WORK = '◐ work', IDLE = '○ idle', WARN = '▲ warn';
const WORDS: Record<string, string> = {
  Pending: IDLE, Setup: WORK, Init: WORK, Plan: WORK, AwaitingApproval: WAIT, Apply: WORK, Succeeded: GOOD, Failed: BAD, Canceled: IDLE,
  NoChanges: GOOD, Planned: GOOD, Applied: GOOD, Destroyed: GOOD, Drifted: WARN, Rejected: IDLE, Expired: IDLE, Superseded: IDLE, Indeterminate: WARN,
  Planning: WORK, Applying: WORK, InSync: GOOD, NotApplied: WAIT, Stuck: WARN, Destroying: WORK,
  Idle: GOOD, PlanNeeded: WORK, ApplyNeeded: WAIT, Ready: GOOD, Suspended: IDLE, accepted: GOOD, form: BAD,
};

/** The glyph and the class of a state, phase or result. */
export function mark(word: string | undefined | null): { glyph: string; style: string } {
  const [glyph = '', style = ''] = (WORDS[word ?? ''] ?? IDLE).split(' ');
  return { glyph, style };
}

/** `AwaitingApproval` as words. */
export const words = (word: string | undefined | null): string => (word ?? '').replace(/(?<=[a-z])([A-Z])/g, (letter) => ` ${letter.toLowerCase()}`);
/** A revision as people say it: `main@4be1d02`. */
export const revision = (text: string | undefined | null): string => (text ?? '').replace(/([0-9a-f]{7})[0-9a-f]{33,57}/g, '$1').replace('sha1:', '');
