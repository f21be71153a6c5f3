import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// Every path is relative: the server fills in `<base href>`.
export default defineConfig({
  base: './',
  plugins: [svelte()],
  build: { target: 'es2022', modulePreload: { polyfill: false }, assetsInlineLimit: 0, cssCodeSplit: false },
});
