// One stream of live updates for all tabs of a browser. It runs in a shared worker, or in the page where there is none.
import type { RowEvent } from '../types.ts';

/** The topics of a tab, and the change after which it read them. */
export interface Wanted {
  /** The address of the stream. */
  url: string;
  topics: string[];
  /** A page's `sequence`; without one the tab reads again once the stream is open. */
  after?: string | undefined;
}
/** `resync`: read everything again. `lost`: whether the connection is. `away`: whether the server does not reach the API server. */
export type Told = { row: RowEvent } | { resync: true } | { lost: boolean } | { away: boolean };
export interface Port {
  postMessage(told: Told): void;
}
interface Tab {
  topics: string[];
  mustRead: boolean;
  seen: number;
}

/** Whether an event belongs to a topic. */
export function concerns(topics: readonly string[], event: RowEvent): boolean {
  if (event.kind === 'inbox') return topics.includes('inbox');
  return topics.includes(`${event.kind}s`) || topics.includes(`${event.kind}/${event.namespace}/${event.name}`);
}

/** The older of two changes; the second if they are of different processes, which the server answers with `resync`. */
export function older(a: string | undefined, b: string | undefined): string | undefined {
  if (!a || !b) return a ?? b;
  const [[process, number], [other, count]] = [a.split('-'), b.split('-')] as [[string, string], [string, string]];
  return process === other && Number(number) < Number(count) ? a : b;
}

// A tab that crashed does not leave.
const SILENT = 150_000;

export class Hub {
  private tabs = new Map<Port, Tab>();
  private source: EventSource | undefined;
  private opened = '';
  private url = '';
  /** The last change that was told. */
  private last: string | undefined;
  /** Where the next stream begins. */
  private from: string | undefined;
  private isLost = false;
  private away = false;
  private wait = 1000;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly make: (url: string) => EventSource;

  constructor(make: (url: string) => EventSource = (url) => new EventSource(url)) {
    this.make = make;
  }

  want(port: Port, { url, topics, after }: Wanted): void {
    this.url = url || this.url;
    for (const [other, tab] of this.tabs) if (Date.now() - tab.seen > SILENT) this.tabs.delete(other);
    const before = this.tabs.get(port);
    if (topics.length === 0) {
      this.tabs.delete(port);
      // A tab that hears nothing more would warn forever.
      if (this.isLost) port.postMessage({ lost: false });
      if (this.away) port.postMessage({ away: false });
    } else {
      const isNew = topics.some((topic) => !before?.topics.includes(topic));
      this.tabs.set(port, { topics, mustRead: (before?.mustRead ?? false) || (isNew && !after), seen: Date.now() });
      // Changes that the others heard since this tab read are sent to all once more: a row is a whole state, so a repeat does no harm.
      if (isNew && after) this.from = older(after, this.from ?? this.last);
      if (this.isLost) port.postMessage({ lost: true });
      if (this.away) port.postMessage({ away: true });
    }
    const all = [...new Set([...this.tabs.values()].flatMap((tab) => tab.topics))].sort();
    const wanted = all.map((topic) => `topic=${encodeURIComponent(topic)}`).join('&');
    const mustOpen = wanted !== this.opened || (this.from !== undefined && this.from !== this.last) || [...this.tabs.values()].some((tab) => tab.mustRead);
    if (!mustOpen && this.source) {
      this.from = undefined;
      return;
    }
    this.opened = wanted;
    clearTimeout(this.timer);
    if (!wanted) {
      this.last = this.from = undefined;
      this.isLost = this.away = false;
      return this.close();
    }
    // Tabs that the browser restores ask one after the other.
    this.timer = setTimeout(() => this.open(), 30);
  }

  private open(): void {
    this.close();
    const after = this.from ?? this.last;
    this.from = undefined;
    const stream = this.make(`${this.url}?${this.opened}${after ? `&after=${encodeURIComponent(after)}` : ''}`);
    this.source = stream;
    const note = (event: Event) => {
      const id = (event as MessageEvent<string>).lastEventId;
      if (id) this.last = id;
    };
    stream.onopen = (event) => {
      // The server's first event has the same name.
      if ('lastEventId' in event) return note(event);
      this.wait = 1000;
      this.lost(false);
      this.isAway(false);
      for (const [port, tab] of this.tabs) {
        if (tab.mustRead || !after) port.postMessage({ resync: true });
        tab.mustRead = false;
      }
    };
    stream.addEventListener('row', (event) => {
      note(event);
      const row = JSON.parse((event as MessageEvent<string>).data) as RowEvent;
      for (const [port, tab] of this.tabs) if (concerns(tab.topics, row)) port.postMessage({ row });
    });
    stream.addEventListener('away', (event) => {
      this.isAway((event as MessageEvent<string>).data === 'true');
    });
    stream.addEventListener('resync', (event) => {
      note(event);
      this.tell({ resync: true });
    });
    stream.onerror = () => {
      this.lost(true);
      // The browser goes on by itself after the last event, unless the answer was an error, such as 503.
      if (stream.readyState !== 2) return;
      this.close();
      this.timer = setTimeout(() => this.open(), this.wait * (0.75 + Math.random() / 2));
      this.wait = Math.min(this.wait * 2, 30_000);
    };
  }

  private lost(isLost: boolean): void {
    if (this.isLost === isLost) return;
    this.isLost = isLost;
    this.tell({ lost: isLost });
  }

  private isAway(away: boolean): void {
    if (this.away === away) return;
    this.away = away;
    this.tell({ away });
  }

  private tell(told: Told): void {
    for (const port of this.tabs.keys()) port.postMessage(told);
  }

  private close(): void {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = undefined;
  }
}
