import { mount } from 'svelte';
import './app.css';
import App from './App.svelte';

// After an upgrade an old page asks for assets that are gone: it starts anew, once.
addEventListener('vite:preloadError', (event) => {
  if (sessionStorage.getItem('pawl.reloaded')) return;
  event.preventDefault();
  sessionStorage.setItem('pawl.reloaded', '1');
  location.reload();
});

mount(App, { target: document.getElementById('app')! });
