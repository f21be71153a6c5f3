// Requests to the REST API, relative to the base path that the server wrote into the page.
import { clock } from '../lib/duration.ts';
import type { Problem } from './types.ts';

export const base = document.querySelector<HTMLMetaElement>('meta[name=pawl-base]')?.content ?? '';
export const api = (path: string) => `${base}/api/v1/${path}`;
/** The path of an object in the API. */
export const objectPath = (kind: string, namespace: string, name: string) =>
  `namespaces/${encodeURIComponent(namespace)}/${kind}/${encodeURIComponent(name)}`;

/** A refusal, or no answer at all (`status` 0). */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    detail: string,
  ) {
    super(detail);
  }
}

/** Called when the session is over. */
export const session = { ended: () => {} };

export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(api(path), { credentials: 'same-origin', ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refused(0, 'Offline', 'The server does not answer.');
  }
  const date = Date.parse(response.headers.get('date') ?? '');
  // `Date` has whole seconds; a small difference is none.
  if (Number.isFinite(date)) clock.skew = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
  if (response.ok) return response;
  const text = await response.text().catch(() => '');
  let problem: Partial<Problem> = {};
  try {
    problem = JSON.parse(text) as Problem;
  } catch {
    // A proxy's page is no problem document.
  }
  if (response.status === 401 && !path.startsWith('login/') && path !== 'me') session.ended();
  throw new Refused(response.status, problem.reason ?? `HTTP ${response.status}`, problem.detail ?? response.statusText);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await send(path, { signal })).json()) as T;
}

/** A change. The header tells the server that a page of its own asks. */
export async function post<T>(path: string, body: unknown = {}): Promise<T> {
  const headers = { 'content-type': 'application/json', 'pawl-request': '1' };
  const response = await send(path, { method: 'POST', headers, body: JSON.stringify(body) });
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

/** The pieces of an answer as they arrive, after its headers. */
export async function* pieces(path: string, signal: AbortSignal, headers?: (of: Headers) => void): AsyncGenerator<Uint8Array> {
  const response = await send(path, { signal });
  headers?.(response.headers);
  const reader = response.body!.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** At most `most` bytes of an answer; the rest is not read. */
export async function first(path: string, most: number, signal: AbortSignal): Promise<Uint8Array> {
  const all = new Uint8Array(most);
  let length = 0;
  for await (const piece of pieces(path, signal)) {
    const taken = piece.subarray(0, most - length);
    all.set(taken, length);
    length += taken.length;
    if (length === most) break;
  }
  return all.subarray(0, length);
}

/** JSON lines as they arrive, several at a time. */
export async function* jsonLines<T>(path: string, signal: AbortSignal): AsyncGenerator<T[]> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const piece of pieces(path, signal)) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split('\n');
    rest = lines.pop() ?? '';
    const found = lines.filter(Boolean).map((line) => JSON.parse(line) as T);
    if (found.length > 0) yield found;
  }
  if (rest.trim()) yield [JSON.parse(rest) as T];
}
