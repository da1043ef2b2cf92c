// The control for one input of a model: a drawing, picture, table, numbers, text, file, generated elements, or JSON.

import { el } from "../core/dom.js";
import { size } from "../core/format.js";
import { messageOf } from "../core/request.js";
import { readNpy } from "./npy.js";
import { filled } from "./origins.js";
import { DrawingPad, contextOf } from "./pad.js";
import { inWidth, parseRows, withoutHeader } from "./rows.js";
import { TableControl } from "./table.js";
import {
  elementCount, fixedShape, imageLayout, inputModes, nest, parseElement, parseJson, pictureShape, pixelElements, shapeFor,
} from "./tensors.js";

/**
 * @import { Elements } from "./datatypes.js"
 * @import { Filling } from "./origins.js"
 * @import { ImageLayout, Mode, PixelScale, TensorSpec } from "./tensors.js"
 * @import { Parameters, TensorValue } from "./wire.js"
 */

/**
 * A control for a tensor. `read` returns its value or throws an Error with a sentence. If `whole` is false, `read` may leave out
 * the elements of a value with an origin, because code can generate them. `put` shows a tensor if possible, and returns whether it did.
 * @typedef {object} Control
 * @property {HTMLElement} element
 * @property {(whole: boolean) => TensorValue | Promise<TensorValue>} read
 * @property {(shape: number[], data: Elements) => boolean} [put]
 */

/** @type {Record<Mode, string>} */
const LABELS = {
  draw: "Draw", picture: "Picture", table: "Table", grid: "Numbers", text: "Text", file: "File", fill: "Generate", json: "JSON",
};
const JSON_MOST = 4096; // the most elements of the first text
const NOTHING = new Float32Array();
const GREY = 128;

export class TensorInput {
  /**
   * The controls used so far: each keeps its value while another control is shown.
   * @type {Partial<Record<Mode, Control>>}
   */
  #controls = {};
  /** @type {Record<Mode, () => Control>} */
  #make = {
    draw: () => this.#draw(),
    picture: () => this.#picture(),
    table: () => this.#table(),
    grid: () => this.#grid(),
    text: () => this.#text(),
    file: () => (this.tensor.datatype === "BYTES" ? this.#bytesFile() : this.#arrayFile()),
    fill: () => this.#fill(),
    json: () => this.#json(),
  };
  /** @type {Mode} */
  #mode;

  /**
   * @param {TensorSpec} tensor
   * @param {() => void} onChange called whenever the value may have changed
   * @param {number} batchMost the most rows of one request; 0 for any number
   */
  constructor(tensor, onChange, batchMost) {
    this.tensor = tensor;
    this.batchMost = batchMost;
    // A change removes the error of the previous value. A read does not, because the page also reads to write the code.
    this.onChange = () => {
      this.fail("");
      onChange();
    };
    this.dims = tensor.shape.map(Number);
    this.shape = fixedShape(tensor.shape);
    this.elements = elementCount(this.shape);
    this.modes = inputModes(tensor);
    const buttons = this.modes.map((mode) =>
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
      this.modes.length > 1 ? this.switch : null,
    );
    this.error = el("span", { class: "error-text", role: "alert", hidden: true });
    this.element = el("div", { class: "play-input", "data-input": tensor.name }, head, this.body, this.error);
    this.#mode = this.modes[0];
    this.use(this.modes[0]);
  }

  /**
   * Shows one of the modes of input.
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
   * Shows an error next to the input; "" removes the error.
   * @param {string} text
   */
  fail(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }

  /**
   * Returns the value that a person gave; throws an Error with a sentence if it is wrong.
   * @param {boolean} [whole] whether to include elements that code could generate
   * @returns {Promise<TensorValue>}
   */
  async read(whole = true) {
    return this.#control().read(whole);
  }

  /**
   * Shows a tensor in the first mode that can show it.
   * @param {number[]} shape
   * @param {Elements} data
   * @param {Parameters} [_] the parameters of the example's request; unused
   */
  put(shape, data, _) {
    for (const mode of this.modes) {
      const control = (this.#controls[mode] ??= this.#make[mode]());
      if (control.put?.(shape, data)) {
        this.use(mode);
        return;
      }
    }
    this.fail(`The example's ${this.tensor.name} cannot be shown here; it has another datatype or shape than this version takes.`);
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
        ? { shape: this.shape, data: [await pad.png()] }
        : { shape: this.shape, data: this.#inked(pad.pixels(side, full)) };
    return { element: pad.element, read };
  }

  /**
   * Returns pixels as elements of the datatype.
   * @param {number[]} pixels
   */
  #inked(pixels) {
    if (this.tensor.datatype === "BOOL") return pixels.map((one) => one >= 0.5);
    return /INT/.test(this.tensor.datatype) ? pixels.map(Math.round) : pixels;
  }

  /** @returns {Control} */
  #picture() {
    /** @type {ImageBitmap | null} */
    let image = null;
    /** @type {string | null} */
    let file = null;
    const choose = el("input", { type: "file", accept: "image/*", "aria-label": `Picture for ${this.tensor.name}` });
    const scale = el(
      "select",
      { "aria-label": "Scale of the pixels", change: () => this.onChange() },
      el("option", { value: "unit" }, "0 to 1"),
      el("option", { value: "byte" }, "0 to 255"),
      el("option", { value: "imagenet" }, "ImageNet mean and deviation"),
    );
    if (/INT/.test(this.tensor.datatype)) scale.value = "byte";
    const shown = el("img", { class: "picture", alt: "", hidden: true });
    const grey = el("p", { class: "hint" }, "Until you choose a picture, a grey one is sent.");
    choose.addEventListener("change", async () => {
      const chosen = choose.files?.[0];
      if (!chosen) return;
      image = await createImageBitmap(chosen).catch(() => null);
      file = image ? chosen.name : null;
      URL.revokeObjectURL(shown.src);
      shown.src = URL.createObjectURL(chosen);
      shown.hidden = !image;
      grey.hidden = image !== null;
      this.onChange();
      if (!image) this.fail("That file is not a picture that the browser can read.");
    });
    const scaleLabel = el("label", { class: "row" }, el("span", { class: "hint" }, "Pixels from"), scale);
    const layout = imageLayout(this.tensor);
    if (!layout) throw new Error("That input is no picture."); // inputModes does not offer this mode for it
    const sides = this.#openSides(layout);
    const element = el("div", { class: "stack tight" }, choose, grey, scaleLabel, sides?.element ?? null, shown);
    const read = (/** @type {boolean} */ whole) =>
      this.#readPicture(image, file, /** @type {PixelScale} */ (scale.value), sides ? sides.read() : layout, whole);
    return { element, read };
  }

  /**
   * Returns fields for the height and width of a picture that each request chooses; null if the signature fixes both.
   * @param {ImageLayout} layout
   * @returns {{ element: HTMLElement, read: () => ImageLayout } | null}
   */
  #openSides(layout) {
    const fixed = pictureShape(this.dims, layout).every((dim, index) => index < this.dims.length - 3 || dim === this.dims[index]);
    if (fixed) return null;
    const field = (/** @type {string} */ label, /** @type {number} */ value) =>
      el("input", { type: "text", inputmode: "numeric", class: "dim", value: String(value), "aria-label": `${label} of ${this.tensor.name}`, input: () => this.onChange() });
    const [height, width] = [field("Height", layout.height), field("Width", layout.width)];
    const side = (/** @type {HTMLInputElement} */ input, /** @type {string} */ name) => {
      const pixels = Number(input.value);
      if (!Number.isInteger(pixels) || pixels < 1) throw new Error(`The ${name} is “${input.value}”; expected a whole number of pixels.`);
      return pixels;
    };
    const hint = (/** @type {string} */ text) => el("span", { class: "hint" }, text);
    return {
      element: el("div", { class: "row" }, hint("Height × width"), height, hint("×"), width, hint("pixels; the model takes several sizes")),
      read: () => ({ ...layout, height: side(height, "height"), width: side(width, "width") }),
    };
  }

  /**
   * @param {ImageBitmap | null} image
   * @param {string | null} file the name of the file
   * @param {PixelScale} scale
   * @param {ImageLayout} layout
   * @param {boolean} whole
   * @returns {TensorValue}
   */
  #readPicture(image, file, scale, layout, whole) {
    const origin = /** @type {const} */ ({ kind: "picture", file, layout, scale });
    const shape = pictureShape(this.dims, layout);
    if (!whole) return { shape, data: NOTHING, origin };
    const { width, height } = layout;
    const context = contextOf(el("canvas", { width, height }));
    context.fillStyle = `rgb(${GREY}, ${GREY}, ${GREY})`;
    context.fillRect(0, 0, width, height);
    if (image) context.drawImage(image, 0, 0, width, height);
    return { shape, data: pixelElements(context.getImageData(0, 0, width, height).data, layout, scale), origin };
  }

  /** @returns {Control} */
  #table() {
    const { name, datatype } = this.tensor;
    const [onChange, fail] = [() => this.onChange(), (/** @type {string} */ text) => this.fail(text)];
    return new TableControl({ name, datatype, shape: this.dims, rowsMost: this.batchMost, onChange, fail });
  }

  /** @returns {Control} */
  #grid() {
    const cells = Array.from({ length: this.elements }, (_, index) => {
      const label = `${this.tensor.name} ${index}`;
      return el("input", { type: "text", inputmode: "decimal", value: "0", "aria-label": label, input: () => this.onChange() });
    });
    const read = () => ({ shape: this.shape, data: cells.map((cell) => parseElement(cell.value, this.tensor.datatype)) });
    /** @type {Control["put"]} */
    const put = (shape, data) => {
      if (data.length !== cells.length) return false;
      cells.forEach((cell, index) => (cell.value = String(data[index])));
      return shape.length === this.shape.length;
    };
    const element = el("div", { class: "number-grid" }, cells);
    element.addEventListener("paste", (event) => {
      const given = parseRows(event.clipboardData?.getData("text/plain") ?? "").flat();
      const first = cells.findIndex((cell) => cell === event.target);
      if (given.length < 2 || first < 0) return;
      event.preventDefault();
      given.slice(0, cells.length - first).forEach((value, index) => (cells[first + index].value = value.trim()));
      const left = given.length - (cells.length - first);
      this.onChange();
      if (left > 0) this.fail(`${given.length} numbers were pasted; there was no field for the last ${left}.`);
    });
    return { element, read, put };
  }

  /** @returns {Control} */
  #text() {
    const hint = "Text, sent as UTF-8";
    const area = el("textarea", { rows: "3", "aria-label": this.tensor.name, placeholder: hint, input: () => this.onChange() });
    /** @type {Control["put"]} */
    const put = (_, data) => {
      if (data.length !== 1 || typeof data[0] !== "string") return false;
      area.value = data[0];
      return true;
    };
    return { element: area, read: () => ({ shape: this.shape, data: Array(this.elements).fill(area.value) }), put };
  }

  /**
   * Returns a control for a file whose bytes are the only element of the tensor.
   * @returns {Control}
   */
  #bytesFile() {
    /** @type {TensorValue | null} */
    let value = null;
    const { choose, note } = this.#chooser("", async (file) => {
      const bytes = new Uint8Array(await file.arrayBuffer());
      value = { shape: this.shape, data: [bytes], origin: { kind: "bytes", file: file.name } };
    });
    const read = () => {
      if (!value) throw new Error("Choose a file first.");
      return value;
    };
    /** @type {Control["put"]} */
    const put = (shape, data) => {
      if (!(data[0] instanceof Uint8Array)) return false;
      value = { shape, data };
      note.textContent = `from the example, ${size(data[0].length)}`;
      return true;
    };
    return { element: el("div", { class: "row" }, choose, note), read, put };
  }

  /**
   * Returns a control for a file of numbers: a .npy file, rows, or JSON.
   * @returns {Control}
   */
  #arrayFile() {
    /** @type {TensorValue | null} */
    let value = null;
    const { choose, note } = this.#chooser(".npy,.csv,.tsv,.txt,.json", async (file) => {
      value = await this.#arrayOf(file);
      note.textContent += `, [${value.shape.join(", ")}]`;
    });
    const hint = el("p", { class: "hint" }, "A .npy that numpy saved, rows as CSV, or JSON. Until you choose one, zeros are sent.");
    const read = () => value ?? { shape: this.shape, data: filled("zeros", this.tensor.datatype, this.shape), origin: { kind: "zeros" } };
    /** @type {Control["put"]} */
    const put = (shape, data) => {
      value = { shape, data };
      note.textContent = `from the example, ${data.length} elements`;
      return true;
    };
    return { element: el("div", { class: "stack tight" }, el("div", { class: "row" }, choose, note), hint), read, put };
  }

  /**
   * @param {File} file
   * @returns {Promise<TensorValue>}
   */
  async #arrayOf(file) {
    if (file.name.endsWith(".npy")) {
      const array = readNpy(new Uint8Array(await file.arrayBuffer()));
      return { ...array, origin: { kind: "npy", file: file.name } };
    }
    const text = await file.text();
    if (file.name.endsWith(".json")) return parseJson(text, this.dims);
    const { rows } = withoutHeader(parseRows(text));
    const width = this.dims.at(-1) ?? 1;
    const data = (width > 0 ? inWidth(rows, width, this.tensor.name) : rows).flat();
    return { shape: shapeFor(data.length, this.dims), data: data.map((cell) => parseElement(cell, this.tensor.datatype)) };
  }

  /**
   * Creates a field that chooses a file. An error of `take` is shown next to the input.
   * @param {string} accept
   * @param {(file: File) => Promise<void>} take
   */
  #chooser(accept, take) {
    const note = el("span", { class: "hint" });
    const choose = el("input", { type: "file", accept: accept || null, "aria-label": `File for ${this.tensor.name}` });
    choose.addEventListener("change", async () => {
      const file = choose.files?.[0];
      if (!file) return;
      note.textContent = `${file.name}, ${size(file.size)}`;
      let wrong = "";
      try {
        await take(file);
      } catch (error) {
        wrong = messageOf(error);
      }
      this.onChange();
      this.fail(wrong);
    });
    return { choose, note };
  }

  /**
   * Returns a control for generated elements, which are generated when the request is sent.
   * @returns {Control}
   */
  #fill() {
    const changed = () => this.onChange();
    const kind = el(
      "select",
      { "aria-label": `Values of ${this.tensor.name}`, change: changed },
      el("option", { value: "zeros" }, this.tensor.datatype === "BOOL" ? "All false" : "Zeros"),
      el("option", { value: "ones" }, this.tensor.datatype === "BOOL" ? "All true" : "Ones"),
      el("option", { value: "random" }, /INT/.test(this.tensor.datatype) ? "Random, 0 to 9" : "Random"),
    );
    const dims = this.dims.map((dim, index) =>
      dim < 0
        ? el("input", { type: "text", inputmode: "numeric", value: "1", class: "dim", "aria-label": `Dimension ${index} of ${this.tensor.name}`, input: changed })
        : el("span", { class: "mono" }, String(dim)),
    );
    const parts = dims.flatMap((dim, index) => (index ? [el("span", { class: "hint" }, "×"), dim] : [dim]));
    /** @returns {number[]} */
    const shape = () =>
      dims.map((dim, index) => {
        if (!(dim instanceof HTMLInputElement)) return this.dims[index];
        if (!/^\s*\d+\s*$/.test(dim.value)) throw new Error(`Dimension ${index} is “${dim.value}”; expected a whole number.`);
        return Number(dim.value);
      });
    const read = (/** @type {boolean} */ whole) => {
      const origin = { kind: /** @type {Filling} */ (kind.value) };
      const data = whole ? filled(origin.kind, this.tensor.datatype, shape()) : NOTHING;
      return { shape: shape(), data, origin };
    };
    return { element: el("div", { class: "row" }, kind, parts), read };
  }

  /** @returns {Control} */
  #json() {
    const { datatype, name } = this.tensor;
    const empty = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
    const long = this.elements > JSON_MOST;
    const text = JSON.stringify(long ? empty : nest(Array(this.elements).fill(empty), this.shape));
    const changed = { input: () => this.onChange() };
    const area = el("textarea", { class: "tall", "aria-label": `${name} as JSON`, spellcheck: "false", ...changed }, text);
    const hint = el("p", { class: "hint" }, "A list nested like the shape, or a flat one; a single value fills every element.");
    /** @type {Control["put"]} */
    const put = (shape, data) => {
      const elements = Array.from(data);
      if (elements.some((one) => typeof one === "object" || typeof one === "bigint" || (typeof one === "number" && !Number.isFinite(one)))) {
        return false;
      }
      area.value = JSON.stringify(nest(elements, shape));
      return true;
    };
    return { element: el("div", { class: "stack tight" }, area, hint), read: () => parseJson(area.value, this.dims), put };
  }
}
