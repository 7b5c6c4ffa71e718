// The table of workers, the slowest first until a click on a column sorts otherwise.

import { make, say } from "./dom.js";
import { UNKNOWN, digits, duration, percent, whole } from "./format.js";

const share = (value) => percent(value, 0);
const COLUMNS = [
  ["slowness", "slowdowns", (value) => `${value.toFixed(2)} x`],
  ["batch size", "batch_sizes", whole],
  ["time", "times", duration],
  ["waiting", "waiting", duration],
  ["speed\n(samples/s)", "speeds", digits],
  ["predicted\n(samples/s)", "predicted_speeds", digits],
  ["CPU\navailable", "cpu", share],
  ["memory\nfree", "memory", share],
  ["device\nmemory used", "device_memory", share],
  ["batch size\nlimit", "caps", whole],
];

export class Workers {
  constructor(table, choose) {
    this.choose = choose;
    this.reset();
    this.rows = [];
    this.heads = [null, ...COLUMNS.map(([, quantity]) => quantity)].map((quantity, i) => {
      const button = make("button", { type: "button", text: i === 0 ? "worker" : COLUMNS[i - 1][0] });
      button.addEventListener("click", () => this.sort(quantity));
      return make("th", { scope: "col" }, button);
    });
    this.body = make("tbody");
    table.append(make("thead", {}, make("tr", {}, ...this.heads)), this.body);
  }

  reset() {
    this.by = "slowdowns"; // the quantity that rows are sorted by; null: the order of the job
    this.down = true;
  }

  set(names, now, chosen) {
    this.args = [names, now, chosen];
    while (this.rows.length < names.length) this.rows.push(this.makeRow(this.rows.length));
    this.rows.length = names.length;
    const present = new Set(now.present);
    names.forEach((name, worker) => {
      this.fill(worker, name, now.last, present.has(worker), worker === chosen);
      this.rows[worker].classList.toggle("straggler", worker === now.figures.straggler?.worker);
    });
    // A column without any known value is hidden.
    COLUMNS.forEach(([, quantity], i) => {
      const known = (now.last?.[quantity] ?? []).some((value) => value !== null);
      for (const row of [this.heads[0].parentElement, ...this.rows]) row.children[i + 1].hidden = !known;
    });
    this.arrange(now);
  }

  makeRow(worker) {
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => this.choose(worker));
    const cells = COLUMNS.map(([, quantity]) => make("td", { "data-quantity": quantity }));
    return make("tr", { "data-worker": worker }, make("td", {}, make("bdi", {}, button)), ...cells);
  }

  fill(worker, name, last, isThere, isChosen) {
    const row = this.rows[worker];
    const button = row.querySelector("button");
    say(button, name);
    if (button.title !== name) button.title = name;
    row.setAttribute("aria-selected", String(isChosen));
    row.classList.toggle("away", !isThere);
    COLUMNS.forEach(([, quantity, format], i) => {
      const value = isThere ? last?.[quantity]?.[worker] ?? null : null;
      const text = !isThere && quantity === "batch_sizes" ? "left" : value === null ? UNKNOWN : format(value);
      say(row.children[i + 1], text, value);
    });
  }

  sort(quantity) {
    this.down = this.by === quantity ? !this.down : true;
    this.by = quantity;
    if (this.args) this.arrange(this.args[1]);
  }

  arrange(now) {
    const value = (worker) => (this.by === null ? -worker : now.last?.[this.by]?.[worker] ?? null);
    // Unknown values come last, either way.
    const compare = (a, b) => (b !== null) - (a !== null) || (this.down ? b - a : a - b);
    const order = this.rows.map((_, worker) => worker).sort((a, b) => compare(value(a), value(b)) || a - b);
    this.heads.forEach((head, i) => {
      const sorted = (i === 0 ? null : COLUMNS[i - 1][1]) === this.by;
      head.setAttribute("aria-sort", sorted ? (this.down === (i !== 0) ? "descending" : "ascending") : "none");
    });
    if (order.every((worker, i) => this.body.children[i] === this.rows[worker]) && this.body.children.length === order.length) return;
    const focused = document.activeElement;
    this.body.replaceChildren(...order.map((worker) => this.rows[worker]));
    if (this.body.contains(focused)) focused.focus({ preventScroll: true });
  }
}
