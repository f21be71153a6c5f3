// The effective settings of a layer's runs, as the controller writes them: `PATH=VALUE (ORIGIN)`.
export interface Setting {
  path: string;
  value: string;
  origin: string;
}

export function setting(line: string): Setting {
  const [, path, value, origin] = /^([^=]+)=(.*) \(([^()]*)\)$/s.exec(line) ?? ['', '', line, ''];
  return { path: path!, value: value!, origin: origin! };
}

/** A size in bytes as people say it. */
export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  const unit = Math.min(3, Math.floor(Math.log2(count) / 10));
  return `${(count / 1024 ** unit).toFixed(1)} ${['', 'KiB', 'MiB', 'GiB'][unit]}`;
}
