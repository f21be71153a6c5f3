// ANSI colours of a tool's log as spans. Other escape sequences are dropped.

export interface Span {
  text: string;
  style: string;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
// eslint-disable-next-line no-control-regex
const ESCAPE = /\u001b(?:\[([0-9;?]*)([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

export function spans(line: string): Span[] {
  const found: Span[] = [];
  let [at, colour, bold] = [0, '', false];
  const push = (text: string) => {
    const clean = text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, '');
    if (clean) found.push({ text: clean, style: [colour && `ansi-${colour}`, bold && 'ansi-bold'].filter(Boolean).join(' ') });
  };
  for (const match of line.matchAll(ESCAPE)) {
    push(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] !== 'm') continue;
    for (const code of (match[1] || '0').split(';').map(Number)) {
      if (code === 0) [colour, bold] = ['', false];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = '';
      else if (code >= 30 && code <= 37) colour = NAMES[code - 30] ?? '';
      else if (code >= 90 && code <= 97) colour = NAMES[code - 90] ?? '';
    }
  }
  push(line.slice(at));
  return found;
}

/** A line that a person looks for first: an error of the tool. */
export function isError(line: string): boolean {
  return /^[\s│╷]*(\u001b\[[0-9;]*m)*[\s│╷]*Error:/.test(line);
}
