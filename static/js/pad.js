// The drawing pad, and what a model is given of a drawing: the UCI digits' own way, or a picture.

import { el, icon } from "./dom.js";

const SIDE = 224;
const PEN = 18;

export class Pad {
  constructor(onChange) {
    this.onChange = onChange;
    this.canvas = el("canvas", { class: "pad-draw", width: SIDE, height: SIDE, tabindex: "0", role: "img", "aria-label": "Drawing pad: draw with the pointer" });
    this.seen = el("canvas", { class: "pad-seen", width: 8, height: 8, role: "img", "aria-label": "What the model sees" });
    this.clearButton = el("button", { class: "button small", type: "button", click: () => this.clear() }, icon("close"), "Clear");
    this.element = el("div", { class: "pad" }, this.canvas, el("div", { class: "stack tight" }, el("figure", {}, this.seen, el("figcaption", { class: "hint" }, "as the model sees it")), this.clearButton));
    this.strokes = [];
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => this.up());
    document.addEventListener("theme", () => this.paint());
    this.paint();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  }

  down(event) {
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.strokes.push([this.at(event)]);
    this.paint();
  }

  move(event) {
    if (!this.canvas.hasPointerCapture(event.pointerId)) return;
    for (const one of event.getCoalescedEvents?.() ?? [event]) this.strokes.at(-1).push(this.at(one));
    this.paint();
  }

  up() {
    this.onChange();
  }

  clear() {
    this.strokes = [];
    this.paint();
    this.onChange();
  }

  paint() {
    const { color } = getComputedStyle(document.body);
    stroke(this.canvas, this.strokes, color, null);
    const pixels = fit(this.ink(), SIDE, 8);
    const context = this.seen.getContext("2d");
    const image = context.createImageData(8, 8);
    const ink = color.match(/[\d.]+/g).map(Number);
    pixels.forEach((value, index) => image.data.set([ink[0], ink[1], ink[2], value * 255], index * 4));
    context.putImageData(image, 0, 0);
  }

  /** How much each pixel is inked, 0 to 1. */
  ink() {
    const canvas = el("canvas", { width: SIDE, height: SIDE });
    stroke(canvas, this.strokes, "#000", null);
    const { data } = canvas.getContext("2d").getImageData(0, 0, SIDE, SIDE);
    return Float32Array.from({ length: SIDE * SIDE }, (_, index) => data[index * 4 + 3] / 255);
  }

  /** `side` x `side` numbers from 0 to `full`. */
  pixels(side, full) {
    return Array.from(fit(this.ink(), SIDE, side), (value) => Math.round(value * full * 100) / 100);
  }

  /** A PNG, dark on light. */
  async png() {
    const canvas = el("canvas", { width: 112, height: 112 });
    stroke(canvas, this.strokes, "#000", "#fff");
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    return new Uint8Array(await blob.arrayBuffer());
  }
}

function stroke(canvas, strokes, ink, ground) {
  const context = canvas.getContext("2d");
  const scale = canvas.width / SIDE;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (ground) {
    context.fillStyle = ground;
    context.fillRect(0, 0, canvas.width, canvas.height);
  }
  context.scale(scale, scale);
  Object.assign(context, { lineWidth: PEN, lineCap: "round", lineJoin: "round", strokeStyle: ink });
  for (const points of strokes) {
    context.beginPath();
    context.moveTo(...points[0]);
    for (const point of points.slice(1)) context.lineTo(...point);
    if (points.length === 1) context.lineTo(points[0][0] + 0.1, points[0][1]);
    context.stroke();
  }
}

/** The drawing as high (or wide) as the image and in its middle, each number the mean ink of a block, 0 to 1.
    The UCI digits were made so, and examples/models/digits_preprocess does the same to pictures. */
export function fit(ink, size, side) {
  const box = bounds(ink, size);
  if (!box) return new Float32Array(side * side);
  const fine = side * 4;
  const scale = fine / Math.max(box.width, box.height);
  const [width, height] = [Math.max(Math.round(box.width * scale), 1), Math.max(Math.round(box.height * scale), 1)];
  const [left, top] = [Math.floor((fine - width) / 2), Math.floor((fine - height) / 2)];
  const blocks = new Float32Array(side * side);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const value = area(ink, size, box.x + (x * box.width) / width, box.y + (y * box.height) / height, box.width / width, box.height / height);
      blocks[((top + y) >> 2) * side + ((left + x) >> 2)] += value / 16;
    }
  }
  const most = Math.max(...blocks, 1e-6);
  return blocks.map((value) => value / most);
}

function area(ink, size, x, y, width, height) {
  const [x1, y1] = [Math.min(Math.ceil(x + width), size), Math.min(Math.ceil(y + height), size)];
  let [sum, count] = [0, 0];
  for (let row = Math.floor(y); row < y1; row += 1) {
    for (let column = Math.floor(x); column < x1; column += 1) {
      sum += ink[row * size + column];
      count += 1;
    }
  }
  return count ? sum / count : 0;
}

function bounds(ink, size) {
  let [left, right, top, bottom] = [size, -1, size, -1];
  for (let index = 0; index < ink.length; index += 1) {
    if (ink[index] < 0.3) continue;
    const [x, y] = [index % size, Math.floor(index / size)];
    [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
  }
  return right < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
}
