// The figures at the top: the current iteration time, compared with plain BSP and the optimum.

import { find, make, say } from "./dom.js";
import { UNKNOWN, counted, duration, percent, whole } from "./format.js";

const BARS = [
  ["now", "now", (now) => now.iteration_time, ""],
  ["plain", "plain BSP", (now) => now.plain, "would take"],
  ["optimum", "optimum", (now) => now.optimum, "at best"],
];

export function showFigures(now) {
  say(find("iteration-time"), duration(now.iteration_time), now.iteration_time);
  say(find("median"), now.median_time === null ? "" : `median of the last iterations: ${duration(now.median_time)}`);
  const { median_time: median, plain, optimum } = now;
  const gain = plain === null || !(median > 0) ? null : plain / median;
  const above = optimum === null || !(optimum > 0) || median === null ? null : median / optimum - 1;
  say(find("gain"), gain === null ? UNKNOWN : `${gain.toFixed(2)}×`, gain);
  say(find("gain-words"), gain !== null && gain < 0.995 ? "slower than even batch sizes (estimate)" : "times faster (estimate)");
  say(find("above"), above === null ? UNKNOWN : `${above >= 0.0005 ? "+" : ""}${percent(above)}`, above);
  say(find("waiting"), percent(now.waiting_share), now.waiting_share);
  say(find("iteration"), now.iteration === null ? UNKNOWN : now.iteration.toLocaleString("en"), now.iteration);
  say(find("plan"), `plan ${whole(now.plan)}, ${counted(now.present.length, "worker")}`);
  showBars(now);
}

function showBars(now) {
  const bars = find("bars");
  if (bars.children.length === 0) bars.append(...BARS.map(([kind, label, , words]) => makeBar(kind, label, words)));
  const values = BARS.map(([, , value]) => value(now));
  const longest = Math.max(...values.map((value) => value ?? 0), 1e-12);
  values.forEach((value, i) => {
    bars.children[i].querySelector(".fill").style.width = `${(100 * Math.max(0, value ?? 0)) / longest}%`;
    say(bars.children[i].querySelector("span.value"), duration(value), value);
  });
}

function makeBar(kind, label, words) {
  const track = make("span", { class: "track" }, make("span", { class: `fill ${kind}` }));
  const value = make("b", {}, make("span", { class: "value", id: `bar-${kind}` }), make("small", { text: words ? ` ${words}` : "" }));
  return make("div", { class: "bar" }, make("span", { text: label }), track, value);
}
