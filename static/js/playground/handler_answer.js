// The view of a TorchServe handler's answer, by its type: JSON, a picture, a text, or a file; with the status, reason and headers
// that the handler set.

import { el, icon, saveFile } from "../core/dom.js";
import { size } from "../core/format.js";

/**
 * @import { Element } from "./datatypes.js"
 * @import { Output } from "./wire.js"
 *
 * The parameters of a handler's response (docs/torchserve.md).
 * @typedef {object} HandlerParameters
 * @property {string} [content_type] only if the handler set one
 * @property {number} [torchserve_status] only if it is not 200
 * @property {string} [torchserve_reason]
 * @property {string} [torchserve_headers] JSON: [[name, value], ...]
 *
 * @typedef {"json" | "picture" | "text" | "binary"} AnswerKind
 */

const TEXT_MOST = 20000; // the most characters that are shown
/** @type {[string, number[]][]} */
const MAGIC = [["image/png", [0x89, 0x50, 0x4e, 0x47]], ["image/jpeg", [0xff, 0xd8, 0xff]], ["image/gif", [0x47, 0x49, 0x46, 0x38]]];
/** @type {Record<string, string>} */
const ENDINGS = { "application/json": "json", "text/plain": "txt", "text/html": "html", "text/csv": "csv", "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif" };

/**
 * Returns the type of a picture by its first bytes; "" for other files.
 * @param {Uint8Array} bytes
 */
export function pictureType(bytes) {
  return MAGIC.find(([, begin]) => begin.every((one, index) => bytes[index] === one))?.[0] ?? "";
}

/**
 * Returns a picture as an element.
 * @param {Uint8Array} bytes
 * @param {string} type
 * @param {string} alt
 */
export function pictureView(bytes, type, alt) {
  const image = el("img", { class: "picture", alt });
  image.src = URL.createObjectURL(new Blob([new Uint8Array(bytes)], { type }));
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  return image;
}

/**
 * Returns the form in which an answer is shown, and the type of the answer if it is known.
 * @param {Element} element
 * @param {string} [given] the type that the handler gave to the answer
 * @returns {{ kind: AnswerKind, type: string }}
 */
export function answerKind(element, given = "") {
  const type = given.split(";")[0].trim().toLowerCase();
  if (element instanceof Uint8Array) {
    const picture = type.startsWith("image/") ? type : type ? "" : pictureType(element);
    return picture ? { kind: "picture", type: picture } : { kind: "binary", type };
  }
  if (type === "image/svg+xml") return { kind: "picture", type };
  if ((!type || /json$/.test(type)) && parsed(String(element)) !== undefined) return { kind: "json", type: type || "application/json" };
  return { kind: "text", type: type || "text/plain" };
}

/**
 * Returns the view of a handler's answer.
 * @param {Output} output
 * @param {HandlerParameters} parameters
 * @returns {HTMLElement}
 */
export function handlerView(output, parameters) {
  const elements = Array.from(output.data);
  const parts = elements.map((element, index) => one(element, parameters, elements.length > 1 ? `answer-${index}` : "answer"));
  return el("section", { class: "output", "data-output": output.name }, head(parameters), parts.length ? parts : el("p", { class: "hint" }, "The handler answered nothing."));
}

/** @param {HandlerParameters} parameters */
function head({ content_type: type, torchserve_status: status = 200, torchserve_reason: reason = "", torchserve_headers: headers = "[]" }) {
  const failed = status >= 400;
  const rows = [
    ["Content type", type ?? "none set"],
    .../** @type {[string, string][]} */ (parsed(headers) ?? []),
  ];
  return el(
    "div",
    { class: "stack tight" },
    el("div", { class: "row" }, el("span", { class: `tag num ${failed ? "failed" : ""}`, "data-status": String(status) }, `${status}${reason ? ` ${reason}` : ""}`), el("span", { class: "hint" }, status === 200 ? "the handler’s status" : "set by the handler; over V2 the answer itself is a 200")),
    el("dl", { class: "facts" }, rows.flatMap(([name, value]) => [el("dt", {}, String(name)), el("dd", { class: "mono break" }, String(value))])),
  );
}

/**
 * @param {Element} element
 * @param {HandlerParameters} parameters
 * @param {string} name the name of the file to save
 */
function one(element, parameters, name) {
  const { kind, type } = answerKind(element, parameters.content_type);
  const bytes = element instanceof Uint8Array ? new Uint8Array(element) : new TextEncoder().encode(String(element));
  const save = el("button", { class: "button small", type: "button", click: () => saveFile(`${name}.${ENDINGS[type] ?? "bin"}`, bytes, type || undefined) }, icon("file"), `Download (${size(bytes.length)})`);
  return el("div", { class: "stack tight", "data-kind": kind }, shownAs(kind, element, bytes, type), el("div", { class: "row" }, save));
}

/**
 * @param {AnswerKind} kind
 * @param {Element} element
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @param {string} type
 */
function shownAs(kind, element, bytes, type) {
  if (kind === "binary") return el("p", {}, `${size(bytes.length)} of ${type || "binary data"}.`);
  if (kind === "picture") return pictureView(bytes, type, "The handler’s answer");
  const text = kind === "json" ? JSON.stringify(parsed(String(element)), null, 2) : String(element);
  const left = text.length - TEXT_MOST;
  return el("div", { class: "code" }, el("pre", { tabindex: "0", "aria-label": "The handler’s answer" }, left > 0 ? `${text.slice(0, TEXT_MOST)}\n… ${left} more characters` : text));
}

/**
 * Returns the value of a JSON text; undefined if the text is not JSON.
 * @param {string} text
 */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
