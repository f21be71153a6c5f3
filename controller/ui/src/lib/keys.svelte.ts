// Keys. Single letters can be switched off (WCAG 2.1.4).
import { go, step } from './nav.svelte.ts';

export const HELP: [string, string][] = [
  ['?', 'this help'],
  ['/', 'filter'],
  ['g i', 'Inbox'],
  ['g l', 'Layers'],
  ['g r', 'Runs'],
  ['g p', 'Repositories'],
  ['g q', 'Queue'],
  ['g m', 'Me'],
  ['j  k', 'next or previous row'],
  ['Enter', 'open or fold the row'],
  ['[  ]', 'previous or next of the filtered list'],
  ['a', 'open the approval panel (never confirms)'],
  ['n', 'next destroy or replace'],
  ['f', 'follow the log'],
  ['Esc', 'close, leave a field'],
];

const stored = (name: string) => {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
};
export function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A browser may forbid storage; the choice then holds for this page.
  }
}

export const settings = $state({
  letters: stored('pawl.letters') !== 'off',
  theme: stored('pawl.theme') ?? 'auto',
  help: false,
});

const GO: Record<string, string> = { i: '/', l: '/layers', r: '/runs', p: '/repositories', q: '/queue', m: '/me' };
type Actions = Record<string, () => void>;
const stack: Actions[] = [];
let prefix = 0;

/** Adds keys of a part of the page; the newest part wins. */
export function onKeys(actions: Actions): () => void {
  stack.push(actions);
  return () => void stack.splice(stack.indexOf(actions), 1);
}

export function key(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const target = event.target as HTMLElement;
  if (target.matches('input:not([type=checkbox]), textarea, select')) {
    if (event.key === 'Escape') target.blur();
    return;
  }
  if (event.key === 'Escape') settings.help = false;
  if (!settings.letters) return;
  const done = () => event.preventDefault();
  if (Date.now() - prefix < 1500 && event.key in GO) {
    prefix = 0;
    done();
    return go(GO[event.key]!);
  }
  prefix = 0;
  if (event.key === 'g') return void (prefix = Date.now());
  if (event.key === '?') return done(), void (settings.help = !settings.help);
  if (event.key === '[') return step(-1);
  if (event.key === ']') return step(1);
  if (event.key === '/') {
    const field = document.querySelector<HTMLInputElement>('input[type=search]');
    if (field) done(), field.focus();
    return;
  }
  const isControl = target.closest('a, button, summary');
  if (event.key === 'Enter' && isControl) return;
  for (const actions of [...stack].reverse()) {
    const action = actions[event.key];
    if (action) return done(), action();
  }
}
