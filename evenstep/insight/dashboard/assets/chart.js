// Charts of lines and bands over the iterations. All of them show the same part of the run, and point at the same iteration.

import { Canvas, shortened } from "./canvas.js";
import { make } from "./dom.js";
import { colour } from "./theme.js";

const LEFT = 46, TOP = 24, BOTTOM = 22, LINE = 14, LEADER = 14;
const NARROWEST = 8; // iterations
const HINT = 1500; // milliseconds

// The part of the run that is shown (null: all of it), and the iteration that is pointed at (null: none).
export class Sight {
  constructor(changed) {
    this.charts = [];
    this.changed = changed;
    this.reset();
  }

  reset() {
    this.range = this.cursor = null;
    this.update();
  }

  update() {
    for (const chart of this.charts) chart.redraw();
    this.changed?.(this.range);
  }

  point(cursor) {
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.update();
  }

  // Shows `width` iterations, such that `fixed` stays where it is.
  zoom(whole, factor, fixed) {
    const [from, to] = this.range ?? whole;
    const width = Math.max(NARROWEST, (to - from) * factor);
    this.show(whole, fixed - ((fixed - from) / (to - from)) * width, width);
  }

  move(whole, by) {
    if (this.range === null) return;
    this.show(whole, this.range[0] + by, this.range[1] - this.range[0]);
  }

  show([first, last], from, width) {
    const begin = Math.max(first, Math.min(from, last - width));
    this.range = width >= last - first ? null : [begin, begin + width];
    this.update();
  }
}

export class Chart {
  // `axis` returns caption and format of the y axis, given its end; `most` is that end, if it is fixed.
  constructor(element, legend, sight, { axis, format, most = null, nothing }) {
    Object.assign(this, { element, legend, sight, axis, format, most, nothing });
    this.data = { x: [], lines: [], bands: [], marks: [], extra: [] };
    this.active = false; // whether mouse or keyboard are here
    this.dragged = null;
    this.hinted = 0;
    sight.charts.push(this);
    this.canvas = new Canvas(element, (...args) => this.draw(...args));
    element.addEventListener("pointerdown", (event) => this.grab(event));
    element.addEventListener("pointermove", (event) => this.pointer(event));
    element.addEventListener("pointerup", () => { this.dragged = null; });
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("blur", () => this.leave());
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("dblclick", () => sight.reset());
  }

  set(data) {
    this.data = { extra: [], every: 1, ...data };
    this.redraw();
  }

  redraw() {
    this.canvas.redraw();
    this.showLegend();
    const [from, to] = this.shown;
    Object.assign(this.element.dataset, { from: Math.round(from), to: Math.round(to) });
  }

  get whole() {
    const ends = [this.data, ...this.data.lines].filter(({ x }) => x?.length).map(({ x }) => [x[0], x[x.length - 1]]);
    if (ends.length === 0) return [0, 1];
    const first = Math.min(...ends.map(([from]) => from));
    return [first, Math.max(first + 1, ...ends.map(([, to]) => to))];
  }

  get shown() {
    return this.sight.range ?? this.whole;
  }

  draw(context, width, height) {
    const { x, lines, bands, marks } = this.data;
    const known = lines.some((line) => line.values.some((value) => value !== null));
    if (!known) {
      context.fillStyle = colour("pale");
      context.textAlign = "center";
      context.fillText(this.nothing, width / 2, height / 2);
      return;
    }
    const [first, last] = this.shown;
    const top = this.most ?? niceTop(this.visible());
    this.right = labelRoom(context, width, lines);
    const px = (k) => LEFT + ((k - first) / (last - first)) * (width - LEFT - this.right);
    const py = (v) => height - BOTTOM - (v / top) * (height - TOP - BOTTOM);
    this.drawAxes(context, width, height, top, px, py);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP - 4, width - LEFT - this.right + 1, height - TOP - BOTTOM + 5);
    context.clip();
    drawMarks(context, marks.map(px), height);
    for (const band of bands) drawBand(context, x.map(px), band, py);
    for (const line of lines) drawLine(context, (line.x ?? x).map(px), line, py);
    context.restore();
    drawLabels(context, this.ends(py), width, height, this.right);
    if (this.sight.cursor !== null) this.drawCursor(context, width, height, px, py);
    if (Date.now() - this.hinted < HINT) drawHint(context, width, height);
  }

  drawAxes(context, width, height, top, px, py) {
    const { caption, text } = this.axis(top);
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("pale");
    context.lineWidth = 1;
    context.textAlign = "left";
    context.fillText(caption, 0, 11);
    context.textAlign = "right";
    for (const value of ticks(0, top, 4)) {
      const y = Math.round(py(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - this.right, y);
      context.stroke();
      context.fillText(text(value), LEFT - 6, y + 4);
    }
    context.fillText("iteration", width - this.right, height - 6);
    context.textAlign = "center";
    const end = width - this.right - context.measureText("iteration").width - 12;
    for (const k of ticks(...this.shown, width / 110)) {
      const label = k.toLocaleString("en");
      if (Number.isInteger(k) && px(k) + context.measureText(label).width / 2 < end) context.fillText(label, px(k), height - 6);
    }
  }

  // The values that are in sight.
  visible() {
    const [first, last] = this.shown;
    const inSight = (x, values) => values.filter((value, i) => value !== null && x[i] >= first && x[i] <= last);
    const { x, lines, bands } = this.data;
    return [...lines.flatMap((line) => inSight(line.x ?? x, line.values)), ...bands.flatMap((band) => inSight(x, band.high))];
  }

  // The last known value in sight of every line, for its label.
  ends(py) {
    const last = this.shown[1];
    return this.data.lines.flatMap((line) => {
      const x = line.x ?? this.data.x;
      const at = line.values.findLastIndex((value, i) => value !== null && x[i] <= last);
      return at < 0 ? [] : [{ line, y: py(line.values[at]) }];
    });
  }

  drawCursor(context, width, height, px, py) {
    const k = this.data.x[nearest(this.data.x, this.sight.cursor)];
    const at = px(k);
    if (at < LEFT - 1 || at > width - this.right + 1) return;
    context.strokeStyle = colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(at, TOP);
    context.lineTo(at, height - BOTTOM);
    context.stroke();
    for (const line of this.data.lines) {
      const value = valueAt(line, this.data.x, k);
      if (value === null || py(value) < TOP - 4) continue;
      context.fillStyle = colour(line.colour);
      context.beginPath();
      context.arc(at, py(value), 3.5, 0, 7);
      context.fill();
    }
    if (this.active) drawBox(context, at, width, height, [this.position(k), ...this.values(k)]);
  }

  position(k) {
    const { every } = this.data;
    return `iteration ${Math.round(k).toLocaleString("en")}${every === 1 ? "" : `, mean of ${every}`}`;
  }

  values(k) {
    const { x, lines, extra } = this.data;
    return [...lines, ...extra].map((line) => [line.label, (line.format ?? this.format)(valueAt(line, x, k))]);
  }

  showLegend() {
    const { x, lines, bands, marks } = this.data;
    const k = x[this.sight.cursor === null ? x.length - 1 : nearest(x, this.sight.cursor)];
    const items = lines.filter((line) => line.values.some((value) => value !== null)).map((line) => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.borderTop = `.2rem ${line.dash ? (line.dash[0] > 3 ? "dashed" : "dotted") : "solid"} ${colour(line.colour)}`;
      return make("li", {}, swatch, make("bdi", { text: line.label }), make("b", { text: this.format(valueAt(line, x, k)) }));
    });
    for (const { label, colour: name } of bands.filter((band) => band.label)) {
      const swatch = make("span", { class: "swatch band" });
      swatch.style.background = colour(name);
      items.push(make("li", {}, swatch, make("bdi", { text: label })));
    }
    if (marks.length) items.push(make("li", {}, make("span", { class: "key mark" }), make("bdi", { text: "event" })));
    if (k !== undefined) items.unshift(make("li", { text: this.position(k) }));
    this.legend.replaceChildren(...items);
  }

  iterationAt(offset) {
    const [first, last] = this.shown;
    return first + ((offset - LEFT) / (this.element.clientWidth - LEFT - (this.right ?? 0))) * (last - first);
  }

  grab(event) {
    this.dragged = event.offsetX;
    if (this.sight.range !== null) this.element.setPointerCapture(event.pointerId);
  }

  pointer(event) {
    const { x } = this.data;
    if (x.length === 0) return;
    this.active = true;
    if (this.dragged !== null && event.buttons && this.sight.range !== null) {
      this.sight.move(this.whole, this.iterationAt(this.dragged) - this.iterationAt(event.offsetX));
      this.dragged = event.offsetX;
    }
    this.sight.point(x[nearest(x, this.iterationAt(event.offsetX))]);
  }

  leave() {
    this.active = false;
    this.dragged = null;
    this.sight.point(null);
  }

  // The wheel still scrolls the page, unless the chart was clicked or Ctrl is held.
  wheel(event) {
    if (this.data.x.length === 0) return;
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.element) {
      this.hinted = Date.now();
      this.canvas.redraw();
      setTimeout(() => this.canvas.redraw(), HINT);
      return;
    }
    event.preventDefault();
    this.hinted = 0;
    this.sight.zoom(this.whole, 1.002 ** Math.max(-400, Math.min(400, event.deltaY)), this.iterationAt(event.offsetX));
  }

  key(event) {
    const { x } = this.data;
    if (x.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -x.length, End: x.length };
    const [from, to] = this.shown;
    const zooms = { "+": 1 / 1.5, "=": 1 / 1.5, "-": 1.5 };
    if (event.key in zooms) this.zoom(zooms[event.key]);
    else if (event.key === "0" || event.key === "Escape") this.sight.reset();
    else if (event.shiftKey && event.key in steps) this.sight.move(this.whole, Math.sign(steps[event.key]) * 0.1 * (to - from));
    else if (event.key in steps) this.step(steps[event.key]);
    else return;
    event.preventDefault();
  }

  // Zooms around the iteration that is pointed at, or else the middle.
  zoom(factor) {
    const [from, to] = this.shown;
    this.sight.zoom(this.whole, factor, this.sight.cursor ?? (from + to) / 2);
  }

  step(by) {
    const { x } = this.data;
    this.active = true;
    const at = this.sight.cursor === null ? x.length - 1 : nearest(x, this.sight.cursor);
    const k = x[Math.max(0, Math.min(x.length - 1, at + by))];
    const [from, to] = this.shown;
    if (k < from) this.sight.move(this.whole, k - from);
    if (k > to) this.sight.move(this.whole, k - to);
    this.sight.point(k);
  }
}

function nearest(x, k) {
  let [low, high] = [0, x.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= k) low = middle; else high = middle;
  }
  return Math.abs(x[low] - k) <= Math.abs(x[high] - k) ? low : Math.max(high, 0);
}

// The value of a line at an iteration; null where the line has none near it.
function valueAt(line, x, k) {
  if (k === undefined) return null;
  const own = line.x ?? x;
  const i = nearest(own, k);
  const spacing = own.length > 1 ? (own[own.length - 1] - own[0]) / (own.length - 1) : 1;
  return own.length && Math.abs(own[i] - k) <= spacing ? line.values[i] ?? null : null;
}

function drawLine(context, at, { values, colour: name, dash = [], width = 1.6 }, py) {
  context.strokeStyle = colour(name);
  context.lineWidth = width;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.beginPath();
  let drawn = false;
  values.forEach((value, i) => {
    if (value === null) { drawn = false; return; }
    if (drawn) context.lineTo(at[i], py(value)); else context.moveTo(at[i], py(value));
    drawn = true;
  });
  context.stroke();
  context.setLineDash([]);
  // A point without neighbours has no line, and is drawn as a dot.
  context.fillStyle = context.strokeStyle;
  values.forEach((value, i) => {
    const alone = (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;
    if (value !== null && alone) context.fillRect(at[i] - 1.5, py(value) - 1.5, 3, 3);
  });
}

function drawBand(context, at, { low, high, colour: name }, py) {
  context.fillStyle = colour(name);
  let from = 0;
  while (from < at.length) {
    if (low[from] === null) { from += 1; continue; }
    let to = from;
    while (to + 1 < at.length && low[to + 1] !== null) to += 1;
    context.beginPath();
    for (let i = from; i <= to; i += 1) context.lineTo(at[i], py(high[i]));
    for (let i = to; i >= from; i -= 1) context.lineTo(at[i], py(low[i]));
    context.fill();
    from = to + 1;
  }
}

function drawMarks(context, at, height) {
  context.strokeStyle = colour("mark");
  context.lineWidth = 1;
  context.setLineDash([4, 3]);
  context.beginPath();
  for (const x of at) {
    context.moveTo(x, TOP);
    context.lineTo(x, height - BOTTOM);
  }
  context.stroke();
  context.setLineDash([]);
}

function labelRoom(context, width, lines) {
  context.font = "600 12px system-ui, sans-serif"; // as wide as a label gets
  const longest = Math.max(0, ...lines.map(({ name, label }) => context.measureText(name ?? label).width));
  context.font = "12px system-ui, sans-serif";
  return Math.min(longest + LEADER + 8, Math.max(0.25 * width, 110));
}

// Writes the name of every line next to its end, one below the other where ends are close.
function drawLabels(context, ends, width, height, room) {
  const placed = ends.sort((a, b) => a.y - b.y).map(({ line, y }) => ({ line, y, at: Math.max(TOP, Math.min(height - BOTTOM, y)) }));
  for (let i = 1; i < placed.length; i += 1) placed[i].at = Math.max(placed[i].at, placed[i - 1].at + LINE);
  let lowest = height - BOTTOM + 4;
  for (const label of [...placed].reverse()) {
    label.at = Math.min(label.at, lowest);
    lowest = label.at - LINE;
  }
  context.textAlign = "left";
  for (const { line, y, at } of placed) {
    const left = width - room;
    context.strokeStyle = colour(line.colour);
    context.lineWidth = line.width ?? 1.6;
    context.setLineDash(line.dash ?? []);
    context.beginPath();
    context.moveTo(left + 1, Math.max(TOP - 4, y));
    context.lineTo(left + LEADER, at);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colour("ink");
    context.font = `${line.width > 2 ? "600 " : ""}12px system-ui, sans-serif`;
    context.fillText(shortened(context, line.name ?? line.label, room - LEADER - 4), left + LEADER + 3, at + 4);
  }
  context.font = "12px system-ui, sans-serif";
}

// A box next to the cursor with a title, and labels with their values.
function drawBox(context, at, width, height, [title, ...all]) {
  const rows = all.slice(0, Math.max(1, Math.floor((height - TOP - BOTTOM) / LINE) - 1));
  const wide = (text) => context.measureText(text).width;
  const room = Math.min(width - 8, Math.max(wide(title), ...rows.map(([label, value]) => wide(label) + wide(value) + 14)) + 16);
  const left = at + 10 + room < width ? at + 10 : Math.max(2, at - 10 - room);
  context.fillStyle = colour("card");
  context.strokeStyle = colour("mark");
  context.beginPath();
  context.roundRect(left, TOP, room, LINE * (rows.length + 1) + 10, 5);
  context.fill();
  context.stroke();
  context.fillStyle = colour("pale");
  context.textAlign = "left";
  context.fillText(title, left + 8, TOP + LINE + 2);
  rows.forEach(([label, value], i) => {
    const y = TOP + LINE * (i + 2) + 2;
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    context.fillText(shortened(context, label, room - wide(value) - 24), left + 8, y);
    context.textAlign = "right";
    context.fillText(value, left + room - 8, y);
  });
}

function drawHint(context, width, height) {
  const text = "Ctrl + wheel zooms; after a click, the wheel alone";
  const room = Math.min(width - 8, context.measureText(text).width + 16);
  context.fillStyle = colour("ink");
  context.beginPath();
  context.roundRect((width - room) / 2, height - BOTTOM - 30, room, 22, 5);
  context.fill();
  context.fillStyle = colour("card");
  context.textAlign = "center";
  context.fillText(shortened(context, text, room - 12), width / 2, height - BOTTOM - 15);
}

// One outlier must not flatten all other values: the axis ends where nearly all values are below.
function niceTop(visible) {
  if (visible.length === 0) return 1;
  const values = visible.sort((a, b) => a - b);
  const usual = values[Math.floor(0.97 * (values.length - 1))];
  const top = Math.max(Math.min(values[values.length - 1] * 1.02, usual * 1.6), 1e-12);
  const step = niceStep(top / 4);
  return Math.ceil(top / step - 1e-9) * step;
}

function ticks(from, to, wanted) {
  const step = niceStep((to - from) / Math.max(1, wanted));
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

export function niceStep(rough) {
  const base = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * base).find((size) => size >= rough * (1 - 1e-9)) ?? rough;
}
