// A chart of lines and bands over the iterations, with a cursor that mouse and arrow keys move.

import { Canvas } from "./canvas.js";
import { make } from "./dom.js";
import { colour } from "./theme.js";

const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 22;

export class Chart {
  // `format` writes a value of the y axis; `most` is the end of the axis, if it is fixed.
  constructor(element, legend, { format, most = null, nothing }) {
    this.legend = legend;
    this.format = format;
    this.most = most;
    this.nothing = nothing;
    this.data = { x: [], lines: [], bands: [], marks: [] };
    this.cursor = null;
    this.canvas = new Canvas(element, (...args) => this.draw(...args));
    element.addEventListener("pointermove", (event) => this.point(event.offsetX, element.clientWidth));
    element.addEventListener("pointerleave", () => this.move(null));
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("blur", () => this.move(null));
  }

  set(data) {
    this.data = data;
    this.top = this.most ?? niceTop(data);
    if (this.cursor !== null) this.cursor = Math.min(this.cursor, data.x.length - 1);
    this.redraw();
  }

  redraw() {
    this.canvas.redraw();
    this.showLegend();
  }

  draw(context, width, height) {
    const { x, lines, bands, marks } = this.data;
    const known = x.length > 0 && [...lines, ...bands.map((band) => ({ values: band.high }))]
      .some((line) => line.values.some((value) => value !== null));
    if (!known) {
      context.fillStyle = colour("pale");
      context.textAlign = "center";
      context.fillText(this.nothing, width / 2, height / 2);
      return;
    }
    const [first, last] = [x[0], Math.max(x[x.length - 1], x[0] + 1)];
    const px = (k) => LEFT + ((k - first) / (last - first)) * (width - LEFT - RIGHT);
    const py = (v) => height - BOTTOM - (v / this.top) * (height - TOP - BOTTOM);
    this.scale = { first, last };
    this.drawAxes(context, width, height, px, py);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP - 4, width - LEFT - RIGHT + 4, height - TOP - BOTTOM + 5);
    context.clip();
    drawMarks(context, marks.filter((k) => k >= first && k <= last).map(px), height);
    for (const band of bands) drawBand(context, x.map(px), band, py);
    for (const line of lines) drawLine(context, x.map(px), line, py);
    if (this.cursor !== null) drawCursor(context, px(x[this.cursor]), height);
    context.restore();
  }

  drawAxes(context, width, height, px, py) {
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("pale");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const value of ticks(0, this.top, 4)) {
      const y = Math.round(py(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillText(this.format(value), LEFT - 6, y + 4);
    }
    context.textAlign = "center";
    for (const k of ticks(this.scale.first, this.scale.last, width / 110)) {
      const at = px(k);
      if (Number.isInteger(k) && at < width - 24) context.fillText(k.toLocaleString("en"), at, height - 6);
    }
  }

  showLegend() {
    const { x, lines, bands } = this.data;
    const at = this.cursor ?? x.length - 1;
    const items = lines.filter((line) => line.values.some((value) => value !== null)).map((line) => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.background = line.colour;
      return make("li", {}, swatch, make("bdi", { text: line.label }), make("b", { text: this.format(line.values[at] ?? null) }));
    });
    for (const { label, colour: shade } of bands.filter((band) => band.label)) {
      const swatch = make("span", { class: "swatch" });
      swatch.style.background = shade;
      swatch.style.height = ".7rem";
      items.push(make("li", {}, swatch, make("bdi", { text: label })));
    }
    if (this.cursor !== null) items.unshift(make("li", { text: `iteration ${Math.round(x[at]).toLocaleString("en")}` }));
    this.legend.replaceChildren(...items);
  }

  point(at, width) {
    const { x } = this.data;
    if (x.length === 0 || !this.scale) return;
    const k = this.scale.first + ((at - LEFT) / (width - LEFT - RIGHT)) * (this.scale.last - this.scale.first);
    let nearest = 0;
    for (let i = 1; i < x.length; i += 1) if (Math.abs(x[i] - k) < Math.abs(x[nearest] - k)) nearest = i;
    this.move(nearest);
  }

  key(event) {
    const { length } = this.data.x;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -length, End: length };
    if (!(event.key in steps) || length === 0) return;
    event.preventDefault();
    const from = this.cursor ?? length - 1;
    this.move(Math.max(0, Math.min(length - 1, from + steps[event.key])));
  }

  move(cursor) {
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.redraw();
  }
}

function drawLine(context, at, { values, colour: stroke, dash = [], width = 1.6 }, py) {
  context.strokeStyle = stroke;
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
  context.fillStyle = stroke;
  values.forEach((value, i) => {
    const alone = (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;
    if (value !== null && alone) context.fillRect(at[i] - 1.5, py(value) - 1.5, 3, 3);
  });
}

function drawBand(context, at, { low, high, colour: fill }, py) {
  context.fillStyle = fill;
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
  context.strokeStyle = colour("wait-ink");
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

function drawCursor(context, at, height) {
  context.strokeStyle = colour("ink");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(at, TOP);
  context.lineTo(at, height - BOTTOM);
  context.stroke();
}

// One outlier must not flatten all other values: the axis ends where nearly all values are below.
function niceTop({ lines, bands }) {
  const values = [...lines.map((line) => line.values), ...bands.map((band) => band.high)]
    .flat().filter((value) => value !== null).sort((a, b) => a - b);
  if (values.length === 0) return 1;
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

function niceStep(rough) {
  const base = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * base).find((size) => size >= rough * (1 - 1e-9)) ?? rough;
}
