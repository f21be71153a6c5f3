// Lets Node 20 import TypeScript in tests: `node --import ./build/ts.js`.
import { register } from 'node:module';

register(
  `data:text/javascript,${encodeURIComponent(`
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
const { transform } = await import(${JSON.stringify(import.meta.resolve('esbuild'))});
export async function load(url, context, next) {
  if (!url.endsWith('.ts')) return next(url, context);
  const { code } = await transform(await readFile(fileURLToPath(url), 'utf8'), { loader: 'ts', format: 'esm', sourcemap: 'inline' });
  return { format: 'module', source: code, shortCircuit: true };
}`)}`,
);
