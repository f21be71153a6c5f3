// A closed log that is too large for the browser: one part of it at a time, and the next line that matches, wherever it is.

/** Bytes of a part. */
const PART = 8 << 20;
const LONGEST = 8192;
const LF = 10;

/** Whole lines, from a byte to a byte. */
export interface Part {
  from: number;
  to: number;
  lines: string[];
  /** The byte at which each line begins. */
  at: number[];
}
/** Reads at most so many bytes from an offset; fewer at the end only. */
type Read = (offset: number, most: number) => Promise<Uint8Array>;

export class Parts {
  private readonly read: Read;
  readonly size: number;
  private readonly most: number;

  constructor(read: Read, size: number, most = PART) {
    this.read = read;
    this.size = size;
    this.most = most;
  }

  /** The part that begins with the line at this byte. */
  at(offset: number): Promise<Part> {
    return this.part(Math.min(offset, this.size), this.most, true);
  }

  end(): Promise<Part> {
    return this.before(this.size);
  }

  /** The part before the line at this byte. */
  before(offset: number): Promise<Part> {
    const from = Math.max(0, offset - this.most);
    return this.part(from, offset - from, from === 0);
  }

  private async part(offset: number, most: number, isLine: boolean): Promise<Part> {
    const bytes = await this.read(offset, most);
    const first = isLine ? 0 : bytes.indexOf(LF) + 1;
    // A line that is longer than the part stays in it.
    const start = first < bytes.length ? first : 0;
    const end = offset + bytes.length < this.size ? bytes.lastIndexOf(LF) + 1 || bytes.length : bytes.length;
    const part: Part = { from: offset + start, to: offset + end, lines: [], at: [] };
    const decoder = new TextDecoder();
    for (let begin = start; begin < end; ) {
      const next = bytes.indexOf(LF, begin);
      const stop = next < 0 || next >= end ? end : next;
      const text = decoder.decode(bytes.subarray(begin, Math.min(stop, begin + LONGEST)));
      part.at.push(offset + begin);
      part.lines.push(stop - begin > LONGEST ? `${text}… (cut)` : text.replace(/\r$/, ''));
      begin = stop + 1;
    }
    return part;
  }

  /** The next line that matches after (1) or before (-1) a line of a part; `told` hears of each part's first byte, and ends the search by
   * `false`; `rest` is called now and then. */
  async find(part: Part, line: number, by: 1 | -1, test: (line: string) => boolean, told: (at: number) => boolean, rest: () => Promise<void> | undefined = () => undefined): Promise<{ part: Part; line: number } | undefined> {
    for (let i = line + by; ; i += by) {
      const text = part.lines[i];
      if (text !== undefined) {
        if (test(text)) return { part, line: i };
        if (i % 256 === 0) await rest();
        continue;
      }
      const edge = by > 0 ? part.to : part.from;
      if ((by > 0 ? edge >= this.size : edge <= 0) || !told(edge)) return undefined;
      part = by > 0 ? await this.at(edge) : await this.before(edge);
      i = by > 0 ? -1 : part.lines.length;
    }
  }
}
