// Live updates for what is on screen. All tabs share one stream.
import { api } from './client.ts';
import { concerns, Hub, older, type Told, type Wanted } from './stream/hub.ts';
import type { RowEvent } from './types.ts';

type Listener = (event: RowEvent | undefined) => void;
interface Subscription {
  topics: string[];
  after: string | undefined;
  isNew: boolean;
}

/** `since` is when the connection was lost. `isAway`: the server does not reach the API server. */
export const live = $state<{ since: Date | undefined; isAway: boolean }>({ since: undefined, isAway: false });

const subscriptions = new Map<Listener, Subscription>();
let last = new Date();
let send: ((wanted: Wanted) => void) | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Calls the listener with each event of the topics since `after`, and without one when everything must be read again. */
export function subscribe(topics: string[], listener: Listener, after: string | undefined): () => void {
  subscriptions.set(listener, { topics, after, isNew: true });
  settle();
  return () => {
    subscriptions.delete(listener);
    settle();
  };
}

/** Pages change several topics at once. */
function settle(): void {
  clearTimeout(timer);
  timer = setTimeout(tell, 20);
}

function tell(): void {
  send ??= connect();
  const all = [...subscriptions.values()];
  const added = all.filter((it) => it.isNew);
  const after = added.some((it) => !it.after) ? undefined : added.map((it) => it.after).reduce(older, undefined);
  for (const it of added) it.isNew = false;
  send({ url: new URL(api('stream'), location.href).href, topics: [...new Set(all.flatMap((it) => it.topics))].sort(), after });
}

function connect(): (wanted: Wanted) => void {
  const inPage = () => {
    const hub = new Hub();
    const port = { postMessage: hear };
    return (wanted: Wanted) => hub.want(port, wanted);
  };
  if (typeof SharedWorker === 'undefined') return inPage();
  const worker = new SharedWorker(new URL('./stream/worker.ts', import.meta.url), { type: 'module', name: 'pawl' });
  worker.port.onmessage = (event: MessageEvent<Told>) => hear(event.data);
  worker.onerror = () => {
    send = inPage();
    for (const it of subscriptions.values()) it.isNew = true;
    tell();
  };
  return (wanted) => worker.port.postMessage(wanted);
}

function hear(told: Told): void {
  if ('lost' in told) {
    live.since = told.lost ? (live.since ?? last) : undefined;
    return;
  }
  if ('away' in told) {
    live.isAway = told.away;
    return;
  }
  last = new Date();
  for (const [listener, { topics }] of subscriptions) {
    if ('resync' in told) listener(undefined);
    else if (concerns(topics, told.row)) listener(told.row);
  }
}

/** Marks what was read as fresh. */
export const fresh = () => {
  last = new Date();
};

// The worker forgets tabs that are silent.
setInterval(() => subscriptions.size > 0 && tell(), 60_000);
// A page that the browser keeps for `back` holds no stream.
addEventListener('pagehide', () => send?.({ url: '', topics: [] }));
addEventListener('pageshow', (event) => {
  if (!event.persisted) return;
  for (const it of subscriptions.values()) it.isNew = true;
  tell();
});
