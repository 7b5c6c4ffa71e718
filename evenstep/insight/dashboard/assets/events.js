// The list of events, the newest first.

import { make } from "./dom.js";
import { duration } from "./format.js";

const MOST = 300;
const PLANS = ["plan", "proposal"];

export class Events {
  constructor(list, showPlans) {
    this.list = list;
    this.showPlans = showPlans;
    this.events = [];
    showPlans.addEventListener("change", () => this.show());
  }

  clear() {
    this.events = [];
    this.show();
  }

  add(events) {
    if (events.length === 0) return;
    this.events = [...this.events, ...events].slice(-2 * MOST);
    this.show();
  }

  // The iterations that get a mark in a chart.
  get marks() {
    return [...new Set(this.events.filter(({ kind }) => !PLANS.includes(kind)).map(({ iteration }) => iteration))].slice(-40);
  }

  show() {
    const shown = this.events.filter(({ kind }) => this.showPlans.checked || !PLANS.includes(kind)).slice(-MOST).reverse();
    this.list.replaceChildren(...(shown.length ? shown.map(item) : [make("li", { class: "none", text: "nothing yet" })]));
  }
}

function item(event) {
  return make("li", { "data-kind": event.kind },
    make("span", { class: "at", text: event.iteration.toLocaleString("en"), title: "iteration" }),
    make("span", { class: "kind", text: event.kind }),
    make("bdi", { text: words(event) }));
}

function words({ kind, plan, worker, batch_sizes: sizes, predicted_time: time, words: reason }) {
  const expected = time === null ? "" : `expected ${duration(time)}`;
  const parts = {
    plan: [`number ${plan}`, sizes?.join("/"), expected, reason],
    proposal: [sizes?.join("/"), reason],
    advice: [`${reason} ${worker}`, expected && `${expected} without it`],
  }[kind] ?? [worker, reason];
  return parts.filter(Boolean).join(", ");
}
