// Data of a page: read, kept current by the stream, with its states.
import { Refused } from './client.ts';
import { fresh, subscribe } from './stream.svelte.ts';
import type { RowEvent } from './types.ts';

export class Resource<T> {
  data = $state.raw<T>();
  error = $state.raw<Refused>();
  /** True after 150 ms without data. */
  isSlow = $state(false);
  private again: ReturnType<typeof setTimeout> | undefined;
  private due = 0;
  private controller = new AbortController();
  private isReading = false;
  private isDirty = false;
  private readonly read: (signal: AbortSignal) => Promise<T>;
  private readonly patch: (data: T, event: RowEvent) => T | undefined;

  constructor(read: (signal: AbortSignal) => Promise<T>, patch: (data: T, event: RowEvent) => T | undefined = () => undefined) {
    this.read = read;
    this.patch = patch;
  }

  /** Reads, and then follows the topics after what was read. Call it in an effect; it returns the end. A hidden page follows nothing. */
  follow(topics: string[]): () => void {
    let isOver = false;
    let end: (() => void) | undefined;
    const start = async () => {
      await this.refresh();
      if (isOver || document.hidden || end) return;
      end = subscribe(topics, (event) => this.hear(event), (this.data as { sequence?: string } | undefined)?.sequence);
    };
    const shown = () => {
      if (!document.hidden) return void start();
      end?.();
      end = undefined;
    };
    void start();
    document.addEventListener('visibilitychange', shown);
    // Repositories change with their refs only, so they have no topic.
    const timer = topics.length === 0 ? setInterval(() => document.hidden || this.soon(0), 30_000) : undefined;
    return () => {
      isOver = true;
      document.removeEventListener('visibilitychange', shown);
      end?.();
      clearInterval(timer);
      clearTimeout(this.again);
      this.due = 0;
      this.controller.abort();
      this.controller = new AbortController();
    };
  }

  private hear(event: RowEvent | undefined): void {
    const patched = event && this.data && this.patch(this.data, event);
    if (patched) this.data = patched;
    else this.soon(event ? 400 : 0);
  }

  /** At most one reading is due, at the earliest time. */
  private soon(after: number): void {
    const at = Date.now() + after;
    if (this.due && this.due <= at) return;
    clearTimeout(this.again);
    this.due = at;
    this.again = setTimeout(() => void this.refresh(), after);
  }

  async refresh(): Promise<void> {
    this.due = 0;
    clearTimeout(this.again);
    if (this.isReading) {
      this.isDirty = true;
      return;
    }
    this.isReading = true;
    const { signal } = this.controller;
    const timer = setTimeout(() => (this.isSlow = this.data === undefined), 150);
    try {
      this.data = await this.read(signal);
      this.error = undefined;
      fresh();
    } catch (error) {
      if (signal.aborted) return;
      this.error = error instanceof Refused ? error : new Refused(0, 'Failed', String(error));
      if (this.error.status === 403 || this.error.status === 404) this.data = undefined;
      // It comes back by itself.
      if (this.error.status === 0 || this.error.status >= 500) this.soon(5000);
    } finally {
      clearTimeout(timer);
      this.isSlow = false;
      this.isReading = false;
      if (this.isDirty) {
        this.isDirty = false;
        this.soon(200);
      }
    }
  }
}
