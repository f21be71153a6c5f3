// Durations and times. The server's clock is not the browser's: ages are made from the server's time.

/** `41s`, `3.1s`, `12m 03s`, `5h 02m`, `3d 4h`. */
export function duration(ms: number): string {
  if (!Number.isFinite(ms)) return '';
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 60) return `${Math.floor(s)}s`;
  const two = (n: number) => String(Math.floor(n)).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${two((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

/** A coarse age: `12s`, `3m`, `5h`, `3d`. */
export function age(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['m', 60]] as const) if (s >= size) return `${Math.floor(s / size)}${unit}`;
  return `${Math.floor(s)}s`;
}

/** The parts of a Kubernetes duration such as `1h30m`, in milliseconds. */
export function milliseconds(text: string | null | undefined): number | undefined {
  if (!text) return undefined;
  const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
  let sum = 0;
  const rest = text.replace(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g, (_, n: string, unit: string) => {
    sum += Number(n) * units[unit]!;
    return '';
  });
  return rest.trim() === '' ? sum : undefined;
}

/** The difference of the server's clock to the browser's, in milliseconds, from a response's `Date`. */
export const clock = { skew: 0 };
export const now = () => Date.now() + clock.skew;
