// The timeline: the last iterations side by side, one lane per worker, waiting shaded.

import { Canvas, shortened } from "./canvas.js";
import { niceStep } from "./chart.js";
import { find, say } from "./dom.js";
import { counted, duration } from "./format.js";
import { colour } from "./theme.js";

const AXIS = 20, BREAK = 3, MISSING = 34, LEAST_WIDTH = 44;
const MANY = 36; // with more workers, the slowest are on top
const MOST_LANES = 200;
const SETTLED = 5000; // milliseconds for which lanes keep their places

export class Timeline {
  constructor(element, readout, choose) {
    this.element = element;
    this.scrolled = element.parentElement;
    this.readout = readout;
    this.choose = choose;
    this.rows = [];
    this.lanes = [];
    this.names = [];
    this.chosen = null;
    this.at = null; // the number of the selected row
    this.hovered = false;
    this.canvas = new Canvas(element, (...args) => this.draw(...args));
    this.scrolled.addEventListener("scroll", () => this.canvas.redraw());
    element.addEventListener("pointermove", (event) => this.point(event, false));
    element.addEventListener("pointerleave", () => { this.hovered = false; this.look(null, this.chosen); });
    element.addEventListener("click", (event) => this.point(event, true));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  set(rows, now, names, chosen) {
    this.rows = rows.filter((row) => row.time !== null && row.time > 0);
    this.arrange(now);
    this.names = names;
    this.chosen = chosen;
    this.element.style.height = `${AXIS + this.lanes.length * laneHeight(this.lanes.length)}px`;
    this.canvas.redraw();
    this.describe(this.chosen);
  }

  // Of many workers, the slowest are on top. Lanes do not move under the mouse, and not all the time.
  arrange({ present, last, progress }) {
    const same = this.present?.join() === present.join();
    if (same && (present.length <= MANY || this.hovered || Date.now() - this.arranged < SETTLED)) return;
    this.present = present;
    // While a log is still being read, the places are not final.
    this.arranged = progress < 1 ? 0 : Date.now();
    const slowness = (worker) => last?.slowdowns[worker] ?? 0;
    this.lanes = present.length <= MANY ? present : [...present].sort((a, b) => slowness(b) - slowness(a)).slice(0, MOST_LANES);
  }

  redraw() {
    this.canvas.redraw();
  }

  draw(context, width, height) {
    const lane = laneHeight(this.lanes.length);
    const left = this.labelWidth(context, width);
    context.font = "12px system-ui, sans-serif";
    this.place(left, width);
    const colours = { worked: colour("run"), late: colour("warn"), pattern: hatch(context) };
    this.lanes.forEach((worker, i) => {
      if (worker !== this.chosen) return;
      context.fillStyle = colour("select");
      context.fillRect(0, AXIS + i * lane, width, lane);
    });
    for (const spot of this.placed) this.drawIteration(context, spot, lane, colours);
    this.drawLabels(context, left, lane);
    this.drawAxis(context, left, width, height);
  }

  // Computes the positions of the iterations that there is room for: the newest, or those up to the selected one.
  place(left, width) {
    const room = width - left;
    const fitting = Math.max(2, Math.floor(room / LEAST_WIDTH));
    const selected = this.rows.findIndex((row) => row.number === this.at);
    const from = Math.max(0, this.rows.length - fitting);
    const start = selected >= 0 && selected < from ? selected : from;
    const shown = this.rows.slice(start, start + fitting);
    // Where iterations are left out, there is a gap with their number.
    const missing = shown.map((row, i) => (i === 0 ? 0 : row.iteration - shown[i - 1].iteration - 1));
    const total = shown.reduce((sum, row) => sum + row.time, 0);
    const gaps = missing.filter((number) => number > 0).length * MISSING;
    const perSecond = Math.max(1e-9, (room - BREAK * shown.length - gaps) / total);
    let x = left + BREAK;
    this.placed = shown.map((row, i) => {
      if (missing[i] > 0) x += MISSING;
      const spot = { row, x, perSecond, width: row.time * perSecond, missing: missing[i] };
      x += spot.width + BREAK;
      return spot;
    });
    find("gaps").hidden = gaps === 0;
    this.element.dataset.missing = missing.filter((number) => number > 0).join(" ");
    const step = shown.length ? niceStep(60 / perSecond) : 0;
    find("scale").style.width = `${step * perSecond}px`;
    say(find("scale-time"), shown.length ? duration(step) : "");
  }

  // The numbers of the iterations stay in sight when many lanes are scrolled.
  drawAxis(context, left, width, height) {
    const top = this.scrolled.scrollTop;
    context.fillStyle = colour("card");
    context.fillRect(0, top, width, AXIS);
    context.textAlign = "left";
    context.fillStyle = colour("pale");
    context.fillText(shortened(context, "iteration", left - 8), 2, top + AXIS - 7);
    let free = 0; // the right end of the last label
    for (const { row, x, missing } of this.placed) {
      context.strokeStyle = colour("rule");
      context.beginPath();
      context.moveTo(Math.round(x) - 1.5, AXIS - 4);
      context.lineTo(Math.round(x) - 1.5, height);
      context.stroke();
      if (missing > 0) free = drawGap(context, x - MISSING, top, height, missing);
      context.fillStyle = row.number === this.at ? colour("ink") : colour("pale");
      const label = row.iteration.toLocaleString("en");
      const taken = context.measureText(label).width + 8;
      if (x >= free && x + taken <= width + 8) {
        context.fillText(label, x + 1, top + AXIS - 7);
        free = x + taken;
      }
    }
  }

  drawIteration(context, { row, x, perSecond, width }, lane, { worked, late, pattern }) {
    const inset = lane > 15 ? 3 : 1;
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
        context.fillStyle = worker === row.late ? late : worked;
        context.fillRect(x, y, Math.max(end, 1), thick);
      }
    });
  }

  drawLabels(context, left, lane) {
    context.textAlign = "left";
    this.lanes.forEach((worker, i) => {
      context.fillStyle = worker === this.chosen ? colour("ink") : colour("pale");
      context.font = `${worker === this.chosen ? "600 " : ""}${Math.min(12, lane - 2)}px system-ui, sans-serif`;
      context.fillText(shortened(context, this.names[worker], left - 8), 2, AXIS + i * lane + lane / 2 + 4);
    });
    context.font = "12px system-ui, sans-serif";
  }

  labelWidth(context, width) {
    context.font = "600 12px system-ui, sans-serif"; // as wide as a label gets
    const longest = Math.max(...this.lanes.map((worker) => context.measureText(this.names[worker]).width), 48);
    return Math.min(longest + 14, width * 0.28);
  }

  point(event, chooses) {
    this.hovered = true;
    const i = Math.floor((event.offsetY - AXIS) / laneHeight(this.lanes.length));
    const worker = this.lanes[i];
    if (worker === undefined) return;
    const spot = (this.placed ?? []).find(({ x, width }) => event.offsetX <= x + width + BREAK);
    this.look(spot?.row.number ?? null, worker, spot !== undefined && event.offsetX < spot.x ? spot.missing : 0);
    if (chooses) this.choose(worker);
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || this.rows.length === 0) return;
    event.preventDefault();
    const lane = Math.max(0, Math.min(this.lanes.length - 1, Math.max(0, this.lanes.indexOf(this.chosen)) + step[0]));
    const worker = this.lanes[lane];
    const from = this.rows.findIndex((row) => row.number === this.at);
    const at = (from < 0 ? this.rows.length - 1 : from) + step[1];
    this.look(this.rows[Math.max(0, Math.min(this.rows.length - 1, at))].number, worker);
    if (worker !== this.chosen) {
      this.choose(worker);
      this.reveal(lane);
    }
  }

  reveal(lane) {
    const [height, { scrollTop, clientHeight }] = [laneHeight(this.lanes.length), this.scrolled];
    const y = lane * height;
    if (y < scrollTop) this.scrolled.scrollTop = y;
    if (y + AXIS + 2 * height > scrollTop + clientHeight) this.scrolled.scrollTop = y + AXIS + 2 * height - clientHeight;
  }

  look(at, worker, missing = 0) {
    this.at = at;
    this.describe(worker, missing);
    this.canvas.redraw();
  }

  describe(worker, missing = 0) {
    const row = this.rows.find(({ number }) => number === this.at) ?? this.rows[this.rows.length - 1];
    if (!row || worker === null || worker === undefined) return say(this.readout, "");
    if (missing > 0) return say(this.readout, `${counted(missing, "iteration")} before iteration ${row.iteration} not shown`);
    const name = this.names[worker];
    const waited = row.waiting[worker] === null ? "" : `, waited ${duration(row.waiting[worker])}`;
    const did = row.batch_sizes[worker] === null ? "was away"
      : `${row.batch_sizes[worker]} samples in ${duration(row.times[worker])}${waited}`;
    return say(this.readout, `Iteration ${row.iteration}, ${name}: ${did}${row.late === worker ? "; the others waited for it" : ""}`);
  }
}

export function laneHeight(lanes) {
  return lanes <= 10 ? 28 : lanes <= MANY ? 16 : 13;
}

// Draws a gap of iterations that are not shown, with their number, and returns its right end.
function drawGap(context, x, top, height, missing) {
  context.strokeStyle = colour("mark");
  context.setLineDash([3, 3]);
  context.beginPath();
  for (const at of [x + 1.5, x + MISSING - 5.5]) {
    context.moveTo(at, AXIS - 2);
    context.lineTo(at, height);
  }
  context.stroke();
  context.setLineDash([]);
  context.textAlign = "center";
  context.fillStyle = colour("ink");
  const text = missing < 10000 ? `+${missing}` : `+${Math.round(missing / 1000)}k`;
  context.fillText(text, x + MISSING / 2 - 2, top + AXIS - 7);
  context.textAlign = "left";
  return x + MISSING / 2 + context.measureText(text).width / 2;
}

function hatch(context) {
  const tile = new OffscreenCanvas(6, 6);
  const inner = tile.getContext("2d");
  inner.fillStyle = colour("wait");
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = colour("wait-line");
  inner.lineWidth = 1;
  inner.beginPath();
  for (const shift of [-6, 0, 6]) {
    inner.moveTo(shift, 6);
    inner.lineTo(shift + 6, 0);
  }
  inner.stroke();
  return context.createPattern(tile, "repeat");
}
