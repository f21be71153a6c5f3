// State words with their glyph and tone. Colour is never the only sign.

export type Tone = 'good' | 'bad' | 'warn' | 'busy' | 'quiet';

const TABLE: Record<Tone, [string, string[]]> = {
  good: ['✓', ['Applied', 'NoChanges', 'InSync', 'Planned', 'Destroyed', 'Ready', 'Synced', 'Accepted']],
  bad: ['✕', ['Failed', 'Indeterminate', 'Stalled', 'Stuck', 'Rejected', 'Invalid']],
  warn: ['◆', ['AwaitingApproval', 'Drifted', 'Expired', 'Unverified']],
  busy: ['▸', ['Pending', 'Setup', 'Init', 'Plan', 'Planning', 'Apply', 'Applying', 'Queued', 'Running']],
  quiet: ['–', ['Canceled', 'Superseded', 'Suspended', 'Unknown', 'Ignored']],
};

export function tone(word: string): Tone {
  for (const [name, [, words]] of Object.entries(TABLE)) {
    if (words.includes(word)) return name as Tone;
  }
  return 'quiet';
}

export function glyph(word: string): string {
  return TABLE[tone(word)][0];
}

export function spaced(word: string): string {
  return word.replace(/([a-z])([A-Z])/g, '$1 $2').replace(/ [A-Z]/g, (part) => part.toLowerCase());
}
