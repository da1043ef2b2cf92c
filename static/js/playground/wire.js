// Requests and answers of the V2 inference protocol: JSON, followed by binary data that JSON cannot carry.
// https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and Triton's binary data extension.

import { fitsJson, fromBinary, toBinary } from "./datatypes.js";

/**
 * @typedef {import("./datatypes.js").Element} Element
 * @typedef {import("./datatypes.js").Elements} Elements
 * @typedef {import("./origins.js").Origin} Origin
 * @typedef {number | string | boolean} Parameter
 * @typedef {{ [name: string]: Parameter }} Parameters the parameters of a request
 */

/**
 * The value of a tensor.
 * @typedef {object} TensorValue
 * @property {number[]} shape
 * @property {Elements} data
 * @property {Origin} [origin] the origin from which code can generate the elements, if there is one
 *
 * @typedef {TensorValue & { name: string, datatype: string }} Tensor
 *
 * @typedef {object} RequestJson
 * @property {object[]} inputs
 * @property {Parameters} [parameters]
 */

/**
 * A request in the form that fetch sends.
 * @typedef {object} EncodedRequest
 * @property {RequestJson} json the JSON part
 * @property {Blob | Uint8Array<ArrayBuffer>} content
 * @property {Record<string, string>} headers
 * @property {number} binaryLength the number of bytes after the JSON
 */

/**
 * An output in the server's answer.
 * @typedef {object} Output
 * @property {string} name
 * @property {string} datatype
 * @property {number[]} shape
 * @property {Elements} data
 *
 * @typedef {{ [name: string]: unknown, model_version?: string, outputs: Output[], parameters?: Record<string, unknown> }} Answer
 */

/** The parameter that asks the server for the times of a request. */
export const TIMING = "slipway_timing";
/** The parameter that asks for outputs as binary data. Binary data is exact, and smaller for large outputs. */
export const BINARY = "binary_data_output";

const JSON_MOST = 4096; // the most elements of a tensor in JSON

/**
 * Returns the bytes of a tensor that follow the JSON; null if its elements are in the JSON.
 * @param {Tensor} tensor
 */
export function binaryOf({ datatype, data }) {
  return data.length <= JSON_MOST && fitsJson(datatype, data) ? null : toBinary(datatype, data);
}

/**
 * Returns the JSON of a request and the binary data that follows it.
 * @param {Tensor[]} inputs
 * @param {Parameters} [parameters] left out of the JSON if there are none
 * @returns {{ json: RequestJson, binary: Uint8Array<ArrayBuffer>[] }}
 */
export function requestBody(inputs, parameters = {}) {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const binary = [];
  const rows = inputs.map((tensor) => {
    const { name, datatype, shape, data } = tensor;
    const bytes = binaryOf(tensor);
    if (!bytes) return { name, datatype, shape, data: Array.from(data) };
    binary.push(bytes);
    return { name, datatype, shape, parameters: { binary_data_size: bytes.length } };
  });
  return { json: Object.keys(parameters).length ? { inputs: rows, parameters } : { inputs: rows }, binary };
}

/**
 * Returns a request in the form that fetch sends.
 * @param {Tensor[]} inputs
 * @param {Parameters} [parameters]
 * @returns {EncodedRequest}
 */
export function encode(inputs, parameters) {
  const { json, binary } = requestBody(inputs, parameters);
  const head = new TextEncoder().encode(JSON.stringify(json));
  if (!binary.length) return { json, content: head, headers: { "Content-Type": "application/json" }, binaryLength: 0 };
  const headers = {
    "Content-Type": "application/octet-stream",
    "Inference-Header-Content-Length": String(head.length),
  };
  const binaryLength = binary.reduce((sum, part) => sum + part.length, 0);
  return { json, content: new Blob([head, ...binary]), headers, binaryLength };
}

/**
 * Reads an answer: its JSON, and the elements of each output from the JSON or from the binary data.
 * @param {Uint8Array<ArrayBuffer>} body
 * @param {string | null} headLength the header Inference-Header-Content-Length
 * @returns {Answer}
 */
export function decode(body, headLength) {
  const length = Number(headLength ?? body.length);
  const answer = JSON.parse(new TextDecoder().decode(body.subarray(0, length)));
  let at = length;
  const outputs = answer.outputs.map((/** @type {Output & { parameters?: { binary_data_size?: number } }} */ output) => {
    const { name, datatype, shape, parameters } = output;
    const bytes = parameters?.binary_data_size;
    if (bytes === undefined) return { name, datatype, shape, data: output.data };
    at += bytes;
    return { name, datatype, shape, data: fromBinary(datatype, body.slice(at - bytes, at)) };
  });
  return { ...answer, outputs };
}

/**
 * Returns a tensor in the form of examples: V2's JSON, with base64 for elements that JSON cannot carry.
 * @param {Tensor} tensor
 */
export function kept({ name, datatype, shape, data }) {
  if (fitsJson(datatype, data)) return { name, datatype, shape, data: Array.from(data) };
  return { name, datatype, shape, base64: base64(toBinary(datatype, data)) };
}

/**
 * Returns the elements of a tensor in the form of examples.
 * @param {{ datatype: string, data?: Elements, base64?: string }} row
 * @returns {Elements}
 */
export function unkept({ datatype, data, base64: text }) {
  if (text !== undefined) return fromBinary(datatype, Uint8Array.from(atob(text), (one) => one.charCodeAt(0)));
  /** @type {Record<string, number>} */
  const words = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };
  const given = Array.from(data ?? []);
  return datatype === "BYTES" ? given : given.map((one) => (typeof one === "string" ? words[one] : one));
}

/** @param {Uint8Array} bytes */
export function base64(bytes) {
  const parts = [];
  for (let at = 0; at < bytes.length; at += 8192) parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return btoa(parts.join(""));
}

const LIST_MOST = 200; // the most elements of a list that are shown
const TEXT = /"(?:[^"\\]|\\.)*"/.source;
const SCALAR = /(?:-?[\d.eE+-]+|"(?:[^"\\]|\\.){0,24}"|true|false|null)/.source;
// A text is matched as a whole, so that no part of a text counts as a list.
const LIST_OF_SCALARS = new RegExp(`${TEXT}|\\[\\s*(${SCALAR}(?:,\\s*${SCALAR})*)\\s*\\]`, "g");
const SPACE = new RegExp(`(${TEXT})|\\s+`, "g");

/**
 * Writes JSON for people: lists of numbers and short texts stay on one line, and long lists and texts are cut.
 * @param {unknown} value
 * @param {number} [most] the most characters of the result
 * @param {number} [listed] the most elements of a list
 * @returns {string}
 */
export function readable(value, most = 4000, listed = LIST_MOST) {
  const shorter = (/** @type {string} */ _, /** @type {unknown} */ one) => shortened(one, listed);
  const text = JSON.stringify(value, shorter, 2).replace(LIST_OF_SCALARS, (whole, list) => (list ? `[${onOneLine(list)}]` : whole));
  return text.length > most ? `${text.slice(0, most)}\n… ${text.length - most} more characters` : text;
}

/** @param {string} list a list of scalars in JSON */
function onOneLine(list) {
  return list.replace(SPACE, (_, text) => text ?? " ");
}

/**
 * Returns a value for JSON.stringify: a long list is cut, and its last element says how many are left out.
 * @param {unknown} value
 * @param {number} most the most elements
 */
function shortened(value, most) {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  if (!Array.isArray(value) && !ArrayBuffer.isView(value)) return value;
  const list = /** @type {ArrayLike<unknown>} */ (value);
  const rounded = value instanceof Float32Array ? (/** @type {number} */ one) => Number(one.toPrecision(8)) : null;
  const shown = list.length > most ? Array.prototype.slice.call(list, 0, most) : Array.from(list);
  const written = rounded ? /** @type {number[]} */ (shown).map(rounded) : shown;
  return list.length > most ? [...written, `… ${list.length - most} more`] : written;
}
