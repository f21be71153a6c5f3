// Data of a page: read, kept current by the stream, with its states.
import { untrack } from 'svelte';
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

  /** Reads now, and again after an error. Call it in an effect; it returns the end, after which nothing is read. */
  start(): () => void {
    this.controller = new AbortController();
    void this.refresh();
    return () => this.stop();
  }

  /** Reads, and then follows the topics after what was read. Call it in an effect; it returns the end. A hidden page follows nothing. */
  follow(topics: string[]): () => void {
    let end: (() => void) | undefined;
    this.controller = new AbortController();
    const { signal } = this.controller;
    const follow = async (isRead: boolean) => {
      if (!isRead) await this.refresh();
      if (signal.aborted || document.hidden || end || topics.length === 0) return;
      end = subscribe(topics, (event) => this.hear(event), (this.data as { sequence?: string } | undefined)?.sequence);
    };
    const shown = () => {
      if (!document.hidden) return void follow(false);
      end?.();
      end = undefined;
    };
    // Other topics of the same page: the stream begins where the page was read.
    void untrack(() => follow(this.data !== undefined));
    document.addEventListener('visibilitychange', shown);
    // Repositories change with their refs only, so they have no topic.
    const timer = topics.length === 0 ? setInterval(() => document.hidden || this.soon(0), 30_000) : undefined;
    return () => {
      document.removeEventListener('visibilitychange', shown);
      end?.();
      clearInterval(timer);
      this.stop();
    };
  }

  private stop(): void {
    clearTimeout(this.again);
    this.due = 0;
    this.isReading = this.isDirty = false;
    this.controller.abort();
  }

  private hear(event: RowEvent | undefined): void {
    const patched = event && this.data && this.patch(this.data, event);
    if (patched) this.data = patched;
    else this.soon(event ? 400 : 0);
  }

  /** At most one reading is due, at the earliest time. */
  private soon(after: number): void {
    if (this.controller.signal.aborted) return;
    const at = Date.now() + after;
    if (this.due && this.due <= at) return;
    clearTimeout(this.again);
    this.due = at;
    this.again = setTimeout(() => void this.refresh(), after);
  }

  /** Reads, unless the page has ended. An effect that calls it does not depend on what is read with. */
  async refresh(): Promise<void> {
    this.due = 0;
    clearTimeout(this.again);
    const { signal } = this.controller;
    if (signal.aborted) return;
    if (this.isReading) {
      this.isDirty = true;
      return;
    }
    this.isReading = true;
    const timer = setTimeout(() => (this.isSlow = this.data === undefined), 150);
    try {
      const read = await untrack(() => this.read(signal));
      if (signal.aborted) return;
      this.data = read;
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
      if (!signal.aborted) {
        this.isReading = false;
        if (this.isDirty) this.soon(200);
        this.isDirty = false;
      }
    }
  }
}
