// The one stream of live updates for what is on screen.
import { api } from './client.ts';
import type { RowEvent } from './types.ts';

type Listener = (event: RowEvent | undefined) => void;

/** `since` is when the connection was lost; the first failure is not shown at once. */
export const live = $state<{ since: Date | undefined }>({ since: undefined });

const listeners = new Map<Listener, string[]>();
let source: EventSource | undefined;
let opened = '';
let last = new Date();
let wait = 1000;
let retry: ReturnType<typeof setTimeout> | undefined;
let change: ReturnType<typeof setTimeout> | undefined;

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
    const isNew = opened !== wanted;
    opened = wanted;
    close();
    if (wanted) open(isNew);
  }, 50);
}

function open(isFirst: boolean): void {
  const stream = new EventSource(api(`stream?${opened}`));
  source = stream;
  // A new stream has no Last-Event-ID: what changed in between is read once.
  let mustRead = !isFirst || live.since !== undefined;
  stream.onopen = () => {
    live.since = undefined;
    wait = 1000;
    if (mustRead) tell(undefined);
    mustRead = false;
  };
  stream.addEventListener('row', (event) => {
    last = new Date();
    tell(JSON.parse((event as MessageEvent<string>).data) as RowEvent);
  });
  stream.addEventListener('resync', () => tell(undefined));
  stream.onerror = () => {
    live.since ??= last;
    // The browser tries again by itself with Last-Event-ID unless the answer was an error, such as 503.
    if (stream.readyState !== EventSource.CLOSED) return;
    close();
    retry = setTimeout(() => open(false), wait * (0.75 + Math.random() / 2));
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
  for (const listener of listeners.keys()) listener(event);
}

/** Marks what was read as fresh. */
export const fresh = () => {
  last = new Date();
};

document.addEventListener('visibilitychange', () => {
  if (document.hidden) return settle();
  settle();
  // Nothing was followed while the page was hidden.
  tell(undefined);
});
