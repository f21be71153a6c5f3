// Live updates: one stream for what is on screen. While it is down the page polls, and says of when its data is.

export const live = $state({ connected: true, since: Date.now(), now: Date.now() });

setInterval(() => {
  live.now = Date.now();
}, 1000);

const POLL = 5000;
const COALESCE = 250;

/** Calls `refresh` after each change of the topics, until the returned function is called. */
export function subscribe(topics: string[], refresh: () => void): () => void {
  const query = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join('&');
  const source = new EventSource(`api/v1/stream?${query}`);
  let timer: ReturnType<typeof setTimeout> | undefined;
  const soon = () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      refresh();
    }, COALESCE);
  };
  source.addEventListener('row', soon);
  source.addEventListener('resync', soon);
  source.addEventListener('open', () => {
    if (!live.connected) soon();
    live.connected = true;
  });
  source.addEventListener('error', () => {
    if (live.connected) live.since = Date.now();
    live.connected = false;
  });
  const poll = setInterval(() => {
    if (source.readyState !== EventSource.OPEN && !document.hidden) refresh();
  }, POLL);
  return () => {
    source.close();
    clearTimeout(timer);
    clearInterval(poll);
  };
}
