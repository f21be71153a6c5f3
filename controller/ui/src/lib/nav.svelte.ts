// The current page, and links that do not load the document anew.

import { below, parse, type Route } from './route.ts';

const base = () => new URL(document.baseURI).pathname;
const read = (): Route => parse(below(base(), location.pathname), location.search);

export const nav = $state({ route: read() });

export function go(path: string, replace = false): void {
  const url = new URL(path, document.baseURI);
  history[replace ? 'replaceState' : 'pushState'](null, '', url);
  nav.route = read();
}

window.addEventListener('popstate', () => {
  nav.route = read();
});

/** Follows links within the base path. */
export function follow(event: MouseEvent): void {
  const link = (event.target as Element | null)?.closest?.('a');
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.target || link.hasAttribute('download')) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !url.pathname.startsWith(base())) return;
  if (url.pathname === location.pathname && url.hash) return;
  event.preventDefault();
  go(url.pathname.slice(base().length) + url.search);
  document.querySelector('main')?.focus();
}
