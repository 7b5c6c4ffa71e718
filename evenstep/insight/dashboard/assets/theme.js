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

const LIGHT = ["#0b6bb8", "#d9730d", "#1a7f4b", "#a3399a", "#8a6d00", "#c2304f", "#00838f", "#5e4fc2",
  "#6d8a1e", "#8d5a3b", "#46586b", "#b0559e"];
const DARK = ["#4aa3e8", "#f29b46", "#4cc38a", "#d98ad2", "#e0c341", "#ff7d96", "#4dc4d1", "#a69bf5",
  "#a9c94f", "#c99a7c", "#9fb2c4", "#e69ad6"];

export function workerColour(worker) {
  const colours = document.documentElement.dataset.theme === "dark" ? DARK : LIGHT;
  return colours[worker % colours.length];
}
