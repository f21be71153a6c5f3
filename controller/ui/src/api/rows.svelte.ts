// Rows of a list by cursor, with its filters in the URL.
import { get } from './client.ts';
import { Resource } from './resource.svelte.ts';
import type { RowEvent, Rows } from './types.ts';
import { here } from '../lib/nav.svelte.ts';

interface Named {
  namespace: string;
  name: string;
}
const LIMIT = 100;

/** The rows of `layers`, `runs` or `repositories`; `more` reads the next page at the end. */
export class List<T extends Named> extends Resource<Rows<T>> {
  private size = LIMIT;
  private isMore = false;

  constructor(kind: string, names: readonly string[]) {
    super(
      async (signal) => {
        const page = (cursor?: string | null) => {
          const query = new URLSearchParams();
          for (const name of names) for (const value of here.route.query.getAll(name)) if (value) query.append(name, value);
          query.set('limit', String(Math.min(500, Math.max(LIMIT, this.size))));
          if (cursor) query.set('cursor', cursor);
          return get<Rows<T>>(`${kind}?${query}`, signal);
        };
        const rows = await page();
        while (rows.next && rows.items.length < this.size) {
          const more = await page(rows.next);
          rows.items.push(...more.items);
          rows.next = more.next ?? null;
        }
        return rows;
      },
      (rows, event: RowEvent) => {
        if (`${event.kind.toLowerCase()}s` !== kind) return rows;
        const row = event.row as T | null | undefined;
        const at = rows.items.findIndex((it) => it.namespace === event.namespace && it.name === event.name);
        // Order and counts may change as well, which only the server knows.
        if (at < 0 || !row) return undefined;
        return { ...rows, items: rows.items.with(at, row) };
      },
    );
  }

  more = async (): Promise<void> => {
    if (this.isMore || !this.data?.next) return;
    this.isMore = true;
    this.size = this.data.items.length + LIMIT;
    await this.refresh();
    this.isMore = false;
  };
}
