// Work that must not overlap with itself.

/** Calls of the result begin `work`, or, while it runs, have it begin once more after that: a call is always followed by a whole run. */
export function turns(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  const begin = () => {
    next = undefined;
    return (running = work().finally(() => (running = undefined)));
  };
  return () => next ?? (running ? (next = running.then(begin, begin)) : begin());
}
