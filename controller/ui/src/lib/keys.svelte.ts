// Keys of all pages. Single letters can be switched off (WCAG 2.1.4).

import { go } from './nav.svelte.ts';

const PLACES: Record<string, string> = { i: 'inbox', l: 'layers', r: 'runs', o: 'repositories', q: 'queue', m: 'me' };

export const LIST: [string, string][] = [
  ['?', 'this help'],
  ['/', 'filter'],
  ['g then i, l, r, o, q, m', 'Inbox, Layers, Runs, Repositories, Queue, Me'],
  ['j, k', 'next, previous row'],
  ['Enter', 'open the row'],
  ['a', 'open the form to approve; it never approves'],
  ['n', 'next destroy or replace'],
  ['f', 'follow the log'],
  ['Esc', 'close'],
];

const rows = () => [...document.querySelectorAll<HTMLElement>('[data-row]')];

function move(step: number): void {
  const all = rows();
  const at = all.indexOf(document.activeElement as HTMLElement);
  all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))]?.focus();
}

function next(selector: string): void {
  const all = [...document.querySelectorAll<HTMLElement>(selector)];
  const at = all.indexOf(document.activeElement as HTMLElement);
  all[(at + 1) % all.length]?.focus();
}

class Keys {
  help = $state(false);
  letters = $state(localStorage.getItem('pawl-keys') !== 'off');
  private going = false;

  toggle = () => {
    this.letters = !this.letters;
    localStorage.setItem('pawl-keys', this.letters ? 'on' : 'off');
  };

  press = (event: KeyboardEvent) => {
    const field = (event.target as HTMLElement).closest?.('input, textarea, select');
    if (event.key === 'Escape') {
      this.help = false;
      if (field) (field as HTMLElement).blur();
      return;
    }
    if (field || event.ctrlKey || event.metaKey || event.altKey || !this.letters || this.help) return;
    if (this.going) {
      this.going = false;
      const place = PLACES[event.key];
      if (place) go(place);
      return;
    }
    const acts: Record<string, () => void> = {
      '?': () => (this.help = true),
      '/': () => document.querySelector<HTMLElement>('[data-search]')?.focus(),
      g: () => (this.going = true),
      j: () => move(1),
      k: () => move(-1),
      a: () => document.querySelector<HTMLElement>('[data-testid="approve-open"][aria-expanded="false"]')?.click(),
      n: () => next('button.line:has(.sign.destroy), button.line:has(.sign.replace)'),
      f: () => document.querySelector<HTMLElement>('[data-follow]')?.click(),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
}

export const keys = new Keys();
