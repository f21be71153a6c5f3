// ANSI colours as spans of text and classes. Other control sequences are dropped.

export interface Span {
  text: string;
  style: string;
}

const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
// CSI, OSC and other escape sequences; then control characters but tab.
// eslint-disable-next-line no-control-regex
const SEQUENCE = /\u001b\[([0-9;:?]*)([ -/]*[@-~])|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]?|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

interface State {
  colour: string;
  marks: Set<string>;
}

/** The spans of one line. `state` goes on from the line before. */
export function spans(line: string, state: State = { colour: '', marks: new Set() }): Span[] {
  const out: Span[] = [];
  const push = (text: string) => {
    if (text) out.push({ text, style: [state.colour, ...state.marks].filter(Boolean).join(' ') });
  };
  let from = 0;
  for (const match of line.matchAll(SEQUENCE)) {
    push(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === 'm') apply(state, match[1] ?? '');
  }
  push(line.slice(from));
  return out;
}

function apply(state: State, codes: string): void {
  const list = (codes || '0').split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i++) {
    const code = list[i]!;
    if (code === 0) {
      state.colour = '';
      state.marks.clear();
    } else if (code === 1) state.marks.add('bold');
    else if (code === 2) state.marks.add('dim');
    else if (code === 3) state.marks.add('italic');
    else if (code === 4) state.marks.add('underline');
    else if (code === 22) ['bold', 'dim'].forEach((mark) => state.marks.delete(mark));
    else if (code === 23) state.marks.delete('italic');
    else if (code === 24) state.marks.delete('underline');
    else if (code >= 30 && code <= 37) state.colour = COLOURS[code - 30]!;
    else if (code >= 90 && code <= 97) state.colour = COLOURS[code - 90]!;
    else if (code === 39) state.colour = '';
    else if (code === 38 || code === 48) i += list[i + 1] === 5 ? 2 : list[i + 1] === 2 ? 4 : 0;
  }
}

/** The text of a line without sequences. */
export const plain = (line: string): string => line.replace(SEQUENCE, '');
