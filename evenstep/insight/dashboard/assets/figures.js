// The settled figures at the top, as the server sends them, with the newest iteration next to them.

import { find, make, say } from "./dom.js";
import { UNKNOWN, counted, duration, percent, whole } from "./format.js";

const BARS = [
  ["run", "this run", ""],
  ["plain", "plain BSP", "would take"],
  ["optimum", "optimum", "at best"],
];

export function showFigures(now, names, choose) {
  const { figures } = now;
  const { iteration_time: time, gain, optimum, straggler } = figures;
  say(find("sentence"), figures.sentence);
  say(find("window"), `Means of ${figures.window}; plain BSP and the optimum are estimates.`);
  say(find("settled-time"), duration(time), time);
  say(find("iteration-time"), duration(now.iteration_time), now.iteration_time);
  say(find("iteration"), now.iteration === null ? UNKNOWN : now.iteration.toLocaleString("en"), now.iteration);
  say(find("plan"), `plan ${whole(now.plan)}, ${counted(now.present.length, "worker")}`);
  say(find("gain"), gain === null ? UNKNOWN : `${gain.value.toFixed(2)} x`, gain?.value ?? null);
  say(find("gain-words"), gainWords(gain));
  const above = optimum === null || !(optimum.value > 0) || time === null ? null : Math.max(0, time / optimum.value - 1);
  say(find("above"), percent(above), above);
  say(find("waiting"), percent(figures.waiting_share), figures.waiting_share);
  say(find("newest-waiting"), percent(now.waiting_share));
  showStraggler(straggler, names, choose, figures.slowdowns.some((value) => value !== null));
  showBars({ run: time === null ? null : { value: time, low: time, high: time }, plain: figures.plain, optimum });
}

function gainWords(gain) {
  if (gain === null) return "not known yet";
  const range = gain.low < gain.high ? `${gain.low.toFixed(2)} to ${gain.high.toFixed(2)}, ` : "";
  const compared = gain.value < 1.05 && gain.value > 1 / 1.05 ? "about as fast" : gain.value < 1 ? "slower" : "faster";
  return `${range}${compared} (estimate)`;
}

function showStraggler(straggler, names, choose, compared) {
  const button = find("straggler");
  say(button, straggler === null ? (compared ? "none" : UNKNOWN) : names[straggler.worker], straggler?.worker ?? null);
  button.disabled = straggler === null;
  button.title = straggler === null ? "" : `Show ${names[straggler.worker]}`;
  button.onclick = () => choose(straggler.worker);
  say(find("slowdown"), straggler !== null ? `${straggler.slowdown.toFixed(2)} x slower than the median`
    : compared ? "all workers are about equally fast" : "no speeds to compare");
}

function showBars(values) {
  const bars = find("bars");
  if (bars.children.length === 0) bars.append(...BARS.map((bar) => makeBar(...bar)));
  const longest = Math.max(...Object.values(values).map((span) => span?.high ?? 0), 1e-12);
  const share = (value) => `${(100 * Math.max(0, value)) / longest}%`;
  BARS.forEach(([kind], i) => {
    const span = values[kind];
    bars.children[i].querySelector(".fill").style.width = share(span?.value ?? 0);
    const whisker = bars.children[i].querySelector(".whisker");
    whisker.style.left = share(span?.low ?? 0);
    whisker.style.width = share((span?.high ?? 0) - (span?.low ?? 0));
    say(find(`bar-${kind}`), duration(span?.value ?? null), span?.value ?? null);
  });
}

function makeBar(kind, label, words) {
  const track = make("span", { class: "track" }, make("span", { class: `fill ${kind}` }), make("span", { class: "whisker" }));
  const value = make("b", {}, make("span", { class: "value", id: `bar-${kind}` }), make("small", { text: words ? ` ${words}` : "" }));
  return make("div", { class: "bar" }, make("span", { text: label }), track, value);
}
