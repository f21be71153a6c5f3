// Writes NAME.br beside each file of dist: the server embeds both.
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { brotliCompressSync, constants } from 'node:zlib';

const dist = new URL('../dist/', import.meta.url);
for (const name of readdirSync(dist, { recursive: true })) {
  if (!/\.(js|css|html)$/.test(name)) continue;
  const bytes = readFileSync(new URL(name, dist));
  const options = { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } };
  writeFileSync(new URL(`${name}.br`, dist), brotliCompressSync(bytes, options));
}
