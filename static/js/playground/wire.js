// The V2 inference protocol's request: JSON, and behind it the binary data that JSON cannot carry.
// https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and Triton's binary data extension.

/**
 * @typedef {number | string | boolean} Element one element of a tensor, as JSON carries it
 * @typedef {{ [name: string]: Element }} Parameters of a request
 */

/**
 * What a tensor holds: flat elements, or the bytes of the one element of a BYTES tensor.
 * @typedef {object} TensorValue
 * @property {number[]} shape
 * @property {Element[]} [data] flat, row by row
 * @property {Uint8Array} [bytes] in place of `data`
 *
 * @typedef {TensorValue & { name: string, datatype: string }} Tensor
 *
 * @typedef {object} RequestJson
 * @property {object[]} inputs
 * @property {Parameters} [parameters]
 */

/**
 * A request as fetch sends it.
 * @typedef {object} EncodedRequest
 * @property {RequestJson} json what of it is JSON
 * @property {Blob | Uint8Array<ArrayBuffer>} content
 * @property {Record<string, string>} headers
 * @property {number} binaryLength how many bytes stand behind the JSON
 */

/** The parameter that asks the server to say where a request's time went. */
export const TIMING = "slipway_timing";

/**
 * Returns a request's JSON and the binary data behind it: each element after its length (4 bytes, little endian).
 * @param {Tensor[]} inputs
 * @param {Parameters} [parameters] left out of the JSON where there is none
 * @returns {{ json: RequestJson, binary: Uint8Array<ArrayBuffer>[] }}
 */
export function requestBody(inputs, parameters = {}) {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const binary = [];
  const rows = inputs.map(({ name, datatype, shape, data, bytes }) => {
    if (!bytes) return { name, datatype, shape, data };
    const element = new Uint8Array(4 + bytes.length);
    new DataView(element.buffer).setUint32(0, bytes.length, true);
    element.set(bytes, 4);
    binary.push(element);
    return { name, datatype, shape, parameters: { binary_data_size: element.length } };
  });
  return { json: Object.keys(parameters).length ? { inputs: rows, parameters } : { inputs: rows }, binary };
}

/**
 * Returns a request as fetch sends it.
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

const SCALAR = /(?:-?[\d.eE+-]+|"[^"]{0,24}"|true|false|null)/.source;
const LIST_OF_SCALARS = new RegExp(`\\[\\s*(${SCALAR}(?:,\\s*${SCALAR})*)\\s*\\]`, "g");

/**
 * Writes JSON for reading: lists of numbers and short texts stay on one line, and what is long is cut.
 * @param {unknown} value
 * @param {number} [most] characters
 * @returns {string}
 */
export function readable(value, most = 4000) {
  const text = JSON.stringify(value, null, 2).replace(LIST_OF_SCALARS, (_, list) => `[${list.replace(/\s+/g, " ")}]`);
  return text.length > most ? `${text.slice(0, most)}\n… ${text.length - most} more characters` : text;
}
