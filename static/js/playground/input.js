// One input of a model as a control: drawing, picture, numbers, text, file, or JSON.

import { el } from "../core/dom.js";
import { size } from "../core/format.js";
import { DrawingPad, contextOf } from "./pad.js";
import { elementCount, fixedShape, imageLayout, inputModes, nest, parseElement, parseJson, pixelElements } from "./tensors.js";

/**
 * @import { Mode, PixelScale, TensorSpec } from "./tensors.js"
 * @import { TensorValue } from "./wire.js"
 */

/**
 * A way to give a tensor: what a person sees, and what it gives. `read` throws an Error with a sentence.
 * @typedef {object} Control
 * @property {HTMLElement} element
 * @property {() => TensorValue | Promise<TensorValue>} read
 */

/** @type {Record<Mode, string>} */
const LABELS = { draw: "Draw", picture: "Picture", grid: "Numbers", text: "Text", file: "File", json: "JSON" };
const JSON_MOST = 4096; // elements that stand in the text from the start

export class TensorInput {
  /**
   * The controls used so far: each keeps what it was given while another is shown.
   * @type {Partial<Record<Mode, Control>>}
   */
  #controls = {};
  /** @type {Record<Mode, () => Control>} */
  #make = {
    draw: () => this.#draw(),
    picture: () => this.#picture(),
    grid: () => this.#grid(),
    text: () => this.#text(),
    file: () => this.#file(),
    json: () => this.#json(),
  };
  /** @type {Mode} */
  #mode;

  /**
   * @param {TensorSpec} tensor
   * @param {() => void} onChange called whenever what it gives may have changed
   */
  constructor(tensor, onChange) {
    this.tensor = tensor;
    this.onChange = onChange;
    this.shape = fixedShape(tensor.shape);
    this.elements = elementCount(this.shape);
    const modes = inputModes(tensor);
    const buttons = modes.map((mode) =>
      el("button", { type: "button", "data-mode": mode, "aria-pressed": "false", click: () => this.use(mode) }, LABELS[mode]),
    );
    this.body = el("div");
    this.switch = el("div", { class: "segmented", role: "group", "aria-label": `How to give ${tensor.name}` }, buttons);
    const type = `${tensor.datatype} [${tensor.shape.join(", ")}]`;
    const head = el(
      "div",
      { class: "play-input-head" },
      el("span", { class: "label mono" }, tensor.name),
      el("span", { class: "hint mono" }, type),
      modes.length > 1 ? this.switch : null,
    );
    this.error = el("span", { class: "error-text", hidden: true });
    this.element = el("div", { class: "play-input", "data-input": tensor.name }, head, this.body, this.error);
    this.#mode = modes[0];
    this.use(modes[0]);
  }

  /**
   * Shows one of the ways to give the tensor.
   * @param {Mode} mode
   */
  use(mode) {
    this.#mode = mode;
    for (const button of this.switch.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    }
    this.body.replaceChildren(this.#control().element);
    this.onChange();
  }

  /**
   * Says beside the input what is wrong with it; "" for nothing.
   * @param {string} text
   */
  fail(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }

  /**
   * Returns what a person gave; throws an Error whose message says what is wrong.
   * @returns {Promise<TensorValue>}
   */
  async read() {
    const value = await this.#control().read();
    this.fail("");
    return value;
  }

  /** @returns {Control} */
  #control() {
    return (this.#controls[this.#mode] ??= this.#make[this.#mode]());
  }

  /** @returns {Control} */
  #draw() {
    const pad = new DrawingPad(() => this.onChange());
    const side = Math.sqrt(this.elements);
    // The UCI digits have 8 x 8 pixels from 0 to 16.
    const full = side === 8 ? 16 : this.tensor.datatype === "UINT8" ? 255 : 1;
    const read = async () =>
      this.tensor.datatype === "BYTES"
        ? { shape: this.shape, bytes: await pad.png() }
        : { shape: this.shape, data: pad.pixels(side, full) };
    return { element: pad.element, read };
  }

  /** @returns {Control} */
  #picture() {
    /** @type {ImageBitmap | null} */
    let image = null;
    const choose = el("input", { type: "file", accept: "image/*", "aria-label": `Picture for ${this.tensor.name}` });
    const scale = el(
      "select",
      { "aria-label": "Scale of the pixels", change: () => this.onChange() },
      el("option", { value: "unit" }, "0 to 1"),
      el("option", { value: "byte" }, "0 to 255"),
      el("option", { value: "imagenet" }, "ImageNet mean and deviation"),
    );
    if (this.tensor.datatype === "UINT8") scale.value = "byte";
    const shown = el("img", { class: "picture", alt: "", hidden: true });
    choose.addEventListener("change", async () => {
      const file = choose.files?.[0];
      if (!file) return;
      image = await createImageBitmap(file).catch(() => null);
      this.fail(image ? "" : "That file is not a picture that the browser can read.");
      URL.revokeObjectURL(shown.src);
      shown.src = URL.createObjectURL(file);
      shown.hidden = !image;
      this.onChange();
    });
    const scaleLabel = el("label", { class: "row" }, el("span", { class: "hint" }, "Pixels from"), scale);
    const element = el("div", { class: "stack tight" }, choose, scaleLabel, shown);
    return { element, read: () => this.#readPicture(image, /** @type {PixelScale} */ (scale.value)) };
  }

  /**
   * @param {ImageBitmap | null} image
   * @param {PixelScale} scale
   */
  #readPicture(image, scale) {
    const layout = imageLayout(this.tensor.shape.map(Number));
    if (!image || !layout) throw new Error("Choose a picture first.");
    const { width, height } = layout;
    const context = contextOf(el("canvas", { width, height }));
    context.drawImage(image, 0, 0, width, height);
    return { shape: this.shape, data: pixelElements(context.getImageData(0, 0, width, height).data, layout, scale) };
  }

  /** @returns {Control} */
  #grid() {
    const cells = Array.from({ length: this.elements }, (_, index) => {
      const label = `${this.tensor.name} ${index}`;
      return el("input", { type: "text", inputmode: "decimal", value: "0", "aria-label": label, input: () => this.onChange() });
    });
    const read = () => ({ shape: this.shape, data: cells.map((cell) => parseElement(cell.value, this.tensor.datatype)) });
    return { element: el("div", { class: "number-grid" }, cells), read };
  }

  /** @returns {Control} */
  #text() {
    const hint = "Text, sent as UTF-8";
    const area = el("textarea", { rows: "3", "aria-label": this.tensor.name, placeholder: hint, input: () => this.onChange() });
    return { element: area, read: () => ({ shape: this.shape, data: Array(this.elements).fill(area.value) }) };
  }

  /** @returns {Control} */
  #file() {
    /** @type {Uint8Array | null} */
    let bytes = null;
    const note = el("span", { class: "hint" });
    const choose = el("input", { type: "file", "aria-label": `File for ${this.tensor.name}` });
    choose.addEventListener("change", async () => {
      const file = choose.files?.[0];
      if (!file) return;
      bytes = new Uint8Array(await file.arrayBuffer());
      note.textContent = `${file.name}, ${size(file.size)}`;
      this.onChange();
    });
    const read = () => {
      if (!bytes) throw new Error("Choose a file first.");
      return { shape: this.shape, bytes };
    };
    return { element: el("div", { class: "row" }, choose, note), read };
  }

  /** @returns {Control} */
  #json() {
    const { datatype, name } = this.tensor;
    const empty = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
    const length = datatype === "BYTES" ? this.elements : Math.min(this.elements, JSON_MOST);
    const text = JSON.stringify(nest(Array(length).fill(empty), this.shape));
    const changed = { input: () => this.onChange() };
    const area = el("textarea", { class: "tall", "aria-label": `${name} as JSON`, spellcheck: "false", ...changed }, text);
    return { element: area, read: () => parseJson(area.value, this.shape) };
  }
}
