// Formats numbers as the rest of Evenstep does. Unknown numbers are a dash.

export const UNKNOWN = "–";

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const [value, unit] = Math.abs(seconds) < 1 ? [1000 * seconds, "ms"] : [seconds, "s"];
  return `${digits(value)} ${unit}`;
}

export function digits(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return trimmed(value.toFixed(1));
  if (size >= 1) return trimmed(value.toFixed(2));
  return size === 0 ? "0" : trimmed(value.toPrecision(1));
}

export function percent(fraction, places = 1) {
  if (fraction === null || fraction === undefined) return UNKNOWN;
  const shown = (100 * fraction).toFixed(places);
  // A number that rounds to 0 has no sign.
  return `${Number(shown) === 0 ? (0).toFixed(places) : shown}%`;
}

export function whole(value) {
  return value === null || value === undefined ? UNKNOWN : String(value);
}

export function counted(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

function trimmed(text) {
  return text.includes("e") || !text.includes(".") ? text : text.replace(/\.?0+$/, "");
}
