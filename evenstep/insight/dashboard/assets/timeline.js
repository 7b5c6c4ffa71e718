// The timeline: the last iterations side by side, one lane per worker, waiting shaded.

import { Canvas, shortened } from "./canvas.js";
import { say } from "./dom.js";
import { duration } from "./format.js";
import { colour } from "./theme.js";

const AXIS = 20, GAP = 3, MOST_LANES = 400, LEAST_WIDTH = 44;

export class Timeline {
  constructor(element, readout, choose) {
    this.element = element;
    this.readout = readout;
    this.choose = choose;
    this.rows = [];
    this.lanes = [];
    this.names = [];
    this.chosen = null;
    this.at = null; // the number of the selected row
    this.canvas = new Canvas(element, (...args) => this.draw(...args));
    element.addEventListener("pointermove", (event) => this.point(event, false));
    element.addEventListener("pointerleave", () => this.look(null, this.chosen));
    element.addEventListener("click", (event) => this.point(event, true));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  set(rows, lanes, names, chosen) {
    this.rows = rows.filter((row) => row.time !== null && row.time > 0);
    const newest = this.rows[this.rows.length - 1];
    // With more workers than lanes, the slowest workers are shown.
    this.lanes = lanes.length <= MOST_LANES ? lanes
      : [...lanes].sort((a, b) => (newest?.times[b] ?? 0) - (newest?.times[a] ?? 0)).slice(0, MOST_LANES);
    this.names = names;
    this.chosen = chosen;
    this.element.style.height = `${AXIS + this.lanes.length * laneHeight(this.lanes.length)}px`;
    this.canvas.redraw();
    this.describe(this.chosen);
  }

  redraw() {
    this.canvas.redraw();
  }

  draw(context, width, height) {
    const lane = laneHeight(this.lanes.length);
    const left = this.labelWidth(context, width, lane);
    context.font = "12px system-ui, sans-serif";
    this.place(left, width);
    const pattern = hatch(context);
    const colours = { worked: colour("accent"), late: colour("late"), pattern };
    this.lanes.forEach((worker, i) => {
      if (worker !== this.chosen) return;
      context.fillStyle = colour("select");
      context.fillRect(0, AXIS + i * lane, width, lane);
    });
    context.strokeStyle = colour("rule");
    context.beginPath();
    for (const { x } of this.placed) {
      context.moveTo(Math.round(x) - 1.5, AXIS - 4);
      context.lineTo(Math.round(x) - 1.5, height);
    }
    context.stroke();
    this.free = 0; // the right end of the last label of an iteration
    for (const spot of this.placed) this.drawIteration(context, spot, lane, colours);
    if (left > 10) this.drawLabels(context, left, lane);
  }

  // Computes the positions of the iterations that there is room for, the newest at the right.
  place(left, width) {
    const room = width - left;
    const shown = this.rows.slice(-Math.max(2, Math.floor(room / LEAST_WIDTH)));
    const total = shown.reduce((sum, row) => sum + row.time, 0);
    const perSecond = (room - GAP * shown.length) / total;
    let x = left + GAP;
    this.placed = shown.map((row) => {
      const spot = { row, x, perSecond, width: row.time * perSecond };
      x += spot.width + GAP;
      return spot;
    });
    this.left = left;
  }

  drawIteration(context, { row, x, perSecond, width }, lane, { worked, late, pattern }) {
    context.fillStyle = row.number === this.at ? colour("ink") : colour("pale");
    context.textAlign = "left";
    const label = row.iteration.toLocaleString("en");
    const taken = context.measureText(label).width + 8;
    if (x >= this.free && x + taken <= this.element.clientWidth + 8) {
      context.fillText(label, x + 1, AXIS - 7);
      this.free = x + taken;
    }
    const longest = Math.max(...this.lanes.map((worker) => row.times[worker] ?? 0));
    const inset = lane > 10 ? 3 : lane > 4 ? 1 : 0;
    const thick = Math.max(1, lane - 2 * inset);
    this.lanes.forEach((worker, i) => {
      const y = AXIS + i * lane + inset;
      const t = row.times[worker] ?? 0;
      const waited = row.waiting[worker] ?? (row.batch_sizes[worker] === 0 ? row.time : 0);
      const end = Math.max(t * perSecond, 0);
      if (waited > 0) {
        context.fillStyle = pattern;
        context.fillRect(x + end, y, Math.min(waited * perSecond, Math.max(0, width - end)), thick);
      }
      if (t > 0) {
        context.fillStyle = t === longest && this.lanes.length > 1 ? late : worked;
        context.fillRect(x, y, Math.max(end, 1), thick);
      }
    });
  }

  drawLabels(context, left, lane) {
    context.textAlign = "left";
    this.lanes.forEach((worker, i) => {
      context.fillStyle = worker === this.chosen ? colour("ink") : colour("pale");
      context.font = `${worker === this.chosen ? "600 " : ""}${Math.min(12, lane)}px system-ui, sans-serif`;
      context.fillText(shortened(context, this.names[worker], left - 8), 2, AXIS + i * lane + lane / 2 + 4);
    });
  }

  labelWidth(context, width, lane) {
    if (lane < 11) return 0;
    context.font = "600 12px system-ui, sans-serif"; // as wide as a label gets
    const longest = Math.max(...this.lanes.map((worker) => context.measureText(this.names[worker]).width));
    return Math.min(longest + 14, width * 0.28);
  }

  point(event, chooses) {
    const i = Math.floor((event.offsetY - AXIS) / laneHeight(this.lanes.length));
    const worker = this.lanes[i];
    if (worker === undefined) return;
    const spot = (this.placed ?? []).find(({ x, width }) => event.offsetX >= x && event.offsetX <= x + width + GAP);
    this.look(spot?.row.number ?? null, worker);
    if (chooses) this.choose(worker);
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || this.rows.length === 0) return;
    event.preventDefault();
    const lane = Math.max(0, this.lanes.indexOf(this.chosen)) + step[0];
    const worker = this.lanes[Math.max(0, Math.min(this.lanes.length - 1, lane))];
    const from = this.rows.findIndex((row) => row.number === this.at);
    const at = (from < 0 ? this.rows.length - 1 : from) + step[1];
    this.look(this.rows[Math.max(0, Math.min(this.rows.length - 1, at))].number, worker);
    if (worker !== this.chosen) this.choose(worker);
  }

  look(at, worker) {
    this.at = at;
    this.describe(worker);
    this.canvas.redraw();
  }

  describe(worker) {
    const row = this.rows.find(({ number }) => number === this.at) ?? this.rows[this.rows.length - 1];
    if (!row || worker === null || worker === undefined) return say(this.readout, "");
    const name = this.names[worker];
    const waited = row.waiting[worker] === null ? "" : `, waited ${duration(row.waiting[worker])}`;
    const did = row.batch_sizes[worker] === null ? "was away"
      : `${row.batch_sizes[worker]} samples in ${duration(row.times[worker])}${waited}`;
    return say(this.readout, `Iteration ${row.iteration}, ${name}: ${did}`);
  }
}

export function laneHeight(lanes) {
  if (lanes <= 10) return 28;
  if (lanes <= 36) return 16;
  return Math.max(2, Math.floor(620 / lanes));
}

function hatch(context) {
  const tile = new OffscreenCanvas(6, 6);
  const inner = tile.getContext("2d");
  inner.fillStyle = colour("wait");
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = colour("wait-ink");
  inner.lineWidth = 1;
  inner.beginPath();
  for (const shift of [-6, 0, 6]) {
    inner.moveTo(shift, 6);
    inner.lineTo(shift + 6, 0);
  }
  inner.stroke();
  return context.createPattern(tile, "repeat");
}
