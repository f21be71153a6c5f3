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
  private controller = new AbortController();
  private isReading = false;
  private isDirty = false;

  constructor(
    private readonly read: (signal: AbortSignal) => Promise<T>,
    private readonly patch: (data: T, event: RowEvent) => T | undefined = () => undefined,
  ) {}

  /** Reads and follows. Call it in an effect; it returns the end. */
  follow(topics: string[]): () => void {
    void this.refresh();
    const end = subscribe(topics, (event) => {
      const patched = event && this.data && this.patch(this.data, event);
      if (patched) this.data = patched;
      else this.soon(event ? 400 : 0);
    });
    // Repositories change with their refs only, so they have no topic.
    const timer = topics.length === 0 ? setInterval(() => this.soon(0), 30_000) : undefined;
    return () => {
      end();
      clearInterval(timer);
      clearTimeout(this.again);
      this.controller.abort();
      this.controller = new AbortController();
    };
  }

  private soon(after: number): void {
    clearTimeout(this.again);
    this.again = setTimeout(() => void this.refresh(), after);
  }

  async refresh(): Promise<void> {
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
