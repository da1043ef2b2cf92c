// The input of a TorchServe handler: JSON, a text, a picture or any file, with the content type for decoding.

import { el } from "../core/dom.js";
import { size } from "../core/format.js";
import { messageOf } from "../core/request.js";
import { fixedShape } from "./tensors.js";

/**
 * @import { Elements } from "./datatypes.js"
 * @import { TensorSpec } from "./tensors.js"
 * @import { Parameters, TensorValue } from "./wire.js"
 *
 * @typedef {"json" | "text" | "picture" | "file"} HandlerMode
 *
 * @typedef {object} ChosenBytes
 * @property {Uint8Array<ArrayBuffer>} bytes
 * @property {string} name the name of the file; "" for bytes of an example
 */

/** The parameter of a request with the type of its only part (docs/torchserve.md). */
export const CONTENT_TYPE = "content_type";

/** @type {Record<HandlerMode, string>} */
const LABELS = { json: "JSON", text: "Text", picture: "Image", file: "File" };
/** @type {Record<HandlerMode, string>} */
const TYPES = { json: "application/json", text: "text/plain", picture: "image/png", file: "application/octet-stream" };
/** @type {Record<string, string>} the types of files that browsers do not know */
const TYPES_OF_ENDINGS = { json: "application/json", txt: "text/plain", csv: "text/csv", jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png" };

/**
 * Returns the content type of a file.
 * @param {string} name
 * @param {string} fromBrowser the type that the browser gives; "" if it knows none
 */
export function typeOfFile(name, fromBrowser) {
  return fromBrowser || TYPES_OF_ENDINGS[name.split(".").at(-1)?.toLowerCase() ?? ""] || TYPES.file;
}

/**
 * Returns the mode that shows an example's input.
 * @param {string} type
 * @param {boolean} bytes whether the input is not a text
 * @returns {HandlerMode}
 */
export function modeOf(type, bytes) {
  if (type.startsWith("image/")) return "picture";
  if (bytes) return "file";
  return /^application\/(?:[\w.-]+\+)?json/.test(type) ? "json" : "text";
}

export class HandlerInput {
  /** @type {HandlerMode} */
  #mode = "json";
  /** @type {Partial<Record<HandlerMode, ChosenBytes>>} */
  #chosen = {};
  /** @type {Partial<Record<HandlerMode, string>>} types that a person typed, and types of chosen files */
  #types = {};

  /**
   * @param {TensorSpec} tensor a tensor of BYTES
   * @param {() => void} onChange called whenever the value may have changed
   */
  constructor(tensor, onChange) {
    this.tensor = tensor;
    // A change removes the error of the previous value. A read does not, because the page also reads to write the code.
    this.onChange = () => {
      this.fail("");
      onChange();
    };
    this.shape = fixedShape(tensor.shape);
    const modes = /** @type {HandlerMode[]} */ (Object.keys(LABELS));
    const buttons = modes.map((mode) => el("button", { type: "button", "data-mode": mode, "aria-pressed": "false", click: () => this.use(mode) }, LABELS[mode]));
    this.switch = el("div", { class: "segmented", role: "group", "aria-label": "Input of the handler" }, buttons);
    const written = { spellcheck: "false", input: () => this.onChange() };
    this.texts = {
      json: el("textarea", { class: "tall", "aria-label": "JSON for the handler", ...written }, "{}"),
      text: el("textarea", { rows: "4", "aria-label": "Text for the handler", placeholder: "Sent as UTF-8", ...written }),
    };
    this.files = { picture: this.#chooser("picture", "image/*"), file: this.#chooser("file", "") };
    this.type = el("input", { type: "text", class: "mono", "aria-label": "Content type", autocomplete: "off", spellcheck: "false", list: "handler-types", input: () => this.#typed() });
    const types = el("datalist", { id: "handler-types" }, ["application/json", "text/plain", "image/png", "image/jpeg", TYPES.file].map((type) => el("option", {}, type)));
    this.body = el("div", { class: "stack tight" });
    this.error = el("span", { class: "error-text", role: "alert", hidden: true });
    const head = el("div", { class: "play-input-head" }, el("span", { class: "label" }, "To the handler"), el("span", { class: "hint" }, "which gets it as data and as body"), this.switch);
    const typeRow = el("label", { class: "field" }, el("span", { class: "label" }, "Content type"), this.type, types, el("span", { class: "hint" }, "JSON and text are decoded before the handler sees them; anything else stays bytes."));
    this.element = el("div", { class: "play-input", "data-input": tensor.name }, head, this.body, typeRow, this.error);
    this.use("json");
  }

  /**
   * Shows one of the modes of input.
   * @param {HandlerMode} mode
   */
  use(mode) {
    this.#mode = mode;
    for (const button of this.switch.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.body.replaceChildren(mode === "json" || mode === "text" ? this.texts[mode] : this.files[mode].element);
    this.type.value = this.#types[mode] ?? TYPES[mode];
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
   * @returns {Promise<TensorValue>}
   */
  async read() {
    return this.#value();
  }

  /**
   * Returns the parameters of a request about its content type.
   * @returns {Parameters}
   */
  parameters() {
    const type = this.type.value.trim();
    return type ? { [CONTENT_TYPE]: type } : {};
  }

  /**
   * Shows the input of an example.
   * @param {number[]} _ the shape of the input
   * @param {Elements} data
   * @param {Parameters} [parameters]
   */
  put(_, data, parameters = {}) {
    const [element] = Array.from(data);
    const bytes = element instanceof Uint8Array;
    const type = String(parameters[CONTENT_TYPE] ?? "");
    const mode = modeOf(type, bytes);
    this.#types[mode] = type;
    if (mode === "json" || mode === "text") this.texts[mode].value = String(element ?? "");
    else this.#take(mode, { bytes: bytes ? new Uint8Array(element) : new TextEncoder().encode(String(element)), name: "" });
    this.use(mode);
  }

  /** @returns {TensorValue} */
  #value() {
    const mode = this.#mode;
    if (mode === "json" || mode === "text") {
      const text = this.texts[mode].value;
      if (mode === "json") refuseNoJson(text);
      return { shape: this.shape, data: [text] };
    }
    const chosen = this.#chosen[mode];
    if (!chosen) throw new Error(mode === "picture" ? "Choose an image first." : "Choose a file first.");
    return { shape: this.shape, data: [chosen.bytes], ...(chosen.name ? { origin: { kind: "bytes", file: chosen.name } } : {}) };
  }

  #typed() {
    this.#types[this.#mode] = this.type.value;
    this.onChange();
  }

  /**
   * @param {"picture" | "file"} mode
   * @param {string} accept
   */
  #chooser(mode, accept) {
    const label = mode === "picture" ? "Image for the handler" : "File for the handler";
    const choose = el("input", { type: "file", accept: accept || null, "aria-label": label });
    const note = el("span", { class: "hint" });
    const shown = el("img", { class: "picture", alt: "The image that is sent", hidden: true });
    choose.addEventListener("change", async () => {
      const file = choose.files?.[0];
      if (!file) return;
      this.#types[mode] = typeOfFile(file.name, file.type);
      this.#take(mode, { bytes: new Uint8Array(await file.arrayBuffer()), name: file.name });
      this.use(mode);
    });
    return { element: el("div", { class: "stack tight" }, el("div", { class: "row" }, choose, note), shown), note, shown };
  }

  /**
   * Keeps the bytes to send, and shows them.
   * @param {"picture" | "file"} mode
   * @param {ChosenBytes} chosen
   */
  #take(mode, chosen) {
    this.#chosen[mode] = chosen;
    const { note, shown } = this.files[mode];
    note.textContent = chosen.name ? size(chosen.bytes.length) : `from the example, ${size(chosen.bytes.length)}`;
    if (mode !== "picture") return;
    URL.revokeObjectURL(shown.src);
    shown.src = URL.createObjectURL(new Blob([chosen.bytes], { type: this.#types[mode] }));
    shown.hidden = false;
  }
}

/**
 * Throws an Error with a sentence if a text is not JSON.
 * @param {string} text
 */
function refuseNoJson(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${messageOf(error)}. Choose Text to send it as it is.`);
  }
}
