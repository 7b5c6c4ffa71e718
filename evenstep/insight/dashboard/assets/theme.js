// The theme: light, dark, or that of the system.

import { find, say } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(changed) {
  let chosen = remembered();
  const apply = () => {
    document.documentElement.dataset.theme = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
    say(find("theme"), `Theme: ${chosen}`);
    changed();
  };
  find("theme").addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try { localStorage.setItem("evenstep-theme", chosen); } catch { /* the browser stores nothing */ }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function remembered() {
  try {
    const kept = localStorage.getItem("evenstep-theme");
    return THEMES.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
