// URLs of pages, without the base path.

export const PAGES = ['inbox', 'layers', 'layer', 'runs', 'run', 'repositories', 'repository', 'queue', 'namespace', 'me', 'login'] as const;
export type PageName = (typeof PAGES)[number];
export interface Route {
  page: PageName | 'none';
  namespace: string;
  name: string;
  query: URLSearchParams;
}

const ONE: Record<string, PageName> = { layers: 'layer', runs: 'run', repositories: 'repository' };
const TOP: Record<string, PageName> = {
  '': 'inbox',
  layers: 'layers',
  runs: 'runs',
  repositories: 'repositories',
  queue: 'queue',
  me: 'me',
  login: 'login',
};

/** The page of a URL's path and query. */
export function parse(path: string, search = ''): Route {
  const query = new URLSearchParams(search);
  const none: Route = { page: 'none', namespace: '', name: '', query };
  let words: string[];
  try {
    words = path.replace(/^\/|\/$/g, '').split('/').map(decodeURIComponent);
  } catch {
    return none;
  }
  const [first = '', namespace = '', name = ''] = words;
  if (words.length === 1) return { ...none, page: TOP[first] ?? 'none' };
  if (words.length === 2 && first === 'namespaces') return { page: 'namespace', namespace, name: namespace, query };
  if (words.length === 3 && Object.hasOwn(ONE, first)) return { page: ONE[first]!, namespace, name, query };
  return none;
}

/** The path of an object's page. */
export function pathOf(kind: 'layers' | 'runs' | 'repositories', it: { namespace: string; name: string }): string {
  return `/${kind}/${encodeURIComponent(it.namespace)}/${encodeURIComponent(it.name)}`;
}

/** Parameters as the text of a query. */
export const queryOf = (values: Record<string, string>): string => new URLSearchParams(values).toString();

export const namespacePath = (namespace: string) => `/namespaces/${encodeURIComponent(namespace)}`;

/** A path of this origin to go on with after the login; anything else is the first page. */
export function safeTarget(to: string | null): string {
  if (!to || !to.startsWith('/') || /[\\\u0000-\u001f]/.test(to)) return '/';
  const url = new URL(to, 'http://o.invalid');
  const path = url.pathname + url.search + url.hash;
  if (url.origin !== 'http://o.invalid' || path.startsWith('//') || url.pathname === '/login') return '/';
  return path;
}
