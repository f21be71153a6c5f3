// Requests to the server. Paths are relative to `<base href>`, so that a base path needs no setting here.

import type { Act } from './types.ts';

/** A refusal, in the words of the API server or the run. */
export class Problem extends Error {
  readonly status: number;
  readonly reason: string;

  constructor(status: number, reason: string, detail: string) {
    super(detail);
    this.status = status;
    this.reason = reason;
  }
}

async function failure(response: Response): Promise<Problem> {
  const text = await response.text();
  try {
    const document = JSON.parse(text);
    return new Problem(response.status, document.reason ?? 'Error', document.detail ?? text);
  } catch {
    return new Problem(response.status, 'Error', text || `the server answered ${response.status}`);
  }
}

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`api/v1/${path}`, { cache: 'no-store', ...init });
  } catch {
    throw new Problem(0, 'Offline', 'the server does not respond');
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, { signal })).json();
}

export function stream(path: string, signal?: AbortSignal): Promise<Response> {
  return send(path, { signal });
}

/** Sends a change. The header proves that a page of this origin sends it. */
export async function post<T>(path: string, body: unknown = {}): Promise<T | undefined> {
  const headers = { 'content-type': 'application/json', 'pawl-request': '1' };
  const response = await send(path, { method: 'POST', headers, body: JSON.stringify(body) });
  return response.status === 204 ? undefined : response.json();
}

export interface Given {
  checksum?: string;
  comment?: string;
  destroys?: number;
}

export function act<T>(object: string, which: Act, given: Given): Promise<T | undefined> {
  return post(`${object}/acts/${which.act}`, given);
}

/** The path of an object below `api/v1`. */
export function objectPath(kind: string, namespace: string, name: string): string {
  return `namespaces/${encodeURIComponent(namespace)}/${kind}/${encodeURIComponent(name)}`;
}
