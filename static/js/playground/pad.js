// The drawing pad, with the image that the model sees.

import { el, icon } from "../core/dom.js";
import { imageOfInk } from "./ink.js";

/**
 * @typedef {[number, number]} PadPoint x and y in pixels of the pad
 * @typedef {PadPoint[]} Stroke at least one point
 */

const SIDE = 224;
const PEN = 18;
const SEEN = 8;
const PNG_SIDE = 112;

export class DrawingPad {
  /** @type {Stroke[]} */
  #strokes = [];

  /** @param {() => void} onChange called after each stroke, and when the pad is cleared */
  constructor(onChange) {
    this.onChange = onChange;
    const label = "Drawing pad: draw with the pointer";
    this.canvas = el("canvas", {
      class: "pad-draw", width: SIDE, height: SIDE, tabindex: "0", role: "img", "aria-label": label,
    });
    this.seen = el("canvas", {
      class: "pad-seen", width: SEEN, height: SEEN, role: "img", "aria-label": "What the model sees",
    });
    const clear = el("button", { class: "button small", type: "button", click: () => this.clear() }, icon("close"), "Clear");
    const seen = el("figure", {}, this.seen, el("figcaption", { class: "hint" }, "as the model sees it"));
    this.element = el("div", { class: "pad" }, this.canvas, el("div", { class: "stack tight" }, seen, clear));
    this.canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.#goOn(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => this.onChange());
    document.addEventListener("theme", () => this.#paint());
    this.#paint();
  }

  /** Removes the drawing. */
  clear() {
    this.#strokes = [];
    this.#paint();
    this.onChange();
  }

  /**
   * Returns the drawing as `side` x `side` numbers from 0 to `full`.
   * @param {number} side
   * @param {number} full
   * @returns {number[]}
   */
  pixels(side, full) {
    return Array.from(imageOfInk(this.#ink(), SIDE, side), (value) => Math.round(value * full * 100) / 100);
  }

  /**
   * Returns the drawing as a PNG, dark on light.
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  async png() {
    const canvas = el("canvas", { width: PNG_SIDE, height: PNG_SIDE });
    paintStrokes(canvas, this.#strokes, "#000", "#fff");
    /** @type {Blob | null} */
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    if (!blob) throw new Error("The browser could not make a PNG of the drawing.");
    return new Uint8Array(await blob.arrayBuffer());
  }

  /**
   * @param {PointerEvent} event
   * @returns {PadPoint}
   */
  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  }

  /** @param {PointerEvent} event */
  #begin(event) {
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.#strokes.push([this.#at(event)]);
    this.#paint();
  }

  /** @param {PointerEvent} event */
  #goOn(event) {
    if (!this.canvas.hasPointerCapture(event.pointerId)) return;
    for (const one of event.getCoalescedEvents?.() ?? [event]) this.#strokes.at(-1)?.push(this.#at(one));
    this.#paint();
  }

  #paint() {
    const { color } = getComputedStyle(document.body);
    paintStrokes(this.canvas, this.#strokes, color, null);
    const [red, green, blue] = (color.match(/[\d.]+/g) ?? []).map(Number);
    const context = contextOf(this.seen);
    const image = context.createImageData(SEEN, SEEN);
    imageOfInk(this.#ink(), SIDE, SEEN).forEach((value, index) => image.data.set([red, green, blue, value * 255], index * 4));
    context.putImageData(image, 0, 0);
  }

  /** Returns the ink of each pixel of the pad, from 0 to 1. */
  #ink() {
    const canvas = el("canvas", { width: SIDE, height: SIDE });
    paintStrokes(canvas, this.#strokes, "#000", null);
    const { data } = contextOf(canvas).getImageData(0, 0, SIDE, SIDE);
    return Float32Array.from({ length: SIDE * SIDE }, (_, index) => data[index * 4 + 3] / 255);
  }
}

/**
 * Returns the context that draws on a canvas.
 * @param {HTMLCanvasElement} canvas
 * @returns {CanvasRenderingContext2D}
 */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("The browser cannot draw on a canvas.");
  return context;
}

/**
 * Paints strokes on a canvas of any size.
 * @param {HTMLCanvasElement} canvas
 * @param {Stroke[]} strokes
 * @param {string} ink a colour
 * @param {string | null} ground a colour; null for none
 */
function paintStrokes(canvas, strokes, ink, ground) {
  const context = contextOf(canvas);
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
