// Durations and times for people. The API server's times are compared with the clock of this machine only where both are shown.

export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, '0')}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, '0')}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

export function between(from?: string, to?: string, now = Date.now()): number | undefined {
  if (!from) return undefined;
  return ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000;
}

export function ago(time: unknown, now = Date.now()): string {
  if (typeof time !== 'string' || Number.isNaN(Date.parse(time))) return '';
  const seconds = (now - Date.parse(time)) / 1000;
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}

/** The seconds of a duration as the API has it: `72h`, `5m`, `1h30m`. */
export function seconds(span: string | undefined): number | undefined {
  const units: Record<string, number> = { d: 86400, h: 3600, m: 60, s: 1 };
  const parts = [...(span ?? '').matchAll(/(\d+)([dhms])/g)];
  if (parts.length === 0) return undefined;
  return parts.reduce((sum, [, count, unit]) => sum + Number(count) * (units[unit ?? 's'] ?? 1), 0);
}
