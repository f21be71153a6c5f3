// The current URL, and moves between pages.
import { base } from '../api/client.ts';
import { parse, type Route } from './route.ts';

const read = (): Route => {
  const path = location.pathname;
  return parse(path.startsWith(base) ? path.slice(base.length) || '/' : path, location.search);
};

export const here = $state<{ route: Route }>({ route: read() });
/** The paths of the list that was shown last, for `[` and `]`. */
export const list = { paths: [] as string[] };

export const href = (path: string) => base + path;

export function go(path: string, replace = false): void {
  history[replace ? 'replaceState' : 'pushState']({}, '', href(path));
  here.route = read();
  if (!replace) scrollTo(0, 0);
}

/** Writes filters into the URL; empty ones are left out. */
export function setQuery(values: Record<string, string>, hash = ''): void {
  const query = new URLSearchParams(here.route.query);
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState({}, '', location.pathname + (text ? `?${text}` : '') + hash);
  here.route = read();
}

/** The previous (-1) or next (1) object of the list. */
export function step(by: number): void {
  const path = location.pathname.slice(base.length);
  const at = list.paths.indexOf(path);
  const to = list.paths[at + by];
  if (at >= 0 && to) go(to);
}

addEventListener('popstate', () => {
  here.route = read();
});

/** Follows links of this origin without a new page. */
export function follow(event: MouseEvent): void {
  const link = (event.target as Element).closest?.('a');
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute('download') || link.origin !== location.origin || !link.pathname.startsWith(base)) return;
  if (link.pathname === location.pathname && link.hash) return;
  event.preventDefault();
  go(link.pathname.slice(base.length) + link.search + link.hash);
}
