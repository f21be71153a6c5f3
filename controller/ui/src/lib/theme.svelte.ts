// Light, dark, or that of the system.

const NAMES = ['system', 'light', 'dark'] as const;
type Name = (typeof NAMES)[number];

function kept(): Name {
  const found = localStorage.getItem('pawl-theme');
  return NAMES.find((name) => name === found) ?? 'system';
}

class Theme {
  chosen = $state<Name>(kept());
  glyph = $derived({ system: '◐', light: '○', dark: '●' }[this.chosen]);

  constructor() {
    this.apply();
  }

  next = () => {
    this.chosen = NAMES[(NAMES.indexOf(this.chosen) + 1) % NAMES.length] ?? 'system';
    localStorage.setItem('pawl-theme', this.chosen);
    this.apply();
  };

  apply() {
    if (this.chosen === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.chosen;
  }
}

export const theme = new Theme();
