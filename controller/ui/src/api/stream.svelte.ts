// The one stream of live updates for what is on screen.
import { api } from './client.ts';
import type { RowEvent } from './types.ts';
import { concerns } from '../lib/topics.ts';

type Listener = (event: RowEvent | undefined) => void;

/** `since` is when the connection was lost; the first failure is not shown at once. `isAway`: the server does not reach the API server. */
export const live = $state<{ since: Date | undefined; isAway: boolean }>({ since: undefined, isAway: false });

const listeners = new Map<Listener, string[]>();
let source: EventSource | undefined;
let opened = '';
/** The id of the last event: each stream begins after it. */
let position: string | undefined;
let last = new Date();
let wait = 1000;
let retry: ReturnType<typeof setTimeout> | undefined;
let change: ReturnType<typeof setTimeout> | undefined;

/** Everything on screen was read after this change. */
export function begin(sequence: string): void {
  position ??= sequence;
}

/** Calls the listener with each event of the topics, and without one when everything must be read again. */
export function subscribe(topics: string[], listener: Listener): () => void {
  listeners.set(listener, topics);
  settle();
  return () => {
    listeners.delete(listener);
    settle();
  };
}

/** Pages change several topics at once. */
function settle(): void {
  clearTimeout(change);
  change = setTimeout(() => {
    const topics = document.hidden ? [] : [...new Set([...listeners.values()].flat())].sort();
    const wanted = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join('&');
    if (wanted === opened && source) return;
    opened = wanted;
    close();
    if (wanted) open();
  }, 50);
}

function open(): void {
  const stream = new EventSource(api(`stream?${opened}&after=${encodeURIComponent(position ?? '')}`));
  source = stream;
  stream.onopen = () => {
    live.since = undefined;
    live.isAway = false;
    wait = 1000;
  };
  stream.addEventListener('away', (event) => (live.isAway = (event as MessageEvent<string>).data === 'true'));
  for (const type of ['open', 'row', 'resync']) {
    stream.addEventListener(type, (event) => {
      const { data, lastEventId } = event as MessageEvent<string>;
      position = lastEventId || position;
      if (type === 'row') tell(JSON.parse(data) as RowEvent);
      if (type === 'resync') tell(undefined);
    });
  }
  stream.onerror = () => {
    live.since ??= last;
    // The browser tries again by itself with Last-Event-ID unless the answer was an error, such as 503.
    if (stream.readyState !== EventSource.CLOSED) return;
    close();
    retry = setTimeout(open, wait * (0.75 + Math.random() / 2));
    wait = Math.min(wait * 2, 30_000);
  };
}

function close(): void {
  clearTimeout(retry);
  source?.close();
  source = undefined;
}

function tell(event: RowEvent | undefined): void {
  last = new Date();
  for (const [listener, topics] of listeners) {
    if (!event || topics.some((topic) => concerns(topic, event))) listener(event);
  }
}

/** Marks what was read as fresh. */
export const fresh = () => {
  last = new Date();
};

// Nothing is followed while the page is hidden; the next stream begins where the last one ended.
document.addEventListener('visibilitychange', settle);
