import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

export default defineConfig({
  plugins: [svelte()],
  // Assets find each other by relative URLs; the server puts the base path into index.html.
  base: './',
  build: {
    // The Content-Security-Policy forbids inline scripts and `data:` fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
  },
});
