// Lines of a log that arrives in pieces. The numbers stay true when the oldest lines are dropped.

const MOST_CHARACTERS = 24 << 20;
const LONGEST = 8192;
export const ERROR = /^\s*(?:[│╷|]\s*)?(?:error\b|panic:|fatal:)/i;
/** Only lines with such a word are looked at. */
const HINT = /error|panic:|fatal:/i;

export class Lines {
  lines: string[] = [];
  /** The number of dropped lines. */
  dropped = 0;
  /** The number of bytes that arrived. */
  bytes = 0;
  /** The number of the first line that reports an error, from 0. */
  error = -1;
  private size = 0;
  private rest = '';
  private decoder = new TextDecoder();
  private readonly plain: (line: string) => string;

  constructor(plain: (line: string) => string = (line) => line) {
    this.plain = plain;
  }

  add(piece: Uint8Array): void {
    this.bytes += piece.length;
    const text = this.rest + this.decoder.decode(piece, { stream: true });
    const parts = text.split('\n');
    this.rest = parts.pop() ?? '';
    // A tool that never ends its line must not fill the memory.
    if (this.rest.length > LONGEST) parts.push(this.rest), (this.rest = '');
    for (const part of parts) {
      const line = part.length > LONGEST ? `${part.slice(0, LONGEST)}… (cut)` : part.replace(/\r$/, '');
      if (this.error < 0 && HINT.test(line) && ERROR.test(this.plain(line))) this.error = this.dropped + this.lines.length;
      this.lines.push(line);
      this.size += line.length;
    }
    if (this.size > MOST_CHARACTERS) this.shed();
  }

  /** The lines with the last one that has no end yet. */
  get all(): string[] {
    return this.rest ? [...this.lines, this.rest] : this.lines.slice();
  }

  private shed(): void {
    let count = 0;
    while (this.size > MOST_CHARACTERS * 0.75 && count < this.lines.length) this.size -= this.lines[count++]!.length;
    this.lines.splice(0, count);
    this.dropped += count;
  }
}
