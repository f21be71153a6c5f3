// URLs of pages, relative to the base path.

export interface Route {
  page: string;
  /** Decoded segments after the page. */
  rest: string[];
  query: URLSearchParams;
}

export function parse(path: string, search: string): Route {
  const parts = path.split('/').filter((part) => part !== '');
  const rest = parts.slice(1).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: parts[0] ?? 'inbox', rest, query: new URLSearchParams(search) };
}

/** The part of a path below the base path. */
export function below(base: string, path: string): string {
  return path.startsWith(base) ? path.slice(base.length) : path.replace(/^\//, '');
}

/** Where a login leads: a page of this server, never another origin. */
export function target(to: string | null): string {
  if (!to) return '';
  const path = to.replace(/^\/+/, '');
  return /^[a-z][a-z0-9+.-]*:/i.test(path) || path.includes('\\') ? '' : path;
}

export function pathOf(page: string, ...rest: string[]): string {
  return [page, ...rest.map(encodeURIComponent)].join('/');
}
