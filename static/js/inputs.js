// One input of a model as a control: drawing, picture, numbers, text, file, or JSON. read() gives {shape, data} with
// flat numbers or texts, or {shape, bytes} for what no JSON can carry.

import { el } from "./dom.js";
import { Pad } from "./pad.js";
import { size } from "./format.js";

const LABELS = { draw: "Draw", picture: "Picture", grid: "Numbers", text: "Text", file: "File", json: "JSON" };
const GRID_MOST = 128;
const WHOLE = /^U?INT/;

export class Input {
  constructor(tensor, onChange) {
    this.tensor = tensor;
    this.onChange = onChange;
    this.shape = tensor.shape.map(Number);
    this.fixed = this.shape.map((dim) => (dim < 0 ? 1 : dim));
    this.elements = this.fixed.reduce((product, dim) => product * dim, 1);
    this.modes = modesOf(this);
    this.body = el("div");
    this.switch = el("div", { class: "segmented", role: "group", "aria-label": `How to give ${tensor.name}` }, this.modes.map((mode) => el("button", { type: "button", "data-mode": mode, "aria-pressed": "false", click: () => this.use(mode) }, LABELS[mode])));
    const head = el("div", { class: "play-input-head" }, el("span", { class: "label mono" }, tensor.name), el("span", { class: "hint mono" }, `${tensor.datatype} [${this.shape.join(", ")}]`), this.modes.length > 1 ? this.switch : null);
    this.error = el("span", { class: "error-text", hidden: true });
    this.element = el("div", { class: "play-input", "data-input": tensor.name }, head, this.body, this.error);
    this.use(this.modes[0]);
  }

  use(mode) {
    this.mode = mode;
    for (const button of this.switch.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.body.replaceChildren(this[mode]());
    this.onChange();
  }

  fail(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }

  // -- controls ------------------------------------------------------------------------------------------------------

  draw() {
    this.pad ??= new Pad(() => this.onChange());
    return this.pad.element;
  }

  picture() {
    const choose = el("input", { type: "file", accept: "image/*", "aria-label": `Picture for ${this.tensor.name}` });
    const scale = el("select", { "aria-label": "Scale of the pixels", change: () => this.onChange() }, el("option", { value: "unit" }, "0 to 1"), el("option", { value: "byte" }, "0 to 255"), el("option", { value: "imagenet" }, "ImageNet mean and deviation"));
    if (this.tensor.datatype === "UINT8") scale.value = "byte";
    const shown = el("img", { class: "picture", alt: "", hidden: true });
    choose.addEventListener("change", async () => {
      this.image = await createImageBitmap(choose.files[0]).catch(() => null);
      this.fail(this.image ? "" : "That file is not a picture that the browser can read.");
      shown.src = URL.createObjectURL(choose.files[0]);
      shown.hidden = !this.image;
      this.onChange();
    });
    this.scale = scale;
    return el("div", { class: "stack tight" }, choose, el("label", { class: "row" }, el("span", { class: "hint" }, "Pixels from"), scale), shown);
  }

  grid() {
    const cells = Array.from({ length: this.elements }, (_, index) => el("input", { type: "text", inputmode: "decimal", value: "0", "aria-label": `${this.tensor.name} ${index}`, input: () => this.onChange() }));
    this.cells = cells;
    return el("div", { class: "number-grid" }, cells);
  }

  text() {
    this.area ??= el("textarea", { rows: "3", "aria-label": this.tensor.name, placeholder: "Text, sent as UTF-8", input: () => this.onChange() });
    return this.area;
  }

  file() {
    const note = el("span", { class: "hint" }, this.chosen ? `${this.chosen.name}, ${size(this.chosen.bytes.length)}` : "");
    const choose = el("input", { type: "file", "aria-label": `File for ${this.tensor.name}` });
    choose.addEventListener("change", async () => {
      const [file] = choose.files;
      this.chosen = { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
      note.textContent = `${file.name}, ${size(file.size)}`;
      this.onChange();
    });
    return el("div", { class: "row" }, choose, note);
  }

  json() {
    if (!this.source) {
      const start = this.tensor.datatype === "BYTES" ? nest(Array(this.elements).fill(""), this.fixed) : nest(Array(Math.min(this.elements, 4096)).fill(this.tensor.datatype === "BOOL" ? false : 0), this.fixed);
      this.source = el("textarea", { class: "tall", "aria-label": `${this.tensor.name} as JSON`, spellcheck: "false", input: () => this.onChange() }, JSON.stringify(start));
    }
    return this.source;
  }

  // -- values --------------------------------------------------------------------------------------------------------

  /** Throws an Error whose message says what is wrong. */
  async read() {
    const value = await this[`read_${this.mode}`]();
    this.fail("");
    return value;
  }

  async read_draw() {
    if (this.tensor.datatype === "BYTES") return { shape: this.fixed, bytes: await this.pad.png() };
    const side = Math.sqrt(this.elements);
    return { shape: this.fixed, data: this.pad.pixels(side, side === 8 ? 16 : this.tensor.datatype === "UINT8" ? 255 : 1) };
  }

  read_picture() {
    if (!this.image) throw new Error("Choose a picture first.");
    return { shape: this.fixed, data: pixelsOf(this.image, imageLayout(this.shape), this.scale.value) };
  }

  read_grid() {
    return { shape: this.fixed, data: this.cells.map((cell) => this.number(cell.value)) };
  }

  read_text() {
    return { shape: this.fixed, data: Array(this.elements).fill(this.area.value) };
  }

  read_file() {
    if (!this.chosen) throw new Error("Choose a file first.");
    if (this.elements !== 1) throw new Error(`A file is one element; this input has ${this.elements}.`);
    return { shape: this.fixed, bytes: this.chosen.bytes };
  }

  read_json() {
    let value;
    try {
      value = JSON.parse(this.source.value);
    } catch (error) {
      throw new Error(`This is not JSON: ${error.message}.`);
    }
    return { shape: this.shapeOf(value), data: [value].flat(Infinity) };
  }

  /** The shape that the brackets say; a flat list takes the signature's. */
  shapeOf(value) {
    const shape = [];
    for (let part = value; Array.isArray(part); [part] = part) shape.push(part.length);
    return shape.length === this.shape.length ? shape : this.fixed;
  }

  number(text) {
    if (this.tensor.datatype === "BOOL") return text.trim() !== "0" && text.trim() !== "false" && text.trim() !== "";
    const value = Number(text.trim().replace(",", "."));
    if (text.trim() === "" || Number.isNaN(value)) throw new Error(`“${text}” is not a number.`);
    if (WHOLE.test(this.tensor.datatype) && !Number.isInteger(value)) throw new Error(`${text} is not a whole number, as ${this.tensor.datatype} needs.`);
    return value;
  }
}

function modesOf({ tensor, shape, fixed, elements }) {
  if (tensor.datatype === "BYTES") {
    const picture = elements === 1 && /png|jpe?g|image|picture|digit/i.test(tensor.name);
    return picture ? ["draw", "file", "text"] : ["text", "file", "json"].filter((mode) => mode !== "file" || elements === 1);
  }
  const modes = [];
  const tail = fixed.slice(-2);
  const square = (elements === 64 && (tail[0] === 8 || fixed.at(-1) === 64)) || (elements === 784 && (tail[0] === 28 || fixed.at(-1) === 784));
  if (square) modes.push("draw");
  if (imageLayout(shape) && !square) modes.push("picture");
  if (elements <= GRID_MOST) modes.push("grid");
  return [...modes, "json"];
}

/** {channels, height, width, first} of a shape that is a picture's; `first`: channels come before the pixels. */
function imageLayout(shape) {
  const [a, b, c] = shape.slice(-3);
  if (shape.length < 3) return null;
  if ([1, 3].includes(a) && b >= 16 && c >= 16) return { channels: a, height: b, width: c, first: true };
  return [1, 3].includes(c) && a >= 16 && b >= 16 ? { channels: c, height: a, width: b, first: false } : null;
}

function pixelsOf(image, { channels, height, width, first }, scale) {
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const [mean, deviation] = scale === "imagenet" ? [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]] : [[0, 0, 0], [1, 1, 1]];
  const value = (pixel, channel) => {
    const raw = channels === 1 ? 0.299 * data[pixel * 4] + 0.587 * data[pixel * 4 + 1] + 0.114 * data[pixel * 4 + 2] : data[pixel * 4 + channel];
    return scale === "byte" ? Math.round(raw) : Math.round(((raw / 255 - mean[channel]) / deviation[channel]) * 1e4) / 1e4;
  };
  const area = width * height;
  return Array.from({ length: area * channels }, (_, index) => (first ? value(index % area, Math.floor(index / area)) : value(Math.floor(index / channels), index % channels)));
}

/** A flat list in nested brackets. */
export function nest(flat, shape) {
  if (shape.length <= 1) return flat.slice(0, shape[0] ?? flat.length);
  const step = flat.length / shape[0];
  return Array.from({ length: shape[0] }, (_, index) => nest(flat.slice(index * step, (index + 1) * step), shape.slice(1)));
}

