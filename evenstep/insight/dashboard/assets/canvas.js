// The base of all drawings: sharp pixels, and at most one redraw per frame.

export class Canvas {
  constructor(element, draw) {
    this.element = element;
    this.context = element.getContext("2d");
    this.paint = draw;
    this.pending = false;
    new ResizeObserver(() => this.redraw()).observe(element);
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      const { clientWidth: width, clientHeight: height } = this.element;
      if (width === 0 || height === 0) return;
      const scale = window.devicePixelRatio || 1;
      const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
      if (this.element.width !== w || this.element.height !== h) {
        this.element.width = w;
        this.element.height = h;
      }
      this.context.setTransform(scale, 0, 0, scale, 0, 0);
      this.context.clearRect(0, 0, width, height);
      this.context.font = "12px system-ui, sans-serif";
      this.paint(this.context, width, height);
    });
  }
}

export function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
